"""Values that change with a count of updates or epochs, and with nothing else: not the clock, not a run's length."""

from __future__ import annotations

import math

__all__ = ["SHAPES", "scheduled"]

SHAPES = ("linear", "exponential", "cosine")
"""How a value goes from its start to its end; a constant is one whose span is 0."""


def scheduled(shape: int, start: float, final: float, count: float, span: float) -> float:
    """The value after `count` of `span` steps, `shape` an index into `SHAPES`; constant where the span is 0.

    exponential: by the same factor each step, so both ends must be above 0. cosine: slowly, quickly, slowly
    (Loshchilov and Hutter 2017).

    >>> [round(scheduled(shape, 1.0, 0.01, 5, 10), 3) for shape in range(3)]
    [0.505, 0.1, 0.505]
    """
    if span <= 0:
        return start
    share = min(1.0, count / span)
    if share == 1.0:
        return final
    match SHAPES[shape]:
        case "exponential":
            return start * math.exp(share * math.log(final / start))
        case "cosine":
            return final + 0.5 * (start - final) * (1.0 + math.cos(math.pi * share))
    return start + (final - start) * share
