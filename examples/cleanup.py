"""Cleanup: a public good. Apples grow only while somebody cleans the river, and those who clean pick none.

The field is walled; the river runs along its left side, the orchard along its right. An apple is worth +1. Waste
appears on every clean cell of the river with probability 0.01 a turn; a quarter of it is dirty at first. Where no
apple is and nobody stands, one grows with probability 0.05 * (1 - dirty share / 0.4), so none while 40 % is waste.
Agents see a window that turns with them and move forward, backward or sideways, turn left or right, or stay. They
clean with a beam 3 wide and 3 long, each column of which removes the first waste on its way. They zap with a beam of
the same size, which freezes the agents it hits for the next 10 turns. Walls stop both. Beams are fired after all have
moved.

After Hughes et al. (2018), "Inequity aversion improves cooperation in intertemporal social dilemmas"; here zapping
freezes and costs nothing, where there it is punished with -50.

    parallel-agents train examples/cleanup.py --agents 5 --worlds 8
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose
from parallel_agents.games import (
    AGENT,
    DIRECTIONS,
    TURNING_MOVES,
    WALL,
    Beam,
    Field,
    Grid,
    GridEnvironment,
    Hindrance,
    Kind,
    RandomSpawn,
    Rules,
    best_directions,
    blank_map,
    direction_actions,
    dqn_defaults,
    values_at,
    walled_map,
)

GROUND, THINGS = 0, 1
"""The layers below the beams: river and waste; walls, apples and agents."""
KINDS = (
    WALL,
    Kind("river", "~", (40, 90, 150)),
    Kind("waste", "w", (110, 90, 50)),
    Kind("apple", "o", (110, 210, 110), value=1.0),
    AGENT,
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
    """Per empty cell of the orchard and turn, while the river is clean."""
    waste_probability: float = 0.01
    """Per clean cell of the river and turn."""
    dirty_at_first: float = 0.25
    """Share of the river that is waste at first."""
    barren_from: float = 0.4
    """Share of the river that is waste from which on no apple grows."""
    beam_length: int = 3
    frozen_turns: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 9:
            raise ConfigError(f"world.width is {self.width}: river and orchard need at least 9")
        self.check_shares("apple_probability", "waste_probability", "dirty_at_first", "barren_from")


class Cleanup(GridEnvironment):
    """Independent learners between a river and an orchard."""

    options = CleanupRules
    rules: CleanupRules
    egocentric = True
    default_config: ClassVar = dqn_defaults(CleanupRules(), n_step=5)

    def build(self) -> Grid:
        rules = self.rules
        size, third = (rules.height, rules.width), (rules.width - 2) // 3
        edge, bank = "." * rules.width, ("." + "~" * third).ljust(rules.width, ".")
        ground = "\n".join([edge, *[bank] * (rules.height - 2), edge])
        field = Field(KINDS, ground, walled_map(*size), blank_map(*size), layer=THINGS)
        grid = self.make_grid(field, actions=TURNING_MOVES, extra_actions=("clean", "zap"))
        self.river = grid.check_sites(np.argwhere(field.cells[GROUND] == field.code("river")))
        self.orchard = grid.starts[grid.starts[:, 1] >= rules.width - 1 - third]
        dirt = {"sites": self.river, "layer": GROUND, "over": "river", "at_first": rules.dirty_at_first}
        waste = RandomSpawn(grid, "waste", probability=rules.waste_probability, **dirt)
        hindered = {"unless": Hindrance("waste", self.river, GROUND, rules.barren_from), "at_first": 0.0}
        apples = RandomSpawn(grid, "apple", probability=rules.apple_probability, sites=self.orchard, **hindered)
        shape = {"length": rules.beam_length, "width": 3}
        cleaning = Beam(grid, "cleaning", action="clean", changes={"waste": "river"}, changes_on=GROUND, **shape)
        zapping = Beam(grid, "zapping", action="zap", hits_agents=True, freezes=rules.frozen_turns, **shape)
        self.parts = [apples, waste, cleaning, zapping]
        return grid

    def dirty_share(self) -> np.ndarray:
        """Return (W,) the share of the river that is waste."""
        return np.asarray(self.grid.count("waste", self.river, GROUND) / len(self.river))


def sensible(game: Cleanup, cleaners: int = 2) -> np.ndarray:
    """Return (N, W) actions of players who share the work: some clean while an eighth is dirty, the others pick."""
    grid = game.grid
    waste = grid.cells[:, GROUND] == grid.field.code("waste")
    apples = grid.cells[:, THINGS] == grid.field.code("apple")
    draws = game.draws(5, Purpose.ACT)
    cleaner = (np.arange(len(grid.positions)) < cleaners)[:, None] & (game.dirty_share() > 0.125)
    direction = best_directions(grid, np.where(cleaner[..., None, None], waste, apples), tie=draws[..., :4])
    actions = direction_actions(grid, direction, otherwise=np.asarray(draws[..., 4] * 4, np.int64))
    waste_ahead = values_at(waste, grid.positions + DIRECTIONS[grid.headings])
    clean, left, right = (grid.actions.index(name) for name in ("clean", "turn_left", "turn_right"))
    turn = np.where((direction - grid.headings) % 4 == 3, left, right)
    cleaning = np.where(waste_ahead, clean, np.where(direction == grid.headings, actions, turn))
    return np.where(cleaner & (direction >= 0), cleaning, actions)


if __name__ == "__main__":
    Cleanup().run_experiment()
