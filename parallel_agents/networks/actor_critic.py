"""A policy and a value, each a network of its own, in one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parallel_agents.networks.convolution import Convolution
from parallel_agents.networks.distributions import Distribution, SquashedGaussian
from parallel_agents.networks.mlp import MLP
from parallel_agents.networks.numerics import Layer
from parallel_agents.networks.rows import Layout
from parallel_agents.types import Identity

__all__ = ["ActorCritic"]

Layers = list[Layer]


@dataclass(frozen=True)
class ActorCritic:
    """(N, R, inputs) -> (N, R, outputs of the distribution + 1); the last one is the value.

    For a Gaussian, the logarithms of the deviations are parameters of their own, the same for every input.
    """

    inputs: int
    hidden: tuple[int, ...]
    distribution: Distribution
    initial_log_std: float = -0.5
    convolution: Convolution | None = None
    policy: MLP = field(init=False, repr=False)
    value: MLP = field(init=False, repr=False)
    layout: Layout = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        gaussian = isinstance(self.distribution, SquashedGaussian)
        means = self.distribution.outputs // 2 if gaussian else self.distribution.outputs
        shape: dict[str, Any] = {"activation": "tanh", "orthogonal": True, "convolution": self.convolution}
        policy = MLP(self.inputs, self.hidden, means, head_gain=0.01, **shape)
        value = MLP(self.inputs, self.hidden, 1, **shape)
        parts = {"policy": policy.layout, "value": value.layout}
        shapes = {f"{own}.{n}": s for own, part in parts.items() for n, s in zip(part.names, part.shapes, strict=True)}
        if gaussian:
            shapes["log_std"] = (1, means)
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "layout", Layout.of(shapes))

    @property
    def size(self) -> int:
        return self.layout.length

    def init(self, identity: Identity) -> Tensor:
        """(N, size) fresh parameters from each agent's own draws."""
        rows = torch.zeros(len(identity), self.size)
        views = self.layout.views(rows)
        sources = [*self.policy.layout.views(self.policy.init(identity))]
        sources += self.value.layout.views(self.value.init(identity, part=1))
        for view, source in zip(views, sources, strict=False):
            view.copy_(source)
        if len(views) > len(sources):
            views[-1].fill_(self.initial_log_std)
        return rows

    def bind(self, rows: Tensor) -> list[Tensor]:
        """The parameters as `forward` takes them, without a graph."""
        return self.layout.views(rows)

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """The parameters as `forward` takes them, as leaves of the graph."""
        return self.layout.leaves(rows)

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """(N, R, inputs) -> (N, R, outputs + 1)."""
        return self._through(self._parts(parameters), inputs)

    def acting(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """`forward` with these rows, made ready once for many calls."""
        return partial(self._through, self._parts(self.bind(rows)))

    def _parts(self, parameters: Sequence[Tensor]) -> tuple[Layers, Layers, Tensor | None]:
        count = len(self.policy.layout.names)
        end = count + len(self.value.layout.names)
        log_std = parameters[-1] if isinstance(self.distribution, SquashedGaussian) else None
        return self.policy.layers(parameters[:count]), self.value.layers(parameters[count:end]), log_std

    def _through(self, parts: tuple[Layers, Layers, Tensor | None], inputs: Tensor) -> Tensor:
        policy, value, log_std = parts
        outputs = [self.policy.through(policy, inputs), self.value.through(value, inputs)]
        if log_std is not None:
            outputs.insert(1, log_std.expand(-1, inputs.shape[1], -1))
        return torch.cat(outputs, -1)
