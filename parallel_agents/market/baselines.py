"""Bidders to compare with: random, the best constant, a PID pacer, and the best constant of every world (oracle).

    baselines = fit_baselines(worlds)                  # constants and gains that do best in these worlds
    results = play(MarketWorlds(unseen), baselines["pid pacer"], epochs=range(5))

A bidder offers `alpha` × the predicted value of a click, in every campaign. Constants and gains are chosen in training
worlds. The oracle knows the world, its budget and its target: it takes the constant that does best there in other
episodes, with other random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose, uniforms
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.world_types import World

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALPHAS = tuple(float(a) for a in np.geomspace(0.03, 1.5, 12))
"""Multiples of the predicted value that constants are chosen from."""
_FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)  # tried on the alpha of a single campaign
_FIRST_SEARCH_EPOCH = 1_000_000  # episodes in which the oracle looks for its constants: none is ever played for a score


class Bidder(Protocol):
    """What acts in a market: it sees the same as an agent, and may remember what it did."""

    def begin(self, market: MarketWorlds) -> None:
        """Prepare for an episode."""

    def act(self, market: MarketWorlds) -> tuple[Floats, Ints]:
        """Return alphas (N, W, J) and creatives (N, W)."""


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
    target: a click that costs more than the target allows is not worth its price.
    """

    start: float = 0.2
    proportional: float = 0.2
    integral: float = 0.2
    derivative: float = 0.0
    cap: float = 1.0
    mix: float | Floats = 1.0  # (J,) relative to that level
    creative: int | Ints = 0
    _level: Floats = field(default_factory=lambda: np.zeros(0))
    _last: Floats = field(default_factory=lambda: np.zeros(0))

    def begin(self, market: MarketWorlds) -> None:
        shape = (market.bidders, len(market.worlds))
        self._level, self._last = np.full(shape, np.log(self.start)), np.zeros(shape)

    def act(self, market: MarketWorlds) -> tuple[Floats, Ints]:
        p, t, shape = market.parameters, market.step_number, self._level.shape
        error = np.zeros(shape)
        if t > 0:
            auctions = p.auctions[:, t - 1] / p.auctions[:, t - 1 :].sum(axis=1)
            before = p.budget - market.state.spent + market.last.cost.sum(axis=2)
            due = np.maximum(before * auctions, 1e-9)
            error = np.clip(np.log((due + 0.2 * due) / (market.last.cost.sum(axis=2) + 0.2 * due)), -1.0, 1.0)
        self._level = self._level + self.integral * error
        log_alpha = self._level + self.proportional * error + self.derivative * (error - self._last)
        self._last = error
        limit = np.log(self.cap * p.target)
        alpha = np.exp(np.minimum(log_alpha, limit))
        self._level = np.minimum(self._level, limit)  # no windup beyond the cap
        mixed = np.broadcast_to(alpha[..., None] * self.mix, (*shape, market.campaigns))
        return mixed, np.broadcast_to(np.asarray(self.creative), shape)


@dataclass(frozen=True, eq=False)
class Played:
    """Results of a bidder: (W, episodes) each."""

    score: Floats
    profit: Floats  # over budget
    value: Floats
    crisis_value: Floats
    spent: Floats  # share of the budget

    @property
    def by_world(self) -> Floats:
        """Mean score of every world (W,)."""
        return np.asarray(self.score.mean(axis=1))


def play(market: MarketWorlds, bidder: Bidder, epochs: Iterable[int]) -> Played:
    """Return the results of the first bidder of every world in some episodes."""
    rows = []
    for epoch in epochs:
        market.reset(epoch)
        bidder.begin(market)
        while not market.done:
            alpha, creative = bidder.act(market)
            market.step(alpha * market.parameters.predicted_value, creative)
        info, budget = market.info(episode=True), market.parameters.budget
        _, value, crisis_value = market.total.caused[0].T.copy()
        profit = (value - info["cost"][0]) / budget
        rows.append((info["score"][0], profit, value, crisis_value, info["cost"][0] / budget))
    return Played(*(np.array(column).T for column in zip(*rows, strict=True)))


def best_constant(market: MarketWorlds, epochs: Sequence[int], *, per_campaign: bool = True) -> Constant:
    """Return the constant of the highest mean score: alpha, then creative, then alpha of each campaign, twice."""
    best, top = Constant(ALPHAS[0]), -np.inf

    def attempt(candidate: Constant) -> None:
        nonlocal best, top
        score = float(play(market, candidate, epochs).score.mean())
        if score > top:
            best, top = candidate, score

    for alpha in ALPHAS:
        attempt(Constant(alpha))
    for creative in range(1, market.creatives):
        attempt(replace(best, creative=creative))
    alphas = np.full(market.campaigns, float(np.asarray(best.alpha).max()))
    for _ in range(2 if per_campaign else 0):
        for j in range(market.campaigns):
            for factor in _FACTORS:
                changed = alphas.copy()
                changed[j] *= factor
                attempt(replace(best, alpha=changed))
            alphas = np.broadcast_to(np.asarray(best.alpha, np.float64), (market.campaigns,)).copy()
    return best


def best_pacer(market: MarketWorlds, epochs: Sequence[int], constant: Constant) -> PIDPacer:
    """Return the pacer of the highest mean score, with the mix and the creative of a constant."""
    mix = np.asarray(constant.alpha, np.float64)
    best, top = PIDPacer(mix=mix / np.exp(np.log(mix).mean()), creative=constant.creative), -np.inf
    choices: tuple[tuple[str, tuple[float, ...]], ...] = (
        ("start", (0.01, 0.02, 0.03, 0.05, 0.1, 0.2)),
        ("cap", (0.002, 0.003, 0.0045, 0.006, 0.008, 0.012, 0.02)),
        ("integral", (0.05, 0.1, 0.4)),
        ("proportional", (0.0, 0.5)),
        ("derivative", (0.1,)),
    )
    for name, values in choices:
        for value in values:
            candidate = replace(best, **{name: value})  # type: ignore[arg-type]
            score = float(play(market, candidate, epochs).score.mean())
            if score > top:
                best, top = candidate, score
    return best


def oracle(market: MarketWorlds, epoch: int, *, episodes: int = 6) -> Constant:
    """Return the best alpha and creative of every world, for the budget and target of an episode."""
    market.reset(epoch)
    given = market.budget, market.target
    market.budget, market.target = market.parameters.budget.copy(), market.parameters.target.copy()
    epochs = range(_FIRST_SEARCH_EPOCH, _FIRST_SEARCH_EPOCH + episodes)
    try:
        scores = np.array([play(market, Constant(a), epochs).by_world for a in ALPHAS])
        level = np.array(ALPHAS)[scores.argmax(axis=0)][:, None]
        tried = [Constant(level, c) for c in range(market.creatives)]
        creative = np.array([play(market, c, epochs).by_world for c in tried]).argmax(axis=0)
        level = np.repeat(level, market.campaigns, axis=1)
        for j in range(market.campaigns):
            tried = [Constant(np.where(np.arange(market.campaigns) == j, f, 1.0) * level, creative) for f in _FACTORS]
            chosen = np.array([play(market, c, epochs).by_world for c in tried]).argmax(axis=0)
            level[:, j] *= np.array(_FACTORS)[chosen]
    finally:
        market.budget, market.target = given
    return Constant(level, creative)


def fit_baselines(worlds: Sequence[World], epochs: Sequence[int] = (0, 1, 2), **options: object) -> dict[str, Bidder]:
    """Return random play, the best constant and the best pacer of some worlds; options are those of `MarketWorlds`."""
    if not worlds:
        raise ConfigError("no worlds were given to choose baselines in: give at least one")
    with MarketWorlds(worlds, **options) as market:  # type: ignore[arg-type]
        constant = best_constant(market, epochs)
        pacer = best_pacer(market, epochs, constant)
    return {"random": Random(), "best constant": constant, "pid pacer": pacer}


def compare_baselines(
    baselines: Mapping[str, Bidder], market: MarketWorlds, epochs: Sequence[int], *, search: int = 6
) -> dict[str, Played]:
    """Return the results of baselines, and of the oracle, in the same episodes of a market's worlds."""
    results = {name: play(market, bidder, epochs) for name, bidder in baselines.items()}
    known = [play(market, oracle(market, epoch, episodes=search), [epoch]) for epoch in epochs]
    columns = {f.name: np.hstack([getattr(one, f.name) for one in known]) for f in fields(Played)}
    results["oracle"] = Played(**columns)
    return results
