"""Beams, regrowth, fixed counts, respawning and neighbours, and what no sequence of them may break."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scipy import stats

from parallel_agents.core.errors import ConfigError, ShapeError
from parallel_agents.games import (
    TURNING_MOVES,
    Beam,
    Field,
    FixedCount,
    Grid,
    Kind,
    RandomSpawn,
    Regrowth,
    Respawn,
    Stream,
    blank_map,
    neighbour_cells,
    neighbour_counts,
    pair_neighbours,
)
from tests.games.boards import DOWN, KINDS, LEFT, RIGHT, UP, board, open_field, shown, turn_key

GEM, BONE = 2, 3

# ---- beams ------------------------------------------------------------------------------------------------------


def lit(grid, world=0):
    """Return where the beams are."""
    return " ".join("".join("*" if code else "." for code in row) for row in grid.cells[world, -1])


def fire(grid, *agents, **beam):
    firing = np.zeros(grid.headings.shape, np.bool_)
    firing[list(agents)] = True
    return Beam(grid, "ray", **beam).fire(firing)


@pytest.mark.parametrize(
    ("facing", "expected"),
    [
        (UP, "..*.. ..*.. ..... ..... ....."),
        (RIGHT, "..... ..... ...** ..... ....."),
        (DOWN, "..... ..... ..... ..*.. ..*.."),
        (LEFT, "..... ..... **... ..... ....."),
    ],
)
def test_a_beam_goes_ahead_as_far_as_it_is_long(facing, expected):
    grid = board("..... ..... ..0.. ..... .....", facing=facing, beams=True)
    fire(grid, 0, length=2)
    assert lit(grid) == expected


@pytest.mark.parametrize("facing", range(4))
def test_a_wide_beam_covers_the_columns_beside_it(facing):
    grid = board("..... ..... ..0.. ..... .....", facing=facing, beams=True)
    fire(grid, 0, length=1, width=3)
    expected = np.zeros((5, 5), bool)
    expected[1, 1:4] = True
    assert np.array_equal(grid.cells[0, -1] > 0, np.rot90(expected, -facing))


@pytest.mark.parametrize(
    ("text", "beam", "expected"),
    [
        ("0.#..", {"length": 4}, ".*..."),
        ("#.... 0.... ..#..", {"length": 3, "width": 3}, "..... .***. .*..."),
        ("...0", {"length": 3, "width": 7}, "...."),
        ("0gg.", {"length": 3}, ".***"),
        ("0.1.2", {"length": 4}, ".****"),
    ],
    ids=[
        "a wall ends it",
        "columns end by themselves, not round corners",
        "edges end it",
        "over things",
        "over agents",
    ],
)
def test_what_ends_a_beam(text, beam, expected):
    grid = board(text, facing=RIGHT, beams=True)
    things = grid.cells[:, 0].copy()
    assert not fire(grid, 0, **beam).received.any()
    assert lit(grid) == expected
    assert np.array_equal(grid.cells[:, 0], things)


def test_the_first_agent_in_a_beam_is_hit_and_shields_the_next():
    grid = board("0.1.2", facing=RIGHT, beams=True)
    hits = fire(grid, 0, length=4, hits_agents=True)
    assert hits.received[:, 0].tolist() == [0, 1, 0]
    assert hits.dealt[:, 0].tolist() == [1, 0, 0]
    assert lit(grid) == ".**.."


def test_agents_that_do_not_fire_hit_nobody():
    grid = board("01", facing=RIGHT, beams=True)
    assert not fire(grid, length=3, hits_agents=True).received.any()
    assert lit(grid) == ".."


def test_two_agents_may_hit_the_same_agent():
    grid = board("0.1.2", facing=RIGHT, beams=True)
    grid.headings[2] = LEFT
    assert fire(grid, 0, 2, length=4, hits_agents=True).received[:, 0].tolist() == [0, 2, 0]


def test_the_first_thing_that_a_beam_changes_ends_it():
    grid = board("0....", floor="ssgsg", facing=RIGHT, beams=True)
    hits = fire(grid, 0, length=4, changes={"gem": "sand"}, changes_on=0)
    sand, gem = (grid.field.code(name) for name in ("sand", "gem"))
    assert grid.cells[0, 0, 0].tolist() == [sand, sand, sand, sand, gem]
    assert hits.changed[:, 0].tolist() == [1]
    assert lit(grid) == ".**.."


def test_beams_disappear_when_cleared():
    grid = board("0...", facing=RIGHT, beams=True)
    beam = Beam(grid, "ray", length=3)
    beam.fire(np.ones((1, 1), np.bool_))
    beam.clear()
    assert lit(grid) == "...."


def test_beams_hit_only_in_their_own_world():
    grid = board("0..1", worlds=2, facing=RIGHT, beams=True)
    hits = Beam(grid, "ray", length=3, hits_agents=True).fire(np.array([[True, False], [False, False]]))
    assert hits.received.tolist() == [[0, 0], [1, 0]]
    assert lit(grid, 1) == "...."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, r"a beam of length 0 and width 1: give at least 1, and an odd width"),
        ({"length": 3, "width": 2}, r"a beam of length 3 and width 2"),
        ({"length": 3, "changes": {"gold": "gem"}}, r"there is no kind 'gold'"),
        ({"length": 3, "changes_on": 3}, r"a beam changes things on layer 3: give 0 to 1"),
    ],
)
def test_a_wrong_beam_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Beam(board("0.", beams=True), "ray", **options)


def test_a_beam_needs_a_layer_above_the_agents():
    with pytest.raises(ConfigError, match=r"a beam needs a layer above the agents: give the field one more map"):
        Beam(board("0."), "ray", length=1)


# ---- regrowth ---------------------------------------------------------------------------------------------------


def orchard(text, worlds=1, **options):
    """Return the board, with an agent in a corner of its own below it, and a rule for gems that regrow."""
    below = "0".ljust(len(text.split()[0]), "#")
    grid = board(f"{text} {below}", worlds=worlds, radius=2)
    sites = np.argwhere(grid.field.cells[0, :-1] != grid.field.code("wall"))
    return grid, Regrowth(grid, "gem", sites=sites, **{"radius": 2.0, **options})


@pytest.mark.parametrize(
    ("text", "grows"),
    [
        ("##### #...# #.g.# #...# #####", [(1, 1), (1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2), (3, 3)]),
        ("####### #g....# #######", [(1, 2), (1, 3)]),
        ("####### #.....# #######", []),
    ],
)
def test_a_kind_grows_where_at_least_one_is_near(text, grows):
    grid, regrowth = orchard(text, probabilities=(0.0, 1.0))
    before = grid.cells[0, 0].copy()
    regrowth.grow(turn_key(1))
    assert [tuple(cell) for cell in np.argwhere(grid.cells[0, 0] != before).tolist()] == grows
    assert regrowth.remaining().tolist() == [len(grows) + (before == GEM).sum()]


def test_what_grows_now_does_not_count_before_the_next_turn():
    grid, regrowth = orchard("######## #g.....# ########", probabilities=(0.0, 1.0), radius=1.0)
    for turn, expected in enumerate(("gg....", "ggg..."), 1):
        regrowth.grow(turn_key(turn))
        assert grid.text().split()[1] == f"#{expected}#"


def test_nothing_grows_on_things_or_under_agents():
    grid, regrowth = orchard("###### #gb1.# ######", probabilities=(0.0, 1.0))
    regrowth.grow(turn_key(1))
    assert shown(grid).split()[1] == "#gb1.#"


@pytest.mark.parametrize(
    ("text", "probability"), [("##### #.g.# #####", 0.2), ("##### #g.g# #####", 0.7), ("##### ggggg ##.## #####", 0.7)]
)
def test_more_neighbours_make_growth_more_likely(text, probability):
    grid, regrowth = orchard(text, worlds=3000, probabilities=(0.0, 0.2, 0.7))
    regrowth.grow(turn_key(1))
    grown = (grid.cells[:, 0] == GEM).sum(axis=(1, 2)) - (grid.field.cells == GEM).sum()
    sites = int((grid.field.cells[0, :-1] == 0).sum())
    assert stats.binomtest(int(grown.sum()), 3000 * sites, probability).pvalue > 1e-4


def test_gems_grow_only_in_the_worlds_of_the_mask():
    _, regrowth = orchard("#### #g.# ####", worlds=2, probabilities=(0.0, 1.0))
    regrowth.grow(turn_key(1), np.array([False, True]))
    assert regrowth.remaining().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probabilities": ()}, r"gem grows with probabilities \[\]: give numbers from 0 to 1, at least one"),
        ({"probabilities": (0.0, 1.5)}, r"gem grows with probabilities \[0\.0, 1\.5\]"),
        (
            {"probabilities": (0.1,), "radius": 3.0},
            r"gem grows within a radius of 3\.0: give 1 to 2, the grid's margin",
        ),
        ({"probabilities": (0.1,), "radius": 0.5}, r"gem grows within a radius of 0\.5"),
        ({"probabilities": (0.1,), "layer": 1}, r"things appear on layer 1: give 0 to 0"),
    ],
)
def test_a_wrong_regrowth_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        orchard("#### #g.# ####", **options)


# ---- random spawns and fixed counts ------------------------------------------------------------------------------


def counts(grid, *names):
    """Return (W,) how many things of these kinds there are."""
    return np.isin(grid.cells, [grid.field.code(name) for name in names]).sum(axis=(1, 2, 3)).tolist()


def test_each_world_may_have_a_probability_of_its_own():
    grid = open_field(agents=1, worlds=3)
    spawn = RandomSpawn(grid, "gem", probability=0.5)
    spawn.spawn(turn_key(1), probabilities=np.array([0.0, 1.0, 0.0]))
    assert [gems > 0 for gems in counts(grid, "gem")] == [False, True, False]
    for wrong in (np.array([0.5]), np.array([0.0, 2.0, 0.0]), np.array([0.0, np.nan, 0.0])):
        with pytest.raises(ShapeError, match=r"probabilities of shape .*: give one per world, \(3,\), from 0 to 1"):
            spawn.spawn(turn_key(2), probabilities=wrong)


def test_a_thing_may_replace_another():
    grid = Grid(Field(KINDS, "ss.\n..."), agents=1)
    spawn = RandomSpawn(grid, "gem", probability=1.0, over="sand", sites=np.argwhere(np.ones((2, 3))))
    spawn.spawn(turn_key(1))
    assert grid.text().split() == ["gga", "..."]


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (
            ["gem"],
            {"sites": np.array([[0, 8]])},
            r"sites that are no cells of a field of \(9, 8\): give rows and columns",
        ),
        (["gem"], {"sites": np.array([[-1, 0]])}, r"sites that are no cells"),
        (["gem"], {"sites": np.array([1, 2])}, r"sites that are no cells"),
        (["gem"], {"layer": 1}, r"things appear on layer 1: give 0 to 0"),
        (["gem"], {"probability": 1.5}, r"probability 1\.5: give a number from 0 to 1"),
        (["gem"], {"probability": float("nan")}, r"probability nan"),
        ([], {}, r"no kind is named that should appear: name at least one"),
        (["gold"], {}, r"no kind 'gold' in this game"),
    ],
)
def test_a_wrong_random_spawn_is_refused(names, options, message):
    with pytest.raises(ConfigError, match=message):
        RandomSpawn(open_field(), *names, **{"probability": 0.5} | options)


@pytest.mark.parametrize(
    ("names", "count", "message"), [(["gem"], -1, "hold -1 of gem: give"), ([], 1, "no kind is named")]
)
def test_a_wrong_fixed_count_is_refused(names, count, message):
    with pytest.raises(ConfigError, match=message):
        FixedCount(open_field(), *names, count=count)


def test_a_refill_adds_what_is_missing_in_the_worlds_of_the_mask():
    grid = open_field(agents=2, worlds=3)
    things = FixedCount(grid, "gem", "bone", count=5)
    things.refill(turn_key(1), np.array([True, False, True]))
    assert counts(grid, "gem", "bone") == [5, 0, 5]
    before = grid.padded.copy()
    things.refill(turn_key(2), np.array([True, False, True]))
    assert np.array_equal(grid.padded, before)
    grid.cells[grid.cells == GEM] = 0
    things.refill(turn_key(3))
    assert counts(grid, "gem", "bone") == [5, 5, 5]


def test_a_refill_adds_as_much_as_there_is_room_for():
    grid = board("#### #0.# #.b# ####")
    FixedCount(grid, "gem", count=9).refill(turn_key(1))
    assert shown(grid) == "#### #0g# #gb# ####"


def test_kinds_and_sites_of_a_refill_are_equally_likely():
    grid = board("##### #...# #.0.# #####", worlds=4000)
    FixedCount(grid, "gem", "bone", count=1).refill(turn_key(1))
    things = grid.cells[:, 0][:, [1, 1, 1, 2, 2], [1, 2, 3, 1, 3]]
    assert stats.chisquare((things > 0).sum(axis=0)).pvalue > 1e-4
    assert stats.chisquare([(things == GEM).sum(), (things == BONE).sum()]).pvalue > 1e-4
    assert (things > 0).sum() == 4000


def test_a_new_field_and_a_turn_do_not_share_draws():
    grids = [open_field(agents=1, worlds=5) for _ in range(2)]
    for grid, stream in zip(grids, (Stream.SPAWN, Stream.POPULATE), strict=True):
        FixedCount(grid, "gem", count=3).refill(turn_key(1), stream=stream)
    assert not np.array_equal(grids[0].padded, grids[1].padded)


# ---- respawning and neighbours -----------------------------------------------------------------------------------


def test_respawned_agents_stand_on_other_free_cells():
    grid = board("###### #01g.# ######")
    Respawn(grid).respawn(np.array([[True], [False]]), turn_key(1))
    assert shown(grid) == "###### #.1g0# ######"


def test_every_free_cell_is_equally_likely_for_a_respawned_agent():
    grid = board("##### #0.1# #..g# #####", worlds=3000)
    Respawn(grid).respawn(np.repeat([[True], [False]], 3000, axis=1), turn_key(1))
    cells, frequencies = np.unique(grid.positions[0], axis=0, return_counts=True)
    assert cells.tolist() == [[1, 2], [2, 1], [2, 2]]
    assert stats.chisquare(frequencies).pvalue > 1e-4


def test_an_agent_stays_if_no_cell_is_free():
    grid = board("#### #01# ####")
    Respawn(grid).respawn(np.ones((2, 1), np.bool_), turn_key(1))
    assert shown(grid) == "#### #01# ####"


def test_no_rule_depends_on_the_number_of_worlds():
    results = []
    for worlds in (4, 8):
        grid = open_field(agents=3, worlds=worlds, radius=2)
        FixedCount(grid, "gem", count=6).refill(turn_key(1))
        Regrowth(grid, "gem", sites=grid.starts, probabilities=(0.1, 0.5), radius=2.0).grow(turn_key(1))
        Respawn(grid).respawn(np.ones((3, worlds), np.bool_), turn_key(1))
        results.append((grid.padded[3].tobytes(), grid.positions[:, 3].tobytes()))
    assert results[0] == results[1]


def test_neighbour_cells_are_above_right_below_and_left():
    assert neighbour_cells(board("... .0. ..."))[0, 0].tolist() == [[0, 1], [1, 2], [2, 1], [1, 0]]


def test_neighbour_counts_are_the_agents_next_to_each_cell():
    assert neighbour_counts(board("0.1 ...")).tolist() == [[[0, 2, 0], [1, 0, 1]]]


@pytest.mark.parametrize(
    ("text", "ready", "partners"),
    [
        ("2013 ....", [1, 1, 1, 1], [1, 0, -1, -1]),
        ("0123", [1, 1, 1, 1], [1, 0, 3, 2]),
        ("012.", [0, 1, 1], [-1, 2, 1]),
        ("0. .1", [1, 1], [-1, -1]),
    ],
    ids=["the first in the list", "each agent once", "only ready agents", "corners do not count"],
)
def test_neighbours_form_pairs_in_list_order(text, ready, partners):
    assert pair_neighbours(board(text), np.array(ready, np.bool_)[:, None])[:, 0].tolist() == partners


# ---- invariants --------------------------------------------------------------------------------------------------

FIELD = Field(
    (
        Kind("wall", "#", (1, 1, 1), passable=False),
        Kind("apple", "o", (2, 2, 2), value=1.0),
        Kind("coin", "c", (3, 3, 3), value=1.0),
        Kind("river", "~", (4, 4, 4)),
        Kind("waste", "w", (5, 5, 5)),
        Kind("ray", "*", (6, 6, 6)),
        Kind("agent", "a", (7, 7, 7), passable=False),
        Kind("other", "b", (8, 8, 8), passable=False),
        Kind("gem", "g", (9, 9, 9), value=1.0),
    ),
    "........\n.~~~....\n.~~.....\n........\n........",
    "########\n#...#..#\n#......#\n#.#..oo#\n########",
    blank_map(5, 8),
    layer=1,
)
WALL, APPLE, COIN, RIVER, WASTE, RAY, AGENT, OTHER, GEM_CODE = (FIELD.code(kind.name) for kind in FIELD.kinds)
COINS = 3


class Invariants(RuleBasedStateMachine):
    """Agents stand alone in free cells as their kinds, walls and the river stay, and nothing appears unexpectedly."""

    @initialize(agents=st.integers(1, 5), worlds=st.integers(1, 3), seed=st.integers(0, 2**63 - 1))
    def start(self, agents, worlds, seed):
        self.grid = Grid(FIELD, agents=agents, worlds=worlds, radius=2, actions=TURNING_MOVES)
        apples = FIELD.sites("apple")
        self.regrowth = Regrowth(self.grid, "apple", sites=apples, probabilities=(0.0, 0.5), radius=2.0)
        self.coins = FixedCount(self.grid, "coin", count=COINS)
        self.gems = RandomSpawn(self.grid, "gem", probability=0.1)
        river = np.argwhere(FIELD.cells[0] == RIVER)
        self.waste = RandomSpawn(self.grid, "waste", probability=0.3, sites=river, layer=0, over="river")
        self.zap = Beam(self.grid, "ray", length=3, width=3, hits_agents=True)
        self.clean = Beam(self.grid, "ray", length=2, changes={"waste": "river"})
        self.respawn, self.seed, self.turn = Respawn(self.grid), seed, 0

    def key(self):
        self.turn += 1
        return turn_key(self.turn, seed=self.seed)

    def draw(self, data, elements):
        agents, worlds = self.grid.headings.shape
        rows = st.lists(elements, min_size=worlds, max_size=worlds)
        return np.array(data.draw(st.lists(rows, min_size=agents, max_size=agents)))

    def mask(self, data):
        return self.draw(data, st.booleans())

    def count(self, code, layer=1):
        return (self.grid.cells[:, layer] == code).sum(axis=(1, 2))

    def things(self):
        return self.count(APPLE) + self.count(COIN) + self.count(GEM_CODE)

    @rule(bits=st.integers(0, 7))
    def reset(self, bits):
        mask = np.array([bits >> w & 1 for w in range(self.grid.headings.shape[1])], np.bool_)
        others = self.grid.padded[~mask].tobytes()
        self.grid.reset(self.key(), mask)
        assert (self.count(APPLE)[mask] == 2).all()
        assert not self.count(COIN)[mask].any()
        assert self.grid.padded[~mask].tobytes() == others

    @rule(agent=st.integers(0, 4), action=st.integers(0, len(TURNING_MOVES) - 1))
    def move_one(self, agent, action):
        agents, worlds = self.grid.headings.shape
        before = self.grid.positions.copy()
        self.grid.move(np.full((1, worlds), action), agent % agents)
        assert np.array_equal(*(np.delete(p, agent % agents, axis=0) for p in (before, self.grid.positions)))

    @rule()
    def spawn(self):
        before = self.grid.cells.copy()
        self.gems.spawn(self.key())
        changed = self.grid.cells != before
        assert not before[changed].any()
        assert (self.grid.cells[changed] == GEM_CODE).all()

    @rule(data=st.data())
    def move(self, data):
        actions = self.draw(data, st.integers(0, len(TURNING_MOVES) - 1))
        able, positions, headings = self.mask(data), self.grid.positions.copy(), self.grid.headings.copy()
        things = self.things()
        entered = self.grid.move(actions, able=able)
        taken = np.isin(entered, [APPLE, COIN, GEM_CODE]).sum(axis=0)
        assert np.array_equal(things - taken, self.things())
        distance = np.abs(self.grid.positions - positions).sum(axis=-1)
        assert distance.max() <= 1
        assert not distance[~able].any()
        assert np.array_equal(self.grid.headings[~able], headings[~able])

    @rule(data=st.data())
    def fire(self, data):
        before, things = self.count(WASTE, 0), self.grid.cells[:, 1].copy()
        self.zap.clear()
        hits = self.clean.fire(self.mask(data))
        assert np.array_equal(before - self.count(WASTE, 0), hits.changed.sum(axis=0))
        firing = self.mask(data)
        hits = self.zap.fire(firing)
        assert np.array_equal(hits.received.sum(axis=0), hits.dealt.sum(axis=0))
        assert not hits.dealt[~firing].any()
        assert hits.dealt.max() <= 3  # one for each column
        assert np.array_equal(self.grid.cells[:, 1], things)

    @rule()
    def grow(self):
        before = self.count(APPLE)
        self.regrowth.grow(self.key())
        after = self.count(APPLE)
        assert (after >= before).all()
        assert not after[before == 0].any()
        assert after.max() <= 2
        self.waste.spawn(self.key())

    @rule()
    def refill(self):
        free = (self.grid.cells[:, 1] == 0).sum(axis=(1, 2)) + self.count(COIN) - 2
        self.coins.refill(self.key())
        assert (self.count(COIN) >= np.minimum(free, COINS)).all()
        assert (self.count(COIN) <= COINS).all()

    @rule(data=st.data())
    def respawn_agents(self, data):
        mask, positions, things = self.mask(data), self.grid.positions.copy(), self.things()
        self.respawn.respawn(mask, self.key())
        assert np.array_equal(self.grid.positions[~mask], positions[~mask])
        assert np.array_equal(things, self.things())

    @rule(data=st.data())
    def set_agent_kinds(self, data):
        self.grid.set_agent_kinds(np.where(self.mask(data), OTHER, AGENT))

    @invariant()
    def agents_stand_alone_as_their_kinds(self):
        agents, worlds = self.grid.headings.shape
        y, x = np.moveaxis(self.grid.positions, -1, 0)
        assert np.array_equal(self.grid.cells[np.arange(worlds), 1, y, x], self.grid.agent_kinds)
        assert (self.count(AGENT) + self.count(OTHER) == agents).all()
        assert self.grid.headings.max() <= 3

    @invariant()
    def walls_and_the_river_stay_and_beams_are_not_in_walls(self):
        walls = FIELD.cells[1] == WALL
        assert ((self.grid.cells[:, 1] == WALL) == walls).all()
        assert (self.count(RIVER, 0) + self.count(WASTE, 0) == 5).all()
        assert not self.grid.cells[:, 2, walls].any()
        assert np.isin(self.grid.cells[:, 2], [0, RAY]).all()


TestInvariants = Invariants.TestCase
TestInvariants.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
