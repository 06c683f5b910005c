"""A run resumed after 13 epochs equals one of 26, for every backend, lag and algorithm, through real files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.algorithms.learner import RoundResult
from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.core.config import merge
from parallel_agents.core.errors import CheckpointError
from parallel_agents.env import Environment
from parallel_agents.env.adapters.gymnasium import gymnasium_environment
from parallel_agents.nn import numerics
from parallel_agents.tracking.callbacks import BaseCallback
from tests.equivalence.test_algorithms import CASES
from tests.equivalence.worlds import Odd


def checkpointed(cls: type[Environment], config: dict[str, Any], folder: Path, epochs: int) -> Environment:
    """Run to `epochs` with checkpoints every 4 epochs and one at the end."""
    environment = cls(config=merge(config, {"experiment": {"checkpoint_every": 4}}))
    run = environment.prepare()
    run.checkpointer = Checkpointer(run, folder, keep_last=3)
    environment.run_experiment(epochs)
    return environment


def resume(cls: type[Environment], config: dict[str, Any], folder: Path, epochs: int) -> dict[str, Any]:
    environment = cls(config=merge(config, {"experiment": {"checkpoint_every": 4}}))
    run = environment.prepare()
    manifest, troubles = restore(run, folder)
    assert troubles == []
    run.checkpointer = Checkpointer(run, folder, keep_last=3)
    run.checkpointer.continue_from(manifest)
    return environment.run_experiment(epochs)


def compare(cls: type[Environment], config: dict[str, Any], folder: Path) -> None:
    whole = cls(config=merge(config, {"experiment": {"checkpoint_every": 4}})).run_experiment(26)
    checkpointed(cls, config, folder, 13)
    again = resume(cls, config, folder, 26)
    names = ("digest", "epochs", "turns", "transitions", "updates", "rejected_updates", "rounds", "recomputed_share")
    assert {name: again[name] for name in names} == {name: whole[name] for name in names}


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_a_resumed_run_equals_the_whole_run(lag: int, backend: str, tmp_path: Path) -> None:
    parallel = {"backend": backend, "policy_lag": lag, "train_interval": 3}
    compare(Odd, {"parallel": parallel, "model": {"n_frames": 2, "n_step": 2}}, tmp_path)


def test_a_run_resumed_with_processes_equals_the_whole_run_inline(tmp_path: Path) -> None:
    config: dict[str, Any] = {"parallel": {"backend": "inline", "train_interval": 3}}
    whole = Odd(config=config).run_experiment(26)["digest"]
    processes = merge(config, {"parallel": {"backend": "process", "num_workers": 2}})
    checkpointed(Odd, processes, tmp_path, 13)
    assert resume(Odd, processes, tmp_path, 26)["digest"] == whole


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_of_every_algorithm_equals_the_whole_run(name: str, tmp_path: Path) -> None:
    cls, problem = CASES[name]
    compare(cls, merge(problem, {"parallel": {"backend": "inline", "train_interval": 3}}), tmp_path)


def test_on_policy_rows_of_each_round_are_written(tmp_path: Path) -> None:
    """The rows of the next round are new ones, though they stand in the same places."""
    cls, problem = CASES["ppo"]
    config = merge(problem, {"parallel": {"backend": "inline", "train_interval": 2}})
    whole = cls(config=config).run_experiment(8)["digest"]
    first = cls(config=config)
    first.prepare().checkpointer = Checkpointer(first.prepare(), tmp_path, keep_last=3)
    first.run_experiment(3)
    first.run_experiment(5)  # a round later, as many rows as before
    again = cls(config=config)
    restore(again.prepare(), tmp_path)
    assert again.run_experiment(8)["digest"] == whole


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_resumed_run_of_foreign_worlds_with_autoreset_equals_the_whole_run(algorithm: str, tmp_path: Path) -> None:
    model = {"algorithm": algorithm, "hidden": (8,)}
    config = {"experiment": {"max_turns": 9, "worlds": 3}, "model": model, "parallel": {"backend": "inline"}}
    compare(gymnasium_environment("CartPole-v1"), config, tmp_path)


def test_frames_that_cross_epochs_are_restored(tmp_path: Path) -> None:
    config = {
        "experiment": {"autoreset": True, "worlds": 2},
        "model": {"n_frames": 4},
        "parallel": {"backend": "inline"},
    }
    compare(Odd, config, tmp_path / "run")
    stopped = checkpointed(Odd, config, tmp_path / "window", 13)
    again = Odd(config=config)
    restore(again.prepare(), tmp_path / "window")
    kept, found = (game.prepare().group.stacks[0].frames.window for game in (stopped, again))
    assert kept.any()
    assert np.array_equal(kept, found)


def test_a_resumed_run_of_replicas_equals_the_whole_run(tmp_path: Path) -> None:
    compare(Odd, {"experiment": {"seeds": 3}, "parallel": {"backend": "inline"}}, tmp_path)


def test_a_run_resumed_several_times_equals_the_whole_run(tmp_path: Path) -> None:
    config = {"parallel": {"backend": "inline", "train_interval": 3}}
    whole = Odd(config=merge(config, {"experiment": {"checkpoint_every": 4}})).run_experiment(23)
    checkpointed(Odd, config, tmp_path, 5)
    for epochs in (6, 11, 12, 23):
        last = resume(Odd, config, tmp_path, epochs)
    assert last["digest"] == whole["digest"]


def test_waiting_results_are_restored_with_their_counts(tmp_path: Path) -> None:
    """With a lag of 2 a checkpoint holds rounds that are finished but not published."""
    config = {"parallel": {"backend": "inline", "policy_lag": 2, "train_interval": 2}}
    stopped = checkpointed(Odd, config, tmp_path, 9).prepare().rounds
    again = Odd(config=config).prepare()
    restore(again, tmp_path)
    assert len(stopped.waiting) == 2
    assert set(again.rounds.waiting) == set(stopped.waiting)
    for round_, done in stopped.waiting.items():
        for (state, kept), (restored, found) in zip(done, again.rounds.waiting[round_], strict=True):
            assert kept.updates.sum() > 0
            assert (found.round, found.updates.tolist()) == (round_, kept.updates.tolist())
            assert found.rejected.tolist() == kept.rejected.tolist()
            assert {name: column.tolist() for name, column in found.metrics.items()} == {
                name: column.tolist() for name, column in kept.metrics.items()
            }
            assert all(bool((restored[name] == state[name]).all()) for name in state.tensors)
    told: list[int] = []

    class Counts(BaseCallback):
        def on_round(self, result: RoundResult) -> None:
            told.append(int(result.updates.sum()))

    again.environments[0].run_experiment(11, callbacks=[Counts()])
    assert told == [9]  # round 3: three updates of three agents


def test_a_checkpoint_of_other_agents_is_refused(tmp_path: Path) -> None:
    checkpointed(Odd, {}, tmp_path, 4)
    other = Odd(config={"world": {"agents": 4}})
    with pytest.raises(CheckpointError, match="another configuration"):
        restore(other.prepare(), tmp_path)


def test_what_was_set_on_a_model_after_it_was_made_survives_a_resume(tmp_path: Path) -> None:
    def made() -> Environment:
        return Odd(config={"parallel": {"train_interval": 1}})

    def changed(environment: Environment) -> Environment:
        models = [agent.model for agent in environment.agents]
        models[0].frozen = True
        models[1].hyper["gamma"] = 0.5
        models[2].set_epsilon(0.75)
        return environment

    whole = changed(made()).run_experiment(12)
    first = changed(made())
    first.prepare().checkpointer = Checkpointer(first.prepare(), tmp_path, keep_last=1)
    first.run_experiment(5)
    second = made()
    restore(second.prepare(), tmp_path)
    assert second.run_experiment(12)["digest"] == whole["digest"]
    models = [agent.model for agent in second.agents]
    assert (models[0].frozen, int(models[0].state["updates"][0])) == (True, 0)
    assert (models[1].hyper["gamma"], models[2].epsilon) == (0.5, 0.75)


def test_another_fingerprint_is_told_before_the_first_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_torch = {"model": {"kernels": "torch"}}
    checkpointed(Odd, by_torch, tmp_path, 2)
    here = numerics.fingerprint()
    other = {**here, "numba_cpu": "nehalem", "numpy": "2.0"}
    monkeypatch.setattr(numerics, "fingerprint", lambda *_, **__: other)
    words = f"numba_cpu was {here['numba_cpu']}, is nehalem; numpy was {here['numpy']}, is 2.0"
    with pytest.warns(RuntimeWarning, match=words):
        restore(Odd(config=by_torch).prepare(), tmp_path)
