"""The workflow search as a whole, small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.errors import CheckpointError, ConfigError
from parallel_agents.workflows.landscape import Landscape
from parallel_agents.workflows.orders import ORDERS
from parallel_agents.workflows.search import next_order
from parallel_agents.workflows.trainer import ParallelWorkflowRLTrainer, read_search

WORLDS = {"red": "Meander", "steps": 20}


def trainer(**options: Any) -> ParallelWorkflowRLTrainer:
    small = {"n_envs": 3, "n_workflows": 4, "train_episodes_per_env": 2, "update_every_steps": 20, "hidden": (8,)}
    return ParallelWorkflowRLTrainer(**{**small, "evaluation_episodes": 5, "worlds": WORLDS, **options})


def test_documented_names_are_at_the_door() -> None:
    from parallel_agents import workflows

    assert all(getattr(workflows, name).__name__ == name for name in workflows.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = workflows.Nonsense


def test_documented_defaults() -> None:
    found = ParallelWorkflowRLTrainer()
    s = found.settings
    assert (s["n_envs"], s["n_workflows"], s["train_episodes_per_env"]) == (25, 20, 50)
    assert (s["compliance_threshold"], s["update_every_steps"], s["min_episodes"]) == (0.95, 100, 10)
    assert found.max_total_episodes == 1250


def test_every_workflow_has_its_history() -> None:
    told: list[str] = []
    found = trainer().run_workflow_search(progress=lambda name, _: told.append(name))
    assert len(found.results) == 4
    assert all(len(r.training.returns) == len(r.training.compliance) == 2 for r in found.results)
    assert told == (["episode"] * 2 + ["workflow"]) * 4
    assert found.best in [r.order for r in found.results]


def test_the_search_consults_the_gaussian_process() -> None:
    """5.3, fault 1: each order but the first few is the one the process's upper bound names."""
    found = trainer(n_workflows=5).run_workflow_search()
    for k in range(3, 5):
        assert found.results[k].order == next_order(found.history[:k], "gp_ucb", 0)


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = trainer().run_workflow_search()
    trainer(n_workflows=2).run_workflow_search(tmp_path)
    told: list[str] = []
    resumed = trainer().run_workflow_search(tmp_path, lambda name, _: told.append(name))
    assert told.count("workflow") == 2
    assert [r.verdict.value for r in resumed.results] == [r.verdict.value for r in whole.results]
    assert [r.order for r in resumed.results] == [r.order for r in whole.results]
    _, kept = read_search(tmp_path / "search.json")
    assert tuple(kept) == resumed.results


def test_a_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    trainer(n_workflows=1).run_workflow_search(tmp_path)
    with pytest.raises(ConfigError, match=r"other settings \(seed\)"):
        trainer(seed=1).run_workflow_search(tmp_path)
    (tmp_path / "search.json").write_text(json.dumps({"settings": {}}))
    with pytest.raises(CheckpointError, match="cannot be read as a search"):
        trainer().run_workflow_search(tmp_path)


def test_regret_splits_into_search_and_policy() -> None:
    found = trainer(n_workflows=3).run_workflow_search()
    means = np.linspace(-100.0, -40.0, len(ORDERS))
    regret = found.regret(Landscape(means, np.ones(len(ORDERS))))
    for k, result in enumerate(found.results):
        at = ORDERS.index(result.order)
        assert regret.search[k] == pytest.approx(-40.0 - means[at])
        assert regret.total[k] == pytest.approx(-40.0 - result.verdict.value)


@pytest.mark.parametrize(
    ("options", "told"),
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
def test_bad_settings_are_refused_before_anything_runs(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        trainer(**options)
