"""Prisoner's dilemma in a grid: choose a side by what you pick up, then meet.

The field is walled, 11 x 11 cells with the wall, with 4 green and 4 red tokens on it. Entering a token's cell takes
it; an agent carries one token, the last it took, and everybody sees which. When, after all have moved, two agents
who both carry something stand next to each other, they meet and are paid as cooperator (green) and defector (red):

               C      D          both cooperate 3, both defect 1,
        C    3, 3   0, 5         the only cooperator 0, the only defector 5
        D    5, 0   1, 1

Then both have nothing in hand and start again on random free cells. Pairs meet in list order, each agent once a turn.
Taken tokens appear again at once. Agents move up, down, left, right or stay; walls and other agents block.

After "prisoner's dilemma in the matrix" of Melting Pot (Leibo et al. 2021); there inventories are counted and hidden.

    parallel-agents train examples/prisoners_dilemma.py --agents 4 --worlds 8
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.games import (
    MOVES,
    WALL,
    FixedCount,
    Grid,
    GridEnvironment,
    Kind,
    Meetings,
    Rules,
    dqn_defaults,
    walk_towards,
)

KINDS = (
    WALL,
    Kind("green", "g", (110, 210, 110)),
    Kind("red", "r", (220, 80, 80)),
    Kind("empty-handed", "e", (250, 250, 250), passable=False),
    Kind("cooperator", "c", (190, 250, 190), passable=False),
    Kind("defector", "d", (250, 170, 170), passable=False),
)
TOKENS, AGENT_KINDS = ("green", "red"), ("cooperator", "defector", "empty-handed")
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
    """CC, CD, DC and DD: rewards of the first of two agents who meet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.payoffs) != 4:
            raise ConfigError(f"world.payoffs is {self.payoffs}: give four numbers, CC, CD, DC and DD")
        self.check_at_least(tokens=1)


class PrisonersDilemma(GridEnvironment):
    """Independent learners who choose sides."""

    options = DilemmaRules
    rules: DilemmaRules
    default_config: ClassVar = dqn_defaults(DilemmaRules())

    def build(self) -> Grid:
        grid = self.make_walled_grid(KINDS, agent_kinds="empty-handed", actions=MOVES)
        tokens = [FixedCount(grid, token, count=self.rules.tokens) for token in TOKENS]
        cc, cd, dc, dd = self.rules.payoffs
        meetings = Meetings(grid, tokens=TOKENS, kinds=AGENT_KINDS, payoffs=((cc, cd), (dc, dd)))
        self.parts = [meetings, *tokens]
        return grid

    @property
    def hands(self) -> np.ndarray:
        """(N, W) what each agent carries."""
        return self.worlds.roles


def sensible(game: PrisonersDilemma, side: int = COOPERATOR) -> np.ndarray:
    """Return (N, W) actions of players who pick up the nearest token of one side, and then go to meet others."""
    grid, things = game.grid, game.grid.cells[:, 0]
    token = things == grid.field.code(TOKENS[side])
    ready = np.isin(things, [grid.field.code(name) for name in AGENT_KINDS[:2]])
    others = np.broadcast_to(ready, (len(grid.positions), *ready.shape)).copy()
    n, w = np.indices(grid.headings.shape)
    others[n, w, grid.positions[..., 0], grid.positions[..., 1]] = False
    wanted = np.where((game.hands == side)[..., None, None], others, token)
    return walk_towards(game, wanted, otherwise="stay")


if __name__ == "__main__":
    PrisonersDilemma().run_experiment()
