"""Whole epochs in compiled code: the bytes of turns taken one by one, and the same errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from numba import njit

from examples.cleanup import Cleanup
from examples.coins import Coins
from examples.commons_harvest import CommonsHarvest
from examples.iowa import Iowa
from examples.prisoners_dilemma import PrisonersDilemma
from examples.stag_hunt import StagHunt
from examples.tag import Tag
from examples.treasure_hunt import TreasureHunt
from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.core.config import merge
from parallel_agents.core.errors import NonFiniteError
from parallel_agents.core.types import Floats
from parallel_agents.engine.collect import CompiledWorld, add_rewards, nothing_restarts
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
    if compiled.world is not None:
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


class Moves(NamedTuple):
    """Of each agent in each world (N, W): whether it has moved in this turn, and to which side, -1 or 1."""

    moved: Floats
    side: Floats


@njit
def rest(moves: Any, active: Any, able: Any, epoch: int, turn: int) -> None:
    moves.moved[:] = 0.0


@njit
def see(moves: Any, out: Any) -> None:
    for n in range(out.shape[0]):
        see_as(moves, n, out[n])


@njit
def see_as(moves: Any, n: int, out: Any) -> None:
    for w in range(out.shape[0]):
        for m in range(moves.moved.shape[0]):
            out[w, m] = moves.moved[m, w] * moves.side[m, w]  # -0 where it turned to the left and did not move


@njit
def move(
    moves: Any, actions: Any, acting: Any, active: Any, rewards: Any, ended: Any, cut: Any, epoch: int, turn: int
) -> int:
    for n in range(rewards.shape[0]):
        move_one(moves, n, actions, acting, active, rewards, ended, cut, epoch, turn)
    return -1


@njit
def move_one(
    moves: Any,
    n: int,
    actions: Any,
    acting: Any,
    active: Any,
    rewards: Any,
    ended: Any,
    cut: Any,
    epoch: int,
    turn: int,
) -> int:
    for w in range(rewards.shape[1]):
        if n > 0 and moves.moved[n - 1, w]:
            acting[n, w] = False
            continue
        moves.moved[n, w] = actions[n, w, 0] == 1
        moves.side[n, w] = -1.0 if actions[n, w, 0] == 2 else 1.0
        rewards[n, w] += moves.moved[n, w]
    return -1


class Row(ParallelEnvironment):
    """Three agents in a row: one that moves stops the next one for this turn."""

    together = see_as, move_one

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model((3,), n_actions=3)) for _ in range(3)]
        self.moves = Moves(np.zeros((3, self.n_worlds)), np.ones((3, self.n_worlds)))

    def compiled_world(self) -> CompiledWorld | str:
        return CompiledWorld(self.moves, nothing_restarts, rest, see, move, *self.together)

    def reset(self) -> None:
        self.moves.side[:] = 1.0

    def begin_turn(self) -> None:
        self.moves.moved[:] = 0.0

    def can_act(self) -> Any:
        stopped = np.roll(self.moves.moved, 1, axis=0) > 0
        stopped[0] = False
        return ~stopped

    def observe(self) -> Any:
        out = np.zeros((3, self.n_worlds, 3), np.float32)
        see(self.moves, out)
        return out

    def apply_agent(self, index: int, actions: Any) -> Any:
        rewards, chosen = np.zeros((3, self.n_worlds), np.float32), np.zeros((3, self.n_worlds, 1), np.int64)
        chosen[index, :, 0] = actions
        move_one(self.moves, index, chosen, np.ones((3, self.n_worlds), bool), None, rewards, None, None, 0, 0)
        return rewards


def test_worlds_of_ones_own_take_turns_one_by_one_in_compiled_code() -> None:
    """An agent that cannot act any more stores nothing; an observation that became -0 is stored so."""
    same(Row, DQN, {"parallel": {"turn_order": "sequential"}})


def test_a_world_with_one_of_the_two_functions_takes_turns_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Row, "together", (None, move_one))
    game = Row(config=merge(BASE, {"model": DQN, "parallel": {"turn_order": "sequential"}}))
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
