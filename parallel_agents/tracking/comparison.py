"""Compare runs by the mean reward of their last epochs, as Agarwal et al. (2021) advise for few seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parallel_agents.tracking.metric_bins import RECENT_EPOCHS
from parallel_agents.tracking.plots import chart, intervals, numbers, table
from parallel_agents.tracking.run_view import Group, RunView, Section, format_number, section, with_interval
from parallel_agents.tracking.statistics import bootstrap_interval, mean_interval, probability_of_improvement


def compare_runs(views: Sequence[RunView]) -> list[Section]:
    """Return curves of runs, and of the settings of a sweep, side by side, and statistics of their last epochs."""
    names = _distinct([view.name for view in views])
    rows = [
        [name, entry["environment"], entry["status"],
         *(format_number(entry[key]) for key in ("epoch", "reward", "turns_per_second", "faults"))]
        for name, entry in zip(names, (view.overview() for view in views), strict=True)
    ]  # fmt: skip
    sections = [
        section("Runs", [table("", ["run", "environment", "status", "epoch", "reward", "turns/s", "faults"], rows)])
    ]
    groups: dict[str, Group] = {}
    lines = []
    for view, name in zip(views, names, strict=True):
        for group in view.groups():
            label = " ".join(part for part in (name if len(views) > 1 else "", group.setting) if part) or name
            groups[label] = group
            lines.append(with_interval(label, group.curve) | {"x": numbers(view.metrics.bins.epochs(), 9)})
    if not groups:
        return sections
    over = " or ".join(sorted({group.over for group in groups.values()}))
    note = f"95 % interval over {over}"
    sections.append(section("Learning", [chart("Reward per epoch", [], lines, ylabel="reward", note=note)]))
    scores = {label: group.scores[np.isfinite(group.scores)] for label, group in groups.items()}
    scores = {label: values for label, values in scores.items() if len(values) > 1}
    if not scores:
        return sections
    note = f"mean reward of the last {RECENT_EPOCHS} epochs, of {over}; 95 % bootstrap interval"
    if over != "seeds":
        note += "; agents of one seed are not independent: train several seeds (--seeds) to compare"
    panels = [intervals("Interquartile mean", {label: bootstrap_interval(values) for label, values in scores.items()},
                        xlabel="reward", note=note)]  # fmt: skip
    first, *others = scores
    if others:
        better = {f"{label} > {first}": probability_of_improvement(scores[label], scores[first]) for label in others}
        panels.append(intervals("Probability of improvement", better, xlabel=f"over {first}", reference=0.5,
                                note="chance that a seed of the one beats a seed of the other")
                      | {"range": [0.0, 1.0]})  # fmt: skip
    paired = [label for label in others if groups[label].seeds == groups[first].seeds != [] and over == "seeds"
              and len(scores[label]) == len(scores[first])]  # fmt: skip
    if paired:
        differences = {f"{label} − {first}": mean_interval(scores[label] - scores[first]) for label in paired}
        panels.append(intervals("Difference on equal seeds", differences, xlabel="reward", reference=0.0,
                                note="mean of paired differences; 95 % t-interval"))  # fmt: skip
    sections.append(section("Comparison", panels))
    return sections


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, with a number added where one occurs twice."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found
