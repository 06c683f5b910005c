"""Fit what moves the levels of rivals from day to day, all rivals at once: known causes, and a drift that they share.

Rivals M, days D, causes p of each rival. A level is design · β + drift + noise. The drift keeps a share of itself, its
memory, from one day to the next. Given the noise and the drift's memory and step this is a linear mixed model: β and
its restricted likelihood follow from sums over rivals, which depend on the noise but not on the drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.market.discovery.estimation import Fit, Floats, student_factor

_VAGUE = 1e-3  # precision of what nothing is known of before
_MEMORIES = np.array([0.0, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97])  # share of the drift that is left a day later
_STEPS_OF_DRIFT = np.geomspace(0.008, 0.4, 36)  # closer to each other than 70 days can tell apart
_OTHER_NOISE = (0.0, *np.geomspace(0.005, 0.2, 16))  # of one rival and day, beyond that of sampling
_NOISE_ROUNDS = 10  # two or three are enough


@dataclass(frozen=True, eq=False)
class DayLevels:
    """One rival: its levels (D,) and their errors, on which days (D,) it was met, and the causes (D, p) of them."""

    levels: Fit
    met: NDArray[np.bool_]
    design: Floats


class DayFit(NamedTuple):
    """Effects of causes (p,) by rival, and the drift's daily step."""

    effects: list[Fit]
    log_step: float
    log_step_error: float


def fit_days(rivals: Sequence[DayLevels], common: Floats | None) -> DayFit:
    """Fit causes, drift and noise; `common` (D, D) is the covariance of other errors that the levels of all share.

    Memory and step of the drift are averaged over their restricted likelihood: few days tell neither of them well. Each
    rival has its own noise, the likeliest: one whose levels follow from the causes less well tells less of the drift.
    """
    drifts = [_Drift.of(len(rivals[0].met), *own, common) for own in product(_MEMORIES, _STEPS_OF_DRIFT)]
    sums = _likeliest([[_sums(rival, noise) for noise in _OTHER_NOISE] for rival in rivals], drifts)
    tried = [_fit(sums, drift) for drift in drifts]
    whole, share = Fit.averaged([fit for fit, _ in tried], [likelihood for _, likelihood in tried])
    effects, start = [], 0
    for rival in rivals:
        size = rival.design.shape[1]
        own = whole.block(start, np.eye(size))
        effects.append(Fit(own.values, own.covariance * student_factor(int(rival.met.sum()) - size) ** 2))
        start += size
    log_steps = np.log([drift.step for drift in drifts])
    log_step = float(share @ log_steps)
    return DayFit(effects, log_step, float(np.sqrt(share @ (log_steps - log_step) ** 2)))


def _likeliest(by_noise: Sequence[Sequence[_Sums]], drifts: Sequence[_Drift]) -> _Sums:
    """Return the sums over rivals, each at the noise that is likeliest with that of the others and the likeliest drift.

    by_noise: the sums of every rival at every noise.
    """
    chosen = [own[0] for own in by_noise]
    for _ in range(_NOISE_ROUNDS):
        before, sums = list(chosen), _joined(chosen)
        drift = max(drifts, key=lambda one: _fit(sums, one)[1])
        for i, own in enumerate(by_noise):
            with_others = [_joined([*chosen[:i], one, *chosen[i + 1 :]]) for one in own]
            chosen[i] = own[int(np.argmax([_fit(sums, drift)[1] for sums in with_others]))]
        if all(one is other for one, other in zip(chosen, before, strict=True)):
            break
    return _joined(chosen)


class _Sums(NamedTuple):
    """What the likelihood of every drift is made of, of one rival, or of all with p the number of all causes."""

    precision: Floats  # (D, D): of levels about drift and causes
    log_size: float  # of the precision
    x_side: Floats  # (D, p): precision · design
    y_side: Floats  # (D,): precision · levels
    xx: Floats  # (p, p)
    xy: Floats  # (p,)
    yy: float


def _sums(rival: DayLevels, noise: float) -> _Sums:
    """Return the sums of one rival, each of whose days has some noise beyond that of sampling."""
    there, x, y = np.flatnonzero(rival.met), rival.design, rival.levels.values
    inner = rival.levels.covariance[np.ix_(there, there)] + (noise**2 + 1e-8) * np.eye(len(there))
    precision = np.zeros((len(y), len(y)))
    precision[np.ix_(there, there)] = np.linalg.inv(inner)
    log_size = -float(np.linalg.slogdet(inner)[1])
    x_side, y_side = precision @ x, precision @ y
    return _Sums(
        precision, log_size, x_side, y_side, x.T @ precision @ x, x.T @ precision @ y, float(y @ precision @ y)
    )


def _joined(parts: Sequence[_Sums]) -> _Sums:
    """Return the sums over rivals, whose causes stand side by side."""
    ends = np.cumsum([len(part.xy) for part in parts])
    xx = np.zeros((ends[-1], ends[-1]))
    for part, end in zip(parts, ends.tolist(), strict=True):
        block = slice(end - len(part.xy), end)
        xx[block, block] = part.xx
    return _Sums(
        np.sum([part.precision for part in parts], axis=0),
        sum(part.log_size for part in parts),
        np.hstack([part.x_side for part in parts]),
        np.sum([part.y_side for part in parts], axis=0),
        xx,
        np.concatenate([part.xy for part in parts]),
        sum(part.yy for part in parts),
    )


class _Drift(NamedTuple):
    """A drift that all rivals share: its daily step, its precision (D, D), and the log size of its covariance."""

    step: float
    precision: Floats
    log_size: float

    @classmethod
    def of(cls, days: int, memory: float, step: float, common: Floats | None) -> _Drift:
        """Return a drift; `common` (D, D) is the covariance of other errors that the levels of all rivals share."""
        gap = np.abs(np.arange(days)[:, None] - np.arange(days))
        covariance = step**2 / (1.0 - memory**2) * memory**gap + (0.0 if common is None else common)
        return cls(step, np.linalg.inv(covariance), float(np.linalg.slogdet(covariance)[1]))


def _fit(sums: _Sums, drift: _Drift) -> tuple[Fit, float]:
    """Return the effects (p,) of all causes with one drift, and the restricted log likelihood of drift and noise."""
    inner = np.linalg.inv(drift.precision + sums.precision)  # the drift's covariance given the levels
    info = sums.xx - sums.x_side.T @ inner @ sums.x_side + _VAGUE * np.eye(len(sums.xx))
    covariance = np.asarray(np.linalg.inv(info), np.float64)
    side = sums.xy - sums.x_side.T @ inner @ sums.y_side
    effects = covariance @ side
    rest = sums.yy - float(sums.y_side @ inner @ sums.y_side) - float(side @ effects)
    log_size = sums.log_size - drift.log_size + float(np.linalg.slogdet(inner)[1])
    return Fit(effects, covariance), 0.5 * (log_size - float(np.linalg.slogdet(info)[1]) - rest)
