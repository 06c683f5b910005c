"""Draw learning curves as PNG. Needs matplotlib (the extra `report`), which is imported when a curve is drawn."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.core.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.core.files import write_atomically
from parallel_agents.tracking.statistics import Floats, mean_half_width


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

    `over` names the samples (agents, seeds). `lines` are horizontal lines, such as the mean of a random policy. A curve
    with more than `points` epochs is averaged over neighbouring epochs before the interval is computed.
    """
    tables = {label: _checked(label, curve) for label, curve in curves.items()}
    if not tables:
        raise ShapeError("a plot of no curve at all was asked for: give at least one (samples, epochs)")
    binned = {label: bin_epochs(table, points) for label, table in tables.items()}
    figure = _new_figure()
    axes = figure.add_subplot()
    for label, (epochs, means) in binned.items():
        mean, half = mean_half_width(means, level=level)
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
    table = np.asarray(curve, np.float64)
    if table.ndim != 2 or table.size == 0:
        raise ShapeError(f"curve {label!r} has shape {table.shape}: give (samples, epochs), neither of them 0")
    if not np.isfinite(table).all():
        raise NonFiniteError(f"curve {label!r} holds NaN or infinity: leave those epochs out")
    return table


def _new_figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "a learning curve needs matplotlib, which is not installed: install parallel-agents[report]"
        ) from error
    return Figure(figsize=(7.5, 4.5), dpi=120, layout="constrained")
