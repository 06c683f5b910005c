"""A world in the terminal."""

import io

import numpy as np
from rich.console import Console

from parallel_agents.games import TURNING_MOVES, Beam, Field, Grid, GridEnvironment, Kind, blank
from parallel_agents.games.terminal import terminal_view


class Duel(GridEnvironment):
    def build(self):
        kinds = [
            Kind("wall", "#", (90, 90, 90), passable=False),
            Kind("apple", "o", (10, 200, 30)),
            Kind("agent", "a", (250, 250, 250), passable=False),
            Kind("ray", "*", (255, 210, 90)),
        ]
        field = Field(kinds, "######\n#....#\n#...o#\n######", blank(4, 6), layer=0)
        grid = Grid(field, agents=2, worlds=self.n_worlds, radius=1, actions=TURNING_MOVES, deeds=("zap",))
        self.ray = Beam(grid, "ray", length=3, agents=True)
        return grid

    def settle(self):
        self.ray.clear()
        self.freeze(self.ray.fire(self.did("zap")).suffered > 0, 5)


def shown(game):
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="truecolor", width=80).print(terminal_view(game))
    return out.getvalue()


def test_agents_beams_freezing_and_what_was_earned_are_seen():
    game = Duel(config={"world": {"radius": 1}, "model": {"algorithm": "random"}})
    game.begin_epoch(1)
    game.turn = 3
    things = game.grid.cells[0, 0]
    things[things == game.grid.field.code("agent")] = 0
    game.grid.positions[:, 0] = [(1, 4), (1, 3)]
    things[1, 3:5] = game.grid.looks[:, 0]
    things[2, 4] = game.grid.field.code("apple")
    game.grid.headings[:] = [[3], [0]]  # the first faces left, where the second stands
    before = shown(game)
    assert "Duel, turn 3" in before
    assert before.count("◀") == before.count("▲") == 1
    assert "48;2;10;200;30" in before, "the apple"
    assert "48;2;255;210;90" not in before
    game.apply_actions(np.array([[game.grid.actions.index("zap")], [game.grid.actions.index("stay")]]))
    game.credit(np.array([[2.5], [0.0]], np.float32))
    after = shown(game)
    assert after.count("✖") == 1, "the second is frozen"
    assert "48;2;255;210;90" in after, "the ray"
    assert "2.5" in after
