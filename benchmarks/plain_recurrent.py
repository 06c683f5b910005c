"""Ordinary recurrent learners, one object per agent: torch's own units, and a state kept between calls."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.plain import Batch, PlainDQN, PlainPPO
from parallel_agents.types import Array

SEQUENCE = 16


class RecurrentModule(nn.Module):
    """A layer, a gated recurrent unit, and a linear head for each output."""

    def __init__(self, inputs: int, units: int, outputs: tuple[int, ...], activation: nn.Module) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, units), activation)
        self.unit = nn.GRU(units, units, batch_first=True)
        self.heads = nn.ModuleList(nn.Linear(units, own) for own in outputs)
        self.own = (self.unit.weight_ih_l0, self.unit.weight_hh_l0, self.unit.bias_ih_l0, self.unit.bias_hh_l0)

    def step(self, seen: Tensor, state: Tensor) -> Tensor:
        """(R, D), (R, H) -> the next state."""
        return torch.gru_cell(self.encoder(seen), state, *self.own)

    def forward(self, seen: Tensor, state: Tensor) -> Tensor:
        """Whole sequences (B, T, D) from states (B, H) -> (B, T, A)."""
        states, _ = self.unit(self.encoder(seen), state[None])
        return self.heads[0](states)  # type: ignore[no-any-return]


class PlainRecurrentDQN(PlainDQN):
    """Double DQN from sequences."""

    def __init__(self, inputs: int, units: int, actions: int) -> None:
        self.module = RecurrentModule(inputs, units, (actions,), nn.ReLU())
        self.state = torch.zeros(1, units)
        super().__init__(self.module)

    def act(self, seen: Tensor) -> Array:
        with torch.inference_mode():
            self.state = self.module.step(seen, self.state)
            return np.asarray(self.module.heads[0](self.state).argmax(-1).numpy())

    def loss(self, batch: Batch) -> Tensor:
        values = self.online(batch["states"], batch["hidden"])
        with torch.no_grad():
            target = self.target(batch["states"], batch["hidden"])
            worth = target.gather(-1, values.argmax(-1, keepdim=True)).squeeze(-1)
            goals = batch["returns"] + batch["discounts"] * worth.gather(-1, batch["ahead"])
        taken = values[:, : goals.shape[1]].gather(-1, batch["actions"][..., None]).squeeze(-1)
        errors = nn.functional.smooth_l1_loss(taken, goals, reduction="none") * batch["counted"]
        return errors.sum() / batch["counted"].sum()


class PlainRecurrentPPO(PlainPPO):
    """PPO from sequences, with one state for policy and value; it starts afresh where an episode starts within."""

    def __init__(self, inputs: int, units: int, actions: int) -> None:
        self.module = RecurrentModule(inputs, units, (actions, 1), nn.Tanh())
        self.state = torch.zeros(1, units)
        super().__init__(*self.module.heads, list(self.module.parameters()))

    def act(self, seen: Tensor) -> Array:
        with torch.inference_mode():
            self.state = self.module.step(seen, self.state)
        return super().act(self.state)

    def data(self, columns: Mapping[str, Array]) -> tuple[dict[str, Tensor], Array]:
        """Pieces of (T, W) columns, (K, L, …), from the states they start with."""
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
        entering = self.module.encoder(batch["observations"])
        state, states = batch["hidden"], []
        for turn in range(entering.shape[1]):
            if turn:
                state = state * batch["keep"][:, turn]
            state = torch.gru_cell(entering[:, turn], state, *self.module.own)
            states.append(state)
        return torch.stack(states, 1)
