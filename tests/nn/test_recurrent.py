"""The recurrent network: its unit against `nn.GRU`, step by step and unrolled."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Identity
from parallel_agents.nn import MLP, ActorCritic, Discrete, Recurrent
from parallel_agents.nn.recurrent import _UnrolledUnit

IDENTITY = Identity((0, 0, 4), (0, 1, 0))
STATE = 5


def network(seen: int = 3, encoder: bool = False) -> Recurrent:
    layers = MLP(seen, (4,), 6, activation="tanh") if encoder else None
    return Recurrent(seen, STATE, MLP(STATE, (), 2), layers)


def reference(net: Recurrent, rows: torch.Tensor, n: int) -> nn.GRU:
    """Return torch's unit with the weights of one agent."""
    inputs = net.seen if net.encoder is None else net.encoder.outputs
    gru = nn.GRU(inputs, STATE, batch_first=True)
    parameters = net.named(net.bind(rows[n : n + 1]))
    with torch.no_grad():
        gru.weight_ih_l0.copy_(parameters["unit.inputs.weight"][0, :, :inputs])
        gru.weight_hh_l0.copy_(parameters["unit.state.weight"][0])
        gru.bias_ih_l0.copy_(parameters["unit.inputs.bias"][0, 0])
        gru.bias_hh_l0.copy_(parameters["unit.state.bias"][0, 0])
    return gru


@pytest.mark.parametrize(("seen", "encoder"), [(3, False), (1, False), (3, True)])
def test_unrolled_outputs_are_those_of_torch(seen: int, encoder: bool) -> None:
    net = network(seen, encoder)
    rows = net.init(IDENTITY)
    parameters = net.bind(rows)
    x = torch.linspace(-2, 2, 3 * 4 * 6 * seen).reshape(3, 4, 6, seen)
    start = torch.linspace(-1, 1, 3 * 4 * STATE).reshape(3, 4, STATE)
    outputs = net.unroll(parameters, x, start)
    for n in range(3):
        unit_inputs = x[n]
        if net.encoder is not None:
            encoder = list(parameters)[4 : 4 + len(net.encoder.layout.names)]
            encoded = net.encoder.forward([view[n : n + 1] for view in encoder], x[n].reshape(1, 24, seen))
            unit_inputs = torch.tanh(encoded).reshape(4, 6, -1)
        states, _ = reference(net, rows, n)(unit_inputs, start[n][None].contiguous())
        head = [view[n : n + 1] for view in parameters[-2:]]
        torch.testing.assert_close(outputs[n], net.head.forward(head, states.reshape(1, 24, STATE)).reshape(4, 6, 2))


def test_single_steps_agree_with_unrolled_sequences_and_episodes_reset_the_state() -> None:
    net = network()
    rows = net.init(IDENTITY)
    x = torch.linspace(-2, 2, 3 * 4 * 6 * 3).reshape(3, 4, 6, 3)
    state = torch.linspace(-1, 1, 3 * 4 * STATE).reshape(3, 4, STATE)
    keep = torch.ones(3, 4, 6)
    keep[0, 1, 3] = keep[2, :, 1] = 0.0
    keep[1, :, 0] = 0.0  # at the first turn `keep` is not read
    unrolled = net.unroll(net.bind(rows), x, state, keep)
    step = net.bound_forward(rows)
    for turn in range(6):
        if turn:
            state = state * keep[:, :, turn, None]
        outputs = step(torch.cat([x[:, :, turn], state], -1))
        torch.testing.assert_close(outputs[..., :2], unrolled[:, :, turn])
        state = outputs[..., 2:]


def test_gradients_of_parameters_are_those_of_torch() -> None:
    net = network()
    rows = net.init(IDENTITY)
    x = torch.linspace(-2, 2, 3 * 4 * 6 * 3).reshape(3, 4, 6, 3)
    leaves = net.leaves(rows)
    outputs = net.unroll(leaves, x, torch.zeros(3, 4, STATE))
    gradients = torch.autograd.grad((outputs**2).sum(), leaves)
    gru = reference(net, rows, 1)
    states, _ = gru(x[1])
    head = [view[1:2].detach() for view in leaves[-2:]]
    (net.head.forward(head, states.reshape(1, 24, STATE)) ** 2).sum().backward()
    wanted = (gru.weight_ih_l0, gru.bias_ih_l0, gru.weight_hh_l0, gru.bias_hh_l0)
    for gradient, parameter in zip(gradients, wanted, strict=False):
        assert parameter.grad is not None
        torch.testing.assert_close(gradient[1].reshape(parameter.shape), parameter.grad)


def test_gradients_of_the_unrolled_unit_agree_with_finite_differences() -> None:
    draws = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 5, 6), (2, 6, 2), (2, 1, 6), (2, 3, 2))
    arguments = [torch.randn(*shape, generator=draws, dtype=torch.float64).requires_grad_() for shape in shapes]
    keep = (torch.rand(2, 3, 5, generator=draws) < 0.6).double()
    assert torch.autograd.gradcheck(_UnrolledUnit.apply, (*arguments, keep))
    assert torch.autograd.gradcheck(_UnrolledUnit.apply, (*arguments, None))


def test_initial_weights_depend_on_the_agent_and_not_on_the_stack() -> None:
    net = Recurrent(3, STATE, ActorCritic(STATE, (), Discrete(2)), MLP(3, (), 4))
    rows = net.init(IDENTITY)
    alone = torch.cat([net.init(IDENTITY.rows(slice(n, n + 1))) for n in range(3)])
    assert torch.equal(rows, alone)
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    for view in net.layout.views(rows)[:4]:
        assert 0.3 < view.abs().max() <= 1 / STATE**0.5
    assert net.distribution == Discrete(2)


def test_a_state_of_one_number_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="a state of 1: give it at least 2 numbers"):
        Recurrent(3, 1, MLP(1, (), 2))
