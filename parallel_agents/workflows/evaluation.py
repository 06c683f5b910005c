"""The score of CAGE Challenge 2 for any defender, and what a defender does turn by turn.

The score is the sum of nine means: the mean return of the first 30, 50 and 100 turns against B_line, Meander and Sleep.
A policy does not know how long an episode lasts, so the shorter episodes are the beginnings of the longer ones.

>>> from parallel_agents.workflows.blue_policies import op_once
>>> score(lambda worlds: op_once, episodes=4).means["Sleep"]
(-1.0, -1.0, -1.0)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose
from parallel_agents.workflows.blue_policies import OrderScript, Policy, PolicyFactory, play
from parallel_agents.workflows.network import ACTION_NAMES, RED_AGENTS, NetworkWorlds, Quirks
from parallel_agents.workflows.network.scenario import LENGTHS, version_quirks
from parallel_agents.workflows.orders import DOCUMENTED, RIGHT_REPAIRS, Compliance, check_order

Z95 = 1.96  # a 95 % interval is the mean ± 1.96 standard errors


@dataclass(frozen=True)
class Score:
    """Mean returns and their standard errors per red agent, at 30, 50 and 100 turns."""

    means: Mapping[str, tuple[float, ...]]
    errors: Mapping[str, tuple[float, ...]]
    total: float
    total_error: float
    episodes: int

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"lengths": list(LENGTHS), "interval": [self.total - self._half, self.total + self._half]}

    @property
    def _half(self) -> float:
        return Z95 * self.total_error


def score(
    make_policy: PolicyFactory, version: str = "leaderboard", quirks: Quirks | None = None, episodes: int = 1000,
    seed: int = 0,
) -> Score:  # fmt: skip
    """Play `episodes` episodes against each red agent, with draws that no training uses; return the score."""
    if episodes < 2:
        raise ConfigError(f"episodes is {episodes}: at least two are needed for a standard error")
    means, errors, totals = {}, {}, []
    for red in RED_AGENTS:
        worlds = NetworkWorlds(
            episodes, red=red, version=version, quirks=quirks, steps=max(LENGTHS), seed=seed,
            purpose=Purpose.EVALUATION_WORLD,
        )  # fmt: skip
        cumulative = play(worlds, make_policy(worlds), epoch=0).cumsum(axis=0)
        returns = np.stack([cumulative[length - 1] for length in LENGTHS])
        means[red] = tuple(float(mean) for mean in returns.mean(axis=1))
        errors[red] = tuple(float(error) for error in returns.std(axis=1, ddof=1) / np.sqrt(episodes))
        totals.append(returns.sum(axis=0))
    total = float(np.mean(totals, axis=1).sum())
    total_error = float(np.sqrt(np.var(totals, axis=1, ddof=1).sum() / episodes))
    return Score(means, errors, total, total_error, episodes)


def score_table(make_policy: PolicyFactory, episodes: int = 1000, seed: int = 0) -> dict[str, Score]:
    """Return the scores in both versions of the game, with and without the un-killable service after a Restore."""
    table = {}
    for version in ("leaderboard", "head"):
        for unkillable in (True, False):
            quirks = replace(version_quirks(version), service_unkillable_after_restore=unkillable)
            name = version if unkillable else f"{version}, service stays killable"
            table[name] = score(make_policy, version, quirks, episodes, seed)
    return table


def markdown(table: Mapping[str, Score]) -> str:
    """Return a table of scores in Markdown: means and 95 % intervals."""
    columns = [f"{red} {length}" for red in RED_AGENTS for length in LENGTHS]
    lines = [f"| game | total | {' | '.join(columns)} |", f"| --- | {' | '.join(['--:'] * (len(columns) + 1))} |"]
    for name, row in table.items():
        cells = [(row.total, row.total_error)]
        for red in RED_AGENTS:
            cells += zip(row.means[red], row.errors[red], strict=True)
        lines.append(f"| {name} | {' | '.join(f'{mean:.2f} ± {Z95 * error:.2f}' for mean, error in cells)} |")
    episodes = next(iter(table.values())).episodes
    lines += ["", f"Mean returns with 95 % intervals over {episodes} episodes against each attacker.", ""]
    return "\n".join(lines)


@dataclass(frozen=True)
class OrderEvaluation:
    """A policy's mean return (environment reward only) and compliance under an order, beside the script's return."""

    value: float
    error: float
    """Standard error of the value."""
    compliance: float
    """Share of right turns (`right_repairs`); NaN if no turn called for a repair."""
    documented: float
    """Share of fixes made while no higher type was compromised: the documented measure."""
    script: float
    """Mean return of `OrderScript` under this order in the same worlds."""

    def learnt(self, threshold: float = 0.95) -> bool:
        """Return whether the order is learnt: kept, with a return no worse than the script's."""
        return self.compliance >= threshold and self.value >= self.script


def evaluate_in_order(policy: Policy, order: Iterable[str], worlds: NetworkWorlds) -> OrderEvaluation:
    """Play one episode of every world with a policy and judge it under an order."""
    checked = check_order(order)
    measures = [Compliance(checked, worlds.n_worlds, rule) for rule in (RIGHT_REPAIRS, DOCUMENTED)]
    script = play(worlds, OrderScript(checked), 0).sum(axis=0).mean()

    def judge(actions: Any, access: Any, observations: Any) -> None:
        for measure in measures:
            measure.observe(actions, access, observations, worlds.repaired)

    returns = play(worlds, policy, 0, judge).sum(axis=0)
    error = returns.std(ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else float("nan")
    compliance, documented = (measure.average(measure.rates()) for measure in measures)
    return OrderEvaluation(float(returns.mean()), float(error), compliance, documented, float(script))


@dataclass(frozen=True)
class Episode:
    """What happened in one world, turn by turn: (T,) each, and red's access (T + 1, 13), which starts before the first.

    `costs` are the points lost.
    """

    first_turn: int
    actions: tuple[str, ...]
    red_actions: tuple[str, ...]
    costs: NDArray[np.float64]
    access: NDArray[np.uint8]
    running: NDArray[np.bool_]
    """Whether the operational service ran, (T + 1,)."""


def record_episode(worlds: NetworkWorlds, policy: Policy) -> Episode:
    """Play an episode and return what happened in the first world."""
    turns: list[tuple[str, str]] = []
    access: list[NDArray[np.uint8]] = []
    worlds.reset(0)
    running = [bool(worlds.ot_running[0])]

    def record(actions: Any, before: NDArray[np.uint8], _: Any) -> None:
        turns.append((ACTION_NAMES[int(actions[0])], worlds.red_actions[0]))
        access.append(before[0])
        running.append(bool(worlds.ot_running[0]))

    costs = -play(worlds, policy, 0, record)[:, 0]
    actions, red_actions = zip(*turns, strict=True)
    return Episode(
        worlds.late_start, actions, red_actions, costs, np.stack([*access, worlds.access[0]]), np.array(running)
    )
