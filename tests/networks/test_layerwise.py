"""Modules computed layer by layer: which are, that they give what the module gives, and the bytes of one alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from parallel_agents.networks import Architecture, ModuleNetwork, numerics, probe
from tests.networks.test_module_network import WHO, check

PICTURE = (2, 6, 5)


class Dueling(nn.Module):
    """Value and advantages apart, the way many write it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Conv2d(2, 3, (2, 3), stride=(2, 1), padding=1, bias=False)
        self.again, self.body = nn.Conv2d(3, 2, 1), nn.Linear(2 * 4 * 5, 6, bias=False)
        self.value, self.advantage = nn.Linear(6, 1), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.again(self.seen(x).tanh()), inplace=True)
        x = torch.sigmoid(self.body(x.view(x.size(0), -1)))
        value = self.value(x)
        advantage = self.advantage(torch.cat([x, value / 2.0], dim=1))
        return value + advantage - advantage.mean(1, keepdim=True)


class Skipping(nn.Module):
    """Layers used twice, parts of what is seen, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(12, 12), nn.LayerNorm(12, bias=False)
        self.left, self.right = nn.Linear(6, 2), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.reshape(x.shape[0], 5, 12)[:, 1:3].flatten(1)[:, :12]
        x = self.norm(x + functional.gelu(self.layer(functional.gelu(self.layer(x)))))
        return self.left(x[:, :6]), self.right(x[:, -1:])


def sequence() -> nn.Module:
    activations = [nn.Tanh(), nn.SiLU(), nn.ELU(), nn.Softplus(), nn.Sigmoid(), nn.GELU("tanh"), nn.Identity()]
    pooled = [nn.Conv2d(2, 3, 2), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(
        *pooled, *activations, nn.Linear(12, 1), nn.Linear(1, 3), nn.LayerNorm(3, elementwise_affine=False)
    )


class Asking(nn.Module):
    """What it calls depends on the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(60, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.layer(x if x.shape[1] > 100 else torch.erf(x))  # type: ignore[no-any-return]


class Turning(nn.Module):
    """With one axis more, the same call would turn other axes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(60, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.layer(x) + self.layer(x).mean(-1)[..., None] * x.mean(1)[:, None].view(-1, 1)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _under_the_rules() -> None:
    numerics.require()


def network(factory: Callable[[], nn.Module]) -> ModuleNetwork:
    return ModuleNetwork(Architecture(factory), PICTURE, 3)


@pytest.mark.parametrize("factory", [Dueling, Skipping, sequence, Turning])
def test_usual_layers_are_computed_layer_by_layer_and_give_what_the_module_gives(
    factory: Callable[[], nn.Module],
) -> None:
    net = network(factory)
    assert net.layers is not None
    check(net)


def test_what_is_not_known_is_left_to_torch() -> None:
    net = network(Asking)
    assert net.layers is None
    assert net.stackable
    check(net)


def test_layers_that_would_give_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel_agents.networks.layerwise._axis", lambda dim: dim)
    net = network(Dueling)
    assert net.layers is None
    check(net)


@pytest.mark.parametrize("factory", [Dueling, Skipping, sequence])
def test_together_and_alone_are_the_same_bytes(factory: Callable[[], nn.Module]) -> None:
    net = network(factory)
    rows = net.init(WHO)
    x = torch.randn(3, 7, net.inputs, generator=torch.Generator().manual_seed(0))

    def compute(part: slice) -> list[Tensor]:
        leaves = net.leaves(rows[part].clone())
        outputs = net.forward(leaves, x[part])
        return [outputs.detach(), *torch.autograd.grad((outputs**2).sum(), leaves)]

    assert probe(compute, 3).holds


def test_they_travel_to_other_processes() -> None:
    net = network(Dueling)
    layers = pickle.loads(pickle.dumps(net.layers))
    rows, x = net.init(WHO), torch.ones(3, 2, *PICTURE)
    own = dict(zip(net.layout.names, net.bind(rows), strict=True))
    assert torch.equal(layers.ready(own)(x), net.acting(rows)(x))
