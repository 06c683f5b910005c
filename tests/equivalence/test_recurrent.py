"""The same bytes in every mode for recurrent networks, alone and beside all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from parallel_agents.algorithms import DQN, IQN, PPO
from parallel_agents.checkpoint import restore
from parallel_agents.core.config import merge
from parallel_agents.env import Agent
from tests.env.test_action_masks import Forbidding
from tests.equivalence.test_algorithms import Choices, Continuous, Several
from tests.equivalence.test_resume import checkpointed, compare
from tests.equivalence.worlds import Odd, run

SMALL = {"batch_size": 4, "updates_per_round": 2, "learning_starts": 5, "buffer_size": 40}
DQN_MODEL = {"algorithm": "dqn", "recurrent": True, "hidden": 6, "sequence": 5, **SMALL}
PPO_MODEL = {"algorithm": "ppo", "recurrent": True, "hidden": (5, 6), "sequence": 5, "n_epochs": 2, "n_minibatches": 3}
UNITS = {"normalize_observations": True, "normalize_rewards": True}
AUTORESET = {"experiment": {"autoreset": True}}


class Mixed(Choices):
    """Every kind of network in one run."""

    default_config = {**Choices.default_config, "world": {**Choices.default_config["world"], "agents": 8}}

    def setup_agents(self) -> None:
        recurrent = {"recurrent": True, "hidden": 6, "sequence": 4}
        rollout = {"rollout": 24, "epochs": 2}
        models = [
            DQN((3,), 3, **recurrent, **SMALL),
            PPO((3,), 3, **recurrent, **rollout),
            DQN((3,), 3, hidden=(5,), **SMALL),
            DQN((3,), 3, **recurrent, **SMALL, lr=0.01, gamma=0.5),
            PPO((3,), 3, **recurrent, **rollout, lr=0.01, ent_coef=0.1, target_kl=0.001),
            DQN((3,), 3, network=lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)), **SMALL),
            PPO((3,), 3, hidden=(4,), **rollout),
            IQN((3,), 3, layer=6, n_frames=2, **SMALL),
        ]
        self.agents = [Agent(model=model) for model in models]


CASES: dict[str, tuple[type[Odd], dict[str, Any]]] = {
    "dqn": (Choices, {"model": DQN_MODEL}),
    "dqn autoreset": (Choices, {"model": {**DQN_MODEL, "n_step": 2, "dueling": True}, **AUTORESET}),
    "ppo": (Choices, {"model": PPO_MODEL}),
    "ppo with every term": (
        Choices,
        {"model": {**PPO_MODEL, "clip_range_vf": 0.2, "ent_coef": 0.02, "target_kl": 1e-4}},
    ),
    "ppo autoreset": (Choices, {"model": PPO_MODEL, **AUTORESET}),
    "ppo several choices": (Several, {"model": PPO_MODEL}),
    "ppo continuous": (Continuous, {"model": PPO_MODEL}),
    "dqn masked": (Forbidding, {"model": DQN_MODEL, "experiment": {"worlds": 2}}),
    "ppo masked": (Forbidding, {"model": PPO_MODEL, "parallel": {"turn_order": "sequential"}}),
    "dqn normalised": (Choices, {"model": {**DQN_MODEL, **UNITS}}),
    "ppo normalised": (Choices, {"model": {**PPO_MODEL, **UNITS}}),
    "mixed": (Mixed, {}),
    "mixed, sequential turns": (Mixed, {"parallel": {"turn_order": "sequential"}}),
}


@pytest.mark.parametrize("name", [pytest.param("dqn", marks=pytest.mark.slow), "ppo autoreset"])
def test_replicas_equal_single_runs(name: str) -> None:
    cls, problem = CASES[name]
    together = run(cls, merge(problem, {"experiment": {"seeds": 2}, "parallel": {"backend": "inline"}}))["digests"]
    alone = [
        run(cls, merge(problem, {"experiment": {"seed": s}, "parallel": {"enabled": False}}))["digest"] for s in (0, 1)
    ]
    assert together == alone


@pytest.mark.parametrize("name", ["dqn autoreset", "ppo autoreset", "mixed"])
def test_a_resumed_run_equals_the_whole_run(name: str, tmp_path: Path) -> None:
    cls, problem = CASES[name]
    compare(cls, merge(problem, {"parallel": {"backend": "inline", "train_interval": 3}}), tmp_path)


def test_hidden_states_that_cross_epochs_are_restored_from_a_checkpoint(tmp_path: Path) -> None:
    cls, problem = CASES["dqn autoreset"]
    stopped = checkpointed(cls, problem, tmp_path, 5)
    again = cls(config=problem)
    restore(again.prepare(), tmp_path)
    stored, restored = (game.prepare().group.stacks[0].recurrent.after for game in (stopped, again))
    assert stored.any()
    assert np.array_equal(stored, restored)


def test_the_learning_rate_of_one_agent_changes_no_other_agent() -> None:
    def weights(rate: float) -> list[bytes]:
        class Apart(Mixed):
            def setup_agents(self) -> None:
                super().setup_agents()
                for agent in self.agents[:2]:
                    agent.model.hyper["lr"] = rate

            def apply_agent(self, index: int, actions: Any) -> Any:
                return np.float32(index) - np.clip(actions, 0, 2).astype(np.float32)

        game = Apart(config={"parallel": {"backend": "inline"}})
        game.run_experiment()
        return [agent.model.state["online"].numpy().tobytes() for agent in game.agents]

    one, other = weights(1e-3), weights(5e-2)
    assert [a == b for a, b in zip(one, other, strict=True)] == [False, False, *[True] * 6]
