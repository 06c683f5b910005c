"""The equality promise for every algorithm: discrete, multi-discrete and continuous, and groups of different kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.algorithms import DQN, IQN, PPO
from parallel_agents.core.config import merge
from parallel_agents.env import Agent
from parallel_agents.nn import SquashedGaussian
from tests.equivalence.worlds import Odd, run


class Choices(Odd):
    """`Odd` with any kind of action: only its first number counts, clipped to 0, 1 or 2."""

    space: Any = 3
    default_config = {
        "experiment": {"epochs": 7, "max_turns": 12, "worlds": 2},
        "world": {"agents": 3, "width": 3, "actions": 3, "freeze": True, "die": True},
        "parallel": {"train_interval": 2},
    }

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model((3,), self.space)) for _ in range(self.config.world["agents"])]

    def apply_agent(self, index: int, actions: Any) -> Any:
        plain = actions if np.ndim(actions) == 1 else actions[..., 0]
        return super().apply_agent(index, np.clip(plain, 0, 2))


class Several(Choices):
    space = (3, 2)


class Continuous(Choices):
    space = SquashedGaussian((0.0, -1.0), (2.0, 1.0))


class Mixed(Choices):
    """Learners of different kinds and sizes side by side, some with other hyper-parameters."""

    default_config = {**Choices.default_config, "world": {**Choices.default_config["world"], "agents": 7}}

    def setup_agents(self) -> None:
        small = {"batch_size": 6, "updates_per_round": 2, "learning_starts": 5, "buffer_size": 40}
        models = [
            DQN((3,), 3, hidden=(5,), **small),
            PPO((3,), 3, hidden=(4,), rollout=24, epochs=2),
            DQN((3,), 3, hidden=(5,), **small, lr=0.01, gamma=0.5),
            IQN((3,), 3, layer=6, n_frames=2, **small),
            PPO((3,), 3, hidden=(4,), rollout=24, epochs=2, lr=0.01, ent_coef=0.1, target_kl=0.001),
            DQN((3,), 3, hidden=(7,), dueling=True, **small),
            IQN((3,), 3, layer=6, n_frames=2, **small, epsilon_final=0.3),
        ]
        self.agents = [Agent(model=model) for model in models]


PPO_MODEL = {"algorithm": "ppo", "hidden": (5, 3), "n_epochs": 2, "n_minibatches": 3}
IQN_MODEL = {
    "algorithm": "iqn",
    "layer": 7,
    "batch_size": 6,
    "updates_per_round": 2,
    "learning_starts": 5,
    "buffer_size": 40,
}
CASES: dict[str, tuple[type[Odd], dict[str, Any]]] = {
    "ppo": (Choices, {"model": PPO_MODEL}),
    "ppo with every term": (
        Choices,
        {"model": {**PPO_MODEL, "clip_range_vf": 0.2, "ent_coef": 0.02, "target_kl": 1e-4}},
    ),
    "ppo autoreset": (Choices, {"model": PPO_MODEL, "experiment": {"autoreset": True}}),
    "ppo several choices": (Several, {"model": PPO_MODEL}),
    "ppo continuous": (Continuous, {"model": PPO_MODEL}),
    "ppo lag 2": (Choices, {"model": PPO_MODEL, "parallel": {"policy_lag": 2}}),
    "iqn": (Choices, {"model": IQN_MODEL}),
    "iqn sequential turns": (Choices, {"model": IQN_MODEL, "parallel": {"turn_order": "sequential"}}),
    "mixed": (Mixed, {}),
}


def test_sequential_turns_store_the_value_of_the_observation_acted_on() -> None:
    """An agent that acts again on a newer observation stores the columns of that one."""
    flags = {"turn_order": "sequential", "train_interval": 50}
    game = Choices(config={"experiment": {"epochs": 2}, "model": PPO_MODEL, "parallel": flags})
    assert game.run_experiment()["recomputed_share"] > 0.1
    for agent in game.agents:
        ring, learner = agent.model.memory.ring, agent.model.spec.learner()
        seen, kept = ring.observations[0][ring.valid[0]], ring.extras["value"][0][ring.valid[0]]
        outputs = learner.network.bound_forward(learner.policy(agent.model.state))(torch.from_numpy(seen)[None])
        np.testing.assert_allclose(outputs[0, :, -1].numpy(), kept, atol=1e-5)


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "iqn")), "mixed"])
def test_replicas_equal_single_runs(name: str) -> None:
    cls, problem = CASES[name]
    together = run(cls, merge(problem, {"experiment": {"seeds": 3}, "parallel": {"backend": "inline"}}))["digests"]
    alone = [
        run(cls, merge(problem, {"experiment": {"seed": s}, "parallel": {"enabled": False}}))["digest"]
        for s in range(3)
    ]
    assert together == alone


def test_the_learning_rate_of_one_agent_changes_no_other_agent() -> None:
    """As long as their worlds do not couple them."""

    def states(rate: float) -> list[bytes]:
        class Apart(Mixed):
            def setup_agents(self) -> None:
                super().setup_agents()
                self.agents[0].model.hyper["lr"] = rate

            def apply_agent(self, index: int, actions: Any) -> Any:
                return np.float32(index) - np.clip(actions, 0, 2).astype(np.float32)

        game = Apart(config={"parallel": {"backend": "inline"}})
        game.run_experiment()
        return [agent.model.state["online"].numpy().tobytes() for agent in game.agents]

    one, other = states(1e-3), states(5e-2)
    assert one[0] != other[0]
    assert one[1:] == other[1:]
