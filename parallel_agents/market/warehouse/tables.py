"""A batch as two tables: a row per episode, and a row per step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from parallel_agents.errors import ConfigError, ContractError
from parallel_agents.market.montecarlo.experiences import EpisodeExperience
from parallel_agents.types import Array

__all__ = ["EPISODES", "STEPS", "arrow", "batch_tables"]

EPISODES, STEPS = "episodes", "steps"


def arrow() -> Any:
    """pyarrow, or an error that says what to install."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError("the warehouse needs pyarrow and DuckDB: install parallel-agents[data]") from error
    return pyarrow


def batch_tables(batch_id: str, experiences: Iterable[EpisodeExperience]) -> dict[str, Any]:
    """Arrow tables by name; every row carries the batch it belongs to."""
    pa, episodes = arrow(), list(experiences)
    if not episodes:
        raise ContractError(f"batch {batch_id!r} holds no experience: every world failed, or none was run")
    lengths = [len(e.rewards) for e in episodes]
    told = {
        "batch": [batch_id] * len(episodes),
        "world": [e.world for e in episodes],
        "world_type": [e.kind.value for e in episodes],
        "lap": [e.lap for e in episodes],
        "reward": [e.total_reward for e in episodes],
        "revenue": [e.revenue for e in episodes],
        "crisis_revenue": [e.crisis_parent_revenue for e in episodes],
        "cost": [e.cost for e in episodes],
        "conversions": [e.conversions for e in episodes],
        "importance_weight": [e.importance_weight for e in episodes],
        **{name: [e.context[name] for e in episodes] for name in episodes[0].context},
    }
    steps = {
        "batch": pa.array([batch_id] * sum(lengths)).dictionary_encode(),
        "world": np.repeat([e.world for e in episodes], lengths),
        "lap": np.repeat([e.lap for e in episodes], lengths),
        "step": np.concatenate([np.arange(n) for n in lengths]),
        "reward": np.concatenate([e.rewards for e in episodes]),
        "value": np.concatenate([e.values for e in episodes]),
        "crisis_value": np.concatenate([e.crisis_values for e in episodes]),
        "action": _lists(np.concatenate([e.actions.reshape(len(e.rewards), -1) for e in episodes])),
        "state": _lists(np.concatenate([e.states[:-1] for e in episodes])),
    }
    return {EPISODES: pa.table(told), STEPS: pa.table(steps)}


def _lists(rows: Array) -> Any:
    """(n, F) as a column of lists."""
    pa = arrow()
    flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
    return pa.ListArray.from_arrays(pa.array(np.arange(0, rows.size + 1, rows.shape[1]), pa.int32()), flat)
