"""What recurrent networks carry from turn to turn, per agent and world."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.types import Array

__all__ = ["Recall"]


class Recall:
    """States that go into a network beside what is seen, and come out beside its outputs; none where `size` is 0.

    A state starts at zero with each episode. `before` is what the newest turn started from: an agent that looks
    again in the same turn starts from it once more, and learning starts from it too.
    """

    def __init__(self, agents: int, worlds: int, size: int) -> None:
        self.size = size
        self.before: NDArray[np.float32] = np.zeros((agents, worlds, size), np.float32)
        self.after = self.before

    def inputs(self, seen: Array, first: Array) -> Array:
        """(N, W, D) and the (N, W) mask of first turns -> (N, W, D + size)."""
        if not self.size:
            return seen
        self.before = np.where(first[..., None], np.float32(0.0), self.after)
        return np.concatenate([seen, self.before], -1)

    def outputs(self, outputs: Array) -> Array:
        """(N, W, K + size) -> (N, W, K); the states are kept."""
        if not self.size:
            return outputs
        self.after = np.ascontiguousarray(outputs[..., -self.size :])
        return np.ascontiguousarray(outputs[..., : -self.size])

    def inputs_again(self, row: int, seen: Array) -> Array:
        """(W, D) newer observations of one agent in this same turn -> its (W, D + size)."""
        return np.concatenate([seen, self.before[row]], -1) if self.size else seen

    def outputs_again(self, row: int, outputs: Array) -> Array:
        """(W, K + size) of one agent -> its (W, K)."""
        if not self.size:
            return outputs
        self.after[row] = outputs[..., -self.size :]
        return np.ascontiguousarray(outputs[..., : -self.size])

    def inputs_ahead(self, seen: Array) -> Array:
        """(N, W, D) of a turn that is not taken yet -> (N, W, D + size); nothing changes."""
        return np.concatenate([seen, self.after], -1) if self.size else seen

    def outputs_ahead(self, outputs: Array) -> Array:
        """(N, W, K + size) -> (N, W, K); nothing changes."""
        return outputs[..., : -self.size] if self.size else outputs

    def columns(self) -> dict[str, Any]:
        """What to keep with the turn's transitions."""
        return {"hidden": self.before} if self.size else {}
