"""What workers need of the system, looked at before any is started: too little is a reason, not a crash.

>>> shortage(Needs()) is None
True
>>> shortage(Needs(descriptors=10**9)).startswith("1,000,000,000 more open files are needed, ")
True
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel_agents.runtime.backends.work import split
from parallel_agents.runtime.plan import cores
from parallel_agents.types import Snapshot, State

__all__ = ["Needs", "needs_of_processes", "needs_of_threads", "shortage"]

SHARED = Path("/dev/shm")
PAGE = 4096
PER_WORKER = 10
"""Descriptors of one process while it is started: its pipes at both ends, its heart and its sentinel."""
SPARE = 16
"""Descriptors left for everything else: logs, checkpoints, imports."""


@dataclass(frozen=True)
class Needs:
    """How much of what a system limits."""

    shared_bytes: int = 0
    descriptors: int = 0
    tasks: int = 0
    """Processes and threads, which Linux counts together."""


def needs_of_threads(workers: int) -> Needs:
    """Return what so many learner threads need."""
    return Needs(tasks=workers)


def needs_of_processes(
    stacks: Sequence[Any],
    states: Sequence[State],
    examples: Sequence[Snapshot],
    *,
    workers: int,
    together: bool,
    lag: int,
) -> Needs:
    """What the process backend will ask for: an array in shared memory, with a descriptor, for all that it hands over.

    A worker's numeric libraries start a thread for each core as soon as they are imported.
    """
    shares = split(stacks, workers, together=together)
    count = total = 0
    for task in (task for share in shares for task in share):
        arrays: list[Any] = [*states[task.stack].tensors.values(), *examples[task.stack].columns.values()]
        sizes = [array.nbytes / len(stacks[task.stack]) * len(task.identity.agents) for array in arrays]
        count += len(sizes)
        total += sum(PAGE * math.ceil(size / PAGE) for size in sizes)
    slots = lag + 2
    return Needs(slots * total, slots * count + PER_WORKER * len(shares) + SPARE, len(shares) * cores() + 1)


def shortage(needs: Needs) -> str | None:
    """What there is too little of, and what to do; None where everything can be had, as far as the system says."""
    found = _free_shared_bytes()
    if needs.shared_bytes and found is not None and found < needs.shared_bytes:
        return (
            f"{needs.shared_bytes:,} bytes of shared memory are needed, {found:,} are free in {SHARED}: "
            "give it more room, for example docker run --shm-size=1g"
        )
    found = _free_descriptors()
    if needs.descriptors and found is not None and found < needs.descriptors:
        return f"{needs.descriptors:,} more open files are needed, {found:,} can be had: raise ulimit -n"
    found = _free_tasks()
    if needs.tasks and found is not None and found < needs.tasks:
        return f"{needs.tasks:,} more processes and threads are needed, {found:,} can be had: raise ulimit -u"
    return None


def _free_shared_bytes() -> int | None:
    try:
        found = os.statvfs(SHARED)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _free_descriptors() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return None if limit == resource.RLIM_INFINITY else limit - len(os.listdir("/dev/fd"))
    except OSError:
        return None


def _free_tasks() -> int | None:
    """By the limit of the user, which does not bind root, and by that of a container."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    free = []
    if limit != resource.RLIM_INFINITY and os.getuid() != 0:
        free.append(limit - _tasks_of(os.getuid()))
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        most = int(Path("/sys/fs/cgroup/pids.max").read_text(encoding="ascii"))
        free.append(most - int(Path("/sys/fs/cgroup/pids.current").read_text(encoding="ascii")))
    return min(free, default=None)


def _tasks_of(user: int) -> int:
    """Threads of all processes of a user."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(
                line.split(":\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if ":\t" in line
            )
        except OSError:  # it has ended
            continue
        if int(lines["Uid"].split()[0]) == user:
            count += int(lines["Threads"])
    return count
