"""Draw rows by event class, with corrections: from class counts to batch shares, and from shares to rows of a ring.

`ClassWeighting` holds the validated options. Class ids are places in the sorted class names.

In a run, the event type and the value of a transition are two extra columns of its agent's ring, so they are stored and
hashed like the others. The rows of each class follow from these columns when a round is snapshotted (`draw_rows`).
Nothing else has to be remembered, so a resumed run draws the same rows. A row without a label is rare if its value lies
above a percentile of the values that the agent stores at that time.

>>> weighting = ClassWeighting(weights={"rare": 5.0, "common": 1.0}, rare_class="rare", alpha=1.0)
>>> classes = weighting.class_shares(np.array([900, 100]))
>>> weighting.event_types, classes.shares.round(3).tolist()
(('common', 'rare'), [0.643, 0.357])
>>> weighting.corrections(classes.ratios, beta=1.0).round(2).tolist()
[1.0, 0.2]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.errors import ConfigError, ContractError, CorruptCheckpoint, NonFiniteError, ShapeError
from parallel_agents.core.serialization import restored
from parallel_agents.core.types import Bools, Floats, Ints
from parallel_agents.replay import importance_weights as maths
from parallel_agents.replay.class_index import draw_by_class
from parallel_agents.replay.ring import Ring

EVENT_TYPE, EVENT_VALUE = "event_type", "event_value"
EVENT_COLUMNS: dict[str, tuple[int, ...]] = {EVENT_TYPE: (), EVENT_VALUE: ()}
"""Extra columns of a ring whose rows are drawn by class."""
UNLABELLED = -1
"""Event type of a row without a label."""

_ESS_FLOOR = 0.1
_ADVICE = "lower the class weights, alpha or beta, raise the temperature, or set max_weight (model.importance)"


def require_share(name: str, value: float, *, above: float | None = None, below: float | None = None) -> None:
    """Raise unless `value` lies in [0, 1]; `above` and `below` exclude an end."""
    low = value > above if above is not None else value >= 0.0
    high = value < below if below is not None else value <= 1.0
    if not (low and high):
        interval = f"{'[0' if above is None else '(0'}, {'1]' if below is None else '1)'}"
        raise ConfigError(f"{name} is {value}: give a number in {interval}")


def require_positive(name: str, value: float) -> None:
    """Raise unless `value` is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} is {value}: give a finite number above 0")


class ClassShares(NamedTuple):
    """Natural shares, batch shares and N P of each class (K,), read-only: batches hand them out."""

    natural: Floats
    shares: Floats
    ratios: Floats


@dataclass(frozen=True, kw_only=True)
class ClassWeighting:
    """Weights of the event classes, and what bounds their shares and corrections."""

    weights: Mapping[str, float]
    """how much more often a row of each class is drawn, before alpha"""
    rare_class: str
    """the class of `min_rare_ratio` and `target_share`, and of unlabelled rows with large values"""
    regular_class: str | None = None
    """the class of other unlabelled rows"""
    alpha: float = 0.6
    """exponent of the weights: 0 samples uniformly, 1 takes them as they are"""
    beta: float = 0.4
    """exponent of the corrections, at first"""
    beta_frames: int | None = 100_000
    """updates until beta is 1; None: it stays"""
    min_rare_ratio: float = 0.0
    """least batch share of the rare class, once it has a row"""
    target_share: float | None = None
    """batch share of the rare class, whatever its weight"""
    population_ratios: Mapping[str, float] | None = None
    """the shares that corrections restore; None: those of the buffer"""
    temperature: float = 1.0
    """divides alpha"""
    learned: bool = False
    """replace the weights by the measured spread of each class, once enough was measured"""
    max_weight: float | None = None
    """largest correction, before normalisation; this biases the result"""
    normalise: bool = True
    """divide by the largest correction in the buffer"""
    empty_class: Literal["refuse", "skip"] | None = None
    """what to do if a class with a promised share has no rows: raise, or divide its share among the others; None: raise
    if a target or a population was given, while a minimum waits for the first row of its class"""
    value_threshold_percentile: float = 90.0
    """rows without a label whose value lies above this percentile are rare"""

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            if not (isinstance(name, str) and name):
                raise ConfigError(f"event type {name!r} is not a name: give a text that is not empty")
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigError(
                    f"weight of {name} is {weight}: give a number above 0; a class without weight is lost"
                )
        if self.rare_class not in self.weights:
            raise ConfigError(f"rare class {self.rare_class!r} has no weight: known are {', '.join(self.event_types)}")
        require_share("alpha", self.alpha)
        require_share("beta", self.beta)
        require_positive("temperature", self.temperature)
        for name in ("beta_frames", "max_weight"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        least = f"min_{self.rare_class}_ratio"
        require_share(least, self.min_rare_ratio, below=1.0)
        if self.target_share is not None:
            require_share("target_share", self.target_share, above=0.0, below=1.0)
            if self.target_share < self.min_rare_ratio:
                raise ConfigError(f"target_share {self.target_share} is below {least} {self.min_rare_ratio}")
        if self.empty_class not in ("refuse", "skip", None):
            raise ConfigError(f"empty_class is {self.empty_class!r}: give 'refuse', 'skip' or None")
        if self.population_ratios is not None:
            self._check_population(self.population_ratios)
        if not 0.0 < self.value_threshold_percentile < 100.0:
            raise ConfigError(
                f"value_threshold_percentile is {self.value_threshold_percentile}: give a number in (0, 100)"
            )

    def _check_population(self, ratios: Mapping[str, float]) -> None:
        """Raise unless there is a share above 0 for each class and they add up to 1."""
        if set(ratios) != set(self.weights):
            raise ConfigError(f"population_ratios name {sorted(ratios)}: give one for each of {list(self.event_types)}")
        for name, share in ratios.items():
            require_share(f"population_ratios[{name!r}]", share, above=0.0)
        if abs(sum(ratios.values()) - 1.0) > 1e-6:
            raise ConfigError(f"population_ratios add up to {sum(ratios.values())}: they must add up to 1")

    @property
    def event_types(self) -> tuple[str, ...]:
        """The class names in the order of their ids, which does not depend on the order of `weights`."""
        return tuple(sorted(self.weights))

    def class_ids(self, event_types: Sequence[str]) -> list[int]:
        """Return the class ids of event types."""
        return [self.event_types.index(name) for name in event_types]

    def multipliers(self) -> Floats:
        """Return the weights (K,), by class id."""
        return np.array([self.weights[name] for name in self.event_types])

    def beta_at(self, update: int) -> float:
        """Return the exponent of the corrections at an update."""
        return maths.annealed_beta(update, self.beta, self.beta_frames)

    def class_shares(
        self, counts: Ints, *, learned: Floats | None = None, temperature: float | None = None
    ) -> ClassShares:
        """Return the shares that follow from class counts (K,).

        Learned multipliers (K,) replace the weights and are taken as they are: alpha moderates a guess, not a
        measurement.
        """
        chosen = self.temperature if temperature is None else temperature
        require_positive("temperature", chosen)
        self._check_promises(counts)
        natural = counts.astype(np.float64)
        if self.population_ratios is not None:
            natural = np.where(counts > 0, [self.population_ratios[name] for name in self.event_types], 0.0)
        shares = maths.batch_shares(
            natural,
            self.multipliers() if learned is None else learned,
            alpha=self.alpha if learned is None else 1.0,
            temperature=chosen,
            rare=self.event_types.index(self.rare_class),
            minimum=self.min_rare_ratio,
            target=self.target_share,
        )
        natural = natural / natural.sum()
        result = ClassShares(natural, shares, maths.class_ratios(natural, shares))
        for array in result:
            array.setflags(write=False)
        return result

    def _check_promises(self, counts: Ints) -> None:
        """Raise if an empty class was promised a share: the rare one by a target or minimum, each by a population."""
        if self.empty_class == "skip":
            return
        promised = self.target_share is not None or (self.min_rare_ratio > 0 and self.empty_class == "refuse")
        for name, count in zip(self.event_types, counts, strict=True):
            if count == 0 and (self.population_ratios is not None or (promised and name == self.rare_class)):
                raise ContractError(
                    f"class {name} is to have a share of every batch but the buffer holds no such row: add "
                    "some, lift its minimum, target or population share, or give empty_class='skip'"
                )

    def corrections(self, ratios: Floats, beta: float) -> Floats:
        """Return the importance weights (K,) of classes that are drawn uniformly within, from their N P (K,)."""
        weights = maths.corrections(ratios, beta, limit=self.max_weight)
        return weights * (1.0 / float(weights.max()) if self.normalise else 1.0)


class ClassSpread:
    """How much the gradients or returns of each class spread, learned as training goes; old batches fade.

    Neyman's shares, q_k ~ pi_k sigma_k, make the corrected mean least noisy: the measured sigma_k replaces a guessed
    weight. Batches are joined by the parallel form of Welford's update (Chan, Golub and LeVeque 1979), in their order.

    >>> spread = ClassSpread(classes=2)
    >>> spread.update(np.array([-5.0, 5.0, -1.0, 1.0] * 32), np.array([0, 0, 1, 1] * 32))
    >>> spread.multipliers().tolist()
    [1.0, 0.2]
    """

    _FADE = 0.99  # factor on earlier batches at each new one: about the last hundred count
    _ENOUGH = 32  # samples of a class before its spread is used: an error of about an eighth
    _STORED = ("seen", "mass", "squares", "mean")
    _MOST = 50.0  # largest ratio of two multipliers, so that a class that happens to be constant is still drawn

    def __init__(self, classes: int) -> None:
        self._seen = np.zeros(classes, np.int64)
        self._mass = np.zeros(classes)
        self._squares = np.zeros(classes)
        self._mean = np.zeros((classes, 1))

    def update(self, values: ArrayLike, classes: Ints) -> None:
        """Learn from per-sample returns (B,) or gradients (B, D) of samples of the given classes (B,)."""
        rows = np.asarray(values, np.float64)
        rows = rows.reshape(len(rows), -1)
        self._check(rows, classes)
        if not self._seen.any():
            self._mean = np.zeros((len(self._seen), rows.shape[1]))
        for which in np.unique(classes):
            self._join(which, rows[classes == which])

    def _check(self, rows: Floats, classes: Ints) -> None:
        """Raise unless there is a known class for each row, and rows are finite and as wide as earlier ones."""
        if classes.shape != (len(rows),):
            raise ShapeError(f"{len(rows)} values for classes of shape {classes.shape}: give one value per sample")
        if len(rows) and not (classes.min() >= 0 and classes.max() < len(self._seen)):
            raise ContractError(
                f"a class id is outside 0 .. {len(self._seen) - 1}: found {np.unique(classes).tolist()}"
            )
        if self._seen.any() and rows.shape[1] != self._mean.shape[1]:
            raise ShapeError(f"values of width {rows.shape[1]} after values of width {self._mean.shape[1]}")
        if not np.isfinite(rows).all():
            raise NonFiniteError("spread cannot be learned from NaN or infinity: drop the batch they come from")

    def _join(self, which: int, rows: Floats) -> None:
        """Join the rows of one class to its earlier ones, which fade."""
        mean = rows.mean(0)
        old = self._FADE * self._mass[which]
        step = mean - self._mean[which]
        total = old + len(rows)
        self._squares[which] = (
            self._FADE * self._squares[which] + ((rows - mean) ** 2).sum() + (step @ step) * old * len(rows) / total
        )
        self._mean[which] += step * len(rows) / total
        self._mass[which] = total
        self._seen[which] += len(rows)

    def multipliers(self) -> Floats | None:
        """Return the deviation of each class (K,) over the largest; None until there are enough samples of each."""
        if (self._seen < self._ENOUGH).any():
            return None
        deviations = np.sqrt(self._squares / self._mass)
        largest = deviations.max()
        return np.maximum(deviations / largest, 1.0 / self._MOST) if largest > 0 else np.ones(len(self._seen))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return copies of everything learned."""
        return {name: getattr(self, f"_{name}").copy() for name in self._STORED}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace what was learned by what `state` returned; raise if it has another number of classes."""
        found = {name: np.array(state[name], getattr(self, f"_{name}").dtype) for name in self._STORED}
        shapes = {name: array.shape[:1] for name, array in found.items()}
        if any(shape != self._seen.shape for shape in shapes.values()):
            raise CorruptCheckpoint(f"stored spread has shapes {shapes}: expected {len(self._seen)} classes")
        for name, array in found.items():
            wanted = np.empty((len(array), *array.shape[1:][:1])) if name == "mean" else getattr(self, f"_{name}")
            restored(name, array, wanted, least=-np.inf if name == "mean" else 0.0)
        if (found["mass"][found["seen"] > 0] == 0.0).any():
            raise CorruptCheckpoint("stored spread has seen samples of a class, but they have no mass")
        for name, array in found.items():
            setattr(self, f"_{name}", array)


# -- rows of a ring -------------------------------------------------------------------------------------------


class ClassDraw(NamedTuple):
    """Drawn rows (S,): their serials or places, their importance weights, and whether they are rare."""

    rows: Ints
    weights: NDArray[np.float32]
    rare: Bools


def draw_rows(
    ring: Ring, agent: int, weighting: ClassWeighting, uniforms: Floats, *, batch: int, done: int
) -> ClassDraw:
    """Draw transition serials for the batches of a round from one agent's ring; `done`: updates before this round.

    uniforms: (2, S), the first for places, the second for classes. With a single class the rows, and so the bytes, are
    those of uniform sampling by the first. Without any row all serials are 0 and all weights 1.
    """
    size, tail = int(ring.sizes()[agent]), int(ring.tail[agent])
    places = ring.starts[agent][np.arange(tail, tail + size) % ring.starts.shape[1]]
    events = ring.extras[EVENT_TYPE][agent].reshape(-1)[places]
    values = ring.extras[EVENT_VALUE][agent].reshape(-1)[places]
    drawn = draw_classed(events, values, weighting, uniforms, batch=batch, done=done)
    return drawn._replace(rows=tail + drawn.rows)


def draw_classed(
    events: NDArray[np.float32],
    values: NDArray[np.float32],
    weighting: ClassWeighting,
    uniforms: Floats,
    *,
    batch: int,
    done: int,
) -> ClassDraw:
    """Draw as `draw_rows` does from n rows, given by their event types (n,) and values (n,)."""
    samples = uniforms.shape[1]
    if not len(events):
        return ClassDraw(np.zeros(samples, np.int64), np.ones(samples, np.float32), np.zeros(samples, np.bool_))
    classes = _classify(events, values, weighting)
    learned = None
    if weighting.learned:
        spread = ClassSpread(len(weighting.event_types))
        spread.update(values, classes)
        learned = spread.multipliers()
    counts = np.bincount(classes, minlength=len(weighting.event_types))
    shares = weighting.class_shares(counts, learned=learned)
    order = np.argsort(classes.astype(np.int8), kind="stable").astype(np.int32)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    rows, chosen = draw_by_class(order, bounds, np.ascontiguousarray(uniforms[::-1].T), shares.shares)
    weights = np.empty(samples)
    for update in range(-(-samples // batch)):
        part = slice(update * batch, (update + 1) * batch)
        weights[part] = weighting.corrections(shares.ratios, weighting.beta_at(done + update))[chosen[part]]
    maths.warn_of_collapse(float(weights.sum() ** 2 / (weights @ weights)), samples, _ESS_FLOOR, _ADVICE)
    return ClassDraw(rows, weights.astype(np.float32), chosen == weighting.event_types.index(weighting.rare_class))


def _classify(events: NDArray[np.float32], values: NDArray[np.float32], weighting: ClassWeighting) -> Ints:
    """Return class ids (n,): the labels, and by value for rows without a label."""
    classes, known = events.astype(np.int64), len(weighting.event_types)
    if not UNLABELLED <= classes.min() <= classes.max() < known:
        raise ContractError(
            f"event types {classes.min()} .. {classes.max()} were kept: give 0 .. {known - 1}, which are "
            f"{', '.join(weighting.event_types)}, or {UNLABELLED} for no label"
        )
    unlabelled = classes == UNLABELLED
    if unlabelled.any():
        if weighting.regular_class is None:
            raise ContractError("rows without a label were kept: give each an event type, or name a regular_class")
        rare, regular = weighting.class_ids([weighting.rare_class, weighting.regular_class])
        above = values[unlabelled] > np.percentile(values, weighting.value_threshold_percentile)
        classes[unlabelled] = np.where(above, rare, regular)
    return classes
