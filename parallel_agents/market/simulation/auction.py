"""One auction: who ranks where, and what a click costs.

Scores are logarithms of bid × quality. First price pays the own bid; second price and GSP pay the least bid that
keeps the place: the next score below, or the reserve, over the own quality.

>>> import numpy as np
>>> scores, order = np.log(np.array([2.0, 5.0, 1.0, 3.0])), np.empty(4, np.int64)
>>> entrants = rank(scores, order, np.log(1.5))
>>> entrants, order[:3].tolist()
(3, [1, 3, 0])
>>> round(click_price(GSP, 0, order, scores, entrants, np.log(1.5), 5.0, 0.0), 6)
3.0
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit

__all__ = ["FIRST_PRICE", "GSP", "SECOND_PRICE", "click_price", "rank"]

FIRST_PRICE, SECOND_PRICE, GSP = 0, 1, 2  # as in worlds.MECHANISMS


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def rank(scores: NDArray[np.float64], order: NDArray[np.int64], reserve: float) -> int:
    """Bidders at or above the log reserve, best first, into `order`; returns how many. Ties go to the first."""
    entrants = 0
    for i in range(len(scores)):
        score = scores[i]
        if score < reserve or score == -math.inf:
            continue
        place = entrants
        while place > 0 and scores[order[place - 1]] < score:
            order[place] = order[place - 1]
            place -= 1
        order[place] = i
        entrants += 1
    return entrants


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def click_price(
    mechanism: int,
    place: int,
    order: NDArray[np.int64],
    scores: NDArray[np.float64],
    entrants: int,
    reserve: float,
    bid: float,
    quality: float,
) -> float:
    """What a click costs the bidder at `place`, never more than its bid; `quality` and `reserve` are logarithms."""
    if mechanism == FIRST_PRICE:
        return bid
    below = scores[order[place + 1]] if place + 1 < entrants else reserve
    return min(bid, math.exp(max(below, reserve) - quality))
