"""A stack of N is N stacks of one, byte for byte; no agent touches another; broken rules are noticed."""

import random

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parallel_agents.learning import DQNLearner, dqn
from parallel_agents.networks import MLP, numerics
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Identity, Snapshot, State

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


@pytest.fixture(autouse=True)
def _under_the_rules():
    numerics.require()


def made_up(agents, samples, net, seed=0):
    """A snapshot of made-up samples; each agent's are its own, whatever the size of the stack."""
    draws = [generator(seed, Purpose.NOISE, agent=n) for n in range(agents)]

    def each(make):
        return np.stack([make(own) for own in draws])

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


def learners(agents, net, batch, *, updates=3, double=True, hyper=None, seeds=None):
    learner = DQNLearner(net, updates, batch, double)
    identity = Identity(tuple(seeds or (0,) * agents), tuple(range(agents)))
    state = learner.init(identity, hyper or [HYPER] * agents)
    return learner, identity, state, made_up(agents, updates * batch, net)


def in_groups(sizes, learner, identity, state, snapshot):
    """The state after a round computed in groups of these sizes, each in memory of its own."""
    parts, first = [], 0
    for size in sizes:
        part = slice(first, first + size)
        parts.append(learner.learn(state.rows(part).clone(), snapshot.rows(part), identity.rows(part))[0])
        first += size
    return State.join(parts)


def bytes_of(state, row=None):
    return {name: (tensor if row is None else tensor[row]).numpy().tobytes() for name, tensor in state.tensors.items()}


def groupings(agents):
    """Sizes that add up to the number of agents."""
    return st.lists(st.integers(1, agents), min_size=1).map(lambda sizes: _trimmed(sizes, agents))


def _trimmed(sizes, agents):
    kept = []
    for size in [*sizes, *[1] * agents]:
        if sum(kept) < agents:
            kept.append(min(size, agents - sum(kept)))
    return kept


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
    data=st.data(),
)
def test_any_grouping_gives_the_same_bytes(net, agents, batch, double, rates, hard, data):
    hyper = [{**HYPER, "lr": rate, "lr_final": rate, "target_interval": 2 * hard} for rate in rates[:agents]]
    work = learners(agents, net, batch, double=double, hyper=hyper)
    whole = bytes_of(in_groups([agents], *work))
    assert bytes_of(in_groups([1] * agents, *work)) == whole
    assert bytes_of(in_groups(data.draw(groupings(agents)), *work)) == whole


@settings(max_examples=40, deadline=None)
@given(
    net=NETWORK,
    agents=st.integers(2, 9),
    chosen=st.integers(0, 8),
    change=st.sampled_from(["snapshot", "lr", "clip", "seed", "nan", "not ready"]),
    data=st.data(),
)
def test_what_happens_to_one_agent_leaves_every_other_agents_bytes_alone(net, agents, chosen, change, data):
    assume(chosen < agents)
    learner, identity, state, snapshot = learners(agents, net, 5)
    sizes = data.draw(groupings(agents))
    before = in_groups(sizes, learner, identity, state, snapshot)
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
    after = in_groups(sizes, learner, identity, state, Snapshot(1, columns))
    for n in range(agents):
        if n != chosen:
            assert bytes_of(after, n) == bytes_of(before, n)
    if change != "clip":  # a gradient may be below either limit
        assert bytes_of(after, chosen) != bytes_of(before, chosen)


# -- mutants: one broken rule each ----------------------------------------------------------------------------


def shapes(count):
    some = random.Random(0)
    return [
        (
            some.choice([2, 3, 5, 9]),
            some.choice([1, 2, 7, 33]),
            some.choice([(33,), (64, 64), (7, 9)]),
            some.choice([1, 2, 5]),
            some.choice([3, 8, 33]),
        )
        for _ in range(count)
    ]


def equal_everywhere(count=16):
    for agents, inputs, hidden, outputs, batch in shapes(count):
        work = learners(agents, MLP(inputs, hidden, outputs), batch)
        if bytes_of(in_groups([agents], *work)) != bytes_of(in_groups([1] * agents, *work)):
            return False
    return True


def test_with_every_rule_kept_all_shapes_are_equal():
    assert equal_everywhere()


def test_mutant_width_1(monkeypatch):
    monkeypatch.setattr(numerics, "MIN_WIDTH", 1)
    assert not equal_everywhere(60)


def test_mutant_one_norm_for_all(monkeypatch):
    def clip_all(gradients, limits):
        norm = torch.linalg.vector_norm(gradients)
        gradients.mul_((limits / (norm + 1e-6)).clamp(max=1.0)[:, None])
        return norm.expand(len(gradients))

    monkeypatch.setattr(dqn, "clip_rows", clip_all)
    assert not equal_everywhere()


class LayerAdam:
    """The mutant: Adam fused over separate layers, each with the rows of all agents."""

    def __init__(self, rows, gradients, first, second, steps):
        self.blocks, self.steps = (rows, gradients, first, second), steps

    def step(self, rates, accepted):
        assert all(accepted)
        cut = self.blocks[0].shape[1] // 3 + 1
        layers = [[part.contiguous() for part in block.split(cut, 1)] for block in self.blocks]
        counts = [self.steps[0].clone() for _ in layers[0]]
        numerics.adam(
            *layers, [], counts, foreach=False, fused=True, amsgrad=False, beta1=0.9, beta2=0.999,
            lr=rates[0], weight_decay=0.0, eps=1e-8, maximize=False,
        )  # fmt: skip
        for block, parts in zip(self.blocks, layers, strict=True):
            block.copy_(torch.cat(parts, 1))
        self.steps.add_(1)


def test_mutant_adam_over_layers(monkeypatch):
    monkeypatch.setattr(dqn, "RowAdam", LayerAdam)
    assert not equal_everywhere()
