"""One step of many worlds: individual users, several slots, rivals that react.

A step of a world is: prices drift; purchases that are due arrive and are credited; auctions are held one after the
other, clicks are charged at once and may schedule purchases; rivals react to their spending and to our bids. The last
step also credits what is still on its way. The kernel runs over a slice of worlds without the interpreter lock. Every
random number has an address (world, epoch, step, auction), so results do not depend on how worlds are divided into
slices, or on their order.

The thread that steps a market computes the first slice; the others are computed by helpers, which wait in compiled
code. So whole epochs in one compiled call have the threads too. The number of a slice is a byte in a pipe: whichever
helper reads it computes the slice and writes the byte into another pipe. Waking a helper this way takes about 15 µs.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Sequence
from threading import Thread
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.errors import RunError
from parallel_agents.core.seeding import uniform
from parallel_agents.core.types import Floats
from parallel_agents.kernels.functions import exp, log
from parallel_agents.market.simulation.auction import (
    FIRST_PRICE,
    STEP_BLOCK,
    Address,
    Words,
    category,
    click_price,
    lower_half,
    next_score,
    quantile,
    random_words,
    rank,
    upper_half,
)
from parallel_agents.market.simulation.journeys import Click, click, deliver, deliver_rest
from parallel_agents.market.simulation.world_arrays import Outcome, Parameters, State

_PACE_GAIN = 0.4
_PACE_ABOVE = 0.5
_LEAST_PACE = -5.298317366548036  # the logarithm of 0.005
_LANE_BITS = np.uint64(21)
_LANE_MASK = np.uint64((1 << 21) - 1)
_LANE_SCALE = 1.0 / (1 << 21)
_JOIN_SECONDS = 10.0
_HELPER_SECONDS = 600.0  # for a slice; a thread that takes longer is gone
_transfer = types.int64(types.int32, types.voidptr, types.int64)
_read, _write = types.ExternalFunction("read", _transfer), types.ExternalFunction("write", _transfer)
_poll = types.ExternalFunction("poll", types.int32(types.voidptr, types.uint64, types.int32))
_getpid = types.ExternalFunction("getpid", types.int32())


class StepInputs(NamedTuple):
    """What a step is computed from, besides the worlds and their state."""

    bids: Floats  # (N, W, J) per click
    creative: NDArray[np.int64]  # (N, W)
    keys: NDArray[np.uint64]  # (2,) of the random numbers
    clock: NDArray[np.int64]  # (2,) epoch, and steps of the episode so far
    rule: int  # an `Attribution`


class MarketArrays(NamedTuple):
    """The worlds of a market, as compiled code reads and writes them; the first five are passed by reference."""

    parameters: Parameters
    state: State
    last: Outcome  # of the last step
    total: Outcome  # of the episode so far
    inputs: StepInputs
    score: Floats  # (N, W) room for the scores before a step
    slices: NDArray[np.int64]  # first world of each slice, then W
    helped: NDArray[np.int64]  # (2,) process that has helpers, 0: none; milliseconds to wait for one
    pipes: NDArray[np.int32]  # (4,) read and write ends: slices to compute, slices that are done
    awaited: NDArray[np.int32]  # (2,) the read end of the slices that are done, as poll(2) takes it
    byte: NDArray[np.uint8]  # (1,) room for the number of a slice


class _Bidders(NamedTuple):
    """Our bidders in one world and step."""

    bids: Floats  # (N, J)
    log_bids: Floats  # (N, J)
    rate: Floats  # (N,) click rate of the chosen creative after its fatigue
    quality: Floats  # (N,) log of that rate, relative to the mean of all creatives


class _Rivals(NamedTuple):
    """The rivals in one world and step."""

    participation: Floats  # (M,)
    level: Floats  # (M, J) mean log bid, with shading, drift and reactions
    spread: Floats  # (M,)
    paced: NDArray[np.bool_]  # (M,) whether the rival paces its spending


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _prepare_bidders(p: Parameters, s: State, x: StepInputs, w: int, out: _Bidders) -> None:
    """Fill in rates, qualities and log bids of world w, and move the mean that rivals react to."""
    mean, bid_sum, bid_count = 0.0, 0.0, 0
    creatives = p.click_rate.shape[1]
    for c in range(creatives):
        mean += p.click_rate[w, c] / creatives
    for n in range(len(out.rate)):
        c = x.creative[n, w]
        rate = p.click_rate[w, c] * exp(-p.fatigue[w] * s.shown[n, w, c])
        out.rate[n] = rate
        out.quality[n] = log(rate / mean) if rate > 0.0 else -math.inf
        for j in range(out.bids.shape[1]):
            bid = x.bids[n, w, j]
            out.bids[n, j] = bid
            out.log_bids[n, j] = log(bid) if bid > 0.0 else -math.inf
            if bid > 0.0:
                s.alpha[n, w, j] = out.log_bids[n, j] - log(p.predicted_value[w, j])
                bid_sum += out.log_bids[n, j] - p.usual_bid[w, j]
                bid_count += 1
    if bid_count > 0:
        s.recent_bid[w] += (bid_sum / bid_count - s.recent_bid[w]) * p.hours_per_step[w] / 24.0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _prepare_rivals(p: Parameters, s: State, w: int, t: int, out: _Rivals) -> None:
    """Fill in the rivals' mean log bids in world w, and which of them pace their spending."""
    for m in range(len(out.paced)):
        out.participation[m] = p.participation[w, m]
        out.spread[m] = p.spread[w, m]
        out.paced[m] = p.pacing[w, m, 0] > 0.0 or p.pacing[w, m, 1] > 0.0 or p.pacing[w, m, 2] > 0.0
        for j in range(out.level.shape[1]):
            shade = p.shade[w, m] if p.mechanism[w, j] == FIRST_PRICE else 0.0
            out.level[m, j] = p.level[w, m, j] + shade + p.hour_price[w, t, j] + s.drift[w] + s.shift[w, m]


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _draw_rival_scores(
    scores: Floats, r: _Rivals, normal: Floats, j: int, words: Words, address: Address, block: np.uint64
) -> None:
    """Write the rivals' log bids to the end of `scores`; one number decides whether a rival enters and what it bids.

    A word gives three numbers of 21 bits. The first six rivals use the two words that are left of the auction's own
    draw, `words[2:]`; further ones use the blocks from `block` on.
    """
    bidders = len(scores) - len(r.participation)
    word = words[2]
    for m in range(len(r.participation)):
        if m == 3:
            word = words[3]
        elif m >= 6 and m % 3 == 0:
            more = random_words(address, block + np.uint64((m - 6) // 12))
            word = more[((m - 6) % 12) // 3]
        u = (word & _LANE_MASK) * _LANE_SCALE
        word >>= _LANE_BITS
        if u < r.participation[m]:
            scores[bidders + m] = r.level[m, j] + r.spread[m] * quantile(normal, u / r.participation[m])
        else:
            scores[bidders + m] = -math.inf


@compiled_once(allocates=True)
def step_worlds(p: Parameters, s: State, o: Outcome, x: StepInputs, low: int, high: int) -> None:
    """Compute a step of worlds low … high − 1 and add its results to `o`.

    One long function with local names for the arrays of a world: within the loop over auctions, reading an array out of
    a tuple costs as much as the arithmetic.
    """
    bidders, _, campaigns = x.bids.shape
    rivals = p.participation.shape[1]
    scores, order = np.empty(bidders + rivals), np.empty(bidders + rivals, np.int64)
    bids, log_bids, rate, quality = (
        np.empty((bidders, campaigns)), np.empty((bidders, campaigns)), np.empty(bidders), np.empty(bidders),
    )  # fmt: skip
    paced = np.empty(rivals, np.bool_)
    ours = _Bidders(bids, log_bids, rate, quality)
    theirs = _Rivals(np.empty(rivals), np.empty((rivals, campaigns)), np.empty(rivals), paced)
    blocks = 2 + (max(rivals - 6, 0) + 11) // 12  # of random words in an auction
    t, normal, budget, spent = x.clock[1], p.normal, p.budget, s.spent
    for w in range(low, high):
        address = Address(x.keys[0], x.keys[1], np.uint64(t), np.uint64(x.clock[0]), p.world[w])
        words = random_words(address, STEP_BLOCK)
        s.drift[w] += p.volatility[w] * quantile(normal, uniform(words[0]))
        if s.head[w, t] >= 0:
            deliver(p, s, o, w, t, x.rule)
        _prepare_bidders(p, s, x, w, ours)
        _prepare_rivals(p, s, w, t, theirs)
        segment_edge, segment_first, campaign_edge = p.segment_edge[w], p.segment_first[w], p.campaign_edge[w]
        mechanism, slots, reserve, position = p.mechanism[w], p.slots[w], p.reserve[w], p.position[w]
        auctions, impressions, shown, chosen = o.auctions[w], o.impressions[:, w], s.shown[:, w], x.creative[:, w]
        first, crisis, step_spend, crisis_auctions = p.first[w], p.crisis[w], s.step_spend[w], 0
        segment_factor, held = p.segment_factor[w], int(p.auctions[w, t] + uniform(words[1]))
        for a in range(held):
            # the user (a segment by its activity, then anyone of it) and the campaign
            block = np.uint64(a * blocks)
            words = random_words(address, block)
            u = uniform(words[0])
            k = category(segment_edge, u)
            below = segment_edge[k - 1] if k > 0 else 0.0
            within, size = (u - below) / (segment_edge[k] - below), segment_first[k + 1] - segment_first[k]
            user = first + segment_first[k] + min(int(within * size), size - 1)  # `within` can round up to 1
            j, u = 0, lower_half(words[1])
            while j < campaigns - 1 and u >= campaign_edge[k, j]:
                j += 1
            auctions[j] += 1.0
            crisis_auctions += k == crisis

            # the bids; nobody bids more than is left of the budget
            for n in range(bidders):
                scores[n] = log_bids[n, j] + quality[n]
                left = budget[w] - spent[n, w]
                if bids[n, j] > left:
                    scores[n] = log(left) + quality[n] if left > 0.0 else -math.inf
            _draw_rival_scores(scores, theirs, normal, j, words, address, block + np.uint64(2))
            entrants = rank(scores, order, reserve[j])

            # the ads shown; at most one of them is clicked
            clicked, passed, u = -1, 0.0, upper_half(words[1])
            for place in range(min(entrants, slots[j], len(position))):
                n = order[place]
                if n >= bidders:
                    if paced[n - bidders]:
                        step_spend[n - bidders] += exp(scores[n])
                    continue
                impressions[n, j] += 1.0
                shown[n, chosen[n]] += 1.0
                passed += rate[n] * position[place] * segment_factor[k, chosen[n]]
                if clicked < 0 and u < passed:
                    clicked = place
            if clicked < 0:
                continue

            # the price of the click, and what follows from it
            n = order[clicked]
            bid = min(bids[n, j], budget[w] - spent[n, w])
            to_beat = next_score(scores, order[:entrants], clicked, reserve[j])
            price = click_price(mechanism[j], bid, quality[n], to_beat)
            spent[n, w] += price
            o.cost[n, w, j] += price
            o.clicks[n, w, j] += 1.0
            s.clicked[n, w, chosen[n]] += 1.0
            click_words = random_words(address, block + np.uint64(1))
            click(
                p,
                s,
                o,
                Click(w, user, n, j, t, uniform(click_words[0]), uniform(click_words[1]), uniform(click_words[2])),
                x.rule,
            )
        o.crisis_auctions[w] += crisis_auctions
        _react(p, s, w, held)
        _pace(p, s, o, w, t)
        if t + 1 == p.auctions.shape[1]:
            deliver_rest(p, s, o, w, x.rule)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _pace(p: Parameters, s: State, o: Outcome, w: int, t: int) -> None:
    """Move every bidder's pace by the log of what should have been spent over what was.

    It never gets far above what was bid, so that it is of use again as soon as a bidder follows it.
    """
    share = p.auctions[w, t] / p.auctions[w, t:].sum()
    for n in range(len(s.spent)):
        cost = o.cost[n, w].sum()
        due = max((p.budget[w] - s.spent[n, w] + cost) * share, 1e-9)
        error = log(1.2 * due / (cost + 0.2 * due))
        pace = s.pace[n, w] + _PACE_GAIN * min(max(error, -1.0), 1.0)
        s.pace[n, w] = max(min(pace, s.alpha[n, w].mean() + _PACE_ABOVE), _LEAST_PACE)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _react(p: Parameters, s: State, w: int, held: int) -> None:
    """Let the rivals of a world react: to our bids, and by PID control to what they spend per auction.

    Responses and gains were measured from day to day, so both are applied to exponential means over a day.
    """
    if held == 0:
        return
    before = s.held[w]
    s.held[w] += held
    day = p.hours_per_step[w] / 24.0
    for m in range(p.participation.shape[1]):
        spend = s.step_spend[w, m] / held
        s.step_spend[w, m] = 0.0
        s.recent_spend[w, m] = spend if before == 0.0 else s.recent_spend[w, m] + day * (spend - s.recent_spend[w, m])
        s.mean_spend[w, m] += (spend - s.mean_spend[w, m]) * held / s.held[w]
        error = 1.0 - s.recent_spend[w, m] / s.mean_spend[w, m] if s.mean_spend[w, m] > 0.0 else 0.0
        s.total_error[w, m] += error * day
        pid = p.pacing[w, m, 0] * error + p.pacing[w, m, 1] * s.total_error[w, m]
        pid += p.pacing[w, m, 2] * (error - s.last_error[w, m]) / day
        s.last_error[w, m] = error
        s.shift[w, m] = p.response[w, m] * s.recent_bid[w] + pid


# -- all worlds, in several threads --------------------------------------------------------------------------------


@compiled_once
def step_all(market: MarketArrays) -> None:
    """Compute a step of every world, and add its results to those of the episode.

    Threads do not survive a fork: a process that did not start the helpers computes all slices itself.
    """
    last, total, slices, pipes, byte = market.last.every, market.total.every, market.slices, market.pipes, market.byte
    for i in range(len(last)):
        last[i] = 0.0
    helpers = len(slices) - 2 if market.helped[0] > 0 and market.helped[0] == _getpid() else 0
    for k in range(1, helpers + 1):
        byte[0] = k
        _write(pipes[1], byte.ctypes, 1)
    end = slices[1] if helpers else slices[-1]
    step_worlds(market.parameters, market.state, market.last, market.inputs, slices[0], end)
    for _ in range(helpers):
        received = 0
        while received != 1:
            ready = _poll(market.awaited.ctypes, 1, market.helped[1])
            if ready == 0:
                raise RunError("a thread of the market did not answer: close the market and make it again")
            if ready > 0:  # else a signal has interrupted it
                received = _read(pipes[2], byte.ctypes, 1)
    for i in range(len(last)):
        total[i] += last[i]
    market.inputs.clock[1] += 1


@compiled_once
def _help(market: MarketArrays, byte: NDArray[np.uint8]) -> None:
    """Compute slices until the pipe is closed."""
    slices, pipes = market.slices, market.pipes
    while True:
        received = _read(pipes[0], byte.ctypes, 1)
        if received == 0:
            return
        if received == 1:
            low, high = slices[byte[0]], slices[byte[0] + 1]
            step_worlds(market.parameters, market.state, market.last, market.inputs, low, high)
            _write(pipes[3], byte.ctypes, 1)


def start_helpers(owner: object, market: MarketArrays) -> Callable[[], None]:
    """Start a thread for each slice but the first; return a function that ends them, called when `owner` is gone."""
    market.pipes[:] = *os.pipe(), *os.pipe()
    market.helped[:] = os.getpid(), 1000 * _HELPER_SECONDS
    readable = np.array([(market.pipes[2], 1, 0)], [("end", "i4"), ("events", "i2"), ("found", "i2")])
    market.awaited[:] = readable.view(np.int32)
    helpers = [
        Thread(target=_help, args=(market, np.zeros(1, np.uint8)), name="market", daemon=True)
        for _ in market.slices[2:]
    ]
    for helper in helpers:
        helper.start()
    return weakref.finalize(owner, _stop, market.helped, market.pipes.tolist(), helpers)


def _stop(helped: NDArray[np.int64], pipes: Sequence[int], helpers: Sequence[Thread]) -> None:
    """Close the pipe that helpers read from, wait for them, and close the rest."""
    helped[0] = 0
    os.close(pipes[1])
    for helper in helpers:
        helper.join(_JOIN_SECONDS)
    for end in (pipes[0], *pipes[2:]):
        os.close(end)
