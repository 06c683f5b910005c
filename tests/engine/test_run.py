"""Whole runs: counts, callbacks, how a run is continued, and how it ends when it fails."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.algorithms import DQN, RandomModel
from parallel_agents.algorithms.dqn import DQNLearner
from parallel_agents.core.errors import LearnerError, RunError
from parallel_agents.core.types import EpochStats, RoundStats, RunInfo
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.logs import bind, configure_logs
from tests.env.line_worlds import Line, LineOfObjects, tiny

AGENTS, TURNS, UPDATES = 3, 6, 2


class Recorder(BaseCallback):
    """Keeps everything it receives."""

    def __init__(self) -> None:
        self.starts: list[RunInfo] = []
        self.epochs: list[EpochStats] = []
        self.rounds: list[RoundStats] = []
        self.ends: list[Mapping[str, Any]] = []

    def on_start(self, run: RunInfo) -> None:
        self.starts.append(run)

    def on_epoch(self, stats: EpochStats) -> None:
        self.epochs.append(stats)

    def on_round(self, stats: RoundStats) -> None:
        self.rounds.append(stats)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.ends.append(summary)


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize(
    "flags", [{"backend": "inline"}, {"backend": "thread", "num_workers": 2}, {"backend": None, "enabled": False}]
)
def test_turns_rounds_and_updates_are_as_scheduled(flags: dict[str, Any], lag: int, nothing_left: None) -> None:
    recorder, worlds = Recorder(), 2
    sections = {"experiment": {"worlds": worlds, "epochs": 9}, "parallel": {**flags, "policy_lag": lag}}
    game = Line(config=tiny(**sections))
    summary = game.run_experiment(callbacks=[recorder])
    assert summary["epochs"] == 9
    assert summary["turns"] == 9 * TURNS
    assert summary["transitions"] == 9 * TURNS * AGENTS * worlds
    assert summary["rounds"] == 4
    assert summary["updates"] == 4 * UPDATES * AGENTS
    assert [int(agent.model.state["updates"][0]) for agent in game.agents] == [4 * UPDATES] * AGENTS
    assert [result.round for result in recorder.rounds] == list(range(1, 5 - lag))
    assert all(result.updates.tolist() == [UPDATES] * AGENTS for result in recorder.rounds)
    assert [stats.epoch for stats in recorder.epochs] == list(range(1, 10))
    boundaries = [(epoch - 1) // 2 for epoch in range(1, 10)]
    assert [stats.version for stats in recorder.epochs] == [max(0, passed - lag) for passed in boundaries]
    assert [stats.lag for stats in recorder.epochs] == [min(passed, lag) for passed in boundaries]
    assert (len(recorder.starts), len(recorder.ends)) == (1, 1)
    assert recorder.ends[0]["digest"] == summary["digest"]


def test_every_transition_is_stored_with_the_version_of_its_weights() -> None:
    game = Line(config=tiny(experiment={"epochs": 8}, parallel={"policy_lag": 1}, model={"buffer_size": 500}))
    game.run_experiment()
    rows = game.prepare().group.stacks[0].ring.live(1)
    versions = rows["version"][rows["valid"][:, 0]]
    epochs = np.repeat(np.arange(1, 9), TURNS)
    assert versions.tolist() == np.maximum(0, (epochs - 1) // 2 - 1).tolist()


def test_publishing_asap_stays_within_the_lag_and_has_no_digest(nothing_left: None) -> None:
    recorder = Recorder()
    flags = {"publish": "asap", "policy_lag": 2, "backend": "thread", "train_interval": 1}
    summary = Line(config=tiny(experiment={"epochs": 12}, parallel=flags)).run_experiment(callbacks=[recorder])
    assert summary["digest"] is None
    assert summary["digests"] is None
    assert summary["reproducible"] is False
    assert summary["updates"] == 12 * UPDATES * AGENTS
    assert all(0 <= stats.lag <= 2 for stats in recorder.epochs)
    assert [result.round for result in recorder.rounds] == list(range(1, len(recorder.rounds) + 1))


PROCESS = pytest.param("process", marks=pytest.mark.slow)


@pytest.mark.parametrize("backend", ["inline", "thread", PROCESS])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_run_continued_after_thirteen_epochs_equals_one_of_twenty_six(
    lag: int, backend: str, nothing_left: None
) -> None:
    def make() -> Line:
        flags = {"backend": backend, "policy_lag": lag, "train_interval": 3}
        return Line(config=tiny(world={"lives": True}, parallel=flags, experiment={"worlds": 2}))

    at_once, in_parts = make(), make()
    whole = at_once.run_experiment(26)
    half = in_parts.run_experiment(13)
    rest = in_parts.run_experiment(26)
    assert (half["epochs"], half["rounds"]) == (13, 4)
    assert rest["digest"] == whole["digest"] != half["digest"]
    for name in ("epochs", "turns", "transitions", "rounds", "updates"):
        assert rest[name] == whole[name], name


def learner_records(path: Path) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["event"] == "round_learnt"]


def test_a_learner_process_gives_the_bytes_of_inline_rounds_also_when_continued(
    tmp_path: Path, nothing_left: None
) -> None:
    def make(**flags: Any) -> Line:
        return Line(config=tiny(parallel={"policy_lag": 1, "train_interval": 3, **flags}))

    inline, process = make(), make(backend="process", num_workers=1)
    with configure_logs(tmp_path / "log.jsonl", run="k3", console=False):
        for stop in (7, 13):
            assert process.run_experiment(stop)["digest"] == inline.run_experiment(stop)["digest"]
            assert process.prepare().rounds._backend is None
    records = learner_records(tmp_path / "log.jsonl")
    assert [line["round"] for line in records] == [1, 2, 3, 4]
    assert {(line["run"], line["role"]) for line in records} == {("k3", "learner")}
    assert len({line["process"] for line in records} - {os.getpid()}) == 2


def test_records_of_a_learner_thread_carry_run_role_and_thread(tmp_path: Path, nothing_left: None) -> None:
    with configure_logs(tmp_path / "log.jsonl", run="k3", console=False), bind(role="runtime"):
        Line(config=tiny(parallel={"backend": "thread", "num_workers": 2})).run_experiment()
    records = learner_records(tmp_path / "log.jsonl")
    assert {(line["run"], line["role"], line["process"]) for line in records} == {("k3", "learner", os.getpid())}
    assert {line["thread"] for line in records} <= {"learner-0", threading.current_thread().name}  # the loop helps
    assert [line["round"] for line in records] == [1, 2, 3]


def test_the_digest_depends_on_what_is_run_and_not_on_how() -> None:
    def digest(**sections: dict[str, Any]) -> str:
        return str(Line(config=tiny(**sections)).run_experiment()["digest"])

    base = digest()
    for actions, training, enabled in itertools.product((True, False), repeat=3):
        flags = {"parallel_actions": actions, "parallel_training": training, "enabled": enabled}
        assert digest(parallel=flags) == base, flags
    changes: list[dict[str, dict[str, Any]]] = [
        {"experiment": {"seed": 4}},
        {"experiment": {"epochs": 7}},
        {"parallel": {"policy_lag": 0}},
        {"parallel": {"train_interval": 3}},
        {"parallel": {"turn_order": "sequential"}},
        {"model": {"lr": 2e-3}},
        {"world": {"agents": 4}},
    ]
    others = [digest(**change) for change in changes]
    assert len({base, *others}) == 1 + len(changes)


def test_a_run_to_an_epoch_that_is_over_changes_nothing() -> None:
    game = Line(config=tiny())
    before = game.run_experiment(5)
    assert game.run_experiment(0)["digest"] == game.run_experiment(5)["digest"] == before["digest"]
    assert game.run_experiment(3)["epochs"] == 5


def test_a_run_of_no_epochs_does_nothing() -> None:
    summary = Line(config=tiny()).run_experiment(0)
    assert (summary["epochs"], summary["turns"], summary["updates"]) == (0, 0, 0)


def _fail(*_: Any) -> None:
    raise FloatingPointError("the loss overflowed")


@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_a_failing_learner_ends_the_run_with_its_cause_and_the_run_cannot_be_continued(
    backend: str, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    recorder, game = Recorder(), Line(config=tiny(parallel={"backend": backend, "max_failures": 0}))
    game.prepare()
    monkeypatch.setattr(DQNLearner, "learn", _fail)
    with pytest.raises(LearnerError, match=r"(?s)round 1.*FloatingPointError.*the loss overflowed"):
        game.run_experiment(callbacks=[recorder])
    assert recorder.ends == [{}]
    assert game.agents[0].model.busy is None
    monkeypatch.undo()
    with pytest.raises(RunError, match="by LearnerError and cannot go on: make a new environment"):
        game.run_experiment()


def test_a_callback_that_fails_changes_nothing() -> None:
    class Failing(BaseCallback):
        def on_epoch(self, stats: EpochStats) -> None:
            raise RuntimeError("broken callback")

    recorder = Recorder()
    summary = Line(config=tiny()).run_experiment(callbacks=[Failing(), recorder])
    assert summary["digest"] == Line(config=tiny()).run_experiment()["digest"]
    assert len(recorder.epochs) == 6


class Mixed(Line):
    """Agents 0 and 2 share a stack, agent 1 has another, agent 3 is standalone."""

    default_config = {"world": {**Line.default_config["world"], "agents": 4}}

    def setup_agents(self) -> None:
        super().setup_agents()
        self.agents[1].model = DQN((3,), 3, **{**self.config.model, "hidden": (4,)})
        self.agents[3].model = RandomModel((3,), 3)


def test_callbacks_receive_each_round_once_with_all_agents_in_canonical_order() -> None:
    recorder = Recorder()
    game = Mixed(config=tiny(parallel={"policy_lag": 0}))
    summary = game.run_experiment(callbacks=[recorder])
    assert [result.round for result in recorder.rounds] == [1, 2, 3]
    for result in recorder.rounds:
        assert result.updates.tolist() == [UPDATES, UPDATES, UPDATES, 0]
        assert np.isfinite(result.metrics["loss"]).tolist() == [True, True, True, False]
    for stats in recorder.epochs:
        assert stats.rewards.shape == (4,)
        assert np.isnan(stats.metrics["epsilon"]).tolist() == [False, False, False, True]
        assert stats.metrics["buffer_fill"].shape == (4,)
    assert summary["updates"] == 3 * 3 * UPDATES


@pytest.mark.parametrize("kind", [Line, LineOfObjects])
def test_models_hold_the_newest_weights_after_a_run(kind: Any) -> None:
    game = kind(config=tiny(parallel={"policy_lag": 2}))
    game.run_experiment()
    run = game.prepare()
    for row, agent in enumerate(game.agents):
        newest = run.rounds.newest[0].rows(slice(row, row + 1))
        assert agent.model.state["online"].equal(newest["online"])
        assert not agent.model.state["online"].equal(run.group.stacks[0].inference.weights.rows[row : row + 1])


@pytest.mark.parametrize(("lag", "sync"), [(0, "lock"), (1, "lock"), (2, "lock"), (1, "snapshot")])
def test_the_thread_that_takes_snapshots_makes_no_difference(lag: int, sync: str, nothing_left: None) -> None:
    def digest(**flags: Any) -> str:
        config = tiny(experiment={"epochs": 10}, parallel={"train_interval": 1, "policy_lag": lag, **flags})
        return str(Line(config=config).run_experiment()["digest"])

    assert digest(backend="thread", num_workers=2, buffer_sync=sync) == digest()
