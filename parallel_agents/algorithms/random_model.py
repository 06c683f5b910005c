"""A model that acts at random and does not learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from parallel_agents.core.errors import ActionError, ConfigError
from parallel_agents.core.seeding import Purpose, generator


class RandomModel:
    """Choose actions uniformly, from the agent's own draws; store nothing and learn nothing."""

    slow = False
    takes_masks = True

    def __init__(self, obs_shape: int | tuple[int, ...], n_actions: int, **unused: Any) -> None:
        if n_actions < 1:
            raise ConfigError(f"n_actions is {n_actions}: an agent needs at least one action")
        self.n_actions = n_actions
        self.place(seed=0, agent=0, worlds=1)

    def place(self, *, seed: int, agent: int, worlds: int) -> None:
        """Become agent `agent` of a run with this seed."""
        self._seed, self._agent = seed, agent
        self.start_epoch_action()

    def start_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Start the draws of an epoch."""
        self._draws = generator(self._seed, Purpose.ACT, agent=self._agent, epoch=epoch)

    def end_epoch_action(self, epoch: int = 0, **_: Any) -> None:
        """Do nothing; called after each epoch."""

    def take_action(self, state: Any, mask: Any = None) -> int:
        """Return a random action, one of those that a mask (A,) allows."""
        if mask is None:
            return int(self._draws.integers(self.n_actions))
        allowed = np.flatnonzero(mask)
        if not len(allowed):
            raise ActionError("an action mask forbids every action: allow at least one")
        return int(allowed[self._draws.integers(len(allowed))])

    def train_step(self) -> dict[str, float]:
        """Return that no update was made: there is nothing to learn."""
        return {"updates": 0}

    def state_dict(self) -> dict[str, int]:
        """Return an empty state: the draws of an epoch follow from its number."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing: there is no state."""
