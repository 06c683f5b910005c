"""Moves, each on a small board; kinds and maps."""

import numpy as np
import pytest

from parallel_agents.core.errors import ActionError, ConfigError, ContractError, ShapeError
from parallel_agents.games import DIRECTIONS, MOVES, TURNING_MOVES, Field, Grid, Kind, RandomSpawn, walled_map
from tests.games.boards import DOWN, KINDS, LEFT, RIGHT, UP, board, open_field, shown, step, turn_key


@pytest.mark.parametrize(
    ("action", "cell", "heading"),
    [
        ("up", (1, 2), UP),
        ("right", (2, 3), RIGHT),
        ("down", (3, 2), DOWN),
        ("left", (2, 1), LEFT),
        ("stay", (2, 2), DOWN),
    ],
)
def test_an_action_moves_by_one_cell_and_turns(action, cell, heading):
    grid = board("##### #...# #.0.# #...# #####", facing=DOWN)
    assert step(grid, action) == [0.0]
    assert tuple(grid.positions[0, 0]) == cell
    assert grid.headings[0, 0] == heading


@pytest.mark.parametrize(
    ("before", "actions", "values", "after"),
    [
        ("#### #0g# ####", ["right"], [10.0], "#### #.0# ####"),
        ("#### #0b# ####", ["right"], [-10.0], "#### #.0# ####"),
        ("#### #.0# ####", ["left"], [0.0], "#### #0.# ####"),
        ("0.", ["left"], [0.0], "0."),
        ("0.", ["up"], [0.0], "0."),
        ("0.", ["down"], [0.0], "0."),
        ("#### #01# ####", ["right", "left"], [0.0, 0.0], "#### #01# ####"),
        ("##### #1g0# #####", ["left", "right"], [10.0, 0.0], "##### #10.# #####"),
        ("##### #10.# #####", ["right", "right"], [0.0, 0.0], "##### #.10# #####"),
        ("##### #01.# #####", ["right", "right"], [0.0, 0.0], "##### #0.1# #####"),
    ],
    ids=[
        "a gem pays and is taken", "a bone costs and is taken", "an empty cell", "the left edge", "the upper edge",
        "the lower edge", "agents block each other", "the first agent gets what both want",
        "a later agent steps where an earlier one left", "an earlier agent is blocked by one that leaves later",
    ],
)  # fmt: skip
def test_moves_follow_the_rules(before, actions, values, after):
    grid = board(before)
    assert step(grid, *actions) == values
    assert shown(grid) == after


def test_a_wall_blocks_but_the_agent_turns_to_it():
    grid = board("#### #0g# ####")
    assert grid.move(np.array([[MOVES.index("left")]])).tolist() == [[0]]
    assert shown(grid) == "#### #0g# ####"
    assert grid.headings[0, 0] == LEFT


def test_a_thing_on_another_layer_pays_and_stays():
    grid = board("#### #0.# ####", floor="#### #.g# ####")
    assert step(grid, "right") == [10.0]
    assert grid.cells[0, 0, 1, 2] == grid.field.code("gem")
    step(grid, "left")
    assert step(grid, "right") == [10.0]


def test_the_higher_of_two_things_is_entered():
    grid = board("#### #0b# ####", floor="#### #.g# ####")
    assert step(grid, "right") == [-10.0]


def test_an_impassable_floor_blocks():
    grid = board("#### #0.# ####", floor="#### #.w# ####")
    step(grid, "right")
    assert tuple(grid.positions[0, 0]) == (1, 1)


def test_agents_do_not_enter_what_lies_above_their_layer():
    field = Field(KINDS, "....", "gg..", layer=0)
    grid = Grid(field, agents=1, actions=MOVES)
    grid.place_agent(0, 0, (0, 2))
    assert step(grid, "left") == [0.0]
    gem = field.code("gem")
    assert grid.cells[0].tolist() == [[[0, field.code("agent"), 0, 0]], [[gem, gem, 0, 0]]]


def test_an_agent_that_cannot_act_stays_and_does_not_turn():
    grid = board("#### #01# #..# ####")
    grid.move(np.full((2, 1), MOVES.index("down")), able=np.array([[False], [True]]))
    assert shown(grid) == "#### #0.# #.1# ####"
    assert grid.headings[:, 0].tolist() == [0, 2]


def test_agents_appear_as_their_own_kinds():
    grid = board("#### #01# #..# ####", agent_kinds=("rival", "agent"))
    step(grid, "down", "down")
    assert grid.text().split() == ["####", "#..#", "#ra#", "####"]


def test_agent_kinds_change_at_once():
    grid = board("01.")
    grid.set_agent_kinds(np.array([[grid.field.code("rival")], [grid.field.code("agent")]]))
    assert grid.text() == "ra."


def test_wrong_agent_kinds_are_refused():
    grid = board("01")
    for wrong in (np.array([[2], [6]]), np.array([6, 6])):
        with pytest.raises(ContractError, match=r"agent kinds of shape .*: give codes \(2, 1\) of kinds agents cannot"):
            grid.set_agent_kinds(wrong)
    assert grid.text() == "aa"


def test_placing_an_agent_removes_what_lies_there():
    grid = board("#### #0.# #.g# ####")
    grid.place_agent(0, 0, (2, 2))
    assert shown(grid) == "#### #..# #.0# ####"


def test_placing_an_agent_in_a_taken_cell_is_refused_and_changes_nothing():
    grid = board("#### #01# ####")
    with pytest.raises(ContractError, match=r"agent 0 cannot stand on \(1, 2\) of world 0: agent is there"):
        grid.place_agent(0, 0, (1, 2))
    assert shown(grid) == "#### #01# ####"


@pytest.mark.parametrize(
    ("actions", "first", "error", "message"),
    [
        (
            [[0, 0], [0, 5]],
            0,
            ActionError,
            r"agent 1 did action 5 in world 1: give 0 to 4 \(up, down, left, right, stay",
        ),
        ([[-1, 0], [0, 0]], 0, ActionError, r"agent 0 did action -1 in world 0"),
        ([[9, 0]], 1, ActionError, r"agent 1 did action 9 in world 0"),
        ([[0], [0]], 0, ShapeError, r"actions of shape \(2, 1\) .* there are 2 agents in 2 worlds"),
        ([[0, 0], [0, 0]], 1, ShapeError, r"actions of shape \(2, 2\) for the agents from 1 on"),
        ([0, 0], 0, ShapeError, r"actions of shape \(2,\)"),
        ([[0.5, 0], [0, 0]], 0, ShapeError, r"actions of type float64: give whole numbers"),
    ],
)
def test_wrong_actions_are_refused_before_anyone_moves(actions, first, error, message):
    grid = open_field(agents=2, worlds=2)
    before = grid.padded.copy(), grid.positions.copy(), grid.headings.copy()
    with pytest.raises(error, match=message):
        grid.move(np.array(actions), first)
    for array, old in zip((grid.padded, grid.positions, grid.headings), before, strict=True):
        assert np.array_equal(array, old)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agents": 0}, r"a grid with agents = 0: give a whole number of at least 1"),
        ({"agents": 1, "worlds": 0}, r"a grid with worlds = 0"),
        ({"agents": 1, "radius": -1}, r"a grid with radius = -1"),
        ({"agents": 5}, r"5 agents on a field with 4 free cells: enlarge it or take fewer agents"),
        (
            {"agents": 1, "actions": ("up", "fly")},
            r"the actions are \['up', 'fly'\]: name at least one, all .* out of stay",
        ),
        (
            {"agents": 1, "actions": ["fly"], "extra_actions": ["zap"]},
            r"out of stay, .*step_left, or the game's own zap",
        ),
        ({"agents": 1, "agent_kinds": "gem"}, r"the kind 'gem' is passable, but agents must not enter it"),
        ({"agents": 1, "agent_kinds": ("agent", "rival")}, r"2 kinds for 1 agents: give one for all, or one for each"),
    ],
)
def test_a_wrong_grid_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Grid(Field(KINDS, walled_map(4, 4)), **options)


@pytest.mark.parametrize("mask", [np.ones((2, 1), np.bool_), np.ones((2, 2), np.int64)])
def test_a_wrong_mask_is_refused(mask):
    grid = open_field(agents=2, worlds=2)
    spawn = RandomSpawn(grid, "gem", probability=1.0)
    before = grid.padded.copy()
    for call in (
        lambda: grid.move(np.zeros((2, 2), np.int64), able=mask),
        lambda: grid.reset(turn_key(5), mask),
        lambda: spawn.spawn(turn_key(5), mask),
    ):
        with pytest.raises(ShapeError, match=r"a mask came as .* \(2, [12]\): give bool \(2,"):
            call()
    assert np.array_equal(grid.padded, before)


@pytest.mark.parametrize("cell", [(-1, 1), (1, 4), (3, 1)])
def test_an_agent_cannot_be_put_outside(cell):
    with pytest.raises(ContractError, match=r"agent 0 cannot stand on .* of world 0: it is outside of the field"):
        board("#### #0.# ####").place_agent(0, 0, cell)


@pytest.fixture
def turning():
    """Return a grid with moves relative to the heading, and an agent in its middle."""
    grid = Grid(Field(KINDS, walled_map(5, 5)), agents=1, actions=TURNING_MOVES, extra_actions=("wave",))
    grid.place_agent(0, 0, (2, 2))
    return grid


def step_from(grid, action, facing):
    """Return by how much an action moves the agent, and its heading afterwards."""
    grid.headings[:] = facing
    step(grid, action)
    return tuple(grid.positions[0, 0] - (2, 2)), int(grid.headings[0, 0])


@pytest.mark.parametrize("facing", range(4))
@pytest.mark.parametrize(("action", "turned"), [("forward", 0), ("step_right", 1), ("backward", 2), ("step_left", 3)])
def test_relative_moves_depend_on_the_heading_and_do_not_change_it(turning, action, turned, facing):
    assert step_from(turning, action, facing) == (tuple(DIRECTIONS[(facing + turned) % 4]), facing)


@pytest.mark.parametrize("facing", range(4))
@pytest.mark.parametrize(("action", "turned"), [("turn_right", 1), ("turn_left", 3), ("stay", 0), ("wave", 0)])
def test_turns_and_extra_actions_stay_in_place(turning, action, turned, facing):
    assert step_from(turning, action, facing) == ((0, 0), (facing + turned) % 4)


# -- kinds and maps -------------------------------------------------------------------------------------------

WALL = Kind("wall", "#", (1, 2, 3), passable=False)
GEM = Kind("gem", "g", (4, 5, 6), value=10.0)


def test_a_map_becomes_codes_in_the_order_of_the_kinds():
    field = Field([WALL, GEM], "#.g\n##.")
    assert field.cells.tolist() == [[[1, 0, 2], [1, 1, 0]]]
    assert field.values.tolist() == [0.0, 0.0, 10.0]
    assert field.passable.tolist() == [True, False, True]
    assert field.palette.tolist() == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]


def test_the_indentation_of_a_map_is_ignored():
    assert np.array_equal(Field([WALL], "##\n#.").cells, Field([WALL], "\n   ##\n   #.\n").cells)


def test_layers_lie_above_each_other_and_agents_stand_on_the_last_or_the_named_one():
    assert Field([WALL, GEM], "gg", "#.").layer == 1
    assert Field([WALL, GEM], "gg", "#.", layer=0).layer == 0


def test_sites_are_where_nothing_lies_and_no_other_layer_blocks():
    field = Field([WALL, GEM], "#..", "..g")
    assert field.sites().tolist() == [[0, 1]]
    assert field.sites("gem").tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: walled_map(2, 9), r"walled field of 2 x 9 has no room inside: give at least 3 x 3"),
        (lambda: Field([], "."), r"a game with 0 kinds: give 1 to 255"),
        (lambda: Field([WALL, Kind("wall", "w", (0, 0, 0))], "."), r"same name: found 'wall', 'wall'; make"),
        (lambda: Field([WALL, Kind("w", "#", (0, 0, 0))], "."), r"same glyph: found '#', '#'; make them differ"),
        (lambda: Field([Kind("x", ".", (0, 0, 0))], "."), r"'x' has the glyph '\.': give one character"),
        (lambda: Field([Kind("x", "xy", (0, 0, 0))], "."), r"'x' has the glyph 'xy': give one character"),
        (lambda: Field([Kind("x", "x", (0, 0, 256))], "."), r"'x' has the colour .*256.*: give three numbers"),
        (lambda: Field([WALL]), r"a field needs at least one map"),
        (lambda: Field([WALL], "###\n##"), r"all rows of one length .* found \(rows, lengths\) \[\(2, 2, 3\)\]"),
        (lambda: Field([WALL], "##", "#"), r"all maps of one height"),
        (lambda: Field([WALL], "#?"), r"the map has \['\?'\], which no kind has .* there are \. #"),
        (lambda: Field([WALL], "##", layer=1), r"agents on layer 1 of a field with 1: give 0 to 0"),
        (lambda: Field([WALL, GEM], "##", outside="gem"), r"'gem' is passable, but agents must not enter it"),
        (lambda: Field([GEM], "g"), r"no kind 'wall' in this game: there are gem"),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
