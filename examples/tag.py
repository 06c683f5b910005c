"""Tag: one chases, all others run.

The field is walled, 11 x 11 cells with the wall. One agent, drawn at random, is "it"; every turn as it costs 0.1.
When, after all have moved, it stands next to a runner (above, below, left or right), it tags the first such in the
list: +1 for it, -1 for the runner, who is it from now on and frozen for the next 3 turns, so that the others get
away. Agents move up, down, left, right or stay, and see who is it. Walls and other agents block.

After the game of the same name in sorrel (https://github.com/social-ai-uoft/sorrel); the payoffs are our own.

    parallel-agents train examples/tag.py --agents 5 --worlds 8
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose
from parallel_agents.games import (
    MOVE_OFFSETS,
    MOVES,
    WALL,
    Grid,
    GridEnvironment,
    Kind,
    Rules,
    Tagging,
    dqn_defaults,
    values_at,
    walk_towards,
)

KINDS = (
    WALL,
    Kind("runner", "r", (110, 210, 110), passable=False),
    Kind("it", "i", (220, 80, 80), passable=False),
)


@dataclass(frozen=True, kw_only=True)
class TagRules(Rules):
    """The `world` section."""

    agents: int = 5
    height: int = 11
    width: int = 11
    radius: int = 3
    it_cost: float = 0.1
    """Lost in every turn as it."""
    frozen_turns: int = 3
    """Turns for which a tagged agent cannot act."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agents < 2:
            raise ConfigError(f"world.agents is {self.agents}: tag needs at least 2")


class Tag(GridEnvironment):
    """Independent learners who take turns in chasing each other."""

    options = TagRules
    rules: TagRules
    default_config: ClassVar = dqn_defaults(TagRules())

    def build(self) -> Grid:
        grid = self.make_walled_grid(KINDS, agent_kinds="runner", actions=MOVES)
        shape = {"cost": self.rules.it_cost, "freezes": self.rules.frozen_turns}
        self.parts = [Tagging(grid, runner="runner", it="it", **shape)]
        return grid

    @property
    def it(self) -> np.ndarray:
        """(W,) the agent that is it."""
        return self.worlds.roles.argmax(axis=0)


def sensible(game: Tag) -> np.ndarray:
    """Return (N, W) actions: it goes to the nearest runner; runners take the free step farthest from it."""
    grid, things = game.grid, game.grid.cells[:, 0]
    chase = walk_towards(game, things == grid.field.code("runner"), otherwise="stay")
    cells = grid.positions[:, :, None] + MOVE_OFFSETS
    free = grid.field.passable[values_at(things, cells)] | (np.array(MOVES) == "stay")
    distance = abs(cells - grid.positions[game.it, np.arange(game.n_worlds)][None, :, None]).sum(axis=-1)
    room = np.minimum(cells, np.array(things.shape[1:]) - 1 - cells).min(axis=-1)  # corners are traps
    score = distance + 0.3 * room + 0.1 * game.draws(5, Purpose.ACT)
    flee = np.where(free, score, -np.inf).argmax(axis=-1)
    return np.where(np.arange(len(flee))[:, None] == game.it, chase, flee)


if __name__ == "__main__":
    Tag().run_experiment()
