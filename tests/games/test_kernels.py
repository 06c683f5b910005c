"""Random draws of the kernels: their probabilities, their addresses, and that no world depends on how many there are."""

import numpy as np
import pytest
from scipy import stats

from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.games import RandomSpawn, Stream
from tests.games.boards import board, open_field, shown, turn_key

WORLDS = 400
"""Frequencies are measured at fixed seeds over so many worlds: a p-value below 1e-4 is an error, not bad luck."""


def spawned(probability, names=("gem", "bone"), worlds=WORLDS):
    grid = open_field(agents=1, worlds=worlds, height=12, width=11)
    RandomSpawn(grid, *names, probability=probability).spawn(turn_key(1))
    return grid, np.isin(grid.cells[:, 0], [grid.field.code(name) for name in names])


@pytest.mark.parametrize("probability", [0.005, 0.1, 0.6])
def test_each_cell_gets_something_with_the_given_probability(probability):
    grid, there = spawned(probability)
    free = grid.cells[:, 0] != grid.field.code("agent")
    y, x = grid.starts.T
    hits, trials = there[:, y, x].sum(axis=0), free[:, y, x].sum(axis=0)
    assert stats.binomtest(int(hits.sum()), int(trials.sum()), probability).pvalue > 1e-4
    each = [stats.binomtest(int(h), int(t), probability).pvalue for h, t in zip(hits, trials, strict=True)]
    assert min(each) > 1e-4 / len(each)
    assert there.sum() == hits.sum()


def test_neighbouring_cells_and_worlds_are_independent():
    _, there = spawned(0.3)
    inside = there[:, 1:-1, 1:-1].reshape(WORLDS, -1)
    for one, other in ((inside[:, :-1], inside[:, 1:]), (inside[:-1], inside[1:])):
        table = np.histogram2d(one.ravel(), other.ravel(), bins=2)[0]
        assert stats.chi2_contingency(table).pvalue > 1e-4


def test_the_number_of_things_in_a_world_is_binomial():
    grid, there = spawned(0.05)
    counts = np.bincount(there.sum(axis=(1, 2)), minlength=20)
    expected = stats.binom(len(grid.starts) - 1, 0.05).pmf(np.arange(20)) * WORLDS
    joined = np.array([counts[:2].sum(), *counts[2:9], counts[9:].sum()])
    wanted = np.array([expected[:2].sum(), *expected[2:9], WORLDS - expected[:9].sum()])
    assert stats.chisquare(joined, wanted).pvalue > 1e-4


def test_the_kinds_are_equally_likely_and_independent_of_the_gaps():
    grid, there = spawned(0.05, ("gem", "bone", "sand"))
    codes = [grid.field.code(name) for name in ("gem", "bone", "sand")]
    counts = [int((grid.cells == code).sum()) for code in codes]
    assert stats.chisquare(counts).pvalue > 1e-4
    upper = [int((grid.cells[:, 0, :6] == code).sum()) for code in codes]
    lower = [int((grid.cells[:, 0, 6:] == code).sum()) for code in codes]
    assert stats.chi2_contingency([upper, lower]).pvalue > 1e-4
    assert there.any()


@pytest.mark.parametrize(("probability", "share"), [(0.0, 0.0), (1.0, 1.0), (1e-300, 0.0), (5e-324, 0.0)])
def test_a_probability_of_0_never_spawns_and_1_always(probability, share):
    grid, there = spawned(probability, worlds=3)
    y, x = grid.starts.T
    empty = grid.cells[:, 0, y, x] != grid.field.code("agent")
    assert there[:, y, x][empty].mean() == share


def test_gaps_are_the_documented_draws():
    probability, names = 0.07, ("gem", "bone", "sand")
    grid, _ = spawned(probability, names, worlds=3)
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


def test_things_appear_neither_on_things_nor_under_agents():
    grid = board("##### #0gb# #...# #####")
    RandomSpawn(grid, "sand", probability=1.0, sites=np.argwhere(np.ones((4, 5)))).spawn(turn_key(1))
    assert shown(grid) == "##### #0gb# #sss# #####"


def test_things_appear_only_on_their_sites_and_layer():
    grid = board("..0 ...", floor="...\n...")
    RandomSpawn(grid, "sand", probability=1.0, sites=np.array([[0, 2], [1, 1]]), layer=0).spawn(turn_key(1))
    assert (grid.cells[0, 0] == 4).tolist() == [[False, False, True], [False, True, False]]


def test_two_rules_do_not_share_draws():
    grid = open_field(agents=1, worlds=1, height=20, width=20)
    masks = []
    for name in ("gem", "bone"):
        grid.reset(turn_key())
        RandomSpawn(grid, name, probability=0.1).spawn(turn_key(1))
        masks.append(grid.cells[0, 0] == grid.field.code(name))
    assert (masks[0] != masks[1]).any()


def test_every_cell_and_heading_is_as_likely_for_every_agent():
    grid = open_field(agents=3, worlds=2000, height=5, width=6)
    flat = grid.positions[..., 0] * 6 + grid.positions[..., 1]
    for agent in range(3):
        cells = np.unique(flat[agent], return_counts=True)[1]
        assert len(cells) == len(grid.starts)
        assert stats.chisquare(cells).pvalue > 1e-4
        assert stats.chisquare(np.bincount(grid.headings[agent], minlength=4)).pvalue > 1e-4
    pairs = np.histogram2d(flat[0], flat[1], bins=[[*np.unique(flat), 99]] * 2)[0]
    assert not np.diag(pairs).any()
    assert stats.chisquare(pairs[~np.eye(len(pairs), dtype=bool)]).pvalue > 1e-4


def test_a_full_field_can_be_placed():
    grid = open_field(agents=12, worlds=4, height=5, width=6)
    assert "." not in grid.text(3)


def test_worlds_turns_epochs_and_seeds_differ():
    grid = open_field(agents=4, worlds=2)
    assert (grid.positions[:, 0] != grid.positions[:, 1]).any()
    results = set()
    for key in (turn_key(0), turn_key(1), turn_key(0, epoch=2), turn_key(0, seed=1)):
        grid.reset(key)
        results.add(grid.positions.tobytes())
    assert len(results) == 4
