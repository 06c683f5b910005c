"""Plots of worlds, rewards and strategies as PNG files. They need the extra `report` (matplotlib)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import write_atomically
from parallel_agents.market.montecarlo.experiences import EpisodeExperience, world_context
from parallel_agents.market.montecarlo.strategies import ConvergencePatterns
from parallel_agents.market.world_types import World
from parallel_agents.tracking.statistics import mean_interval


def world_atlas(worlds: Sequence[World], out: Path) -> None:
    """Plot every world as a point: its competition, and its share of crisis parents."""
    figure, axes = _page(8.0, 5.0)
    for kind in sorted({w.kind.value for w in worlds}):
        contexts = [world_context(w) for w in worlds if w.kind.value == kind]
        competition, crisis = ([c[name] for c in contexts] for name in ("competition", "crisis_share"))
        axes.scatter(competition, crisis, s=[40.0 * c["volume"] for c in contexts], alpha=0.7, label=kind)
    axes.set(xlabel="rivals' bids over ours", ylabel="share of crisis parents", title=f"{len(worlds)} worlds")
    axes.legend(frameon=False, fontsize=7, title="type; size: volume", title_fontsize=7)
    _store(figure, out)


def reward_by_type(experiences: Iterable[EpisodeExperience], out: Path) -> None:
    """Plot the mean profit over budget in every type of world, with 95 % intervals over worlds."""
    _by_type(experiences, out, lambda e: e.total_reward, "profit over budget")


def crisis_share(experiences: Iterable[EpisodeExperience], out: Path) -> None:
    """Plot the share of the value that came from crisis parents, in every type of world."""
    _by_type(
        (e for e in experiences if e.revenue > 0.0),
        out,
        lambda e: e.crisis_parent_revenue / e.revenue,
        "share of value from crisis parents",
    )


def convergence(curves: Mapping[str, Sequence[float]], out: Path) -> None:
    """Plot the profit over budget by training step, smoothed over a twentieth of the steps."""
    figure, axes = _page(7.5, 4.5)
    for label, curve in curves.items():
        values = np.asarray(curve, np.float64)
        width = max(1, len(values) // 20)
        smooth = np.convolve(values, np.ones(width) / width, "valid")
        (line,) = axes.plot(np.arange(width, len(values) + 1), smooth, label=label)
        axes.plot(np.arange(1, len(values) + 1), values, color=line.get_color(), alpha=0.25, linewidth=0.8)
    axes.set(xlabel="step", ylabel="profit over budget")
    axes.legend(frameon=False)
    _store(figure, out)


def robustness(patterns: ConvergencePatterns, out: Path) -> None:
    """Plot the advantage of every strategy with its interval and its share of successes; robust ones are green."""
    figure, axes = _page(8.0, 0.28 * len(patterns.strategies) + 1.6)
    for place, report in enumerate(reversed(patterns.strategies)):
        mean, low, high = report.advantage
        colour = "C2" if report.robust else "0.55"
        axes.errorbar(mean, place, xerr=[[mean - low], [high - mean]], fmt="o", color=colour, capsize=3)
    axes.axvline(0.0, color="0.4", linewidth=1)
    axes.set(
        yticks=range(len(patterns.strategies)),
        yticklabels=[f"{r.name} ({r.success_share:.0%})" for r in reversed(patterns.strategies)],
        xlabel=f"advantage over the reference ({patterns.reference}), 95 % interval over {patterns.worlds} worlds",
        title=f"robust: green; wins needed: {patterns.robustness_threshold:.0%}",
    )
    axes.tick_params(axis="y", labelsize=7)
    _store(figure, out)


def _by_type(
    experiences: Iterable[EpisodeExperience], out: Path, figure_of: Callable[[EpisodeExperience], float], label: str
) -> None:
    """Plot a figure of episodes as its mean in every world and in every type of world."""
    groups: dict[str, dict[int, list[float]]] = {}
    for one in experiences:
        groups.setdefault(one.kind.value, {}).setdefault(one.world, []).append(figure_of(one))
    if not groups:
        raise ConfigError(f"{label} cannot be plotted: no episode has any")
    figure, axes = _page(7.5, 4.5)
    for place, kind in enumerate(sorted(groups)):
        means = [float(np.mean(values)) for values in groups[kind].values()]
        mean, low, high = mean_interval(means)
        axes.plot([place] * len(means), means, ".", color="0.75", markersize=4)
        half = [[0.0], [0.0]] if np.isnan(low) else [[mean - low], [high - mean]]
        axes.errorbar(place, mean, half, fmt="o", capsize=4)
    axes.set(xticks=range(len(groups)), ylabel=label)
    axes.set_xticklabels(sorted(groups), rotation=35, ha="right", fontsize=8)
    _store(figure, out)


def _page(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure with one pair of axes, without the upper and right frame."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib, which is not installed: install parallel-agents[report]") from error
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _store(figure: Any, out: Path) -> None:
    """Write a figure as PNG."""
    png = io.BytesIO()
    figure.savefig(png, format="png")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, [png.getvalue()])
