"""Iowa gambling task: four decks, of which the tempting ones lose in the end.

A walled room of 5 x 9 cells has the decks A, B, C and D in its upper row. Entering a deck's cell draws a card; to
draw again, step off and on. Every card pays, and some also cost (in units of 1000, so that a learner whose loss is
robust against outliers, as DQN's is, does not overlook the rare large cost of B):

    deck   pays   costs, of ten cards                   ten cards bring
     A     0.10   5: 0.15, 0.2, 0.25, 0.3, 0.35         -0.25
     B     0.10   1: 1.25                               -0.25
     C     0.05   5: 0.025, 0.05, 0.05, 0.05, 0.075     +0.25
     D     0.05   1: 0.25                               +0.25

Cards are drawn with replacement. Agents move up, down, left or right; walls and other agents block them.

After Bechara et al. (1994), "Insensitivity to future consequences following damage to human prefrontal cortex";
there the order of the cards is fixed, and choosing a deck takes no walk.

    parallel-agents train examples/iowa.py --worlds 8
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.games import (
    AGENT,
    WALL,
    Field,
    Grid,
    GridEnvironment,
    Kind,
    Lottery,
    Rules,
    dqn_defaults,
    values_at,
    walk_towards,
    walled_map,
)

DECKS = {
    "A": (0.1, (0.15, 0.2, 0.25, 0.3, 0.35)),
    "B": (0.1, (1.25,)),
    "C": (0.05, (0.025, 0.05, 0.05, 0.05, 0.075)),
    "D": (0.05, (0.25,)),
}
"""What each card of a deck pays, and what some of its ten cards cost."""
COLOURS = ((230, 90, 90), (220, 60, 140), (110, 210, 110), (80, 190, 255))
KINDS = (
    WALL,
    *(Kind(name, name, colour) for name, colour in zip(DECKS, COLOURS, strict=True)),
    AGENT,
)


def cards() -> np.ndarray:
    """Return (4, 10) the rewards of the cards of each deck."""
    costs = [(*costs, *[0.0] * (10 - len(costs))) for _, costs in DECKS.values()]
    pays = np.array([pays for pays, _ in DECKS.values()])
    return np.asarray(pays[:, None] - np.array(costs), np.float32)


@dataclass(frozen=True, kw_only=True)
class IowaRules(Rules):
    """The `world` section."""

    agents: int = 1
    height: int = 5
    width: int = 9
    radius: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.height < 4 or self.width < 9:
            raise ConfigError(f"a room of {self.height} x {self.width}: four decks need at least 4 x 9")


class Iowa(GridEnvironment):
    """Learners who have to find out which decks are good."""

    options = IowaRules
    rules: IowaRules
    default_config: ClassVar = dqn_defaults(IowaRules())

    def build(self) -> Grid:
        rules = self.rules
        floor = ["." * rules.width] * rules.height
        floor[1] = "." + "".join(f"{deck}." for deck in DECKS).ljust(rules.width - 1, ".")
        field = Field(KINDS, "\n".join(floor), walled_map(rules.height, rules.width))
        grid = self.make_grid(field)
        self.parts = [Lottery(grid, deck, rewards=own) for deck, own in zip(DECKS, cards(), strict=True)]
        return grid


def sensible(game: Iowa) -> np.ndarray:
    """Return (N, W) actions of players who know the decks: they step on and off the good ones, C and D."""
    grid = game.grid
    good = np.isin(grid.cells[:, 0], [grid.field.code(deck) for deck in "CD"])
    actions = walk_towards(game, good, otherwise="down")
    return np.where(values_at(good, grid.positions), grid.actions.index("down"), actions)


if __name__ == "__main__":
    Iowa().run_experiment()
