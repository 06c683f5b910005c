"""One batched forward for all agents of a stack, over all worlds; or one per agent, with the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_agents.networks.numerics import tile_rows
from parallel_agents.types import Array, Weights

__all__ = ["Inference"]

Forward = Callable[[Tensor], Tensor]
CALL_WEIGHTS = 200_000
"""One agent's forward by itself costs, beside its arithmetic, about as much as reading so many weights."""


class Inference:
    """Holds the published weights of a stack and computes with them.

    Rows per agent are fixed: worlds go through in tiles of R rows, the last one padded. So a recomputation
    of one agent, or a stack of one, sees the same shape per agent, and the same bytes.
    """

    def __init__(self, network: Any, agents: int, worlds: int, *, together: bool, device: str = "cpu") -> None:
        self.network = network
        self.agents = agents
        self.worlds = worlds
        self.device = device
        self.tile = tile_rows(worlds)
        self._parts = [slice(0, agents)] if together else [slice(n, n + 1) for n in range(agents)]
        self._bound: list[tuple[slice, Forward]] = []
        self._alone: dict[int, Forward] = {}
        self.weights: Weights | None = None

    def publish(self, weights: Weights) -> None:
        """Act with these weights from now on. They are never written again, so one swap suffices."""
        self._bound = [(part, self.network.acting(weights.rows[part])) for part in self._parts]
        self._alone = {}
        self.weights = weights

    @property
    def version(self) -> int:
        return self.weights.version if self.weights else 0

    @property
    def spares(self) -> bool:
        """Whether the networks are so large that leaving out some agents' can save time."""
        assert self.weights is not None
        return self.agents * self.weights.rows.shape[1] > CALL_WEIGHTS

    def forward_some(self, inputs: Array, asked: Array, outputs: int) -> Array:
        """As `forward`, with the same bytes for the agents of the (N,) mask; others may get zeros."""
        assert self.weights is not None
        one, who = self.weights.rows.shape[1], np.flatnonzero(asked).tolist()
        if len(self._bound) == 1 and len(who) * (one + CALL_WEIGHTS) >= self.agents * one + CALL_WEIGHTS:
            return self.forward(inputs)  # together is quicker
        found = np.zeros((self.agents, self.worlds, outputs), np.float32)
        for n in who:
            found[n] = self.forward_agent(n, inputs[n])
        return found

    def forward(self, inputs: Array) -> Array:
        """(N, W, in) -> (N, W, out)."""
        x = self._tensor(inputs)
        with torch.inference_mode():
            if len(self._bound) == 1:
                return self._array(self._tiles(self._bound[0][1], x))
            return self._array(torch.cat([self._tiles(bound, x[part]) for part, bound in self._bound]))

    def forward_agent(self, index: int, inputs: Array) -> Array:
        """(W, in) -> (W, out) for one agent: what `forward` gives it, byte for byte."""
        assert self.weights is not None
        if index not in self._alone:
            self._alone[index] = self.network.acting(self.weights.rows[index : index + 1])
        with torch.inference_mode():
            return self._array(self._tiles(self._alone[index], self._tensor(inputs[None]))[0])

    def _tensor(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device == "cpu" else tensor.to(self.device)

    def _array(self, tensor: Tensor) -> Array:
        array: Array = (tensor if self.device == "cpu" else tensor.cpu()).numpy()
        return array

    def _tiles(self, bound: Forward, x: Tensor) -> Tensor:
        if self.worlds == self.tile:
            return bound(x)
        outputs = []
        for first in range(0, self.worlds, self.tile):
            part = x[:, first : first + self.tile]
            missing = self.tile - part.shape[1]
            if missing:
                part = torch.nn.functional.pad(part, (0, 0, 0, missing))
            outputs.append(bound(part.contiguous())[:, : self.tile - missing])
        return torch.cat(outputs, 1)
