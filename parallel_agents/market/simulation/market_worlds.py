"""`MarketWorlds`: W worlds stepped as one. The seam to agents: bids in, observations and rewards out.

Worlds are stepped in slices, one per thread; the kernels hold no lock and every draw is addressed, so the number of
threads changes nothing but the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.errors import ActionError, ConfigError, RunError, ShapeError
from parallel_agents.market.simulation.arrays import Outcome, empty_outcome, empty_state, stack
from parallel_agents.market.simulation.attribution import Attribution
from parallel_agents.market.simulation.fast import empty_calendar, play_fast, price_table
from parallel_agents.market.simulation.kernels import clear, play
from parallel_agents.market.simulation.observation import observation_names, observe
from parallel_agents.market.worlds import World
from parallel_agents.seeding import Purpose, key

__all__ = ["MarketWorlds"]

Floats = NDArray[np.float64]

_MOST_AUCTIONS = 2**27  # the addresses of draws have room for as many
_MOST_OFFERS = 2**12
_ENOUGH = {"full": 4_000, "fast": 200_000}  # auctions: about a millisecond, against a tenth for waking a thread


class MarketWorlds:
    """N bidders in W worlds, each with its own budget, for `steps` steps an episode.

    `budget` is per bidder, world and episode; None takes what the data say is usually spent. `fidelity` "fast" leaves
    out individual users, several slots and rivals' reactions. Copies of an agent are further bidders. `threads` None
    takes as many as are worth their while.
    """

    def __init__(
        self,
        worlds: Sequence[World],
        bidders: int = 1,
        steps: int = 50,
        auctions_per_step: float = 20,
        *,
        budget: float | Floats | None = None,
        attribution: Literal["last_click", "position", "linear"] = "last_click",
        fidelity: Literal["full", "fast"] = "full",
        threads: int | None = None,
        seed: int = 0,
        purpose: Purpose = Purpose.WORLD,
    ) -> None:
        for name, value in (("bidders", bidders), ("steps", steps)):
            if value < 1:
                raise ConfigError(f"{name} {value} is too few: give at least 1")
        if not 0 < auctions_per_step < _MOST_AUCTIONS:
            raise ConfigError(f"auctions_per_step {auctions_per_step} is out of range: give 1 to {_MOST_AUCTIONS}")
        if fidelity not in ("full", "fast"):
            raise ConfigError(f"fidelity {fidelity!r} is unknown: give 'full' or 'fast'")
        if attribution.upper() not in Attribution.__members__:
            raise ConfigError(f"attribution {attribution!r} is unknown: give last_click, position or linear")
        if threads is not None and threads < 1:
            raise ConfigError(f"threads {threads} is too few: give at least 1, or None for one per core")
        self.worlds = tuple(worlds)
        self.parameters = stack(self.worlds, steps=steps, auctions_per_step=auctions_per_step, budget=budget, seed=seed)
        if bidders * self.campaigns > _MOST_OFFERS:
            raise ConfigError(
                f"{bidders} bidders in {self.campaigns} campaigns are too many: at most {_MOST_OFFERS} bids"
            )
        self.bidders, self.steps, self.fidelity = bidders, steps, fidelity
        self.rule = int(Attribution[attribution.upper()])
        self.state = empty_state(self.parameters, bidders)
        self.last, self.total = (
            empty_outcome(self.parameters, bidders),
            empty_outcome(self.parameters, bidders),
        )
        self.names = observation_names(self.worlds[0].campaigns, self.worlds[0].creatives)
        self._fast = (
            (price_table(self.parameters), empty_calendar(self.parameters, bidders)) if fidelity == "fast" else None
        )
        self._keys = np.array(key(seed, purpose), np.uint64)
        self._epoch, self._step = 0, steps
        count = min(threads or self._worthwhile(), len(self.worlds))
        edges = np.linspace(0, len(self.worlds), count + 1).astype(int).tolist()
        self._slices = list(pairwise(edges))
        self._pool = ThreadPoolExecutor(count - 1, "market") if count > 1 else None

    def _worthwhile(self) -> int:
        """As many threads as have enough to do in a step to be worth waking; at most one per core."""
        auctions = self.bidders * float(self.parameters.auctions.mean(axis=1).sum())
        return max(1, min(os.cpu_count() or 1, int(auctions / _ENOUGH[self.fidelity])))

    @property
    def campaigns(self) -> int:
        """J: the number of bids a bidder gives per world."""
        return int(self.parameters.mechanism.shape[1])

    @property
    def creatives(self) -> int:
        """C."""
        return int(self.parameters.click_rate.shape[1])

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self._step >= self.steps

    def reset(self, epoch: int) -> NDArray[np.float32]:
        """Begin an episode; the same epoch always brings the same draws. Returns the first observation."""
        if epoch < 0:
            raise ConfigError(f"epoch {epoch} is negative: epochs count from 0")
        clear(self.state)
        for array in (*self.last, *self.total):
            array[...] = 0.0
        if self._fast is not None:
            self._fast[1][...] = 0.0
        self._epoch, self._step = epoch, 0
        return self.observe()

    def observe(self) -> NDArray[np.float32]:
        """Observations (N, W, features), named by `names`."""
        out = np.empty((self.bidders, len(self.worlds), len(self.names)), np.float32)
        observe(self.parameters, self.state, self.last, self.total, self._step, out)
        return out

    def step(self, bids: ArrayLike, creative: ArrayLike | None = None, pacing: ArrayLike | None = None) -> Floats:
        """One step. Rewards (N, W): credited value less cost.

        `bids` (N, W, J) are per click, 0 stays out; `creative` (N, W) is the one shown; `pacing` (N, W) is the share of
        auctions to take part in.
        """
        if self.done:
            raise RunError("the episode is over: call reset before the next step")
        shape = (self.bidders, len(self.worlds))
        offers = np.array(bids, np.float64, order="C")  # a copy: kernels are compiled for writable arrays
        if offers.shape != (*shape, self.campaigns):
            raise ShapeError(
                f"bids have shape {offers.shape}: {(*shape, self.campaigns)} is due (bidders, worlds, campaigns)"
            )
        if not np.isfinite(offers).all() or (offers < 0).any():
            raise ActionError("bids must be finite and 0 or more: 0 stays out of an auction")
        shown = self._choice("creative", creative, shape, np.int64, 0, self.creatives - 1)
        share = self._choice("pacing", 1.0 if pacing is None else pacing, shape, np.float64, 0, 1)
        for array in self.last:
            array[...] = 0.0
        t, epoch = self._step, self._epoch
        if self._fast is None:
            self._over_slices(
                lambda low, high: play(
                    self.parameters,
                    self.state,
                    self.last,
                    offers,
                    shown,
                    share,
                    self._keys,
                    epoch,
                    t,
                    self.rule,
                    low,
                    high,
                )
            )
        else:
            prices, calendar = self._fast
            self._over_slices(
                lambda low, high: play_fast(
                    self.parameters,
                    prices,
                    self.state,
                    self.last,
                    calendar,
                    offers,
                    shown,
                    share,
                    self._keys,
                    epoch,
                    t,
                    low,
                    high,
                )
            )
        for whole, part in zip(self.total, self.last, strict=True):
            whole += part
        self._step += 1
        return np.asarray(self.last.credits.sum(axis=2) - self.last.cost.sum(axis=2))

    def info(self, *, episode: bool = False) -> dict[str, NDArray[np.generic]]:
        """What the last step, or the episode so far, brought about, as arrays (N, W) and (W,)."""
        o: Outcome = self.total if episode else self.last
        under_way = self.total.scheduled - self.total.superseded - self.total.delivered
        return {
            "revenue": o.credits.sum(axis=2),
            "cost": o.cost.sum(axis=2),
            "crisis_revenue": o.crisis_credits,
            "credits": o.credits,
            "impressions": o.impressions.sum(axis=2),
            "clicks": o.clicks.sum(axis=2),
            "conversions": o.conversions,
            "auctions": o.auctions.sum(axis=1),
            "crisis_auctions": o.crisis_auctions,
            "scheduled": o.scheduled,
            "superseded": o.superseded,
            "delivered": o.delivered,
            "pending": under_way,
            "budget_left": self.parameters.budget - self.state.spent,
        }

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
            self._slices = [(0, len(self.worlds))]

    def __enter__(self) -> MarketWorlds:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _choice(
        self, name: str, given: ArrayLike | None, shape: tuple[int, int], kind: type, low: float, high: float
    ) -> NDArray[np.generic]:
        raw = np.asarray(0 if given is None else given)
        if kind is np.int64 and raw.dtype.kind not in "iu":
            raise ActionError(f"{name} must be whole numbers: found {raw.dtype}")
        if raw.shape not in ((), shape):
            raise ShapeError(f"{name} has shape {raw.shape}: {shape} is due (bidders, worlds)")
        if not ((raw >= low) & (raw <= high)).all():
            raise ActionError(f"{name} must lie between {low} and {high}: found {raw.min()} to {raw.max()}")
        return np.array(np.broadcast_to(raw, shape), kind, order="C")

    def _over_slices(self, work: Callable[[int, int], None]) -> None:
        """Run `work` on every slice of worlds, the first in this thread."""
        if self._pool is None:
            work(0, len(self.worlds))
            return
        rest = [self._pool.submit(work, low, high) for low, high in self._slices[1:]]
        try:
            work(*self._slices[0])
        finally:
            for future in rest:
                future.result()
