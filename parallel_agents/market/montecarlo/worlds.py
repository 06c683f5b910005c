"""`ParallelWorldOrchestrator`: makes the worlds of a simulation, and lets their mix follow how an agent does.

Adaptation happens between batches only. It moves the mix of types towards those in which the agent earns least, never
below half nor above twice of what the data show; new worlds are drawn from the same estimates, so no parameter leaves
what was discovered. It follows from what was earned and the seed alone, and every step of it is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from parallel_agents.errors import ConfigError
from parallel_agents.market.discovery import Patterns
from parallel_agents.market.montecarlo.experiences import EpisodeExperience, world_context
from parallel_agents.market.worlds import POPULATION, World, WorldType, create_world_variants, default_distribution
from parallel_agents.sampling import CRISIS_PARENT, ImportanceSampler

__all__ = ["ParallelWorldOrchestrator"]

_LEAST, _MOST = 0.5, 2.0  # of a type's share in the data


class ParallelWorldOrchestrator:
    """The worlds of a simulation.

    world_types_distribution: mix of types; None: that of the data.
    """

    def __init__(
        self,
        patterns: Patterns,
        world_types_distribution: Mapping[WorldType | str, float] | None = None,
        *,
        seed: int = 0,
        users: tuple[int, int] = POPULATION,
    ) -> None:
        self.patterns, self.seed, self.users = patterns, seed, users
        self.natural = default_distribution(patterns)
        given = world_types_distribution
        self.mix: dict[WorldType, float] = dict(self.natural)
        if given is not None:
            create_world_variants(patterns, 1, given, seed=seed)  # refuses what cannot be
            total = sum(given.values())
            self.mix = {WorldType(kind): share / total for kind, share in given.items() if share > 0.0}
        self.generation = 0
        self.history: list[dict[str, Any]] = []
        """one line per adaptation: what was earned by type, and the mix that followed"""

    def create_world_variants(self, n_worlds: int = 100) -> tuple[World, ...]:
        """Worlds of the present mix, no two alike, and none that an earlier generation had."""
        seed = self.seed + self.generation * 2**32
        mix: dict[WorldType | str, float] = dict(self.mix.items())
        return create_world_variants(self.patterns, n_worlds, mix, seed=seed, users=self.users)

    def restore(self, generation: int, mix: Mapping[str, float], history: Iterable[Mapping[str, Any]]) -> None:
        """Go on where a checkpoint left."""
        self.generation, self.history = int(generation), [dict(line) for line in history]
        self.mix = {WorldType(kind): float(share) for kind, share in mix.items()}

    def importance_weight(self, kind: WorldType) -> float:
        """How common a type is in the data compared with the present mix."""
        return self.natural[kind] / self.mix[kind]

    def value_multiplier(self) -> float:
        """What a crisis parent is worth compared with other users, from the data; 1 where there is none."""
        for segment in self.patterns.segments:
            if segment.name == CRISIS_PARENT:
                share, value = segment.share.value, segment.value_share.value
                return (value / share) / ((1.0 - value) / (1.0 - share))
        return 1.0

    def world_weights(self, worlds: Iterable[World], value_multiplier: float | None = None) -> dict[int, float]:
        """How much each world should count in training: by its crisis parents, competition, interest and devices."""
        chosen = list(worlds)
        multiplier = self.value_multiplier() if value_multiplier is None else value_multiplier
        sampler = ImportanceSampler(crisis_parent_weight=multiplier)
        weights = sampler.calculate_world_weights([world_context(world) for world in chosen])
        return {world.index: float(weight) for world, weight in zip(chosen, weights, strict=True)}

    def adapt(self, experiences: Iterable[EpisodeExperience], rate: float = 0.5) -> dict[str, float]:
        """Move the mix towards the types in which least was earned; the new mix, by name."""
        if not 0.0 <= rate < np.inf:
            raise ConfigError(f"rate {rate} is out of range: give 0 or more")
        earned: dict[WorldType, list[float]] = {}
        for episode in experiences:
            earned.setdefault(episode.kind, []).append(episode.total_reward)
        means = {kind: float(np.mean(values)) for kind, values in earned.items()}
        spread = float(np.std(list(means.values()))) if means else 0.0
        centre = float(np.mean(list(means.values()))) if means else 0.0
        pushed = {
            kind: share * np.exp(-rate * (means.get(kind, centre) - centre) / spread) if spread > 0.0 else share
            for kind, share in self.mix.items()
        }
        self.mix = _bounded(pushed, {kind: self.natural[kind] for kind in self.mix})
        self.generation += 1
        mix = {kind.value: share for kind, share in self.mix.items()}
        told = {kind.value: mean for kind, mean in means.items()}
        self.history.append({"generation": self.generation, "earned": told, "mix": mix})
        return mix


def _bounded(shares: Mapping[WorldType, float], natural: Mapping[WorldType, float]) -> dict[WorldType, float]:
    """Shares adding up to one, each between half and twice its natural share (by bisection on a common factor)."""
    kinds, total = list(shares), sum(natural.values())
    wanted, base = (np.array([m[k] for k in kinds]) for m in (shares, natural))
    low, high = _LEAST * base / total, np.minimum(_MOST * base / total, 1.0)
    below, above = 0.0, float((high / wanted).max())
    for _ in range(100):
        factor = (below + above) / 2.0
        if np.clip(factor * wanted, low, high).sum() < 1.0:
            below = factor
        else:
            above = factor
    found = np.clip(above * wanted, low, high)
    return dict(zip(kinds, (found / found.sum()).tolist(), strict=True))
