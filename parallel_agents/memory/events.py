"""Rows of a ring drawn by event class: each agent of a stack from its own rows, with corrections.

A transition's event type and value are two more columns of the ring, so they are kept, stored and digested like the
others. Which rows belong to which class follows from them when a round is snapshotted; nothing else has to be
remembered, and a resumed run draws what the other would have drawn.

Without a label, a row is rare if its value lies above a percentile of the values that the agent keeps now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError, ContractError
from parallel_agents.memory.ring import Ring
from parallel_agents.sampling import CRISIS_PARENT, REGULAR_PARENT, ClassSpread, Weighting, draw_by_class, flag_collapse

__all__ = [
    "EVENT_COLUMNS",
    "EVENT_TYPE",
    "EVENT_VALUE",
    "UNLABELLED",
    "ClassDraw",
    "EventWeighting",
    "draw_classed",
    "draw_rows",
]

EVENT_TYPE, EVENT_VALUE = "event_type", "event_value"
EVENT_COLUMNS: dict[str, tuple[int, ...]] = {EVENT_TYPE: (), EVENT_VALUE: ()}
"""Further columns of a ring whose rows are drawn by class."""
UNLABELLED = -1
"""Event type of a row that nobody has labelled."""

_ESS_FLOOR = 0.1
_ADVICE = "lower the class weights, alpha or beta, raise the temperature, or set max_weight (model.importance)"


@dataclass(frozen=True, kw_only=True)
class EventWeighting(Weighting):
    """The `model.importance` section: how one agent of a run weighs its event classes.

    In a run a class that has no rows yet is passed over, whatever share it was promised.
    """

    empty_class: Literal["refuse", "skip"] | None = "skip"
    value_threshold_percentile: float = 90.0
    """rows without a label whose value lies above this percentile are rare"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.value_threshold_percentile < 100.0:
            raise ConfigError(
                f"value_threshold_percentile is {self.value_threshold_percentile}: give a number in (0, 100)"
            )
        if self.empty_class != "skip":
            raise ConfigError(
                f"empty_class is {self.empty_class!r}: in a run each class is empty at first; give 'skip'"
            )

    def class_ids(self, event_types: Sequence[str]) -> list[int]:
        """Class ids of event types."""
        return [self.event_types.index(name) for name in event_types]


class ClassDraw(NamedTuple):
    """Drawn rows (S,): their serials or places, their corrections, and whether they are rare."""

    rows: NDArray[np.int64]
    weights: NDArray[np.float32]
    rare: NDArray[np.bool_]


def draw_rows(
    ring: Ring, agent: int, weighting: EventWeighting, uniforms: NDArray[np.float64], *, batch: int, done: int
) -> ClassDraw:
    """Serials for the batches of a round from one agent's kept transitions; `done`: updates before this round.

    uniforms: (2, S), the first for places, the second for classes. With a single class the rows, and so the bytes, are
    those of uniform sampling by the first; without any row all is 0 and weighs 1.
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
    weighting: EventWeighting,
    uniforms: NDArray[np.float64],
    *,
    batch: int,
    done: int,
) -> ClassDraw:
    """As `draw_rows`, for rows given by their event types (n,) and values (n,); rows are 0 .. n - 1."""
    samples = uniforms.shape[1]
    if not len(events):
        return ClassDraw(np.zeros(samples, np.int64), np.ones(samples, np.float32), np.zeros(samples, np.bool_))
    classes = _judged(events, values, weighting)
    counts = np.bincount(classes, minlength=len(weighting.event_types))
    balance = weighting.balance(counts, learned=_learned(values, classes, weighting))
    order = np.argsort(classes.astype(np.int8), kind="stable").astype(np.int32)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    rows, chosen = draw_by_class(order, bounds, np.ascontiguousarray(uniforms[::-1].T), balance.shares)
    weights = np.empty(samples)
    for update in range(-(-samples // batch)):
        part = slice(update * batch, (update + 1) * batch)
        weights[part] = weighting.corrections(balance.ratios, weighting.beta_at(done + update)).weights[chosen[part]]
    flag_collapse(float(weights.sum() ** 2 / (weights @ weights)), samples, _ESS_FLOOR, _ADVICE)
    return ClassDraw(rows, weights.astype(np.float32), chosen == weighting.event_types.index(CRISIS_PARENT))


def _judged(events: NDArray[np.float32], values: NDArray[np.float32], weighting: EventWeighting) -> NDArray[np.int64]:
    """Class ids (n,): the labels, and where there is none a judgement by value."""
    classes, known = events.astype(np.int64), len(weighting.event_types)
    if not UNLABELLED <= classes.min() <= classes.max() < known:
        raise ContractError(
            f"event types {classes.min()} .. {classes.max()} were kept: give 0 .. {known - 1}, which are "
            f"{', '.join(weighting.event_types)}, or {UNLABELLED} for no label"
        )
    bare = classes == UNLABELLED
    if bare.any():
        rare, regular = weighting.class_ids([CRISIS_PARENT, REGULAR_PARENT])
        above = values[bare] > np.percentile(values, weighting.value_threshold_percentile)
        classes[bare] = np.where(above, rare, regular)
    return classes


def _learned(
    values: NDArray[np.float32], classes: NDArray[np.int64], weighting: EventWeighting
) -> NDArray[np.float64] | None:
    """Multipliers (K,) by the spread of each class's values in the buffer as it is now."""
    if not weighting.learned:
        return None
    spread = ClassSpread(len(weighting.event_types))
    spread.update(values, classes)
    return spread.multipliers()
