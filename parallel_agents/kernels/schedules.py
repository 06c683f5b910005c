"""Rules of a round that compiled kernels and torch share: schedules, target updates, sizes of joined batches."""

from __future__ import annotations

import numpy as np

from parallel_agents.core.compiled import njit
from parallel_agents.kernels.functions import cospi, exp, log

SCHEDULES = ("linear", "exponential", "cosine")
"""How a value goes from its start to its end; a span of 0 means that it is constant."""
NOISE_DECAY = 0.9
"""Weight of the earlier estimate of the gradient noise against one new estimate."""


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def scheduled(schedule: int, start: float, final: float, count: float, span: float) -> float:
    """Return the value after `count` of `span` steps; `schedule` is an index into `SCHEDULES`.

    It depends on nothing but the count: not on the clock, not on the length of the run. exponential: by the same
    factor each step, so both ends must be above 0. cosine: Loshchilov and Hutter 2017.

    >>> [round(scheduled(schedule, 1.0, 0.01, 5.0, 10.0), 3) for schedule in range(3)]
    [0.505, 0.1, 0.505]
    """
    if span <= 0.0:
        return start
    share = min(1.0, count / span)
    if share == 1.0:
        return final
    if schedule == 1:
        return start * exp(share * log(final / start))
    if schedule == 2:
        return final + 0.5 * (start - final) * (1.0 + cospi(share))
    return start + (final - start) * share


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def target_share(updates: int, tau: float, interval: float) -> float:
    """Return the share of the online weights in the new target weights after so many updates.

    interval: updates between two whole copies; 0: soft updates by `tau`.
    """
    if interval > 0.0:
        return 1.0 if updates % int(interval) == 0 else 0.0
    return tau


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def noise_scale(small: float, large: float, batch: int, joined: int) -> tuple[float, float]:
    """Return unbiased noise and signal of a gradient from mean squared norms of one batch and of `joined` batches."""
    count = float(max(joined, 2))
    noise = (small - large) / (1.0 / batch - 1.0 / (batch * count))
    signal = (count * large - small) / (count - 1.0)
    return noise, signal


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def joined_batches(noise: float, signal: float, batch: int, most: float) -> int:
    """Return how many batches a step should join: a power of 2 near the noise scale, from 2 to `most`."""
    if most <= 1.0:
        return 1
    samples = noise / signal if signal > 0.0 else np.inf
    ratio = min(max(samples / batch, 1.0), 1e9)
    wanted = 1 << int(np.rint(log(ratio) / log(2.0)))
    return int(min(max(float(wanted), 2.0), most))
