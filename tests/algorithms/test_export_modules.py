"""Ordinary modules compute what the networks of agents compute, and give their weights back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from parallel_agents.algorithms import DQN, IQN, PPO, Model
from parallel_agents.core.errors import ConfigError
from parallel_agents.nn import SquashedGaussian

MODELS: dict[str, Callable[[], Model]] = {
    "dqn": lambda: DQN((5,), 3, hidden=(8, 6)),
    "dueling": lambda: DQN((5,), 3, hidden=(8,), dueling=True),
    "one input and one action": lambda: DQN((1,), 1, hidden=(3,)),
    "convolutional": lambda: DQN((2, 5, 6), 3, hidden=(8,), convolutional=((4, 3, 1), (5, 2, 1))),
    "ppo": lambda: PPO((5,), 3, hidden=(8,)),
    "continuous": lambda: PPO((5,), SquashedGaussian((-1.0, -2.0), (1.0, 2.0)), hidden=(8,)),
    "own": lambda: DQN((5,), 3, network=lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))),
}


def observations(model: Model, count: int = 4) -> torch.Tensor:
    return torch.randn(count, *model.spec.observation, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_module_computes_what_the_agent_computes_and_gives_its_weights_back(make: Callable[[], Model]) -> None:
    model = make()
    module, x = model.to_module(), observations(model)
    with torch.no_grad():
        wanted = model.spec.network.bound_forward(model.state["online"])(x.reshape(1, len(x), -1))[0]
        torch.testing.assert_close(module(x), wanted)
        for parameter in module.parameters():
            parameter.add_(0.25)
    fresh = make()
    fresh.load_module(module)
    with torch.no_grad():
        changed = fresh.spec.network.bound_forward(fresh.state["online"])(x.reshape(1, len(x), -1))[0]
        torch.testing.assert_close(changed, module(x))
    assert not torch.allclose(changed, wanted)


def test_names_are_those_of_torch() -> None:
    assert list(DQN((5,), 3, hidden=(8,)).to_module().state_dict()) == ["1.weight", "1.bias", "3.weight", "3.bias"]


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated")
def test_torchscript_computes_the_same(tmp_path: Path) -> None:
    model = PPO((5,), 3, hidden=(8,))
    model.export(tmp_path / "net.pt")
    x = observations(model, 7)
    torch.testing.assert_close(torch.jit.load(tmp_path / "net.pt")(x), model.to_module()(x))


def test_onnx_computes_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and onnxruntime")
    runtime = pytest.importorskip("onnxruntime")
    model = DQN((5,), 3, hidden=(8,), dueling=True)
    model.export(tmp_path / "net.onnx")
    x = observations(model, 7)
    session = runtime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(["outputs"], {"observations": x.numpy()})
    np.testing.assert_allclose(found, model.to_module()(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (IQN((5,), 3), "a QuantileNetwork has no ordinary module"),
        (PPO((5,), 3, recurrent=True, hidden=(4,)), "a Recurrent has no ordinary module"),
        (DQN((5,), 3, normalize_observations=True), "normalizes observations"),
    ],
)
def test_networks_without_an_ordinary_form_are_refused(model: Model, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model.to_module()


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model = DQN((5,), 3, hidden=(8,))
    before = {name: tensor.clone() for name, tensor in model.state.tensors.items()}
    with pytest.raises(ConfigError) as wider:
        model.load_module(DQN((5,), 3, hidden=(9,)).to_module())
    assert str(wider.value) == (
        "the weights do not fit this agent's network: 1.weight: asked (8, 5), found (9, 5); 1.bias: asked (8,), found "
        "(9,); 3.weight: asked (3, 8), found (3, 9). Give weights with the names and shapes of to_module(), or make the "
        "agent with their sizes (model.hidden, model.network)"
    )
    renamed = {name.replace("3.", "head."): tensor for name, tensor in model.to_module().state_dict().items()}
    with pytest.raises(
        ConfigError, match=r"3\.bias: asked \(3,\), found none; .*head\.bias: asked none, found \(3,\)\."
    ):
        model.load_module(renamed)
    with pytest.raises(ConfigError, match=r"1\.bias: asked \(8,\), found float\."):
        model.load_module({**model.to_module().state_dict(), "1.bias": 0.5})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"found \(4, 5\); .* and 4 more\. Give"):
        model.load_module(DQN((5,), 3, hidden=(4,) * 4).to_module())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state.tensors.items())
    with pytest.raises(ConfigError, match=r"ends in \.onnx"):
        model.export(tmp_path / "net.txt")
