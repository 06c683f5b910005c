"""A policy network and a value network whose parameters share one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_agents.core.seeding import Identity
from parallel_agents.kernels import policy_gradient as kernel
from parallel_agents.nn.distributions import Distribution, SquashedGaussian
from parallel_agents.nn.layers import MLP, Convolution, Forward, Layer, Layout, Network

_BoundLayers = tuple[list[Layer], list[Layer], Tensor | None]


@dataclass(frozen=True)
class ActorCritic(Network):
    """(N, R, inputs) -> (N, R, outputs of the distribution + 1); the last output is the value.

    For a Gaussian, the logarithms of the standard deviations are parameters that do not depend on the input.
    """

    inputs: int
    hidden: tuple[int, ...]
    distribution: Distribution
    initial_log_std: float = -0.5
    """Logarithm of a Gaussian's standard deviations before training."""
    convolution: Convolution | None = None
    policy: MLP = field(init=False, repr=False)
    value: MLP = field(init=False, repr=False)

    def __post_init__(self) -> None:
        gaussian = isinstance(self.distribution, SquashedGaussian)
        means = self.distribution.outputs // 2 if gaussian else self.distribution.outputs
        options: dict[str, Any] = {"activation": "tanh", "orthogonal": True, "convolution": self.convolution}
        policy = MLP(self.inputs, self.hidden, means, head_gain=0.01, **options)
        value = MLP(self.inputs, self.hidden, 1, **options)
        layouts = {"policy": policy.layout, "value": value.layout}
        shapes = {
            f"{part}.{name}": shape
            for part, layout in layouts.items()
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        }
        if gaussian:
            shapes["log_std"] = (1, means)
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "layout", Layout.of(shapes, by_columns=self.convolution is None))

    @cached_property
    def kernel(self) -> kernel.Network:
        """This network as compiled kernels read it."""
        policy, value = self.policy.widths(), self.value.widths()
        return kernel.Network(
            self.layout.table(0, policy),
            self.layout.table(2 * len(policy), value),
            np.array(self.distribution.sizes, np.int64),
            self.layout.offsets[-1],
        )

    def init(self, identity: Identity) -> Tensor:
        """Return fresh (N, size) parameters from each agent's own draws."""
        rows = torch.zeros(len(identity), self.size)
        views = self.layout.views(rows)
        sources = [*self.policy.layout.views(self.policy.init(identity))]
        sources += self.value.layout.views(self.value.init(identity, part=1))
        for view, source in zip(views, sources, strict=False):
            view.copy_(source)
        if len(views) > len(sources):
            views[-1].fill_(self.initial_log_std)
        return rows

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return (N, R, outputs + 1) from (N, R, inputs)."""
        return self._forward_layers(self._layers(parameters), inputs)

    def bound_forward(self, rows: Tensor) -> Forward:
        """Return `forward` with these (N, size) parameters bound for many calls."""
        return partial(self._forward_layers, self._layers(self.bind(rows)))

    def _layers(self, parameters: Sequence[Tensor]) -> _BoundLayers:
        """Return the bound layers of policy and value, and the log deviations of a Gaussian."""
        count = len(self.policy.layout.names)
        end = count + len(self.value.layout.names)
        log_std = parameters[-1] if isinstance(self.distribution, SquashedGaussian) else None
        return self.policy.layers(parameters[:count]), self.value.layers(parameters[count:end]), log_std

    def _forward_layers(self, layers: _BoundLayers, inputs: Tensor) -> Tensor:
        """Return (N, R, outputs + 1) from (N, R, inputs), through the bound layers."""
        policy, value, log_std = layers
        outputs = [self.policy.forward_layers(policy, inputs), self.value.forward_layers(value, inputs)]
        if log_std is not None:
            outputs.insert(1, log_std.expand(-1, inputs.shape[1], -1))
        return torch.cat(outputs, -1)
