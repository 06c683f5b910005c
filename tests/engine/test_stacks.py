"""Models as rows of one stack: each acts, stores and learns as it would alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.algorithms import DQN, PPO, dqn
from parallel_agents.core.errors import ContractError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Transitions
from parallel_agents.engine import stacks
from parallel_agents.engine.stacks import Stack, group_models
from parallel_agents.execution.backend import shares
from parallel_agents.nn import Invariance, numerics
from parallel_agents.replay import Buffer, ThreadSafeBuffer

SMALL = {"hidden": (7,), "batch_size": 3, "updates_per_round": 2, "learning_starts": 1, "buffer_size": 60}


@pytest.fixture(autouse=True)
def _numeric_environment():
    numerics.require()


def make_models(count, worlds=2, each=None, **options):
    """Return models placed as agents of one run; each: function from an agent's number to its own options."""
    models = [DQN((3,), 4, **{**SMALL, **options, **(each(n) if each else {})}) for n in range(count)]
    for n, model in enumerate(models):
        model.place(seed=2, agent=n, worlds=worlds)
    return models


def run_epoch(stacks, worlds=2, turns=12):
    """Run an epoch in random worlds, the same for agents in one stack or in several; return all actions."""
    agents = sum(len(stack) for stack in stacks)
    ends = np.cumsum([len(stack) for stack in stacks]).tolist()
    parts = [(stack, slice(end - len(stack), end)) for stack, end in zip(stacks, ends, strict=True)]
    draws = generator(9, Purpose.WORLD)
    taken, first = [], np.ones((agents, worlds), np.bool_)
    for stack in stacks:
        stack.start_epoch(1)
    for turn in range(1, turns + 1):
        observations = draws.standard_normal((agents, worlds, 3), np.float32)
        rewards, able = draws.random((agents, worlds), np.float32), draws.random((agents, worlds)) >= 0.3
        terminated = draws.random((agents, worlds)) < 0.1
        actions = []
        for stack, part in parts:
            chosen, extras = stack.act(observations[part], first[part], 1, turn)
            actions.append(chosen)
            stack.add(
                Transitions(
                    observations[part], chosen, rewards[part], terminated[part], np.zeros_like(terminated[part]),
                    able[part], first[part], np.ones(len(stack), np.bool_), stack.inference.version, extras,
                )
            )  # fmt: skip
        taken.append(np.concatenate(actions))
        first = terminated
    last = draws.standard_normal((agents, worlds, 3), np.float32)
    for stack, part in parts:
        stack.close(last[part], ended=True)
    return np.stack(taken)


def learn(stack, round_=1):
    state, result = stack.learner.learn(stack.state, stack.snapshot(round_), stack.identity)
    stack.copy_state(state)
    return result


@settings(max_examples=12, deadline=None)
@given(
    count=st.integers(1, 9),
    worlds=st.integers(1, 3),
    frames=st.integers(1, 2),
    n_step=st.integers(1, 3),
    dueling=st.booleans(),
)
def test_a_stack_of_n_equals_n_stacks_of_one(count, worlds, frames, n_step, dueling):
    options = {
        "n_frames": frames,
        "n_step": n_step,
        "dueling": dueling,
        "each": lambda n: {"lr": 1e-3 * (n + 1), "gamma": 0.9 - 0.1 * (n % 3)},
    }
    together, alone = make_models(count, worlds, **options), make_models(count, worlds, **options)
    whole, single = Stack(together, together=True), [Stack([model], together=False) for model in alone]
    assert run_epoch([whole], worlds).tobytes() == run_epoch(single, worlds).tobytes()
    for stack in (whole, *single):
        learn(stack)
    for a, b in zip(together, alone, strict=True):
        assert all(torch.equal(a.state[name], b.state[name]) for name in a.state.tensors)
        stored, expected = a.memory.ring.live(0), b.memory.ring.live(0)
        assert all(stored[name].tobytes() == expected[name].tobytes() for name in stored)


def test_models_are_grouped_by_shapes_and_not_by_hyper_parameters():
    models = [
        *make_models(2, each=lambda n: {"lr": 0.1 * (n + 1), "gamma": 0.5, "epsilon": 0.3 * n}),
        *make_models(1, hidden=(9,)),
        *make_models(1, max_grad_norm=3.0, tau=0.5, target_update_interval=7),
        *make_models(1, worlds=3),
        *make_models(1, hidden=(9,), lr=0.9),
    ]
    assert group_models(models) == [[0, 1, 3], [2, 5], [4]]


def test_learning_rates_differ_within_a_stack():
    slow, fast = make_models(2, each=lambda n: {"lr": (1e-4, 1e-1)[n]})
    before = [model.state["online"].clone() for model in (slow, fast)]
    stack = Stack([slow, fast], together=True)
    run_epoch([stack])
    learn(stack)
    moved = [float((model.state["online"] - old).abs().max()) for model, old in zip((slow, fast), before, strict=True)]
    assert moved[1] > 100 * moved[0] > 0


def test_frozen_models_and_models_with_too_few_transitions_are_not_trained():
    models = make_models(3, learning_starts=5)
    stack = Stack(models, together=True)
    run_epoch([stack])
    models[1].frozen = True
    models[2].memory.clear()
    before = [model.state.clone() for model in models]
    result = learn(stack)
    assert result.updates.tolist() == [2, 0, 0]
    assert not torch.equal(models[0].state["online"], before[0]["online"])
    for n in (1, 2):
        assert all(torch.equal(models[n].state[name], before[n][name]) for name in before[n].tensors)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_nothing_is_drawn_from_the_buffers_while_no_agent_can_learn(kernels):
    stack = Stack(make_models(2, learning_starts=10**6, kernels=kernels), together=True)
    run_epoch([stack])
    snapshot = stack.snapshot(1)
    assert list(snapshot.columns) == ["ready"]
    assert not snapshot["ready"].any()
    state, result = stack.learner.learn(stack.state, snapshot, stack.identity)
    assert result.updates.tolist() == result.rejected.tolist() == [0, 0]
    assert all(torch.equal(state[name], stack.state[name]) for name in state.tensors)


def test_a_snapshot_is_a_copy():
    stack = Stack(make_models(2), together=True)
    run_epoch([stack])
    snapshot = stack.snapshot(3)
    before = {name: column.copy() for name, column in snapshot.columns.items()}
    stack.ring.observations[:] = 99.0
    stack.ring.rewards[:] = 99.0
    assert snapshot.round == 3
    assert all((snapshot[name] == before[name]).all() for name in before)
    assert stack.snapshot(4)["returns"].tobytes() != snapshot["returns"].tobytes()


@pytest.mark.parametrize("hidden", [(7,), (300, 300)])
def test_acting_again_on_the_same_observation_gives_the_same_action(hidden):
    stack = Stack(make_models(3, n_frames=2, epsilon=0.5, hidden=hidden), together=True)
    stack.start_epoch(1)
    draws = generator(1, Purpose.WORLD)
    first = np.ones((3, 2), np.bool_)
    for turn in range(1, 6):
        observations = draws.standard_normal((3, 2, 3), np.float32)
        actions, _ = stack.act(observations, first, 1, turn)
        for n in range(3):
            assert stack.act_again(n, observations[n], 1, turn)[0].tolist() == actions[n].tolist()
        first[:] = False


def test_large_networks_of_agents_that_explore_are_not_computed(monkeypatch):
    """And no action changes by that."""
    options = {"hidden": (300, 300), "epsilon": 0.6, "epsilon_final": 0.6, "kernels": "torch"}
    skipping, complete = (Stack(make_models(4, 1, **options), together=True) for _ in range(2))
    monkeypatch.setattr(type(skipping.inference), "skips_agents", property(lambda self: self is skipping.inference))
    computed = []
    forward_agent = skipping.inference.forward_agent
    monkeypatch.setattr(skipping.inference, "forward_agent", lambda n, x: computed.append(n) or forward_agent(n, x))
    assert run_epoch([skipping], 1).tobytes() == run_epoch([complete], 1).tobytes()
    assert 0 < len(computed) < 4 * 12


def test_recurrent_networks_are_computed_also_while_their_agents_explore():
    recurrent = {"recurrent": True, "hidden": (8,), "sequence": 4, "epsilon": 1.0, "epsilon_epochs": 10**6}
    stack = Stack(make_models(2, 1, **recurrent), together=True)
    stack.start_epoch(1)
    assert stack.spec.needs_forward(np.zeros((2, 1, 2)), stack.exploration) is None


def test_weights_act_only_once_they_are_published():
    models = make_models(2, epsilon=0.0, epsilon_final=0.0)
    stack = Stack(models, together=True)
    stack.start_epoch(1)
    inputs, first = np.ones((2, 2, 3), np.float32), np.ones((2, 2), np.bool_)
    run_epoch([stack])
    old = stack.inference.forward(inputs)
    state, _ = stack.learner.learn(stack.state, stack.snapshot(1), stack.identity)
    assert stack.inference.forward(inputs).tobytes() == old.tobytes()
    stack.publish(1, state)
    assert stack.inference.version == 1
    assert stack.inference.forward(inputs).tobytes() != old.tobytes()
    assert stack.act(inputs, first, 1, 1)[0].tolist() == stack.inference.forward(inputs).argmax(-1).tolist()


def test_copy_state_gives_every_model_a_copy():
    models = make_models(2)
    stack = Stack(models, together=True)
    stack.copy_state(stack.state)
    stack.state["online"].zero_()
    assert all(bool(model.state["online"].any()) for model in models)


def test_buffers_move_into_the_stack_and_stay_the_same_objects():
    models = make_models(2, worlds=1)
    models[1].memory.add([1, 2, 3], 0, 1.0, True)
    buffer = models[1].memory
    stack = Stack(models, together=True)
    assert models[1].memory is buffer
    assert stack.ring.sizes().tolist() == [0, 1]
    buffer.add([4, 5, 6], 0, 1.0, True)
    assert stack.ring.sizes().tolist() == [0, 2]


def test_locked_stacks_put_a_lock_on_each_buffer():
    models = make_models(2)
    assert all(type(model.memory) is Buffer for model in models)
    stack = Stack(models, together=True, locked=True)
    assert all(isinstance(model.memory, ThreadSafeBuffer) for model in models)
    plain = Stack(make_models(2), together=True)
    assert run_epoch([stack]).tobytes() == run_epoch([plain]).tobytes()
    assert all(
        stack.snapshot(1)[name].tobytes() == plain.snapshot(1)[name].tobytes()
        for name in ("states", "returns", "actions")
    )
    with stack.locks():
        assert all(model.memory._lock._is_owned() for model in models)


# -- the probe ------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_probe():
    """Forget what the probe found, before and after a test."""
    stacks.probe_stack.cache_clear()
    yield
    stacks.probe_stack.cache_clear()


def test_a_stack_is_probed_at_its_real_shapes():
    assert Stack(make_models(4, kernels="torch"), together=True).invariance == Invariance(
        True, "4 agents agree with one at a time, byte for byte"
    )
    assert Stack(make_models(1, kernels="torch"), together=True).invariance.holds


def test_a_native_stack_is_not_probed(monkeypatch):
    monkeypatch.setattr(stacks, "probe_stack", None)
    assert "by construction" in Stack(make_models(4), together=True).invariance.detail


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_the_probe_tries_a_share_of_every_size_that_workers_get(workers):
    probed = stacks._worker_shares(7, workers)
    for count in range(2, workers + 1):
        sizes = {part.stop - part.start for part in shares(7, count)} - {0, 1}
        assert sizes <= {part.stop - part.start for part in probed}
    assert bool(probed) == (workers > 1)


def test_the_probe_finds_a_computation_that_differs_only_in_the_shares_of_three_workers(fresh_probe, monkeypatch):
    def clip_pairs(gradients, limits):
        return dqn_clip(gradients.mul_(2.0) if len(gradients) == 2 else gradients, limits)

    dqn_clip = dqn.clip_rows
    monkeypatch.setattr(dqn, "clip_rows", clip_pairs)
    spec = make_models(6, kernels="torch")[0].spec
    assert stacks.probe_stack(spec, 6, "cpu", 2).holds, "two workers have no shares of two"
    assert not stacks.probe_stack(spec, 6, "cpu", 3).holds


def test_the_probe_finds_a_computation_that_couples_agents_and_they_are_computed_one_at_a_time(
    fresh_probe, monkeypatch
):
    def clip_all(gradients, limits):
        norm = torch.linalg.vector_norm(gradients)
        gradients.mul_((limits / (norm + 1e-6)).clamp(max=1.0)[:, None])
        return norm.expand(len(gradients))

    monkeypatch.setattr(dqn, "clip_rows", clip_all)
    message = "3 agents of .* are computed one at a time: result .* differs from groups of"
    with pytest.warns(RuntimeWarning, match=message):
        stack = Stack(make_models(3, max_grad_norm=0.01, kernels="torch"), together=True)
    assert not stack.invariance.holds
    assert len(stack.inference._parts) == 3


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("options", [{}, {"recurrent": True, "sequence": 2}, {"importance": {}}], ids=str)
def test_the_probe_trains_ppo_on_a_rollout_of_several_epochs(options, epochs):
    """Each epoch stores one row more than its turns, which is no sample."""
    spec = PPO((3,), 4, worlds=2, hidden=(7,), rollout=6, epochs=epochs, n_minibatches=1, **options).spec
    assert stacks.random_snapshot(spec, 2, updates=1)["valid"][0].sum() == 6 * 2
    assert stacks.probe_stack(spec, 2, "cpu", 1).holds


# -- on-policy data, priorities and weights -------------------------------------------------------------------


def test_on_policy_steps_older_than_the_lag_are_refused():
    def collected(version, lag):
        model = PPO((3,), 4, hidden=(7,), rollout=4)
        stack = Stack([model], together=True)
        stack.lag = lag
        extras = {"log_prob": np.zeros((1, 1), np.float32), "value": np.zeros((1, 1), np.float32)}
        no, yes = np.zeros((1, 1), np.bool_), np.ones((1, 1), np.bool_)
        observations, zeros = np.zeros((1, 1, 3), np.float32), np.zeros((1, 1), np.float32)
        stack.add(Transitions(observations, no.astype(np.int64), zeros, yes, no, yes, yes, yes[0], version, extras))
        return stack

    collected(version=3, lag=1).snapshot(5)
    with pytest.raises(ContractError, match="steps of version 2, with a lag of 1 they may be of version 3 or newer"):
        collected(version=2, lag=1).snapshot(5)
    collected(version=2, lag=2).snapshot(5)


def test_publishing_a_round_stores_the_priorities_of_the_rows_it_learned_from():
    stack = Stack(make_models(2, priority_alpha=0.6), together=True)
    assert stack.waits_for_priorities
    run_epoch([stack])
    priorities = stack.ring.extras["priority"]
    assert not priorities.any()
    state, result = stack.learner.learn(stack.state, stack.snapshot(1), stack.identity)
    assert not priorities.any()  # not before they are due
    stack.publish(1, state, result)
    for agent in range(2):
        places, errors = result.priorities["places"][agent], result.priorities["errors"][agent]
        for place in np.unique(places):
            priority = priorities[agent].reshape(-1)[int(place)]  # no row has been written over yet
            assert np.isclose(priority, np.abs(errors[places == place]) + 1e-6).any()
        assert np.count_nonzero(priorities[agent]) == len(np.unique(places))


def test_agents_act_with_the_weights_of_the_round_published_last():
    stack = Stack(make_models(2), together=True)
    run_epoch([stack])
    inputs = np.ones((2, 2, 3), np.float32)
    before = stack.inference.forward(inputs).copy()
    state, result = stack.learner.learn(stack.state, stack.snapshot(1), stack.identity)
    assert np.array_equal(stack.inference.forward(inputs), before)
    stack.publish(1, state, result)
    assert torch.equal(stack.acting_rows, state["online"])
    assert stack.inference.version == 1
    after = stack.inference.forward(inputs)
    assert not np.array_equal(after, before)
    with torch.no_grad():
        expected = stack.learner.network.forward(stack.learner.network.bind(state["online"]), torch.from_numpy(inputs))
    assert np.allclose(after, expected.numpy(), atol=1e-6)
