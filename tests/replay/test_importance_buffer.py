"""The buffer with event types: index -> row, next states kept once, draws, priorities, state, locks, refusals."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from parallel_agents.core.errors import (
    ActionError,
    CheckpointError,
    ConfigError,
    ContractError,
    NonFiniteError,
    ShapeError,
    SharingError,
)
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.replay import (
    ImportanceSampler,
    ImportanceSamplingReplayBuffer,
    ThreadSafeImportanceSamplingReplayBuffer,
)

CRISIS, REGULAR = "crisis_parent", "regular_parent"


def make(capacity=50, kind=ImportanceSamplingReplayBuffer, metadata_rows=10_000, **options):
    options = {"alpha": 1.0, "beta": 1.0, **options}
    return kind(capacity, (2,), ImportanceSampler(**options), metadata_rows=metadata_rows)


def columns(serials, episode=7):
    """Rows whose every column tells their serial; episodes of a few rows, so that some next states stand apart."""
    serials = np.asarray(serials)
    done = serials % episode == episode - 1
    states = np.stack([serials, serials % 11], 1).astype(np.float32)
    after = np.stack([serials + 1, (serials + 1) % 11], 1).astype(np.float32)
    after[done] = -serials[done, None]
    return {
        "states": states,
        "actions": serials % 5,
        "rewards": serials * 0.5,
        "next_states": after,
        "dones": done,
        "event_types": [CRISIS if s % 10 == 0 else REGULAR for s in serials],
        "values": serials * 2.0,
    }


def check(memory, batch, indices):
    """A batch holds exactly what was added under its indices."""
    expected = columns(indices)
    for name in ("states", "actions", "rewards", "next_states", "dones"):
        np.testing.assert_array_equal(batch[name], expected[name].astype(batch[name].dtype), err_msg=name)
    assert memory.event_types(indices) == expected["event_types"]
    np.testing.assert_array_equal(memory.values(indices), expected["values"].astype(np.float32))


# -- index -> row ---------------------------------------------------------------------------------------------


def operate(memory, operations, rows, seed=0):
    """So many random adds and draws; every batch is compared with what its indices say."""
    draws = generator(seed, Purpose.NOISE)
    added = len(memory)
    while operations > 0:
        count = int(draws.integers(1, rows))
        memory.add_many(**columns(np.arange(added, added + count)))
        added += count
        size = int(draws.integers(1, min(rows, len(memory)) + 1))
        sample = memory.sample_uniform if draws.random() < 0.3 else memory.sample_importance_weighted
        batch, weights, indices = sample(size)
        assert weights.shape == (size,)
        assert added - memory.capacity <= indices.min() <= indices.max() < added
        check(memory, batch, indices)
        check(memory, memory.get(indices), indices)
        operations -= count + size


@pytest.mark.parametrize("capacity", [1, 2, 7, 50, 333])
def test_an_index_names_its_row_across_wrap_around(capacity):
    operate(make(capacity), 6_000, rows=40)


@pytest.mark.slow
def test_an_index_names_its_row_for_a_million_operations():
    operate(make(10_000), 1_000_000, rows=2_000)


def test_a_next_state_that_is_the_next_row_is_not_stored_twice():
    memory = make(1_000)
    memory.add_many(**columns(np.arange(3_000), episode=100))
    assert memory._ring.separate == 9  # of ten, the newest one is pending
    alone = make(1_000)
    for serial in range(1_500):
        alone.add(*(np.float32([serial, 0]), 0, 0.0, np.float32([serial, 1]), True, REGULAR, 0.0))
    assert alone._ring.separate == 999
    assert alone.nbytes - memory.nbytes > 900 * 2 * 4


def test_a_million_rows_of_32_features_take_less_than_150_mb():
    memory = ImportanceSamplingReplayBuffer(1_000_000, (32,))
    rows = 200_000
    numbers = np.arange(rows * 32, dtype=np.float32).reshape(rows, 32)
    after = np.roll(numbers, -1, 0)
    done = np.arange(rows) % 100 == 99
    after[done] = -1.0
    for _ in range(5):
        memory.add_many(numbers, np.zeros(rows, int), np.zeros(rows), after, done, REGULAR, np.ones(rows))
    assert len(memory) == 1_000_000
    assert memory._ring.separate == 9_999
    assert memory.nbytes <= 150e6
    assert memory.index.nbytes == 9 * memory.capacity


def concurrent(operations, rows):
    """One thread adds, another draws and gives priorities back; rows must be whole, indices true."""
    memory = make(500, ThreadSafeImportanceSamplingReplayBuffer, priorities=True)
    memory.add_many(**columns(np.arange(500)))
    failures, stop = [], threading.Event()

    def write():
        added = 500
        while added < operations:
            memory.add_many(**columns(np.arange(added, added + rows)))
            added += rows
        stop.set()

    def read():
        applied = 0
        try:
            while not stop.is_set():
                batch, _, indices = memory.sample_importance_weighted(32)
                expected = columns(indices)
                for name in batch:
                    np.testing.assert_array_equal(batch[name], expected[name].astype(batch[name].dtype))
                applied += memory.update_priorities(indices, np.ones(32))
            assert applied > 0
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for work in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    live = np.arange(memory.oldest, memory.oldest + len(memory))
    check(memory, memory.get(live), live)


def test_rows_are_whole_and_indices_right_under_concurrent_adds():
    concurrent(20_000, rows=10)


@pytest.mark.slow
def test_rows_are_whole_for_a_million_concurrent_adds():
    concurrent(1_000_000, rows=50)


def test_other_threads_wait_for_the_lock():
    memory = make(50, ThreadSafeImportanceSamplingReplayBuffer)
    memory.add_many(**columns(np.arange(20)))
    done = threading.Event()
    thread = threading.Thread(target=lambda: (memory.sample_uniform(4), done.set()))
    with memory.locked():
        thread.start()
        assert not done.wait(0.05)
    thread.join(10)
    assert done.is_set()


# -- drawing --------------------------------------------------------------------------------------------------


def test_corrected_draws_estimate_the_buffers_mean_after_wrap_around():
    memory = make(900, normalise=False)
    memory.add_many(**columns(np.arange(2_500)))
    truth = memory.get(np.arange(memory.oldest, 2_500))["rewards"].mean()
    sums = []
    for _ in range(300):
        batch, weights, _ = memory.sample_importance_weighted(256)
        sums.append((weights * batch["rewards"]).mean())
    z = (np.mean(sums) - truth) / (np.std(sums) / np.sqrt(len(sums)))
    assert abs(z) < 4
    assert memory.statistics()["crisis_parent_measured_share"] == pytest.approx(0.357, abs=0.01)
    assert memory.statistics()["crisis_parent_share"] == pytest.approx(0.1, abs=0.001)


def test_one_class_alone_is_drawn_uniformly_byte_for_byte():
    memory, other = make(64), make(64)
    for buffer in (memory, other):
        buffer.add_many(**{**columns(np.arange(100)), "event_types": REGULAR})
    for _ in range(5):
        by_class, weights, indices = memory.sample_importance_weighted(16)
        uniform, ones, same = other.sample_uniform(16)
        assert indices.tobytes() == same.tobytes()
        assert weights.tobytes() == ones.tobytes()
        assert by_class["states"].tobytes() == uniform["states"].tobytes()


def test_an_overwritten_row_is_no_longer_drawn_with_its_class():
    memory = make(10)
    memory.add_many(**{**columns(np.arange(10)), "event_types": CRISIS})
    memory.add_many(**{**columns(np.arange(10, 20)), "event_types": REGULAR})
    assert memory.index.counts.tolist() == [0, 10]
    memory.add_many(**{**columns(np.arange(20, 25)), "event_types": CRISIS})
    found = memory.statistics()
    assert (found["crisis_parent_rows"], found["regular_parent_rows"], found["overwritten"]) == (5, 5, 15)
    assert found["crisis_parent_value_share"] == pytest.approx(220 / (220 + 170))


def test_a_priority_belongs_to_its_row_and_never_to_its_successor():
    memory = make(10, priorities=True, crisis_parent_weight=1.0)
    memory.add_many(**{**columns(np.arange(10)), "event_types": REGULAR})
    memory.update_priorities(np.arange(10), np.full(10, 1e-4))
    old = np.array([0, 1, 2])
    memory.add_many(**{**columns(np.arange(10, 12)), "event_types": REGULAR})
    before = memory.index.state()["priorities"].copy()
    assert memory.update_priorities(old, [50.0, 50.0, 50.0]) == 1  # 0 and 1 are overwritten
    after = memory.index.state()["priorities"]
    changed = memory.index.state()["order"][before != after]
    assert changed.tolist() == [2]
    assert memory.update_priorities([0, 1], [1.0, 1.0]) == 0
    counts = np.bincount(np.concatenate([memory.sample_importance_weighted(10)[2] for _ in range(50)]), minlength=12)
    assert counts[2] > 350


# -- metadata -------------------------------------------------------------------------------------------------


def test_metadata_belong_to_their_row_and_are_removed_with_it():
    memory = make(4)
    for serial in range(6):
        row = columns([serial])
        memory.add(*(row[name][0] for name in row), {"user": serial} if serial % 2 else {})
    assert memory.metadata([2, 3, 4, 5]) == [{}, {"user": 3}, {}, {"user": 5}]
    assert sorted(memory._metadata) == [3, 5]


def test_only_metadata_of_the_newest_rows_are_stored():
    memory = make(100, metadata_rows=3)
    memory.add_many(**columns(np.arange(10)), metadata=[{"user": s} for s in range(10)])
    assert [bool(found) for found in memory.metadata(np.arange(10))] == [False] * 7 + [True] * 3


def test_metadata_are_copies():
    memory = make(4)
    mine = {"words": ["calm"]}
    row = columns([0])
    memory.add(*(row[name][0] for name in row), mine)
    mine["words"].append("crisis")
    memory.metadata([0])[0]["words"].append("crisis")
    assert memory.metadata([0]) == [{"words": ["calm"]}]


# -- snapshot and state ---------------------------------------------------------------------------------------


def test_a_snapshot_is_a_frozen_copy_oldest_first():
    memory = make(20)
    memory.add_many(**columns(np.arange(33)))
    taken = memory.get_buffer_snapshot()
    memory.add_many(**columns(np.arange(33, 60)))
    assert taken["indices"].tolist() == list(range(13, 33))
    expected = columns(taken["indices"])
    for name in ("states", "next_states", "actions", "dones"):
        np.testing.assert_array_equal(taken[name], expected[name])
    assert [taken["event_types"][k] for k in taken["classes"]] == expected["event_types"]
    with pytest.raises(ValueError, match="read-only"):
        taken["states"][0] = 0
    with pytest.raises(TypeError):
        taken["states"] = 0


@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 13, 57])
def test_a_loaded_buffer_continues_as_the_stored_one(rows, priorities):
    def fresh():
        return make(20, priorities=priorities)

    memory, other = fresh(), fresh()
    if rows:
        memory.add_many(**columns(np.arange(rows)), metadata=[{"user": s} for s in range(rows)])
        memory.sample_uniform(1)
        memory.sample_importance_weighted(1)
    if rows and priorities:
        memory.update_priorities([rows - 1], [3.0])
    stored = {name: array.copy() for name, array in memory.state().items()}
    other.load_state(stored)
    other.sampler.load_state(memory.sampler.state())
    for buffer in (memory, other):
        buffer.add_many(**columns(np.arange(rows, rows + 9)))
    for method in ("sample_importance_weighted", "sample_uniform"):
        mine, theirs = getattr(memory, method)(5), getattr(other, method)(5)
        check(memory, mine[0], mine[2])
        assert all(mine[0][name].tobytes() == theirs[0][name].tobytes() for name in mine[0])
        assert mine[1].tobytes() == theirs[1].tobytes()
    live = np.arange(memory.oldest, rows + 9)
    assert memory.metadata(live) == other.metadata(live)
    assert all(memory.state()[name].tobytes() == other.state()[name].tobytes() for name in stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("rewards"), "other columns: .*rewards"),
        (lambda s: s.update(rewards=s["rewards"][:-1]), r"rewards is float32 \(.*wanted is"),
        (lambda s: s.update({"ring.states": s["ring.states"][:, :1]}), r"states is float32 \(.*wanted is"),
        (lambda s: s.update({"ring.linked": ~s["ring.linked"]}), "do not fit the rows they belong to"),
        (lambda s: s.update({"ring.added": np.array(-1)}), "added holds -1"),
        (lambda s: s.update(metadata=np.frombuffer(b"[1]", np.uint8)), "metadata are not readable"),
        (lambda s: s.update(metadata=np.frombuffer(b'{"99": "{}"}', np.uint8)), "metadata are not readable: row 99"),
        (lambda s: s.update(metadata=np.frombuffer(b'{"20": "3"}', np.uint8)), "metadata are not readable: row 20"),
        (lambda s: s.update(metadata=np.frombuffer(b"[" * 100_000, np.uint8)), "nested too deeply"),
        (lambda s: s.update({"index.counts": np.array([1, 1])}), "stored counts"),
        (lambda s: s.update(rewards=s["rewards"] * np.float32(np.nan)), "NaN or infinity in rewards"),
        (lambda s: s.update({"ring.states": s["ring.states"] * np.float32(np.nan)}), "NaN or infinity in states"),
        (lambda s: s.update(actions=s["actions"].astype(np.float64)), "actions is float64"),
        (lambda s: s.update(draws=np.array(-1)), "draws holds -1"),
    ],
)
def test_a_state_that_does_not_fit_raises_and_changes_nothing(change, message):
    memory, other = make(20), make(20)
    memory.add_many(**columns(np.arange(33)))
    other.add_many(**columns(np.arange(5)))
    stored = memory.state()
    change(stored)
    before = other.state()
    with pytest.raises(CheckpointError, match=message):
        other.load_state(stored)
    assert all(other.state()[name].tobytes() == before[name].tobytes() for name in before)


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"states": np.zeros((3, 4))}, ShapeError, r"states have shape \(4,\) each: this buffer keeps \(2,\)"),
        ({"next_states": np.zeros((2, 2))}, ShapeError, r"3 states and next_states of shape \(2,\)"),
        ({"rewards": np.zeros((3, 1))}, ShapeError, r"3 states and rewards of shape \(3, 1\)"),
        ({"dones": False}, ShapeError, r"3 states and dones of shape \(\)"),
        ({"values": [1.0, np.nan, 0.0]}, NonFiniteError, "values hold NaN"),
        ({"rewards": [1.0, 1e300, 0.0]}, NonFiniteError, "rewards hold NaN, infinity or a number beyond float32"),
        ({"states": np.full((3, 2), np.inf)}, NonFiniteError, "states hold NaN"),
        ({"actions": [0, 1, 70_000]}, ActionError, "cannot be kept as int16.*another action_dtype"),
        ({"actions": [0.5, 1.0, 2.0]}, ActionError, "actions of type float64"),
        ({"event_types": [CRISIS, "vip", REGULAR]}, ContractError, "unknown event type 'vip'"),
        ({"event_types": [CRISIS]}, ShapeError, r"3 states and event_types of shape \(1,\)"),
        ({"metadata": [{"a": 1}]}, ShapeError, "1 metadata for 3 transitions"),
        ({"metadata": [{"a": object()}] * 3}, ContractError, "metadata cannot be kept as JSON"),
        ({"metadata": [{"a": float("nan")}] * 3}, ContractError, "metadata cannot be kept as JSON"),
    ],
)
def test_bad_rows_raise_before_anything_is_written(changed, error, message):
    memory = make(20)
    memory.add_many(**columns(np.arange(3)))
    before = memory.state()
    with pytest.raises(error, match=message):
        memory.add_many(**{**columns(np.arange(3, 6)), **changed})
    assert all(memory.state()[name].tobytes() == before[name].tobytes() for name in before)


@pytest.mark.parametrize("priorities", [False, True])
def test_rows_added_one_by_one_give_the_same_state_as_rows_added_at_once(priorities):
    given = columns(np.arange(57))
    given["metadata"] = [{"at": t} if t % 5 == 0 else None for t in range(57)]
    many, single = make(20, priorities=priorities), make(20, priorities=priorities)
    many.add_many(**given)
    for t in range(57):
        row = [given[name][t] for name in ("states", "actions", "rewards", "next_states", "dones", "event_types")]
        assert single.add(*row, given["values"][t], given["metadata"][t]) == t
    assert {n: a.tobytes() for n, a in many.state().items()} == {n: a.tobytes() for n, a in single.state().items()}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"state": [0.0]}, ShapeError, r"state have shape \(1,\) each"),
        ({"state": np.array([np.nan, 0], np.float32)}, NonFiniteError, "state holds NaN"),
        ({"next_state": [np.inf, 0.0]}, NonFiniteError, "next_state hold NaN"),
        ({"reward": float("nan")}, NonFiniteError, "reward is nan"),
        ({"value": 1e39}, NonFiniteError, "value is 1e.39: give a finite number that float32 can hold"),
        ({"action": 70_000}, ActionError, "cannot be kept as int16"),
        ({"event_type": "vip"}, ContractError, "unknown event type 'vip'"),
        ({"metadata": {"a": object()}}, ContractError, "metadata cannot be kept as JSON"),
    ],
)
def test_one_bad_row_raises_before_anything_is_written(changed, error, message):
    memory = make(20)
    row = {"state": [0.0, 1.0], "action": 1, "reward": 0.0, "next_state": [1.0, 1.0], "done": False}
    row |= {"event_type": CRISIS, "value": 1.0, "metadata": {"a": 1}}
    memory.add(**row)
    before = memory.state()
    with pytest.raises(error, match=message):
        memory.add(**{**row, **changed})
    assert all(memory.state()[name].tobytes() == before[name].tobytes() for name in before)


def test_indices_that_name_no_row_raise():
    memory = make(10, priorities=True)
    memory.add_many(**columns(np.arange(25)))
    with pytest.raises(ContractError, match=r"index 14 was overwritten: kept are 15 \.\. 24"):
        memory.get([20, 14])
    for ask in (memory.get, memory.metadata, memory.values, memory.event_types):
        with pytest.raises(ContractError, match="never given out: 25 rows were added"):
            ask([25])
    with pytest.raises(ContractError, match="never given out"):
        memory.update_priorities([-1], [1.0])
    with pytest.raises(ShapeError, match="give whole numbers"):
        memory.get([1.5])
    with pytest.raises(ShapeError, match="give one for each"):
        memory.update_priorities([20, 21], [1.0])
    with pytest.raises(NonFiniteError, match="TD errors"):
        memory.update_priorities([20], [np.nan])


def test_draws_that_cannot_be_made_raise():
    memory = make(10, empty_class="refuse")
    for sample in (memory.sample_importance_weighted, memory.sample_uniform):
        with pytest.raises(ContractError, match="a batch of 1 was asked of a buffer of 0 rows"):
            sample(1)
    memory.add_many(**{**columns(np.arange(5)), "event_types": REGULAR})
    with pytest.raises(ContractError, match="class crisis_parent is to have a share"):
        memory.sample_importance_weighted(2)
    for size in (0, 6):
        with pytest.raises(ContractError, match=f"a batch of {size} was asked of a buffer of 5 rows"):
            memory.sample_uniform(size)
    with pytest.raises(ConfigError, match="create it with priorities=True"):
        memory.update_priorities([1], [1.0])


def test_a_sampler_serves_one_buffer():
    sampler = ImportanceSampler()
    ImportanceSamplingReplayBuffer(5, 2, sampler)
    with pytest.raises(SharingError, match="a sampler of its own"):
        ImportanceSamplingReplayBuffer(5, 2, sampler)
    with pytest.raises(ConfigError, match="capacity 0"):
        ImportanceSamplingReplayBuffer(0, 2)


def test_continuous_actions_and_images_have_their_shape():
    memory = ImportanceSamplingReplayBuffer(5, (2, 3), action_shape=(2,), action_dtype="float32")
    memory.add(np.ones((2, 3)), [0.5, -1.0], 1.0, np.zeros((2, 3)), True, CRISIS, 3.0)
    batch = memory.get([0])
    assert batch["states"].shape == (1, 2, 3)
    assert batch["actions"].tolist() == [[0.5, -1.0]]
    with pytest.raises(ShapeError, match=r"actions have shape \(\) each"):
        memory.add(np.ones((2, 3)), 1, 1.0, np.zeros((2, 3)), True, CRISIS, 3.0)
