"""Whole commands under signals, kills and exits: each leaves a result or a checkpoint, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.execution.conftest import shared_memory
from tests.faults.conftest import begin, until
from tests.faults.forked import Forked, command, script

START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # as from a terminal
from parallel_agents.cli import main
sys.exit(main())
"""
HASTY = {"parallel_agents.cli.process_watchdog:GRACE": 1.0}
GAME = '''
"""Counts, and may hang in a turn."""
import time
import numpy as np
from parallel_agents import Agent, ParallelEnvironment


class Count(ParallelEnvironment):
    default_config = {
        "experiment": {"epochs": 1000000, "max_turns": 5, "checkpoint_every": 1},
        "world": {"agents": 2, "hang": False},
        "model": {"hidden": (4,), "batch_size": 2, "updates_per_round": 2, "learning_starts": 2, "buffer_size": 50},
        "parallel": {"train_interval": 1, "num_workers": 1},
    }

    def setup_agents(self):
        self.agents = [Agent(model=self.make_model((2,), 3)) for _ in range(2)]

    def reset(self):
        pass

    def observe(self):
        return np.full((2, self.n_worlds, 2), self.turn, np.float32)

    def apply_actions(self, actions):
        if self.config.world["hang"] and self.epoch == 3:
            time.sleep(600.0)
        return np.zeros((2, self.n_worlds), np.float32)
'''


def started(
    folder: Path, *words: str, anew: bool = False, patches: Mapping[str, object] | None = None
) -> subprocess.Popen[str] | Forked:
    """Start a run in a process group of its own, and return it once it has written two checkpoints.

    anew: in a new interpreter, as from a terminal.
    """
    (folder / "count.py").write_text(GAME)
    words = ("train", "count.py", "--quiet", "--json", "--out", "mine", *words)
    process = begin("-c", START, *words, folder=folder) if anew else command(folder, *words, patches=patches)
    second = folder / "mine" / "checkpoints" / "epoch-000002.json"
    assert until(lambda: second.exists() or process.poll() is not None, 90.0), "the run did not get going"
    assert process.poll() is None, process.communicate()
    return process


def gone(pids: list[str], within: float) -> bool:
    """Wait until none of the processes runs; return False if one still does after so many seconds."""
    return until(lambda: not any(map(_runs, pids)), within)


def _runs(pid: str) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def family(process: subprocess.Popen[str] | Forked) -> list[str]:
    """Return the processes of the group other than the first."""
    listed = subprocess.run(["ps", "-o", "pid=", "-g", str(process.pid)], capture_output=True, text=True, check=False)
    return [pid for pid in listed.stdout.split() if int(pid) != process.pid]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_f21_f22_a_signal_finishes_the_epoch_writes_a_checkpoint_and_ends_the_run(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    process = started(tmp_path, "--backend", "thread", anew=number == signal.SIGINT)
    time.sleep(0.05 * (number % 7))
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    result = json.loads(out)
    stopped = int(result["message"].split()[3])  # stopped after epoch N of M
    newest = sorted((tmp_path / "mine" / "checkpoints").glob("epoch-*.json"))[-1]
    assert newest.name == f"epoch-{stopped:06d}.json"
    last = json.loads((tmp_path / "mine" / "log.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["level"], last["message"]) == ("run_stopped", "info", result["message"])
    assert "error" not in err, "it was asked to stop"


def test_f21_a_second_interrupt_ends_the_run_at_once(tmp_path: Path) -> None:
    process = started(tmp_path, "--backend", "inline", "--set", "world.hang=true")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None  # it finishes the epoch, or would
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert time.monotonic() - began < 10.0
    assert not list((tmp_path / "mine").rglob("*.unfinished"))


def test_f21_an_epoch_that_does_not_end_within_the_grace_period_is_abandoned(tmp_path: Path) -> None:
    process = started(tmp_path, "--backend", "inline", "--set", "world.hang=true", patches=HASTY)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "finishing the epoch" in err


def test_f23_f24_a_killed_parent_leaves_no_child_and_no_shared_memory(tmp_path: Path) -> None:
    before = shared_memory()
    process = started(tmp_path, "--backend", "process", anew=True)
    children = family(process)
    assert len(children) >= 3, "the run, the server that forks workers, and a worker"
    process.kill()
    process.communicate(timeout=30)
    assert gone(children, 2.0)
    assert shared_memory() <= before


def test_f24_a_killed_group_leaves_no_shared_memory_either(tmp_path: Path) -> None:
    before = shared_memory()
    process = started(tmp_path, "--backend", "process")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert gone(family(process), 2.0)
    assert shared_memory() <= before


def test_f38_what_cannot_be_interrupted_ends_the_command_and_writes_tracebacks(tmp_path: Path) -> None:
    """A world that hangs and ignores the interruption: the process ends all the same."""
    stubborn = GAME.replace(
        "            time.sleep(600.0)\n",
        "            while True:\n                try:\n                    time.sleep(600.0)\n"
        "                except BaseException:\n                    continue\n",
    ).replace(
        "import time\n", "import time\nfrom parallel_agents.execution import watchdog\nwatchdog.LAST_GRACE = 0.5\n"
    )
    assert "BaseException" in stubborn
    (tmp_path / "stubborn.py").write_text(stubborn)
    words = ["train", "stubborn.py", "--quiet", "--out", "mine", "--backend", "inline"]
    settings = ["--set", "world.hang=true", "--set", "parallel.world_deadline=0.5"]
    ended = command(tmp_path, *words, *settings).ended()
    assert ended.returncode == 1, ended.stderr
    assert "hangs at turn 1 of epoch 3 and cannot be interrupted" in ended.stderr
    assert "in apply_actions" in next((tmp_path / "mine").glob("stacks-*.txt")).read_text()


ODD = (
    GAME.replace("import time\n", "import ctypes\nimport os\nimport sys\nimport time\n")
    .replace('"hang": False}', '"do": ""}')
    .replace(
        'if self.config.world["hang"] and self.epoch == 3:\n            time.sleep(600.0)',
        'if self.epoch == 3 and self.turn == 2:\n            exec(self.config.world["do"])',
    )
)


def odd(folder: Path, do: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run four epochs with a checkpoint of each, in which a world does something odd in the third."""
    assert "exec" in ODD
    (folder / "odd.py").write_text(ODD)
    words = ("train", "odd.py", "--quiet", "--out", "mine", "--epochs", "4", "--set", f"world.do={do}", *words)
    return command(folder, *words).ended()


def last_record(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "mine" / "log.jsonl").read_text().splitlines()[-1]))


@pytest.mark.parametrize("do", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_f73_a_world_that_ends_the_process_is_a_failure_with_its_place(do: str, tmp_path: Path) -> None:
    ended = odd(tmp_path, do, "--json")
    assert ended.returncode == 1, ended.stderr
    result = json.loads(ended.stdout)
    how = "signal SIGKILL" if "kill" in do else "exit code 0"
    assert result["error"] == "WorldError"
    assert f"ended by {how} at turn 2 of epoch 3, before the run was over" in result["message"]
    assert result["message"] in ended.stderr
    assert last_record(tmp_path)["cause"] == result["message"]
    assert (tmp_path / "mine" / "checkpoints" / "epoch-000001.json").exists()


def test_f73_sys_exit_before_the_run_is_a_failure_too(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(
        "import sys\nfrom parallel_agents import ParallelEnvironment\n"
        "class Leaves(ParallelEnvironment):\n    def __init__(self, **_):\n        sys.exit(0)\n"
    )
    ended = command(tmp_path, "train", "leaves.py", "--json", "--quiet").ended()
    assert ended.returncode == 1, ended.stderr
    assert json.loads(ended.stdout) == {"error": "SystemExit", "message": "sys.exit(0) was called"}


def test_f74_what_a_world_prints_never_breaks_the_json(tmp_path: Path) -> None:
    """By print, a descriptor, a child process, C code with a buffer of its own, another stream, or at the very end."""
    ways = "import atexit; atexit.register(print, 'F'); print('A'); os.write(1, b'B\\n'); os.system('echo C'); ctypes.CDLL(None).puts(b'D')"
    stream = "sys.__stdout__.write('E\\n'); sys.__stdout__.flush(); sys.__stdout__.write('G\\n')"
    ended = odd(tmp_path, f"{ways}; {stream}", "--json")
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    assert json.loads(line)["epochs"] == 4
    assert set("ABCDEFG") <= set(ended.stderr.split())


def test_f75_a_world_that_hangs_in_c_with_the_lock_is_ended_from_outside_and_named(tmp_path: Path) -> None:
    do = "from parallel_agents.execution import watchdog; watchdog.LAST_GRACE = 0.5; time.sleep(0.6)"
    # A PyDLL keeps the interpreter's lock; a lock taken twice, unlike a sleep, is not ended by a signal either.
    hang = "libc, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64); "
    hang += "libc.pthread_mutex_lock(lock); libc.pthread_mutex_lock(lock)"
    settings = ["--set", "parallel.world_deadline=0.5", "--backend", "inline"]
    ended = odd(tmp_path, f"{do}; {hang}", "--json", *settings)
    assert ended.returncode == 1, ended.stderr
    message = json.loads(ended.stdout)["message"]
    assert "Count has held the interpreter's lock for more than 2 s at turn 2 of epoch 3" in message
    assert message in ended.stderr
    record = last_record(tmp_path)
    assert (record["event"], record["error"], record["cause"]) == ("run_failed", "DeadlineError", message)
    assert "in apply_actions" in Path(record["stacks"]).read_text()
    assert (tmp_path / "mine" / "checkpoints" / "epoch-000001.json").exists()


def test_f41_every_record_says_which_run_role_thread_and_version(tmp_path: Path) -> None:
    from parallel_agents.tracking.logs import EventLog, bind, configure_logs
    from tests.env.line_worlds import Line, tiny

    with configure_logs(tmp_path / "log.jsonl", run="k3", console=False), bind(role="conductor"):
        Line(config=tiny(parallel={"backend": "thread", "num_workers": 2})).run_experiment(callbacks=[EventLog()])
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {record["role"] for record in records} == {"conductor", "learner"}
    for record in records:
        assert {"run", "role", "agent", "version", "thread", "process"} <= set(record)
        assert record["run"] == "k3"
        assert record["thread"]


def test_f42_a_script_that_fails_while_learners_are_busy_ends_quickly(tmp_path: Path) -> None:
    ended = script(
        tmp_path,
        """
import threading, time
from parallel_agents.algorithms.dqn import DQNLearner
from tests.env.line_worlds import Line, tiny

def hang(self, *given):
    threading.Event().wait()


class Game(Line):
    def begin_turn(self):
        super().begin_turn()
        if self.epoch == 4:
            raise ValueError("main has failed")

game = Game(config=tiny(parallel={"backend": "thread", "num_workers": 1, "policy_lag": 3}))
game.prepare()
DQNLearner.learn = hang
began = time.monotonic()
try:
    game.run_experiment()
finally:
    left = [thread.name for thread in threading.enumerate() if not thread.daemon]
    assert left == ["MainThread"], left
    print(f"{time.monotonic() - began:.2f}")
""",
    ).ended()
    assert ended.returncode == 1
    assert "main has failed" in ended.stderr
    assert float(ended.stdout) < 10.0
