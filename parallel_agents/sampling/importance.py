"""The sampler of one agent: draws rows by event class and says how to correct for it.

    counts --rule--> shares --draw--> positions, classes --weights--> corrections --> learner
                       ^                                                                |
                       └────────── spread of each class (optional) ◄────────────────────┘

It keeps no rows: a buffer attaches itself as the source, holds the `ClassIndex` that says which of its
positions belong to which class, and hands out rows by position. Draws are addressed by (seed, agent,
update), so two samplers in the same state draw the same.
"""

from __future__ import annotations

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
from parallel_agents.sampling.rule import CRISIS_PARENT, REGULAR_PARENT, require_share
from parallel_agents.sampling.sampled import Sampled, batch_statistics, class_statistics
from parallel_agents.sampling.source import Source, sample_uniforms
from parallel_agents.sampling.spread import ClassSpread
from parallel_agents.sampling.weighting import Balance, Weighting
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
        empty_class: Literal["refuse", "skip"] | None = None,
        ess_floor: float = 0.1,
        seed: int = 0,
        agent: int = 0,
    ) -> None:
        self.weighting = Weighting(
            crisis_parent_weight=crisis_parent_weight,
            alpha=alpha,
            beta=beta,
            beta_frames=beta_frames,
            min_crisis_parent_ratio=min_crisis_parent_ratio,
            class_weights=None if class_weights is None else dict(class_weights),
            population_ratios=None if population_ratios is None else dict(population_ratios),
            temperature=temperature,
            focus_rare_events=focus_rare_events,
            target_share=target_share,
            learned=learned,
            max_weight=max_weight,
            normalise=normalise,
            empty_class=empty_class,
        )
        require_share("ess_floor", ess_floor)
        seeding.key(seed, seeding.Purpose.SAMPLE, agent)
        self.seed, self.agent = seed, agent
        self.updates = 0
        self._ess_floor = ess_floor
        self._limit = np.inf if max_weight is None else max_weight
        self._priorities = priorities
        self._ids = {name: number for number, name in enumerate(self.event_types)}
        self._spread = ClassSpread(len(self._ids)) if learned else None
        self._drawn = np.zeros(len(self._ids), np.int64)
        self._worlds = WorldRule()
        self._source: Source | None = None
        self._last: Sampled | None = None
        self._known: tuple[object, Balance | None] = (None, None)

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
        return self.weighting.event_types

    def class_ids(self, event_types: str | Sequence[str]) -> NDArray[np.int64]:
        """Class ids (n,) of event types (n,)."""
        names = [event_types] if isinstance(event_types, str) else event_types
        try:
            return np.array([self._ids[name] for name in names], np.int64)
        except KeyError as unknown:
            raise ContractError(
                f"unknown event type {unknown}: known are {', '.join(self.event_types)}; add it to class_weights"
            ) from None

    def class_id(self, event_type: str) -> int:
        """The class id of an event type."""
        found = self._ids.get(event_type)
        return int(self.class_ids(event_type)[0]) if found is None else found

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
        balance, beta = self._balance(index.counts, temperature), self.beta
        positions, classes, density = index.draw(
            sample_uniforms(self.seed, self.agent, self.updates, batch_size), balance.shares
        )
        weights = np.empty(batch_size)
        scale, cut, size = maths.weigh(
            classes, density, balance.ratios, index.least_density(), beta, self._limit, self.weighting.normalise,
            weights, self._drawn,
        )  # fmt: skip
        flag_collapse(size, batch_size, self._ess_floor, _ADVICE)
        self._last = Sampled(positions, classes, weights, balance.natural, balance.shares, beta, scale, cut)
        self.updates += 1
        return self._last

    @property
    def beta(self) -> float:
        """The exponent of the corrections at the next update."""
        return self.weighting.beta_at(self.updates)

    def _balance(self, counts: NDArray[np.int64], temperature: float | None) -> Balance:
        """Shares and N P of each class; kept while what they follow from stays."""
        learned = self._learned()
        follows_from = (counts.tobytes(), temperature, None if learned is None else learned.tobytes())
        known = self._known[1]
        if known is None or follows_from != self._known[0]:
            known = self.weighting.balance(counts, learned=learned, temperature=temperature)
            self._known = follows_from, known
        return known

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
        priorities = np.empty_like(errors)
        if not maths.priorities_of(errors.ravel(), _LEAST_ERROR, self.weighting.alpha, priorities.ravel()):
            raise NonFiniteError("TD errors hold NaN or infinity: no priority follows from them")
        index.update_priorities(indices, priorities)

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
        return self.weighting.rule.weights[CRISIS_PARENT] / self.weighting.rule.weights[REGULAR_PARENT]

    # Telling

    def predicted_shares(self, temperature: float | None = None) -> dict[str, float]:
        """The share of each class in the next batch."""
        shares = self._balance(self._attached().index.counts, temperature).shares
        return dict(zip(self.event_types, shares.tolist(), strict=True))

    def measured_shares(self) -> dict[str, float]:
        """The share of each class in all batches so far."""
        shares = self._drawn / max(int(self._drawn.sum()), 1)
        return dict(zip(self.event_types, shares.tolist(), strict=True))

    def statistics(self) -> dict[str, float]:
        """Class weights and progress, and what the last batch was like, under their metric names."""
        learned = self._learned()
        weights = self.weighting.rule.multipliers() if learned is None else learned / learned.min()
        found: dict[str, float] = {"updates": self.updates, "beta": self.beta}
        found |= {f"{name}_weight": float(w) for name, w in zip(self.event_types, weights, strict=True)}
        found |= {f"{name}_measured_share": share for name, share in self.measured_shares().items()}
        if self._last is not None:
            found |= batch_statistics(self._last, self.event_types)
            if not self._priorities:
                found |= class_statistics(self._last, self.weighting.max_weight)
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
