"""The arrays of stacked worlds: constants (`Parameters`), what changes (`State`), results of a step (`Outcome`).

Letters of the shapes: worlds W, bidders N, segments K, devices D, campaigns J, creatives C, positions S, rivals M,
steps T. The users of all worlds are rows of the same arrays, world after world and sorted by segment within a world;
`first[w]` is the first row of world w.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import ConfigError, NonFiniteError
from parallel_agents.core.seeding import Purpose, draw, generator, key, uniform, uniforms
from parallel_agents.core.types import Floats, Ints
from parallel_agents.kernels.functions import each, exp, log, normal, normal_quantile
from parallel_agents.market.worlds import Part, TimeWindow, World

MAX_TOUCHES = 8  # clicks kept of a journey: the first one and the latest ones
_QUANTILE_CELLS = 1024
_HOURS_PER_DAY = 24.0
_TYPES = {"visits": np.uint8, "touches": np.uint8, "touch": np.int16} | dict.fromkeys(
    ("due", "after", "before", "head"), np.int32
)
"""Types of the arrays of `State` that are not float64; in those of int32, -1 stands for nothing."""
_SAME_NAMES = ("segments", "devices", "campaigns", "creatives", "rivals")  # equal in all worlds of a batch
_POSITIVE = {
    "users": ("share", "activity"),
    "competitors": ("spread",),
    "market_state": ("usual_bid", "predicted_value"),
    "time_period": ("volume",),
    "auction_pressure": ("auctions", "volume", "budget", "target"),
    "conversion_dynamics": ("value_log_spread", "delay_hours", "delay_shape"),
}
_NOT_NEGATIVE = {
    "users": ("device", "interest"),
    "market_state": ("reserve", "campaign_share", "channel_factor", "volatility"),
    "competitors": ("participation",),
    "creative_variance": ("click_rate", "segment_factor", "fatigue", "position"),
    "conversion_dynamics": ("base", "hour_factor", "device_factor", "visit_factor"),
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
    predicted_value: Floats  # (W, J) of a click
    hour_price: Floats  # (W, T, J) shift of the rivals' log bids
    hour_factor: Floats  # (W, T, J) of conversion
    volatility: Floats  # (W,) per step
    auctions: Floats  # (W, T) expected number in a step
    hour: Floats  # (W, T) hour of the week
    hours_per_step: Floats  # (W,)
    click_rate: Floats  # (W, C)
    segment_factor: Floats  # (W, K, C) of the click rate
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
    budget: Floats  # (W,) of the current episode
    target: Floats  # (W,) cost of an acquisition to aim at, of the current episode
    normal: Floats  # quantiles of the standard normal distribution at equal steps


class State(NamedTuple):
    """What changes during an episode."""

    spent: Floats  # (N, W)
    shown: Floats  # (N, W, C) impressions by creative
    clicked: Floats  # (N, W, C) clicks by creative
    pace: Floats  # (N, W) log alpha that would spend the budget evenly, moved after every step
    alpha: Floats  # (N, W, J) log of the last bid over the predicted value, 0 before the first
    drift: Floats  # (W,) common change of the rivals' log bids
    shift: Floats  # (W, M) change of a rival's log bid: response and pacing
    step_spend: Floats  # (W, M) of the current step
    recent_spend: Floats  # (W, M) per auction, exponential mean over about a day
    mean_spend: Floats  # (W, M) per auction, since the beginning
    total_error: Floats  # (W, M) in days
    last_error: Floats
    recent_bid: Floats  # (W,) our log bids relative to the usual ones, exponential mean over about a day
    held: Floats  # (W,) auctions so far
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

    every: Floats  # all numbers: the others are views of it
    auctions: Floats  # (W, J)
    impressions: Floats  # (N, W, J)
    clicks: Floats  # (N, W, J)
    cost: Floats  # (N, W, J)
    credits: Floats  # (N, W, J) purchase value attributed to the bidder
    crisis_credits: Floats  # (N, W) the part of it from crisis parents
    conversions: Floats  # (N, W, J) by last click
    caused: Floats  # (N, W, 3) purchases that clicks of this step lead to: number, value, value from crisis parents
    expected: Floats  # (N, W) the number of these purchases with the probability of each click in place of its draw
    scheduled: Floats  # (W, 2) number and value of purchases that were scheduled
    superseded: Floats  # (W, 2) of those replaced because of a newer click
    delivered: Floats  # (W, 2) of those that arrived
    crisis_auctions: Floats  # (W,)


def stack_worlds(
    worlds: Sequence[World], *, steps: int, decisions_per_day: int, auctions_per_step: float | None, seed: int
) -> Parameters:
    """Return the parameters of checked worlds; the population of each is drawn here, from the world's own stream."""
    _check_worlds(worlds)
    step_hours = _HOURS_PER_DAY / decisions_per_day
    drawn = [_Population(world, steps, step_hours, auctions_per_step, seed) for world in worlds]
    parts = ((part, vars(getattr(worlds[0], part))) for part in _POSITIVE | _NOT_NEGATIVE)
    own = {name: _stacked(worlds, part, name) for part, names in parts for name in names if name in Parameters._fields}
    hour = np.array([p.hour for p in drawn])
    of_day = (hour % _HOURS_PER_DAY).astype(np.int64)
    row = np.arange(len(worlds))[:, None]
    own |= {
        "world": np.array([w.index for w in worlds], np.uint64),
        "first": np.concatenate([[0], np.cumsum([w.users.count for w in worlds])]),
        "user_segment": np.concatenate([p.segment for p in drawn]).astype(np.uint8),
        "user_device": np.concatenate([p.device for p in drawn]).astype(np.uint8),
        "user_interest": np.concatenate([p.interest for p in drawn]).astype(np.float32),
        "segment_first": np.array([p.segment_first for p in drawn]),
        "segment_edge": np.array([p.segment_edge for p in drawn]),
        "reserve": each(log, np.maximum(own["reserve"], 1e-12)),
        "campaign_edge": np.cumsum(_stacked(worlds, "market_state", "campaign_share"), axis=2),
        "usual_bid": each(log, own["usual_bid"]),
        "hour_price": own["hour_price"][row, of_day],
        "hour_factor": own["hour_factor"][row, of_day],
        "volatility": own["volatility"] * np.sqrt(step_hours / _HOURS_PER_DAY),
        "auctions": np.array([p.auctions for p in drawn]),
        "hour": hour,
        "hours_per_step": np.full(len(worlds), step_hours),
        "fatigue": own["fatigue"] / np.array([w.users.count for w in worlds]),
        "crisis": np.array([w.crisis for w in worlds]),
        "budget": np.ones(len(worlds)),
        "target": np.ones(len(worlds)),
        "normal": _normal_table(),
    }
    return Parameters(**own)


def _stacked(worlds: Sequence[World], part: str, name: str) -> NDArray[Any]:
    """Return one number or array of a part of every world, with the axis of worlds in front."""
    return np.array([getattr(getattr(world, part), name) for world in worlds])


class _Population:
    """The users of one world, and the hours and numbers of auctions of its steps."""

    def __init__(self, world: World, steps: int, step_hours: float, auctions_per_step: float | None, seed: int) -> None:
        users, period, pressure = world.users, world.time_period, world.auction_pressure
        rng = generator(seed, Purpose.WORLD, agent=len(Part) + 1, world=world.index)
        segment = np.searchsorted(np.cumsum(users.share)[:-1], rng.random(users.count), side="right")
        self.segment = np.sort(segment)
        edges = np.cumsum(users.device[self.segment], axis=1)[:, :-1]
        self.device = (rng.random((users.count, 1)) >= edges).sum(axis=1)
        mean = users.interest[self.segment]
        most = mean * (1.0 - mean)  # the largest variance that a beta distribution of this mean can have
        size = most / np.minimum(users.interest_spread[self.segment] ** 2, 0.99 * most) - 1.0
        keys = np.array(key(seed, Purpose.WORLD, len(Part) + 3), np.uint64)
        shapes = np.maximum(size * mean, 1e-3), np.maximum(size * (1.0 - mean), 1e-3)
        self.interest = _beta_numbers(*shapes, keys, np.uint64(world.index))
        counts = np.bincount(self.segment, minlength=len(users.share))
        self.segment_first = np.concatenate([[0], np.cumsum(counts)])
        activity = np.cumsum(counts * users.activity)
        self.segment_edge = activity / activity[-1]  # exactly 1 from the last segment that has users

        self.hour = (period.start + step_hours * (np.arange(steps) + 0.5)) % len(period.volume)
        usual = pressure.auctions * users.count * step_hours / _HOURS_PER_DAY
        base = usual if auctions_per_step is None else auctions_per_step
        self.auctions = base * pressure.volume * _mean_volume(period, steps, step_hours)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _beta_numbers(a: Floats, b: Floats, keys: NDArray[np.uint64], world: np.uint64) -> Floats:
    """Return a beta number of each pair of shapes: that share of a gamma number in the sum of two."""
    out = np.empty(len(a))
    for i in range(len(a)):
        first = _log_gamma_number(a[i], keys, np.uint64(i), np.uint64(0), world)
        second = _log_gamma_number(b[i], keys, np.uint64(i), np.uint64(1), world)
        out[i] = 1.0 / (1.0 + exp(second - first))
    return out


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _log_gamma_number(
    shape: float, keys: NDArray[np.uint64], epoch: np.uint64, turn: np.uint64, world: np.uint64
) -> float:
    """Return the logarithm of a gamma number. Marsaglia and Tsang 2000; a rejection draws the next block of words."""
    d = (shape if shape >= 1.0 else shape + 1.0) - 1.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    block = np.uint64(0)
    while True:
        words = draw(keys[0], keys[1], block, turn, epoch, world)
        x = normal(uniform(words[0]), uniform(words[1]))
        v = (1.0 + c * x) * (1.0 + c * x) * (1.0 + c * x)
        if v > 0.0 and log(1.0 - uniform(words[2])) < 0.5 * x * x + d - d * v + d * log(v):
            return float(log(d * v) + (0.0 if shape >= 1.0 else log(1.0 - uniform(words[3])) / shape))
        block += np.uint64(1)


def _mean_volume(period: TimeWindow, steps: int, step_hours: float) -> Floats:
    """Return the mean volume (steps,) of the hours that each step covers."""
    week = len(period.volume)
    total = np.concatenate([[0.0], np.cumsum(np.tile(period.volume, 2 + int(steps * step_hours) // week))])
    edges = period.start + step_hours * np.arange(steps + 1)
    below = np.floor(edges).astype(np.int64)
    area = total[below] + (edges - below) * (total[np.minimum(below + 1, len(total) - 1)] - total[below])
    return np.asarray(np.diff(area) / step_hours)


def episode_goals(
    worlds: Sequence[World], p: Parameters, *, budget: float | Floats | None, target: float | Floats | None,
    seed: int, epoch: int,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return budgets (W,) and targets (W,) of an episode: the given ones, or drawn log-uniformly from the data's range.

    A budget is drawn per expected auction.
    """
    indices = [world.index for world in worlds]
    u = uniforms([seed], Purpose.WORLD, [len(Part) + 2], indices, epoch=epoch, turns=1, slots=2)[0, 0]
    goals = []
    for i, (name, given) in enumerate((("budget", budget), ("target", target))):
        low, high = each(log, _stacked(worlds, "auction_pressure", name)).T
        goal = each(exp, low + u[:, i] * (high - low))
        if name == "budget":
            goal = goal * p.auctions.sum(axis=1)
        if given is not None:
            goal = np.broadcast_to(np.asarray(given, np.float64), len(worlds))
            if not (goal > 0).all() or not np.isfinite(goal).all():
                raise ConfigError(f"{name} {float(goal.min())} is not positive and finite: give one above 0")
        goals.append(goal)
    return goals[0], goals[1]


def _normal_table() -> Floats:
    """Return the normal quantiles at 0, 1/1024, …, 1; the two ends are set so that the mean of each tail is right."""
    inner = [normal_quantile(i / _QUANTILE_CELLS) for i in range(1, _QUANTILE_CELLS)]
    end = 2.0 * normal_quantile(1.0 - 0.25 / _QUANTILE_CELLS) - inner[-1]
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
    """Return arrays for the state of worlds; `reset_state` fills them."""
    worlds, rivals = p.participation.shape
    users, steps, per_bidder = int(p.first[-1]), p.auctions.shape[1], (bidders, worlds)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("spent", "pace"), per_bidder)
    shapes |= dict.fromkeys(("shown", "clicked"), (*per_bidder, p.click_rate.shape[1]))
    shapes |= {"alpha": (*per_bidder, p.mechanism.shape[1]), "touch": (users, MAX_TOUCHES), "head": (worlds, steps)}
    shapes |= dict.fromkeys(("drift", "recent_bid", "held"), (worlds,))
    shapes |= dict.fromkeys(("visits", "touches", "due", "value", "after", "before"), (users,))
    return State(
        *(np.zeros(shapes.get(name, (worlds, rivals)), _TYPES.get(name, np.float64)) for name in State._fields)
    )


def reset_state(p: Parameters, s: State) -> None:
    """Set all worlds back to the beginning of an episode; the first pace is the usual bids over their values."""
    for array in s:
        array[...] = -1 if array.dtype == np.int32 else 0
    s.pace[:] = (p.usual_bid - each(log, p.predicted_value)).cumsum(axis=1)[:, -1] / p.usual_bid.shape[1]


def empty_outcome(p: Parameters, bidders: int) -> Outcome:
    """Return the outcome of no step: zeros."""
    worlds, campaigns = p.mechanism.shape
    shapes: dict[str, tuple[int, ...]] = {"auctions": (worlds, campaigns), "crisis_auctions": (worlds,)}
    shapes |= {
        "crisis_credits": (bidders, worlds),
        "caused": (bidders, worlds, 3),
        "expected": (bidders, worlds),
    }
    shapes |= dict.fromkeys(("scheduled", "superseded", "delivered"), (worlds, 2))
    own = [shapes.get(name, (bidders, worlds, campaigns)) for name in Outcome._fields[1:]]
    ends = np.cumsum([math.prod(shape) for shape in own])
    every = np.zeros(ends[-1])
    parts = np.split(every, ends[:-1])
    return Outcome(every, *(part.reshape(shape) for part, shape in zip(parts, own, strict=True)))
