"""From network outputs and addressed draws to actions. Shapes: N agents, W worlds, A actions."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.errors import ActionError, ShapeError
from parallel_agents.types import Array

__all__ = ["EPSILON_SLOTS", "asked", "discrete", "epsilon_greedy", "gaussian", "greedy", "squash"]

EPSILON_SLOTS = 2
"""Draws of one ε-greedy choice: whether to explore, and where."""


def epsilon_greedy(
    values: Array, draws: NDArray[np.float64], epsilons: NDArray[np.float64], masks: Array | None = None
) -> NDArray[np.int64]:
    """values (N, W, A), draws (N, W, 2), epsilons (N,), masks (N, W, A) bool -> (N, W) actions.

    Both draws are spent whether or not the agent explores, so that nothing shifts.

    >>> epsilon_greedy(np.array([[[0.0, 2.0, 1.0]]]), np.array([[[0.9, 0.5]]]), np.array([0.1])).item()
    1
    """
    if masks is None:
        masks = _all_allowed(values.shape)
    elif masks.shape != values.shape:
        raise ShapeError(f"action masks of shape {masks.shape}: wanted is (agents, worlds, actions) = {values.shape}")
    elif not masks.any(axis=-1).all():
        agent, world = np.argwhere(~masks.any(axis=-1))[0]
        raise ActionError(f"the action mask of agent {agent} in world {world} forbids every action: allow at least one")
    chosen = np.empty(values.shape[:2], np.int64)
    _choose(values, draws, epsilons, masks, chosen)
    return chosen


def asked(draws: NDArray[np.float64], epsilons: NDArray[np.float64]) -> NDArray[np.bool_]:
    """draws (N, W, 2), epsilons (N,) -> (N,) whose values decide in some world: nobody else's are needed.

    >>> asked(np.array([[[0.9, 0.5]], [[0.1, 0.5]]]), np.array([0.6, 0.6])).tolist()
    [True, False]
    """
    return np.asarray((draws[..., 0] >= epsilons[:, None]).any(axis=1))


@lru_cache(maxsize=16)
def _all_allowed(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Never written to, hence shared."""
    return np.ones(shape, np.bool_)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _choose(values: Array, draws: Array, epsilons: Array, masks: Array, chosen: Array) -> None:
    agents, worlds, actions = values.shape
    for n in range(agents):
        for w in range(worlds):
            best, allowed = -1, 0
            for a in range(actions):
                if masks[n, w, a]:
                    allowed += 1
                    if best < 0 or values[n, w, a] > values[n, w, best]:
                        best = a
            if draws[n, w, 0] < epsilons[n]:
                left = int(draws[n, w, 1] * allowed)
                for a in range(actions):
                    if masks[n, w, a]:
                        if left == 0:
                            best = a
                            break
                        left -= 1
            chosen[n, w] = best


def discrete(
    outputs: Array, draws: NDArray[np.float64], sizes: tuple[int, ...], masks: Array | None
) -> tuple[Array, Array]:
    """Draw from softmax policies: outputs (N, W, sum of sizes), draws (N, W, choices).

    Gives (N, W, choices) actions and (N, W) log-probabilities, by the inverse of the distribution function.
    """
    agents, worlds = outputs.shape[:2]
    allowed = _all_allowed(outputs.shape) if masks is None else masks
    chosen = np.empty((agents, worlds, len(sizes)), np.int64)
    log_prob = np.zeros((agents, worlds), np.float32)
    first = 0
    for choice, size in enumerate(sizes):
        part = np.ascontiguousarray(allowed[..., first : first + size])
        if masks is not None and not part.any(axis=-1).all():
            agent, world = np.argwhere(~part.any(axis=-1))[0]
            raise ActionError(
                f"the action mask of agent {agent} in world {world} forbids every action: allow at least one"
            )
        _draw(outputs, draws, part, first, choice, chosen, log_prob)
        first += size
    return chosen, log_prob


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _draw(
    outputs: Array, draws: Array, allowed: Array, first: int, choice: int, chosen: Array, log_prob: Array
) -> None:
    agents, worlds, size = allowed.shape
    for n in range(agents):
        for w in range(worlds):
            top = -np.inf
            for a in range(size):
                if allowed[n, w, a]:
                    top = max(top, outputs[n, w, first + a])
            total = 0.0
            for a in range(size):
                if allowed[n, w, a]:
                    total += np.exp(np.float64(outputs[n, w, first + a]) - top)
            left = draws[n, w, choice] * total
            best = -1
            for a in range(size):
                if allowed[n, w, a]:
                    best = a
                    left -= np.exp(np.float64(outputs[n, w, first + a]) - top)
                    if left < 0.0:
                        break
            chosen[n, w, choice] = best
            log_prob[n, w] += np.float64(outputs[n, w, first + best]) - top - np.log(total)


def greedy(outputs: Array, sizes: tuple[int, ...], masks: Array | None) -> Array:
    """The likeliest of each choice: (N, W, sum of sizes) -> (N, W, choices)."""
    held = outputs if masks is None else np.where(masks, outputs, -np.inf)
    cuts = np.cumsum(sizes)[:-1]
    return np.stack([part.argmax(-1) for part in np.split(held, cuts, axis=-1)], axis=-1)


def gaussian(outputs: Array, draws: NDArray[np.float64]) -> tuple[Array, Array]:
    """Draw from Gaussians before they are squashed: outputs (N, W, 2·A), draws (N, W, 2·A).

    Gives (N, W, A) actions and (N, W) log-probabilities of the squashed actions. Box and Muller 1958.
    """
    mean, log_std = np.split(outputs.astype(np.float64), 2, axis=-1)
    first, second = np.split(draws, 2, axis=-1)
    normal = np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * np.pi * second)
    raw = (mean + np.exp(log_std) * normal).astype(np.float32)
    score = (raw - mean) * np.exp(-log_std)
    pressed = 2.0 * (np.log(2.0) - raw - np.logaddexp(0.0, -2.0 * raw.astype(np.float64)))
    log_prob = (-0.5 * score**2 - log_std - 0.5 * np.log(2.0 * np.pi) - pressed).sum(-1)
    return raw, log_prob.astype(np.float32)


def squash(raw: Array, low: tuple[float, ...], high: tuple[float, ...]) -> Array:
    """(…, A) numbers -> within their bounds.

    >>> squash(np.array([0.0, 50.0]), (-2.0, 0.0), (2.0, 1.0)).tolist()
    [0.0, 1.0]
    """
    below, above = np.asarray(low, np.float32), np.asarray(high, np.float32)
    return np.asarray(below + (above - below) * (0.5 * np.tanh(raw) + 0.5), np.float32)
