"""Chance: how often, how evenly, and that no world depends on how many there are."""

import numpy as np
import pytest
from scipy import stats

from parallel_agents.games.kernels import Stream
from parallel_agents.seeding import Purpose, generator

WORLDS = 400
"""Chance is measured at fixed seeds over so many worlds: a p-value below 1e-4 is a fault, not bad luck."""


def spawned(boards, probability, names=("gem", "bone"), worlds=WORLDS):
    grid = boards.open_field(agents=1, worlds=worlds, height=12, width=11)
    grid.spawn(grid.spawning(*names, probability=probability), boards.moment(1))
    return grid, np.isin(grid.cells[:, 0], [grid.field.code(name) for name in names])


@pytest.mark.parametrize("probability", [0.005, 0.1, 0.6])
def test_each_cell_gets_something_with_the_given_probability(boards, probability):
    grid, there = spawned(boards, probability)
    free = grid.cells[:, 0] != grid.field.code("agent")
    y, x = grid.starts.T
    hits, trials = there[:, y, x].sum(axis=0), free[:, y, x].sum(axis=0)
    assert stats.binomtest(int(hits.sum()), int(trials.sum()), probability).pvalue > 1e-4
    each = [stats.binomtest(int(h), int(t), probability).pvalue for h, t in zip(hits, trials, strict=True)]
    assert min(each) > 1e-4 / len(each)
    assert there.sum() == hits.sum()


def test_neighbouring_cells_and_worlds_are_independent(boards):
    _, there = spawned(boards, 0.3)
    inside = there[:, 1:-1, 1:-1].reshape(WORLDS, -1)
    for one, other in ((inside[:, :-1], inside[:, 1:]), (inside[:-1], inside[1:])):
        table = np.histogram2d(one.ravel(), other.ravel(), bins=2)[0]
        assert stats.chi2_contingency(table).pvalue > 1e-4


def test_the_number_of_things_in_a_world_is_binomial(boards):
    grid, there = spawned(boards, 0.05)
    counts = np.bincount(there.sum(axis=(1, 2)), minlength=20)
    expected = stats.binom(len(grid.starts) - 1, 0.05).pmf(np.arange(20)) * WORLDS
    joined = np.array([counts[:2].sum(), *counts[2:9], counts[9:].sum()])
    wanted = np.array([expected[:2].sum(), *expected[2:9], WORLDS - expected[:9].sum()])
    assert stats.chisquare(joined, wanted).pvalue > 1e-4


def test_the_kinds_are_equally_likely_and_independent_of_the_gaps(boards):
    grid, there = spawned(boards, 0.05, ("gem", "bone", "sand"))
    codes = [grid.field.code(name) for name in ("gem", "bone", "sand")]
    counts = [int((grid.cells == code).sum()) for code in codes]
    assert stats.chisquare(counts).pvalue > 1e-4
    upper = [int((grid.cells[:, 0, :6] == code).sum()) for code in codes]
    lower = [int((grid.cells[:, 0, 6:] == code).sum()) for code in codes]
    assert stats.chi2_contingency([upper, lower]).pvalue > 1e-4
    assert there.any()


@pytest.mark.parametrize(("probability", "share"), [(0.0, 0.0), (1.0, 1.0), (1e-300, 0.0), (5e-324, 0.0)])
def test_never_and_always(boards, probability, share):
    grid, there = spawned(boards, probability, worlds=3)
    y, x = grid.starts.T
    empty = grid.cells[:, 0, y, x] != grid.field.code("agent")
    assert there[:, y, x][empty].mean() == share


def test_gaps_are_the_documented_draws(boards):
    probability, names = 0.07, ("gem", "bone", "sand")
    grid, _ = spawned(boards, probability, names, worlds=3)
    for world in range(3):
        draws = generator(0, Purpose.WORLD, world=world, epoch=1, turn=1)
        draws.bit_generator.advance(int(Stream.SPAWN) << 32)
        wanted, site = {}, -1
        while True:
            kind, u = divmod(draws.random() * 3, 1.0)
            site += 1 + int(np.log1p(-u) / np.log1p(-probability))
            if site >= len(grid.starts):
                break
            wanted[tuple(grid.starts[site])] = names[int(kind)]
        for y, x in grid.starts:
            code = grid.cells[world, 0, y, x]
            found = grid.field.kinds[code - 1].name if code else None
            assert found == ("agent" if (y, x) == tuple(grid.positions[0, world]) else wanted.get((y, x)))


def test_things_appear_neither_on_things_nor_under_agents(boards):
    grid = boards.board("##### #0gb# #...# #####")
    grid.spawn(grid.spawning("sand", probability=1.0, sites=np.argwhere(np.ones((4, 5)))), boards.moment(1))
    assert boards.shown(grid) == boards.rows("##### #0gb# #sss# #####")


def test_things_appear_only_on_their_sites_and_layer(boards):
    grid = boards.board("..0 ...", floor="...\n...")
    grid.spawn(grid.spawning("sand", probability=1.0, sites=np.array([[0, 2], [1, 1]]), layer=0), boards.moment(1))
    assert (grid.cells[0, 0] == 4).tolist() == [[False, False, True], [False, True, False]]


def test_two_spawnings_do_not_share_draws(boards):
    grid = boards.open_field(agents=1, worlds=1, height=20, width=20)
    first, second = grid.spawning("gem", probability=0.1), grid.spawning("bone", probability=0.1)
    both = []
    for rule, name in ((first, "gem"), (second, "bone")):
        grid.fresh(boards.moment())
        grid.spawn(rule, boards.moment(1))
        both.append(grid.cells[0, 0] == grid.field.code(name))
    assert (both[0] != both[1]).any()


def test_every_cell_and_heading_is_as_likely_for_every_agent(boards):
    grid = boards.open_field(agents=3, worlds=2000, height=5, width=6)
    flat = grid.positions[..., 0] * 6 + grid.positions[..., 1]
    for agent in range(3):
        cells = np.unique(flat[agent], return_counts=True)[1]
        assert len(cells) == len(grid.starts)
        assert stats.chisquare(cells).pvalue > 1e-4
        assert stats.chisquare(np.bincount(grid.headings[agent], minlength=4)).pvalue > 1e-4
    pairs = np.histogram2d(flat[0], flat[1], bins=[[*np.unique(flat), 99]] * 2)[0]
    assert not np.diag(pairs).any()
    assert stats.chisquare(pairs[~np.eye(len(pairs), dtype=bool)]).pvalue > 1e-4


def test_a_full_field_can_be_placed(boards):
    grid = boards.open_field(agents=12, worlds=4, height=5, width=6)
    assert "." not in grid.text(3)


def episode(boards, worlds, seed=5):
    """What 20 turns of random play leave behind in each world; actions depend on the world only."""
    grid = boards.open_field(agents=4, worlds=worlds)
    rule = grid.spawning("gem", "bone", probability=0.05)
    grid.fresh(boards.moment(0, seed=seed))
    grid.spawn(rule, boards.moment(0, seed=seed), Stream.POPULATE)
    trace = []
    for turn in range(1, 21):
        grid.spawn(rule, boards.moment(turn, seed=seed))
        actions = np.stack([np.random.default_rng([turn, w]).integers(0, 5, 4) for w in range(worlds)], axis=1)
        trace.append((grid.move(actions), grid.padded.copy(), grid.positions.copy(), grid.headings.copy()))
    return trace


def test_a_world_does_not_depend_on_how_many_there_are(boards):
    few, many = episode(boards, 4), episode(boards, 8)
    for (a, cells, places, ways), (b, more_cells, more_places, more_ways) in zip(few, many, strict=True):
        assert a[:, 3].tobytes() == b[:, 3].tobytes()
        assert cells[3].tobytes() == more_cells[3].tobytes()
        assert places[:, 3].tobytes() == more_places[:, 3].tobytes()
        assert ways[:, 3].tobytes() == more_ways[:, 3].tobytes()


def test_worlds_turns_epochs_and_seeds_differ(boards):
    grid = boards.open_field(agents=4, worlds=2)
    assert (grid.positions[:, 0] != grid.positions[:, 1]).any()
    seen = set()
    for at in (boards.moment(0), boards.moment(1), boards.moment(0, epoch=2), boards.moment(0, seed=1)):
        grid.fresh(at)
        seen.add(grid.positions.tobytes())
    assert len(seen) == 4
