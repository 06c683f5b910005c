"""Speed of the market: auctions and episodes per second, a sample export, and discovery.

`rows()` measures and returns rows of the benchmark table; `python -m benchmarks.market_bench` prints them.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from typing import Literal

import numpy as np

from benchmarks.measure import Row, row
from parallel_agents.market.discovery import Patterns, discover
from parallel_agents.market.importance import PolicyDoor
from parallel_agents.market.montecarlo import EpisodeExperience, ExperienceBuffer, MonteCarloSimulator
from parallel_agents.market.sample import draw_sample
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import World, WorldType, create_world_variants
from parallel_agents.models import DQN
from parallel_agents.seeding import Purpose, generator

Fidelity = Literal["full", "fast"]


def _row(name: str, rates: list[float], goal: float, unit: str, what: str) -> Row:
    """The median rate of some repeats, with the best and the worst beside it."""
    median, best, worst = (round(f(rates), 3) for f in (statistics.median, max, min))
    return row(f"market: {name}", median, goal, unit, len(rates), what=what, best=best, worst=worst)


def _repeat(work: Callable[[int], float], repeats: int) -> list[float]:
    """`work` returns how much was done in its epoch; the first run is not counted."""
    work(0)
    rates = []
    for epoch in range(1, repeats + 1):
        start = time.perf_counter()
        done = work(epoch)
        rates.append(done / (time.perf_counter() - start))
    return rates


def _auctions(
    worlds: tuple[World, ...], *, threads: int, fidelity: Fidelity, per_step: float, repeats: int
) -> list[float]:
    with MarketWorlds(worlds, auctions_per_step=per_step, threads=threads, fidelity=fidelity) as market:
        bids = np.exp(market.parameters.usual_bid)[None]

        def episode(epoch: int) -> float:
            market.reset(epoch)
            while not market.done:
                market.step(bids)
            return float(market.total.auctions.sum()) / 1e6

        return _repeat(episode, repeats)


def _episodes(worlds: tuple[World, ...], *, threads: int | None, repeats: int) -> list[float]:
    """Episodes per second with observation, step and reward of all worlds, as an agent would have them."""
    with MarketWorlds(worlds, threads=threads) as market:
        bids = np.exp(market.parameters.usual_bid)[None]

        def episode(epoch: int) -> float:
            market.reset(epoch)
            while not market.done:
                market.step(bids)
                market.observe()
            return float(len(worlds))

        return _repeat(episode, repeats)


def _with_network(patterns: Patterns, repeats: int) -> list[float]:
    """Episodes per second of the whole simulator, a policy network of 64 × 64 units choosing in every step."""
    with MonteCarloSimulator(100, None, 100, patterns=patterns) as simulator:
        world = simulator.world(0)
        agent = PolicyDoor(DQN((len(world.names),), world.space, hidden=(64, 64)))
        return _repeat(lambda _: float(len(asyncio.run(simulator.run_episode_batch(agent)))), repeats)


def _experiences(count: int, steps: int = 50, features: int = 32) -> list[EpisodeExperience]:
    draws = generator(0, Purpose.NOISE)
    nothing = np.zeros(steps, np.float32)
    return [
        EpisodeExperience(
            world=i,
            kind=WorldType.NORMAL_MARKET,
            lap=0,
            context={},
            states=draws.random((steps + 1, features), np.float32) * 7,
            actions=draws.integers(0, 24, steps),
            rewards=draws.random(steps, np.float32),
            values=nothing,
            crisis_values=(draws.random(steps) < 0.01).astype(np.float32),
            cost=1.0,
            conversions=0.0,
        )
        for i in range(count)
    ]


def _buffer(repeats: int) -> tuple[list[float], float]:
    """CPU seconds to add a million transitions of 32 features and to read them back; and megabytes."""
    episodes, seconds = _experiences(20_000), []
    for _ in range(repeats):
        buffer = ExperienceBuffer(1_000_000, 32)
        began = time.process_time()
        buffer.add_experiences(episodes)
        rows = sum(len(buffer.rows(part)["rewards"]) for part in np.array_split(np.arange(1_000_000), 100))
        seconds.append(time.process_time() - began)
        assert rows == 1_000_000
    return seconds, buffer.nbytes / 1e6


def _data(repeats: int) -> tuple[list[float], list[float], Patterns]:
    makes, finds = [], []
    for seed in range(repeats + 1):
        start = time.perf_counter()
        sample = draw_sample(seed=seed)
        made = time.perf_counter()
        found = discover({"events": sample.events, "ads": sample.ads, "auction_insights": sample.insights})
        makes.append(made - start)
        finds.append(time.perf_counter() - made)
    return makes[1:], finds[1:], found


def rows(repeats: int = 5) -> list[Row]:
    """All rows of the market."""
    makes, finds, patterns = _data(repeats)
    worlds = create_world_variants(patterns, 1000)
    one, two = (_auctions(worlds, threads=t, fidelity="full", per_step=20, repeats=repeats) for t in (1, 2))
    fast = _auctions(worlds, threads=2, fidelity="fast", per_step=5000, repeats=repeats)
    episodes = _episodes(worlds[:100], threads=None, repeats=2 * repeats)
    network = _with_network(patterns, 2 * repeats)
    seconds, megabytes = _buffer(min(repeats, 3))
    size = "1000 worlds, 50 steps, 20 auctions a step, 5 rivals"
    small = "3000 users, 70 days, with reports, in memory"
    return [
        _row("full fidelity, 1 thread", one, 1.2, "M auctions/s", size),
        _row("full fidelity, 2 threads", two, 2.0, "M auctions/s", size),
        _row("fast mode, 2 threads", fast, 100.0, "M auctions/s", "1000 worlds, 50 steps, 5000 auctions a step"),
        _row("episodes, no policy", episodes, 2000.0, "episodes/s", "100 worlds, 50 steps of 20 auctions"),
        _row("episodes, policy network", network, 800.0, "episodes/s", "MonteCarloSimulator, 100 worlds in flight"),
        _row(
            "a million experiences",
            [1.0 / s for s in seconds],
            1.0,
            "round trips/CPU-s",
            f"32 features, {megabytes:.0f} MB",
        ),
        _row("sample exports", [1.0 / s for s in makes], 1.0, "exports/s", small),
        _row("discovery", [1.0 / s for s in finds], 0.2, "exports/s", small),
    ]


if __name__ == "__main__":
    print(json.dumps(rows(), indent=1))
