"""Draw the packages and their imports as a picture: `python -m tools.architecture`.

The rows are the layers of the import contract in pyproject.toml. An arrow is an import that no longer path of imports
implies, so that the picture stays readable. A test fails if the stored picture does not show today's imports.
"""

from __future__ import annotations

import tomllib
from itertools import combinations
from pathlib import Path
from xml.sax.saxutils import escape

import grimp

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
PACKAGE = "parallel_agents"
WIDTH, BOX, HEIGHT, GAP = 860, 172, 34, 40
STYLE = (
    "text{font:13px sans-serif;fill:#1d2433}rect{fill:#eef3fb;stroke:#5577aa}"
    "path{fill:none;stroke:#8a97ad;stroke-width:1.3}"
)


def layers() -> list[list[str]]:
    """Return the packages of each layer, from top to bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    return [[name.strip().removeprefix(f"{PACKAGE}.") for name in row.split("|")] for row in contract["layers"]]


def imports(packages: set[str]) -> set[tuple[str, str]]:
    """Return the imports between packages that no longer path implies, as (importer, imported)."""
    graph = grimp.build_graph(PACKAGE)
    found: set[tuple[str, str]] = set()
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            pair = _package(importer), _package(imported)
            if pair[0] != pair[1] and packages >= set(pair):
                found.add(pair)
    return {pair for pair in found if not _path_of_two_or_more(pair, found)}


def _package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _path_of_two_or_more(pair: tuple[str, str], pairs: set[tuple[str, str]]) -> bool:
    """Return True if another path of imports leads from one package to the other."""
    first, last = pair
    reached, todo = set(), [b for a, b in pairs if a == first and b != last]
    while todo:
        package = todo.pop()
        if package not in reached:
            reached.add(package)
            todo += [b for a, b in pairs if a == package]
    return last in reached


def draw(rows: list[list[str]], pairs: set[tuple[str, str]]) -> str:
    """Return the picture as SVG."""
    place: dict[str, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        for column, name in enumerate(row):
            place[name] = (WIDTH * (2 * column + 1) / (2 * len(row)), 10 + level * (HEIGHT + GAP))
    parts = []
    for first, last in sorted(pairs):
        (x0, y0), (x1, y1) = place[first], place[last]
        y0 += HEIGHT
        around = y1 - y0 > GAP  # past boxes of rows between
        bend = WIDTH * 0.4 * (1 if x0 > WIDTH / 2 else -1) if around else 0.0
        mid = (y0 + y1) / 2
        parts.append(
            f'<path d="M{x0:.0f} {y0}C{x0 + bend:.0f} {mid:.0f} {x1 + bend:.0f} {mid:.0f} {x1:.0f} {y1}" '
            f'marker-end="url(#a)"><title>{escape(first)} imports {escape(last)}</title></path>'
        )
    for name, (x, y) in place.items():
        parts.append(
            f'<rect x="{x - BOX / 2:.0f}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="6"/>'
            f'<text x="{x:.0f}" y="{y + 22}" text-anchor="middle">{escape(name)}</text>'
        )
    height = 20 + len(rows) * (HEIGHT + GAP) - GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="The packages of {PACKAGE}, importers above what they import"><style>{STYLE}</style>'
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M1 1L7 4L1 7" /></marker></defs><rect width="100%" height="100%" style="fill:#fff;stroke:none"/>'
    )
    return head + "\n".join(parts) + "</svg>\n"


def picture() -> str:
    """Return the picture of the package as it is now."""
    rows = layers()
    assert all(not set(a) & set(b) for a, b in combinations(rows, 2)), "a package stands in two layers"
    return draw(rows, imports({name for row in rows for name in row}))


if __name__ == "__main__":
    PICTURE.write_text(picture())
