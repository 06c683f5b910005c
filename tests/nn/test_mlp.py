"""Multilayer perceptrons and convolutions: outputs, padding of width 1, initial weights from each agent's draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from parallel_agents.algorithms import DQN, PPO
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.nn import MLP, ActorCritic, Convolution, Discrete, gradient_rows

IDENTITY = Identity((0, 0, 1), (0, 1, 0))


def unpadded(net, row):
    """Return an agent's weights and biases without padding."""
    sizes = [net.inputs, *net.hidden, net.outputs + net.dueling]
    views = net.bind(row[None])
    pairs = zip(sizes[:-1], sizes[1:], views[0::2], views[1::2], strict=True)
    return [(weight[0, :out, :into].double(), bias[0, 0, :out].double()) for into, out, weight, bias in pairs]


def reference(net, row, x):
    """Return the outputs of the same network in double precision, without padding."""
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
def test_forward_computes_the_plain_network(sizes, dueling):
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


def test_equal_descriptions_are_equal_values():
    assert MLP(3, (5,), 2) == MLP(3, (5,), 2) != MLP(3, (5,), 2, True)
    assert hash(MLP(3, (5,), 2)) == hash(MLP(3, (5,), 2))
    assert MLP(3, (5,), 2).size % 32 == 0


@pytest.mark.parametrize("sizes", [(0, (3,), 2), (3, (0,), 2), (3, (3,), 0), (3, (3, -1), 2)])
def test_widths_below_1_raise_config_error(sizes):
    with pytest.raises(ConfigError, match=r"a network of widths .*: each must be at least 1"):
        MLP(*sizes)


# -- convolutions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "layers"),
    [((3, 5, 5), ((4, 3, 1),)), ((2, 7, 6), ((4, 3, 2), (5, 2, 1))), ((1, 3, 3), ((1, 1, 1), (2, 3, 1)))],
)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_convolutions_and_their_gradients_are_those_of_torch(
    image: tuple[int, ...], layers: tuple[tuple[int, ...], ...], activation: str
) -> None:
    convolution = Convolution(image, layers)
    inputs = image[0] * image[1] * image[2]
    net = MLP(inputs, (6,), 3, activation=activation, convolution=convolution)  # type: ignore[arg-type]
    rows = net.init(IDENTITY)
    x = torch.linspace(-1, 1, 3 * 4 * inputs).reshape(3, 4, inputs)
    leaves = net.leaves(rows)
    outputs = net.forward(leaves, x)
    gradients = gradient_rows((outputs**2).sum(), net.layout, leaves, torch.zeros_like(rows))
    act = torch.relu if activation == "relu" else torch.tanh
    for n in range(3):
        views = [view[0].clone().requires_grad_() for view in net.bind(rows[n : n + 1])]
        y = x[n].reshape(4, *image)
        for at, (filters, kernel, stride) in enumerate(layers):
            weight, bias = views[2 * at][:filters, : y.shape[1] * kernel**2], views[2 * at + 1][0, :filters]
            y = act(functional.conv2d(y, weight.reshape(filters, y.shape[1], kernel, kernel), bias, stride))
        y = y.permute(0, 2, 3, 1).reshape(4, -1)  # cells first, then filters
        at = 2 * len(layers)
        y = act(functional.linear(y, views[at][:, : y.shape[1]], views[at + 1][0]))
        y = functional.linear(y, views[at + 2], views[at + 3][0])
        torch.testing.assert_close(outputs[n], y)
        wanted = torch.autograd.grad((y**2).sum(), views)
        for view, gradient in zip(net.layout.views(gradients[n : n + 1]), wanted, strict=True):
            torch.testing.assert_close(view[0], gradient)


def test_policy_and_value_have_separate_filters() -> None:
    net = ActorCritic(75, (4,), Discrete(3), convolution=Convolution((3, 5, 5), ((2, 3, 1),)))
    rows = net.init(IDENTITY)
    assert {"policy.weight0", "value.weight0"} <= set(net.layout.names)
    assert tuple(net.forward(net.bind(rows), torch.zeros(3, 2, 75)).shape) == (3, 2, 4)


def test_models_build_convolutions_from_their_options() -> None:
    assert DQN((3, 5, 5), 4, convolutional=[[4, 3, 1]]).spec.network.convolution.outputs == 36
    assert PPO((3, 5, 5), 4, convolutional=((4, 3, 1), (2, 3, 1))).spec.network.convolution.outputs == 2
    frames = DQN((3, 5, 5), 4, convolutional=((4, 3, 1),), n_frames=2)
    assert frames.spec.network.convolution.image == (6, 5, 5)


@pytest.mark.parametrize(
    ("shape", "layers", "message"),
    [
        ((75,), ((4, 3, 1),), r"on observations of shape \(75,\): they must be images"),
        ((3, 5, 5), ((4, 3),), r"holds \(4, 3\): a layer is \(filters, kernel side, stride\)"),
        ((3, 5, 5), ((4, 3, 0),), r"holds \(4, 3, 0\)"),
        ((3, 5, 5), ((4, 3, 1), (4, 4, 1)), "a kernel of side 4 does not fit the 3 x 3 cells"),
    ],
)
def test_convolutions_that_do_not_fit_raise_config_error(
    shape: tuple[int, ...], layers: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        DQN(shape, 4, convolutional=layers)
