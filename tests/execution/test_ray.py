"""Rounds on a real Ray: the same bytes with any number of shards, deaths included, and errors that say what to do."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.core.config import Parallel, merge
from parallel_agents.core.errors import (
    ConfigError,
    DeadlineError,
    LearnerError,
    NumericsError,
    RunError,
    WorkerDied,
)
from parallel_agents.engine.plan import resolve
from parallel_agents.execution import ray as adapter
from parallel_agents.execution.ray import RayBackend, RayCluster
from parallel_agents.market import MarketEnvironment
from parallel_agents.nn import numerics
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.workflows.defence import NetworkDefence
from tests.equivalence.test_modes import INLINE, Everything
from tests.equivalence.worlds import Odd, run, treasure_hunt
from tests.execution.stub_stacks import MarkLearner, MarkStack, expected, same
from tests.execution.test_backend import learn, snapshots

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning:ray")  # it leaves log files open
CPU = {"CPU": 1.0}
SMALL: dict[str, Any] = {
    "experiment": {"epochs": 6, "max_turns": 10, "worlds": 4},
    "parallel": {"train_interval": 2, "policy_lag": 1},
}
DQN = {"algorithm": "dqn", "hidden": (8,), "batch_size": 8, "learning_starts": 8}
PPO = {"algorithm": "ppo", "hidden": (8,)}


class Defence(NetworkDefence):
    """The network defence for any algorithm."""

    default_config = {**NetworkDefence.default_config, "model": {}}


PROBLEMS: dict[str, tuple[Any, dict[str, Any]]] = {
    f"{name} with {model['algorithm'].upper()}": (cls, {**world, "model": model})
    for name, cls, world in (
        ("a game", treasure_hunt(), {"world": {"agents": 5}}),
        ("the market", MarketEnvironment, {"world": {"agents": 4, "actions": "joint"}}),
        ("the defence", Defence, {"experiment": {"seeds": 4}}),
    )
    for model in (DQN, PPO)
}


def on_ray(workers: int = 2, world_shards: int = 0) -> dict[str, Any]:
    return {"parallel": {"backend": "ray", "num_workers": workers, "world_shards": world_shards}}


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import Ray before any test: it adds a folder of its own to sys.path, which no test may leave changed."""
    importlib.import_module("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Connect once; the runs of these tests use the Ray that their process has already."""
    connected = RayCluster(None, workers=8)
    yield connected
    connected.close()


def backend(
    cluster: RayCluster, stacks: list[MarkStack], workers: int = 1, resources: Any = CPU, **options: Any
) -> RayBackend:
    numerics.require()  # as every run does
    states = [stack.state for stack in stacks]
    options = {"together": True, "first_round": 1, "deadline": 280.0, **options}
    return RayBackend(cluster, stacks, states, workers=workers, resources=resources, **options)


def stacks_of(misbehave: str = "", at_round: int = 2) -> list[MarkStack]:
    return [MarkStack(3, MarkLearner(misbehave, at_round))]


# -- the same bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_ray_gives_the_same_bytes_for_every_kind_of_learner_at_once() -> None:
    wanted = run(Everything, INLINE)
    found = run(Everything, on_ray())
    assert found["updates"] == wanted["updates"] > 50
    assert (found["digest"], found["backend"]) == (wanted["digest"], "ray")


HALF, WHOLE = 13, {"experiment": {"epochs": 26}}
ODD_WORLDS: dict[str, Any] = {
    "experiment": {"worlds": 3, "max_turns": 8},
    "model": {"buffer_size": 100},
    "parallel": {"train_interval": 3},
}


def in_two_halves(cls: Any, problem: dict[str, Any], folder: Path, first: Any, second: Any) -> Any:
    """Return the digest of 26 epochs, of which the first 13 ran in another way than the others."""
    begun = cls(config=merge(problem, first))
    half = begun.prepare()
    half.checkpointer = Checkpointer(half, folder, keep_last=3)
    begun.run_experiment(HALF)
    resumed = cls(config=merge(problem, second))
    assert restore(resumed.prepare(), folder)[1] == []
    return resumed.run_experiment(2 * HALF)["digest"]


@pytest.mark.usefixtures("cluster")
def test_a_run_begun_in_world_shards_on_ray_is_resumed_inline(tmp_path: Path) -> None:
    halves = (on_ray(1, world_shards=2), INLINE)
    assert in_two_halves(Odd, ODD_WORLDS, tmp_path, *halves) == run(Odd, merge(ODD_WORLDS, WHOLE, INLINE))["digest"]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # many processes import torch, on a machine that may be busy
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", PROBLEMS)
def test_inline_threads_processes_and_ray_give_one_digest(name: str) -> None:
    cls, problem = PROBLEMS[name]
    modes: list[dict[str, Any]] = [{"parallel": {"backend": b, "num_workers": 2}} for b in ("thread", "process")]
    modes += [on_ray(shards, world_shards=shards) for shards in (1, 2, 4)]
    wanted = run(cls, merge(SMALL, problem, INLINE))
    found = [run(cls, merge(SMALL, problem, mode)) for mode in modes]
    assert wanted["updates"] > 0
    assert [summary["digest"] for summary in found] == [wanted["digest"]] * len(modes)
    assert [summary["backend"] for summary in found] == ["thread", "process"] + ["ray"] * 3


@pytest.mark.slow
@pytest.mark.timeout(1800)  # many processes import torch, on a machine that may be busy
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", ["several endings", *PROBLEMS])
def test_a_run_may_be_resumed_on_another_backend(name: str, tmp_path: Path) -> None:
    cls, problem = PROBLEMS.get(name, (Odd, ODD_WORLDS))
    problem = merge(SMALL if name in PROBLEMS else {}, problem, {"parallel": {"train_interval": 3}})
    wanted = run(cls, merge(problem, WHOLE, INLINE))["digest"]
    ways = {"inline": INLINE, "thread": {"parallel": {"backend": "thread"}}, "ray": on_ray(2), "shards": on_ray(1, 2)}
    ways["process"] = {"parallel": {"backend": "process", "num_workers": 2}}
    for first, second in (("shards", "process"), ("process", "shards"), ("ray", "thread"), ("inline", "ray")):
        found = in_two_halves(cls, problem, tmp_path / f"{first}-{second}", ways[first], ways[second])
        assert found == wanted, (first, second)


# -- failures ----------------------------------------------------------------------------------------------------------


def test_what_a_learner_raises_names_round_agents_and_cause_and_later_rounds_fail_with_it(cluster: RayCluster) -> None:
    stacks = stacks_of("raise unpicklable")
    workers = backend(cluster, stacks)
    try:
        assert same(learn(workers, stacks, 1)[0][0], expected(stacks[0], 1))
        for round_ in (2, 3):
            workers.submit(round_, snapshots(stacks, round_))
        with pytest.raises(LearnerError, match=r"round 2 of agents 0, 1, 2 failed: .*the weights exploded"):
            workers.result(2, 60.0)
        with pytest.raises(LearnerError, match=r"round 3 needs the states of round 2, which failed"):
            workers.result(3, 60.0)
    finally:
        workers.close()


def test_a_worker_that_dies_or_hangs_is_reported_and_fresh_ones_go_on(cluster: RayCluster) -> None:
    stacks = stacks_of("die")
    workers = backend(cluster, stacks)
    [(state, _)] = learn(workers, stacks, 1)
    workers.submit(2, snapshots(stacks, 2))
    with pytest.raises(WorkerDied, match=r"round 2: learner-0 on .* ended"):
        workers.result(2, 60.0)
    workers.close()
    hanging = [MarkStack(3, MarkLearner("hang", 3))]
    hanging[0].state = state
    workers = backend(cluster, hanging, first_round=2)
    try:
        assert same(learn(workers, hanging, 2)[0][0], expected(stacks[0], 2))
        assert workers.workers()[0].heartbeat.busy() is None
        workers.submit(3, snapshots(hanging, 3))
        assert not workers.poll(3)
        activity = workers.workers()[0].heartbeat.busy()
        assert activity is not None
        assert workers.workers()[0].describe(activity).startswith("round 3 of agents 0, 1, 2")
        with pytest.raises(DeadlineError, match=r"round 3 of learner-0 on .* took longer than 0\.5 s"):
            workers.result(3, 0.5)
    finally:
        workers.close()


class KillOnce(BaseCallback):
    """Kills the process of an actor of the first published round."""

    def __init__(self, environment: Any) -> None:
        self.environment, self.killed, self.events = environment, 0, list[str]()

    def on_round(self, stats: Any) -> None:
        if not self.killed:
            name = self.environment.prepare().rounds.workers()[0].name
            self.killed = int(name.rpartition("pid ")[2].rstrip(")"))
            os.kill(self.killed, signal.SIGKILL)

    def on_event(self, name: str, fields: Any) -> None:
        self.events.append(name)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_run_whose_worker_is_killed_ends_with_the_same_digest() -> None:
    environment = Odd(config=on_ray())
    callback = KillOnce(environment)
    found = environment.run_experiment(callbacks=[callback])
    assert callback.killed
    assert {"round_failed", "worker_replaced"} & set(callback.events)
    assert found["digest"] == run(Odd, INLINE)["digest"]


class Broken(Odd):
    """Raises in a shard: when it is made, or in a turn."""

    shardable = True
    default_config = merge(Odd.default_config, {"world": {"broken": ""}})

    def _fail(self, place: str) -> None:
        if self.n_worlds < self.config.experiment.worlds and self.config.world["broken"] == place:
            raise ValueError(f"broken in {place}")

    def setup_agents(self) -> None:
        self._fail("setup_agents")
        super().setup_agents()

    def begin_turn(self) -> None:
        self._fail("begin_turn")
        super().begin_turn()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("setup_agents", r"(?s)world shard-0 did not start on Ray: .*broken in setup_agents"),
        ("begin_turn", r"^Broken raised ValueError: broken in begin_turn in epoch 1, turn 1"),
    ],
)
def test_what_a_shard_raises_ends_the_run_and_is_not_tried_again(place: str, said: str) -> None:
    environment = Broken(config=merge(ODD_WORLDS, on_ray(1, 2), {"world": {"broken": place}}))
    callback = KillOnce(environment)
    callback.killed = 1
    with pytest.raises(RunError, match=said):
        environment.run_experiment(callbacks=[callback])
    assert "worker_replaced" not in callback.events


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="Ray is not installed: install parallel-agents with the extra 'ray'"):
        resolve(Parallel(backend="ray"), agents=2)


@pytest.mark.parametrize("address", ["nowhere.invalid:6379", "127.0.0.1:1"])
def test_a_wrong_address_is_refused_within_seconds(address: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=rf"parallel\.address is '{address}'"):
        RayCluster(address)
    assert time.monotonic() - began < 30.0


@pytest.mark.usefixtures("cluster")
def test_a_second_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"but this process is connected to Ray at 127\.0\.0\.1"):
        RayCluster("127.0.0.1:1")


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_something_else_at_the_address_is_refused_within_the_deadline(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "CONNECT_DEADLINE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        found: list[socket.socket] = []

        def serve() -> None:
            found.append(server.accept()[0])
            found[0].sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(ConfigError, match=rf"parallel\.address is '{address}', but Ray does not answer there"):
            adapter._require_reachable(address)
        thread.join(5.0)
        found[0].close()


def test_auto_without_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    services = importlib.import_module("ray._private.services")
    monkeypatch.setattr(services, "find_gcs_addresses", frozenset)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda temp_dir: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(
        ConfigError, match=r"parallel\.address is 'auto', but .* \(Could not find any running Ray instance"
    ):
        adapter._require_reachable("auto")


def test_workers_that_do_not_fit_are_refused_with_what_there_is(cluster: RayCluster) -> None:
    with pytest.raises(
        ConfigError, match=r"2 workers \(learner\) with {'GPU': 1\.0} each do not fit: .* room for 0, .*Lower"
    ):
        backend(cluster, [MarkStack(2)], workers=2, resources={"GPU": 1.0})
    assert cluster.room({"CPU": 1.0}) == 8
    assert cluster.room({"CPU": 3.0}) == 2
    assert not cluster.reserved, "what was reserved is given back"


def test_what_a_run_has_reserved_is_no_room_for_others(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "reserved", {1: ({"CPU": 1.0}, 2), 2: ({"GPU": 1.0}, 1)})
    assert cluster.room({"CPU": 1.0}) == 6
    assert cluster.room({"CPU": 1.0}, beside=1) == 8
    assert cluster.free_share({"CPU": 1.0}) == 6
    monkeypatch.setattr(cluster, "reserved", {})
    monkeypatch.setattr(cluster, "groups", 2)
    assert cluster.free_share({"CPU": 1.0}) == 4, "learners leave half of it to the shards, which start later"


def test_too_few_resources_on_a_cluster_that_may_grow_are_an_error_after_the_deadline(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "local", False)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"1 workers .*GPU.* do not fit: .*\(waited 0\.5 s\)"):
        backend(cluster, [MarkStack(2)], resources={"GPU": 1.0}, deadline=0.5, grows=True)
    assert 0.5 <= time.monotonic() - began < 20.0


JOIN = """
import sys
import ray
from parallel_agents.core.errors import ConfigError
from parallel_agents.execution.ray import RayCluster

ray.__version__ = sys.argv[2]
try:
    RayCluster(sys.argv[1])
except ConfigError as error:
    print("REFUSED", error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "version", "token", "said"),
    [
        ("", "1.2.3", adapter._TOKEN, r"REFUSED parallel\.address is '127.*': Version mismatch(?s:.*)1\.2\.3"),
        ("", "", "f" * 64, r"REFUSED parallel\.address is '127.*': Failed to connect .*set RAY_AUTH_MODE=token and"),
        ("auto", "", "f" * 64, r"REFUSED parallel\.address is 'auto'.*(does not answer there|set RAY_AUTH_MODE=token)"),
    ],
    ids=["another version", "another token", "another token, found by itself"],  # a token differs in every process
)
def test_a_cluster_that_cannot_be_joined_is_refused_with_the_reason(
    cluster: RayCluster, address: str, version: str, token: str, said: str
) -> None:
    """`auto` finds the Ray of these tests, which listens on loopback and has a token of its own."""
    address = address or cluster.ray.get_runtime_context().gcs_address
    surroundings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    command = [sys.executable, "-c", JOIN, address, version or cluster.ray.__version__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **surroundings})
    assert re.match(said, done.stdout), done.stdout + done.stderr


def test_a_full_object_store_is_reported_with_advice(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(value: Any) -> Any:
        raise cluster.ray.exceptions.ObjectStoreFullError("no room")

    monkeypatch.setattr(cluster.ray, "put", full)
    monkeypatch.setattr(cluster.ray, "get", lambda references, timeout: full(references))
    for call in (lambda: cluster.put(1), lambda: cluster.results([1])):
        with pytest.raises(RunError, match=r"Ray's object store is full .* give it more room .*no room"):
            call()


def test_a_machine_with_another_fingerprint_is_refused_by_name(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = numerics.fingerprint()
    monkeypatch.setattr(adapter.numerics, "fingerprint", lambda *_, **__: {**own, "cpu_capability": "AVX9"})
    with pytest.raises(NumericsError, match=rf"machine {socket.gethostname()} .*: cpu_capability is .*, here AVX9"):
        backend(cluster, [MarkStack(2)])


# -- a Ray of its own --------------------------------------------------------------------------------------------------

SCRIPT = """
import glob, os, re, sys
from functools import partial
print("the script runs", file=sys.stderr)
import numpy as np
from parallel_agents.env import Agent, ParallelEnvironment
from parallel_agents.tracking.callbacks import BaseCallback

class Here(ParallelEnvironment):
    default_config = {"experiment": {"epochs": 4, "max_turns": 6}, "parallel": {"train_interval": 2}}
    def setup_agents(self):
        self.agents = [Agent(model=self.make_model((2,), 2)) for _ in range(2)]
    def reset(self): self.place = np.zeros((2, 1, 2), np.float32)
    def observe(self): return self.place
    def apply_agent(self, index, actions): return np.zeros(1, np.float32)

def read(path, how=lambda path: open(path).read()):
    try:
        return how(path)
    except OSError:  # its process has just ended
        return ""

class Look(BaseCallback):
    def on_round(self, stats):
        texts = filter(None, map(read, glob.glob("/proc/[0-9]*/stat")))
        parents = {int(text.split()[0]): int(text.rpartition(")")[2].split()[1]) for text in texts}
        ours = {os.getpid()}
        while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
            ours |= more
        inodes = {read(fd, os.readlink) for pid in ours for fd in glob.glob(f"/proc/{pid}/fd/*")}
        rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}")]
        hosts = {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}
        print("PROCESSES", *sorted(ours - {os.getpid()}))
        priority = partial(os.getpriority, os.PRIO_PROCESS)
        print("PRIORITIES", *sorted({str(read(pid, priority)) for pid in ours} - {""}))
        print("HOSTS", *sorted(hosts))
        commands = " ".join(read(f"/proc/{pid}/cmdline") for pid in ours)
        print("FOLDERS", *sorted(set(re.findall("/tmp/ray-[a-z0-9_]+", commands))))

before = dict(os.environ)
for backend in ("inline", "ray"):
    env = Here(config={"parallel": {"backend": backend, "num_workers": 1}})
    print("DIGEST", env.run_experiment(callbacks=[Look()] if backend == "ray" else [])["digest"])
print("CHANGED", {k for k in os.environ if os.environ[k] != before.get(k)})
"""


def test_a_local_ray_runs_no_script_again_listens_on_loopback_only_and_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the script runs") == 1
    digests = [line for line in done.stdout.splitlines() if line.startswith("DIGEST")]
    assert len(digests) == 2
    assert len(set(digests)) == 1
    assert "CHANGED set()" in done.stdout
    told = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
    assert told["HOSTS"] == ["0000000000000000FFFF00000100007F", "0100007F"], "loopback by IPv6 and by IPv4"
    assert told["PRIORITIES"] == [str(os.getpriority(os.PRIO_PROCESS, 0))], "that of the run"
    pids = [int(pid) for pid in told["PROCESSES"]]
    assert len(pids) >= 4
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    give_up = time.monotonic() + 60.0  # Ray's workers see that its server has ended, and end a little later
    while left and time.monotonic() < give_up:
        time.sleep(0.05)
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not left
    (folder,) = told["FOLDERS"]
    assert not Path(folder).exists()


# -- an object store that is full ---------------------------------------------------------------------------------------

FULL = """
import os, sys, time
os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0",
                  RAY_worker_niceness="0")
from pathlib import Path
import numpy as np
import ray
from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.core.config import merge
from parallel_agents.core.errors import RunError
from parallel_agents.tracking.callbacks import BaseCallback
from tests.equivalence.worlds import Odd

INLINE = {"parallel": {"backend": "inline"}}
EPOCHS = {"experiment": {"worlds": 3, "max_turns": 8, "epochs": 7, "checkpoint_every": 2}}
NO_DISK = {"automatic_object_spilling_enabled": False, "local_fs_capacity_threshold": 0.0}
kept = []

def on_ray(shards):
    return {"parallel": {"backend": "ray", "num_workers": 1, "world_shards": shards, "round_deadline": 120.0}}

class Fill(BaseCallback):
    def on_epoch(self, stats):
        if stats.epoch == 5:
            for size in (2**24, 2**20, 2**17):
                try:
                    for _ in range(2**27 // size):
                        kept.append(ray.put(np.zeros(size, np.uint8)))
                except ray.exceptions.OutOfDiskError:
                    pass

def attempt(run):
    began = time.monotonic()
    try:
        print("DIGEST", run(callbacks=[Fill()])["digest"])
    except RunError as error:
        print("ERROR", f"{time.monotonic() - began:.0f}", " ".join(str(error).split()))
    until = time.monotonic() + 30.0
    while ray.available_resources().get("CPU") != 4.0 and time.monotonic() < until:
        time.sleep(0.1)
    print("FREE", ray.available_resources().get("CPU"))

def start(**options):
    ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False,
             logging_level="ERROR", **options)

case, shards, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
large = {"snapshots": {"world": {"width": 2000}}, "states": {"model": {"hidden": (1024,)}}}[case]
config = merge(EPOCHS, large)
start(_system_config=NO_DISK)
begun = Odd(config=merge(config, on_ray(shards)))
stopped = begun.prepare()
stopped.checkpointer = Checkpointer(stopped, folder, keep_last=3)
attempt(begun.run_experiment)
attempt(Odd(config=merge(config, on_ray(shards))).run_experiment)
kept.clear()
resumed = Odd(config=merge(config, on_ray(shards)))
print("EPOCH", restore(resumed.prepare(), folder)[0].epoch)
print("DIGEST", resumed.run_experiment()["digest"])
ray.shutdown()
start()
attempt(Odd(config=merge(config, on_ray(shards))).run_experiment)
print("KEPT", sum(np.asarray(ray.get(one)).nbytes for one in kept) > 80 * 2**20)
ray.shutdown()
print("DIGEST", Odd(config=merge(config, INLINE)).run_experiment()["digest"])
"""


@pytest.mark.slow
@pytest.mark.timeout(900)  # workers import torch, on a machine that may be busy
@pytest.mark.parametrize(("case", "shards"), [("snapshots", 0), ("snapshots", 2), ("states", 0)])
def test_a_full_object_store_stops_the_run_with_advice_and_nothing_is_lost(
    case: str, shards: int, tmp_path: Path
) -> None:
    """Fill the store of a real Ray: first where it may not use the disk, then where it may.

    large: the snapshots that the run stores, or the states that a worker stores as its result.
    """
    command = [sys.executable, "-c", FULL, case, str(shards), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    told = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    errors = [text for name, text in told if name == "ERROR"]
    assert len(errors) == 2, "in the middle of a run, and at the start of another"
    for text in errors:
        assert re.search(r"Ray's object store is full .* give it more room .*Local disk is full", text), text
        assert "ray::" not in text, "no traceback of a worker"
        assert int(text.split()[0]) < 120
    assert [text for name, text in told if name == "FREE"] == ["4.0"] * 3, "no worker is left"
    assert ("EPOCH", "4") in told
    assert ("KEPT", "True") in told, "more than fits was stored, so that Ray used the disk"
    digests = [text for name, text in told if name == "DIGEST"]
    assert len(digests) == 3, "resumed on Ray, with the disk, and inline"
    assert len(set(digests)) == 1


# -- nodes that are different ------------------------------------------------------------------------------------------

OTHER_CPU = """
import os, sys
os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0",
                  RAY_worker_niceness="0")
from ray.cluster_utils import Cluster
from parallel_agents.core.config import merge
from parallel_agents.core.errors import NumericsError
from parallel_agents.execution.ray import RayCluster
from tests.equivalence.worlds import Odd

store = {"object_store_memory": 2**27}
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
try:
    other = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "", "ATEN_CPU_CAPABILITY": "default"}
    nodes.add_node(num_cpus=2, env_vars=other, **store)
    cluster = RayCluster(nodes.address)
    print("CPU", *cluster.results([cluster.task(os.getenv, "NUMBA_CPU_NAME")], 60.0))
    flags = {"backend": "ray", "num_workers": 1, "world_shards": 1, "round_deadline": 700.0}
    for model in ({}, {"kernels": "torch"}):
        problem = {"experiment": {"worlds": 3, "max_turns": 8}, "model": {"buffer_size": 100, **model}}
        print("HERE", Odd(config=merge(problem, {"parallel": {"backend": "inline"}})).run_experiment()["digest"])
        try:
            print("THERE", Odd(config=merge(problem, {"parallel": flags})).run_experiment()["digest"])
        except NumericsError as error:
            print("REFUSED", error)
    cluster.close()
finally:
    nodes.shutdown()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)  # kernels are compiled for another CPU
def test_native_kernels_give_the_same_bytes_on_a_node_with_another_cpu_and_torch_is_refused_there() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", OTHER_CPU], capture_output=True, text=True, timeout=880, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    assert [name for name, _ in told] == ["CPU", "HERE", "THERE", "HERE", "REFUSED"]
    (_, cpu), (_, here), (_, there), _, (_, refusal) = told
    assert cpu == "nehalem"
    assert there == here
    assert refusal.startswith(f"the machine {socket.gethostname()} would compute other bytes than this one: ")
    assert "cpu_capability is DEFAULT, here " in refusal
