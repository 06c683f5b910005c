"""Journeys: clicks are remembered, purchases wait on a calendar in simulated time, and arrive to be credited.

The calendar is one doubly linked list of users per step. A user has at most one purchase under way: a new click takes
the place of the one before, as in the data, where a purchase belongs to the last click.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.market.simulation.arrays import TOUCHES, Outcome, Parameters, State
from parallel_agents.market.simulation.attribution import credit_shares
from parallel_agents.market.simulation.draws import quantile

__all__ = ["click", "deliver"]

Floats = NDArray[np.float64]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _unschedule(s: State, w: int, user: int, steps: int) -> None:
    """Take a user's purchase off the calendar."""
    due = s.due[user]
    if due < steps:
        before, after = s.before[user], s.after[user]
        if before >= 0:
            s.after[before] = after
        else:
            s.head[w, due] = after
        if after >= 0:
            s.before[after] = before
    s.due[user] = -1
    s.before[user] = -1
    s.after[user] = -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _schedule(s: State, w: int, user: int, due: int, value: float, steps: int) -> None:
    """Put a purchase on the calendar; one that would come after the last step stays under way for good."""
    s.due[user] = due
    s.value[user] = value
    if due < steps:
        head = s.head[w, due]
        s.after[user] = head
        s.before[user] = -1
        if head >= 0:
            s.before[head] = user
        s.head[w, due] = user


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _touch(s: State, user: int, code: int) -> None:
    """Remember a click; a long journey forgets its second oldest."""
    count = s.touches[user]
    if count == TOUCHES:
        for i in range(1, TOUCHES - 1):
            s.touch[user, i] = s.touch[user, i + 1]
        count = np.uint8(TOUCHES - 1)
    s.touch[user, count] = code
    s.touches[user] = count + np.uint8(1)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _credit(p: Parameters, s: State, o: Outcome, w: int, user: int, rule: int, shares: Floats) -> None:
    """A purchase arrives: its value is shared among the clicks of the journey, which ends."""
    campaigns = p.mechanism.shape[1]
    value, touches = s.value[user], int(s.touches[user])
    credit_shares(rule, touches, shares)
    for i in range(touches):
        n, j = divmod(int(s.touch[user, i]), campaigns)
        o.credits[n, w, j] += shares[i] * value
        if p.user_segment[user] == p.crisis[w]:
            o.crisis_credits[n, w] += shares[i] * value
    o.conversions[int(s.touch[user, touches - 1]) // campaigns, w] += 1.0
    o.delivered[w, 0] += 1.0
    o.delivered[w, 1] += value
    s.touches[user] = np.uint8(0)
    s.due[user] = -1
    s.before[user] = -1
    s.after[user] = -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def click(
    p: Parameters,
    s: State,
    o: Outcome,
    w: int,
    user: int,
    j: int,
    code: int,
    t: int,
    fate: tuple[float, float, float],
    rule: int,
    shares: Floats,
) -> None:
    """A user clicked: a purchase under way gives way to the new click's, if there is to be one.

    `fate` are uniforms: whether, when, of what value. A purchase within the same step is credited at once.
    """
    steps = p.auctions.shape[1]
    if s.due[user] >= 0:
        o.superseded[w, 0] += 1.0
        o.superseded[w, 1] += s.value[user]
        _unschedule(s, w, user, steps)
    _touch(s, user, code)
    visit = min(s.visits[user], 2)
    if s.visits[user] < 255:
        s.visits[user] += np.uint8(1)
    k = p.user_segment[user]
    lift = 1.0 + p.interest_lift[w] * (p.user_interest[user] - p.interest[w, k])
    rate = p.base[w, k] * p.channel_factor[w, j] * p.device_factor[w, p.user_device[user]] * p.visit_factor[w, visit]
    if fate[0] >= rate * max(lift, 0.0):
        return
    wait = p.delay_hours[w, k] * (-math.log(1.0 - fate[1])) ** (1.0 / p.delay_shape[w, k])
    late = min(wait / p.hours_per_step[w], 2.0 * steps)
    value = math.exp(p.value_log_mean[w, k] + p.value_log_spread[w, k] * quantile(p.normal, fate[2]))
    o.scheduled[w, 0] += 1.0
    o.scheduled[w, 1] += value
    if late < 1.0:
        s.value[user] = value
        _credit(p, s, o, w, user, rule, shares)
    else:
        _schedule(s, w, user, min(t + int(late), steps), value, steps)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def deliver(p: Parameters, s: State, o: Outcome, w: int, t: int, rule: int, shares: Floats) -> None:
    """Purchases due at step t arrive."""
    user = s.head[w, t]
    while user >= 0:
        following = s.after[user]
        _credit(p, s, o, w, user, rule, shares)
        user = following
    s.head[w, t] = -1
