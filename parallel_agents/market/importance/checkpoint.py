"""A training with importance sampling on disk: buffer, sampler, judge, agent and history at the end of an episode.

Arrays in safetensors, the rest in JSON, each with its sha256, by the same store as the checkpoints of a run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.errors import CheckpointError
from parallel_agents.market.importance.metrics import plain_figures
from parallel_agents.market.importance.training import ImportanceSamplingTraining
from parallel_agents.runtime.checkpoints.store import Manifest, Store
from parallel_agents.tracking.locks import FolderLock
from parallel_agents.types import Array

__all__ = ["load_training", "save_training"]

History = list[dict[str, Any]]


def save_training(
    folder: Path,
    training: ImportanceSamplingTraining,
    history: History,
    *,
    keep_last: int = 3,
    lock: FolderLock | None = None,
) -> None:
    """Write a checkpoint after the episodes of `history`, and forget all but the newest `keep_last`.

    lock: of the folder, where the caller holds it.
    """
    store = Store(folder, lock)
    store.open_for_writing()
    episode = len(history)
    arrays = {
        f"{part}.{name}": np.asarray(value) for part, state in _parts(training).items() for name, value in state.items()
    }
    name = f"state-{episode:06d}.safetensors"
    values = {
        "configuration": training.configuration.as_dict(),
        "history": [plain_figures(line) for line in history],
        "judged": training.judged,
        "right": training.right,
        "agent": hasattr(training.agent, "state"),
    }
    store.commit(Manifest(episode, {name: store.write(name, arrays)}, values))
    store.rotate(episode, keep_last)
    store.close()


def load_training(folder: Path, training: ImportanceSamplingTraining) -> History:
    """Take over the newest checkpoint whose every byte is right; the history so far."""
    store = Store(folder)
    manifest, _ = store.newest_good()
    stored, own = manifest.values["configuration"], training.configuration.as_dict()
    free = ("simulation_episodes", "checkpoint_every")  # a training may go on for longer
    odd = [name for name in own if name not in free and stored.get(name) != own[name]]
    if odd:
        raise CheckpointError(f"the stored training had another {', '.join(odd)}: go on with the same configuration")
    arrays = store.read(manifest, f"state-{manifest.epoch:06d}.safetensors")
    if manifest.values["agent"] and not hasattr(training.agent, "load_state"):
        raise CheckpointError(f"the stored agent has a state, {type(training.agent).__name__} has no load_state")
    parts = {part: _of(part, arrays) for part in ("buffer", "sampler", "judge", "agent")}
    training.memory.load_state(parts["buffer"])
    training.memory.sampler.load_state(parts["sampler"])
    training.aggregator.load_state(parts["judge"])
    if manifest.values["agent"]:
        training.agent.load_state(parts["agent"])  # type: ignore[attr-defined]
    training.judged, training.right = int(manifest.values["judged"]), int(manifest.values["right"])
    return [dict(line) for line in manifest.values["history"]]


def _parts(training: ImportanceSamplingTraining) -> dict[str, dict[str, Any]]:
    agent = training.agent
    return {
        "buffer": training.memory.state(),
        "sampler": training.memory.sampler.state(),
        "judge": training.aggregator.state(),
        "agent": agent.state() if hasattr(agent, "state") else {},
    }


def _of(part: str, arrays: dict[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(f"{part}."): array for name, array in arrays.items() if name.startswith(f"{part}.")}
