"""Advantages against numbers computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_agents.algorithms.gae import advantages

GAMMA, LAMBDA = 0.5, 0.5


def named(*columns: Any) -> dict[str, Any]:
    return dict(zip(("rewards", "value", "terminated", "truncated", "valid", "follow"), columns, strict=True))


def estimate(rewards: Any, values: Any, **flags: Any) -> list[float]:
    """Return the advantages of one agent in one world; `flags` name the rows where something is true."""
    rows = len(rewards)

    def column(name: str, default: bool = False) -> Any:
        flag = np.full((1, rows, 1), default)
        for row in flags.get(name, ()):
            flag[0, row, 0] = not default
        return flag

    follow = np.ones((1, rows, 1), np.int32)
    for row, steps in flags.get("follow", {}).items():
        follow[0, row, 0] = steps
    shaped = [np.asarray(x, np.float32).reshape(1, rows, 1) for x in (rewards, values)]
    flagged = column("terminated"), column("truncated"), column("invalid", default=True)
    found = advantages(named(*shaped, *flagged, follow), np.array([GAMMA]), np.array([LAMBDA]))
    return found[0, :, 0].tolist()


def test_after_a_termination_the_value_is_0() -> None:
    # δ1 = 2 - 4 = -2; δ0 = 1 + .5·4 - 2 = 1; A0 = 1 + .25·(-2) = .5; the last row only holds the value of the last observation
    assert estimate([1, 2, 0], [2, 4, 100], terminated=[1], invalid=[2]) == [0.5, -2.0, 0.0]


def test_after_a_truncation_the_value_of_the_next_observation_counts() -> None:
    # δ1 = 2 + .5·100 - 4 = 48; A0 = 1 + .25·48 = 13
    assert estimate([1, 2, 0], [2, 4, 100], truncated=[1], invalid=[2]) == [13.0, 48.0, 0.0]


def test_nothing_is_carried_across_the_end_of_an_episode() -> None:
    # row 1 holds the final observation of the first episode (value 8); row 2 starts another
    found = estimate([1, 0, 5, 0], [2, 8, 3, 1], truncated=[0], invalid=[1, 3])
    assert found == [1 + 0.5 * 8 - 2, 0.0, 5 + 0.5 * 1 - 3, 0.0]


def test_turns_in_which_the_agent_could_not_act_are_skipped() -> None:
    # rows 1 and 2 are no transitions; the observation after row 0 is in row 3
    found = estimate([1, 0, 0, 2, 0], [2, 9, 9, 4, 6], follow={0: 3}, invalid=[1, 2, 4])
    last = 2 + 0.5 * 6 - 4
    assert found == [1 + 0.5 * 4 - 2 + 0.25 * last, 0.0, 0.0, last, 0.0]


def test_agents_and_worlds_are_independent() -> None:
    draws = np.random.Generator(np.random.Philox(1))
    shape = (3, 6, 4)
    args = [
        draws.random(shape, np.float32),
        draws.random(shape, np.float32),
        draws.random(shape) < 0.2,
        draws.random(shape) < 0.2,
        draws.random(shape) < 0.9,
        np.ones(shape, np.int32),
    ]
    args[4][:, -1] = False
    gammas, lambdas = np.array([0.9, 0.5, 1.0]), np.array([0.95, 0.0, 1.0])
    whole = advantages(named(*args), gammas, lambdas)
    for n in range(3):
        for w in range(4):
            part = [np.ascontiguousarray(x[n : n + 1, :, w : w + 1]) for x in args]
            alone = advantages(named(*part), gammas[n : n + 1], lambdas[n : n + 1])
            assert np.array_equal(whole[n, :, w], alone[0, :, 0])


def test_with_lambda_1_an_advantage_is_the_return_less_the_value() -> None:
    draws = np.random.Generator(np.random.Philox(2))
    rewards, values = draws.random((1, 9, 1), np.float32), draws.random((1, 9, 1), np.float32)
    no, valid = np.zeros((1, 9, 1), np.bool_), np.ones((1, 9, 1), np.bool_)
    terminated = no.copy()
    terminated[0, 8] = True
    columns = named(rewards, values, terminated, no, valid, np.ones((1, 9, 1), np.int32))
    found = advantages(columns, np.array([0.9]), np.ones(1))
    for t in range(9):
        expected = sum(0.9 ** (k - t) * float(rewards[0, k, 0]) for k in range(t, 9)) - float(values[0, t, 0])
        assert found[0, t, 0] == pytest.approx(expected, abs=1e-5)
