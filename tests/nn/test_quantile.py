"""The quantile network: acting agrees with learning, and one agent with a stack."""

import pytest
import torch

from parallel_agents.core.seeding import Identity
from parallel_agents.nn import QuantileNetwork, numerics

IDENTITY = Identity((0, 0, 3), (0, 1, 1))


@pytest.fixture(autouse=True)
def _required_numerics():
    numerics.require()


@pytest.mark.parametrize(("inputs", "layer", "outputs", "count"), [(7, 9, 4, 12), (1, 3, 1, 1), (5, 1, 2, 3)])
def test_forward_is_the_mean_over_evenly_spaced_quantiles(inputs, layer, outputs, count):
    net = QuantileNetwork(inputs, layer, outputs, count)
    rows = net.init(IDENTITY)
    x = torch.linspace(-1.0, 1.0, 3 * 5 * inputs).reshape(3, 5, inputs)
    middles = ((torch.arange(count) + 0.5) / count).expand(3, 5, count)
    expected = net.quantiles(net.bind(rows), x, middles, None).mean(2)
    torch.testing.assert_close(net.forward(net.bind(rows), x), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(net.bound_forward(rows)(x), net.forward(net.bind(rows), x))


@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("net", [QuantileNetwork(10, 16, 1, 4), QuantileNetwork(60, 33, 5, 12)])
def test_one_agent_alone_gets_the_bytes_it_gets_in_a_stack(net, rows):
    weights = net.init(IDENTITY)
    x = torch.linspace(-1.0, 1.0, 3 * rows * net.inputs).reshape(3, rows, net.inputs)
    whole = net.bound_forward(weights)(x)
    for n in range(3):
        assert torch.equal(net.bound_forward(weights[n : n + 1])(x[n : n + 1])[0], whole[n])
