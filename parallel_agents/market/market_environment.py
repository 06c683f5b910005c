"""`MarketEnvironment`: bidders × worlds as a `ParallelEnvironment`.

    MarketEnvironment(patterns, config)      # without patterns: those of world.patterns, or of a sample

A turn is one step of every world; an epoch is one episode. Each bidder has its own network, its own buffer, and its own
budget in each world. Several bidders compete with each other and with the worlds' rivals. Worlds are drawn from the
run's seed, so an evaluation, which has another seed, uses worlds that no training has seen.

Whole epochs are played in compiled code, unless agents sample by event class.

`MarketGym` is the market for other libraries: `gymnasium.make("parallel_agents/Market-v0", patterns="patterns.json")`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.config import Config, merge
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Array
from parallel_agents.engine.collect import CompiledWorld, nothing_moves, nothing_restarts
from parallel_agents.env import Agent, ParallelEnvironment
from parallel_agents.market.actions import LEVELS, ActionForm, BiddingMarket, apply, observe
from parallel_agents.market.discovery import Patterns, load_patterns
from parallel_agents.market.montecarlo import EpisodeSetting, ParallelWorldSimulator
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import POPULATION, World, create_world_variants
from parallel_agents.nn import MultiDiscrete, SquashedGaussian


class MarketEnvironment(ParallelEnvironment):
    """N bidders in W worlds."""

    default_config: ClassVar[Mapping[str, Any]] = {
        "experiment": {"epochs": 100, "max_turns": 48, "worlds": 100},
        "world": {
            "agents": 1,
            "patterns": "",
            "world_types": {},
            "world_seed": None,
            "pool": None,
            "users": POPULATION,
            "actions": "paced",
            "levels": LEVELS,
            "objective": "score",
            "decisions_per_day": 24,
            "auctions_per_step": None,
            "budget": None,
            "target_cpa": None,
            "attribution": "last_click",
        },
        "model": {"algorithm": "ppo"},
        "parallel": {"train_interval": 1},
    }
    """Options of the section `world`:

    agents        number of bidders
    patterns      patterns file or export; "": the stored patterns of a sample
    world_types   mix of world types; empty: that of the data
    world_seed    seed of the worlds; None: the run's
    pool          number of different worlds; None: W. With fewer, several columns have the same world, with users and
                  random numbers of their own; with more, W of them are used in an epoch, in turn
    users         range of population sizes
    actions       form of actions; levels: its multiples of the predicted value
    objective     "score" or "profit"

    The others are those of `MarketWorlds`; `target_cpa` is its target.
    """
    shardable = portable = True

    def _build_config(
        self, config: Config | Mapping[str, Any] | str | Path | None, train_interval: int | None
    ) -> Config:
        """Return the configuration with the whole path of its patterns: a run can be opened from any folder."""
        built = super()._build_config(config, train_interval)
        if not (patterns := built.world["patterns"]):
            return built
        return Config.build(merge(built.as_dict(), {"world": {"patterns": str(Path(patterns).absolute())}}))

    def setup_agents(self) -> None:
        options = self.config.world
        if self.config.experiment.autoreset:
            raise ConfigError("experiment.autoreset is true: a market's episode is one epoch, set it to false")
        if options["agents"] < 1:
            raise ConfigError(f"world.agents is {options['agents']}: a market needs at least one bidder")
        self.patterns = self.world if isinstance(self.world, Patterns) else load_patterns(options["patterns"])
        self.markets = [self._market(worlds) for worlds in self._groups()]
        self.market = self.markets[0]
        """The worlds of the current epoch."""
        levels, sizes = tuple(options["levels"]), (self.market.campaigns, self.market.creatives)
        self.form = ActionForm(options["actions"], levels, *sizes)
        self._bidding = {id(market): BiddingMarket(market, self.form, options["objective"]) for market in self.markets}
        shape = (len(self.market.names),)
        self.agents = [Agent(model=self.make_model(shape, self.form.space)) for _ in range(options["agents"])]

    def _groups(self) -> list[tuple[World, ...]]:
        """Return groups of W worlds, which are used in turn; in a shard, its part of each."""
        options, columns = self.config.world, self.config.experiment.worlds
        pool = options["pool"] or columns
        if max(pool, columns) % min(pool, columns):
            raise ConfigError(f"world.pool is {pool} with {columns} worlds: one must be a multiple of the other")
        seed = self.seed if options["world_seed"] is None else options["world_seed"]
        worlds = create_world_variants(
            self.patterns, pool, options["world_types"] or None, seed=seed, users=tuple(options["users"])
        )
        if pool < columns:
            return [tuple(replace(worlds[i % pool], index=i) for i in self.world_numbers)]
        return [tuple(worlds[first + i] for i in self.world_numbers) for first in range(0, pool, columns)]

    def _market(self, worlds: tuple[World, ...]) -> MarketWorlds:
        options, steps = self.config.world, self.config.experiment.max_turns
        same = {name: options[name] for name in ("decisions_per_day", "auctions_per_step", "budget", "attribution")}
        return MarketWorlds(worlds, options["agents"], steps, target=options["target_cpa"], seed=self.seed, **same)

    def recorders(self, folder: Path) -> Sequence[Any]:
        """Return callbacks that keep the scores of worlds and, if importance sampling is on, log how it works."""
        from parallel_agents.market.market_plots import MarketPanels

        if "importance" not in self.config.model:
            return (MarketPanels(self, folder),)
        from parallel_agents.market.warehouse import SamplingLog, Warehouse

        return MarketPanels(self, folder), SamplingLog(Warehouse(folder / "warehouse"), "training")

    def reset(self) -> None:
        self.market = self.markets[max(self.epoch - 1, 0) % len(self.markets)]
        self.market.reset(self.epoch)

    def observe(self) -> Array:
        return self.market.observe()

    def apply_actions(self, actions: Any) -> Array:
        return self._bidding[id(self.market)].step(actions).astype(np.float32)

    def dones(self) -> tuple[Array, Array]:
        shape = (len(self.agents), self.n_worlds)
        return np.full(shape, self.market.done), np.zeros(shape, np.bool_)

    def compiled_world(self) -> CompiledWorld | str:
        """Return the worlds of this epoch as compiled code, or what is written in Python."""
        if hook := self.hook_in_python(MarketEnvironment):
            return hook
        return CompiledWorld(self._bidding[id(self.market)].arrays, nothing_restarts, nothing_moves, observe, apply)

    def events(self) -> tuple[Array, Array]:
        """Return the event types (0: a crisis parent's purchase, 1: none) and values that the last turn caused."""
        caused = self.market.last.caused
        return np.where(caused[..., 2] > 0.0, 0, 1), caused[..., 1]


class MarketGym(gymnasium.Env[NDArray[np.float32], Any]):
    """One bidder in one of many worlds; every reset draws a world and an episode.

    patterns: patterns, a patterns file or an export; "": those of a sample. Further options: see `EpisodeSetting`.
    """

    metadata = {"render_modes": []}

    def __init__(self, patterns: Patterns | str | Path = "", worlds: int = 100, seed: int = 0, **options: Any) -> None:
        found = patterns if isinstance(patterns, Patterns) else load_patterns(patterns)
        setting = EpisodeSetting(**{"actions": "paced", "threads": 1, "seed": seed, **options})
        variants = create_world_variants(found, worlds, seed=seed)
        self._world = lru_cache(maxsize=16)(lambda index: ParallelWorldSimulator(variants[index], setting))
        self._worlds = worlds
        self._current = self._world(0)
        limit = np.full(len(self._current.names), np.inf, np.float32)
        self.observation_space = gymnasium.spaces.Box(-limit, limit)
        self.action_space = _space(self._current.space)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries of an observation."""
        return self._current.names

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode; the same seed gives the same world and episode. `options` may name the `world`."""
        super().reset(seed=seed)
        index, episode = int(self.np_random.integers(self._worlds)), int(self.np_random.integers(2**31))
        self._current = self._world(int((options or {}).get("world", index)))
        return self._current.reset(seed=episode)

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated and a dictionary with `event_type`, `value` and `cost`."""
        if isinstance(self.action_space, gymnasium.spaces.Box):
            corrections = self._current.form.corrections
            low, high = np.array(corrections.low), np.array(corrections.high)
            action = low + (np.clip(np.asarray(action, np.float64), -1.0, 1.0) + 1.0) / 2.0 * (high - low)
        return self._current.step(action)


def _space(space: Any) -> gymnasium.Space[Any]:
    """Return the space of a form of actions; continuous ones are scaled to −1 … 1."""
    if isinstance(space, SquashedGaussian):
        return gymnasium.spaces.Box(-1.0, 1.0, (len(space.low),))
    if isinstance(space, MultiDiscrete):
        return gymnasium.spaces.MultiDiscrete(list(space.sizes))
    return gymnasium.spaces.Discrete(int(space))
