"""Speed of the market: auctions and episodes per second, sample exports, and discovery."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.measure import Done, Effort, Row, Side, rate
from benchmarks.run import Bench
from parallel_agents.algorithms import DQN
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.env.external_training import ExternalUpdateAgent
from parallel_agents.market.discovery import Patterns, discover
from parallel_agents.market.experiences import EpisodeExperience, ExperienceBuffer
from parallel_agents.market.montecarlo import EpisodeSetting, MonteCarloSimulator
from parallel_agents.market.sample import draw_sample
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import World, WorldType, create_world_variants

STEPS, AUCTIONS = 48, 20.0


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    yield "market: auctions, 1 thread", partial(_auctions, "market: auctions, 1 thread", 1, 4.3, effort)
    yield "market: auctions, 2 threads", partial(_auctions, "market: auctions, 2 threads", 2, 5.5, effort)
    yield "market: episodes, no policy", partial(_episodes, effort)
    yield "market: episodes, policy network", partial(_with_network, effort)
    yield "market: a million experiences", partial(_buffer, effort)
    yield "market: sample exports and discovery", partial(_data, effort)


@cache
def _patterns() -> Patterns:
    return discover(_sample(0))


@cache
def _worlds(count: int) -> tuple[World, ...]:
    return create_world_variants(_patterns(), count)


def _auctions(name: str, threads: int, goal: float, effort: Effort) -> Iterator[Row]:
    """Measure auctions per second of an episode in all worlds; their number is random, so they are counted."""
    worlds = _worlds(effort.of(1000, 100))
    with MarketWorlds(worlds, threads=threads, auctions_per_step=AUCTIONS, budget=1e9) as market:
        bids = np.exp(market.parameters.usual_bid)[None]

        def episode() -> Done:
            market.reset(1)  # the same episode each time: the same auctions
            while not market.done:
                market.step(bids)
            return Done({"auctions": int(market.total.auctions.sum()), "world_steps": STEPS * len(worlds)})

        words = f"an episode of {STEPS} steps in each of {len(worlds)} worlds, {AUCTIONS:g} auctions a step, 6 rivals"
        side = Side(f"{threads} threads", words, episode)
        yield rate(name, side, "auctions", goal=goal, unit="M auctions/s", per=1e6, repeats=effort.repeats(5))


def _episodes(effort: Effort) -> Iterator[Row]:
    """Measure episodes per second with observations, steps and rewards of all worlds."""
    worlds = _worlds(100)
    with MarketWorlds(worlds, auctions_per_step=AUCTIONS) as market:
        bids = np.exp(market.parameters.usual_bid)[None]

        def episode() -> Done:
            market.reset(1)
            steps = 0
            while not market.done:
                market.step(bids)
                market.observe()
                steps += 1
            return Done({"episodes": len(worlds), "world_steps": steps * len(worlds)})

        side = Side("worlds", f"an episode of {STEPS} steps x 20 auctions in each of 100 worlds, observed", episode)
        yield rate(
            "market: episodes, no policy", side, "episodes", goal=2000.0, unit="episodes/s", repeats=effort.repeats(10)
        )


def _with_network(effort: Effort) -> Iterator[Row]:
    """Measure episodes per second of the whole simulator, with a policy network of 64 × 64 units."""
    setting = EpisodeSetting(auctions_per_step=AUCTIONS)
    with MonteCarloSimulator(100, patterns=_patterns(), setting=setting) as simulator:
        world = simulator.world(0)
        agent = ExternalUpdateAgent(DQN((len(world.names),), world.space, hidden=(64, 64)))

        def batch() -> Done:
            return Done({"episodes": len(asyncio.run(simulator.run_episode_batch(agent)))})

        side = Side("MonteCarloSimulator", "an episode in each of 100 worlds in flight, a network choosing", batch)
        yield rate(
            "market: episodes, policy network",
            side,
            "episodes",
            goal=2000.0,
            unit="episodes/s",
            repeats=effort.repeats(10),
        )


def _experiences(count: int, steps: int = 50, features: int = 32) -> list[EpisodeExperience]:
    draws = generator(0, Purpose.NOISE)
    zeros = np.zeros(steps, np.float32)
    return [
        EpisodeExperience(
            world=i,
            kind=WorldType.NORMAL_MARKET,
            lap=0,
            context={},
            states=draws.random((steps + 1, features), np.float32) * 7,
            actions=draws.integers(0, 24, steps),
            rewards=draws.random(steps, np.float32),
            values=zeros,
            crisis_values=(draws.random(steps) < 0.01).astype(np.float32),
            cost=1.0,
            conversions=0.0,
            score=0.0,
            budget=1.0,
            target=1.0,
        )
        for i in range(count)
    ]


def _buffer(effort: Effort) -> Iterator[Row]:
    """Measure adding a million transitions of 32 features and reading them back, in processor time."""
    episodes = _experiences(20_000)
    size = 0

    def round_trip() -> Done:
        nonlocal size
        buffer = ExperienceBuffer(1_000_000, 32)
        start = time.process_time()
        buffer.add_experiences(episodes)
        rows = int(buffer.get_buffer_snapshot()["size"])
        seconds, size = time.process_time() - start, buffer.nbytes
        return Done({"round_trips": 1, "rows": rows}, seconds=seconds, processor_time=True)

    side = Side("ExperienceBuffer", "a million transitions of 32 features added, and all of them read back", round_trip)
    repeats = effort.repeats(3)
    unit = "round trips/CPU-s"
    row = rate("market: a million experiences", side, "round_trips", goal=1.0, unit=unit, repeats=repeats)
    yield replace(row, detail={"megabytes": size / 1e6})


def _sample(seed: int) -> dict[str, Any]:
    """Return a sample export."""
    return draw_sample(seed=seed).tables


def _data(effort: Effort) -> Iterator[Row]:
    """Measure sample exports and discovery."""
    words, repeats = "an export of 3000 users over 70 days, with reports, in memory", effort.repeats(5)

    def make() -> Done:
        _sample(0)
        return Done({"exports": 1})

    side = Side("sample", f"draw {words}", make)
    yield rate("market: sample exports", side, "exports", goal=1.0, unit="exports/s", repeats=repeats)
    sample = _sample(0)

    def find() -> Done:
        discover(sample)
        return Done({"exports": 1})

    side = Side("discovery", f"find the patterns of {words}", find)
    yield rate("market: discovery", side, "exports", goal=0.2, unit="exports/s", repeats=repeats)
