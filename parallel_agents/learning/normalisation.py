"""Observations and rewards in units of what each agent has met so far, around any learner.

The running moments are part of each agent's own state: a round first takes in what it reads, then learns in the new
units, and what it publishes holds them beside the weights. So acting, checkpoints and every mode agree on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parallel_agents.learning.gae import advantages
from parallel_agents.networks.normalised import LIMIT, Normalised
from parallel_agents.types import Array, Identity, RoundResult, Snapshot, State

__all__ = ["Normalising"]

SEEN = ("observations", "states", "next_states")
EARNED = ("rewards", "returns")
SMALLEST = 1e-4
"""Deviations below count as this: what hardly varies is not blown up."""


@dataclass(frozen=True)
class Normalising:
    """A learner whose observations and rewards are brought to deviation 1, observations also to mean 0."""

    learner: Any
    inputs: int
    observations: bool
    rewards: bool

    @cached_property
    def network(self) -> Normalised:
        return Normalised(self.learner.network, self.inputs)

    @property
    def updates(self) -> int:
        return int(self.learner.updates)

    @property
    def device(self) -> str:
        return str(self.learner.device)

    def init(self, identity: Identity, hyper: Sequence[Mapping[str, float]]) -> State:
        """Fresh learners that have met nothing yet."""
        agents = len(identity)
        inner = self.learner.init(identity, hyper)
        device = inner["online"].device
        own = {
            "norm.count": torch.zeros(agents, 2, dtype=torch.float64),
            "norm.mean": torch.zeros(agents, self.inputs + 1, dtype=torch.float64),
            "norm.square": torch.zeros(agents, self.inputs + 1, dtype=torch.float64),
            "norm.centre": torch.zeros(agents, self.inputs),
            "norm.scale": torch.ones(agents, self.inputs),
        }
        discount = {"norm.gamma": torch.tensor([mine["gamma"] for mine in hyper], dtype=torch.float64)}
        return State({**inner.tensors, **{name: tensor.to(device) for name, tensor in {**own, **discount}.items()}})

    def policy(self, state: State) -> Tensor:
        """(N, P + 2·D) the rows that acting needs."""
        return self.network.join(self.learner.policy(state), state["norm.centre"], state["norm.scale"])

    def acting_as(self, state: State, rows: Tensor) -> State:
        """The same learners, acting with these rows."""
        own, centre, scale = self.network.split(rows)
        acting = self.learner.acting_as(state, own.contiguous())
        return State({**acting.tensors, "norm.centre": centre.clone(), "norm.scale": scale.clone()})

    def learn(self, state: State, snapshot: Snapshot, identity: Identity) -> tuple[State, RoundResult]:
        """One round for every agent of the state, in the units that it brings about."""
        if not snapshot["ready"].any():
            return state, RoundResult.nothing(snapshot.round, len(identity))
        moments = _Moments(state)
        for row in np.flatnonzero(snapshot["ready"]).tolist():
            moments.take(row, *_met(snapshot.rows(slice(row, row + 1)), moments.gammas[row], self.inputs))
        units = self._units(state, moments)
        new, result = self.learner.learn(State({**state.tensors, **units}), self._scaled(snapshot, moments), identity)
        return new, result

    def _units(self, state: State, moments: _Moments) -> dict[str, Tensor]:
        device = state["online"].device
        centre, scale = moments.inputs() if self.observations else (None, None)
        tensors = {"count": moments.count, "mean": moments.mean, "square": moments.square}
        if centre is not None and scale is not None:
            tensors |= {"centre": centre, "scale": scale}
        return {f"norm.{name}": torch.from_numpy(array).to(device) for name, array in tensors.items()}

    def _scaled(self, snapshot: Snapshot, moments: _Moments) -> Snapshot:
        """What the learner reads, in the agents' units."""
        columns = dict(snapshot.columns)
        if self.observations:
            centre, scale = moments.inputs()
            for name in SEEN:
                if name in columns:
                    columns[name] = _brought(columns[name], centre, scale)
        if self.rewards:
            unit = moments.rewards()
            for name in EARNED:
                if name in columns:
                    shape = (-1, *(1 for _ in columns[name].shape[1:]))
                    columns[name] = np.clip(columns[name] * unit.reshape(shape), -LIMIT, LIMIT)
        return Snapshot(snapshot.round, columns)


class _Moments:
    """Counts, means and sums of squared deviations of (N, D + 1) numbers: the inputs, and last what was earned."""

    def __init__(self, state: State) -> None:
        read = {name: state[f"norm.{name}"].cpu().numpy().copy() for name in ("count", "mean", "square", "gamma")}
        self.count, self.mean, self.square, self.gammas = read.values()

    def take(self, row: int, seen: NDArray[np.float64], earned: NDArray[np.float64]) -> None:
        """Take in one agent's (S, D) inputs and (K,) returns. Chan et al. 1983."""
        for part, place, sample in ((slice(0, -1), 0, seen), (slice(-1, None), 1, earned[:, None])):
            here, before = len(sample), self.count[row, place]
            if not here:
                continue
            mean = sample.mean(axis=0)
            square = ((sample - mean) ** 2).sum(axis=0)
            gap = mean - self.mean[row, part]
            total = before + here
            self.mean[row, part] += gap * here / total
            self.square[row, part] += square + gap**2 * before * here / total
            self.count[row, place] = total

    def inputs(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(N, D) centre and scale of the inputs; 0 and 1 for agents that have met nothing."""
        spread = np.sqrt(self.square[:, :-1] / np.maximum(self.count[:, :1], 1.0))
        scale = np.where(self.count[:, :1] > 1, 1.0 / np.maximum(spread, SMALLEST), 1.0)
        return self.mean[:, :-1].astype(np.float32), scale.astype(np.float32)

    def rewards(self) -> NDArray[np.float32]:
        """(N,) what one unit of reward counts."""
        spread = np.sqrt(self.square[:, -1] / np.maximum(self.count[:, 1], 1.0))
        return np.where(self.count[:, 1] > 1, 1.0 / np.maximum(spread, SMALLEST), 1.0).astype(np.float32)


def _met(snapshot: Snapshot, gamma: float, inputs: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What one agent's round reads: (S, D) inputs and (K,) discounted returns, along trajectories or as sampled."""
    columns = snapshot.columns
    if "states" in columns:
        seen, returns = columns["states"], columns["returns"]
        if "counted" in columns:  # sequences, some of whose turns are missing
            counted = columns["counted"] > 0
            seen, returns = seen[:, :, : counted.shape[2]][counted], returns[counted]
        return seen.reshape(-1, inputs).astype(np.float64), returns.reshape(-1).astype(np.float64)
    valid = columns["valid"].reshape(-1)
    returns = advantages(
        columns["rewards"],
        np.zeros_like(columns["rewards"]),
        columns["terminated"],
        columns["truncated"],
        columns["valid"],
        columns["follow"],
        np.array([gamma]),
        np.ones(1),
    )
    observed = columns["observations"].reshape(len(valid), -1)[valid]
    return observed.astype(np.float64), returns.reshape(-1)[valid].astype(np.float64)


def _brought(column: Array, centre: NDArray[np.float32], scale: NDArray[np.float32]) -> Array:
    """(N, …, D) observations in their agents' units; the same arithmetic as acting's."""
    agents = len(column)
    flat = column.reshape(agents, -1, centre.shape[1])
    units: Array = np.clip((flat - centre[:, None]) * scale[:, None], -LIMIT, LIMIT)
    return np.asarray(units.reshape(column.shape), np.float32)
