"""A multilayer perceptron of rows, with a plain or a dueling head."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from parallel_agents.errors import ConfigError
from parallel_agents.networks.convolution import Convolution
from parallel_agents.networks.numerics import MIN_WIDTH, Layer, layer, width
from parallel_agents.networks.rows import Layout
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Identity

__all__ = ["MLP"]


@dataclass(frozen=True)
class MLP:
    """(N, R, inputs) -> (N, R, outputs): hidden layers, then a linear head.

    dueling: the head is value + advantage - mean advantage (Wang et al. 2016).
    convolution: layers before the hidden ones, where the inputs are a picture.

    >>> net = MLP(inputs=4, hidden=(8,), outputs=3)
    >>> rows = net.init(Identity(seeds=(0, 0), agents=(0, 1)))
    >>> tuple(net.forward(net.bind(rows), torch.zeros(2, 5, 4)).shape)
    (2, 5, 3)
    """

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    dueling: bool = False
    activation: Literal["relu", "tanh"] = "relu"
    orthogonal: bool = False
    """Start from orthogonal layers (Saxe et al. 2014) instead of uniform ones."""
    head_gain: float = 1.0
    """Size of an orthogonal head."""
    convolution: Convolution | None = None
    layout: Layout = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if min((self.inputs, self.outputs, *self.hidden)) < 1:
            raise ConfigError(
                f"a network of widths {self.inputs}, {self.hidden}, {self.outputs}: each must be at least 1"
            )
        shapes: dict[str, tuple[int, ...]] = {}
        for index, (fan_in, fan_out) in enumerate(self._widths()):
            shapes[f"weight{index}"] = (width(fan_out), width(fan_in))
            shapes[f"bias{index}"] = (1, width(fan_out))
        object.__setattr__(self, "layout", Layout.of(shapes))

    @property
    def size(self) -> int:
        return self.layout.length

    def _widths(self) -> list[tuple[int, int]]:
        before = [] if self.convolution is None else self.convolution.widths()
        sizes = (self.inputs if self.convolution is None else self.convolution.outputs, *self.hidden)
        head = self.outputs + 1 if self.dueling else self.outputs
        return [*before, *itertools.pairwise(sizes), (sizes[-1], head)]

    def init(self, identity: Identity, part: int = 0) -> Tensor:
        """(N, size) from each agent's own draws; padding stays zero. `part` tells networks of one agent apart."""
        rows = torch.zeros(len(identity), self.size)
        for row, seed, agent in zip(rows, identity.seeds, identity.agents, strict=True):
            draws = generator(seed, Purpose.INIT, agent=agent, world=part)
            pairs = self._pairs(self.layout.views(row[None]))
            for index, ((fan_in, fan_out), weight, bias) in enumerate(pairs):
                if self.orthogonal:
                    gain = self.head_gain if index == len(pairs) - 1 else math.sqrt(2.0)
                    weight[0, :fan_out, :fan_in] = _orthogonal(draws, fan_out, fan_in, gain)
                else:
                    bound = 1.0 / math.sqrt(fan_in)
                    weight[0, :fan_out, :fan_in] = _uniform(draws, (fan_out, fan_in), bound)
                    bias[0, 0, :fan_out] = _uniform(draws, (fan_out,), bound)
        return rows

    def _pairs(self, views: Sequence[Tensor]) -> list[tuple[tuple[int, int], Tensor, Tensor]]:
        return list(zip(self._widths(), views[0::2], views[1::2], strict=True))

    def bind(self, rows: Tensor) -> list[Tensor]:
        """The parameters as `forward` takes them, without a graph."""
        return self.layout.views(rows)

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """The parameters as `forward` takes them, as leaves of the graph."""
        return self.layout.leaves(rows)

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """(N, R, inputs) -> (N, R, outputs)."""
        return self.through(self.layers(parameters), inputs)

    def acting(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """`forward` with these rows, made ready once for many calls."""
        return partial(self.through, self.layers(self.bind(rows)))

    def layers(self, parameters: Sequence[Tensor]) -> list[Layer]:
        """Each layer with its weight and bias."""
        return [layer(parameters[at], parameters[at + 1]) for at in range(0, len(parameters), 2)]

    def through(self, layers: Sequence[Layer], inputs: Tensor) -> Tensor:
        """(N, R, inputs) through the layers and the head."""
        x = inputs
        if self.convolution is not None:
            count = len(self.convolution.layers)
            x = self.convolution.through(layers[:count], x, self.activation)
            layers = layers[count:]
        if x.shape[-1] < MIN_WIDTH:
            x = torch.nn.functional.pad(x, (0, MIN_WIDTH - x.shape[-1]))
        for own in layers[:-1]:
            x = own(x)
            # in place: the product is not needed again, not even for the gradient
            x = x.relu_() if self.activation == "relu" else x.tanh_()
        x = layers[-1](x)
        if self.dueling:
            value, advantage = x[..., :1], x[..., 1 : 1 + self.outputs]
            return value + advantage - advantage.mean(-1, keepdim=True)
        return x if x.shape[-1] == self.outputs else x[..., : self.outputs]


def _orthogonal(draws: np.random.Generator, rows: int, columns: int, gain: float) -> Tensor:
    """(rows, columns) with orthonormal rows or columns, whichever are fewer, times `gain`."""
    q, r = np.linalg.qr(draws.standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))
    return torch.from_numpy((gain * (q if rows >= columns else q.T)).astype(np.float32))


def _uniform(draws: np.random.Generator, shape: tuple[int, ...], bound: float) -> Tensor:
    return torch.from_numpy(draws.uniform(-bound, bound, shape).astype(np.float32))
