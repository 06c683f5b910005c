"""Learners that raise, hang, die or give NaN: the round is repeated or skipped, and the cause reported."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.algorithms.dqn import DQNLearner
from parallel_agents.core.errors import LearnerError
from parallel_agents.execution.backend import Heartbeat
from parallel_agents.execution.process import _serve as serve
from parallel_agents.execution.workers import Worker
from parallel_agents.tracking.callbacks import BaseCallback
from tests.env.line_worlds import Line, tiny
from tests.execution.test_handover import torn_reads
from tests.faults.conftest import run

pytestmark = pytest.mark.usefixtures("nothing_left")
LEARN = DQNLearner.learn


class Events(BaseCallback):
    """Records events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.lags: list[int] = []

    def on_event(self, name: str, fields: Any) -> None:
        self.events.append((name, dict(fields)))

    def on_epoch(self, stats: Any) -> None:
        self.lags.append(stats.lag)

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


def undisturbed(**sections: Any) -> str:
    return str(Line(config=tiny(**sections)).run_experiment()["digest"])


def misbehaving(times: int, do: Callable[[], None], at_round: int = 2) -> Any:
    """Return a `learn` that fails so many times in round `at_round`."""
    left = [times]

    def learn(self: Any, state: Any, snapshot: Any, identity: Any) -> Any:
        if snapshot.round == at_round and left[0] > 0:
            left[0] -= 1
            do()
        return LEARN(self, state, snapshot, identity)

    return learn


def boom() -> None:
    raise FloatingPointError("the loss went through the roof")


@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_f01_a_learner_that_raises_once_changes_nothing(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Events()
    game = Line(config=tiny(parallel={"backend": backend, "num_workers": 1}))
    game.prepare()
    monkeypatch.setattr(DQNLearner, "learn", misbehaving(1, boom))
    summary = game.run_experiment(callbacks=[recorded])
    (told,) = [fields for name, fields in recorded.events if name == "round_failed"]
    assert "FloatingPointError" in told["cause"]
    assert "agents 0, 1, 2" in told["cause"]
    assert summary["reproducible"] is True
    assert summary["digest"] == undisturbed()


def test_f01_an_error_is_reported_at_once_and_ends_a_strict_run(monkeypatch: pytest.MonkeyPatch) -> None:
    raised_at: list[float] = []

    def fail() -> None:
        raised_at.append(time.monotonic())
        boom()

    game = Line(config=tiny(parallel={"backend": "thread", "num_workers": 1, "max_failures": 0}))
    game.prepare()
    monkeypatch.setattr(DQNLearner, "learn", misbehaving(99, fail))
    with pytest.raises(LearnerError, match=r"(?s)round 2.*agents 0.*through the roof") as raised:
        game.run_experiment()
    assert len(raised_at) == 2  # once, and once again on a fresh worker
    assert time.monotonic() - raised_at[-1] < 4.0  # 2 s on an idle machine: the thread is ended as well
    assert raised.value.__cause__ is not None


def test_f04_a_killed_worker_is_replaced_and_the_bytes_stay_the_same(tmp_path: Path) -> None:
    """Killed while it computes and while it idles."""
    recorded = Events()

    class Killer(BaseCallback):
        def on_epoch(self, stats: Any) -> None:
            if stats.epoch in (3, 7):
                os.kill(game.prepare().rounds._backend._workers[0].pid, signal.SIGKILL)

    sections: Any = {"experiment": {"epochs": 9}}
    flags = {"backend": "process", "num_workers": 1}
    game = Line(config=tiny(**sections, parallel=flags))
    summary = game.run_experiment(callbacks=[recorded, Killer()])
    told = [(name, fields) for name, fields in recorded.events if name in ("round_failed", "worker_replaced")]
    assert len(told) == 2, recorded.events
    assert all("learner-0 (pid" in fields["cause"] and "SIGKILL" in fields["cause"] for _, fields in told)
    assert summary["digest"] == undisturbed(**sections)


class TwoArguments(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
        self.lock = threading.Lock()


def fails_awkwardly(heartbeat: Heartbeat, part: str) -> Any:
    if part == "start":
        raise TwoArguments("no such device", "really")

    def answer(request: Any) -> Any:
        if request == "raise":
            raise TwoArguments("the pole broke", "really")
        if request == "flood":
            return b"x" * 10_000_000
        if isinstance(request, float):
            time.sleep(request)
        return request

    return answer


def test_f05_an_error_that_cannot_be_pickled_arrives_as_text() -> None:
    worker = Worker("learner-0", fails_awkwardly, "")
    assert worker.ready()
    worker.send("raise")
    with pytest.raises(LearnerError, match=r"(?s)learner-0 .*test_learners\.py.*TwoArguments: the pole broke"):
        worker.receive(20.0)
    worker.close()


def test_f08_the_process_of_the_user_is_never_forked_whatever_the_script_prefers(tmp_path: Path) -> None:
    """And a script without a main guard is not run again by the learner processes."""
    (tmp_path / "script.py").write_text(
        """
import multiprocessing, torch
multiprocessing.set_start_method("fork")
import parallel_agents
with open("runs.txt", "a") as file:
    file.write("once ")
torch.ones(500, 500) @ torch.ones(500, 500)
from tests.env.line_worlds import Line, tiny
summary = Line(config=tiny(parallel={"backend": "process", "num_workers": 1})).run_experiment()
print(summary["backend"], summary["digest"])
"""
    )
    ended = run("-W", "error", "script.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["process", Line(config=tiny()).run_experiment()["digest"]]
    assert (tmp_path / "runs.txt").read_text() == "once "


def test_f06_f09_late_and_unread_answers_neither_confuse_nor_block() -> None:
    from parallel_agents.core.errors import DeadlineError

    worker = Worker("learner-0", fails_awkwardly, "")
    assert worker.ready()
    worker.send(0.3)
    with pytest.raises(DeadlineError):
        worker.receive(0.05)
    worker.send("next")
    assert worker.receive(20.0) == "next"
    worker.send("flood")  # more than a pipe holds, and nobody reads it
    time.sleep(0.2)
    began = time.monotonic()
    worker.close()
    assert time.monotonic() - began < 4.0  # 2 s for an orderly end, then it is killed


def test_f10_published_weights_are_never_torn() -> None:
    assert torn_reads("thread") == (0, 0)
    assert torn_reads("thread", in_place=True)[0] > 10, "the test would not see a torn read"


def test_f11_published_weights_never_change() -> None:
    game = Line(config=tiny(parallel={"backend": "thread", "num_workers": 1, "policy_lag": 1}))
    stack = game.prepare().group.stacks[0]
    seen: list[tuple[torch.Tensor, bytes]] = []

    class Hasher(BaseCallback):
        def on_epoch(self, stats: Any) -> None:
            rows = stack.inference.weights.rows
            seen.append((rows, rows.numpy().tobytes()))

    game.run_experiment(24, callbacks=[Hasher()])
    assert len({held for _, held in seen}) > 5
    assert all(rows.numpy().tobytes() == held for rows, held in seen)


def test_f13_f39_a_slow_learner_never_falls_further_behind_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(self: Any, *given: Any) -> Any:
        time.sleep(0.02)
        return LEARN(self, *given)

    recorded = Events()
    flags = {"publish": "asap", "policy_lag": 2, "backend": "thread", "num_workers": 1, "train_interval": 1}
    game = Line(config=tiny(experiment={"epochs": 20}, parallel=flags))
    run = game.prepare()
    monkeypatch.setattr(DQNLearner, "learn", slow)
    kept: list[int] = []

    class Counter(BaseCallback):
        def on_epoch(self, stats: Any) -> None:
            kept.append(len(run.rounds._in_flight))

    game.run_experiment(callbacks=[recorded, Counter()])
    assert max(recorded.lags) == 2
    assert max(kept) <= 3  # what waits to be learnt is bounded, so is its memory


def test_f15_a_poisoned_batch_is_rejected_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(self: Any, state: Any, snapshot: Any, identity: Any) -> Any:
        if snapshot.round == 2:
            snapshot = type(snapshot)(2, {**snapshot.columns, "returns": snapshot["returns"].copy()})
            snapshot["returns"][1] = np.nan
        return LEARN(self, state, snapshot, identity)

    game = Line(config=tiny(parallel={"policy_lag": 0}))
    game.prepare()
    monkeypatch.setattr(DQNLearner, "learn", poisoned)
    summary = game.run_experiment()
    assert summary["rejected_updates"] == 2  # those of one agent in one round
    for agent in game.agents:
        assert all(bool(torch.isfinite(tensor).all()) for tensor in agent.model.state.tensors.values())
    done = [int(agent.model.state["updates"][0]) for agent in game.agents]
    assert done[1] == done[0] - 2 == done[2] - 2


def test_f20_every_thread_and_worker_computes_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counted(self: Any, *given: Any) -> Any:
        counts.append(torch.get_num_threads())
        return LEARN(self, *given)

    game = Line(config=tiny(parallel={"backend": "thread", "num_workers": 1}, model={"kernels": "torch"}))
    game.prepare()
    monkeypatch.setattr(DQNLearner, "learn", counted)
    summary = game.run_experiment()
    assert set(counts) == {1}
    assert summary["fingerprint"]["threads"] == "1"


def test_f37_a_deadlock_is_broken_and_all_tracebacks_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, released = threading.Lock(), threading.Lock(), threading.Event()

    def holds_the_other() -> None:
        with other:
            released.wait(30.0)

    def deadlock() -> None:
        with one:
            other.acquire(timeout=30.0)
            other.release()

    holder = threading.Thread(target=holds_the_other, name="holder")
    holder.start()
    flags = {"backend": "thread", "num_workers": 1, "round_deadline": 0.5}
    game, recorded = Line(config=tiny(parallel=flags)), Events()
    game.prepare().watchdog.folder = tmp_path
    monkeypatch.setattr(DQNLearner, "learn", misbehaving(1, deadlock))
    summary = game.run_experiment(callbacks=[recorded])
    released.set()
    holder.join()
    (told,) = [fields for name, fields in recorded.events if name == "round_failed"]
    assert "round 2 of agents 0, 1, 2, from weights of version 1" in told["cause"]
    assert summary["digest"] == undisturbed()
    text = next(tmp_path.glob("stacks-*.txt")).read_text()
    assert "in deadlock" in text
    assert "in holds_the_other" in text


def test_f37_what_hangs_in_the_thread_of_the_loop_is_interrupted_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung: list[int] = []

    def learn(self: Any, state: Any, snapshot: Any, identity: Any) -> Any:
        if snapshot.round == 2 and threading.current_thread() is not threading.main_thread():
            time.sleep(0.2)  # leaves something to the loop
        elif snapshot.round == 2 and not hung:
            hung.append(2)
            hang_for_ever()
        return LEARN(self, state, snapshot, identity)

    flags = {"backend": "thread", "num_workers": 2, "round_deadline": 0.5}
    game, recorded = Line(config=tiny(parallel=flags)), Events()
    game.prepare().watchdog.folder = tmp_path
    monkeypatch.setattr(DQNLearner, "learn", learn)
    summary = game.run_experiment(callbacks=[recorded])
    assert hung == [2]
    (told,) = [fields for name, fields in recorded.events if name == "round_failed"]
    assert "learner in the thread of the loop has been at round 2 of agents" in told["cause"]
    assert summary["digest"] == undisturbed()
    assert "in hang_for_ever" in next(tmp_path.glob("stacks-*.txt")).read_text()


def hangs_in_round_two(*given: Any) -> Any:
    """Serve as a learner process does, except that round 2 never ends."""
    answer = serve(*given)

    def slow(request: Any) -> Any:
        if request[0] == 2:
            given[0].beat(2, 0)
            hang_for_ever()
        return answer(request)

    return slow


def hang_for_ever() -> None:
    time.sleep(600.0)


def test_f37_a_hung_process_is_reported_with_its_traceback_and_killed_and_its_round_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parallel_agents.execution.process._serve", hangs_in_round_two)
    # a loaded machine needs some of these seconds for round 1, in which the process loads its kernels
    flags = {"backend": "process", "num_workers": 1, "round_deadline": 4.0, "max_failures": 0}
    game = Line(config=tiny(parallel=flags))
    game.prepare().watchdog.folder = tmp_path
    with pytest.raises(LearnerError, match=r"(?s)round 2 failed twice.*learner-0 \(pid \d+\).*agents 0, 1, 2"):
        game.run_experiment()
    text = next(tmp_path.glob("stacks-*.txt")).read_text()
    assert "in hang_for_ever" in text
    assert "--- learner-0 (pid" in text


def test_f40_a_round_that_always_fails_is_repeated_once_skipped_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Events()
    game = Line(config=tiny(parallel={"backend": "thread", "num_workers": 1}))
    game.prepare()
    monkeypatch.setattr(DQNLearner, "learn", misbehaving(99, boom))
    summary = game.run_experiment(callbacks=[recorded])
    assert recorded.names() == ["round_failed", "round_failed", "round_skipped"]
    assert (summary["failures"], summary["reproducible"], summary["digest"]) == (1, False, None)


def test_f40_the_run_ends_if_every_round_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(self: Any, *_: Any) -> Any:
        boom()

    game = Line(config=tiny(experiment={"epochs": 20}, parallel={"max_failures": 3}))
    game.prepare()
    monkeypatch.setattr(DQNLearner, "learn", always)
    with pytest.raises(LearnerError, match=r"3 rounds in a row have failed \(parallel.max_failures is 3\)"):
        game.run_experiment()
