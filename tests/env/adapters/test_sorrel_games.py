"""sorrel's own six games, unmodified, through the adapter: `make sorrel` runs this where sorrel is installed."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.env.adapters.sorrel import Encoder, parallelize

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sorrel") is None, reason="sorrel needs Python 3.12 and is not installed here: make sorrel"
)
EXPERIMENT = {"epochs": 3, "max_turns": 30, "record_period": 50}
HUNT = {
    "experiment": EXPERIMENT,
    "model": {"agent_vision_radius": 2, "epsilon_decay": 0.001, "num_agents": 5},
    "world": {"height": 11, "width": 11, "gem_value": 10, "food_value": 5, "bone_value": -10, "spawn_prob": 0.02},
}
Make = Callable[[Callable[[type], type], dict[str, Any]], Any]


def treasurehunt(wrap: Callable[[type], type], parallel: dict[str, Any]) -> Any:
    from sorrel.examples.treasurehunt import entities, env, world  # type: ignore[import-not-found]

    config = HUNT | {"parallel": parallel}
    return wrap(env.TreasurehuntEnv)(world.TreasurehuntWorld(config, entities.EmptyEntity()), config)


def treasurehunt_threadsafe(wrap: Callable[[type], type], parallel: dict[str, Any]) -> Any:
    from sorrel.examples.treasurehunt_threadsafe import entities, env, world  # type: ignore[import-not-found]

    config = HUNT | {"parallel": parallel}
    return wrap(env.TreasurehuntEnv)(world.TreasurehuntWorld(config, entities.EmptyEntity()), config)


def cleanup(wrap: Callable[[type], type], parallel: dict[str, Any]) -> Any:
    from omegaconf import OmegaConf  # type: ignore[import-not-found]
    from sorrel.examples.cleanup import entities, env, world  # type: ignore[import-not-found]

    config: Any = OmegaConf.load(Path(env.__file__).parent / "configs" / "config.yaml")
    config.experiment.update(EXPERIMENT)
    config.agent.agent.num, config.agent.agent.obs.vision = 4, 3
    config.parallel = parallel
    return wrap(env.CleanupEnv)(world.CleanupWorld(config, entities.EmptyEntity()), config)


def tag(wrap: Callable[[type], type], parallel: dict[str, Any]) -> Any:
    from sorrel.entities.basic_entities import EmptyEntity  # type: ignore[import-not-found]
    from sorrel.examples.tag.env import TagEnv  # type: ignore[import-not-found]
    from sorrel.worlds import Gridworld  # type: ignore[import-not-found]

    config = {
        "experiment": EXPERIMENT,
        "model": {"epsilon_decay": 0.0001},
        "agent": {"num_agents": 5, "vision_radius": 4},
        "parallel": parallel,
    }
    return wrap(TagEnv)(Gridworld(11, 11, 1, default_entity=EmptyEntity()), config)


def iowa(wrap: Callable[[type], type], parallel: dict[str, Any]) -> Any:
    from sorrel.examples.iowa import entities, env, world  # type: ignore[import-not-found]

    config = {
        "experiment": EXPERIMENT,
        "model": {
            "agent_vision_radius": 2,
            "epsilon_decay": 0.0005,
            "parameters": {"layer_size": 250, "epsilon": 0.5, "device": "cpu", "n_frames": 5},
        },
        "world": {"height": 20, "width": 20, "spawn_prob": 0.01},
        "parallel": parallel,
    }
    return wrap(env.GamblingEnv)(world.GamblingWorld(config, entities.EmptyEntity()), config)


def chess(wrap: Callable[[type], type], parallel: dict[str, Any]) -> Any:
    from sorrel.examples.chess.env import ChessEnvironment  # type: ignore[import-not-found]
    from sorrel.examples.chess.world import Chessboard  # type: ignore[import-not-found]

    config = {"experiment": EXPERIMENT | {"max_turns": 5}, "model": {}, "world": {}, "parallel": parallel}
    return wrap(ChessEnvironment)(Chessboard(), config)


LEARNING = [treasurehunt, treasurehunt_threadsafe, cleanup, tag, iowa]


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fix the seeds that games take from the system, keep chess from asking a server, and torch to one thread.

    With more threads than free cores these small networks take many times as long.
    """
    import requests

    def refuse(*_: Any, **__: Any) -> None:
        raise requests.ConnectionError("no server in tests")  # the game then moves at random

    monkeypatch.setattr(torch.random, "seed", lambda: 5)
    monkeypatch.setattr(requests, "post", refuse)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def played(make: Make, wrap: Callable[[type], type], folder: Path, **parallel: Any) -> tuple[Any, list[float]]:
    """Run a whole experiment after seeding the global generators; return the game and its rewards by epoch."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    game = make(wrap, parallel)
    rewards: list[float] = []
    reset = game.reset

    def record() -> None:
        rewards.append(game.world.total_reward)
        reset()

    game.reset = record
    game.run_experiment(animate=False, logging=False, output_dir=folder)
    return game, [*rewards[1:], game.world.total_reward]


def same(game: type) -> type:
    return game


def weights(game: Any) -> dict[str, torch.Tensor]:
    return {
        f"{index}.{name}": value
        for index, agent in enumerate(game.agents)
        for name, value in getattr(agent.model, "state_dict", dict)().items()
    }


@pytest.mark.parametrize("make", [*LEARNING, chess])
def test_inline_training_gives_sorrels_results_bit_for_bit(make: Make, tmp_path: Path) -> None:
    theirs, their_rewards = played(make, same, tmp_path)
    ours, our_rewards = played(make, parallelize, tmp_path)
    assert our_rewards == their_rewards
    assert len(our_rewards) == 4
    assert weights(ours).keys() == weights(theirs).keys()
    for name, value in weights(theirs).items():
        assert torch.equal(weights(ours)[name], value), name
    for one, other in zip(theirs.agents, ours.agents, strict=True):
        assert np.array_equal(one.model.memory.states, other.model.memory.states)


@pytest.mark.parametrize("make", [treasurehunt, cleanup, tag])
def test_background_training_does_as_many_updates_and_can_be_repeated(make: Make, tmp_path: Path) -> None:
    theirs, _ = played(make, same, tmp_path)
    ours, rewards = played(make, parallelize, tmp_path, backend="process")
    again, same_rewards = played(make, parallelize, tmp_path, backend="process")
    assert updates(ours) == updates(theirs)
    assert min(updates(ours)) > 0
    assert rewards == same_rewards
    for name, value in weights(ours).items():
        assert torch.equal(weights(again)[name], value), name
    assert not any(
        torch.equal(value, weights(theirs)[name]) for name, value in weights(ours).items() if "weight" in name
    )


def updates(game: Any) -> list[int]:
    """The steps of each agent's optimizer."""
    return [
        int(next(iter(agent.model.optimizer.state_dict()["state"].values()), {"step": 0})["step"])
        for agent in game.agents
    ]


@pytest.mark.parametrize(
    ("make", "reason"), [(treasurehunt_threadsafe, "agents share a model"), (iowa, "a run_experiment.. of its own")]
)
def test_games_that_cannot_train_in_the_background_say_why(make: Make, reason: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"{reason}.*training stays inline"):
        played(make, parallelize, tmp_path, backend="process")


@pytest.mark.parametrize("make", [treasurehunt, cleanup, tag, iowa])
def test_fast_observations_equal_sorrels_own(make: Make) -> None:
    from sorrel.observation import visual_field  # type: ignore[import-not-found]

    game = make(same, {})
    for _ in range(3):
        game.take_turn()
    grid = game.world.map
    for agent in game.agents:
        appearances = agent.observation_spec.entity_map
        channels = len(next(iter(appearances.values())))
        for region in (grid, grid[2:7, 0:3], grid[:1, :1]):
            assert np.array_equal(
                Encoder()(region, appearances, channels), visual_field._build_one_hot(region, appearances, channels)
            )
