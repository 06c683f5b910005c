"""Convolutions of rows against torch's own, and their refusals."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from parallel_agents.errors import ConfigError
from parallel_agents.models import DQN, PPO
from parallel_agents.networks import MLP, ActorCritic, Convolution, Discrete, gradient_rows
from parallel_agents.types import Identity

WHO = Identity((0, 0, 1), (0, 1, 0))


@pytest.mark.parametrize(
    ("picture", "layers"),
    [((3, 5, 5), ((4, 3, 1),)), ((2, 7, 6), ((4, 3, 2), (5, 2, 1))), ((1, 3, 3), ((1, 1, 1), (2, 3, 1)))],
)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_it_is_the_convolution_that_torch_computes(
    picture: tuple[int, ...], layers: tuple[tuple[int, ...], ...], activation: str
) -> None:
    front = Convolution(picture, layers)
    inputs = picture[0] * picture[1] * picture[2]
    net = MLP(inputs, (6,), 3, activation=activation, convolution=front)  # type: ignore[arg-type]
    rows = net.init(WHO)
    x = torch.linspace(-1, 1, 3 * 4 * inputs).reshape(3, 4, inputs)
    leaves = net.leaves(rows)
    outputs = net.forward(leaves, x)
    gradients = gradient_rows((outputs**2).sum(), net.layout, leaves, torch.zeros_like(rows))
    act = torch.relu if activation == "relu" else torch.tanh
    for n in range(3):
        own = [view[0].clone().requires_grad_() for view in net.bind(rows[n : n + 1])]
        y = x[n].reshape(4, *picture)
        for at, (filters, kernel, stride) in enumerate(layers):
            weight, bias = own[2 * at][:filters, : y.shape[1] * kernel**2], own[2 * at + 1][0, :filters]
            y = act(functional.conv2d(y, weight.reshape(filters, y.shape[1], kernel, kernel), bias, stride))
        y = y.permute(0, 2, 3, 1).reshape(4, -1)  # cells first, then filters
        at = 2 * len(layers)
        y = act(functional.linear(y, own[at][:, : y.shape[1]], own[at + 1][0]))
        y = functional.linear(y, own[at + 2], own[at + 3][0])
        torch.testing.assert_close(outputs[n], y)
        wanted = torch.autograd.grad((y**2).sum(), own)
        for view, gradient in zip(net.layout.views(gradients[n : n + 1]), wanted, strict=True):
            torch.testing.assert_close(view[0], gradient)


def test_policy_and_value_have_filters_of_their_own() -> None:
    net = ActorCritic(75, (4,), Discrete(3), convolution=Convolution((3, 5, 5), ((2, 3, 1),)))
    rows = net.init(WHO)
    assert {"policy.weight0", "value.weight0"} <= set(net.layout.names)
    assert tuple(net.forward(net.bind(rows), torch.zeros(3, 2, 75)).shape) == (3, 2, 4)


def test_models_take_it_from_their_options() -> None:
    assert DQN((3, 5, 5), 4, convolutional=[[4, 3, 1]]).blueprint.network.convolution.outputs == 36
    assert PPO((3, 5, 5), 4, convolutional=((4, 3, 1), (2, 3, 1))).blueprint.network.convolution.outputs == 2
    frames = DQN((3, 5, 5), 4, convolutional=((4, 3, 1),), n_frames=2)
    assert frames.blueprint.network.convolution.picture == (6, 5, 5)


@pytest.mark.parametrize(
    ("shape", "layers", "message"),
    [
        ((75,), ((4, 3, 1),), r"on observations of shape \(75,\): they must be pictures"),
        ((3, 5, 5), ((4, 3),), r"holds \(4, 3\): a layer is \(filters, side of the kernel, stride\)"),
        ((3, 5, 5), ((4, 3, 0),), r"holds \(4, 3, 0\)"),
        ((3, 5, 5), ((4, 3, 1), (4, 4, 1)), "a kernel of side 4 does not fit 3 x 3 cells"),
    ],
)
def test_what_does_not_fit_is_refused(
    shape: tuple[int, ...], layers: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        DQN(shape, 4, convolutional=layers)
