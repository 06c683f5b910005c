"""The probe: computations that couple agents fail it, computations by row pass."""

import pytest
import torch

from parallel_agents.nn import probe

X = torch.arange(1.0, 31.0).reshape(5, 6)

COUPLED = {
    "common mean": lambda x: x - x.mean(),
    "common norm": lambda x: x / torch.linalg.vector_norm(x),
    "neighbour": lambda x: x + x.roll(1, 0),
    "cumulative": lambda x: x.cumsum(0),
    "only in pairs": lambda x: x + (len(x) == 2),
    "sign of zero": lambda x: torch.full_like(x, -0.0 if len(x) > 1 else 0.0),
    "last bit": lambda x: x + (len(x) > 1) * 2.0**-19 * x,
}


@pytest.mark.parametrize("name", COUPLED)
def test_coupled_computations_fail_the_probe(name):
    result = probe(lambda part: [X[part] * 2, COUPLED[name](X[part])], 4, [slice(0, 2)])
    assert not result.holds
    assert "result 1 of 4 agents differs from groups of" in result.detail


@pytest.mark.parametrize("agents", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_computations_by_row_pass_the_probe(agents, dtype):
    result = probe(lambda part: [X.to(dtype)[part]], agents)
    assert result.holds
    assert f"{agents} agents agree" in result.detail


def test_nan_equals_itself():
    assert probe(lambda part: [X[part] * torch.nan], 3).holds


def test_each_agent_alone_and_each_group_is_computed():
    computed = []
    probe(lambda part: [computed.append((part.start, part.stop)) or X[part]], 3, [slice(1, 3)])
    assert computed == [(0, 3), (0, 1), (1, 2), (2, 3), (1, 3)]
