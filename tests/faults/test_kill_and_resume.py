"""Runs killed at random moments and resumed each time end with the digest of the undisturbed run (F25, F30)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "parallel_agents.cli"]
SETTINGS = {
    "dqn": ["--set", "model.updates_per_round=8"],
    "iqn": ["--algo", "iqn", "--set", "model.layer=16", "--set", "model.batch_size=8"],
    "ppo": ["--algo", "ppo", "--set", "model.hidden=[16]"],
}


def options(algorithm: str, backend: str, epochs: int) -> list[str]:
    return [
        "examples/treasure_hunt.py", "--agents", "3", "--epochs", str(epochs), "--seed", "5", "--backend", backend,
        "--set", "parallel.train_interval=3", "--set", "experiment.checkpoint_every=1", "--set", "experiment.record_period=0",
        "--set", "experiment.max_turns=20", "--json", "--quiet", *SETTINGS[algorithm],
    ]  # fmt: skip


def digest_of(words: list[str]) -> str:
    ended = subprocess.run([*COMMAND, *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return str(json.loads(ended.stdout)["digest"])


def manifests(out: Path) -> set[str]:
    return {path.name for path in (out / "checkpoints").glob("epoch-*.json")}


def killed(words: list[str], out: Path, delay: float, *, at_start: bool) -> bool:
    """Start, wait for a new checkpoint (or kill while it starts), wait a little more, kill; False if it had ended."""
    before = manifests(out)
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    give_up = time.monotonic() + 60.0
    while not at_start and manifests(out) <= before and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.005)
    try:
        process.wait(timeout=delay)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        return True


def campaign(algorithm: str, backend: str, kills: int, folder: Path, *, seed: int, epochs: int = 60) -> tuple[int, int]:
    """Kill a run again and again until it was killed `kills` times; kills, and those during a checkpoint write."""
    draws = np.random.Generator(np.random.Philox(seed))
    expected = digest_of(["train", *options(algorithm, backend, epochs), "--out", str(folder / "undisturbed")])
    out, struck, in_write = folder / "run", 0, 0
    while struck < kills:
        words = ["resume", str(out), "--json", "--quiet"]
        if not manifests(out):
            shutil.rmtree(out, ignore_errors=True)
            words = ["train", *options(algorithm, backend, epochs), "--out", str(out)]
        if not killed(words, out, 0.4 * float(draws.random()), at_start=bool(struck and draws.random() < 0.2)):
            break
        struck += 1
        in_write += any((out / "checkpoints").glob(".*"))
    found = digest_of(["resume", str(out), "--json", "--quiet"])
    assert found == expected, f"{algorithm}, {backend}: after {struck} kills the digest differs"
    assert not list((out / "checkpoints").glob(".*")), "something was left behind"
    return struck, in_write


def test_F25_F30_a_killed_run_is_resumed_exactly(tmp_path: Path) -> None:
    began = time.monotonic()
    struck, _ = campaign("dqn", "thread", 3, tmp_path, seed=1, epochs=300)
    assert struck >= 1, f"nothing was killed in {time.monotonic() - began:.0f} s"


@pytest.mark.nightly
@pytest.mark.timeout(10_000)
def test_F25_F30_two_hundred_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    total, writing = 0, 0
    while total < 200:
        for algorithm in SETTINGS:
            for backend in ("inline", "thread", "process"):
                folder = tmp_path / f"{algorithm}-{backend}-{total}"
                folder.mkdir()
                struck, in_write = campaign(algorithm, backend, 23, folder, seed=total, epochs=600)
                total, writing = total + struck, writing + in_write
    with capsys.disabled():
        sys.stdout.write(f"\n{total} kills, {writing} of them during a checkpoint write\n")
