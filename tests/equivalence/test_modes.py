"""How the work is run never changes the bytes: every kind of learner, network, replay and action, in every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_agents.algorithms import DQN, PPO
from parallel_agents.core.config import merge
from parallel_agents.env import Agent
from tests.algorithms import test_normalization as normalisation
from tests.env import test_action_masks as masks
from tests.equivalence import test_algorithms as algorithms
from tests.equivalence import test_importance as importance
from tests.equivalence import test_own_networks as own_networks
from tests.equivalence import test_pace as pace
from tests.equivalence import test_recurrent as recurrent
from tests.equivalence.worlds import run

GROUPS = (algorithms, importance, masks, normalisation, own_networks, pace, recurrent)
CASES = {
    f"{group.__name__.rpartition('.test_')[2]}: {name}": case for group in GROUPS for name, case in group.CASES.items()
}
MODES: dict[str, dict[str, Any]] = {
    "one agent after the other": {"enabled": False},
    "two threads that read under locks": {"backend": "thread", "num_workers": 2, "buffer_sync": "lock"},
}
INLINE = {"parallel": {"backend": "inline"}}


@pytest.mark.filterwarnings("ignore:.*are computed one at a time:RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_every_mode_gives_the_same_bytes(name: str) -> None:
    cls, problem = CASES[name]
    together = run(cls, merge(problem, INLINE))
    assert together["updates"] > 0
    found = {mode: run(cls, merge(problem, {"parallel": flags}))["digest"] for mode, flags in MODES.items()}
    assert found == dict.fromkeys(MODES, together["digest"])


class Everything(importance.Various):
    """Every kind of learner with observations of three numbers and three actions, in one run."""

    default_config = merge(importance.Various.default_config, {"world": {"agents": 35}, "experiment": {"epochs": 5}})
    kinds = (algorithms.Mixed, pace.Paced, importance.Various, own_networks.Own, recurrent.Mixed)

    def setup_agents(self) -> None:
        made: list[Agent] = []
        for kind in self.kinds:
            kind.setup_agents(self)  # type: ignore[arg-type]
            made += self.agents
        units = {"normalize_observations": True, "normalize_rewards": True, "hidden": (5,)}
        made += [Agent(model=DQN((3,), 3, batch_size=6, learning_starts=5, buffer_size=40, **units))]
        made += [Agent(model=PPO((3,), 3, rollout=24, epochs=2, **units))]
        self.agents = made

    def apply_agent(self, index: int, actions: Any) -> Any:
        return super().apply_agent(index, np.clip(actions, 0, 2))


def test_processes_give_the_same_bytes_for_every_kind_of_learner_at_once() -> None:
    expected = run(Everything, INLINE)
    found = run(Everything, {"parallel": {"backend": "process", "num_workers": 2}})
    assert found["updates"] == expected["updates"] > 50
    assert (found["digest"], found["backend"]) == (expected["digest"], "process")


def test_replicas_of_every_kind_of_learner_equal_single_runs() -> None:
    together = run(Everything, merge(INLINE, {"experiment": {"seeds": 2}}))["digests"]
    assert together == [run(Everything, {"experiment": {"seed": seed}})["digest"] for seed in (0, 1)]
    assert together[0] != together[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*are computed one at a time:RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_processes_give_the_same_bytes_for_each_of_them(name: str) -> None:
    cls, problem = CASES[name]
    found = run(cls, merge(problem, {"parallel": {"backend": "process", "num_workers": 2}}))
    assert (found["digest"], found["backend"]) == (run(cls, merge(problem, INLINE))["digest"], "process")
