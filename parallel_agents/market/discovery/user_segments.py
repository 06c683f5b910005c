"""Find classes of users by what they read, and describe each as a segment: its habits, its worth and its name.

Classes are latent. Each has its own topics (multinomial), log seconds on a page (normal) and number of pages (in
octaves, of any distribution: a class must not be split because its members are unequally busy).
Expectation-maximisation fits the mixture, BIC chooses the number of classes, and the empirical Fisher information gives
errors. What a class does and is worth is measured afterwards, with weights corrected for misclassification (Bolck,
Croon and Hagenaars 2004).

Crisis parents are not assumed. A class is called so when it is rare, brings more value than its share of users
(with its whole interval) and reads urgent pages more than others do. If no class does, none is called so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Floats, Ints
from parallel_agents.market.discovery.click_history import History
from parallel_agents.market.discovery.conversion import Conversion, Rates
from parallel_agents.market.discovery.estimation import Estimate, Fit, function_of_totals, ratio
from parallel_agents.market.discovery.patterns import CRISIS, Factor, Segment

_MOST_CLASSES = 6
_RESTARTS, _RESTART_ITERATIONS = 4, 15
_MAX_ITERATIONS = 500
_EMPTY_CLASS = 1e-6  # users added to every class: a superfluous one empties, but stays defined
_PSEUDO = 0.5  # pages of every topic and users of every octave added to every class: no probability is ever 0
_TITLES = {"research": "researcher", "price": "price_sensitive", "urgent": "urgent_reader"}


@dataclass(frozen=True, eq=False)
class Features:
    """Behaviour of users U: pages by topic (U, T), log seconds on a page as number, sum and sum of squares (U, 3)."""

    topics: Floats
    engagement: Floats

    @cached_property
    def pages(self) -> Floats:
        """Shape (U,)."""
        return np.asarray(self.topics.sum(axis=1))

    @cached_property
    def volume(self) -> Floats:
        """Shape (U, octaves): indicators of 0, 1, 2, 3 to 4, 5 to 8, … pages."""
        octave = np.ceil(np.log2(np.maximum(self.pages, 0.5))).astype(np.int64) + 1
        return np.asarray(np.eye(int(octave.max()) + 1)[octave])


@dataclass(frozen=True, eq=False)
class Classes:
    """A fitted mixture of K classes over U users."""

    share: Floats  # (K,)
    share_error: Floats
    topics: Floats  # (K, T)
    chance: Floats  # (U, K): probability of each class
    bic: float

    def weights(self, mass: Floats) -> Floats:
        """Return weights (U, K) whose class sums of anything that comes in proportion to `mass` (U,) are unbiased.

        Mass is 1 for what users have once, their clicks for what happens per click. Weights may be slightly negative.
        """
        weighted = self.chance * mass[:, None]
        confusion = self.chance.T @ weighted / weighted.sum(axis=0)  # column k: where members of class k are put
        return np.asarray(self.chance @ np.linalg.inv(confusion).T)


@dataclass(eq=False)
class _Parameters:
    """Share, topics, octaves of pages, mean and spread of log seconds: (K, …) each."""

    share: Floats
    topics: Floats
    volume: Floats
    mean: Floats
    spread: Floats

    @classmethod
    def fit(cls, x: Features, chance: Floats) -> _Parameters:
        """Return the maximum likelihood parameters for given class probabilities (U, K)."""
        topics, volume = chance.T @ x.topics + _PSEUDO, chance.T @ x.volume + _PSEUDO
        seconds = chance.T @ x.engagement
        number = np.maximum(seconds[:, 0], _PSEUDO)
        mean = seconds[:, 1] / number
        spread = np.sqrt(np.maximum(seconds[:, 2] / number - mean**2, 1e-4))
        size = chance.sum(axis=0) + _EMPTY_CLASS
        topics /= topics.sum(axis=1, keepdims=True)
        return cls(size / size.sum(), topics, volume / volume.sum(axis=1, keepdims=True), mean, spread)

    def _deviations(self, x: Features) -> tuple[Floats, Floats, Floats]:
        """Return pages timed (U, 1), and their deviations from each class's mean, summed (U, K) and squared (U, K)."""
        n, s1, s2 = x.engagement.T[:, :, None]
        return n, s1 - n * self.mean, s2 - 2.0 * s1 * self.mean + n * self.mean**2

    def log_likelihood(self, x: Features) -> Floats:
        """Return log share + log density (U, K), up to terms without a parameter."""
        n, _, squares = self._deviations(x)
        seconds = squares / (2.0 * self.spread**2) + n * np.log(self.spread)
        reading = x.topics @ np.log(self.topics).T + x.volume @ np.log(self.volume).T
        return np.asarray(np.log(self.share) + reading - seconds)

    def scores(self, x: Features, chance: Floats) -> Floats:
        """Return the derivatives (U, p) of each user's log likelihood by every free parameter, shares first."""
        n, deviations, squares = self._deviations(x)
        topics = x.topics[:, None, :] - x.pages[:, None, None] * self.topics
        blocks = [
            (chance - self.share)[:, 1:],
            chance * deviations / self.spread**2,
            chance * (squares / self.spread**2 - n),
            (chance[:, :, None] * topics)[:, _free(chance.T @ x.topics)],
            (chance[:, :, None] * (x.volume[:, None, :] - self.volume))[:, _free(chance.T @ x.volume)],
        ]
        return np.hstack(blocks)


def _free(counts: Floats) -> NDArray[np.bool_]:
    """Return which probabilities (K, categories) are free: not the largest of a class, nor those that are nearly 0."""
    free = counts >= 1.0
    free[np.arange(len(counts)), counts.argmax(axis=1)] = False
    return np.asarray(free)


def find_classes(x: Features, *, most: int, seed: int) -> Classes:
    """Return the mixture whose number of classes, 1 to `most`, has the lowest BIC."""
    best = _fit_mixture(x, 1, seed)
    for count in range(2, most + 1):
        classes = _fit_mixture(x, count, seed)
        if classes.bic >= best.bic:
            break
        best = classes
    return best


def _fit_mixture(x: Features, count: int, seed: int) -> Classes:
    """Fit a mixture of `count` classes from the best of a few starts."""
    starts = [_start(x, count, seed, i) for i in range(_RESTARTS if count > 1 else 1)]
    tries = [_maximise(x, chance, iterations=_RESTART_ITERATIONS) for chance in starts]
    chance, level = _maximise(x, max(tries, key=lambda t: t[1])[0], iterations=_MAX_ITERATIONS)
    p = _Parameters.fit(x, chance)
    scores = p.scores(x, chance)
    covariance = np.linalg.pinv(scores.T @ scores)[: count - 1, : count - 1]
    jacobian = (np.diag(p.share) - np.outer(p.share, p.share))[:, 1:]
    error = np.sqrt(np.diag(jacobian @ covariance @ jacobian.T))
    bic = -2.0 * level + scores.shape[1] * float(np.log(len(chance)))
    return Classes(p.share, error, p.topics, chance, bic)


def _start(x: Features, count: int, seed: int, attempt: int) -> Floats:
    """Return class probabilities (U, K) from centres spread out as in k-means++ (Arthur and Vassilvitskii 2007)."""
    rng = generator(seed, Purpose.INIT, agent=2, world=count, epoch=attempt)
    topics = (x.topics + _PSEUDO) / (x.topics + _PSEUDO).sum(axis=1, keepdims=True)
    seconds = x.engagement[:, 1] / np.maximum(x.engagement[:, 0], 1.0)
    points = np.column_stack([topics, seconds / 10.0])
    trust = x.pages / (x.pages + 4.0)  # a user of one page shows little
    centres = points[rng.choice(len(points), p=trust / trust.sum())][None]
    for _ in range(count - 1):
        gap = ((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1) * trust
        centres = np.vstack([centres, points[rng.choice(len(points), p=gap / gap.sum())]])
    distance = ((points[:, None] - centres) ** 2).sum(axis=2)
    chance = np.exp(-10.0 * distance) + 1e-3
    return np.asarray(chance / chance.sum(axis=1, keepdims=True))


def _maximise(x: Features, chance: Floats, *, iterations: int) -> tuple[Floats, float]:
    """Run expectation-maximisation; return class probabilities and the log likelihood they were computed with."""
    level = -np.inf
    for _ in range(iterations):
        joint = _Parameters.fit(x, chance).log_likelihood(x)
        top = joint.max(axis=1, keepdims=True)
        relative = np.exp(joint - top)
        total = relative.sum(axis=1, keepdims=True)
        chance = relative / total
        before, level = level, float((top + np.log(total)).sum())
        if abs(level - before) < 1e-5 * len(chance) ** 0.5:
            break
    return chance, level


def classify_users(history: History, *, seed: int) -> Classes:
    """Return the latent classes of a history; raise if there is only one, since segments could not be compared."""
    if not history.topic_pages.any():
        raise ConfigError(
            "no page view has an address: segments of users are found by what they read; give events page_view with a "
            "page"
        )
    classes = find_classes(Features(history.topic_pages, history.engagement), most=_MOST_CLASSES, seed=seed)
    if len(classes.share) < 2:
        raise ConfigError(
            f"only one segment was found among {len(history.clicks)} users: their pages and visits do not tell them "
            "apart; give more data, or a Vocabulary whose words occur in the pages"
        )
    return classes


def describe_segments(
    history: History, classes: Classes, weights: Floats, conversion: Conversion
) -> tuple[dict[int, Segment], list[str]]:
    """Return the segment of every class, most valuable per user first, and notes on what was not identified.

    weights: those (U, K) of clicks.
    """
    value_shares = _value_shares(history, conversion)
    concentration = [v.value / s for v, s in zip(value_shares, classes.share, strict=True)]
    order = [int(k) for k in np.argsort(concentration)[::-1]]
    names, notes = _name_classes(history, classes, value_shares, order)
    return {k: _segment(history, classes, conversion, value_shares[k], weights, k, names[k]) for k in order}, notes


def _value_shares(history: History, conversion: Conversion) -> list[Estimate]:
    """Return each class's share of value, later purchases included: Σ value × purchases expected / those seen."""
    weights, rates = conversion.weights, conversion.rates
    classes = weights.shape[1]
    made, seen = weights * rates.made, weights * rates.seen
    spent = weights * history.worth[:, None]
    rows = np.stack([history.per_user(own) for own in np.hstack([spent, made, seen]).T], axis=1)

    def shares(t: Floats) -> Floats:
        total = t[:classes] * t[classes : 2 * classes] / t[2 * classes :]
        return np.asarray(total / total.sum())

    value, error = function_of_totals(shares, rows)
    only = np.eye(classes)
    by_seen = np.diag(value) - np.outer(value, value)  # derivatives by the logarithms of purchases seen, less the sign
    delays = by_seen @ conversion.delays.error_of_seen(history, [made * own for own in only]) @ by_seen
    error = np.sqrt(error**2 + np.diag(delays))
    count = int(history.by_click.sum())
    source = f"purchases: {count} values, weighted by class, corrected for purchases not yet seen"
    return [Estimate.from_error(v, e, "logit", count=count, source=source) for v, e in zip(value, error, strict=True)]


def _name_classes(
    history: History, classes: Classes, value_shares: list[Estimate], order: list[int]
) -> tuple[list[str], list[str]]:
    """Name crisis parents by the rule above, other classes by the topic they read most above average."""
    excess = classes.topics / (classes.share @ classes.topics)
    names = [""] * len(classes.share)
    rare = classes.share < 1.0 / len(classes.share)
    rich = np.array([e.low for e in value_shares]) > classes.share
    known = "urgent" in history.topics
    urgent = excess[:, history.topics.index("urgent")] > 1.0 if known else np.zeros(len(rare), bool)
    candidates = [k for k in order if rare[k] and rich[k] and urgent[k]]
    notes = []
    if candidates:
        names[candidates[0]] = CRISIS
    else:
        why = "no class is rare, brings more than its share of value and reads urgent pages"
        notes.append(f"crisis parents: {why if known else 'the vocabulary has no topic `urgent` to know them by'}")
    for k in order:
        if not names[k]:
            title = _TITLES.get(history.topics[int(excess[k].argmax())], "regular")
            taken = sum(n == title or n.startswith(f"{title}_") for n in names)
            names[k] = title if not taken else f"{title}_{taken + 1}"
    return names, notes


def _segment(
    history: History,
    classes: Classes,
    conversion: Conversion,
    value_share: Estimate,
    click_weights: Floats,
    k: int,
    name: str,
) -> Segment:
    """Return class k as a segment."""
    delays, rates, values = conversion.delays, conversion.rates, conversion.values
    w, user_weight = click_weights[:, k], classes.weights(np.ones(len(click_weights)))[:, k]
    users, members = len(w), max(1, round(float(user_weight.sum())))
    purchases = history.per_user(history.converted)
    bought = round(float(w @ purchases))
    only_k = conversion.weights * (np.arange(len(classes.share)) == k)
    delay_source = f"delays of {bought} purchases, Weibull, right-truncated"
    clustered = "weighted by class, users as clusters"
    interest, interest_spread = _interest(history, classes, k, members)
    paid = history.per_user(history.campaign >= 0)
    campaigns = {
        campaign: ratio(
            w * history.per_user(history.campaign == j),
            w * paid,
            "logit",
            count=int(paid.sum()),
            source=f"paid clicks, {clustered}",
        )
        for j, campaign in enumerate(history.campaigns)
    }
    devices = {
        device: ratio(
            user_weight * (history.device == i),
            user_weight,
            "logit",
            count=members,
            source=f"devices of users, {clustered}",
        )
        for i, device in enumerate(history.devices)
    }
    return Segment(
        name=name,
        share=Estimate.from_error(
            classes.share[k],
            classes.share_error[k],
            "logit",
            count=users,
            source=f"mixture of {len(classes.share)} classes over {users} users",
        ),
        value_share=value_share,
        visits=ratio(w * history.clicks, user_weight, "log", count=members, source=f"clicks per user, {clustered}"),
        conversion=conversion.per_click(
            history, history.converted, only_k, count=bought, source=f"purchases per click, {clustered}"
        ),
        base=rates.base.log_estimate(k, count=bought, source="conversion regression: class at the references"),
        value_log_mean=values.mean.estimate(k, count=bought, source="log purchase values"),
        value_log_spread=values.spread.log_estimate(k, count=bought, source="log purchase values"),
        delay_hours=delays.scale.log_estimate(k, count=bought, source=delay_source),
        delay_shape=delays.shape.log_estimate(k, count=bought, source=delay_source),
        interest=interest,
        interest_spread=interest_spread,
        devices=devices,
        campaigns=campaigns,
        creatives={creative: _click_factor(history, w, c) for c, creative in enumerate(history.creatives)},
    )


def _click_factor(history: History, weight: Floats, creative: int) -> Estimate:
    """Return the share of a class (weights of users) in the paid clicks with a creative over its share in all."""
    chosen, named = (history.per_user(own) for own in (history.creative == creative, history.creative >= 0))
    rows = np.stack([weight * chosen, chosen, weight * named, named], axis=1)
    value, error = function_of_totals(lambda t: (t[0] / t[1]) / (t[2] / t[3]), rows)
    source = "paid clicks with this creative, weighted by class, users as clusters"
    return Estimate.from_error(value[0], error[0], "log", count=int(chosen.sum()), source=source)


def _interest(history: History, classes: Classes, k: int, members: int) -> tuple[Estimate, Estimate]:
    """Return mean and spread between users of behavioural-health interest, by moments of page counts."""
    pages, health = history.topic_pages.sum(axis=1), history.health_pages
    w = classes.weights(pages)[:, k]

    def moments(t: Floats) -> Floats:
        mean = t[0] / t[1]
        return np.array([mean, np.sqrt(np.maximum(t[2] / t[3] - mean**2, 1e-6))])

    columns = [w * health, w * pages, w * (health * (health - 1.0)), w * (pages * (pages - 1.0))]
    value, error = function_of_totals(moments, np.stack(columns, axis=1))
    source = "behavioural-health pages among all pages, users as clusters"
    return (
        Estimate.from_error(value[0], error[0], "logit", count=members, source=source),
        Estimate.from_error(value[1], error[1], "log", count=members, source=f"{source}; beyond chance"),
    )


def interest_lift(history: History, weights: Floats, rates: Rates, segments: Mapping[int, Segment]) -> Estimate:
    """Return the relative conversion per unit of a user's interest above the class mean; `segments` by class.

    A user's share of health pages measures interest with noise; dividing by the variance of interest itself, not
    by that of the measure, leaves no attenuation.
    """
    pages = history.topic_pages.sum(axis=1)
    measured = history.health_pages / np.maximum(pages, 1.0)
    known = pages > 0
    top, bottom = np.zeros(len(pages)), np.zeros(len(pages))
    for k, segment in segments.items():
        expected = history.per_user(rates.seen[:, k])
        surplus = (history.per_user(history.converted) - expected) * weights[:, k] * known
        top += surplus * (measured - segment.interest.value)
        bottom += weights[:, k] * known * expected * segment.interest_spread.value**2
    source = "purchases beyond expectation by share of health pages"
    return ratio(top, bottom, "linear", count=int(history.converted.sum()), source=source)


def factors(
    history: History, names: tuple[str, ...], level: Ints, logs: Fit, conversion: Conversion
) -> dict[str, Factor]:
    """Return share of clicks, conversion and factor of every channel or device; `level` (C,) indexes `names`."""
    result = {}
    for i, name in enumerate(names):
        at_level = (level == i).astype(np.float64)
        clicks, bought = int(at_level.sum()), int(at_level @ history.converted)
        result[name] = Factor(
            share=ratio(history.per_user(at_level), history.clicks, "logit", count=clicks, source="clicks"),
            conversion=conversion.per_click(
                history,
                history.converted,
                conversion.weights * at_level[:, None],
                count=bought,
                source="purchases per click",
            ),
            factor=logs.log_estimate(i, count=bought, source="conversion regression, all else equal"),
        )
    return result
