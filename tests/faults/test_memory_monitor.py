"""Memory stays bounded and is monitored; buffers hold no autograd graph and no half-written row."""

from __future__ import annotations

import gc
import mmap
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from examples.treasure_hunt import TreasureHunt
from parallel_agents import Buffer, ImportanceSampler, ImportanceSamplingReplayBuffer, ThreadSafeBuffer
from parallel_agents.execution.watchdog import FACTOR, SPARE, WARM_UP, MemoryMonitor, resident_bytes
from parallel_agents.games import Recorder
from parallel_agents.tracking.metrics import MetricsWriter
from tests.env.line_worlds import Line, tiny
from tests.faults.test_learners import Events


def test_f12_no_half_written_transition_is_ever_sampled() -> None:
    """Every field of a transition is one tag; a reader never sees two of them in one row."""
    buffer = ThreadSafeBuffer(64, (3,), seed=0)
    over = threading.Event()

    def write() -> None:
        for tag in range(3_000):
            buffer.add([tag, tag, tag], action=tag % 7, reward=float(tag), done=False)
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not over.is_set() or reads == 0:
        if len(buffer) < 8:
            continue
        states, actions, rewards, *_ = buffer.sample(8)
        tags = np.asarray(rewards).reshape(8)
        assert (np.asarray(states).reshape(8, 3) == tags[:, None]).all()
        assert (np.asarray(actions).reshape(8) == tags % 7).all()
        reads += 1
    writer.join()
    assert reads > 0


def test_f35_buffers_keep_numbers_and_no_autograd_graph() -> None:
    seen = torch.ones(3, requires_grad=True) * 2.0
    reward = (seen * 0.5).sum()
    assert seen.grad_fn is not None
    buffer = Buffer(8, (3,))
    buffer.add(seen, action=torch.tensor(1), reward=reward, done=False)
    sampler = ImportanceSampler(seed=0)
    other = ImportanceSamplingReplayBuffer(capacity=8, obs_shape=(3,), importance_sampler=sampler)
    other.add(state=seen, action=1, reward=reward, next_state=seen, done=False, event_type="regular_parent", value=1.0)
    for kept in (buffer, other):
        assert len(kept) == 1
        held = [value for value in vars(kept).values() if isinstance(value, torch.Tensor)]
        assert not [tensor for tensor in held if tensor.grad_fn is not None]
    gc.collect()


def test_f35_what_learners_publish_has_no_graph() -> None:
    game = Line(config=tiny())
    game.run_experiment()
    run = game.prepare()
    tensors = [t for state in run.rounds.newest for t in state.tensors.values()]
    tensors += [run.group.stacks[0].inference.weights.rows]
    assert all(tensor.grad_fn is None and not tensor.requires_grad for tensor in tensors)


def test_f36_a_long_run_keeps_no_more_than_a_short_one(tmp_path: Path) -> None:
    game = Line(config=tiny(experiment={"max_turns": 2}, parallel={"backend": "inline", "train_interval": 1}))
    # The interpreter's cache of attributes keeps the names that C code looks up, up to 4,096 strings.
    clear_names = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache

    def kept_after(epochs: int) -> int:
        writer = MetricsWriter(tmp_path / f"until_{epochs}.jsonl", max_bytes=20_000, backups=1)
        game.run_experiment(epochs, callbacks=[writer])
        clear_names()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        kept = [kept_after(epochs) for epochs in (150, 300, 450, 600)]
    finally:
        tracemalloc.stop()
    # One small object kept per epoch, 48 bytes or more, is 7,200 bytes in each of the three stretches. Caches of numpy
    # and of the interpreter grow now and then, but not in all of them.
    assert min(np.diff(kept)) < 4_000, f"bytes kept after 150, 300, 450 and 600 epochs: {kept}"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 8 * 20_000


@pytest.fixture
def no_garbage() -> None:
    """Free what earlier tests left: memory that shrinks in the middle of a run hides a leak for some epochs."""
    gc.collect()


class Leaks(Line):
    """Keeps 5 MB more with every epoch."""

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.kept = [*getattr(self, "kept", []), mmap.mmap(-1, 5 * 2**20)]  # never memory that was freed before
        self.kept[-1].write(b"x" * 5 * 2**20)


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_f36_a_world_that_leaks_is_reported_within_20_epochs(backend: str) -> None:
    flags = {"backend": backend, "num_workers": 1, "train_interval": 1}
    game, recorded = Leaks(config=tiny(parallel=flags)), Events()
    game.run_experiment(40, callbacks=[recorded])
    (told,) = [fields for name, fields in recorded.events if name == "memory_grows"]  # once, not in every epoch
    assert told["epoch"] <= 20
    assert 4 * 2**20 < told["bytes_per_epoch"] < 7 * 2**20


def test_f36_memory_that_grows_while_a_recording_is_written_is_not_reported() -> None:
    class Writes(Events):
        busy = True

    game, recorded = Leaks(config=tiny(parallel={"backend": "inline", "train_interval": 1})), Writes()
    game.run_experiment(40, callbacks=[recorded])
    assert "memory_grows" not in recorded.names()


@pytest.mark.usefixtures("no_garbage")
def test_f36_a_leak_beside_recordings_is_reported(tmp_path: Path) -> None:
    """Writing a GIF takes longer than an epoch: memory is compared where one ends and the next begins."""

    class LeaksToo(TreasureHunt):
        def begin_epoch(self, epoch: int) -> None:
            super().begin_epoch(epoch)
            self.kept = [*getattr(self, "kept", []), mmap.mmap(-1, 5 * 2**20)]
            self.kept[-1].write(b"x" * 5 * 2**20)

    config = {"experiment": {"max_turns": 8}, "world": {"agents": 2}, "model": {"hidden": (8,)}}
    game, recorded = LeaksToo(config={**config, "parallel": {"backend": "inline"}}), Events()
    game.run_experiment(45, callbacks=[recorded, Recorder(game, tmp_path, every=2)])
    (told,) = [fields for name, fields in recorded.events if name == "memory_grows"]
    assert 4 * 2**20 < told["bytes_per_epoch"] < 7 * 2**20


def test_f36_buffers_that_fill_up_are_no_leak() -> None:
    """Each epoch writes megabytes that had not been written to before."""
    config = tiny(experiment={"max_turns": 800, "worlds": 16}, model={"buffer_size": 200_000})
    game, recorded = Filled(config=config), Events()
    game.run_experiment(22, callbacks=[recorded])
    assert game.prepare()._written_bytes() > 20 * 2**20
    assert "memory_grows" not in recorded.names()


class Filled(Line):
    """Sees and earns the same in every turn, so that turns cost nothing."""

    def begin_turn(self) -> None:
        pass

    def apply_agent(self, index: int, actions: Any) -> Any:
        return np.zeros(self.n_worlds, np.float32)


def test_f36_far_more_memory_than_after_the_start_is_reported_once_and_at_each_doubling() -> None:
    assert resident_bytes() > 10 * 2**20
    start = 2**30
    sizes = iter([start] * 3 + [int(FACTOR * start + SPARE) + 1] * 3 + [2**32] * 3)
    growth = MemoryMonitor(0, measure=lambda: next(sizes))
    assert [growth.after(WARM_UP + n) is not None for n in range(9)] == [False] * 3 + [True, False, False] * 2


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([0] * 8 + [90] * 20, id="once"),
        pytest.param([15 * (n // 4) for n in range(28)], id="now and then"),
        pytest.param([100 * (1.0 - 0.85**n) for n in range(28)], id="ever less"),
        pytest.param([0, 30, 60, 90] * 7, id="given back"),
        pytest.param([40 * (n % 2) for n in range(28)], id="given back at once"),
    ],
)
def test_f36_what_does_not_grow_steadily_is_no_leak(sizes: list[float]) -> None:
    given = iter(2**30 + int(2**20 * size) for size in sizes)
    growth = MemoryMonitor(0, measure=lambda: next(given))
    assert [growth.after(WARM_UP + n) for n in range(28)] == [None] * 28


def test_f36_memory_that_is_allocated_once_does_not_change_how_fast_a_leak_is_said_to_grow() -> None:
    mega = 2**20
    for jump in (2, 6, 10):  # in each of the three periods: a library is imported, say
        sizes = iter(2**30 + mega * (5 * n + 90 * (n >= jump)) for n in range(28))
        growth = MemoryMonitor(0, measure=lambda sizes=sizes: next(sizes))  # type: ignore[misc]
        (told,) = [told for n in range(28) if (told := growth.after(WARM_UP + n)) is not None]
        assert told["bytes_per_epoch"] == 5 * mega


def test_f36_pages_of_files_are_no_memory_that_a_run_holds(tmp_path: Path) -> None:
    """The system drops them when it likes; when they are read again, nothing has grown."""
    size = 32 * 2**20
    (tmp_path / "library").write_bytes(bytes(size))
    before = resident_bytes()
    with (tmp_path / "library").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        assert sum(pages[i] for i in range(0, size, mmap.PAGESIZE)) == 0
        assert resident_bytes() - before < size // 4
    with mmap.mmap(-1, size) as shared:
        shared.write(b"x" * size)
        assert resident_bytes() - before > size // 2


def test_f36_the_memory_of_other_processes_counts_and_of_those_that_have_ended_does_not() -> None:
    assert resident_bytes(["self", "self"]) >= 2 * 10 * 2**20
    assert resident_bytes([2**30]) == 0
