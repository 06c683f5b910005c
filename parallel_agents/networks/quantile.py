"""The network of implicit quantile learning (Dabney et al. 2018), with noisy layers and a dueling head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parallel_agents.errors import ConfigError
from parallel_agents.networks.numerics import Layer, layer, linear, width
from parallel_agents.networks.rows import Layout
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Identity

__all__ = ["QuantileNetwork"]

COSINES = 64
Noise = dict[str, tuple[Tensor, Tensor]]
"""Of each noisy layer: of its inputs, and of its outputs."""


class _Ready(NamedTuple):
    """What acting computes with."""

    seen: Layer
    embedded: Tensor
    """(N, 1, K, layer): the quantiles that acting uses, the same for every row."""
    joined: Layer
    head: Layer


@dataclass(frozen=True)
class QuantileNetwork:
    """Values of actions at quantiles: what is seen, times an embedding of the quantile, then noisy layers.

    `forward` is what acting uses: the mean over fixed quantiles, with the noise left out. `quantiles` and their `mean`
    are what learning uses. All read the same rows and none changes anything, so there is no mode to flip.

    Noisy layers (Fortunato et al. 2018): weight = mean + deviation · noise, the noise factorised.
    """

    inputs: int
    layer: int
    outputs: int
    acting_quantiles: int = 32
    sigma: float = 0.5
    layout: Layout = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if min(self.inputs, self.layer, self.outputs, self.acting_quantiles) < 1:
            raise ConfigError(
                f"a quantile network of widths {self.inputs}, {self.layer}, {self.outputs}: each at least 1"
            )
        shapes: dict[str, tuple[int, ...]] = {}
        for name, fan_in, fan_out in self._plain():
            shapes |= {f"{name}.weight": (width(fan_out), width(fan_in)), f"{name}.bias": (1, width(fan_out))}
        for name, fan_in, fan_out in self._noisy():
            for part in ("mean", "deviation"):
                shapes[f"{name}.weight.{part}"] = (width(fan_out), width(fan_in))
                shapes[f"{name}.bias.{part}"] = (1, width(fan_out))
        object.__setattr__(self, "layout", Layout.of(shapes))

    def _plain(self) -> list[tuple[str, int, int]]:
        return [("seen", self.inputs, self.layer), ("cosines", COSINES, self.layer)]

    def _noisy(self) -> list[tuple[str, int, int]]:
        return [("joined", self.layer, self.layer), ("head", self.layer, self.outputs + 1)]

    @property
    def size(self) -> int:
        return self.layout.length

    @property
    def noise_size(self) -> int:
        """Numbers of noise that one agent needs for one update of one network."""
        return sum(width(fan_in) + width(fan_out) for _, fan_in, fan_out in self._noisy())

    def init(self, identity: Identity) -> Tensor:
        """(N, size): means uniform in ±1/√fan_in, deviations σ/√fan_in, from each agent's own draws."""
        rows = torch.zeros(len(identity), self.size)
        for row, seed, agent in zip(rows, identity.seeds, identity.agents, strict=True):
            draws = generator(seed, Purpose.INIT, agent=agent)
            views = dict(zip(self.layout.names, self.layout.views(row[None]), strict=True))
            for name, fan_in, fan_out in (*self._plain(), *self._noisy()):
                bound = 1.0 / math.sqrt(fan_in)
                suffix = "" if f"{name}.weight" in views else ".mean"
                weight = draws.uniform(-bound, bound, (fan_out, fan_in)).astype(np.float32)
                views[f"{name}.weight{suffix}"][0, :fan_out, :fan_in] = torch.from_numpy(weight)
                bias = draws.uniform(-bound, bound, fan_out).astype(np.float32)
                views[f"{name}.bias{suffix}"][0, 0, :fan_out] = torch.from_numpy(bias)
                if suffix:
                    views[f"{name}.weight.deviation"][0, :fan_out, :fan_in] = self.sigma * bound
                    views[f"{name}.bias.deviation"][0, 0, :fan_out] = self.sigma * bound
        return rows

    def bind(self, rows: Tensor) -> list[Tensor]:
        """The parameters as `forward` takes them, without a graph."""
        return self.layout.views(rows)

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """The parameters as `forward` takes them, as leaves of the graph."""
        return self.layout.leaves(rows)

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """(N, R, inputs) -> (N, R, outputs): means over evenly spaced quantiles, without noise."""
        return self._mean_values(self._ready(parameters), inputs)

    def acting(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """`forward` with these rows, made ready once for many calls."""
        return partial(self._mean_values, self._ready(self.bind(rows)))

    def quantiles(
        self, parameters: Sequence[Tensor], inputs: Tensor, quantiles: Tensor, noise: Tensor | None
    ) -> Tensor:
        """inputs (N, R, in), quantiles (N, R, K), noise (N, noise_size) -> (N, R, K, outputs)."""
        own, parts = self._named(parameters), self._noise_parts(noise)
        hidden = self._hidden(own, inputs, quantiles, parts).flatten(1, 2)
        return self._valued(hidden, own, parts).reshape(*quantiles.shape, self.outputs)

    def mean(self, parameters: Sequence[Tensor], inputs: Tensor, quantiles: Tensor, noise: Tensor | None) -> Tensor:
        """As `quantiles`, the mean over them: (N, R, outputs). The head is linear, so it is given the mean."""
        own, parts = self._named(parameters), self._noise_parts(noise)
        return self._valued(self._hidden(own, inputs, quantiles, parts).mean(2), own, parts)

    def _named(self, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.layout.names, parameters, strict=True))

    def _ready(self, parameters: Sequence[Tensor]) -> _Ready:
        """What `_mean_values` reads: whatever does not depend on the inputs is computed here."""
        own = self._named(parameters)
        weight, count = own["seen.weight"], self.acting_quantiles
        middles = (torch.arange(count, device=weight.device) + 0.5) / count
        return _Ready(
            seen=layer(weight, own["seen.bias"]),
            embedded=self._embedded(own, middles.expand(len(weight), 1, count)),
            joined=layer(own["joined.weight.mean"], own["joined.bias.mean"]),
            head=layer(self._as_one(own["head.weight.mean"]), self._as_one(own["head.bias.mean"], -1)),
        )

    def _as_one(self, head: Tensor, axis: int = 1) -> Tensor:
        """A dueling head's value and advantages along an axis -> value + advantage - mean advantage."""
        value, advantage = head.narrow(axis, 0, 1), head.narrow(axis, 1, self.outputs)
        joined = value + advantage - advantage.mean(axis, keepdim=True)
        missing = width(self.outputs) - self.outputs
        return torch.cat([joined, torch.zeros_like(value)], axis) if missing else joined

    def _mean_values(self, ready: _Ready, inputs: Tensor) -> Tensor:
        """(N, R, inputs) -> (N, R, outputs). The head is linear, so it is given the mean over the quantiles."""
        (agents, rows, _), count = inputs.shape, self.acting_quantiles
        seen = ready.seen(self._wide(inputs)).relu_()
        joined = (seen[:, :, None] * ready.embedded).view(agents, rows * count, -1)
        hidden = ready.joined(joined).relu_().view(agents, rows, count, -1)
        values = ready.head(hidden.mean(2))
        return values if values.shape[-1] == self.outputs else values[..., : self.outputs]

    def _wide(self, inputs: Tensor) -> Tensor:
        missing = width(self.inputs) - self.inputs
        return torch.nn.functional.pad(inputs, (0, missing)) if missing else inputs

    def _embedded(self, own: dict[str, Tensor], quantiles: Tensor) -> Tensor:
        """(N, R, K) -> (N, R, K, layer)"""
        agents, rows, count = quantiles.shape
        steps = torch.arange(1, COSINES + 1, device=quantiles.device) * math.pi
        waves = torch.cos(quantiles.reshape(agents, rows * count, 1) * steps)
        embedded = linear(waves, own["cosines.weight"], own["cosines.bias"]).relu_()
        return embedded.reshape(agents, rows, count, -1)

    def _hidden(self, own: dict[str, Tensor], inputs: Tensor, quantiles: Tensor, parts: Noise) -> Tensor:
        """inputs (N, R, in), quantiles (N, R, K) -> (N, R, K, layer), what the head is given."""
        agents, rows, count = quantiles.shape
        seen = linear(self._wide(inputs), own["seen.weight"], own["seen.bias"]).relu_()[:, :, None]
        embedded = self._embedded(own, quantiles)
        # in place where no gradient will ask for the embedding
        joined = seen * embedded if torch.is_grad_enabled() else embedded.mul_(seen)
        weight, bias = _noisy(own, "joined", parts)
        hidden = linear(joined.reshape(agents, rows * count, -1), weight, bias).relu_()
        return hidden.reshape(agents, rows, count, -1)

    def _valued(self, hidden: Tensor, own: dict[str, Tensor], parts: Noise) -> Tensor:
        """(N, R, layer) -> (N, R, outputs): the head, dueling."""
        weight, bias = _noisy(own, "head", parts)
        return linear(hidden, self._as_one(weight), self._as_one(bias, -1))[..., : self.outputs]

    def _noise_parts(self, noise: Tensor | None) -> Noise:
        """Each noisy layer's own noise of its inputs and outputs."""
        if noise is None:
            return {}
        shaped = torch.sign(noise) * torch.sqrt(torch.abs(noise))
        parts, first = {}, 0
        for name, fan_in, fan_out in self._noisy():
            middle, end = first + width(fan_in), first + width(fan_in) + width(fan_out)
            parts[name] = (shaped[:, first:middle], shaped[:, middle:end])
            first = end
        return parts


def _noisy(own: dict[str, Tensor], name: str, parts: Noise) -> tuple[Tensor, Tensor]:
    """Weight and bias of a noisy layer; its means alone where there is no noise."""
    weight, bias = own[f"{name}.weight.mean"], own[f"{name}.bias.mean"]
    if name not in parts:
        return weight, bias
    inner, outer = parts[name]
    weight = torch.addcmul(weight, own[f"{name}.weight.deviation"], outer[:, :, None] * inner[:, None, :])
    return weight, torch.addcmul(bias, own[f"{name}.bias.deviation"], outer[:, None, :])
