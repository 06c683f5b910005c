"""What a bidder can do, in three forms, and what it is rewarded for.

joint        one number: a level for all campaigns, and a creative; for any learner
choices      separate choices: a level for each campaign, and a creative
continuous   a log alpha for each campaign, and a score for each creative; the highest score is shown

A level is an alpha: bid = alpha × the value of a click that the data predict for the campaign; 0 stays out. Bids are
per campaign, since bidders cannot see the segment of a user, but users of different segments come through different
campaigns.

The reward of a step is the change of `score × target / budget` (objective "score": the acquisitions, less the penalty
for their cost, over those that the budget buys at the target), or profit over budget (objective "profit"). Both count a
purchase at the step whose click causes it, also if it arrives later or after the episode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Array
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.nn import Distribution, MultiDiscrete, SquashedGaussian

LEVELS = (0.0, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
Objective = Literal["score", "profit"]
Forms = Literal["joint", "choices", "continuous"]


class ActionForm(Protocol):
    """A form of actions: what a model chooses from, and what a choice means."""

    @property
    def space(self) -> int | Distribution:
        """The action argument of `make_model`."""

    def bidding(self, actions: Array) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return actions (N, W) or (N, W, A) as alphas (N, W, J) and creatives (N, W)."""


@dataclass(frozen=True)
class _Form:
    levels: tuple[float, ...]
    campaigns: int
    creatives: int


class Joint(_Form):
    """One number for level and creative.

    >>> form = Joint((0.1, 0.2, 0.4), campaigns=2, creatives=2)
    >>> form.space, [part.tolist() for part in form.bidding(np.array([[5]]))]
    (6, [[[[0.4, 0.4]]], [[1]]])
    """

    @property
    def space(self) -> int:
        return len(self.levels) * self.creatives

    def bidding(self, actions: Array) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        level, creative = np.divmod(np.asarray(actions, np.int64), self.creatives)
        return np.repeat(np.array(self.levels)[level][..., None], self.campaigns, axis=-1), creative


class Choices(_Form):
    """A level per campaign, and a creative."""

    @property
    def space(self) -> MultiDiscrete:
        return MultiDiscrete((*(len(self.levels),) * self.campaigns, self.creatives))

    def bidding(self, actions: Array) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        chosen = np.asarray(actions, np.int64)
        return np.array(self.levels)[chosen[..., :-1]], chosen[..., -1]


class Continuous(_Form):
    """A log alpha per campaign between the smallest and the largest level above 0, and a score per creative."""

    @property
    def space(self) -> SquashedGaussian:
        low, high = (math.log(f(level for level in self.levels if level > 0.0)) for f in (min, max))
        j, c = self.campaigns, self.creatives
        return SquashedGaussian((low,) * j + (-1.0,) * c, (high,) * j + (1.0,) * c)

    def bidding(self, actions: Array) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        chosen = np.asarray(actions, np.float64)
        return np.exp(chosen[..., : self.campaigns]), chosen[..., self.campaigns :].argmax(-1)


_FORMS: dict[str, type[Joint | Choices | Continuous]] = {"joint": Joint, "choices": Choices, "continuous": Continuous}


def step_market(
    market: MarketWorlds, form: ActionForm, actions: Array, objective: Objective = "score"
) -> NDArray[np.float64]:
    """Compute a step of a market with actions (N, W) or (N, W, A) and return the rewards (N, W)."""
    alphas, creative = form.bidding(np.asarray(actions))
    before = market.score() if objective == "score" else 0.0
    p = market.parameters
    profit = market.step(alphas * p.predicted_value, creative)
    if objective == "profit":
        return np.asarray(profit / p.budget)
    return np.asarray((market.score() - before) * p.target / p.budget)


def action_form(name: str, levels: tuple[float, ...], market: MarketWorlds) -> ActionForm:
    """Return the form of that name for the campaigns and creatives of a market, after checking its levels."""
    if name not in _FORMS:
        raise ConfigError(f"world.actions is {name!r}: allowed is {', '.join(_FORMS)}")
    if len(levels) < 2 or len(set(levels)) < len(levels) or not all(math.isfinite(x) and x >= 0.0 for x in levels):
        raise ConfigError(f"world.levels is {levels}: give at least two different multiples of the value, from 0")
    if sum(level > 0.0 for level in levels) < 2:
        raise ConfigError(f"world.levels is {levels}: give at least two above 0")
    return _FORMS[name](levels, market.campaigns, market.creatives)
