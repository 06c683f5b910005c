"""A model by itself: acting, training, its place in a run, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from parallel_agents.algorithms import DQN
from parallel_agents.core.errors import NonFiniteError, RunError, ShapeError, SharingError
from parallel_agents.core.seeding import Identity
from parallel_agents.replay import ThreadSafeBuffer

SMALL = {"hidden": (8,), "batch_size": 4, "updates_per_round": 2, "learning_starts": 1, "buffer_size": 100}


def make_model(**options: Any) -> DQN:
    return DQN((3,), 4, **{**SMALL, **options})


def with_transitions(turns: int = 20, **options: Any) -> DQN:
    model = make_model(**options)
    for t in range(turns):
        model.memory.add([t, 1, -t], action=t % 4, reward=float(t % 3), done=t % 5 == 4)
    return model


def copied_state(model: DQN) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state.tensors.items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


# -- acting ---------------------------------------------------------------------------------------------------


def test_with_epsilon_0_the_best_action_is_taken() -> None:
    model = make_model()
    model.set_epsilon(0.0)
    network = model.spec.network
    for k in range(20):
        observation = np.array([k, -k, 1.0], np.float32)
        values = network.forward(network.bind(model.state["online"]), torch.from_numpy(observation)[None, None])
        assert model.take_action(observation) == int(values.argmax())


def test_with_epsilon_1_all_actions_are_equally_likely() -> None:
    model = make_model(epsilon=1.0)
    taken = [model.take_action([0, 0, 0]) for _ in range(800)]
    assert all(isinstance(action, int) for action in taken)
    assert chisquare(np.bincount(taken, minlength=4)).pvalue > 1e-3


def test_actions_depend_on_agent_epoch_and_call_and_on_nothing_else() -> None:
    def actions_of(agent: int, epoch: int) -> list[int]:
        model = make_model()
        model.place(seed=3, agent=agent, worlds=1)
        model.start_epoch_action(epoch=epoch)
        return [model.take_action([0, 0, 0]) for _ in range(30)]

    assert actions_of(0, 1) == actions_of(0, 1)
    assert actions_of(0, 1) != actions_of(1, 1)
    assert actions_of(0, 1) != actions_of(0, 2)


def test_epsilon_falls_linearly_with_epochs() -> None:
    model = make_model(epsilon=1.0, epsilon_final=0.2, epsilon_epochs=4)
    epsilons = []
    for epoch in (0, 1, 2, 3, 5, 6, 50):
        model.start_epoch_action(epoch=epoch)
        epsilons.append(model.epsilon)
    assert np.allclose(epsilons, [1.0, 1.0, 0.8, 0.6, 0.2, 0.2, 0.2])
    model.set_epsilon(0.7)
    assert model.epsilon == 0.7


@pytest.mark.parametrize(
    ("schedule", "expected"), [("exponential", [1.0, 0.5, 0.25, 0.25]), ("cosine", [1.0, 0.625, 0.25, 0.25])]
)
def test_epsilon_follows_its_schedule(schedule: str, expected: list[float]) -> None:
    model = make_model(epsilon=1.0, epsilon_final=0.25, epsilon_epochs=2, epsilon_schedule=schedule)
    epsilons = []
    for epoch in (1, 2, 3, 50):
        model.start_epoch_action(epoch=epoch)
        epsilons.append(model.epsilon)
    assert epsilons == pytest.approx(expected)


def test_frames_before_an_observation_come_from_the_buffer() -> None:
    model = make_model(n_frames=3)
    model.set_epsilon(0.0)
    model.memory.add([1, 2, 3], 0, 0.0, False)
    single = model.take_action([4, 5, 6])
    assert model._window([4, 5, 6]).tolist() == [[[0, 0, 0, 1, 2, 3, 4, 5, 6]]]
    assert model.take_action([[0, 0, 0], [1, 2, 3], [4, 5, 6]]) == single


@pytest.mark.parametrize("frames", [1, 2])
def test_bad_observations_are_refused(frames: int) -> None:
    model = make_model(n_frames=frames)
    with pytest.raises(ShapeError, match=r"take_action\(\) was given 2 numbers, an observation has 3 \(shape \(3,\)\)"):
        model.take_action([1, 2])
    with pytest.raises(NonFiniteError, match="an observation with NaN or infinity"):
        model.take_action([1, np.nan, 2])


# -- training -------------------------------------------------------------------------------------------------


def test_a_train_step_is_one_update() -> None:
    model = with_transitions()
    before = copied_state(model)
    losses = [model.train_step() for _ in range(3)]
    assert all(loss > 0 for loss in losses)
    assert len(set(losses)) == 3  # other samples each time
    assert model.state["updates"].tolist() == [3]
    assert not torch.equal(model.state["online"], before["online"])


def test_training_alone_is_reproducible_and_depends_on_the_agent() -> None:
    def trained(agent: int) -> dict[str, torch.Tensor]:
        model = make_model()
        model.place(seed=1, agent=agent, worlds=1)
        for t in range(20):
            model.memory.add([t, 1, -t], action=t % 4, reward=1.0, done=t % 5 == 4)
        for _ in range(4):
            model.train_step()
        return copied_state(model)

    assert equal(trained(0), trained(0))
    assert not torch.equal(trained(0)["online"], trained(1)["online"])


def test_training_learns_the_rewarded_action() -> None:
    model = DQN((1,), 2, hidden=(16,), lr=1e-2, batch_size=16, learning_starts=1, gamma=0.0)
    for t in range(40):
        model.memory.add([1.0], action=t % 2, reward=float(t % 2), done=True)
    for _ in range(150):
        model.train_step()
    model.set_epsilon(0.0)
    network = model.spec.network
    values = network.forward(network.bind(model.state["online"]), torch.ones(1, 1, 1))[0, 0]
    assert values.tolist() == pytest.approx([0.0, 1.0], abs=0.1)
    assert model.take_action([1.0]) == 1


def test_with_too_few_transitions_nothing_is_learned() -> None:
    model = with_transitions(turns=5, learning_starts=50)
    before = copied_state(model)
    assert model.train_step() == 0.0
    assert equal(copied_state(model), before)
    assert make_model().train_step() == 0.0


def test_train_step_reads_the_buffer_under_its_lock() -> None:
    model = with_transitions()
    model.memory = ThreadSafeBuffer.taking_over(model.memory)
    held = []
    original = type(model.spec).snapshot

    def snapshot(*args: Any, **kwargs: Any) -> Any:
        held.append(model.memory._lock._is_owned())
        return original(model.spec, *args, **kwargs)

    object.__setattr__(model.spec, "snapshot", snapshot)
    model.train_step()
    assert held == [True]


def test_train_step_during_a_run_is_refused() -> None:
    model = with_transitions()
    before = copied_state(model)
    model.busy = "a run is on its way"
    with pytest.raises(RunError, match=r"train_step\(\) was called while a run is on its way"):
        model.train_step()
    assert equal(copied_state(model), before)
    model.busy = None
    model.train_step()


def test_reset_clears_the_buffer_and_keeps_the_network() -> None:
    model = with_transitions()
    model.train_step()
    before = copied_state(model)
    model.reset()
    assert len(model.memory) == 0
    assert equal(copied_state(model), before)


# -- its place in a run ---------------------------------------------------------------------------------------


def test_a_model_is_placed_once() -> None:
    model = make_model()
    model.place(seed=3, agent=1, worlds=2)
    assert model.identity == Identity((3,), (1,))
    assert model.spec.worlds == 2
    model.place(seed=3, agent=1, worlds=2)
    for other in ({"seed": 3, "agent": 2}, {"seed": 4, "agent": 1}):
        with pytest.raises(SharingError, match=r"already is agent 1 \(seed 3\).*give every agent a model of its own"):
            model.place(**other, worlds=2)
    assert model.identity == Identity((3,), (1,))


def test_a_model_with_transitions_cannot_change_its_number_of_worlds() -> None:
    model = with_transitions()
    with pytest.raises(ShapeError, match="buffer holds 1 worlds and cannot take 4"):
        model.place(seed=0, agent=0, worlds=4)


def test_initial_weights_are_drawn_for_the_agent_that_the_model_becomes() -> None:
    used, unused = make_model(), make_model()
    used.take_action([0, 0, 0])  # used before it is placed
    for model in (used, unused):
        model.place(seed=5, agent=2, worlds=1)
    assert equal(copied_state(used), copied_state(unused))
    assert not torch.equal(copied_state(unused)["online"], copied_state(make_model())["online"])
