"""Compute modules made of usual layers, layer by layer, for all agents at once.

`torch.fx` records what a module calls, and in which order. Where every call is known here, the module is computed with
the same products of rows as the library's own networks. That is quicker than `torch.func`, whose calls cost more than
the layers of a few agents. It also gives each agent the bytes that it would get alone, for convolutions too.

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
from torch.fx.node import map_aggregate
from torch.nn import functional

from parallel_agents.nn.layers import MIN_WIDTH, Layer, elu, layer, sigmoid, silu, softplus


@dataclass(frozen=True)
class _Call:
    """One recorded call of a layer or a function, on results of earlier calls and plain values."""

    name: str
    function: Callable[..., Any]
    arguments: Any
    options: Mapping[str, Any]
    parameters: tuple[str, ...] | None = None
    """For a layer, the names of its weight and bias, as far as it has them; `function` then binds these to a layer."""


@dataclass(frozen=True)
class _Result:
    """Stands for the result of an earlier call, in the arguments of a later one."""

    name: str


@dataclass(frozen=True)
class ModuleLayers:
    """The calls of a module, one after the other."""

    input: str
    calls: tuple[_Call, ...]
    outputs: Any

    @classmethod
    def of(cls, module: nn.Module) -> ModuleLayers | None:
        """Return the calls of a module; None if one of them is not known here, or they cannot be recorded."""
        module = copy.deepcopy(module)  # a forward pass may store its arguments on the module
        try:
            graph = fx.Tracer().trace(module)
        except Exception:  # whatever a user's forward raises when it is traced without numbers
            return None
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        calls, inputs, outputs = [], [], None
        for node in graph.nodes:
            arguments, options = map_aggregate((node.args, node.kwargs), _reference)
            if node.op == "placeholder":
                inputs.append(node.name)
            elif node.op == "output":
                outputs = arguments[0]
            else:
                known = _layer(module, node, names) if node.op == "call_module" else _function(node)
                if known is None:
                    return None
                function, parameters = known
                calls.append(_Call(node.name, function, arguments, options, parameters))
        return cls(inputs[0], tuple(calls), outputs) if len(inputs) == 1 else None

    def bind(self, parameters: Mapping[str, Tensor]) -> Callable[[Tensor], Any]:
        """Return the module with these (N, …) parameters bound for many calls."""
        functions = [
            call.function if call.parameters is None else call.function(*(parameters[name] for name in call.parameters))
            for call in self.calls
        ]
        return partial(self._run, functions)

    def _run(self, functions: list[Callable[..., Any]], inputs: Tensor) -> Any:
        """Return the module's outputs for inputs (N, R, …)."""
        results: dict[str, Any] = {self.input: inputs}
        for call, function in zip(self.calls, functions, strict=True):
            results[call.name] = function(*_filled(call.arguments, results), **_filled(call.options, results))
        return _filled(self.outputs, results)


def _reference(item: Any) -> Any:
    """Return a `_Result` for the result of an earlier call, and everything else as it is."""
    return _Result(item.name) if isinstance(item, fx.Node) else item


def _filled(arguments: Any, results: Mapping[str, Any]) -> Any:
    """Return a call's arguments with the results of earlier calls in place of `_Result`s."""
    return map_aggregate(arguments, lambda item: results[item.name] if isinstance(item, _Result) else item)


# -- layers ----------------------------------------------------------------------------------------------------------


def _layer(module: nn.Module, node: fx.Node, names: Mapping[int, str]) -> tuple[Any, tuple[str, ...] | None] | None:
    """Return the function that binds a layer's parameters, and their names; None for an unknown layer."""
    part = module.get_submodule(str(node.target))
    parameters = tuple(names[id(parameter)] for parameter in part.parameters(recurse=False))
    match part:
        case nn.Linear():
            return _linear, parameters
        case nn.Conv2d(groups=1, dilation=(1, 1), padding_mode="zeros") if not isinstance(part.padding, str):
            return partial(_convolution, part.kernel_size, part.stride, part.padding), parameters
        case nn.MultiheadAttention() if _is_plain_attention(part):
            return partial(_attention, part.num_heads), _all_parameters(part, names)
        case nn.TransformerEncoderLayer() if _is_plain_encoder(part):
            bind = partial(_encoder_layer, part.self_attn.num_heads, part.activation, part.norm_first)
            return partial(bind, part.norm1.eps, part.norm2.eps), _all_parameters(part, names)
        case nn.LayerNorm():
            return partial(_layer_norm, part.normalized_shape, part.eps), parameters
        case nn.Flatten(start_dim=1, end_dim=-1):
            return _flatten, None
        case nn.MaxPool2d(return_indices=False):
            options = (part.kernel_size, part.stride, part.padding, part.dilation, part.ceil_mode)
            return partial(_max_pool, options), None
        case nn.GELU():
            return partial(_gelu, approximate=part.approximate), None
        case (
            nn.ELU(alpha=1.0) | nn.Softplus(beta=1.0) | nn.ReLU() | nn.Tanh() | nn.Sigmoid() | nn.SiLU() | nn.Identity()
        ):
            return ACTIVATIONS[type(part)], None
    return None


def _linear(weight: Tensor, bias: Tensor | None = None) -> Layer:
    """Return the layer (N, R, …, in) -> (N, R, …, out) with weight (N, out, in) and bias (N, out)."""
    fan_out, fan_in = weight.shape[1:]
    padding = (0, max(0, MIN_WIDTH - fan_in), 0, max(0, MIN_WIDTH - fan_out))
    shift = weight.new_zeros(len(weight), 1, fan_out) if bias is None else bias[:, None]
    if any(padding):
        weight, shift = functional.pad(weight, padding), functional.pad(shift, (0, padding[3]))
    product = layer(weight, shift)

    def forward(x: Tensor) -> Tensor:
        flat = x.reshape(len(x), -1, fan_in)
        outputs = product(functional.pad(flat, padding[:2]) if padding[1] else flat)
        return (outputs[..., :fan_out] if padding[3] else outputs).reshape(*x.shape[:-1], fan_out)

    return forward


def _convolution(kernel: Any, stride: Any, padding: Any, weight: Tensor, bias: Tensor | None = None) -> Layer:
    """Return the layer (N, R, C, H, W) -> (N, R, out, H', W') with weight (N, out, C, k, k) and bias (N, out).

    It unfolds each image into patches and multiplies them by one product per image, so that no axes are permuted.
    """
    filters = weight.shape[1]
    flat = weight.reshape(len(weight), 1, filters, -1)
    shift = weight.new_zeros(1, 1, filters, 1) if bias is None else bias[:, None, :, None]

    def forward(x: Tensor) -> Tensor:
        agents, images = x.shape[:2]
        size = [(x.shape[3 + axis] + 2 * padding[axis] - kernel[axis]) // stride[axis] + 1 for axis in (0, 1)]
        patches = functional.unfold(x.flatten(0, 1), kernel, padding=padding, stride=stride)  # (N·R, C·k·k, H'·W')
        weights = flat.expand(agents, images, filters, patches.shape[1]).flatten(0, 1)
        shifts = shift.expand(agents, images, filters, 1).flatten(0, 1)
        return torch.baddbmm(shifts, weights, patches).reshape(agents, images, filters, *size)

    return forward


def _layer_norm(shape: Any, eps: float, weight: Tensor | None = None, bias: Tensor | None = None) -> Layer:
    """Return layer normalization over the last axes, of this shape, with weight and bias (N, *shape)."""

    def forward(x: Tensor) -> Tensor:
        whole, per_agent = x.shape, (len(x), 1, *shape)
        x = functional.layer_norm(x, shape, eps=eps).reshape(len(x), -1, *shape)  # one axis to sum gradients over
        x = x if weight is None else x * weight.view(per_agent)
        return (x if bias is None else x + bias.view(per_agent)).reshape(whole)

    return forward


def _all_parameters(part: nn.Module, names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(names[id(parameter)] for parameter in part.parameters())


def _is_plain_attention(part: nn.MultiheadAttention) -> bool:
    """Return whether an attention layer has the usual four parameters and drops nothing."""
    usual = part.in_proj_weight is not None and part.in_proj_bias is not None and part.bias_k is None
    return usual and part.batch_first and not part.add_zero_attn and part.dropout == 0.0


def _is_plain_encoder(part: nn.TransformerEncoderLayer) -> bool:
    dropouts = [own.p for own in part.modules() if isinstance(own, nn.Dropout)]
    usual = len(list(part.parameters())) == 12 and part.activation in (functional.relu, functional.gelu)
    return usual and not any(dropouts) and _is_plain_attention(part.self_attn)


def _scaled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(query · keyᵀ / √d) · value over the last two axes, written out: torch's own is not stacked."""
    if attn_mask is not None or dropout_p or is_causal:
        raise TypeError("masks are not computed here")
    scaled = query * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = torch.bmm(_last_two(scaled), _last_two(key).transpose(1, 2))
    outputs = torch.bmm(torch.softmax(scores, -1), _last_two(value))
    return outputs.reshape(*query.shape[:-1], value.shape[-1])


def _last_two(x: Tensor) -> Tensor:
    return x.reshape(-1, *x.shape[-2:])


def _attention(heads: int, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor) -> Callable[..., Any]:
    """Return attention of several heads over (N, R, T, E), with weight (N, 3·E, E) and bias (N, 3·E)."""
    projections = [_linear(*parts) for parts in zip(weight.chunk(3, 1), bias.chunk(3, 1), strict=True)]
    output = _linear(out_weight, out_bias)

    def forward(*inputs: Tensor, need_weights: bool = True) -> tuple[Tensor, None]:
        split = [own(x) for own, x in zip(projections, inputs, strict=True)]
        query, key, value = (x.reshape(*x.shape[:-1], heads, -1).transpose(-3, -2) for x in split)
        return output(_scaled_attention(query, key, value).transpose(-3, -2).flatten(-2)), None

    return forward


def _encoder_layer(
    heads: int, activation: Layer, norm_first: bool, eps1: float, eps2: float, *parameters: Tensor
) -> Layer:
    """Return a layer of a transformer's encoder over (N, R, T, E)."""
    attention = _attention(heads, *parameters[:4])
    inner, outer = _linear(*parameters[4:6]), _linear(*parameters[6:8])
    shape = parameters[8].shape[1:]
    norms = _layer_norm(shape, eps1, *parameters[8:10]), _layer_norm(shape, eps2, *parameters[10:12])

    def attend(x: Tensor) -> Tensor:
        attended: Tensor = attention(x, x, x)[0]
        return attended

    def feed(x: Tensor) -> Tensor:
        return outer(activation(inner(x)))

    def forward(x: Tensor) -> Tensor:
        for part, norm in zip((attend, feed), norms, strict=True):
            x = x + part(norm(x)) if norm_first else norm(x + part(x))
        return x

    return forward


def _max_pool(options: tuple[Any, ...], x: Tensor) -> Tensor:
    pooled: Tensor = functional.max_pool2d(x.flatten(0, 1), *options)
    return pooled.reshape(*x.shape[:2], *pooled.shape[1:])


# -- functions -------------------------------------------------------------------------------------------------------


def _function(node: fx.Node) -> tuple[Any, None] | None:
    """Return the function that replaces a function or a method, and None for parameters; None if it is unknown."""
    table: Mapping[Any, Callable[..., Any]] = METHODS if node.op == "call_method" else FUNCTIONS
    return (table[node.target], None) if node.op != "get_attr" and node.target in table else None


def _axis(dim: int) -> int:
    """Return a module's axis as it is here, after the axis of the agents."""
    return dim + 1 if dim >= 0 else dim


def _identity(x: Tensor) -> Tensor:
    return x


def _relu(x: Tensor, inplace: bool = False) -> Tensor:
    return torch.relu(x)


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return GELU; written out where torch's tanh approximation differs in the tails of its vector loops."""
    if approximate == "none":
        return functional.gelu(x)
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def _flatten(x: Tensor, start_dim: int = 1, end_dim: int = -1) -> Tensor:
    return x.flatten(_axis(start_dim), _axis(end_dim))


def _cat(tensors: Any, dim: int = 0) -> Tensor:
    return torch.cat(tensors, _axis(dim))


def _mean(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    return x.mean(_axis(dim), keepdim=keepdim)


def _softmax(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, _axis(dim))


def _transpose(x: Tensor, first: int, second: int) -> Tensor:
    return x.transpose(_axis(first), _axis(second))


def _reshape(x: Tensor, *shape: Any) -> Tensor:
    return x.reshape(len(x), *(shape if isinstance(shape[0], int) else shape[0]))


def _size(x: Tensor, dim: int) -> int:
    return x.shape[_axis(dim)]


def _attribute(x: Tensor, name: str) -> Any:
    return {"shape": x.shape[1:]}[name]


def _item(x: Any, index: Any) -> Any:
    if not isinstance(x, Tensor):
        return x[index]
    return x[(slice(None), *(index if isinstance(index, tuple | list) else [index]))]


ACTIVATIONS: Mapping[type[nn.Module], Layer] = {
    nn.ReLU: torch.relu,
    nn.Tanh: torch.tanh,
    nn.Sigmoid: sigmoid,
    nn.SiLU: silu,
    nn.ELU: elu,
    nn.Softplus: softplus,
    nn.Identity: _identity,
}
FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    torch.relu: torch.relu,
    functional.relu: _relu,
    torch.tanh: torch.tanh,
    functional.tanh: torch.tanh,
    torch.sigmoid: sigmoid,
    functional.sigmoid: sigmoid,
    functional.gelu: _gelu,
    functional.scaled_dot_product_attention: _scaled_attention,
    functional.softmax: _softmax,
    torch.softmax: _softmax,
    torch.matmul: torch.matmul,
    operator.matmul: torch.matmul,
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
    "softmax": _softmax,
    "transpose": _transpose,
}
