"""The perceptron of rows: shapes, padding of width 1, initial weights from each agent's own draws."""

import math

import numpy as np
import pytest
import torch

from parallel_agents.errors import ConfigError
from parallel_agents.networks import MLP
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Identity


def unpadded(net, row):
    """An agent's weights and biases at their true widths."""
    sizes = [net.inputs, *net.hidden, net.outputs + net.dueling]
    views = net.bind(row[None])
    pairs = zip(sizes[:-1], sizes[1:], views[0::2], views[1::2], strict=True)
    return [(weight[0, :out, :into].double(), bias[0, 0, :out].double()) for into, out, weight, bias in pairs]


def reference(net, row, x):
    """The same network in double precision, without padding."""
    x = x.double()
    layers = unpadded(net, row)
    for index, (weight, bias) in enumerate(layers):
        x = x @ weight.T + bias
        x = torch.relu(x) if index < len(layers) - 1 else x
    return x[:, :1] + x[:, 1:] - x[:, 1:].mean(1, keepdim=True) if net.dueling else x


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(
    "sizes", [(1, (1,), 1), (1, (), 1), (3, (1, 5), 2), (2, (7,), 3), (17, (9, 1), 1), (4, (8, 8), 5)]
)
def test_forward_is_the_plain_network(sizes, dueling):
    net = MLP(*sizes, dueling)
    rows = net.init(Identity((3, 3, 4), (0, 1, 0)))
    x = torch.from_numpy(generator(0, Purpose.NOISE).standard_normal((3, 5, sizes[0]), np.float32))
    out = net.forward(net.bind(rows), x)
    assert out.shape == (3, 5, sizes[2])
    for n in range(3):
        torch.testing.assert_close(out[n].double(), reference(net, rows[n], x[n]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [(1, (1,), 1), (1, (3,), 2), (5, (1,), 1)])
def test_width_1_is_computed_as_2_and_its_padding_stays_zero(sizes):
    net = MLP(*sizes)
    assert all(
        min(shape[-1], shape[0] if name.startswith("w") else 2) >= 2
        for name, shape in zip(net.layout.names, net.layout.shapes, strict=True)
    )
    rows = net.init(Identity((0, 0), (0, 1)))
    leaves = net.leaves(rows)
    x = torch.ones(2, 4, sizes[0])
    gradients = torch.autograd.grad(net.forward(leaves, x).square().sum(), leaves)
    widths = [sizes[0], *sizes[1], sizes[2]]
    pairs = zip(widths[:-1], widths[1:], leaves[0::2], leaves[1::2], gradients[0::2], gradients[1::2], strict=True)
    for into, out, weight, bias, weight_gradient, bias_gradient in pairs:
        for matrix in (weight, weight_gradient):
            assert not matrix[:, out:].any()
            assert not matrix[:, :, into:].any()
        for vector in (bias, bias_gradient):
            assert not vector[..., out:].any()


def test_initial_weights_are_bounded_by_fan_in_and_fill_the_range():
    net = MLP(25, (40,), 3)
    for (weight, bias), fan_in in zip(unpadded(net, net.init(Identity((1,), (2,)))[0]), (25, 40), strict=True):
        bound = 1.0 / math.sqrt(fan_in)
        assert weight.abs().max() <= bound * (1 + 1e-6)
        assert bias.abs().max() <= bound * (1 + 1e-6)
        assert weight.abs().max() > 0.9 * bound
        assert abs(weight.mean()) < 0.2 * bound


def test_initial_weights_depend_on_seed_and_agent_and_not_on_the_stack_position():
    net = MLP(3, (5,), 2)
    seeds, agents = (0, 0, 1, 1, 7), (0, 1, 0, 1, 4)
    rows = net.init(Identity(seeds, agents))
    assert len({row.numpy().tobytes() for row in rows}) == 5
    for n, (seed, agent) in enumerate(zip(seeds, agents, strict=True)):
        assert torch.equal(net.init(Identity((seed,), (agent,)))[0], rows[n])
    backwards = net.init(Identity(seeds[::-1], agents[::-1]))
    assert torch.equal(backwards.flip(0), rows)


def test_equal_architectures_are_equal_values():
    assert MLP(3, (5,), 2) == MLP(3, (5,), 2) != MLP(3, (5,), 2, True)
    assert hash(MLP(3, (5,), 2)) == hash(MLP(3, (5,), 2))
    assert MLP(3, (5,), 2).size % 32 == 0


@pytest.mark.parametrize("sizes", [(0, (3,), 2), (3, (0,), 2), (3, (3,), 0), (3, (3, -1), 2)])
def test_widths_below_1_are_refused(sizes):
    with pytest.raises(ConfigError, match=r"a network of widths .*: each must be at least 1"):
        MLP(*sizes)
