"""The network-defence worlds as an environment: one defender, W networks under attack.

    parallel-agents train parallel_agents.workflows.defence:NetworkDefence --worlds 25 --epochs 100

`world.red` names the attackers; worlds take them in turn, so that one defender learns against all of them and is
never told which it faces. With `world.history` the defender reads its own notes (`network.history`) beside the 52
bits; without, the bits alone. Either way it chooses among all 145 actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parallel_agents.config import build_section
from parallel_agents.environment import Agent, ParallelEnvironment
from parallel_agents.errors import ConfigError
from parallel_agents.types import Array
from parallel_agents.workflows.network import NetworkWorlds, Quirks
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.history import HISTORY_SIZE, History
from parallel_agents.workflows.network.quirks import quirks_of

__all__ = ["NetworkDefence"]


class NetworkDefence(ParallelEnvironment):
    """CAGE Challenge 2 for the engine; an epoch is one episode of `experiment.max_turns` turns in every world.

    >>> env = NetworkDefence(config={"experiment": {"epochs": 2, "max_turns": 5, "worlds": 4}})
    >>> env.run_experiment()["transitions"]
    40
    """

    default_config = {
        "experiment": {"epochs": 2000, "max_turns": 100, "worlds": 64},
        "world": {
            "red": ("B_line", "Meander"),
            "version": "head",
            "quirks": {},
            "green": False,
            "late_start": 0,
            "history": True,
        },
        "model": {
            "algorithm": "ppo",
            "hidden": (128, 128),
            "lr": 0.001,
            "lr_final": 0.0001,
            "lr_updates": 32_000,  # 2000 epochs of 16 updates
            "entropy": 0.01,
        },
        "parallel": {"train_interval": 1, "policy_lag": 0},
    }

    def setup_agents(self) -> None:
        """Make the worlds and one defender."""
        options = dict(self.config.world)
        if not isinstance(options["history"], bool):
            raise ConfigError(f"world.history is {options['history']!r}: say true or false")
        red = options["red"] if isinstance(options["red"], list | tuple) else (options["red"],)
        if not red:
            raise ConfigError("world.red is empty: name at least one red agent")
        late = options["late_start"]
        self.worlds = NetworkWorlds(
            self.n_worlds,
            red=[red[w % len(red)] for w in range(self.n_worlds)],
            version=options["version"],
            quirks=_bent(quirks_of(options["version"]), options["quirks"]),
            steps=late + self.config.experiment.max_turns,
            green=options["green"],
            late_start=late,
            seed=self.seed,
        )
        self._history = History(self.n_worlds, self.worlds.rules) if options["history"] else None
        self._seen: Array = np.zeros((1, self.n_worlds, HISTORY_SIZE if self._history else t.OBSERVATION_SIZE))
        self.agents = [Agent(model=self.make_model(self._seen.shape[2:], t.N_ACTIONS), name="defender")]

    def reset(self) -> None:
        """Start an episode in every world, on the draws of this epoch."""
        observations = self.worlds.reset(self.epoch)
        self._seen = self._noted(self._history.begin(observations, self.worlds.turn) if self._history else observations)

    def observe(self) -> Array:
        """(1, W, 52), or with the notes beside the bits."""
        return self._seen

    def apply_actions(self, actions: Array) -> Array:
        """One turn of every world; (1, W) rewards."""
        observations, rewards, _ = self.worlds.step(actions[0])
        self._seen = self._noted(self._history.after(actions[0], observations) if self._history else observations)
        return rewards[None]

    def _noted(self, rows: Array) -> Array:
        return rows[None].astype(np.float32, copy=False)


def _bent(preset: Quirks, switches: Any) -> Quirks:
    """A version's quirks with some of them switched."""
    given = {name: getattr(preset, name) for name in Quirks.__dataclass_fields__} | dict(switches)
    return build_section(Quirks, given, "world.quirks")
