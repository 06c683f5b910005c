"""Write runs as one HTML file that needs nothing else: no network, no server, no other file.

It is the live page with its data inside. Its Content-Security-Policy names the hashes of the two scripts, so that
nothing else in the file can run, and allows no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import plain, write_atomically
from parallel_agents.tracking.live_page import read_asset
from parallel_agents.tracking.plots import Panel, draw_panel, write_csv
from parallel_agents.tracking.run_view import RunView, Section, compare_runs, open_views

MAX_BYTES = 3_000_000
_MAX_PICTURE_BYTES = 1_200_000


def write_report(paths: Sequence[Path], out: Path, *, plots: Path | None = None) -> dict[str, Any]:
    """Write the report of these runs, and with `plots` every plot as PNG, SVG and CSV; return what was written."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {out}: give a file name that ends in .html")
    views = open_views(paths)
    try:
        for view in views:
            view.refresh()
        head = compare_runs(views) if sum(len(view.groups()) for view in views) > 1 or len(views) > 1 else []
        parts = [_run_sections(view, alone=len(views) == 1) for view in views]
        title = views[0].name if len(views) == 1 else f"{len(views)} runs"
        notices = [f"{view.name}: {notice}" for view in views for notice in view.notices()]
    finally:
        for view in views:
            view.close()
    page = _page(title, [*head, *(section for part in parts for section in part)], notices)
    while len(page) > MAX_BYTES and parts:
        parts.pop()  # the comparison covers all runs; details are left out where they do not fit
        notices = [*notices[: len(views)], f"details of {len(views) - len(parts)} runs are left out to stay below 3 MB"]
        page = _page(title, [*head, *(section for part in parts for section in part)], notices)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, [page])
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}; give another --out") from error
    written = _write_plots([*head, *(section for part in parts for section in part)], plots) if plots else []
    return {"file": str(out), "bytes": len(page), "runs": [view.name for view in views], "plots": written}


def _run_sections(view: RunView, *, alone: bool) -> list[Section]:
    """Return the sections of a run with its newest picture inside."""
    sections = view.sections()
    for section in sections:
        for panel in section["panels"]:
            if panel["kind"] == "image":
                _embed(view, panel)
        section["panels"] = [panel for panel in section["panels"] if panel["kind"] != "image" or "data" in panel]
        if not alone:
            section["title"] = f"{view.name}: {section['title']}".removesuffix(": ")
    return sections


def _embed(view: RunView, panel: Panel) -> None:
    """Put the newest episode that is small enough into its panel."""
    for name in reversed(panel.pop("names")):
        try:
            content = view.picture(name)
        except OSError:
            continue
        if len(content) <= _MAX_PICTURE_BYTES:
            panel["data"] = "data:image/gif;base64," + base64.b64encode(content).decode()
            panel["note"] = f"recorded in epoch {int(re.sub(r'[^0-9]', '', name))}"
            return
    if now := panel.pop("now"):
        panel["data"], panel["note"] = now["data"], f"at the end of {now['label']}"


def _page(title: str, sections: Sequence[Section], notices: Sequence[str]) -> bytes:
    """Return the whole file."""
    scripts = [read_asset(name).decode() for name in ("uplot.min.js", "page.js")]
    styles = [read_asset(name).decode() for name in ("uplot.min.css", "page.css")]
    made = f"written {datetime.now().astimezone().isoformat(sep=' ', timespec='seconds')} by parallel-agents report"
    document = plain({"title": title, "sections": sections, "notices": list(notices)[:50], "footer": made})
    data = json.dumps(document, separators=(",", ":"), allow_nan=False)
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    html = read_asset("index.html").decode()
    head, _, rest = html.partition("<!-- styles -->")
    middle, _, rest = rest.partition("<!-- end -->")[2].partition("<!-- scripts -->")
    tail = rest.partition("<!-- end -->")[2]
    inside = [
        head.replace("<meta charset", f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<meta charset'),
        *(f"<style>{style}</style>\n" for style in styles),
        middle,
        f'<script id="data" type="application/json">{data}</script>\n',
        *(f"<script>{script}</script>\n" for script in scripts),
        tail,
    ]
    return "".join(inside).encode()


def _hashes(texts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _write_plots(sections: Sequence[Section], folder: Path) -> list[str]:
    """Write every plot as PNG, SVG and CSV, and every table as CSV."""
    written: list[str] = []
    for section in sections:
        for panel in section["panels"]:
            if panel["kind"] not in ("chart", "intervals", "scatter", "table"):
                continue
            words = re.sub(r"[^\w]+", "_", f"{section['title']} {panel['title']}", flags=re.ASCII).strip("_").lower()
            stem = folder / f"{len(written) + 1:03d}_{words[:80]}"
            for suffix in () if panel["kind"] == "table" else (".png", ".svg"):
                draw_panel(panel, stem.with_suffix(suffix))
            write_csv(panel, stem.with_suffix(".csv"))
            written.append(stem.name)
    return written
