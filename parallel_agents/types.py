"""The frozen values that cross a thread, and the two array shapes everything else is made of.

Every array's first axis is the agent: an agent is a row. Taking some rows of any value here gives the same
value for those agents alone, which is what sharding, checkpoints and the digest rely on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import CorruptCheckpoint

if TYPE_CHECKING:  # `--help` and the configuration must not pay for torch
    from torch import Tensor

__all__ = ["EpochStats", "Identity", "RoundResult", "RunInfo", "Snapshot", "State", "Transitions", "Weights"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the rows of a stack are: the addresses of their draws. Stack positions never key a draw."""

    seeds: tuple[int, ...]
    agents: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.agents)

    def rows(self, part: slice) -> Identity:
        return Identity(self.seeds[part], self.agents[part])


@dataclass(frozen=True, slots=True)
class Transitions:
    """One turn of N agents in W worlds, as it goes into memory."""

    observations: Array
    """(N, W, *obs): what each agent saw."""
    actions: Array
    """(N, W) or (N, W, A): what it did."""
    rewards: Array
    """(N, W)"""
    terminated: Array
    """(N, W) bool: the episode came to its own end."""
    truncated: Array
    """(N, W) bool: the episode was cut off; what follows still has a value."""
    valid: Array
    """(N, W) bool: the agent really acted."""
    first: Array
    """(N, W) bool: the first turn of an episode."""
    present: Array
    """(N,) bool: the agent's environment takes part in this turn."""
    version: int
    """Version of the weights that chose the actions."""
    extras: Mapping[str, Array] = field(default_factory=dict)
    """(N, W, …) further columns, such as the log-probability of the action."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the round of some agents will learn from: columns with the agent as first axis."""

    round: int
    columns: Mapping[str, Array]

    def rows(self, part: slice) -> Snapshot:
        return Snapshot(self.round, {name: column[part] for name, column in self.columns.items()})

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]


@dataclass(frozen=True, slots=True)
class State:
    """Everything a learner knows of its agents: named tensors, the agent as first axis. Never written in place."""

    tensors: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __len__(self) -> int:
        return int(next(iter(self.tensors.values())).shape[0])

    def rows(self, part: slice) -> State:
        return State({name: tensor[part] for name, tensor in self.tensors.items()})

    def clone(self) -> State:
        return State({name: tensor.clone() for name, tensor in self.tensors.items()})

    def to(self, device: str) -> State:
        """The same values on a device; nothing is copied where they are there already."""
        return State({name: tensor.to(device) for name, tensor in self.tensors.items()})

    def replaced(self, tensors: Mapping[str, Tensor]) -> State:
        """Return a state of these tensors, on the same device; CorruptCheckpoint if names, types or shapes differ."""
        if sorted(tensors) != sorted(self.tensors):
            raise CorruptCheckpoint(f"the state of a learner has {sorted(tensors)}, wanted is {sorted(self.tensors)}")
        for name, own in self.tensors.items():
            found = tensors[name]
            if found.shape != own.shape or found.dtype != own.dtype:
                raise CorruptCheckpoint(
                    f"{name} is {found.dtype} {tuple(found.shape)}, wanted is {own.dtype} {tuple(own.shape)}"
                )
        return State({name: tensors[name].to(own.device) for name, own in self.tensors.items()})

    @staticmethod
    def join(parts: Sequence[State]) -> State:
        """The rows of several states, one after the other."""
        return parts[0] if len(parts) == 1 else State(_Joined(parts))


class _Joined(Mapping[str, "Tensor"]):
    """The tensors of several states, each put together when it is first asked for: between most rounds acting needs
    its weights, and nobody the moments of an optimizer."""

    def __init__(self, parts: Sequence[State]) -> None:
        self._parts = parts
        self._whole: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        import torch

        if name not in self._whole:
            self._whole[name] = torch.cat([part[name] for part in self._parts])
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts[0].tensors)

    def __len__(self) -> int:
        return len(self._parts[0].tensors)


@dataclass(frozen=True, slots=True)
class Weights:
    """A published version: what acting uses until the next one is swapped in."""

    version: int
    rows: Tensor
    """(N, P)"""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What one round gave for some agents."""

    round: int
    updates: Array
    """(N,) updates accepted in this round."""
    rejected: Array
    """(N,) updates rejected because a loss or gradient was not finite."""
    metrics: Mapping[str, Array]
    """(N,) means over the round, such as the loss; for logs only."""
    priorities: Mapping[str, Array] = field(default_factory=dict)
    """Columns that go back to memory at publish: `places` and `errors`, (N, K); NaN where nothing was learned."""
    seconds: float = 0.0

    @staticmethod
    def nothing(round_: int, agents: int) -> RoundResult:
        """A round in which nobody learnt anything."""
        none = np.zeros(agents, np.int64)
        return RoundResult(round_, none, none.copy(), {})

    @staticmethod
    def join(parts: Sequence[RoundResult]) -> RoundResult:
        """The rows of several results of one round, one after the other."""
        if len(parts) == 1:
            return parts[0]

        def joined(columns: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
            names = dict.fromkeys(name for own in columns for name in own)
            found = {name: next(own[name] for own in columns if name in own) for name in names}
            missing = {name: column.shape[1:] for name, column in found.items()}
            sizes = [len(part.updates) for part in parts]
            return {
                name: np.concatenate(
                    [own.get(name, np.full((size, *shape), np.nan)) for own, size in zip(columns, sizes, strict=True)]
                )
                for name, shape in missing.items()
            }

        return RoundResult(
            parts[0].round,
            np.concatenate([part.updates for part in parts]),
            np.concatenate([part.rejected for part in parts]),
            joined([part.metrics for part in parts]),
            joined([part.priorities for part in parts]),
            max(part.seconds for part in parts),
        )


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What listeners are told when a run starts."""

    run_id: str
    environment: str
    agents: tuple[str, ...]
    worlds: int
    replicas: int
    epochs: int
    first_epoch: int
    config: Mapping[str, Any]
    fingerprint: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EpochStats:
    """What listeners are told after each epoch."""

    epoch: int
    turns: int
    """World turns of this epoch (turns of the loop, not multiplied by worlds)."""
    transitions: int
    """Transitions stored by all agents together."""
    rewards: Array
    """(agents,) reward of each agent, mean over worlds; replicas one after the other."""
    version: int
    """Version of the acting weights."""
    lag: int
    """How many rounds old they were."""
    updates: int
    """Updates of all agents so far."""
    seconds: float
    metrics: Mapping[str, Array] = field(default_factory=dict)
    """(agents,) further figures: loss, epsilon, buffer fill, …"""
