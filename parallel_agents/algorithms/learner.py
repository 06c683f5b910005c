"""What learners share: state, what a round reads and gives, schedules, gradient accumulation, cache blocks, advantages.

A learner maps a `LearnerState` and a `Snapshot` to a new state and a `RoundResult` and has no other effect, so a round
can be computed anywhere and repeated after a failure. The first axis of every array is the agent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import CorruptCheckpoint
from parallel_agents.core.seeding import Identity
from parallel_agents.core.serialization import restored
from parallel_agents.core.types import Array
from parallel_agents.kernels.schedules import NOISE_DECAY, SCHEDULES, joined_batches, noise_scale, scheduled
from parallel_agents.nn import ActingNetwork, Network

_NOT_NEGATIVE = (
    "second", "norm.square", "norm.scale", "hyper.lr", "hyper.lr_final", "hyper.lr_updates", "hyper.clip",
    "hyper.target_interval", "hyper.batch_growth", "hyper.ratio_clip", "hyper.value_clip", "hyper.value_weight",
    "hyper.entropy", "hyper.target_kl", "hyper.epsilon_epochs", "hyper.priority_updates",
)  # fmt: skip
_COUNTS = ("steps", "updates", "norm.count", "batch.joined")
_SHARES = ("gamma", "lambda", "tau", "epsilon", "epsilon_final", "priority_alpha", "priority_beta")
RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(_NOT_NEGATIVE, (0.0, math.inf)),
    **dict.fromkeys(_COUNTS, (0.0, 2.0**53)),
    **dict.fromkeys(("norm.gamma", *(f"hyper.{name}" for name in _SHARES)), (0.0, 1.0)),
    **dict.fromkeys(("hyper.lr_shape", "hyper.epsilon_shape"), (0.0, len(SCHEDULES) - 1.0)),
}
"""The least and the largest value of what a learner stores and a model is set to, where not every number can be right.

A step of Adam from a negative count would never end."""


# -- values of a round -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a round learns from: named columns, frozen when the round is submitted."""

    round: int
    columns: Mapping[str, Array]

    def rows(self, part: slice) -> Snapshot:
        """Return the snapshot of some agents."""
        return Snapshot(self.round, {name: column[part] for name, column in self.columns.items()})

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]


@dataclass(frozen=True, slots=True)
class LearnerState:
    """Everything that learners know of their agents: named tensors. Never written in place once it was returned."""

    tensors: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __len__(self) -> int:
        return int(next(iter(self.tensors.values())).shape[0])

    def rows(self, part: slice) -> LearnerState:
        """Return the state of some agents, as views."""
        return LearnerState({name: tensor[part] for name, tensor in self.tensors.items()})

    def clone(self) -> LearnerState:
        """Return a copy."""
        return LearnerState({name: tensor.clone() for name, tensor in self.tensors.items()})

    def writable(self) -> LearnerState:
        """Return a copy for a round to write to; hyper-parameters, which no round changes, are shared."""
        return LearnerState(
            {name: own if name.startswith("hyper.") else own.clone() for name, own in self.tensors.items()}
        )

    def to(self, device: str) -> LearnerState:
        """Return the state on a device; tensors that are there already are not copied."""
        return LearnerState({name: tensor.to(device) for name, tensor in self.tensors.items()})

    def replaced(self, tensors: Mapping[str, Tensor]) -> LearnerState:
        """Return a state of these tensors, on the same device; raise CorruptCheckpoint if no learner can have it."""
        if sorted(tensors) != sorted(self.tensors):
            raise CorruptCheckpoint(f"the state of a learner has {sorted(tensors)}, wanted is {sorted(self.tensors)}")
        for name, own in self.tensors.items():
            least, most = RANGES.get(name, (-math.inf, math.inf))
            restored(name, tensors[name], own, least=least, most=most)
        return LearnerState({name: tensors[name].to(own.device) for name, own in self.tensors.items()})

    @staticmethod
    def join(parts: Sequence[LearnerState]) -> LearnerState:
        """Return one state with the agents of several states, in order."""
        return parts[0] if len(parts) == 1 else LearnerState(_LazilyJoined(parts))


class _LazilyJoined(Mapping[str, Tensor]):
    """Concatenate each tensor of several states when it is first read.

    Most rounds need the joined weights only, not the moments of the optimizer.
    """

    def __init__(self, parts: Sequence[LearnerState]) -> None:
        self._parts = parts
        self._joined: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._joined:
            self._joined[name] = torch.cat([part[name] for part in self._parts])
        return self._joined[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts[0].tensors)

    def __len__(self) -> int:
        return len(self._parts[0].tensors)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What one round gave for some agents, beside their new state."""

    round: int
    updates: Array
    """(N,) updates accepted in this round."""
    rejected: Array
    """(N,) updates rejected because a loss or gradient was not finite."""
    metrics: Mapping[str, Array]
    """(N,) means over the round, such as the loss; for logs only."""
    priorities: Mapping[str, Array] = field(default_factory=dict)
    """New priorities of rows: `places` and `errors`, (N, K); NaN where nothing was learned. Applied at publish."""
    seconds: float = 0.0

    @staticmethod
    def nothing(round_: int, agents: int) -> RoundResult:
        """Return the result of a round in which no agent learned anything."""
        return RoundResult(round_, np.zeros(agents, np.int64), np.zeros(agents, np.int64), {})

    @staticmethod
    def join(parts: Sequence[RoundResult]) -> RoundResult:
        """Return one result with the agents of several results of the same round, in order."""
        if len(parts) == 1:
            return parts[0]
        sizes = [len(part.updates) for part in parts]

        def joined(columns: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
            examples = {name: column for own in columns for name, column in own.items()}
            return {
                name: np.concatenate(
                    [
                        own[name] if name in own else np.full((size, *example.shape[1:]), np.nan)
                        for own, size in zip(columns, sizes, strict=True)
                    ]
                )
                for name, example in examples.items()
            }

        return RoundResult(
            parts[0].round,
            np.concatenate([part.updates for part in parts]),
            np.concatenate([part.rejected for part in parts]),
            joined([part.metrics for part in parts]),
            joined([part.priorities for part in parts]),
            max(part.seconds for part in parts),
        )


class Learner(Protocol):
    """Trains some agents for a round."""

    @property
    def network(self) -> ActingNetwork:
        """The network that acting computes with."""

    @property
    def updates(self) -> int:
        """Updates of a round."""

    @property
    def device(self) -> str: ...

    def init(self, identity: Identity, hyper: Sequence[Mapping[str, Any]]) -> LearnerState:
        """Return fresh learners, one mapping of hyper-parameters per agent."""

    def policy(self, state: LearnerState) -> Tensor:
        """Return the (N, P) rows that acting needs."""

    def acting_as(self, state: LearnerState, rows: Tensor) -> LearnerState:
        """Return the same learners, acting with these rows."""

    def learn(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> tuple[LearnerState, RoundResult]:
        """Return the state after one round of every agent, and the round's result."""


class RowLearner:
    """A learner that acts with its rows `online`, and that compiled kernels or torch compute."""

    network: Any
    device: str
    kernels: str

    @property
    def native(self) -> bool:
        """True where compiled kernels compute the rounds, not torch."""
        return self.kernels == "auto" and self.device == "cpu" and bool(self.network.native)

    def policy(self, state: LearnerState) -> Tensor:
        """Return the (N, P) rows that acting needs."""
        return state["online"]

    def acting_as(self, state: LearnerState, rows: Tensor) -> LearnerState:
        """Return the same learners, acting with these rows."""
        return LearnerState({**state.tensors, "online": rows})


def is_native(learner: Learner) -> bool:
    """Return True where compiled kernels compute the network and its updates; a learner says so by `native`."""
    return bool(getattr(learner, "native", False))


# -- what every learner stores, learning rates ------------------------------------------------------------------------


def optimizer_state(rows: Tensor, hyper: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, Tensor]:
    """Return what every learner stores of its agents.

    That is the `online` weights, Adam's moments and step counts, the count of accepted updates, and the
    hyper-parameters of these names.
    """
    stored = {f"hyper.{name}": torch.tensor([own[name] for own in hyper], dtype=torch.float64) for name in names}
    return {
        "online": rows,
        "first": torch.zeros_like(rows),
        "second": torch.zeros_like(rows),
        "steps": torch.zeros(len(rows)),
        "updates": torch.zeros(len(rows), dtype=torch.int64),
        **stored,
    }


class LearningRates:
    """Each agent's learning rate, by its own count of updates: from `lr` to `lr_final` over `lr_updates` updates."""

    def __init__(self, state: LearnerState) -> None:
        names = ("lr_shape", "lr", "lr_final", "lr_updates")
        schedules, *values = (state[f"hyper.{name}"].tolist() for name in names)
        self._rows = list(zip([int(schedule) for schedule in schedules], *values, strict=True))
        self._constant = None if any(values[-1]) else values[0]

    def at(self, updates: NDArray[np.int64]) -> list[float]:
        """Return each agent's rate from its count of updates (N,)."""
        if self._constant is not None:
            return self._constant
        return [
            scheduled(schedule, start, final, float(count), span)
            for (schedule, start, final, span), count in zip(self._rows, updates.tolist(), strict=True)
        ]


# -- gradient accumulation -------------------------------------------------------------------------------------------


def accumulator_state(most: Sequence[float]) -> dict[str, Tensor]:
    """Return what an agent stores for gradient accumulation.

    That is how many batches it joins to a step, and its estimates of noise and signal. most: how many batches each
    agent may join, at most.
    """
    return {
        "batch.joined": torch.tensor([2 if own > 1 else 1 for own in most], dtype=torch.int64),
        "batch.noise": torch.zeros(len(most), dtype=torch.float64),
        "batch.signal": torch.zeros(len(most), dtype=torch.float64),
    }


class GradientAccumulator:
    """Join several batches to one step where an agent's gradient is noisy.

    How many batches an agent joins follows from the noise scale of its own gradient, tr(covariance) / |gradient|²
    (McCandlish et al. 2018, appendix A), estimated from the squared norms before and after joining. The number
    changes between rounds only, so that stacks keep their shapes, and never with the clock.
    """

    def __init__(self, state: LearnerState, batch: int, updates: int) -> None:
        """batch: samples of one batch. updates: batches of this round."""
        self.active = bool((state["hyper.batch_growth"] > 1).any())
        self._batch, self._left = batch, updates
        self._most = state["hyper.batch_growth"].cpu().numpy()
        self.joined = state["batch.joined"].cpu().numpy().copy()
        self._noise = state["batch.noise"].cpu().numpy().copy()
        self._signal = state["batch.signal"].cpu().numpy().copy()
        agents = len(self.joined)
        self.count = np.zeros(agents, np.int64)
        """(N,) batches joined so far to the next step."""
        self._small = np.zeros(agents)
        self._sums = torch.zeros_like(state["online"]) if self.active else None
        self.attempts = np.zeros(agents, np.int64)
        """(N,) steps that were due so far."""

    def add(self, gradients: Tensor) -> list[bool]:
        """Replace the (N, P) gradients of one batch by the mean of those joined so far; return who takes a step now."""
        self._left -= 1
        if self._sums is None:
            self.attempts += 1
            return [True] * len(self.attempts)
        self._sums += gradients
        self._small += _squared_norms(gradients)
        self.count += 1
        count = torch.from_numpy(self.count.astype(np.float32)).to(gradients.device)
        torch.div(self._sums, count[:, None], out=gradients)
        due = (self.count >= self.joined) | (self._left == 0)
        self._estimate(due & (self.count == self.joined) & (self.joined > 1), _squared_norms(gradients))
        self._sums[torch.from_numpy(due).to(gradients.device)] = 0.0
        self._small[due] = 0.0
        self.count[due] = 0
        self.attempts += due
        return [bool(own) for own in due]

    def _estimate(self, agents: NDArray[np.bool_], large: NDArray[np.float64]) -> None:
        """Update the estimates of some agents (N,) from the squared norms (N,) after joining."""
        for n in np.flatnonzero(agents).tolist():
            small = self._small[n] / self.count[n]
            noise, signal = noise_scale(small, large[n], self._batch, self.joined[n])
            if math.isfinite(noise) and math.isfinite(signal):
                self._noise[n] = NOISE_DECAY * self._noise[n] + (1.0 - NOISE_DECAY) * noise
                self._signal[n] = NOISE_DECAY * self._signal[n] + (1.0 - NOISE_DECAY) * signal

    def store(self, state: LearnerState, ready: NDArray[np.bool_]) -> None:
        """Write the number of batches for the next round, and the estimates, of the agents that have learned (N,)."""
        if not self.active:
            return
        rows = zip(self._noise.tolist(), self._signal.tolist(), self._most.tolist(), strict=True)
        joined = np.array([joined_batches(noise, signal, self._batch, most) for noise, signal, most in rows])
        for name, values in (("joined", joined), ("noise", self._noise), ("signal", self._signal)):
            own = state[f"batch.{name}"]
            own.copy_(torch.from_numpy(np.where(ready, values, own.cpu().numpy())))


def _squared_norms(gradients: Tensor) -> NDArray[np.float64]:
    """Return the squared norms (N,) of gradients (N, P)."""
    return np.asarray(torch.linalg.vector_norm(gradients, dim=1).double().square().cpu().numpy())


# -- cache blocks ----------------------------------------------------------------------------------------------------

LearnBlock = Callable[[LearnerState, Snapshot, Identity], RoundResult]
CACHE_NUMBERS = 2**23
"""Numbers that one update of a block may touch."""
FEWEST_AGENTS = 4
"""Agents of a block, at least: with fewer, the call of an operation costs more than the memory it reads."""
PASSES_PER_SAMPLE = 4
"""How often the activations of a sample are stored or read, forward and backward."""


def learn_in_blocks(
    learn: LearnBlock,
    state: LearnerState,
    snapshot: Snapshot,
    identity: Identity,
    numbers: Callable[[Snapshot], int] | None = None,
) -> tuple[LearnerState, RoundResult]:
    """Train all agents for a round, a few at a time, so that a few agents stay in cache through all their updates.

    Each agent's bytes are the same however a stack is cut, so the size of a block is a matter of speed alone; it
    follows from sizes, never from the clock. learn: trains some agents and writes their rows of the new state.
    numbers: returns how many numbers one agent's update touches; None: compiled kernels train one agent at a time.
    A snapshot from which no agent learns may hold nothing but `ready`.
    """
    agents = len(identity)
    if not snapshot["ready"].any():
        return state, RoundResult.nothing(snapshot.round, agents)
    began = time.perf_counter()
    new = state.writable()
    size = agents if numbers is None else block_size(agents, numbers(snapshot))
    if size == agents:
        return new, replace(learn(new, snapshot, identity), seconds=time.perf_counter() - began)
    results = []
    for part in (slice(first, min(first + size, agents)) for first in range(0, agents, size)):
        columns = snapshot.rows(part)
        if columns["ready"].any():
            results.append(learn(new.rows(part), columns, identity.rows(part)))
        else:
            results.append(RoundResult.nothing(snapshot.round, part.stop - part.start))
    return new, replace(RoundResult.join(results), seconds=time.perf_counter() - began)


def numbers_per_update(network: Network, copies: int, samples: int) -> int:
    """Return how many numbers one agent's update touches: copies of its weights, and activations of its samples."""
    activations = network.inputs + sum(shape[0] for shape in network.layout.shapes)
    return int(copies * network.size + PASSES_PER_SAMPLE * samples * activations)


def block_size(agents: int, numbers: int) -> int:
    """Return how many agents to train at a time, in even shares, if one agent's update touches `numbers` numbers.

    >>> block_size(128, 2**16), block_size(128, 2**20), block_size(9, 2**20), block_size(128, 2**24)
    (128, 8, 5, 4)
    """
    blocks = -(-agents // max(FEWEST_AGENTS, CACHE_NUMBERS // numbers))
    return -(-agents // blocks)


def sampling_metrics(snapshot: Snapshot) -> dict[str, Array]:
    """Return metrics (N,) of samples that were drawn by event class; nothing where they were drawn uniformly."""
    if "rare" not in snapshot.columns:
        return {}
    weights = snapshot["weights"].astype(np.float64)
    return {
        "crisis_parent_ratio_in_batch": snapshot["rare"].mean(1),
        "importance_weights_mean": weights.mean(1),
        "importance_weights_std": weights.std(1),
        "effective_sample_share": weights.mean(1) ** 2 / (weights**2).mean(1),
    }


# -- advantages ------------------------------------------------------------------------------------------------------


class _Steps(NamedTuple):
    """Columns (N, T, W) of ordered trajectories."""

    rewards: Array
    value: Array
    terminated: Array
    truncated: Array
    valid: Array
    follow: Array
    """How many rows further the next observation stands; its value is in that row, also where an episode was truncated
    or the trajectory stops."""


def advantages(
    columns: Mapping[str, Array], gammas: NDArray[np.float64], lambdas: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return generalised advantages (N, T, W) from the columns of `_Steps`; 0 in rows that are not valid.

    After a termination the value is 0. Nothing is carried across an episode's end. gammas, lambdas: (N,). Schulman et
    al. 2016.
    """
    out = np.zeros(columns["rewards"].shape, np.float32)
    _backward(_Steps._make(columns[name] for name in _Steps._fields), gammas, lambdas, out)
    return out


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _backward(steps: _Steps, gammas: Array, lambdas: Array, out: Array) -> None:
    agents, rows, worlds = steps.rewards.shape
    for n in range(agents):
        for w in range(worlds):
            for t in range(rows - 1, -1, -1):
                if not steps.valid[n, t, w]:
                    continue
                after = t + steps.follow[n, t, w]
                delta = steps.rewards[n, t, w] - steps.value[n, t, w]
                carried = 0.0
                if not steps.terminated[n, t, w]:
                    delta += gammas[n] * steps.value[n, after, w]
                    if not steps.truncated[n, t, w] and after > t and steps.valid[n, after, w]:
                        carried = gammas[n] * lambdas[n] * out[n, after, w]
                out[n, t, w] = delta + carried
