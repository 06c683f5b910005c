"""`NetworkDefence`: the network-defence worlds as an environment of the engine, with one defender.

    parallel-agents train parallel_agents.workflows.defence:NetworkDefence --worlds 25 --epochs 100

`world.red` names the attackers. Worlds take them in turn, so that one defender learns against all of them; it does not
know which one it faces. With `world.history` the defender reads features of the past (`network.observations`) beside
the 52 bits. It chooses among the 45 `CHOICES` of that module, or with `world.all_actions` among all 145 actions.

The challenge adds up the returns of the first 30, 50 and 100 turns, so that a turn counts three times, twice or once.
`world.turn_weights` multiplies rewards by these weights (scaled to mean 1), and the last turn really ends the episode:
what is learned is what is scored. `world.weights` starts the defender from a file of weights.

Whole epochs are played in compiled code, except those that are recorded, and except where a red agent is written in
Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.config import build_section
from parallel_agents.core.errors import ActionError, ConfigError
from parallel_agents.core.types import Array
from parallel_agents.engine.collect import CompiledWorld, nothing_moves, nothing_restarts
from parallel_agents.env import Agent, ParallelEnvironment
from parallel_agents.workflows.network import NetworkWorlds, Quirks
from parallel_agents.workflows.network.observations import CHOICES, HISTORY_SIZE, ORDERED_SIZE, History
from parallel_agents.workflows.network.scenario import LENGTHS, N_ACTIONS, OBSERVATION_SIZE, version_quirks
from parallel_agents.workflows.network.step_kernels import DefenceWorld, apply, observe
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

    shardable = portable = True
    recorder: NetworkRecorder | None = None

    def recorders(self, folder: Path) -> Sequence[NetworkRecorder]:
        """Return a recorder of the first world, unless `experiment.record_period` is 0."""
        self.recorder = NetworkRecorder(self.worlds, folder) if self.config.experiment.record_period else None
        return () if self.recorder is None else (self.recorder,)

    def setup_agents(self) -> None:
        """Create the worlds and one defender."""
        options = dict(self.config.world)
        if self.config.experiment.autoreset:
            raise ConfigError("experiment.autoreset is true: an episode of the defence is one epoch, set it to false")
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
        self.portable = not self.worlds.red_in_python
        size = HISTORY_SIZE if options["history"] else OBSERVATION_SIZE
        self._history = History(self.n_worlds, self.worlds.rules, ORDERED_SIZE)
        turns = np.arange(self.worlds.steps)
        counted = (turns[:, None] < np.array(LENGTHS)).sum(axis=1) if options["turn_weights"] else np.ones(len(turns))
        self.arrays = DefenceWorld(
            state=self.worlds.state,
            rules=self.worlds.rules,
            episode=self.worlds.episode,
            history=self._history.records,
            bits=np.zeros((self.n_worlds, OBSERVATION_SIZE), np.uint8),
            features=np.zeros((self.n_worlds, ORDERED_SIZE), np.float32),
            actions=np.zeros(self.n_worlds, np.int64),
            rewards=np.zeros(self.n_worlds),
            turn_weights=counted / max(counted.mean(), 1e-9),
            n_choices=N_ACTIONS if options["all_actions"] else len(CHOICES),
            ends=options["turn_weights"],
        )
        """The worlds, as compiled code reads and writes them."""
        self._observations = self.arrays.features[None, :, :size]
        self._ends = np.zeros((2, 1, self.n_worlds), np.bool_)
        self.agents = [Agent(model=self.make_model((size,), self.arrays.n_choices), name="defender")]
        if options["weights"] is not None:
            self.agents[0].model.load_weights(options["weights"])

    def reset(self) -> None:
        """Start an episode in every world with the draws of this epoch."""
        self.arrays.features[:] = self._history.reset(self.worlds.reset(self.epoch))

    def observe(self) -> Array:
        """Return (1, W, 52), or (1, W, HISTORY_SIZE) with features of the past, in an array that turns overwrite."""
        return self._observations

    def apply_actions(self, actions: Array) -> Array:
        """Play one turn of every world; return rewards (1, W)."""
        self.worlds.begin_turn()
        rewards, self._ends = np.zeros((1, self.n_worlds), np.float32), np.zeros_like(self._ends)
        moment = self.acting, self.active, rewards, *self._ends, self.epoch, self.turn
        if (w := apply(self.arrays, actions[..., None], *moment)) >= 0:
            raise ActionError(f"choice {actions[0, w]} of world {w} is not one of the {self.arrays.n_choices}")
        if self.recorder is not None:
            self.recorder.capture(self.arrays.actions, self.arrays.rewards)
        return rewards

    def dones(self) -> tuple[Array, Array]:
        """Return (1, W) terminated and truncated: with `turn_weights`, nothing counts after the last turn."""
        return self._ends[0], self._ends[1]

    def compiled_world(self) -> CompiledWorld | str:
        """Return the worlds as compiled code, or what is written in Python."""
        if hook := self.hook_in_python(NetworkDefence):
            return hook
        if red := next(iter(self.worlds.red_in_python.values()), None):
            return f"the red agent {type(red).__name__} is written in Python"
        if self.recorder is not None and self.recorder.is_due:
            return "the epoch is recorded"
        return CompiledWorld(self.arrays, nothing_restarts, nothing_moves, observe, apply)


def _override_quirks(preset: Quirks, switches: Any) -> Quirks:
    """Return a version's quirks with some switches changed."""
    values = {name: getattr(preset, name) for name in Quirks.__dataclass_fields__} | dict(switches)
    return build_section(Quirks, values, "world.quirks")
