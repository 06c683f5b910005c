"""Batched inference: one agent, all agents, all tiles, the same bytes."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.acting import Inference, inference
from parallel_agents.networks import MLP, numerics
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Identity, Weights

WORLDS = [1, 3, 4, 64, 65, 130]


@pytest.fixture(autouse=True)
def _under_the_rules():
    numerics.require()


def acting(net, agents, worlds, *, together, version=1):
    made = Inference(net, agents, worlds, together=together)
    made.publish(Weights(version, net.init(Identity((0,) * agents, tuple(range(agents))))))
    return made


def inputs(net, agents, worlds, seed=0):
    return generator(seed, Purpose.NOISE).standard_normal((agents, worlds, net.inputs), np.float32)


@pytest.mark.parametrize("worlds", WORLDS)
def test_one_agent_gets_the_bytes_it_gets_among_all(worlds):
    net = MLP(17, (33, 9), 5)
    x = inputs(net, 5, worlds)
    together, apart = acting(net, 5, worlds, together=True), acting(net, 5, worlds, together=False)
    whole = together.forward(x)
    assert whole.shape == (5, worlds, 5)
    assert apart.forward(x).tobytes() == whole.tobytes()
    for n in range(5):
        assert together.forward_agent(n, x[n]).tobytes() == whole[n].tobytes()
        assert apart.forward_agent(n, x[n]).tobytes() == whole[n].tobytes()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("worlds", [1, 65])
def test_leaving_agents_out_changes_no_byte_of_the_others(worlds, together):
    net = MLP(300, (200,), 3)
    made, x = acting(net, 6, worlds, together=together), inputs(net, 6, worlds)
    whole = made.forward(x)
    assert made.spares
    for who in ([], [4], [1, 2]):
        asked = np.isin(range(6), who)
        some = made.forward_some(x, asked, 3)
        assert some[asked].tobytes() == whole[asked].tobytes()
        assert not some[~asked].any()  # really left out
    most = made.forward_some(x, np.arange(6) > 0, 3)
    assert most[1:].tobytes() == whole[1:].tobytes()
    assert most[0].any() == together  # one fewer saves nothing where all are computed at once


def test_small_networks_are_always_computed_together():
    assert not acting(MLP(8, (64, 64), 4), 8, 1, together=True).spares


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 33]), min_size=2, max_size=4),
    agents=st.integers(1, 9),
    worlds=st.sampled_from([1, 2, 3, 5, 7, 66]),
    dueling=st.booleans(),
)
def test_widths_and_numbers_of_agents_change_no_byte(sizes, agents, worlds, dueling):
    net = MLP(sizes[0], tuple(sizes[1:-1]), sizes[-1], dueling)
    x = inputs(net, agents, worlds)
    assert (
        acting(net, agents, worlds, together=True).forward(x).tobytes()
        == acting(net, agents, worlds, together=False).forward(x).tobytes()
    )


@pytest.mark.parametrize("worlds", [3, 65, 130])
def test_what_stands_in_other_worlds_changes_nothing(worlds):
    net = MLP(17, (33,), 5)
    made = acting(net, 2, worlds, together=True)
    x = inputs(net, 2, worlds)
    before = made.forward(x)
    other = inputs(net, 2, worlds, seed=1)
    other[:, worlds - 1] = x[:, worlds - 1]
    assert made.forward(other)[:, worlds - 1].tobytes() == before[:, worlds - 1].tobytes()


@pytest.mark.parametrize("worlds", [65, 130])
@pytest.mark.parametrize("net", [MLP(17, (33,), 5), MLP(7, (64,), 2), MLP(243, (64,), 4)])
def test_the_last_tile_is_as_tall_as_all_others(net, worlds):
    made = acting(net, 2, worlds, together=True)
    x, full = inputs(net, 2, worlds), inputs(net, 2, 64, seed=1)
    place = (worlds - 1) % 64
    full[:, place] = x[:, -1]
    tile = acting(net, 2, 64, together=True).forward(full)
    assert made.forward(x)[:, -1].tobytes() == tile[:, place].tobytes()


def test_mutant_tiles_of_changing_size(monkeypatch):
    """Were the rows per agent not fixed, two ways of running the same agents would differ."""
    sizes = itertools.cycle([64, 2])
    monkeypatch.setattr(inference, "tile_rows", lambda worlds: next(sizes))
    differ = []
    for net in (MLP(17, (33,), 5), MLP(7, (64,), 2), MLP(52, (64, 64), 4), MLP(3, (5,), 2)):
        x = inputs(net, 3, 130)
        differ.append(
            acting(net, 3, 130, together=True).forward(x).tobytes()
            != acting(net, 3, 130, together=False).forward(x).tobytes()
        )
    assert any(differ)


def test_the_outputs_are_those_of_the_network():
    net = MLP(4, (8,), 3)
    made = acting(net, 3, 130, together=True)
    x = inputs(net, 3, 130)
    expected = net.forward(net.bind(made.weights.rows), torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(made.forward(x), expected, rtol=1e-4, atol=1e-6)


def test_publishing_swaps_all_weights_at_once():
    net = MLP(4, (8,), 3)
    made = acting(net, 2, 3, together=True)
    x = inputs(net, 2, 3)
    before, alone = made.forward(x), made.forward_agent(1, x[1])
    made.publish(Weights(8, made.weights.rows * 2))
    assert made.version == 8
    assert made.forward(x).tobytes() != before.tobytes()
    assert made.forward_agent(1, x[1]).tobytes() == made.forward(x)[1].tobytes() != alone.tobytes()


def test_before_anything_is_published_the_version_is_0():
    assert Inference(MLP(1, (), 1), 1, 1, together=True).version == 0
