"""Who converts, how soon, and what it is worth: delays, rates and values by class, channel, device and period.

Clicks C, classes K, periods Q. A click enters every class with its user's corrected weight. Users are clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.market.discovery.history import History
from parallel_agents.market.discovery.statistics import Fit, dummies, normal, poisson, weibull

__all__ = ["Conversion", "Delay", "Values", "fit_delay", "fit_rates", "fit_values", "reference"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FEWEST = 10  # purchases a class needs for a delay of its own
_WEAK, _PERIOD = (
    1e-3,
    4.0,
)  # prior precision of a class's log scale and shape, and of a period's log shift (sd ½)
_PREFERRED = ("paid_search", "ios")


@dataclass(frozen=True, eq=False)
class Delay:
    """log scale (K,), log shape (K,), the periods' log shift (Q,), and the chance to see a click's purchase."""

    scale: Fit
    shape: Fit
    period: Fit
    seen: Floats  # (C, K): F(watched)


@dataclass(frozen=True, eq=False)
class Conversion:
    """Logarithms of rates: base (K,) at the references; factors of channels, devices, visits and periods."""

    base: Fit
    channel: Fit
    device: Fit
    visit: Fit
    period: Fit
    expected: Floats  # (C, K): rate × seen


@dataclass(frozen=True, eq=False)
class Values:
    """Mean (K,) and log spread (K,) of log values by class, and the periods' shift of the mean (Q,)."""

    mean: Fit
    spread: Fit
    period: Fit


def reference(names: tuple[str, ...], levels: Ints) -> int:
    """The level that others are compared with: a preferred name, or the most frequent."""
    for name in _PREFERRED:
        if name in names:
            return names.index(name)
    return int(np.bincount(levels, minlength=len(names)).argmax())


def _columns(fit: Fit, start: int, rows: Floats) -> Fit:
    """Combinations `rows` (q, n) of the n parameters from `start` on."""
    directions = np.zeros((len(rows), len(fit.values)))
    directions[:, start : start + rows.shape[1]] = rows
    return fit.along(directions)


def _period_share(h: History) -> Floats:
    return np.bincount(h.period, minlength=h.periods) / len(h.user)


def _at_average(fit: Fit, classes: int, start: int, share: Floats) -> Fit:
    """The first `classes` parameters, at the average of the periods whose effects begin at `start`."""
    directions = np.zeros((classes, len(fit.values)))
    directions[:, :classes] = np.eye(classes)
    directions[:, start : start + len(share)] = share
    return fit.along(directions)


def _deviations(fit: Fit, start: int, share: Floats) -> Fit:
    """The periods' effects, less their average."""
    return _columns(fit, start, np.eye(len(share)) - share)


def _buyers(h: History, chance: Floats, weights: Floats) -> Floats:
    """(U, K): the chance of each class, should the user buy.

    `chance` is what behaviour says. That a user bought says more: classes that convert more often are likelier by
    as much. (Corrected weights would not do here: they may be negative, which a likelihood cannot bear.)
    """
    rate = (weights * h.per_user(h.converted)[:, None]).sum(axis=0) / (weights * h.clicks[:, None]).sum(axis=0)
    prior = np.maximum(chance * np.maximum(rate, 1e-6), 1e-12)
    return np.asarray(prior / prior.sum(axis=1, keepdims=True))


def _designs(column: Ints, period: Ints, periods: int) -> tuple[Floats, Floats, Floats]:
    """Designs (rows, K, ·) of class alone and of class and period, and the precision of their parameters' prior.

    `column` (K,) says which parameter a class uses.
    """
    own = np.eye(int(column.max()) + 1)[column]
    own = np.broadcast_to(own, (len(period), *own.shape))
    season = np.broadcast_to(dummies(period, periods)[:, None], (*own.shape[:2], periods))
    used = own.shape[2]
    precision = np.concatenate([np.full(used, _WEAK), np.full(periods, _PERIOD), np.full(used, _WEAK)])
    return own, np.concatenate([own, season], axis=2), precision


def fit_delay(h: History, chance: Floats, weights: Floats) -> Delay:
    """Weibull delays with a scale and shape by class, and a shift of the scale by period."""
    done = np.flatnonzero(np.isfinite(h.delay))
    if len(done) < _FEWEST:
        raise ConfigError(f"only {len(done)} purchases follow a click: at least {_FEWEST} are needed to learn delays")
    classes, q = weights.shape[1], h.periods
    w = weights[h.user[done]]
    pool = np.where(w.sum(axis=0) >= _FEWEST, np.arange(classes), classes)  # scarce classes share one delay
    used, column = np.unique(pool, return_inverse=True)
    own, design, precision = _designs(column, h.period[done], q)
    prior = _buyers(h, chance, weights)[h.user[done]]
    fit = weibull(design, own, h.delay[done], h.watched[done], prior, h.user[done], precision)

    share, n = _period_share(h), len(used)
    scale = _at_average(fit, n, n, share).along(np.eye(n)[column])
    shape = _columns(fit, n + q, np.eye(n)[column])
    period = _deviations(fit, n, share)
    log_scale = scale.values + period.values[h.period][:, None]
    k_shape = np.exp(shape.values)
    grown = np.exp(np.clip(k_shape * (np.log(h.watched)[:, None] - log_scale), -60.0, 5.0))
    return Delay(scale, shape, period, np.asarray(-np.expm1(-grown)))


def fit_rates(h: History, weights: Floats, delay: Delay) -> Conversion:
    """Conversion as a product of class, channel, device, visit and period, exposure being the chance to be seen."""
    classes, q = weights.shape[1], h.periods
    channel, device = reference(h.channels, h.channel), reference(h.devices, h.device)
    each = np.hstack(
        [
            dummies(h.channel, len(h.channels), drop=channel),
            dummies(h.device[h.user], len(h.devices), drop=device),
            dummies(h.visit, 3, drop=0),
            dummies(h.period, q),
        ]
    )
    k = np.tile(np.arange(classes), len(h.user))
    x = np.hstack([dummies(k, classes), np.repeat(each, classes, axis=0)])
    fit = poisson(
        x,
        np.repeat(h.converted, classes),
        delay.seen.ravel(),
        weights[h.user].ravel(),
        np.repeat(h.user, classes),
        np.concatenate([np.full(x.shape[1] - q, _WEAK), np.full(q, _PERIOD)]),
    )
    sizes = [len(h.channels) - 1, len(h.devices) - 1, 2, q]
    starts = classes + np.concatenate([[0], np.cumsum(sizes)])
    share = _period_share(h)
    expected = np.exp(x @ fit.values).reshape(-1, classes) * delay.seen
    return Conversion(
        base=_at_average(fit, classes, int(starts[3]), share),
        channel=_columns(fit, int(starts[0]), np.insert(np.eye(sizes[0]), channel, 0.0, axis=0)),
        device=_columns(fit, int(starts[1]), np.insert(np.eye(sizes[1]), device, 0.0, axis=0)),
        visit=_columns(fit, int(starts[2]), np.insert(np.eye(2), 0, 0.0, axis=0)),
        period=_deviations(fit, int(starts[3]), share),
        expected=expected,
    )


def fit_values(h: History, chance: Floats, weights: Floats) -> Values:
    """Lognormal values with a mean and a spread by class, and a shift of the mean by period."""
    classes, q = weights.shape[1], h.periods
    own, design, precision = _designs(np.arange(classes), h.bought_period, q)
    prior = _buyers(h, chance, weights)[h.buyer]
    fit = normal(design, own, np.log(h.value), prior, h.buyer, precision)
    share = _period_share(h)
    return Values(
        mean=_at_average(fit, classes, classes, share),
        spread=_columns(fit, classes + q, np.eye(classes)),
        period=_deviations(fit, classes, share),
    )
