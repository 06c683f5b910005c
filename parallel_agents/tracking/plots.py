"""Learning curves as PNG. Needs the extra `report`: matplotlib, imported only when a curve is drawn."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.tracking.files import write_atomically
from parallel_agents.tracking.statistics import Floats, mean_half_width

__all__ = ["binned", "learning_curve"]


def learning_curve(
    curves: Mapping[str, ArrayLike],
    out: Path,
    *,
    over: str = "agents",
    lines: Mapping[str, float] | None = None,
    title: str = "",
    level: float = 0.95,
    points: int = 200,
) -> None:
    """Draw the mean reward per epoch of each curve, (samples, epochs), with its t-interval over the samples.

    `over` says what the samples are (agents, seeds); `lines` are horizontal, such as a random policy's mean.
    Long curves are averaged over neighbouring epochs down to `points` before the interval is taken.
    """
    tables = {label: _checked(label, curve) for label, curve in curves.items()}
    if not tables:
        raise ShapeError("a plot of no curve at all was asked for: give at least one (samples, epochs)")
    bands = {label: _band(table, level, points) for label, table in tables.items()}
    figure = _figure()
    axes = figure.add_subplot()
    for label, (epochs, mean, half) in bands.items():
        (line,) = axes.plot(epochs, mean, label=label, linewidth=1.6)
        axes.fill_between(epochs, mean - half, mean + half, color=line.get_color(), alpha=0.2, linewidth=0)
    for label, height in (lines or {}).items():
        axes.axhline(height, label=label, color="0.4", linestyle="--", linewidth=1)
    axes.set(xlabel="epoch", ylabel=f"mean reward, {level:.0%} interval over {over}", title=title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomically(out, [picture.getvalue()])


def binned(table: Floats, points: int) -> tuple[Floats, Floats]:
    """(samples, epochs) -> middle epochs (p,) and means (samples, p), p = min(points, epochs).

    >>> epochs, means = binned(np.array([[1.0, 3.0, 5.0, 7.0]]), 2)
    >>> epochs.tolist(), means.tolist()
    ([1.5, 3.5], [[2.0, 6.0]])
    """
    if points < 1:
        raise ConfigError(f"{points} points were asked for: give at least 1")
    count = table.shape[1]
    edges = np.linspace(0, count, min(points, count) + 1).astype(np.intp)
    widths = np.diff(edges)
    return (edges[:-1] + 1 + edges[1:]) / 2, np.add.reduceat(table, edges[:-1], axis=1) / widths


def _band(table: Floats, level: float, points: int) -> tuple[Floats, Floats, Floats]:
    epochs, means = binned(table, points)
    mean, half = mean_half_width(means, level=level)
    return epochs, mean, half


def _checked(label: str, curve: ArrayLike) -> Floats:
    table = np.asarray(curve, np.float64)
    if table.ndim != 2 or table.size == 0:
        raise ShapeError(f"curve {label!r} has shape {table.shape}: give (samples, epochs), neither of them 0")
    if not np.isfinite(table).all():
        raise NonFiniteError(f"curve {label!r} holds NaN or infinity: leave those epochs out")
    return table


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "a learning curve needs matplotlib, which is not installed: install parallel-agents[report]"
        ) from error
    return Figure(figsize=(7.5, 4.5), dpi=120, layout="constrained")
