"""Prisoner's dilemma in a grid: choose a side by what you pick up, then meet.

The field is walled, 11 x 11 cells with the wall, with 4 green and 4 red tokens on it. Entering a token's cell takes
it; an agent carries one token, the last it took, and everybody sees which. When, after all have moved, two agents
who both carry something stand next to each other, they meet and are paid as cooperator (green) and defector (red):

               C      D          both cooperate 3, both defect 1,
        C    3, 3   0, 5         the only cooperator 0, the only defector 5
        D    5, 0   1, 1

Then both have nothing in hand and start anew on random free cells. Pairs meet in list order, each agent once a turn.
Taken tokens appear anew at once. Agents move up, down, left, right or stay; walls and other agents block.

After "prisoner's dilemma in the matrix" of Melting Pot (Leibo et al. 2021); there inventories are counted and hidden.

    parallel-agents train examples/prisoners_dilemma.py --agents 4 --worlds 8
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
    go,
    meetings,
    respawn,
    walled,
    ways,
)
from parallel_agents.seeding import Purpose

KINDS = (
    Kind("wall", "#", (96, 100, 112), passable=False),
    Kind("green", "g", (110, 210, 110)),
    Kind("red", "r", (220, 80, 80)),
    Kind("empty-handed", "e", (250, 250, 250), passable=False),
    Kind("cooperator", "c", (190, 250, 190), passable=False),
    Kind("defector", "d", (250, 170, 170), passable=False),
)
TOKENS, LOOKS = ("green", "red"), ("cooperator", "defector", "empty-handed")
COOPERATOR, DEFECTOR, NOTHING = range(3)


@dataclass(frozen=True, kw_only=True)
class DilemmaRules(Rules):
    """The `world` section."""

    agents: int = 4
    height: int = 11
    width: int = 11
    radius: int = 3
    tokens: int = 4
    """Of each colour."""
    payoffs: tuple[float, ...] = (3.0, 0.0, 5.0, 1.0)
    """Of a cooperator who meets a cooperator or a defector, and of a defector who does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.payoffs) != 4:
            raise ConfigError(f"world.payoffs is {self.payoffs}: give four numbers, CC, CD, DC and DD")
        if self.tokens < 1:
            raise ConfigError(f"world.tokens is {self.tokens}: give a whole number of at least 1")


class PrisonersDilemma(GridEnvironment):
    """Independent learners who choose sides."""

    options = DilemmaRules
    rules: DilemmaRules
    default_config: ClassVar = {
        "experiment": {"epochs": 150, "max_turns": 100},
        "world": asdict(DilemmaRules()),
        "model": {"algorithm": "dqn", "n_step": 3, "batch_size": 64, "gamma": 0.97, "epsilon_epochs": 75},
        "parallel": {"train_interval": 1},
    }

    def build(self) -> Grid:
        rules = self.rules
        field = Field(KINDS, walled(rules.height, rules.width))
        grid = self.grid_on(field, looks="empty-handed", actions=MOVES)
        self.tokens = [Scattering(grid, token, count=rules.tokens) for token in TOKENS]
        self.starting_anew = grid.number()
        self.hands = np.full(grid.headings.shape, NOTHING)
        """(N, W) what each agent carries."""
        return grid

    def populate(self, moment: Moment, which: np.ndarray) -> None:
        self.hands[:, which] = NOTHING
        self._show()
        for token in self.tokens:
            token.refill(moment, which, Stream.POPULATE)

    def _show(self) -> None:
        """Let everybody see what everybody carries."""
        self.grid.look(np.array([self.grid.field.code(name) for name in LOOKS])[self.hands])

    def earn(self, entered: np.ndarray, first: int) -> np.ndarray:
        hands = self.hands[first : first + len(entered)]
        for side, token in enumerate(TOKENS):
            hands[entered == self.grid.field.code(token)] = side
        return super().earn(entered, first)

    def settle(self) -> np.ndarray:
        partner = meetings(self.grid, (self.hands != NOTHING) & self.active)
        met = partner >= 0
        theirs = self.hands[partner, np.arange(self.n_worlds)]
        table = np.array([[*self.rules.payoffs[:2], 0.0], [*self.rules.payoffs[2:], 0.0], [0.0] * 3], np.float32)
        rewards = np.where(met, table[self.hands, theirs], np.float32(0.0))
        self.hands[met] = NOTHING
        self._show()
        respawn(self.grid, met, self.moment(), self.starting_anew)
        for token in self.tokens:
            token.refill(self.moment())
        return rewards


def sensible(game: PrisonersDilemma, side: int = COOPERATOR) -> np.ndarray:
    """(N, W) actions of players who all take one side, pick up its nearest token, and then go to meet others."""
    grid, things = game.grid, game.grid.cells[:, 0]
    token = things == grid.field.code(TOKENS[side])
    ready = np.isin(things, [grid.field.code(name) for name in LOOKS[:2]])
    others = np.broadcast_to(ready, (len(grid.positions), *ready.shape)).copy()
    n, w = np.indices(grid.headings.shape)
    others[n, w, grid.positions[..., 0], grid.positions[..., 1]] = False
    wanted = np.where((game.hands == side)[..., None, None], others, token)
    return go(grid, ways(grid, wanted, tie=game.draws(4, Purpose.ACT)), otherwise=grid.actions.index("stay"))


if __name__ == "__main__":
    PrisonersDilemma().run_experiment()
