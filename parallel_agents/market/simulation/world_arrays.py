"""The arrays of stacked worlds: constants (`Parameters`), what changes (`State`), results of a step (`Outcome`).

Letters of the shapes: worlds W, bidders N, segments K, devices D, campaigns J, creatives C, positions S, rivals M,
steps T. The users of all worlds are rows of the same arrays, world after world and sorted by segment within a world;
`first[w]` is the first row of world w.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError, NonFiniteError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.market.world_types import Part, World

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_TOUCHES = 8  # clicks kept of a journey: the first one and the latest ones
_QUANTILE_CELLS = 1024
_HOURS_PER_DAY = 24.0
_COPIED = {
    "users": ("interest",),
    "competitors": ("participation", "level", "spread", "shade", "response", "pacing"),
    "market_state": ("channel_factor",),
    "creative_variance": ("click_rate", "position"),
    "conversion_dynamics": (
        "base", "device_factor", "visit_factor", "interest_lift",
        "value_log_mean", "value_log_spread", "delay_hours", "delay_shape",
    ),
}  # fmt: skip
_SAME_NAMES = ("segments", "devices", "campaigns", "creatives", "rivals")  # equal in all worlds of a batch
_POSITIVE = {
    "users": ("share", "activity"),
    "competitors": ("spread",),
    "market_state": ("usual_bid",),
    "time_period": ("volume", "hours"),
    "auction_pressure": ("volume", "spend"),
    "conversion_dynamics": ("value_log_spread", "delay_hours", "delay_shape"),
}
_NOT_NEGATIVE = {
    "users": ("device", "interest"),
    "market_state": ("reserve", "campaign_share", "channel_factor", "volatility"),
    "competitors": ("participation",),
    "creative_variance": ("click_rate", "fatigue", "position"),
    "conversion_dynamics": ("base", "device_factor", "visit_factor"),
}


class Parameters(NamedTuple):
    """The constants of all worlds, in the form that kernels read."""

    world: NDArray[np.uint64]  # (W,) index of the world, part of the address of its draws
    first: Ints  # (W + 1,) first user of each world
    user_segment: NDArray[np.uint8]  # (users,)
    user_device: NDArray[np.uint8]
    user_interest: NDArray[np.float32]
    segment_first: Ints  # (W, K + 1) first user of each segment, counted within the world
    segment_edge: Floats  # (W, K) cumulative probability that the user of an auction is of the segment
    participation: Floats  # (W, M)
    level: Floats  # (W, M, J) mean log bid
    spread: Floats
    shade: Floats
    response: Floats
    pacing: Floats  # (W, M, 3)
    mechanism: Ints  # (W, J)
    slots: Ints
    reserve: Floats  # (W, J) log price
    campaign_edge: Floats  # (W, K, J) cumulative
    channel_factor: Floats  # (W, J)
    usual_bid: Floats  # (W, J) log bid
    volatility: Floats  # (W,) per step
    auctions: Floats  # (W, T) expected number in a step
    hour: Floats  # (W, T) hour of the week
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
    crisis: Ints  # (W,) segment of the crisis parents, -1 where there is none
    budget: Floats  # (W,)
    normal: Floats  # quantiles of the standard normal distribution at equal steps


class State(NamedTuple):
    """What changes during an episode."""

    spent: Floats  # (N, W)
    shown: Floats  # (N, W, C) impressions by creative
    drift: Floats  # (W,) common change of the rivals' log bids
    shift: Floats  # (W, M) change of a rival's log bid: response and pacing
    day_spend: Floats  # (W, M)
    mean_spend: Floats
    total_error: Floats
    last_error: Floats
    day_bid: Floats  # (W, 2) sum and number of our log bids, relative to the usual bid
    days: Ints  # (W,)
    visits: NDArray[np.uint8]  # (users,) clicks so far, at most 255
    touches: NDArray[np.uint8]  # (users,) clicks of the current journey
    touch: NDArray[np.int16]  # (users, MAX_TOUCHES) bidder · J + campaign
    due: NDArray[np.int32]  # (users,) step in which the pending purchase arrives, -1: none is pending
    value: Floats  # (users,) value of the pending purchase
    after: NDArray[np.int32]  # (users,) next user whose purchase is due in the same step, -1: none
    before: NDArray[np.int32]  # (users,) previous user in that list
    head: NDArray[np.int32]  # (W, T) first user whose purchase is due in a step, -1: none


class Outcome(NamedTuple):
    """The results of one step, or of one episode."""

    auctions: Floats  # (W, J)
    impressions: Floats  # (N, W, J)
    clicks: Floats  # (N, W, J)
    cost: Floats  # (N, W, J)
    credits: Floats  # (N, W, J) purchase value attributed to the bidder
    crisis_credits: Floats  # (N, W) the part of it from crisis parents
    conversions: Floats  # (N, W) by last click
    scheduled: Floats  # (W, 2) number and value of purchases that were scheduled
    superseded: Floats  # (W, 2) of those replaced because of a newer click
    delivered: Floats  # (W, 2) of those that arrived
    crisis_auctions: Floats  # (W,)


def stack_worlds(
    worlds: Sequence[World], *, steps: int, auctions_per_step: float, budget: float | Floats | None, seed: int
) -> Parameters:
    """Return the parameters of checked worlds; the population of each is drawn here, from the world's own stream."""
    _check_worlds(worlds)
    drawn = [_Population(world, steps, auctions_per_step, seed) for world in worlds]
    reserve, share, usual_bid, volatility = (
        _stacked(worlds, "market_state", name) for name in ("reserve", "campaign_share", "usual_bid", "volatility")
    )
    step_hours = np.array([p.step_hours for p in drawn])
    copied = {name: _stacked(worlds, part, name) for part, names in _COPIED.items() for name in names}
    return Parameters(
        world=np.array([w.index for w in worlds], np.uint64),
        first=np.concatenate([[0], np.cumsum([w.users.count for w in worlds])]),
        user_segment=np.concatenate([p.segment for p in drawn]).astype(np.uint8),
        user_device=np.concatenate([p.device for p in drawn]).astype(np.uint8),
        user_interest=np.concatenate([p.interest for p in drawn]).astype(np.float32),
        segment_first=np.array([p.segment_first for p in drawn]),
        segment_edge=np.array([p.segment_edge for p in drawn]),
        mechanism=np.array([w.market_state.mechanism for w in worlds]),
        slots=np.array([w.market_state.slots for w in worlds]),
        reserve=np.log(np.maximum(reserve, 1e-12)),
        campaign_edge=np.cumsum(share, axis=2),
        usual_bid=np.log(usual_bid),
        volatility=volatility * np.sqrt(step_hours / _HOURS_PER_DAY),
        auctions=np.array([p.auctions for p in drawn]),
        hour=np.array([p.hour for p in drawn]),
        day_steps=np.array([max(1, round(_HOURS_PER_DAY / hours)) for hours in step_hours.tolist()]),
        hours_per_step=step_hours,
        fatigue=_stacked(worlds, "creative_variance", "fatigue") / np.array([w.users.count for w in worlds]),
        crisis=np.array([w.crisis for w in worlds]),
        budget=_budgets(worlds, drawn, budget),
        normal=_normal_table(),
        **copied,
    )


def _stacked(worlds: Sequence[World], part: str, name: str) -> Floats:
    """Return one number or array of a part of every world, with the axis of worlds in front."""
    return np.array([getattr(getattr(world, part), name) for world in worlds], np.float64)


class _Population:
    """The users of one world, and the hours and numbers of auctions of its steps."""

    def __init__(self, world: World, steps: int, auctions_per_step: float, seed: int) -> None:
        users, period = world.users, world.time_period
        rng = generator(seed, Purpose.WORLD, agent=len(Part) + 1, world=world.index)
        segment = np.searchsorted(np.cumsum(users.share)[:-1], rng.random(users.count), side="right")
        self.segment = np.sort(segment)
        edges = np.cumsum(users.device[self.segment], axis=1)[:, :-1]
        self.device = (rng.random((users.count, 1)) >= edges).sum(axis=1)
        mean = users.interest[self.segment]
        most = mean * (1.0 - mean)  # the largest variance that a beta distribution of this mean can have
        size = most / np.minimum(users.interest_spread[self.segment] ** 2, 0.99 * most) - 1.0
        self.interest = rng.beta(np.maximum(size * mean, 1e-3), np.maximum(size * (1.0 - mean), 1e-3))
        counts = np.bincount(self.segment, minlength=len(users.share))
        self.segment_first = np.concatenate([[0], np.cumsum(counts)])
        activity = np.cumsum(counts * users.activity)
        self.segment_edge = activity / activity[-1]  # exactly 1 from the last segment that has users

        self.step_hours = period.hours / steps
        self.hour = (period.start + self.step_hours * (np.arange(steps) + 0.5)) % len(period.volume)
        self.auctions = auctions_per_step * world.auction_pressure.volume * _mean_volume(world, steps)


def _mean_volume(world: World, steps: int) -> Floats:
    """Return the mean volume (steps,) of the hours that each step covers."""
    period = world.time_period
    total = np.concatenate([[0.0], np.cumsum(np.tile(period.volume, 2 + int(period.hours) // len(period.volume)))])
    edges = period.start + period.hours * np.arange(steps + 1) / steps
    below = np.floor(edges).astype(np.int64)
    area = total[below] + (edges - below) * (total[below + 1] - total[below])
    return np.asarray(np.diff(area) * steps / period.hours)


def _budgets(worlds: Sequence[World], drawn: Sequence[_Population], budget: float | Floats | None) -> Floats:
    """Return the budgets (W,): the given ones, or what is usually spent on as many auctions."""
    if budget is None:
        return np.array([w.auction_pressure.spend * p.auctions.sum() for w, p in zip(worlds, drawn, strict=True)])
    budgets = np.broadcast_to(np.asarray(budget, np.float64), len(worlds)).copy()
    if not (budgets > 0).all() or not np.isfinite(budgets).all():
        raise ConfigError(f"budget {float(budgets.min())} is not positive and finite: give an amount above 0")
    return budgets


def _normal_table() -> Floats:
    """Return the normal quantiles at 0, 1/1024, …, 1; the two ends are set so that the mean of each tail is right."""
    inner = [NormalDist().inv_cdf(i / _QUANTILE_CELLS) for i in range(1, _QUANTILE_CELLS)]
    end = 2.0 * NormalDist().inv_cdf(1.0 - 0.25 / _QUANTILE_CELLS) - inner[-1]
    return np.array([-end, *inner, end])


def _check_worlds(worlds: Sequence[World]) -> None:
    """Raise an error that names the first world that cannot be simulated, and why."""
    if not worlds:
        raise ConfigError("no worlds were given: give at least one")
    head = worlds[0]
    for world in worlds:
        for name in _SAME_NAMES:
            if getattr(world, name) != getattr(head, name):
                raise ConfigError(
                    f"world {world.index} has {name} {getattr(world, name)}, world {head.index} has "
                    f"{getattr(head, name)}: worlds of one batch must come from the same patterns"
                )
        for part in _POSITIVE | _NOT_NEGATIVE:
            for name, value in vars(getattr(world, part)).items():
                if not np.isfinite(value).all():
                    raise NonFiniteError(f"world {world.index}: {part}.{name} is not finite: {value}")
        for wrong, table, rule in ((np.less_equal, _POSITIVE, "positive"), (np.less, _NOT_NEGATIVE, "0 or more")):
            for part, name in ((part, name) for part, names in table.items() for name in names):
                value = getattr(getattr(world, part), name)
                if wrong(value, 0).any():
                    raise ConfigError(f"world {world.index}: {part}.{name} must be {rule}: found {np.min(value)}")
        if world.users.count < 1:
            raise ConfigError(f"world {world.index}: users.count must be positive: found {world.users.count}")


def empty_state(p: Parameters, bidders: int) -> State:
    """Return the state before the first step of an episode."""
    worlds, rivals = p.participation.shape
    users, steps = int(p.first[-1]), p.auctions.shape[1]

    return State(
        spent=np.zeros((bidders, worlds)),
        shown=np.zeros((bidders, worlds, p.click_rate.shape[1])),
        drift=np.zeros(worlds),
        shift=np.zeros((worlds, rivals)),
        day_spend=np.zeros((worlds, rivals)),
        mean_spend=np.zeros((worlds, rivals)),
        total_error=np.zeros((worlds, rivals)),
        last_error=np.zeros((worlds, rivals)),
        day_bid=np.zeros((worlds, 2)),
        days=np.zeros(worlds, np.int64),
        visits=np.zeros(users, np.uint8),
        touches=np.zeros(users, np.uint8),
        touch=np.zeros((users, MAX_TOUCHES), np.int16),
        due=np.full(users, -1, np.int32),
        value=np.zeros(users),
        after=np.full(users, -1, np.int32),
        before=np.full(users, -1, np.int32),
        head=np.full((worlds, steps), -1, np.int32),
    )


def empty_outcome(p: Parameters, bidders: int) -> Outcome:
    """Return the outcome of no step: zeros."""
    worlds, campaigns = p.mechanism.shape
    per_bidder, per_world = (bidders, worlds), (worlds, 2)
    shapes: dict[str, tuple[int, ...]] = {"auctions": (worlds, campaigns), "crisis_auctions": (worlds,)}
    shapes |= dict.fromkeys(("crisis_credits", "conversions"), per_bidder)
    shapes |= dict.fromkeys(("scheduled", "superseded", "delivered"), per_world)
    return Outcome(*(np.zeros(shapes.get(name, (bidders, worlds, campaigns))) for name in Outcome._fields))
