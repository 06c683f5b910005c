"""Cleanup: a public good. Apples grow only while somebody cleans the river, and whoever cleans picks none.

The field is walled; the river runs along its left side, the orchard along its right. An apple is worth +1. Waste
appears on every clean cell of the river with probability 0.01 a turn; a quarter of it is dirty at first. Where no
apple is and nobody stands, one grows with probability 0.05 * (1 - dirty share / 0.4), so none while 40 % is waste.
Agents see a window that turns with them and move forward, backward or sideways, turn left or right, or stay. They
clean with a beam 3 wide and 3 long, each column of which removes the first waste on its way, or zap with a beam of
the same size: whom it hits is frozen for the next 10 turns. Walls stop both. Beams are fired once all have moved.

After Hughes et al. (2018), "Inequity aversion improves cooperation in intertemporal social dilemmas"; here zapping
freezes and costs nothing, where there it is punished with -50.

    parallel-agents train examples/cleanup.py --agents 5 --worlds 8
"""

from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from parallel_agents import games
from parallel_agents.errors import ConfigError
from parallel_agents.games import (
    Beam,
    Field,
    Grid,
    GridEnvironment,
    Kind,
    Moment,
    Rules,
    Stream,
    blank,
    go,
    walled,
    ways,
)
from parallel_agents.seeding import Purpose

GROUND, THINGS = 0, 1
"""The layers below the beams: river and waste; walls, apples and agents."""
KINDS = (
    Kind("wall", "#", (96, 100, 112), passable=False),
    Kind("river", "~", (40, 90, 150)),
    Kind("waste", "w", (110, 90, 50)),
    Kind("apple", "o", (110, 210, 110), value=1.0),
    Kind("agent", "a", (250, 250, 250), passable=False),
    Kind("cleaning", "c", (150, 220, 255)),
    Kind("zapping", "z", (255, 210, 90)),
)


@dataclass(frozen=True, kw_only=True)
class CleanupRules(Rules):
    """The `world` section."""

    agents: int = 5
    height: int = 13
    width: int = 17
    radius: int = 3
    apple_probability: float = 0.05
    """Of an empty cell of the orchard, each turn, while the river is clean."""
    waste_probability: float = 0.01
    """Of a clean cell of the river, each turn."""
    dirty_at_first: float = 0.25
    """Of the river."""
    barren_from: float = 0.4
    """Dirty share of the river from which on no apple grows."""
    beam_length: int = 3
    frozen_turns: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 9:
            raise ConfigError(f"world.width is {self.width}: river and orchard need at least 9")
        for name in ("apple_probability", "waste_probability", "dirty_at_first", "barren_from"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"world.{name} is {getattr(self, name)}: give a number from 0 to 1")


class Cleanup(GridEnvironment):
    """Independent learners between a river and an orchard."""

    options = CleanupRules
    rules: CleanupRules
    egocentric = True
    default_config: ClassVar = {
        "experiment": {"epochs": 150, "max_turns": 100},
        "world": asdict(CleanupRules()),
        "model": {"algorithm": "dqn", "n_step": 5, "batch_size": 64, "gamma": 0.97, "epsilon_epochs": 75},
        "parallel": {"train_interval": 1},
    }

    def build(self) -> Grid:
        rules = self.rules
        size, third = (rules.height, rules.width), (rules.width - 2) // 3
        edge, bank = "." * rules.width, ("." + "~" * third).ljust(rules.width, ".")
        ground = "\n".join([edge, *[bank] * (rules.height - 2), edge])
        field = Field(KINDS, ground, walled(*size), blank(*size), layer=THINGS)
        grid = self.grid_on(field, actions=games.TURNING_MOVES, deeds=("clean", "zap"))
        self.river = grid.checked_sites(np.argwhere(field.cells[GROUND] == field.code("river")))
        self.orchard = grid.starts[grid.starts[:, 1] >= rules.width - 1 - third]
        dirt = {"sites": self.river, "layer": GROUND, "over": "river"}
        self.waste = grid.spawning("waste", probability=rules.waste_probability, **dirt)
        self.apples = grid.spawning("apple", probability=rules.apple_probability, sites=self.orchard)
        shape = {"length": rules.beam_length, "width": 3}
        self.cleaning = Beam(grid, "cleaning", changes={"waste": "river"}, changes_on=GROUND, **shape)
        self.zapping = Beam(grid, "zapping", agents=True, **shape)
        return grid

    def populate(self, moment: Moment, which: np.ndarray) -> None:
        dirty = np.full(self.n_worlds, self.rules.dirty_at_first)
        self.grid.spawn(self.waste, moment, Stream.POPULATE, which, chances=dirty)

    def dirty_share(self) -> np.ndarray:
        """(W,) how much of the river is waste."""
        return np.asarray(games.count(self.grid, "waste", self.river, GROUND) / len(self.river))

    def begin_turn(self) -> None:
        super().begin_turn()
        fertile = 1.0 - np.minimum(self.dirty_share() / max(self.rules.barren_from, 1e-9), 1.0)
        self.grid.spawn(self.waste, self.moment())
        self.grid.spawn(self.apples, self.moment(), chances=self.rules.apple_probability * fertile)

    def settle(self) -> None:
        self.cleaning.clear()
        self.cleaning.fire(self.did("clean"))
        hits = self.zapping.fire(self.did("zap"))
        self.freeze(hits.suffered > 0, self.rules.frozen_turns)


def sensible(game: Cleanup, cleaners: int = 2) -> np.ndarray:
    """(N, W) actions of players who share the work: some clean while an eighth is dirty, the others pick."""
    grid = game.grid
    waste, apple = (grid.field.code(name) for name in ("waste", "apple"))
    draws = game.draws(5, Purpose.ACT)
    cleaner = (np.arange(len(grid.positions)) < cleaners)[:, None] & (game.dirty_share() > 0.125)
    wanted = np.where(cleaner[..., None, None], grid.cells[:, GROUND] == waste, grid.cells[:, THINGS] == apple)
    way = ways(grid, wanted, tie=draws[..., :4])
    actions = go(grid, way, otherwise=np.asarray(draws[..., 4] * 4, np.int64))
    ahead = grid.positions + games.WAYS[grid.headings]
    dirt_ahead = grid.cells[np.arange(game.n_worlds), GROUND, ahead[..., 0], ahead[..., 1]] == waste
    turn = np.where((way - grid.headings) % 4 == 3, grid.actions.index("turn_left"), grid.actions.index("turn_right"))
    at_work = np.where(dirt_ahead, grid.actions.index("clean"), np.where(way == grid.headings, actions, turn))
    return np.where(cleaner & (way >= 0), at_work, actions)


if __name__ == "__main__":
    Cleanup().run_experiment()
