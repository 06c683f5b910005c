"""`NetworkDefence`: the network-defence worlds as an environment of the engine, with one defender.

    parallel-agents train parallel_agents.workflows.defence:NetworkDefence --worlds 25 --epochs 100

`world.red` names the attackers. Worlds take them in turn, so that one defender learns against all of them; it does not
know which one it faces. With `world.history` the defender reads features of the past (`network.observations`) beside
the 52 bits. It chooses among the 45 `CHOICES` of that module, or with `world.all_actions` among all 145 actions.

The challenge adds up the returns of the first 30, 50 and 100 turns, so that a turn counts three times, twice or once.
`world.turn_weights` multiplies rewards by these weights (scaled to mean 1), and the last turn really ends the episode:
what is learned is what is scored. `world.weights` starts the defender from a file of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.config import build_section
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Array
from parallel_agents.env import Agent, ParallelEnvironment
from parallel_agents.workflows.network import NetworkWorlds, Quirks
from parallel_agents.workflows.network.observations import CHOICES, HISTORY_SIZE, History
from parallel_agents.workflows.network.quirks import version_quirks
from parallel_agents.workflows.network.scenario import LENGTHS, N_ACTIONS, OBSERVATION_SIZE
from parallel_agents.workflows.pictures import NetworkRecorder


class NetworkDefence(ParallelEnvironment):
    """CAGE Challenge 2 for the engine; an epoch is one episode of `experiment.max_turns` turns in every world.

    >>> env = NetworkDefence(config={"experiment": {"epochs": 2, "max_turns": 5, "worlds": 4}})
    >>> env.run_experiment()["transitions"]
    40
    """

    default_config = {
        "experiment": {"epochs": 800, "max_turns": 100, "worlds": 128},
        "world": {
            "red": ("B_line", "Meander"),
            "version": "head",
            "quirks": {},
            "green": False,
            "late_start": 0,
            "history": True,
            "all_actions": False,
            "turn_weights": False,
            "weights": None,
        },
        "model": {
            "algorithm": "ppo",
            "hidden": (64, 64),
            "n_epochs": 3,
            "n_minibatches": 8,
            "lr": 0.001,
            "lr_final": 0.0001,
            "lr_updates": 19_200,  # 800 epochs of 24 updates
            "ent_coef": 0.01,
        },
        "parallel": {"train_interval": 1, "policy_lag": 0},
    }

    shardable = True
    recorder: NetworkRecorder | None = None

    def recorders(self, folder: Path) -> Sequence[NetworkRecorder]:
        """Return a recorder of the first world, unless `experiment.record_period` is 0."""
        self.recorder = NetworkRecorder(self.worlds, folder) if self.config.experiment.record_period else None
        return () if self.recorder is None else (self.recorder,)

    def setup_agents(self) -> None:
        """Create the worlds and one defender."""
        options = dict(self.config.world)
        for name in ("history", "all_actions", "turn_weights"):
            if not isinstance(options[name], bool):
                raise ConfigError(f"world.{name} is {options[name]!r}: say true or false")
        red = options["red"] if isinstance(options["red"], list | tuple) else (options["red"],)
        if not red:
            raise ConfigError("world.red is empty: name at least one red agent")
        late_start = options["late_start"]
        self.worlds = NetworkWorlds(
            self.n_worlds,
            red=[red[w % len(red)] for w in self.world_numbers],
            version=options["version"],
            quirks=_override_quirks(version_quirks(options["version"]), options["quirks"]),
            steps=late_start + self.config.experiment.max_turns,
            green=options["green"],
            late_start=late_start,
            seed=self.seed,
            first_world=self.world_numbers.start,
        )
        size = HISTORY_SIZE if options["history"] else OBSERVATION_SIZE
        self._history = History(self.n_worlds, self.worlds.rules, size)
        self._observations: Array = np.zeros((1, self.n_worlds, size))
        turns = np.arange(self.worlds.steps)
        counted = (turns[:, None] < np.array(LENGTHS)).sum(axis=1) if options["turn_weights"] else np.ones(len(turns))
        self._turn_weights = counted / max(counted.mean(), 1e-9)
        self._n_choices = N_ACTIONS if options["all_actions"] else len(CHOICES)
        self.agents = [Agent(model=self.make_model((size,), self._n_choices), name="defender")]
        if options["weights"] is not None:
            self.agents[0].model.load_weights(options["weights"])

    def reset(self) -> None:
        """Start an episode in every world with the draws of this epoch."""
        bits = self.worlds.reset(self.epoch)
        self._observations = self._history.reset(bits)[None]

    def observe(self) -> Array:
        """Return (1, W, 52), or (1, W, HISTORY_SIZE) with features of the past."""
        return self._observations

    def apply_actions(self, actions: Array) -> Array:
        """Play one turn of every world; return rewards (1, W)."""
        weight = self._turn_weights[self.worlds.turn]
        chosen = self._history.actions(actions[0], self._n_choices)
        bits, rewards, _ = self.worlds.step(chosen)
        if self.recorder is not None:
            self.recorder.capture(chosen, rewards)
        self._observations = self._history.update(chosen, bits)[None]
        return np.asarray(weight * rewards)[None]

    def dones(self) -> tuple[Array, Array] | None:
        """Return (1, W) terminated and truncated: with `turn_weights`, nothing counts after the last turn."""
        if self.worlds.turn < self.worlds.steps:
            return None
        ended = np.full((1, self.n_worlds), self.config.world["turn_weights"])
        return ended, np.zeros_like(ended)


def _override_quirks(preset: Quirks, switches: Any) -> Quirks:
    """Return a version's quirks with some switches changed."""
    values = {name: getattr(preset, name) for name in Quirks.__dataclass_fields__} | dict(switches)
    return build_section(Quirks, values, "world.quirks")
