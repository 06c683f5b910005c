"""One agent's buffer as users hold it."""

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError, NonFiniteError, ShapeError
from parallel_agents.core.types import Transitions
from parallel_agents.replay import Buffer, Ring, ThreadSafeBuffer

BOTH = pytest.mark.parametrize("kind", [Buffer, ThreadSafeBuffer])


def filled(kind=Buffer, episodes=(3, 4), capacity=20, **options):
    """Episodes of these lengths; an observation is (episode, place), both from 1."""
    buffer = kind(capacity, (2,), **options)
    for episode, length in enumerate(episodes, 1):
        for t in range(1, length + 1):
            buffer.add([episode, t], action=t, reward=float(t), done=t == length)
    return buffer


@BOTH
def test_samples_are_whole_transitions(kind):
    buffer = filled(kind)
    states, actions, rewards, next_states, dones, valid = buffer.sample(200)
    assert [column.shape for column in (states, actions, rewards, next_states, dones, valid)] == [
        (200, 2), (200, 1), (200, 1), (200, 2), (200, 1), (200, 1)
    ]  # fmt: skip
    lengths = {1: 3, 2: 4}
    for state, action, reward, after, done in zip(states, actions, rewards, next_states, dones, strict=True):
        assert action[0] == reward[0] == state[1]
        assert done[0] == (state[1] == lengths[int(state[0])])
        assert done[0] or after.tolist() == [state[0], state[1] + 1]
    assert len({tuple(state) for state in states}) == 7
    assert (valid == 1.0).all()


@BOTH
def test_a_buffer_returns_its_size_and_next_place(kind):
    buffer = kind(5, (2,))
    told = []
    for t in range(7):
        buffer.add([t, t], 0, 0.0, t == 6)
        told.append((len(buffer), buffer.size, buffer.idx))
    assert told == [(1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4), (5, 5, 0), (5, 5, 1), (5, 5, 2)]
    assert buffer.capacity == 5
    buffer.clear()
    assert (len(buffer), buffer.idx) == (0, 0)
    assert buffer.get_buffer_snapshot()["size"] == 0


def test_the_newest_transition_is_not_sampled_before_its_next_observation_is_known():
    buffer = Buffer(10, (1,))
    buffer.add([1], 0, 0.0, False)
    with pytest.raises(ShapeError, match=r"of a buffer without a whole transition: add some first"):
        buffer.sample(1)
    buffer.add([2], 0, 0.0, False)
    assert set(buffer.sample(20)[0].ravel()) == {1.0}


def test_add_empty_separates_episodes():
    buffer = Buffer(10, (1,), n_frames=2)
    for value in (1, 2, 3):
        buffer.add([value], 0, 0.0, False)
    buffer.add_empty()
    assert buffer.current_state().tolist() == [[0.0]]
    for value in (7, 8):
        buffer.add([value], 0, 0.0, False)
    states, _, _, next_states, dones, _ = buffer.sample(100)
    pairs = {(tuple(a), tuple(b)) for a, b in zip(states.tolist(), next_states.tolist(), strict=True)}
    assert pairs == {((0, 1), (1, 2)), ((1, 2), (2, 3)), ((0, 7), (7, 8))}
    assert not dones.any()
    assert buffer.get_buffer_snapshot()["states"].ravel().tolist() == [1, 2, 7, 8]  # what 3 led to is not known


def test_current_state_holds_the_frames_before_the_next():
    buffer = Buffer(3, (2,), n_frames=3)
    assert buffer.current_state().tolist() == [[0, 0], [0, 0]]
    for t in range(1, 9):
        buffer.add([t, -t], 0, 0.0, done=t == 6)
        known = list(range(max(1, t - 1) if t < 6 else 7, t + 1))
        expected = [[0.0, 0.0]] * (2 - len(known)) + [[k, -k] for k in known]
        assert buffer.current_state().tolist() == (expected if t != 6 else [[0, 0], [0, 0]])


def test_samples_depend_on_seed_agent_and_call_only():
    def drawn(calls, **who):
        buffer = filled(episodes=(9, 9), **who)
        return [buffer.sample(8)[0].tolist() for _ in range(calls)]

    first = drawn(2, seed=1, agent=2)
    assert drawn(2, seed=1, agent=2) == first
    assert first[0] != first[1]
    assert drawn(1, seed=1, agent=3)[0] != first[0]
    assert drawn(1, seed=2, agent=2)[0] != first[0]
    assert filled(ThreadSafeBuffer, (9, 9), seed=1, agent=2).sample(8)[0].tolist() == first[0]


# -- snapshots ------------------------------------------------------------------------------------------------


@BOTH
def test_a_snapshot_is_a_frozen_copy_oldest_first(kind):
    buffer = filled(kind, episodes=(3, 5), capacity=6, n_frames=3)
    taken = buffer.get_buffer_snapshot()
    assert taken["states"].tolist() == [[1, 3], [2, 1], [2, 2], [2, 3], [2, 4], [2, 5]]
    assert taken["actions"].tolist() == taken["rewards"].tolist() == [3, 1, 2, 3, 4, 5]
    assert taken["dones"].tolist() == [True, False, False, False, False, True]
    assert (taken["size"], taken["idx"]) == (6, buffer.idx)
    for name in ("states", "actions", "rewards", "dones"):
        with pytest.raises(ValueError, match="read-only"):
            taken[name][0] = 0
    with pytest.raises(TypeError):
        taken["size"] = 0
    before = {name: np.array(taken[name]) for name in taken}
    for _ in range(20):
        buffer.add([9, 9], 9, 9.0, False)
    buffer.clear()
    assert all((taken[name] == before[name]).all() for name in taken)


def test_extra_columns_are_kept_beside_their_transition():
    buffer = Buffer(3, (1,), positions=(2,), weight=1)
    for t in range(5):
        buffer.add([t], 0, 0.0, False, positions=[t, -t], weight=10 * t)
    taken = buffer.get_buffer_snapshot()
    assert taken["states"].ravel().tolist() == [2, 3, 4]
    assert taken["positions"].tolist() == [[2, -2], [3, -3], [4, -4]]
    assert taken["weight"].ravel().tolist() == [20, 30, 40]
    with pytest.raises(ShapeError, match=r"given the columns \['weight'\], the buffer has \['positions', 'weight'\]"):
        buffer.add([1], 0, 0.0, False, weight=1)
    with pytest.raises(ShapeError, match="given positions of 3 numbers"):
        buffer.add([1], 0, 0.0, False, weight=1, positions=[1, 2, 3])


def touched(buffer, call):
    """Numbers that a call brings into being, as a measure of its work that no clock can blur."""
    import tracemalloc

    tracemalloc.start()
    try:
        call(buffer)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("call", [Buffer.get_buffer_snapshot, lambda buffer: buffer.sample(32)])
def test_the_cost_of_a_snapshot_does_not_grow_with_capacity(call):
    small, large = filled(episodes=(50,), capacity=100), filled(episodes=(50,), capacity=1_000_000)
    call(small), call(large)
    assert touched(large, call) < 1.5 * touched(small, call) + 2000


# -- several worlds, and moving house -------------------------------------------------------------------------


def turn(values, first):
    wide = np.array([values], np.float32)
    no = np.zeros(wide.shape, np.bool_)
    return Transitions(wide[..., None], no.astype(np.int64), wide, no, no, ~no, no | first, np.ones(1, np.bool_), 0)


def test_a_buffer_of_several_worlds_takes_whole_turns():
    buffer = Buffer(10, (1,), worlds=3)
    for t in range(3):
        buffer.add_turn(turn([t, 10 + t, 20 + t], first=t == 0))
    assert (len(buffer), buffer.capacity) == (9, 12)
    assert set(buffer.sample(200)[0].ravel()) == {0, 1, 10, 11, 20, 21}
    with pytest.raises(ShapeError, match=r"this buffer has 3 worlds: use add_turn\(\)"):
        buffer.add([1], 0, 0.0, False)


def test_a_buffer_that_moves_into_a_block_keeps_everything():
    buffer = filled(episodes=(3,))
    buffer.add([2, 1], 1, 1.0, False)
    block = Ring(buffer.shape, 3)
    buffer.move_to(block, 1)
    buffer.add([2, 2], 2, 2.0, True)
    stayed = filled(episodes=(3, 2))
    mine, theirs = buffer.get_buffer_snapshot(), stayed.get_buffer_snapshot()
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    assert block.sizes().tolist() == [0, 5, 0]
    buffer.clear()
    assert block.sizes().tolist() == [0, 0, 0]


def test_a_thread_safe_buffer_takes_over_the_rows_of_a_buffer():
    buffer = filled(episodes=(3,))
    buffer.add([2, 1], 1, 1.0, False)
    buffer.sample(4)
    safe = ThreadSafeBuffer.taking_over(buffer)
    stayed = filled(episodes=(3,))
    stayed.add([2, 1], 1, 1.0, False)
    stayed.sample(4)
    for one in (safe, stayed):
        one.add([2, 2], 2, 2.0, False)
    for mine, theirs in zip(safe.sample(16), stayed.sample(16), strict=True):
        assert mine.tolist() == theirs.tolist()


# -- bad input ------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        ({"obs": [1.0]}, ShapeError, r"given an observation of 1 numbers, the buffer keeps \(2,\)"),
        ({"obs": [1.0, np.nan]}, NonFiniteError, "an observation or reward with NaN or infinity"),
        ({"obs": [1.0, np.inf]}, NonFiniteError, "an observation or reward with NaN or infinity"),
        ({"reward": np.nan}, NonFiniteError, "an observation or reward with NaN or infinity"),
        ({"action": [1, 2]}, ShapeError, r"given an action of 2 numbers, the buffer keeps \(\)"),
        ({"other": 1}, ShapeError, r"given the columns \['other'\], the buffer has \[\]"),
    ],
)
def test_bad_transitions_raise_and_nothing_is_stored(kind, bad, error, text):
    buffer = filled(kind)
    before = buffer.get_buffer_snapshot()
    with pytest.raises(error, match=text):
        buffer.add(**{"obs": [1.0, 2.0], "action": 0, "reward": 0.0, "done": True, **bad})
    after = buffer.get_buffer_snapshot()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("batch_size", [0, -3])
def test_empty_batches_raise(batch_size):
    with pytest.raises(ConfigError, match=rf"sample\(batch_size={batch_size}\): give a whole number of at least 1"):
        filled().sample(batch_size)


@pytest.mark.parametrize("options", [{"capacity": 0}, {"n_frames": 0}, {"worlds": 0}])
def test_impossible_buffers_raise(options):
    with pytest.raises(ConfigError, match="each must be at least 1"):
        Buffer(**{"capacity": 5, "obs_shape": 2, **options})
