"""The same bytes in every mode for networks of users, alone and beside the library's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from parallel_agents.algorithms import DQN, PPO
from parallel_agents.core.errors import ConfigError
from parallel_agents.env import Agent
from tests.equivalence.test_algorithms import Choices
from tests.equivalence.test_resume import compare
from tests.equivalence.worlds import run

SMALL = {"batch_size": 6, "updates_per_round": 2, "learning_starts": 5, "buffer_size": 40}
PICTURE = (2, 4, 4)
one_at_a_time = pytest.mark.filterwarnings("ignore:.*are computed one at a time:RuntimeWarning")


class Policy(nn.Module):
    """A class of a test file, which a worker process cannot import."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 6), nn.Tanh())
        self.policy, self.value = nn.Linear(6, 3), nn.Linear(6, 1)
        nn.init.orthogonal_(self.policy.weight, 0.01)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.policy(h), self.value(h)


def values(wide: int = 7) -> nn.Module:
    return nn.Sequential(nn.Linear(3, wide), nn.LayerNorm(wide), nn.ReLU(), nn.Linear(wide, 3))


def filters(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, outputs))


class Own(Choices):
    """Modules of three architectures beside the library's own network; some hyper-parameters differ."""

    default_config = {**Choices.default_config, "world": {**Choices.default_config["world"], "agents": 7}}

    def setup_agents(self) -> None:
        rollout = {"rollout": 24, "epochs": 2}
        models = [
            DQN((3,), 3, network=values, **SMALL),
            PPO((3,), 3, network=Policy, **rollout),
            DQN((3,), 3, hidden=(5,), **SMALL),
            DQN((3,), 3, network=lambda: values(7), lr=0.01, **SMALL),
            PPO((3,), 3, network=lambda: Policy(), **rollout, ent_coef=0.1, target_kl=0.001),
            DQN((3,), 3, network=lambda: values(5), **SMALL),
            PPO((3,), 3, hidden=(4,), **rollout),
        ]
        self.agents = [Agent(model=model) for model in models]


class Pictures(Choices):
    """Agents observe images."""

    def setup_agents(self) -> None:
        self.agents = [
            Agent(model=DQN(PICTURE, 3, network=lambda: filters(3), **SMALL)),
            Agent(model=DQN(PICTURE, 3, network=lambda: filters(3), **SMALL)),
            Agent(model=PPO(PICTURE, 3, network=lambda: filters(4), rollout=24, epochs=2)),
            Agent(model=PPO(PICTURE, 3, network=lambda: filters(4), rollout=24, epochs=2)),
        ]

    def observe(self) -> Any:
        waves = np.linspace(0.1, 3.0, 32, dtype=np.float32).reshape(PICTURE)
        return np.sin(self.place[:, :, :1, None, None] * waves)


class Filters(Pictures):
    """The library's own convolutions beside a module's."""

    def setup_agents(self) -> None:
        conv = {"convolutional": ((3, 2, 1), (4, 2, 2)), "hidden": (5,)}
        self.agents = [
            Agent(model=DQN(PICTURE, 3, **conv, **SMALL)),
            Agent(model=DQN(PICTURE, 3, **conv, **SMALL, lr=0.01)),
            Agent(model=DQN(PICTURE, 3, network=lambda: filters(3), **SMALL)),
            Agent(model=PPO(PICTURE, 3, **conv, rollout=24, epochs=2)),
            Agent(model=PPO(PICTURE, 3, **conv, rollout=24, epochs=2)),
            Agent(model=DQN(PICTURE, 3, hidden=(5,), **SMALL)),
        ]


CASES = {
    "modules": (Own, {}),
    "modules, sequential turns": (Own, {"parallel": {"turn_order": "sequential"}}),
    "convolutions": (Pictures, {}),
    "own convolutions": (Filters, {}),
    "own convolutions, sequential turns": (Filters, {"parallel": {"turn_order": "sequential"}}),
}


def test_modules_of_one_architecture_share_a_stack() -> None:
    stacks = Own().prepare().group.members
    assert [[agent_id.agent for agent_id in members] for members in stacks] == [[0, 3], [1, 4], [2], [5], [6]]


@pytest.mark.parametrize("cls", [Filters, Pictures, Own])
def test_convolutions_and_modules_of_usual_layers_are_stacked(cls: type[Choices]) -> None:
    assert all(stack.invariance.holds for stack in cls().prepare().group.stacks)


SCRIPT = """
import json
from torch import nn
from parallel_agents import Agent
from parallel_agents.algorithms import DQN
from tests.equivalence.test_own_networks import SMALL, Choices

class Values(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
    def forward(self, x):
        return self.layer(x)

class Game(Choices):
    def setup_agents(self):
        self.agents = [Agent(model=DQN((3,), 3, network=lambda: Values(), **SMALL)) for _ in range(2)]

found = [Game(config={"parallel": {"backend": b}}).run_experiment(4) for b in ("inline", "process")]
print(json.dumps([found[0]["digest"] == found[1]["digest"], found[1]["backend"]]))
"""


def test_a_network_class_of_a_script_works_with_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    ended = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == [True, "process"]


@one_at_a_time
@pytest.mark.parametrize("cls", [pytest.param(Own, marks=pytest.mark.slow), Pictures])
def test_replicas_equal_single_runs(cls: type[Choices]) -> None:
    together = run(cls, {"experiment": {"seeds": 2}, "parallel": {"backend": "inline"}})["digests"]
    assert together == [run(cls, {"experiment": {"seed": s}, "parallel": {"enabled": False}})["digest"] for s in (0, 1)]


@one_at_a_time
@pytest.mark.parametrize("cls", [Own, Filters])
def test_a_resumed_run_equals_the_whole_run(cls: type[Choices], tmp_path: Path) -> None:
    compare(cls, {"parallel": {"backend": "inline", "train_interval": 3}}, tmp_path)


def test_the_learning_rate_of_one_agent_changes_no_other_agent() -> None:
    def weights(rate: float) -> list[bytes]:
        class Apart(Own):
            def setup_agents(self) -> None:
                super().setup_agents()
                self.agents[0].model.hyper["lr"] = rate

            def apply_agent(self, index: int, actions: Any) -> Any:
                return np.float32(index) - np.clip(actions, 0, 2).astype(np.float32)

        game = Apart(config={"parallel": {"backend": "inline"}})
        game.run_experiment()
        return [agent.model.state["online"].numpy().tobytes() for agent in game.agents]

    one, other = weights(1e-3), weights(5e-2)
    assert one[0] != other[0]
    assert one[1:] == other[1:]


def test_the_global_generator_is_not_used() -> None:
    before = torch.get_rng_state()
    Own(config={"parallel": {"backend": "inline"}}).run_experiment()
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_uses_the_same_networks() -> None:
    game = Own(config={"parallel": {"backend": "inline"}})
    game.run_experiment()
    assert game.evaluate(4).returns.shape == (7, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DQN((3,), 3, network=values, hidden=(4,)), "model.hidden given together with a network of your own"),
        (lambda: DQN((3,), 3, network=values()), "network is a Sequential: give a function without arguments"),
        (lambda: DQN((3,), 4, network=values), "a value for each of 4 actions"),
        (lambda: DQN((2,), 3, network=values), r"cannot be called with 3 observations of shape \(2,\)"),
        (lambda: PPO((3,), (3, 2), network=Policy), r"5 numbers of the policy .* and 1 value"),
        (
            lambda: Choices(config={"model": {"algorithm": "iqn"}}).make_model((3,), 3, network=values),
            "'iqn' takes no network of your own: use dqn, ppo",
        ),
    ],
)
def test_networks_that_do_not_fit_are_refused_before_a_run(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
