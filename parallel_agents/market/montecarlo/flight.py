"""Worlds that are played together, step by step: a flight; and one world by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import DeadlineError
from parallel_agents.market.actions import action_form
from parallel_agents.market.montecarlo.actors import Actor, actor_of
from parallel_agents.market.montecarlo.experiences import EpisodeExperience, world_context
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import World
from parallel_agents.types import Array

__all__ = ["EpisodeSetting", "Flight", "ParallelWorldSimulator"]


@dataclass(frozen=True, kw_only=True)
class EpisodeSetting:
    """What every episode has in common."""

    steps: int = 50
    auctions_per_step: float = 20.0
    budget: float | None = None
    """per episode; None: what is usually spent"""
    actions: Literal["joint", "choices", "continuous"] = "joint"
    levels: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
    attribution: Literal["last_click", "position", "linear"] = "last_click"
    fidelity: Literal["full", "fast"] = "full"
    threads: int | None = None
    seed: int = 0


class Flight:
    """W worlds stepped together, each with one bidder. What one world does never depends on the others."""

    def __init__(self, worlds: Sequence[World], setting: EpisodeSetting) -> None:
        self.worlds, self.setting = tuple(worlds), setting
        self.market = MarketWorlds(
            worlds,
            1,
            setting.steps,
            setting.auctions_per_step,
            budget=setting.budget,
            attribution=setting.attribution,
            fidelity=setting.fidelity,
            threads=setting.threads,
            seed=setting.seed,
        )
        self._usual = np.exp(self.market.parameters.usual_bid)
        self._contexts = [world_context(world) for world in self.worlds]
        self.form = action_form(
            setting.actions, setting.levels, campaigns=self.market.campaigns, creatives=self.market.creatives
        )

    def step(self, actions: Array) -> NDArray[np.float64]:
        """One step of every world; (W,) profits over budgets."""
        bidding = self.form.bidding(np.asarray(actions)[None])
        profit = self.market.step(bidding.multiples * self._usual, bidding.creative, bidding.pacing)
        return np.asarray(profit[0] / self.market.parameters.budget)

    async def play(self, actor: Actor, lap: int, *, deadline: float) -> list[EpisodeExperience]:
        """One episode in every world, within `deadline` seconds."""
        steps, market = self.setting.steps, self.market
        try:
            async with asyncio.timeout(deadline):
                actor.board([w.index for w in self.worlds], lap, steps)
                states, acts = [market.reset(lap)[0]], []
                columns: dict[str, list[Array]] = {"rewards": [], "values": [], "crisis_values": []}
                for step in range(steps):
                    acts.append(await actor.act(states[-1], step))
                    columns["rewards"].append(self.step(acts[-1]))
                    columns["values"].append(market.last.credits[0].sum(axis=1))
                    columns["crisis_values"].append(market.last.crisis_credits[0].copy())
                    states.append(market.observe()[0])
        except TimeoutError as error:
            raise DeadlineError(f"{len(self.worlds)} worlds took longer than {deadline:g} s for an episode") from error
        return self._experiences(lap, np.stack(states), np.stack(acts), {n: np.stack(c) for n, c in columns.items()})

    def _experiences(
        self, lap: int, states: Array, actions: Array, columns: Mapping[str, Array]
    ) -> list[EpisodeExperience]:
        told = self.market.info(episode=True)
        return [
            EpisodeExperience(
                world=world.index,
                kind=world.kind,
                lap=lap,
                context=self._contexts[w],
                states=np.ascontiguousarray(states[:, w]),
                actions=np.ascontiguousarray(actions[:, w]),
                cost=float(told["cost"][0, w]),
                conversions=float(told["conversions"][0, w]),
                rewards=columns["rewards"][:, w].astype(np.float32),
                values=columns["values"][:, w].astype(np.float32),
                crisis_values=columns["crisis_values"][:, w].astype(np.float32),
            )
            for w, world in enumerate(self.worlds)
        ]

    def close(self) -> None:
        """End the threads."""
        self.market.close()


class ParallelWorldSimulator:
    """One world by itself, in the manner of Gymnasium, or a whole episode of it.

    The same world gives the same episode here as in any batch.
    """

    def __init__(self, world: World, setting: EpisodeSetting | None = None) -> None:
        self.world = world
        self._flight = Flight([world], setting or EpisodeSetting(threads=1))

    @property
    def names(self) -> tuple[str, ...]:
        """What the entries of a state are called."""
        return self._flight.market.names

    @property
    def space(self) -> Any:
        """How many actions there are, or their distribution."""
        return self._flight.form.space

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode; the seed is its number."""
        return self._flight.market.reset(0 if seed is None else seed)[0, 0], {"world": self.world.index}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """State, reward, terminated, truncated, and what the step brought; `event_type` tells of crisis parents."""
        reward = float(self._flight.step(np.asarray(action)[None])[0])
        market = self._flight.market
        crisis, value = float(market.last.crisis_credits[0, 0]), float(market.last.credits[0, 0].sum())
        kind = "crisis_parent" if crisis > 0.0 else "regular_parent"
        told = {"event_type": kind, "value": value, "cost": float(market.last.cost[0, 0].sum())}
        return market.observe()[0, 0], reward, market.done, False, told

    async def run_episode(self, agent: Any, episode: int = 0, *, deadline: float = 60.0) -> EpisodeExperience:
        """One whole episode; what fails raises."""
        return (await self._flight.play(actor_of(agent), episode, deadline=deadline))[0]
