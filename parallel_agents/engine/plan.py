"""Resolve the flags of the `parallel` section to a plan: how the work of a run is done, never what is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parallel_agents.core.config import BackendName, Parallel
from parallel_agents.core.errors import ConfigError
from parallel_agents.execution.ray import require_ray
from parallel_agents.execution.resources import cores


@dataclass(frozen=True)
class Plan:
    """How a run is done, with every flag resolved."""

    act_together: bool
    """One forward pass for all agents of a stack, or one per agent."""
    train_together: bool
    """One update for all agents of a worker's share, or one per agent."""
    backend: BackendName | Literal["auto"]
    """Where rounds are computed; `auto` starts inline and moves where it measures that this is faster."""
    workers: int
    """Learner workers at the start."""
    most_workers: int
    """How many there may be later, at most."""
    read_in_learner: bool
    """Who takes snapshots: learner threads under the buffers' locks, or the collector."""
    device: str


def resolve(flags: Parallel, *, agents: int, available_cores: int | None = None) -> Plan:
    """Return the plan that the flags ask for.

    >>> resolve(Parallel(enabled=False), agents=3).backend
    'inline'
    >>> resolve(Parallel(use_threads=True, num_workers=8), agents=3).workers
    3
    """
    backend = _backend(flags)
    free = available_cores or cores()
    if backend == "ray":
        free = agents + 1  # the cluster has the last word
    workers = min(flags.num_workers or max(1, free - 1), agents)
    return Plan(
        act_together=flags.enabled and flags.parallel_actions,
        train_together=flags.enabled and flags.parallel_training,
        backend=backend,
        workers=1 if backend == "inline" else workers,
        most_workers=1 if backend == "inline" else min(flags.num_workers or free, agents),
        read_in_learner=flags.buffer_sync == "lock" and backend == "thread",
        device=_device(flags.device),
    )


def _backend(flags: Parallel) -> BackendName | Literal["auto"]:
    if flags.backend == "ray":
        require_ray()
    if flags.backend is not None:
        return flags.backend
    if not flags.enabled or not flags.async_learning:
        return "inline"
    if flags.use_threads is None:
        return "auto"
    return "thread" if flags.use_threads else "process"


def _device(wanted: str) -> str:
    if wanted == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "auto":
        return "cpu"
    raise ConfigError("parallel.device is 'cuda', but torch sees no CUDA device here: use 'cpu' or 'auto'")
