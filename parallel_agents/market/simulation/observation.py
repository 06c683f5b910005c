"""What a bidder sees: the clock, its own money and results, and how each campaign and creative goes.

Nothing hidden is shown: neither the users' segments, nor the rivals' bids, nor purchases still under way.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.market.simulation.arrays import Outcome, Parameters, State

__all__ = ["observation_names", "observe"]

_COMMON = (
    "progress", "hour_sin", "hour_cos", "week_sin", "week_cos", "volume", "budget_left", "ahead_of_pace",
    "win_rate", "click_rate", "log_clicks", "log_conversions", "return_on_cost", "step_credit", "step_cost",
)  # fmt: skip


def observation_names(campaigns: tuple[str, ...], creatives: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the observation's entries, in order."""
    per_campaign = [f"{what}:{c}" for c in campaigns for what in ("win_rate", "price")]
    return (*_COMMON, *per_campaign, *(f"freshness:{c}" for c in creatives))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0.0 else 0.0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def observe(
    p: Parameters,
    s: State,
    step: Outcome,
    total: Outcome,
    t: int,
    out: NDArray[np.float32],
) -> None:
    """Fill out (N, W, features), before step t."""
    bidders, worlds, _ = out.shape
    steps, campaigns = p.auctions.shape[1], p.mechanism.shape[1]
    now = min(t, steps - 1)
    for w in range(worlds):
        mean = p.auctions[w].mean()
        hour = p.hour[w, now]
        day, week = 2.0 * math.pi * hour / 24.0, 2.0 * math.pi * hour / 168.0
        held = step.auctions[w].sum()
        for n in range(bidders):
            row = out[n, w]
            budget, spent = p.budget[w], s.spent[n, w]
            clicks, cost = total.clicks[n, w].sum(), total.cost[n, w].sum()
            seen, credit = step.impressions[n, w].sum(), total.credits[n, w].sum()
            row[0] = t / steps
            row[1], row[2] = math.sin(day), math.cos(day)
            row[3], row[4] = math.sin(week), math.cos(week)
            row[5] = p.auctions[w, now] / mean
            row[6] = 1.0 - spent / budget
            row[7] = spent / budget - t / steps
            row[8] = _ratio(seen, held)
            row[9] = _ratio(step.clicks[n, w].sum(), seen)
            row[10] = math.log1p(clicks)
            row[11] = math.log1p(total.conversions[n, w])
            row[12] = math.log1p(_ratio(credit, cost))
            row[13] = math.log1p(steps * step.credits[n, w].sum() / budget)
            row[14] = steps * step.cost[n, w].sum() / budget
            for j in range(campaigns):
                at = 15 + 2 * j
                row[at] = _ratio(step.impressions[n, w, j], step.auctions[w, j])
                row[at + 1] = _ratio(total.cost[n, w, j], total.clicks[n, w, j]) / math.exp(p.usual_bid[w, j])
            for c in range(p.click_rate.shape[1]):
                row[15 + 2 * campaigns + c] = math.exp(-p.fatigue[w] * s.shown[n, w, c])
