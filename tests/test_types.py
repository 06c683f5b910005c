"""States: rows of several joined, as if they had always been together."""

import torch

from parallel_agents.types import State


def part(first, rows):
    numbers = torch.arange(first, first + rows)
    return State({"weights": numbers[:, None] * torch.ones(1, 3), "steps": numbers})


def test_joined_states_are_one_after_the_other():
    whole, joined = part(0, 5), State.join([part(0, 2), part(2, 3)])
    assert len(joined) == 5
    assert list(joined.tensors) == ["weights", "steps"]
    assert len(joined.tensors) == 2
    for name in whole.tensors:
        assert torch.equal(joined[name], whole[name])
        assert torch.equal(joined.rows(slice(1, 4))[name], whole[name][1:4])
        assert torch.equal(joined.clone()[name], whole[name])


def test_a_tensor_is_put_together_once_and_only_when_it_is_asked_for():
    loose = State({"weights": torch.ones(1, 3), "steps": None})  # nothing that could be joined
    joined = State.join([loose, part(0, 1)])
    assert joined["weights"].tolist() == [[1.0] * 3, [0.0] * 3]
    assert joined["weights"] is joined["weights"]


def test_one_state_is_itself():
    alone = part(0, 2)
    assert State.join([alone]) is alone
