"""Which strategies work across worlds, and which were lucky in some.

Strategies play the same worlds on the same draws, so that what differs between two of them in a world is their own
doing. A strategy is robust if, compared with the reference (a named one, or the median of all in each world),

    it earns more on average             sign-flip test over worlds (Fisher 1935), Holm's correction over strategies
    it succeeds in enough worlds         more than the robustness threshold: what the luckiest of as many strategies
                                         without merit would reach in one of 20 comparisons, from the same flips
    no type of world pays for it         in no type is it worse beyond chance, Holm's correction over types
    its bad worlds are no worse          the mean of its worst tenth (CVaR) is at least the reference's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.market.worlds import WorldType
from parallel_agents.seeding import Purpose, generator
from parallel_agents.tracking.statistics import Interval, mean_interval

__all__ = ["ConvergencePatterns", "StrategyReport", "conditional_value_at_risk", "detect_convergence_patterns", "holm"]

Floats = NDArray[np.float64]

_FLIPS = 4000
_FEWEST = 5  # worlds of a type, for a verdict on it


@dataclass(frozen=True)
class StrategyReport:
    """How one strategy did over all worlds."""

    name: str
    mean: float
    advantage: Interval
    """mean difference from the reference over worlds, with its 95 % interval"""
    p_value: float
    """of no advantage, corrected for the number of strategies"""
    success_share: float
    """share of worlds in which it beat the reference"""
    cvar: float
    """mean return in its worst tenth of worlds"""
    worst_type: str
    worst_type_advantage: float
    robust: bool
    because: str
    """what speaks for or against it"""


@dataclass(frozen=True)
class ConvergencePatterns:
    """All strategies, best first, and the threshold that the data gave."""

    robustness_threshold: float
    reference: str
    reference_cvar: float
    worlds: int
    strategies: tuple[StrategyReport, ...]

    @property
    def robust(self) -> tuple[str, ...]:
        """Names of the robust strategies, best first."""
        return tuple(report.name for report in self.strategies if report.robust)

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
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
    """`world_results`: strategy → returns (W,) or (W, episodes) in the same worlds, whose types are `kinds`."""
    names, table = _table(world_results, len(kinds))
    if not 0 < level < 1 or not 0 < tail <= 1:
        raise ConfigError(f"level {level} and tail {tail}: give numbers between 0 and 1")
    if reference is not None and reference not in names:
        raise ConfigError(f"reference {reference!r} is none of the strategies {names}")
    base = np.median(table, axis=0) if reference is None else table[names.index(reference)]
    candidates = [n for n in names if n != reference]
    rows = np.array([table[names.index(n)] for n in candidates])
    gains = rows - base
    flips = generator(seed, Purpose.PERMUTATION).choice([-1.0, 1.0], (_FLIPS, len(kinds)))
    p_values = holm(_chances(gains, flips))
    threshold = float(np.quantile(_luckiest(gains, flips), 1.0 - level))
    floor = conditional_value_at_risk(base, tail)
    by_type = _types(kinds)
    reports = []
    for s, name in enumerate(candidates):
        worst, advantage, harmed = _worst(gains[s], by_type, flips, level)
        cvar = conditional_value_at_risk(rows[s], tail)
        success = float((gains[s] > 0.0).mean())
        against = [
            text
            for text, holds in (
                (f"no advantage beyond chance (p = {p_values[s]:.3g})", p_values[s] >= level),
                (f"succeeds in {success:.0%} of the worlds, {threshold:.0%} can be luck", success <= threshold),
                (f"worse in {worst}", harmed),
                (f"its worst worlds are worse ({cvar:.3g} against {floor:.3g})", cvar < floor),
            )
            if holds
        ]
        reports.append(
            StrategyReport(
                name=name,
                mean=float(rows[s].mean()),
                advantage=mean_interval(gains[s]),
                p_value=float(p_values[s]),
                success_share=success,
                cvar=cvar,
                worst_type=worst,
                worst_type_advantage=advantage,
                robust=not against,
                because="; ".join(against)
                or "better in most worlds, in no type worse, and in its worst worlds no worse",
            )
        )
    order = sorted(reports, key=lambda r: (not r.robust, -r.mean))
    return ConvergencePatterns(threshold, reference or "median of all", floor, len(kinds), tuple(order))


def conditional_value_at_risk(returns: ArrayLike, tail: float = 0.1) -> float:
    """Mean of the worst `tail` of returns (at least one), after Rockafellar & Uryasev 2000.

    >>> conditional_value_at_risk([5.0, 1.0, 4.0, 3.0, 2.0], 0.4)
    1.5
    """
    values = np.sort(np.asarray(returns, np.float64).ravel())
    return float(values[: max(1, int(np.ceil(tail * len(values) - 1e-9)))].mean())


def holm(p_values: ArrayLike) -> Floats:
    """Holm's step-down correction.

    >>> holm([0.01, 0.04, 0.03]).round(4).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    out = np.empty_like(p)
    out[order] = np.minimum(stepped, 1.0)
    return out


def _chances(gains: Floats, flips: Floats) -> Floats:
    """(S, W) differences -> (S,) one-sided chances of so large a mean if signs were a coin's."""
    null = flips @ gains.T
    return np.asarray((1 + (null >= gains.sum(axis=1) - 1e-12).sum(axis=0)) / (len(flips) + 1))


def _luckiest(gains: Floats, flips: Floats) -> Floats:
    """(flips,) largest share of worlds won by any strategy if signs were a coin's, the same for all strategies."""
    signs = np.sign(gains)
    won = (flips @ signs.T + np.abs(signs).sum(axis=1)) / 2.0
    return np.asarray((won / gains.shape[1]).max(axis=1))


def _worst(
    gains: Floats, by_type: Mapping[str, NDArray[np.int64]], flips: Floats, level: float
) -> tuple[str, float, bool]:
    """The type in which least was gained, how much, and whether any type is worse off beyond chance."""
    means = {kind: float(gains[at].mean()) for kind, at in by_type.items()}
    worst = min(means, key=lambda kind: means[kind])
    large = [at for at in by_type.values() if len(at) >= _FEWEST]
    losses = [float(_chances(-gains[None, at], flips[:, at])[0]) for at in large]
    return worst, means[worst], bool(losses) and bool((holm(losses) < level).any())


def _types(kinds: Sequence[WorldType]) -> dict[str, NDArray[np.int64]]:
    names = np.array([kind.value for kind in kinds])
    return {str(name): np.flatnonzero(names == name) for name in np.unique(names)}


def _table(world_results: Mapping[str, ArrayLike], worlds: int) -> tuple[list[str], Floats]:
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
