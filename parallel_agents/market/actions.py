"""What a bidder can do, in three forms, and what it is rewarded for.

joint        one number: a level for all campaigns, and a creative; for any learner
choices      separate choices: a level for each campaign, and a creative
paced        corrections of a pacer: a shift of its level, a cap of the level as a multiple of the target, a shift for
             each campaign, and a score for each creative; the highest score is shown

A level is an alpha: bid = alpha × the value of a click that the data predict for the campaign; 0 stays out. Bids are
per campaign, since bidders cannot see the segment of a user, but users of different segments come through different
campaigns.

The reward of a step is the change of the expected score (objective "score"), or profit over budget (objective
"profit"). Both count a purchase at the step whose click causes it, also if it arrives later or after the episode. The
expected score counts every click with its probability of a purchase, which a simulator knows: most of the noise of few
purchases is gone. Results are always those of real purchases.
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
CAPS = (0.001, 0.03)
"""Range of the cap of alpha, over the target."""
Objective = Literal["score", "profit"]
Forms = Literal["joint", "choices", "paced"]


class ActionForm(Protocol):
    """A form of actions: what a model chooses from, and what a choice means."""

    @property
    def space(self) -> int | Distribution:
        """The action argument of `make_model`."""

    def bidding(self, actions: Array, market: MarketWorlds) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return actions (N, W) or (N, W, A) in the present state of a market as alphas (N, W, J), creatives (N, W)."""


@dataclass(frozen=True)
class _Form:
    levels: tuple[float, ...]
    campaigns: int
    creatives: int


class Joint(_Form):
    """One number for level and creative.

    >>> form = Joint((0.1, 0.2, 0.4), campaigns=2, creatives=2)
    >>> form.space, [part.tolist() for part in form.bidding(np.array([[5]]), None)]
    (6, [[[[0.4, 0.4]]], [[1]]])
    """

    @property
    def space(self) -> int:
        return len(self.levels) * self.creatives

    def bidding(self, actions: Array, market: MarketWorlds) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        level, creative = np.divmod(np.asarray(actions, np.int64), self.creatives)
        return np.repeat(np.array(self.levels)[level][..., None], self.campaigns, axis=-1), creative


class Choices(_Form):
    """A level per campaign, and a creative."""

    @property
    def space(self) -> MultiDiscrete:
        return MultiDiscrete((*(len(self.levels),) * self.campaigns, self.creatives))

    def bidding(self, actions: Array, market: MarketWorlds) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        chosen = np.asarray(actions, np.int64)
        return np.array(self.levels)[chosen[..., :-1]], chosen[..., -1]


class Paced(_Form):
    """Corrections of a level that spends the budget evenly (`State.pace`): a shift and a cap, shifts per campaign."""

    @property
    def space(self) -> SquashedGaussian:
        j, c = self.campaigns, self.creatives
        low, high = CAPS
        return SquashedGaussian((-1.0, math.log(low), *(-1.0,) * (j + c)), (1.0, math.log(high), *(1.0,) * (j + c)))

    def bidding(self, actions: Array, market: MarketWorlds) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        chosen = np.asarray(actions, np.float64)
        limit = chosen[..., 1] + np.log(market.parameters.target)
        level = np.minimum(market.state.pace + chosen[..., 0], limit)
        shifts, scores = chosen[..., 2 : 2 + self.campaigns], chosen[..., 2 + self.campaigns :]
        return np.exp(level[..., None] + shifts), scores.argmax(-1)


_FORMS: dict[str, type[Joint | Choices | Paced]] = {"joint": Joint, "choices": Choices, "paced": Paced}


def step_market(
    market: MarketWorlds, form: ActionForm, actions: Array, objective: Objective = "score"
) -> NDArray[np.float64]:
    """Compute a step of a market with actions (N, W) or (N, W, A) and return the rewards (N, W)."""
    alphas, creative = form.bidding(np.asarray(actions), market)
    before = market.score(expected=True) if objective == "score" else 0.0
    p = market.parameters
    profit = market.step(alphas * p.predicted_value, creative)
    if objective == "profit":
        return np.asarray(profit / p.budget)
    return np.asarray(market.score(expected=True) - before)


def action_form(name: str, levels: tuple[float, ...], market: MarketWorlds) -> ActionForm:
    """Return the form of that name for the campaigns and creatives of a market, after checking its levels."""
    if name not in _FORMS:
        raise ConfigError(f"world.actions is {name!r}: allowed is {', '.join(_FORMS)}")
    if len(levels) < 2 or len(set(levels)) < len(levels) or not all(math.isfinite(x) and x >= 0.0 for x in levels):
        raise ConfigError(f"world.levels is {levels}: give at least two different multiples of the value, from 0")
    if sum(level > 0.0 for level in levels) < 2:
        raise ConfigError(f"world.levels is {levels}: give at least two above 0")
    return _FORMS[name](levels, market.campaigns, market.creatives)
