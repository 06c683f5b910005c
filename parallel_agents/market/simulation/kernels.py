"""The full simulation of one step: a serial kernel over a slice of worlds, without the interpreter lock.

Every draw has an address (world, epoch, step, auction), so results do not depend on how worlds are sliced or in which
order slices run. A step is: prices drift; purchases that are due arrive and are credited; auctions are held one after
the other, clicks charged at once, purchases set on their way; once a day rivals look at their spending and at our bids.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.market.simulation.arrays import TOUCHES, Outcome, Parameters, State
from parallel_agents.market.simulation.auction import FIRST_PRICE, click_price, rank
from parallel_agents.market.simulation.draws import category, lower, quantile, upper
from parallel_agents.market.simulation.journeys import click, deliver
from parallel_agents.seeding import draw, uniform

__all__ = ["clear", "play"]

Floats = NDArray[np.float64]

_LANE_BITS = np.uint64(21)
_LANE = np.uint64((1 << 21) - 1)
_PER_LANE = 1.0 / (1 << 21)
_OPENING = np.uint64(1 << 62)  # the block of draws that belong to the step, not to one of its auctions


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def clear(s: State) -> None:
    """Bring all worlds back to their beginning."""
    for array in (s.spent, s.shift, s.day_spend, s.mean_spend, s.total_error, s.last_error, s.day_bid):
        array[:] = 0.0
    s.shown[:] = 0.0
    s.drift[:] = 0.0
    s.days[:] = 0
    s.visits[:] = 0
    s.touches[:] = 0
    s.due[:] = -1
    s.after[:] = -1
    s.before[:] = -1
    s.head[:] = -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _react(p: Parameters, s: State, w: int) -> None:
    """At the end of a day rivals answer our bids and pace their own spending towards its running mean (PID)."""
    s.days[w] += 1
    ours = s.day_bid[w, 0] / s.day_bid[w, 1] if s.day_bid[w, 1] > 0.0 else 0.0
    s.day_bid[w] = 0.0
    for m in range(p.participation.shape[1]):
        s.mean_spend[w, m] += (s.day_spend[w, m] - s.mean_spend[w, m]) / s.days[w]
        error = 1.0 - s.day_spend[w, m] / s.mean_spend[w, m] if s.mean_spend[w, m] > 0.0 else 0.0
        s.total_error[w, m] += error
        pid = p.pacing[w, m, 0] * error + p.pacing[w, m, 1] * s.total_error[w, m]
        pid += p.pacing[w, m, 2] * (error - s.last_error[w, m])
        s.last_error[w, m] = error
        s.day_spend[w, m] = 0.0
        s.shift[w, m] = p.response[w, m] * ours + pid


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _offers(
    quality: Floats,
    rate: Floats,
    log_bids: Floats,
    bids: Floats,
    chosen: NDArray[np.int64],
    click_rate: Floats,
    wear: float,
    shown: Floats,
    usual_bid: Floats,
    day_bid: Floats,
) -> None:
    """What our bidders bring to this step: click rate of the chosen creative as worn, log quality, log bids."""
    mean = 0.0
    for c in range(len(click_rate)):
        mean += click_rate[c] / len(click_rate)
    for n in range(len(quality)):
        c = chosen[n]
        rate[n] = click_rate[c] * math.exp(-wear * shown[n, c])
        quality[n] = math.log(rate[n] / mean) if rate[n] > 0.0 else -math.inf
        for j in range(len(usual_bid)):
            log_bids[n, j] = math.log(bids[n, j]) if bids[n, j] > 0.0 else -math.inf
            if bids[n, j] > 0.0:
                day_bid[0] += log_bids[n, j] - usual_bid[j]
                day_bid[1] += 1.0


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _pace(
    enters: NDArray[np.bool_],
    pacing: Floats,
    k0: np.uint64,
    k1: np.uint64,
    block: np.uint64,
    turn: np.uint64,
    epoch: np.uint64,
    world: np.uint64,
) -> None:
    """Which bidders take part in this auction, each with its own chance."""
    for n in range(len(enters)):
        if n % 8 == 0:
            words = draw(k0, k1, block + np.uint64(n // 8), turn, epoch, world)
        word = words[(n % 8) // 2]
        u = lower(word) if n % 2 == 0 else upper(word)
        enters[n] = u < pacing[n]


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _rival_scores(
    scores: Floats,
    ours: int,
    participation: Floats,
    level: Floats,
    spread: Floats,
    normal: Floats,
    j: int,
    third: np.uint64,
    fourth: np.uint64,
    k0: np.uint64,
    k1: np.uint64,
    block: np.uint64,
    turn: np.uint64,
    epoch: np.uint64,
    world: np.uint64,
) -> None:
    """Log bids of the rivals behind our own; one lane decides both whether a rival enters and how high it bids.

    A word has three lanes of 21 bits. The first six rivals use what is left of the auction's own draw.
    """
    word = third
    for m in range(len(participation)):
        if m == 3:
            word = fourth
        elif m >= 6 and m % 3 == 0:
            words = draw(k0, k1, block + np.uint64((m - 6) // 12), turn, epoch, world)
            word = words[((m - 6) % 12) // 3]
        u = (word & _LANE) * _PER_LANE
        word >>= _LANE_BITS
        if u < participation[m]:
            scores[ours + m] = level[m, j] + spread[m] * quantile(normal, u / participation[m])
        else:
            scores[ours + m] = -math.inf


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _levels(
    level: Floats,
    paced: NDArray[np.bool_],
    base: Floats,
    shade: Floats,
    shift: Floats,
    gains: Floats,
    drift: float,
    mechanism: NDArray[np.int64],
) -> None:
    """Mean log bids (M, J) of this step: shading, drift and reactions included; and which rivals pace their spend."""
    rivals, campaigns = level.shape
    for m in range(rivals):
        paced[m] = gains[m, 0] > 0.0 or gains[m, 1] > 0.0 or gains[m, 2] > 0.0
        for j in range(campaigns):
            discount = shade[m] if mechanism[j] == FIRST_PRICE else 0.0
            level[m, j] = base[m, j] + discount + drift + shift[m]


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def play(
    p: Parameters,
    s: State,
    o: Outcome,
    bids: Floats,
    creative: NDArray[np.int64],
    pacing: Floats,
    keys: NDArray[np.uint64],
    epoch: int,
    t: int,
    rule: int,
    low: int,
    high: int,
) -> None:
    """Step t of worlds low … high − 1. bids (N, W, J) per click, creative (N, W), pacing (N, W) in [0, 1].

    One long function, since within the loop reaching into a tuple of arrays would cost more than an auction does.
    """
    bidders, _, campaigns = bids.shape
    rivals = p.participation.shape[1]
    scores, order = np.empty(bidders + rivals), np.empty(bidders + rivals, np.int64)
    quality, rate, enters = np.empty(bidders), np.empty(bidders), np.ones(bidders, np.bool_)
    log_bids, shares = np.empty((bidders, campaigns)), np.empty(TOUCHES)
    level, paced = np.empty((rivals, campaigns)), np.empty(rivals, np.bool_)
    rival_blocks = (max(rivals - 6, 0) + 11) // 12
    blocks = 2 + rival_blocks + (bidders + 7) // 8
    k0, k1, e, turn = keys[0], keys[1], np.uint64(epoch), np.uint64(t)
    normal, budget, spent = p.normal, p.budget, s.spent
    for w in range(low, high):
        world, crisis, first = p.world[w], p.crisis[w], p.first[w]
        opening = draw(k0, k1, _OPENING, turn, e, world)
        s.drift[w] += p.volatility[w] * quantile(normal, uniform(opening[0]))
        if s.head[w, t] >= 0:
            deliver(p, s, o, w, t, rule, shares)
        segment_edge, segment_first, campaign_edge = p.segment_edge[w], p.segment_first[w], p.campaign_edge[w]
        participation, spread, day_spend = p.participation[w], p.spread[w], s.day_spend[w]
        mechanism, slots, reserve, position = p.mechanism[w], p.slots[w], p.reserve[w], p.position[w]
        auctions, impressions, shown = o.auctions[w], o.impressions[:, w], s.shown[:, w]
        offered, chosen, share = bids[:, w], creative[:, w], pacing[:, w]
        throttled, enters[:] = share.min() < 1.0, True
        wear, usual_bid, day_bid = p.fatigue[w], p.usual_bid[w], s.day_bid[w]
        _offers(quality, rate, log_bids, offered, chosen, p.click_rate[w], wear, shown, usual_bid, day_bid)
        _levels(level, paced, p.level[w], p.shade[w], s.shift[w], p.pacing[w], s.drift[w], mechanism)
        crisis_auctions = 0
        for a in range(int(p.auctions[w, t] + uniform(opening[1]))):
            # who comes, and where: a segment by its activity, then anyone of it
            block = np.uint64(a * blocks)
            one = draw(k0, k1, block, turn, e, world)
            u = uniform(one[0])
            k = category(segment_edge, u)
            below = segment_edge[k - 1] if k > 0 else 0.0
            within, size = (u - below) / (segment_edge[k] - below), segment_first[k + 1] - segment_first[k]
            user = first + segment_first[k] + min(int(within * size), size - 1)  # `within` may round up to one
            j, u = 0, lower(one[1])
            while j < campaigns - 1 and u >= campaign_edge[k, j]:
                j += 1
            auctions[j] += 1.0
            crisis_auctions += k == crisis

            # who bids what; nobody more than is left
            if throttled:
                _pace(enters, share, k0, k1, block + np.uint64(2 + rival_blocks), turn, e, world)
            for n in range(bidders):
                scores[n] = log_bids[n, j] + quality[n] if enters[n] else -math.inf
                left = budget[w] - spent[n, w]
                if enters[n] and offered[n, j] > left:
                    scores[n] = math.log(left) + quality[n] if left > 0.0 else -math.inf
            more = block + np.uint64(2)
            _rival_scores(
                scores, bidders, participation, level, spread, normal, j, one[2], one[3], k0, k1, more, turn, e, world
            )
            entrants = rank(scores, order, reserve[j])

            # what is shown; at most one ad of the page is clicked
            clicked, passed, u = -1, 0.0, upper(one[1])
            for place in range(min(entrants, slots[j], len(position))):
                n = order[place]
                if n >= bidders:
                    if paced[n - bidders]:
                        day_spend[n - bidders] += math.exp(scores[n])
                    continue
                impressions[n, j] += 1.0
                shown[n, chosen[n]] += 1.0
                passed += rate[n] * position[place]
                if clicked < 0 and u < passed:
                    clicked = place
            if clicked < 0:
                continue

            # what a click costs and leads to
            n = order[clicked]
            bid = min(offered[n, j], budget[w] - spent[n, w])
            price = click_price(mechanism[j], clicked, order, scores, entrants, reserve[j], bid, quality[n])
            spent[n, w] += price
            o.cost[n, w, j] += price
            o.clicks[n, w, j] += 1.0
            four = draw(k0, k1, block + np.uint64(1), turn, e, world)
            fate = (uniform(four[0]), uniform(four[1]), uniform(four[2]))
            click(p, s, o, w, user, j, n * campaigns + j, t, fate, rule, shares)
        o.crisis_auctions[w] += crisis_auctions
        if (t + 1) % p.day_steps[w] == 0:
            _react(p, s, w)
