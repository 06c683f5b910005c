"""Starts the backend of a run, and says how many workers it should have."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

from parallel_agents.algorithms.learner import LearnerState
from parallel_agents.core.config import BackendName, Parallel
from parallel_agents.core.errors import ConfigError, LearnerError, WorkerDied
from parallel_agents.core.system import free_memory
from parallel_agents.execution.auto import LACKING, START_COST, AutoBackend
from parallel_agents.execution.backend import Backend, InlineBackend
from parallel_agents.execution.process import ProcessBackend
from parallel_agents.execution.ray import RayBackend, RayCluster, start_on_nodes
from parallel_agents.execution.thread import ThreadBackend
from parallel_agents.tracking.timeline import Timeline

FALLBACK: dict[str, str | None] = {"ray": None, "process": "thread", "thread": "inline", "inline": None}
"""What to start instead of a backend if the system lacks something; None: nothing. All give the same bytes."""
ONE_CORE = {"CPU": 1.0}
"""What a worker on Ray gets unless the configuration says otherwise."""
WINDOW = 8
"""Rounds after which the autoscaler decides."""
WAITING_SHARE = 0.2
"""Share of the time spent waiting for results above which another worker is wanted."""
IDLE_SHARE = 0.5
"""Share of the time that one worker fewer would still be idle, above which one is given up."""
LOW_MEMORY = 0.05
"""Share of free memory below which a worker is given up."""


class BackendLauncher:
    """Starts backends for the stacks of one run, at its start and whenever workers must be replaced."""

    def __init__(
        self,
        stacks: Sequence[Any],
        wanted: BackendName | Literal["auto"],
        *,
        together: bool,
        lag: int,
        most_workers: int,
        emit: Callable[[str, dict[str, Any]], None],
        timeline: Timeline,
        flags: Parallel | None = None,
    ) -> None:
        """most_workers: how many workers `auto` may have in threads; the thread of the loop is one, or waits for them.

        flags: what backend `ray` reads: address, resources and number of workers, deadline.
        """
        self._stacks, self._together, self._lag = list(stacks), together, lag
        self._most_workers, self._emit, self._timeline = most_workers, emit, timeline
        self._wanted: str = wanted
        """The backend to start: as configured, or a lower one since the system lacked something."""
        self._flags = flags or Parallel()
        self._cluster: RayCluster | None = None
        self.release_others: Callable[[], None] = lambda: None
        """Called before workers on Ray are started again. Ray moves what a run has reserved from a lost node to those
        that are left, so that other groups of the run may be in the way."""

    def launch(self, states: Sequence[LearnerState], first_round: int, *, last_round: int, workers: int) -> Backend:
        """Start a backend that goes on from `states` with round `first_round`.

        If the system lacks what it needs, start the next lower backend, emit `backend_degraded`, and remember that.
        """
        if self._wanted == "auto":
            # A round that is awaited at once gains nothing in the background.
            return self._auto(states, last_round, workers) if self._lag else self._inline(states)
        causes, name = [], self._wanted
        while True:
            try:
                backend = self._start(name, states, first_round, workers)
            except LACKING as error:
                causes.append(f"{name}: {error}")
                lower = FALLBACK[name]
                if lower is None:
                    raise LearnerError("; ".join(causes)) from error
                name = lower
            else:
                break
        if causes:
            self._emit("backend_degraded", {"wanted": self._wanted, "used": name, "cause": "; ".join(causes)})
            self._wanted = name
        return backend

    @property
    def scales(self) -> bool:
        """True if the wanted backend has workers whose number can change."""
        return FALLBACK.get(self._wanted) is not None

    def _start(self, name: str, states: Sequence[LearnerState], first_round: int, workers: int) -> Backend:
        match name:
            case "process":
                return self._process(states, first_round, workers).started()
            case "thread":
                return self._thread(states, workers)
            case "inline":
                return self._inline(states)
            case "ray":
                return self._ray(states, first_round, workers)
        raise ConfigError(f"parallel.backend is {name!r}, which cannot be started: use {', '.join(FALLBACK)}")

    def _auto(self, states: Sequence[LearnerState], last_round: int, workers: int) -> AutoBackend:
        return AutoBackend(
            self._inline,
            lambda newest, first_round: self._process(newest, first_round, workers),
            lambda newest: self._thread(newest, self._most_workers),
            states,
            updates=max(1, sum(stack.learner.updates for stack in self._stacks)),
            last_round=last_round,
            emit=self._emit,
            native=all(stack.native for stack in self._stacks),
        )

    def _inline(self, states: Sequence[LearnerState]) -> InlineBackend:
        return InlineBackend(self._stacks, states, together=self._together, timeline=self._timeline)

    def _thread(self, states: Sequence[LearnerState], workers: int) -> ThreadBackend:
        return ThreadBackend(self._stacks, states, workers=workers, together=self._together, timeline=self._timeline)

    def _process(self, states: Sequence[LearnerState], first_round: int, workers: int) -> ProcessBackend:
        return ProcessBackend(
            self._stacks,
            states,
            workers=workers,
            together=self._together,
            lag=self._lag,
            first_round=first_round,
            timeline=self._timeline,
        )

    def cluster(self) -> RayCluster:
        """Return the connection to Ray; connect if there is none yet."""
        if self._cluster is None:
            flags = self._flags
            self._emit("ray_starting", {"address": flags.address or "local", "level": "info"})
            workers = (flags.num_workers or 1) + flags.world_shards
            self._cluster = RayCluster(flags.address, workers=workers, groups=2 if flags.world_shards else 1)
        return self._cluster

    def _ray(self, states: Sequence[LearnerState], first_round: int, workers: int) -> RayBackend:
        flags, again = self._flags, self._cluster is not None
        resources, cluster = flags.resources_per_worker or ONE_CORE, self.cluster()

        def start(count: int, grows: bool) -> RayBackend:
            return RayBackend(
                cluster,
                self._stacks,
                states,
                workers=count,
                together=self._together,
                first_round=first_round,
                resources=resources,
                deadline=flags.round_deadline,
                grows=grows,
            )

        def on_loss(error: WorkerDied) -> None:
            self._emit("worker_replaced", {"round": first_round, "backend": "ray", "cause": str(error)})

        if again:  # a node may have been lost: go on with those that are left
            self.release_others()
        fixed = flags.num_workers is not None and not again
        return start_on_nodes(cluster, start, workers, resources, fixed=fixed, on_loss=on_loss)

    def close(self) -> None:
        """Leave the cluster; end a local Ray."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


class Autoscaler:
    """Decides how many workers the rounds should have, from medians over a few rounds.

    Results do not depend on it, so it may follow the load of the machine. It is used only if the configuration leaves
    the number open.

    >>> autoscaler = Autoscaler(1, most=2, memory=lambda: 0.5)
    >>> for _ in range(WINDOW):
    ...     autoscaler.record(interval=1.0, waited=0.6, busy=1.0)
    >>> autoscaler.wanted(rounds_left=100)
    2
    """

    def __init__(self, workers: int, most: int, *, memory: Callable[[], float] = free_memory) -> None:
        """memory: returns the share of memory that is free."""
        self.workers, self.most = workers, most
        self._memory = memory
        self._rounds: list[tuple[float, float, float]] = []

    def record(self, *, interval: float, waited: float, busy: float) -> None:
        """Record one round in seconds: between two boundaries, waited for results, computed by the workers."""
        self._rounds.append((interval, waited, busy))

    def wanted(self, rounds_left: int) -> int:
        """Return how many workers there should be from now on; it is asked at every boundary and changes rarely."""
        if len(self._rounds) < WINDOW:
            return self.workers
        interval, waited, busy = (statistics.median(column) for column in zip(*self._rounds, strict=True))
        self._rounds.clear()
        idle_if_fewer = 1.0 - busy / max(interval, 1e-9) * self.workers / max(1, self.workers - 1)
        low_memory = self._memory() < LOW_MEMORY
        if self.workers > 1 and (low_memory or idle_if_fewer > IDLE_SHARE):
            self.workers -= 1
        elif not low_memory and waited > WAITING_SHARE * interval and waited * rounds_left > 2 * START_COST:
            self.workers = min(self.workers + 1, self.most)
        return self.workers
