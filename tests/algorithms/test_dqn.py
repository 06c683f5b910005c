"""DQN: its losses, and rounds against a plain implementation; rejected updates, learning rates, target networks."""

import itertools

import numpy as np
import pytest
import torch

from parallel_agents.algorithms.dqn import DQNLearner, double_q_targets, huber, q_targets, values_of, weighted_mean
from parallel_agents.algorithms.learner import Snapshot
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.nn import MLP

# -- losses ---------------------------------------------------------------------------------------------------

RETURNS = torch.tensor([[1.0, -2.0, 0.5]])
DISCOUNTS = torch.tensor([[0.9, 0.0, 0.81]])
NEXT = torch.tensor([[[1.0, 3.0], [5.0, 4.0], [-1.0, -2.0]]])
NEXT_ONLINE = torch.tensor([[[7.0, 6.0], [0.0, 1.0], [2.0, 3.0]]])


def test_q_targets_take_the_best_value():
    # 1 + 0.9·3;  -2, the episode ended;  0.5 + 0.81·(-1)
    torch.testing.assert_close(q_targets(RETURNS, DISCOUNTS, NEXT), torch.tensor([[3.7, -2.0, -0.31]]))


def test_double_q_targets_take_the_value_of_the_action_that_the_online_network_prefers():
    # 1 + 0.9·1;  -2;  0.5 + 0.81·(-2)
    torch.testing.assert_close(
        double_q_targets(RETURNS, DISCOUNTS, NEXT, NEXT_ONLINE), torch.tensor([[1.9, -2.0, -1.12]])
    )


def test_huber_is_quadratic_inside_and_linear_outside():
    errors = torch.tensor([0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0], requires_grad=True)
    assert huber(errors).tolist() == [0.0, 0.125, 0.125, 0.5, 0.5, 2.5, 2.5]
    (gradient,) = torch.autograd.grad(huber(errors).sum(), errors)
    assert gradient.tolist() == [0.0, 0.5, -0.5, 1.0, -1.0, 1.0, -1.0]


def test_samples_are_weighted_before_the_mean():
    losses = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    assert weighted_mean(losses, None).tolist() == [2.0, 2.0]
    assert weighted_mean(losses, torch.tensor([[1.0, 0.0], [0.5, 1.0]])).tolist() == [0.5, 1.5]


def test_values_of_picks_the_taken_actions():
    assert values_of(NEXT, torch.tensor([[1, 0, 1]])).tolist() == [[3.0, 5.0, -2.0]]


# -- rounds ---------------------------------------------------------------------------------------------------

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


def start(agents=3, updates=2, hyper=None, **options):
    learner = DQNLearner(NET, updates, BATCH, **options)
    identity = Identity((0,) * agents, tuple(range(agents)))
    return learner, identity, learner.init(identity, hyper or [HYPER] * agents)


def random_samples(agents=3, updates=2, seed=0):
    draws = generator(seed, Purpose.NOISE)
    shape = (agents, updates * BATCH)
    return Snapshot(
        7,
        {
            "states": draws.standard_normal((*shape, 3), np.float32),
            "next_states": draws.standard_normal((*shape, 3), np.float32),
            "actions": draws.integers(0, 2, shape),
            "returns": draws.standard_normal(shape, np.float32),
            "discounts": draws.random(shape, np.float32),
            "ready": np.ones(agents, np.bool_),
        },
    )


def with_columns(before, **columns):
    return Snapshot(before.round, {**before.columns, **columns})


def same_row(a, b, row, names=("online", "target", "first", "second", "steps", "updates")):
    return all(torch.equal(a[name][row], b[name][row]) for name in names)


class PlainDQN:
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
            next_values = self.target(batch["next_states"])
            best = (self.online(batch["next_states"]) if double else next_values).argmax(1, keepdim=True)
            targets = batch["returns"] + batch["discounts"] * next_values.gather(1, best)[:, 0]
        values = self.online(batch["states"]).gather(1, batch["actions"][:, None])[:, 0]
        loss = torch.nn.functional.smooth_l1_loss(values, targets)
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.online.parameters(), HYPER["clip"])
        self.optimizer.step()
        with torch.no_grad():
            for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
                target.lerp_(online, HYPER["tau"])
        return loss.item(), norm.item()


@pytest.mark.parametrize("double", [True, False])
def test_a_round_equals_that_of_a_plain_implementation(double):
    updates = 5
    learner, identity, state = start(updates=updates, double=double)
    samples = random_samples(updates=updates)
    new, result = learner.learn(state, samples, identity)
    for n in range(3):
        plain = PlainDQN(state["online"][n])
        metrics = []
        for update in range(updates):
            part = slice(update * BATCH, (update + 1) * BATCH)
            batch = {
                name: torch.from_numpy(column[n, part]) for name, column in samples.columns.items() if name != "ready"
            }
            metrics.append(plain.update(batch, double=double))
        for name, module in (("online", plain.online), ("target", plain.target)):
            for view, parameter in zip(NET.bind(new[name][n : n + 1]), module.parameters(), strict=True):
                torch.testing.assert_close(view[0].reshape(parameter.shape), parameter.detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            [result.metrics["loss"][n], result.metrics["gradient_norm"][n]], np.mean(metrics, 0), rtol=1e-4
        )
    assert result.round == 7
    assert result.updates.tolist() == [updates] * 3
    assert result.rejected.tolist() == [0] * 3


def test_learning_changes_neither_the_old_state_nor_the_snapshot():
    learner, identity, state = start()
    samples = random_samples()
    before, columns = state.clone(), {name: column.copy() for name, column in samples.columns.items()}
    first, _ = learner.learn(state, samples, identity)
    assert all(torch.equal(state[name], before[name]) for name in state.tensors)
    assert all((samples[name] == columns[name]).all() for name in columns)
    again, _ = learner.learn(state, samples, identity)
    assert all(torch.equal(first[name], again[name]) for name in state.tensors)


def test_weighted_samples_count_by_their_weight():
    learner, identity, state = start(agents=1, updates=1)
    samples = random_samples(agents=1, updates=1)
    halves = {name: column[:, [0, 1, 0, 1]] for name, column in samples.columns.items() if name != "ready"}
    weights = np.array([[2.0, 2.0, 0.0, 0.0]], np.float32)
    plain, _ = learner.learn(state, Snapshot(1, {**halves, "ready": samples["ready"]}), identity)
    weighted, _ = learner.learn(state, with_columns(samples, weights=weights), identity)
    torch.testing.assert_close(weighted["online"], plain["online"])


# -- what is not trained on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        *itertools.product(["states", "next_states", "returns", "discounts"], [np.nan, np.inf]),
        ("states", 1e25),  # the loss is finite, the norm of its gradient is not
    ],
)
def test_a_batch_that_is_not_finite_is_rejected_for_its_agent_only(column, value, kernels):
    falling = {**HYPER, "lr_final": 0.0, "lr_updates": 6}  # by accepted updates
    learner, identity, state = start(updates=3, hyper=[falling] * 3, kernels=kernels)
    clean = random_samples(updates=3)
    spoiled = clean[column].copy()
    spoiled[1, BATCH + 1] = value  # in the second of three updates
    expected, _ = learner.learn(state, clean, identity)
    new, result = learner.learn(state, with_columns(clean, **{column: spoiled}), identity)
    assert result.updates.tolist() == [3, 2, 3]
    assert result.rejected.tolist() == [0, 1, 0]
    assert new["updates"].tolist() == [3, 2, 3]
    assert new["steps"].tolist() == [3.0, 2.0, 3.0]
    assert same_row(new, expected, 0)
    assert same_row(new, expected, 2)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in new.tensors.values())
    two_updates = DQNLearner(NET, 2, BATCH, kernels=kernels)  # agent 1 is as after two updates on the two good batches
    good = {
        name: np.delete(array, slice(BATCH, 2 * BATCH), 1) if array.ndim > 1 else array
        for name, array in clean.columns.items()
    }
    assert same_row(new, two_updates.learn(state, Snapshot(7, good), identity)[0], 1)


def test_agents_that_are_not_ready_are_not_trained():
    learner, identity, state = start()
    expected, _ = learner.learn(state, random_samples(), identity)
    new, result = learner.learn(state, with_columns(random_samples(), ready=np.array([True, False, True])), identity)
    assert same_row(new, state, 1)
    assert same_row(new, expected, 0)
    assert same_row(new, expected, 2)
    assert result.updates.tolist() == [2, 0, 2]
    assert result.rejected.tolist() == [0, 0, 0]


# -- target networks ------------------------------------------------------------------------------------------


def rows_after_each_update(hyper, updates):
    """Return the online and the target rows of one agent, update by update."""
    learner, identity, state = start(agents=1, updates=1, hyper=[{**HYPER, **hyper}])
    online, target = [state["online"][0]], [state["target"][0]]
    for update in range(updates):
        state, _ = learner.learn(state, random_samples(agents=1, updates=1, seed=update), identity)
        online.append(state["online"][0])
        target.append(state["target"][0])
    return online, target


def test_soft_targets_follow_by_tau_each_update():
    online, target = rows_after_each_update({"tau": 0.25}, 4)
    for update in range(1, 5):
        torch.testing.assert_close(target[update], 0.75 * target[update - 1] + 0.25 * online[update])


def test_hard_targets_are_copied_whole_every_interval():
    online, target = rows_after_each_update({"target_interval": 3}, 7)
    for update, source in enumerate([0, 0, 0, 3, 3, 3, 6, 6]):
        assert torch.equal(target[update], online[source])


def test_hard_and_soft_targets_can_be_in_one_stack():
    hyper = [{**HYPER, "target_interval": 2}, HYPER, {**HYPER, "target_interval": 1}]
    learner, identity, state = start(hyper=hyper, updates=3)
    new, _ = learner.learn(state, random_samples(updates=3), identity)
    for n in range(3):
        part = slice(n, n + 1)
        alone, _ = learner.learn(state.rows(part).clone(), random_samples(updates=3).rows(part), identity.rows(part))
        assert same_row(new.rows(part), alone, 0)
    assert torch.equal(new["target"][2], new["online"][2])
    assert not torch.equal(new["target"][0], new["online"][0])


# -- learning rates -------------------------------------------------------------------------------------------


def test_a_learning_rate_schedule_continues_where_the_last_round_ended():
    hyper = [{**HYPER, "lr_final": 0.0, "lr_updates": 6}]
    samples = random_samples(agents=1, updates=4)
    learner, identity, state = start(agents=1, updates=4, hyper=hyper)
    at_once, _ = learner.learn(state, samples, identity)
    halves = DQNLearner(NET, 2, BATCH)
    for first in (0, 2 * BATCH):
        part = {
            name: column[:, first : first + 2 * BATCH] if column.ndim > 1 else column
            for name, column in samples.columns.items()
        }
        state, _ = halves.learn(state, Snapshot(1, part), identity)
    assert all(torch.equal(state[name], at_once[name]) for name in state.tensors)


def test_agents_act_with_the_online_network_and_targets_start_equal():
    learner, _, state = start()
    assert learner.policy(state) is state["online"]
    assert torch.equal(state["online"], state["target"])
