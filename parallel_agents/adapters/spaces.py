"""From the spaces of foreign environments to rows of numbers, and back.

What is seen becomes float32 numbers by one rule:

    Box                     its numbers as they are; alone, it keeps its shape
    Discrete                one-hot
    MultiDiscrete           one-hot of each choice, one after the other
    MultiBinary             0 or 1
    Dict, Tuple             their parts one after the other, in the order of the space
    anything else           left out of a Dict or Tuple (with a warning), refused on its own

`action_mask` in a Dict is no part of what is seen: it says what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from parallel_agents.errors import ContractError
from parallel_agents.networks import SquashedGaussian
from parallel_agents.types import Array

__all__ = ["MASK", "Deeds", "Sight"]

MASK = "action_mask"


@dataclass(frozen=True)
class Part:
    """One leaf of a space: where its value is found, and which numbers it becomes."""

    path: tuple[str | int, ...]
    start: int
    stop: int
    choices: tuple[int, ...] = ()
    """Sizes of one-hot groups; none: the numbers are taken as they are."""
    first: tuple[int, ...] = ()
    """The lowest value of each choice."""

    def write(self, value: Any, out: Array) -> None:
        for key in self.path:
            value = value[key]
        numbers = out[self.start : self.stop]
        if not self.choices:
            numbers[:] = np.asarray(value).reshape(-1)
            return
        numbers[:] = 0.0
        offset = 0
        for own, size, low in zip(np.asarray(value).reshape(-1), self.choices, self.first, strict=True):
            numbers[offset + int(own) - low] = 1.0
            offset += size


@dataclass(frozen=True)
class Sight:
    """How what one agent sees becomes numbers.

    >>> sight = Sight.of(spaces.Dict({"where": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2,))}), "an example")
    >>> sight.shape, sight.read({"where": 1, "speed": [0.5, -0.5]}).tolist()
    ((5,), [0.5, -0.5, 0.0, 1.0, 0.0])
    """

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()
    """Parts that are no numbers."""
    masked: bool = False
    """Whether it holds an action mask too."""

    @classmethod
    def of(cls, space: Any, owner: str) -> Sight:
        """owner: whose space it is, for messages."""
        masked = isinstance(space, spaces.Dict) and MASK in space.spaces
        leaves = [(path, leaf) for path, leaf in _leaves(space) if path != (MASK,)]
        parts: list[Part] = []
        for path, leaf in leaves:
            part = _part(path, leaf, parts[-1].stop if parts else 0)
            parts += [] if part is None else [part]
        if not parts:
            raise ContractError(f"the observation space of {owner} is {space}: nothing in it can be read as numbers")
        taken = {part.path for part in parts}
        left_out = tuple(".".join(map(str, path)) for path, _ in leaves if path not in taken)
        shape: tuple[int, ...] = (parts[-1].stop,)
        if len(leaves) == 1 and isinstance(leaves[0][1], spaces.Box):
            shape = tuple(leaves[0][1].shape) or (1,)
        return cls(shape, tuple(parts), left_out, masked)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def write(self, value: Any, out: Array) -> None:
        """Put a value into `size` numbers."""
        for part in self.parts:
            part.write(value, out)

    def read(self, value: Any) -> Array:
        """A value as an array of `shape`."""
        out = np.zeros(self.size, np.float32)
        self.write(value, out)
        return out.reshape(self.shape)


def _leaves(space: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*path, index))
    else:
        yield path, space


def _part(path: tuple[str | int, ...], space: Any, start: int) -> Part | None:
    match space:
        case spaces.Box() | spaces.MultiBinary():
            return Part(path, start, start + math.prod(space.shape))
        case spaces.Discrete():
            return Part(path, start, start + int(space.n), (int(space.n),), (int(space.start),))
        case spaces.MultiDiscrete():
            sizes = tuple(int(n) for n in space.nvec.reshape(-1))
            lows = tuple(int(low) for low in np.asarray(space.start).reshape(-1))
            return Part(path, start, start + sum(sizes), sizes, lows)
    return None


@dataclass(frozen=True)
class Deeds:
    """What one agent can do: what its model is told, and how numbers become an action of the space.

    >>> Deeds.of(spaces.Discrete(3, start=5), "an example").native(np.array([1.0]))
    6
    """

    model: Any
    """A number of actions, several such numbers, or a distribution."""
    width: int
    """Numbers that one action takes."""
    shape: tuple[int, ...] = ()
    kind: str = "int64"
    first: int | tuple[int, ...] = 0

    @classmethod
    def of(cls, space: Any, owner: str) -> Deeds:
        match space:
            case spaces.Discrete():
                return cls(int(space.n), 1, first=int(space.start))
            case spaces.MultiDiscrete():
                sizes = tuple(int(n) for n in space.nvec.reshape(-1))
                lows = tuple(int(low) for low in np.asarray(space.start).reshape(-1))
                return cls(sizes, len(sizes), tuple(space.shape), str(space.dtype), lows)
            case spaces.MultiBinary():
                width = math.prod(space.shape)
                return cls((2,) * width, width, tuple(space.shape), str(space.dtype))
            case spaces.Box() if np.isfinite(space.low).all() and np.isfinite(space.high).all():
                low, high = (tuple(map(float, bound.reshape(-1))) for bound in (space.low, space.high))
                return cls(SquashedGaussian(low, high), len(low), tuple(space.shape), str(space.dtype))
        raise ContractError(
            f"the action space of {owner} is {space}: supported are Discrete, MultiDiscrete, MultiBinary and Box with "
            "finite bounds"
        )

    @property
    def choices(self) -> int | None:
        """How many actions there are to allow or forbid; None where they are not a plain number."""
        return self.model if isinstance(self.model, int) else None

    def native(self, numbers: Array) -> Any:
        """The action as its space has it, from (width,) numbers."""
        if isinstance(self.model, int):
            return int(numbers[0]) + int(self.first)  # type: ignore[arg-type]
        return (numbers + np.asarray(self.first)).astype(self.kind).reshape(self.shape)
