"""Stag hunt: trust pays. A hare can be had alone, a stag only together.

The field is walled, 11 x 11 cells with the wall, with 2 stags and 4 hares on it. Entering a hare's cell takes it, +1.
A stag blocks its cell; when, after all have moved, at least two agents stand next to it (above, below, left or
right), it is caught, and each of them earns +5. What is taken appears again at once on a random free cell. Agents move
up, down, left, right or stay; walls, stags and other agents block them.

After Peysakhovich & Lerer (2018), "Prosocial learning agents solve generalized stag hunts better than selfish ones";
here animals stand still, and a lone hunter loses nothing but time.

    parallel-agents train examples/stag_hunt.py --agents 4 --worlds 8
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallel_agents.games import (
    AGENT,
    MOVES,
    WALL,
    Capture,
    FixedCount,
    Grid,
    GridEnvironment,
    Kind,
    Rules,
    dqn_defaults,
    neighbour_cells,
    values_at,
    walk_towards,
)


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
    """The reward of each agent that catches it."""
    hare_value: float = 1.0
    hunters: int = 2
    """How many it takes to catch a stag."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(stags=0, hares=0, hunters=1)


class StagHunt(GridEnvironment):
    """Independent learners among stags and hares."""

    options = StagRules
    rules: StagRules
    default_config: ClassVar = dqn_defaults(StagRules())

    def build(self) -> Grid:
        rules = self.rules
        kinds = [
            WALL,
            Kind("stag", "s", (170, 110, 60), passable=False),
            Kind("hare", "h", (220, 200, 170), value=rules.hare_value),
            AGENT,
        ]
        grid = self.make_walled_grid(kinds, actions=MOVES)
        self.parts = [
            Capture(grid, "stag", agents=rules.hunters, value=rules.stag_value),
            FixedCount(grid, "stag", count=rules.stags),
            FixedCount(grid, "hare", count=rules.hares),
        ]
        return grid


def sensible(game: StagHunt) -> np.ndarray:
    """Return (N, W) actions of players who trust: all go to the first stag in reading order, and wait beside it."""
    grid = game.grid
    stags = (grid.cells[:, 0] == grid.field.code("stag")).reshape(game.n_worlds, -1)
    first = np.zeros_like(stags)
    first[np.arange(game.n_worlds), stags.argmax(axis=1)] = stags.any(axis=1)
    wanted = first.reshape(grid.cells[:, 0].shape)
    beside = values_at(wanted, neighbour_cells(grid)).any(axis=-1)
    return np.where(beside, grid.actions.index("stay"), walk_towards(game, wanted, otherwise="stay"))


if __name__ == "__main__":
    StagHunt().run_experiment()
