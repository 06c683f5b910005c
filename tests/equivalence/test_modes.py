"""How the work is run never changes the bytes: every kind of learner, network, replay and action, in every mode."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from parallel_agents.algorithms import DQN, IQN, PPO
from parallel_agents.core.config import merge
from parallel_agents.env import Agent
from tests.algorithms import test_normalization as normalisation
from tests.env import test_action_masks as masks
from tests.equivalence import test_algorithms as algorithms
from tests.equivalence import test_importance as importance
from tests.equivalence import test_own_networks as own_networks
from tests.equivalence import test_pace as pace
from tests.equivalence import test_recurrent as recurrent
from tests.equivalence.worlds import Odd, run

GROUPS = (algorithms, importance, masks, normalisation, own_networks, pace, recurrent)
CASES = {
    f"{group.__name__.rpartition('.test_')[2]}: {name}": case for group in GROUPS for name, case in group.CASES.items()
}
MODES: dict[str, dict[str, Any]] = {
    "one agent after the other": {"enabled": False},
    "two threads that read under locks": {"backend": "thread", "num_workers": 2, "buffer_sync": "lock"},
}
INLINE = {"parallel": {"backend": "inline"}}


class Everything(importance.Various):
    """Every kind of learner with observations of three numbers and three actions, in one run."""

    default_config = merge(importance.Various.default_config, {"world": {"agents": 42}, "experiment": {"epochs": 5}})
    kinds = (algorithms.Mixed, pace.Paced, importance.Various, own_networks.Own, recurrent.Mixed)

    def setup_agents(self) -> None:
        made: list[Agent] = []
        for kind in self.kinds:
            kind.setup_agents(self)  # type: ignore[arg-type]
            made += self.agents
        replay = {"batch_size": 6, "updates_per_round": 2, "learning_starts": 5, "buffer_size": 40}
        units = {"normalize_observations": True, "normalize_rewards": True}
        terms = {"rollout": 24, "epochs": 2, "clip_range_vf": 0.2, "ent_coef": 0.02}
        hidden_state = {"recurrent": True, "hidden": 6, "sequence": 5}
        models = [
            DQN((3,), 3, hidden=(5,), **replay, **units),
            DQN((3,), 3, hidden=(5,), **replay, n_step=2, max_accumulated_batches=4, priority_alpha=0.9),
            DQN((3,), 3, **hidden_state, **replay, n_step=2, dueling=True, normalize_observations=True),
            PPO((3,), 3, hidden=(5,), **terms, **units),
            PPO((3,), 3, hidden=(5, 3), **terms, importance={"alpha": 1.0, "class_weights": {"quiet": 1.0}}),
            PPO((3,), 3, **hidden_state, **terms, **units),
            IQN((3,), 3, layer=6, n_frames=2, **replay, **units),
        ]
        self.agents = made + [Agent(model=model) for model in models]

    def apply_agent(self, index: int, actions: Any) -> Any:
        return super().apply_agent(index, np.clip(actions, 0, 2))


TOGETHER: dict[str, dict[str, Any]] = {
    "turns at once": {},
    "turns one by one, lag 0": {"parallel": {"turn_order": "sequential", "policy_lag": 0}},
    "autoreset, lag 2": {"experiment": {"autoreset": True}, "parallel": {"policy_lag": 2}},
}
ALIKE = (Everything, *Everything.kinds, algorithms.Choices, importance.Eventful, importance.Plain, pace.Bare, Odd)
"""Environments with the observations and actions of `Everything`, which has their learners too: alone they are slow."""


@cache
def inline(name: str) -> dict[str, Any]:
    return run(Everything, merge(TOGETHER[name], INLINE))


@pytest.mark.parametrize("name", TOGETHER)
def test_every_mode_gives_the_same_bytes_for_every_kind_of_learner_at_once(name: str) -> None:
    expected = inline(name)
    found = {mode: run(Everything, merge(TOGETHER[name], {"parallel": flags})) for mode, flags in MODES.items()}
    assert {mode: own["digest"] for mode, own in found.items()} == dict.fromkeys(MODES, expected["digest"])
    assert expected["updates"] > 50


@pytest.mark.filterwarnings("ignore:.*are computed one at a time:RuntimeWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if cls in ALIKE else ()) for name, (cls, _) in CASES.items()]
)
def test_every_mode_gives_the_same_bytes(name: str) -> None:
    cls, problem = CASES[name]
    together = run(cls, merge(problem, INLINE))
    assert together["updates"] > 0
    found = {mode: run(cls, merge(problem, {"parallel": flags}))["digest"] for mode, flags in MODES.items()}
    assert found == dict.fromkeys(MODES, together["digest"])


def test_processes_give_the_same_bytes_for_every_kind_of_learner_at_once() -> None:
    expected = inline("turns at once")
    found = run(Everything, {"parallel": {"backend": "process", "num_workers": 2}})
    assert found["updates"] == expected["updates"] > 50
    assert (found["digest"], found["backend"]) == (expected["digest"], "process")


def test_replicas_of_every_kind_of_learner_equal_single_runs() -> None:
    together = run(Everything, merge(INLINE, {"experiment": {"seeds": 2}}))["digests"]
    assert together == [inline("turns at once")["digest"], run(Everything, {"experiment": {"seed": 1}})["digest"]]
    assert together[0] != together[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*are computed one at a time:RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_processes_give_the_same_bytes_for_each_of_them(name: str) -> None:
    cls, problem = CASES[name]
    found = run(cls, merge(problem, {"parallel": {"backend": "process", "num_workers": 2}}))
    assert (found["digest"], found["backend"]) == (run(cls, merge(problem, INLINE))["digest"], "process")
