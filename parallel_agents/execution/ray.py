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
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from importlib.machinery import PathFinder
from typing import Any, TypeVar

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
"""Seconds in which a cluster must answer. Ray itself would try for two minutes, then end the process."""
LOOK = 2.0
"""Seconds between two looks at the nodes while workers start."""
STARTS = 5
"""How often workers are started, if nodes are lost meanwhile."""
FULL_STORE = (
    "Ray's object store is full and cannot spill to disk: give it more room (ray start --object-store-memory, or space "
    "on the disk), or lower model.batch_size or experiment.worlds"
)
TASK_RETRIES = 3
"""How often Ray repeats a task whose node or process was lost."""
_TOKEN = secrets.token_hex(32)
"""What a local Ray asks of everybody who connects; only this process and its workers know it."""
Columns = Mapping[str, Array]
Started = TypeVar("Started")


def require_ray() -> None:
    """Raise ConfigError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "parallel.backend is 'ray', but Ray is not installed: install parallel-agents with the extra "
            "'ray', or use 'inline', 'thread' or 'process'"
        )


class RayCluster:
    """A connection to Ray: to a cluster, to the one that this process has already, or to a local one of its own."""

    def __init__(self, address: str | None, *, workers: int = 1, groups: int = 1) -> None:
        """Connect, or start a local Ray that listens on the loopback interface only; raise ConfigError if that fails.

        address: of a cluster that this machine belongs to, such as `auto` or `10.0.0.5:6379`; None: start a local one,
        with room for this many workers. groups: kinds of workers that a run starts, each on its share of the nodes.
        """
        require_ray()
        with _undone_surroundings():
            self.ray: Any = importlib.import_module("ray")
        self._folder: str | None = None
        self.groups = groups
        self.reserved: dict[int, tuple[Mapping[str, float], int]] = {}
        """What the groups of actors of this run have reserved: resources of one actor, and how many actors."""
        self.connected = not self.ray.is_initialized()
        """Whether this object has connected, and so disconnects; in a Ray job or a Tune trial somebody else has."""
        self.local = address is None and self.connected
        if not self.connected:
            here = self.ray.get_runtime_context().gcs_address
            if address not in (None, "auto", here):
                raise ConfigError(f"parallel.address is {address!r}, but this process is connected to Ray at {here}")
        else:
            if address is not None:
                _require_reachable(address)
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
        os.environ.setdefault("RAY_worker_niceness", "0")  # at Ray's 15, learners starve beside other work
        _forget_token()
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
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", f"{CONNECT_DEADLINE:.0f}")
        try:
            self.ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise ConnectionError(
                f"{error}, though something answers there: if the cluster asks for a token, set RAY_AUTH_MODE=token "
                "and RAY_AUTH_TOKEN"
            ) from error

    def room(self, resources: Mapping[str, float], *, beside: int | None = None) -> int:
        """Return how many workers with these resources fit on the nodes that live now, beside those of this run.

        beside: a key of `reserved` that is not counted.
        """
        needed = {name for name, amount in resources.items() if amount > 0}
        used = [count for key, (own, count) in self.reserved.items() if key != beside and own.keys() & needed]
        return self.size(resources) - sum(used)

    def size(self, resources: Mapping[str, float]) -> int:
        """Return how many workers with these resources fit on the nodes that live now, if nobody else uses them."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        needed = {name: amount for name, amount in resources.items() if amount > 0}
        return sum(int(min((own.get(name, 0.0) / needed[name] for name in needed), default=1e6)) for own in nodes)

    def free_share(self, resources: Mapping[str, float]) -> int:
        """Return how many workers one of the groups of this run may start: learners and world shards share evenly."""
        return self.room(resources) // self.groups if not self.reserved else self.room(resources)

    def task(self, function: Callable[..., Any], *arguments: Any, resources: Mapping[str, float] | None = None) -> Any:
        """Start a function of a module on some node and return a reference to its result, which can be awaited.

        Ray calls it again elsewhere if the node is lost, so its result must follow from its arguments alone.
        """
        options = _options(resources or {"CPU": 1.0})
        with self.storing():
            return self.ray.remote(function).options(**options, max_retries=TASK_RETRIES).remote(*arguments)

    def put(self, value: Any) -> Any:
        """Store a value once and return a reference to it; raise RunError if there is no room."""
        with self.storing():
            return self.ray.put(value)

    @contextlib.contextmanager
    def storing(self) -> Iterator[None]:
        """Raise RunError with advice if Ray has no room for a value or for the arguments of a call."""
        try:
            yield
        except self.full_store as error:
            raise RunError(_no_room(error)) from error

    @property
    def full_store(self) -> tuple[type[Exception], ...]:
        """The errors of Ray that mean that its object store has no room left."""
        return self.ray.exceptions.ObjectStoreFullError, self.ray.exceptions.OutOfDiskError

    def results(self, references: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """Wait for tasks and return their results in order; raise what the first failed one raised."""
        kinds = self.ray.exceptions
        try:
            found: list[Any] = self.ray.get(list(references), timeout=timeout)
        except kinds.GetTimeoutError as error:
            raise DeadlineError(f"{len(references)} tasks on Ray took longer than {timeout:g} s") from error
        except ParallelAgentsError as error:
            raise getattr(error, "cause", error) from error  # without Ray's own lines around it
        except self.full_store as error:
            raise RunError(_no_room(error)) from error
        except kinds.RayTaskError as error:
            raise RunError(f"a task on Ray failed: {error}") from error
        except kinds.RayError as error:
            raise WorkerDied(f"a task on Ray was lost: {error}") from error
        return found

    def send_module_of(self, kind: type) -> None:
        """Let a class travel with its module if that was loaded from a file: other machines cannot import it."""
        name = kind.__module__
        if name != "__main__" and PathFinder.find_spec(name.partition(".")[0]) is None:
            self.ray.cloudpickle.register_pickle_by_value(sys.modules[name])

    def close(self) -> None:
        """Disconnect, and end a local Ray; do nothing if somebody else has connected."""
        if self.connected:
            with _undone_surroundings():
                self.ray.shutdown()
            _forget_token()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)  # logs that Ray may still be writing
            self.connected = False


def _forget_token() -> None:
    """Let Ray read its token again when it is next started: it keeps the first one, and a cluster has its own."""
    loader = getattr(importlib.import_module("ray._raylet"), "AuthenticationTokenLoader", None)
    if loader is not None:  # older versions have no tokens
        loader.instance().reset_cache()


def _no_room(error: Exception) -> str:
    """Return advice for a full object store, with what Ray said about it."""
    return f"{FULL_STORE} ({getattr(error, 'cause', error)})"  # the cause: without the traceback of a worker


def _options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return resources as the options of an actor or a task."""
    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    return {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0), "resources": others}


GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of HTTP/2, and so of gRPC, begins: a fixed text and an empty frame of settings (type 4)."""


def _require_reachable(address: str) -> None:
    """Raise ConfigError unless a server of gRPC, as Ray is one, answers at an address.

    address: as in the configuration. For `auto` Ray looks for a cluster of this machine.
    """
    asked, found = f"parallel.address is {address!r}", address
    try:
        if address == "auto":
            services: Any = importlib.import_module("ray._private.services")
            found = services.canonicalize_bootstrap_address(address)
            asked += f", which is {found} on this machine"
        host, _, port = found.rpartition(":")
        with socket.create_connection((host, int(port)), CONNECT_DEADLINE) as connection:
            if os.environ.get("RAY_USE_TLS") == "1":
                return
            connection.sendall(GREETING)
            answer = connection.recv(9)
            if answer[3:4] != GREETING[-6:-5]:
                raise ConnectionError("what listens there is no Ray")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{asked}, but Ray does not answer there ({error}): is the cluster up, and is this its port (6379 unless "
            "`ray start --port` says otherwise)?"
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


def start_on_nodes(
    cluster: RayCluster,
    start: Callable[[int, bool], Started],
    wanted: int,
    resources: Mapping[str, float],
    *,
    fixed: bool,
    on_loss: Callable[[WorkerDied], None],
) -> Started:
    """Return what `start(workers, grows)` starts; start again on the nodes that are left if one is lost meanwhile.

    wanted: how many workers. fixed: exactly so many; otherwise at most, and as many as there is room for.
    """
    lost = 0
    while True:
        try:
            return start(wanted if fixed else min(wanted, max(1, cluster.free_share(resources))), fixed)
        except WorkerDied as error:  # on a node that is lost, which Ray notices after some seconds
            lost += 1
            if lost == STARTS:
                raise
            fixed = False
            on_loss(error)


class Actors:
    """Actors of one class, each with its own reserved resources, spread over the nodes; none is restarted by Ray."""

    def __init__(
        self,
        cluster: RayCluster,
        kind: type,
        arguments: Sequence[tuple[Any, ...]],
        *,
        role: str,
        resources: Mapping[str, float],
        fingerprint: Mapping[str, str],
        deadline: float,
        grows: bool,
    ) -> None:
        """Reserve resources, start one actor for each of the arguments, and refuse machines that give other bytes.

        kind: a class with a method `identify`, see `identify`. role: what the actors are called. resources: of one
        actor, such as {"CPU": 1, "GPU": 0.5}. fingerprint: what the bytes depend on in this process. deadline: seconds
        in which all must have started. grows: wait for nodes that are not there yet; otherwise raise WorkerDied if only
        some of the actors still fit.
        """
        self._cluster = cluster
        self._group: Any = None
        self._until, self._deadline = time.monotonic() + deadline, deadline
        self.names = [f"{role}-{index}" for index in range(len(arguments))]
        self.handles: list[Any] = []
        try:
            self._reserve(dict(resources), len(arguments), role, grows=grows)
            self._start(kind, arguments, resources)
            self._compare(fingerprint)
        except BaseException:
            self.close()
            raise

    def _reserve(self, resources: dict[str, float], count: int, role: str, *, grows: bool) -> None:
        """Reserve what the actors need, spread over nodes; a cluster that grows by itself is told so."""
        placement = importlib.import_module("ray.util.placement_group")
        room = self._cluster.room(resources)
        advice = (
            f"{count} workers ({role}) with {resources} each do not fit: the nodes of Ray have room for {room}, beside "
            "what this run uses. Lower parallel.num_workers, parallel.world_shards or parallel.resources_per_worker, "
            "or add nodes"
        )
        if self._cluster.local and room < count:
            raise ConfigError(advice)
        self._group = placement.placement_group([resources] * count, strategy="SPREAD")
        self._cluster.reserved[id(self)] = (resources, count)
        while not self._group.wait(min(LOOK, max(0.0, self._until - time.monotonic()))):
            size, room = self._cluster.size(resources), self._cluster.room(resources, beside=id(self))
            if not grows and size > 0 and room < count:  # without any node, wait for one that replaces them
                raise WorkerDied(f"a node was lost while {count} workers ({role}) were starting")
            if time.monotonic() > self._until:
                raise ConfigError(f"{advice} (waited {self._deadline:g} s)")

    def _start(self, kind: type, arguments: Sequence[tuple[Any, ...]], resources: Mapping[str, float]) -> None:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        remote = self._cluster.ray.remote(kind)
        for index, own in enumerate(arguments):
            place = strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            options = _options(resources) | {"max_restarts": 0, "scheduling_strategy": place}
            with self._cluster.storing():
                self.handles.append(remote.options(**options).remote(*own))

    def _compare(self, fingerprint: Mapping[str, str]) -> None:
        """Wait for all actors; refuse those on machines that would give other bytes."""
        kinds = self._cluster.ray.exceptions
        for index, answer in enumerate([own.identify.remote().future() for own in self.handles]):
            name = self.names[index]
            try:
                machine, pid, found = answer.result(max(0.0, self._until - time.monotonic()))
            except TimeoutError:
                raise DeadlineError(f"{name} on Ray did not start within {self._deadline:g} s") from None
            except kinds.RayError as error:
                raised = getattr(error, "actor_init_failed", False)  # by its own code, so it would do so again
                kind = RunError if raised else WorkerDied
                raise kind(f"{name} did not start on Ray: {error}") from error
            self.names[index] = f"{name} on {machine} (pid {pid})"
            different = [key for key, value in fingerprint.items() if found.get(key) != value]
            if different:
                told = ", ".join(f"{key} is {found.get(key)}, here {fingerprint[key]}" for key in different)
                raise NumericsError(
                    f"the machine {machine} would compute other bytes than this one: {told}. Use machines that are "
                    "alike, or networks that the compiled kernels compute"
                )

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]], timeout: float) -> list[Any]:
        """Call a method of every actor, each with its own arguments, and return what they return, in order."""
        calls = [getattr(own, method).remote(*given) for own, given in zip(self.handles, arguments, strict=True)]
        return self._cluster.results(calls, timeout)

    def close(self) -> None:
        """End the actors at once and give back what was reserved."""
        if self._group is not None:
            placement = importlib.import_module("ray.util.placement_group")
            with contextlib.suppress(self._cluster.ray.exceptions.RayError):  # the cluster itself may have ended
                placement.remove_placement_group(self._group)  # which kills the actors in it
            self._group = None
            self._cluster.reserved.pop(id(self), None)
        self.handles = []


# -- in an actor -------------------------------------------------------------------------------------------------------


class LearnerActor:
    """Trains the agents of one share, round after round, in a process that Ray has started."""

    def __init__(self, share: Share, states: Sequence[Columns], first_round: int) -> None:
        numerics.require()
        self._share, self._next = share, first_round
        self._states = [_state(columns).to(task.learner.device) for task, columns in zip(share, states, strict=True)]
        self._heartbeat = Heartbeat()

    def identify(self) -> tuple[str, int, dict[str, str]]:
        """Return what `identity` returns."""
        return identity(max({task.learner.device for task in self._share}))

    def train(self, round_: int, snapshots: Sequence[Snapshot]) -> list[tuple[Columns, RoundResult]]:
        """Train a round and return one (state, result) per task. snapshots: what each task reads."""
        if round_ != self._next:
            raise LearnerError(f"round {round_} needs the states of round {round_ - 1}, which failed")
        # Copies, since Ray's memory is read-only: compiled kernels would be compiled once more for such arrays.
        own = [Snapshot(round_, _copied(snapshot.columns)) for snapshot in snapshots]
        trained = self._share.train(round_, self._states, own, self._heartbeat)
        self._states, self._next = [state for state, _ in trained], round_ + 1
        return [(_columns(state), result) for state, result in trained]


def identity(device: str) -> tuple[str, int, dict[str, str]]:
    """Return the machine, the process, and what its bytes may depend on."""
    return socket.gethostname(), os.getpid(), numerics.facts(device)


def _columns(state: LearnerState) -> dict[str, Array]:
    return {name: tensor.cpu().numpy() for name, tensor in state.tensors.items()}


def _copied(columns: Columns) -> dict[str, Array]:
    return {name: np.array(column) for name, column in columns.items()}


def _state(columns: Columns) -> LearnerState:
    return LearnerState({name: torch.from_numpy(column) for name, column in _copied(columns).items()})


# -- in the process of the run -----------------------------------------------------------------------------------------


class _Worker:
    """An actor as the run sees it."""

    def __init__(self, cluster: RayCluster, name: str, share: Share, actor: Any) -> None:
        self._cluster, self.name, self.share, self.actor = cluster, name, share, actor
        self.rounds: dict[int, Future[Any]] = {}
        self.heartbeat = Heartbeat()
        """When the oldest round that has not ended was submitted, or the one before it ended."""
        self._running: deque[int] = deque()
        self._lock = threading.Lock()

    def submit(self, round_: int, snapshots: Sequence[Snapshot]) -> None:
        """Put what a round reads into the object store, and start the round."""
        try:
            stored = self._cluster.put(snapshots)
            future = self.actor.train.remote(round_, stored).future()
        except self._cluster.ray.exceptions.RayError as error:
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
        except self._cluster.ray.exceptions.RayError as error:
            raise self._failure(round_, error) from error
        # Copies, since Ray's memory is read-only and may be gone when the run is over.
        return [(_state(columns), _own_result(result)) for columns, result in answer]

    def _failure(self, round_: int, error: Exception) -> RunError:
        """Return an error of Ray as one of ours."""
        if isinstance(error, self._cluster.full_store):
            return RunError(f"round {round_}: {_no_room(error)}")
        if isinstance(error, self._cluster.ray.exceptions.RayTaskError):
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
        """Start the workers; resources, deadline and grows are those of `Actors`."""
        self._n_stacks = len(stacks)
        self._workers: list[_Worker] = []
        self._actors: Actors | None = None
        shares = backend.split(stacks, workers, together=together)
        if not shares:
            return
        self._actors = Actors(
            cluster,
            LearnerActor,
            [(share, [_columns(state) for state in share.states(states)], first_round) for share in shares],
            role="learner",
            resources=resources,
            fingerprint=numerics.fingerprint(
                stacks[0].device, native=all(stack.native for stack in stacks), portable_worlds=True
            ),  # worlds are played elsewhere
            deadline=deadline,
            grows=grows,
        )
        self._workers = [
            _Worker(cluster, name, share, actor)
            for name, share, actor in zip(self._actors.names, shares, self._actors.handles, strict=True)
        ]

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
        """End the actors at once, since nobody waits for what they compute."""
        if self._actors is not None:
            self._actors.close()
        self._workers = []
