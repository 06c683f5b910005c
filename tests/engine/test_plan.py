"""Every combination of flags gives a plan that could be run, and the one that was asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from parallel_agents.core.config import Parallel
from parallel_agents.core.errors import ConfigError
from parallel_agents.engine.plan import Plan, resolve
from parallel_agents.execution.resources import cores

SWITCHES = ("enabled", "parallel_actions", "parallel_training", "async_learning")
CHOICES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(SWITCHES, (True, False)),
    "use_threads": (True, False, None),
    "num_workers": (None, 1, 2, 3),
    "backend": (None, "inline", "thread", "process"),
    "buffer_sync": ("snapshot", "lock"),
}
CORES = (1, 2, 8)


def every() -> Iterator[tuple[dict[str, Any], int, int, Plan]]:
    for values in itertools.product(*CHOICES.values()):
        flags = dict(zip(CHOICES, values, strict=True))
        parallel = Parallel(**flags)
        for available, agents in itertools.product(CORES, (1, 2, 5)):
            yield flags, available, agents, resolve(parallel, agents=agents, available_cores=available)


def test_every_combination_of_flags_gives_a_plan_that_keeps_the_rules() -> None:
    seen = set()
    for flags, available, agents, plan in every():
        case = f"{flags}, {available} cores, {agents} agents: {plan}"
        seen.add((plan.backend, plan.read_in_learner))
        assert 1 <= plan.workers <= agents, case
        if plan.backend == "inline":
            assert plan.workers == 1, case
        elif flags["num_workers"] is not None:
            assert plan.workers == min(flags["num_workers"], agents), case
        else:
            assert plan.workers <= max(1, available - 1), case
        if flags["backend"] is not None:
            assert plan.backend == flags["backend"], case
        if not flags["enabled"]:
            assert not plan.act_together, case
            assert not plan.train_together, case
            assert plan.backend in ("inline", flags["backend"]), case
        else:
            assert plan.act_together == flags["parallel_actions"], case
            assert plan.train_together == flags["parallel_training"], case
        if plan.read_in_learner:
            assert plan.backend == "thread", case
            assert flags["buffer_sync"] == "lock", case
    kinds = {backend for backend, _ in seen}
    assert kinds == {"inline", "thread", "process", "auto"}
    assert ("thread", True) in seen


def test_without_an_explicit_backend_the_flags_decide() -> None:
    wanted = {True: "thread", False: "process", None: "auto"}
    for flags, _, _, plan in every():
        if flags["backend"] is None:
            background = flags["enabled"] and flags["async_learning"]
            assert plan.backend == (wanted[flags["use_threads"]] if background else "inline")


def test_more_cores_never_give_fewer_workers() -> None:
    plans: dict[str, list[int]] = {}
    for flags, _, agents, plan in every():
        plans.setdefault(f"{flags}{agents}", []).append(plan.workers)
    assert all(len(workers) == len(CORES) and workers == sorted(workers) for workers in plans.values())


def test_a_given_number_of_workers_does_not_depend_on_the_machine() -> None:
    plans: dict[str, set[Plan]] = {}
    for flags, _, agents, plan in every():
        if flags["num_workers"] is not None:
            plans.setdefault(f"{flags}{agents}", set()).add(plan)
    assert all(len(same) == 1 for same in plans.values())


def test_a_configuration_without_a_parallel_section_is_plainly_sequential() -> None:
    assert resolve(Parallel.sequential(), agents=5) == Plan(False, False, "inline", 1, 1, False, "cpu")


def test_by_default_the_cores_of_this_process_count() -> None:
    plan = resolve(Parallel(use_threads=True), agents=1000)
    assert plan.workers == max(1, cores() - 1)


def test_ray_may_have_a_worker_for_each_agent_whatever_the_cores_here() -> None:
    assert resolve(Parallel(backend="ray"), agents=40, available_cores=2).workers == 40
    assert resolve(Parallel(backend="ray", num_workers=3), agents=40, available_cores=2).workers == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_auto_means_cpu_and_cuda_is_refused() -> None:
    assert resolve(Parallel(device="auto"), agents=1).device == "cpu"
    with pytest.raises(ConfigError, match="torch sees no CUDA device here: use 'cpu' or 'auto'"):
        resolve(Parallel(device="cuda"), agents=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_with_cuda_auto_means_cuda() -> None:
    assert resolve(Parallel(device="auto"), agents=1).device == "cuda"
