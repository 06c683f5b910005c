"""A user's module: equal architectures, draws from the agent's own stream, pickling, and the network made of it."""

from __future__ import annotations

import pickle
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from parallel_agents.core.errors import ConfigError, RunError
from parallel_agents.core.seeding import Identity
from parallel_agents.nn import Architecture, Discrete, ModuleNetwork, gradient_rows

IDENTITY = Identity((0, 0, 5), (0, 1, 0))


# -- architectures ---------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """Multiply the outputs by a plain attribute."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def same(one: Any, other: Any) -> bool:
    return Architecture(one) == Architecture(other) and repr(Architecture(one)) == repr(Architecture(other))


def test_architectures_of_different_factories_are_equal_if_their_modules_are_alike() -> None:
    def twice() -> Any:
        return [lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh()) for _ in range(2)]

    assert same(*twice())
    assert same(partial(Scaled, 2.0), lambda: Scaled(2.0))
    assert hash(Architecture(partial(Scaled, 2.0))) == hash(Architecture(partial(Scaled, 2.0)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: nn.Linear(3, 2), lambda: nn.Linear(3, 2, bias=False)),
        (lambda: nn.Linear(3, 2), lambda: nn.Linear(3, 3)),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh()), lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU())),
        (lambda: nn.Conv2d(1, 2, 3, stride=1), lambda: nn.Conv2d(1, 2, 3, stride=2)),
        (lambda: Scaled(1.0), lambda: Scaled(2.0)),
        (lambda: Scaled(torch.ones(2)), lambda: Scaled(torch.zeros(2))),
        (lambda: Scaled({"a": (1, 2)}), lambda: Scaled({"a": (1, 3)})),
        (lambda: Scaled(lambda x: x + 1), lambda: Scaled(lambda x: x + 2)),
        (lambda: Scaled(torch.relu), lambda: Scaled(torch.tanh)),
    ],
)
def test_architectures_that_compute_something_else_differ(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert same(one, one)


def test_architectures_with_different_classes_of_the_same_name_differ() -> None:
    def make() -> type[nn.Module]:
        class Own(nn.Linear):
            pass

        return Own

    first, second = make(), make()
    assert Architecture(lambda: first(3, 2)) != Architecture(lambda: second(3, 2))


def fancy() -> nn.Module:
    """Return a module whose weights are drawn in every usual way."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(2, 2, 2), nn.Linear(4, 4))
    nn.init.orthogonal_(module[0].weight)
    nn.init.trunc_normal_(module[1].weight)
    module[2].weight.data = torch.randn(4, 4) + torch.rand_like(torch.empty(4, 4)) + torch.randperm(4)
    module[2].bias.data.normal_()
    return module


def test_initial_weights_come_from_the_agents_own_stream_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    architecture = Architecture(fancy)
    draws = {key: architecture.initial_parameters(*key) for key in [(0, 0), (0, 1), (1, 0)]}
    assert torch.equal(torch.get_rng_state(), before)
    for name in architecture.shapes:
        values = [parameters[name] for parameters in draws.values()]
        assert not torch.equal(values[0], values[1])
        assert not torch.equal(values[0], values[2])
        assert torch.equal(values[0], Architecture(fancy).initial_parameters(0, 0)[name])
    torch.rand(7)  # wherever the global generator stands, the weights are the same
    assert torch.equal(Architecture(fancy).initial_parameters(0, 1)["0.weight"], draws[0, 1]["0.weight"])


def test_dropout_of_initial_weights_draws_from_the_agents_own_stream() -> None:
    def sparse() -> nn.Module:
        module = nn.Linear(4, 4)
        module.weight.data = nn.functional.dropout(module.weight.data, 0.5)
        return module

    before = torch.get_rng_state()
    one, other = Architecture(sparse).initial_parameters(0, 0), Architecture(sparse).initial_parameters(0, 0)
    assert torch.equal(one["weight"], other["weight"])
    assert torch.equal(torch.get_rng_state(), before)


def test_every_thread_gets_its_own_module() -> None:
    architecture = Architecture(lambda: nn.Linear(3, 2))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: architecture.module).result(timeout=10)
    assert architecture.module is architecture.module
    assert other is not architecture.module


def test_the_module_of_a_lambda_can_be_pickled_but_makes_no_fresh_weights() -> None:
    sent = pickle.loads(pickle.dumps(Architecture(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh()))))
    assert sent.shapes == {"0.weight": (2, 3), "0.bias": (2,)}
    assert sent == Architecture(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh()))
    with pytest.raises(RunError, match="cannot make fresh weights"):
        sent.initial_parameters(0, 0)


def test_a_class_that_a_worker_cannot_import_is_pickled_by_value() -> None:
    name = "a_script_that_is_not_on_the_path"
    script = types.ModuleType(name)
    sys.modules[name] = script
    try:
        exec("import torch\nclass Own(torch.nn.Linear):\n    factor = 3\n", script.__dict__)
        packed = pickle.dumps(Architecture(lambda: script.Own(3, 2)))
    finally:
        del sys.modules[name]
    assert type(pickle.loads(packed).module).factor == 3


def test_a_module_that_cannot_be_pickled_raises_run_error() -> None:
    class Stubborn(nn.Linear):
        def __reduce__(self) -> Any:
            raise TypeError("I stay")

    with pytest.raises(RunError, match=r"Stubborn cannot be sent to a learner process.*I stay"):
        pickle.dumps(Architecture(lambda: Stubborn(3, 2)))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: 3, "gave 3: it must be a function without arguments"),
        (lambda: nn.LazyLinear(3), "is lazy: give its layer all sizes"),
        (lambda: nn.Linear(3, 2).double(), "is torch.float64: agents are computed in float32"),
        (lambda: nn.Linear(3, 2).requires_grad_(False), "is frozen: keep what is not trained in a buffer"),
        (nn.ReLU, "has no parameters"),
        (lambda: Scaled(iter([])), "list_iterator, which cannot be compared"),
    ],
)
def test_a_module_that_cannot_be_trained_raises_config_error(factory: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Architecture(factory)


def test_a_factory_that_makes_another_architecture_later_raises_config_error() -> None:
    widths = iter([2, 3])
    architecture = Architecture(lambda: nn.Linear(3, next(widths)))
    with pytest.raises(ConfigError, match="another architecture than the first time"):
        architecture.initial_parameters(0, 0)


# -- networks of modules ---------------------------------------------------------------------------------------------


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


class Pair(nn.Module):
    """A policy and a value, with a constant buffer, tied layers and an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.again = nn.Linear(6, 6)
        self.policy, self.value, self.unused = nn.Linear(6, 2), nn.Linear(6, 1), nn.Linear(4, 4)
        self.register_buffer("shift", torch.arange(6.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.again(self.first(x + self.shift)))
        return self.policy(h), self.value(h).squeeze(-1)


class Looped(nn.Module):
    """A recurrent layer of torch, for which `vmap` has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gru(x[:, None])[0][:, 0]
        return out


def check(net: ModuleNetwork) -> None:
    """Assert that outputs and gradients are those of plain modules with the same weights."""
    rows = net.init(IDENTITY)
    x = torch.linspace(-1, 1, 3 * 4 * net.inputs).reshape(3, 4, net.inputs)
    leaves = net.leaves(rows)
    outputs = net.forward(leaves, x)
    assert torch.equal(net.bound_forward(rows)(x), net.forward(net.bind(rows), x))
    gradients = gradient_rows((outputs**2).sum(), net.layout, leaves, torch.zeros_like(rows))
    for n, (seed, agent) in enumerate(zip(IDENTITY.seeds, IDENTITY.agents, strict=True)):
        parameters = {
            name: value.requires_grad_() for name, value in net.architecture.initial_parameters(seed, agent).items()
        }
        plain = functional_call(net.architecture.module, parameters, (x[n].reshape(4, *net.observation),))
        if not isinstance(plain, Tensor):
            plain = torch.cat([part.reshape(4, -1) for part in plain], -1)
        torch.testing.assert_close(outputs[n], plain)
        wanted = torch.autograd.grad((plain**2).sum(), list(parameters.values()), materialize_grads=True)
        for view, gradient in zip(net.layout.views(gradients[n : n + 1]), wanted, strict=True):
            torch.testing.assert_close(view[0], gradient)


def test_the_network_computes_what_the_modules_compute() -> None:
    check(ModuleNetwork(Architecture(mlp), (6,), 3))


def test_the_module_gets_observations_in_their_shape() -> None:
    conv = Architecture(lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)))
    check(ModuleNetwork(conv, (2, 3, 3), 3))


def test_pairs_of_outputs_tied_layers_buffers_and_unused_layers_are_computed() -> None:
    check(ModuleNetwork(Architecture(Pair), (6,), 3, Discrete(2)))


def test_agents_are_computed_one_after_the_other_where_vmap_has_no_rule() -> None:
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
def test_a_module_that_does_not_fit_raises_config_error(factory: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModuleNetwork(Architecture(factory), (6,), 3)


def test_the_error_for_a_policy_names_policy_and_value() -> None:
    with pytest.raises(ConfigError, match=r"3 numbers of the policy \(Discrete\(n=3\)\) and 1 value"):
        ModuleNetwork(Architecture(mlp), (6,), 4, Discrete(3))
