"""An agent is a row: all its parameters in one flat row, its layers views into it.

>>> layout = Layout.of({"weight": (3, 2), "bias": (1, 3)})
>>> layout.length, [tuple(view.shape) for view in layout.views(torch.zeros(5, layout.length))]
(32, [(5, 3, 2), (5, 1, 3)])
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from parallel_agents.networks.numerics import padded

__all__ = ["Layout", "gradient_rows"]


@dataclass(frozen=True)
class Layout:
    """Where each parameter stands in an agent's row."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    length: int

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> Layout:
        offsets, end = [], 0
        for shape in shapes.values():
            offsets.append(end)
            end += math.prod(shape)
        return cls(tuple(shapes), tuple(shapes.values()), tuple(offsets), padded(end))

    def views(self, rows: Tensor) -> list[Tensor]:
        """(N, length) -> one (N, *shape) view per parameter."""
        count = rows.shape[0]
        return [
            rows[:, offset : offset + math.prod(shape)].view(count, *shape)
            for offset, shape in zip(self.offsets, self.shapes, strict=True)
        ]

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """The views as leaves of the graph; in-place steps on `rows` are seen through them."""
        return [view.detach().requires_grad_() for view in self.views(rows)]


def gradient_rows(loss: Tensor, layout: Layout, leaves: list[Tensor], out: Tensor) -> Tensor:
    """Gradients of a loss summed over agents, in the (N, length) rows of `out`: what was there before is gone."""
    out.zero_()
    places = layout.views(out)
    for leaf, place in zip(leaves, places, strict=True):
        leaf.grad = place  # large layers write there themselves, and then give none
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    for place, gradient in zip(places, gradients, strict=True):
        if gradient is not None:
            place += gradient
    return out
