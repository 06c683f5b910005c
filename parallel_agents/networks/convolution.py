"""Convolutions of rows: patches side by side, then one product per agent.

Grouped convolution under `vmap` does not give each agent the bytes it would get alone; a product does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import pad

from parallel_agents.errors import ConfigError
from parallel_agents.networks.numerics import MIN_WIDTH, Layer

__all__ = ["Convolution"]


@dataclass(frozen=True)
class Convolution:
    """Layers (filters, side of the kernel, stride) over pictures (channels, rows, columns), without padding.

    >>> Convolution((4, 5, 5), ((8, 3, 1), (16, 2, 1))).outputs
    64
    """

    picture: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.picture) != 3 or min(self.picture) < 1:
            raise ConfigError(
                f"model.convolutional on observations of shape {self.picture}: they must be pictures, that is, "
                "(channels, rows, columns)"
            )
        for layer in self.layers:
            if len(layer) != 3 or min(layer) < 1:
                raise ConfigError(
                    f"model.convolutional holds {layer}: a layer is (filters, side of the kernel, stride), "
                    "each a whole number of at least 1"
                )
        sizes = self._sizes()
        for (_, kernel, _), (_, rows, columns) in zip(self.layers, sizes, strict=False):
            if kernel > min(rows, columns):
                raise ConfigError(
                    f"model.convolutional: a kernel of side {kernel} does not fit {rows} x {columns} cells, what is "
                    f"left of a picture of {self.picture[1]} x {self.picture[2]}: leave a layer out or make it smaller"
                )

    def _sizes(self) -> list[tuple[int, ...]]:
        """(channels, rows, columns) before each layer and after the last."""
        sizes = [self.picture]
        for filters, kernel, stride in self.layers:
            _, rows, columns = sizes[-1]
            sizes.append((filters, (rows - kernel) // stride + 1, (columns - kernel) // stride + 1))
        return sizes

    @property
    def outputs(self) -> int:
        channels, rows, columns = self._sizes()[-1]
        return channels * rows * columns

    def widths(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each layer's product."""
        pairs = itertools.pairwise(self._sizes())
        return [(before[0] * k * k, after[0]) for (before, after), (_, k, _) in zip(pairs, self.layers, strict=True)]

    def through(self, layers: Sequence[Layer], inputs: Tensor, activation: str) -> Tensor:
        """(N, R, channels·rows·columns) -> (N, R, outputs), by the product of each layer."""
        agents, pictures = inputs.shape[:2]
        x = inputs.reshape(agents, pictures, *self.picture).permute(0, 1, 3, 4, 2)
        for own, (filters, kernel, stride) in zip(layers, self.layers, strict=True):
            patches = x.unfold(2, kernel, stride).unfold(3, kernel, stride)  # (N, R, rows, columns, channels, k, k)
            rows, columns = patches.shape[2:4]
            flat = patches.reshape(agents, pictures * rows * columns, -1)
            if flat.shape[-1] < MIN_WIDTH:
                flat = pad(flat, (0, MIN_WIDTH - flat.shape[-1]))
            out = own(flat)
            out = out.relu_() if activation == "relu" else out.tanh_()
            x = out[..., :filters].reshape(agents, pictures, rows, columns, filters)
        return x.reshape(agents, pictures, -1)
