"""Bidders to compare with: random, the best constant, a PID pacer, and a pacer that knows the world (oracle).

    baselines = fit_baselines(worlds)                  # constants and gains that do best in these worlds
    results = play(MarketWorlds(unseen), baselines["pid pacer"], epochs=range(5))

A bidder offers `alpha` × the predicted value of a click, in every campaign. Constants and gains are chosen in training
worlds, by score or by profit. The oracle reads the parameters of the world, and its settings are searched for every
world, budget and target in other episodes, with other random numbers; it looks for the highest score.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from parallel_agents.core.seeding import Purpose, generator, uniforms
from parallel_agents.core.types import Floats, Ints
from parallel_agents.market.actions import Objective
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import World

ALPHAS = tuple(float(a) for a in np.geomspace(0.03, 1.5, 12))
"""Multiples of the predicted value that constants are chosen from."""
_FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)  # tried on the alpha of a single campaign
_FIRST_SEARCH_EPOCH = 1_000_000  # episodes in which the oracle looks for its settings: none is ever played for a score
_POPULATION, _ELITE = 16, 4  # settings that the oracle tries in a generation, and those that the next one is drawn from


class Bidder(Protocol):
    """What acts in a market: it sees the same as an agent, and may remember what it did."""

    def begin(self, market: MarketWorlds) -> None:
        """Prepare for an episode."""

    def act(self, market: MarketWorlds) -> tuple[Floats, Ints]:
        """Return alphas (N, W, J) and creatives (N, W)."""


Tried = TypeVar("Tried", bound=Bidder)


@dataclass
class Constant:
    """The same alphas, a number, (J,) or (W, J), and the same creative, a number or (W,), at every step."""

    alpha: float | Floats
    creative: int | Ints = 0

    def begin(self, market: MarketWorlds) -> None:
        """Do nothing."""

    def act(self, market: MarketWorlds) -> tuple[Floats, Ints]:
        shape = (market.bidders, len(market.worlds))
        alpha = np.asarray(self.alpha, np.float64)
        return np.broadcast_to(alpha, (*shape, market.campaigns)), np.broadcast_to(np.asarray(self.creative), shape)


@dataclass
class Random:
    """Any of `ALPHAS` for each campaign, and any creative, at every step."""

    seed: int = 0
    _step: int = 0

    def begin(self, market: MarketWorlds) -> None:
        self._step = 0

    def act(self, market: MarketWorlds) -> tuple[Floats, Ints]:
        shape = (market.bidders, len(market.worlds))
        worlds = [world.index for world in market.worlds]
        u = uniforms(
            [self.seed] * market.bidders, Purpose.NOISE, range(market.bidders), worlds,
            epoch=self._step, turns=1, slots=market.campaigns + 1,
        )[0]  # fmt: skip
        self._step += 1
        u = u.reshape(*shape, market.campaigns + 1)
        alpha = np.array(ALPHAS)[(u[..., :-1] * len(ALPHAS)).astype(np.int64)]
        return alpha, (u[..., -1] * market.creatives).astype(np.int64)


@dataclass
class PIDPacer:
    """Spends the budget evenly over the expected auctions; one level for all campaigns, moved by PID control.

    The error of a step is the log of what should have been spent over what was. `cap` limits alpha to a multiple of the
    target: a click that costs more than the target allows is not worth its price. Numbers may be (W,), `mix` (W, J).
    """

    start: float | Floats = 0.2
    proportional: float = 0.2
    integral: float = 0.2
    derivative: float = 0.0
    cap: float | Floats = 1.0
    mix: float | Floats = 1.0  # (J,) relative to that level
    creative: int | Ints = 0
    _level: Floats = field(default_factory=lambda: np.zeros(0))
    _last: Floats = field(default_factory=lambda: np.zeros(0))

    def begin(self, market: MarketWorlds) -> None:
        shape = (market.bidders, len(market.worlds))
        self._level, self._last = np.broadcast_to(np.log(self.start), shape), np.zeros(shape)

    def act(self, market: MarketWorlds) -> tuple[Floats, Ints]:
        p, t, shape = market.parameters, market.step_number, self._level.shape
        error = np.zeros(shape)
        if t > 0:
            plan = self._plan(market)
            before = p.budget - market.state.spent + market.last.cost.sum(axis=2)
            due = np.maximum(before * plan[:, t - 1] / plan[:, t - 1 :].sum(axis=1), 1e-9)
            error = np.clip(np.log((due + 0.2 * due) / (market.last.cost.sum(axis=2) + 0.2 * due)), -1.0, 1.0)
        self._level = self._level + self.integral * error
        log_alpha = self._level + self.proportional * error + self.derivative * (error - self._last)
        self._last = error
        limit = np.log(self.cap * p.target)
        alpha = np.exp(np.minimum(log_alpha, limit))
        self._level = np.minimum(self._level, limit)  # no windup beyond the cap
        mixed = np.broadcast_to(alpha[..., None] * self.mix, (*shape, market.campaigns))
        return mixed, np.broadcast_to(np.asarray(self.creative), shape)

    def _plan(self, market: MarketWorlds) -> Floats:
        """Return how the spend is divided among the steps (W, T): by the expected auctions."""
        return market.parameters.auctions


@dataclass
class Oracle(PIDPacer):
    """A pacer that knows its world: when clicks convert, what rivals bid by the hour, and whom a creative attracts.

    Each number is (W,). by_value and by_price are exponents of the hour's conversion and of its prices in the bids,
    by_hour that of the hour's conversion in the planned spend. The creative shown is the one with the highest click
    rate × conversion ** `buyers`, after its wear.
    """

    by_value: float | Floats = 1.0
    by_price: float | Floats = 0.0
    by_hour: float | Floats = 1.0
    buyers: float | Floats = 2.0

    def begin(self, market: MarketWorlds) -> None:
        super().begin(market)
        p = market.parameters
        segments = np.diff(p.segment_edge, axis=1, prepend=0.0)
        converts = p.base * (np.diff(p.campaign_edge, axis=2, prepend=0.0) * p.channel_factor[:, None]).sum(axis=2)
        clicks = (segments[..., None] * p.segment_factor).sum(axis=1)
        bought = ((segments * converts)[..., None] * p.segment_factor).sum(axis=1)
        self._appeal = np.log(p.click_rate * clicks) + np.reshape(self.buyers, (-1, 1)) * np.log(bought / clicks)

    def act(self, market: MarketWorlds) -> tuple[Floats, Ints]:
        alpha, _ = super().act(market)
        p, t = market.parameters, market.step_number
        value, price = np.reshape(self.by_value, (-1, 1)), np.reshape(self.by_price, (-1, 1))
        worn = p.fatigue[:, None] * market.state.shown
        known = alpha * p.hour_factor[:, t] ** value * np.exp(price * p.hour_price[:, t])
        return known, (self._appeal - worn).argmax(-1)

    def _plan(self, market: MarketWorlds) -> Floats:
        p = market.parameters
        return np.asarray(p.auctions * np.exp(np.reshape(self.by_hour, (-1, 1)) * np.log(p.hour_factor).mean(axis=2)))


@dataclass(frozen=True, eq=False)
class Played:
    """Results of a bidder: (W, episodes) each."""

    score: Floats
    profit: Floats  # over budget
    value: Floats
    crisis_value: Floats
    spent: Floats  # share of the budget

    def by_world(self, figure: str = "score") -> Floats:
        """Return the mean of a figure in every world (W,)."""
        return np.asarray(getattr(self, figure).mean(axis=1))


def steps_of(market: MarketWorlds, bidder: Bidder, epoch: int) -> Iterator[Floats]:
    """Let a bidder play an episode, and yield its alphas (N, W, J) after every step."""
    market.reset(epoch)
    bidder.begin(market)
    while not market.done:
        alpha, creative = bidder.act(market)
        market.step(alpha * market.parameters.predicted_value, creative)
        yield alpha


def play(market: MarketWorlds, bidder: Bidder, epochs: Iterable[int]) -> Played:
    """Return the results of the first bidder of every world in some episodes."""
    rows = []
    for epoch in epochs:
        for _ in steps_of(market, bidder, epoch):
            pass
        info, budget = market.info(episode=True), market.parameters.budget
        _, value, crisis_value = market.total.caused[0].T.copy()
        profit = (value - info["cost"][0]) / budget
        rows.append((info["score"][0], profit, value, crisis_value, info["cost"][0] / budget))
    return Played(*(np.array(column).T for column in zip(*rows, strict=True)))


class _Search(Generic[Tried]):
    """The candidate with the highest mean score (or profit) in some episodes, of those tried so far."""

    def __init__(self, market: MarketWorlds, epochs: Sequence[int], by: Objective, start: Tried) -> None:
        self._market, self._epochs, self._by = market, epochs, by
        self.best, self._top = start, -np.inf

    def attempt(self, candidate: Tried) -> None:
        """Play a candidate, and keep it if it does better."""
        score = float(play(self._market, candidate, self._epochs).by_world(self._by).mean())
        if score > self._top:
            self.best, self._top = candidate, score


def best_constant(market: MarketWorlds, epochs: Sequence[int], by: Objective = "score") -> Constant:
    """Return the constant that does best by score or profit: alpha, creative, then alpha of each campaign, twice."""
    search = _Search(market, epochs, by, Constant(ALPHAS[0]))
    for alpha in ALPHAS:
        search.attempt(Constant(alpha))
    for creative in range(1, market.creatives):
        search.attempt(replace(search.best, creative=creative))
    for _ in range(2):
        for j in range(market.campaigns):
            alphas = np.broadcast_to(np.asarray(search.best.alpha, np.float64), (market.campaigns,))
            for factor in _FACTORS:
                search.attempt(replace(search.best, alpha=_times(alphas, j, factor)))
    return search.best


def _times(numbers: Floats, j: int, factor: float) -> Floats:
    """Return the numbers (J,) with a factor on the one of campaign j."""
    return np.where(np.arange(len(numbers)) == j, factor, 1.0) * numbers


def best_pacer(market: MarketWorlds, epochs: Sequence[int], constant: Constant, by: Objective = "score") -> PIDPacer:
    """Return the pacer that does best by score or profit, with the creative of a constant and at first its mix."""
    alpha = np.broadcast_to(np.asarray(constant.alpha, np.float64), (market.campaigns,))
    mix = alpha / np.exp(np.log(alpha).mean())
    search = _Search(market, epochs, by, PIDPacer(mix=mix, creative=constant.creative))
    choices: tuple[tuple[str, tuple[float, ...]], ...] = (
        ("start", (0.01, 0.02, 0.03, 0.05, 0.1, 0.2)),
        ("cap", (0.002, 0.003, 0.0045, 0.006, 0.008, 0.012, 0.02)),
        ("integral", (0.05, 0.1, 0.4)),
        ("proportional", (0.0, 0.5)),
        ("derivative", (0.1,)),
    )
    for name, values in choices:
        for value in values:
            search.attempt(replace(search.best, **{name: value}))  # type: ignore[arg-type]
    for j in range(market.campaigns):
        mix = np.asarray(search.best.mix)
        for factor in _FACTORS:
            search.attempt(replace(search.best, mix=_times(mix, j, factor)))
    return search.best


def oracle(market: MarketWorlds, epoch: int, baselines: Mapping[str, Bidder], *, generations: int = 6) -> Oracle:
    """Return the oracle of every world for the budget and target of an episode: cross-entropy search from the pacer."""
    pacer = baselines["pid pacer"]
    assert isinstance(pacer, PIDPacer)
    market.reset(epoch)
    given = market.budget, market.target
    market.budget, market.target = market.parameters.budget.copy(), market.parameters.target.copy()
    worlds, campaigns = len(market.worlds), market.campaigns
    mix = np.broadcast_to(np.log(pacer.mix), (campaigns,))
    centre = np.tile(np.concatenate([[np.log(pacer.start), np.log(pacer.cap)], mix, [1.0, 0.0, 1.0, 2.0]]), (worlds, 1))
    spread = np.tile(np.concatenate([[0.5, 0.5], np.full(campaigns, 0.4), [0.4, 0.3, 0.4, 0.5]]), (worlds, 1))
    rng = generator(0, Purpose.NOISE, epoch=epoch)
    try:
        for generation in range(generations):
            tried = centre + spread * rng.standard_normal((_POPULATION, *centre.shape))
            tried[0] = centre
            scores = np.zeros((_POPULATION, worlds))
            for i, settings in enumerate(tried):
                for other in range(2):
                    play(market, _informed(pacer, settings), [_FIRST_SEARCH_EPOCH + 2 * generation + other])
                    scores[i] += market.score(expected=True)[0]
            best = np.take_along_axis(tried, np.argsort(-scores, axis=0)[:_ELITE, :, None], axis=0)
            centre = 0.4 * centre + 0.6 * best.mean(axis=0)
            spread = 0.4 * spread + 0.6 * (best.std(axis=0) + 0.05)
    finally:
        market.budget, market.target = given
    return _informed(pacer, centre)


def _informed(pacer: PIDPacer, settings: Floats) -> Oracle:
    """Return the oracle of settings (W, 6 + J): start, cap and mix as logarithms, then the four exponents."""
    exponents = dict(zip(("by_value", "by_price", "by_hour", "buyers"), settings[:, -4:].T, strict=True))
    start, cap, mix = np.exp(settings[:, 0]), np.exp(settings[:, 1]), np.exp(settings[:, 2:-4])
    gains = (pacer.proportional, pacer.integral, pacer.derivative)
    return Oracle(start, *gains, cap=cap, mix=mix, **exponents)


def fit_baselines(
    worlds: Sequence[World], epochs: Sequence[int] = (0, 1, 2), by: Objective = "score", **options: object
) -> dict[str, Bidder]:
    """Return random play, the best constant and the best pacer of some worlds; options are those of `MarketWorlds`."""
    with MarketWorlds(worlds, **options) as market:  # type: ignore[arg-type]
        constant = best_constant(market, epochs, by)
        pacer = best_pacer(market, epochs, constant, by)
    return {"random": Random(), "best constant": constant, "pid pacer": pacer}


def compare_baselines(
    baselines: Mapping[str, Bidder], market: MarketWorlds, epochs: Sequence[int]
) -> dict[str, Played]:
    """Return the results of baselines, and of the oracle, in the same episodes of a market's worlds."""
    results = {name: play(market, bidder, epochs) for name, bidder in baselines.items()}
    known = [play(market, oracle(market, epoch, baselines), [epoch]) for epoch in epochs]
    columns = {f.name: np.hstack([getattr(one, f.name) for one in known]) for f in fields(Played)}
    results["oracle"] = Played(**columns)
    return results
