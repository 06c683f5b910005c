"""Gradients and optimizer steps on rows, each agent by itself."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adam import adam

from parallel_agents.nn.layers import Layout


def gradient_rows(loss: Tensor, layout: Layout, leaves: list[Tensor], out: Tensor) -> Tensor:
    """Write the gradients of a loss, summed over agents, into the (N, length) rows of `out`; return `out`."""
    out.zero_()
    targets = layout.views(out)
    for leaf, target in zip(leaves, targets, strict=True):
        leaf.grad = target  # large layers add their gradient here themselves
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    for target, gradient in zip(targets, gradients, strict=True):
        if gradient is not None:
            target += gradient
    return out


def clip_rows(gradients: Tensor, limits: Tensor) -> Tensor:
    """Scale (N, P) gradients in place so that no row's norm exceeds its (N,) limit; return the (N,) norms before."""
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=1)
    factors = (limits / (norms + 1e-6)).clamp(max=1.0)
    if bool((factors < 1.0).any()):  # a factor of 1 changes nothing
        gradients.mul_(factors[:, None])
    return norms


class RowAdam:
    """Adam over rows, each with its own step count and learning rate (Kingma and Ba 2015).

    rows, gradients, first, second: (N, P); steps: (N,). All but the gradients are written in place.
    """

    def __init__(self, rows: Tensor, gradients: Tensor, first: Tensor, second: Tensor, steps: Tensor) -> None:
        # Fused over separate layers, Adam would not be invariant; fused over whole rows it is.
        self._parts = [list(part.unbind()) for part in (rows, gradients, first, second, steps)]

    def step(self, rates: list[float], accepted: list[bool]) -> None:
        """Take one step for the accepted rows."""
        for rate in sorted(set(rates)):
            chosen = [n for n, own_rate in enumerate(rates) if own_rate == rate and accepted[n]]
            if chosen:
                every = len(chosen) == len(rates)
                parts = self._parts if every else [[part[n] for n in chosen] for part in self._parts]
                rows, gradients, first, second, steps = parts
                adam(
                    rows, gradients, first, second, [], steps,
                    foreach=False, fused=True, amsgrad=False, beta1=0.9, beta2=0.999,
                    lr=rate, weight_decay=0.0, eps=1e-8, maximize=False,
                )  # fmt: skip
