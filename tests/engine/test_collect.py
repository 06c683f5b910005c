"""Whole epochs in compiled code: the bytes of turns taken one by one, and the same errors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from examples.cleanup import Cleanup
from examples.coins import Coins
from examples.commons_harvest import CommonsHarvest
from examples.iowa import Iowa
from examples.prisoners_dilemma import PrisonersDilemma
from examples.stag_hunt import StagHunt
from examples.tag import Tag
from examples.treasure_hunt import TreasureHunt
from parallel_agents.core.config import merge
from parallel_agents.core.errors import NonFiniteError
from parallel_agents.engine.collect import add_rewards
from parallel_agents.env.adapters.gymnasium import gymnasium_environment
from parallel_agents.games import Recorder

GAMES = (Cleanup, Coins, CommonsHarvest, Iowa, PrisonersDilemma, StagHunt, Tag, TreasureHunt)
BASE: dict[str, Any] = {
    "experiment": {"epochs": 5, "max_turns": 14, "worlds": 2, "record_period": 0, "eval_every": 0},
    "parallel": {"backend": "inline", "train_interval": 2},
}
DQN = {
    "algorithm": "dqn",
    "hidden": (8,),
    "learning_starts": 8,
    "updates_per_round": 2,
    "batch_size": 8,
    "epsilon": 0.5,
}
MODELS: dict[str, dict[str, Any]] = {
    "dqn": DQN,
    "dqn, frames and priorities": {**DQN, "n_frames": 3, "priority_alpha": 0.6, "n_step": 2, "dueling": True},
    "iqn": {"algorithm": "iqn", "layer": 8, "quantiles": 3, "acting_quantiles": 4, "learning_starts": 8},
    "ppo, normalised": {"algorithm": "ppo", "hidden": (8,), "n_epochs": 2, "normalize_observations": True},
}


ORDERS = pytest.mark.parametrize("order", ["simultaneous", "sequential"])


def run(kind: Any, model: dict[str, Any], *layers: dict[str, Any], together: bool) -> tuple[Any, dict[str, Any]]:
    flags = {"parallel": {"parallel_actions": together}}
    game = kind(config=merge(BASE, {"model": model}, *layers, flags))
    return game, game.run_experiment()


def same(kind: Any, model: dict[str, Any], *layers: dict[str, Any]) -> dict[str, Any]:
    """Run compiled epochs and turns one by one; check that everything is the same, and return the summary."""
    (compiled, summary), (single, expected) = (run(kind, model, *layers, together=own) for own in (True, False))
    assert compiled.prepare().loop.why_not_compiled() is None
    assert "one by one" in single.prepare().loop.why_not_compiled()
    for name in ("digest", "turns", "transitions", "updates", "mean_reward"):
        assert summary[name] == expected[name], name
    assert summary["updates"] > 0
    assert compiled.world.total_reward == pytest.approx(single.world.total_reward, abs=1e-4)
    return summary


@ORDERS
@pytest.mark.parametrize("kind", GAMES)
def test_every_game_is_played_in_compiled_code(kind: Any, order: str) -> None:
    same(kind, DQN, {"parallel": {"turn_order": order}})


@ORDERS
@pytest.mark.parametrize("model", list(MODELS)[1:])
def test_every_algorithm_acts_in_compiled_code(model: str, order: str) -> None:
    same(TreasureHunt, MODELS[model], {"experiment": {"seeds": 2}, "parallel": {"turn_order": order}})


def test_agents_that_act_in_turn_see_what_the_earlier_ones_did() -> None:
    orders = [{"parallel": {"turn_order": order}} for order in ("simultaneous", "sequential")]
    digests = {run(Cleanup, DQN, order, together=True)[1]["digest"] for order in orders}
    assert len(digests) == 2


def test_an_epoch_ends_early_when_every_world_has_ended() -> None:
    short = {"world": {"agents": 6, "height": 8, "width": 8, "regrowth": (0.0,)}, "experiment": {"max_turns": 120}}
    summary = same(CommonsHarvest, DQN, short)
    assert 20 < summary["turns"] < 5 * 120


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1"])
@pytest.mark.parametrize("model", ["dqn", "ppo, normalised"])
def test_episodes_cross_epochs(name: str, model: str) -> None:
    longer = {"experiment": {"autoreset": True, "max_turns": 60, "seeds": 2, "worlds": 3}}
    same(gymnasium_environment(name), MODELS[model], longer)


@pytest.mark.parametrize("model", ["dqn, frames and priorities", "ppo, normalised"])
def test_time_limits_end_compiled_episodes(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.spec("CartPole-v1"), "max_episode_steps", 5)  # no pole falls so soon
    summary = same(gymnasium_environment("CartPole-v1"), MODELS[model], {"experiment": {"autoreset": True}})
    waiting = 5 * 14 // 6  # turns in which a world restarts, one after every five
    assert summary["transitions"] == 2 * (summary["turns"] - waiting)


def test_buffers_with_locks_and_learner_threads_give_the_same_bytes() -> None:
    expected = run(TreasureHunt, DQN, together=True)[1]["digest"]
    locked = {"parallel": {"backend": "thread", "buffer_sync": "lock", "num_workers": 2}}
    assert run(TreasureHunt, DQN, locked, together=True)[1]["digest"] == expected


@pytest.mark.parametrize("together", [True, False])
def test_a_reward_that_is_no_number_is_refused(together: bool) -> None:
    values = {"gem": float("nan"), "food": 0.0, "bone": 0.0}
    world = {"world": {"values": values, "spawn_probability": 0.9}}
    with pytest.raises(NonFiniteError, match=r"the reward of agent_\d in world \d .*\(epoch 1, turn \d+\)"):
        run(TreasureHunt, DQN, world, together=together)


def test_epochs_that_are_recorded_are_played_turn_by_turn(tmp_path: Any) -> None:
    game = TreasureHunt(config=merge(BASE, {"model": DQN}))
    recorder = Recorder(game, tmp_path, every=2)
    found = game.run_experiment(callbacks=[recorder])["digest"]
    assert len(recorder.written) == 3  # epochs 2, 4 and 5
    assert found == run(TreasureHunt, DQN, together=True)[1]["digest"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"model": {"kernels": "torch"}}, "model.kernels"),
        ({"model": {"importance": {}}}, "event types"),
        ({"model": {"recurrent": True}}, "Recurrent"),
    ],
)
def test_the_reason_for_turns_in_python_is_told(flags: dict[str, Any], reason: str) -> None:
    game = TreasureHunt(config=merge(BASE, {"model": {"hidden": (8,)}}, flags))
    assert reason in game.prepare().loop.why_not_compiled()


def test_worlds_that_do_not_compile_turns_of_single_agents_say_so() -> None:
    flags = {"parallel": {"turn_order": "sequential"}, "model": {"hidden": (8,)}}
    game = gymnasium_environment("CartPole-v1")(config=merge(BASE, flags))
    assert "one after the other" in game.prepare().loop.why_not_compiled()


def test_a_hook_in_python_is_named() -> None:
    class Slippery(TreasureHunt):
        def settle(self) -> Any:
            return super().settle()

    game = Slippery(config=BASE)
    assert game.prepare().loop.why_not_compiled() == "Slippery.settle() is written in Python"
    game = TreasureHunt(config=BASE)
    game.observe = game.observe
    assert game.prepare().loop.why_not_compiled() == "TreasureHunt.observe() is written in Python"


def test_rewards_are_added_to_returns_and_to_the_episodes_that_go_on_or_end() -> None:
    """Two agents in two worlds, worked out by hand; the last one ended earlier."""
    alive = np.array([[True, True], [True, False]])
    acting = np.array([[True, False], [True, False]])
    rewards = np.array([[1.0, 2.0], [3.0, 0.0]], np.float32)
    terminated, truncated = np.array([[[False, True], [False, False]], [[False, False], [True, False]]])
    returns, running, finished = np.full((2, 2), 10.0), np.full((2, 2, 2), 4.0), np.zeros((3, 2))
    assert add_rewards(alive, acting, rewards, terminated, truncated, returns, running, finished) == 2
    assert returns.tolist() == [[11.0, 12.0], [13.0, 10.0]]
    assert running.tolist() == [[[5.0, 0.0], [0.0, 4.0]], [[5.0, 0.0], [0.0, 4.0]]]
    assert finished.tolist() == [[1.0, 1.0], [6.0, 7.0], [5.0, 5.0]]
    rewards[1, 0] = np.nan
    assert add_rewards(alive, acting, rewards, terminated, truncated, returns, running, finished) == -1 - 2
