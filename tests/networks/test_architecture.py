"""A user's module without its weights: whose are alike, where its draws come from, how it travels."""

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

from parallel_agents.errors import ConfigError, RunError
from parallel_agents.networks import Architecture


class Scaled(nn.Module):
    """A plain attribute decides what it computes."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def same(one: Any, other: Any) -> bool:
    return Architecture(one) == Architecture(other) and repr(Architecture(one)) == repr(Architecture(other))


def test_who_made_it_does_not_matter() -> None:
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
def test_what_computes_something_else_is_another(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert same(one, one)


def test_a_class_of_the_same_name_is_another() -> None:
    def make() -> type[nn.Module]:
        class Own(nn.Linear):
            pass

        return Own

    first, second = make(), make()
    assert Architecture(lambda: first(3, 2)) != Architecture(lambda: second(3, 2))


def fancy() -> nn.Module:
    """Draws in every usual way."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(2, 2, 2), nn.Linear(4, 4))
    nn.init.orthogonal_(module[0].weight)
    nn.init.trunc_normal_(module[1].weight)
    module[2].weight.data = torch.randn(4, 4) + torch.rand_like(torch.empty(4, 4)) + torch.randperm(4)
    module[2].bias.data.normal_()
    return module


def test_weights_come_from_the_agents_own_stream_and_the_global_one_stays_untouched() -> None:
    before = torch.get_rng_state()
    architecture = Architecture(fancy)
    draws = {who: architecture.initial(*who) for who in [(0, 0), (0, 1), (1, 0)]}
    assert torch.equal(torch.get_rng_state(), before)
    for name in architecture.shapes:
        values = [own[name] for own in draws.values()]
        assert not torch.equal(values[0], values[1])
        assert not torch.equal(values[0], values[2])
        assert torch.equal(values[0], Architecture(fancy).initial(0, 0)[name])
    torch.rand(7)  # wherever the global generator stands, the weights are the same
    assert torch.equal(Architecture(fancy).initial(0, 1)["0.weight"], draws[0, 1]["0.weight"])


def test_dropout_of_weights_draws_from_the_own_stream_too() -> None:
    def sparse() -> nn.Module:
        module = nn.Linear(4, 4)
        module.weight.data = nn.functional.dropout(module.weight.data, 0.5)
        return module

    before = torch.get_rng_state()
    one, other = Architecture(sparse).initial(0, 0), Architecture(sparse).initial(0, 0)
    assert torch.equal(one["weight"], other["weight"])
    assert torch.equal(torch.get_rng_state(), before)


def test_every_thread_has_a_module_of_its_own() -> None:
    architecture = Architecture(lambda: nn.Linear(3, 2))
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(lambda: architecture.module).result(timeout=10)
    assert architecture.module is architecture.module
    assert theirs is not architecture.module


def test_a_lambda_travels_to_another_process() -> None:
    sent = pickle.loads(pickle.dumps(Architecture(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh()))))
    assert sent.shapes == {"0.weight": (2, 3), "0.bias": (2,)}
    assert sent == Architecture(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh()))
    with pytest.raises(RunError, match="cannot make fresh weights"):
        sent.initial(0, 0)


def test_a_class_that_a_worker_cannot_import_travels_whole() -> None:
    name = "a_script_that_is_not_on_the_path"
    script = types.ModuleType(name)
    sys.modules[name] = script
    try:
        exec("import torch\nclass Own(torch.nn.Linear):\n    factor = 3\n", script.__dict__)
        packed = pickle.dumps(Architecture(lambda: script.Own(3, 2)))
    finally:
        del sys.modules[name]
    assert type(pickle.loads(packed).module).factor == 3


def test_what_cannot_travel_says_so() -> None:
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
def test_what_cannot_be_an_architecture_is_refused(factory: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Architecture(factory)


def test_a_factory_that_changes_its_mind_is_refused() -> None:
    widths = iter([2, 3])
    architecture = Architecture(lambda: nn.Linear(3, next(widths)))
    with pytest.raises(ConfigError, match="another architecture than the first time"):
        architecture.initial(0, 0)
