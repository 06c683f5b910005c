"""Rounds computed by Ray actors, on this machine or on a cluster.

Each actor trains its share of the agents and keeps their states. A round puts what each share reads into Ray's object
store, once, and gets the new states back as values that nobody writes again. All else is Ray's: where actors run, how
bytes travel, how a lost node is noticed. An actor that dies fails its round; the engine repeats it on fresh actors, on
the nodes that are left, and gets the same bytes.

Ray is imported here and nowhere else, when a run asks for it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.core.errors import (
    ConfigError,
    DeadlineError,
    LearnerError,
    NumericsError,
    ParallelAgentsError,
    RunError,
    WorkerDied,
)
from parallel_agents.core.types import Array
from parallel_agents.execution import backend
from parallel_agents.execution.backend import GetSnapshot, Heartbeat, Monitored, Share, Trained
from parallel_agents.execution.resources import cores
from parallel_agents.nn import numerics

CONNECT_DEADLINE = 10.0
"""Seconds in which the port of a cluster must answer. Ray itself would try for two minutes, then end the process."""
LOOK = 2.0
"""Seconds between two looks at the nodes while workers start."""
TASK_RETRIES = 3
"""How often Ray repeats a task whose node or process was lost."""
_TOKEN = secrets.token_hex(32)
"""What a local Ray asks of everybody who connects; only this process and its workers know it."""
Columns = Mapping[str, Array]


def require_ray() -> None:
    """Raise ConfigError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "parallel.backend is 'ray', but Ray is not installed: pip install 'parallel-agents[ray]', or use 'inline', "
            "'thread' or 'process'"
        )


class RayCluster:
    """A connection to Ray: to a cluster, to the one that this process has already, or to a local one of its own."""

    def __init__(self, address: str | None, *, workers: int = 1) -> None:
        """Connect, or start a local Ray that listens on the loopback interface only; raise ConfigError if that fails.

        address: of a cluster that this machine belongs to, such as `auto` or `10.0.0.5:6379`; None: start a local one,
        with room for this many workers.
        """
        require_ray()
        with _undone_surroundings():
            self.ray: Any = importlib.import_module("ray")
        self._folder: str | None = None
        _require_reachable(address)
        self.connected = not self.ray.is_initialized()
        """Whether this object has connected, and so disconnects; in a Ray job or a Tune trial somebody else has."""
        self.local = address is None and self.connected
        if not self.connected:
            here = self.ray.get_runtime_context().gcs_address
            if address not in (None, "auto", here):
                raise ConfigError(f"parallel.address is {address!r}, but this process is connected to Ray at {here}")
        else:
            try:
                with _undone_surroundings():
                    self._start(workers) if address is None else self._join(address)
            except (Exception, SystemExit) as error:  # Ray ends the process if a cluster does not answer
                self.close()
                wanted = "a local Ray could not be started" if address is None else f"parallel.address is {address!r}"
                raise ConfigError(f"{wanted}: {error or type(error).__name__}") from error

    def _start(self, workers: int) -> None:
        # On Linux, Ray listens on every interface unless it takes the machine for one that cannot be part of a cluster.
        constants: Any = importlib.import_module("ray._private.ray_constants")
        os.environ.update(
            RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
            RAY_AUTH_TOKEN=_TOKEN,
            RAY_USAGE_STATS_ENABLED="0",
            RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
        )
        clusters, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets must be short
        try:
            self.ray.init(
                address="local",
                include_dashboard=False,
                num_cpus=max(cores(), workers),
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=self._folder,
            )
        finally:
            constants.ENABLE_RAY_CLUSTER = clusters

    def _join(self, address: str) -> None:
        self.ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)

    def room(self, resources: Mapping[str, float]) -> int:
        """Return how many workers with these resources the nodes that live now hold, if nobody else uses them."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        needed = {name: amount for name, amount in resources.items() if amount > 0}
        return sum(int(min((own.get(name, 0.0) / needed[name] for name in needed), default=1e6)) for own in nodes)

    def task(self, function: Callable[..., Any], *arguments: Any, resources: Mapping[str, float] | None = None) -> Any:
        """Start a function of a module on some node and return a reference to its result, which can be awaited.

        Ray calls it again elsewhere if the node is lost, so its result must follow from its arguments alone.
        """
        options = _options(resources or {"CPU": 1.0})
        return self.ray.remote(function).options(**options, max_retries=TASK_RETRIES).remote(*arguments)

    def results(self, references: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """Wait for tasks and return their results in order; raise what the first failed one raised."""
        kinds = self.ray.exceptions
        try:
            found: list[Any] = self.ray.get(list(references), timeout=timeout)
        except kinds.GetTimeoutError as error:
            raise DeadlineError(f"{len(references)} tasks on Ray took longer than {timeout:g} s") from error
        except ParallelAgentsError:
            raise
        except kinds.RayTaskError as error:
            raise RunError(f"a task on Ray failed: {error}") from error
        except kinds.RayError as error:
            raise WorkerDied(f"a task on Ray was lost {TASK_RETRIES + 1} times: {error}") from error
        return found

    def close(self) -> None:
        """Disconnect, and end a local Ray; do nothing if somebody else has connected."""
        if self.connected:
            with _undone_surroundings():
                self.ray.shutdown()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)  # logs that Ray may still be writing
            self.connected = False


def _options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return resources as the options of an actor or a task."""
    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    return {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0), "resources": others}


def _require_reachable(address: str | None) -> None:
    """Raise ConfigError if nobody listens at an address."""
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_DEADLINE).close()
    except OSError as error:
        raise ConfigError(
            f"parallel.address is {address!r}, but nobody answers there ({error}): is the cluster up, and is this its "
            "port (6379 unless `ray start --port` says otherwise)?"
        ) from error


@contextlib.contextmanager
def _undone_surroundings() -> Iterator[None]:
    """Put back what Ray changes in a process that connects: its environment variables and its signal handlers."""
    environment = dict(os.environ)
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it says how it authenticates
    try:
        yield
    finally:
        logger.setLevel(level)
        os.environ.clear()
        os.environ.update(environment)
        if main:
            signal.signal(signal.SIGTERM, handler)


# -- in an actor -------------------------------------------------------------------------------------------------------


class LearnerActor:
    """Trains the agents of one share, round after round, in a process that Ray has started."""

    def __init__(self, share: Share, states: Sequence[Columns], first_round: int) -> None:
        numerics.require()
        self._share, self._next = share, first_round
        self._states = [_state(columns).to(task.learner.device) for task, columns in zip(share, states, strict=True)]
        self._heartbeat = Heartbeat()

    def identify(self, portable: bool) -> tuple[str, int, dict[str, str]]:
        """Return the machine, the process, and what its bytes depend on."""
        devices = {task.learner.device for task in self._share}
        return socket.gethostname(), os.getpid(), numerics.fingerprint(max(devices), portable=portable)

    def train(self, round_: int, snapshots: Sequence[Snapshot]) -> list[tuple[Columns, RoundResult]]:
        """Train a round and return one (state, result) per task. snapshots: what each task reads."""
        if round_ != self._next:
            raise LearnerError(f"round {round_} needs the states of round {round_ - 1}, which failed")
        # Copies, since Ray's memory is read-only: compiled kernels would be compiled once more for such arrays.
        own = [Snapshot(round_, _copied(snapshot.columns)) for snapshot in snapshots]
        trained = self._share.train(round_, self._states, own, self._heartbeat)
        self._states, self._next = [state for state, _ in trained], round_ + 1
        return [(_columns(state), result) for state, result in trained]


def _columns(state: LearnerState) -> dict[str, Array]:
    return {name: tensor.cpu().numpy() for name, tensor in state.tensors.items()}


def _copied(columns: Columns) -> dict[str, Array]:
    return {name: np.array(column) for name, column in columns.items()}


def _state(columns: Columns) -> LearnerState:
    return LearnerState({name: torch.from_numpy(column) for name, column in _copied(columns).items()})


# -- in the process of the run -----------------------------------------------------------------------------------------


class _Worker:
    """An actor as the run sees it."""

    def __init__(self, ray: Any, index: int, share: Share, actor: Any) -> None:
        self._ray, self.name, self.share, self.actor = ray, f"learner-{index}", share, actor
        self.rounds: dict[int, Future[Any]] = {}
        self.heartbeat = Heartbeat()
        """When the oldest round that has not ended was submitted, or the one before it ended."""
        self._running: deque[int] = deque()
        self._lock = threading.Lock()

    def submit(self, round_: int, snapshots: Sequence[Snapshot]) -> None:
        """Put what a round reads into the object store, and start the round."""
        try:
            stored = self._ray.put(snapshots)
            future = self.actor.train.remote(round_, stored).future()
        except self._ray.exceptions.RayError as error:
            raise self._failure(round_, error) from error
        self.rounds[round_] = future
        with self._lock:
            self._running.append(round_)
            if len(self._running) == 1:
                self.heartbeat.beat(round_)
        future.add_done_callback(self._on_done)

    def _on_done(self, _: Future[Any]) -> None:
        """Note that the oldest round has ended: an actor computes rounds in order. Called in a thread of Ray's."""
        with self._lock:
            self._running.popleft()
            if self._running:
                self.heartbeat.beat(self._running[0])
            else:
                self.heartbeat.rest()

    def result(self, round_: int, until: float, limit: float) -> list[Trained]:
        """Wait for a round; `until` and `limit` as for a thread."""
        timeout = min(until - time.monotonic(), self.heartbeat.remaining(round_, limit))
        future = self.rounds.pop(round_)
        try:
            answer = future.result(max(0.0, timeout))
        except TimeoutError:
            raise DeadlineError(f"round {round_} of {self.name} took longer than {limit:g} s") from None
        except ParallelAgentsError as error:
            raise LearnerError(f"round {round_} failed in {self.name}: {error}") from error
        except self._ray.exceptions.RayError as error:
            raise self._failure(round_, error) from error
        # Copies, since Ray's memory is read-only and may be gone when the run is over.
        return [(_state(columns), _own_result(result)) for columns, result in answer]

    def _failure(self, round_: int, error: Exception) -> RunError:
        """Return an error of Ray as one of ours."""
        kinds = self._ray.exceptions
        if isinstance(error, kinds.ObjectStoreFullError | kinds.OutOfDiskError):
            return RunError(
                f"round {round_}: Ray's object store is full and cannot spill to disk: give it more room "
                f"(ray start --object-store-memory, or space on the disk), or lower model.batch_size ({error})"
            )
        if isinstance(error, kinds.RayTaskError):
            return LearnerError(f"round {round_} failed in {self.name}: {error}")
        return WorkerDied(f"round {round_}: {self.name} ended: {error}")

    def monitored(self) -> Monitored:
        """Return what the watchdog needs to know."""
        return Monitored(self.name, self.heartbeat, self.share.describe)


def _own_result(result: RoundResult) -> RoundResult:
    return replace(
        result,
        updates=np.array(result.updates),
        rejected=np.array(result.rejected),
        metrics=_copied(result.metrics),
        priorities=_copied(result.priorities),
    )


class RayBackend:
    """One Ray actor per worker, each with its own agents."""

    name = "ray"

    def __init__(
        self,
        cluster: RayCluster,
        stacks: Sequence[Any],
        states: Sequence[LearnerState],
        *,
        workers: int,
        together: bool,
        first_round: int,
        resources: Mapping[str, float],
        deadline: float,
        grows: bool = True,
    ) -> None:
        """Reserve the resources of all workers and start them.

        resources: of one worker, such as {"CPU": 1, "GPU": 0.5}. deadline: seconds in which all must have started.
        grows: wait for nodes that are not there yet; otherwise raise WorkerDied if only some of the workers still fit.
        """
        self._cluster, self._n_stacks = cluster, len(stacks)
        self._workers: list[_Worker] = []
        self._group: Any = None
        shares = backend.split(stacks, workers, together=together)
        if not shares:
            return
        until = time.monotonic() + deadline
        try:
            self._reserve([dict(resources)] * len(shares), deadline, grows=grows)
            self._start(shares, states, first_round, resources)
            self._identify(stacks, until, deadline)
        except BaseException:
            self.close()
            raise

    def _reserve(self, bundles: list[dict[str, float]], deadline: float, *, grows: bool) -> None:
        """Reserve what the workers need, spread over nodes; a cluster that grows by itself is told so."""
        placement = importlib.import_module("ray.util.placement_group")
        room = self._cluster.room(bundles[0])
        advice = (
            f"{len(bundles)} workers with {bundles[0]} each do not fit: the nodes of Ray have room for {room}. Lower "
            "parallel.num_workers or parallel.resources_per_worker, or add nodes"
        )
        if self._cluster.local and room < len(bundles):
            raise ConfigError(advice)
        self._group = placement.placement_group(bundles, strategy="SPREAD")
        until = time.monotonic() + deadline
        while not self._group.wait(min(LOOK, max(0.0, until - time.monotonic()))):
            if not grows and 0 < self._cluster.room(bundles[0]) < len(bundles):
                raise WorkerDied(f"a node was lost while {len(bundles)} workers were starting")
            if time.monotonic() > until:
                raise ConfigError(f"{advice} (waited {deadline:g} s)")

    def _start(
        self, shares: Sequence[Share], states: Sequence[LearnerState], first_round: int, resources: Mapping[str, float]
    ) -> None:
        ray = self._cluster.ray
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        remote = ray.remote(LearnerActor)
        for index, share in enumerate(shares):
            actor = remote.options(
                **_options(resources),
                max_restarts=0,  # the engine repeats a failed round, from the newest states
                scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=index
                ),
            ).remote(share, [_columns(state) for state in share.states(states)], first_round)
            self._workers.append(_Worker(ray, index, share, actor))

    def _identify(self, stacks: Sequence[Any], until: float, deadline: float) -> None:
        """Wait for all workers; refuse those on machines that would give other bytes."""
        kinds = self._cluster.ray.exceptions
        portable = all(stack.native for stack in stacks)
        own = numerics.fingerprint(stacks[0].device, portable=portable)
        for worker, answer in [(w, w.actor.identify.remote(portable).future()) for w in self._workers]:
            try:
                machine, pid, found = answer.result(max(0.0, until - time.monotonic()))
            except TimeoutError:
                raise DeadlineError(f"{worker.name} on Ray did not start within {deadline:g} s") from None
            except kinds.RayError as error:
                raise WorkerDied(f"{worker.name} did not start on Ray: {error}") from error
            worker.name = f"{worker.name} on {machine} (pid {pid})"
            if different := {name: (own.get(name), value) for name, value in found.items() if own.get(name) != value}:
                told = ", ".join(f"{name} is {theirs}, here {ours}" for name, (ours, theirs) in different.items())
                raise NumericsError(
                    f"the machine {machine} would compute other bytes than this one: {told}. Use machines that are "
                    "alike, or networks that the compiled kernels compute"
                )

    def submit(self, round_: int, snapshots: Sequence[GetSnapshot]) -> None:
        taken = [take() for take in snapshots]
        for worker in self._workers:
            worker.submit(round_, worker.share.snapshots(taken))

    def poll(self, round_: int) -> bool:
        return all(round_ in worker.rounds and worker.rounds[round_].done() for worker in self._workers)

    def result(self, round_: int, timeout: float) -> list[Trained]:
        until = time.monotonic() + timeout
        trained = [part for worker in self._workers for part in worker.result(round_, until, timeout)]
        return backend.join([worker.share for worker in self._workers], trained, self._n_stacks)

    def workers(self) -> list[Monitored]:
        return [worker.monitored() for worker in self._workers]

    def close(self, patience: float = backend.PATIENCE) -> None:
        """End the actors at once, since nobody waits for what they compute, and give back what was reserved."""
        if self._group is not None:
            placement = importlib.import_module("ray.util.placement_group")
            with contextlib.suppress(self._cluster.ray.exceptions.RayError):  # the cluster itself may have ended
                placement.remove_placement_group(self._group)  # which kills the actors in it
            self._group = None
        self._workers = []
