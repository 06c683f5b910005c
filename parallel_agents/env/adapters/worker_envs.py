"""W environments of another library in worker processes, for environments that are slow, or may hang or crash.

Requests go through a pipe, everything else through shared memory. A process that hangs or dies is replaced, and its
worlds are replayed from their seeds and actions, so that the run continues with the same bytes.
"""

from __future__ import annotations

import time
import traceback
import weakref
from collections.abc import Callable, Mapping

import cloudpickle
import numpy as np
import structlog

from parallel_agents.core.errors import RunError, ShapeError, WorldError
from parallel_agents.core.types import Array
from parallel_agents.env.adapters.sync_envs import EnvAdapter, MakeAdapter, SharedBuffers, SyncEnvs
from parallel_agents.execution.backend import Heartbeat, Monitored
from parallel_agents.execution.workers import Worker, close_all

POLL_SECONDS = 0.1
"""How long to wait for one answer before the deadlines are checked again."""
START_SECONDS = 60.0
"""How long a process may take to start, and to make its environments."""
Request = dict[int, tuple[int | None, Array | None]] | None
"""By world: the seed to reset it from (None: no reset) and the actions to take then (None: the one in the buffers).

None instead of worlds: make the environments."""


class WorkerEnvs(SyncEnvs):
    """W adapted environments, spread over worker processes.

    deadline: seconds that one world may take for one step.
    max_failures: how many failures in a row raise a `WorldError`; before that, the process is replaced.
    `make` is sent to the processes by cloudpickle, so that it may be a lambda.
    """

    def __init__(
        self,
        make: MakeAdapter,
        n_worlds: int,
        *,
        workers: int = 1,
        deadline: float = 60.0,
        max_failures: int = 3,
        seed: int = 0,
    ) -> None:
        if workers < 1:
            raise ShapeError(f"workers is {workers}: at least one process is needed")
        self._n_workers = min(workers, n_worlds)
        self._deadline, self._max_failures = deadline, max(1, max_failures)
        self._failures_in_a_row = 0
        self.restarts = 0
        """How many processes were replaced so far."""
        super().__init__(make, n_worlds, seed=seed)

    def _open(self, make: MakeAdapter) -> None:
        example = make()
        self.agents, self.max_episode_steps = example.agents, example.max_episode_steps
        example.close()
        self.buffers = SharedBuffers(self.agents, self.n_worlds, shared=True)
        self._worlds = [share.tolist() for share in np.array_split(np.arange(self.n_worlds), self._n_workers)]
        """The worlds of each process."""
        self._make = cloudpickle.dumps(make)
        self._workers: list[Worker] = []
        self._finalizer = weakref.finalize(self, _close, self._workers)
        for k in range(self._n_workers):
            self._workers.append(self._spawn(k))
        for worker in self._workers:
            self._await_start(worker)
        self._request(dict.fromkeys(range(self._n_workers)), START_SECONDS)

    def _spawn(self, k: int) -> Worker:
        return Worker(f"worlds-{k}", _serve, self.buffers, self._worlds[k], self._make, failure=WorldError)

    def _await_start(self, worker: Worker) -> None:
        if not worker.ready(START_SECONDS):
            raise WorldError(f"{worker} did not start within {START_SECONDS:g} s: is the machine busy?")

    def workers(self) -> list[Monitored]:
        return [worker.monitored(limit=self._deadline) for worker in self._workers]

    def close(self) -> None:
        """End every process; may be called twice."""
        self._finalizer()

    def _play(self, first_steps: Mapping[int, int]) -> None:
        plays = [{w: self._to_play(w, first_steps[w]) for w in own if w in first_steps} for own in self._worlds]
        self._request({k: play for k, play in enumerate(plays) if play}, self._deadline)

    def _to_play(self, world: int, first: int) -> tuple[int | None, Array | None]:
        episode = self.episodes[world]
        return (episode.seed, np.array(episode.actions)) if first == 0 else (None, None)

    # -- requests ----------------------------------------------------------------------------------------------

    def _request(self, requests: Mapping[int, Request], deadline: float) -> None:
        """Send a request to each of some processes, and replace those that fail until all requests are done."""
        failures = self._exchange(requests, deadline)
        while failures:
            for k, failure in failures.items():
                self._replace(k, failure)
            failures = self._exchange({k: self._retry(k, requests[k]) for k in failures}, deadline)
        self._failures_in_a_row = 0

    def _retry(self, k: int, request: Request) -> Request:
        """Return the request that brings a new process to where the failed request would have led."""
        begun = [world for world in self._worlds[k] if self.episodes[world].seed >= 0]
        return None if request is None else {world: self._to_play(world, 0) for world in begun}

    def _exchange(self, requests: Mapping[int, Request], deadline: float) -> dict[int, str]:
        """Return what went wrong per process that hung or died; raise what a world raised, once all have answered."""
        failures: dict[int, str] = {}
        errors: list[str] = []
        for k, request in requests.items():
            try:
                self._workers[k].send(request)
            except RunError as error:
                failures[k] = str(error)
        sent = time.monotonic()
        waiting = [k for k in requests if k not in failures]
        while waiting:
            for k in list(waiting):
                finished, failure = self._poll(k, sent, deadline, errors)
                if finished:
                    waiting.remove(k)
                if failure is not None:
                    failures[k] = failure
        if errors:
            raise WorldError(errors[0])
        return failures

    def _poll(self, k: int, sent: float, deadline: float, errors: list[str]) -> tuple[bool, str | None]:
        """Return whether waiting for one process is over, and how it failed; add to `errors` what a world raised."""
        worker = self._workers[k]
        activity = worker.heartbeat.busy()
        position = f"the process {worker}"
        if activity is not None and activity.part:
            position = self.describe(activity.part - 1)
        if worker.answered(POLL_SECONDS):
            try:
                answer = worker.receive(START_SECONDS)
            except RunError as error:
                return True, f"{position}: {error}"
            if answer is not None:
                errors.append(f"{self.describe(answer[0])} raised in its process:\n{answer[1]}")
            return True, None
        activity = worker.heartbeat.busy()
        seconds = activity.seconds if activity is not None else time.monotonic() - sent
        if seconds <= deadline:
            return False, None
        return (
            True,
            f"{position} did not come back within {deadline:g} s (world_deadline); it is at\n{worker.tracebacks()}",
        )

    def _replace(self, k: int, failure: str) -> None:
        """Replace a process that failed; raise `WorldError` if there were too many failures in a row."""
        self._failures_in_a_row += 1
        self._workers[k].ask_to_end()
        self._workers[k].end(0.0)
        if self._failures_in_a_row >= self._max_failures:
            raise WorldError(f"{failure}; that was failure {self._failures_in_a_row} in a row (parallel.max_failures)")
        self.restarts += 1
        structlog.get_logger().warning("world_process_replaced", reason=failure, process=self._workers[k].name)
        self._workers[k] = self._spawn(k)
        self._await_start(self._workers[k])
        failures = self._exchange({k: None}, START_SECONDS)
        if failures:
            raise WorldError(f"{failure}; and its replacement could not start: {failures[k]}")


def _close(workers: list[Worker]) -> None:
    close_all(workers)
    workers.clear()


def _serve(
    heartbeat: Heartbeat, buffers: SharedBuffers, worlds: list[int], make: bytes
) -> Callable[[Request], tuple[int, str] | None]:
    """Return, in the process, the function that answers requests: None, or a world and the traceback it raised."""
    adapters: dict[int, EnvAdapter] = {}
    rows = {world: buffers.row(world) for world in worlds}

    def beat(world: int) -> None:
        """Report which world is being stepped: its index plus one, since 0 means none."""
        heartbeat.beat(heartbeat.cells[0], world + 1)

    def play(world: int, seed: int | None, actions: Array | None) -> None:
        if seed is not None:
            adapters[world].reset(seed, rows[world])
        for action in buffers["actions"][world][None] if actions is None else actions:
            beat(world)
            buffers["actions"][world] = action
            adapters[world].step(rows[world])

    def answer(request: Request) -> tuple[int, str] | None:
        for world in worlds if request is None else request:
            beat(world)
            try:
                if request is None:
                    adapters[world] = cloudpickle.loads(make)()
                else:
                    play(world, *request[world])
            except (Exception, SystemExit):
                return world, traceback.format_exc()
        return None

    return answer
