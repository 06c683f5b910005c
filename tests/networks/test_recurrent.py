"""The recurrent unit against torch's own, step by step and unrolled."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from parallel_agents.errors import ConfigError
from parallel_agents.networks import MLP, ActorCritic, Discrete, Recurrent
from parallel_agents.networks.recurrent import _Unrolled
from parallel_agents.types import Identity

WHO = Identity((0, 0, 4), (0, 1, 0))
STATE = 5


def network(seen: int = 3, encoder: bool = False) -> Recurrent:
    front = MLP(seen, (4,), 6, activation="tanh") if encoder else None
    return Recurrent(seen, STATE, MLP(STATE, (), 2), front)


def reference(net: Recurrent, rows: torch.Tensor, n: int) -> nn.GRU:
    """torch's unit with the weights of one agent."""
    entering = net.seen if net.encoder is None else net.encoder.outputs
    gru = nn.GRU(entering, STATE, batch_first=True)
    own = dict(zip(net.layout.names, net.bind(rows[n : n + 1]), strict=True))
    with torch.no_grad():
        gru.weight_ih_l0.copy_(own["unit.inputs.weight"][0, :, :entering])
        gru.weight_hh_l0.copy_(own["unit.state.weight"][0])
        gru.bias_ih_l0.copy_(own["unit.inputs.bias"][0, 0])
        gru.bias_hh_l0.copy_(own["unit.state.bias"][0, 0])
    return gru


@pytest.mark.parametrize(("seen", "encoder"), [(3, False), (1, False), (3, True)])
def test_it_is_the_unit_that_torch_computes(seen: int, encoder: bool) -> None:
    net = network(seen, encoder)
    rows = net.init(WHO)
    parameters = net.bind(rows)
    x = torch.linspace(-2, 2, 3 * 4 * 6 * seen).reshape(3, 4, 6, seen)
    start = torch.linspace(-1, 1, 3 * 4 * STATE).reshape(3, 4, STATE)
    outputs = net.unroll(parameters, x, start)
    for n in range(3):
        entering = x[n]
        if net.encoder is not None:
            own = list(parameters)[4 : 4 + len(net.encoder.layout.names)]
            flat = net.encoder.forward([view[n : n + 1] for view in own], entering.reshape(1, 24, seen))
            entering = torch.tanh(flat).reshape(4, 6, -1)
        states, _ = reference(net, rows, n)(entering, start[n][None].contiguous())
        head = [view[n : n + 1] for view in parameters[-2:]]
        torch.testing.assert_close(outputs[n], net.head.forward(head, states.reshape(1, 24, STATE)).reshape(4, 6, 2))


def test_steps_and_unrolled_agree_and_episodes_start_afresh() -> None:
    net = network()
    rows = net.init(WHO)
    x = torch.linspace(-2, 2, 3 * 4 * 6 * 3).reshape(3, 4, 6, 3)
    state = torch.linspace(-1, 1, 3 * 4 * STATE).reshape(3, 4, STATE)
    keep = torch.ones(3, 4, 6)
    keep[0, 1, 3] = keep[2, :, 1] = 0.0
    keep[1, :, 0] = 0.0  # a sequence starts from the state it is given, whatever it is told of its first turn
    unrolled = net.unroll(net.bind(rows), x, state, keep)
    act = net.acting(rows)
    for turn in range(6):
        if turn:
            state = state * keep[:, :, turn, None]
        both = act(torch.cat([x[:, :, turn], state], -1))
        torch.testing.assert_close(both[..., :2], unrolled[:, :, turn])
        state = both[..., 2:]


def test_gradients_are_those_of_torch() -> None:
    net = network()
    rows = net.init(WHO)
    x = torch.linspace(-2, 2, 3 * 4 * 6 * 3).reshape(3, 4, 6, 3)
    leaves = net.leaves(rows)
    outputs = net.unroll(leaves, x, torch.zeros(3, 4, STATE))
    gradients = torch.autograd.grad((outputs**2).sum(), leaves)
    gru = reference(net, rows, 1)
    states, _ = gru(x[1])
    head = [view[1:2].detach() for view in leaves[-2:]]
    (net.head.forward(head, states.reshape(1, 24, STATE)) ** 2).sum().backward()
    wanted = (gru.weight_ih_l0, gru.bias_ih_l0, gru.weight_hh_l0, gru.bias_hh_l0)
    for found, own in zip(gradients, wanted, strict=False):
        assert own.grad is not None
        torch.testing.assert_close(found[1].reshape(own.shape), own.grad)


def test_gradients_of_sequences_are_those_of_differences() -> None:
    draws = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 5, 6), (2, 6, 2), (2, 1, 6), (2, 3, 2))
    given = [torch.randn(*shape, generator=draws, dtype=torch.float64).requires_grad_() for shape in shapes]
    keep = (torch.rand(2, 3, 5, generator=draws) < 0.6).double()
    assert torch.autograd.gradcheck(_Unrolled.apply, (*given, keep))
    assert torch.autograd.gradcheck(_Unrolled.apply, (*given, None))


def test_initial_weights_are_each_agents_own() -> None:
    net = Recurrent(3, STATE, ActorCritic(STATE, (), Discrete(2)), MLP(3, (), 4))
    rows = net.init(WHO)
    alone = torch.cat([net.init(WHO.rows(slice(n, n + 1))) for n in range(3)])
    assert torch.equal(rows, alone)
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    for view in net.layout.views(rows)[:4]:
        assert 0.3 < view.abs().max() <= 1 / STATE**0.5
    assert net.distribution == Discrete(2)


def test_a_state_of_one_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="a state of 1: give it at least 2 numbers"):
        Recurrent(3, 1, MLP(1, (), 2))
