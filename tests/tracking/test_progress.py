from __future__ import annotations

import io
import os
import pty
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog

from parallel_agents.core.errors import ConfigError
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.logs import configure_logs
from parallel_agents.tracking.progress import LiveProgress, PlainProgress, show_progress

Make = Callable[..., Any]


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_plain_line_is_written_every_few_seconds(make_run: Make, make_epoch: Make) -> None:
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, every=5.0, clock=clock)
    progress.on_start(make_run(epochs=100))
    for epoch in range(1, 101):
        clock.now += 0.5
        progress.on_epoch(make_epoch(epoch))
    progress.on_end({})
    first, *lines = stream.getvalue().splitlines()
    assert first == "hunt: 3 agents, 1 world, epochs 1 to 100; the first epochs may compile kernels, once"
    assert lines[0] == "epoch 1/100  ep_rew_mean 3  ep_len_mean 30  fps 400  updates/s 24  lag 1"
    assert lines[1] == "epoch 11/100  ep_rew_mean 3  ep_len_mean 30  fps 400  updates/s 24  lag 1"
    assert lines[-1] == "epoch 100/100  ep_rew_mean 3  ep_len_mean 30  fps 400  updates/s 24  lag 1  after 0:00:50"
    assert len(lines) == 11


def test_the_start_of_workers_on_ray_is_told(make_run: Make) -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream, clock=FakeClock())
    progress.on_start(make_run(epochs=100))
    progress.on_event("ray_starting", {"address": "auto"})
    assert stream.getvalue().splitlines()[-1] == "epoch 0/100  starting workers on Ray (auto)"


def test_rates_are_over_the_last_seconds(make_run: Make, make_epoch: Make) -> None:
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, every=0.0, clock=clock)
    progress.on_start(make_run(epochs=300))
    for epoch in range(1, 301):
        clock.now += 1.0 if epoch <= 100 else 0.1
        progress.on_epoch(make_epoch(epoch))
    lines = stream.getvalue().splitlines()[1:]
    assert "epoch 100/300  ep_rew_mean 3  ep_len_mean 30  fps 200  " in lines[99]
    assert "fps 2,000  " in lines[299]


def test_a_resumed_run_does_not_count_earlier_updates(make_run: Make, make_epoch: Make) -> None:
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, every=0.0, clock=clock)
    progress.on_start(make_run(epochs=60, first_epoch=51))
    for epoch in (51, 52):
        clock.now += 1.0
        progress.on_epoch(make_epoch(epoch))
    assert stream.getvalue().splitlines()[1:] == [
        "epoch 51/60  ep_rew_mean 3  ep_len_mean 30  fps 200  updates/s 0  lag 1",
        "epoch 52/60  ep_rew_mean 3  ep_len_mean 30  fps 200  updates/s 6  lag 1",
    ]


def test_before_the_first_episode_has_ended_the_reward_of_the_epoch_is_shown(make_run: Make, make_epoch: Make) -> None:
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, clock=clock)
    progress.on_start(make_run())
    clock.now += 1.0
    progress.on_epoch(make_epoch(1, episodes=np.zeros((3, 3))))
    assert stream.getvalue().splitlines(keepends=True)[1] == "epoch 1/10  reward 3  fps 200  updates/s 12  lag 1\n"


def test_a_run_that_ends_before_its_first_epoch_writes_its_last_line(make_run: Make) -> None:
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, clock=clock)
    progress.on_start(make_run())
    progress.on_end({})
    assert stream.getvalue().splitlines(keepends=True)[1] == "epoch 0/10  starting  after 0:00:00\n"


def test_a_jumping_wall_clock_does_not_change_the_rates(
    make_run: Make, make_epoch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = iter(range(0, -10_000, -1))
    monkeypatch.setattr(time, "time", lambda: next(jumps) * 1e6)
    for progress, stream in (
        (show_progress(stream=(plain := io.StringIO()), every=0.0), plain),
        (show_progress(stream=(live := Terminal())), live),
    ):
        progress.on_start(make_run(epochs=3))
        for epoch in (1, 2, 3):
            time.sleep(0.02)
            progress.on_epoch(make_epoch(epoch))
        progress.on_end({})
        rates = [int(rate.replace(",", "")) for rate in re.findall(r"fps ([\d,]+)", stream.getvalue())]
        assert rates
        assert all(0 < rate <= 10_000 for rate in rates)


def test_a_terminal_gets_a_bar_and_another_stream_plain_lines() -> None:
    assert isinstance(show_progress(stream=io.StringIO()), PlainProgress)
    assert isinstance(show_progress(stream=Terminal()), LiveProgress)
    assert type(show_progress(stream=Terminal(), quiet=True)) is BaseCallback


def test_quiet_writes_nothing(make_run: Make, make_epoch: Make) -> None:
    stream = Terminal()
    progress = show_progress(stream=stream, quiet=True)
    progress.on_start(make_run())
    progress.on_epoch(make_epoch(1))
    progress.on_end({})
    assert stream.getvalue() == ""


def test_the_bar_is_drawn_on_a_terminal_and_the_cursor_restored(
    make_run: Make, make_epoch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    reading, writing = pty.openpty()
    threads = threading.active_count()
    with os.fdopen(writing, "w") as stream:
        clock = FakeClock()
        progress = show_progress(stream=stream, clock=clock)
        assert isinstance(progress, LiveProgress)
        progress.on_start(make_run(epochs=4, environment="[bold]hunt"))
        for epoch in (1, 2, 3, 4):
            clock.now += 0.5
            progress.on_epoch(make_epoch(epoch))
        assert threading.active_count() == threads  # no thread that could outlive the run
        progress.on_end({})
        stream.flush()
        shown = ""
        while "\x1b[?25h" not in shown:  # a terminal gives its output in pieces
            shown += os.read(reading, 65536).decode()
    os.close(reading)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "[bold]hunt" in text
    assert "4/4 ep_rew_mean 3  fps 400  updates/s 24  lag 1" in text
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor is hidden and shown again


def test_the_bar_is_not_redrawn_at_every_epoch_and_fits_80_columns(
    make_run: Make, make_epoch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream, clock = Terminal(), FakeClock()
    progress = LiveProgress(stream, clock)
    progress.on_start(make_run(epochs=1000))
    start = len(stream.getvalue())
    for epoch in range(1, 101):
        clock.now += 0.001
        progress.on_epoch(make_epoch(epoch))
    assert len(stream.getvalue()) == start
    clock.now += 0.25
    progress.on_epoch(make_epoch(101))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()[start:])
    assert " 101/1000 ep_rew_mean 3  fps 57,714  updates/s 3,463  lag 1 " in text
    assert max(map(len, text.strip().splitlines())) <= 80
    assert "a ▁▂▂▃▃▄▅▅▆▆▇██  b ▁▂▂▃▃▄▅▅▆▆▇██  c ▁▂▂▃▃▄▅▅▆▆▇██" in text, "12 means of 8 epochs, and one of the last 5"
    progress.on_end({})


def test_log_lines_scroll_above_the_bar(
    tmp_path: Path, make_run: Make, make_epoch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream, clock = Terminal(), FakeClock()
    monkeypatch.setattr(sys, "stderr", stream)
    progress = show_progress(clock=clock)
    with configure_logs(tmp_path / "log.jsonl", run="k3"):
        progress.on_start(make_run())
        structlog.get_logger().warning("careful")
        clock.now += 1
        progress.on_epoch(make_epoch(1))
        progress.on_end({})
    assert sys.stderr is stream
    erased = stream.getvalue().replace("\r\x1b[2K", "\n")  # the bar is erased, and its line used
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", erased).splitlines()
    (line,) = (line for line in lines if "careful" in line)
    assert "fps" not in line
    assert "hunt" not in line


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a progress line every -1 seconds is impossible: give 0 or more"):
        show_progress(stream=io.StringIO(), every=-1)


def test_a_notebook_gets_one_output_that_is_updated(
    make_run: Make, make_epoch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, str]] = []

    class ZMQInteractiveShell:
        """What IPython's shell is called in a notebook."""

    class Handle:
        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            shown.append(bundle)

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append(bundle)
        return Handle()

    ipython = SimpleNamespace(get_ipython=ZMQInteractiveShell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    clock = FakeClock()
    progress = show_progress(stream=io.StringIO(), clock=clock)
    progress.on_start(make_run())
    clock.now += 2.0
    progress.on_epoch(make_epoch(1))
    progress.on_end({})
    assert [bundle["text/plain"][:10] for bundle in shown] == ["epoch 0/10", "epoch 1/10", "epoch 1/10"]
    assert "ep_rew_mean 3" in shown[1]["text/html"]
