"""Coins: two players, each of whom can help itself at the other's cost.

The field is walled, 7 x 7 cells with the wall, and holds one coin, red or blue with equal probability. Entering its
cell takes it and earns +1; if the coin has the other player's colour, the other player loses 2. A new coin appears at
once on a random free cell. The first agent is red, the second blue. They move up, down, left or right; walls and the
other player block them. Cooperating players take only coins of their own colour: each earns +1 for about every second
coin. If both take all coins, both lose in the end: +1 for each coin taken, -2 for each own coin that the other takes.

After Lerer & Peysakhovich (2017), "Maintaining cooperation in complex social dilemmas using deep reinforcement
learning"; there players may share a cell.

    parallel-agents train examples/coins.py --worlds 8
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.games import (
    MOVE_OFFSETS,
    WALL,
    FixedCount,
    Grid,
    GridEnvironment,
    Kind,
    LosesTo,
    Rules,
    dqn_defaults,
    values_at,
    walk_towards,
)

KINDS = (
    WALL,
    Kind("red coin", "1", (240, 120, 110), value=1.0),
    Kind("blue coin", "2", (120, 150, 250), value=1.0),
    Kind("red", "r", (220, 40, 40), passable=False),
    Kind("blue", "b", (50, 80, 230), passable=False),
)
COINS = ("red coin", "blue coin")


@dataclass(frozen=True, kw_only=True)
class CoinRules(Rules):
    """The `world` section."""

    agents: int = 2
    height: int = 7
    width: int = 7
    radius: int = 4
    coins: int = 1
    """On the field at any time."""
    loss: float = 2.0
    """What a player loses if the other one takes a coin of its colour."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agents != 2:
            raise ConfigError(f"world.agents is {self.agents}: coins is for 2 players")
        self.check_at_least(coins=1)


class Coins(GridEnvironment):
    """Two independent learners and a coin."""

    options = CoinRules
    rules: CoinRules
    default_config: ClassVar = dqn_defaults(CoinRules())

    def build(self) -> Grid:
        grid = self.make_walled_grid(KINDS, agent_kinds=("red", "blue"))
        losses = [LosesTo(grid, coin, owner=owner, loss=self.rules.loss) for owner, coin in enumerate(COINS)]
        self.parts = [FixedCount(grid, *COINS, count=self.rules.coins), *losses]
        return grid


def sensible(game: Coins, *, selfish: bool = False) -> np.ndarray:
    """Return (N, W) actions of players who go for coins of their own colour only; `selfish`: for all."""
    grid = game.grid
    red, blue = (grid.cells[:, 0] == grid.field.code(coin) for coin in COINS)
    wanted = np.stack([red | blue] * 2 if selfish else [red, blue])
    actions = walk_towards(game, wanted)
    if selfish:
        return actions
    # Not even in passing: a player who would step on the other's coin steps back instead.
    others_coin = values_at(np.stack([blue, red]), grid.positions + MOVE_OFFSETS[actions])
    return np.where(others_coin, actions ^ 1, actions)  # the opposite move


if __name__ == "__main__":
    Coins().run_experiment()
