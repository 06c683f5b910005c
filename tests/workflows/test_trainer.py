"""The workflow search as a whole, small."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.core.errors import CheckpointError, ConfigError
from parallel_agents.workflows.blue_policies import OrderScript, play
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO, load_policy, save_policy
from parallel_agents.workflows.evaluation import OrderEvaluation
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDERS
from parallel_agents.workflows.search import next_order
from parallel_agents.workflows.trainer import (
    ParallelWorkflowRLTrainer,
    TrainingHistory,
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
    assert [result.evaluation.value for result in stored] == [r.evaluation.value for r in resumed.results]


def test_a_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    trainer(n_workflows=1).run_workflow_search(tmp_path)
    with pytest.raises(ConfigError, match=r"other settings \(seed\)"):
        trainer(seed=1).run_workflow_search(tmp_path)
    (tmp_path / "search.json").write_text(json.dumps({"settings": {}}))
    with pytest.raises(CheckpointError, match="cannot be read as a search"):
        trainer().run_workflow_search(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"settings": [1]},
        {"results": [3]},
        {"order": ["User"]},
        {"order": None},
        {"value": "much"},
        {"training": {"compliance": [], "documented": [], "returns": ["x"], "counted": []}},
    ],
)
def test_a_search_whose_contents_cannot_be_right_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    trainer(n_workflows=1).run_workflow_search(tmp_path)
    path = tmp_path / "search.json"
    content = json.loads(path.read_text())
    if change.keys() <= content.keys():
        content |= change
    else:
        content["results"][0] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="cannot be read as a search"):
        trainer(n_workflows=2).run_workflow_search(tmp_path)


def test_a_search_may_fine_tune_one_policy_and_be_told_the_noise(tmp_path: Path) -> None:
    shared = agent(n_envs=3, steps=20)
    save_policy(shared, tmp_path, {})
    search = trainer(n_workflows=4, start=str(tmp_path), noise=3.0, train_episodes_per_env=1).run_workflow_search()
    assert search.noise == 3.0
    for k in range(3, 4):
        assert search.results[k].order == next_order(search.trials[:k], "gp_ucb", 0, noise=3.0)


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
    rule = {"rule": "no_higher_compromised"}
    quick = train_order(agent(**rule), ParallelEnvWrapper(4, steps=20), 30, threshold=1e-9, min_episodes=3)
    assert quick.stopped
    assert 3 <= quick.episodes < 30
    slow = train_order(agent(**rule), ParallelEnvWrapper(4, steps=20), 4, threshold=1.0, min_episodes=1)
    assert (slow.stopped, slow.episodes) == (False, 4)
    assert all(0.0 <= c <= 1.0 for c in slow.documented)


def test_an_order_that_is_kept_is_not_learnt_if_the_return_is_worse_than_the_scripts() -> None:
    history = train_order(agent(), ParallelEnvWrapper(4, steps=60), 3, threshold=1e-9, min_episodes=1)
    assert not history.stopped
    kept = OrderEvaluation(value=-60.0, error=1.0, compliance=0.96, documented=1.0, script=-55.0)
    assert not kept.learnt()
    assert replace(kept, script=-60.0).learnt()
    assert not replace(kept, script=-60.0, compliance=0.94).learnt()
    assert not replace(kept, script=-60.0, compliance=float("nan")).learnt()


def test_when_an_order_counts_as_kept() -> None:
    def history(*compliance: float, counted: float = 1.0) -> TrainingHistory:
        return TrainingHistory([*compliance], [*compliance], [0.0] * len(compliance), [counted] * len(compliance))

    good, bad = [0.96] * 10, [0.9] * 10
    assert history(*good).keeps_order(0.95, 10)
    assert not history(*good, counted=0.01).keeps_order(0.95, 10)
    assert not history(*good[:9]).keeps_order(0.95, 10)
    assert not history(*bad).keeps_order(0.95, 10)
    assert history(*bad, *good[:5]).keeps_order(0.95, 10)  # the last five episodes count
    assert not history(*bad, *good[:4]).keeps_order(0.95, 10)
    assert not history(*good, float("nan")).keeps_order(0.95, 10)
    assert not history().keeps_order(0.95, 0)


def test_a_training_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole, half = agent(steps=20), agent(steps=20)
    expected = train_all_orders(whole, ParallelEnvWrapper(4, steps=20), 4)
    history = train_all_orders(half, ParallelEnvWrapper(4, steps=20), 2)
    save_policy(half, tmp_path, {})
    resumed, _ = load_policy(tmp_path)
    history = train_all_orders(resumed, ParallelEnvWrapper(4, steps=20), 4, history=history)
    assert history.returns == expected.returns
    assert resumed.model.state["online"].equal(whole.model.state["online"])


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
    expected = play(worlds, learner.policy(ORDERS[3], worlds), 0).sum(axis=0)
    assert evaluation.value == pytest.approx(expected.mean())
    assert evaluation.script == pytest.approx(play(worlds, OrderScript(ORDERS[3]), 0).sum(axis=0).mean())
    assert 0.0 <= evaluation.documented <= 1.0


def test_there_are_24_effective_orders() -> None:
    assert len(effective_orders()) == 24
