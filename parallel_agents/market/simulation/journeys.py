"""User journeys: clicks, delayed purchases, and the attribution of a purchase to the clicks before it.

Purchases wait in simulated time. For each world and step, the users whose purchase is due form a doubly linked list. A
user has at most one pending purchase: a new click replaces it, as in the data, where a purchase belongs to the last
click.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from parallel_agents.core.compiled import njit
from parallel_agents.core.types import Floats
from parallel_agents.kernels.functions import exp, log, power
from parallel_agents.market.simulation.auction import quantile
from parallel_agents.market.simulation.world_arrays import MAX_TOUCHES, Outcome, Parameters, State

_END_SHARE = 0.4  # the customary share of the first and of the last click


class Attribution(IntEnum):
    """How a purchase is attributed: to the last click; 40 % each to first and last, rest to the others; equally."""

    LAST_CLICK = 0
    POSITION = 1
    LINEAR = 2


class Click(NamedTuple):
    """One click: where and when it happened, and the uniform numbers that decide what follows from it."""

    world: int
    user: int
    bidder: int
    campaign: int
    step: int
    converts: float
    delay: float
    value: float


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def credit_shares(rule: int, touches: int, out: Floats) -> None:
    """Write the share of each of `touches` ≥ 1 clicks, oldest first, into `out`; they add up to 1.

    >>> shares = np.empty(4)
    >>> credit_shares(int(Attribution.POSITION), 4, shares)
    >>> shares.round(2).tolist()
    [0.4, 0.1, 0.1, 0.4]
    """
    total = 0.0
    for i in range(touches - 1):
        if rule == 0:
            out[i] = 0.0
        elif rule == 2 or touches == 2:
            out[i] = 1.0 / touches
        elif i == 0:
            out[i] = _END_SHARE
        else:
            out[i] = (1.0 - 2.0 * _END_SHARE) / (touches - 2)
        total += out[i]
    out[touches - 1] = 1.0 - total


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def click(p: Parameters, s: State, o: Outcome, c: Click, rule: int) -> None:
    """Record a click: replace the user's pending purchase by the one that follows from this click, if any does.

    A purchase that comes within the same step is credited at once.
    """
    w, user, steps = c.world, c.user, p.auctions.shape[1]
    if s.due[user] >= 0:
        o.superseded[w, 0] += 1.0
        o.superseded[w, 1] += s.value[user]
        last = int(s.touch[user, int(s.touches[user]) - 1]) // p.mechanism.shape[1]
        _count_caused(p, o, last, w, user, -1.0, -s.value[user])
        o.expected[last, w] -= 1.0
        _remove_pending(s, w, user, steps)
    _remember_click(s, user, c.bidder * p.mechanism.shape[1] + c.campaign)
    visit = min(s.visits[user], 2)
    if s.visits[user] < 255:
        s.visits[user] += np.uint8(1)
    k = p.user_segment[user]
    lift = 1.0 + p.interest_lift[w] * (p.user_interest[user] - p.interest[w, k])
    rate = p.base[w, k] * p.channel_factor[w, c.campaign] * p.device_factor[w, p.user_device[user]]
    rate *= p.visit_factor[w, visit] * p.hour_factor[w, c.step, c.campaign]
    rate *= max(lift, 0.0)
    o.expected[c.bidder, w] += min(rate, 1.0)
    if c.converts >= rate:
        return
    delay, value = schedule_purchase(p, o, w, k, c.delay, c.value)
    s.value[user] = value
    _count_caused(p, o, c.bidder, w, user, 1.0, value)
    if delay < 1.0:
        _credit(p, s, o, w, user, rule)
    else:
        _add_pending(s, w, user, min(c.step + int(delay), steps), steps)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _count_caused(p: Parameters, o: Outcome, n: int, w: int, user: int, number: float, value: float) -> None:
    """Count a purchase in the step whose click causes it, or, with negative numbers, one that a click prevents."""
    o.caused[n, w, 0] += number
    o.caused[n, w, 1] += value
    if p.user_segment[user] == p.crisis[w]:
        o.caused[n, w, 2] += value


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def schedule_purchase(p: Parameters, o: Outcome, w: int, k: int, u_delay: float, u_value: float) -> tuple[float, float]:
    """Count a purchase of segment k and return its delay in steps (Weibull) and its value (log-normal)."""
    hours = p.delay_hours[w, k] * power(-log(1.0 - u_delay), 1.0 / p.delay_shape[w, k])
    value = exp(p.value_log_mean[w, k] + p.value_log_spread[w, k] * quantile(p.normal, u_value))
    o.scheduled[w, 0] += 1.0
    o.scheduled[w, 1] += value
    return min(hours / p.hours_per_step[w], 2.0 * p.auctions.shape[1]), value


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def deliver(p: Parameters, s: State, o: Outcome, w: int, t: int, rule: int) -> None:
    """Credit the purchases of world w that are due in step t."""
    user = s.head[w, t]
    while user >= 0:
        following = s.after[user]
        _credit(p, s, o, w, user, rule)
        user = following
    s.head[w, t] = -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def deliver_rest(p: Parameters, s: State, o: Outcome, w: int, rule: int) -> None:
    """Credit every purchase of world w that is still on its way: the episode ends, the customers still come."""
    for user in range(p.first[w], p.first[w + 1]):
        if s.due[user] >= 0:
            _credit(p, s, o, w, user, rule)
    s.head[w] = -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _credit(p: Parameters, s: State, o: Outcome, w: int, user: int, rule: int) -> None:
    """Divide the value of a user's purchase among the clicks of the journey, and end the journey."""
    campaigns = p.mechanism.shape[1]
    value, touches = s.value[user], int(s.touches[user])
    shares = np.empty(MAX_TOUCHES)
    credit_shares(rule, touches, shares)
    for i in range(touches):
        n, j = divmod(int(s.touch[user, i]), campaigns)
        o.credits[n, w, j] += shares[i] * value
        if p.user_segment[user] == p.crisis[w]:
            o.crisis_credits[n, w] += shares[i] * value
    n, j = divmod(int(s.touch[user, touches - 1]), campaigns)
    o.conversions[n, w, j] += 1.0
    o.delivered[w, 0] += 1.0
    o.delivered[w, 1] += value
    s.touches[user] = np.uint8(0)
    _clear_pending(s, user)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _remember_click(s: State, user: int, code: int) -> None:
    """Append a click to the user's journey; a full journey drops its second oldest click."""
    count = s.touches[user]
    if count == MAX_TOUCHES:
        for i in range(1, MAX_TOUCHES - 1):
            s.touch[user, i] = s.touch[user, i + 1]
        count = np.uint8(MAX_TOUCHES - 1)
    s.touch[user, count] = code
    s.touches[user] = count + np.uint8(1)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _add_pending(s: State, w: int, user: int, due: int, steps: int) -> None:
    """Put a user at the head of the list of step `due`; a purchase due after the last step never arrives."""
    s.due[user] = due
    if due < steps:
        head = s.head[w, due]
        s.after[user] = head
        s.before[user] = -1
        if head >= 0:
            s.before[head] = user
        s.head[w, due] = user


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _remove_pending(s: State, w: int, user: int, steps: int) -> None:
    """Take a user out of the list of the step in which the purchase was due."""
    due = s.due[user]
    if due < steps:
        before, after = s.before[user], s.after[user]
        if before >= 0:
            s.after[before] = after
        else:
            s.head[w, due] = after
        if after >= 0:
            s.before[after] = before
    _clear_pending(s, user)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _clear_pending(s: State, user: int) -> None:
    """Mark a user as without a pending purchase."""
    s.due[user] = -1
    s.before[user] = -1
    s.after[user] = -1
