"""Commons harvest: a tragedy of the commons. Apples grow among apples; a patch picked bare never comes back.

The field is walled, with patches of apples, each worth +1. Where one was picked, it grows again with a probability
that depends on how many apples are within 2 cells (Euclidean): none 0, one 0.005, two 0.02, more 0.05 a turn. Agents
see a window that turns with them and move forward, backward or sideways, turn left or right, or stay, or zap with a
beam 3 wide and 5 long, which freezes the agents it hits for the next 10 turns. Walls stop it. Beams are fired after all
have moved. When no apple is left in a world, its episode ends, since nothing will ever grow there again.

After Perolat et al. (2017), "A multi-agent reinforcement learning model of common-pool resource appropriation",
with the probabilities of Hughes et al. (2018). `parallel_agents.games.social_metrics` has the metrics: learners who
are good at picking leave nothing for later, so that sustainability falls.

    parallel-agents train examples/commons_harvest.py --agents 6 --worlds 8
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
    EndsWithout,
    Field,
    Grid,
    GridEnvironment,
    Kind,
    Regrowth,
    Rules,
    best_directions,
    blank_map,
    direction_actions,
    dqn_defaults,
    values_at,
)

KINDS = (
    WALL,
    Kind("apple", "o", (110, 210, 110), value=1.0),
    AGENT,
    Kind("zapping", "z", (255, 210, 90)),
)
PATCH = 6
"""Cells from one patch to the next."""


@dataclass(frozen=True, kw_only=True)
class HarvestRules(Rules):
    """The `world` section."""

    agents: int = 6
    height: int = 14
    width: int = 20
    radius: int = 3
    regrowth: tuple[float, ...] = (0.0, 0.005, 0.02, 0.05)
    """Probability per turn, by the number of apples near; the last one for as many or more."""
    near: float = 2.0
    """The radius within which apples count as near."""
    beam_length: int = 5
    frozen_turns: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("height", "width"):
            if getattr(self, name) < PATCH + 2:
                raise ConfigError(f"world.{name} is {getattr(self, name)}: a patch needs at least {PATCH + 2}")


def patches(height: int, width: int) -> str:
    """Return the map: diamonds of apples within a wall."""
    rows, columns = np.indices((height, width)) - 1
    apples = abs(rows % PATCH - 2.5) + abs(columns % PATCH - 2.5) <= 2.0
    inside = (rows >= 0) & (rows < (height - 2) // PATCH * PATCH) & (columns < (width - 2) // PATCH * PATCH)
    wall = (rows < 0) | (columns < 0) | (rows == height - 2) | (columns == width - 2)
    glyphs = np.where(wall, "#", np.where(apples & inside & (columns >= 0), "o", "."))
    return "\n".join("".join(row) for row in glyphs)


class CommonsHarvest(GridEnvironment):
    """Independent learners in an orchard that feeds them for as long as they leave enough of it."""

    options = HarvestRules
    rules: HarvestRules
    egocentric = True
    default_config: ClassVar = dqn_defaults(HarvestRules(), epochs=100, max_turns=200)

    def build(self) -> Grid:
        rules = self.rules
        size, reach = (rules.height, rules.width), max(rules.radius, int(rules.near))
        field = Field(KINDS, patches(*size), blank_map(*size), layer=0)
        grid = self.make_grid(field, radius=reach, actions=TURNING_MOVES, extra_actions=("zap",))
        sites = field.sites("apple")
        self.apples = Regrowth(grid, "apple", sites=sites, probabilities=rules.regrowth, radius=rules.near)
        zap = {"action": "zap", "hits_agents": True, "freezes": rules.frozen_turns}
        zapping = Beam(grid, "zapping", length=rules.beam_length, width=3, **zap)
        self.parts = [self.apples, zapping, EndsWithout(grid, "apple", sites=sites)]
        return grid


def sensible(game: CommonsHarvest, spare: int = 2) -> np.ndarray:
    """Return (N, W) actions of players who take an apple only if more than `spare` others are near it; 0: any apple."""
    grid = game.grid
    apples = grid.cells[:, 0] == grid.field.code("apple")
    reach = int(game.rules.near)
    padded = np.pad(apples, [(0, 0), (reach, reach), (reach, reach)])
    offsets = [(y, x) for y in range(-reach, reach + 1) for x in range(-reach, reach + 1)]
    near = sum(
        np.roll(padded, (y, x), axis=(1, 2))[:, reach:-reach, reach:-reach].astype(int)
        for y, x in offsets
        if 0 < y * y + x * x <= game.rules.near**2
    )
    ripe = apples & (near > spare) if spare else apples
    direction, stay = best_directions(grid, ripe, tie=game.draws(4, Purpose.ACT)), grid.actions.index("stay")
    # A path may lead over apples that should be spared: then wait, for other agents or for regrowth.
    spared = values_at(apples & ~ripe, grid.positions + DIRECTIONS[direction])
    return np.where(spared, stay, direction_actions(grid, direction, otherwise=stay))


if __name__ == "__main__":
    CommonsHarvest().run_experiment()
