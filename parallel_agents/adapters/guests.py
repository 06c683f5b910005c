"""Foreign worlds as guests: whatever their interface, they are reset by a seed, stepped by numbers, and leave what
came of it in one row of a board.

The board's arrays have one row per world; where worlds live in other processes, its memory is shared with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from parallel_agents.adapters.spaces import MASK, Deeds, Sight
from parallel_agents.errors import ContractError
from parallel_agents.types import Array

__all__ = ["Board", "Guest", "Place", "Row", "write_mask"]


@dataclass(frozen=True)
class Place:
    """One agent of a foreign world."""

    name: str
    sight: Sight
    deeds: Deeds
    masked: bool = False
    """Whether the world says which actions are allowed."""


@dataclass(frozen=True)
class Row:
    """One world's part of a board, N agents."""

    actions: tuple[Array, ...]
    """Per agent, the numbers of its action."""
    sights: tuple[Array, ...]
    """Per agent, the numbers it sees."""
    masks: tuple[Array, ...]
    """Per agent, which actions are allowed; empty where nothing is masked."""
    rewards: Array
    """(N,)"""
    terminated: Array
    """(N,)"""
    truncated: Array
    """(N,)"""
    able: Array
    """(N,) agents that may act now."""


class Guest(Protocol):
    """One foreign world."""

    @property
    def places(self) -> tuple[Place, ...]:
        """Its agents."""

    @property
    def limit(self) -> int | None:
        """Turns after which an episode is cut off, where that is known."""

    def reset(self, seed: int, row: Row) -> None:
        """Start an episode from a seed."""

    def step(self, row: Row) -> None:
        """One turn by the row's actions."""

    def close(self) -> None:
        """Give back what the world holds."""


class Board:
    """What W foreign worlds show, row by row."""

    def __init__(self, places: Sequence[Place], worlds: int, *, shared: bool = False) -> None:
        self.places = tuple(places)
        agents = len(self.places)
        masks = [place.deeds.choices or 0 if place.masked else 0 for place in self.places]
        shapes: Mapping[str, tuple[int, torch.dtype]] = {
            "actions": (sum(place.deeds.width for place in self.places), torch.float64),
            "sights": (sum(place.sight.size for place in self.places), torch.float32),
            "masks": (sum(masks), torch.bool),
            "rewards": (agents, torch.float32),
            "terminated": (agents, torch.bool),
            "truncated": (agents, torch.bool),
            "able": (agents, torch.bool),
        }
        self.tensors = {name: torch.zeros(worlds, width, dtype=kind) for name, (width, kind) in shapes.items()}
        if shared:
            self.tensors = {name: _share(tensor) for name, tensor in self.tensors.items()}
        self._cuts = {
            "actions": _cuts([place.deeds.width for place in self.places]),
            "sights": _cuts([place.sight.size for place in self.places]),
            "masks": _cuts(masks),
        }

    def __getitem__(self, name: str) -> Array:
        """(W, …): one array of all worlds."""
        array: Array = self.tensors[name].numpy()
        return array

    def part(self, name: str, agent: int) -> Array:
        """(W, …): one agent's part of `actions`, `sights` or `masks`."""
        return self[name][:, self._cuts[name][agent]]

    def row(self, world: int) -> Row:
        """One world's part."""
        own = {name: self[name][world] for name in self.tensors}
        cut = {name: tuple(own[name][cut] for cut in self._cuts[name]) for name in self._cuts}
        return Row(**{**own, **cut})

    def put_actions(self, actions: Any) -> None:
        """(N, W, …) actions, or one (W, …) per agent."""
        for agent in range(len(self.places)):
            part = self.part("actions", agent)
            part[:] = np.asarray(actions[agent]).reshape(part.shape)


def _share(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, in memory that other processes can share."""
    return tensor.share_memory_()  # type: ignore[no-any-return, no-untyped-call]


def _cuts(widths: Sequence[int]) -> list[slice]:
    ends = np.cumsum(widths, dtype=np.int64)
    return [slice(int(end) - width, int(end)) for end, width in zip(ends, widths, strict=True)]


def write_mask(place: Place, seen: Any, info: Any, out: Array, *, able: bool) -> None:
    """Which actions are allowed, from what an agent sees or is told; all of them for one that may not act."""
    if not place.masked:
        return
    mask = seen.get(MASK) if place.sight.masked else (info or {}).get(MASK)
    if mask is None or not able:
        out[:] = True
        return
    if np.shape(mask) != out.shape:
        raise ContractError(f"the action mask of {place.name} has shape {np.shape(mask)}, wanted is {out.shape}")
    out[:] = np.asarray(mask, np.bool_)
