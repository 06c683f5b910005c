"""Panels of worlds, scores and strategies; `tracking.plots.draw_panel` draws them into files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import EpochStats
from parallel_agents.market.baselines import Bidder, Played, steps_of
from parallel_agents.market.experiences import EpisodeExperience, world_context
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.strategies import ConvergencePatterns
from parallel_agents.market.worlds import World
from parallel_agents.tracking.callbacks import BaseCallback, Throttle
from parallel_agents.tracking.plots import (
    Panel,
    intervals,
    line,
    new_figure,
    save_figure,
    scatter,
    table,
    write_section,
)
from parallel_agents.tracking.run_view import RunView
from parallel_agents.tracking.statistics import mean_interval

if TYPE_CHECKING:
    from parallel_agents.market.market_environment import MarketEnvironment


def world_atlas(worlds: Sequence[World], scores: Mapping[int, float] | None = None) -> Panel:
    """Return every world as a point: its competition and its share of crisis parents, coloured by its score."""
    points = []
    for world in worlds:
        context = world_context(world)
        point = {"x": context["competition"], "y": context["crisis_share"], "size": context["volume"]}
        score = (scores or {}).get(world.index)
        points.append({**point, "name": f"world {world.index}", "group": world.kind.value, "value": score})
    return scatter(
        f"{len(worlds)} worlds", points, xlabel="rivals' bids over ours", ylabel="share of crisis parents",
        value="score" if scores else "", note="size: volume",
    )  # fmt: skip


def reward_by_type(experiences: Iterable[EpisodeExperience]) -> Panel:
    """Return the mean score in every type of world, with 95 % intervals over worlds."""
    return _by_type(experiences, lambda e: e.score, "score")


def crisis_share(experiences: Iterable[EpisodeExperience]) -> Panel:
    """Return the share of the value that came from crisis parents, in every type of world."""
    earning = (e for e in experiences if e.revenue > 0.0)
    share = "share of value from crisis parents"
    return _by_type(earning, lambda e: e.crisis_parent_revenue / e.revenue, share)


def robustness(patterns: ConvergencePatterns) -> Panel:
    """Return the advantage of every strategy with its interval and its share of successes; robust ones are marked."""
    rows = {f"{report.name} ({report.success_share:.0%})": report.advantage for report in patterns.strategies}
    panel = intervals(
        f"Robust: green; wins needed: {patterns.robustness_threshold:.0%}", rows, reference=0.0,
        xlabel=f"advantage over the reference ({patterns.reference}), 95 % interval over {patterns.worlds} worlds",
    )  # fmt: skip
    for row, report in zip(panel["rows"], patterns.strategies, strict=True):
        row["marked"] = report.robust
    return panel


def learning_curve(run_dir: Path, baselines: Mapping[str, NDArray[np.float64]]) -> Panel | None:
    """Return the rewards of a run by epoch beside the rewards (W,) of baselines; None for a run without metrics."""
    view = RunView(run_dir)
    view.refresh()
    panel = view.reward_chart() if view.groups() else None
    view.close()
    if panel is not None:
        ends = [panel["x"][0], panel["x"][-1]]
        for name, rewards in baselines.items():
            mean = float(rewards.mean())
            panel["lines"].append(line(name, [mean, mean]) | {"x": ends, "dashed": True})
        panel["title"] = "Training beside the bidders in unseen worlds"
    return panel


def baseline_table(results: Mapping[str, Played]) -> dict[str, dict[str, list[float]]]:
    """Return score, profit and spent share of every bidder: means with 95 % intervals over worlds."""
    return {
        name: {
            figure: list(mean_interval(getattr(played, figure).mean(axis=1)))
            for figure in ("score", "profit", "crisis_value", "spent")
        }
        for name, played in results.items()
    }


def baseline_panels(results: Mapping[str, Played], worlds: Sequence[World]) -> list[Panel]:
    """Return the results of bidders as a table and as intervals, and the scores of the first by world and type."""
    rows, first = baseline_table(results), next(iter(results))
    cells = [[name, *(f"{m:.3g} ({low:.3g} to {high:.3g})" for m, low, high in row.values())]
             for name, row in rows.items()]  # fmt: skip
    note = f"means and 95 % intervals over {len(worlds)} unseen worlds"
    columns = ["bidder", "score", "profit over budget", "value from crisis parents", "share of budget spent"]
    scores = {world.index: float(score) for world, score in zip(worlds, results[first].by_world(), strict=True)}
    return [
        table("Bidders", columns, cells, note=note),
        intervals("Scores", {n: mean_interval(played.by_world()) for n, played in results.items()}, xlabel="score",
                  note=note),
        *_scored_worlds(worlds, scores),
    ]  # fmt: skip


class MarketPanels(BaseCallback):
    """Keep the worlds of a training, coloured by their scores, in its run folder."""

    def __init__(self, environment: MarketEnvironment, folder: Path) -> None:
        self._environment, self._folder = environment, folder
        self._throttle = Throttle(every=2.0)
        self._scores: dict[int, float] = {}

    def on_epoch(self, stats: EpochStats) -> None:
        market = self._environment.market
        for world, score in zip(market.worlds, market.score().mean(axis=0).tolist(), strict=True):
            old = self._scores.get(world.index, score)
            self._scores[world.index] = 0.7 * old + 0.3 * score  # a mean over about the last three episodes of a world
        self._throttle.call(self._write)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        if self._scores:
            self._write()

    def _write(self) -> None:
        worlds = [world for market in self._environment.markets for world in market.worlds]
        write_section(self._folder, "worlds", "Worlds of the training", _scored_worlds(worlds, self._scores))


def pacing_of_a_day(market: MarketWorlds, bidders: Mapping[str, Bidder], out: Path) -> None:
    """Plot spend, price of a click and alpha of an episode in the first world, for several bidders."""
    figure = new_figure(8.0, 6.5)
    figure.set_layout_engine("constrained")
    axes = figure.subplots(3, sharex=True)
    for name, bidder in bidders.items():
        spent, price, level = [], [], []
        for alpha in steps_of(market, bidder, 0):
            clicks, cost = market.total.clicks[0, 0].sum(), market.total.cost[0, 0].sum()
            spent.append(cost / market.parameters.budget[0])
            price.append(cost / clicks if clicks > 0 else np.nan)
            level.append(float(np.exp(np.log(np.maximum(alpha[0, 0], 1e-6)).mean())))
        for place, values in zip(axes, (spent, price, level), strict=True):
            place.plot(values, label=name)
    axes[0].plot([0, market.steps - 1], [0, 1], color="0.7", linestyle=":")
    for place, label in zip(axes, ("share of budget spent", "mean price of a click", "alpha"), strict=True):
        place.set(ylabel=label)
        place.spines[["top", "right"]].set_visible(False)
    axes[2].set(xlabel="decision", yscale="log")
    axes[0].legend(frameon=False)
    save_figure(figure, out)


def _scored_worlds(worlds: Sequence[World], scores: Mapping[int, float]) -> list[Panel]:
    """Return the atlas of worlds and their scores by type."""
    groups: dict[str, dict[int, list[float]]] = {}
    for world in worlds:
        if world.index in scores:
            groups.setdefault(world.kind.value, {})[world.index] = [scores[world.index]]
    return [world_atlas(worlds, scores), _type_panel(groups, "score")]


def _by_type(
    experiences: Iterable[EpisodeExperience], figure_of: Callable[[EpisodeExperience], float], label: str
) -> Panel:
    """Return a figure of episodes as its mean in every world and in every type of world."""
    groups: dict[str, dict[int, list[float]]] = {}
    for one in experiences:
        groups.setdefault(one.kind.value, {}).setdefault(one.world, []).append(figure_of(one))
    return _type_panel(groups, label)


def _type_panel(groups: Mapping[str, Mapping[int, list[float]]], label: str) -> Panel:
    if not groups:
        raise ConfigError(f"{label} cannot be plotted: no episode has any")
    means = {kind: [float(np.mean(values)) for values in groups[kind].values()] for kind in sorted(groups)}
    panel = intervals("By type of world", {kind: mean_interval(found) for kind, found in means.items()}, xlabel=label,
                      note="points: worlds; 95 % interval over worlds")  # fmt: skip
    for row, found in zip(panel["rows"], means.values(), strict=True):
        row["points"] = found
    return panel
