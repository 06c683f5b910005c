"""Updates that were rejected because a loss or gradient was not finite: told, and after a while no longer borne."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parallel_agents.errors import LearnerError
from parallel_agents.models import Stack
from parallel_agents.types import RoundResult

__all__ = ["Rejections"]


class Rejections:
    """How many rounds in a row each agent has tried to learn and had every update rejected.

    A single bad batch costs an agent that update and nothing else. One that comes again round after round does not
    go away: the agent would stand still without anybody noticing.
    """

    def __init__(self, stacks: Sequence[Stack], limit: int, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self._stacks, self._limit, self._tell = list(stacks), max(1, limit), tell
        self._rounds = [np.zeros(len(stack), np.int64) for stack in self._stacks]

    def note(self, round_: int, results: Sequence[RoundResult]) -> None:
        """Take in what a round gave; raise for an agent that has learnt nothing for too long."""
        for stack, rounds, result in zip(self._stacks, self._rounds, results, strict=True):
            tried, lost = result.updates + result.rejected > 0, result.rejected > 0
            rounds[tried & (result.updates == 0)] += 1
            rounds[tried & (result.updates > 0)] = 0
            for row in np.flatnonzero(lost).tolist():
                who = {"agent": stack.identity.agents[row], "seed": stack.identity.seeds[row]}
                self._tell("updates_rejected", {"round": round_, "rejected": int(result.rejected[row]), **who})
            for row in np.flatnonzero(rounds >= self._limit).tolist():
                raise LearnerError(
                    f"agent {stack.identity.agents[row]} (seed {stack.identity.seeds[row]}): every update of "
                    f"{rounds[row]} rounds in a row up to round {round_} was rejected, because its loss or gradient "
                    f"was not finite (parallel.max_failures is {self._limit}). Its last good weights are kept: look at "
                    "the size of its rewards and observations, or lower model.lr"
                )
