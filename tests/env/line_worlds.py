"""One small game written twice, made of objects and vectorised: the two must give the same bytes.

Agents stand on a line of seven cells and want to be where the goal is; the goal moves one cell a turn. Nobody
enters a cell that another stands in, so the order of acting matters. With `lives`, agents end at different
turns; with `freezes`, each cannot act in every fourth turn.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.core.seeding import Purpose, generator

CELLS = 7
ACTIONS = 3
TINY = {"hidden": (8,), "batch_size": 4, "updates_per_round": 2, "learning_starts": 4, "buffer_size": 60}


def tiny(**sections: dict[str, Any]) -> dict[str, Any]:
    """A configuration of a few short epochs, with some sections laid over it."""
    base: dict[str, Any] = {
        "experiment": {"epochs": 6, "max_turns": 6, "seed": 3},
        "world": {},
        "model": TINY,
        "parallel": {"train_interval": 2, "policy_lag": 1, "backend": "inline"},
    }
    return {name: {**values, **sections.get(name, {})} for name, values in base.items()}


def start(seed: int, world: int, epoch: int, turn: int, agents: int) -> tuple[list[int], list[int], int]:
    """Places, lives and goal at the start of an episode."""
    draws = generator(seed, Purpose.WORLD, world=world, epoch=epoch, turn=turn)
    places = draws.permutation(CELLS)[:agents].tolist()
    lives = draws.integers(1, 9, size=agents).tolist()
    return places, lives, int(draws.integers(CELLS))


class Line(ParallelEnvironment):
    """The vectorised version."""

    default_config: ClassVar = {"world": {"agents": 3, "lives": False, "freezes": False}}

    def setup_agents(self) -> None:
        count = self.config.world["agents"]
        self.agents = [Agent(model=self.make_model((3,), ACTIONS)) for _ in range(count)]
        shape = (count, self.n_worlds)
        self.places, self.lives = np.zeros(shape, int), np.zeros(shape, int)
        self.goals, self.ages = np.zeros(self.n_worlds, int), np.zeros(self.n_worlds, int)

    def reset_worlds(self, which: Any) -> None:
        for w in np.flatnonzero(which):
            places, lives, goal = start(self.seed, int(w), self.epoch, self.turn, len(self.agents))
            self.places[:, w], self.lives[:, w], self.goals[w], self.ages[w] = places, lives, goal, 0

    def begin_turn(self) -> None:
        self.goals[self.active] = (self.goals[self.active] + 1) % CELLS
        self.ages[self.active] += 1

    def observe(self) -> Any:
        around = (self.places.sum(axis=0) - self.places) / CELLS
        goals = np.broadcast_to(self.goals, self.places.shape)
        return np.stack([self.places, goals, around], axis=-1).astype(np.float32)

    def can_act(self) -> Any:
        if not self.config.world["freezes"]:
            return None
        return (self.ages + np.arange(len(self.agents))[:, None]) % 4 != 0

    def apply_agent(self, index: int, actions: Any) -> Any:
        rewards = np.zeros(self.n_worlds, np.float32)
        for w in np.flatnonzero(self.active):
            if self.acting[index, w]:
                rewards[w] = self._move(index, w, int(actions[w]))
        return rewards

    def _move(self, index: int, w: int, action: int) -> float:
        wanted = min(CELLS - 1, max(0, self.places[index, w] + action - 1))
        if wanted not in self.places[:, w]:
            self.places[index, w] = wanted
        return 1.0 if self.places[index, w] == self.goals[w] else -0.125

    def dones(self) -> Any:
        if not self.config.world["lives"]:
            return None
        ended = self.ages >= self.lives
        return ended, np.zeros_like(ended)


class Field:
    """The world of the version made of objects."""

    def __init__(self) -> None:
        self.total_reward, self.index = 0.0, -1
        self.walkers: list[Walker] = []
        self.goal = self.age = 0
        self.entities = [Goal()]


class Goal:
    """Moves one cell a turn."""

    def transition(self, world: Field) -> None:
        world.goal = (world.goal + 1) % CELLS
        world.age += 1


class Walker(Agent):
    """One agent of the version made of objects."""

    def __init__(self, field: Field, number: int, rules: Any, model: Any) -> None:
        super().__init__(model=model)
        self.field, self.number, self.rules = field, number, rules
        self.place = self.life = 0

    def pov(self, world: Field) -> Any:
        around = sum(walker.place for walker in world.walkers if walker is not self) / CELLS
        return np.array([self.place, world.goal, around], np.float32)

    def can_act(self) -> bool:
        return not self.rules["freezes"] or (self.field.age + self.number) % 4 != 0

    def act(self, world: Field, action: Any) -> float:
        wanted = min(CELLS - 1, max(0, self.place + int(action) - 1))
        if wanted not in [walker.place for walker in world.walkers]:
            self.place = wanted
        return 1.0 if self.place == world.goal else -0.125

    def is_done(self, world: Field) -> bool:
        return bool(self.rules["lives"]) and world.age >= self.life


class LineOfObjects(ParallelEnvironment):
    """The version made of objects."""

    default_config = Line.default_config
    walker: ClassVar[type[Walker]] = Walker

    def __init__(self, world: Any = None, config: Any = None) -> None:
        self.made = 0
        super().__init__(Field() if world is None else world, config)

    def setup_agents(self) -> None:
        self.world.index, self.made = self.made, self.made + 1
        for number in range(self.config.world["agents"]):
            self.agents.append(self.walker(self.world, number, self.config.world, self.make_model((3,), ACTIONS)))

    def populate_environment(self) -> None:
        world = self.world
        places, lives, world.goal = start(self.seed, world.index, self.epoch, self.turn, len(self.agents))
        for walker, place, life in zip(self.agents, places, lives, strict=True):
            walker.place, walker.life = place, life
        world.walkers, world.age = list(self.agents), 0
