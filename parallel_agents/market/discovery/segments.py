"""From classes to segments: what each class is like and worth, and which of them are the crisis parents.

Crisis parents are not assumed. A class is called so when it is rare, brings more value than its share of users
(with its whole interval) and reads urgent pages more than others do. If no class does, none is called so.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.market.discovery.conversion import Conversion, Delay, Values
from parallel_agents.market.discovery.estimates import Estimate, Scale, of_totals
from parallel_agents.market.discovery.history import History
from parallel_agents.market.discovery.mixture import Classes, Features, find_classes
from parallel_agents.market.discovery.patterns import CRISIS, Factor, Segment
from parallel_agents.market.discovery.statistics import Fit

__all__ = ["classes_of", "factors", "interest_lift", "segments_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST = 6
_TITLES = {"research": "researcher", "price": "price_sensitive", "urgent": "urgent_reader"}


def classes_of(h: History, *, seed: int) -> Classes:
    """The latent classes of a history; one class only is an error, since nothing could then be told apart."""
    found = find_classes(Features(h.topic_pages, h.engagement), most=_MOST, seed=seed)
    if len(found.share) < 2:
        raise ConfigError(
            f"only one segment was found among {len(h.clicks)} users: their pages and visits do not tell them apart; "
            "give more data, or a Vocabulary whose words occur in the pages"
        )
    return found


def _ratio(top: Floats, bottom: Floats, scale: Scale, source: str, count: int) -> Estimate:
    """Σ top / Σ bottom over users (U,)."""
    value, error = of_totals(lambda t: t[:1] / t[1:], np.stack([top, bottom], axis=1))
    return Estimate.from_error(value[0], error[0], scale, count=count, source=source)


def segments_of(
    h: History, classes: Classes, delay: Delay, rates: Conversion, values: Values
) -> tuple[tuple[Segment, ...], tuple[int, ...], tuple[str, ...]]:
    """Segments, most valuable per user first; which class each is; and what could not be found."""
    w = classes.weights(h.clicks.astype(np.float64))
    worth = _value_shares(h, w, delay)
    concentration = [v.value / s for v, s in zip(worth, classes.share, strict=True)]
    order = tuple(int(k) for k in np.argsort(concentration)[::-1])
    names, missing = _names(h, classes, worth, order)
    segments = tuple(_segment(h, classes, delay, rates, values, worth[k], w, k, names[k]) for k in order)
    return segments, order, missing


def _value_shares(h: History, w: Floats, delay: Delay) -> list[Estimate]:
    """What each class brings, purchases still to come included: Σ value × clicks / clicks seen to the end."""
    classes = w.shape[1]
    spent = np.stack([w[:, k] * np.bincount(h.buyer, h.value, len(w)) for k in range(classes)], axis=1)
    came = w * h.clicks[:, None]
    seen = np.stack([w[:, k] * h.per_user(delay.seen[:, k]) for k in range(classes)], axis=1)

    def shares(t: Floats) -> Floats:
        total = t[:classes] * t[classes : 2 * classes] / t[2 * classes :]
        return np.asarray(total / total.sum())

    value, error = of_totals(shares, np.hstack([spent, came, seen]))
    source = f"purchases: {len(h.value)} values, weighted by class, corrected for purchases not yet seen"
    return [
        Estimate.from_error(v, e, "logit", count=len(h.value), source=source) for v, e in zip(value, error, strict=True)
    ]


def _names(
    h: History, classes: Classes, worth: list[Estimate], order: tuple[int, ...]
) -> tuple[list[str], tuple[str, ...]]:
    """A name per class: crisis parents by the rule above, the others by the topic they read beyond the average."""
    average = classes.share @ classes.topics
    excess = classes.topics / average
    names = [""] * len(classes.share)
    missing: tuple[str, ...] = ()
    rare = classes.share < 1.0 / len(classes.share)
    rich = np.array([e.low for e in worth]) > classes.share
    urgent = excess[:, h.topics.index("urgent")] > 1.0 if "urgent" in h.topics else np.ones(len(rare), bool)
    fits = [k for k in order if rare[k] and rich[k] and urgent[k]]
    if fits:
        names[fits[0]] = CRISIS
    else:
        missing = ("crisis parents: no class is rare, brings more than its share of value and reads urgent pages",)
    for k in order:
        if not names[k]:
            topic = h.topics[int(excess[k].argmax())]
            title = _TITLES.get(topic, "regular")
            taken = sum(n == title or n.startswith(f"{title}_") for n in names)
            names[k] = title if not taken else f"{title}_{taken + 1}"
    return names, missing


def _segment(
    h: History,
    classes: Classes,
    delay: Delay,
    rates: Conversion,
    values: Values,
    worth: Estimate,
    weights: Floats,
    k: int,
    name: str,
) -> Segment:
    w, plain = weights[:, k], classes.weights(np.ones(len(weights)))[:, k]
    users, people = len(w), max(1, round(float(plain.sum())))
    mixture = f"mixture of {len(classes.share)} classes over {users} users"
    pages = h.topic_pages.sum(axis=1)
    done = h.per_user(h.converted)
    bought = round(float(w @ done))
    seen = h.per_user(delay.seen[:, k])
    lag = f"delays of {bought} purchases, Weibull, right-truncated"
    clustered = "weighted by class, users as clusters"

    def logged(fit_value: float, error: float, source: str) -> Estimate:
        return Estimate.from_log(fit_value, error, count=bought, source=source)

    interest, interest_spread = _interest(h, classes.weights(pages)[:, k], pages, people)
    paid = np.bincount(h.user, h.campaign >= 0, users)
    campaigns = {}
    for j, campaign in enumerate(h.campaigns):
        mine = np.bincount(h.user, h.campaign == j, users)
        campaigns[campaign] = _ratio(w * mine, w * paid, "logit", f"paid clicks, {clustered}", int(paid.sum()))
    devices = {
        d: _ratio(plain * (h.device == i), plain, "logit", f"devices of users, {clustered}", people)
        for i, d in enumerate(h.devices)
    }
    return Segment(
        name=name,
        share=Estimate.from_error(classes.share[k], classes.share_error[k], "logit", count=users, source=mixture),
        value_share=worth,
        visits=_ratio(w * h.clicks, plain, "log", f"clicks per user, {clustered}", people),
        conversion=_ratio(w * done, w * seen, "log", f"purchases per click, {clustered}", bought),
        base=logged(rates.base.values[k], rates.base.errors[k], "conversion regression: class at the references"),
        value_log_mean=Estimate.from_error(
            values.mean.values[k], values.mean.errors[k], "linear", count=bought, source="log purchase values"
        ),
        value_log_spread=logged(values.spread.values[k], values.spread.errors[k], "log purchase values"),
        delay_hours=logged(delay.scale.values[k], delay.scale.errors[k], lag),
        delay_shape=logged(delay.shape.values[k], delay.shape.errors[k], lag),
        interest=interest,
        interest_spread=interest_spread,
        devices=devices,
        campaigns=campaigns,
    )


def _interest(h: History, w: Floats, pages: Floats, people: int) -> tuple[Estimate, Estimate]:
    """Mean and spread between users of behavioural-health interest, by moments of page counts."""
    pairs, both = pages * (pages - 1.0), h.health_pages * (h.health_pages - 1.0)

    def moments(t: Floats) -> Floats:
        mean = t[0] / t[1]
        return np.array([mean, np.sqrt(np.maximum(t[2] / t[3] - mean**2, 1e-6))])

    value, error = of_totals(moments, np.stack([w * h.health_pages, w * pages, w * both, w * pairs], axis=1))
    source = "behavioural-health pages among all pages, users as clusters"
    return (
        Estimate.from_error(value[0], error[0], "logit", count=people, source=source),
        Estimate.from_error(value[1], error[1], "log", count=people, source=f"{source}; beyond chance"),
    )


def interest_lift(h: History, weights: Floats, rates: Conversion, segments: Mapping[int, Segment]) -> Estimate:
    """Relative conversion per unit of a user's interest above the class mean.

    A user's share of health pages measures interest with noise; dividing by the variance of interest itself, not
    by that of the measure, leaves no attenuation.
    """
    pages = h.topic_pages.sum(axis=1)
    measured = h.health_pages / np.maximum(pages, 1.0)
    known = pages > 0
    top, bottom = np.zeros(len(pages)), np.zeros(len(pages))
    for k, segment in segments.items():
        expected = h.per_user(rates.expected[:, k])
        surplus = (h.per_user(h.converted) - expected) * weights[:, k] * known
        top += surplus * (measured - segment.interest.value)
        bottom += weights[:, k] * known * expected * segment.interest_spread.value**2
    return _ratio(
        top,
        bottom,
        "linear",
        "purchases beyond expectation by share of health pages",
        int(h.converted.sum()),
    )


def factors(
    h: History, names: tuple[str, ...], level: Ints, logs: Fit, weights: Floats, delay: Delay
) -> dict[str, Factor]:
    """Share of clicks, conversion and own factor of every channel or device; `level` (C,) indexes `names`."""
    found = {}
    seen = (weights[h.user] * delay.seen).sum(axis=1)
    for i, name in enumerate(names):
        mine = (level == i).astype(np.float64)
        clicks, bought = int(mine.sum()), int(mine @ h.converted)
        found[name] = Factor(
            share=_ratio(h.per_user(mine), h.clicks.astype(np.float64), "logit", "clicks", clicks),
            conversion=_ratio(
                h.per_user(mine * h.converted),
                h.per_user(mine * seen),
                "log",
                "purchases per click",
                bought,
            ),
            factor=Estimate.from_log(
                logs.values[i], logs.errors[i], count=bought, source="conversion regression, all else equal"
            ),
        )
    return found
