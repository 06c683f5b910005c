"""Recurrent agents: what is learnt from is what was played, states and all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from examples.remember import Remember
from parallel_agents.config import merge
from parallel_agents.environment import Agent
from parallel_agents.errors import ConfigError, ContractError
from parallel_agents.learning.ppo import Step
from parallel_agents.learning.trajectories import Trajectories
from parallel_agents.models import DQN, PPO
from tests.equivalence.test_algorithms import Choices

FRESH = {"experiment": {"worlds": 3, "max_turns": 11}, "parallel": {"backend": "inline", "train_interval": 3}}
WAYS: list[dict[str, Any]] = [
    {},
    {"experiment": {"autoreset": True}},
    {"parallel": {"turn_order": "sequential"}},
    {"experiment": {"autoreset": True}, "parallel": {"turn_order": "sequential"}},
]


def played(model: dict[str, Any], way: dict[str, Any], epochs: int = 2) -> Any:
    """The stack of a game that was played for some epochs and has not learnt anything yet."""
    game = Choices(config=merge(FRESH, {"model": model}, way))
    game.run_experiment(epochs)
    return game.prepare().crew.stacks[0]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_unrolled_from_kept_states_a_policy_gives_what_it_gave_when_it_played(way: dict[str, Any]) -> None:
    """Episodes that start, end and are cut off, agents that cannot act and agents that look twice included."""
    stack = played({"algorithm": "ppo", "recurrent": True, "hidden": (4, 6), "sequence": 4}, way)
    snapshot, learner = stack.example(), stack.learner
    data = Trajectories(
        snapshot, stack.state, stack.identity, parts=learner.minibatches, batch=learner.batch, length=learner.sequence
    )
    found = Step(learner, stack.state.clone()).log_probs(data)
    valid = snapshot["valid"].reshape(len(found), -1)
    assert valid.sum() > 50
    torch.testing.assert_close(torch.from_numpy(found[valid]), torch.from_numpy(data.log_prob[valid]))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_unrolled_from_kept_states_values_lead_to_the_states_that_were_kept(way: dict[str, Any]) -> None:
    """The state after one sequence is the one that the next was played from."""
    stack = played({"algorithm": "dqn", "recurrent": True, "hidden": 6, "sequence": 4, "learning_starts": 999}, way)
    ring, network = stack.ring, stack.blueprint.network
    parameters = network.bind(stack.learner.policy(stack.state))
    checked = 0
    for row in range(int(ring.pos.min()) - 1):
        seen, state = ring.observations[:, row], ring.extras["hidden"][:, row]
        inputs = torch.from_numpy(np.concatenate([seen, state], -1))
        after = network.forward(parameters, inputs)[..., -6:].numpy()
        same = (ring.age[:, row + 1] == ring.age[:, row] + 1) & ring.valid[:, row + 1]
        checked += int(same.sum())
        np.testing.assert_allclose(after[same], ring.extras["hidden"][:, row + 1][same], rtol=1e-4, atol=1e-6)
        fresh = ring.valid[:, row] & (ring.age[:, row] == 0)
        assert not state[fresh].any()
    assert checked > 50


def test_direct_calls_remember_until_an_episode_starts() -> None:
    model = DQN((2,), 3, recurrent=True, hidden=8, epsilon=0.0, epsilon_final=0.0)
    cues = [[1.0, 0.0], [0.0, 1.0]]

    def state_after(cue: list[float]) -> np.ndarray:
        model.start_episode()
        model.take_action(cue)
        model.take_action([0.0, 0.0])
        assert model._recall is not None
        return model._recall.after

    one, other = map(state_after, cues)
    assert not np.array_equal(one, other)
    assert np.array_equal(state_after(cues[0]), one)


def test_evaluation_has_states_of_its_own() -> None:
    game = Choices(config=merge(FRESH, WAYS[1], {"model": {"algorithm": "dqn", "recurrent": True, "hidden": 6}}))
    game.run_experiment(2)
    before = game.prepare().crew.stacks[0].recall.after.copy()
    one = game.evaluate(5).returns
    assert np.array_equal(game.prepare().crew.stacks[0].recall.after, before)
    assert np.array_equal(game.evaluate(5).returns, one)


def test_an_agent_that_chooses_by_itself_cannot_be_recurrent() -> None:
    class Stubborn(Agent):
        def get_action(self, state: Any) -> Any:
            return 0

    class Game(Choices):
        def setup_agents(self) -> None:
            self.agents = [Stubborn(model=DQN((3,), 3, recurrent=True)) for _ in range(2)]

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
def test_what_cannot_work_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_pictures_can_be_remembered_too() -> None:
    model = PPO((2, 5, 5), 3, recurrent=True, hidden=(8, 6), convolutional=((4, 3, 1),))
    assert model.take_action(np.zeros((2, 5, 5))) in (0, 1, 2)


def score(algorithm: str, epochs: int, *, delay: int = 2, **model: Any) -> np.ndarray:
    """(agents,) how often each names the sign, of 200 times."""
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
def test_without_a_state_nothing_better_than_chance_can_be_learnt(algorithm: str) -> None:
    """When the sign is asked for, the same is seen whatever it was, so such an agent always names the same one."""
    found = score(algorithm, 40, recurrent=False)
    assert (abs(found - 0.5) < 0.12).all()  # 200 fair coins: more than 3 deviations
