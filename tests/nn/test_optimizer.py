"""Gradients and optimizer steps on rows, each agent by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.nn import Layout, gradient_rows, layers, numerics
from parallel_agents.nn.layers import linear
from parallel_agents.nn.optimizer import RowAdam, clip_rows


@pytest.fixture(autouse=True)
def _required_numerics():
    numerics.require()


def numbers(*shape, seed=0):
    return torch.from_numpy(generator(seed, Purpose.NOISE).standard_normal(shape, np.float32))


def layout():
    return Layout.of({"weight": (3, 2), "bias": (1, 3), "extra": (5,)})


def test_gradients_are_written_into_rows_and_padding_is_zero():
    rows, out = torch.ones(2, 32), torch.full((2, 32), 7.0)
    leaves = layout().leaves(rows)
    scale = torch.tensor([1.0, 10.0])
    loss = sum((leaf.reshape(2, -1).sum(1) * scale * (k + 1)).sum() for k, leaf in enumerate(leaves))
    gradient_rows(loss, layout(), leaves, out)
    assert out[0].tolist() == [1.0] * 6 + [2.0] * 3 + [3.0] * 5 + [0.0] * 18
    assert out[1].tolist() == [10.0] * 6 + [20.0] * 3 + [30.0] * 5 + [0.0] * 18


@pytest.mark.parametrize("agents", [1, 3])
def test_a_large_layer_that_writes_its_own_gradient_sums_all_its_uses(agents: int, monkeypatch: pytest.MonkeyPatch):
    shared = Layout.of({"weight": (4, 4), "bias": (1, 4), "unused": (3,)})
    rows, inputs = torch.randn(agents, shared.length), torch.randn(agents, 5, 4)

    def gradients() -> torch.Tensor:
        leaves = shared.leaves(rows)
        once = linear(inputs, leaves[0], leaves[1])
        twice = linear(torch.tanh(once), leaves[0], leaves[1])
        return gradient_rows((twice**2).sum(), shared, leaves, torch.full_like(rows, 7.0))

    wanted = gradients()
    monkeypatch.setattr(layers, "LARGE_WEIGHT", 1)
    torch.testing.assert_close(gradients(), wanted)
    assert bool((wanted[:, :16] != 0).any())
    assert bool((wanted[:, 20:] == 0).all())


# -- clipping and Adam ----------------------------------------------------------------------------------------


def test_each_row_is_clipped_by_its_own_norm():
    gradients = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [30.0, 40.0]])
    norms = clip_rows(gradients, torch.tensor([1.0, 1.0, 1.0, 100.0]))
    torch.testing.assert_close(norms, torch.tensor([5.0, 0.5, 0.0, 50.0]))
    torch.testing.assert_close(gradients, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [30.0, 40.0]]))


def adam(row, gradients, rate):
    """Return one row after Adam's steps in plain floats, as in the paper."""
    row, first, second = list(row), [0.0] * len(row), [0.0] * len(row)
    for step, gradient in enumerate(gradients, 1):
        for k, g in enumerate(gradient):
            first[k] = 0.9 * first[k] + 0.1 * g
            second[k] = 0.999 * second[k] + 0.001 * g * g
            row[k] -= rate * (first[k] / (1 - 0.9**step)) / (math.sqrt(second[k] / (1 - 0.999**step)) + 1e-8)
    return row


def test_adam_keeps_a_rate_and_a_step_count_per_row():
    rows, start = numbers(4, 32), numbers(4, 32)
    gradients, first, second, steps = torch.zeros(4, 32), torch.zeros(4, 32), torch.zeros(4, 32), torch.zeros(4)
    optimizer = RowAdam(rows, gradients, first, second, steps)
    rates = [1e-2, 1e-1, 1e-2, 1e-3]
    accepted = [[True, True, False, False], [True, False, False, True], [True, True, False, True]]
    taken = [[], [], [], []]
    for update, who in enumerate(accepted):
        gradients.copy_(numbers(4, 32, seed=update + 10))
        optimizer.step(rates, who)
        for n in range(4):
            if who[n]:
                taken[n].append(gradients[n].tolist())
    assert steps.tolist() == [3.0, 2.0, 0.0, 2.0]
    for n in range(4):
        expected = adam(start[n].tolist(), taken[n], rates[n])
        torch.testing.assert_close(rows[n], torch.tensor(expected), rtol=1e-4, atol=1e-6)
    assert torch.equal(rows[2], start[2])
    assert not first[2].any()
    assert not second[2].any()
