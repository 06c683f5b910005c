"""A round in parts: the rule of their size, and the same bytes whatever it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.learning import parts
from parallel_agents.learning.parts import part_rows, touched
from parallel_agents.models import DQN, IQN, PPO, Model
from parallel_agents.networks import MLP, numerics
from parallel_agents.types import Identity, RoundResult, Snapshot, State

AGENTS, UPDATES = 9, 4
REPLAY: dict[str, Any] = {"batch_size": 5, "hidden": (7,)}
ROLLOUT: dict[str, Any] = {"worlds": 2, "rollout": 8, "passes": 2, "minibatches": 2, "hidden": (7,)}
MODELS = {
    "dqn": lambda: DQN((3,), 2, **REPLAY),
    "dqn, joined batches": lambda: DQN((3,), 2, **REPLAY, batch_growth=4),
    "dqn, priorities": lambda: DQN((3,), 2, **REPLAY, priority_alpha=0.6),
    "dqn, recurrent": lambda: DQN((3,), 2, **REPLAY, recurrent=True, sequence=3),
    "dqn, large layers": lambda: DQN((90,), 2, hidden=(100,), batch_size=5),
    "iqn": lambda: IQN((3,), 2, layer=7, n_frames=1, batch_size=5),
    "ppo": lambda: PPO((3,), 2, **ROLLOUT),
    "ppo, stops early": lambda: PPO((3,), 2, **ROLLOUT, target_kl=1e-5),
    "ppo, recurrent": lambda: PPO((3,), 2, **ROLLOUT, recurrent=True, sequence=4),
}


@pytest.fixture(autouse=True)
def _under_the_rules() -> None:
    numerics.require()


def learnt(model: Model, ready: list[bool] | None = None) -> tuple[State, State, RoundResult]:
    """The state before and after a round, and what the round gave."""
    identity = Identity((0,) * AGENTS, tuple(range(AGENTS)))
    learner = model.blueprint.learner(updates=UPDATES)
    state = learner.init(identity, [model.hyper] * AGENTS)
    taken = model.blueprint.rehearsal(AGENTS, updates=UPDATES)
    columns = {**taken.columns, "ready": np.array(ready if ready is not None else [True] * AGENTS)}
    return state, *learner.learn(state, Snapshot(3, columns), identity)


def in_parts_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FEWEST", rows)
    monkeypatch.setattr(parts, "CACHE", 1)


def test_parts_are_as_large_as_fits_and_even() -> None:
    assert [part_rows(agents, parts.CACHE // 8) for agents in (1, 2, 8, 9, 16, 17, 128)] == [1, 2, 8, 5, 8, 6, 8]
    assert [part_rows(128, numbers) for numbers in (1, parts.CACHE // 128, parts.CACHE, 10 * parts.CACHE)] == [
        128, 128, parts.FEWEST, parts.FEWEST,
    ]  # fmt: skip


def test_what_an_update_touches_grows_with_weights_and_samples() -> None:
    small, wide, deep = (MLP(8, hidden, 4) for hidden in ((64, 64), (250, 250), (64, 64, 64)))
    assert touched(small, 5, 32) < touched(small, 5, 64) < touched(wide, 5, 64)
    assert touched(small, 4, 32) < touched(small, 5, 32) < touched(deep, 5, 32)
    assert touched(small, 5, 32) > 5 * small.size


@pytest.mark.parametrize("name", MODELS)
def test_a_round_in_parts_gives_the_bytes_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[name]()
    _, whole, told = learnt(model)
    assert (told.updates > 0).all()
    for rows in (1, 2, 4):
        in_parts_of(rows, monkeypatch)
        _, new, result = learnt(model)
        assert all(torch.equal(new[key], whole[key]) for key in whole.tensors), rows
        assert result.round == 3
        assert (result.updates == told.updates).all()
        assert (result.rejected == told.rejected).all()
        for mine, theirs in ((result.metrics, told.metrics), (result.priorities, told.priorities)):
            assert mine.keys() == theirs.keys()
            assert all((mine[key] == theirs[key]).all() for key in theirs)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [2, AGENTS])
def test_those_who_are_not_ready_stay_as_they_are(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts_of(rows, monkeypatch)
    ready = [True, False, False, False, True, True, False, True, False]
    before, new, result = learnt(MODELS[name](), ready)
    _, whole, _ = learnt(MODELS[name]())
    for row, own in enumerate(ready):
        wanted = whole if own else before
        assert all(torch.equal(new[key][row], wanted[key][row]) for key in new.tensors), row
    assert ((result.updates > 0) == ready).all()


def test_seconds_are_those_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts_of(2, monkeypatch)
    ticks = iter([10.0, 17.5])
    monkeypatch.setattr(parts.time, "perf_counter", lambda: next(ticks))
    assert learnt(MODELS["dqn"]())[2].seconds == 7.5
