"""Modules made of usual layers, computed layer by layer for all agents at once.

`torch.fx` writes down what a module calls, and in which order. Where everything in it is known here, it is computed by
the same products of rows as the library's own networks. That is quicker than `torch.func`, whose calls weigh more than
a few agents' layers, and convolutions too then give each agent the bytes that it would get alone.

Shapes: what a module sees as (R, …) is (N, R, …) here, its parameters (…) are (N, …).
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from parallel_agents.networks.numerics import MIN_WIDTH, Layer, elu, layer, sigmoid, silu, softplus

__all__ = ["Layerwise"]

Own = Mapping[str, Tensor]


@dataclass(frozen=True)
class _Step:
    """One call: `call` of what earlier steps gave (by their names) and of plain values, by a layer or a function."""

    name: str
    call: Callable[..., Any]
    arguments: Any
    options: Mapping[str, Any]
    parameters: tuple[str, ...] | None = None
    """Of a layer: names of weight and bias, where it has them; `call` makes it ready from these."""


@dataclass(frozen=True)
class _Given:
    """Stands for what an earlier step gave."""

    name: str


@dataclass(frozen=True)
class Layerwise:
    """The calls of a module, one after the other."""

    seen: str
    steps: tuple[_Step, ...]
    outputs: Any

    @classmethod
    def of(cls, module: nn.Module) -> Layerwise | None:
        """None where a module calls something that is not known here, or cannot be written down."""
        module = copy.deepcopy(module)  # a forward may leave on it what it was called with
        try:
            graph = fx.Tracer().trace(module)
        except Exception:  # whatever a user's forward raises without numbers: it is called with numbers instead
            return None
        named = {id(own): name for name, own in module.named_parameters()}
        steps, seen, outputs = [], [], None
        for node in graph.nodes:
            arguments, options = _placed(node.args), _placed(node.kwargs)
            if node.op == "placeholder":
                seen.append(node.name)
            elif node.op == "output":
                outputs = arguments[0]
            else:
                step = _layer(module, node, named) if node.op == "call_module" else _function(node)
                if step is None:
                    return None
                steps.append(_Step(node.name, step[0], arguments, options, step[1]))
        return cls(seen[0], tuple(steps), outputs) if len(seen) == 1 else None

    def ready(self, own: Own) -> Callable[[Tensor], Any]:
        """The module with these parameters."""
        calls = [
            step.call if step.parameters is None else step.call(*(own[name] for name in step.parameters))
            for step in self.steps
        ]
        return partial(self._run, calls)

    def _run(self, calls: list[Callable[..., Any]], seen: Tensor) -> Any:
        given: dict[str, Any] = {self.seen: seen}
        for step, call in zip(self.steps, calls, strict=True):
            given[step.name] = call(*_filled(step.arguments, given), **_filled(step.options, given))
        return _filled(self.outputs, given)


def _placed(arguments: Any) -> Any:
    """Arguments as a graph holds them, with names for what earlier steps give."""
    match arguments:
        case fx.Node():
            return _Given(arguments.name)
        case tuple() | list():
            return [_placed(own) for own in arguments]
        case dict():
            return {key: _placed(own) for key, own in arguments.items()}
    return arguments


def _filled(arguments: Any, given: Mapping[str, Any]) -> Any:
    """Arguments with what earlier steps gave in its place."""
    match arguments:
        case _Given(name):
            return given[name]
        case tuple() | list():
            return [_filled(own, given) for own in arguments]
        case dict():
            return {key: _filled(own, given) for key, own in arguments.items()}
    return arguments


# -- layers ----------------------------------------------------------------------------------------------------------


def _layer(module: nn.Module, node: fx.Node, named: Mapping[int, str]) -> tuple[Any, tuple[str, ...] | None] | None:
    """How a layer is made ready from its parameters, and their names; None for a layer that is not known."""
    part = module.get_submodule(str(node.target))
    names = tuple(named[id(own)] for own in part.parameters(recurse=False))
    match part:
        case nn.Linear():
            return _linear, names
        case nn.Conv2d(groups=1, dilation=(1, 1), padding_mode="zeros") if not isinstance(part.padding, str):
            return partial(_convolution, part.kernel_size, part.stride, part.padding), names
        case nn.LayerNorm():
            return partial(_layer_norm, part.normalized_shape, part.eps), names
        case nn.Flatten(start_dim=1, end_dim=-1):
            return _flatten, None
        case nn.MaxPool2d(return_indices=False):
            shape = (part.kernel_size, part.stride, part.padding, part.dilation, part.ceil_mode)
            return partial(_max_pool, shape), None
        case nn.GELU():
            return partial(_gelu, approximate=part.approximate), None
        case (
            nn.ELU(alpha=1.0) | nn.Softplus(beta=1.0) | nn.ReLU() | nn.Tanh() | nn.Sigmoid() | nn.SiLU() | nn.Identity()
        ):
            return ACTIVATIONS[type(part)], None
    return None


def _linear(weight: Tensor, bias: Tensor | None = None) -> Layer:
    """weight (N, out, in), bias (N, out): (N, R, …, in) -> (N, R, …, out)."""
    out, into = weight.shape[1:]
    short = (0, max(0, MIN_WIDTH - into), 0, max(0, MIN_WIDTH - out))
    shift = weight.new_zeros(len(weight), 1, out) if bias is None else bias[:, None]
    if any(short):
        weight, shift = functional.pad(weight, short), functional.pad(shift, (0, short[3]))
    ready = layer(weight, shift)

    def through(x: Tensor) -> Tensor:
        flat = x.reshape(len(x), -1, into)
        given = ready(functional.pad(flat, short[:2]) if short[1] else flat)
        return (given[..., :out] if short[3] else given).reshape(*x.shape[:-1], out)

    return through


def _convolution(kernel: Any, stride: Any, padding: Any, weight: Tensor, bias: Tensor | None = None) -> Layer:
    """weight (N, out, C, k, k), bias (N, out): (N, R, C, H, W) -> (N, R, out, H', W').

    Patches side by side and one product per picture, so that nothing has to be turned before or behind it.
    """
    out = weight.shape[1]
    flat = weight.reshape(len(weight), 1, out, -1)
    shift = weight.new_zeros(1, 1, out, 1) if bias is None else bias[:, None, :, None]

    def through(x: Tensor) -> Tensor:
        agents, pictures = x.shape[:2]
        size = [(x.shape[3 + at] + 2 * padding[at] - kernel[at]) // stride[at] + 1 for at in (0, 1)]
        patches = functional.unfold(x.flatten(0, 1), kernel, padding=padding, stride=stride)  # (N·R, C·k·k, H'·W')
        each = flat.expand(agents, pictures, out, patches.shape[1]).flatten(0, 1)
        moved = shift.expand(agents, pictures, out, 1).flatten(0, 1)
        return torch.baddbmm(moved, each, patches).reshape(agents, pictures, out, *size)

    return through


def _layer_norm(shape: Any, eps: float, weight: Tensor | None = None, bias: Tensor | None = None) -> Layer:
    def through(x: Tensor) -> Tensor:
        own = (len(x), *(1 for _ in range(x.ndim - 1 - len(shape))), *shape)
        x = functional.layer_norm(x, shape, eps=eps)
        x = x if weight is None else x * weight.view(own)
        return x if bias is None else x + bias.view(own)

    return through


def _max_pool(shape: tuple[Any, ...], x: Tensor) -> Tensor:
    pooled: Tensor = functional.max_pool2d(x.flatten(0, 1), *shape)
    return pooled.reshape(*x.shape[:2], *pooled.shape[1:])


# -- functions -------------------------------------------------------------------------------------------------------


def _function(node: fx.Node) -> tuple[Any, None] | None:
    """What a function or a method is here; None for one that is not known."""
    table: Mapping[Any, Callable[..., Any]] = METHODS if node.op == "call_method" else FUNCTIONS
    return (table[node.target], None) if node.op != "get_attr" and node.target in table else None


def _axis(dim: int) -> int:
    """A module's axis, behind that of the agents."""
    return dim + 1 if dim >= 0 else dim


def _same(x: Tensor) -> Tensor:
    return x


def _relu(x: Tensor, inplace: bool = False) -> Tensor:
    return torch.relu(x)


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Torch's own approximation differs in the tails of its vector loops."""
    if approximate == "none":
        return functional.gelu(x)
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def _flatten(x: Tensor, start_dim: int = 1, end_dim: int = -1) -> Tensor:
    return x.flatten(_axis(start_dim), _axis(end_dim))


def _cat(tensors: Any, dim: int = 0) -> Tensor:
    return torch.cat(tensors, _axis(dim))


def _mean(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return x.mean(_axis(dim), keepdim=keepdim)


def _reshape(x: Tensor, *shape: Any) -> Tensor:
    return x.reshape(len(x), *(shape if isinstance(shape[0], int) else shape[0]))


def _size(x: Tensor, dim: int) -> int:
    return x.shape[_axis(dim)]


def _attribute(x: Tensor, name: str) -> Any:
    return {"shape": x.shape[1:]}[name]


def _item(x: Any, at: Any) -> Any:
    return x[(slice(None), *(at if isinstance(at, list) else [at]))] if isinstance(x, Tensor) else x[at]


ACTIVATIONS: Mapping[type[nn.Module], Layer] = {
    nn.ReLU: torch.relu,
    nn.Tanh: torch.tanh,
    nn.Sigmoid: sigmoid,
    nn.SiLU: silu,
    nn.ELU: elu,
    nn.Softplus: softplus,
    nn.Identity: _same,
}
FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    torch.relu: torch.relu,
    functional.relu: _relu,
    torch.tanh: torch.tanh,
    functional.tanh: torch.tanh,
    torch.sigmoid: sigmoid,
    functional.sigmoid: sigmoid,
    functional.gelu: _gelu,
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.truediv: operator.truediv,
    operator.getitem: _item,
    getattr: _attribute,
    torch.flatten: _flatten,
    torch.cat: _cat,
}
METHODS: Mapping[str, Callable[..., Any]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": sigmoid,
    "flatten": _flatten,
    "mean": _mean,
    "view": _reshape,
    "reshape": _reshape,
    "size": _size,
}
