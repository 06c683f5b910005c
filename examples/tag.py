"""Tag: one chases, all others run.

The field is walled, 11 x 11 cells with the wall. One agent, drawn at random, is "it"; every turn as it costs 0.1.
When, after all have moved, it stands next to a runner (above, below, left or right), it tags the first such in the
list: +1 for it, -1 for the runner, who is it from now on and frozen for the next 3 turns, so that the others get
away. Agents move up, down, left, right or stay, and see who is it. Walls and other agents block.

After the game of the same name in sorrel (https://github.com/social-ai-uoft/sorrel); the payoffs are our own.

    parallel-agents train examples/tag.py --agents 5 --worlds 8
"""

from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from parallel_agents.errors import ConfigError
from parallel_agents.games import MOVES, Field, Grid, GridEnvironment, Kind, Moment, Rules, go, walled, ways
from parallel_agents.seeding import Purpose

KINDS = (
    Kind("wall", "#", (96, 100, 112), passable=False),
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
    """Of every turn as it."""
    frozen_turns: int = 3
    """For who was just tagged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agents < 2:
            raise ConfigError(f"world.agents is {self.agents}: tag needs at least 2")


class Tag(GridEnvironment):
    """Independent learners who take turns in chasing each other."""

    options = TagRules
    rules: TagRules
    default_config: ClassVar = {
        "experiment": {"epochs": 150, "max_turns": 100},
        "world": asdict(TagRules()),
        "model": {"algorithm": "dqn", "n_step": 3, "batch_size": 64, "gamma": 0.97, "epsilon_epochs": 75},
        "parallel": {"train_interval": 1},
    }

    def build(self) -> Grid:
        rules = self.rules
        field = Field(KINDS, walled(rules.height, rules.width))
        self.it = np.zeros(self.n_worlds, np.int64)
        """(W,) who is it."""
        return self.grid_on(field, looks="runner", actions=MOVES)

    def populate(self, moment: Moment, which: np.ndarray) -> None:
        self.it[which] = self.draws()[..., 0].argmax(axis=0)[which]
        self._show()

    def _show(self) -> None:
        """Let everybody look like what they are."""
        runner, it = (self.grid.field.code(name) for name in ("runner", "it"))
        is_it = np.arange(len(self.grid.positions))[:, None] == self.it
        self.grid.look(np.where(is_it, it, runner))

    def settle(self) -> np.ndarray:
        worlds = np.arange(self.n_worlds)
        rewards = np.zeros(self.grid.headings.shape, np.float32)
        rewards[self.it, worlds] -= self.rules.it_cost
        able = self.can_act()
        chases = self.active if able is None else self.active & able[self.it, worlds]
        far = abs(self.grid.positions - self.grid.positions[self.it, worlds]).sum(axis=-1)
        reached = (far == 1) & chases
        tagged, who = reached.any(axis=0), reached.argmax(axis=0)
        rewards[self.it[tagged], worlds[tagged]] += 1.0
        rewards[who[tagged], worlds[tagged]] -= 1.0
        self.it[tagged] = who[tagged]
        self.freeze(tagged & (np.arange(len(rewards))[:, None] == self.it), self.rules.frozen_turns)
        self._show()
        return rewards


def sensible(game: Tag) -> np.ndarray:
    """(N, W) actions: it goes to the nearest runner; runners take the free step that leads farthest from it."""
    grid, worlds = game.grid, np.arange(game.n_worlds)
    draws = game.draws(5, Purpose.ACT)
    chase = go(grid, ways(grid, grid.cells[:, 0] == grid.field.code("runner"), tie=draws[..., :4]), otherwise=4)
    steps = np.array([(-1, 0), (1, 0), (0, -1), (0, 1), (0, 0)])
    cells = grid.positions[:, :, None] + steps
    free = grid.field.passable[grid.cells[worlds[:, None], 0, cells[..., 0], cells[..., 1]]] | (steps == 0).all(axis=1)
    far = abs(cells - grid.positions[game.it, worlds][None, :, None]).sum(axis=-1)
    room = np.minimum(cells, np.array(grid.cells.shape[2:]) - 1 - cells).min(axis=-1)  # corners are traps
    flee = np.where(free, far + 0.3 * room + 0.1 * draws, -np.inf).argmax(axis=-1)
    return np.where(np.arange(len(flee))[:, None] == game.it, chase, flee)


if __name__ == "__main__":
    Tag().run_experiment()
