"""Prioritised replay, gradient accumulation and different numbers of updates per agent: resumed exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from parallel_agents.algorithms import DQN, IQN, PPO
from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.core.config import merge
from parallel_agents.core.errors import ConfigError
from parallel_agents.env import Agent
from tests.equivalence.worlds import Odd, run

SMALL = {"hidden": (5,), "batch_size": 6, "updates_per_round": 4, "learning_starts": 5, "buffer_size": 40}
REPLAY = {key: value for key, value in SMALL.items() if key != "hidden"}
MODELS: dict[str, dict[str, Any]] = {
    "prioritised dqn": {**SMALL, "priority_alpha": 0.6, "n_step": 2},
    "prioritised iqn": {"algorithm": "iqn", "layer": 6, "n_frames": 2, **REPLAY, "priority_alpha": 0.6},
    "growing": {**SMALL, "max_accumulated_batches": 4},
    "growing, prioritised": {**SMALL, "max_accumulated_batches": 4, "priority_alpha": 0.9},
}


class Bare(Odd):
    default_config: ClassVar = {**Odd.default_config, "model": {}}


class Paced(Bare):
    """Agents with different updates, batches and priorities; some share a stack, some do not."""

    def setup_agents(self) -> None:
        models = [
            DQN((3,), 3, **SMALL),
            DQN((3,), 3, **{**SMALL, "updates_per_round": 2}, training_priority=2),
            DQN((3,), 3, **{**SMALL, "batch_size": 3}),
            DQN((3,), 3, **SMALL, max_accumulated_batches=4),
            DQN((3,), 3, **SMALL, priority_alpha=0.5, training_priority=1),
            DQN((3,), 3, **SMALL, priority_alpha=0.9, priority_beta=1.0, training_priority=1),
            IQN((3,), 3, layer=6, n_frames=2, **REPLAY, priority_alpha=0.7),
            PPO((3,), 3, hidden=(4,), rollout=24, epochs=2, training_priority=3),
        ]
        self.agents = [Agent(model=model) for model in models]


CASES: dict[str, tuple[type[Odd], dict[str, Any]]] = {
    **{name: (Bare, {"model": model}) for name, model in MODELS.items()},
    "prioritised, lag 0": (Bare, {"model": MODELS["prioritised dqn"], "parallel": {"policy_lag": 0}}),
    "prioritised, lag 2": (Bare, {"model": MODELS["prioritised dqn"], "parallel": {"policy_lag": 2}}),
    "prioritised, autoreset": (Bare, {"model": MODELS["prioritised dqn"], "experiment": {"autoreset": True}}),
    "a pace each": (Paced, {}),
}
CASES = {
    name: (cls, merge({"experiment": {"worlds": 2, "epochs": 9}}, problem)) for name, (cls, problem) in CASES.items()
}


@pytest.mark.parametrize("name", ["prioritised dqn", "a pace each"])
@pytest.mark.parametrize("lag", [0, 1])
def test_a_resumed_run_equals_the_whole_run(name: str, lag: int, tmp_path: Path) -> None:
    cls, problem = CASES[name]
    config = merge(problem, {"experiment": {"epochs": 9}, "parallel": {"backend": "inline", "policy_lag": lag}})
    whole = run(cls, config)["digest"]
    first = cls(config=config)
    first.prepare().checkpointer = Checkpointer(first.prepare(), tmp_path, keep_last=2)
    first.run_experiment(5)
    second = cls(config=config)
    manifest, _ = restore(second.prepare(), tmp_path)
    assert second.prepare().digests() == first.prepare().digests()  # priorities may be overwritten before the end
    second.prepare().checkpointer = Checkpointer(second.prepare(), tmp_path, keep_last=2)
    second.prepare().checkpointer.continue_from(manifest)  # type: ignore[union-attr]
    second.run_experiment(7)
    third = cls(config=config)
    restore(third.prepare(), tmp_path)
    assert third.run_experiment(9)["digest"] == whole


def test_priorities_change_what_is_drawn() -> None:
    uniform, prioritised = (run(Bare, {"model": {**SMALL, "priority_alpha": alpha}}) for alpha in (0.0, 0.8))
    assert uniform["updates"] == prioritised["updates"]
    assert uniform["digest"] != prioritised["digest"]


def test_stacks_are_trained_by_priority_and_agents_have_their_own_number_of_updates() -> None:
    game = Paced(config={"experiment": {"epochs": 4}, "parallel": {"backend": "inline"}})
    group = game.prepare().group
    assert [stack.spec.training_priority for stack in group.stacks] == [3, 2, 1, 0, 0, 0]
    game.run_experiment()
    updates = [int(agent.model.state["updates"][0]) for agent in game.agents]
    assert updates[:3] == [8, 4, 8]
    assert updates[3] == 4  # joins two batches to a step
    assert len(group.members[3]) == 2  # agents with and without accumulation are rows of one stack


def test_drawing_by_class_and_by_td_error_at_once_is_refused() -> None:
    with pytest.raises(ConfigError, match="draw by event class or by TD error"):
        DQN((3,), 3, priority_alpha=0.5, importance={})
