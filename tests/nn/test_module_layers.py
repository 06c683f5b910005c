"""Modules computed layer by layer: which ones are, with the module's outputs and the bytes of one agent alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from parallel_agents.nn import Architecture, ModuleNetwork, numerics, probe
from tests.nn.test_user_module import IDENTITY, check

IMAGE = (2, 6, 5)


class Dueling(nn.Module):
    """A dueling head after convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, (2, 3), stride=(2, 1), padding=1, bias=False)
        self.second, self.body = nn.Conv2d(3, 2, 1), nn.Linear(2 * 4 * 5, 6, bias=False)
        self.value, self.advantage = nn.Linear(6, 1), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.second(self.first(x).tanh()), inplace=True)
        x = torch.sigmoid(self.body(x.view(x.size(0), -1)))
        value = self.value(x)
        advantage = self.advantage(torch.cat([x, value / 2.0], dim=1))
        return value + advantage - advantage.mean(1, keepdim=True)


class Skipping(nn.Module):
    """A layer used twice, slices of the observation, several outputs."""

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


class Branching(nn.Module):
    """A branch on a shape, and a function that is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(60, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.layer(x if x.shape[1] > 100 else torch.erf(x))  # type: ignore[no-any-return]


class Broadcasting(nn.Module):
    """Calls on axes that are other axes once there is one more."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(60, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.layer(x) + self.layer(x).mean(-1)[..., None] * x.mean(1)[:, None].view(-1, 1)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _required_numerics() -> None:
    numerics.require()


def network(factory: Callable[[], nn.Module]) -> ModuleNetwork:
    return ModuleNetwork(Architecture(factory), IMAGE, 3)


class Attention(nn.Module):
    """Attends over pairs of its inputs: written out, as a layer, and as a layer of a transformer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed, self.head, self.kind = nn.Linear(15, 8), nn.Linear(8, 3), kind
        if kind == "layer":
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        elif kind.startswith("encoder"):
            self.encoder = nn.TransformerEncoderLayer(
                8, 2, 16, dropout=0.0, batch_first=True, norm_first=kind.endswith("first")
            )

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.view(-1, 4, 15))
        if self.kind == "layer":
            x, _ = self.attention(x, x, x, need_weights=False)
        elif self.kind == "function":
            x = nn.functional.scaled_dot_product_attention(x, x, x)
        else:
            x = self.encoder(x)
        return self.head(x.mean(1))


ATTENTIONS = [partial(Attention, kind) for kind in ("function", "layer", "encoder", "encoder, norm first")]


@pytest.mark.parametrize("factory", [Dueling, Skipping, sequence, Broadcasting, *ATTENTIONS])
def test_usual_layers_are_computed_layer_by_layer_with_the_outputs_of_the_module(
    factory: Callable[[], nn.Module],
) -> None:
    net = network(factory)
    assert net.layers is not None
    check(net)


def test_modules_with_unknown_calls_are_computed_by_vmap() -> None:
    net = network(Branching)
    assert net.layers is None
    assert net.stackable
    check(net)


def test_layers_with_other_outputs_than_the_module_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel_agents.nn.module_layers._axis", lambda dim: dim)
    net = network(Dueling)
    assert net.layers is None
    check(net)


@pytest.mark.parametrize("factory", [Dueling, Skipping, sequence, *ATTENTIONS])
def test_agents_get_the_same_bytes_together_and_alone(factory: Callable[[], nn.Module]) -> None:
    net = network(factory)
    rows = net.init(IDENTITY)
    x = torch.randn(3, 7, net.inputs, generator=torch.Generator().manual_seed(0))

    def compute(part: slice) -> list[Tensor]:
        leaves = net.leaves(rows[part].clone())
        outputs = net.forward(leaves, x[part])
        return [outputs.detach(), *torch.autograd.grad((outputs**2).sum(), leaves)]

    assert probe(compute, 3).holds


def test_pickled_layers_compute_the_same() -> None:
    net = network(Dueling)
    layers = pickle.loads(pickle.dumps(net.layers))
    rows, x = net.init(IDENTITY), torch.ones(3, 2, *IMAGE)
    assert torch.equal(layers.bind(net.named(net.bind(rows)))(x), net.bound_forward(rows)(x))
