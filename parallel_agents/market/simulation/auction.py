"""The parts of an auction: random numbers from addressed words, ranking, and the price of a click.

Scores are logarithms of bid × quality. In a first-price auction a click costs the bid itself. In second-price and GSP
auctions it costs the lowest bid that keeps the place: the next score, or the reserve, divided by the bidder's quality.

>>> import numpy as np
>>> scores, order = np.log(np.array([2.0, 5.0, 1.0, 3.0])), np.empty(4, np.int64)
>>> entrants = rank(scores, order, np.log(1.5))
>>> entrants, order[:3].tolist()
(3, [1, 3, 0])
>>> round(click_price(GSP, 5.0, 0.0, next_score(scores, order[:entrants], 0, np.log(1.5))), 6)
3.0
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import njit
from parallel_agents.core.seeding import draw
from parallel_agents.core.types import Floats
from parallel_agents.kernels.functions import exp

Words = tuple[np.uint64, np.uint64, np.uint64, np.uint64]

FIRST_PRICE, SECOND_PRICE, GSP = 0, 1, 2  # as in worlds.MECHANISMS
STEP_BLOCK = np.uint64(1 << 62)  # the block of random words of a step as a whole, apart from those of its auctions
_LOW_BITS = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_HALF_WORD_SCALE = 1.0 / 4294967296.0


class Address(NamedTuple):
    """Where the random words of one world and step are found; a block number completes it."""

    key0: np.uint64
    key1: np.uint64
    step: np.uint64
    epoch: np.uint64
    world: np.uint64


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def random_words(address: Address, block: np.uint64) -> Words:
    """Return the four random words of a block."""
    return draw(address.key0, address.key1, block, address.step, address.epoch, address.world)  # type: ignore[no-any-return]


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def upper_half(word: np.uint64) -> float:
    """Return the upper half of a word as a number in [0, 1)."""
    return (word >> _HALF) * _HALF_WORD_SCALE


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def lower_half(word: np.uint64) -> float:
    """Return the lower half of a word as a number in [0, 1)."""
    return (word & _LOW_BITS) * _HALF_WORD_SCALE


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def quantile(table: Floats, u: float) -> float:
    """Return the normal quantile of u in [0, 1), interpolated in `Parameters.normal`."""
    place = u * (len(table) - 1)
    cell = int(place)
    return float(table[cell] + (place - cell) * (table[cell + 1] - table[cell]))


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def category(edges: Floats, u: float) -> int:
    """Return the first category whose cumulative probability exceeds u."""
    last = len(edges) - 1
    for i in range(last):
        if u < edges[i]:
            return i
    return last


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def rank(scores: Floats, order: NDArray[np.int64], reserve: float) -> int:
    """Write those at or above the log reserve into `order`, best first, ties by position; return how many there are."""
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


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def next_score(scores: Floats, ranked: NDArray[np.int64], place: int, reserve: float) -> float:
    """Return the score that the bidder at `place` has to beat: that of the next one, at least the log reserve."""
    return max(scores[ranked[place + 1]], reserve) if place + 1 < len(ranked) else reserve


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def click_price(mechanism: int, bid: float, quality: float, score_to_beat: float) -> float:
    """Return what a click costs, never more than the bid; `quality` and `score_to_beat` are logarithms."""
    if mechanism == FIRST_PRICE:
        return bid
    return float(min(bid, exp(score_to_beat - quality)))
