"""What a bidder can do, in three forms. Each turns actions into bids, a creative and a pacing for `MarketWorlds.step`.

joint        one number: a level for all campaigns, and a creative; for any learner
choices      separate choices: a level for each campaign, a creative, and a pacing
continuous   a log multiple for each campaign, a pacing, and a score for each creative; the highest score is shown

Levels are multiples of the usual bid of the campaign; 0 stays out. Bids are per campaign, since bidders cannot see the
segment of a user, but users of different segments come through different campaigns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Array
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.nn import Distribution, MultiDiscrete, SquashedGaussian

PACINGS = (0.25, 0.5, 0.75, 1.0)
"""Shares of the auctions that a bidder can choose to take part in."""


@dataclass(frozen=True)
class Bidding:
    """What N bidders do in a step of W worlds with J campaigns."""

    multiples: NDArray[np.float64]
    """(N, W, J) of the usual bid"""
    creative: NDArray[np.int64]
    """(N, W)"""
    pacing: NDArray[np.float64]
    """(N, W)"""


class ActionForm(Protocol):
    """A form of actions: what a model chooses from, and what a choice means."""

    @property
    def space(self) -> int | Distribution:
        """The action argument of `make_model`."""

    def bidding(self, actions: Array) -> Bidding:
        """Return actions (N, W) or (N, W, A) as bids, creatives and pacings."""


@dataclass(frozen=True)
class _Form:
    levels: tuple[float, ...]
    campaigns: int
    creatives: int


class Joint(_Form):
    """One number for level and creative.

    >>> form = Joint((0.5, 1.0, 2.0), campaigns=2, creatives=2)
    >>> form.space, form.bidding(np.array([[5]])).multiples.tolist(), form.bidding(np.array([[5]])).creative.item()
    (6, [[[2.0, 2.0]]], 1)
    """

    @property
    def space(self) -> int:
        return len(self.levels) * self.creatives

    def bidding(self, actions: Array) -> Bidding:
        level, creative = np.divmod(np.asarray(actions, np.int64), self.creatives)
        multiples = np.repeat(np.array(self.levels)[level][..., None], self.campaigns, axis=-1)
        return Bidding(multiples, creative, np.ones(level.shape))


class Choices(_Form):
    """A level per campaign, a creative, a pacing."""

    @property
    def space(self) -> MultiDiscrete:
        return MultiDiscrete((*(len(self.levels),) * self.campaigns, self.creatives, len(PACINGS)))

    def bidding(self, actions: Array) -> Bidding:
        chosen = np.asarray(actions, np.int64)
        multiples = np.array(self.levels)[chosen[..., : self.campaigns]]
        return Bidding(multiples, chosen[..., self.campaigns], np.array(PACINGS)[chosen[..., self.campaigns + 1]])


class Continuous(_Form):
    """A log multiple per campaign between the smallest and the largest level, a pacing, a score per creative."""

    @property
    def space(self) -> SquashedGaussian:
        low, high = (math.log(f(level for level in self.levels if level > 0.0)) for f in (min, max))
        j, c = self.campaigns, self.creatives
        return SquashedGaussian((low,) * j + (0.0,) + (-1.0,) * c, (high,) * j + (1.0,) + (1.0,) * c)

    def bidding(self, actions: Array) -> Bidding:
        j = self.campaigns
        chosen = np.asarray(actions, np.float64)
        return Bidding(np.exp(chosen[..., :j]), chosen[..., j + 1 :].argmax(-1), np.clip(chosen[..., j], 0.0, 1.0))


_FORMS: dict[str, type[Joint | Choices | Continuous]] = {"joint": Joint, "choices": Choices, "continuous": Continuous}


def step_market(market: MarketWorlds, form: ActionForm, actions: Array) -> NDArray[np.float64]:
    """Compute a step of a market with actions (N, W) or (N, W, A) and return the rewards (N, W): profit over budget."""
    bidding = form.bidding(np.asarray(actions))
    bids = bidding.multiples * np.exp(market.parameters.usual_bid)
    return np.asarray(market.step(bids, bidding.creative, bidding.pacing) / market.parameters.budget)


def action_form(name: str, levels: tuple[float, ...], market: MarketWorlds) -> ActionForm:
    """Return the form of that name for the campaigns and creatives of a market, after checking its levels."""
    if name not in _FORMS:
        raise ConfigError(f"world.actions is {name!r}: allowed is {', '.join(_FORMS)}")
    if len(levels) < 2 or len(set(levels)) < len(levels) or not all(math.isfinite(x) and x >= 0.0 for x in levels):
        raise ConfigError(f"world.levels is {levels}: give at least two different multiples of the usual bid, from 0")
    if sum(level > 0.0 for level in levels) < 2:
        raise ConfigError(f"world.levels is {levels}: give at least two above 0")
    return _FORMS[name](levels, market.campaigns, market.creatives)
