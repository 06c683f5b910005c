"""A worker process answers in order, reports what went wrong, and ends when asked; shared blocks hold arrays."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import pytest
import torch

from parallel_agents.core.errors import DeadlineError, LearnerError, WorkerDied
from parallel_agents.execution.backend import Heartbeat
from parallel_agents.execution.workers import SharedBlock, Worker


def echo(heartbeat: Heartbeat, greeting: str) -> Callable[[object], object]:
    """Serve requests that each show something of the process."""

    def answer(request: object) -> object:
        if request == "main":
            return vars(sys.modules["__main__"]).get("__file__")
        if request == "safe path":
            return os.environ.get("PYTHONSAFEPATH"), sys.flags.safe_path
        if request == "exit":
            os._exit(7)
        if request == "lock":
            return (lambda: None,)  # cannot be pickled
        if isinstance(request, float):
            time.sleep(request)
        return f"{greeting} {request}"

    return answer


def fails_at_start(heartbeat: Heartbeat) -> Callable[[object], object]:
    raise OSError("no such device")


@pytest.mark.parametrize("before", [None, "yes"])
def test_a_worker_starts_without_the_current_folder_and_its_environment_stays_as_it_was(
    before: str | None, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that a world starts find the `PYTHONSAFEPATH` that they found before."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONSAFEPATH", before)
    worker = Worker("echo", echo, "hello")
    assert os.environ.get("PYTHONSAFEPATH") == before
    worker.send("safe path")
    assert worker.ready()
    assert worker.receive(20.0) == (before, True)
    worker.close()


def test_a_worker_answers_in_order_and_drops_late_answers(nothing_left: None) -> None:
    worker = Worker("echo", echo, "hello")
    script = sys.modules["__main__"]
    assert worker.ready()
    assert worker.ready(0.0)  # asking again neither waits nor takes an answer away
    for request in (1, 2):
        worker.send(request)
    assert [worker.receive(20.0) for _ in range(2)] == ["hello 1", "hello 2"]
    assert not worker.answered()
    worker.send("main")
    assert worker.receive(20.0) is None  # it has not run the script of its parent
    assert sys.modules["__main__"] is script
    worker.send(0.4)
    with pytest.raises(DeadlineError, match=r"echo \(pid \d+\) did not answer within 0\.05 s: it is at request 4"):
        worker.receive(0.05)
    assert "in answer" in worker.tracebacks()  # where it hangs
    worker.send(5)
    assert worker.receive(20.0) == "hello 5"  # not the answer that came too late
    assert worker.heartbeat.busy() is None
    worker.send("lock")
    with pytest.raises(LearnerError, match=r"(?s)echo .*failed.*[Pp]ickle"):
        worker.receive(20.0)
    worker.close()


def test_a_worker_that_ends_by_itself_or_never_starts_is_reported(nothing_left: None) -> None:
    worker = Worker("echo", echo, "hello")
    broken = Worker("broken", fails_at_start)
    assert worker.ready()
    worker.send("exit")
    with pytest.raises(WorkerDied, match=r"echo \(pid \d+\) ended by exit code 7"):
        worker.receive(20.0)
    with pytest.raises(LearnerError, match=r"(?s)broken .* failed.*no such device"):
        broken.ready()
    worker.close()
    broken.close()


def fill(heartbeat: Heartbeat, block: SharedBlock) -> Callable[[float], None]:
    """Write a number into an array of the block that the parent has made."""

    def answer(number: float) -> None:
        block["weights"].fill_(number)

    return answer


def test_a_shared_block_holds_aligned_arrays_in_one_piece_of_memory_that_workers_write(nothing_left: None) -> None:
    layout = {
        "mask": ((3,), torch.bool),
        "weights": ((2, 5), torch.float64),
        "none": ((0, 4), torch.float32),
        "count": ((), torch.int64),
    }
    block = SharedBlock(layout)
    assert SharedBlock.nbytes(layout) == 64 + 128 + 0 + 64
    for name, (shape, kind) in layout.items():
        assert (tuple(block[name].shape), block[name].dtype) == (shape, kind)
        assert block[name].data_ptr() % 64 == block["mask"].data_ptr() % 64 or not block[name].numel()
    block["mask"].fill_(True)
    block["count"].fill_(-1)
    worker = Worker("fills", fill, block)
    worker.send(2.5)
    assert worker.ready()
    worker.receive(20.0)
    assert block["weights"].unique().tolist() == [2.5]
    assert block["mask"].all()
    assert int(block["count"]) == -1
    worker.close()
