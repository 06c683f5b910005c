"""Regrowth among neighbours, things put anew, agents that start anew, chances of a world's own."""

import numpy as np
import pytest
from scipy import stats

from parallel_agents.errors import ConfigError, ShapeError
from parallel_agents.games import Field, Grid, Regrowth, Scattering, Stream, respawn, walled


def orchard(boards, text, worlds=1, **options):
    """The board, with an agent in a corner of its own below it."""
    below = "0".ljust(len(text.split()[0]), "#")
    grid = boards.board(f"{text} {below}", worlds=worlds, radius=2)
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
def test_it_grows_where_at_least_one_is_near(boards, text, grows):
    grid, rule = orchard(boards, text, chances=(0.0, 1.0))
    before = grid.cells[0, 0].copy()
    rule.grow(boards.moment(1))
    assert [tuple(cell) for cell in np.argwhere(grid.cells[0, 0] != before).tolist()] == grows
    assert rule.left().tolist() == [len(grows) + (before == 2).sum()]


def test_what_grows_now_does_not_count_before_the_next_turn(boards):
    grid, rule = orchard(boards, "######## #g.....# ########", chances=(0.0, 1.0), radius=1.0)
    for turn, wanted in enumerate(("gg....", "ggg..."), 1):
        rule.grow(boards.moment(turn))
        assert grid.text().split()[1] == f"#{wanted}#"


def test_it_grows_neither_on_things_nor_under_agents(boards):
    grid, rule = orchard(boards, "###### #gb1.# ######", chances=(0.0, 1.0))
    rule.grow(boards.moment(1))
    assert boards.shown(grid).split()[1] == "#gb1.#"


def test_more_neighbours_more_growth(boards):
    for text, chance in (("##### #.g.# #####", 0.2), ("##### #g.g# #####", 0.7), ("##### ggggg ##.## #####", 0.7)):
        grid, rule = orchard(boards, text, worlds=3000, chances=(0.0, 0.2, 0.7))
        rule.grow(boards.moment(1))
        grown = (grid.cells[:, 0] == 2).sum(axis=(1, 2)) - (grid.field.cells == 2).sum()
        sites = int((grid.field.cells[0, :-1] == 0).sum())
        assert stats.binomtest(int(grown.sum()), 3000 * sites, chance).pvalue > 1e-4


def test_only_the_worlds_of_the_mask_grow(boards):
    _, rule = orchard(boards, "#### #g.# ####", worlds=2, chances=(0.0, 1.0))
    rule.grow(boards.moment(1), np.array([False, True]))
    assert rule.left().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chances": ()}, r"gem grows with chances \[\]: give numbers from 0 to 1, at least one"),
        ({"chances": (0.0, 1.5)}, r"gem grows with chances \[0\.0, 1\.5\]"),
        ({"chances": (0.1,), "radius": 3.0}, r"gem grows within a radius of 3\.0: give 1 to 2, the grid's margin"),
        ({"chances": (0.1,), "radius": 0.5}, r"gem grows within a radius of 0\.5"),
    ],
)
def test_a_regrowth_that_cannot_be_is_refused(boards, options, message):
    with pytest.raises(ConfigError, match=message):
        orchard(boards, "#### #g.# ####", **options)


def counts(grid, *names):
    return [(grid.cells == grid.field.code(name)).sum(axis=(1, 2, 3)).tolist() for name in names]


def test_scattered_things_are_as_many_as_wanted(boards):
    grid = boards.open_field(agents=2, worlds=3)
    rule = Scattering(grid, "gem", "bone", count=5)
    rule.refill(boards.moment(1), np.array([True, False, True]))
    gems, bones = counts(grid, "gem", "bone")
    assert (np.array(gems) + bones).tolist() == [5, 0, 5]
    before = grid.padded.copy()
    rule.refill(boards.moment(2), np.array([True, False, True]))
    assert np.array_equal(grid.padded, before)
    grid.cells[grid.cells == 2] = 0
    rule.refill(boards.moment(3))
    assert np.sum(counts(grid, "gem", "bone"), axis=0).tolist() == [5, 5, 5]


def test_as_many_as_have_room(boards):
    grid = boards.board("#### #0.# #.b# ####")
    Scattering(grid, "gem", count=9).refill(boards.moment(1))
    assert boards.shown(grid) == boards.rows("#### #0g# #gb# ####")


def test_kinds_and_sites_are_equally_likely(boards):
    grid = boards.board("##### #...# #.0.# #####", worlds=4000)
    Scattering(grid, "gem", "bone", count=1).refill(boards.moment(1))
    things = grid.cells[:, 0][:, [1, 1, 1, 2, 2], [1, 2, 3, 1, 3]]
    assert stats.chisquare((things > 0).sum(axis=0)).pvalue > 1e-4
    assert stats.chisquare([(things == 2).sum(), (things == 3).sum()]).pvalue > 1e-4
    assert (things > 0).sum() == 4000


def test_a_fresh_field_and_a_turn_draw_apart(boards):
    grids = [boards.open_field(agents=1, worlds=5) for _ in range(2)]
    for grid, stream in zip(grids, (Stream.SPAWN, Stream.POPULATE), strict=True):
        Scattering(grid, "gem", count=3).refill(boards.moment(1), stream=stream)
    assert not np.array_equal(grids[0].padded, grids[1].padded)


def test_a_scattering_that_cannot_be_is_refused(boards):
    with pytest.raises(ConfigError, match=r"-1 of the kinds \('gem',\): name at least one kind, and give a number"):
        Scattering(boards.open_field(), "gem", count=-1)
    with pytest.raises(ConfigError, match=r"name at least one kind"):
        Scattering(boards.open_field(), count=1)


def test_respawned_agents_stand_on_other_free_cells(boards):
    grid = boards.board("###### #01g.# ######")
    respawn(grid, np.array([[True], [False]]), boards.moment(1), grid.number())
    assert boards.shown(grid) == boards.rows("###### #.1g0# ######")


def test_every_free_cell_is_as_likely(boards):
    grid = boards.board("##### #0.1# #..g# #####", worlds=3000)
    respawn(grid, np.repeat([[True], [False]], 3000, axis=1), boards.moment(1), grid.number())
    cells, often = np.unique(grid.positions[0], axis=0, return_counts=True)
    assert cells.tolist() == [[1, 2], [2, 1], [2, 2]]
    assert stats.chisquare(often).pvalue > 1e-4


def test_where_there_is_no_room_an_agent_stays(boards):
    grid = boards.board("#### #01# ####")
    respawn(grid, np.ones((2, 1), np.bool_), boards.moment(1), grid.number())
    assert boards.shown(grid) == boards.rows("#### #01# ####")


def test_no_rule_depends_on_the_number_of_worlds(boards):
    seen = []
    for worlds in (4, 8):
        grid = boards.open_field(agents=3, worlds=worlds, radius=2)
        Scattering(grid, "gem", count=6).refill(boards.moment(1))
        Regrowth(grid, "gem", sites=grid.starts, chances=(0.1, 0.5), radius=2.0).grow(boards.moment(1))
        respawn(grid, np.ones((3, worlds), np.bool_), boards.moment(1), grid.number())
        seen.append((grid.padded[3].tobytes(), grid.positions[:, 3].tobytes()))
    assert seen[0] == seen[1]


def test_chances_of_their_own_for_each_world(boards):
    grid = boards.open_field(agents=1, worlds=3)
    rule = grid.spawning("gem", probability=0.5)
    grid.spawn(rule, boards.moment(1), chances=np.array([0.0, 1.0, 0.0]))
    assert [gems > 0 for gems in counts(grid, "gem")[0]] == [False, True, False]
    for wrong in (np.array([0.5]), np.array([0.0, 2.0, 0.0]), np.array([0.0, np.nan, 0.0])):
        with pytest.raises(ShapeError, match=r"chances of shape .*: give one per world, \(3,\), from 0 to 1"):
            grid.spawn(rule, boards.moment(2), chances=wrong)


def test_a_thing_may_take_the_place_of_another(boards):
    grid = Grid(Field(boards.KINDS, "ss.\n..."), agents=1)
    rule = grid.spawning("gem", probability=1.0, over="sand", sites=np.argwhere(np.ones((2, 3))))
    grid.spawn(rule, boards.moment(1))
    assert grid.text().split() == ["gga", "..."]


def test_looks_change_at_once(boards):
    grid = Grid(Field(boards.KINDS, walled(3, 5)), agents=2)
    rival, agent = grid.field.code("rival"), grid.field.code("agent")
    grid.look(np.array([[rival], [agent]]))
    assert grid.text().split()[1] == "#ra.#"
