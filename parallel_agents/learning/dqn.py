"""Deep Q-learning of N independent agents in one stacked update (Mnih et al. 2015)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_agents.learning.batches import Joining, joining_state
from parallel_agents.learning.figures import sampling_figures
from parallel_agents.learning.losses import allowed, double_q_targets, huber, q_targets, values_of, weighted_mean
from parallel_agents.learning.pace import LearningRates, optimizer_state
from parallel_agents.learning.parts import in_parts, touched
from parallel_agents.networks import gradient_rows
from parallel_agents.networks.numerics import RowAdam, clip_rows
from parallel_agents.types import Array, Identity, RoundResult, Snapshot, State

__all__ = ["DQNLearner"]

HYPER = ("lr", "lr_final", "lr_updates", "lr_shape", "clip", "tau", "target_interval", "batch_growth")
"""Hyper-parameters that may differ between the rows of a stack; they are part of the state."""
COPIES = 5
"""Of an agent's weights: online, target, gradient and two moments."""
NOT_LEARNED = ("ready", "places", "rare")
"""Columns of a snapshot that no loss reads."""


@dataclass(frozen=True)
class DQNLearner:
    """Snapshot in, State out.

    The state of an agent: `online` and `target` weights, Adam's `first` and `second` moments and `steps`,
    the count of accepted `updates`, how many batches it joins to a step, and its own hyper-parameters.
    """

    network: Any
    updates: int
    """Updates of a round."""
    batch: int
    double: bool = True
    device: str = "cpu"

    def init(self, identity: Identity, hyper: Sequence[Mapping[str, float]]) -> State:
        """Fresh learners; one mapping of hyper-parameters per agent."""
        rows = self.network.init(identity)
        joining = joining_state([own["batch_growth"] for own in hyper])
        return State({**optimizer_state(rows, hyper, HYPER), **joining, "target": rows.clone()}).to(self.device)

    def policy(self, state: State) -> Tensor:
        """(N, P) the rows that acting needs."""
        return state["online"]

    def acting_as(self, state: State, rows: Tensor) -> State:
        """The same learners, acting with these rows."""
        return State({**state.tensors, "online": rows})

    def learn(self, state: State, snapshot: Snapshot, identity: Identity) -> tuple[State, RoundResult]:
        """One round for every agent of the state."""
        numbers = touched(self.network, COPIES, self._samples(snapshot))
        return in_parts(self._learn, state, snapshot, identity, numbers)

    def _samples(self, snapshot: Snapshot) -> int:
        """Of one agent's update; of sequences every turn."""
        return math.prod(snapshot["states"].shape[1:-1]) // self.updates

    def _learn(self, new: State, snapshot: Snapshot, identity: Identity) -> RoundResult:
        """The updates of some agents, written into their rows of the new state."""
        before = new["updates"].cpu().numpy().copy()
        rows = new["online"]
        leaves, targets = self.network.leaves(rows), self.network.bind(new["target"])
        gradients = torch.empty_like(rows)
        optimizer = RowAdam(rows, gradients, new["first"], new["second"], new["steps"])
        pace, joining = Pace(new), Joining(new, self.batch, self.updates)
        ready = snapshot["ready"].tolist()
        losses, norms, errors = [], [], []
        for update in range(self.updates):
            with torch.enable_grad():
                batch = self._batch(snapshot, update) | self._draws(identity, pace.updates, joining.count)
                loss, error = self._loss(leaves, targets, batch)
                gradient_rows(loss.sum(), self.network.layout, leaves, gradients)
            with torch.no_grad():
                due = joining.take(gradients)
                norm = clip_rows(gradients, pace.clip)
                finite = (torch.isfinite(loss) & torch.isfinite(norm)).tolist()
                accepted = [own and fine and now for own, fine, now in zip(ready, finite, due, strict=True)]
                optimizer.step(pace.rates(), accepted)
                pace.count(accepted)
                new["target"].lerp_(rows, pace.share(accepted))
            losses.append(loss.detach())
            norms.append(norm)
            errors.append(error.detach())
        new["updates"].copy_(torch.from_numpy(pace.updates))
        joining.settle(new, snapshot["ready"])
        done = pace.updates - before
        metrics = {"loss": _mean(losses), "gradient_norm": _mean(norms), **sampling_figures(snapshot)}
        if joining.active:
            metrics["batch_size"] = joining.joined * self.batch
        rejected = joining.attempts * snapshot["ready"] - done
        surprises = _surprises(snapshot, errors)
        return RoundResult(snapshot.round, done, rejected, metrics, surprises)

    def _batch(self, snapshot: Snapshot, update: int) -> dict[str, Tensor]:
        """The (N, B, …) columns of one update."""
        part = slice(update * self.batch, (update + 1) * self.batch)
        columns = {name: column for name, column in snapshot.columns.items() if name not in NOT_LEARNED}
        return {name: torch.from_numpy(column[:, part]).to(self.device) for name, column in columns.items()}

    def _draws(self, identity: Identity, updates: Array, joined: Array) -> dict[str, Tensor]:
        """Return the random numbers of one batch, from each agent's own addresses; DQN needs none."""
        return {}

    def _loss(self, leaves: list[Tensor], targets: list[Tensor], batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(N,) loss of each agent, and (N, B) by how much each sample surprised it."""
        forward = self.network.forward
        with torch.no_grad():
            masks = batch.get("next_masks")
            next_values = allowed(forward(targets, batch["next_states"]), masks)
            if self.double:
                next_online = allowed(forward(leaves, batch["next_states"]), masks)
                goals = double_q_targets(batch["returns"], batch["discounts"], next_values, next_online)
            else:
                goals = q_targets(batch["returns"], batch["discounts"], next_values)
        values = values_of(forward(leaves, batch["states"]), batch["actions"])
        return weighted_mean(huber(values - goals), batch.get("weights")), values - goals


class Pace:
    """What depends on each agent's own count of updates, and on nothing else: rates and target steps."""

    def __init__(self, state: State) -> None:
        own = {name: state[f"hyper.{name}"].cpu().numpy() for name in HYPER}
        self.updates = state["updates"].cpu().numpy().copy()
        self.clip = state["hyper.clip"].float()
        self._rates = LearningRates(state)
        self._interval = own["target_interval"]
        self._tau, self._soft = own["tau"], state["hyper.tau"].float()[:, None]
        self._hard = bool((self._interval > 0).any())

    def count(self, accepted: list[bool]) -> None:
        self.updates += np.asarray(accepted)

    def rates(self) -> list[float]:
        return self._rates.at(self.updates)

    def share(self, accepted: list[bool]) -> Tensor:
        """(N, 1): how far targets follow, `tau` each update or all the way every `target_interval` updates."""
        if not self._hard and all(accepted):
            return self._soft
        due = self.updates % np.maximum(self._interval, 1) == 0
        share = np.where(self._interval > 0, due, self._tau) * np.asarray(accepted)
        return torch.from_numpy(share.astype(np.float32)).to(self._soft.device)[:, None]


def _surprises(snapshot: Snapshot, errors: list[Tensor]) -> dict[str, Array]:
    """What goes back to memory where rows are drawn by priority: places and errors, (N, S)."""
    if "places" not in snapshot.columns:
        return {}
    found = torch.cat(errors, 1).double().cpu().numpy()
    ready = snapshot["ready"][:, None]
    return {"places": np.where(ready, snapshot["places"], np.nan), "errors": np.where(ready, found, np.nan)}


def _mean(values: list[Tensor]) -> Array:
    return np.asarray(torch.stack(values).mean(0).cpu().numpy())
