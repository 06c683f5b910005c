"""`MarketEnvironment`: bidders × worlds as a `ParallelEnvironment` like any other.

    MarketEnvironment(patterns, config)      # Patterns, or what world.patterns names, or a sample

A turn is one step of every world; an epoch is one episode. Each bidder has its own network, buffer and budget in each
world; several bidders compete with each other and with the worlds' rivals. World w of a run is drawn from the run's
seed, so an evaluation, which has another seed, plays in worlds that no training has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from parallel_agents.environment import Agent, ParallelEnvironment
from parallel_agents.errors import ConfigError
from parallel_agents.market.actions import action_form
from parallel_agents.market.discovery import Patterns
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.source import patterns_of
from parallel_agents.market.worlds import POPULATION, World, create_world_variants
from parallel_agents.types import Array

__all__ = ["MarketEnvironment"]


class MarketEnvironment(ParallelEnvironment):
    """N bidders in W worlds; the reward is profit (credited value less cost) over the budget."""

    default_config: ClassVar[Mapping[str, Any]] = {
        "experiment": {"epochs": 100, "max_turns": 50, "worlds": 100},
        "world": {
            "agents": 1,
            "patterns": "",
            "world_types": {},
            "world_seed": None,
            "pool": None,
            "users": POPULATION,
            "actions": "choices",
            "levels": (0.0, 0.5, 1.0, 1.5, 2.0, 3.0),
            "auctions_per_step": 20.0,
            "budget": None,
            "attribution": "last_click",
            "fidelity": "full",
        },
        "model": {"algorithm": "ppo"},
        "parallel": {"train_interval": 1},
    }
    """world: bidders; patterns file or export ("" for a sample); mix of world types (empty: that of the data); seed of
    the worlds (None: the run's); how many different worlds there are (None: W; fewer: each has several columns, with
    users and draws of their own; more: W of them an epoch, in turn); range of population sizes; form of actions and its
    levels; and what `MarketWorlds` is given."""

    def setup_agents(self) -> None:
        options = self.config.world
        if self.config.experiment.autoreset:
            raise ConfigError("experiment.autoreset is true: a market's episode is one epoch, set it to false")
        if options["agents"] < 1:
            raise ConfigError(f"world.agents is {options['agents']}: a market needs at least one bidder")
        self.patterns = self.world if isinstance(self.world, Patterns) else patterns_of(options["patterns"])
        self.markets = [self._market(worlds) for worlds in self._groups()]
        self.market = self.markets[0]
        """the worlds of this epoch"""
        self.form = action_form(
            options["actions"],
            tuple(options["levels"]),
            campaigns=self.market.campaigns,
            creatives=self.market.creatives,
        )
        shape = (len(self.market.names),)
        self.agents = [Agent(model=self.make_model(shape, self.form.space)) for _ in range(options["agents"])]

    def _groups(self) -> list[tuple[World, ...]]:
        """W worlds each, played in turn."""
        options, columns = self.config.world, self.n_worlds
        pool = options["pool"] or columns
        if max(pool, columns) % min(pool, columns):
            raise ConfigError(f"world.pool is {pool} with {columns} worlds: one must be a multiple of the other")
        seed = self.seed if options["world_seed"] is None else options["world_seed"]
        worlds = create_world_variants(
            self.patterns, pool, options["world_types"] or None, seed=seed, users=tuple(options["users"])
        )
        if pool < columns:
            return [tuple(replace(worlds[i % pool], index=i) for i in range(columns))]
        return [worlds[first : first + columns] for first in range(0, pool, columns)]

    def _market(self, worlds: tuple[World, ...]) -> MarketWorlds:
        options = self.config.world
        return MarketWorlds(
            worlds,
            options["agents"],
            self.config.experiment.max_turns,
            options["auctions_per_step"],
            budget=options["budget"],
            attribution=options["attribution"],
            fidelity=options["fidelity"],
            seed=self.seed,
        )

    def reset(self) -> None:
        self.market = self.markets[max(self.epoch - 1, 0) % len(self.markets)]
        self.market.reset(self.epoch)

    def observe(self) -> Array:
        return self.market.observe()

    def apply_actions(self, actions: Any) -> Array:
        bidding = self.form.bidding(np.asarray(actions))
        usual = np.exp(self.market.parameters.usual_bid)
        profit = self.market.step(bidding.multiples * usual, bidding.creative, bidding.pacing)
        return np.asarray(profit / self.market.parameters.budget, np.float32)

    def dones(self) -> tuple[Array, Array] | None:
        if not self.market.done:
            return None
        ended = np.ones((len(self.agents), self.n_worlds), np.bool_)
        return ended, np.zeros_like(ended)

    def events(self) -> tuple[Array, Array]:
        """Whether the step brought a crisis parent's purchase, and the value credited."""
        last = self.market.last
        return np.where(last.crisis_credits > 0.0, 0, 1), last.credits.sum(axis=-1)
