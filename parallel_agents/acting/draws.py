"""The draws of acting, made a block of turns at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parallel_agents.seeding import Purpose, uniforms
from parallel_agents.types import Identity

__all__ = ["Draws"]

BLOCK_NUMBERS = 500_000


class Draws:
    """Numbers for every agent, world and turn, also for those who do not act or explore."""

    def __init__(self, identity: Identity, worlds: Sequence[int], slots: int, purpose: Purpose = Purpose.ACT) -> None:
        self._identity, self._worlds, self._slots, self._purpose = identity, tuple(worlds), slots, purpose
        self._turns = max(1, min(256, BLOCK_NUMBERS // max(1, len(identity) * len(self._worlds) * slots)))
        self._at = (-1, -1)
        self._block = np.empty((0, 0, 0, 0))

    def at(self, epoch: int, turn: int) -> NDArray[np.float64]:
        """(N, W, slots) numbers in [0, 1) of this turn."""
        block = (epoch, turn // self._turns)
        if block != self._at:
            self._block = uniforms(
                self._identity.seeds,
                self._purpose,
                self._identity.agents,
                self._worlds,
                epoch=epoch,
                turns=self._turns,
                slots=self._slots,
                first_turn=block[1] * self._turns,
            )
            self._at = block
        return np.asarray(self._block[turn % self._turns])
