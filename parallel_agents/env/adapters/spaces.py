"""Conversion between the Gymnasium spaces of other libraries and rows of numbers.

An observation becomes float32 numbers by these rules:

    Box                     its numbers unchanged; on its own, it keeps its shape
    Discrete                one-hot
    MultiDiscrete           the one-hots of all choices, one after the other
    MultiBinary             0 or 1
    Dict, Tuple             their parts one after the other, in the order of the space
    anything else           left out of a Dict or Tuple (with a warning), refused on its own

`action_mask` in a Dict is not part of the observation: it says which actions are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim, flatten

from parallel_agents.core.errors import ContractError
from parallel_agents.core.types import Array
from parallel_agents.nn import SquashedGaussian

MASK = "action_mask"
"""The key under which an observation or an info holds the allowed actions."""
Path = tuple[str | int, ...]
"""Keys and indices that lead to a part of a nested observation."""
NUMERIC = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True)
class ObservationSpace:
    """How the observations of one agent become numbers.

    >>> space = spaces.Dict({"where": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2,))})
    >>> encoded = ObservationSpace.of(space, "an example")
    >>> out = np.zeros(encoded.size, np.float32)
    >>> encoded.write({"where": 1, "speed": [0.5, -0.5]}, out)
    >>> out.tolist()
    [0.5, -0.5, 0.0, 1.0, 0.0]
    """

    shape: tuple[int, ...]
    parts: tuple[tuple[Path, spaces.Space[Any]], ...]
    """The numeric leaves of the space, and where their values are."""
    left_out: tuple[str, ...] = ()
    """Names of parts that are not numbers."""
    has_mask: bool = False
    """True if observations hold an action mask too."""

    @classmethod
    def of(cls, space: Any, owner: str) -> ObservationSpace:
        """Return the conversion of a Gymnasium space; `owner` says whose it is, in errors."""
        has_mask = isinstance(space, spaces.Dict) and MASK in space.spaces
        leaves = [(path, leaf) for path, leaf in _leaves(space) if path != (MASK,)]
        parts = tuple((path, leaf) for path, leaf in leaves if isinstance(leaf, NUMERIC))
        left_out = tuple(".".join(map(str, path)) for path, leaf in leaves if not isinstance(leaf, NUMERIC))
        if not parts:
            raise ContractError(f"the observation space of {owner} is {space}: nothing in it can be read as numbers")
        shape: tuple[int, ...] = (sum(flatdim(leaf) for _, leaf in parts),)
        if len(leaves) == 1 and isinstance(leaves[0][1], spaces.Box):
            shape = tuple(leaves[0][1].shape) or (1,)
        return cls(shape, parts, left_out, has_mask)

    @property
    def size(self) -> int:
        """How many numbers an observation takes."""
        return math.prod(self.shape)

    def write(self, observation: Any, out: Array) -> None:
        """Write an observation into the (size,) numbers of `out`."""
        start = 0
        for path, leaf in self.parts:
            value = reduce(getitem, path, observation)
            # A Box is not flattened by its space, which would convert what an environment really returned to its type.
            numbers = np.asarray(value).reshape(-1) if isinstance(leaf, spaces.Box) else flatten(leaf, value)
            out[start : start + len(numbers)] = numbers
            start += len(numbers)


def _leaves(space: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the parts of nested Dict and Tuple spaces, each with its path."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, inner in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from _leaves(inner, (*path, key))
    else:
        yield path, space


def _choices(space: spaces.MultiDiscrete) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the number of options of each choice, and the lowest value of each."""
    return tuple(map(int, space.nvec.reshape(-1))), tuple(map(int, np.asarray(space.start).reshape(-1)))


@dataclass(frozen=True)
class ActionSpace:
    """How numbers become the actions of one agent, and which actions its model can choose.

    >>> ActionSpace.of(spaces.Discrete(3, start=5), "an example").decode(np.array([1.0]))
    6
    """

    model: Any
    """What `make_model` needs: a number of actions, several such numbers, or a distribution."""
    size: int
    """How many numbers an action takes."""
    shape: tuple[int, ...] = ()
    dtype: str = "int64"
    lowest: int | tuple[int, ...] = 0

    @classmethod
    def of(cls, space: Any, owner: str) -> ActionSpace:
        """Return the conversion of a Gymnasium space; `owner` says whose it is, in errors."""
        match space:
            case spaces.Discrete():
                return cls(int(space.n), 1, lowest=int(space.start))
            case spaces.MultiDiscrete():
                sizes, lowest = _choices(space)
                return cls(sizes, len(sizes), tuple(space.shape), str(space.dtype), lowest)
            case spaces.MultiBinary():
                size = math.prod(space.shape)
                return cls((2,) * size, size, tuple(space.shape), str(space.dtype))
            case spaces.Box() if np.isfinite(space.low).all() and np.isfinite(space.high).all():
                low, high = (tuple(map(float, bound.reshape(-1))) for bound in (space.low, space.high))
                return cls(SquashedGaussian(low, high), len(low), tuple(space.shape), str(space.dtype))
        raise ContractError(
            f"the action space of {owner} is {space}: supported are Discrete, MultiDiscrete, MultiBinary and Box with "
            "finite bounds"
        )

    @property
    def n_actions(self) -> int | None:
        """The number of actions of a Discrete space; None for other spaces, whose actions cannot be masked."""
        return self.model if isinstance(self.model, int) else None

    def holds(self, numbers: Array) -> bool:
        """Return whether rows of numbers (n, size) can be actions: choices that there are, finite continuous ones."""
        if isinstance(self.model, SquashedGaussian):
            return bool(np.isfinite(numbers).all())
        return bool(((numbers >= 0) & (numbers < np.array(self.model)) & (numbers % 1 == 0)).all())

    def decode(self, numbers: Array) -> Any:
        """Return (size,) numbers as an action of the original space."""
        if isinstance(self.model, int):
            return int(numbers[0]) + int(self.lowest)  # type: ignore[arg-type]
        return (numbers + np.asarray(self.lowest)).astype(self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class AgentSpec:
    """The name, spaces and action masks of one agent of another library's environment."""

    name: str
    observation: ObservationSpace
    action: ActionSpace
    masked: bool = False
    """True if the environment says which actions are allowed."""

    @classmethod
    def of(cls, name: str, owner: str, observation_space: Any, action_space: Any, info: Any) -> AgentSpec:
        """Return an agent's spec from its spaces and its first info; `owner` says whose they are, in errors."""
        observation, action = ObservationSpace.of(observation_space, owner), ActionSpace.of(action_space, owner)
        return cls(name, observation, action, (observation.has_mask or MASK in info) and action.n_actions is not None)

    def write_mask(self, observation: Any, info: Any, out: Array, *, can_act: bool) -> None:
        """Write the allowed actions into `out`; all of them if the agent cannot act or no mask is given."""
        if not self.masked:
            return
        mask = observation.get(MASK) if self.observation.has_mask else (info or {}).get(MASK)
        if mask is None or not can_act:
            out[:] = True
            return
        if np.shape(mask) != out.shape:
            raise ContractError(
                f"the action mask of {self.name} has shape {np.shape(mask)}, but the shape {out.shape} is needed"
            )
        out[:] = np.asarray(mask, np.bool_)
