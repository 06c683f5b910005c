"""Whole runs: what is counted, what listeners hear, how a run goes on, and how it ends when it fails."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.errors import LearnerError, RunError
from parallel_agents.learning import DQNLearner
from parallel_agents.tracking.listeners import SilentListener
from parallel_agents.tracking.logs import bind, configure_logs
from parallel_agents.types import EpochStats, RoundResult, RunInfo
from tests.environment.line_worlds import Line, LineOfObjects, tiny

AGENTS, TURNS, UPDATES = 3, 6, 2


class Ear(SilentListener):
    """Keeps everything it hears."""

    def __init__(self) -> None:
        self.starts: list[RunInfo] = []
        self.epochs: list[EpochStats] = []
        self.rounds: list[RoundResult] = []
        self.ends: list[Mapping[str, Any]] = []

    def on_start(self, run: RunInfo) -> None:
        self.starts.append(run)

    def on_epoch(self, stats: EpochStats) -> None:
        self.epochs.append(stats)

    def on_round(self, result: RoundResult) -> None:
        self.rounds.append(result)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.ends.append(summary)


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize(
    "flags", [{"backend": "inline"}, {"backend": "thread", "num_workers": 2}, {"backend": None, "enabled": False}]
)
def test_turns_rounds_and_updates_are_as_scheduled(flags: dict[str, Any], lag: int, nothing_left: None) -> None:
    ear, worlds = Ear(), 2
    sections = {"experiment": {"worlds": worlds, "epochs": 9}, "parallel": {**flags, "policy_lag": lag}}
    game = Line(config=tiny(**sections))
    summary = game.run_experiment(listeners=[ear])
    assert summary["epochs"] == 9
    assert summary["turns"] == 9 * TURNS
    assert summary["transitions"] == 9 * TURNS * AGENTS * worlds
    assert summary["rounds"] == 4
    assert summary["updates"] == 4 * UPDATES * AGENTS
    assert [int(agent.model.state["updates"][0]) for agent in game.agents] == [4 * UPDATES] * AGENTS
    assert [result.round for result in ear.rounds] == list(range(1, 5 - lag))
    assert all(result.updates.tolist() == [UPDATES] * AGENTS for result in ear.rounds)
    assert [stats.epoch for stats in ear.epochs] == list(range(1, 10))
    boundaries = [(epoch - 1) // 2 for epoch in range(1, 10)]
    assert [stats.version for stats in ear.epochs] == [max(0, passed - lag) for passed in boundaries]
    assert [stats.lag for stats in ear.epochs] == [min(passed, lag) for passed in boundaries]
    assert (len(ear.starts), len(ear.ends)) == (1, 1)
    assert ear.ends[0]["digest"] == summary["digest"]


def test_every_transition_carries_the_version_that_chose_it() -> None:
    game = Line(config=tiny(experiment={"epochs": 8}, parallel={"policy_lag": 1}, model={"buffer_size": 500}))
    game.run_experiment()
    kept = game.prepare().crew.stacks[0].ring.live(1)
    versions = kept["version"][kept["valid"][:, 0]]
    chosen_in = np.repeat(np.arange(1, 9), TURNS)
    assert versions.tolist() == np.maximum(0, (chosen_in - 1) // 2 - 1).tolist()


def test_free_running_keeps_its_bound_and_has_no_digest(nothing_left: None) -> None:
    ear = Ear()
    flags = {"publish": "asap", "policy_lag": 2, "backend": "thread", "train_interval": 1}
    summary = Line(config=tiny(experiment={"epochs": 12}, parallel=flags)).run_experiment(listeners=[ear])
    assert summary["digest"] is None
    assert summary["digests"] is None
    assert summary["reproducible"] is False
    assert summary["updates"] == 12 * UPDATES * AGENTS
    assert all(0 <= stats.lag <= 2 for stats in ear.epochs)
    assert [result.round for result in ear.rounds] == list(range(1, len(ear.rounds) + 1))


PROCESS = pytest.param("process", marks=pytest.mark.slow)


@pytest.mark.parametrize("backend", ["inline", "thread", PROCESS])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_thirteen_epochs_and_then_up_to_twenty_six_equal_twenty_six(lag: int, backend: str, nothing_left: None) -> None:
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


def test_a_process_gives_the_bytes_of_inline_and_goes_on_where_it_stopped(tmp_path: Path, nothing_left: None) -> None:
    def make(**flags: Any) -> Line:
        return Line(config=tiny(parallel={"policy_lag": 1, "train_interval": 3, **flags}))

    inline, process = make(), make(backend="process", num_workers=1)
    with configure_logs(tmp_path / "log.jsonl", run="k3", level="debug", console=False):
        for stop in (7, 13):
            assert process.run_experiment(stop)["digest"] == inline.run_experiment(stop)["digest"]
            assert process.prepare().rounds._backend is None
    told = learner_records(tmp_path / "log.jsonl")
    assert [line["round"] for line in told] == [1, 2, 3, 4]
    assert {(line["run"], line["role"]) for line in told} == {("k3", "learner")}
    assert len({line["process"] for line in told} - {os.getpid()}) == 2


def test_records_of_a_learner_thread_carry_run_role_and_thread(tmp_path: Path, nothing_left: None) -> None:
    with configure_logs(tmp_path / "log.jsonl", run="k3", level="debug", console=False), bind(role="conductor"):
        Line(config=tiny(parallel={"backend": "thread", "num_workers": 2})).run_experiment()
    told = learner_records(tmp_path / "log.jsonl")
    assert {(line["run"], line["role"], line["thread"], line["process"]) for line in told} == {
        ("k3", "learner", f"learner-{index}", os.getpid()) for index in (0, 1)
    }
    assert sorted(line["round"] for line in told) == [1, 1, 2, 2, 3, 3]


def test_the_digest_depends_on_the_problem_and_not_on_how_it_is_run() -> None:
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


def test_no_epoch_at_all_is_no_epoch() -> None:
    summary = Line(config=tiny()).run_experiment(0)
    assert (summary["epochs"], summary["turns"], summary["updates"]) == (0, 0, 0)


def _fail(*_: Any) -> None:
    raise FloatingPointError("the loss went through the roof")


@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_a_failing_learner_ends_the_run_with_its_cause_and_the_run_stays_ended(
    backend: str, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    ear, game = Ear(), Line(config=tiny(parallel={"backend": backend, "max_failures": 0}))
    game.prepare()
    monkeypatch.setattr(DQNLearner, "learn", _fail)
    with pytest.raises(LearnerError, match=r"(?s)round 1.*FloatingPointError.*through the roof"):
        game.run_experiment(listeners=[ear])
    assert ear.ends == [{}]
    assert game.agents[0].model.busy is None
    monkeypatch.undo()
    with pytest.raises(RunError, match="by LearnerError and cannot go on: make a new environment"):
        game.run_experiment()


def test_a_listener_that_fails_changes_nothing() -> None:
    class Deaf(SilentListener):
        def on_epoch(self, stats: EpochStats) -> None:
            raise RuntimeError("what did you say?")

    ear = Ear()
    summary = Line(config=tiny()).run_experiment(listeners=[Deaf(), ear])
    assert summary["digest"] == Line(config=tiny()).run_experiment()["digest"]
    assert len(ear.epochs) == 6


class Mixed(Line):
    """Agents 0 and 2 of one kind, agent 1 of another, agent 3 without a stack."""

    default_config = {"world": {**Line.default_config["world"], "agents": 4}}

    def setup_agents(self) -> None:
        from parallel_agents.models import DQN, RandomModel

        super().setup_agents()
        self.agents[1].model = DQN((3,), 3, **{**self.config.model, "hidden": (4,)})
        self.agents[3].model = RandomModel((3,), 3)


def test_listeners_hear_of_each_round_once_with_all_agents_in_canonical_order() -> None:
    ear = Ear()
    game = Mixed(config=tiny(parallel={"policy_lag": 0}))
    summary = game.run_experiment(listeners=[ear])
    assert [result.round for result in ear.rounds] == [1, 2, 3]
    for result in ear.rounds:
        assert result.updates.tolist() == [UPDATES, UPDATES, UPDATES, 0]
        assert np.isfinite(result.metrics["loss"]).tolist() == [True, True, True, False]
    for stats in ear.epochs:
        assert stats.rewards.shape == (4,)
        assert np.isnan(stats.metrics["epsilon"]).tolist() == [False, False, False, True]
        assert stats.metrics["buffer_fill"].shape == (4,)
    assert summary["updates"] == 3 * 3 * UPDATES


@pytest.mark.parametrize("kind", [Line, LineOfObjects])
def test_the_models_hold_the_newest_weights_after_a_run(kind: Any) -> None:
    game = kind(config=tiny(parallel={"policy_lag": 2}))
    game.run_experiment()
    run = game.prepare()
    for row, agent in enumerate(game.agents):
        newest = run.rounds.newest[0].rows(slice(row, row + 1))
        assert agent.model.state["online"].equal(newest["online"])
        assert not agent.model.state["online"].equal(run.crew.stacks[0].inference.weights.rows[row : row + 1])


@pytest.mark.parametrize(("lag", "sync"), [(0, "lock"), (1, "lock"), (2, "lock"), (1, "snapshot")])
def test_who_copies_what_a_round_reads_makes_no_difference(lag: int, sync: str, nothing_left: None) -> None:
    def digest(**flags: Any) -> str:
        config = tiny(experiment={"epochs": 10}, parallel={"train_interval": 1, "policy_lag": lag, **flags})
        return str(Line(config=config).run_experiment()["digest"])

    assert digest(backend="thread", num_workers=2, buffer_sync=sync) == digest()
