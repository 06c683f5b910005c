"""Worlds that are played in shards give the bytes of one process: here with actors that are objects of this process."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from examples.treasure_hunt import TreasureHunt
from parallel_agents.core.config import Parallel, merge
from parallel_agents.core.errors import ConfigError, DeadlineError, WorkerDied, WorldError
from parallel_agents.engine import shards
from parallel_agents.env import Agent
from parallel_agents.env.adapters.gymnasium import gymnasium_environment
from parallel_agents.execution import launcher
from parallel_agents.market import MarketEnvironment
from parallel_agents.nn import numerics
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.workflows.defence import NetworkDefence
from tests.equivalence import test_importance as importance
from tests.equivalence.worlds import Odd, run, treasure_hunt

INLINE = {"parallel": {"backend": "inline"}}
FEW: dict[str, Any] = {"experiment": {"epochs": 5, "worlds": 5}, "model": {"buffer_size": 100}}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "worlds that end at different turns": (Odd, {}),
    "a buffer that is hardly longer than an epoch": (Odd, {"model": {"buffer_size": 5 * 13}}),
    "frames": (Odd, {"model": {"n_frames": 3}}),
    "replicas": (Odd, {"experiment": {"seeds": 2}}),
    "torch": (Odd, {"model": {"kernels": "torch"}}),
    "agents that act one after the other": (Odd, {"parallel": {"turn_order": "sequential"}}),
    "event types": (importance.Various, {"experiment": {"worlds": 3, "max_turns": 8}}),
    "a compiled game": (treasure_hunt(), {"world": {"agents": 2}, "model": {"hidden": (8,)}}),
    "the market": (MarketEnvironment, {"experiment": {"max_turns": 6}, "model": {"algorithm": "ppo", "hidden": (8,)}}),
    "the defence": (NetworkDefence, {"experiment": {"max_turns": 6, "epochs": 2}, "model": {"hidden": (8,)}}),
}


class LocalActors:
    """Stands for `Actors`: calls objects in this process, with copies of what would travel."""

    calls: ClassVar[list[str]] = []
    failures: ClassVar[list[Exception]] = []
    """Raised by the next calls, one each."""

    def __init__(self, cluster: Any, kind: type, arguments: Sequence[tuple[Any, ...]], **_: Any) -> None:
        self.actors = [kind(*own) for own in arguments]
        self.calls.append(f"{len(self.actors)} actors")

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]], timeout: float) -> list[Any]:
        if self.failures and method == "finish":
            raise self.failures.pop(0)
        return [copy.deepcopy(getattr(a, method)(*own)) for a, own in zip(self.actors, arguments, strict=True)]

    def close(self) -> None:
        self.calls.append("closed")


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let shards be objects of this process, and train inline."""
    cluster = SimpleNamespace(put=copy.deepcopy, send_module_of=lambda kind: None, free_share=lambda resources: 2)
    monkeypatch.setattr(shards, "Actors", LocalActors)
    monkeypatch.setattr(launcher.BackendLauncher, "cluster", lambda self: cluster)
    monkeypatch.setattr(launcher.BackendLauncher, "_ray", lambda self, states, *_: self._inline(states))
    LocalActors.calls, LocalActors.failures = [], []


def sharded(count: int) -> dict[str, Any]:
    return {"parallel": {"backend": "ray", "world_shards": count}}


@pytest.mark.parametrize("name", CASES)
def test_any_number_of_shards_gives_the_same_bytes(name: str) -> None:
    cls, own = CASES[name]
    problem = merge(FEW if cls is Odd else {"experiment": FEW["experiment"]}, own)
    wanted = run(cls, merge(problem, INLINE))
    assert wanted["updates"] > 0
    for count in (1, 2, 3):
        found = run(cls, merge(problem, sharded(count)))
        equal = ("digest", "turns", "transitions", "total_timesteps", "updates", "mean_reward", "ep_len_mean")
        assert {key: found[key] for key in equal} == {key: wanted[key] for key in equal}, count
    assert [call for call in LocalActors.calls if call != "closed"] == ["1 actors", "2 actors", "3 actors"]


class Events(BaseCallback):
    """Keeps the events of a run."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def on_event(self, name: str, fields: Any) -> None:
        self.seen.append((name, fields))


def test_an_epoch_whose_shard_is_lost_is_played_again_on_the_nodes_that_are_left() -> None:
    LocalActors.failures = [WorkerDied("its node is gone"), DeadlineError("it hangs")]
    events = Events()
    found = Odd(config=merge(FEW, sharded(3))).run_experiment(callbacks=[events])
    assert found["digest"] == run(Odd, merge(FEW, INLINE))["digest"]
    replaced = [fields["cause"] for name, fields in events.seen if name == "worker_replaced"]
    assert replaced == ["its node is gone", "it hangs"]
    assert LocalActors.calls == ["3 actors", "closed", "2 actors", "closed", "2 actors", "closed"]


def test_a_run_ends_after_max_failures_and_what_a_world_raises_is_not_repeated() -> None:
    LocalActors.failures = [WorkerDied(f"loss {k}") for k in range(3)]
    with pytest.raises(WorkerDied, match="loss 2"):
        Odd(config=merge(FEW, sharded(2))).run_experiment()
    LocalActors.failures = [WorldError("a world broke")]
    with pytest.raises(WorldError, match="a world broke"):
        Odd(config=merge(FEW, sharded(2))).run_experiment()


class Unsaid(Odd):
    shardable = False


class Remembering(Odd):
    """Its first agent carries a number from epoch to epoch."""

    class Counting(Agent):
        def state(self) -> Any:
            return {"count": 1}

        def load_state(self, state: Any) -> None: ...

    def setup_agents(self) -> None:
        super().setup_agents()
        self.agents[0] = self.Counting(model=self.agents[0].model)


class Own(Odd):
    """Its first agent has a hook of its own, so that it is in no stack."""

    class Choosing(Agent):
        def add_memory(self, *args: Any, **kwargs: Any) -> None:
            super().add_memory(*args, **kwargs)

    def setup_agents(self) -> None:
        super().setup_agents()
        self.agents[0] = self.Choosing(model=self.agents[0].model)


class OwnTurns(Odd):
    def take_turn(self) -> None:
        super().take_turn()


class OwnRules(Odd):
    """Draws by the place of a world in its shard."""

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.luck = [epoch * w for w in range(self.n_worlds)]


@pytest.mark.parametrize(
    ("cls", "config", "why"),
    [
        (OwnRules, {}, "OwnRules inherits `shardable = True` and writes begin_epoch\\(\\) itself"),
        (Odd, {"experiment": {"autoreset": True}}, "experiment.autoreset is true: episodes that cross epochs"),
        (Unsaid, {}, "Unsaid does not say that its worlds can be played elsewhere: see Environment.shardable"),
        (OwnTurns, {}, "OwnTurns does not say"),
        (Odd, {"experiment": {"worlds": 2}}, "experiment.worlds is 2: there can be one shard per world"),
        (Own, {}, "agent_0 has a model or hooks of its own"),
        (Remembering, {}, "agents carry a state from epoch to epoch"),
        (Odd, {"model": {"buffer_size": 60}}, "smaller than an epoch of 13 turns of 5 worlds: raise model.buffer_size"),
    ],
)
def test_worlds_that_cannot_be_played_elsewhere_are_refused_before_the_run(cls: Any, config: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=f"parallel.world_shards is 3, but .*{why}"):
        cls(config=merge(FEW, sharded(3), config)).prepare()


def test_world_shards_need_backend_ray() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.world_shards are for backend 'ray', but backend is 'thread'"):
        Parallel(backend="thread", world_shards=2)
    with pytest.raises(ConfigError, match=r"parallel\.world_shards is -1"):
        Parallel(backend="ray", world_shards=-1)


def test_an_environment_may_hold_a_part_of_its_worlds() -> None:
    whole, part = (Odd(config=FEW, worlds=worlds) for worlds in (None, range(2, 5)))
    assert (whole.n_worlds, part.n_worlds, list(part.world_numbers)) == (5, 3, [2, 3, 4])
    assert np.array_equal(whole._draws()[:, 2:], part._draws())
    assert [s.random() for s in whole.streams[2:]] == [s.random() for s in part.streams]


# -- worlds that are the same on every machine -------------------------------------------------------------------------


class OwnTurn(TreasureHunt):
    """A grid game with a rule in Python that may call anything."""

    def begin_turn(self) -> None:
        super().begin_turn()


class SaidAgain(OwnTurn):
    portable = True


@pytest.mark.parametrize(
    ("kind", "portable"),
    [
        (TreasureHunt, True),
        (OwnTurn, False),
        (SaidAgain, True),
        (MarketEnvironment, True),
        (NetworkDefence, True),
        (Odd, False),
        (gymnasium_environment("CartPole-v1"), False),
    ],
)
def test_a_fingerprint_is_portable_only_for_worlds_that_say_so_of_all_their_rules(kind: Any, portable: bool) -> None:
    found = kind().prepare().fingerprint
    assert found["arithmetic"] == numerics.PORTABLE
    assert ("numpy" not in found) == portable
