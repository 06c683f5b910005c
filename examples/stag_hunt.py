"""Stag hunt: trust pays. A hare can be had alone, a stag only together.

The field is walled, 11 x 11 cells with the wall, with 2 stags and 4 hares on it. Entering a hare's cell takes it, +1.
A stag blocks its cell; when, after all have moved, at least two agents stand next to it (above, below, left or
right), it is caught, and each of them earns +5. What is taken appears anew at once on a random free cell. Agents move
up, down, left, right or stay; walls, stags and other agents block them.

After Peysakhovich & Lerer (2018), "Prosocial learning agents solve generalized stag hunts better than selfish ones";
here animals stand still, and a lone hunter loses nothing but time.

    parallel-agents train examples/stag_hunt.py --agents 4 --worlds 8
"""

from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from parallel_agents.errors import ConfigError
from parallel_agents.games import (
    MOVES,
    Field,
    Grid,
    GridEnvironment,
    Kind,
    Moment,
    Rules,
    Scattering,
    Stream,
    beside,
    crowd,
    go,
    walled,
    ways,
)
from parallel_agents.seeding import Purpose


@dataclass(frozen=True, kw_only=True)
class StagRules(Rules):
    """The `world` section."""

    agents: int = 4
    height: int = 11
    width: int = 11
    radius: int = 3
    stags: int = 2
    hares: int = 4
    stag_value: float = 5.0
    """For each of those who catch it."""
    hare_value: float = 1.0
    hunters: int = 2
    """How many it takes to catch a stag."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("stags", 0), ("hares", 0), ("hunters", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"world.{name} is {getattr(self, name)}: give a whole number of at least {least}")


class StagHunt(GridEnvironment):
    """Independent learners among stags and hares."""

    options = StagRules
    rules: StagRules
    default_config: ClassVar = {
        "experiment": {"epochs": 150, "max_turns": 100},
        "world": asdict(StagRules()),
        "model": {"algorithm": "dqn", "n_step": 3, "batch_size": 64, "gamma": 0.97, "epsilon_epochs": 75},
        "parallel": {"train_interval": 1},
    }

    def build(self) -> Grid:
        rules = self.rules
        kinds = [
            Kind("wall", "#", (96, 100, 112), passable=False),
            Kind("stag", "s", (170, 110, 60), passable=False),
            Kind("hare", "h", (220, 200, 170), value=rules.hare_value),
            Kind("agent", "a", (250, 250, 250), passable=False),
        ]
        grid = self.grid_on(Field(kinds, walled(rules.height, rules.width)), actions=MOVES)
        self.animals = Scattering(grid, "stag", count=rules.stags), Scattering(grid, "hare", count=rules.hares)
        return grid

    def populate(self, moment: Moment, which: np.ndarray) -> None:
        for kind in self.animals:
            kind.refill(moment, which, Stream.POPULATE)

    def settle(self) -> np.ndarray:
        things = self.grid.cells[:, 0]
        caught = (things == self.grid.field.code("stag")) & (crowd(self.grid) >= self.rules.hunters)
        at = beside(self.grid)
        shares = caught[np.arange(self.n_worlds)[:, None], at[..., 0], at[..., 1]].sum(axis=-1)
        things[caught] = 0
        for kind in self.animals:
            kind.refill(self.moment())
        return (self.rules.stag_value * shares).astype(np.float32)


def sensible(game: StagHunt) -> np.ndarray:
    """(N, W) actions of players who trust: all go to one stag, the first in reading order, and wait beside it."""
    grid = game.grid
    stags = (grid.cells[:, 0] == grid.field.code("stag")).reshape(game.n_worlds, -1)
    first = np.zeros_like(stags)
    first[np.arange(game.n_worlds), stags.argmax(axis=1)] = stags.any(axis=1)
    wanted = first.reshape(grid.cells[:, 0].shape)
    at = beside(grid)
    there = wanted[np.arange(game.n_worlds)[:, None], at[..., 0], at[..., 1]].any(axis=-1)
    stay = grid.actions.index("stay")
    return np.where(there, stay, go(grid, ways(grid, wanted, tie=game.draws(4, Purpose.ACT)), otherwise=stay))


if __name__ == "__main__":
    StagHunt().run_experiment()
