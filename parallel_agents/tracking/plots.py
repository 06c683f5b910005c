"""Panels: plots, tables and pictures as plain values, drawn by the live page, the report and as PNG, SVG or CSV.

A panel is a dictionary of JSON values, so that a run can leave it in a file and everybody draws it alike:

    chart      lines over x, each with its values and, if known, the bounds of an interval
    intervals  an estimate and its interval for each of several names
    scatter    points, coloured by a value
    table      columns and rows
    facts      pairs of a name and a value
    image      the address of a picture
    timeline   spans in lanes
    network    hosts with the levels of each turn

`draw_panel` writes the first three as pictures; it needs matplotlib (the extra `report`), imported when it is called.
"""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.core.files import plain, write_atomically
from parallel_agents.tracking.statistics import Floats, Interval, mean_half_width

Panel = dict[str, Any]
COLOURS = ("#0f6fc6", "#d9730d", "#2e8b57", "#c2379a", "#7a5af5", "#b8860b", "#0e8f9f", "#d0342c", "#5c6b7a", "#7a8b00")
"""Legible on white and on black; the page uses the same, in the same order."""
LIVE_PICTURE = "now.json"
"""The file of `write_picture`."""


def numbers(values: ArrayLike, digits: int = 6) -> list[float | None]:
    """Return numbers as JSON holds them: rounded to `digits` digits, None for NaN and infinity.

    >>> numbers([1 / 3, float("nan"), 2.0])
    [0.333333, None, 2.0]
    """
    array = np.asarray(values, np.float64).ravel()
    known = np.isfinite(array)
    size = np.abs(np.where(known & (array != 0.0), array, 1.0))
    places = digits - 1 - np.floor(np.log10(size))  # behind the point; powers of ten up to 22 are exact
    scale = 10.0 ** np.clip(np.abs(places), 0, 300)
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.where(places >= 0, np.rint(array * scale) / scale, np.rint(array / scale) * scale).tolist()
    return rounded if known.all() else [value if ok else None for value, ok in zip(rounded, known, strict=True)]


def line(name: str, values: ArrayLike, low: ArrayLike | None = None, high: ArrayLike | None = None) -> Panel:
    """Return one line of a chart, with the bounds of its interval if they are known."""
    result: Panel = {"name": name, "values": numbers(values)}
    if low is not None and high is not None and np.isfinite(low).any():
        result |= {"low": numbers(low), "high": numbers(high)}
    return result


def with_interval(name: str, samples: Floats) -> Panel:
    """Return a line of the mean of (samples, p) with its 95 % t-interval."""
    mean, half = mean_half_width(samples)
    return line(name, mean, mean - half, mean + half)


def chart(
    title: str, x: ArrayLike, lines: Sequence[Panel], *, xlabel: str = "epoch", ylabel: str = "", note: str = ""
) -> Panel:
    """Return a panel of lines over x. A line without `x` of its own has one value for each entry of x."""
    return {
        "kind": "chart", "title": title, "x": numbers(x, 9), "lines": list(lines), "xlabel": xlabel, "ylabel": ylabel,
        "note": note,
    }  # fmt: skip


def intervals(
    title: str, rows: Mapping[str, Interval], *, xlabel: str, reference: float | None = None, note: str = ""
) -> Panel:
    """Return a panel with an estimate and its interval for each name; `reference` is a vertical line."""
    entries = [dict(zip(("name", "estimate", "low", "high"), (name, *numbers(row)), strict=True))
               for name, row in rows.items()]  # fmt: skip
    return {
        "kind": "intervals", "title": title, "rows": entries, "xlabel": xlabel, "reference": reference, "note": note,
    }  # fmt: skip


def scatter(
    title: str, points: Iterable[Mapping[str, Any]], *, xlabel: str, ylabel: str, value: str = "", note: str = ""
) -> Panel:
    """Return a panel of points with x, y, name, group, size and value; `value` says what their colour means."""
    return {
        "kind": "scatter", "title": title, "points": [dict(point) for point in points], "xlabel": xlabel,
        "ylabel": ylabel, "value": value, "note": note,
    }  # fmt: skip


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, note: str = "") -> Panel:
    """Return a panel with rows of text and numbers."""
    return {"kind": "table", "title": title, "columns": list(columns), "rows": [list(row) for row in rows],
            "note": note}  # fmt: skip


def facts(title: str, entries: Mapping[str, Any]) -> Panel:
    """Return a panel with names and values."""
    return {"kind": "facts", "title": title, "entries": [[name, str(value)] for name, value in entries.items()]}


def write_section(folder: Path, name: str, title: str, panels: Sequence[Panel]) -> None:
    """Leave panels of an application in its run folder, as `NAME.panels.json`, for the live page and the report."""
    content = json.dumps(plain({"title": title, "panels": list(panels)}), allow_nan=False)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.panels.json", [content.encode()], sync=False)


def write_picture(folder: Path, image: NDArray[np.uint8], *, epoch: int) -> None:
    """Leave a picture (height, width, 3) of a world as it is now in the run folder, for the live page."""
    content = json.dumps({"epoch": epoch, "png": base64.b64encode(encode_png(image)).decode()})
    write_atomically(folder / LIVE_PICTURE, [content.encode()], sync=False)


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """Return a picture (height, width, 3) as PNG, without any other package."""
    height, width, _ = image.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)  # no filter
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),  # 8 bits each of red, green and blue
        (b"IDAT", zlib.compress(lines.tobytes(), 1)),
        (b"IEND", b""),
    )
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# -- learning curves ---------------------------------------------------------------------------------------------------


def learning_curve(
    curves: Mapping[str, ArrayLike],
    out: Path | None = None,
    *,
    over: str = "agents",
    lines: Mapping[str, float] | None = None,
    title: str = "",
    points: int = 200,
    x: Mapping[str, ArrayLike] | None = None,
    xlabel: str = "epoch",
    ylabel: str = "mean reward",
) -> Panel:
    """Return a chart of the mean of each curve, (samples, epochs), with 95 % t-intervals over the samples.

    With `out`, draw it into that file. `over` names the samples (agents, seeds). `lines` are horizontal lines, such as
    the mean of a random policy. A curve with more than `points` epochs is averaged over neighbouring epochs first. `x`
    gives another place (epochs,) than its number to each epoch of a curve, such as its steps.
    """
    tables = {label: _checked(label, curve) for label, curve in curves.items()}
    if not tables:
        raise ShapeError("a plot of no curve at all was asked for: give at least one (samples, epochs)")
    drawn = []
    for label, values in tables.items():
        places, means = bin_epochs(values, points)
        if x is not None:
            places = bin_epochs(_checked(label, np.asarray(x[label])[None]), points)[1][0]
        drawn.append(with_interval(label, means) | {"x": numbers(places, 9)})
    ends = [min(entry["x"][0] for entry in drawn), max(entry["x"][-1] for entry in drawn)]
    for label, height in (lines or {}).items():
        drawn.append(line(label, [height, height]) | {"x": ends, "dashed": True})
    panel = chart(title, [], drawn, xlabel=xlabel, ylabel=f"{ylabel}, 95% interval over {over}")
    if out is not None:
        draw_panel(panel, out)
    return panel


def bin_epochs(table: Floats, points: int) -> tuple[Floats, Floats]:
    """Average (samples, epochs) over bins of epochs: return the middle epochs (p,) and the means (samples, p).

    p = min(points, epochs)

    >>> epochs, means = bin_epochs(np.array([[1.0, 3.0, 5.0, 7.0]]), 2)
    >>> epochs.tolist(), means.tolist()
    ([1.5, 3.5], [[2.0, 6.0]])
    """
    if points < 1:
        raise ConfigError(f"{points} points were asked for: give at least 1")
    count = table.shape[1]
    edges = np.linspace(0, count, min(points, count) + 1).astype(np.intp)
    widths = np.diff(edges)
    return (edges[:-1] + 1 + edges[1:]) / 2, np.add.reduceat(table, edges[:-1], axis=1) / widths


def _checked(label: str, curve: ArrayLike) -> Floats:
    values = np.asarray(curve, np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ShapeError(f"curve {label!r} has shape {values.shape}: give (samples, epochs), neither of them 0")
    if not np.isfinite(values).all():
        raise NonFiniteError(f"curve {label!r} holds NaN or infinity: leave those epochs out")
    return values


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw_panel(panel: Panel, out: Path) -> None:
    """Draw a chart, intervals or a scatter into a .png, .svg or .pdf file."""
    rows = len(panel["rows"]) if panel["kind"] == "intervals" else 0
    figure = new_figure(7.5, 4.5 if not rows else 0.28 * rows + 1.6)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel=panel["xlabel"], ylabel=panel.get("ylabel", ""), title=panel["title"])
    {"chart": _draw_chart, "intervals": _draw_intervals, "scatter": _draw_scatter}[panel["kind"]](axes, panel)
    save_figure(figure, out)


def _draw_chart(axes: Any, panel: Panel) -> None:
    named = 0
    for place, entry in enumerate(panel["lines"]):
        x, values = _floats(entry.get("x") or panel["x"]), _floats(entry["values"])
        colour = "0.4" if entry.get("dashed") else "0.1" if entry.get("bold") else COLOURS[place % len(COLOURS)]
        style: dict[str, Any] = {"linewidth": 2.2 if entry.get("bold") else 1.2}
        if entry.get("dashed"):
            style = {"linestyle": "--", "linewidth": 1}
        if entry.get("points"):
            style = {"linestyle": "none", "marker": "o", "markersize": 4}
        axes.plot(x, values, label=entry["name"], color=colour, **style)
        named += bool(entry["name"])
        if "low" in entry:
            axes.fill_between(x, _floats(entry["low"]), _floats(entry["high"]), color=colour, alpha=0.2, linewidth=0)
    if named:
        axes.legend(frameon=False, fontsize=8 if named > 6 else None)


def _draw_intervals(axes: Any, panel: Panel) -> None:
    rows = panel["rows"][::-1]
    for place, row in enumerate(rows):
        estimate, low, high = (math.nan if row[key] is None else row[key] for key in ("estimate", "low", "high"))
        colour = COLOURS[2 if row.get("marked") else 0]
        for point in row.get("points", ()):
            axes.plot(point, place, ".", color="0.75", markersize=4)
        error = None if math.isnan(low) else [[estimate - low], [high - estimate]]
        axes.errorbar(estimate, place, xerr=error, fmt="o", color=colour, capsize=3)
    if panel["reference"] is not None:
        axes.axvline(panel["reference"], color="0.4", linewidth=1)
    axes.set(yticks=range(len(rows)), yticklabels=[row["name"] for row in rows], ylim=(-0.6, len(rows) - 0.4))
    axes.tick_params(axis="y", labelsize=8)


def _draw_scatter(axes: Any, panel: Panel) -> None:
    for place, group in enumerate(dict.fromkeys(point.get("group", "") for point in panel["points"])):
        points = [point for point in panel["points"] if point.get("group", "") == group]
        sizes = [40.0 * point.get("size", 1.0) for point in points]
        coordinates = [point["x"] for point in points], [point["y"] for point in points]
        axes.scatter(*coordinates, s=sizes, alpha=0.7, label=group, color=COLOURS[place % len(COLOURS)])
    axes.legend(frameon=False, fontsize=7)


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches; raise ConfigError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib, which is not installed: install parallel-agents[report]") from error
    figure = Figure(figsize=(width, height), dpi=120)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, out: Path) -> None:
    """Write a figure in the format that the suffix names: .png, .svg or .pdf."""
    form = out.suffix.lower().lstrip(".")
    if form not in ("png", "svg", "pdf"):
        raise ConfigError(f"{out}: give a file name that ends in .png, .svg or .pdf")
    content = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    figure.savefig(content, format=form, metadata=metadata)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, [content.getvalue()])


def write_csv(panel: Panel, out: Path) -> None:
    """Write the numbers of a chart, intervals, a scatter or a table."""
    rows: list[Sequence[Any]]
    match panel["kind"]:
        case "chart":
            rows = [("line", panel["xlabel"], "value", "low", "high")]
            for entry in panel["lines"]:
                x, nothing = entry.get("x") or panel["x"], [None] * len(entry["values"])
                bounds = entry.get("low", nothing), entry.get("high", nothing)
                rows += [(entry["name"], *row) for row in zip(x, entry["values"], *bounds, strict=True)]
        case "table":
            rows = [panel["columns"], *panel["rows"]]
        case _:
            entries = panel["rows" if panel["kind"] == "intervals" else "points"]
            names = list(dict.fromkeys(name for entry in entries for name in entry))
            rows = [names, *([entry.get(name) for name in names] for entry in entries)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, [text.getvalue().encode()])


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array(values, np.float64)


# -- animations --------------------------------------------------------------------------------------------------------


def write_animation(path: Path | str, frames: Sequence[NDArray[np.uint8]], *, fps: float = 8.0) -> Path:
    """Write frames (height, width, 3) as an endless .gif, or as an .mp4."""
    path = Path(path)
    imageio = load_imageio(path)
    if not frames:
        raise ConfigError(f"no frames for {path}: record at least one")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".gif":
        data = _gif(frames, fps)
    else:
        height, width = (side % 2 for side in frames[0].shape[:2])  # the codec wants even sides
        film = np.pad(np.stack(frames), ((0, 0), (0, height), (0, width), (0, 0)), mode="edge")
        with TemporaryDirectory() as folder:
            film_path = Path(folder) / "film.mp4"
            imageio.imwrite(film_path, film, plugin="FFMPEG", fps=fps, codec="libx264", macro_block_size=2)
            data = film_path.read_bytes()
    write_atomically(path, [data])
    return path


def _gif(frames: Sequence[NDArray[np.uint8]], fps: float) -> bytes:
    """Return frames as an endless GIF with one palette of all their colours, or of the nearest 256.

    A palette for each frame, as writers make it by themselves, takes longer than the training that is recorded.
    """
    image = import_module("PIL.Image")
    packed = [frame.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32) for frame in frames]
    new = [packed[0], *(now[now != before] for before, now in itertools.pairwise(packed))]
    colours = np.unique(np.concatenate([np.unique(numbers) for numbers in new]))
    row = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=-1).astype(np.uint8)[None]
    palette = image.fromarray(row).quantize(256)
    pictures = [image.fromarray(frame).quantize(palette=palette, dither=image.Dither.NONE) for frame in frames]
    content = io.BytesIO()
    pictures[0].save(content, "GIF", save_all=True, append_images=pictures[1:], duration=1000.0 / fps, loop=0)
    return content.getvalue()


def load_imageio(path: Path) -> Any:
    """Return the module that writes animations like this file, or raise an error that says how to install it."""
    needed = {".gif": ("imageio", "report"), ".mp4": ("imageio_ffmpeg", "video")}.get(path.suffix.lower())
    if needed is None:
        raise ConfigError(f"{path}: give a file name that ends in .gif or .mp4")
    package, extra = needed
    try:
        import_module(package)
        return import_module("imageio.v3")
    except ImportError as error:
        raise ConfigError(
            f"writing {path.name} needs {package.replace('_', '-')}, which is not installed: install parallel-agents "
            f"with the extra {extra!r}"
        ) from error
