"""Ordinary recurrent learners, one object per agent, with torch's GRU and a hidden state kept between calls."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.plain import Batch, PlainDQN, PlainPPO
from parallel_agents.core.types import Array

SEQUENCE = 16


class RecurrentModule(nn.Module):
    """A layer, a gated recurrent unit, and a linear head for each output."""

    def __init__(self, inputs: int, units: int, outputs: tuple[int, ...], activation: nn.Module) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, units), activation)
        self.unit = nn.GRU(units, units, batch_first=True)
        self.heads = nn.ModuleList(nn.Linear(units, size) for size in outputs)
        self.cell_weights = (self.unit.weight_ih_l0, self.unit.weight_hh_l0, self.unit.bias_ih_l0, self.unit.bias_hh_l0)

    def step(self, observations: Tensor, hidden: Tensor) -> Tensor:
        """Return the next hidden states (R, H) for observations (R, D)."""
        return torch.gru_cell(self.encoder(observations), hidden, *self.cell_weights)

    def forward(self, observations: Tensor, hidden: Tensor) -> Tensor:
        """Return (B, T, A) for whole sequences (B, T, D) that start with hidden states (B, H)."""
        states, _ = self.unit(self.encoder(observations), hidden[None])
        return self.heads[0](states)  # type: ignore[no-any-return]


class PlainRecurrentDQN(PlainDQN):
    """Double DQN from sequences."""

    def __init__(self, inputs: int, units: int, actions: int) -> None:
        self.module = RecurrentModule(inputs, units, (actions,), nn.ReLU())
        self.hidden = torch.zeros(1, units)
        super().__init__(self.module)

    def act(self, observations: Tensor) -> Array:
        with torch.inference_mode():
            self.hidden = self.module.step(observations, self.hidden)
            return np.asarray(self.module.heads[0](self.hidden).argmax(-1).numpy())

    def loss(self, batch: Batch) -> Tensor:
        values = self.online(batch["states"], batch["hidden"])
        with torch.no_grad():
            target = self.target(batch["states"], batch["hidden"])
            worth = target.gather(-1, values.argmax(-1, keepdim=True)).squeeze(-1)
            targets = batch["returns"] + batch["discounts"] * worth.gather(-1, batch["ahead"])
        taken = values[:, : targets.shape[1]].gather(-1, batch["actions"][..., None]).squeeze(-1)
        errors = nn.functional.smooth_l1_loss(taken, targets, reduction="none") * batch["counted"]
        return errors.sum() / batch["counted"].sum()


class PlainRecurrentPPO(PlainPPO):
    """PPO from sequences, with one hidden state for policy and value, reset where an episode starts."""

    def __init__(self, inputs: int, units: int, actions: int) -> None:
        self.module = RecurrentModule(inputs, units, (actions, 1), nn.Tanh())
        self.hidden = torch.zeros(1, units)
        super().__init__(*self.module.heads, list(self.module.parameters()))

    def act(self, observations: Tensor) -> Array:
        with torch.inference_mode():
            self.hidden = self.module.step(observations, self.hidden)
        return super().act(self.hidden)

    def data(self, columns: Mapping[str, Array]) -> tuple[dict[str, Tensor], Array]:
        """Return sequences (K, L, …) cut from (T, W) columns, with the hidden states they start with."""
        flat, _ = super().data(columns)
        turns, worlds = columns["valid"].shape
        flat["keep"] = torch.from_numpy((columns["age"] > 0).astype(np.float32).reshape(turns * worlds, 1))
        flat["counted"] = torch.from_numpy(columns["valid"].astype(np.float32).reshape(turns * worlds))
        cut = {
            name: column.reshape(-1, SEQUENCE, worlds, *column.shape[1:]).transpose(1, 2).flatten(0, 1)
            for name, column in flat.items()
        }
        cut["hidden"] = torch.from_numpy(columns["hidden"]).flatten(0, 1)
        return cut, np.arange(len(cut["hidden"]))

    def features(self, batch: Batch) -> Tensor:
        encoded = self.module.encoder(batch["observations"])
        hidden, states = batch["hidden"], []
        for turn in range(encoded.shape[1]):
            if turn:
                hidden = hidden * batch["keep"][:, turn]
            hidden = torch.gru_cell(encoded[:, turn], hidden, *self.module.cell_weights)
            states.append(hidden)
        return torch.stack(states, 1)
