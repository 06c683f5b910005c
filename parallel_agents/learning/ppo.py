"""Proximal policy optimisation of N independent agents in stacked updates (Schulman et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parallel_agents.learning.figures import sampling_figures
from parallel_agents.learning.pace import LearningRates, optimizer_state
from parallel_agents.learning.parts import in_parts, touched
from parallel_agents.learning.trajectories import Trajectories
from parallel_agents.networks import gradient_rows
from parallel_agents.networks.numerics import RowAdam, clip_rows
from parallel_agents.types import Array, Identity, RoundResult, Snapshot, State

__all__ = ["PPOLearner", "Step"]

HYPER = (
    "lr", "lr_final", "lr_updates", "lr_shape", "clip", "ratio_clip", "value_clip", "value_weight",
    "entropy", "gamma", "lambda", "target_kl",
)  # fmt: skip
"""Hyper-parameters that may differ between the rows of a stack; they are part of the state."""
COPIES = 4
"""Of an agent's weights: themselves, gradient and two moments."""


@dataclass(frozen=True)
class PPOLearner:
    """Snapshot in, State out.

    A snapshot holds whole trajectories in order, (N, T, W) columns, with log-probability and value of the acting
    weights. With a lag those are older than the learner's: the ratio then still compares with the weights that
    acted, while the early stop compares with the learner at the round's start.

    An optional column `sample_weights`, (N, T, W) of mean 1, weighs each sample's surrogate, value and entropy terms
    and the normalisation of the advantages; these themselves come from the whole, ordered trajectory.

    A recurrent network learns from sequences instead of single samples: each column of a world is cut into pieces of
    `sequence` turns, which start from the states that were kept when they were played (`hidden`, one per piece) and
    from a fresh one where an episode starts within (`age` 0). A minibatch is then a number of such pieces.

    Instead, `drawn` and `weights`, (N, S) places and corrections of the samples of all minibatches, say which samples
    are learned from: advantages are computed and normalised on the whole trajectory before.
    """

    network: Any
    passes: int
    """Passes over the data in a round."""
    minibatches: int
    batch: int
    """Sequences of a minibatch, fixed; a smaller one is padded with samples of weight 0."""
    device: str = "cpu"
    sequence: int = 1
    """Turns of a sequence; 1 for networks that carry no state."""

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
        numbers = touched(self.network, COPIES, self.batch * self.sequence)
        return in_parts(self._learn, state, snapshot, identity, numbers)

    def _learn(self, new: State, snapshot: Snapshot, identity: Identity) -> RoundResult:
        """The updates of some agents, written into their rows of the new state."""
        before = new["updates"].cpu().numpy().copy()
        data = Trajectories(snapshot, new, identity, parts=self.minibatches, batch=self.batch, length=self.sequence)
        step = Step(self, new)
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
        accepted = step.updates - before
        figures = step.metrics() | sampling_figures(snapshot)
        return RoundResult(snapshot.round, accepted, attempts - accepted, figures)


class Step:
    """One stacked update after the other on the same rows."""

    def __init__(self, learner: PPOLearner, state: State) -> None:
        self._network, self._device = learner.network, learner.device
        self._batch = learner.batch
        self._rows = state["online"]
        self._leaves = learner.network.leaves(self._rows)
        self._gradients = torch.empty_like(self._rows)
        self._optimizer = RowAdam(self._rows, self._gradients, state["first"], state["second"], state["steps"])
        self._rates = LearningRates(state)
        self._hyper = {name: state[f"hyper.{name}"].float()[:, None] for name in HYPER}
        self._clips_values = bool((state["hyper.value_clip"] > 0).any())
        self.updates = state["updates"].cpu().numpy().copy()
        self._figures: list[dict[str, Tensor]] = []

    def take(
        self, data: Trajectories, chosen: NDArray[np.int64], weights: NDArray[np.float32], running: Array
    ) -> Array:
        """One update of the running agents; (N,) how far each is from the round's start."""
        places = data.places(chosen)
        batch = {
            name: self._gathered(getattr(data, name), places)
            for name in ("observations", "actions", "masks", "log_prob", "values", "returns", "rise", "start", "keep")
        }
        batch["hidden"] = self._gathered(data.hidden, chosen)
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
        outputs = self._outputs(given)
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

    def _outputs(self, given: Mapping[str, Tensor]) -> Tensor:
        """(N, B·L, K) of the network as it is now, sequence by sequence where it carries a state."""
        seen = given["observations"]
        if "hidden" not in given:
            outputs: Tensor = self._network.forward(self._leaves, seen)
            return outputs
        agents, sequences = given["hidden"].shape[:2]
        block = (agents, sequences, seen.shape[1] // sequences)
        outputs = self._network.unroll(
            self._leaves, seen.reshape(*block, -1), given["hidden"], given["keep"].reshape(block)
        )
        return outputs.reshape(agents, seen.shape[1], -1)

    def _clipped(self, value: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        bound = self._hyper["value_clip"]
        moved = torch.minimum(torch.maximum(value - given["values"], -bound), bound)
        return (given["values"] + moved - given["returns"]) ** 2

    def log_probs(self, data: Trajectories) -> NDArray[np.float32]:
        """(N, T·W) log-probabilities of all actions under the weights as they are now."""
        total = len(data.sequences)
        found = np.zeros(data.log_prob.shape, np.float32)
        with torch.no_grad():
            for first in range(0, total, self._batch):
                part = np.arange(first, first + self._batch) % total
                chosen = np.broadcast_to(part, (len(found), self._batch))
                places, inside = data.places(chosen), data.inside[part].reshape(-1)
                needed = {name: self._gathered(getattr(data, name), places) for name in ("observations", "keep")}
                needed["hidden"] = self._gathered(data.hidden, chosen)
                outputs = self._outputs({name: own for name, own in needed.items() if own is not None})
                masks, actions = self._gathered(data.masks, places), self._needed(data.actions, places)
                log_prob = self._network.distribution.log_prob(outputs[..., :-1], actions, masks)
                found[:, places[0, inside]] = log_prob.cpu().numpy()[:, inside]
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
