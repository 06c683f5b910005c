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
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.errors import ActionError, ConfigError, ShapeError
from parallel_agents.core.types import Array
from parallel_agents.kernels.functions import exp, log
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.simulation.market_worlds import write_observations, write_scores
from parallel_agents.market.simulation.slices import MarketArrays, step_all
from parallel_agents.nn import Distribution, MultiDiscrete, SquashedGaussian

Floats = NDArray[np.float64]

LEVELS = (0.0, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
CAPS = (0.001, 0.03)
"""Range of the cap of alpha, over the target."""
Objective = Literal["score", "profit"]
Forms = Literal["joint", "choices", "paced"]
_JOINT, _CHOICES, _PACED = range(3)


class FormArrays(NamedTuple):
    """A form of actions, as compiled code reads it."""

    kind: int
    levels: Floats


class BiddingWorld(NamedTuple):
    """The worlds with their bidders: what the functions of this module read and write."""

    market: MarketArrays
    form: FormArrays
    by_score: bool
    """Whether rewards are changes of the score; else profits."""
    rewards: NDArray[np.float64]
    """(N, W) of the last turn."""


@dataclass(frozen=True)
class ActionForm:
    """A form of actions: what a model chooses from, and what a choice means."""

    levels: tuple[float, ...]
    campaigns: int
    creatives: int
    kind: ClassVar[int]

    @property
    def space(self) -> int | Distribution:
        """The action argument of `make_model`."""
        raise NotImplementedError

    @property
    def arrays(self) -> FormArrays:
        """The form as compiled code reads it."""
        return FormArrays(self.kind, np.array(self.levels))

    def bidding(self, actions: Array, market: MarketWorlds) -> tuple[Floats, NDArray[np.int64]]:
        """Return actions (N, W) or (N, W, A) in the present state of a market as alphas (N, W, J), creatives (N, W)."""
        chosen = self.columns(np.asarray(actions, np.float64), market)
        alphas, creative = np.empty((*chosen.shape[:2], self.campaigns)), np.empty(chosen.shape[:2], np.int64)
        target, pace = market.parameters.target, market.state.pace
        _check_actions(read_actions(self.arrays, chosen, self.creatives, target, pace, alphas, creative))
        return alphas, creative

    def columns(self, actions: Array, market: MarketWorlds) -> Array:
        """Return actions (N, W) or (N, W, A) as (N, W, A)."""
        wanted = (
            market.bidders,
            len(market.worlds),
            (1, self.campaigns + 1, 2 + self.campaigns + self.creatives)[self.kind],
        )
        columns = actions[..., None] if actions.ndim == 2 else actions
        if columns.shape != wanted:
            raise ShapeError(f"actions have shape {actions.shape}: {wanted} is needed (bidders, worlds, numbers)")
        return columns


class Joint(ActionForm):
    """One number for level and creative.

    >>> Joint((0.1, 0.2, 0.4), campaigns=2, creatives=2).space
    6
    """

    kind = _JOINT

    @property
    def space(self) -> int:
        return len(self.levels) * self.creatives


class Choices(ActionForm):
    """A level per campaign, and a creative."""

    kind = _CHOICES

    @property
    def space(self) -> MultiDiscrete:
        return MultiDiscrete((*(len(self.levels),) * self.campaigns, self.creatives))


class Paced(ActionForm):
    """Corrections of a level that spends the budget evenly (`State.pace`): a shift and a cap, shifts per campaign."""

    kind = _PACED

    @property
    def space(self) -> SquashedGaussian:
        j, c = self.campaigns, self.creatives
        low, high = CAPS
        return SquashedGaussian((-1.0, math.log(low), *(-1.0,) * (j + c)), (1.0, math.log(high), *(1.0,) * (j + c)))


_FORMS: dict[str, type[Joint | Choices | Paced]] = {"joint": Joint, "choices": Choices, "paced": Paced}


def step_market(market: MarketWorlds, form: ActionForm, actions: Array, objective: Objective = "score") -> Floats:
    """Compute a step of a market with actions (N, W) or (N, W, A) and return the rewards (N, W)."""
    market.check_goes_on()
    rewards, chosen = np.empty(market.state.pace.shape), form.columns(np.asarray(actions, np.float64), market)
    _check_actions(act(market.arrays, form.arrays, chosen, objective == "score", rewards))
    return rewards


def _check_actions(invalid: int) -> None:
    if invalid >= 0:
        raise ActionError("an action does not exist, or is not finite: give those of the form's space")


def action_form(name: str, levels: tuple[float, ...], market: MarketWorlds) -> ActionForm:
    """Return the form of that name for the campaigns and creatives of a market, after checking its levels."""
    if name not in _FORMS:
        raise ConfigError(f"world.actions is {name!r}: allowed is {', '.join(_FORMS)}")
    if len(levels) < 2 or len(set(levels)) < len(levels) or not all(math.isfinite(x) and x >= 0.0 for x in levels):
        raise ConfigError(f"world.levels is {levels}: give at least two different multiples of the value, from 0")
    if sum(level > 0.0 for level in levels) < 2:
        raise ConfigError(f"world.levels is {levels}: give at least two above 0")
    return _FORMS[name](levels, market.campaigns, market.creatives)


# -- compiled --------------------------------------------------------------------------------------------------------


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def observe(world: BiddingWorld, out: NDArray[np.float32]) -> None:
    """Write the observations (N, W, features)."""
    write_observations(world.market, out)


@compiled_once
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
    """Compute one step of every world with the actions (N, W, A)."""
    invalid: int = act(world.market, world.form, actions, world.by_score, world.rewards)
    if invalid >= 0:
        return invalid
    over = world.market.inputs.clock[1] >= world.market.parameters.auctions.shape[1]
    for n in range(rewards.shape[0]):
        for w in range(rewards.shape[1]):
            rewards[n, w] = world.rewards[n, w]
            terminated[n, w] = over
    return -1


@compiled_once
def read_actions(
    form: FormArrays,
    actions: Array,
    creatives: int,
    target: Floats,
    pace: Floats,
    alphas: Floats,
    creative: NDArray[np.int64],
) -> int:
    """Write the alphas (N, W, J) and creatives (N, W) of actions (N, W, A), with targets (W,) and paces (N, W).

    Return -1, or n * W + w where an action does not exist.
    """
    bidders, worlds, campaigns = alphas.shape
    levels = len(form.levels)
    for n in range(bidders):
        for w in range(worlds):
            own = actions[n, w]
            place: int = n * worlds + w
            if form.kind == _PACED:
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
                level = np.int64(own[0]) // creatives if form.kind == _JOINT else np.int64(own[j])
                if not 0 <= level < levels:
                    return place
                alphas[n, w, j] = form.levels[level]
            creative[n, w] = np.int64(own[0]) % creatives if form.kind == _JOINT else np.int64(own[campaigns])
            if not 0 <= creative[n, w] < creatives:
                return place
    return -1


@compiled_once
def act(market: MarketArrays, form: FormArrays, actions: Array, by_score: bool, rewards: Floats) -> int:
    """Compute a step of a market with actions (N, W, A), and write the rewards (N, W).

    Return -1, or n * W + w where an action does not exist.
    """
    p, bids, total, last = market.parameters, market.inputs.bids, market.total, market.last
    bidders, worlds, campaigns = bids.shape
    creatives, pace = p.click_rate.shape[1], market.state.pace
    invalid: int = read_actions(form, actions, creatives, p.target, pace, bids, market.inputs.creative)
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
            if by_score:
                rewards[n, w] -= market.score[n, w]
            else:
                rewards[n, w] = (last.caused[n, w, 1] - last.cost[n, w].sum()) / p.budget[w]
    return -1
