"""What a batch of episodes amounts to. Means are weighted by how common each type of world is in the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from parallel_agents.errors import ContractError
from parallel_agents.market.montecarlo.experiences import EpisodeExperience
from parallel_agents.types import Array

__all__ = ["aggregate_experiences", "training_batch"]


def aggregate_experiences(experiences: Iterable[EpisodeExperience]) -> dict[str, Any]:
    """Totals, weighted means, crisis rate and share, success rate, a breakdown by type, and a training batch.

    An episode succeeds if it earns more than it costs; the crisis rate is the share of episodes with a crisis parent's
    purchase.
    """
    episodes = list(experiences)
    if not episodes:
        raise ContractError("there are no experiences to aggregate: every world failed, or none was run")
    kinds = sorted({e.kind.value for e in episodes})
    parts = {kind: [e for e in episodes if e.kind.value == kind] for kind in kinds}
    return {
        **_figures(episodes),
        "world_type_breakdown": {kind: _figures(part) for kind, part in parts.items()},
        "training_batch": training_batch(episodes),
    }


def _figures(episodes: Sequence[EpisodeExperience]) -> dict[str, float]:
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
        "success_rate": float(np.average(rewards > 0.0, weights=weights)),
        "revenue": revenue,
        "cost": cost,
        "roas": revenue / cost if cost > 0.0 else 0.0,
        "conversions": sum(e.conversions for e in episodes),
        "crisis_rate": float(np.average(crisis > 0.0, weights=weights)),
        "crisis_revenue": float(crisis.sum()),
        "crisis_revenue_share": float(crisis.sum()) / revenue if revenue > 0.0 else 0.0,
    }


def training_batch(episodes: Sequence[EpisodeExperience]) -> dict[str, Array]:
    """All transitions of some episodes, in order, each with its world's context and weight."""
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
    }
