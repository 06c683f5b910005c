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
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.by_reference import by_reference
from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.errors import ActionError, ConfigError, ShapeError
from parallel_agents.core.types import Array, Floats
from parallel_agents.kernels.functions import exp, log
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.simulation.market_worlds import write_observations, write_scores
from parallel_agents.market.simulation.step import MarketArrays, step_all
from parallel_agents.nn import Distribution, MultiDiscrete, SquashedGaussian

LEVELS = (0.0, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
CAPS = (0.001, 0.03)
"""Range of the cap of alpha, over the target."""
Objective = Literal["score", "profit"]
Forms = Literal["joint", "choices", "paced"]
_FORMS = get_args(Forms)
_JOINT, _CHOICES, _PACED = range(3)


class BiddingWorld(NamedTuple):
    """The worlds with their bidders: what the compiled functions of this module read and write."""

    market: MarketArrays
    form: int
    """Place of the form of actions in `_FORMS`."""
    creatives: int
    levels: Floats
    by_score: int
    """1: rewards are changes of the score; 0: profits."""
    actions: Floats
    """(N, W, A) of this turn."""
    rewards: Floats
    """(N, W) of the last turn."""


@dataclass(frozen=True)
class ActionForm:
    """A form of actions: what a model chooses from.

    >>> ActionForm("joint", (0.1, 0.2, 0.4), campaigns=2, creatives=2).space
    6
    """

    name: Forms
    levels: tuple[float, ...]
    campaigns: int
    creatives: int

    def __post_init__(self) -> None:
        levels = self.levels
        if self.name not in _FORMS:
            raise ConfigError(f"world.actions is {self.name!r}: allowed is {', '.join(_FORMS)}")
        if len(levels) < 2 or len(set(levels)) < len(levels) or not all(math.isfinite(x) and x >= 0.0 for x in levels):
            raise ConfigError(f"world.levels is {levels}: give at least two different multiples of the value, from 0")
        if sum(level > 0.0 for level in levels) < 2:
            raise ConfigError(f"world.levels is {levels}: give at least two above 0")

    @property
    def space(self) -> int | Distribution:
        """The action argument of `make_model`."""
        if self.name == "joint":
            return len(self.levels) * self.creatives
        if self.name == "choices":
            return MultiDiscrete((*(len(self.levels),) * self.campaigns, self.creatives))
        return self.corrections

    @property
    def corrections(self) -> SquashedGaussian:
        """The space of paced actions: shift, log of the cap, shifts of campaigns, scores of creatives."""
        others, (low, high) = (1.0,) * (self.campaigns + self.creatives), CAPS
        return SquashedGaussian((-1.0, log(low), *(-x for x in others)), (1.0, log(high), *others))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an action in a buffer."""
        return () if isinstance(self.space, int) else self.space.shape

    @property
    def width(self) -> int:
        """A, how many numbers an action has."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> str:
        """Type of its numbers in a buffer."""
        return "float32" if self.name == "paced" else "int16"


class BiddingMarket:
    """A market whose bidders act in one form and are rewarded for one objective."""

    def __init__(self, market: MarketWorlds, form: ActionForm, objective: str = "score") -> None:
        if objective not in ("score", "profit"):
            raise ConfigError(f"world.objective is {objective!r}: allowed is score, profit")
        self.market, self.form = market, form
        shape = (market.bidders, len(market.worlds))
        self.arrays = by_reference(
            BiddingWorld(
                market.arrays,
                _FORMS.index(form.name),
                form.creatives,
                np.array(form.levels),
                int(objective == "score"),
                actions=np.zeros((*shape, form.width)),
                rewards=np.zeros(shape),
            )
        )
        """The worlds as compiled code reads and writes them."""

    def bids(self, actions: Array) -> tuple[Floats, NDArray[np.int64]]:
        """Return the alphas (N, W, J) and creatives (N, W) of actions (N, W) or (N, W, A), at the present pace."""
        self._take(actions)
        shape = self.arrays.rewards.shape
        alphas, creative = np.empty((*shape, self.form.campaigns)), np.empty(shape, np.int64)
        self._check(read_actions(self.arrays, alphas, creative))
        return alphas, creative

    def step(self, actions: Array) -> Floats:
        """Compute a step of the market with actions (N, W) or (N, W, A) and return the rewards (N, W)."""
        self.market.check_goes_on()
        self._take(actions)
        self._check(take_step(self.arrays))
        return np.array(self.arrays.rewards)

    def _take(self, actions: Array) -> None:
        columns, wanted = actions[..., None] if actions.ndim == 2 else actions, self.arrays.actions.shape
        if columns.shape != wanted:
            raise ShapeError(f"actions have shape {actions.shape}: {wanted} is needed (bidders, worlds, numbers)")
        self.arrays.actions[:] = columns

    def _check(self, invalid: int) -> None:
        if invalid >= 0:
            agent, world = divmod(invalid, len(self.market.worlds))
            raise ActionError(f"agent_{agent} chose an action in world {world} that does not exist, or is not finite")


# -- compiled --------------------------------------------------------------------------------------------------------


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def observe(world: BiddingWorld, out: NDArray[np.float32]) -> None:
    """Write the observations (N, W, features)."""
    write_observations(world.market, out)


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def apply(
    world: BiddingWorld,
    actions: Array,
    acting: NDArray[np.bool_],
    active: NDArray[np.bool_],
    rewards: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    epoch: int,
    turn: int,
) -> int:
    """Compute one step of every world with the actions (N, W, A), which may be of any type."""
    bidders, worlds, width = world.actions.shape
    for n in range(bidders):
        for w in range(worlds):
            for a in range(width):
                world.actions[n, w, a] = actions[n, w, a]
    invalid: int = take_step(world)
    over = world.market.inputs.clock[1] >= world.market.parameters.auctions.shape[1]
    for n in range(bidders):
        for w in range(worlds):
            rewards[n, w] = world.rewards[n, w]
            terminated[n, w] = over
    return invalid


@compiled_once
def read_actions(world: BiddingWorld, alphas: Floats, creative: NDArray[np.int64]) -> int:
    """Write the alphas (N, W, J) and creatives (N, W) of the actions.

    Return -1, or n * W + w where an action does not exist.
    """
    bidders, worlds, campaigns = alphas.shape
    levels, creatives = world.levels, world.creatives
    target, pace = world.market.parameters.target, world.market.state.pace
    for n in range(bidders):
        for w in range(worlds):
            own = world.actions[n, w]
            place: int = n * worlds + w
            if world.form == _PACED:
                common = min(pace[n, w] + own[0], own[1] + log(target[w]))
                for j in range(campaigns):
                    alphas[n, w, j] = exp(common + own[2 + j])
                    if not np.isfinite(alphas[n, w, j]):
                        return place
                best = 0
                for c in range(1, creatives):
                    if own[2 + campaigns + c] > own[2 + campaigns + best]:
                        best = c
                creative[n, w] = best
                continue
            for j in range(campaigns):
                level = np.int64(own[0]) // creatives if world.form == _JOINT else np.int64(own[j])
                if not 0 <= level < len(levels):
                    return place
                alphas[n, w, j] = levels[level]
            creative[n, w] = np.int64(own[0]) % creatives if world.form == _JOINT else np.int64(own[campaigns])
            if not 0 <= creative[n, w] < creatives:
                return place
    return -1


@compiled_once
def take_step(world: BiddingWorld) -> int:
    """Compute a step of a market with the actions, and write the rewards.

    Return -1, or n * W + w where an action does not exist.
    """
    market, rewards = world.market, world.rewards
    p, bids, total, last = market.parameters, market.inputs.bids, market.total, market.last
    bidders, worlds, campaigns = bids.shape
    invalid: int = read_actions(world, bids, market.inputs.creative)
    if invalid >= 0:
        return invalid
    for n in range(bidders):
        for w in range(worlds):
            for j in range(campaigns):
                bids[n, w, j] *= p.predicted_value[w, j]
    write_scores(total.expected, total.cost, p.target, market.score)
    step_all(market)
    write_scores(total.expected, total.cost, p.target, rewards)
    for n in range(bidders):
        for w in range(worlds):
            if world.by_score:
                rewards[n, w] -= market.score[n, w]
            else:
                rewards[n, w] = (last.caused[n, w, 1] - last.cost[n, w].sum()) / p.budget[w]
    return -1
