"""The workflow search as a whole, small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.core.errors import CheckpointError, ConfigError
from parallel_agents.workflows.blue_policies import play
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDERS
from parallel_agents.workflows.search import Landscape, next_order
from parallel_agents.workflows.trainer import (
    ParallelWorkflowRLTrainer,
    effective_orders,
    evaluate_order,
    read_search,
    train_all_orders,
    train_order,
)
from parallel_agents.workflows.wrapper import ParallelEnvWrapper


def agent(**options: Any) -> ParallelOrderConditionedPPO:
    return ParallelOrderConditionedPPO(**{"n_envs": 4, "steps": 10, "hidden": (8,), **options})


WORLDS = {"red": "Meander", "steps": 20}


def trainer(**options: Any) -> ParallelWorkflowRLTrainer:
    small = {"n_envs": 3, "n_workflows": 4, "train_episodes_per_env": 2, "update_every_steps": 20, "hidden": (8,)}
    return ParallelWorkflowRLTrainer(**{**small, "evaluation_episodes": 5, "worlds": WORLDS, **options})


def test_documented_names_can_be_imported_from_the_package() -> None:
    from parallel_agents import workflows

    assert all(getattr(workflows, name).__name__ == name for name in workflows.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = workflows.Nonsense


def test_documented_defaults() -> None:
    result = ParallelWorkflowRLTrainer()
    s = result.settings
    assert (s["n_envs"], s["n_workflows"], s["train_episodes_per_env"]) == (25, 20, 50)
    assert (s["compliance_threshold"], s["update_every_steps"], s["min_episodes"]) == (0.95, 100, 10)
    assert result.max_total_episodes == 1250


def test_every_workflow_reports_its_episodes_and_its_result() -> None:
    events: list[str] = []
    result = trainer().run_workflow_search(progress=lambda name, _: events.append(name))
    assert len(result.results) == 4
    assert all(len(r.training.returns) == len(r.training.compliance) == 2 for r in result.results)
    assert events == (["episode"] * 2 + ["workflow"]) * 4
    assert result.best in [r.order for r in result.results]


def test_the_search_tries_the_orders_that_the_gaussian_process_chooses() -> None:
    """A historical fault: the process was never asked. The first three orders are random."""
    result = trainer(n_workflows=5).run_workflow_search()
    for k in range(3, 5):
        assert result.results[k].order == next_order(result.trials[:k], "gp_ucb", 0)


def test_a_stopped_search_is_resumed_with_the_same_results(tmp_path: Path) -> None:
    whole = trainer().run_workflow_search()
    trainer(n_workflows=2).run_workflow_search(tmp_path)
    events: list[str] = []
    resumed = trainer().run_workflow_search(tmp_path, lambda name, _: events.append(name))
    assert events.count("workflow") == 2
    assert [r.evaluation.value for r in resumed.results] == [r.evaluation.value for r in whole.results]
    assert [r.order for r in resumed.results] == [r.order for r in whole.results]
    _, stored = read_search(tmp_path / "search.json")
    assert tuple(stored) == resumed.results


def test_a_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    trainer(n_workflows=1).run_workflow_search(tmp_path)
    with pytest.raises(ConfigError, match=r"other settings \(seed\)"):
        trainer(seed=1).run_workflow_search(tmp_path)
    (tmp_path / "search.json").write_text(json.dumps({"settings": {}}))
    with pytest.raises(CheckpointError, match="cannot be read as a search"):
        trainer().run_workflow_search(tmp_path)


def test_regret_splits_into_search_and_policy() -> None:
    result = trainer(n_workflows=3).run_workflow_search()
    means = np.linspace(-100.0, -40.0, len(ORDERS))
    regret = result.regret(Landscape(means, np.ones(len(ORDERS))))
    for k, workflow in enumerate(result.results):
        at = ORDERS.index(workflow.order)
        assert regret.search[k] == pytest.approx(-40.0 - means[at])
        assert regret.total[k] == pytest.approx(-40.0 - workflow.evaluation.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_envs": 0}, "n_envs is 0"),
        ({"n_workflows": 0}, "n_workflows is 0"),
        ({"compliance_threshold": 1.5}, "compliance_threshold is 1.5"),
        ({"method": "guess"}, "search method 'guess' is unknown"),
        ({"rule": "none"}, "compliance rule 'none' is unknown"),
        ({"hiden": (8,)}, "did you mean model.hidden"),
        ({"worlds": {"red": "Purple"}}, "red agent 'Purple' is unknown"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(**options)


def test_training_stops_once_the_threshold_is_reached() -> None:
    """Threshold 0 is met as soon as enough was seen; 1.0 is not reached while the policy explores."""
    quick = train_order(agent(), ParallelEnvWrapper(4, steps=20), 30, threshold=1e-9, min_episodes=3)
    assert quick.stopped
    assert 3 <= quick.episodes < 30
    slow = train_order(agent(), ParallelEnvWrapper(4, steps=20), 4, threshold=1.0, min_episodes=1)
    assert (slow.stopped, slow.episodes) == (False, 4)
    assert all(0.0 <= c <= 1.0 for c in slow.compliance)


@pytest.mark.parametrize("steps", [5, 10, 40])
def test_updates_may_come_within_or_across_episodes(steps: int) -> None:
    learner = agent(steps=steps)
    train_order(learner, ParallelEnvWrapper(4, steps=20), 4, threshold=1.0)
    assert learner.updates == 80 // steps
    assert len(learner.buffer) == 0


def test_one_policy_is_trained_on_many_orders() -> None:
    learner = agent()
    train_all_orders(learner, ParallelEnvWrapper(4, steps=10), 3)
    assert learner.updates == 3
    assert len(set(learner.orders)) > 1


def test_an_evaluation_counts_the_environments_reward_alone() -> None:
    learner = agent()
    worlds = NetworkWorlds(6, red="Meander", steps=40, late_start=20)
    evaluation = evaluate_order(learner, iter(ORDERS[3]), worlds)
    expected = play(worlds, learner.policy(ORDERS[3]), 0).sum(axis=0)
    assert evaluation.value == pytest.approx(expected.mean())
    assert 0.0 <= evaluation.compliance <= 1.0


def test_there_are_24_effective_orders() -> None:
    assert len(effective_orders()) == 24
