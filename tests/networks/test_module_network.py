"""Any module as a network of rows: what it computes is what the module computes, and what does not fit is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from parallel_agents.errors import ConfigError
from parallel_agents.networks import Architecture, Discrete, ModuleNetwork, gradient_rows
from parallel_agents.types import Identity

WHO = Identity((0, 0, 5), (0, 1, 0))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


class Pair(nn.Module):
    """A policy and a value, with a constant of its own, tied layers and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.again = nn.Linear(6, 6)
        self.policy, self.value, self.unused = nn.Linear(6, 2), nn.Linear(6, 1), nn.Linear(4, 4)
        self.register_buffer("shift", torch.arange(6.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.again(self.first(x + self.shift)))
        return self.policy(h), self.value(h).squeeze(-1)


class Looped(nn.Module):
    """`vmap` has no rule for torch's own recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gru(x[:, None])[0][:, 0]
        return out


def check(net: ModuleNetwork) -> None:
    """Outputs and gradients are those of plain modules with the same weights."""
    rows = net.init(WHO)
    x = torch.linspace(-1, 1, 3 * 4 * net.inputs).reshape(3, 4, net.inputs)
    leaves = net.leaves(rows)
    outputs = net.forward(leaves, x)
    assert torch.equal(net.acting(rows)(x), net.forward(net.bind(rows), x))
    gradients = gradient_rows((outputs**2).sum(), net.layout, leaves, torch.zeros_like(rows))
    for n, (seed, agent) in enumerate(zip(WHO.seeds, WHO.agents, strict=True)):
        own = {name: value.requires_grad_() for name, value in net.architecture.initial(seed, agent).items()}
        plain = functional_call(net.architecture.module, own, (x[n].reshape(4, *net.observation),))
        if not isinstance(plain, Tensor):
            plain = torch.cat([part.reshape(4, -1) for part in plain], -1)
        torch.testing.assert_close(outputs[n], plain)
        wanted = torch.autograd.grad((plain**2).sum(), list(own.values()), materialize_grads=True)
        for view, gradient in zip(net.layout.views(gradients[n : n + 1]), wanted, strict=True):
            torch.testing.assert_close(view[0], gradient)


def test_it_computes_what_the_modules_compute() -> None:
    check(ModuleNetwork(Architecture(mlp), (6,), 3))


def test_shapes_of_observations_reach_the_module() -> None:
    conv = Architecture(lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)))
    check(ModuleNetwork(conv, (2, 3, 3), 3))


def test_pairs_ties_buffers_and_unused_layers() -> None:
    check(ModuleNetwork(Architecture(Pair), (6,), 3, Discrete(2)))


def test_what_vmap_cannot_do_is_computed_one_after_the_other() -> None:
    with pytest.warns(RuntimeWarning, match=r"torch\.func cannot stack the network Looped"):
        net = ModuleNetwork(Architecture(Looped), (6,), 3)
    assert not net.stackable
    check(net)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: nn.Linear(6, 2), r"gives torch.float32 of shape \(3, 2\) .* wanted is float32 of shape \(3, 3\)"),
        (lambda: nn.Linear(5, 3), r"cannot be called with 3 observations of shape \(6,\).*3x6 and 5x3"),
        (lambda: nn.Sequential(mlp(), nn.Dropout(0.1)), "draws random numbers in its forward pass"),
        (lambda: nn.Sequential(mlp(), nn.BatchNorm1d(3)), "changes its buffers .*running_mean"),
        (lambda: nn.Sequential(mlp(), nn.BatchNorm1d(3, track_running_stats=False)), "mixes the observations"),
        (Counting, r"changes its buffers \(calls\)"),
        (lambda: nn.Sequential(mlp(), nn.Softmax(dim=0)), "mixes the observations of a batch"),
    ],
)
def test_what_does_not_fit_is_refused(factory: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModuleNetwork(Architecture(factory), (6,), 3)


def test_the_message_speaks_of_policy_and_value() -> None:
    with pytest.raises(ConfigError, match=r"3 numbers of the policy \(Discrete\(n=3\)\) and 1 value"):
        ModuleNetwork(Architecture(mlp), (6,), 4, Discrete(3))
