"""The defender that is told an order, and its buffer."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO, ParallelTrajectoryBuffer
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDERS, UNIT_TYPES
from parallel_agents.workflows.policies import play
from parallel_agents.workflows.training import effective_orders, evaluate_order, train_all_orders, train_order
from parallel_agents.workflows.wrapper import ParallelEnvWrapper


def agent(**options: object) -> ParallelOrderConditionedPPO:
    return ParallelOrderConditionedPPO(**{"n_envs": 4, "steps": 10, "hidden": (8,), **options})  # type: ignore[arg-type]


def played(learner: ParallelOrderConditionedPPO, turns: int = 10, seed: int = 0) -> np.ndarray:
    envs = ParallelEnvWrapper(learner.n_envs, red="B_line", steps=100, seed=seed)
    seen = envs.reset()
    for _ in range(turns):
        actions = learner.get_actions(seen)
        following, rewards, _ = envs.step(actions)
        learner.buffer.add(seen, actions, rewards)
        seen = following
    return seen


def test_documented_defaults() -> None:
    learner = ParallelOrderConditionedPPO()
    assert (learner.n_envs, learner.steps) == (25, 100)
    assert learner.model.hyper["lr"] == 0.002
    assert (learner.model.hyper["gamma"], learner.model.hyper["ratio_clip"]) == (0.99, 0.2)
    assert (learner.model.blueprint.passes, learner.model.blueprint.minibatches) == (4, 1)
    assert learner.model.blueprint.observation == (77,)
    assert ParallelTrajectoryBuffer().n_envs == 25


def test_an_update_learns_empties_and_repeats_itself() -> None:
    rows = []
    for _ in range(2):
        learner = agent()
        before = learner.model.state["online"].clone()
        played(learner)
        assert len(learner.buffer) == 40
        assert np.isfinite(learner.update()["loss"])
        assert len(learner.buffer) == 0
        assert not before.equal(learner.model.state["online"])
        rows.append(learner.model.state["online"])
    assert rows[0].equal(rows[1])


def test_what_is_learnt_is_acted_with() -> None:
    learner = agent(lr=0.05)
    seen = np.zeros((4, 52), np.uint8)
    for _ in range(40):
        for _ in range(10):
            actions = learner.get_actions(seen)
            learner.buffer.add(seen, actions, actions < 70)
        learner.update()
    assert (learner.get_actions(seen) < 70).all()
    assert (learner.policy(UNIT_TYPES)(seen, 0, 0) < 70).all()


def test_episodes_that_go_on_are_worth_what_follows() -> None:
    """The same turns with and without what they led to give different lessons."""
    rows = []
    for goes_on in (True, False):
        learner = agent()
        following = played(learner)
        learner.update(following if goes_on else None)
        rows.append(learner.model.state["online"])
    assert not rows[0].equal(rows[1])


def test_the_order_is_read() -> None:
    learner = agent(hidden=(32,), seed=3)
    seen = np.ones((1, 52), np.uint8)
    chosen = {int(learner.policy(order)(seen, 0, 0)[0]) for order in ORDERS}
    assert len(chosen) > 1
    learner.set_order([ORDERS[0], ORDERS[5], ORDERS[7], ORDERS[119]])
    assert learner.orders[3] == ORDERS[119]


def test_asking_twice_in_a_turn_is_allowed() -> None:
    learner = agent()
    seen = np.zeros((4, 52), np.uint8)
    first, second = learner.get_actions(seen), learner.get_actions(seen)
    np.testing.assert_array_equal(first, second)
    learner.buffer.add(seen, second, np.zeros(4))
    learner.update()


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="n_envs is 0"):
        ParallelTrajectoryBuffer(n_envs=0)
    with pytest.raises(ConfigError, match="n_envs is 0"):
        ParallelOrderConditionedPPO(n_envs=0)
    with pytest.raises(ConfigError, match="repeated: op_host"):
        agent(order=("defender", "enterprise", "op_server", "op_host", "op_host"))
    with pytest.raises(ConfigError, match="missing: user"):
        agent(order=("defender", "enterprise", "op_server", "op_host"))
    with pytest.raises(ConfigError, match="steps is 0"):
        agent(steps=0)
    learner = agent()
    with pytest.raises(ShapeError, match=r"observations have shape \(3, 52\)"):
        learner.get_actions(np.zeros((3, 52)))
    with pytest.raises(ShapeError, match=r"rewards have shape \(3,\)"):
        learner.buffer.add(np.zeros((4, 52)), np.zeros(4), np.zeros(3))
    with pytest.raises(NonFiniteError, match=r"rewards .* hold NaN"):
        learner.buffer.add(np.zeros((4, 52)), np.zeros(4), np.full(4, np.nan))
    assert len(learner.buffer) == 0
    with pytest.raises(ContractError, match="empty buffer"):
        learner.update()
    learner.buffer.add(np.zeros((4, 52)), np.zeros(4), np.zeros(4))
    with pytest.raises(ContractError, match="kept without get_actions"):
        learner.update()


def test_too_many_turns_are_refused() -> None:
    learner = agent(steps=2)
    played(learner, 3)
    with pytest.raises(ContractError, match="3 turns are kept, an update takes 2"):
        learner.update()


def test_training_stops_once_the_order_is_kept() -> None:
    """Threshold 0 is met as soon as enough was seen; 1.0 by nobody who still explores."""
    quick = train_order(agent(), ParallelEnvWrapper(4, steps=20), 30, threshold=1e-9, min_episodes=3)
    assert quick.stopped
    assert 3 <= quick.episodes < 30
    slow = train_order(agent(), ParallelEnvWrapper(4, steps=20), 4, threshold=1.0, min_episodes=1)
    assert (slow.stopped, slow.episodes) == (False, 4)
    assert all(0.0 <= c <= 1.0 for c in slow.compliance)


@pytest.mark.parametrize("steps", [5, 10, 40])
def test_updates_may_come_within_or_across_episodes(steps: int) -> None:
    learner = agent(steps=steps)
    train_order(learner, ParallelEnvWrapper(4, steps=20), 4, threshold=1.0)
    assert learner.updates == 80 // steps
    assert len(learner.buffer) == 0


def test_all_orders_at_once() -> None:
    learner = agent()
    train_all_orders(learner, ParallelEnvWrapper(4, steps=10), 3)
    assert learner.updates == 3
    assert len(set(learner.orders)) > 1


def test_an_evaluation_counts_the_environment_alone() -> None:
    learner = agent()
    worlds = NetworkWorlds(6, red="Meander", steps=40, late_start=20)
    verdict = evaluate_order(learner, iter(ORDERS[3]), worlds)
    expected = play(worlds, learner.policy(ORDERS[3]), 0).sum(axis=0)
    assert verdict.value == pytest.approx(expected.mean())
    assert 0.0 <= verdict.compliance <= 1.0


def test_there_are_24_effective_orders() -> None:
    assert len(effective_orders()) == 24
