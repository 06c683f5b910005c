"""The fast simulation: one slot, no individual users; the price to beat comes from a table per world and campaign.

The table is the inverse distribution function of the highest rival bid, computed from the same rivals as in the full
simulation. Each bidder alone faces the market. An auction costs 16 random bits, for the price; how many won auctions
pass until the next click is one geometric draw, so only a click draws more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.market.discovery.estimates import normal_cdf
from parallel_agents.market.simulation.arrays import Outcome, Parameters, State
from parallel_agents.market.simulation.auction import FIRST_PRICE
from parallel_agents.market.simulation.draws import category, lower, quantile, upper
from parallel_agents.seeding import draw, uniform

__all__ = ["Prices", "empty_calendar", "play_fast", "price_table"]

Floats = NDArray[np.float64]

_POINTS = 256
_LANES = 16  # auctions per block of draws
_MASK = np.uint64(0xFFFF)
_CLICKS = np.uint64(1 << 40)  # blocks of draws for clicks, beyond those of auctions
_OPENING = np.uint64(1 << 62)


class Prices(NamedTuple):
    """Per world, campaign and share of auctions: the price to beat; the cells of a campaign and segment."""

    table: NDArray[np.float32]  # (W, J, points + 1)
    campaign_share: Floats  # (W, J)
    segment_edge: Floats  # (W, J, K) cumulative, of the users found in the campaign
    device_edge: Floats  # (W, K, D) cumulative
    visit_factor: Floats  # (W,) mean
    most: Floats  # (W,) no click converts more surely than this


def price_table(p: Parameters) -> Prices:
    """Invert the distribution of the highest rival bid on a grid; below the reserve the reserve is to be beaten."""
    worlds, campaigns = p.mechanism.shape
    grid = np.linspace(0.0, 1.0, _POINTS + 1)
    grid[-1] = 1.0 - 0.25 / _POINTS
    table = np.empty((worlds, campaigns, _POINTS + 1), np.float32)
    for w in range(worlds):
        for j in range(campaigns):
            shade = p.shade[w] if p.mechanism[w, j] == FIRST_PRICE else 0.0
            level = p.level[w, :, j] + shade
            low = float((level - 5.0 * p.spread[w]).min())
            high = float((level + 5.0 * p.spread[w]).max())
            x = np.linspace(low, high, 400)
            below = np.prod(1.0 - p.participation[w] * (1.0 - normal_cdf((x[:, None] - level) / p.spread[w])), axis=1)
            table[w, j] = np.exp(np.interp(grid, below, x, left=p.reserve[w, j]))
    table = np.maximum(table, np.exp(p.reserve)[:, :, None].astype(np.float32))
    busy = np.diff(p.segment_edge, axis=1, prepend=0.0)
    mix = np.diff(p.campaign_edge, axis=2, prepend=0.0) * busy[:, :, None]
    share = mix.sum(axis=1)
    edges = np.cumsum(mix, axis=1) / np.maximum(share[:, None], 1e-300)
    visits = p.visit_factor.mean(axis=1)
    most = p.base.max(axis=1) * p.channel_factor.max(axis=1) * p.device_factor.max(axis=1) * visits
    return Prices(table, share, np.ascontiguousarray(edges.transpose(0, 2, 1)), _devices(p), visits, most)


def _devices(p: Parameters) -> Floats:
    """Cumulative shares of devices by segment (W, K, D), as the population has them."""
    worlds, segments = p.segment_edge.shape
    devices = p.device_factor.shape[1]
    counts = np.zeros((worlds, segments, devices))
    world = np.repeat(np.arange(worlds), np.diff(p.first))
    np.add.at(counts, (world, p.user_segment, p.user_device), 1.0)
    return np.asarray(np.cumsum(counts, axis=2) / np.maximum(counts.sum(axis=2, keepdims=True), 1.0))


def empty_calendar(p: Parameters, bidders: int) -> Floats:
    """Purchases due (N, W, T, J, 3): number, value, and value from crisis parents."""
    return np.zeros((bidders, *p.auctions.shape, p.mechanism.shape[1], 3))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def play_fast(
    p: Parameters,
    q: Prices,
    s: State,
    o: Outcome,
    calendar: Floats,
    bids: Floats,
    creative: NDArray[np.int64],
    pacing: Floats,
    keys: NDArray[np.uint64],
    epoch: int,
    t: int,
    low: int,
    high: int,
) -> None:
    """Step t of worlds low … high − 1; arguments as in the full simulation."""
    bidders, _, campaigns = bids.shape
    e, turn, k0, k1 = np.uint64(epoch), np.uint64(t), keys[0], keys[1]
    spent, total_cost, total_clicks = s.spent, o.cost, o.clicks
    for w in range(low, high):
        world, budget = p.world[w], p.budget[w]
        opening = draw(k0, k1, _OPENING, turn, e, world)
        s.drift[w] += p.volatility[w] * quantile(p.normal, uniform(opening[0]))
        spare, mean, market = uniform(opening[1]), p.click_rate[w].mean(), math.exp(s.drift[w])
        for j in range(campaigns):
            held = int(p.auctions[w, t] * q.campaign_share[w, j] + spare)
            o.auctions[w, j] += held
            table, floor, first = q.table[w, j], math.exp(p.reserve[w, j]), p.mechanism[w, j] == FIRST_PRICE
            for n in range(bidders):
                c, bid = creative[n, w], bids[n, w, j]
                rate = p.click_rate[w, c] * math.exp(-p.fatigue[w] * s.shown[n, w, c])
                count = int(held * pacing[n, w] + spare)
                if bid <= 0.0 or rate <= 0.0 or count == 0:
                    continue
                quality = rate / mean  # a price of the market is worth price / quality to this bidder
                rare = math.log1p(-min(rate * p.position[w, 0], 0.999999))
                base = np.uint64((n * campaigns + j) << 28)
                limit = min(bid, budget - spent[n, w])
                edge = _winning(table, limit * quality / market)
                four = draw(k0, k1, _CLICKS + base, turn, e, world)
                clicks, won, following = 0, 0, _skip(lower(four[3]), rare)
                for start in range(0, count, _LANES):
                    words = draw(k0, k1, base + np.uint64(start // _LANES), turn, e, world)
                    lanes = min(_LANES, count - start)
                    if lanes == _LANES:
                        wins = _below(words[0], edge) + _below(words[1], edge) + _below(words[2], edge)
                        wins += _below(words[3], edge)
                        if won + wins <= following:
                            won += wins
                            continue
                    for i in range(lanes):
                        at = (words[i // 4] >> np.uint64(16 * (i % 4))) & _MASK
                        if at >= edge:
                            continue
                        won += 1
                        if won <= following:
                            continue
                        paid = limit if first else min(limit, max(_price(table, at) * market, floor) / quality)
                        spent[n, w] += paid
                        total_cost[n, w, j] += paid
                        clicks += 1
                        four = draw(k0, k1, _CLICKS + base + np.uint64(clicks), turn, e, world)
                        if uniform(four[1]) < q.most[w]:
                            _convert(p, q, o, calendar, n, w, j, t, four[0], four[1], four[2], four[3])
                        following = won + _skip(lower(four[3]), rare)
                        limit = min(bid, budget - spent[n, w])
                        if limit < bid:
                            edge = _winning(table, limit * quality / market)
                total_clicks[n, w, j] += clicks
                o.impressions[n, w, j] += won
                s.shown[n, w, c] += won
        for n in range(bidders):
            _arrive(o, calendar, n, w, t)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _below(word: np.uint64, edge: np.uint64) -> int:
    """How many of a word's four lanes lie below the edge."""
    low, high = word & _MASK, (word >> np.uint64(16)) & _MASK
    third, last = (word >> np.uint64(32)) & _MASK, word >> np.uint64(48)
    return int(low < edge) + int(high < edge) + int(third < edge) + int(last < edge)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _price(table: NDArray[np.float32], at: np.uint64) -> float:
    """The price at 1/65536 · `at` of the distribution."""
    cell = at >> np.uint64(8)
    inside = float(at & np.uint64(0xFF)) / 256.0
    return float(table[cell] + inside * (table[cell + np.uint64(1)] - table[cell]))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _winning(table: NDArray[np.float32], offer: float) -> np.uint64:
    """How many of the 65536 prices an offer beats: all below the returned one."""
    low, high = 0, 65536
    while low < high:
        middle = (low + high) // 2
        if _price(table, np.uint64(middle)) < offer:
            low = middle + 1
        else:
            high = middle
    return np.uint64(low)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _skip(u: float, rare: float) -> int:
    """How many won auctions pass before one is clicked: geometric, `rare` being log(1 − click rate)."""
    return int(min(math.log(1.0 - u) / rare, 1e15)) if rare < 0.0 else 1 << 50


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _convert(
    p: Parameters,
    q: Prices,
    o: Outcome,
    calendar: Floats,
    n: int,
    w: int,
    j: int,
    t: int,
    who: np.uint64,
    whether: np.uint64,
    when: np.uint64,
    worth: np.uint64,
) -> None:
    """Who clicked, whether a purchase follows, when, and of what value."""
    k = category(q.segment_edge[w, j], upper(who))
    d = category(q.device_edge[w, k], lower(who))
    if uniform(whether) >= p.base[w, k] * p.channel_factor[w, j] * p.device_factor[w, d] * q.visit_factor[w]:
        return
    steps = p.auctions.shape[1]
    value = math.exp(p.value_log_mean[w, k] + p.value_log_spread[w, k] * quantile(p.normal, upper(worth)))
    o.scheduled[w, 0] += 1.0
    o.scheduled[w, 1] += value
    wait = p.delay_hours[w, k] * (-math.log(1.0 - uniform(when))) ** (1.0 / p.delay_shape[w, k])
    due = t + int(min(wait / p.hours_per_step[w], 2.0 * steps))
    if due < steps:
        entry = calendar[n, w, due, j]
        entry[0] += 1.0
        entry[1] += value
        if k == p.crisis[w]:
            entry[2] += value


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _arrive(o: Outcome, calendar: Floats, n: int, w: int, t: int) -> None:
    """Purchases due at step t are credited to the campaigns they came from."""
    for j in range(o.credits.shape[2]):
        number, value, crisis = calendar[n, w, t, j]
        o.credits[n, w, j] += value
        o.conversions[n, w] += number
        o.crisis_credits[n, w] += crisis
        o.delivered[w, 0] += number
        o.delivered[w, 1] += value
