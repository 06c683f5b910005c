"""Write the figures of the documentation from the stored results: no figure of a benchmark is typed by hand.

python -m benchmarks.tables             rewrite every marked block of README.md and docs
python -m benchmarks.tables --check     say which blocks differ from the results, and exit with 1 if one does

A block begins with `<!-- figures: NAME -->` and ends with `<!-- end of figures -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.games_table import markdown as games_markdown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_BLOCK = re.compile(r"(<!-- figures: (.+?) -->\n).*?(<!-- end of figures -->)", re.S)

Record = dict[str, Any]


def rewritten(text: str) -> str:
    """A page with every marked block as the program writes it."""

    def block(found: re.Match[str]) -> str:
        name = found[2]
        if name not in WRITERS:
            raise SystemExit(f"no figures are called {name!r}: choose from {', '.join(WRITERS)}")
        return f"{found[1]}{WRITERS[name]()}\n{found[3]}"

    return _BLOCK.sub(block, text)


def pages() -> list[Path]:
    """Every page that may hold figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main(arguments: Sequence[str]) -> int:
    stale = [page for page in pages() if rewritten(page.read_text()) != page.read_text()]
    for page in stale:
        sys.stdout.write(f"{page.relative_to(ROOT)}\n")
        if "--check" not in arguments:
            page.write_text(rewritten(page.read_text()))
    return 1 if stale and "--check" in arguments else 0


def table(header: str, lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; `header` is its first line, with `:` before columns that are set to the right."""
    names = [name.strip() for name in header.split("|")]
    rule = ["--:" if name.startswith(":") else "---" for name in names]
    rows = [[name.removeprefix(":") for name in names], rule, *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def measured(records: Sequence[Record]) -> str:
    """One sentence that says where rows were measured."""
    one = records[0]
    if "commit" not in one:
        return "Measured before results carried their commit."
    machine, versions = one["machine"], ", ".join(f"{name} {number}" for name, number in one["versions"].items())
    loads = [load for own in records for load in (own.get("load_start"), own.get("load_end")) if load is not None]
    load = f", load {min(loads):g} to {max(loads):g}" if loads else ""
    changed = " with changes" if one["dirty"] else ""
    quick = " A quick run, a single short call of each side: it shows that rows work, not how fast they are."
    return (
        f"Measured at commit {one['commit'][:10]}{changed} on {one['date'][:10]}: {machine['cpu']}, "
        f"{machine['cores']} cores{load}; {versions}.{quick if one.get('quick') else ''}"
    )


def rows(*names: str) -> list[Record]:
    """The stored rows whose names begin with one of these; all of them without names."""
    records = json.loads((RESULTS / "latest.json").read_text())
    return [own for own in records if not names or own["name"].startswith(names)]


def rows_table(*names: str) -> str:
    """Ratio, goal and counted work of rows."""
    records = rows(*names)

    def line(own: Record) -> list[str]:
        ratio = f"skipped: {own['skipped']}" if own["skipped"] else f"failed: {own['failed']}"
        if own["ratio"] is not None:
            ratio = f"ran, not measured ({own['unit']})" if own["quick"] else f"{own['ratio']:.3g} {own['unit']}"
        goal = "" if own["goal"] is None else f"{'at most' if own['at_most'] else 'at least'} {own['goal']:g}"
        counts = own["sides"][0]["counts"] if own["sides"] else {}
        work = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in counts.items())
        backends = " / ".join(str(side["backend"]) for side in own["sides"] if side["backend"])
        return [own["name"], ratio, goal + ("" if own["good"] else " (missed)"), work, backends]

    columns = "row | :ratio | goal | work of a call, on each side | backend in use"
    return f"{measured(records)}\n\n{table(columns, map(line, records))}"


def market_learning() -> str:
    """The studies of learning over many worlds."""
    studies = json.loads((RESULTS / "market_learning.json").read_text())

    def lines() -> Iterable[list[str]]:
        for study, held in studies.items():
            for own in held["found"]:
                ways = [key for key in own if key not in ("figure", "difference", "seeds")]
                mean, low, high = own["difference"]
                difference = f"{mean:+.2f}" if low is None else f"{mean:+.2f} [{low:.2f}, {high:.2f}]"
                means = [f"{way}: {own[way]:.2f}" for way in ways]
                yield [f"{study}, {own['seeds']} seeds", own["figure"], *means, difference]

    notes = sorted({held["measured"] for held in studies.values()})
    return f"{' '.join(notes)}\n\n{table('study | figure | :one way | :other way | difference', lines())}"


def games() -> str:
    """Trained, random and scripted players of every game."""
    records = json.loads((RESULTS / "games_table.json").read_text())
    kinds = ("trained", "random", "scripted", "selfish")

    def line(own: Record) -> list[str]:
        found = [own[kind]["sustainability"] if kind in own else None for kind in kinds]
        return [own["game"], *("" if one is None else "{:.1f} [{:.1f}, {:.1f}]".format(*one) for one in found)]

    social = table("game | sustainability, trained | random | scripted | scripted, selfish", map(line, records))
    return f"{measured(records)}\n\n{games_markdown(records)}\n\n{social}"


def orders() -> str:
    """How well orders are kept."""

    def line(path: Path) -> list[str]:
        red, weight, episodes = path.stem.removeprefix("order_compliance_").rsplit("_", 2)
        found = json.loads(path.read_text())
        learnt = [own["episodes"] for own in found if own["learnt"]]
        last = [own["last"] for own in found]
        return [
            red,
            weight,
            episodes,
            f"{len(learnt)} of {len(found)}, the last after {max(learnt)}",
            f"{np.mean(last):.2f} ({min(last):.2f})",
            f"{np.mean([own['evaluated'] for own in found]):.2f}",
            f"{sum(own['seconds'] for own in found):.0f}",
        ]

    paths = sorted(RESULTS.glob("order_compliance_*.json"), key=lambda path: (int(path.stem.split("_")[-1]), path.stem))
    columns = (
        "attacker | :weight | :episodes allowed | :learnt | compliance at the end, mean (least) | "
        ":acting greedily afterwards, mean | :CPU seconds"
    )
    return f"{measured(json.loads(paths[0].read_text()))}\n\n{table(columns, map(line, paths))}"


def one_or_many() -> str:
    """One environment beside 25, at equal transitions."""
    found = json.loads((RESULTS / "one_or_many.json").read_text())
    one, many = found["1"], found["25"]
    batches = [found["transitions"] // (100 * count) for count in (1, 25)]
    lines = [
        ["updates (4 a batch)", *(str(4 * count) for count in batches)],
        ["variance of a batch's policy gradient", *(f"{own['gradient_variance']:.3g}" for own in (one, many))],
        ["final return, mean over seeds", *(f"{own['final_return_mean']:.0f}" for own in (one, many))],
        ["final return, deviation over seeds", *(f"{own['final_return_deviation']:.0f}" for own in (one, many))],
        ["CPU seconds", *(f"{own['seconds']:.1f}" for own in (one, many))],
    ]
    noise, spread, cost = (one[key] / many[key] for key in ("gradient_variance", "final_return_deviation", "seconds"))
    return (
        f"{measured([found])}\n\n{table(' | :1 environment | :25 environments', lines)}\n\n"
        f"The gradient of 25 is {noise:.0f} times less noisy, final returns spread {spread:.1f} times less far, and a "
        f"transition costs {cost:.0f} times less."
    )


WRITERS: dict[str, Callable[[], str]] = {
    "all rows": rows_table,
    "importance": lambda: rows_table("importance:", "sampling:"),
    "market": lambda: rows_table("market:"),
    "market learning": market_learning,
    "games": games,
    "orders": orders,
    "one or many": one_or_many,
    "network": lambda: rows_table("network defence", "25 network", "order search", "the documented search"),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
