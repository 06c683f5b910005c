"""Addressed draws: they equal numpy's Philox at every address, and no two addresses share numbers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import MAX_SEED, Purpose, draw, generator, key, shuffle, uniform, uniforms

WORD = st.integers(0, 2**64 - 1)
ADDRESS = {
    "seed": st.integers(0, MAX_SEED),
    "purpose": st.sampled_from(Purpose),
    "agent": st.integers(0, 2**32 - 1),
    "world": WORD,
    "epoch": WORD,
    "turn": WORD,
}


def philox(seed, purpose, agent, world, epoch, turn):
    """Return numpy's own generator at an address, computed independently of the library."""
    return np.random.Philox(
        key=seed + (((int(purpose) << 32) + agent) << 64), counter=(world << 192) + (epoch << 128) + (turn << 64)
    )


@settings(max_examples=60, deadline=None)
@given(**ADDRESS, block=st.integers(0, 40))
def test_compiled_words_equal_those_of_numpy(seed, purpose, agent, world, epoch, turn, block):
    k0, k1 = key(seed, purpose, agent)
    words = draw(*(np.uint64(part) for part in (k0, k1, block, turn, epoch, world)))
    expected = philox(seed, purpose, agent, world, epoch, turn).random_raw(4 * block + 4)[4 * block :]
    assert [int(word) for word in words] == expected.tolist()


@settings(max_examples=60, deadline=None)
@given(**ADDRESS, count=st.integers(1, 9))
def test_a_generator_starts_at_its_address(seed, purpose, agent, world, epoch, turn, count):
    ours = generator(seed, purpose, agent=agent, world=world, epoch=epoch, turn=turn)
    theirs = np.random.Generator(philox(seed, purpose, agent, world, epoch, turn))
    assert ours.random(count).tolist() == theirs.random(count).tolist()
    assert ours.integers(0, 1000, 3).tolist() == theirs.integers(0, 1000, 3).tolist()


@settings(max_examples=60, deadline=None)
@given(**ADDRESS, count=st.integers(0, 3000))
def test_a_compiled_shuffle_is_that_of_numpy(seed, purpose, agent, world, epoch, turn, count):
    items = np.arange(count)
    shuffle(items, *(np.uint64(part) for part in (*key(seed, purpose, agent), turn, epoch, world)))
    expected = np.random.Generator(philox(seed, purpose, agent, world, epoch, turn)).permutation(np.arange(count))
    assert items.tolist() == expected.tolist()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, MAX_SEED), st.integers(0, 2**32 - 1)), max_size=3),
    worlds=st.lists(st.integers(0, 2**40), max_size=3),
    epoch=st.integers(0, 2**40),
    first_turn=st.integers(0, 2**40),
    turns=st.integers(0, 3),
    slots=st.integers(0, 9),
)
def test_uniforms_equal_the_numbers_of_each_address(rows, worlds, epoch, first_turn, turns, slots):
    seeds, agents = [seed for seed, _ in rows], [agent for _, agent in rows]
    block = uniforms(seeds, Purpose.ACT, agents, worlds, epoch=epoch, turns=turns, slots=slots, first_turn=first_turn)
    assert block.shape == (turns, len(rows), len(worlds), slots)
    for t, n, w in itertools.product(range(turns), range(len(rows)), range(len(worlds))):
        alone = philox(seeds[n], Purpose.ACT, agents[n], worlds[w], epoch, first_turn + t)
        assert block[t, n, w].tolist() == np.random.Generator(alone).random(slots).tolist()


def test_no_two_addresses_share_their_first_numbers():
    firsts = [
        uniforms([seed, seed], purpose, [0, 1], range(3), epoch=epoch, turns=3, slots=5)
        for seed, purpose, epoch in itertools.product((0, 1, 2**32, MAX_SEED), Purpose, range(3))
    ]
    numbers = np.concatenate([block.ravel() for block in firsts])
    assert len(np.unique(numbers)) == numbers.size == 4 * len(Purpose) * 3 * 2 * 3 * 3 * 5


def test_purposes_have_distinct_numbers():
    assert len({int(purpose) for purpose in Purpose}) == len(Purpose)
    assert len({key(0, purpose, agent) for purpose in Purpose for agent in (0, 1, 2**32 - 1)}) == 3 * len(Purpose)


def test_more_slots_or_turns_change_no_number():
    small = uniforms([5], Purpose.NOISE, [2], [1], epoch=4, turns=2, slots=3, first_turn=6)
    large = uniforms([9, 5], Purpose.NOISE, [2, 2], [0, 1, 2], epoch=4, turns=7, slots=11, first_turn=3)
    assert (large[3:5, 1, 1, :3] == small[:, 0, 0]).all()


@pytest.mark.parametrize("word", [0, 1, 2**11 - 1, 2**11, 2**63, 2**64 - 1])
def test_uniform_keeps_the_upper_53_bits(word):
    assert uniform(np.uint64(word)) == (word >> 11) / 2**53 < 1.0


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1, 0.5, 1.0, "7", None])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(ConfigError, match=r"seed .* is out of range: give a whole number from 0"):
        key(seed, Purpose.ACT)
    with pytest.raises(ConfigError, match="seed"):
        generator(seed, Purpose.ACT)
    with pytest.raises(ConfigError, match="seed"):
        uniforms([seed], Purpose.ACT, [0], [0], epoch=0, turns=1, slots=1)


@pytest.mark.parametrize("agent", [-1, 2**32, 1.5])
def test_bad_agent_ids_are_refused(agent):
    with pytest.raises(ConfigError, match=r"agent id .* is out of range"):
        key(0, Purpose.ACT, agent)


def test_numpy_integers_are_accepted_as_seeds():
    assert key(np.int64(3), Purpose.ACT, np.uint32(2)) == key(3, Purpose.ACT, 2)
