"""Coins: two players, each of whom can help itself at the other's cost.

The field is walled, 7 x 7 cells with the wall, and holds one coin, red or blue with equal probability. Entering its
cell takes it, +1 for whoever does; but if it has the other player's colour, that player loses 2. A new coin appears
at once on a random free cell. The first agent is red, the second blue; they move up, down, left or right, and walls
and the other player block them. Taking only coins of one's own colour is cooperation: both earn about +1 for two
coins that appear. If both take all, both lose: +1 for a taken coin, -2 for every second one of the other's.

After Lerer & Peysakhovich (2017), "Maintaining cooperation in complex social dilemmas using deep reinforcement
learning"; there players may share a cell.

    parallel-agents train examples/coins.py --worlds 8
"""

from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from parallel_agents.errors import ConfigError
from parallel_agents.games import (
    Field,
    Grid,
    GridEnvironment,
    Kind,
    Moment,
    Rules,
    Scattering,
    Stream,
    go,
    walled,
    ways,
)
from parallel_agents.seeding import Purpose

KINDS = (
    Kind("wall", "#", (96, 100, 112), passable=False),
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
    """What it costs a player if the other one takes a coin of its colour."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agents != 2:
            raise ConfigError(f"world.agents is {self.agents}: coins is for 2 players")
        if self.coins < 1:
            raise ConfigError(f"world.coins is {self.coins}: give a whole number of at least 1")


class Coins(GridEnvironment):
    """Two independent learners and a coin."""

    options = CoinRules
    rules: CoinRules
    default_config: ClassVar = {
        "experiment": {"epochs": 150, "max_turns": 100},
        "world": asdict(CoinRules()),
        "model": {"algorithm": "dqn", "n_step": 3, "batch_size": 64, "gamma": 0.97, "epsilon_epochs": 75},
        "parallel": {"train_interval": 1},
    }

    def build(self) -> Grid:
        rules = self.rules
        grid = self.grid_on(Field(KINDS, walled(rules.height, rules.width)), looks=("red", "blue"))
        self.coins = Scattering(grid, *COINS, count=rules.coins)
        return grid

    def populate(self, moment: Moment, which: np.ndarray) -> None:
        self.coins.refill(moment, which, Stream.POPULATE)

    def earn(self, entered: np.ndarray, first: int) -> np.ndarray:
        rewards = np.zeros(self.grid.headings.shape, np.float32)
        rewards[first : first + len(entered)] = super().earn(entered, first)
        for owner, coin in enumerate(COINS):
            taken = entered == self.grid.field.code(coin)
            by_other = taken & (first + np.arange(len(entered)) != owner)[:, None]
            rewards[owner] -= self.rules.loss * by_other.any(axis=0)
        return rewards

    def settle(self) -> None:
        self.coins.refill(self.moment())


def sensible(game: Coins, *, selfish: bool = False) -> np.ndarray:
    """(N, W) actions of players who go for coins of their own colour only; `selfish`: for all."""
    grid = game.grid
    red, blue = (grid.cells[:, 0] == grid.field.code(coin) for coin in COINS)
    wanted = np.stack([red | blue] * 2 if selfish else [red, blue])
    draws = game.draws(5, Purpose.ACT)
    way = ways(grid, wanted, tie=draws[..., :4])
    actions = go(grid, way, otherwise=np.asarray(draws[..., 4] * 4, np.int64))
    if selfish:
        return actions
    # Not even in passing: whoever would step on the other's coin turns into the wall of a random other way.
    steps = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])
    cells = grid.positions + steps[actions]
    theirs = np.stack([blue, red])[np.arange(2)[:, None], np.arange(game.n_worlds), cells[..., 0], cells[..., 1]]
    return np.where(theirs, actions ^ 1, actions)  # the opposite way


if __name__ == "__main__":
    Coins().run_experiment()
