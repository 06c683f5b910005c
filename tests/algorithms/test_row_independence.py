"""An agent of a stack acts and learns as it would by itself, byte for byte, whatever the others do or are."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parallel_agents.algorithms import DQN, IQN, PPO, Model, dqn
from parallel_agents.algorithms.dqn import DQNLearner
from parallel_agents.algorithms.learner import LearnerState, Snapshot
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.core.types import Transitions
from parallel_agents.engine.stacks import Stack
from parallel_agents.nn import MLP, layers, optimizer

# -- rounds of equal agents, in groups of any sizes -----------------------------------------------------------

HYPER = {
    "lr": 1e-2,
    "lr_final": 1e-2,
    "lr_updates": 0,
    "lr_shape": 0,
    "clip": 0.5,
    "tau": 0.1,
    "target_interval": 0,
    "batch_growth": 1,
}


def random_samples(agents, samples, net):
    """Return a snapshot of random samples; an agent's samples do not depend on the size of the stack."""
    draws = [generator(0, Purpose.NOISE, agent=n) for n in range(agents)]

    def each(draw):
        return np.stack([draw(agent_draws) for agent_draws in draws])

    return Snapshot(
        1,
        {
            "states": each(lambda d: d.standard_normal((samples, net.inputs), np.float32)),
            "next_states": each(lambda d: d.standard_normal((samples, net.inputs), np.float32)),
            "actions": each(lambda d: d.integers(0, net.outputs, samples)),
            "returns": each(lambda d: d.standard_normal(samples, np.float32)),
            "discounts": each(lambda d: d.random(samples, np.float32)),
            "ready": np.ones(agents, np.bool_),
        },
    )


def learners(agents, net, batch, *, updates=3, double=True, hyper=None, seeds=None, kernels="auto"):
    learner = DQNLearner(net, updates, batch, double, kernels=kernels)
    identity = Identity(tuple(seeds or (0,) * agents), tuple(range(agents)))
    state = learner.init(identity, hyper or [HYPER] * agents)
    return learner, identity, state, random_samples(agents, updates * batch, net)


def learn_in_groups(sizes, learner, identity, state, snapshot):
    """Return the state after a round that is computed in groups of these sizes, each in memory of its own."""
    parts, first = [], 0
    for size in sizes:
        part = slice(first, first + size)
        parts.append(learner.learn(state.rows(part).clone(), snapshot.rows(part), identity.rows(part))[0])
        first += size
    return LearnerState.join(parts)


def bytes_of(state, row=None):
    return {name: (tensor if row is None else tensor[row]).numpy().tobytes() for name, tensor in state.tensors.items()}


def groupings(agents):
    """Return a strategy for sizes of groups that add up to the number of agents."""
    return st.lists(st.integers(1, agents), min_size=1).map(lambda sizes: _trimmed(sizes, agents))


def _trimmed(sizes, agents):
    trimmed = []
    for size in [*sizes, *[1] * agents]:
        if sum(trimmed) < agents:
            trimmed.append(min(size, agents - sum(trimmed)))
    return trimmed


KERNELS = st.sampled_from(["auto", "torch"])
SIZE = st.one_of(st.integers(1, 3), st.sampled_from([5, 7, 8, 9, 16, 17, 31, 33]))
NETWORK = st.builds(MLP, SIZE, st.lists(SIZE, max_size=2).map(tuple), st.integers(1, 7), st.booleans())


@settings(max_examples=50, deadline=None)
@given(
    net=NETWORK,
    agents=st.integers(1, 9),
    batch=st.sampled_from([1, 2, 3, 5, 8, 13, 32, 33]),
    double=st.booleans(),
    rates=st.lists(st.sampled_from([1e-3, 1e-2, 0.1]), min_size=9, max_size=9),
    hard=st.booleans(),
    kernels=KERNELS,
    data=st.data(),
)
def test_any_grouping_gives_the_same_bytes(net, agents, batch, double, rates, hard, kernels, data):
    hyper = [{**HYPER, "lr": rate, "lr_final": rate, "target_interval": 2 * hard} for rate in rates[:agents]]
    work = learners(agents, net, batch, double=double, hyper=hyper, kernels=kernels)
    whole = bytes_of(learn_in_groups([agents], *work))
    assert bytes_of(learn_in_groups([1] * agents, *work)) == whole
    assert bytes_of(learn_in_groups(data.draw(groupings(agents)), *work)) == whole


@settings(max_examples=40, deadline=None)
@given(
    net=NETWORK,
    agents=st.integers(2, 9),
    chosen=st.integers(0, 8),
    change=st.sampled_from(["snapshot", "lr", "clip", "seed", "nan", "not ready"]),
    kernels=KERNELS,
    data=st.data(),
)
def test_a_change_of_one_agent_changes_no_byte_of_the_others(net, agents, chosen, change, kernels, data):
    assume(chosen < agents)
    learner, identity, state, snapshot = learners(agents, net, 5, kernels=kernels)
    sizes = data.draw(groupings(agents))
    before = learn_in_groups(sizes, learner, identity, state, snapshot)
    columns = {name: column.copy() for name, column in snapshot.columns.items()}
    if change == "snapshot":
        columns["returns"][chosen] += 3.0
    elif change == "nan":
        columns["states"][chosen] = np.nan
    elif change == "not ready":
        columns["ready"][chosen] = False
    elif change == "seed":
        seeds = [7 * (n == chosen) for n in range(agents)]
        _, identity, state, _ = learners(agents, net, 5, seeds=seeds)
    else:
        hyper = [{**HYPER, "lr_final": 0.3, change: 0.3} if n == chosen else HYPER for n in range(agents)]
        _, identity, state, _ = learners(agents, net, 5, hyper=hyper)
    after = learn_in_groups(sizes, learner, identity, state, Snapshot(1, columns))
    for n in range(agents):
        if n != chosen:
            assert bytes_of(after, n) == bytes_of(before, n)
    if change != "clip":  # a gradient may be below either limit
        assert bytes_of(after, chosen) != bytes_of(before, chosen)


# -- mutants: one broken rule of torch stacks each ------------------------------------------------------------


AGENTS, INPUTS, HIDDEN = [2, 3, 5, 9], [1, 2, 7, 33], [(33,), (64, 64), (7, 9)]
OUTPUTS, BATCHES = [1, 2, 5], [3, 8, 33]


def equal_at_all_shapes(count=16):
    """Return whether agents together have the bytes of agents alone, at `count` random shapes."""
    draws = random.Random(0)
    for _ in range(count):
        agents, inputs, hidden, outputs, batch = map(draws.choice, (AGENTS, INPUTS, HIDDEN, OUTPUTS, BATCHES))
        work = learners(agents, MLP(inputs, hidden, outputs), batch, kernels="torch")
        if bytes_of(learn_in_groups([agents], *work)) != bytes_of(learn_in_groups([1] * agents, *work)):
            return False
    return True


def test_with_every_numeric_rule_in_force_all_shapes_are_equal():
    assert equal_at_all_shapes()


def test_mutant_width_1(monkeypatch):
    monkeypatch.setattr(layers, "MIN_WIDTH", 1)
    assert not equal_at_all_shapes(60)


def test_mutant_one_norm_for_all(monkeypatch):
    def clip_all(gradients, limits):
        norm = torch.linalg.vector_norm(gradients)
        gradients.mul_((limits / (norm + 1e-6)).clamp(max=1.0)[:, None])
        return norm.expand(len(gradients))

    monkeypatch.setattr(dqn, "clip_rows", clip_all)
    assert not equal_at_all_shapes()


class LayerAdam:
    """A mutant: Adam fused over separate layers, each with the rows of all agents."""

    def __init__(self, rows, gradients, first, second, steps):
        self.blocks, self.steps = (rows, gradients, first, second), steps

    def step(self, rates, accepted):
        assert all(accepted)
        cut = self.blocks[0].shape[1] // 3 + 1
        blocks = [[part.contiguous() for part in block.split(cut, 1)] for block in self.blocks]
        counts = [self.steps[0].clone() for _ in blocks[0]]
        optimizer.adam(
            *blocks, [], counts, foreach=False, fused=True, amsgrad=False, beta1=0.9, beta2=0.999,
            lr=rates[0], weight_decay=0.0, eps=1e-8, maximize=False,
        )  # fmt: skip
        for block, parts in zip(self.blocks, blocks, strict=True):
            block.copy_(torch.cat(parts, 1))
        self.steps.add_(1)


def test_mutant_adam_over_layers(monkeypatch):
    monkeypatch.setattr(dqn, "RowAdam", LayerAdam)
    assert not equal_at_all_shapes()


# -- whole stacks of agents that differ in everything that may differ ----------------------------------------

WORLDS, TURNS, EPOCHS = 2, 10, 3
REPLAY = [
    {"lr": 1e-2, "lr_final": 1e-3, "lr_updates": 5, "lr_schedule": "cosine", "max_grad_norm": 0.05, "tau": 0.3, "gamma": 0.5,
     "epsilon": 1.0, "epsilon_final": 0.2, "epsilon_epochs": 2, "max_accumulated_batches": 1},
    {"lr": 3e-3, "max_grad_norm": 10.0, "target_update_interval": 3, "gamma": 0.99, "epsilon": 0.0, "epsilon_final": 0.0,
     "max_accumulated_batches": 4},
    {"lr": 5e-3, "lr_final": 1e-2, "lr_updates": 3, "max_grad_norm": 0.5, "tau": 0.9, "target_update_interval": 1, "gamma": 0.0,
     "epsilon": 0.5, "epsilon_final": 0.4, "epsilon_epochs": 1, "epsilon_schedule": "exponential"},
    {"lr": 1e-3, "max_grad_norm": 2.0, "tau": 0.01, "gamma": 0.9, "epsilon": 0.3, "epsilon_final": 0.9, "epsilon_epochs": 5,
     "epsilon_schedule": "cosine", "max_accumulated_batches": 2},
]  # fmt: skip
PRIORITY = [
    {"priority_alpha": alpha, "priority_beta": beta, "priority_updates": updates}
    for alpha, beta, updates in ((0.3, 0.1, 4), (0.9, 0.5, 9), (0.6, 1.0, 0), (1.0, 0.0, 7))
]
IMPORTANCE = [
    {"importance": {"crisis_parent_weight": weight, "alpha": alpha, "beta": beta, "beta_frames": frames}}
    for weight, alpha, beta, frames in (
        (2.0, 1.0, 0.1, 5),
        (8.0, 0.5, 0.4, 9),
        (5.0, 0.6, 1.0, None),
        (3.0, 0.8, 0.0, 3),
    )
]
POLICY = [
    {"lr": 2e-2, "lr_final": 1e-2, "lr_updates": 5, "max_grad_norm": 0.05, "clip_range": 0.05, "clip_range_vf": 0.0,
     "vf_coef": 0.2, "ent_coef": 0.0, "gamma": 0.5, "gae_lambda": 0.0, "target_kl": 0.0},
    {"lr": 8e-2, "max_grad_norm": 5.0, "clip_range": 0.3, "clip_range_vf": 0.1, "vf_coef": 1.0, "ent_coef": 0.1,
     "gamma": 0.99, "gae_lambda": 0.95, "target_kl": 0.1},
    {"lr": 5e-2, "lr_schedule": "exponential", "lr_final": 1e-2, "lr_updates": 7, "max_grad_norm": 0.5, "clip_range": 0.2,
     "clip_range_vf": 0.5, "vf_coef": 0.5, "ent_coef": 0.01, "gamma": 0.9, "gae_lambda": 0.5, "target_kl": 10.0},
]  # fmt: skip
SMALL = {"batch_size": 4, "updates_per_round": 4, "learning_starts": 1, "buffer_size": 60}


def make_models(kind: str, kernels: str = "auto") -> list[Model]:
    """Return fresh models, placed as the agents of one run."""
    small = {**SMALL, "kernels": kernels}
    models: list[Model] = []
    match kind:
        case "dqn":
            models = [DQN((3,), 4, hidden=(6,), **small, **own) for own in REPLAY]
        case "dqn, prioritised":
            models = [
                DQN((3,), 4, hidden=(6,), **small, **own, **draws) for own, draws in zip(REPLAY, PRIORITY, strict=True)
            ]
        case "dqn, by event class":
            models = [
                DQN((3,), 4, hidden=(6,), **small, **own, **draws)
                for own, draws in zip(REPLAY, IMPORTANCE, strict=True)
            ]
        case "iqn":
            models = [IQN((3,), 4, layer=5, n_frames=2, quantiles=3, **small, **own) for own in REPLAY]
        case "ppo":
            shape: dict[str, Any] = {
                "hidden": (5,),
                "n_epochs": 3,
                "n_minibatches": 2,
                "rollout": TURNS,
                "kernels": kernels,
            }
            models = [PPO((3,), 4, **shape, **own) for own in POLICY]
    for agent, model in enumerate(models):
        model.place(seed=2, agent=agent, worlds=WORLDS)
    return models


def run_epochs(stacks: list[Stack]) -> np.ndarray:
    """Run a few epochs and rounds in random worlds, the same for any stacks; return all actions."""
    agents, taken = sum(len(stack) for stack in stacks), []
    ends = np.cumsum([len(stack) for stack in stacks]).tolist()
    parts = [(stack, slice(end - len(stack), end)) for stack, end in zip(stacks, ends, strict=True)]
    for epoch in range(1, EPOCHS + 1):
        draws = generator(9, Purpose.WORLD, epoch=epoch)
        first = np.ones((agents, WORLDS), np.bool_)
        for stack in stacks:
            stack.start_epoch(epoch)
        for turn in range(1, TURNS + 1):
            observations = draws.standard_normal((agents, WORLDS, 3), np.float32)
            rewards = draws.standard_normal((agents, WORLDS), np.float32)
            terminated = draws.random((agents, WORLDS)) < 0.2
            events = (draws.random((agents, WORLDS)) < 0.3).astype(np.float32)
            for stack, part in parts:
                actions, extras = stack.act(observations[part], first[part], epoch, turn)
                taken.append(actions.reshape(len(stack), -1))
                if stack.spec.importance:
                    extras = {**extras, "event_type": events[part], "event_value": rewards[part]}
                never, always = np.zeros_like(terminated[part]), np.ones_like(terminated[part])
                stack.add(
                    Transitions(
                        observations[part], actions, rewards[part], terminated[part], never, always, first[part],
                        np.ones(len(stack), np.bool_), epoch, extras,
                    )
                )  # fmt: skip
            first = terminated
        last = draws.standard_normal((agents, WORLDS, 3), np.float32)
        for stack, part in parts:
            stack.close(last[part], ended=True)
            stack.state, result = stack.learner.learn(stack.state, stack.snapshot(epoch), stack.identity)
            stack.publish(epoch, stack.state, result)
            stack.copy_state(stack.state)
    return np.concatenate(taken)


KINDS = ("dqn", "dqn, prioritised", "dqn, by event class", "iqn", "ppo")


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_of_agents_that_differ_in_everything_equals_stacks_of_one(kind: str, kernels: str) -> None:
    together, alone = make_models(kind, kernels), make_models(kind, kernels)
    actions = run_epochs([Stack(together, together=True)])
    actions_alone = run_epochs([Stack([model], together=False) for model in alone])
    agents, steps = len(together), EPOCHS * TURNS
    assert actions.reshape(steps, agents, -1).tobytes() == actions_alone.reshape(steps, agents, -1).tobytes()
    for n, (stacked, single) in enumerate(zip(together, alone, strict=True)):
        assert int(stacked.state["updates"][0]) > 0, n
        names = stacked.state.tensors
        assert [name for name in names if not torch.equal(stacked.state[name], single.state[name])] == [], n
        stored, expected = stacked.memory.ring.live(0), single.memory.ring.live(0)
        assert [name for name in stored if stored[name].tobytes() != expected[name].tobytes()] == [], n


@pytest.mark.parametrize(("options", "kind"), [(REPLAY, "dqn"), (POLICY, "ppo")])
def test_the_agents_of_these_tests_differ_in_every_hyper_parameter(options: list[dict[str, Any]], kind: str) -> None:
    """The test above rests on this."""
    models = make_models(kind)
    shared = {name for name in models[0].state.tensors if name.startswith("hyper.")}
    shared -= {name for name in shared if len({float(model.state[name][0]) for model in models}) > 1}
    assert shared == set()
    assert len({tuple(sorted(own.items())) for own in options}) == len(options)
