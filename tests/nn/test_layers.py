"""Agents as rows: layouts, gradients, and each numeric rule: under it bytes are equal, without it some differ.

A rule is broken by its mutant, and the same comparison that holds under the rule must then find a difference
in at least one of many shapes. Which shapes differ is a fact of the machine; that some do is why there is a rule.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from parallel_agents.algorithms.dqn import weighted_mean
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.nn import MLP, Layout, layers, numerics
from parallel_agents.nn.layers import padded


@pytest.fixture(autouse=True)
def _required_numerics():
    numerics.require()


# -- layouts and gradients -------------------------------------------------------------------------------------------


def layout():
    return Layout.of({"weight": (3, 2), "bias": (1, 3), "extra": (5,)})


def test_parameters_stand_one_after_the_other_in_a_padded_row():
    assert layout().offsets == (0, 6, 9)
    assert layout().length == 32
    assert [padded(n) for n in (1, 31, 32, 33, 64, 65)] == [32, 32, 32, 64, 64, 96]


def test_views_show_each_agent_its_own_row():
    rows = torch.arange(2 * 32.0).reshape(2, 32)
    weight, bias, extra = layout().views(rows)
    assert weight[1].tolist() == [[32, 33], [34, 35], [36, 37]]
    assert bias.tolist() == [[[6, 7, 8]], [[38, 39, 40]]]
    assert extra[0].tolist() == [9, 10, 11, 12, 13]
    rows[1, 0] = -1.0
    assert weight[1, 0, 0] == -1.0


def test_leaves_follow_in_place_steps_on_the_rows():
    rows = torch.zeros(2, 32)
    leaves = layout().leaves(rows)
    rows += 1.0
    assert all(leaf.is_leaf and leaf.requires_grad and bool((leaf == 1.0).all()) for leaf in leaves)


# -- comparisons -----------------------------------------------------------------------------------------------------


def numbers(*shape, seed=0):
    return torch.from_numpy(generator(seed, Purpose.NOISE).standard_normal(shape, np.float32))


def same(whole, parts):
    return whole.numpy().tobytes() == torch.cat(parts).numpy().tobytes()


def invariant(function, *inputs):
    """Return whether every agent's bytes are those it gets alone, in separate memory."""
    alone = [function(*(x[n : n + 1].clone() for x in inputs)) for n in range(len(inputs[0]))]
    return same(function(*inputs), alone)


# -- activations ----------------------------------------------------------------------------------------------

SHAPES = list(itertools.product((2, 3, 5, 9), (1, 3, 5, 7), (2, 3, 5, 7, 9, 17)))
ACTIVATIONS = {
    "sigmoid": (layers.sigmoid, torch.sigmoid),
    "silu": (layers.silu, torch.nn.functional.silu),
    "elu": (layers.elu, torch.nn.functional.elu),
    "softplus": (layers.softplus, torch.nn.functional.softplus),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_invariant_and_those_of_torch_are_not(name):
    ours, theirs = ACTIVATIONS[name]
    blocks = [numbers(*shape) for shape in SHAPES]
    assert all(invariant(ours, x) for x in blocks)
    assert not all(invariant(theirs, x) for x in blocks)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_gradients_are_right(name):
    ours, theirs = ACTIVATIONS[name]
    x = torch.cat([numbers(200) * 3, torch.tensor([-90.0, -1e-4, 1e-4, 90.0])]).requires_grad_()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-6)
    for our_gradient, their_gradient in zip(
        torch.autograd.grad(ours(x).sum(), x), torch.autograd.grad(theirs(x).sum(), x), strict=True
    ):
        torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-5, atol=1e-6)


def test_the_sigmoid_in_place_has_the_same_bytes() -> None:
    x = torch.linspace(-40.0, 40.0, 1001)
    assert torch.equal(layers.sigmoid_(x.clone()), layers.sigmoid(x))


# -- widths ---------------------------------------------------------------------------------------------------


def widths_are_invariant(width):
    """Return whether layers of width 1, computed with the widths of a rule, are the same alone and together."""
    holds = []
    for agents, rows, (into, out) in itertools.product(
        (2, 3, 5), (1, 3, 16, 33), ((1, 1), (1, 64), (64, 1), (33, 1), (17, 1), (7, 1))
    ):
        x, weight, bias = (
            numbers(agents, rows, width(into)),
            numbers(agents, width(out), width(into), seed=1),
            numbers(agents, 1, width(out), seed=2),
        )
        holds.append(invariant(layers.linear, x, weight, bias))
    return all(holds)


def test_no_layer_is_computed_with_width_1():
    assert [layers.width(n) for n in (1, 2, 3, 64)] == [2, 2, 3, 64]
    assert widths_are_invariant(layers.width)


def test_mutant_width_1(monkeypatch):
    monkeypatch.setattr(layers, "MIN_WIDTH", 1)
    assert not widths_are_invariant(layers.width)


# -- rows per agent -------------------------------------------------------------------------------------------


def test_tiles_have_at_most_64_rows_and_one_world_keeps_one():
    assert [layers.tile_rows(worlds) for worlds in (1, 2, 63, 64, 65, 1000)] == [1, 2, 63, 64, 64, 64]


def test_at_a_fixed_number_of_rows_the_other_rows_change_nothing_and_their_number_does():
    fixed, other = [], []
    for rows, (into, out) in itertools.product((1, 2, 4, 8), ((7, 2), (17, 5), (64, 64), (52, 64))):
        weight, bias, x = numbers(1, out, into), numbers(1, 1, out, seed=1), numbers(1, 64, into, seed=2)
        whole = layers.linear(x, weight, bias)[:, :rows]
        swapped = torch.cat([x[:, :rows], numbers(1, 64 - rows, into, seed=3)], 1)
        fixed.append(torch.equal(layers.linear(swapped, weight, bias)[:, :rows], whole))
        other.append(torch.equal(layers.linear(x[:, :rows].contiguous(), weight, bias), whole))
    assert all(fixed)
    assert not all(other)


# -- alignment of rows ----------------------------------------------------------------------------------------


def alignments(agents=5):
    rows = MLP(3, (6,), 2).init(Identity((0,) * agents, tuple(range(agents))))
    return {(row.data_ptr() - rows.data_ptr()) % 128 for row in rows}


def test_every_row_has_the_same_alignment():
    assert alignments() == {0}


def test_mutant_rows_without_padding(monkeypatch):
    """Alignment is lost. In bytes this was never seen to differ: MKL's AUTO mode is a guard of its own."""
    monkeypatch.setattr(layers, "ROW_MULTIPLE", 1)
    assert len(alignments()) > 1


# -- threads --------------------------------------------------------------------------------------------------


def means_are_invariant():
    return all(invariant(lambda x: weighted_mean(x, None), numbers(agents, 40_000)) for agents in (2, 3, 5))


def test_one_thread_gives_an_agent_the_mean_it_has_alone():
    assert means_are_invariant()


def test_mutant_two_threads():
    torch.set_num_threads(2)
    try:
        assert not means_are_invariant()
    finally:
        torch.set_num_threads(1)
