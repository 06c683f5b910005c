"""Fit who converts, how soon, and for how much: delays, rates and values by class, channel, device and period.

Clicks C, classes K, periods Q. A click enters every class with its user's corrected weight. Users are clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Floats, Ints
from parallel_agents.market.discovery.click_history import VISITS, History
from parallel_agents.market.discovery.estimation import (
    Estimate,
    Fit,
    dummies,
    fit_normal,
    fit_poisson,
    fit_weibull,
    function_of_totals,
)

FEWEST_PURCHASES = 10  # purchases that a class needs for a delay of its own
_WEAK = 1e-3  # prior precision of a class's parameters
_PERIOD = 4.0  # prior precision of a period's log shift: a standard deviation of ½
_TINY = 1e-9  # fewer purchases than this cannot be expected
_PREFERRED = ("paid_search", "ios")  # reference levels, if they exist


@dataclass(frozen=True, eq=False)
class Delays:
    """Log scale (K,), log shape (K,), and the log shift of the scale by period (Q,)."""

    scale: Fit
    shape: Fit
    period: Fit
    observable: Floats  # (C, K): the probability that a purchase falls within the time monitored
    slopes: tuple[Floats, Floats]  # (C, K) each: the derivatives of `observable` by log scale and by log shape
    column: Ints  # (K,): which of the fitted scales and shapes a class has
    fit: Fit  # those n scales, the shifts of Q periods, the n shapes

    def error_of_seen(self, history: History, groups: Sequence[Floats]) -> Floats:
        """Return the covariance (G, G) of the logarithms of the purchases expected to be seen in G groups of clicks.

        groups: purchases (C, K) that are expected in all. How many of them are seen is as uncertain as the delays.
        """
        gradients = []
        for made in groups:
            by_scale, by_shape = (made * slope for slope in self.slopes)
            by_period = np.bincount(history.period, by_scale.sum(axis=1), history.periods)
            scales, shapes = (np.bincount(self.column, own.sum(axis=0)) for own in (by_scale, by_shape))
            seen = max(float((made * self.observable).sum()), _TINY)
            gradients.append(np.concatenate([scales, by_period, shapes]) / seen)
        return self.fit.combine(np.array(gradients)).covariance


@dataclass(frozen=True, eq=False)
class Rates:
    """Logarithms of conversion: base (K,) at the reference levels; factors of channels, devices, visits and periods."""

    base: Fit
    channel: Fit
    device: Fit
    visit: Fit
    period: Fit
    made: Floats  # (C, K): purchases after a click, should its user be of class k
    seen: Floats  # (C, K): those of them that fall within the time monitored


@dataclass(frozen=True, eq=False)
class Values:
    """Mean (K,) and log spread (K,) of log values by class, and the shift of the mean by period (Q,)."""

    mean: Fit
    spread: Fit
    period: Fit


@dataclass(frozen=True, eq=False)
class Conversion:
    """Delays, rates and values of purchases, and the corrected weights (C, K) of each click's classes."""

    delays: Delays
    rates: Rates
    values: Values
    weights: Floats

    @property
    def expected(self) -> tuple[Floats, Floats]:
        """Purchases after each click (C,) that are expected to be seen, and in all."""
        return (self.weights * self.rates.seen).sum(axis=1), (self.weights * self.rates.made).sum(axis=1)

    def per_click(self, history: History, amount: Floats, clicks: Floats, *, count: int, source: str) -> Estimate:
        """Return the mean of an amount (C,) that comes with purchases, those not yet seen included.

        clicks: weights (C, K). What was seen is scaled by purchases expected in all over those expected to be seen:
        purchases of the last weeks and of frequent users are seen more rarely, and their clicks convert otherwise.
        """
        made, weight = clicks * self.rates.made, clicks.sum(axis=1)
        columns = (weight * amount, weight, made.sum(axis=1), (clicks * self.rates.seen).sum(axis=1))
        rows = np.stack([history.per_user(own) for own in columns], axis=1)
        value, error = function_of_totals(lambda t: t[:1] / t[1:2] * t[2:3] / t[3:], rows)
        delays = value[0] * np.sqrt(self.delays.error_of_seen(history, [made])[0, 0])
        return Estimate.from_error(value[0], np.hypot(error[0], delays), "log", count=count, source=source)


def fit_conversion(history: History, chance: Floats, weights: Floats) -> Conversion:
    """Fit delays, then rates, then values, given the probability (U, K) and corrected weight (U, K) of each class."""
    delays = _fit_delays(history, chance, weights)
    rates, values = _fit_rates(history, weights, delays), _fit_values(history, chance, weights)
    return Conversion(delays, rates, values, weights[history.user])


def _reference_level(names: tuple[str, ...], levels: Ints) -> int:
    """Return the level that others are compared with: one with a preferred name, or the most frequent."""
    for name in _PREFERRED:
        if name in names:
            return names.index(name)
    return int(np.bincount(levels, minlength=len(names)).argmax())


def _centred(history: History, fit: Fit, classes: int, start: int) -> tuple[Fit, Fit]:
    """Return the first `classes` parameters at the average period of a click, and the period effects less that average.

    The period effects begin at `start`.
    """
    share = np.bincount(history.period, minlength=history.periods) / len(history.user)
    directions = np.zeros((classes, len(fit.values)))
    directions[:, :classes] = np.eye(classes)
    directions[:, start : start + len(share)] = share
    return fit.combine(directions), fit.block(start, np.eye(len(share)) - share)


def _class_of_buyers(history: History, chance: Floats, weights: Floats) -> Floats:
    """Return the probability (U, K) of each class, given that the user buys.

    `chance` is what behaviour shows. That a user bought shows more: classes that convert more often are likelier by
    as much. (Corrected weights would not do here: they may be negative, which a likelihood does not allow.)
    """
    bought, clicks = history.per_user(history.converted)[:, None], history.clicks[:, None]
    rate = (weights * bought).sum(axis=0) / (weights * clicks).sum(axis=0)
    prior = np.maximum(chance * np.maximum(rate, 1e-6), 1e-12)
    return np.asarray(prior / prior.sum(axis=1, keepdims=True))


def _designs(column: Ints, period: Ints, periods: int) -> tuple[Floats, Floats, Floats]:
    """Return designs (rows, K, ·) of class alone and of class and period, and the prior precision of all parameters.

    `column` (K,) says which parameter a class uses.
    """
    by_class = np.eye(int(column.max()) + 1)[column]
    by_class = np.broadcast_to(by_class, (len(period), *by_class.shape))
    by_period = np.broadcast_to(dummies(period, periods)[:, None], (*by_class.shape[:2], periods))
    used = by_class.shape[2]
    precision = np.concatenate([np.full(used, _WEAK), np.full(periods, _PERIOD), np.full(used, _WEAK)])
    return by_class, np.concatenate([by_class, by_period], axis=2), precision


def _fit_delays(history: History, chance: Floats, weights: Floats) -> Delays:
    """Fit Weibull delays with a scale and shape by class, and a shift of the scale by period."""
    bought = np.flatnonzero(np.isfinite(history.delay))
    if len(bought) < FEWEST_PURCHASES:
        raise ConfigError(
            f"only {len(bought)} purchases follow a click: at least {FEWEST_PURCHASES} are needed to learn delays"
        )
    classes, buyer = weights.shape[1], history.user[bought]
    enough = weights[buyer].sum(axis=0) >= FEWEST_PURCHASES
    pool = np.where(enough, np.arange(classes), classes)  # scarce classes share one
    used, column = np.unique(pool, return_inverse=True)
    by_class, design, precision = _designs(column, history.period[bought], history.periods)
    prior = _class_of_buyers(history, chance, weights)[buyer]
    fit = fit_weibull(design, by_class, history.delay[bought], history.monitored[bought], prior, buyer, precision)

    n = len(used)
    by_column, period = _centred(history, fit, n, n)
    scale, shape = (own.combine(np.eye(n)[column]) for own in (by_column, fit[n + history.periods :]))
    log_scale = scale.values + period.values[history.period][:, None]
    k = np.exp(shape.values)
    log_hazard = np.clip(k * (np.log(history.monitored)[:, None] - log_scale), -60.0, 5.0)
    hazard = np.exp(log_hazard)
    slope = hazard * np.exp(-hazard)  # of `observable`, by log hazard
    return Delays(scale, shape, period, -np.expm1(-hazard), (-k * slope, log_hazard * slope), column, fit)


def _fit_rates(history: History, weights: Floats, delays: Delays) -> Rates:
    """Fit conversion as a product of class, channel, device, visit and period; exposure is what could be observed."""
    classes, periods = weights.shape[1], history.periods
    causes = (  # level of every click, number of levels, reference
        (history.channel, len(history.channels), _reference_level(history.channels, history.channel)),
        (history.device[history.user], len(history.devices), _reference_level(history.devices, history.device)),
        (history.visit, VISITS, 0),
    )
    by_cause = [dummies(level, count, drop=reference) for level, count, reference in causes]
    by_click = np.hstack([*by_cause, dummies(history.period, periods)])
    k = np.tile(np.arange(classes), len(history.user))
    x = np.hstack([dummies(k, classes), np.repeat(by_click, classes, axis=0)])
    fit = fit_poisson(
        x,
        np.repeat(history.converted, classes),
        delays.observable.ravel(),
        weights[history.user].ravel(),
        np.repeat(history.user, classes),
        np.concatenate([np.full(x.shape[1] - periods, _WEAK), np.full(periods, _PERIOD)]),
    )
    factors, start = [], classes
    for _, count, reference in causes:
        factors.append(fit.block(start, dummies(np.arange(count), count, drop=reference)))
        start += count - 1
    channel, device, visit = factors
    base, period = _centred(history, fit, classes, start)
    made = np.exp(x @ fit.values).reshape(-1, classes)
    return Rates(base, channel, device, visit, period, made, made * delays.observable)


def _fit_values(history: History, chance: Floats, weights: Floats) -> Values:
    """Fit lognormal values with a mean and a spread by class, and a shift of the mean by period."""
    classes, periods = weights.shape[1], history.periods
    by_class, design, precision = _designs(np.arange(classes), history.bought_period, periods)
    prior = _class_of_buyers(history, chance, weights)[history.buyer]
    fit = fit_normal(design, by_class, np.log(history.value), prior, history.buyer, precision)
    mean, period = _centred(history, fit, classes, classes)
    return Values(mean, fit[classes + periods :], period)


@dataclass(frozen=True, eq=False)
class ClickWorth:
    """What the events say of a campaign: the value of a click, and how conversion changes during a day."""

    value: Estimate
    hour_value: tuple[Estimate, ...]  # sine and cosine, log


def worth_of_clicks(history: History, conversion: Conversion) -> dict[str, ClickWorth]:
    """Return the worth of a click of every paid campaign, purchases not yet seen included.

    The course of a day is shrunk towards none.
    """
    count, paid = len(history.campaigns), history.campaign >= 0
    angle = 2.0 * np.pi * history.time[paid] / 24.0
    by_campaign = dummies(history.campaign[paid], count)
    x = np.hstack([by_campaign, by_campaign * np.sin(angle)[:, None], by_campaign * np.cos(angle)[:, None]])
    expected = np.maximum(conversion.expected[0][paid], _TINY)
    precision = np.concatenate([np.full(count, _WEAK), np.full(2 * count, _PERIOD)])
    fit = fit_poisson(x, history.converted[paid], expected, np.ones(len(x)), history.user[paid], precision)
    value_source = "purchase value per click of the campaign, corrected for purchases not yet seen"
    hour_source, worth = "conversion by hour of the click, shrunk", {}
    for j, name in enumerate(history.campaigns):
        clicks = history.campaign == j
        number, weights = int(clicks.sum()), conversion.weights * clicks[:, None]
        worth[name] = ClickWorth(
            conversion.per_click(history, history.worth, weights, count=number, source=value_source),
            tuple(fit.estimate(count + i, count=number, source=hour_source) for i in (j, count + j)),
        )
    return worth
