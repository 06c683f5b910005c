"""No random stream is shared, no global generator or clock used, and bytes do not depend on the number of agents."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.core.errors import SharingError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.engine.run import Run
from tests.env.line_worlds import Line, tiny
from tests.equivalence.worlds import Odd


def test_f17_no_two_streams_start_alike() -> None:
    purposes, agents, worlds, seeds = list(Purpose), range(4), range(4), range(3)
    firsts = {
        generator(seed, purpose, agent=agent, world=world).random()
        for seed in seeds
        for purpose in purposes
        for agent in agents
        for world in worlds
    }
    assert len(firsts) == len(purposes) * 4 * 4 * 3


def test_f17_replicas_with_one_seed_are_refused() -> None:
    one, other = Line(config=tiny()), Line(config=tiny())
    with pytest.raises(SharingError, match="two replicas share the seed 3: give each a seed of its own"):
        Run([one, other], one.config)


def test_f17_agents_and_worlds_start_differently() -> None:
    game = Odd(config={"experiment": {"worlds": 3, "epochs": 1}})
    game.run_experiment()
    weights = [agent.model.state["online"].numpy().tobytes() for agent in game.agents]
    assert len(set(weights)) == len(weights)
    places = [game.place[:, world].tobytes() for world in range(3)]
    assert len(set(places)) == 3


TORCH = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "manual_seed", "seed")
NUMPY = ("seed", "random", "rand", "randn", "randint", "choice", "shuffle", "permutation", "uniform", "normal",
         "default_rng", "standard_normal", "random_sample")  # fmt: skip
PYTHON = ("seed", "random", "randint", "choice", "choices", "shuffle", "uniform", "gauss", "sample", "randrange")


@pytest.fixture
def no_global_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    def trap(name: str) -> Any:
        def forbidden(*_: Any, **__: Any) -> Any:
            raise AssertionError(f"{name} was used")

        return forbidden

    for module, names in ((torch, TORCH), (np.random, NUMPY), (random, PYTHON)):
        for name in names:
            monkeypatch.setattr(module, name, trap(f"{module.__name__}.{name}"))
    for name in ("normal_", "uniform_", "random_", "bernoulli_", "exponential_"):
        monkeypatch.setattr(torch.Tensor, name, trap(f"Tensor.{name}"))


@pytest.mark.usefixtures("no_global_generator")
@pytest.mark.parametrize("algorithm", ["dqn", "iqn", "ppo"])
def test_f18_the_engine_uses_no_global_generator(algorithm: str) -> None:
    with pytest.raises(AssertionError, match=r"torch\.rand was used"):
        torch.rand(3)
    model = {"algorithm": algorithm, "hidden": (8,), "buffer_size": 50, "learning_starts": 4, "batch_size": 4}
    if algorithm == "ppo":
        model = {"algorithm": "ppo", "hidden": (8,)}
    if algorithm == "iqn":
        model = {**model, "layer": 16} | {"algorithm": "iqn"}
        del model["hidden"]
    config = tiny(experiment={"epochs": 4})
    config["model"] = model
    Line(config=config).run_experiment()


@pytest.mark.usefixtures("no_global_generator")
def test_f18_the_applications_use_no_global_generator() -> None:
    from tests.equivalence.worlds import treasure_hunt

    small = {"world": {"agents": 2}, "experiment": {"epochs": 4, "max_turns": 5, "record_period": 0}}
    treasure_hunt()(config={**small, "parallel": {"backend": "inline", "train_interval": 1}}).run_experiment()

    from parallel_agents.workflows.network import NetworkWorlds

    worlds = NetworkWorlds(2, seed=1)
    worlds.reset(1)
    worlds.step(np.zeros(2, np.int64))

    from parallel_agents.market.sample import draw_sample

    draw_sample(users=50, days=14, seed=1)


@pytest.mark.parametrize("agents", range(1, 10))
def test_f19_the_number_of_agents_in_a_stack_changes_no_byte(agents: int) -> None:
    def digest(**flags: Any) -> str:
        config = {"world": {"agents": agents}, "experiment": {"epochs": 4}, "parallel": {"backend": "inline", **flags}}
        return str(Odd(config=config).run_experiment()["digest"])

    assert digest() == digest(enabled=False)


def test_f43_a_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Line(config=tiny()).run_experiment()["digest"]
    now = [1e9]

    def jumping() -> float:
        now[0] += (-1.0) ** int(now[0]) * 1e6
        return now[0]

    monkeypatch.setattr(time, "time", jumping)
    summary = Line(config=tiny(parallel={"backend": "thread", "num_workers": 1})).run_experiment()
    assert summary["digest"] == expected
    assert 0.0 <= summary["wall_seconds"] < 60.0
