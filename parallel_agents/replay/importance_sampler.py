"""`ImportanceSampler`: draw the rows of one agent's buffer by event class, and return the corrections for it.

    counts ──class_shares──► shares ──draw──► positions, classes ──weigh──► importance weights ──► learner
                               ▲                                                                     │
                               └─────────────── spread of each class (optional) ◄────────────────────┘

The sampler stores no rows. A buffer attaches itself as the source: it holds the `ClassIndex` that says which of its
positions belong to which class, and returns rows by position. Draws are addressed by (seed, agent, update), so two
samplers in the same state draw the same rows.

This module names the classes as the source documents do, `crisis_parent` and `regular_parent`; what it is built on
knows classes by any name.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.core import seeding
from parallel_agents.core.errors import (
    ConfigError,
    ContractError,
    CorruptCheckpoint,
    ShapeError,
    SharingError,
)
from parallel_agents.core.serialization import restored
from parallel_agents.core.types import Floats, Ints
from parallel_agents.replay import importance_weights as maths
from parallel_agents.replay.class_index import ClassIndex, sample_uniforms
from parallel_agents.replay.event_classes import ClassShares, ClassSpread, ClassWeighting, require_share
from parallel_agents.replay.priorities import priorities_of
from parallel_agents.replay.world_weights import WorldRule, fit_world_rule

CRISIS_PARENT = "crisis_parent"
REGULAR_PARENT = "regular_parent"

_ADVICE = "lower the class weights, alpha or beta, raise the temperature, or set max_weight"


def crisis_weighting(
    *,
    crisis_parent_weight: float = 5.0,
    min_crisis_parent_ratio: float = 0.05,
    class_weights: Mapping[str, float] | None = None,
    focus_rare_events: bool = False,
    target_share: float = 0.5,
    **options: Any,
) -> ClassWeighting:
    """Return the weighting of options under their documented names; those of `options` have the same name there."""
    if class_weights is not None and CRISIS_PARENT in class_weights:
        raise ConfigError(f"class_weights names {CRISIS_PARENT}: its weight is crisis_parent_weight")
    return ClassWeighting(
        weights={CRISIS_PARENT: crisis_parent_weight, REGULAR_PARENT: 1.0, **(class_weights or {})},
        rare_class=CRISIS_PARENT,
        regular_class=REGULAR_PARENT,
        min_rare_ratio=min_crisis_parent_ratio,
        target_share=target_share if focus_rare_events else None,
        **options,
    )


@dataclass(frozen=True, kw_only=True)
class EventWeighting:
    """The `model.importance` section: how one agent of a run weighs its event classes; `ClassWeighting` explains it.

    In a run every class is empty at first, so an empty class is skipped, whatever share it was promised. The order of
    the fields is part of the digest of a run, their names are not.
    """

    crisis_parent_weight: float = 5.0
    alpha: float = 0.6
    beta: float = 0.4
    beta_frames: int | None = 100_000
    min_crisis_parent_ratio: float = 0.05
    class_weights: dict[str, float] | None = None
    """weights of further event types; regular parents have 1"""
    population_ratios: dict[str, float] | None = None
    temperature: float = 1.0
    focus_rare_events: bool = False
    """fix the share of crisis parents in a batch at `target_share`"""
    target_share: float = 0.5
    learned: bool = False
    max_weight: float | None = None
    normalise: bool = True
    empty_class: Literal["refuse", "skip"] | None = "skip"
    value_threshold_percentile: float = 90.0

    def __post_init__(self) -> None:
        _ = self.classes  # raises for options that it refuses
        if self.empty_class != "skip":
            raise ConfigError(
                f"empty_class is {self.empty_class!r}: in a run each class is empty at first; give 'skip'"
            )

    @cached_property
    def classes(self) -> ClassWeighting:
        """The same options for classes of any name."""
        return crisis_weighting(**{option.name: getattr(self, option.name) for option in fields(self)})

    @property
    def event_types(self) -> tuple[str, ...]:
        """The class names, in the order of their ids."""
        return self.classes.event_types


class Source(Protocol):
    """A buffer, as the sampler uses it."""

    @property
    def index(self) -> ClassIndex:
        """The live positions by class; made by `ImportanceSampler.make_index`."""

    def rows(self, positions: Ints) -> Any:
        """Return the rows at positions (B,)."""


class Sampled(NamedTuple):
    """One draw: B rows of K classes, and their importance weights."""

    positions: Ints
    """(B,) buffer positions"""
    classes: Ints
    """(B,) class ids"""
    weights: Floats
    """(B,) importance weights"""
    natural: Floats
    """(K,) the shares that the weights restore"""
    shares: Floats
    """(K,) the shares that were drawn with"""
    beta: float
    """exponent of the weights"""
    scale: float
    """constant of max-normalisation: at beta = 1, mean(weights * f) estimates scale * the mean of f"""
    cut: float
    """mean weight that a limit cut off, before that scale"""


class ImportanceSampler:
    """Class-weighted sampling with exact corrections, for one agent's buffer.

    A class of natural share pi and weight m is drawn with a share ~ pi m^(alpha / temperature). The corrections
    (N P)^-beta undo that at beta = 1, which is reached after `beta_frames` updates. `min_crisis_parent_ratio` is the
    least share of crisis parents in a batch; `focus_rare_events` sets it to `target_share` instead. Corrections restore
    the shares of the buffer, or `population_ratios` if the buffer is known to be skewed. `learned` replaces the weights
    by the measured spread of each class, once `update_spread` has seen enough. `priorities` draws the rows of a class
    by TD error. `max_weight` limits the corrections (mean 1), at a bias that `statistics` reports; `normalise` divides
    them by the largest weight in the buffer. A batch whose effective size is below `ess_floor` of its rows gives an
    `EffectiveSampleSizeWarning`.

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
        priorities: bool = False,
        ess_floor: float = 0.1,
        seed: int = 0,
        agent: int = 0,
        **options: Any,
    ) -> None:
        """options: further ones of `EventWeighting`, where `empty_class` is None by default."""
        self.weighting = crisis_weighting(
            crisis_parent_weight=crisis_parent_weight,
            alpha=alpha,
            beta=beta,
            min_crisis_parent_ratio=min_crisis_parent_ratio,
            **copy.deepcopy(options),
        )
        require_share("ess_floor", ess_floor)
        seeding.key(seed, seeding.Purpose.SAMPLE, agent)
        self.seed, self.agent = seed, agent
        self.updates = 0
        self._ess_floor = ess_floor
        self._limit = np.inf if self.weighting.max_weight is None else self.weighting.max_weight
        self._priorities = priorities
        self._ids = {name: number for number, name in enumerate(self.event_types)}
        self._spread = ClassSpread(len(self._ids)) if self.weighting.learned else None
        self._drawn = np.zeros(len(self._ids), np.int64)
        self._worlds = WorldRule()
        self._source: Source | None = None
        self._last: Sampled | None = None
        self._known_shares: tuple[object, ClassShares | None] = (None, None)

    @classmethod
    def from_value_shares(
        cls, population_shares: Mapping[str, float], value_shares: Mapping[str, float], **options: Any
    ) -> ImportanceSampler:
        """Return a sampler that weighs each class by its share of the value over its share of the population.

        If 10 % of users bring 50 % of the value, the weights are 5 and 0.556; at alpha = 1 half of a batch is theirs.
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

    # -- the buffer ------------------------------------------------------------------------------------------

    @property
    def event_types(self) -> tuple[str, ...]:
        """The class names, in the order of their ids."""
        return self.weighting.event_types

    def class_ids(self, event_types: str | Sequence[str]) -> Ints:
        """Return the class ids (n,) of event types (n,)."""
        names = [event_types] if isinstance(event_types, str) else event_types
        try:
            return np.array([self._ids[name] for name in names], np.int64)
        except KeyError as unknown:
            raise ContractError(
                f"unknown event type {unknown}: known are {', '.join(self.event_types)}; add it to class_weights"
            ) from None

    def class_id(self, event_type: str) -> int:
        """Return the class id of an event type."""
        known = self._ids.get(event_type)
        return int(self.class_ids(event_type)[0]) if known is None else known

    def make_index(self, capacity: int) -> ClassIndex:
        """Return an empty index of `capacity` positions for these classes, with priorities if they are used."""
        return ClassIndex(capacity, len(self._ids), priorities=self._priorities)

    def attach(self, source: Source) -> None:
        """Draw from this buffer from now on; raise if the sampler serves another buffer already."""
        if self._source is not None and self._source is not source:
            raise SharingError("this sampler is attached to another buffer: give each buffer a sampler of its own")
        if len(source.index.counts) != len(self._ids) or source.index.prioritised != self._priorities:
            raise ContractError("the index of the source does not fit this sampler: make it with sampler.make_index")
        self._source = source

    def _attached(self) -> Source:
        """Return the buffer; raise if there is none."""
        if self._source is None:
            raise ContractError("the sampler has no rows to draw from: call attach(buffer) first")
        return self._source

    # -- drawing ---------------------------------------------------------------------------------------------

    def weighted_sampling(self, batch_size: int, temperature: float | None = None) -> tuple[Any, Floats, Ints]:
        """Return B experiences, their importance weights (B,) and their buffer positions (B,)."""
        source = self._attached()
        sampled = self.draw(batch_size, temperature)
        return source.rows(sampled.positions), sampled.weights, sampled.positions

    def draw(self, batch_size: int, temperature: float | None = None) -> Sampled:
        """Draw the rows of this update, without fetching them; the next call is the next update."""
        index = self._attached().index
        if not 1 <= batch_size <= len(index):
            raise ContractError(
                f"a batch of {batch_size} was asked of a buffer of {len(index)} rows: give 1 .. {len(index)}"
            )
        natural, shares, ratios = self._class_shares(index, temperature)
        beta, uniforms = self.beta, sample_uniforms(self.seed, self.agent, self.updates, batch_size)
        positions, classes, density = index.draw(uniforms, shares)
        weights = np.empty(batch_size)
        scale, cut, size = maths.weigh(
            classes, density, ratios, index.least_density(), beta, self._limit, self.weighting.normalise,
            weights, self._drawn,
        )  # fmt: skip
        maths.warn_of_collapse(size, batch_size, self._ess_floor, _ADVICE)
        self._last = Sampled(positions, classes, weights, natural, shares, beta, scale, cut)
        self.updates += 1
        return self._last

    @property
    def beta(self) -> float:
        """Exponent of the corrections at the next update."""
        return self.weighting.beta_at(self.updates)

    def _class_shares(self, index: ClassIndex, temperature: float | None) -> ClassShares:
        """Return the shares of the classes; computed again only if something that they depend on has changed."""
        learned = self._learned()
        depends_on = (index.bounds.tobytes(), temperature, None if learned is None else learned.tobytes())
        known = self._known_shares[1]
        if known is None or depends_on != self._known_shares[0]:
            known = self.weighting.class_shares(index.counts, learned=learned, temperature=temperature)
            self._known_shares = depends_on, known
        return known

    def _learned(self) -> Floats | None:
        """Return the learned multipliers (K,); None if there are none yet."""
        return None if self._spread is None else self._spread.multipliers()

    # -- learning --------------------------------------------------------------------------------------------

    def bias_correction(self, gradients: Any, weights: Any, batch_size: int | None = None) -> Any:
        """Return the corrected mean of per-sample losses (B,) or gradients (B, ...), weighted before the mean.

        Give an array or torch tensor (its graph is kept), or a mapping from parameter names to them.
        """
        if batch_size is not None and batch_size != len(weights):
            raise ShapeError(
                f"batch_size is {batch_size} but there are {len(weights)} weights: give those of one batch"
            )
        if isinstance(gradients, Mapping):
            return {name: maths.corrected_mean(values, weights) for name, values in gradients.items()}
        return maths.corrected_mean(gradients, weights)

    def update_spread(self, values: ArrayLike, classes: Ints | None = None) -> None:
        """Learn the class weights from per-sample returns (B,) or gradients (B, D) of the last batch.

        Give class ids (B,) for samples of another batch.
        """
        if self._spread is None:
            raise ConfigError("this sampler has fixed class weights: create it with learned=True to learn them")
        if classes is None:
            if self._last is None:
                raise ContractError("no batch was drawn yet: give the class ids of the values")
            classes = self._last.classes
        self._spread.update(values, np.asarray(classes, np.int64))

    def update_priorities(self, indices: ArrayLike, td_errors: ArrayLike) -> None:
        """Give rows (n,) the priorities of their TD errors (n,) within their class."""
        index = self._attached().index
        if not index.prioritised:
            raise ConfigError("this sampler draws uniformly within a class: create it with priorities=True")
        errors = np.atleast_1d(np.asarray(td_errors, np.float64))
        index.update_priorities(indices, priorities_of(errors, self.weighting.alpha))

    # -- worlds ----------------------------------------------------------------------------------------------

    def fit_world_weights(self, worlds: Sequence[Mapping[str, float]], outcomes: ArrayLike) -> WorldRule:
        """Fit how the factors of worlds combine to their outcomes (W,), use that from now on, and return it."""
        self._worlds = fit_world_rule(worlds, outcomes, value_multiplier=self._value_multiplier())
        return self._worlds

    def calculate_world_weights(self, worlds: Sequence[Mapping[str, float]]) -> Floats:
        """Return weights (W,) of worlds given by their factors (`WORLD_FACTORS`), adding up to 1."""
        return self._worlds.weights(worlds, value_multiplier=self._value_multiplier())

    def _value_multiplier(self) -> float:
        """Return the value of a crisis parent over that of a regular parent."""
        return self.weighting.weights[CRISIS_PARENT] / self.weighting.weights[REGULAR_PARENT]

    # -- statistics ------------------------------------------------------------------------------------------

    def predicted_shares(self, temperature: float | None = None) -> dict[str, float]:
        """Return the share of each class in the next batch."""
        shares = self._class_shares(self._attached().index, temperature).shares
        return dict(zip(self.event_types, shares.tolist(), strict=True))

    def measured_shares(self) -> dict[str, float]:
        """Return the share of each class in all batches so far."""
        shares = self._drawn / max(int(self._drawn.sum()), 1)
        return dict(zip(self.event_types, shares.tolist(), strict=True))

    def statistics(self) -> dict[str, float]:
        """Return class weights, progress and figures of the last batch, under their metric names."""
        learned = self._learned()
        weights = self.weighting.multipliers() if learned is None else learned / learned.min()
        result: dict[str, float] = {"updates": self.updates, "beta": self.beta}
        result |= {f"{name}_weight": float(w) for name, w in zip(self.event_types, weights, strict=True)}
        result |= {f"{name}_measured_share": share for name, share in self.measured_shares().items()}
        if self._last is not None:
            result |= self._batch_statistics(self._last)
            if not self._priorities:
                result |= self._expected_statistics(self._last)
        return result

    def _batch_statistics(self, batch: Sampled) -> dict[str, float]:
        """Return the shares of the classes in a batch and the spread of its weights."""
        ratios = np.bincount(batch.classes, minlength=len(self.event_types)) / len(batch.classes)
        result: dict[str, float] = {}
        for number, name in enumerate(self.event_types):
            result[f"{name}_ratio_in_batch"] = float(ratios[number])
            result[f"{name}_natural_share"] = float(batch.natural[number])
            result[f"{name}_predicted_share"] = float(batch.shares[number])
        w = batch.weights
        for name, value in (("mean", w.mean()), ("std", w.std()), ("min", w.min()), ("max", w.max())):
            result[f"importance_weights_{name}"] = float(value)
        result["importance_weights_scale"], result["importance_weights_cut"] = batch.scale, batch.cut
        result["effective_sample_size"] = maths.effective_sample_size(w)
        return result

    def _expected_statistics(self, batch: Sampled) -> dict[str, float]:
        """Return what follows from the classes alone: the expected effective size, and the expected cut of a limit."""
        ratios = maths.class_ratios(batch.natural, batch.shares)
        full = maths.corrections(ratios, batch.beta)
        kept = maths.corrections(ratios, batch.beta, limit=self.weighting.max_weight)
        return {
            "effective_sample_size_predicted": len(batch.weights) * maths.expected_ess_share(batch.shares, kept),
            "importance_weights_cut": float(batch.shares @ (full - kept)),
        }

    # -- storing ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all that changes as the sampler is used; rows and index belong to the buffer."""
        state: dict[str, Any] = {"updates": self.updates, "world_exponents": np.array(self._worlds.exponents)}
        state |= {f"drawn.{name}": int(n) for name, n in zip(self.event_types, self._drawn, strict=True)}
        if self._spread is not None:
            state |= {f"spread.{name}": array for name, array in self._spread.state().items()}
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by what `state` returned; raise if that sampler had other classes or options."""
        if set(state) != set(self.state()):
            odd = sorted(set(state) ^ set(self.state()))
            raise CorruptCheckpoint(f"the stored sampler had other classes or options: {', '.join(odd)} differ")
        exponents = np.asarray(state["world_exponents"], np.float64)
        drawn = np.array([int(state[f"drawn.{name}"]) for name in self.event_types], np.int64)
        if int(state["updates"]) < 0 or drawn.min() < 0:
            raise CorruptCheckpoint("the stored sampler has a negative number of updates or of drawn rows")
        restored("world_exponents", exponents, np.array(self._worlds.exponents))
        if self._spread is not None:
            self._spread.load_state({k.removeprefix("spread."): v for k, v in state.items() if k.startswith("spread.")})
        self.updates, self._drawn, self._last = int(state["updates"]), drawn, None
        self._worlds = WorldRule(tuple(exponents.tolist()))
