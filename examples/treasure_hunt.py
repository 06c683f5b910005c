"""Treasure hunt: independent learners share a field of treasures and traps.

The field is walled, 21 x 21 cells with the wall. A gem is worth +10, food +5, a bone -10. Before each turn,
each empty cell in which nobody stands gets one of them with probability 0.005, each of the three as likely as
the others; a fresh field is filled the same way once. Agents start in different cells, chosen at random, and
see a window of radius 2 around them. A move goes up, down, left or right; walls and other agents block it.
An agent that enters a cell takes what lies there. Agents move in list order: of two that want the same cell, the
first gets it. An epoch is 100 turns, and nothing ends it earlier.

It is the first game of sorrel, a framework for such agents (https://github.com/social-ai-uoft/sorrel).

    parallel-agents train examples/treasure_hunt.py --agents 8 --epochs 200
    python examples/treasure_hunt.py
"""

from dataclasses import asdict, dataclass, field
from typing import ClassVar

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose
from parallel_agents.games import (
    AGENT,
    MOVE_OFFSETS,
    WALL,
    Grid,
    GridEnvironment,
    Kind,
    RandomSpawn,
    Rules,
    WindowObserver,
)

COLOURS = {"gem": (80, 190, 255), "food": (110, 210, 110), "bone": (220, 80, 80)}


@dataclass(frozen=True, kw_only=True)
class TreasureRules(Rules):
    """The `world` section."""

    spawn_probability: float = 0.005
    """Per empty cell and turn."""
    values: dict[str, float] = field(default_factory=lambda: {"gem": 10.0, "food": 5.0, "bone": -10.0})
    """The reward for taking each thing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if set(self.values) != set(COLOURS):
            raise ConfigError(f"world.values is {self.values}: give a number for each of {', '.join(COLOURS)}")


class TreasureHunt(GridEnvironment):
    """N agents, each with its own network and memory, on one field (or in W copies of it)."""

    options = TreasureRules
    rules: TreasureRules
    default_config: ClassVar = {
        "experiment": {"epochs": 100, "max_turns": 100},
        "world": asdict(TreasureRules()),
        "model": {"algorithm": "dqn"},
        "parallel": {},
    }

    def build(self) -> Grid:
        rules = self.rules
        kinds = [
            WALL,
            *(Kind(name, name[0], COLOURS[name], value=rules.values[name]) for name in COLOURS),
            AGENT,
        ]
        grid = self.make_walled_grid(kinds)
        self.parts = [RandomSpawn(grid, *COLOURS, probability=rules.spawn_probability)]
        return grid


def sensible(game: TreasureHunt) -> np.ndarray:
    """Return (N, W) actions of players who walk to the best thing they see, around bones, else straight on.

    A move is worth the best value * 0.8 ** distance of what lies around the cell it leads to, minus the cost of
    stepping there. Heading and small random numbers decide between equal moves.
    """
    grid, radius = game.grid, max(game.rules.radius, 1)
    agents, worlds = grid.headings.shape
    side = 2 * radius + 1
    windows = WindowObserver(grid, radius=radius).observe_all().reshape(agents, worlds, -1, side * side)
    value = np.einsum("k,nwkc->nwc", grid.field.values[1:], windows)
    blocked = np.einsum("k,nwkc->nwc", ~grid.field.passable[1:], windows) > 0

    neighbours = radius + MOVE_OFFSETS[:4]  # the cells next to the agent, in its window
    next_to = neighbours @ (side, 1)
    rows, columns = np.divmod(np.arange(side * side), side)
    distance = abs(rows - neighbours[:, :1]) + abs(columns - neighbours[:, 1:])
    worth = (value.clip(0)[:, :, None] * 0.8**distance).max(axis=-1) + value[..., next_to].clip(max=0)

    straight = grid.headings[..., None] == (0, 2, 3, 1)  # the headings that the four moves give
    worth = worth + 0.09 * straight + 0.1 * game.draws(4, Purpose.ACT)
    return np.asarray(np.where(blocked[..., next_to], -np.inf, worth).argmax(axis=-1))


if __name__ == "__main__":
    TreasureHunt().run_experiment()
