"""Small environments with awkward shapes for the equality tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.seeding import Purpose, uniforms
from parallel_agents.env import Agent, Environment, ParallelEnvironment

ROOT = Path(__file__).parents[2]


def treasure_hunt() -> type[Environment]:
    """Return the example's class, loaded from its file."""
    name = "treasure_hunt_under_test"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / "treasure_hunt.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].TreasureHunt  # type: ignore[no-any-return]


class Odd(ParallelEnvironment):
    """N agents moved by draws: some cannot act, some end early, worlds end at different turns."""

    default_config = {
        "experiment": {"epochs": 7, "max_turns": 12},
        "world": {"agents": 3, "width": 3, "actions": 3, "freeze": True, "die": True},
        "model": {"hidden": (5,), "batch_size": 7, "updates_per_round": 3, "learning_starts": 5, "buffer_size": 40},
        "parallel": {"train_interval": 2},
    }
    shardable = True

    def setup_agents(self) -> None:
        keys = self.config.world
        self.agents = [Agent(model=self.make_model((keys["width"],), keys["actions"])) for _ in range(keys["agents"])]

    def _draws(self) -> Any:
        ids = range(len(self.agents))
        seeds = [self.seed] * len(self.agents)
        worlds = self.world_numbers
        turn = {"epoch": self.epoch, "turns": 1, "slots": 3, "first_turn": self.turn}
        return uniforms(seeds, Purpose.WORLD, ids, worlds, **turn)[0]

    def reset(self) -> None:
        self.reset_worlds(np.ones(self.n_worlds, np.bool_))

    def reset_worlds(self, which: Any) -> None:
        if not hasattr(self, "place"):
            self.place = np.zeros((len(self.agents), self.n_worlds, self.config.world["width"]), np.float32)
            self.dead = np.zeros((len(self.agents), self.n_worlds), np.bool_)
        self.place[:, which] = self._draws()[:, which, :1]
        self.dead[:, which] = False

    def begin_turn(self) -> None:
        self.numbers = self._draws()
        self.place[:, self.active] += (self.numbers[..., :1] - 0.5)[:, self.active]

    def observe(self) -> Any:
        return self.place

    def can_act(self) -> Any:
        return self.numbers[..., 1] < 0.8 if self.config.world["freeze"] else None

    def apply_agent(self, index: int, actions: Any) -> Any:
        step = (actions - 1) * 0.3 * self.active
        self.place[index] += step[:, None].astype(np.float32)
        later = (index + 1) % len(self.agents)
        self.place[later] -= 0.5 * step[:, None].astype(np.float32)  # what one does, the next one sees
        return -np.abs(self.place[index, :, 0])

    def dones(self) -> Any:
        if self.config.world["die"]:
            self.dead |= self.numbers[..., 2] < 0.08
        return self.dead.copy(), np.zeros_like(self.dead)

    def state(self) -> Any:
        return {"place": self.place, "dead": self.dead}

    def load_state(self, state: Any) -> None:
        self.place, self.dead = state["place"].copy(), state["dead"].copy()


def run(cls: type[Environment], config: dict[str, Any]) -> dict[str, Any]:
    """Run a whole run and return its summary."""
    return cls(config=config).run_experiment()
