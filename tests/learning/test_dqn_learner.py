"""DQN on rows: one round against an independent computation, rejected updates, paces and target networks."""

import itertools

import numpy as np
import pytest
import torch

from parallel_agents.learning import DQNLearner
from parallel_agents.learning.dqn import Pace
from parallel_agents.networks import MLP, numerics
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Identity, Snapshot

HYPER = {
    "lr": 1e-2,
    "lr_final": 1e-2,
    "lr_updates": 0,
    "lr_shape": 0,
    "clip": 10.0,
    "tau": 0.25,
    "target_interval": 0,
    "batch_growth": 1,
}
NET = MLP(3, (5,), 2)
BATCH = 4


@pytest.fixture(autouse=True)
def _under_the_rules():
    numerics.require()


def start(agents=3, updates=2, hyper=None, **options):
    learner = DQNLearner(NET, updates, BATCH, **options)
    identity = Identity((0,) * agents, tuple(range(agents)))
    return learner, identity, learner.init(identity, hyper or [HYPER] * agents)


def snapshot(agents=3, updates=2, seed=0):
    draws = generator(seed, Purpose.NOISE)
    block = (agents, updates * BATCH)
    return Snapshot(
        7,
        {
            "states": draws.standard_normal((*block, 3), np.float32),
            "next_states": draws.standard_normal((*block, 3), np.float32),
            "actions": draws.integers(0, 2, block),
            "returns": draws.standard_normal(block, np.float32),
            "discounts": draws.random(block, np.float32),
            "ready": np.ones(agents, np.bool_),
        },
    )


def changed(taken, **columns):
    return Snapshot(taken.round, {**taken.columns, **columns})


def same_row(a, b, row, names=("online", "target", "first", "second", "steps", "updates")):
    return all(torch.equal(a[name][row], b[name][row]) for name in names)


class Plain:
    """One agent with torch's own modules, optimizer, loss and clipping."""

    def __init__(self, row):
        views = NET.bind(row[None].clone())
        self.online, self.target = self._module(views), self._module(views)
        self.optimizer = torch.optim.Adam(self.online.parameters(), HYPER["lr"])

    def _module(self, views):
        module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
        with torch.no_grad():
            for parameter, view in zip(module.parameters(), views, strict=True):
                parameter.copy_(view[0].reshape(parameter.shape))
        return module

    def update(self, batch, *, double):
        with torch.no_grad():
            after = self.target(batch["next_states"])
            best = (self.online(batch["next_states"]) if double else after).argmax(1, keepdim=True)
            goals = batch["returns"] + batch["discounts"] * after.gather(1, best)[:, 0]
        values = self.online(batch["states"]).gather(1, batch["actions"][:, None])[:, 0]
        loss = torch.nn.functional.smooth_l1_loss(values, goals)
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.online.parameters(), HYPER["clip"])
        self.optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(self.target.parameters(), self.online.parameters(), strict=True):
                mine.lerp_(theirs, HYPER["tau"])
        return loss.item(), norm.item()


@pytest.mark.parametrize("double", [True, False])
def test_a_round_is_that_of_a_plain_implementation(double):
    updates = 5
    learner, identity, state = start(updates=updates, double=double)
    taken = snapshot(updates=updates)
    new, result = learner.learn(state, taken, identity)
    for n in range(3):
        plain = Plain(state["online"][n])
        figures = []
        for update in range(updates):
            part = slice(update * BATCH, (update + 1) * BATCH)
            batch = {
                name: torch.from_numpy(column[n, part]) for name, column in taken.columns.items() if name != "ready"
            }
            figures.append(plain.update(batch, double=double))
        for name, module in (("online", plain.online), ("target", plain.target)):
            for view, parameter in zip(NET.bind(new[name][n : n + 1]), module.parameters(), strict=True):
                torch.testing.assert_close(view[0].reshape(parameter.shape), parameter.detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            [result.metrics["loss"][n], result.metrics["gradient_norm"][n]], np.mean(figures, 0), rtol=1e-4
        )
    assert result.round == 7
    assert result.updates.tolist() == [updates] * 3
    assert result.rejected.tolist() == [0] * 3


def test_learning_changes_neither_its_state_nor_its_snapshot():
    learner, identity, state = start()
    taken = snapshot()
    before, columns = state.clone(), {name: column.copy() for name, column in taken.columns.items()}
    first, _ = learner.learn(state, taken, identity)
    assert all(torch.equal(state[name], before[name]) for name in state.tensors)
    assert all((taken[name] == columns[name]).all() for name in columns)
    again, _ = learner.learn(state, taken, identity)
    assert all(torch.equal(first[name], again[name]) for name in state.tensors)


def test_weighted_samples_count_by_their_weight():
    learner, identity, state = start(agents=1, updates=1)
    taken = snapshot(agents=1, updates=1)
    halves = {name: column[:, [0, 1, 0, 1]] for name, column in taken.columns.items() if name != "ready"}
    weights = np.array([[2.0, 2.0, 0.0, 0.0]], np.float32)
    plain, _ = learner.learn(state, Snapshot(1, {**halves, "ready": taken["ready"]}), identity)
    weighted, _ = learner.learn(state, changed(taken, weights=weights), identity)
    torch.testing.assert_close(weighted["online"], plain["online"])


# -- what is not trained --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *itertools.product(["states", "next_states", "returns", "discounts"], [np.nan, np.inf]),
        ("states", 1e25),  # the loss is finite, the norm of its gradient is not
    ],
)
def test_a_batch_that_is_not_finite_is_rejected_for_its_agent_only(column, value):
    learner, identity, state = start(updates=3)
    clean = snapshot(updates=3)
    spoilt = clean[column].copy()
    spoilt[1, BATCH + 1] = value  # in the second of three updates
    expected, _ = learner.learn(state, clean, identity)
    new, result = learner.learn(state, changed(clean, **{column: spoilt}), identity)
    assert result.updates.tolist() == [3, 2, 3]
    assert result.rejected.tolist() == [0, 1, 0]
    assert new["updates"].tolist() == [3, 2, 3]
    assert new["steps"].tolist() == [3.0, 2.0, 3.0]
    assert same_row(new, expected, 0)
    assert same_row(new, expected, 2)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in new.tensors.values())
    one = DQNLearner(NET, 2, BATCH)  # what is left is what two updates would have made of the two good batches
    kept = {
        name: np.delete(array, slice(BATCH, 2 * BATCH), 1) if array.ndim > 1 else array
        for name, array in clean.columns.items()
    }
    assert same_row(new, one.learn(state, Snapshot(7, kept), identity)[0], 1)


def test_agents_that_are_not_ready_are_left_alone():
    learner, identity, state = start()
    expected, _ = learner.learn(state, snapshot(), identity)
    new, result = learner.learn(state, changed(snapshot(), ready=np.array([True, False, True])), identity)
    assert same_row(new, state, 1)
    assert same_row(new, expected, 0)
    assert same_row(new, expected, 2)
    assert result.updates.tolist() == [2, 0, 2]
    assert result.rejected.tolist() == [0, 0, 0]


# -- target networks ------------------------------------------------------------------------------------------


def targets_after_each(hyper, updates):
    """(updates, P) online and target rows of one agent, update by update."""
    learner, identity, state = start(agents=1, updates=1, hyper=[{**HYPER, **hyper}])
    online, target = [state["online"][0]], [state["target"][0]]
    for update in range(updates):
        state, _ = learner.learn(state, snapshot(agents=1, updates=1, seed=update), identity)
        online.append(state["online"][0])
        target.append(state["target"][0])
    return online, target


def test_soft_targets_follow_by_tau_each_update():
    online, target = targets_after_each({"tau": 0.25}, 4)
    for update in range(1, 5):
        torch.testing.assert_close(target[update], 0.75 * target[update - 1] + 0.25 * online[update])


def test_hard_targets_are_whole_copies_every_interval():
    online, target = targets_after_each({"target_interval": 3}, 7)
    for update, source in enumerate([0, 0, 0, 3, 3, 3, 6, 6]):
        assert torch.equal(target[update], online[source])


def test_hard_and_soft_targets_live_in_one_stack():
    hyper = [{**HYPER, "target_interval": 2}, HYPER, {**HYPER, "target_interval": 1}]
    learner, identity, state = start(hyper=hyper, updates=3)
    new, _ = learner.learn(state, snapshot(updates=3), identity)
    for n in range(3):
        part = slice(n, n + 1)
        alone, _ = learner.learn(state.rows(part).clone(), snapshot(updates=3).rows(part), identity.rows(part))
        assert same_row(new.rows(part), alone, 0)
    assert torch.equal(new["target"][2], new["online"][2])
    assert not torch.equal(new["target"][0], new["online"][0])


# -- learning rates -------------------------------------------------------------------------------------------


def test_rates_fall_in_a_line_by_each_agents_own_updates():
    hyper = [
        {**HYPER, "lr": 1.0, "lr_final": 0.0, "lr_updates": 4},
        {**HYPER, "lr": 0.5, "lr_final": 0.1, "lr_updates": 2},
        {**HYPER, "lr": 0.3, "lr_final": 0.3, "lr_updates": 0},
    ]
    _, _, state = start(hyper=hyper)
    pace = Pace(state)
    seen = []
    for accepted in ([True] * 3, [True, False, True], [True] * 3, [True] * 3, [True] * 3, [True] * 3):
        seen.append(pace.rates())
        pace.count(accepted)
    assert np.allclose([rates[0] for rates in seen], [1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert np.allclose([rates[1] for rates in seen], [0.5, 0.3, 0.3, 0.1, 0.1, 0.1])
    assert np.allclose([rates[2] for rates in seen], [0.3] * 6)
    assert pace.updates.tolist() == [6, 5, 6]


def test_a_schedule_goes_on_where_the_last_round_ended():
    hyper = [{**HYPER, "lr_final": 0.0, "lr_updates": 6}]
    taken = snapshot(agents=1, updates=4)
    learner, identity, state = start(agents=1, updates=4, hyper=hyper)
    at_once, _ = learner.learn(state, taken, identity)
    halves = DQNLearner(NET, 2, BATCH)
    for first in (0, 2 * BATCH):
        part = {
            name: column[:, first : first + 2 * BATCH] if column.ndim > 1 else column
            for name, column in taken.columns.items()
        }
        state, _ = halves.learn(state, Snapshot(1, part), identity)
    assert all(torch.equal(state[name], at_once[name]) for name in state.tensors)


def test_the_policy_is_the_online_network():
    learner, _, state = start()
    assert learner.policy(state) is state["online"]
    assert torch.equal(state["online"], state["target"])
