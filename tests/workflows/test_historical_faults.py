"""One regression test for each fault of the system that this one replaces (5.3 of its description), by number."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import ContractError
from parallel_agents.workflows.compliance import Compliance
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO
from parallel_agents.workflows.network import HOST_NAMES, action_id
from parallel_agents.workflows.orders import ORDERS
from parallel_agents.workflows.search import Evaluation, historical_scores, next_order, posterior
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

USER_FIRST = ("user", "enterprise", "op_server", "op_host", "defender")
OP_FIRST = ("op_server", "enterprise", "op_host", "user", "defender")


def access(*held: str) -> np.ndarray:
    """Red's access when it holds these hosts, and User0 as always."""
    row = np.zeros((1, 13), np.uint8)
    row[0, [HOST_NAMES.index(host) for host in (*held, "User0")]] = 2
    return row


def test_1_the_gaussian_process_is_consulted() -> None:
    """The next order is the argument of the maximum of mean + 3 deviations, and not of the distance rule."""
    draws = np.random.default_rng(1)
    differs = 0
    for _ in range(5):
        history = [Evaluation(ORDERS[i], float(draws.normal(-80, 20))) for i in draws.choice(120, 6)]
        mean, deviation = posterior(history)
        chosen = ORDERS.index(next_order(history))
        assert chosen == int((mean + 3.0 * deviation).argmax())
        differs += chosen != int(historical_scores(history, 2.0).argmax())
    assert differs


def test_2_actions_stand_beside_what_they_were_chosen_from() -> None:
    envs = ParallelEnvWrapper(3, red="B_line", steps=30)
    agent = ParallelOrderConditionedPPO(n_envs=3, steps=30, hidden=(8,))
    seen = envs.reset()
    for _ in range(10):
        actions = agent.get_actions(seen)
        seen, rewards, _ = envs.step(actions)  # overwritten before it is kept: the old mistake
        agent.buffer.add(seen, actions, rewards)
    before = agent.model.state["online"].clone()
    with pytest.raises(ContractError, match="pairs actions with observations they were not chosen from"):
        agent.update()
    assert before.equal(agent.model.state["online"])
    assert agent.updates == 0


def test_3_environments_are_reset_between_episodes() -> None:
    envs = ParallelEnvWrapper(2, red="B_line", steps=20)
    envs.reset()
    for _ in range(20):
        _, rewards, dones = envs.step(np.zeros(2, np.int64))
    assert dones.all()
    assert (rewards <= -10).any()
    with pytest.raises(ContractError, match="call reset"):
        envs.step(np.zeros(2, np.int64))
    envs.reset()
    assert not envs.step(np.zeros(2, np.int64))[1].any()


def test_4_what_is_compromised_is_read_from_the_true_state() -> None:
    """In real worlds: once red holds an Enterprise host, a fix of a user host breaks an order that ranks it lower."""
    envs = ParallelEnvWrapper(1, red="B_line", steps=100)
    counters = Compliance(OP_FIRST, 1)
    envs.reset()
    while not envs.access[0, 1:4].any():
        counters.observe([action_id("Remove", "User1")], envs.access)
        envs.step(np.zeros(1, np.int64))
    assert counters.rates()[0] == 1.0
    counters.observe([action_id("Remove", "User1")], envs.access)
    assert counters.rates()[0] < 1.0


def test_5_the_foothold_on_user0_is_no_compromise() -> None:
    counters = Compliance(USER_FIRST, 1)
    counters.observe([action_id("Restore", "Enterprise0")], access("Enterprise0"))
    assert counters.rates()[0] == 1.0
    counters.observe([action_id("Restore", "Enterprise0")], access("Enterprise0", "User3"))
    assert counters.rates()[0] == 0.5
    historical = Compliance(USER_FIRST, 1, rule="highest_compromised")
    historical.observe([action_id("Restore", "Enterprise0")], access("Enterprise0"))
    assert historical.rates()[0] == 0.0


def test_6_free_removes_at_the_start_buy_nothing() -> None:
    removes = [action_id("Remove", host) for host in ("Op_Server0", "Enterprise0", "Op_Host0", "User1", "Defender")]
    late = action_id("Restore", "User1")  # while red holds the server, which ranks higher
    rates = {}
    for rule in ("no_higher_compromised", "fixed_types"):
        counters = Compliance(OP_FIRST, 1, rule=rule)
        for action in removes:
            counters.observe([action], access())
        before = counters.rates()[0]
        counters.observe([late], access("Op_Server0"))
        rates[rule] = before, counters.rates()[0]
    assert rates["fixed_types"] == (1.0, 1.0)
    assert rates["no_higher_compromised"] == (1.0, 5 / 6)
