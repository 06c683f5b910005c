"""What an episode in a world leaves behind, and what a batch of them does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.market.worlds import World, WorldType
from parallel_agents.types import Array

__all__ = ["EpisodeBatch", "EpisodeExperience", "Failure", "world_context"]


@dataclass(frozen=True, eq=False, repr=False)
class EpisodeExperience:
    """One episode of T steps in one world. Crisis parents are users of the world, not a guess from the outcome."""

    world: int
    kind: WorldType
    lap: int
    """how often this world had been played before"""
    context: Mapping[str, float]
    """what the world is like: its competition, users and conditions"""
    states: NDArray[np.float32]
    """(T + 1, F): the last one is what the last step led to"""
    actions: Array
    """(T, …)"""
    rewards: NDArray[np.float32]
    """(T,) profit over budget"""
    values: NDArray[np.float32]
    """(T,) value credited"""
    crisis_values: NDArray[np.float32]
    """(T,) of it from crisis parents"""
    cost: float
    conversions: float
    importance_weight: float = 1.0
    """share of the world's type in the data over its share among the worlds that are played"""

    def __repr__(self) -> str:
        return (
            f"EpisodeExperience(world {self.world}, {self.kind.value}, lap {self.lap}, reward {self.total_reward:.3f})"
        )

    @property
    def total_reward(self) -> float:
        return float(self.rewards.sum(dtype=np.float64))

    @property
    def revenue(self) -> float:
        return float(self.values.sum(dtype=np.float64))

    @property
    def crisis_parent_revenue(self) -> float:
        return float(self.crisis_values.sum(dtype=np.float64))

    @property
    def crisis_parent_interactions(self) -> int:
        """Steps in which a crisis parent's purchase was credited."""
        return int(np.count_nonzero(self.crisis_values))

    @property
    def roas(self) -> float:
        """Return on ad spend: value over cost, 0 where nothing was spent."""
        return self.revenue / self.cost if self.cost > 0.0 else 0.0


@dataclass(frozen=True)
class Failure:
    """A world whose episode failed, and why."""

    world: int
    kind: WorldType
    lap: int
    reason: str


@dataclass(frozen=True, eq=False, repr=False)
class EpisodeBatch:
    """The episodes of one batch, in the order of their worlds, and those that failed."""

    experiences: tuple[EpisodeExperience, ...]
    failures: tuple[Failure, ...]
    most_in_flight: int
    """worlds that were under way together, as counted while they were"""
    seconds: float

    def __repr__(self) -> str:  # short: `asyncio.run` makes one of whatever it returns
        return f"EpisodeBatch({len(self)} episodes, {len(self.failures)} failures)"

    def __len__(self) -> int:
        return len(self.experiences)

    def __iter__(self) -> Iterator[EpisodeExperience]:
        return iter(self.experiences)

    @property
    def episodes_per_second(self) -> float:
        return len(self) / self.seconds if self.seconds > 0.0 else 0.0


def world_context(world: World) -> dict[str, float]:
    """What a world is like, in a handful of numbers; the first four are the factors of its importance."""
    users, rivals, market = world.users, world.competitors, world.market_state
    offers = rivals.participation[:, None] * np.exp(rivals.level + rivals.spread[:, None] ** 2 / 2)
    ios = world.devices.index("ios") if "ios" in world.devices else None
    dynamics = world.conversion_dynamics
    return {
        "crisis_share": float(users.share[world.crisis]) if world.crisis >= 0 else 0.0,
        "competition": float((offers / market.usual_bid).mean()),
        "behavioural_health": float(users.share @ users.interest),
        "ios_share": float(users.share @ users.device[:, ios]) if ios is not None else 0.0,
        "volume": world.auction_pressure.volume,
        "conversion": float(users.share @ dynamics.base),
        "log_value": float(users.share @ dynamics.value_log_mean),
        "volatility": market.volatility,
    }
