"""What workers need of the system. It is compared with what is left before any worker is started.

>>> shortage(Needs()) is None
True
>>> shortage(Needs(descriptors=10**9)).startswith("1,000,000,000 more open files are needed, ")
True
"""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from parallel_agents.core.errors import RunError

SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class Needs:
    """Amounts of what a system limits."""

    shared_bytes: int = 0
    descriptors: int = 0
    tasks: int = 0
    """Processes and threads, which Linux counts together."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def require(needs: Needs) -> None:
    """Raise `RunError` if the system cannot give what is needed."""
    lacking = shortage(needs)
    if lacking is not None:
        raise RunError(lacking)


def shortage(needs: Needs) -> str | None:
    """Return what there is too little of and what to do; None if there is enough, as far as the system tells."""
    checks = (
        (needs.shared_bytes, _free_shared_bytes, "bytes of shared memory", f"are free in {SHARED}",
         "give it more room, for example docker run --shm-size=1g"),
        (needs.descriptors, _free_descriptors, "more open files", "can be had", "raise ulimit -n"),
        (needs.tasks, _free_tasks, "more processes and threads", "can be had", "raise ulimit -u"),
    )  # fmt: skip
    for needed, measure, what, where, advice in checks:
        free = measure() if needed else None
        if free is not None and free < needed:
            return f"{needed:,} {what} are needed, {free:,} {where}: {advice}"
    return None


def _free_shared_bytes() -> int | None:
    try:
        status = os.statvfs(SHARED)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _free_descriptors() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return None if limit == resource.RLIM_INFINITY else limit - len(os.listdir("/dev/fd"))
    except OSError:
        return None


def _free_tasks() -> int | None:
    """Return what is left of the user's limit, which does not bind root, and of the container's limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    free = []
    if limit != resource.RLIM_INFINITY and os.getuid() != 0:
        free.append(limit - _tasks_of(os.getuid()))
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        most = int(Path("/sys/fs/cgroup/pids.max").read_text(encoding="ascii"))
        free.append(most - int(Path("/sys/fs/cgroup/pids.current").read_text(encoding="ascii")))
    return min(free, default=None)


def _tasks_of(user: int) -> int:
    """Return the number of threads of all processes of a user."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:  # the process has ended
            continue
        fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        if int(fields["Uid"].split()[0]) == user:
            count += int(fields["Threads"])
    return count
