"""How the work is done never changes the bytes: each distinct plan is run and compared."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from typing import Any

import pytest

from parallel_agents.core.config import merge
from parallel_agents.execution import auto
from parallel_agents.tracking.callbacks import BaseCallback
from tests.equivalence.worlds import Odd, run, treasure_hunt

TREASURE = {
    "experiment": {"epochs": 13, "max_turns": 20, "seed": 3},
    "world": {"agents": 5},
    "model": {"learning_starts": 40, "updates_per_round": 6},
    "parallel": {"train_interval": 3, "policy_lag": 1, "backend": "inline"},
}
PROBLEMS: dict[str, dict[str, Any]] = {
    "lag 1": {},
    "lag 0": {"parallel": {"policy_lag": 0}},
    "lag 2": {"parallel": {"policy_lag": 2}},
    "sequential turns": {"parallel": {"turn_order": "sequential"}},
    "four worlds": {"experiment": {"worlds": 4}},
}
MAIN: list[dict[str, Any]] = [
    {"enabled": False},
    {"parallel_actions": False},
    {"parallel_training": False},
    {"backend": None, "async_learning": False},
    {"backend": "thread", "num_workers": 2},
    {"backend": "thread", "buffer_sync": "lock", "num_workers": 3},
]
FLAGS = [
    {"parallel_actions": acting, "parallel_training": training, "buffer_sync": sync, **where}
    for acting, training, sync in itertools.product((True, False), (True, False), ("snapshot", "lock"))
    for where in (
        {"backend": "inline"},
        *({"backend": "thread", "num_workers": workers} for workers in (1, 2, 3)),
        *({"backend": "process", "num_workers": workers} for workers in (1, 2, 3)),
    )
]
_known: dict[str, str] = {}


def reference(name: str) -> str:
    """Return the digest of a problem, run inline in stacks."""
    if name not in _known:
        _known[name] = digest(PROBLEMS[name])
    return _known[name]


def digest(problem: dict[str, Any], flags: dict[str, Any] | None = None) -> str:
    value = run(treasure_hunt(), merge(TREASURE, problem, {"parallel": flags or {}}))["digest"]
    assert isinstance(value, str)
    return value


PLANS = [
    pytest.param(
        name, flags, id=f"{name}-{flags}", marks=() if name == "lag 1" or flags in MAIN[::5] else pytest.mark.slow
    )
    for name in PROBLEMS
    for flags in MAIN
]
"""Every plan of one problem, and of the others the plans that differ most: one by one, and threads that read under locks."""


@pytest.mark.parametrize(("name", "flags"), PLANS)
def test_the_plan_never_changes_the_bytes(name: str, flags: dict[str, Any]) -> None:
    assert digest(PROBLEMS[name], flags) == reference(name)


@pytest.mark.parametrize(("name", "workers"), [("lag 1", 2), ("lag 2", 3)])
def test_processes_never_change_the_bytes(name: str, workers: int) -> None:
    assert digest(PROBLEMS[name], {"backend": "process", "num_workers": workers}) == reference(name)


@pytest.mark.parametrize(("to", "lag"), [("thread", 1), ("thread", 2), ("process", 1)])
def test_a_backend_that_changes_during_a_run_never_changes_the_bytes(
    to: str, lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured costs decide when `auto` changes the backend; here they are set so that it does, and changes back."""
    problem: dict[str, Any] = {"parallel": {"train_interval": 1, "policy_lag": lag}}
    if to == "process":  # compiled kernels always prefer threads
        problem["model"] = {"kernels": "torch"}
    monkeypatch.setattr(auto, "LONG_UPDATE", 0.0 if to == "thread" else 1e9)
    monkeypatch.setattr(auto, "START_COST", -1.0)
    monkeypatch.setattr(auto, "THREAD_COST", -1.0)
    monkeypatch.setattr(auto.AutoBackend, "_has_started", lambda _, candidate: candidate.ready(60.0))
    moved: list[str] = []

    class Moves(BaseCallback):
        def on_event(self, name: str, fields: Any) -> None:
            if name == "backend_moved":
                moved.append(fields["to"])

    game = treasure_hunt()(config=merge(TREASURE, problem, {"parallel": {"backend": None}}))
    found = game.run_experiment(callbacks=[Moves()])["digest"]
    assert moved[:1] == [to]
    assert found == digest(problem)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_distinct_plan(name: str) -> None:
    different = {str(flags) for flags in FLAGS if digest(PROBLEMS[name], flags) != reference(name)}
    assert different == set()


def _burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def test_a_busy_machine_never_changes_the_bytes() -> None:
    context = multiprocessing.get_context("spawn")
    burners = [context.Process(target=_burn, args=(20.0,), daemon=True) for _ in range(2)]
    for burner in burners:
        burner.start()
    try:
        assert digest({}, {"backend": "thread", "num_workers": 2}) == reference("lag 1")
    finally:
        for burner in burners:
            burner.kill()
            burner.join(5.0)


@pytest.mark.parametrize(
    "change",
    [
        {"experiment": {"seed": 4}},
        {"parallel": {"policy_lag": 0}},
        {"parallel": {"train_interval": 4}},
        {"parallel": {"turn_order": "sequential"}},
        {"world": {"agents": 4}},
        {"experiment": {"worlds": 2}},
        {"model": {"lr": 2e-3}},
    ],
    ids=str,
)
def test_another_problem_has_another_digest(change: dict[str, Any]) -> None:
    assert digest(change) != reference("lag 1")


def test_a_repeated_run_has_the_same_digest() -> None:
    assert digest({}) == reference("lag 1")


def test_replicas_equal_single_runs() -> None:
    together = run(treasure_hunt(), merge(TREASURE, {"experiment": {"seeds": 3}}))["digests"]
    alone = [digest({"experiment": {"seed": seed}}) for seed in (3, 4, 5)]
    assert together == alone


ODD = [
    {"world": {"agents": agents, "width": width, "actions": actions}, "model": {"hidden": hidden, "dueling": dueling}}
    for agents, width, actions, hidden, dueling in (
        (1, 3, 2, (5,), False),
        (2, 1, 1, (1,), True),
        (3, 2, 3, (3, 2), False),
        (4, 1, 2, (2,), False),
        (5, 3, 1, (7,), True),
        (6, 17, 5, (33, 31), False),
        (7, 2, 2, (1, 3), True),
        (8, 3, 3, (9,), False),
        (9, 5, 4, (11, 13), True),
    )
]


@pytest.mark.parametrize("shape", ODD, ids=lambda shape: f"{shape['world']} {shape['model']}")
@pytest.mark.parametrize("way", ["simultaneous", "sequential"])
def test_odd_shapes_and_agents_that_cannot_act_never_change_the_bytes(shape: dict[str, Any], way: str) -> None:
    problem = merge(
        shape, {"parallel": {"turn_order": way}, "experiment": {"worlds": shape["world"]["agents"] % 3 + 1}}
    )
    together = run(Odd, merge(problem, {"parallel": {"backend": "inline"}}))
    assert together["updates"] > 0
    assert run(Odd, merge(problem, {"parallel": {"enabled": False}}))["digest"] == together["digest"]
    threads = {"backend": "thread", "num_workers": 2, "buffer_sync": "lock"}
    assert run(Odd, merge(problem, {"parallel": threads}))["digest"] == together["digest"]


@pytest.mark.parametrize(
    "model",
    [{"n_step": 3}, {"n_frames": 4}, {"n_step": 2, "n_frames": 2, "double": False}, {"target_update_interval": 3}],
    ids=str,
)
@pytest.mark.parametrize("autoreset", [False, True])
def test_frames_and_targets_never_change_the_bytes(model: dict[str, Any], autoreset: bool) -> None:
    problem = {"model": model, "experiment": {"autoreset": autoreset, "worlds": 2}}
    together = run(Odd, merge(problem, {"parallel": {"backend": "inline"}}))["digest"]
    assert run(Odd, merge(problem, {"parallel": {"enabled": False}}))["digest"] == together


def test_replicas_whose_worlds_end_at_different_turns_equal_single_runs() -> None:
    together = run(Odd, {"experiment": {"seeds": 4}, "parallel": {"backend": "inline"}})["digests"]
    alone = [run(Odd, {"experiment": {"seed": seed}, "parallel": {"enabled": False}})["digest"] for seed in range(4)]
    assert together == alone
