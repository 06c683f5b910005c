"""A network that sees its inputs shifted and scaled, by numbers that stand at the end of each agent's row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["LIMIT", "Normalised", "normalised"]

LIMIT = 10.0
"""Inputs further from their mean than so many deviations are brought back to it."""


def normalised(inputs: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
    """(N, R, D + H) inputs, (N, D) centre and scale -> (N, R, D + H); what is beyond, a network's state, stays."""
    seen = centre.shape[1]
    units = ((inputs[..., :seen] - centre[:, None]) * scale[:, None]).clamp(-LIMIT, LIMIT)
    return units if inputs.shape[-1] == seen else torch.cat([units, inputs[..., seen:]], -1)


@dataclass(frozen=True)
class Normalised:
    """Acting with rows of the network's own parameters, then centre and scale of its inputs."""

    network: Any
    inputs: int

    def join(self, rows: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
        """(N, P), (N, D), (N, D) -> (N, P + 2·D)."""
        return torch.cat([rows, centre, scale], 1)

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The way back from `join`."""
        end = rows.shape[1] - 2 * self.inputs
        return rows[:, :end], rows[:, end : end + self.inputs], rows[:, end + self.inputs :]

    def acting(self, rows: Tensor) -> Callable[..., Any]:
        """The network's `acting` on normalised inputs."""
        own, centre, scale = self.split(rows)
        inner = self.network.acting(own.contiguous())
        return lambda inputs, *more: inner(normalised(inputs, centre, scale), *more)
