"""Proximal policy optimisation of N independent agents in stacked updates (Schulman et al. 2017)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parallel_agents.errors import NonFiniteError, ShapeError
from parallel_agents.learning.gae import advantages
from parallel_agents.learning.pace import LearningRates, optimizer_state
from parallel_agents.networks import ActorCritic, gradient_rows
from parallel_agents.networks.numerics import RowAdam, clip_rows
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array, Identity, RoundResult, Snapshot, State

__all__ = ["PPOLearner"]

HYPER = (
    "lr", "lr_final", "lr_updates", "lr_shape", "clip", "ratio_clip", "value_clip", "value_weight",
    "entropy", "gamma", "lambda", "target_kl",
)  # fmt: skip
"""Hyper-parameters that may differ between the rows of a stack; they are part of the state."""


@dataclass(frozen=True)
class PPOLearner:
    """Snapshot in, State out.

    A snapshot holds whole trajectories in order, (N, T, W) columns, with log-probability and value of the acting
    weights. With a lag those are older than the learner's: the ratio then still compares with the weights that
    acted, while the early stop compares with the learner at the round's start.

    An optional column `sample_weights`, (N, T, W) of mean 1, weighs each sample's surrogate, value and entropy terms
    and the normalisation of the advantages; these themselves come from the whole, ordered trajectory.
    """

    network: ActorCritic
    passes: int
    """Passes over the data in a round."""
    minibatches: int
    batch: int
    """Rows of a minibatch, fixed; a smaller one is padded with rows of weight 0."""
    device: str = "cpu"

    @property
    def updates(self) -> int:
        return self.passes * self.minibatches

    def init(self, identity: Identity, hyper: Sequence[Mapping[str, float]]) -> State:
        """Fresh learners; one mapping of hyper-parameters per agent."""
        return State(optimizer_state(self.network.init(identity), hyper, HYPER)).to(self.device)

    def policy(self, state: State) -> Tensor:
        """(N, P) the rows that acting needs."""
        return state["online"]

    def acting_as(self, state: State, rows: Tensor) -> State:
        """The same learners, acting with these rows."""
        return State({**state.tensors, "online": rows})

    def learn(self, state: State, snapshot: Snapshot, identity: Identity) -> tuple[State, RoundResult]:
        """One round for every agent of the state."""
        if not snapshot["ready"].any():
            return state, RoundResult.nothing(snapshot.round, len(identity))
        began = time.perf_counter()
        new = state.clone()
        data = _Data(snapshot, new, identity, self.minibatches, self.batch)
        step = _Step(self, new)
        if data.stops_early:
            data.started_from(step.log_probs(data))
        running = data.ready.copy()
        attempts = np.zeros(len(identity), np.int64)
        for pass_ in range(self.passes):
            distance = np.zeros(len(identity))
            for chosen, weights in data.minibatches(snapshot.round, pass_):
                distance += step.take(data, chosen, weights, running) / self.minibatches
                attempts += running & weights.any(axis=1)
            running = running & ~(distance > data.limits)
        new["updates"].copy_(torch.from_numpy(step.updates))
        accepted = step.updates - state["updates"].cpu().numpy()
        result = RoundResult(
            snapshot.round, accepted, attempts - accepted, step.metrics(), seconds=time.perf_counter() - began
        )
        return new, result


class _Data:
    """The trajectories of a round as one flat list of samples per agent."""

    def __init__(self, snapshot: Snapshot, state: State, identity: Identity, minibatches: int, batch: int) -> None:
        self._identity, self._parts, self._batch = identity, minibatches, batch
        hyper = {name: state[f"hyper.{name}"].cpu().numpy() for name in ("gamma", "lambda", "target_kl")}
        rise = advantages(
            snapshot["rewards"],
            snapshot["value"],
            snapshot["terminated"],
            snapshot["truncated"],
            snapshot["valid"],
            snapshot["follow"],
            hyper["gamma"],
            hyper["lambda"],
        )
        agents = len(identity)
        valid = snapshot["valid"].reshape(agents, -1)
        self.places = [np.flatnonzero(own) for own in valid]
        """Per agent: where its samples stand among the T·W places."""
        self.ready = snapshot["ready"] & np.array([len(own) > 0 for own in self.places])
        self.limits = np.where(hyper["target_kl"] > 0, hyper["target_kl"], np.inf)
        self.stops_early = bool(np.isfinite(self.limits).any())
        places = valid.shape[1]
        self.observations = snapshot["observations"].reshape(agents, places, -1)
        self.actions = snapshot["actions"].reshape(agents, places, *snapshot["actions"].shape[3:])
        masks = snapshot.columns.get("masks")
        self.masks = None if masks is None else masks.reshape(agents, places, -1)
        self.log_prob = snapshot["log_prob"].reshape(agents, -1)
        self.values = snapshot["value"].reshape(agents, -1)
        self.returns = rise.reshape(agents, -1) + self.values
        given = snapshot.columns.get("sample_weights")
        self._weights = None if given is None else _checked_weights(given, valid)
        self.rise = np.stack(
            [
                _normalised(own, places, None if self._weights is None else self._weights[row])
                for row, (own, places) in enumerate(zip(rise.reshape(agents, -1), self.places, strict=True))
            ]
        )
        self.start = self.log_prob

    def started_from(self, log_probs: NDArray[np.float32]) -> None:
        """Remember what the learner gave the actions at the round's start."""
        self.start = log_probs

    def minibatches(self, round_: int, pass_: int) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """(N, B) places and (N, B) weights that sum to 1 where samples weigh alike, by each agent's own permutation."""
        agents = len(self._identity)
        parts = [
            (np.zeros((agents, self._batch), np.int64), np.zeros((agents, self._batch), np.float32))
            for _ in range(self._parts)
        ]
        for row, (seed, agent) in enumerate(zip(self._identity.seeds, self._identity.agents, strict=True)):
            draws = generator(seed, Purpose.PERMUTATION, agent=agent, epoch=round_, turn=pass_)
            shares = np.array_split(draws.permutation(self.places[row]), self._parts)
            for (chosen, weights), share in zip(parts, shares, strict=True):
                chosen[row, : len(share)] = share
                weights[row, : len(share)] = 1.0 / max(1, len(share))
                if self._weights is not None:
                    weights[row, : len(share)] *= self._weights[row, share]
        return parts


class _Step:
    """One stacked update after the other on the same rows."""

    def __init__(self, learner: PPOLearner, state: State) -> None:
        self._network, self._device = learner.network, learner.device
        self._batch = learner.batch
        self._rows = state["online"]
        self._leaves = learner.network.leaves(self._rows)
        self._gradients = torch.zeros_like(self._rows)
        self._optimizer = RowAdam(self._rows, self._gradients, state["first"], state["second"], state["steps"])
        self._rates = LearningRates(state)
        self._hyper = {name: state[f"hyper.{name}"].float()[:, None] for name in HYPER}
        self._clips_values = bool((state["hyper.value_clip"] > 0).any())
        self.updates = state["updates"].cpu().numpy().copy()
        self._figures: list[dict[str, Tensor]] = []

    def take(self, data: _Data, chosen: NDArray[np.int64], weights: NDArray[np.float32], running: Array) -> Array:
        """One update of the running agents; (N,) how far each is from the round's start."""
        batch = {
            name: self._gathered(getattr(data, name), chosen)
            for name in ("observations", "actions", "masks", "log_prob", "values", "returns", "rise", "start")
        }
        weight = self._tensor(weights)
        with torch.enable_grad():
            loss, distance = self._loss(batch, weight)
            gradient_rows(loss.sum(), self._network.layout, self._leaves, self._gradients)
        with torch.no_grad():
            norm = clip_rows(self._gradients, self._hyper["clip"][:, 0])
            fine = torch.isfinite(loss) & torch.isfinite(norm)
            some = weights.any(axis=1)
            accepted = (fine.cpu().numpy() & running & some).tolist()
            self._optimizer.step(self._rates.at(self.updates), accepted)
        self.updates += np.asarray(accepted)
        return np.asarray(distance.cpu().numpy(), np.float64)

    def _loss(self, batch: Mapping[str, Tensor | None], weight: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) loss of each agent, and (N,) its distance from the round's start. Every term is weighted once."""
        given = {name: tensor for name, tensor in batch.items() if tensor is not None}
        hyper, masks = self._hyper, given.get("masks")
        outputs = self._network.forward(self._leaves, given["observations"])
        policy, value = outputs[..., :-1], outputs[..., -1]
        log_prob = self._network.distribution.log_prob(policy, given["actions"], masks)
        ratio = torch.exp(log_prob - given["log_prob"])
        bound = hyper["ratio_clip"]
        held = torch.minimum(torch.maximum(ratio, 1.0 - bound), 1.0 + bound)
        surrogate = torch.minimum(ratio * given["rise"], held * given["rise"])
        error = (value - given["returns"]) ** 2
        if self._clips_values:
            error = torch.where(hyper["value_clip"] > 0, torch.maximum(error, self._clipped(value, given)), error)
        entropy = self._network.distribution.entropy(policy, masks)
        each = -surrogate + hyper["value_weight"] * error - hyper["entropy"] * entropy
        with torch.no_grad():
            gap = log_prob - given["start"]
            distance = (weight * (torch.exp(gap) - 1.0 - gap)).sum(-1)  # Schulman's low-variance estimate
            self._figures.append(
                {
                    "policy_loss": -(weight * surrogate).sum(-1),
                    "value_loss": (weight * error).sum(-1),
                    "entropy": (weight * entropy).sum(-1),
                    "kl": distance,
                }
            )
        loss = (weight * each).sum(-1)
        self._figures[-1]["loss"] = loss.detach()
        return loss, distance

    def _clipped(self, value: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        bound = self._hyper["value_clip"]
        moved = torch.minimum(torch.maximum(value - given["values"], -bound), bound)
        return (given["values"] + moved - given["returns"]) ** 2

    def log_probs(self, data: _Data) -> NDArray[np.float32]:
        """(N, T·W) log-probabilities of all actions under the weights as they are now."""
        total = data.log_prob.shape[1]
        found = np.zeros(data.log_prob.shape, np.float32)
        with torch.no_grad():
            for first in range(0, total, self._batch):
                part = np.arange(first, first + self._batch) % total
                chosen = np.broadcast_to(part, (len(found), self._batch))
                outputs = self._network.forward(self._leaves, self._needed(data.observations, chosen))
                masks = self._gathered(data.masks, chosen)
                actions = self._needed(data.actions, chosen)
                log_prob = self._network.distribution.log_prob(outputs[..., :-1], actions, masks)
                found[:, part] = log_prob.cpu().numpy()
        return found

    def metrics(self) -> dict[str, Array]:
        """(N,) means over the round."""
        return {
            name: np.asarray(torch.stack([figures[name] for figures in self._figures]).mean(0).cpu().numpy())
            for name in self._figures[0]
        }

    def _gathered(self, column: Array | None, chosen: NDArray[np.int64]) -> Tensor | None:
        return None if column is None else self._needed(column, chosen)

    def _needed(self, column: Array, chosen: NDArray[np.int64]) -> Tensor:
        return self._tensor(column[np.arange(len(column))[:, None], chosen])

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _checked_weights(given: Array, valid: Array) -> NDArray[np.float32]:
    """(N, T, W) weights of samples as (N, T·W)."""
    weights = np.asarray(given, np.float32).reshape(len(given), -1)
    if weights.shape != valid.shape:
        raise ShapeError(
            f"sample_weights of shape {np.shape(given)} for {valid.shape} places: give one for each sample"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise NonFiniteError("sample_weights must be finite and not negative: check the shares they come from")
    return weights


def _normalised(
    rise: NDArray[np.float32], places: NDArray[np.int64], weights: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """One agent's advantages with mean 0 and deviation 1 over its samples, weighted ones where weights are given."""
    own = rise[places].astype(np.float64)
    if len(own) < 2:
        return rise
    if weights is None:
        return np.asarray((rise - own.mean()) / (own.std() + 1e-8), np.float32)
    shares = weights[places].astype(np.float64)
    shares /= max(shares.sum(), 1e-300)  # no weight at all: nothing will be learned from these samples
    mean = shares @ own
    return np.asarray((rise - mean) / (np.sqrt(shares @ (own - mean) ** 2) + 1e-8), np.float32)
