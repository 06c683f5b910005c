"""The locked buffer under threads: no half-written transition, in a storm and in every interleaving explored."""

import sys
import threading

import frontrun
import numpy as np
import pytest

from parallel_agents.replay import Buffer, ThreadSafeBuffer

WIDTH = 64


def tagged(buffer, tag):
    """A transition all of whose numbers are its tag."""
    buffer.add(np.full(WIDTH, tag), action=tag, reward=float(tag), done=tag % 7 == 6, mark=tag)


def check_snapshot(taken):
    states, actions, rewards = taken["states"], taken["actions"], taken["rewards"]
    assert taken["size"] == len(states) == len(actions) == len(rewards) == len(taken["dones"])
    assert (states == actions[:, None]).all()
    assert (rewards == actions).all()
    assert (taken["mark"].ravel() == actions).all()
    assert (taken["dones"] == (actions % 7 == 6)).all()
    assert (np.diff(actions) == 1).all()


def check_batch(batch):
    states, actions, rewards, next_states, dones, _ = batch
    assert (states == actions).all()
    assert (rewards == actions).all()
    assert (dones == (actions % 7 == 6)).all()
    going = ~dones.astype(bool).ravel()
    assert (next_states[going] == actions[going] + 1).all()


def storm(buffer, writes=1500):
    """One thread writes, others read whatever they can; the errors they met and how often they read."""
    over, errors, reads = threading.Event(), [], []

    def reader(read, check):
        try:
            while not over.is_set():
                check(read())
                reads.append(1)
        except BaseException as error:
            errors.append(error)

    readers = [
        threading.Thread(target=reader, args=(buffer.get_buffer_snapshot, check_snapshot)),
        threading.Thread(target=reader, args=(lambda: buffer.sample(16), check_batch)),
    ]
    for thread in readers:
        thread.start()
    for tag in range(20, writes):
        tagged(buffer, tag)
    over.set()
    for thread in readers:
        thread.join()
    return errors, len(reads)


@pytest.fixture
def _quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_quick_switches")
def test_readers_see_whole_transitions_while_a_writer_writes():
    buffer = ThreadSafeBuffer(50, (WIDTH,), n_frames=1, mark=1)
    for tag in range(20):
        tagged(buffer, tag)
    errors, reads = storm(buffer)
    assert not errors
    assert reads > 20
    check_snapshot(buffer.get_buffer_snapshot())
    assert len(buffer) == 50


def test_the_lock_is_held_by_every_call_and_by_the_context():
    buffer = ThreadSafeBuffer(8, (WIDTH,), mark=1)
    for tag in range(3):
        tagged(buffer, tag)
    calls = {
        "add": lambda: tagged(buffer, 3),
        "add_empty": buffer.add_empty,
        "sample": lambda: buffer.sample(2),
        "snapshot": buffer.get_buffer_snapshot,
        "len": lambda: len(buffer),
        "current_state": buffer.current_state,
        "clear": buffer.clear,
    }
    for name, call in calls.items():
        thread = threading.Thread(target=call)
        with buffer.locked():
            thread.start()
            thread.join(0.05)
            assert thread.is_alive(), f"{name} did not wait for the lock"
        thread.join(5.0)
        assert not thread.is_alive()


# -- interleavings --------------------------------------------------------------------------------------------


def explore(monkeypatch, kind, workers, invariant):
    """Every interleaving of two threads with up to two pre-emptions, at the grain of Python's instructions."""
    monkeypatch.setenv("FRONTRUN_ACTIVE", "1")

    def start():
        buffer = kind(8, (2,))
        buffer.add([1, 1], 1, 1.0, False)
        buffer.seen = []
        return buffer

    start()  # compile outside of the exploration
    return frontrun.explore(
        setup=start,
        workers=workers,
        invariant=invariant,
        max_executions=300,
        preemption_bound=2,
        detect_io=False,
        trace_packages=["parallel_agents*"],
        reproduce_on_failure=0,
        total_timeout=60.0,
    )


def writes_end(buffer):
    buffer.add([2, 2], 2, 2.0, True)


def writes_more(buffer):
    buffer.add([3, 3], 3, 3.0, False)


def reads(buffer):
    buffer.seen.append(buffer.get_buffer_snapshot())


def episodes_are_apart(buffer):
    """After the transition that ended its episode another one starts, whoever wrote it."""
    ring = buffer.ring
    ends = ring.terminated[0, :2, 0]
    return all(ring.age[0, row + 1, 0] == 0 for row in np.flatnonzero(ends)) and len(buffer) == 3


def snapshots_are_whole(buffer):
    (taken,) = buffer.seen
    return taken["actions"].tolist() in ([1], [1, 2]) and (taken["states"] == taken["actions"][:, None]).all()


def test_two_writers_never_mix_episodes(monkeypatch):
    explore(monkeypatch, ThreadSafeBuffer, [writes_end, writes_more], episodes_are_apart).assert_holds()


def test_a_snapshot_during_a_write_is_whole(monkeypatch):
    explore(monkeypatch, ThreadSafeBuffer, [writes_end, reads], snapshots_are_whole).assert_holds()


def test_the_exploration_finds_the_error_of_a_buffer_without_a_lock(monkeypatch):
    assert not explore(monkeypatch, Buffer, [writes_end, writes_more], episodes_are_apart).property_holds
