"""The sampler of one agent: draws rows by event class and says how to correct for it.

    counts --rule--> shares --draw--> positions, classes --weights--> corrections --> learner
                       ^                                                                |
                       └────────── spread of each class (optional) ◄────────────────────┘

It keeps no rows: a buffer attaches itself as the source, holds the `ClassIndex` that says which of its
positions belong to which class, and hands out rows by position. Draws are addressed by (seed, agent,
update), so two samplers in the same state draw the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents import seeding
from parallel_agents.errors import (
    CheckpointError,
    ConfigError,
    ContractError,
    NonFiniteError,
    ShapeError,
    SharingError,
)
from parallel_agents.sampling import weights as maths
from parallel_agents.sampling.classes import ClassIndex
from parallel_agents.sampling.collapse import flag_collapse
from parallel_agents.sampling.priorities import PriorityIndex
from parallel_agents.sampling.rule import CRISIS_PARENT, REGULAR_PARENT, ClassRule, require_share
from parallel_agents.sampling.sampled import Sampled, batch_statistics, class_statistics
from parallel_agents.sampling.source import Source, sample_uniforms
from parallel_agents.sampling.spread import ClassSpread
from parallel_agents.sampling.worlds import WorldRule, fit_world_rule

__all__ = ["ImportanceSampler"]

_ADVICE = "lower the class weights, alpha or beta, raise the temperature, or set max_weight"
_LEAST_ERROR = 1e-6  # added to |TD error|: a row without error can still be drawn


class ImportanceSampler:
    """Class-weighted sampling with exact corrections, for one agent's buffer.

    A class of natural share pi and weight m is drawn with a share ~ pi m^(alpha / temperature); the
    corrections (N P)^-beta undo that at beta = 1, which is reached after `beta_frames` updates.
    `min_crisis_parent_ratio` is the least share of crisis parents in a batch; `focus_rare_events` sets it to
    `target_share` instead. The shares that corrections restore are those of the buffer, or
    `population_ratios` where the buffer is known to be skewed. `learned` replaces the weights, once enough
    was seen through `update_spread`, by the measured spread of each class. `priorities` draws the rows of a
    class by TD error. `max_weight` bounds the corrections (mean 1), at a bias that `statistics` reports;
    `normalise` divides them by the largest weight in the buffer. A batch whose effective size falls below
    `ess_floor` of its rows is flagged by an `EffectiveSampleSizeWarning`.

    >>> class Rows:
    ...     def __init__(self, sampler, events):
    ...         self.index = sampler.make_index(len(events))
    ...         self.index.assign(np.arange(len(events)), sampler.class_ids(events))
    ...     def rows(self, positions):
    ...         return positions
    >>> sampler = ImportanceSampler(crisis_parent_weight=5.0, alpha=1.0, beta=1.0, seed=2)
    >>> sampler.attach(Rows(sampler, ["crisis_parent"] * 10 + ["regular_parent"] * 90))
    >>> {name: round(share, 3) for name, share in sampler.predicted_shares().items()}
    {'crisis_parent': 0.357, 'regular_parent': 0.643}
    >>> rows, weights, indices = sampler.weighted_sampling(4)
    >>> rows.tolist(), weights.round(2).tolist()
    ([87, 88, 14, 0], [1.0, 1.0, 1.0, 0.2])
    """

    def __init__(
        self,
        crisis_parent_weight: float = 5.0,
        alpha: float = 0.6,
        beta: float = 0.4,
        min_crisis_parent_ratio: float = 0.05,
        *,
        class_weights: Mapping[str, float] | None = None,
        population_ratios: Mapping[str, float] | None = None,
        temperature: float = 1.0,
        focus_rare_events: bool = False,
        target_share: float = 0.5,
        beta_frames: int | None = 100_000,
        learned: bool = False,
        priorities: bool = False,
        max_weight: float | None = None,
        normalise: bool = True,
        empty_class: Literal["refuse", "skip"] = "refuse",
        ess_floor: float = 0.1,
        seed: int = 0,
        agent: int = 0,
    ) -> None:
        if class_weights is not None and CRISIS_PARENT in class_weights:
            raise ConfigError(f"class_weights names {CRISIS_PARENT}: its weight is crisis_parent_weight")
        self.rule = ClassRule(
            weights={CRISIS_PARENT: crisis_parent_weight, REGULAR_PARENT: 1.0, **(class_weights or {})},
            alpha=alpha,
            minimum=min_crisis_parent_ratio,
            target=target_share if focus_rare_events else None,
            population=population_ratios,
            empty_class=empty_class,
        )
        require_share("beta", beta)
        require_share("ess_floor", ess_floor)
        _require_positive("temperature", temperature)
        for name, number in (("beta_frames", beta_frames), ("max_weight", max_weight)):
            if number is not None:
                _require_positive(name, number)
        seeding.key(seed, seeding.Purpose.SAMPLE, agent)
        self.seed, self.agent = seed, agent
        self.updates = 0
        self._beta, self._beta_frames, self._temperature = beta, beta_frames, temperature
        self._max_weight, self._normalise, self._ess_floor = max_weight, normalise, ess_floor
        self._priorities = priorities
        self._ids = {name: number for number, name in enumerate(self.rule.names)}
        self._spread = ClassSpread(len(self._ids)) if learned else None
        self._drawn = np.zeros(len(self._ids), np.int64)
        self._worlds = WorldRule()
        self._source: Source | None = None
        self._last: Sampled | None = None
        self._known: tuple[object, tuple[NDArray[np.float64], ...]] = (None, ())

    @classmethod
    def from_value_shares(
        cls, population_shares: Mapping[str, float], value_shares: Mapping[str, float], **options: Any
    ) -> ImportanceSampler:
        """A sampler that weighs each class by its share of the value over its share of the population.

        With 10 % of users bringing 50 % of the value, the weights are 5 and 0.556, and at alpha = 1 half of a
        batch is theirs.
        """
        names = sorted(population_shares)
        if sorted(value_shares) != names or CRISIS_PARENT not in names:
            raise ConfigError(
                f"shares name {names} and {sorted(value_shares)}: give both for the same event types, "
                f"{CRISIS_PARENT} among them"
            )
        lifts = maths.lifts([value_shares[n] for n in names], [population_shares[n] for n in names])
        table = dict(zip(names, lifts.tolist(), strict=True))
        return cls(table.pop(CRISIS_PARENT), class_weights=table, **options)

    # The source

    @property
    def event_types(self) -> tuple[str, ...]:
        """The class names, in the order of their ids."""
        return self.rule.names

    def class_ids(self, event_types: str | Sequence[str]) -> NDArray[np.int64]:
        """Class ids (n,) of event types (n,)."""
        names = [event_types] if isinstance(event_types, str) else event_types
        try:
            return np.array([self._ids[name] for name in names], np.int64)
        except KeyError as unknown:
            raise ContractError(
                f"unknown event type {unknown}: known are {', '.join(self.event_types)}; add it to class_weights"
            ) from None

    def make_index(self, capacity: int) -> ClassIndex:
        """An empty index of `capacity` positions for these classes, with priorities if they are used."""
        return (PriorityIndex if self._priorities else ClassIndex)(capacity, len(self._ids))

    def attach(self, source: Source) -> None:
        """Draw from this buffer from now on; a sampler serves one buffer only."""
        if self._source is not None and self._source is not source:
            raise SharingError("this sampler is attached to another buffer: give each buffer a sampler of its own")
        if len(source.index.counts) != len(self._ids) or isinstance(source.index, PriorityIndex) != self._priorities:
            raise ContractError("the index of the source does not fit this sampler: make it with sampler.make_index")
        self._source = source

    def _attached(self) -> Source:
        if self._source is None:
            raise ContractError("the sampler has no rows to draw from: call attach(buffer) first")
        return self._source

    # Drawing

    def weighted_sampling(
        self, batch_size: int, temperature: float | None = None
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.int64]]:
        """Experiences, their corrections (B,) and their buffer positions (B,)."""
        source = self._attached()
        sampled = self.draw(batch_size, temperature)
        return source.rows(sampled.positions), sampled.weights, sampled.positions

    def draw(self, batch_size: int, temperature: float | None = None) -> Sampled:
        """Choose the rows of this update, without fetching them; the next call is the next update."""
        index = self._attached().index
        if not 1 <= batch_size <= len(index):
            raise ContractError(
                f"a batch of {batch_size} was asked of a buffer of {len(index)} rows: give 1 .. {len(index)}"
            )
        natural, shares, ratios = self._shares(index.counts, temperature)
        drawn = index.draw(sample_uniforms(self.seed, self.agent, self.updates, batch_size), shares)
        beta, scale, cut = self.beta, 1.0, 0.0
        corrections = maths.corrections(ratios[drawn.classes] * drawn.density, beta)
        if self._max_weight is not None:
            corrections, cut = maths.clip_weights(corrections, self._max_weight)
        if self._normalise:
            largest = maths.corrections((ratios * index.least_density()).min(), beta, limit=self._max_weight)
            corrections, scale = corrections / largest, 1.0 / float(largest)
        # Kish's size, spelled out: weights made here need none of the checks of the public function.
        size = corrections.sum() ** 2 / (corrections @ corrections)
        flag_collapse(size, batch_size, self._ess_floor, _ADVICE)
        self._last = Sampled(drawn.positions, drawn.classes, corrections, natural, shares, beta, scale, cut)
        self._drawn += np.bincount(drawn.classes, minlength=len(self._ids))
        self.updates += 1
        return self._last

    @property
    def beta(self) -> float:
        """The exponent of the corrections at the next update."""
        return maths.annealed_beta(self.updates, self._beta, self._beta_frames)

    def _shares(self, counts: NDArray[np.int64], temperature: float | None) -> tuple[NDArray[np.float64], ...]:
        """Natural shares, batch shares and N P of each class (K,); kept while what they follow from stays."""
        if temperature is None:
            temperature = self._temperature
        learned = self._learned()
        follows_from = (counts.tobytes(), temperature, None if learned is None else learned.tobytes())
        if follows_from != self._known[0]:
            _require_positive("temperature", temperature)
            natural, shares = self.rule.shares(counts, learned=learned, temperature=temperature)
            self._known = follows_from, (natural, shares, maths.class_ratios(natural, shares))
            for array in self._known[1]:
                array.setflags(write=False)  # batches hand them out
        return self._known[1]

    def _learned(self) -> NDArray[np.float64] | None:
        return None if self._spread is None else self._spread.multipliers()

    # Learning

    def bias_correction(self, gradients: Any, weights: Any, batch_size: int | None = None) -> Any:
        """The corrected mean of per-sample losses (B,) or gradients (B, ...): weights once, before the mean.

        Arrays and torch tensors (the graph is kept) are taken alone or as a mapping from parameter names.
        """
        if batch_size is not None and batch_size != len(weights):
            raise ShapeError(
                f"batch_size is {batch_size} but there are {len(weights)} weights: give those of one batch"
            )
        if isinstance(gradients, Mapping):
            return {name: maths.corrected_mean(values, weights) for name, values in gradients.items()}
        return maths.corrected_mean(gradients, weights)

    def update_spread(self, values: ArrayLike, classes: NDArray[np.int64] | None = None) -> None:
        """Learn the class weights from per-sample returns (B,) or gradients (B, D).

        They belong to the last batch, unless class ids (B,) are given.
        """
        if self._spread is None:
            raise ConfigError("this sampler has fixed class weights: create it with learned=True to learn them")
        if classes is None:
            if self._last is None:
                raise ContractError("no batch was drawn yet: give the class ids of the values")
            classes = self._last.classes
        self._spread.update(values, np.asarray(classes, np.int64))

    def update_priorities(self, indices: ArrayLike, td_errors: ArrayLike) -> None:
        """Give rows (n,) the priority (|TD error| + a little)^alpha within their class."""
        index = self._attached().index
        if not isinstance(index, PriorityIndex):
            raise ConfigError("this sampler draws uniformly within a class: create it with priorities=True")
        errors = np.asarray(td_errors, np.float64)
        if not np.isfinite(errors).all():
            raise NonFiniteError("TD errors hold NaN or infinity: no priority follows from them")
        index.update_priorities(indices, (np.abs(errors) + _LEAST_ERROR) ** self.rule.alpha)

    # Worlds

    def fit_world_weights(self, worlds: Sequence[Mapping[str, float]], outcomes: ArrayLike) -> WorldRule:
        """Learn from the outcomes (W,) of worlds how their factors combine, and use that from now on."""
        self._worlds = fit_world_rule(worlds, outcomes, value_multiplier=self._value_multiplier())
        return self._worlds

    def calculate_world_weights(self, worlds: Sequence[Mapping[str, float]]) -> NDArray[np.float64]:
        """Weights (W,) of worlds given by their factors (`WORLD_FACTORS`), adding up to 1."""
        return self._worlds.weights(worlds, value_multiplier=self._value_multiplier())

    def _value_multiplier(self) -> float:
        """What a crisis parent is worth, a regular parent being 1."""
        return self.rule.weights[CRISIS_PARENT] / self.rule.weights[REGULAR_PARENT]

    # Telling

    def predicted_shares(self, temperature: float | None = None) -> dict[str, float]:
        """The share of each class in the next batch."""
        _, shares, _ = self._shares(self._attached().index.counts, temperature)
        return dict(zip(self.event_types, shares.tolist(), strict=True))

    def measured_shares(self) -> dict[str, float]:
        """The share of each class in all batches so far."""
        shares = self._drawn / max(int(self._drawn.sum()), 1)
        return dict(zip(self.event_types, shares.tolist(), strict=True))

    def statistics(self) -> dict[str, float]:
        """Class weights and progress, and what the last batch was like, under their metric names."""
        learned = self._learned()
        weights = self.rule.multipliers() if learned is None else learned / learned.min()
        found: dict[str, float] = {"updates": self.updates, "beta": self.beta}
        found |= {f"{name}_weight": float(w) for name, w in zip(self.event_types, weights, strict=True)}
        found |= {f"{name}_measured_share": share for name, share in self.measured_shares().items()}
        if self._last is not None:
            found |= batch_statistics(self._last, self.event_types)
            if not self._priorities:
                found |= class_statistics(self._last, self._max_weight)
        return found

    # Storing

    def state(self) -> dict[str, Any]:
        """All that changes as the sampler is used, as numbers and arrays; rows and index are the buffer's."""
        state: dict[str, Any] = {"updates": self.updates, "world_exponents": np.array(self._worlds.exponents)}
        state |= {f"drawn.{name}": int(n) for name, n in zip(self.event_types, self._drawn, strict=True)}
        if self._spread is not None:
            state |= {f"spread.{name}": array for name, array in self._spread.state().items()}
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a stored state of a sampler with the same classes and options, checked first."""
        if set(state) != set(self.state()):
            odd = sorted(set(state) ^ set(self.state()))
            raise CheckpointError(f"the stored sampler had other classes or options: {', '.join(odd)} differ")
        if int(state["updates"]) < 0 or np.shape(state["world_exponents"]) != (len(self._worlds.exponents),):
            raise CheckpointError("the stored sampler has a negative number of updates or other world factors")
        drawn = np.array([int(state[f"drawn.{name}"]) for name in self.event_types], np.int64)
        if self._spread is not None:
            self._spread.load_state({k.removeprefix("spread."): v for k, v in state.items() if k.startswith("spread.")})
        self.updates, self._drawn, self._last = int(state["updates"]), drawn, None
        self._worlds = WorldRule(tuple(float(x) for x in state["world_exponents"]))


def _require_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} is {value}: give a finite number above 0")
