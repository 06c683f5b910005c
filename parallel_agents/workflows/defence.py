"""`NetworkDefence`: the network-defence worlds as an environment of the engine, with one defender.

    parallel-agents train parallel_agents.workflows.defence:NetworkDefence --worlds 25 --epochs 100

`world.red` names the attackers. Worlds take them in turn, so that one defender learns against all of them; it does not
know which one it faces. With `world.history` the defender reads features of the past (`network.observations`) beside
the 52 bits. It chooses among all 145 actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parallel_agents.core.config import build_section
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Array
from parallel_agents.env import Agent, ParallelEnvironment
from parallel_agents.workflows.network import NetworkWorlds, Quirks
from parallel_agents.workflows.network.observations import HISTORY_SIZE, History
from parallel_agents.workflows.network.quirks import version_quirks
from parallel_agents.workflows.network.scenario import N_ACTIONS, OBSERVATION_SIZE


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
            "ent_coef": 0.01,
        },
        "parallel": {"train_interval": 1, "policy_lag": 0},
    }

    def setup_agents(self) -> None:
        """Create the worlds and one defender."""
        options = dict(self.config.world)
        if not isinstance(options["history"], bool):
            raise ConfigError(f"world.history is {options['history']!r}: say true or false")
        red = options["red"] if isinstance(options["red"], list | tuple) else (options["red"],)
        if not red:
            raise ConfigError("world.red is empty: name at least one red agent")
        late_start = options["late_start"]
        self.worlds = NetworkWorlds(
            self.n_worlds,
            red=[red[w % len(red)] for w in range(self.n_worlds)],
            version=options["version"],
            quirks=_override_quirks(version_quirks(options["version"]), options["quirks"]),
            steps=late_start + self.config.experiment.max_turns,
            green=options["green"],
            late_start=late_start,
            seed=self.seed,
        )
        self._history = History(self.n_worlds, self.worlds.rules) if options["history"] else None
        size = OBSERVATION_SIZE if self._history is None else HISTORY_SIZE
        self._observations: Array = np.zeros((1, self.n_worlds, size))
        self.agents = [Agent(model=self.make_model((size,), N_ACTIONS), name="defender")]

    def reset(self) -> None:
        """Start an episode in every world with the draws of this epoch."""
        bits = self.worlds.reset(self.epoch)
        self._set_observations(bits if self._history is None else self._history.reset(bits, self.worlds.turn))

    def observe(self) -> Array:
        """Return (1, W, 52), or (1, W, HISTORY_SIZE) with features of the past."""
        return self._observations

    def apply_actions(self, actions: Array) -> Array:
        """Play one turn of every world; return rewards (1, W)."""
        bits, rewards, _ = self.worlds.step(actions[0])
        self._set_observations(bits if self._history is None else self._history.update(actions[0], bits))
        return rewards[None]

    def _set_observations(self, rows: Array) -> None:
        """Keep the rows (W, …) as the defender's observations."""
        self._observations = rows[None].astype(np.float32, copy=False)


def _override_quirks(preset: Quirks, switches: Any) -> Quirks:
    """Return a version's quirks with some switches changed."""
    values = {name: getattr(preset, name) for name in Quirks.__dataclass_fields__} | dict(switches)
    return build_section(Quirks, values, "world.quirks")
