"""A class index whose rows also carry priorities: the class by its share, the row by its priority within it.

    P(i) = q_k p_i / sum of p over class k

The share of a class in the batch is that of `ClassIndex`, whatever the priorities are; they only decide which
rows of the class come oftener. A row without a priority of its own gets the largest seen, so that it is soon
drawn once (Schaul et al. 2016).

>>> index = PriorityIndex(capacity=8, classes=2)
>>> index.assign([0, 1, 2], [0, 1, 1])
>>> index.update_priorities([1], [3.0])
>>> index.draw(np.array([[0.9, 0.7], [0.9, 0.8]]), np.array([0.5, 0.5])).positions.tolist()
[1, 2]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.errors import CheckpointError, NonFiniteError
from parallel_agents.sampling.arrays import filled, positions_below
from parallel_agents.sampling.classes import ClassIndex, Draw, choose_classes
from parallel_agents.sampling.sumtree import SumTree

__all__ = ["PriorityIndex"]


class PriorityIndex(ClassIndex):
    """Live positions by class, with a sum tree of priorities for each class."""

    def __init__(self, capacity: int, classes: int) -> None:
        super().__init__(capacity, classes)
        self._tree = SumTree(capacity, trees=classes)
        self._largest = 1.0

    def assign(self, positions: ArrayLike, classes: ArrayLike, priorities: ArrayLike | None = None) -> None:
        """Put positions (n,) into classes (n,), with priorities (n,) above 0 or the largest seen so far."""
        where = positions_below(self.capacity, positions)
        values = _positive(self._largest if priorities is None else priorities, where)
        live = where[self._class[where] >= 0]
        before = self.classes_at(live)
        super().assign(where, classes)
        self._tree.update(live, 0.0, before)
        self._set(where, values, self.classes_at(where))

    def put(self, position: int, which: int) -> None:
        """As `assign`, with the largest priority seen so far."""
        self.assign([position], [which])

    def evict(self, positions: ArrayLike) -> None:
        """Forget positions (n,) and their priorities."""
        where = positions_below(self.capacity, positions)
        live = where[self._class[where] >= 0]
        self._tree.update(live, 0.0, self.classes_at(live))
        super().evict(where)

    def update_priorities(self, positions: ArrayLike, priorities: ArrayLike) -> None:
        """Give live positions (n,) new priorities (n,) above 0."""
        where = positions_below(self.capacity, positions)
        self._set(where, _positive(priorities, where), self.classes_at(where))

    def draw(self, uniforms: NDArray[np.float64], shares: NDArray[np.float64]) -> Draw:
        """Rows for uniforms (B, 2) in [0, 1): a class by `shares` (K,), then a row of it by priority."""
        classes = choose_classes(self._bounds, uniforms, shares)
        positions, priorities = self._tree.draw(uniforms[:, 1], classes)
        return Draw(positions, classes, priorities * self._density_of_one()[classes])

    def least_density(self) -> NDArray[np.float64]:
        """The smallest n_k P(i | k) of each class (K,): least over mean priority; infinite if empty."""
        return self._tree.least() * self._density_of_one()

    def state(self) -> dict[str, NDArray[Any]]:
        """The class index, the priority of each of its positions, and the largest priority seen."""
        state = super().state()
        order = state["order"].astype(np.int64)
        values = self._tree.priorities(order, self.classes_at(order))
        return {**state, "priorities": values, "largest": np.array(self._largest)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over a stored state, checked first."""
        if not {"order", "priorities", "largest"} <= set(state):
            raise CheckpointError(f"a stored priority index needs priorities and largest: found {sorted(state)}")
        values, largest = np.asarray(state["priorities"], np.float64), float(state["largest"])
        if values.shape != np.shape(state["order"]) or not ((values > 0) & (values <= largest)).all():
            raise CheckpointError("stored priorities do not fit the stored positions, or exceed the stored largest")
        super().load_state(state)
        self._tree = SumTree(self.capacity, trees=len(self._bounds) - 1)
        self._largest = largest
        order = np.asarray(state["order"], np.int64)
        self._set(order, values, self.classes_at(order))

    def _set(self, where: NDArray[np.int64], values: NDArray[np.float64], classes: NDArray[np.int64]) -> None:
        self._tree.update(where, values, classes)
        self._largest = max(self._largest, float(values.max(initial=0.0)))

    def _density_of_one(self) -> NDArray[np.float64]:
        """n_k P(i | k) of a priority of 1, per class (K,): rows over the sum of their priorities."""
        totals = self._tree.total()
        return np.divide(self.counts, totals, out=np.ones_like(totals), where=totals > 0)


def _positive(priorities: ArrayLike, where: NDArray[np.int64]) -> NDArray[np.float64]:
    values = filled(priorities, len(where), np.float64)
    if values.size and not (values.min() > 0.0 and values.max() < np.inf):
        raise NonFiniteError("priorities must be finite and above 0, or their rows could never be drawn")
    return values
