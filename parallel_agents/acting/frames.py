"""The last F observations as one input, per agent and world."""

from __future__ import annotations

import numpy as np

from parallel_agents.types import Array

__all__ = ["Frames"]


class Frames:
    """Shifts in one observation a turn; zeros before an episode's start, as in the buffer's windows.

    >>> frames = Frames(agents=1, worlds=1, size=1, count=3)
    >>> frames.push(np.array([[[5.0]]], np.float32), np.array([[True]])).tolist()
    [[[0.0, 0.0, 5.0]]]
    >>> frames.push(np.array([[[6.0]]], np.float32), np.array([[False]])).tolist()
    [[[0.0, 5.0, 6.0]]]
    """

    def __init__(self, agents: int, worlds: int, size: int, count: int, dtype: str = "float32") -> None:
        self.count = count
        self.size = size
        self.window = np.zeros((agents, worlds, count * size), dtype)

    def push(self, observations: Array, first: Array) -> Array:
        """(N, W, D) observations and the (N, W) mask of first turns -> (N, W, F·D), oldest first."""
        if self.count == 1:
            return observations
        window = np.empty_like(self.window)
        window[..., : -self.size] = self.window[..., self.size :]
        window[first, : -self.size] = 0
        window[..., -self.size :] = observations
        self.window = window
        return window

    def replace(self, index: int, observations: Array) -> Array:
        """(W, D) newer observations of one agent in this same turn -> its (W, F·D)."""
        if self.count == 1:
            return observations
        self.window[index, :, -self.size :] = observations
        return np.asarray(self.window[index])
