"""Networks whose parameters are rows: layouts, layers, multilayer perceptrons and convolutions.

An agent's parameters are one row of an (N, P) tensor, its layers views into it. A stack of N agents and N stacks of one
agent give the same bytes under the rules below. They are facts of one library on one machine, so `probe` checks them
wherever a stack is built. Gradients and steps on rows are in `optimizer`.

| rule | why |
|---|---|
| `MKL_CBWR=AUTO` before the first MKL call (`numerics`) | without it MKL picks kernels by alignment and shape |
| one intra-op thread in every thread and worker (`numerics`) | with two, row sums are split at other places |
| no layer of width 1, in or out (`width`) | such products go to other kernels, in other orders |
| a fixed number of rows per agent (`tile_rows`) | the same row differs between batch sizes |
| activations made of exp, tanh, log1p, expm1, relu | others differ in the tails of their vector loops |
| rows padded to a multiple of 32 (`padded`) | every row then has the same alignment |
| Adam fused over rows, each with its own step count (`RowAdam`) | fused over separate layers it is not invariant |
| clipping by the norm of a row (`clip_rows`) | a common norm would couple the agents |

Each rule is one function, so that a test can break it and see equality fail.

>>> layout = Layout.of({"weight": (3, 2), "bias": (1, 3)})
>>> layout.length, [tuple(view.shape) for view in layout.views(torch.zeros(5, layout.length))]
(32, [(5, 3, 2), (5, 1, 3)])
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.kernels.functions import orthonormal_rows

Layer = Callable[[Tensor], Tensor]
Activation = Literal["relu", "tanh", "elu"]
ROW_MULTIPLE = 32
MIN_WIDTH = 2
MAX_TILE = 64
LARGE_WEIGHT = 2**13
"""Size of one agent's weight from which its gradient is computed in the memory order of the weight."""


def width(n: int) -> int:
    """Return the width that a layer of `n` units is computed with: never 1."""
    return max(n, MIN_WIDTH)


def padded(length: int) -> int:
    """Return the length of a row that holds `length` parameters."""
    return -(-length // ROW_MULTIPLE) * ROW_MULTIPLE


def tile_rows(worlds: int) -> int:
    """Return how many observations of one agent every forward pass of acting takes."""
    return min(worlds, MAX_TILE)


@dataclass(frozen=True)
class Layout:
    """Where each parameter stands in an agent's row."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    length: int
    by_columns: bool = False
    """Weights (out, in) are stored column by column, as compiled kernels read them."""

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], *, by_columns: bool = False) -> Layout:
        """Return the layout of parameters with these names and shapes, in this order."""
        offsets, end = [], 0
        for shape in shapes.values():
            offsets.append(end)
            end += math.prod(shape)
        return cls(tuple(shapes), tuple(shapes.values()), tuple(offsets), padded(end), by_columns)

    def views(self, rows: Tensor) -> list[Tensor]:
        """Return one (N, *shape) view of the (N, length) rows per parameter."""
        places = zip(self.offsets, self.shapes, strict=True)
        parts = [(rows[:, offset : offset + math.prod(shape)], shape) for offset, shape in places]
        if self.by_columns:
            return [part.view(len(rows), *shape[::-1]).transpose(1, 2) for part, shape in parts]
        return [part.view(len(rows), *shape) for part, shape in parts]

    def table(self, first: int, widths: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """Return the layers of these inputs and outputs, from parameter `first` on, as `kernels.mlp` reads them."""
        lines = [
            (fan_in, fan_out, self.shapes[at][0], self.offsets[at], self.offsets[at + 1])
            for at, (fan_in, fan_out) in zip(range(first, len(self.names), 2), widths, strict=False)
        ]
        return np.array(lines, np.int64)

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """Return the views as leaves of the autograd graph; they follow in-place steps on `rows`."""
        return [view.detach().requires_grad_() for view in self.views(rows)]


def layer(weight: Tensor, bias: Tensor) -> Layer:
    """Return `linear` with a weight (N, out, in) and a bias (N, 1, out) bound for many calls."""
    if weight.requires_grad:
        return partial(linear, weight=weight, bias=bias)
    return partial(torch.baddbmm, bias, batch2=weight.transpose(1, 2))


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return (N, R, out) from inputs (N, R, in), weight (N, out, in) and bias (N, 1, out), agent by agent."""
    if weight.requires_grad and weight.shape[1] * weight.shape[2] >= LARGE_WEIGHT:
        return _Linear.apply(inputs, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    return torch.baddbmm(bias, inputs, weight.transpose(1, 2))


class _Linear(torch.autograd.Function):
    """Compute `linear` with a weight gradient in the memory order of the weight.

    Torch's own gradient comes transposed. For large layers, transposing it back takes longer than computing it.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return torch.baddbmm(bias, inputs, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        inputs, weight = ctx.saved_tensors
        input_gradient = torch.bmm(output_gradient, weight) if ctx.needs_input_grad[0] else None
        bias_gradient = output_gradient.sum(1, keepdim=True)
        return input_gradient, weight_gradient(weight, output_gradient, inputs), bias_gradient


def weight_gradient(weight: Tensor, output_gradient: Tensor, inputs: Tensor) -> Tensor | None:
    """Return the gradient of a weight (N, out, in) from output gradients (N, R, out) and inputs (N, R, in).

    A large leaf that `gradient_rows` has given a `grad` gets its gradient added there, without a copy; then return
    None.
    """
    if not weight.is_leaf or weight.grad is None or weight.shape[1] * weight.shape[2] < LARGE_WEIGHT:
        return torch.bmm(output_gradient.transpose(1, 2), inputs)
    for target, gradient, given in zip(weight.grad, output_gradient, inputs, strict=True):  # one by one, whatever N is
        target.addmm_(gradient.t(), given)
    return None


def sigmoid(x: Tensor) -> Tensor:
    """Return the logistic function, computed from tanh alone and without overflow."""
    return 0.5 * torch.tanh(0.5 * x) + 0.5


def sigmoid_(x: Tensor) -> Tensor:
    """Compute `sigmoid` in place, with the same bytes."""
    return x.mul_(0.5).tanh_().mul_(0.5).add_(0.5)


def silu(x: Tensor) -> Tensor:
    """Return x · sigmoid(x)."""
    return x * sigmoid(x)


def elu(x: Tensor) -> Tensor:
    """Return x above zero and exp(x) - 1 below."""
    return torch.relu(x) + torch.expm1(-torch.relu(-x))


def activate_(x: Tensor, activation: Activation) -> Tensor:
    """Apply an activation, in place where the gradient needs its values alone."""
    match activation:
        case "relu":
            return x.relu_()
        case "tanh":
            return x.tanh_()
    return elu(x)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)) without overflow."""
    return torch.relu(x) + torch.log1p(torch.exp(-torch.abs(x)))


# -- networks --------------------------------------------------------------------------------------------------------

Forward = Callable[[Tensor], Tensor]
"""From inputs (N, R, inputs) to outputs (N, R, outputs), with the parameters of N agents bound."""


class ActingNetwork(Protocol):
    """What choosing actions needs of a network."""

    def bound_forward(self, rows: Tensor) -> Forward:
        """Return the forward pass with the parameters of N agents, one per row, bound for many calls."""


@dataclass(frozen=True)
class Network(ABC):
    """Base of all networks: a description of the layers, without weights.

    The parameters of N agents are the rows of one (N, size) tensor that the caller holds. Subclasses are frozen
    dataclasses, so that equal descriptions are equal values. Weight files hold their reprs.
    """

    inputs: int = field(init=False, compare=False, repr=False)
    """Numbers that the network reads for one output."""
    layout: Layout = field(init=False, compare=False, repr=False)
    """Where each parameter stands in an agent's row; set by `__post_init__`."""

    @property
    def size(self) -> int:
        """Length of an agent's row."""
        return self.layout.length

    @property
    def native(self) -> bool:
        """True if compiled kernels can compute this network: they read weights by columns."""
        return self.layout.by_columns and not numba.config.DISABLE_JIT

    @abstractmethod
    def init(self, identity: Identity) -> Tensor:
        """Return fresh (N, size) parameters from each agent's own draws; padding stays zero."""

    def bind(self, rows: Tensor) -> list[Tensor]:
        """Return the (N, size) parameters as `forward` takes them, without a graph."""
        return self.layout.views(rows)

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """Return the (N, size) parameters as `forward` takes them, as leaves of the graph."""
        return self.layout.leaves(rows)

    def named(self, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the parameters that `bind` or `leaves` returned, by their names."""
        return dict(zip(self.layout.names, parameters, strict=True))

    @abstractmethod
    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return (N, R, outputs) from (N, R, inputs)."""

    def bound_forward(self, rows: Tensor) -> Forward:
        """Return `forward` with these (N, size) parameters bound for many calls."""
        return partial(self.forward, self.bind(rows))


@dataclass(frozen=True)
class Convolution:
    """Convolutional layers (filters, kernel side, stride) over images (channels, rows, columns), without padding.

    Each layer unfolds its input into patches and multiplies them, agent by agent. Grouped convolution under `vmap`
    does not give each agent the bytes it would get alone; a product does.

    >>> Convolution((4, 5, 5), ((8, 3, 1), (16, 2, 1))).outputs
    64
    """

    image: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.image) != 3 or min(self.image) < 1:
            raise ConfigError(
                f"model.convolutional on observations of shape {self.image}: they must be images of shape "
                "(channels, rows, columns)"
            )
        for shape in self.layers:
            if len(shape) != 3 or min(shape) < 1:
                raise ConfigError(
                    f"model.convolutional holds {shape}: a layer is (filters, kernel side, stride), "
                    "each a whole number of at least 1"
                )
        for (_, kernel, _), (_, height, breadth) in zip(self.layers, self._sizes(), strict=False):
            if kernel > min(height, breadth):
                raise ConfigError(
                    f"model.convolutional: a kernel of side {kernel} does not fit the {height} x {breadth} cells that "
                    f"are left of an image of {self.image[1]} x {self.image[2]}: leave a layer out or make it smaller"
                )

    def _sizes(self) -> list[tuple[int, ...]]:
        """Return (channels, rows, columns) before each layer and after the last."""
        sizes = [self.image]
        for filters, kernel, stride in self.layers:
            _, height, breadth = sizes[-1]
            sizes.append((filters, (height - kernel) // stride + 1, (breadth - kernel) // stride + 1))
        return sizes

    @property
    def outputs(self) -> int:
        return math.prod(self._sizes()[-1])

    def widths(self) -> list[tuple[int, int]]:
        """Return inputs and outputs of each layer's product."""
        pairs = itertools.pairwise(self._sizes())
        return [(before[0] * k * k, after[0]) for (before, after), (_, k, _) in zip(pairs, self.layers, strict=True)]

    def forward(self, layers: Sequence[Layer], inputs: Tensor, activation: Activation) -> Tensor:
        """Return (N, R, outputs) from inputs (N, R, channels·rows·columns), through the product of each layer."""
        agents, images = inputs.shape[:2]
        x = inputs.reshape(agents, images, *self.image).permute(0, 1, 3, 4, 2)
        for product, (filters, kernel, stride) in zip(layers, self.layers, strict=True):
            patches = x.unfold(2, kernel, stride).unfold(3, kernel, stride)  # (N, R, rows, columns, channels, k, k)
            height, breadth = patches.shape[2:4]
            flat = patches.reshape(agents, images * height * breadth, -1)
            if flat.shape[-1] < MIN_WIDTH:
                flat = pad(flat, (0, MIN_WIDTH - flat.shape[-1]))
            out = product(flat)
            out = activate_(out, activation)
            x = out[..., :filters].reshape(agents, images, height, breadth, filters)
        return x.reshape(agents, images, -1)


@dataclass(frozen=True)
class MLP(Network):
    """(N, R, inputs) -> (N, R, outputs): hidden layers, then a linear head.

    dueling: the head is value + advantage - mean advantage (Wang et al. 2016).
    convolution: layers before the hidden ones, where the inputs are an image.

    >>> net = MLP(inputs=4, hidden=(8,), outputs=3)
    >>> parameters = net.init(Identity(seeds=(0, 0), agents=(0, 1)))
    >>> tuple(net.forward(net.bind(parameters), torch.zeros(2, 5, 4)).shape)
    (2, 5, 3)
    """

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    dueling: bool = False
    activation: Activation = "relu"
    orthogonal: bool = False
    """Start from orthogonal layers (Saxe et al. 2014) instead of uniform ones."""
    head_gain: float = 1.0
    """Scale of an orthogonal head."""
    convolution: Convolution | None = None

    def __post_init__(self) -> None:
        if min((self.inputs, self.outputs, *self.hidden)) < 1:
            raise ConfigError(
                f"a network of widths {self.inputs}, {self.hidden}, {self.outputs}: each must be at least 1"
            )
        shapes: dict[str, tuple[int, ...]] = {}
        for index, (fan_in, fan_out) in enumerate(self.widths()):
            shapes[f"weight{index}"] = (width(fan_out), width(fan_in))
            shapes[f"bias{index}"] = (1, width(fan_out))
        object.__setattr__(self, "layout", Layout.of(shapes, by_columns=self.convolution is None))

    def widths(self) -> list[tuple[int, int]]:
        """Return inputs and outputs of every layer."""
        before = [] if self.convolution is None else self.convolution.widths()
        sizes = (self.inputs if self.convolution is None else self.convolution.outputs, *self.hidden)
        head = self.outputs + 1 if self.dueling else self.outputs
        return [*before, *itertools.pairwise(sizes), (sizes[-1], head)]

    def init(self, identity: Identity, part: int = 0) -> Tensor:
        """Return fresh (N, size) parameters from each agent's own draws; padding stays zero.

        part: number of this network among several networks of the same agent.
        """
        parameters = torch.zeros(len(identity), self.size)
        for row, seed, agent in zip(parameters, identity.seeds, identity.agents, strict=True):
            draws = generator(seed, Purpose.INIT, agent=agent, world=part)
            views, widths = self.layout.views(row[None]), self.widths()
            for index, ((fan_in, fan_out), weight, bias) in enumerate(
                zip(widths, views[0::2], views[1::2], strict=True)
            ):
                if self.orthogonal:
                    gain = self.head_gain if index == len(widths) - 1 else math.sqrt(2.0)
                    weight[0, :fan_out, :fan_in] = _orthogonal(draws, fan_out, fan_in, gain)
                else:
                    bound = 1.0 / math.sqrt(fan_in)
                    weight[0, :fan_out, :fan_in] = uniform_weights(draws, (fan_out, fan_in), bound)
                    bias[0, 0, :fan_out] = uniform_weights(draws, (fan_out,), bound)
        return parameters

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return (N, R, outputs) from (N, R, inputs)."""
        return self.forward_layers(self.layers(parameters), inputs)

    def bound_forward(self, rows: Tensor) -> Forward:
        """Return `forward` with these (N, size) parameters bound for many calls."""
        return partial(self.forward_layers, self.layers(self.bind(rows)))

    def layers(self, parameters: Sequence[Tensor]) -> list[Layer]:
        """Return each layer with its weight and bias bound."""
        return [layer(parameters[at], parameters[at + 1]) for at in range(0, len(parameters), 2)]

    def forward_layers(self, layers: Sequence[Layer], inputs: Tensor) -> Tensor:
        """Return (N, R, outputs) from (N, R, inputs), through the bound layers and the head."""
        x = inputs
        if self.convolution is not None:
            count = len(self.convolution.layers)
            x = self.convolution.forward(layers[:count], x, self.activation)
            layers = layers[count:]
        if x.shape[-1] < MIN_WIDTH:
            x = pad(x, (0, MIN_WIDTH - x.shape[-1]))
        for hidden in layers[:-1]:
            x = activate_(hidden(x), self.activation)
        x = layers[-1](x)
        if self.dueling:
            value, advantage = x[..., :1], x[..., 1 : 1 + self.outputs]
            return value + advantage - advantage.mean(-1, keepdim=True)
        return x if x.shape[-1] == self.outputs else x[..., : self.outputs]


def _orthogonal(draws: np.random.Generator, height: int, breadth: int, gain: float) -> Tensor:
    """Return a (height, breadth) matrix with orthonormal rows or columns, whichever are fewer, times `gain`."""
    rows = np.empty((min(height, breadth), max(height, breadth)))
    orthonormal_rows(draws.random((2, *rows.shape)), rows)
    return torch.from_numpy((gain * (rows if height <= breadth else rows.T)).astype(np.float32))


def uniform_weights(draws: np.random.Generator, shape: tuple[int, ...], bound: float) -> Tensor:
    """Return numbers between -bound and bound; numpy's own `uniform` may fuse operations on some machines."""
    return torch.from_numpy((bound * (2.0 * draws.random(shape) - 1.0)).astype(np.float32))
