"""The network of implicit quantile learning (Dabney et al. 2018), with noisy layers and a dueling head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.nn.layers import Forward, Layer, Layout, Network, layer, linear, uniform_weights, width

COSINES = 64
"""Cosine features that embed a quantile."""
NoiseFactors = dict[str, tuple[Tensor, Tensor]]
"""Noise of the inputs (N, in) and of the outputs (N, out) of each noisy layer, by the layer's name."""


class _BoundLayers(NamedTuple):
    """The layers that acting uses, with their weights bound."""

    observation: Layer
    embedding: Tensor
    """(N, 1, K, layer): the embedded quantiles that acting uses, the same for every row."""
    joined: Layer
    head: Layer


@dataclass(frozen=True)
class QuantileNetwork(Network):
    """Values of actions at quantiles: the observation times an embedding of the quantile, then noisy layers.

    Acting uses `forward`, the mean over fixed quantiles without noise. Learning uses `quantiles` and their `mean`.
    All read the same rows and change nothing, so there is no train or eval mode.

    Noisy layers (Fortunato et al. 2018): weight = mean + deviation · noise, the noise factorised.
    """

    inputs: int
    layer: int
    outputs: int
    acting_quantiles: int = 32
    """Evenly spaced quantiles whose mean acting uses."""
    sigma: float = 0.5
    """Scale of the initial deviations of the noisy layers."""

    def __post_init__(self) -> None:
        if min(self.inputs, self.layer, self.outputs, self.acting_quantiles) < 1:
            raise ConfigError(
                f"a quantile network of widths {self.inputs}, {self.layer}, {self.outputs} and "
                f"{self.acting_quantiles} acting quantiles: each must be at least 1"
            )
        shapes: dict[str, tuple[int, ...]] = {}
        for name, fan_in, fan_out in self._plain():
            shapes |= {f"{name}.weight": (width(fan_out), width(fan_in)), f"{name}.bias": (1, width(fan_out))}
        for name, fan_in, fan_out in self._noisy():
            for part in ("mean", "deviation"):
                shapes[f"{name}.weight.{part}"] = (width(fan_out), width(fan_in))
                shapes[f"{name}.bias.{part}"] = (1, width(fan_out))
        object.__setattr__(self, "layout", Layout.of(shapes, by_columns=True))

    def _plain(self) -> list[tuple[str, int, int]]:
        """Return name, inputs and outputs of each layer without noise."""
        return [("seen", self.inputs, self.layer), ("cosines", COSINES, self.layer)]

    def _noisy(self) -> list[tuple[str, int, int]]:
        """Return name, inputs and outputs of each noisy layer."""
        return [("joined", self.layer, self.layer), ("head", self.layer, self.outputs + 1)]

    def widths(self) -> list[tuple[int, int]]:
        """Return inputs and outputs of every weight, in the order of the row; noisy layers have two."""
        noisy = [pair for _, *pair in self._noisy() for _ in ("mean", "deviation")]
        return [(fan_in, fan_out) for fan_in, fan_out in ([pair for _, *pair in self._plain()] + noisy)]

    @property
    def noise_size(self) -> int:
        """Random numbers that one agent needs for one update of one network."""
        return sum(width(fan_in) + width(fan_out) for _, fan_in, fan_out in self._noisy())

    def init(self, identity: Identity) -> Tensor:
        """Return fresh (N, size) parameters from each agent's draws: means in ±1/√fan_in, deviations σ/√fan_in."""
        rows = torch.zeros(len(identity), self.size)
        for row, seed, agent in zip(rows, identity.seeds, identity.agents, strict=True):
            draws = generator(seed, Purpose.INIT, agent=agent)
            views = dict(zip(self.layout.names, self.layout.views(row[None]), strict=True))
            for name, fan_in, fan_out in (*self._plain(), *self._noisy()):
                bound = 1.0 / math.sqrt(fan_in)
                suffix = "" if f"{name}.weight" in views else ".mean"
                weight = views[f"{name}.weight{suffix}"][0, :fan_out, :fan_in]
                weight.copy_(uniform_weights(draws, (fan_out, fan_in), bound))
                views[f"{name}.bias{suffix}"][0, 0, :fan_out] = uniform_weights(draws, (fan_out,), bound)
                if suffix:
                    views[f"{name}.weight.deviation"][0, :fan_out, :fan_in] = self.sigma * bound
                    views[f"{name}.bias.deviation"][0, 0, :fan_out] = self.sigma * bound
        return rows

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return (N, R, outputs) from (N, R, inputs): means over evenly spaced quantiles, without noise."""
        return self._mean_values(self._layers(parameters), inputs)

    def bound_forward(self, rows: Tensor) -> Forward:
        """Return `forward` with these (N, size) parameters bound for many calls."""
        return partial(self._mean_values, self._layers(self.bind(rows)))

    def quantiles(
        self, parameters: Sequence[Tensor], inputs: Tensor, quantiles: Tensor, noise: Tensor | None
    ) -> Tensor:
        """Return (N, R, K, outputs) from inputs (N, R, in), quantiles (N, R, K) and noise (N, noise_size)."""
        named, factors = self.named(parameters), self._noise_factors(noise)
        hidden = self._hidden(named, inputs, quantiles, factors).flatten(1, 2)
        return self._head(hidden, named, factors).reshape(*quantiles.shape, self.outputs)

    def mean(self, parameters: Sequence[Tensor], inputs: Tensor, quantiles: Tensor, noise: Tensor | None) -> Tensor:
        """Return the mean over quantiles, (N, R, outputs). The head is linear, so it takes the mean of its inputs."""
        named, factors = self.named(parameters), self._noise_factors(noise)
        return self._head(self._hidden(named, inputs, quantiles, factors).mean(2), named, factors)

    def _layers(self, parameters: Sequence[Tensor]) -> _BoundLayers:
        """Return everything that `_mean_values` computes with and that does not depend on the inputs."""
        named = self.named(parameters)
        weight, count = named["seen.weight"], self.acting_quantiles
        middles = (torch.arange(count, device=weight.device) + 0.5) / count
        return _BoundLayers(
            observation=layer(weight, named["seen.bias"]),
            embedding=self._embedding(named, middles.expand(len(weight), 1, count)),
            joined=layer(named["joined.weight.mean"], named["joined.bias.mean"]),
            head=layer(
                self._merge_dueling(named["head.weight.mean"]), self._merge_dueling(named["head.bias.mean"], -1)
            ),
        )

    def _merge_dueling(self, head: Tensor, axis: int = 1) -> Tensor:
        """Return value + advantage - mean advantage from a dueling head's parameters along an axis."""
        value, advantage = head.narrow(axis, 0, 1), head.narrow(axis, 1, self.outputs)
        joined = value + advantage - advantage.mean(axis, keepdim=True)
        missing = width(self.outputs) - self.outputs
        return torch.cat([joined, torch.zeros_like(value)], axis) if missing else joined

    def _mean_values(self, layers: _BoundLayers, inputs: Tensor) -> Tensor:
        """Return (N, R, outputs) from (N, R, inputs). The head is linear, so it takes the mean over the quantiles."""
        (agents, rows, _), count = inputs.shape, self.acting_quantiles
        observed = layers.observation(self._pad(inputs)).relu_()
        joined = (observed[:, :, None] * layers.embedding).view(agents, rows * count, -1)
        hidden = layers.joined(joined).relu_().view(agents, rows, count, -1)
        values = layers.head(hidden.mean(2))
        return values if values.shape[-1] == self.outputs else values[..., : self.outputs]

    def _pad(self, inputs: Tensor) -> Tensor:
        """Return inputs (N, R, in) padded with zeros to the width that the first layer is computed with."""
        missing = width(self.inputs) - self.inputs
        return torch.nn.functional.pad(inputs, (0, missing)) if missing else inputs

    def _embedding(self, named: dict[str, Tensor], quantiles: Tensor) -> Tensor:
        """Return the embedding (N, R, K, layer) of quantiles (N, R, K)."""
        agents, rows, count = quantiles.shape
        steps = torch.arange(1, COSINES + 1, device=quantiles.device) * math.pi
        waves = torch.cos(quantiles.reshape(agents, rows * count, 1) * steps)
        embedded = linear(waves, named["cosines.weight"], named["cosines.bias"]).relu_()
        return embedded.reshape(agents, rows, count, -1)

    def _hidden(self, named: dict[str, Tensor], inputs: Tensor, quantiles: Tensor, factors: NoiseFactors) -> Tensor:
        """Return the inputs of the head, (N, R, K, layer), from inputs (N, R, in) and quantiles (N, R, K)."""
        agents, rows, count = quantiles.shape
        observed = linear(self._pad(inputs), named["seen.weight"], named["seen.bias"]).relu_()[:, :, None]
        embedded = self._embedding(named, quantiles)
        # in place where no gradient will need the embedding
        joined = observed * embedded if torch.is_grad_enabled() else embedded.mul_(observed)
        weight, bias = _noisy(named, "joined", factors)
        hidden = linear(joined.reshape(agents, rows * count, -1), weight, bias).relu_()
        return hidden.reshape(agents, rows, count, -1)

    def _head(self, hidden: Tensor, named: dict[str, Tensor], factors: NoiseFactors) -> Tensor:
        """Return (N, R, outputs) of the dueling head from (N, R, layer)."""
        weight, bias = _noisy(named, "head", factors)
        return linear(hidden, self._merge_dueling(weight), self._merge_dueling(bias, -1))[..., : self.outputs]

    def _noise_factors(self, noise: Tensor | None) -> NoiseFactors:
        """Return the factors of the noise (N, noise_size) of each noisy layer; none without noise."""
        if noise is None:
            return {}
        shaped = torch.sign(noise) * torch.sqrt(torch.abs(noise))
        factors, first = {}, 0
        for name, fan_in, fan_out in self._noisy():
            middle, end = first + width(fan_in), first + width(fan_in) + width(fan_out)
            factors[name] = (shaped[:, first:middle], shaped[:, middle:end])
            first = end
        return factors


def _noisy(named: dict[str, Tensor], name: str, factors: NoiseFactors) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a noisy layer; only their means where there is no noise."""
    weight, bias = named[f"{name}.weight.mean"], named[f"{name}.bias.mean"]
    if name not in factors:
        return weight, bias
    inner, outer = factors[name]
    weight = torch.addcmul(weight, named[f"{name}.weight.deviation"], outer[:, :, None] * inner[:, None, :])
    return weight, torch.addcmul(bias, named[f"{name}.bias.deviation"], outer[:, None, :])
