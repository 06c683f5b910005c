"""What learners share: states, schedules, gradient accumulation, cache blocks, and advantages computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.algorithms import DQN, IQN, PPO, Model, learner
from parallel_agents.algorithms.learner import (
    CACHE_NUMBERS,
    FEWEST_AGENTS,
    GradientAccumulator,
    LearnerState,
    LearningRates,
    RoundResult,
    Snapshot,
    accumulator_state,
    advantages,
    block_size,
    numbers_per_update,
)
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.engine.stacks import random_snapshot
from parallel_agents.kernels.schedules import SCHEDULES, noise_scale, scheduled
from parallel_agents.nn import MLP

# -- states ---------------------------------------------------------------------------------------------------


def numbered_state(first: int, rows: int) -> LearnerState:
    numbers = torch.arange(first, first + rows)
    return LearnerState({"weights": numbers[:, None] * torch.ones(1, 3), "steps": numbers})


def test_joined_states_have_their_agents_one_after_the_other() -> None:
    whole, joined = numbered_state(0, 5), LearnerState.join([numbered_state(0, 2), numbered_state(2, 3)])
    assert len(joined) == 5
    assert list(joined.tensors) == ["weights", "steps"]
    assert len(joined.tensors) == 2
    for name in whole.tensors:
        assert torch.equal(joined[name], whole[name])
        assert torch.equal(joined.rows(slice(1, 4))[name], whole[name][1:4])
        assert torch.equal(joined.clone()[name], whole[name])


def test_a_tensor_of_joined_states_is_concatenated_once_when_it_is_first_read() -> None:
    partial = LearnerState({"weights": torch.ones(1, 3), "steps": None})  # type: ignore[dict-item]
    joined = LearnerState.join([partial, numbered_state(0, 1)])
    assert joined["weights"].tolist() == [[1.0] * 3, [0.0] * 3]
    assert joined["weights"] is joined["weights"]


def test_a_single_state_is_joined_to_itself() -> None:
    state = numbered_state(0, 2)
    assert LearnerState.join([state]) is state


# -- schedules ------------------------------------------------------------------------------------------------

LINEAR, EXPONENTIAL, COSINE = range(3)


def test_the_numbers_of_the_schedules_stand_for_their_names() -> None:
    assert SCHEDULES == ("linear", "exponential", "cosine")


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (LINEAR, [8.0, 6.5, 5.0, 2.0, 2.0]),
        (EXPONENTIAL, [8.0, 8.0 * 0.25**0.25, 4.0, 2.0, 2.0]),  # a quarter of the way is 4^(-1/4)
        (COSINE, [8.0, 5.0 + 3.0 * math.sqrt(0.5), 5.0, 2.0, 2.0]),  # cos(π/4) = √½
    ],
)
def test_scheduled_values_equal_those_computed_by_hand(schedule: int, expected: list[float]) -> None:
    assert [scheduled(schedule, 8.0, 2.0, float(count), 4.0) for count in (0, 1, 2, 4, 9)] == pytest.approx(expected)


@pytest.mark.parametrize("schedule", range(3))
def test_without_a_span_a_value_is_constant(schedule: int) -> None:
    assert scheduled(schedule, 8.0, 2.0, 1000.0, 0.0) == 8.0


def test_every_agent_has_its_own_schedule_by_its_own_updates() -> None:
    rows = [(LINEAR, 1.0, 0.0, 4), (EXPONENTIAL, 1.0, 0.25, 4), (COSINE, 1.0, 0.0, 4), (LINEAR, 0.3, 0.3, 0)]
    names = ("lr_shape", "lr", "lr_final", "lr_updates")
    columns = {f"hyper.{name}": [row[place] for row in rows] for place, name in enumerate(names)}
    rates = LearningRates(LearnerState({name: torch.tensor(own, dtype=torch.float64) for name, own in columns.items()}))
    assert rates.at(np.array([2, 2, 2, 2])) == pytest.approx([0.5, 0.5, 0.5, 0.3])
    assert rates.at(np.array([0, 4, 1, 9])) == pytest.approx([1.0, 0.25, 0.5 + 0.5 * math.sqrt(0.5), 0.3])


# -- gradient accumulation ------------------------------------------------------------------------------------


def accumulating_state(most_batches: list[float], width: int = 2) -> LearnerState:
    tensors = {"online": torch.zeros(len(most_batches), width), "hyper.batch_growth": torch.tensor(most_batches)}
    return LearnerState({**tensors, **accumulator_state(most_batches)})


def test_noise_and_signal_are_those_that_the_gradients_were_made_with() -> None:
    """Gradients with mean (3, 0) and covariance 16 per number: noise 32, signal 9."""
    draws = generator(3, Purpose.SAMPLE)
    gradients = np.array([3.0, 0.0]) + 4.0 * draws.standard_normal((20_000, 4, 8, 2))  # repeats, joined, batch
    batches = gradients.mean(axis=2)
    small = (batches**2).sum(-1).mean(axis=1)
    large = (batches.mean(axis=1) ** 2).sum(-1)
    noise, signal = noise_scale(float(small.mean()), float(large.mean()), 8, 4)
    np.testing.assert_allclose(noise, 32.0, rtol=0.05)
    np.testing.assert_allclose(signal, 9.0, rtol=0.05)


def test_joined_gradients_are_means_and_steps_are_taken_when_due() -> None:
    accumulator = GradientAccumulator(accumulating_state([2.0, 1.0]), batch=4, updates=5)
    means, due = [], []
    for number in range(1, 6):
        gradients = torch.full((2, 2), float(number))
        due.append(accumulator.add(gradients))
        means.append(gradients[:, 0].tolist())
    assert due == [[False, True], [True, True], [False, True], [True, True], [True, True]]
    assert means == [[1.0, 1.0], [1.5, 2.0], [3.0, 3.0], [3.5, 4.0], [5.0, 5.0]]
    assert accumulator.attempts.tolist() == [3, 5]


def test_noisy_gradients_join_more_batches_and_clear_ones_fewer() -> None:
    state = accumulating_state([16.0, 16.0, 1.0], width=50)
    draws = generator(5, Purpose.SAMPLE)
    for _ in range(40):
        accumulator = GradientAccumulator(state, batch=4, updates=16)
        for _ in range(16):
            noisy = draws.standard_normal(50)
            accumulator.add(torch.from_numpy(np.stack([noisy, np.ones(50) + 0.01 * noisy, noisy])).float())
        accumulator.store(state, np.ones(3, np.bool_))
    assert state["batch.joined"].tolist() == [16, 2, 1]


def test_with_at_most_one_batch_nothing_is_kept_or_changed() -> None:
    state = accumulating_state([1.0])
    accumulator = GradientAccumulator(state, batch=4, updates=2)
    gradients = torch.tensor([[1.0, 2.0]])
    assert accumulator.add(gradients) == [True]
    assert gradients.tolist() == [[1.0, 2.0]]
    accumulator.store(state, np.ones(1, np.bool_))
    assert not accumulator.active


# -- cache blocks ---------------------------------------------------------------------------------------------

AGENTS, UPDATES = 9, 4
REPLAY: dict[str, Any] = {"batch_size": 5, "hidden": (7,)}
ROLLOUT: dict[str, Any] = {"worlds": 2, "rollout": 8, "n_epochs": 2, "n_minibatches": 2, "hidden": (7,)}
MODELS = {
    "dqn": lambda: DQN((3,), 2, **REPLAY, kernels="torch"),
    "dqn, joined batches": lambda: DQN((3,), 2, **REPLAY, max_accumulated_batches=4, kernels="torch"),
    "dqn, priorities": lambda: DQN((3,), 2, **REPLAY, priority_alpha=0.6, kernels="torch"),
    "dqn, recurrent": lambda: DQN((3,), 2, **REPLAY, recurrent=True, sequence=3, kernels="torch"),
    "dqn, large layers": lambda: DQN((90,), 2, hidden=(100,), batch_size=5, kernels="torch"),
    "iqn": lambda: IQN((3,), 2, layer=7, n_frames=1, batch_size=5, kernels="torch"),
    "ppo": lambda: PPO((3,), 2, **ROLLOUT, kernels="torch"),
    "ppo, stops early": lambda: PPO((3,), 2, **ROLLOUT, target_kl=1e-5, kernels="torch"),
    "ppo, recurrent": lambda: PPO((3,), 2, **ROLLOUT, recurrent=True, sequence=4, kernels="torch"),
}


def learn_round(model: Model, ready: list[bool] | None = None) -> tuple[LearnerState, LearnerState, RoundResult]:
    """Return the state before and after a round over random data, and the round's result."""
    identity = Identity((0,) * AGENTS, tuple(range(AGENTS)))
    trainer = model.spec.learner(updates=UPDATES)
    state = trainer.init(identity, [model.hyper] * AGENTS)
    columns = random_snapshot(model.spec, AGENTS, updates=UPDATES).columns
    snapshot = Snapshot(3, {**columns, "ready": np.array(ready if ready is not None else [True] * AGENTS)})
    return state, *trainer.learn(state, snapshot, identity)


def use_blocks_of(agents: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "FEWEST_AGENTS", agents)
    monkeypatch.setattr(learner, "CACHE_NUMBERS", 1)


def test_blocks_are_even_and_as_large_as_fits() -> None:
    assert [block_size(agents, CACHE_NUMBERS // 8) for agents in (1, 2, 8, 9, 16, 17, 128)] == [1, 2, 8, 5, 8, 6, 8]
    numbers = (1, CACHE_NUMBERS // 128, CACHE_NUMBERS, 10 * CACHE_NUMBERS)
    assert [block_size(128, count) for count in numbers] == [128, 128, FEWEST_AGENTS, FEWEST_AGENTS]


def test_the_numbers_of_an_update_grow_with_weights_and_samples() -> None:
    small, wide, deep = (MLP(8, hidden, 4) for hidden in ((64, 64), (250, 250), (64, 64, 64)))
    assert numbers_per_update(small, 5, 32) < numbers_per_update(small, 5, 64) < numbers_per_update(wide, 5, 64)
    assert numbers_per_update(small, 4, 32) < numbers_per_update(small, 5, 32) < numbers_per_update(deep, 5, 32)
    assert numbers_per_update(small, 5, 32) > 5 * small.size


@pytest.mark.parametrize("name", MODELS)
def test_a_round_in_blocks_gives_the_bytes_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[name]()
    _, whole, expected = learn_round(model)
    assert (expected.updates > 0).all()
    for agents in (1, 2, 4):
        use_blocks_of(agents, monkeypatch)
        _, new, result = learn_round(model)
        assert all(torch.equal(new[key], whole[key]) for key in whole.tensors), agents
        assert result.round == 3
        assert (result.updates == expected.updates).all()
        assert (result.rejected == expected.rejected).all()
        for columns, wanted in ((result.metrics, expected.metrics), (result.priorities, expected.priorities)):
            assert columns.keys() == wanted.keys()
            assert all((columns[key] == wanted[key]).all() for key in wanted)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("agents", [2, AGENTS])
def test_agents_that_are_not_ready_keep_their_state(name: str, agents: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks_of(agents, monkeypatch)
    ready = [True, False, False, False, True, True, False, True, False]
    before, new, result = learn_round(MODELS[name](), ready)
    _, whole, _ = learn_round(MODELS[name]())
    for row, learns in enumerate(ready):
        expected = whole if learns else before
        assert all(torch.equal(new[key][row], expected[key][row]) for key in new.tensors), row
    assert ((result.updates > 0) == ready).all()


def test_the_seconds_of_a_round_are_those_of_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks_of(2, monkeypatch)
    ticks = iter([10.0, 17.5])
    monkeypatch.setattr(learner.time, "perf_counter", lambda: next(ticks))
    assert learn_round(MODELS["dqn"]())[2].seconds == 7.5


# -- advantages -----------------------------------------------------------------------------------------------

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
