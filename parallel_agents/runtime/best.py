"""The best weights so far: of each replica its own, judged by its own evaluations, as if it ran alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from parallel_agents.errors import CorruptCheckpoint
from parallel_agents.runtime.crew import Crew
from parallel_agents.types import Array, Weights

__all__ = ["Best"]


class Best:
    """Acting weights of the epoch in which a replica was evaluated best; of equal ones the first."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.epochs: list[int] = []
        """Per replica; empty before the first evaluation."""
        self.returns: list[float] = []
        self._rows: list[Tensor] = []

    def offer(self, epoch: int, returns: Sequence[float]) -> list[bool]:
        """Keep the acting weights of every replica whose mean return is its best; which those are."""
        acting = [stack.acting_rows for stack in self._crew.stacks]
        if not self.epochs:
            self.epochs, self.returns = [epoch] * len(returns), list(returns)
            self._rows = [rows.clone() for rows in acting]
            return [True] * len(returns)
        better = [now > before for now, before in zip(returns, self.returns, strict=True)]
        for k in [k for k, own in enumerate(better) if own]:
            self.epochs[k], self.returns[k] = epoch, returns[k]
        for kept, rows, members in zip(self._rows, acting, self._crew.members, strict=True):
            mine = [row for row, seat in enumerate(members) if better[seat.environment]]
            kept[mine] = rows[mine]
        return better

    def act(self) -> None:
        """Let every agent act with its best weights, and show them in the models."""
        for stack, rows in zip(self._crew.stacks, self._rows, strict=True):
            stack.inference.publish(Weights(stack.inference.version, rows))
            stack.show_acting()

    # -- checkpoints -----------------------------------------------------------------------------------------

    def values(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "returns": self.returns}

    def arrays(self) -> dict[str, Array]:
        return {f"{index}.best": rows.cpu().numpy() for index, rows in enumerate(self._rows)}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Back to what a checkpoint recorded."""
        self.epochs, self.returns = [int(e) for e in values["epochs"]], [float(r) for r in values["returns"]]
        self._rows = []
        for index, stack in enumerate(self._crew.stacks if self.epochs else ()):
            rows = torch.from_numpy(arrays[f"{index}.best"].copy()).to(stack.device)
            if rows.shape != stack.acting_rows.shape or rows.dtype != stack.acting_rows.dtype:
                raise CorruptCheckpoint(f"best weights of shape {tuple(rows.shape)} do not fit {len(stack)} agents")
            self._rows.append(rows)
