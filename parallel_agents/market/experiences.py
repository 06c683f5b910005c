"""What an episode in a world leaves behind, batches of episodes and their summary, and the buffer of transitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ContractError
from parallel_agents.core.serialization import restored
from parallel_agents.core.types import Array
from parallel_agents.market.worlds import World, WorldType
from parallel_agents.replay import ImportanceSampler, ImportanceSamplingReplayBuffer
from parallel_agents.replay.importance_sampler import CRISIS_PARENT, REGULAR_PARENT

_WORLD_TYPES = tuple(WorldType)


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
    training_batch = aggregate_parallel_experiences(episodes)  # raises if there are no episodes
    kinds = sorted({e.kind.value for e in episodes})
    return {
        **summarize(episodes),
        "world_type_breakdown": {kind: summarize([e for e in episodes if e.kind.value == kind]) for kind in kinds},
        "training_batch": training_batch,
    }


def summarize(episodes: Sequence[EpisodeExperience]) -> dict[str, float]:
    """Return totals, means and rates of episodes."""
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


class ExperienceBuffer(ImportanceSamplingReplayBuffer):
    """Transitions of many episodes; a transition is of a crisis parent if it causes the purchase of one.

    target_share: share of crisis transitions in a batch with importance sampling.
    population: natural class shares that corrections restore; None: those of the buffer.
    """

    def __init__(
        self,
        max_size: int,
        features: int,
        action_shape: tuple[int, ...] = (),
        action_dtype: str = "int16",
        *,
        target_share: float = 0.5,
        population: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        sampler = ImportanceSampler(
            min_crisis_parent_ratio=0.0,
            focus_rare_events=True,
            target_share=target_share,
            population_ratios=population,
            beta=1.0,
            beta_frames=None,
            empty_class="skip",
            seed=seed,
        )
        super().__init__(
            max_size, features, sampler, action_shape=action_shape, action_dtype=action_dtype, metadata_rows=0,
            columns=[("world_types", "u1")],
        )  # fmt: skip
        self.episodes = 0

    def add_experiences(self, experiences: Iterable[EpisodeExperience]) -> None:
        """Store whole episodes; all of them are checked before the first is stored."""
        episodes = list(experiences)
        if not episodes:
            return
        rows = aggregate_parallel_experiences(episodes)
        self.add_many(
            rows["states"],
            rows["actions"],
            rows["rewards"],
            rows["next_states"],
            rows["dones"],
            np.where(rows["crisis"], CRISIS_PARENT, REGULAR_PARENT).tolist(),
            rows["values"],
            world_types=np.repeat([_WORLD_TYPES.index(e.kind) for e in episodes], [len(e.rewards) for e in episodes]),
        )
        self.episodes += len(episodes)

    def sample_batch(self, batch_size: int, importance_sampling: bool = True) -> dict[str, Array]:
        """Draw B rows: states, actions, rewards, next_states, dones, values, crisis and correcting `weights`."""
        if not len(self):
            raise ContractError("the buffer is empty: run a batch of episodes first")
        draw = self.sample_importance_weighted if importance_sampling else self.sample_uniform
        batch, weights, indices = draw(min(batch_size, len(self)))
        return {
            **batch,
            "values": self.values(indices),
            "crisis": np.array([name == CRISIS_PARENT for name in self.event_types(indices)]),
            "weights": np.asarray(weights, np.float32),
        }

    def statistics(self) -> dict[str, Any]:
        """Return those of the buffer, the next batch's shares, and transitions and mean reward by world type."""
        rows = self.get_buffer_snapshot()
        per_type = {
            kind.value: {
                "transitions": int(mask.sum()),
                "mean_reward": float(rows["rewards"][mask].mean(dtype=np.float64)),
            }
            for number, kind in enumerate(_WORLD_TYPES)
            if (mask := rows["world_types"] == number).any()
        }
        return {
            **super().statistics(),
            "transitions": len(self),
            "episodes": self.episodes,
            "predicted_shares": self.sampler.predicted_shares() if len(self) else {},
            "world_types": per_type,
        }

    def state(self) -> dict[str, Array]:
        """Return everything as arrays, for a checkpoint."""
        sampler = {f"sampler.{name}": np.asarray(array) for name, array in self.sampler.state().items()}
        return {**super().state(), **sampler, "episodes": np.array(self.episodes)}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from what `state` returned, after checking it."""
        sampler = {n.removeprefix("sampler."): a for n, a in state.items() if n.startswith("sampler.")}
        rows = {n: a for n, a in state.items() if not n.startswith("sampler.") and n != "episodes"}
        super().load_state(rows)
        self.sampler.load_state(sampler)
        self.episodes = int(restored("episodes", state["episodes"], np.array(0), least=0))
