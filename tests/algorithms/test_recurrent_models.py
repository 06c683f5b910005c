"""Recurrent agents: they learn from the hidden states that they acted with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from examples.remember import Remember
from parallel_agents.algorithms import DQN, PPO
from parallel_agents.algorithms.ppo import Rollout, Updates
from parallel_agents.core.config import merge
from parallel_agents.core.errors import ConfigError, ContractError
from parallel_agents.env import Agent
from tests.equivalence.test_algorithms import Choices

FRESH = {"experiment": {"worlds": 3, "max_turns": 11}, "parallel": {"backend": "inline", "train_interval": 3}}
MODES: list[dict[str, Any]] = [
    {},
    {"experiment": {"autoreset": True}},
    {"parallel": {"turn_order": "sequential"}},
    {"experiment": {"autoreset": True}, "parallel": {"turn_order": "sequential"}},
]


def stack_after_epochs(model: dict[str, Any], mode: dict[str, Any], epochs: int = 2) -> Any:
    """Return the stack of a game after some epochs, before its first round."""
    game = Choices(config=merge(FRESH, {"model": model}, mode))
    game.run_experiment(epochs)
    return game.prepare().group.stacks[0]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_unrolling_from_stored_states_gives_the_log_probabilities_of_acting(mode: dict[str, Any]) -> None:
    """Also with episodes that start, terminate and are truncated, and agents that cannot act or observe twice."""
    stack = stack_after_epochs({"algorithm": "ppo", "recurrent": True, "hidden": (4, 6), "sequence": 4}, mode)
    snapshot, learner = stack.example(), stack.learner
    rollout = Rollout(
        snapshot,
        stack.state,
        stack.identity,
        n_minibatches=learner.n_minibatches,
        batch=learner.batch,
        length=learner.sequence,
    )
    log_probs = Updates(learner, stack.state.clone()).log_probs(rollout)
    valid = snapshot["valid"].reshape(len(log_probs), -1)
    assert valid.sum() > 50
    torch.testing.assert_close(torch.from_numpy(log_probs[valid]), torch.from_numpy(rollout.log_prob[valid]))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_unrolling_from_stored_states_leads_to_the_next_stored_states(mode: dict[str, Any]) -> None:
    """The hidden state after a turn is the one that the next turn started from."""
    stack = stack_after_epochs(
        {"algorithm": "dqn", "recurrent": True, "hidden": 6, "sequence": 4, "learning_starts": 999}, mode
    )
    ring, network = stack.ring, stack.spec.network
    parameters = network.bind(stack.learner.policy(stack.state))
    checked = 0
    for row in range(int(ring.pos.min()) - 1):
        observations, state = ring.observations[:, row], ring.extras["hidden"][:, row]
        inputs = torch.from_numpy(np.concatenate([observations, state], -1))
        after = network.forward(parameters, inputs)[..., -6:].numpy()
        same = (ring.age[:, row + 1] == ring.age[:, row] + 1) & ring.valid[:, row + 1]
        checked += int(same.sum())
        np.testing.assert_allclose(after[same], ring.extras["hidden"][:, row + 1][same], rtol=1e-4, atol=1e-6)
        fresh = ring.valid[:, row] & (ring.age[:, row] == 0)
        assert not state[fresh].any()
    assert checked > 50


def test_take_action_carries_the_hidden_state_until_an_episode_starts() -> None:
    model = DQN((2,), 3, recurrent=True, hidden=8, epsilon=0.0, epsilon_final=0.0)
    cues = [[1.0, 0.0], [0.0, 1.0]]

    def state_after(cue: list[float]) -> np.ndarray:
        model.start_episode()
        model.take_action(cue)
        model.take_action([0.0, 0.0])
        assert model._recurrent is not None
        return model._recurrent.after

    one, other = map(state_after, cues)
    assert not np.array_equal(one, other)
    assert np.array_equal(state_after(cues[0]), one)


def test_evaluation_does_not_change_the_hidden_states_of_a_run() -> None:
    game = Choices(config=merge(FRESH, MODES[1], {"model": {"algorithm": "dqn", "recurrent": True, "hidden": 6}}))
    game.run_experiment(2)
    before = game.prepare().group.stacks[0].recurrent.after.copy()
    one = game.evaluate(5).returns
    assert np.array_equal(game.prepare().group.stacks[0].recurrent.after, before)
    assert np.array_equal(game.evaluate(5).returns, one)


def test_an_agent_that_overrides_get_action_cannot_be_recurrent() -> None:
    class OwnAction(Agent):
        def get_action(self, state: Any) -> Any:
            return 0

    class Game(Choices):
        def setup_agents(self) -> None:
            self.agents = [OwnAction(model=DQN((3,), 3, recurrent=True)) for _ in range(2)]

    with pytest.raises(ContractError, match=r"agent_0 overrides get_action\(\) or add_memory\(\).*recurrent"):
        Game().prepare()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DQN((3,), 3, recurrent=True, n_frames=2), "model.n_frames is 2 with model.recurrent"),
        (lambda: DQN((3,), 3, recurrent=True, hidden=()), "model.recurrent with an empty model.hidden"),
        (lambda: PPO((3,), 3, recurrent=True, sequence=0), "model.sequence is 0"),
        (lambda: PPO((3,), 3, recurrent=True, hidden=1), "a state of 1"),
        (lambda: DQN((2, 5, 5), 3, recurrent=True, hidden=8, convolutional=((4, 3, 1),)), "give at least two widths"),
        (lambda: DQN((3,), 3, recurrent=True, network=lambda: torch.nn.Linear(3, 3)), "model.recurrent given together"),
        (lambda: DQN((3,), 3, recurrent=True, importance={}), "model.importance with model.recurrent"),
        (lambda: DQN((3,), 3, recurrent=True, priority_alpha=0.6), "model.priority_alpha with model.recurrent"),
    ],
)
def test_options_that_do_not_go_with_recurrent_networks_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_recurrent_networks_can_have_convolutional_layers() -> None:
    model = PPO((2, 5, 5), 3, recurrent=True, hidden=(8, 6), convolutional=((4, 3, 1),))
    assert model.take_action(np.zeros((2, 5, 5))) in (0, 1, 2)


def score(algorithm: str, epochs: int, *, delay: int = 2, **model: Any) -> np.ndarray:
    """Return the share (agents,) of 200 episodes in which each agent names the sign."""
    config = {
        "world": {"delay": delay},
        "model": {"algorithm": algorithm, "hidden": 16, **model},
        "parallel": {"backend": "inline"},
    }
    game = Remember(config=config)
    game.run_experiment(epochs)
    return np.asarray(game.evaluate(200).returns.mean(axis=1))


@pytest.mark.parametrize(("algorithm", "epochs"), [("ppo", 100), ("dqn", 60)])
def test_recurrent_agents_remember(algorithm: str, epochs: int) -> None:
    assert score(algorithm, epochs).min() == 1.0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_recurrent_agents_remember_for_longer(algorithm: str) -> None:
    assert score(algorithm, 160, delay=6, hidden=32).min() == 1.0


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_without_a_hidden_state_agents_are_no_better_than_chance(algorithm: str) -> None:
    """At the question the observation is the same whatever the sign was, so such an agent always names the same one."""
    shares = score(algorithm, 40, recurrent=False)
    assert (abs(shares - 0.5) < 0.12).all()  # 200 fair coins: more than 3 deviations
