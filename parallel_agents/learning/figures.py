"""What a round's samples were like, under the names of the metrics."""

from __future__ import annotations

import numpy as np

from parallel_agents.types import Array, Snapshot

__all__ = ["sampling_figures"]


def sampling_figures(snapshot: Snapshot) -> dict[str, Array]:
    """(N,) what samples drawn by event class were like; nothing where they were drawn uniformly."""
    if "rare" not in snapshot.columns:
        return {}
    weights = snapshot["weights"].astype(np.float64)
    return {
        "crisis_parent_ratio_in_batch": snapshot["rare"].mean(1),
        "importance_weights_mean": weights.mean(1),
        "importance_weights_std": weights.std(1),
        "effective_sample_share": weights.mean(1) ** 2 / (weights**2).mean(1),
    }
