"""What it costs a run that people watch it."""

from __future__ import annotations

import json
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from benchmarks.measure import Effort, Measured, Row
from benchmarks.run import Bench

VIEWERS, AGENTS = 3, 8
_SETTLE, _WINDOW = 1.5, 4.0
"""Seconds until viewers have read what came before them, and seconds of one measurement."""
_TAIL_BYTES = 2**16


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    yield "watching", partial(_watching, effort)


def _watching(effort: Effort) -> Iterator[Row]:
    """Compare the turns per second of one run with and without viewers, who come and go all the time."""
    pairs = effort.repeats(16) or 2
    rates: dict[bool, list[float]] = {False: [], True: []}
    with TemporaryDirectory() as folder, _training(Path(folder) / "run") as address:
        metrics = Path(folder) / "run" / "metrics.jsonl"
        until = time.monotonic() + 120.0
        while _progress(metrics)[1] < effort.of(6, 1):  # compiling, and the choice of a backend
            if time.monotonic() > until:
                raise TimeoutError("the run has not begun after two minutes")
            time.sleep(0.2)
        for pair in range(pairs):
            for watched in (False, True) if pair % 2 == 0 else (True, False):
                with ExitStack() as stack:
                    for _ in range(VIEWERS if watched else 0):
                        stack.enter_context(_viewer(address))
                    time.sleep(_SETTLE)
                    turns, seconds = _progress(metrics)
                    time.sleep(_WINDOW)
                    later_turns, later_seconds = _progress(metrics)
                    rates[watched].append((later_turns - turns) / (later_seconds - seconds))
    ratios = [on / off for off, on in zip(rates[False], rates[True], strict=True)]
    yield Row(
        name=f"treasure hunt, {AGENTS} agents: turns/s with {VIEWERS} viewers of its page / without",
        ratio=statistics.median(ratios),
        goal=0.98,
        unit="times as fast",
        repeats=pairs,
        sides=tuple(_side(name, rates[watched]) for name, watched in (("without", False), ("with viewers", True))),
        detail={"ratios": [round(ratio, 4) for ratio in sorted(ratios)]},
    )


def _side(name: str, rates: list[float]) -> Measured:
    """Return what a thousand turns took, from turns per second in windows of time."""
    seconds = [1000 / rate for rate in rates]
    words = f"turns of one run in windows of {_WINDOW:g} s"
    return Measured(name, words, {"turns": 1000}, statistics.median(seconds), min(seconds), max(seconds))


@contextmanager
def _training(folder: Path) -> Iterator[str]:
    """Train with a page until the end of the block; yield the address of the page."""
    command = [sys.executable, "-m", "parallel_agents", "train", "treasure_hunt", "--agents", str(AGENTS),
               "--quiet", "--epochs", "10000000", "--set", "experiment.record_period=10000000", "--watch",
               "--out", str(folder)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as train:
        assert train.stderr is not None
        try:
            yield next(text.strip() for text in train.stderr if text.startswith("http://"))
            train.send_signal(signal.SIGINT)
            train.communicate(timeout=60.0)
        finally:
            train.kill()


@contextmanager
def _viewer(address: str) -> Iterator[None]:
    """Read the events of a page, as a browser does, until the end of the block."""
    host = urlsplit(address).netloc
    with socket.create_connection((urlsplit(address).hostname, urlsplit(address).port), timeout=30.0) as connection:
        connection.sendall(f"GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        if not connection.recv(2**16).startswith(b"HTTP/1.0 200"):
            raise RuntimeError("the page did not answer")
        reader = threading.Thread(target=_read_all, args=(connection,), daemon=True)
        reader.start()
        yield
        connection.shutdown(socket.SHUT_RDWR)
        reader.join(timeout=10.0)


def _read_all(connection: socket.socket) -> None:
    with suppress(OSError):  # the block has ended
        while connection.recv(2**20):
            pass


def _progress(metrics: Path) -> tuple[int, float]:
    """Return turns and seconds of a run until its last epoch; 0 before the first."""
    if not metrics.exists():
        return 0, 0.0
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - _TAIL_BYTES))
        lines = file.read().split(b"\n")[1:-1]
    epochs = (record for text in reversed(lines) if (record := json.loads(text))["kind"] == "epoch")
    last = next(epochs, {"total_timesteps": 0, "wall_seconds": 0.0})
    return last["total_timesteps"], last["wall_seconds"]
