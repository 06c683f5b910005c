"""Beams: how far, how wide, what stops them, whom and what they hit."""

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games import Beam, Field, Grid, Kind, blank

KINDS = (
    Kind("wall", "#", (1, 1, 1), passable=False),
    Kind("gem", "g", (2, 2, 2)),
    Kind("agent", "a", (3, 3, 3), passable=False),
    Kind("ray", "*", (4, 4, 4)),
    Kind("river", "~", (5, 5, 5)),
    Kind("waste", "w", (6, 6, 6)),
)


def made(text, ground=None, facing=1, worlds=1):
    """Digits are agents; the layers are ground, things, beams."""
    rows = text.split()
    size = len(rows), len(rows[0])
    bare = "\n".join("".join("." if glyph.isdigit() else glyph for glyph in row) for row in rows)
    places = sorted((glyph, y, x) for y, row in enumerate(rows) for x, glyph in enumerate(row) if glyph.isdigit())
    field = Field(KINDS, ground or blank(*size), bare, blank(*size), layer=1)
    grid = Grid(field, agents=len(places), worlds=worlds)
    grid.cells[:] = field.cells
    for n, (_, y, x) in enumerate(places):
        grid.positions[n] = y, x
        grid.cells[:, 1, y, x] = grid.looks[n]
    grid.headings[:] = facing
    return grid


def lit(grid, world=0):
    """Where the beams are."""
    return "\n".join("".join("*" if code else "." for code in row) for row in grid.cells[world, 2])


def fire(grid, *who, **beam):
    firing = np.zeros(grid.headings.shape, np.bool_)
    firing[list(who)] = True
    return Beam(grid, "ray", **beam).fire(firing)


@pytest.mark.parametrize(
    ("facing", "wanted"),
    [
        (0, ["..*..", "..*..", ".....", ".....", "....."]),
        (1, [".....", ".....", "...**", ".....", "....."]),
        (2, [".....", ".....", ".....", "..*..", "..*.."]),
        (3, [".....", ".....", "**...", ".....", "....."]),
    ],
)
def test_a_beam_goes_ahead_as_far_as_it_is_long(facing, wanted):
    grid = made("..... ..... ..0.. ..... .....", facing=facing)
    fire(grid, 0, length=2)
    assert lit(grid).split() == wanted


@pytest.mark.parametrize("facing", range(4))
def test_a_wide_beam_covers_the_columns_beside_it(facing):
    grid = made("..... ..... ..0.. ..... .....", facing=facing)
    fire(grid, 0, length=1, width=3)
    wanted = np.zeros((5, 5), bool)
    wanted[1, 1:4] = True
    assert np.array_equal(grid.cells[0, 2] > 0, np.rot90(wanted, -facing))


def test_walls_end_it():
    grid = made("0.#..")
    fire(grid, 0, length=4)
    assert lit(grid) == ".*..."


def test_each_column_ends_by_itself_and_none_comes_round_a_corner():
    grid = made("#.... 0.... ..#..")
    fire(grid, 0, length=3, width=3)
    assert lit(grid).split() == [".....", ".***.", ".*..."]


def test_a_beam_ends_at_the_edge_of_the_field_and_may_be_wider_than_it():
    grid = made("...0")
    fire(grid, 0, length=3, width=7)
    assert lit(grid) == "...."


def test_the_first_agent_on_the_way_is_hit_and_shields_the_next():
    grid = made("0.1.2")
    hits = fire(grid, 0, length=4, agents=True)
    assert hits.suffered[:, 0].tolist() == [0, 1, 0]
    assert hits.dealt[:, 0].tolist() == [1, 0, 0]
    assert lit(grid) == ".**.."


def test_a_beam_that_does_not_hit_agents_passes_them():
    grid = made("0.1.2")
    hits = fire(grid, 0, length=4)
    assert not hits.suffered.any()
    assert lit(grid) == ".****"


def test_who_does_not_fire_hits_nobody():
    grid = made("01", facing=1)
    assert not fire(grid, length=3, agents=True).suffered.any()
    assert lit(grid) == ".."


def test_two_may_hit_one_and_each_other():
    grid = made("0.1.2", facing=1)
    grid.headings[2] = 3
    hits = fire(grid, 0, 2, length=4, agents=True)
    assert hits.suffered[:, 0].tolist() == [0, 2, 0]


def test_things_do_not_stop_it_and_stay():
    grid = made("0gg.")
    fire(grid, 0, length=3)
    assert lit(grid) == ".***"
    assert grid.cells[0, 1, 0].tolist() == [3, 2, 2, 0]


def test_the_first_thing_that_it_changes_ends_it():
    grid = made("0....", ground="~~w~w")
    hits = fire(grid, 0, length=4, changes={"waste": "river"}, changes_on=0)
    assert grid.cells[0, 0, 0].tolist() == [5, 5, 5, 5, 6]
    assert hits.changed[:, 0].tolist() == [1]
    assert lit(grid) == ".**.."


def test_beams_fade_when_cleared():
    grid = made("0...")
    beam = Beam(grid, "ray", length=3)
    beam.fire(np.ones((1, 1), np.bool_))
    beam.clear()
    assert lit(grid) == "...."


def test_worlds_are_apart():
    grid = made("0..1", worlds=2)
    hits = Beam(grid, "ray", length=3, agents=True).fire(np.array([[True, False], [False, False]]))
    assert hits.suffered.tolist() == [[0, 0], [1, 0]]
    assert lit(grid, 1) == "...."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, r"a beam of length 0 and width 1: give at least 1, and an odd width"),
        ({"length": 3, "width": 2}, r"a beam of length 3 and width 2"),
        ({"length": 3, "changes": {"gold": "gem"}}, r"there is no kind 'gold'"),
        ({"length": 3, "changes_on": 3}, r"a beam changes things on layer 3: give 0 to 2"),
    ],
)
def test_a_beam_that_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Beam(made("0."), "ray", **options)


def test_a_beam_needs_a_layer_above_the_agents():
    with pytest.raises(ConfigError, match=r"a beam needs a layer above the agents: give the field one more map"):
        Beam(Grid(Field(KINDS, ".."), agents=1), "ray", length=1)
