"""Latent classes of users: who reads alike, and how surely.

Each class k has its own topics (multinomial), log seconds on a page (normal) and number of pages (in octaves, of any
distribution: a class is not to be split because its members are unequally busy). Expectation-maximisation fits the
mixture, BIC chooses the number of classes, and the empirical Fisher information gives errors. What classes do and are
worth is measured afterwards, with weights corrected for misclassification (Bolck, Croon and Hagenaars 2004).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parallel_agents.seeding import Purpose, generator

__all__ = ["Classes", "Features", "find_classes"]

Floats = NDArray[np.float64]

_RESTARTS = 4
_ROUNDS = 500
_DYING = 1e-6  # users of every class: one too many dies out, but stays defined
_PSEUDO = 0.5  # a page of every topic and a user of every octave for every class, half each: no chance is ever 0


@dataclass(frozen=True, eq=False)
class Features:
    """What is known of users U: pages by topic (U, T), log seconds on a page as number, sum, squares (U, 3)."""

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
        """Shape (U, K): weights whose class sums of anything that comes in proportion to `mass` (U,) are unbiased.

        Mass is 1 for what users have once, their clicks for what happens per click. Weights may be slightly negative.
        """
        heavy = self.chance * mass[:, None]
        confusion = self.chance.T @ heavy / heavy.sum(axis=0)  # column k: where class k is put
        return np.asarray(self.chance @ np.linalg.inv(confusion).T)


@dataclass(eq=False)
class _Parameters:
    """share, topics, octaves of pages, mean and spread of log seconds: (K, …) each."""

    share: Floats
    topics: Floats
    volume: Floats
    mean: Floats
    spread: Floats

    @classmethod
    def fit(cls, x: Features, chance: Floats) -> _Parameters:
        """Maximum likelihood for given class probabilities (U, K)."""
        topics, volume = chance.T @ x.topics + _PSEUDO, chance.T @ x.volume + _PSEUDO
        seconds = chance.T @ x.engagement
        number = np.maximum(seconds[:, 0], _PSEUDO)
        mean = seconds[:, 1] / number
        spread = np.sqrt(np.maximum(seconds[:, 2] / number - mean**2, 1e-4))
        size = chance.sum(axis=0) + _DYING
        topics /= topics.sum(axis=1, keepdims=True)
        return cls(size / size.sum(), topics, volume / volume.sum(axis=1, keepdims=True), mean, spread)

    def _squares(self, x: Features) -> tuple[Floats, Floats, Floats]:
        """(U, 1), (U, K), (U, K): pages timed, and their deviations from each class's mean, summed and squared."""
        n, s1, s2 = x.engagement.T[:, :, None]
        return n, s1 - n * self.mean, s2 - 2.0 * s1 * self.mean + n * self.mean**2

    def log_likelihood(self, x: Features) -> Floats:
        """Shape (U, K): log share + log density, up to terms that no parameter enters."""
        n, _, squares = self._squares(x)
        seconds = squares / (2.0 * self.spread**2) + n * np.log(self.spread)
        read = x.topics @ np.log(self.topics).T + x.volume @ np.log(self.volume).T
        return np.asarray(np.log(self.share) + read - seconds)

    def scores(self, x: Features, chance: Floats) -> Floats:
        """Shape (U, p): the derivative of each user's log likelihood by every free parameter, shares first."""
        n, deviations, squares = self._squares(x)
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
    """(K, categories): which probabilities are free: not the largest of a class, nor one that is as good as 0."""
    free = counts >= 1.0
    free[np.arange(len(counts)), counts.argmax(axis=1)] = False
    return np.asarray(free)


def find_classes(x: Features, *, most: int, seed: int) -> Classes:
    """The mixture whose number of classes, 1 to `most`, has the lowest BIC."""
    best: Classes | None = None
    for count in range(1, most + 1):
        found = _fit(x, count, seed)
        if best is not None and found.bic >= best.bic:
            break
        best = found
    assert best is not None
    return best


def _fit(x: Features, count: int, seed: int) -> Classes:
    tries = [_maximise(x, _start(x, count, seed, i), rounds=15) for i in range(_RESTARTS if count > 1 else 1)]
    chance = max(tries, key=lambda t: t[1])[0]
    chance, level = _maximise(x, chance, rounds=_ROUNDS)
    p = _Parameters.fit(x, chance)
    scores = p.scores(x, chance)
    covariance = np.linalg.pinv(scores.T @ scores)[: count - 1, : count - 1]
    jacobian = (np.diag(p.share) - np.outer(p.share, p.share))[:, 1:]
    error = np.sqrt(np.diag(jacobian @ covariance @ jacobian.T))
    bic = -2.0 * level + scores.shape[1] * float(np.log(len(chance)))
    return Classes(p.share, error, p.topics, chance, bic)


def _start(x: Features, count: int, seed: int, attempt: int) -> Floats:
    """Class probabilities (U, K) from centres spread out as in k-means++ (Arthur and Vassilvitskii 2007)."""
    rng = generator(seed, Purpose.INIT, agent=2, world=count, epoch=attempt)
    topics = (x.topics + _PSEUDO) / (x.topics + _PSEUDO).sum(axis=1, keepdims=True)
    seconds = x.engagement[:, 1] / np.maximum(x.engagement[:, 0], 1.0)
    points = np.column_stack([topics, seconds / 10.0])
    trusted = x.pages / (x.pages + 4.0)  # a user of one page says little
    centres = points[rng.choice(len(points), p=trusted / trusted.sum())][None]
    for _ in range(count - 1):
        gap = ((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1) * trusted
        centres = np.vstack([centres, points[rng.choice(len(points), p=gap / gap.sum())]])
    distance = ((points[:, None] - centres) ** 2).sum(axis=2)
    chance = np.exp(-10.0 * distance) + 1e-3
    return np.asarray(chance / chance.sum(axis=1, keepdims=True))


def _maximise(x: Features, chance: Floats, *, rounds: int) -> tuple[Floats, float]:
    """Expectation-maximisation: class probabilities and the log likelihood they were computed with."""
    level = -np.inf
    for _ in range(rounds):
        joint = _Parameters.fit(x, chance).log_likelihood(x)
        top = joint.max(axis=1, keepdims=True)
        spread = np.exp(joint - top)
        total = spread.sum(axis=1, keepdims=True)
        chance = spread / total
        before, level = level, float((top + np.log(total)).sum())
        if abs(level - before) < 1e-5 * len(chance) ** 0.5:
            break
    return chance, level
