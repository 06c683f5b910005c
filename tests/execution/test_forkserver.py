"""Workers are forked quickly, are what a process of their own would be, and never outlive their parent."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.core.errors import WorkerDied
from parallel_agents.execution import forkserver
from parallel_agents.execution.backend import Heartbeat
from parallel_agents.execution.workers import Worker
from tests.execution.conftest import children, worker_processes

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("nothing_left")


def evaluate(heartbeat: Heartbeat) -> Callable[[str], Any]:
    """Serve expressions."""
    return lambda text: eval(text, {"os": os, "resource": resource, "np": np, "sys": sys})


def ask(worker: Worker, text: str) -> Any:
    worker.send(text)
    worker.ready()
    return worker.receive(60.0)


def server_of(worker: Worker) -> int:
    return int(ask(worker, "os.getppid()"))


def test_one_server_forks_all_workers_of_a_process() -> None:
    workers = [Worker(f"worker-{n}", evaluate) for n in range(3)]
    (server,) = {server_of(worker) for worker in workers}
    assert server in children(os.getpid())
    assert sorted(worker.pid for worker in workers) == sorted(worker_processes(os.getpid()))
    for worker in workers:
        worker.close()


def test_a_worker_that_answers_before_its_pid_is_reported_is_waited_for() -> None:
    status, report = os.pipe()
    process = forkserver.ForkedProcess(status, None)  # type: ignore[arg-type]
    try:
        assert not process.known(0.01)
        late = threading.Timer(0.2, os.write, (report, forkserver._NUMBER.pack(4321)))
        late.start()
        assert process.known(10.0)
        assert (process.pid, process.poll()) == (4321, False)
        late.join(10.0)
    finally:
        os.close(report)


def test_a_worker_has_the_environment_limits_and_folder_of_the_moment_it_was_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = Worker("first", evaluate)
    server = server_of(first)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
        monkeypatch.chdir(tmp_path)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
        second = Worker("second", evaluate)
        assert ask(second, "os.environ.get('OMP_NUM_THREADS'), os.getcwd()") == ("7", str(tmp_path))
        assert ask(second, "resource.getrlimit(resource.RLIMIT_NOFILE)") == (before[0] - 1, before[1])
        assert server_of(second) != server
        assert server_of(first) == server  # which lives for as long as a worker of it does
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for worker in (first, second):
        worker.close()


def test_workers_write_to_the_output_of_the_moment_and_draw_their_own_random_numbers(
    capfd: pytest.CaptureFixture[str],
) -> None:
    workers = [Worker(f"worker-{n}", evaluate) for n in range(2)]
    drawn = {ask(worker, "float(np.random.random())") for worker in workers}
    assert len(drawn) == 2
    ask(workers[0], "os.write(1, b'to stdout'), os.write(2, b'to stderr')")
    assert capfd.readouterr() == ("to stdout", "to stderr")
    for worker in workers:
        worker.close()


def test_if_the_server_is_killed_its_workers_end_and_the_next_one_gets_another_server() -> None:
    worker = Worker("worker", evaluate)
    server = server_of(worker)
    os.kill(server, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"worker \(pid \d+\) ended by the end of the server that starts workers"):
        worker.receive(10.0)
    again = Worker("again", evaluate)
    assert server_of(again) != server
    for one in (worker, again):
        one.close()


def test_a_failed_fork_is_reported_with_its_cause() -> None:
    status, theirs = os.pipe()
    forked = forkserver.ForkedProcess(status, None)  # type: ignore[arg-type]
    assert not forked.poll()
    os.write(theirs, forkserver._NUMBER.pack(-errno.EAGAIN))
    os.close(theirs)
    assert forked.poll()
    assert forked.end == "a failed start: Resource temporarily unavailable"


KILLED = """
import os, signal, sys, time
from parallel_agents.execution.workers import Worker
from tests.execution.test_forkserver import evaluate, server_of

worker = Worker("worker", evaluate)
server = server_of(worker)
if os.fork() == 0:  # holds all descriptors of its parent open
    time.sleep(60.0)
    os._exit(0)
worker.send("__import__('time').sleep(60.0)")
time.sleep(0.3)
print(server, worker.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_server_and_workers_end_with_a_killed_parent_whatever_it_has_forked() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        pids = process.stdout.readline().split()
        process.wait(20.0)
        assert len(pids) == 2
        give_up = time.monotonic() + 5.0
        while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < give_up:
            time.sleep(0.02)
        assert left == []
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the forked one
        process.communicate()


def test_a_process_that_was_forked_from_ours_starts_a_server_of_its_own() -> None:
    worker = Worker("worker", evaluate)
    server_of(worker)
    assert forkserver._server is not None
    assert forkserver._server.usable()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"yes" if forkserver._server.usable() else b"no")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 3) == b"no"
    for descriptor in (reading, writing):
        os.close(descriptor)
    worker.close()
