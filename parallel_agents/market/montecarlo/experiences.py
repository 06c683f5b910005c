"""What an episode in a world leaves behind, what a batch of episodes is, and its summary and training batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ContractError
from parallel_agents.core.types import Array
from parallel_agents.market.world_types import World, WorldType


@dataclass(frozen=True, eq=False, repr=False)
class EpisodeExperience:
    """One episode of T steps in one world. Crisis parents are users of the world, not a guess from the outcome."""

    world: int
    kind: WorldType
    lap: int
    """number of earlier episodes in this world"""
    context: Mapping[str, float]
    """what the world is like: its competition, users and conditions"""
    states: NDArray[np.float32]
    """(T + 1, F): the last one is the state after the last step"""
    actions: Array
    """(T, …)"""
    rewards: NDArray[np.float32]
    """(T,)"""
    values: NDArray[np.float32]
    """(T,) value of the purchases that each step causes"""
    crisis_values: NDArray[np.float32]
    """(T,) the part of it from crisis parents"""
    cost: float
    conversions: float
    score: float
    """acquisitions × min(1, (target / cost of one)²)"""
    budget: float
    target: float
    """cost of an acquisition to aim at"""
    importance_weight: float = 1.0
    """share of the world's type in the data over its share among the simulated worlds"""

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
        """Number of steps that caused a crisis parent's purchase."""
        return int(np.count_nonzero(self.crisis_values))

    @property
    def profit(self) -> float:
        """Value less cost, over the budget."""
        return (self.revenue - self.cost) / self.budget

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
    """The episodes of one batch in the order of their worlds, and the failures."""

    experiences: tuple[EpisodeExperience, ...]
    failures: tuple[Failure, ...]
    most_in_flight: int
    """largest number of worlds that were simulated at the same time"""
    seconds: float

    def __repr__(self) -> str:  # short, because `asyncio.run` calls it on what it returns
        return f"EpisodeBatch({len(self)} episodes, {len(self.failures)} failures)"

    def __len__(self) -> int:
        return len(self.experiences)

    def __iter__(self) -> Iterator[EpisodeExperience]:
        return iter(self.experiences)

    @property
    def episodes_per_second(self) -> float:
        return len(self) / self.seconds if self.seconds > 0.0 else 0.0


def world_context(world: World) -> dict[str, float]:
    """Return a world's characteristics in a few numbers; the first four are the factors of its importance."""
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


def aggregate_experiences(experiences: Iterable[EpisodeExperience]) -> dict[str, Any]:
    """Return totals, means, crisis and success rates, the same by world type, and a training batch.

    Means are weighted by how common each type of world is in the data. An episode succeeds if it earns more than it
    costs. The crisis rate is the share of episodes with a crisis parent's purchase.
    """
    episodes = list(experiences)
    if not episodes:
        raise ContractError("there are no experiences to aggregate: every world failed, or none was run")
    kinds = sorted({e.kind.value for e in episodes})
    return {
        **_summary(episodes),
        "world_type_breakdown": {kind: _summary([e for e in episodes if e.kind.value == kind]) for kind in kinds},
        "training_batch": aggregate_parallel_experiences(episodes),
    }


def _summary(episodes: Sequence[EpisodeExperience]) -> dict[str, float]:
    weights = np.array([e.importance_weight for e in episodes])
    rewards = np.array([e.total_reward for e in episodes])
    revenue, cost = sum(e.revenue for e in episodes), sum(e.cost for e in episodes)
    crisis = np.array([e.crisis_parent_revenue for e in episodes])
    return {
        "episodes": len(episodes),
        "transitions": sum(len(e.rewards) for e in episodes),
        "total_reward": float(rewards.sum()),
        "average_reward": float(rewards.mean()),
        "weighted_reward": float(np.average(rewards, weights=weights)),
        "reward_deviation": float(rewards.std()),
        "score": float(np.average([e.score for e in episodes], weights=weights)),
        "profit": float(np.average([e.profit for e in episodes], weights=weights)),
        "success_rate": float(np.average([e.profit > 0.0 for e in episodes], weights=weights)),
        "revenue": revenue,
        "cost": cost,
        "roas": revenue / cost if cost > 0.0 else 0.0,
        "conversions": sum(e.conversions for e in episodes),
        "crisis_rate": float(np.average(crisis > 0.0, weights=weights)),
        "crisis_revenue": float(crisis.sum()),
        "crisis_revenue_share": float(crisis.sum()) / revenue if revenue > 0.0 else 0.0,
    }


class TrainingBatch(TypedDict):
    """Transitions of episodes, in order: arrays of equal length, and their number."""

    states: Array
    actions: Array
    rewards: Array
    next_states: Array
    dones: Array
    values: Array
    crisis: Array
    importance_weights: Array
    worlds: Array
    context: Array
    """(B, characteristics of the world): competition level, user distribution and market conditions"""
    batch_size: int


def aggregate_parallel_experiences(world_results: Iterable[EpisodeExperience]) -> TrainingBatch:
    """Return all transitions of some episodes, in order, each with its world's context and importance weight."""
    episodes = list(world_results)
    if not episodes:
        raise ContractError("there are no experiences to aggregate: every world failed, or none was run")
    lengths = [len(e.rewards) for e in episodes]
    ends = np.zeros(sum(lengths), np.bool_)
    ends[np.cumsum(lengths) - 1] = True
    contexts = np.array([list(e.context.values()) for e in episodes], np.float32)
    return {
        "states": np.concatenate([e.states[:-1] for e in episodes]),
        "actions": np.concatenate([e.actions for e in episodes]),
        "rewards": np.concatenate([e.rewards for e in episodes]),
        "next_states": np.concatenate([e.states[1:] for e in episodes]),
        "dones": ends,
        "values": np.concatenate([e.values for e in episodes]),
        "crisis": np.concatenate([e.crisis_values > 0.0 for e in episodes]),
        "importance_weights": np.repeat([e.importance_weight for e in episodes], lengths).astype(np.float32),
        "worlds": np.repeat([e.world for e in episodes], lengths),
        "context": np.repeat(contexts, lengths, axis=0),
        "batch_size": len(ends),
    }
