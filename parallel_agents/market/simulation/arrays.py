"""Worlds as arrays: what stays (`Parameters`), what moves (`State`), what a step brings about (`Outcome`).

Worlds W, bidders N, segments K, devices D, campaigns J, creatives C, positions S, rivals M, steps T. The users of all
worlds lie one after the other, sorted by segment within each world: `first[w]` is where those of world w begin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.market.simulation.checks import check_worlds
from parallel_agents.market.worlds import Part, World
from parallel_agents.seeding import Purpose, generator

__all__ = ["TOUCHES", "Outcome", "Parameters", "State", "empty_outcome", "empty_state", "stack"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOUCHES = 8  # a journey remembers its first click and its latest ones
_CELLS = 1024
_DAY = 24.0


class Parameters(NamedTuple):
    """All that a world was drawn with, in the form the kernels read."""

    world: NDArray[np.uint64]  # (W,) the address of its draws
    first: Ints  # (W + 1,)
    user_segment: NDArray[np.uint8]  # (users,)
    user_device: NDArray[np.uint8]
    user_interest: NDArray[np.float32]
    segment_first: Ints  # (W, K + 1) within the world
    segment_edge: Floats  # (W, K) cumulative chance that an auction is for the segment
    participation: Floats  # (W, M)
    level: Floats  # (W, M, J)
    spread: Floats
    shade: Floats
    response: Floats
    pacing: Floats  # (W, M, 3)
    mechanism: Ints  # (W, J)
    slots: Ints
    reserve: Floats  # (W, J) log
    campaign_edge: Floats  # (W, K, J) cumulative
    channel_factor: Floats  # (W, J)
    usual_bid: Floats  # (W, J) log
    volatility: Floats  # (W,) per step
    auctions: Floats  # (W, T) expected number
    hour: Floats  # (W, T) of the week
    day_steps: Ints  # (W,)
    hours_per_step: Floats  # (W,)
    click_rate: Floats  # (W, C)
    fatigue: Floats  # (W,) per impression
    position: Floats  # (W, S)
    base: Floats  # (W, K)
    device_factor: Floats  # (W, D)
    visit_factor: Floats  # (W, 3)
    interest: Floats  # (W, K)
    interest_lift: Floats  # (W,)
    value_log_mean: Floats  # (W, K)
    value_log_spread: Floats
    delay_hours: Floats
    delay_shape: Floats
    crisis: Ints  # (W,)
    budget: Floats  # (W,)
    normal: Floats  # quantiles of the normal distribution


class State(NamedTuple):
    """All that changes during an episode."""

    spent: Floats  # (N, W)
    shown: Floats  # (N, W, C) impressions by creative
    drift: Floats  # (W,) of all rivals' log bids
    shift: Floats  # (W, M) of a rival's log bid: response and pacing
    day_spend: Floats  # (W, M)
    mean_spend: Floats
    total_error: Floats
    last_error: Floats
    day_bid: Floats  # (W, 2): sum and number of our log bids above the usual
    days: Ints  # (W,)
    visits: NDArray[np.uint8]  # (users,) clicks so far
    touches: NDArray[np.uint8]  # (users,) clicks of the journey under way
    touch: NDArray[np.int16]  # (users, TOUCHES) bidder · J + campaign
    due: NDArray[np.int32]  # (users,) step at which a purchase comes, −1: none under way
    value: Floats  # (users,) of that purchase
    after: NDArray[np.int32]  # (users,) next user due at the same step, −1: none
    before: NDArray[np.int32]
    head: NDArray[np.int32]  # (W, T) first user due at a step


class Outcome(NamedTuple):
    """What one step, or one episode, brought about."""

    auctions: Floats  # (W, J)
    impressions: Floats  # (N, W, J)
    clicks: Floats  # (N, W, J)
    cost: Floats  # (N, W, J)
    credits: Floats  # (N, W, J)
    crisis_credits: Floats  # (N, W)
    conversions: Floats  # (N, W) by last click
    scheduled: Floats  # (W, 2): number and value of purchases set on their way
    superseded: Floats  # (W, 2): overtaken by a newer click
    delivered: Floats  # (W, 2)
    crisis_auctions: Floats  # (W,)


def stack(
    worlds: Sequence[World], *, steps: int, auctions_per_step: float, budget: float | Floats | None, seed: int
) -> Parameters:
    """Check and stack worlds of one shape; the population of each is drawn here, from its own stream."""
    check_worlds(worlds)
    parts = [_Parts(w, steps, auctions_per_step, seed) for w in worlds]
    first = np.concatenate([[0], np.cumsum([w.users.count for w in worlds])])
    m = [w.market_state for w in worlds]
    c = [w.conversion_dynamics for w in worlds]
    r = [w.competitors for w in worlds]

    def each(values: Sequence[object]) -> Floats:
        return np.array(values, np.float64)

    return Parameters(
        world=np.array([w.index for w in worlds], np.uint64),
        first=first,
        user_segment=np.concatenate([p.segment for p in parts]).astype(np.uint8),
        user_device=np.concatenate([p.device for p in parts]).astype(np.uint8),
        user_interest=np.concatenate([p.interest for p in parts]).astype(np.float32),
        segment_first=np.array([p.segment_first for p in parts]),
        segment_edge=each([p.segment_edge for p in parts]),
        participation=each([x.participation for x in r]),
        level=each([x.level for x in r]),
        spread=each([x.spread for x in r]),
        shade=each([x.shade for x in r]),
        response=each([x.response for x in r]),
        pacing=each([x.pacing for x in r]),
        mechanism=np.array([x.mechanism for x in m]),
        slots=np.array([x.slots for x in m]),
        reserve=np.log(np.maximum(each([x.reserve for x in m]), 1e-12)),
        campaign_edge=np.cumsum(each([x.campaign_share for x in m]), axis=2),
        channel_factor=each([x.channel_factor for x in m]),
        usual_bid=np.log(each([x.usual_bid for x in m])),
        volatility=each(
            [w.market_state.volatility * math.sqrt(p.step / _DAY) for w, p in zip(worlds, parts, strict=True)]
        ),
        auctions=each([p.auctions for p in parts]),
        hour=each([p.hour for p in parts]),
        day_steps=np.array([max(1, round(_DAY / p.step)) for p in parts]),
        hours_per_step=each([p.step for p in parts]),
        click_rate=each([w.creative_variance.click_rate for w in worlds]),
        fatigue=each([w.creative_variance.fatigue / w.users.count for w in worlds]),
        position=each([w.creative_variance.position for w in worlds]),
        base=each([x.base for x in c]),
        device_factor=each([x.device_factor for x in c]),
        visit_factor=each([x.visit_factor for x in c]),
        interest=each([w.users.interest for w in worlds]),
        interest_lift=each([x.interest_lift for x in c]),
        value_log_mean=each([x.value_log_mean for x in c]),
        value_log_spread=each([x.value_log_spread for x in c]),
        delay_hours=each([x.delay_hours for x in c]),
        delay_shape=each([x.delay_shape for x in c]),
        crisis=np.array([w.crisis for w in worlds]),
        budget=_budgets(worlds, parts, budget),
        normal=_normal_table(),
    )


class _Parts:
    """One world's population and calendar."""

    def __init__(self, world: World, steps: int, auctions_per_step: float, seed: int) -> None:
        users, window = world.users, world.time_period
        rng = generator(seed, Purpose.WORLD, agent=len(Part) + 1, world=world.index)
        segment = np.searchsorted(np.cumsum(users.share)[:-1], rng.random(users.count), side="right")
        self.segment = np.sort(segment)
        edges = np.cumsum(users.device[self.segment], axis=1)[:, :-1]
        self.device = (rng.random((users.count, 1)) >= edges).sum(axis=1)
        mean = users.interest[self.segment]
        room = mean * (1.0 - mean)
        weight = room / np.minimum(users.interest_spread[self.segment] ** 2, 0.99 * room) - 1.0
        self.interest = rng.beta(np.maximum(weight * mean, 1e-3), np.maximum(weight * (1.0 - mean), 1e-3))
        counts = np.bincount(self.segment, minlength=len(users.share))
        self.segment_first = np.concatenate([[0], np.cumsum(counts)])
        busy = np.cumsum(counts * users.activity)
        self.segment_edge = busy / busy[-1]  # exactly one from the last segment that has users on

        self.step = window.hours / steps
        self.hour = (window.start + self.step * (np.arange(steps) + 0.5)) % len(window.volume)
        self.auctions = auctions_per_step * world.auction_pressure.volume * _mean_volume(world, steps)


def _mean_volume(world: World, steps: int) -> Floats:
    """Shape (steps,): the mean volume of the hours that each step covers."""
    window = world.time_period
    total = np.concatenate([[0.0], np.cumsum(np.tile(window.volume, 2 + int(window.hours) // len(window.volume)))])
    edges = window.start + window.hours * np.arange(steps + 1) / steps
    below = np.floor(edges).astype(np.int64)
    area = total[below] + (edges - below) * (total[below + 1] - total[below])
    return np.asarray(np.diff(area) * steps / window.hours)


def _budgets(worlds: Sequence[World], parts: Sequence[_Parts], budget: float | Floats | None) -> Floats:
    """Shape (W,): as given, or what is usually spent on that many auctions."""
    if budget is None:
        return np.array([w.auction_pressure.spend * p.auctions.sum() for w, p in zip(worlds, parts, strict=True)])
    given = np.broadcast_to(np.asarray(budget, np.float64), len(worlds)).copy()
    if not (given > 0).all() or not np.isfinite(given).all():
        raise ConfigError(f"budget {float(given.min())} is not positive and finite: a bidder without money cannot bid")
    return given


def _normal_table() -> Floats:
    """Quantiles at 0, 1/1024, …, 1; the ends stand for the mean of their tails."""
    inner = [NormalDist().inv_cdf(i / _CELLS) for i in range(1, _CELLS)]
    end = 2.0 * NormalDist().inv_cdf(1.0 - 0.25 / _CELLS) - inner[-1]
    return np.array([-end, *inner, end])


def empty_state(p: Parameters, bidders: int) -> State:
    """A state before its first step."""
    worlds, rivals = p.participation.shape
    users, steps = int(p.first[-1]), p.auctions.shape[1]

    def rivalry() -> Floats:
        return np.zeros((worlds, rivals))

    return State(
        spent=np.zeros((bidders, worlds)),
        shown=np.zeros((bidders, worlds, p.click_rate.shape[1])),
        drift=np.zeros(worlds),
        shift=rivalry(),
        day_spend=rivalry(),
        mean_spend=rivalry(),
        total_error=rivalry(),
        last_error=rivalry(),
        day_bid=np.zeros((worlds, 2)),
        days=np.zeros(worlds, np.int64),
        visits=np.zeros(users, np.uint8),
        touches=np.zeros(users, np.uint8),
        touch=np.zeros((users, TOUCHES), np.int16),
        due=np.full(users, -1, np.int32),
        value=np.zeros(users),
        after=np.full(users, -1, np.int32),
        before=np.full(users, -1, np.int32),
        head=np.full((worlds, steps), -1, np.int32),
    )


def empty_outcome(p: Parameters, bidders: int) -> Outcome:
    """Nothing happened yet."""
    worlds, campaigns = p.mechanism.shape

    def each() -> Floats:
        return np.zeros((bidders, worlds, campaigns))

    return Outcome(
        np.zeros((worlds, campaigns)),
        each(),
        each(),
        each(),
        each(),
        np.zeros((bidders, worlds)),
        np.zeros((bidders, worlds)),
        np.zeros((worlds, 2)),
        np.zeros((worlds, 2)),
        np.zeros((worlds, 2)),
        np.zeros(worlds),
    )
