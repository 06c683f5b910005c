from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from parallel_agents.tracking.listeners import Listeners, SilentListener
from parallel_agents.types import EpochStats, RoundResult, RunInfo


class Heard(SilentListener):
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_start(self, run: RunInfo) -> None:
        self.calls.append(("start", run.run_id))

    def on_epoch(self, stats: EpochStats) -> None:
        self.calls.append(("epoch", stats.epoch))

    def on_round(self, result: RoundResult) -> None:
        self.calls.append(("round", result.round))

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        self.calls.append((name, dict(fields)))

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.calls.append(("end", dict(summary)))


class Failing(SilentListener):
    def on_epoch(self, stats: EpochStats) -> None:
        if stats.epoch == 2:
            raise ZeroDivisionError("the sink is broken")


def _tell_all(
    listeners: Listeners,
    make_run: Callable[..., RunInfo],
    make_epoch: Callable[..., EpochStats],
    make_round: Callable[..., RoundResult],
) -> None:
    listeners.on_start(make_run())
    for epoch in (1, 2, 3):
        listeners.on_epoch(make_epoch(epoch))
    listeners.on_round(make_round(1))
    listeners.on_event("retry", {"round": 1})
    listeners.on_end({"epochs": 3})


EVERYTHING = [
    ("start", "r1"),
    ("epoch", 1),
    ("epoch", 2),
    ("epoch", 3),
    ("round", 1),
    ("retry", {"round": 1}),
    ("end", {"epochs": 3}),
]


def test_everyone_hears_everything_in_order(make_run: Any, make_epoch: Any, make_round: Any) -> None:
    first, second = Heard(), Heard()
    _tell_all(Listeners([first, SilentListener(), second]), make_run, make_epoch, make_round)
    assert first.calls == second.calls == EVERYTHING


def test_a_failing_listener_is_reported_once_and_dropped(make_run: Any, make_epoch: Any, make_round: Any) -> None:
    before, after = Heard(), Heard()
    listeners = Listeners([before, Failing(), after])
    with capture_logs() as said:
        _tell_all(listeners, make_run, make_epoch, make_round)
    assert before.calls == after.calls == EVERYTHING
    assert len(listeners) == 2
    assert [(e["event"], e["listener"], e["method"], e["log_level"]) for e in said] == [
        ("listener_dropped", "Failing", "on_epoch", "error")
    ]
    assert said[0]["exc_info"] is True


def test_an_interrupt_is_not_a_failure(make_epoch: Callable[..., EpochStats]) -> None:
    class Interrupting(SilentListener):
        def on_epoch(self, stats: EpochStats) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Listeners([Interrupting()]).on_epoch(make_epoch(1))


def test_a_listener_cannot_change_a_result(make_epoch: Any, make_round: Any) -> None:
    class Meddling(SilentListener):
        def on_epoch(self, stats: EpochStats) -> None:
            stats.rewards[0] = 1e9

        def on_round(self, result: RoundResult) -> None:
            result.priorities["values"][0] = 1e9

        def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
            fields["level"] = "none"  # type: ignore[index]

    stats, result = make_epoch(1), make_round(1, priorities={"values": np.ones(3)})
    fields = {"round": 1}
    with capture_logs() as said:
        Listeners([Meddling()]).on_epoch(stats)
        Listeners([Meddling()]).on_round(result)
        Listeners([Meddling()]).on_event("retry", fields)
    assert [entry["event"] for entry in said] == ["listener_dropped"] * 3
    assert stats.rewards.tolist() == [1.0, 2.0, 6.0]
    assert stats.rewards.flags.writeable
    assert result.priorities["values"].tolist() == [1.0, 1.0, 1.0]
    assert fields == {"round": 1}


def test_what_was_told_does_not_change_later(make_epoch: Any) -> None:
    kept: list[Mapping[str, Any]] = []

    class Keeping(SilentListener):
        def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
            kept.append(fields)

    fields = {"round": 1}
    Listeners([Keeping()]).on_event("retry", fields)
    fields["round"] = 2
    assert kept == [MappingProxyType({"round": 1})]
