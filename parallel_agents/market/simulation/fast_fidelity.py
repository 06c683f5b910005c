"""One step at fast fidelity: one slot, no individual users, and the price to beat comes from a table.

The table holds, for each world and campaign, the inverse distribution function of the highest rival bid. It is computed
from the same rivals as at full fidelity; each bidder faces the market alone. An auction costs 16 random bits, for the
price. How many won auctions pass until the next click is one geometric draw, so only a click draws more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import njit
from parallel_agents.core.seeding import uniform
from parallel_agents.market.discovery.estimation import normal_cdf
from parallel_agents.market.simulation.auction import (
    FIRST_PRICE,
    STEP_BLOCK,
    Address,
    Words,
    category,
    lower_half,
    quantile,
    random_words,
    upper_half,
)
from parallel_agents.market.simulation.full_fidelity import StepInputs
from parallel_agents.market.simulation.journeys import schedule_purchase
from parallel_agents.market.simulation.world_arrays import Outcome, Parameters, State

Floats = NDArray[np.float64]

_CELLS = 256
_LANES = 16  # auctions per block of random words
_LANE_MASK = np.uint64(0xFFFF)
_CLICK_BLOCKS = np.uint64(1 << 40)  # added to the blocks of auctions, gives those of clicks


class MarketPrices(NamedTuple):
    """What replaces rivals and individual users, and the purchases that are due."""

    table: NDArray[np.float32]  # (W, J, cells + 1) price to beat, by share of the auctions
    campaign_share: Floats  # (W, J)
    segment_edge: Floats  # (W, J, K) cumulative share of segments among the users of a campaign
    device_edge: Floats  # (W, K, D) cumulative share of devices
    visit_factor: Floats  # (W,) mean
    largest_rate: Floats  # (W,) upper bound of the conversion rate of any click
    due: Floats  # (N, W, T, J, 3) purchases due in a step: number, value, value from crisis parents


def market_prices(p: Parameters, bidders: int) -> MarketPrices:
    """Invert the distribution of the highest rival bid on a grid; where it is below the reserve, the reserve counts."""
    worlds, campaigns = p.mechanism.shape
    grid = np.linspace(0.0, 1.0, _CELLS + 1)
    grid[-1] = 1.0 - 0.25 / _CELLS
    table = np.empty((worlds, campaigns, _CELLS + 1), np.float32)
    for w in range(worlds):
        for j in range(campaigns):
            shade = p.shade[w] if p.mechanism[w, j] == FIRST_PRICE else 0.0
            level = p.level[w, :, j] + shade
            low = float((level - 5.0 * p.spread[w]).min())
            high = float((level + 5.0 * p.spread[w]).max())
            x = np.linspace(low, high, 400)
            below = np.prod(1.0 - p.participation[w] * (1.0 - normal_cdf((x[:, None] - level) / p.spread[w])), axis=1)
            table[w, j] = np.exp(np.interp(grid, below, x, left=p.reserve[w, j]))
    activity = np.diff(p.segment_edge, axis=1, prepend=0.0)
    mix = np.diff(p.campaign_edge, axis=2, prepend=0.0) * activity[:, :, None]
    share = mix.sum(axis=1)
    edges = np.cumsum(mix, axis=1) / np.maximum(share[:, None], 1e-300)
    visits = p.visit_factor.mean(axis=1)
    return MarketPrices(
        table=np.maximum(table, np.exp(p.reserve)[:, :, None].astype(np.float32)),
        campaign_share=share,
        segment_edge=np.ascontiguousarray(edges.transpose(0, 2, 1)),
        device_edge=_device_edges(p),
        visit_factor=visits,
        largest_rate=p.base.max(axis=1) * p.channel_factor.max(axis=1) * p.device_factor.max(axis=1) * visits,
        due=np.zeros((bidders, *p.auctions.shape, campaigns, 3)),
    )


def _device_edges(p: Parameters) -> Floats:
    """Return the cumulative shares of devices by segment (W, K, D), as counted in the population."""
    worlds, segments = p.segment_edge.shape
    counts = np.zeros((worlds, segments, p.device_factor.shape[1]))
    world = np.repeat(np.arange(worlds), np.diff(p.first))
    np.add.at(counts, (world, p.user_segment, p.user_device), 1.0)
    return np.asarray(np.cumsum(counts, axis=2) / np.maximum(counts.sum(axis=2, keepdims=True), 1.0))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def step_fast(p: Parameters, q: MarketPrices, s: State, o: Outcome, x: StepInputs, low: int, high: int) -> None:
    """Compute a step of worlds low … high − 1 and add its results to `o`."""
    bidders, _, campaigns = x.bids.shape
    t, spent, total_cost, total_clicks = x.step, s.spent, o.cost, o.clicks
    for w in range(low, high):
        address = Address(x.keys[0], x.keys[1], np.uint64(t), np.uint64(x.epoch), p.world[w])
        budget = p.budget[w]
        words = random_words(address, STEP_BLOCK)
        s.drift[w] += p.volatility[w] * quantile(p.normal, uniform(words[0]))
        rounding, mean, market = uniform(words[1]), p.click_rate[w].mean(), math.exp(s.drift[w])
        for j in range(campaigns):
            held = int(p.auctions[w, t] * q.campaign_share[w, j] + rounding)
            o.auctions[w, j] += held
            table, floor, first = q.table[w, j], math.exp(p.reserve[w, j]), p.mechanism[w, j] == FIRST_PRICE
            for n in range(bidders):
                c, bid = x.creative[n, w], x.bids[n, w, j]
                rate = p.click_rate[w, c] * math.exp(-p.fatigue[w] * s.shown[n, w, c])
                count = int(held * x.pacing[n, w] + rounding)
                if bid <= 0.0 or rate <= 0.0 or count == 0:
                    continue
                quality = rate / mean  # to this bidder, a price of the market is price / quality
                log_miss = math.log1p(-min(rate * p.position[w, 0], 0.999999))
                block = np.uint64((n * campaigns + j) << 28)
                limit = min(bid, budget - spent[n, w])
                edge = _winning_edge(table, limit * quality / market)
                click_words = random_words(address, _CLICK_BLOCKS + block)
                clicks, won, next_click = 0, 0, _misses(lower_half(click_words[3]), log_miss)
                for start in range(0, count, _LANES):
                    words = random_words(address, block + np.uint64(start // _LANES))
                    lanes = min(_LANES, count - start)
                    if lanes == _LANES:  # count the wins of the whole block, unless a click falls into it
                        wins = _lanes_below(words[0], edge) + _lanes_below(words[1], edge)
                        wins += _lanes_below(words[2], edge) + _lanes_below(words[3], edge)
                        if won + wins <= next_click:
                            won += wins
                            continue
                    for i in range(lanes):
                        lane = (words[i // 4] >> np.uint64(16 * (i % 4))) & _LANE_MASK
                        if lane >= edge:
                            continue
                        won += 1
                        if won <= next_click:
                            continue
                        paid = limit if first else min(limit, max(_price(table, lane) * market, floor) / quality)
                        spent[n, w] += paid
                        total_cost[n, w, j] += paid
                        clicks += 1
                        click_words = random_words(address, _CLICK_BLOCKS + block + np.uint64(clicks))
                        if uniform(click_words[1]) < q.largest_rate[w]:
                            _convert(p, q, o, (n, w, j, t), click_words)
                        next_click = won + _misses(lower_half(click_words[3]), log_miss)
                        limit = min(bid, budget - spent[n, w])
                        if limit < bid:
                            edge = _winning_edge(table, limit * quality / market)
                total_clicks[n, w, j] += clicks
                o.impressions[n, w, j] += won
                s.shown[n, w, c] += won
        for n in range(bidders):
            _deliver_due(q, o, n, w, t)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _lanes_below(word: np.uint64, edge: np.uint64) -> int:
    """Return how many of a word's four lanes are below the edge."""
    low, high = word & _LANE_MASK, (word >> np.uint64(16)) & _LANE_MASK
    third, last = (word >> np.uint64(32)) & _LANE_MASK, word >> np.uint64(48)
    return int(low < edge) + int(high < edge) + int(third < edge) + int(last < edge)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _price(table: NDArray[np.float32], lane: np.uint64) -> float:
    """Return the price at `lane` / 65536 of the distribution."""
    cell = lane >> np.uint64(8)
    inside = float(lane & np.uint64(0xFF)) / 256.0
    return float(table[cell] + inside * (table[cell + np.uint64(1)] - table[cell]))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _winning_edge(table: NDArray[np.float32], offer: float) -> np.uint64:
    """Return how many of the 65536 prices an offer beats: all those below the returned place."""
    low, high = 0, 65536
    while low < high:
        middle = (low + high) // 2
        if _price(table, np.uint64(middle)) < offer:
            low = middle + 1
        else:
            high = middle
    return np.uint64(low)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _misses(u: float, log_miss: float) -> int:
    """Return how many won auctions pass before a click: geometric, `log_miss` is log(1 − click rate)."""
    return int(min(math.log(1.0 - u) / log_miss, 1e15)) if log_miss < 0.0 else 1 << 50


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _convert(p: Parameters, q: MarketPrices, o: Outcome, place: tuple[int, int, int, int], click_words: Words) -> None:
    """Schedule the purchase that follows a click, if one does; `place` is bidder, world, campaign and step."""
    n, w, j, t = place
    k = category(q.segment_edge[w, j], upper_half(click_words[0]))
    d = category(q.device_edge[w, k], lower_half(click_words[0]))
    if uniform(click_words[1]) >= p.base[w, k] * p.channel_factor[w, j] * p.device_factor[w, d] * q.visit_factor[w]:
        return
    delay, value = schedule_purchase(p, o, w, k, uniform(click_words[2]), upper_half(click_words[3]))
    due = t + int(delay)
    if due < p.auctions.shape[1]:
        q.due[n, w, due, j, 0] += 1.0
        q.due[n, w, due, j, 1] += value
        if k == p.crisis[w]:
            q.due[n, w, due, j, 2] += value


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _deliver_due(q: MarketPrices, o: Outcome, n: int, w: int, t: int) -> None:
    """Credit the purchases that are due in step t to the campaigns of their clicks."""
    for j in range(o.credits.shape[2]):
        number, value, crisis = q.due[n, w, t, j]
        o.credits[n, w, j] += value
        o.conversions[n, w] += number
        o.crisis_credits[n, w] += crisis
        o.delivered[w, 0] += number
        o.delivered[w, 1] += value
