"""`create_world_variants`: many worlds, no two alike, in the mix of types that the data show."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.market.discovery.patterns import Patterns
from parallel_agents.market.worlds import samplers
from parallel_agents.market.worlds.draws import REGIONS, Draws, outer
from parallel_agents.market.worlds.samplers import POPULATION, campaigns_of, competition_of
from parallel_agents.market.worlds.types import Part, World, WorldType
from parallel_agents.seeding import Purpose, generator

__all__ = ["create_world_variants", "default_distribution"]

Floats = NDArray[np.float64]


def default_distribution(patterns: Patterns) -> dict[WorldType, float]:
    """The mix of types in the data: each period is of the type in whose region it lies deepest, else normal.

    Every type whose axis shows any difference between periods gets one period more than it has.
    """
    depth: dict[WorldType, Floats] = {}
    for kind, (axis, up) in REGIONS.items():
        effects = [p.effects[axis] for p in patterns.periods if axis in p.effects]
        if effects and min(e.value for e in effects) < max(e.value for e in effects):
            values, (low, high) = np.array([e.value for e in effects]), outer(effects, up)
            edge, end = (low, high) if up else (high, low)
            depth[kind] = (values - edge) / (end - edge) if end != edge else values - values
    counts = dict.fromkeys([WorldType.NORMAL_MARKET, *depth], 1)
    for i in range(len(patterns.periods) if depth else 0):
        kind = max(depth, key=lambda k: depth[k][i])
        counts[kind if depth[kind][i] > 0 else WorldType.NORMAL_MARKET] += 1
    total = sum(counts.values())
    return {kind: count / total for kind, count in counts.items()}


def _chosen(patterns: Patterns, given: Mapping[WorldType | str, float] | None) -> dict[WorldType, float]:
    known = default_distribution(patterns)
    if given is None:
        return known
    shares: dict[WorldType, float] = {}
    for name, share in given.items():
        try:
            kind = WorldType(name)
        except ValueError:
            raise ConfigError(f"world type {name!r} is unknown: give one of {[k.value for k in WorldType]}") from None
        if kind not in known:
            raise ConfigError(
                f"world type {kind.value!r} is not identified: no period differs along {REGIONS[kind][0]!r}; "
                f"available are {[k.value for k in known]}"
            )
        if not share >= 0:
            raise ConfigError(f"share {share} of world type {kind.value!r} is negative: give shares of 0 or more")
        shares[kind] = share
    total = sum(shares.values())
    if not total > 0:
        raise ConfigError("world_types_distribution is empty or all 0: give at least one positive share")
    return {kind: share / total for kind, share in shares.items()}


def create_world_variants(
    patterns: Patterns,
    n_worlds: int,
    world_types_distribution: Mapping[WorldType | str, float] | None = None,
    *,
    seed: int = 0,
    users: tuple[int, int] = POPULATION,
) -> tuple[World, ...]:
    """`n_worlds` different worlds; world i is the same however many are asked for."""
    if n_worlds < 1:
        raise ConfigError(f"n_worlds {n_worlds} is too few: give at least 1")
    if not 0 < users[0] <= users[1]:
        raise ConfigError(f"users {users} is no range of population sizes: give (least, most), both positive")
    mix = _chosen(patterns, world_types_distribution)
    kinds, edges = list(mix), np.cumsum(list(mix.values()))
    worlds = []
    for i in range(n_worlds):
        point = generator(seed, Purpose.WORLD, agent=Part.TYPE, world=i).random() * edges[-1]
        kind = kinds[min(int(np.searchsorted(edges, point, side="right")), len(kinds) - 1)]
        worlds.append(_world(patterns, kind, seed, i, users))
    return tuple(worlds)


def _world(patterns: Patterns, kind: WorldType, seed: int, index: int, users: tuple[int, int]) -> World:
    parts = {p: Draws(patterns, kind, p, seed=seed, world=index) for p in Part}
    found = competition_of(patterns)
    return World(
        index=index,
        kind=kind,
        segments=tuple(s.name for s in patterns.segments),
        devices=tuple(patterns.devices),
        campaigns=campaigns_of(patterns),
        creatives=tuple(found.creatives),
        rivals=tuple(found.competitors),
        users=samplers.sample_user_population(parts[Part.USERS], users),
        competitors=samplers.sample_competitor_configuration(parts[Part.COMPETITORS]),
        market_state=samplers.sample_market_conditions(parts[Part.MARKET]),
        time_period=samplers.sample_time_window(parts[Part.TIME]),
        auction_pressure=samplers.sample_auction_intensity(parts[Part.AUCTIONS]),
        creative_variance=samplers.sample_creative_performance(parts[Part.CREATIVES]),
        conversion_dynamics=samplers.sample_conversion_patterns(parts[Part.CONVERSION]),
        provenance={name: text for part in parts.values() for name, text in part.provenance.items()},
    )
