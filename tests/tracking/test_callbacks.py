from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from parallel_agents.core.types import EpochStats, RoundStats, RunInfo
from parallel_agents.tracking import callbacks
from parallel_agents.tracking.callbacks import BaseCallback, CallbackList, Throttle


class Recorder(BaseCallback):
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_start(self, run: RunInfo) -> None:
        self.calls.append(("start", run.run_id))

    def on_epoch(self, stats: EpochStats) -> None:
        self.calls.append(("epoch", stats.epoch))

    def on_round(self, result: RoundStats) -> None:
        self.calls.append(("round", result.round))

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        self.calls.append((name, dict(fields)))

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.calls.append(("end", dict(summary)))


class Failing(BaseCallback):
    def on_epoch(self, stats: EpochStats) -> None:
        if stats.epoch == 2:
            raise ZeroDivisionError("the callback is broken")


def _call_all(
    callbacks: CallbackList,
    make_run: Callable[..., RunInfo],
    make_epoch: Callable[..., EpochStats],
    make_round: Callable[..., RoundStats],
) -> None:
    callbacks.on_start(make_run())
    for epoch in (1, 2, 3):
        callbacks.on_epoch(make_epoch(epoch))
    callbacks.on_round(make_round(1))
    callbacks.on_event("retry", {"round": 1})
    callbacks.on_end({"epochs": 3})


ALL_CALLS = [
    ("start", "r1"),
    ("epoch", 1),
    ("epoch", 2),
    ("epoch", 3),
    ("round", 1),
    ("retry", {"round": 1}),
    ("end", {"epochs": 3}),
]


def test_every_callback_gets_every_call_in_order(make_run: Any, make_epoch: Any, make_round: Any) -> None:
    first, second = Recorder(), Recorder()
    _call_all(CallbackList([first, BaseCallback(), second]), make_run, make_epoch, make_round)
    assert first.calls == second.calls == ALL_CALLS


def test_a_failing_callback_is_logged_once_and_dropped(make_run: Any, make_epoch: Any, make_round: Any) -> None:
    before, after = Recorder(), Recorder()
    several = CallbackList([before, Failing(), after])
    with capture_logs() as logs:
        _call_all(several, make_run, make_epoch, make_round)
    assert before.calls == after.calls == ALL_CALLS
    assert len(several) == 2
    assert [(e["event"], e["callback"], e["method"], e["log_level"]) for e in logs] == [
        ("callback_dropped", "Failing", "on_epoch", "error")
    ]
    assert logs[0]["exc_info"] is True


def test_only_a_callback_that_says_so_is_busy() -> None:
    class Method(BaseCallback):
        def busy(self) -> bool:
            return False

    class Breaks(BaseCallback):
        @property
        def busy(self) -> bool:
            raise ValueError("unknown")

    class Busy(BaseCallback):
        busy = True

    several = CallbackList([Method(), Breaks()])
    with capture_logs() as logs:
        assert not several.busy
    assert [(entry["callback"].rpartition(".")[2], entry["method"]) for entry in logs] == [("Breaks", "busy")]
    assert len(several) == 1
    assert CallbackList([Method(), Busy()]).busy


def test_a_throttle_keeps_its_distance_and_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [50.0], []
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def work(seconds: float) -> None:
        calls.append(now[0])
        now[0] += seconds

    throttle = Throttle(every=1.0, share=0.01)
    for seconds, wait in ((0.001, 0.9), (0.001, 0.2), (0.05, 4.9), (0.0, 0.2), (0.0, 0.5)):
        throttle.call(lambda seconds=seconds: work(seconds))
        now[0] += wait
    assert calls == pytest.approx([50.0, 51.101, 56.251]), "after 50 ms it waits for 5 s"
    assert not throttle.is_due
    throttle.call(lambda: work(0.0), always=True)
    assert len(calls) == 4


def test_a_keyboard_interrupt_is_passed_on(make_epoch: Callable[..., EpochStats]) -> None:
    class Interrupting(BaseCallback):
        def on_epoch(self, stats: EpochStats) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CallbackList([Interrupting()]).on_epoch(make_epoch(1))


def test_a_callback_cannot_change_a_result(make_epoch: Any, make_round: Any) -> None:
    class Changing(BaseCallback):
        def on_epoch(self, stats: EpochStats) -> None:
            stats.rewards[0] = 1e9

        def on_round(self, result: RoundStats) -> None:
            result.metrics["values"][0] = 1e9

        def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
            fields["level"] = "none"  # type: ignore[index]

    stats, result = make_epoch(1), make_round(1, metrics={"values": np.ones(3)})
    fields = {"round": 1}
    with capture_logs() as logs:
        CallbackList([Changing()]).on_epoch(stats)
        CallbackList([Changing()]).on_round(result)
        CallbackList([Changing()]).on_event("retry", fields)
    assert [entry["event"] for entry in logs] == ["callback_dropped"] * 3
    assert stats.rewards.tolist() == [1.0, 2.0, 6.0]
    assert stats.rewards.flags.writeable
    assert result.metrics["values"].tolist() == [1.0, 1.0, 1.0]
    assert fields == {"round": 1}


def test_the_fields_of_an_event_do_not_change_later(make_epoch: Any) -> None:
    kept: list[Mapping[str, Any]] = []

    class Keeping(BaseCallback):
        def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
            kept.append(fields)

    fields = {"round": 1}
    CallbackList([Keeping()]).on_event("retry", fields)
    fields["round"] = 2
    assert kept == [MappingProxyType({"round": 1})]
