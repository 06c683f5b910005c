"""Kill a run again and again at random moments, resume it each time, and compare its digest with the undisturbed one.

    python -m tests.faults.campaign --kills 200 --folder runs/campaign

Runs are forked from a process that has imported everything and computed nothing, so that a kill costs a fraction of
a second instead of a start of the interpreter; each is a process group of its own, and the kill is a SIGKILL of all
of it. Half of the kills wait for a checkpoint that is just being written. With `--rivals`, a second process tries to
resume the run before each kill that waits for a checkpoint, and must be refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from parallel_agents.cli import main
from parallel_agents.cli import train as _train  # noqa: F401 - imported before the first fork

ROOT = Path(__file__).parents[2]
HUNT, MIXED = ROOT / "examples" / "treasure_hunt.py", ROOT / "tests" / "faults" / "mixed_game.py"
ALGORITHMS = {
    "dqn": ["--set", "model.updates_per_round=8"],
    "iqn": ["--algo", "iqn", "--set", "model.layer=16", "--set", "model.batch_size=8"],
    "ppo": ["--algo", "ppo", "--set", "model.hidden=[16]"],
    "mixed": ["--set", "model.updates_per_round=8"],
}
"""With `mixed`, some agents are outside of stacks: one that chooses by itself, and one with a learner of its own."""
BACKENDS = ("inline", "thread", "process")
PATIENCE = 240.0


def options(algorithm: str, backend: str, epochs: int) -> list[str]:
    return [
        str(MIXED if algorithm == "mixed" else HUNT), "--agents", "4", "--epochs", str(epochs), "--seed", "5",
        "--backend", backend, "--set", "parallel.train_interval=3", "--set", "experiment.checkpoint_every=1",
        "--set", "experiment.record_period=0", "--set", "experiment.max_turns=20", "--json", "--quiet",
        *ALGORITHMS[algorithm],
    ]  # fmt: skip


def begun(words: list[str], told: Path) -> int:
    """Start a run; its pid, which is also that of its process group."""
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):  # whoever of the two comes first makes the group
            os.setpgid(child, child)
        return child
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    for number, target in ((1, told), (2, told.with_suffix(".err"))):
        os.dup2(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os._exit(main(words))


def digest_of(words: list[str], folder: Path) -> str:
    told = folder / "told.json"
    pid = begun(words, told)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, told.with_suffix(".err").read_text()[-2000:]
    return str(json.loads(told.read_text())["digest"])


def manifests(out: Path) -> set[str]:
    return {path.name for path in (out / "checkpoints").glob("epoch-*.json")}


def writing(out: Path) -> bool:
    try:
        return any(name.endswith(".unfinished") for name in os.listdir(out / "checkpoints"))
    except OSError:
        return False


def until(condition: Callable[[], bool], pid: int, seconds: float) -> bool:
    """True once the condition holds, False if the run ends first or the time is over."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if condition():
            return True
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        time.sleep(0.0002)
    return False


def refused(pid: int, folder: Path, out: Path) -> bool:
    """Try to resume a run that process `pid` conducts; True if that was refused, False if the run had ended before."""
    rival = begun(["resume", str(out), "--json", "--quiet"], folder / "rival.json")
    _, status = os.waitpid(rival, 0)
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        return False
    told = (folder / "rival.json").read_text()
    assert os.waitstatus_to_exitcode(status) == 2, told
    assert f"process {pid} on" in told, told
    sys.stdout.write("a second writer was refused\n")
    sys.stdout.flush()  # before the next fork, which would write it again
    return True


def killed(words: list[str], folder: Path, out: Path, draws: np.random.Generator, *, rivals: bool) -> bool:
    """Start a run and kill it: while it starts, while it writes, or at any moment; False if it had ended before."""
    how, delay = float(draws.random()), float(draws.random())
    before = manifests(out)
    pid = begun(words, folder / "told.json")
    alive = True
    if how < 0.15:
        until(lambda: False, pid, 0.5 * delay)
    else:
        alive = until(lambda: not manifests(out) <= before, pid, PATIENCE)
        if alive and rivals:
            alive = refused(pid, folder, out)
        if alive and how < 0.65:
            until(lambda: False, pid, 0.1 * delay)
            alive = until(lambda: writing(out), pid, PATIENCE)
        elif alive:
            until(lambda: False, pid, 0.4 * delay)
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return not ended


def one_run(
    algorithm: str, backend: str, kills: int, folder: Path, seed: int, epochs: int, *, rivals: bool
) -> tuple[int, int]:
    """Kill one run so many times; kills, and those that struck while a checkpoint was written."""
    folder.mkdir(parents=True)
    draws = np.random.Generator(np.random.Philox(seed))
    expected = digest_of(["train", *options(algorithm, backend, epochs), "--out", str(folder / "whole")], folder)
    out, struck, in_write = folder / "run", 0, 0
    while struck < kills:
        words = ["resume", str(out), "--json", "--quiet"]
        if not manifests(out):
            shutil.rmtree(out, ignore_errors=True)
            words = ["train", *options(algorithm, backend, epochs), "--out", str(out)]
        if not killed(words, folder, out, draws, rivals=rivals):
            break
        struck += 1
        in_write += writing(out)
    found = digest_of(["resume", str(out), "--json", "--quiet"], folder)
    assert found == expected, f"{algorithm}, {backend}: after {struck} kills the digest differs"
    assert not list(out.rglob("*.unfinished")), "something was left behind"
    shutil.rmtree(folder)
    return struck, in_write


def conduct(kills: int, folder: Path, algorithms: list[str], backends: list[str], epochs: int, *, rivals: bool) -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    total, in_write, count = 0, 0, 0
    pairs = [(algorithm, backend) for algorithm in algorithms for backend in backends]
    while total < kills:
        algorithm, backend = pairs[count % len(pairs)]
        wanted = min(kills - total, -(-kills // len(pairs)))
        struck, struck_in_write = one_run(
            algorithm, backend, wanted, folder / f"{count}-{algorithm}-{backend}", count, epochs, rivals=rivals
        )
        total, in_write, count = total + struck, in_write + struck_in_write, count + 1
        line = {"algorithm": algorithm, "backend": backend, "kills": struck, "in_write": struck_in_write}
        sys.stdout.write(json.dumps({**line, "total": total, "total_in_write": in_write}) + "\n")
        sys.stdout.flush()
    left = (set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()) - before
    assert not {name for name in left if name.startswith("torch_")}, left
    sys.stdout.write(f"{total} kills, {in_write} of them during a checkpoint write; every digest as undisturbed\n")


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("--kills", type=int, default=200)
    words.add_argument("--folder", type=Path, required=True)
    words.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    words.add_argument("--backends", nargs="+", default=list(BACKENDS))
    words.add_argument("--epochs", type=int, default=300)
    words.add_argument("--rivals", action="store_true")
    given = words.parse_args()
    conduct(given.kills, given.folder, given.algorithms, given.backends, given.epochs, rivals=given.rivals)
