"""Fixed strategies, which of them work across worlds, and learning that starts from such strategies.

Strategies play the same worlds with the same random numbers, so a difference between two of them in a world is due to
the strategies alone. A strategy is robust if, compared with the reference (a named strategy, or the median of all in
each world),

    it earns more on average             sign-flip test over worlds (Fisher 1935), Holm's correction over strategies
    it succeeds in enough worlds         in a larger share than the robustness threshold, which the luckiest of as many
                                         strategies without merit exceeds in one of 20 comparisons (from the same flips)
    it is worse in no type of world      in no type is it worse beyond chance, Holm's correction over types
    its worst worlds are no worse        the mean of its worst tenth (CVaR) is at least the reference's
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.errors import ConfigError, NonFiniteError, ShapeError, WorldError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Array, Floats
from parallel_agents.market.montecarlo import MonteCarloSimulator
from parallel_agents.market.policies import Actor
from parallel_agents.market.worlds import WorldType
from parallel_agents.tracking.statistics import Interval, mean_interval

_FLIPS = 4000
_MIN_WORLDS = 5  # of a type, to test whether a strategy is worse in it


@dataclass(frozen=True)
class Strategy:
    """An agent that always chooses the same action."""

    action: Any
    instant: ClassVar[bool] = True

    def act_many(self, states: Array) -> Array:
        """Return the action for every state."""
        return np.repeat(np.asarray(self.action)[None], len(states), axis=0)


@dataclass(frozen=True, eq=False)
class StrategyResults:
    """The returns of strategies in the same worlds."""

    returns: Mapping[str, Floats]
    """(W, laps) of every strategy"""
    kinds: tuple[WorldType, ...]
    """(W,) types of the worlds"""


def constant_strategies(levels: Sequence[float], creatives: Sequence[str]) -> dict[str, Strategy]:
    """Return a strategy for every level with every creative, as actions of the joint form.

    >>> {name: s.action for name, s in constant_strategies((0.5, 1.0), ("a", "b")).items()}
    {'0.5 a': 0, '0.5 b': 1, '1 a': 2, '1 b': 3}
    """
    pairs = [(level, creative) for level in levels for creative in creatives]
    return {f"{level:g} {creative}": Strategy(number) for number, (level, creative) in enumerate(pairs)}


async def play_strategies(
    simulator: MonteCarloSimulator, strategies: Mapping[str, Any], laps: int = 1
) -> StrategyResults:
    """Run every strategy (any agent) in the same laps of every world, hence with the same random numbers."""
    if laps < 1:
        raise ConfigError(f"laps is {laps}: give at least 1")
    first = -(-simulator.episodes // len(simulator.worlds)) * len(simulator.worlds)
    returns = {}
    for name, strategy in strategies.items():
        simulator.episodes = first
        batch = await simulator.run_episode_batch(strategy, laps * len(simulator.worlds))
        if batch.failures:
            failed = batch.failures[0]
            raise WorldError(f"strategy {name!r} failed in world {failed.world}, lap {failed.lap}: {failed.reason}")
        rewards = np.array([e.total_reward for e in batch])
        returns[name] = rewards.reshape(laps, len(simulator.worlds)).T
    return StrategyResults(returns, tuple(world.kind for world in simulator.worlds))


class Focus:
    """Lets robust strategies act in a share of the worlds while an agent learns from all of them.

    The share falls linearly from `share` to 0 over `laps` laps. In which worlds a strategy acts depends on world and
    lap alone.
    """

    _actor: Actor
    _assigned: NDArray[np.int64]

    def __init__(self, strategies: Sequence[Strategy], share: float = 0.5, laps: int = 10) -> None:
        if not strategies:
            raise ConfigError("there is no strategy to focus on: give at least one, such as those found robust")
        if not 0.0 <= share <= 1.0 or laps < 1:
            raise ConfigError(f"share {share} over {laps} laps: give a share from 0 to 1 and at least 1 lap")
        self.strategies, self.share, self.laps = tuple(strategies), share, laps

    def wrap(self, actor: Actor) -> Actor:
        """Return an actor that asks the given one, or lets strategies act."""
        wrapped = copy.copy(self)
        wrapped._actor = actor
        return wrapped

    def begin_episode(self, worlds: Sequence[int], lap: int, steps: int) -> None:
        self._actor.begin_episode(worlds, lap, steps)
        self._assigned = self.assigned(worlds, lap)

    async def act(self, states: NDArray[np.float32], step: int) -> Array:
        actions = np.array(await self._actor.act(states, step))
        for number, strategy in enumerate(self.strategies):
            mask = self._assigned == number
            if mask.any():
                actions[mask] = strategy.act_many(states[mask])
        return actions

    def assigned(self, worlds: Sequence[int], lap: int) -> NDArray[np.int64]:
        """Return which strategy acts in each world (W,), −1 for the agent itself."""
        share = self.share * max(0.0, 1.0 - lap / self.laps)
        # a low-discrepancy sequence: another part of the worlds in each lap, evenly spread
        places = np.array([(world * 0.6180339887498949 + lap * 0.7548776662466927) % 1.0 for world in worlds])
        which = (np.asarray(worlds) + lap) % len(self.strategies)
        return np.where(places < share, which, -1)


@dataclass(frozen=True)
class StrategyReport:
    """The results of one strategy over all worlds, and whether it is robust."""

    name: str
    mean: float
    advantage: Interval
    """mean difference from the reference over worlds, with its 95 % interval"""
    p_value: float
    """of the hypothesis that there is no advantage, corrected for the number of strategies"""
    success_share: float
    """share of worlds in which it beat the reference"""
    cvar: float
    """mean return in its worst tenth of worlds"""
    worst_type: str
    worst_type_advantage: float
    robust: bool
    because: str
    """the reasons for the verdict"""


@dataclass(frozen=True)
class ConvergencePatterns:
    """The reports of all strategies, best first, and the robustness threshold found in the data."""

    robustness_threshold: float
    reference: str
    reference_cvar: float
    worlds: int
    strategies: tuple[StrategyReport, ...]

    @property
    def robust(self) -> tuple[str, ...]:
        """The names of the robust strategies, best first."""
        return tuple(report.name for report in self.strategies if report.robust)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {**asdict(self), "robust": list(self.robust)}


def detect_convergence_patterns(
    world_results: Mapping[str, ArrayLike],
    kinds: Sequence[WorldType],
    *,
    reference: str | None = None,
    level: float = 0.05,
    tail: float = 0.1,
    seed: int = 0,
) -> ConvergencePatterns:
    """Compare strategies over worlds and report which ones are robust.

    world_results: returns (W,) or (W, episodes) of each strategy in the same worlds.
    kinds: types of these worlds.
    reference: the strategy to compare with; None: the median of all in each world.
    level: of the tests; tail: share of the worst worlds.
    """
    names, table = _table(world_results, len(kinds))
    if not 0 < level < 1 or not 0 < tail <= 1:
        raise ConfigError(f"level {level} and tail {tail}: give numbers between 0 and 1")
    if reference is not None and reference not in names:
        raise ConfigError(f"reference {reference!r} is none of the strategies {names}")
    base = np.median(table, axis=0) if reference is None else table[names.index(reference)]
    candidates = [n for n in names if n != reference]
    returns = np.array([table[names.index(n)] for n in candidates])
    gains = returns - base
    flips = generator(seed, Purpose.PERMUTATION).choice([-1.0, 1.0], (_FLIPS, len(kinds)))
    p_values = holm(_flip_p_values(gains, flips))
    threshold = float(np.quantile(_luckiest_shares(gains, flips), 1.0 - level))
    base_cvar = conditional_value_at_risk(base, tail)
    type_names = np.array([kind.value for kind in kinds])
    by_type = {str(name): np.flatnonzero(type_names == name) for name in np.unique(type_names)}
    reports = []
    for s, name in enumerate(candidates):
        worst, advantage, harmed = _worst_type(gains[s], by_type, flips, level)
        cvar = conditional_value_at_risk(returns[s], tail)
        success = float((gains[s] > 0.0).mean())
        objections = [
            text
            for text, applies in (
                (f"no advantage beyond chance (p = {p_values[s]:.3g})", p_values[s] >= level),
                (f"succeeds in {success:.0%} of the worlds, {threshold:.0%} can be luck", success <= threshold),
                (f"worse in {worst}", harmed),
                (f"its worst worlds are worse ({cvar:.3g} against {base_cvar:.3g})", cvar < base_cvar),
            )
            if applies
        ]
        reports.append(
            StrategyReport(
                name=name,
                mean=float(returns[s].mean()),
                advantage=mean_interval(gains[s]),
                p_value=float(p_values[s]),
                success_share=success,
                cvar=cvar,
                worst_type=worst,
                worst_type_advantage=advantage,
                robust=not objections,
                because="; ".join(objections)
                or "better in most worlds, in no type worse, and in its worst worlds no worse",
            )
        )
    order = sorted(reports, key=lambda r: (not r.robust, -r.mean))
    return ConvergencePatterns(threshold, reference or "median of all", base_cvar, len(kinds), tuple(order))


def conditional_value_at_risk(returns: ArrayLike, tail: float = 0.1) -> float:
    """Return the mean of the worst `tail` of returns (at least one), after Rockafellar & Uryasev 2000.

    >>> conditional_value_at_risk([5.0, 1.0, 4.0, 3.0, 2.0], 0.4)
    1.5
    """
    values = np.sort(np.asarray(returns, np.float64).ravel())
    return float(values[: max(1, int(np.ceil(tail * len(values) - 1e-9)))].mean())


def holm(p_values: ArrayLike) -> Floats:
    """Return p-values after Holm's step-down correction.

    >>> holm([0.01, 0.04, 0.03]).round(4).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    out = np.empty_like(p)
    out[order] = np.minimum(stepped, 1.0)
    return out


def _flip_p_values(gains: Floats, flips: Floats) -> Floats:
    """Return one-sided p-values (S,) of the mean gains over worlds (S, W), under random signs."""
    null = flips @ gains.T
    return np.asarray((1 + (null >= gains.sum(axis=1) - 1e-12).sum(axis=0)) / (len(flips) + 1))


def _luckiest_shares(gains: Floats, flips: Floats) -> Floats:
    """Return for each flip (flips,) the largest share of worlds that any strategy wins under its random signs."""
    signs = np.sign(gains)
    won = (flips @ signs.T + np.abs(signs).sum(axis=1)) / 2.0
    return np.asarray((won / gains.shape[1]).max(axis=1))


def _worst_type(
    gains: Floats, by_type: Mapping[str, NDArray[np.int64]], flips: Floats, level: float
) -> tuple[str, float, bool]:
    """Return the type with the lowest mean gain, that gain, and whether the strategy is worse in any type."""
    means = {kind: float(gains[places].mean()) for kind, places in by_type.items()}
    worst = min(means, key=lambda kind: means[kind])
    tested = [places for places in by_type.values() if len(places) >= _MIN_WORLDS]
    p_values = [float(_flip_p_values(-gains[None, places], flips[:, places])[0]) for places in tested]
    return worst, means[worst], bool(p_values) and bool((holm(p_values) < level).any())


def _table(world_results: Mapping[str, ArrayLike], worlds: int) -> tuple[list[str], Floats]:
    """Return the names of the strategies and their mean returns (S, W), checked."""
    if len(world_results) < 2:
        raise ConfigError(f"{len(world_results)} strategies cannot be compared: give at least two")
    rows = []
    for name, returns in world_results.items():
        values = np.asarray(returns, np.float64)
        if values.ndim not in (1, 2) or len(values) != worlds or worlds < 2:
            raise ShapeError(
                f"strategy {name!r} has returns of shape {values.shape}: give (worlds,) or (worlds, episodes), "
                f"for the {worlds} worlds whose types are given, at least two"
            )
        if not np.isfinite(values).all():
            raise NonFiniteError(f"strategy {name!r} has returns that are NaN or infinite: leave failed worlds out")
        rows.append(values.reshape(worlds, -1).mean(axis=1))
    return list(world_results), np.array(rows)
