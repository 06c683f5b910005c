"""An agent is a row: layouts, views, leaves and gradients."""

import pytest
import torch

from parallel_agents.networks import Layout, gradient_rows, numerics
from parallel_agents.networks.numerics import linear, padded


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


def test_steps_on_the_rows_are_seen_through_the_leaves():
    rows = torch.zeros(2, 32)
    leaves = layout().leaves(rows)
    rows += 1.0
    assert all(leaf.is_leaf and leaf.requires_grad and bool((leaf == 1.0).all()) for leaf in leaves)


def test_gradients_come_into_rows_whose_padding_is_zero():
    rows, out = torch.ones(2, 32), torch.full((2, 32), 7.0)
    leaves = layout().leaves(rows)
    scale = torch.tensor([1.0, 10.0])
    loss = sum((leaf.reshape(2, -1).sum(1) * scale * (k + 1)).sum() for k, leaf in enumerate(leaves))
    gradient_rows(loss, layout(), leaves, out)
    assert out[0].tolist() == [1.0] * 6 + [2.0] * 3 + [3.0] * 5 + [0.0] * 18
    assert out[1].tolist() == [10.0] * 6 + [20.0] * 3 + [30.0] * 5 + [0.0] * 18


@pytest.mark.parametrize("agents", [1, 3])
def test_a_layer_that_writes_its_gradient_itself_adds_up_all_its_uses(agents: int, monkeypatch: pytest.MonkeyPatch):
    own = Layout.of({"weight": (4, 4), "bias": (1, 4), "unused": (3,)})
    rows, seen = torch.randn(agents, own.length), torch.randn(agents, 5, 4)

    def gradients() -> torch.Tensor:
        leaves = own.leaves(rows)
        once = linear(seen, leaves[0], leaves[1])
        twice = linear(torch.tanh(once), leaves[0], leaves[1])
        return gradient_rows((twice**2).sum(), own, leaves, torch.full_like(rows, 7.0))

    wanted = gradients()
    monkeypatch.setattr(numerics, "LARGE_WEIGHT", 1)
    torch.testing.assert_close(gradients(), wanted)
    assert bool((wanted[:, :16] != 0).any())
    assert bool((wanted[:, 20:] == 0).all())
