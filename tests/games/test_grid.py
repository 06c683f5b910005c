"""The rules, each on a small board; and what no sequence of events may break."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from parallel_agents.errors import ActionError, ConfigError, ContractError, ShapeError
from parallel_agents.games.field import Field, Kind, walled
from parallel_agents.games.grid import Grid
from parallel_agents.games.kernels import Stream
from parallel_agents.seeding import Purpose, key


@pytest.mark.parametrize(
    ("action", "cell", "heading"),
    [("up", (1, 2), 0), ("right", (2, 3), 1), ("down", (3, 2), 2), ("left", (2, 1), 3), ("stay", (2, 2), 2)],
)
def test_an_action_moves_by_one_cell_and_turns(boards, action, cell, heading):
    grid = boards.board("##### #...# #.0.# #...# #####")
    grid.headings[:] = 2
    assert boards.play(grid, action) == [0.0]
    assert tuple(grid.positions[0, 0]) == cell
    assert grid.headings[0, 0] == heading


def test_entering_a_thing_pays_its_value_and_takes_it(boards):
    grid = boards.board("#### #0g# ####")
    assert boards.play(grid, "right") == [10.0]
    assert boards.shown(grid) == boards.rows("#### #.0# ####")
    assert boards.play(grid, "left") == [0.0]
    assert boards.shown(grid) == boards.rows("#### #0.# ####")


def test_a_bone_costs(boards):
    assert boards.play(boards.board("#### #0b# ####"), "right") == [-10.0]


def test_a_wall_blocks_but_the_agent_turns_to_it(boards):
    grid = boards.board("#### #0g# ####")
    assert boards.play(grid, "left") == [0.0]
    assert boards.shown(grid) == boards.rows("#### #0g# ####")
    assert grid.headings[0, 0] == 3


def test_what_blocks_is_not_entered(boards):
    grid = boards.board("#### #01# ####")
    assert grid.move(np.array([[boards.ACTIONS.index("right")], [boards.ACTIONS.index("up")]])).tolist() == [
        [0],
        [0],
    ]


def test_a_field_without_walls_ends_at_its_edge(boards):
    grid = boards.board("0.")
    for action in ("left", "up", "down"):
        boards.play(grid, action)
        assert boards.shown(grid) == "0."


def test_agents_block_each_other(boards):
    grid = boards.board("#### #01# ####")
    assert boards.play(grid, "right", "left") == [0.0, 0.0]
    assert boards.shown(grid) == boards.rows("#### #01# ####")


def test_the_first_in_the_list_gets_what_two_want(boards):
    grid = boards.board("##### #1g0# #####")
    assert boards.play(grid, "left", "right") == [10.0, 0.0]
    assert boards.shown(grid) == boards.rows("##### #10.# #####")


def test_who_comes_later_may_step_where_an_earlier_one_left(boards):
    grid = boards.board("##### #10.# #####")
    boards.play(grid, "right", "right")
    assert boards.shown(grid) == boards.rows("##### #.10# #####")


def test_who_comes_earlier_is_blocked_by_one_who_leaves_later(boards):
    grid = boards.board("##### #01.# #####")
    boards.play(grid, "right", "right")
    assert boards.shown(grid) == boards.rows("##### #0.1# #####")


def test_what_lies_on_another_layer_stays_and_pays(boards):
    grid = boards.board("#### #0.# ####", floor="#### #.g# ####".replace(" ", "\n"))
    assert boards.play(grid, "right") == [10.0]
    assert grid.cells[0, 0, 1, 2] == grid.field.code("gem")
    boards.play(grid, "left")
    assert boards.play(grid, "right") == [10.0]


def test_what_lies_higher_is_what_is_entered(boards):
    grid = boards.board("#### #0b# ####", floor="#### #.g# ####".replace(" ", "\n"))
    assert boards.play(grid, "right") == [-10.0]


def test_an_impassable_floor_blocks(boards):
    grid = boards.board("#### #0.# ####", floor="#### #.w# ####".replace(" ", "\n"))
    boards.play(grid, "right")
    assert tuple(grid.positions[0, 0]) == (1, 1)


def test_agents_below_something_that_lies_above_them(boards):
    field = Field(boards.KINDS, "....", "gg..", layer=0)
    grid = Grid(field, agents=1, actions=boards.ACTIONS)
    grid.put(0, 0, (0, 2))
    assert boards.play(grid, "left") == [0.0]
    assert grid.cells[0].tolist() == [[[0, field.code("agent"), 0, 0]], [[2, 2, 0, 0]]]


def test_who_cannot_act_stays_and_does_not_turn(boards):
    grid = boards.board("#### #01# #..# ####")
    able = np.array([[False], [True]])
    grid.move(np.full((2, 1), boards.ACTIONS.index("down")), able=able)
    assert boards.shown(grid) == boards.rows("#### #0.# #.1# ####")
    assert grid.headings[:, 0].tolist() == [0, 2]


def test_agents_carry_their_own_looks(boards):
    grid = boards.board("#### #01# #..# ####", looks=("rival", "agent"))
    boards.play(grid, "down", "down")
    assert grid.text() == boards.rows("#### #..# #ra# ####")


def test_looks_that_cannot_be_are_refused(boards):
    grid = boards.board("01")
    for wrong in (np.array([[2], [6]]), np.array([6, 6])):
        with pytest.raises(ContractError, match=r"looks of shape .*: give codes \(2, 1\) of kinds not passable"):
            grid.look(wrong)
    assert grid.text() == "aa"


def test_one_agent_at_a_time_is_all_agents_in_list_order(boards):
    grids = [boards.open_field(agents=7, worlds=5, height=6, width=6) for _ in range(2)]
    rules = [grid.spawning("gem", "bone", probability=0.1) for grid in grids]
    draws = np.random.default_rng(0)
    for turn in range(1, 30):
        actions = draws.integers(0, 5, (7, 5))
        for grid, spawning in zip(grids, rules, strict=True):
            grid.spawn(spawning, boards.moment(turn))
        together = grids[0].move(actions)
        apart = np.concatenate([grids[1].move(actions[n : n + 1], n) for n in range(7)])
        assert np.array_equal(together, apart)
        assert grids[0].padded.tobytes() == grids[1].padded.tobytes()
        assert grids[0].positions.tobytes() == grids[1].positions.tobytes()
    assert together.max() > 0


def test_put_moves_an_agent_and_takes_what_lies_there(boards):
    grid = boards.board("#### #0.# #.g# ####")
    grid.put(0, 0, (2, 2))
    assert boards.shown(grid) == boards.rows("#### #..# #.0# ####")


def test_put_refuses_a_taken_cell_and_changes_nothing(boards):
    grid = boards.board("#### #01# ####")
    with pytest.raises(ContractError, match=r"agent 0 cannot stand on \(1, 2\) of world 0: agent is there"):
        grid.put(0, 0, (1, 2))
    assert boards.shown(grid) == boards.rows("#### #01# ####")


@pytest.mark.parametrize(
    ("actions", "first", "error", "message"),
    [
        (
            [[0, 0], [0, 5]],
            0,
            ActionError,
            r"agent 1 did action 5 in world 1: give 0 to 4 \(up, down, left, right, stay\)",
        ),
        ([[-1, 0], [0, 0]], 0, ActionError, r"agent 0 did action -1 in world 0"),
        ([[9, 0]], 1, ActionError, r"agent 1 did action 9 in world 0"),
        ([[0], [0]], 0, ShapeError, r"actions of shape \(2, 1\) .* there are 2 agents in 2 worlds"),
        ([[0, 0], [0, 0]], 1, ShapeError, r"actions of shape \(2, 2\) for the agents from 1 on"),
        ([0, 0], 0, ShapeError, r"actions of shape \(2,\)"),
        ([[0.5, 0], [0, 0]], 0, ShapeError, r"actions of type float64: give whole numbers"),
    ],
)
def test_wrong_actions_are_refused_before_anyone_moves(boards, actions, first, error, message):
    grid = boards.open_field(agents=2, worlds=2)
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
        ({"agents": 5}, r"5 agents on a field with 4 free cells: enlarge the field or take fewer agents"),
        (
            {"agents": 1, "actions": ("up", "fly")},
            r"the actions \['up', 'fly'\]: name at least one, all of them out of stay",
        ),
        ({"agents": 1, "looks": "gem"}, r"the kind 'gem' is passable, but agents must not enter it"),
        (
            {"agents": 1, "looks": ("agent", "rival")},
            r"2 looks for 1 agents: give one for all, or one for each",
        ),
    ],
)
def test_a_grid_that_cannot_be_is_refused(boards, options, message):
    with pytest.raises(ConfigError, match=message):
        Grid(Field(boards.KINDS, walled(4, 4)), **options)


@pytest.mark.parametrize("mask", [np.ones((2, 1), np.bool_), np.ones((2, 2), np.int64)])
def test_a_wrong_mask_is_refused(boards, mask):
    grid = boards.open_field(agents=2, worlds=2)
    rule = grid.spawning("gem", probability=1.0)
    before = grid.padded.copy()
    for call in (
        lambda: grid.move(np.zeros((2, 2), np.int64), able=mask),
        lambda: grid.fresh(boards.moment(5), which=mask),
        lambda: grid.spawn(rule, boards.moment(5), which=mask),
    ):
        with pytest.raises(ShapeError, match=r"a mask came as .* \(2, [12]\): give bool \(2,"):
            call()
    assert np.array_equal(grid.padded, before)


@pytest.mark.parametrize("cell", [(-1, 1), (1, 4), (3, 1)])
def test_an_agent_cannot_be_put_outside(boards, cell):
    with pytest.raises(ContractError, match=r"agent 0 cannot stand on .* of world 0: it is outside of the field"):
        boards.board("#### #0.# ####").put(0, 0, cell)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sites": np.array([[0, 8]])},
            r"sites that are no cells of a field of \(9, 8\): give rows and columns",
        ),
        ({"sites": np.array([[-1, 0]])}, r"sites that are no cells"),
        ({"sites": np.array([1, 2])}, r"sites that are no cells"),
        ({"layer": 1}, r"things appear on layer 1: give 0 to 0"),
    ],
)
def test_a_spawning_outside_of_the_field_is_refused(boards, options, message):
    with pytest.raises(ConfigError, match=message):
        boards.open_field().spawning("gem", probability=0.1, **options)


@pytest.mark.parametrize(
    ("names", "probability", "message"),
    [
        (("gem",), 1.5, r"probability 1\.5: give a number from 0 to 1"),
        (("gem",), float("nan"), r"probability nan"),
        ((), 0.5, r"no kind is named"),
        (("gold",), 0.5, r"no kind 'gold' in this game"),
    ],
)
def test_a_spawning_that_cannot_be_is_refused(boards, names, probability, message):
    with pytest.raises(ConfigError, match=message):
        boards.open_field().spawning(*names, probability=probability)


FIELD = Field(
    (
        Kind("wall", "#", (1, 1, 1), passable=False),
        Kind("gem", "g", (2, 2, 2), value=1.0),
        Kind("agent", "a", (3, 3, 3), passable=False),
    ),
    "#######\n#..#..#\n#.....#\n#..#..#\n#######",
)


class Invariants(RuleBasedStateMachine):
    """Agents always stand alone in free cells, walls stay, and gems go only where someone took them."""

    @initialize(agents=st.integers(1, 6), worlds=st.integers(1, 3), seed=st.integers(0, 2**63 - 1))
    def start(self, agents, worlds, seed):
        self.grid = Grid(FIELD, agents=agents, worlds=worlds, actions=("up", "down", "left", "right", "stay"))
        self.rule = self.grid.spawning("gem", probability=0.2)
        self.seed, self.turn = seed, 0

    def gems(self):
        return (self.grid.cells == FIELD.code("gem")).sum(axis=(1, 2, 3))

    def moment(self):
        self.turn += 1
        return (*key(self.seed, Purpose.WORLD), 1, self.turn)

    @rule(which=st.integers(0, 7))
    def fresh(self, which):
        mask = np.array([which >> w & 1 for w in range(self.grid.headings.shape[1])], np.bool_)
        others = self.grid.padded[~mask].tobytes()
        self.grid.fresh(self.moment(), mask)
        assert not self.gems()[mask].any()
        assert self.grid.padded[~mask].tobytes() == others

    @rule()
    def spawn(self):
        before = self.grid.cells.copy()
        self.grid.spawn(self.rule, self.moment(), Stream.SPAWN)
        changed = self.grid.cells != before
        assert not before[changed].any()
        assert (self.grid.cells[changed] == FIELD.code("gem")).all()

    @rule(data=st.data())
    def move_all(self, data):
        agents, worlds = self.grid.headings.shape
        rows = st.lists(st.integers(0, 4), min_size=worlds, max_size=worlds)
        actions = np.array(data.draw(st.lists(rows, min_size=agents, max_size=agents)))
        before, places = self.gems(), self.grid.positions.copy()
        entered = self.grid.move(actions)
        assert np.array_equal(before - self.gems(), (entered == FIELD.code("gem")).sum(axis=0))
        assert np.abs(self.grid.positions - places).sum(axis=-1).max() <= 1

    @rule(agent=st.integers(0, 5), action=st.integers(0, 4))
    @precondition(lambda self: self.grid.headings.shape[0] > 1)
    def move_one(self, agent, action):
        agents, worlds = self.grid.headings.shape
        places = self.grid.positions.copy()
        self.grid.move(np.full((1, worlds), action), agent % agents)
        assert np.array_equal(*(np.delete(p, agent % agents, axis=0) for p in (places, self.grid.positions)))

    @invariant()
    def agents_stand_alone_where_the_cells_say(self):
        for w in range(self.grid.headings.shape[1]):
            places = {tuple(place) for place in self.grid.positions[:, w].tolist()}
            shown = np.argwhere(self.grid.cells[w, 0] == FIELD.code("agent")).tolist()
            assert len(places) == len(self.grid.positions)
            assert places == {tuple(cell) for cell in shown}
            assert np.array_equal(self.grid.cells[w] == FIELD.code("wall"), FIELD.cells == FIELD.code("wall"))
        assert self.grid.headings.max() <= 3


TestInvariants = Invariants.TestCase
TestInvariants.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
