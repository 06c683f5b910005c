"""The mathematics of value learning as pure functions. Shapes: N agents, B samples, A actions."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["allowed", "double_q_targets", "huber", "q_targets", "quantile_huber", "values_of", "weighted_mean"]


def allowed(values: Tensor, masks: Tensor | None) -> Tensor:
    """(…, A) values with -infinity for what a mask (…, A) forbids."""
    return values if masks is None else values.masked_fill(~masks, -torch.inf)


def q_targets(returns: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """returns, discounts: (N, B); next_values: (N, B, A) of the target network -> (N, B). Mnih et al. 2015."""
    return returns + discounts * next_values.amax(-1)


def double_q_targets(returns: Tensor, discounts: Tensor, next_values: Tensor, next_online: Tensor) -> Tensor:
    """As `q_targets`, with the action chosen by the online network, (N, B, A). van Hasselt et al. 2016."""
    best = next_online.argmax(-1, keepdim=True)
    return returns + discounts * next_values.gather(-1, best).squeeze(-1)


def huber(errors: Tensor) -> Tensor:
    """Quadratic within ±1, linear beyond, elementwise. Huber 1964."""
    size = errors.abs()
    inner = size.clamp(max=1.0)
    return inner * (size - 0.5 * inner)


def quantile_huber(errors: Tensor, quantiles: Tensor) -> Tensor:
    """errors (N, B, K, J) of K quantiles against J targets, quantiles (N, B, K) -> (N, B). Dabney et al. 2018."""
    weights = torch.abs(quantiles[..., None] - (errors < 0).float())
    return (weights * huber(errors)).mean(-1).sum(-1)


def weighted_mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """(N, B) per-sample losses -> (N,), each sample weighted once, before the mean."""
    return (losses if weights is None else losses * weights).mean(-1)


def values_of(values: Tensor, actions: Tensor) -> Tensor:
    """(N, B, A), (N, B) -> (N, B): the values of the actions that were taken."""
    return torch.gather(values, -1, actions[..., None]).squeeze(-1)
