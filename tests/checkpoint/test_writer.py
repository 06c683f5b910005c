"""Checkpoints are copied at once and written beside the run; failed writes are reported."""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.checkpoint import Checkpointer, restore, writer
from parallel_agents.checkpoint.store import Store
from parallel_agents.core.errors import CheckpointError, WorldError
from parallel_agents.tracking.callbacks import BaseCallback
from tests.env.line_worlds import Line, tiny

WRITE = Store.write


class Events(BaseCallback):
    """Records events, and calls something after given epochs."""

    def __init__(self, **at: Any) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.epochs: list[int] = []
        self.at = {int(epoch.removeprefix("epoch_")): call for epoch, call in at.items()}

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        self.events.append((name, fields))

    def on_epoch(self, stats: Any) -> None:
        self.epochs.append(stats.epoch)
        self.at.get(stats.epoch, lambda: None)()


class Breaks(Line):
    """Fails in its third epoch."""

    def begin_turn(self) -> None:
        super().begin_turn()
        if self.epoch == 3:
            raise RuntimeError("something broke")


def game_with_checkpoints(folder: Path, every: int, kind: type[Line] = Line) -> Line:
    game = kind(config=tiny(experiment={"epochs": 8, "checkpoint_every": every}))
    game.prepare().checkpointer = Checkpointer(game.prepare(), folder, keep_last=9)
    return game


def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let files be written only once the event is set."""
    gate = threading.Event()

    def write(self: Store, name: str, arrays: Any) -> Any:
        assert gate.wait(30.0)
        return WRITE(self, name, arrays)

    monkeypatch.setattr(Store, "write", write)
    return gate


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "checkpoint writer"]


def test_the_run_continues_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = slow_disk(monkeypatch)
    game = game_with_checkpoints(tmp_path, every=4)
    recorded = Events(epoch_7=gate.set)  # epochs 5 to 7 were played with the checkpoint of epoch 4 unwritten
    summary = game.run_experiment(callbacks=[recorded])
    assert Store(tmp_path).epochs() == [4, 8]
    assert summary["unwritten_checkpoints"] == 0
    assert not writers()


def test_a_checkpoint_written_late_holds_the_run_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Line(config=tiny()).run_experiment(8)["digest"]
    gate = slow_disk(monkeypatch)
    game_with_checkpoints(tmp_path, every=4).run_experiment(callbacks=[Events(epoch_7=gate.set)])
    (tmp_path / "checkpoints" / "epoch-000008.json").unlink()
    again = Line(config=tiny())
    assert restore(again.prepare(), tmp_path)[0].epoch == 4
    assert again.run_experiment(8)["digest"] == whole


def test_a_failed_write_is_reported_at_the_next_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Store, name: str, arrays: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    game = game_with_checkpoints(tmp_path, every=3)
    told: list[tuple[str, Mapping[str, Any]]] = []

    def look() -> None:
        monkeypatch.undo()
        told.extend(recorded.events)

    recorded = Events(
        epoch_2=lambda: monkeypatch.setattr(Store, "write", full),
        epoch_4=lambda: game.prepare().checkpointer.wait(20.0),  # type: ignore[union-attr]
        epoch_5=look,
    )
    summary = game.run_experiment(callbacks=[recorded])
    assert [(name, fields["epoch"]) for name, fields in told] == [("checkpoint_failed", 3)]
    assert summary["unwritten_checkpoints"] == 1
    assert Store(tmp_path).epochs() == [6, 8]


def test_a_run_that_fails_leaves_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = slow_disk(monkeypatch)
    threading.Timer(0.5, gate.set).start()
    with pytest.raises(WorldError, match="something broke"):
        game_with_checkpoints(tmp_path, 2, Breaks).run_experiment()
    assert not writers()
    assert Store(tmp_path).epochs() == [2]


def test_a_run_that_ends_by_an_error_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, recorded = slow_disk(monkeypatch), Events()
    monkeypatch.setattr(writer, "CLOSING", 0.1)
    with pytest.raises(WorldError, match="something broke"):
        game_with_checkpoints(tmp_path, 2, Breaks).run_experiment(callbacks=[recorded])
    assert [name for name, _ in recorded.events] == ["checkpoint_unfinished"]
    gate.set()
    for thread in writers():
        thread.join(20.0)


def test_a_disk_that_hangs_ends_the_run_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = slow_disk(monkeypatch)
    monkeypatch.setattr(writer, "DEADLINE", 0.1)
    monkeypatch.setattr(writer, "CLOSING", 0.1)
    with pytest.raises(CheckpointError, match=r"checkpoint of epoch 2 was not written within 0.1 s.*`resume` goes on"):
        game_with_checkpoints(tmp_path, every=2).run_experiment()
    gate.set()
    for thread in writers():
        thread.join(20.0)


def test_what_fails_after_a_checkpoint_exists_never_costs_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old ones cannot be removed after epoch 2, and the one of epoch 4 dies before its manifest."""

    def refuse(self: Store, *given: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    game = game_with_checkpoints(tmp_path, every=2)

    def next_fault() -> None:
        assert game.prepare().checkpointer.wait(20.0)  # type: ignore[union-attr]
        monkeypatch.undo()
        monkeypatch.setattr(Store, "commit", refuse)

    monkeypatch.setattr(Store, "rotate", refuse)
    game.run_experiment(4, callbacks=[Events(epoch_3=next_fault)])
    assert Store(tmp_path).newest_good()[0].epoch == 2
