"""Normalize observations and rewards by running moments, around any learner.

The moments are part of each agent's own state. A round first takes in what it reads, then learns with the new moments,
and publishes them beside the weights. So acting, checkpoints and every mode agree on them.
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

from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot, advantages
from parallel_agents.core.compiled import njit
from parallel_agents.core.seeding import Identity
from parallel_agents.core.types import Array
from parallel_agents.nn import Forward, Network

LIMIT = 10.0
"""Normalized values are clipped to this many deviations."""
OBSERVATION_COLUMNS = ("observations", "states", "next_states")
REWARD_COLUMNS = ("rewards", "returns")
SMALLEST = 1e-4
"""Smaller deviations count as this: what hardly varies is not amplified."""


def normalize(learner: Any, inputs: int, what: tuple[bool, bool]) -> Any:
    """Return a learner that normalizes its observations and rewards, as asked; the learner itself if neither."""
    return NormalizingLearner(learner, inputs, *what) if any(what) else learner


def normalize_inputs(inputs: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
    """Return normalized inputs (N, R, D + H) by centre and scale (N, D); the hidden state (H) stays as it is."""
    observed = centre.shape[1]
    normalized = ((inputs[..., :observed] - centre[:, None]) * scale[:, None]).clamp(-LIMIT, LIMIT)
    return normalized if inputs.shape[-1] == observed else torch.cat([normalized, inputs[..., observed:]], -1)


@dataclass(frozen=True)
class NormalizedNetwork:
    """A network for acting whose rows hold its parameters, then centre and scale of its inputs."""

    network: Network
    inputs: int

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return parameters (N, P), centre (N, D) and scale (N, D) from rows (N, P + 2·D)."""
        end = rows.shape[1] - 2 * self.inputs
        return rows[:, :end], rows[:, end : end + self.inputs], rows[:, end + self.inputs :]

    def bound_forward(self, rows: Tensor) -> Forward:
        """Return the network's forward pass on normalized inputs, with these rows bound for many calls."""
        parameters, centre, scale = self.split(rows)
        forward = self.network.bound_forward(parameters.contiguous())
        return lambda inputs: forward(normalize_inputs(inputs, centre, scale))


@dataclass(frozen=True)
class NormalizingLearner:
    """A learner whose rewards are scaled to returns of deviation 1, and observations to mean 0 and deviation 1."""

    learner: Any
    inputs: int
    observations: bool
    rewards: bool

    @cached_property
    def network(self) -> NormalizedNetwork:
        return NormalizedNetwork(self.learner.network, self.inputs)

    @property
    def updates(self) -> int:
        return int(self.learner.updates)

    @property
    def device(self) -> str:
        return str(self.learner.device)

    @property
    def native(self) -> bool:
        return bool(self.learner.native)

    def init(self, identity: Identity, hyper: Sequence[Mapping[str, Any]]) -> LearnerState:
        """Return fresh learners that have observed nothing."""
        agents = len(identity)
        inner = self.learner.init(identity, hyper)
        moments = {
            "norm.count": torch.zeros(agents, 2, dtype=torch.float64),
            "norm.mean": torch.zeros(agents, self.inputs + 1, dtype=torch.float64),
            "norm.square": torch.zeros(agents, self.inputs + 1, dtype=torch.float64),
            "norm.centre": torch.zeros(agents, self.inputs),
            "norm.scale": torch.ones(agents, self.inputs),
            "norm.gamma": torch.tensor([own["gamma"] for own in hyper], dtype=torch.float64),
        }
        device = inner["online"].device
        return LearnerState({**inner.tensors, **{name: tensor.to(device) for name, tensor in moments.items()}})

    def policy(self, state: LearnerState) -> Tensor:
        """Return the (N, P + 2·D) rows that acting needs."""
        return torch.cat([self.learner.policy(state), state["norm.centre"], state["norm.scale"]], 1)

    def acting_as(self, state: LearnerState, rows: Tensor) -> LearnerState:
        """Return the same learners, acting with these rows."""
        parameters, centre, scale = self.network.split(rows)
        acting = self.learner.acting_as(state, parameters.contiguous())
        return LearnerState({**acting.tensors, "norm.centre": centre.clone(), "norm.scale": scale.clone()})

    def learn(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> tuple[LearnerState, RoundResult]:
        """Return the state after one round of every agent, with moments that include what the round reads."""
        if not snapshot["ready"].any():
            return state, RoundResult.nothing(snapshot.round, len(identity))
        moments = _Moments(state)
        for row in np.flatnonzero(snapshot["ready"]).tolist():
            own = snapshot.rows(slice(row, row + 1))
            moments.add(row, *_observations_and_returns(own, moments.gammas[row], self.inputs))
        updated = LearnerState({**state.tensors, **self._tensors(state, moments)})
        new, result = self.learner.learn(updated, self._normalized(snapshot, moments), identity)
        return new, result

    def _tensors(self, state: LearnerState, moments: _Moments) -> dict[str, Tensor]:
        """Return the moments as they are stored."""
        device = state["online"].device
        arrays = {"count": moments.count, "mean": moments.mean, "square": moments.square}
        if self.observations:
            arrays["centre"], arrays["scale"] = moments.inputs()
        return {f"norm.{name}": torch.from_numpy(array).to(device) for name, array in arrays.items()}

    def _normalized(self, snapshot: Snapshot, moments: _Moments) -> Snapshot:
        """Return what the learner reads, normalized."""
        columns = dict(snapshot.columns)
        if self.observations:
            centre, scale = moments.inputs()
            for name in OBSERVATION_COLUMNS:
                if name in columns:
                    columns[name] = _normalized_column(columns[name], centre, scale)
        if self.rewards:
            factors = moments.reward_factors()
            for name in REWARD_COLUMNS:
                if name in columns:
                    shape = (-1, *(1 for _ in columns[name].shape[1:]))
                    columns[name] = np.clip(columns[name] * factors.reshape(shape), -LIMIT, LIMIT)
        return Snapshot(snapshot.round, columns)


class _Moments:
    """Counts, means and sums of squared deviations (N, D + 1): of the inputs, and last of the returns."""

    def __init__(self, state: LearnerState) -> None:
        arrays = {name: state[f"norm.{name}"].cpu().numpy().copy() for name in ("count", "mean", "square", "gamma")}
        self.count, self.mean, self.square, self.gammas = arrays.values()

    def add(self, row: int, observations: NDArray[np.float64], returns: NDArray[np.float64]) -> None:
        """Add one agent's inputs (S, D) and returns (K,). Chan et al. 1983."""
        for part, place, sample in ((slice(0, -1), 0, observations), (slice(-1, None), 1, returns[:, None])):
            count, before = len(sample), self.count[row, place]
            if not count:
                continue
            mean, square = np.empty((2, sample.shape[1]))
            _moments(sample, mean, square)
            gap = mean - self.mean[row, part]
            total = before + count
            self.mean[row, part] += gap * count / total
            self.square[row, part] += square + gap**2 * before * count / total
            self.count[row, place] = total

    def inputs(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return centre and scale (N, D) of the inputs; 0 and 1 for agents that have observed nothing."""
        deviation = np.sqrt(self.square[:, :-1] / np.maximum(self.count[:, :1], 1.0))
        scale = np.where(self.count[:, :1] > 1, 1.0 / np.maximum(deviation, SMALLEST), 1.0)
        return self.mean[:, :-1].astype(np.float32), scale.astype(np.float32)

    def reward_factors(self) -> NDArray[np.float32]:
        """Return by what each agent's rewards are multiplied (N,)."""
        deviation = np.sqrt(self.square[:, -1] / np.maximum(self.count[:, 1], 1.0))
        return np.where(self.count[:, 1] > 1, 1.0 / np.maximum(deviation, SMALLEST), 1.0).astype(np.float32)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _moments(sample: NDArray[np.float64], mean: NDArray[np.float64], square: NDArray[np.float64]) -> None:
    """Write means and sums of squared deviations (D,) of a sample (S, D), added row by row."""
    mean[:], square[:] = 0.0, 0.0
    for row in sample:
        mean += row
    mean /= len(sample)
    for row in sample:
        square += (row - mean) * (row - mean)


def _observations_and_returns(
    snapshot: Snapshot, gamma: float, inputs: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what one agent's round reads: inputs (S, D), and discounted returns (K,) along trajectories or samples."""
    columns = snapshot.columns
    if "states" in columns:
        observations, returns = columns["states"], columns["returns"]
        if "counted" in columns:  # sequences with missing turns
            counted = columns["counted"] > 0
            observations, returns = observations[:, :, : counted.shape[2]][counted], returns[counted]
        return observations.reshape(-1, inputs).astype(np.float64), returns.reshape(-1).astype(np.float64)
    valid = columns["valid"].reshape(-1)
    returns = advantages({**columns, "value": np.zeros_like(columns["rewards"])}, np.array([gamma]), np.ones(1))
    observations = columns["observations"].reshape(len(valid), -1)[valid]
    return observations.astype(np.float64), returns.reshape(-1)[valid].astype(np.float64)


def _normalized_column(column: Array, centre: NDArray[np.float32], scale: NDArray[np.float32]) -> Array:
    """Return normalized observations (N, …, D), by the arithmetic of acting."""
    flat = column.reshape(len(column), -1, centre.shape[1])
    normalized: Array = np.clip((flat - centre[:, None]) * scale[:, None], -LIMIT, LIMIT)
    return np.asarray(normalized.reshape(column.shape), np.float32)
