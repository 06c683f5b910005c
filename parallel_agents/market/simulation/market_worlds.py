"""`MarketWorlds`: W worlds stepped together. Agents give bids and get observations and rewards.

Worlds are divided into slices, one per thread. The kernels hold no lock and every random number has an address, so the
number of threads changes the time only.

An observation shows the clock, the bidder's own money and results, and the state of each campaign and creative. It does
not show the users' segments, the rivals' bids or pending purchases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.by_reference import by_reference
from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.errors import ActionError, ConfigError, RunError, ShapeError
from parallel_agents.core.seeding import Purpose, key
from parallel_agents.core.types import Floats
from parallel_agents.kernels.functions import cospi, exp, log, log1p, sinpi
from parallel_agents.market.simulation.journeys import Attribution
from parallel_agents.market.simulation.step import MarketArrays, StepInputs, start_helpers, step_all
from parallel_agents.market.simulation.world_arrays import (
    Outcome,
    empty_outcome,
    empty_state,
    episode_goals,
    reset_state,
    stack_worlds,
)
from parallel_agents.market.worlds import World

_MAX_AUCTIONS = 2**27  # of a step: the addresses of random numbers have room for as many
_MAX_OFFERS = 2**12  # bidders × campaigns
_AUCTIONS_PER_THREAD = 1_000  # take about 0.25 ms; waking a thread takes about 15 µs
_MAX_THREADS = 1 if numba.config.DISABLE_JIT else 255
"""The number of a slice is a byte, and only compiled code wakes threads."""
_COMMON = (
    "progress", "hour_sin", "hour_cos", "week_sin", "week_cos", "volume", "log_budget", "log_target", "budget_left",
    "ahead_of_pace", "pace", "pressure", "cost_over_target", "win_rate", "click_rate", "log_clicks", "log_conversions",
    "return_on_cost", "step_credit", "step_cost",
)  # fmt: skip
_PER_CAMPAIGN = ("last_bid", "win_rate", "price", "log_clicks", "log_conversions")
_PER_CREATIVE = ("freshness", "click_rate")


class MarketWorlds:
    """N bidders in W worlds, each with its own budget in each world, for episodes of `steps` decisions.

    decisions_per_day: how often bids can change. 48 steps at 24 decisions a day are two days.
    auctions_per_step: mean number of auctions; None: as many as the data show, for the users of each world.
    budget, target: of every episode, for each bidder and world, or (W,); None: drawn for each episode, log-uniformly
        from the range of the data. The target is a cost per acquisition.
    threads: None takes one per core, if there is enough work.
    """

    def __init__(
        self,
        worlds: Sequence[World],
        bidders: int = 1,
        steps: int = 48,
        *,
        decisions_per_day: int = 24,
        auctions_per_step: float | None = None,
        budget: float | Floats | None = None,
        target: float | Floats | None = None,
        attribution: Literal["last_click", "position", "linear"] = "last_click",
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        for name, value in (("bidders", bidders), ("steps", steps), ("decisions_per_day", decisions_per_day)):
            if value < 1:
                raise ConfigError(f"{name} {value} is too few: give at least 1")
        if auctions_per_step is not None and not 0 < auctions_per_step < _MAX_AUCTIONS:
            raise ConfigError(f"auctions_per_step {auctions_per_step} is out of range: give 1 to {_MAX_AUCTIONS}")
        if attribution.upper() not in Attribution.__members__:
            raise ConfigError(f"attribution {attribution!r} is unknown: give last_click, position or linear")
        if threads is not None and threads < 1:
            raise ConfigError(f"threads {threads} is too few: give at least 1, or None for one per core")
        self.worlds = tuple(worlds)
        self.parameters = p = stack_worlds(
            self.worlds,
            steps=steps,
            decisions_per_day=decisions_per_day,
            auctions_per_step=auctions_per_step,
            seed=seed,
        )
        self.budget, self.target, self._seed = budget, target, seed
        self._draw_goals(0)
        if bidders * self.campaigns > _MAX_OFFERS:
            raise ConfigError(
                f"{bidders} bidders in {self.campaigns} campaigns are too many: at most {_MAX_OFFERS} bids"
            )
        self.bidders, self.steps = bidders, steps
        self.state = empty_state(p, bidders)
        self.last, self.total = empty_outcome(p, bidders), empty_outcome(p, bidders)
        self.names = _observation_names(self.worlds[0].campaigns, self.worlds[0].creatives)
        self._threads = min(threads or self._useful_threads(), len(self.worlds), _MAX_THREADS)
        inputs = StepInputs(
            bids=np.zeros((bidders, len(self.worlds), self.campaigns)),
            creative=np.zeros((bidders, len(self.worlds)), np.int64),
            keys=np.array(key(seed, Purpose.WORLD), np.uint64),
            clock=np.array([0, steps]),  # no step is allowed before the first reset
            rule=int(Attribution[attribution.upper()]),
        )
        self.arrays = by_reference(
            MarketArrays(
                by_reference(p),
                by_reference(self.state),
                by_reference(self.last),
                by_reference(self.total),
                by_reference(inputs),
                score=np.zeros((bidders, len(self.worlds))),
                slices=np.linspace(0, len(self.worlds), self._threads + 1).astype(np.int64),
                helped=np.zeros(2, np.int64),
                pipes=np.zeros(4, np.int32),
                awaited=np.zeros(2, np.int32),
                byte=np.zeros(1, np.uint8),
            )
        )
        """The worlds as compiled code reads and writes them."""
        self._stop_helpers: Callable[[], None] | None = None

    def _useful_threads(self) -> int:
        """Return how many threads have enough work in a step to be worth waking; at most one per core."""
        auctions = self.bidders * float(self.parameters.auctions.mean(axis=1).sum())
        return max(1, min(os.cpu_count() or 1, int(auctions / _AUCTIONS_PER_THREAD)))

    @property
    def campaigns(self) -> int:
        """J, the number of bids that a bidder gives in each world."""
        return int(self.parameters.mechanism.shape[1])

    @property
    def creatives(self) -> int:
        """C, the number of creatives to choose from."""
        return int(self.parameters.click_rate.shape[1])

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.step_number >= self.steps

    @property
    def step_number(self) -> int:
        """How many steps of the episode are done."""
        return int(self.arrays.inputs.clock[1])

    def check_goes_on(self) -> None:
        """Raise RunError if the episode is over: compiled code must not take another step."""
        if self.done:
            raise RunError("the episode is over: call reset before the next step")

    def reset(self, epoch: int) -> NDArray[np.float32]:
        """Begin an episode and return the first observations; the same epoch always has the same random numbers."""
        if epoch < 0:
            raise ConfigError(f"epoch {epoch} is negative: epochs count from 0")
        if self._stop_helpers is None and self._threads > 1:
            self._stop_helpers = start_helpers(self, self.arrays)
        reset_state(self.parameters, self.state)
        self.last.every[:] = self.total.every[:] = 0.0
        self._draw_goals(epoch)
        self.arrays.inputs.clock[:] = epoch, 0
        return self.observe()

    def _draw_goals(self, epoch: int) -> None:
        """Set the budgets and targets of an episode."""
        p = self.parameters
        p.budget[:], p.target[:] = episode_goals(
            self.worlds, p, budget=self.budget, target=self.target, seed=self._seed, epoch=epoch
        )

    def observe(self) -> NDArray[np.float32]:
        """Return the observations (N, W, features), whose entries are named by `names`."""
        out = np.empty((self.bidders, len(self.worlds), len(self.names)), np.float32)
        write_observations(self.arrays, out)
        return out

    def step(self, bids: ArrayLike, creative: ArrayLike | None = None) -> Floats:
        """Compute one step of every world and return the profit (N, W): the value that its clicks lead to, less cost.

        bids: (N, W, J) per click; 0 stays out of the auctions.
        creative: (N, W) which one is shown.
        """
        self.check_goes_on()
        shape = (self.bidders, len(self.worlds))
        offers = np.asarray(bids, np.float64)
        if offers.shape != (*shape, self.campaigns):
            raise ShapeError(
                f"bids have shape {offers.shape}: {(*shape, self.campaigns)} is needed (bidders, worlds, campaigns)"
            )
        if not np.isfinite(offers).all() or (offers < 0).any():
            raise ActionError("bids must be finite and 0 or more: 0 stays out of an auction")
        self.arrays.inputs.creative[:] = _checked_creative(creative, shape, self.creatives - 1)
        self.arrays.inputs.bids[:] = offers
        step_all(self.arrays)
        return np.asarray(self.last.caused[:, :, 1] - self.last.cost.sum(axis=2))

    def score(self, *, expected: bool = False) -> Floats:
        """Return the score (N, W) of the episode so far: acquisitions × min(1, (target / cost of one)²).

        Acquisitions are those that the clicks so far lead to, those on their way included.
        expected: count every click with its probability of a purchase; the noise of single purchases is left out.
        """
        bought = self.total.expected if expected else np.ascontiguousarray(self.total.caused[:, :, 0])
        out = np.empty_like(bought)
        write_scores(bought, self.total.cost, self.parameters.target, out)
        return out

    def info(self, *, episode: bool = False) -> dict[str, NDArray[np.generic]]:
        """Return the results of the last step, or of the episode so far, as arrays (N, W) and (W,)."""
        o: Outcome = self.total if episode else self.last
        return {
            "revenue": o.credits.sum(axis=2),
            "cost": o.cost.sum(axis=2),
            "crisis_revenue": o.crisis_credits,
            "credits": o.credits,
            "impressions": o.impressions.sum(axis=2),
            "clicks": o.clicks.sum(axis=2),
            "conversions": o.conversions.sum(axis=2),
            "score": self.score(),
            "auctions": o.auctions.sum(axis=1),
            "crisis_auctions": o.crisis_auctions,
            "scheduled": o.scheduled,
            "superseded": o.superseded,
            "delivered": o.delivered,
            "pending": self.total.scheduled - self.total.superseded - self.total.delivered,
            "budget_left": self.parameters.budget - self.state.spent,
        }

    def close(self) -> None:
        """End the threads; further steps run in the calling thread."""
        if self._stop_helpers is not None:
            self._stop_helpers()
            self._stop_helpers = None
        self._threads = 1

    def __enter__(self) -> MarketWorlds:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked_creative(values: ArrayLike | None, shape: tuple[int, int], last: int) -> NDArray[np.int64]:
    """Return the creatives (N, W), the first one where none are given."""
    raw = np.asarray(0 if values is None else values)
    if raw.dtype.kind not in "iu":
        raise ActionError(f"creative must be whole numbers: found {raw.dtype}")
    if raw.shape not in ((), shape):
        raise ShapeError(f"creative has shape {raw.shape}: {shape} is needed (bidders, worlds)")
    if not ((raw >= 0) & (raw <= last)).all():
        raise ActionError(f"creative must lie between 0 and {last}: found {raw.min()} to {raw.max()}")
    return np.broadcast_to(raw, shape)


def _observation_names(campaigns: tuple[str, ...], creatives: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of an observation's entries, in order."""
    per_campaign = [f"{figure}:{c}" for c in campaigns for figure in _PER_CAMPAIGN]
    return (*_COMMON, *per_campaign, *(f"{figure}:{c}" for c in creatives for figure in _PER_CREATIVE))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0.0 else 0.0


@compiled_once
def write_scores(bought: Floats, cost: Floats, target: Floats, out: Floats) -> None:
    """Write the scores (N, W) of acquisitions (N, W) at costs (N, W, J) and targets (W,); see `MarketWorlds.score`."""
    for n in range(out.shape[0]):
        for w in range(out.shape[1]):
            acquired = max(bought[n, w], 0.0)
            kept = min(1.0, target[w] * acquired / max(cost[n, w].sum(), 1e-12))
            out[n, w] = acquired * (kept * kept)


@compiled_once
def write_observations(market: MarketArrays, out: NDArray[np.float32]) -> None:
    """Write the observations (N, W, features) before the next step into `out`."""
    p, s, last, total, t = market.parameters, market.state, market.last, market.total, market.inputs.clock[1]
    bidders, worlds, _ = out.shape
    steps, campaigns = p.auctions.shape[1], p.mechanism.shape[1]
    now = min(t, steps - 1)
    for w in range(worlds):
        expected = p.auctions[w].sum()
        hour = p.hour[w, now]
        held = last.auctions[w].sum()
        for n in range(bidders):
            row = out[n, w]
            budget, target, spent = p.budget[w], p.target[w], s.spent[n, w]
            impressions, credit = last.impressions[n, w].sum(), total.credits[n, w].sum()
            bought = total.conversions[n, w].sum()
            row[0] = t / steps
            row[1], row[2] = sinpi(hour / 12.0), cospi(hour / 12.0)
            row[3], row[4] = sinpi(hour / 84.0), cospi(hour / 84.0)
            row[5] = p.auctions[w, now] * steps / expected
            row[6], row[7] = log(budget / expected), log(target)
            row[8] = 1.0 - spent / budget
            row[9] = spent / budget - t / steps
            row[10] = s.pace[n, w]
            row[11] = log((0.01 + max(row[8], 0.0)) / (0.01 + p.auctions[w, now:].sum() / expected))
            row[12] = log((1.0 + spent / target) / (1.0 + bought))
            row[13] = _ratio(impressions, held)
            row[14] = _ratio(last.clicks[n, w].sum(), impressions)
            row[15] = log1p(total.clicks[n, w].sum())
            row[16] = log1p(bought)
            row[17] = log1p(_ratio(credit, spent))
            row[18] = log1p(steps * last.credits[n, w].sum() / budget)
            row[19] = steps * last.cost[n, w].sum() / budget
            place = 20
            for j in range(campaigns):
                row[place] = s.alpha[n, w, j]
                row[place + 1] = _ratio(last.impressions[n, w, j], last.auctions[w, j])
                price = _ratio(total.cost[n, w, j], total.clicks[n, w, j])
                row[place + 2] = log(0.01 + price / p.predicted_value[w, j])
                row[place + 3] = log1p(total.clicks[n, w, j])
                row[place + 4] = log1p(total.conversions[n, w, j])
                place += 5
            for c in range(p.click_rate.shape[1]):
                row[place] = exp(-p.fatigue[w] * s.shown[n, w, c])
                row[place + 1] = _ratio(s.clicked[n, w, c], s.shown[n, w, c])
                place += 2
