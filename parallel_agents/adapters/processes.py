"""Foreign worlds in worker processes: for worlds that are slow, or that may hang or crash.

Requests go through a pipe, everything else through shared memory. A process that hangs or dies is replaced, and its
worlds are played again from their seeds and actions, so that the run goes on with the same bytes.
"""

from __future__ import annotations

import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import numpy as np
import structlog

from parallel_agents.adapters.guests import Board, Guest
from parallel_agents.adapters.worlds import Episode, Make, Worlds
from parallel_agents.errors import RunError, ShapeError, WorldError
from parallel_agents.runtime.heartbeat import Heart
from parallel_agents.runtime.supervision import Watched
from parallel_agents.runtime.workers import Worker, close_all
from parallel_agents.types import Array

__all__ = ["ProcessWorlds"]

TICK = 0.1
"""Seconds between two looks at the clock while worlds are awaited."""
START = 60.0
"""Seconds a process may take to start, and to make its worlds."""
Request = tuple[str, Mapping[int, Any]]


class ProcessWorlds(Worlds):
    """W guests in K processes, each with its share of them.

    deadline: seconds one world may take for one step. failures: how many in a row end in a `WorldError`; the
    processes before are replaced. The worlds' makers cross over by cloudpickle, so that lambdas will do.
    """

    def __init__(
        self,
        make: Make,
        n_worlds: int,
        *,
        workers: int = 1,
        deadline: float = 60.0,
        failures: int = 3,
        seed: int = 0,
    ) -> None:
        if workers < 1:
            raise ShapeError(f"workers is {workers}: at least one process is needed")
        self._deadline, self._limit = deadline, max(1, failures)
        self._in_a_row = 0
        self.restarts = 0
        """Processes that were replaced so far."""
        self._n_workers = min(workers, n_worlds)
        super().__init__(make, n_worlds, seed=seed)

    def _open(self, make: Make) -> None:
        example = make()
        self.places, self.limit = example.places, example.limit
        example.close()
        self.board = Board(self.places, self.n_worlds, shared=True)
        shares = np.array_split(np.arange(self.n_worlds), self._n_workers)
        self._owner = {int(world): k for k, share in enumerate(shares) for world in share}
        self._make = cloudpickle.dumps(make)
        self._workers: list[Worker] = []
        self._finalizer = weakref.finalize(self, _close, self._workers)
        for k in range(self._n_workers):
            self._workers.append(self._hired(k))
        for worker in self._workers:
            self._wait_for(worker)
        self._ask({k: ("make", {}) for k in range(self._n_workers)}, START)

    def _hired(self, k: int) -> Worker:
        own = [world for world, owner in self._owner.items() if owner == k]
        return Worker(f"worlds-{k}", _serve, self.board, own, self._make, failure=WorldError)

    def _wait_for(self, worker: Worker) -> None:
        if not worker.ready(START):
            raise WorldError(f"{worker} did not start within {START:g} s: is the machine busy?")

    def members(self) -> list[Watched]:
        return [Watched.process(worker, limit=self._deadline) for worker in self._workers]

    def close(self) -> None:
        """End every process; may be called twice."""
        self._finalizer()

    def recall(self, episodes: Mapping[int, Episode]) -> None:
        for world, episode in episodes.items():
            self.episodes[world] = episode
        self._ask(self._by_owner("recall", {world: _packed(own) for world, own in episodes.items()}), self._deadline)

    def _do(self, steps: Mapping[int, int]) -> None:
        seeds = {world: self.episodes[world].seed for world, step in steps.items() if step == 0}
        if seeds:
            self._ask(self._by_owner("reset", seeds), self._deadline)
        going = {world: step for world, step in steps.items() if step > 0}
        if going:
            self._ask(self._by_owner("step", going), self._deadline)

    def _by_owner(self, kind: str, values: Mapping[int, Any]) -> dict[int, Request]:
        requests: dict[int, Request] = {}
        for world, value in values.items():
            requests.setdefault(self._owner[world], (kind, {}))[1][world] = value  # type: ignore[index]
        return requests

    # -- asking ----------------------------------------------------------------------------------------------

    def _ask(self, requests: Mapping[int, Request], deadline: float) -> None:
        """Send a request to each of some processes, and see to it that all are done."""
        troubles = self._asked(requests, deadline)
        while troubles:
            for k, trouble in troubles.items():
                self._replace(k, trouble)
            again = {k: self._whole(k) if requests[k][0] != "make" else requests[k] for k in troubles}
            troubles = self._asked(again, deadline)
        self._in_a_row = 0

    def _asked(self, requests: Mapping[int, Request], deadline: float) -> dict[int, str]:
        """What went wrong, per process that hung or died; raises what a world raised, once all have answered."""
        troubles: dict[int, str] = {}
        raised: list[str] = []
        for k, request in requests.items():
            try:
                self._workers[k].send(request)
            except RunError as error:
                troubles[k] = str(error)
        sent = time.monotonic()
        waiting = [k for k in requests if k not in troubles]
        while waiting:
            for k in list(waiting):
                over, trouble = self._hear(k, sent, deadline, raised)
                if over:
                    waiting.remove(k)
                if trouble is not None:
                    troubles[k] = trouble
        if raised:
            raise WorldError(raised[0])
        return troubles

    def _hear(self, k: int, sent: float, deadline: float, raised: list[str]) -> tuple[bool, str | None]:
        """Whether waiting for one process is over, and what is wrong with it, if something is."""
        worker = self._workers[k]
        at = self._at(k)
        if worker.answered(TICK):
            try:
                news = worker.receive(START)
            except RunError as error:
                return True, f"{at}: {error}"
            if news is not None:
                raised.append(f"{self.where(news[0])} raised in its process:\n{news[1]}")
            return True, None
        beat = worker.heart.busy()
        seconds = beat.seconds if beat is not None else time.monotonic() - sent
        if seconds <= deadline:
            return False, None
        return True, f"{at} did not come back within {deadline:g} s (world_deadline); it is at\n{worker.stacks()}"

    def _at(self, k: int) -> str:
        beat = self._workers[k].heart.busy()
        return self.where(beat.part - 1) if beat is not None and beat.part else f"the process {self._workers[k]}"

    # -- replacing -------------------------------------------------------------------------------------------

    def _replace(self, k: int, trouble: str) -> None:
        """A fresh process in the place of one that was lost, unless it was one too many."""
        self._in_a_row += 1
        self._workers[k].ask_to_end()
        self._workers[k].end(0.0)
        if self._in_a_row >= self._limit:
            raise WorldError(f"{trouble}; that was failure {self._in_a_row} in a row (parallel.max_failures)")
        self.restarts += 1
        structlog.get_logger().warning("world_process_replaced", reason=trouble, process=self._workers[k].name)
        self._workers[k] = self._hired(k)
        self._wait_for(self._workers[k])
        lost = self._asked({k: ("make", {})}, START)
        if lost:
            raise WorldError(f"{trouble}; and its replacement could not start: {lost[k]}")

    def _whole(self, k: int) -> Request:
        """All that the worlds of a process have been through."""
        own = [world for world, owner in self._owner.items() if owner == k]
        return "recall", {w: _packed(self.episodes[w]) for w in own if self.episodes[w].seed >= 0}


def _packed(episode: Episode) -> tuple[int, Array]:
    return episode.seed, np.array(episode.actions)


def _close(workers: list[Worker]) -> None:
    close_all(workers)
    workers.clear()


def _serve(heart: Heart, board: Board, own: list[int], make: bytes) -> Callable[[Request], tuple[int, str] | None]:
    """In the process: make the worlds, reset, step or recall them; None, or which of them raised what."""
    guests: dict[int, Guest] = {}
    rows = {world: board.row(world) for world in own}

    def mark(world: int) -> None:
        """Say which world is at work, anew for each of its steps: 0 is none."""
        heart.beat(heart.cells[0], world + 1)

    def play(world: int, kind: str, value: Any) -> None:
        match kind:
            case "reset":
                guests[world].reset(value, rows[world])
            case "step":
                guests[world].step(rows[world])
            case "recall":
                seed, actions = value
                guests[world].reset(seed, rows[world])
                for action in actions:
                    mark(world)
                    board["actions"][world] = action
                    guests[world].step(rows[world])

    def answer(request: Request) -> tuple[int, str] | None:
        kind, values = request
        if kind == "make":
            values = dict.fromkeys(own)
        for world, value in values.items():
            mark(world)
            try:
                if kind == "make":
                    guests[world] = cloudpickle.loads(make)()
                else:
                    play(world, kind, value)
            except (Exception, SystemExit):
                return world, traceback.format_exc()
        return None

    return answer
