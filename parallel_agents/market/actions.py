"""What a bidder can do, in three forms; each is turned into bids, a creative and a pace for `MarketWorlds.step`.

joint        one number: a level for all campaigns and a creative; for any learner
choices      a level for each campaign, a creative and a pace, each chosen by itself
continuous   a log multiple for each campaign, a pace, and a score for each creative, of which the highest is shown

Levels are multiples of what is usually bid in the campaign; 0 stays out. Campaigns are the segments that can be
addressed: which class a user belongs to is hidden from bidders, but classes come by different campaigns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.networks import Distribution, MultiDiscrete, SquashedGaussian
from parallel_agents.types import Array

__all__ = ["ActionForm", "Bidding", "Choices", "Continuous", "Joint", "action_form"]

PACES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the auctions that a bidder can choose to take part in."""


@dataclass(frozen=True)
class Bidding:
    """What a turn does: N bidders, W worlds, J campaigns."""

    multiples: NDArray[np.float64]
    """(N, W, J) of the usual bid"""
    creative: NDArray[np.int64]
    """(N, W)"""
    pacing: NDArray[np.float64]
    """(N, W)"""


class ActionForm(Protocol):
    """A form of actions: what a model must choose, and what a choice means."""

    @property
    def space(self) -> int | Distribution:
        """What `make_model` is given."""

    def bidding(self, actions: Array) -> Bidding:
        """Actions (N, W) or (N, W, A) as bids, creatives and paces."""


@dataclass(frozen=True)
class Joint:
    """One number: level and creative.

    >>> form = Joint((0.5, 1.0, 2.0), campaigns=2, creatives=2)
    >>> form.space, form.bidding(np.array([[5]])).multiples.tolist(), form.bidding(np.array([[5]])).creative.item()
    (6, [[[2.0, 2.0]]], 1)
    """

    levels: tuple[float, ...]
    campaigns: int
    creatives: int

    @property
    def space(self) -> int:
        return len(self.levels) * self.creatives

    def bidding(self, actions: Array) -> Bidding:
        level, creative = np.divmod(np.asarray(actions, np.int64), self.creatives)
        multiples = np.repeat(np.array(self.levels)[level][..., None], self.campaigns, axis=-1)
        return Bidding(multiples, creative, np.ones(level.shape))


@dataclass(frozen=True)
class Choices:
    """A level per campaign, a creative, a pace."""

    levels: tuple[float, ...]
    campaigns: int
    creatives: int

    @property
    def space(self) -> MultiDiscrete:
        return MultiDiscrete((*(len(self.levels),) * self.campaigns, self.creatives, len(PACES)))

    def bidding(self, actions: Array) -> Bidding:
        chosen = np.asarray(actions, np.int64)
        multiples = np.array(self.levels)[chosen[..., : self.campaigns]]
        return Bidding(multiples, chosen[..., self.campaigns], np.array(PACES)[chosen[..., self.campaigns + 1]])


@dataclass(frozen=True)
class Continuous:
    """A log multiple per campaign between the least and the largest level, a pace, a score per creative."""

    levels: tuple[float, ...]
    campaigns: int
    creatives: int

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


def action_form(name: str, levels: tuple[float, ...], *, campaigns: int, creatives: int) -> ActionForm:
    """The form of that name, its levels checked."""
    if name not in _FORMS:
        raise ConfigError(f"world.actions is {name!r}: allowed is {', '.join(_FORMS)}")
    if len(levels) < 2 or len(set(levels)) < len(levels) or not all(math.isfinite(x) and x >= 0.0 for x in levels):
        raise ConfigError(f"world.levels is {levels}: give at least two different multiples of the usual bid, from 0")
    if sum(level > 0.0 for level in levels) < 2:
        raise ConfigError(f"world.levels is {levels}: give at least two above 0")
    return _FORMS[name](levels, campaigns, creatives)
