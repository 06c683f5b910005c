"""A model by itself: acting, training, its place in a run, and what it refuses."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from parallel_agents.errors import ConfigError, NonFiniteError, RunError, ShapeError, SharingError
from parallel_agents.memory import ThreadSafeBuffer
from parallel_agents.models import DQN, model_from_config
from parallel_agents.models.dqn import DQNOptions
from parallel_agents.networks import numerics
from parallel_agents.types import Identity

SMALL = {"hidden": (8,), "batch_size": 4, "updates_per_round": 2, "learning_starts": 1, "buffer_size": 100}


@pytest.fixture(autouse=True)
def _under_the_rules():
    numerics.require()


def model(**options):
    return DQN((3,), 4, **{**SMALL, **options})


def experienced(turns=20, **options):
    made = model(**options)
    for t in range(turns):
        made.memory.add([t, 1, -t], action=t % 4, reward=float(t % 3), done=t % 5 == 4)
    return made


def row(made):
    return {name: tensor.clone() for name, tensor in made.state.tensors.items()}


def equal(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


# -- acting ---------------------------------------------------------------------------------------------------


def test_without_exploration_the_best_action_is_taken():
    made = model()
    made.set_epsilon(0.0)
    net = made.blueprint.network
    for k in range(20):
        observation = np.array([k, -k, 1.0], np.float32)
        values = net.forward(net.bind(made.state["online"]), torch.from_numpy(observation)[None, None])
        assert made.take_action(observation) == int(values.argmax())


def test_with_full_exploration_all_actions_are_taken_alike():
    made = model(epsilon=1.0)
    taken = [made.take_action([0, 0, 0]) for _ in range(800)]
    assert all(isinstance(action, int) for action in taken)
    assert chisquare(np.bincount(taken, minlength=4)).pvalue > 1e-3


def test_actions_depend_on_agent_epoch_and_call_and_on_nothing_else():
    def acted(agent, epoch):
        made = model()
        made.place(seed=3, agent=agent, worlds=1)
        made.start_epoch_action(epoch=epoch)
        return [made.take_action([0, 0, 0]) for _ in range(30)]

    assert acted(0, 1) == acted(0, 1)
    assert acted(0, 1) != acted(1, 1)
    assert acted(0, 1) != acted(0, 2)


def test_exploration_falls_in_a_line_with_epochs():
    made = model(epsilon=1.0, epsilon_final=0.2, epsilon_epochs=4)
    seen = []
    for epoch in (0, 1, 2, 3, 5, 6, 50):
        made.start_epoch_action(epoch=epoch)
        seen.append(made.epsilon)
    assert np.allclose(seen, [1.0, 1.0, 0.8, 0.6, 0.2, 0.2, 0.2])
    made.set_epsilon(0.7)
    assert made.epsilon == 0.7


@pytest.mark.parametrize(
    ("schedule", "expected"), [("exponential", [1.0, 0.5, 0.25, 0.25]), ("cosine", [1.0, 0.625, 0.25, 0.25])]
)
def test_exploration_may_fall_otherwise(schedule, expected):
    made = model(epsilon=1.0, epsilon_final=0.25, epsilon_epochs=2, epsilon_schedule=schedule)
    found = []
    for epoch in (1, 2, 3, 50):
        made.start_epoch_action(epoch=epoch)
        found.append(made.epsilon)
    assert found == pytest.approx(expected)


def test_frames_before_an_observation_come_from_the_memory():
    made = model(n_frames=3)
    made.set_epsilon(0.0)
    made.memory.add([1, 2, 3], 0, 0.0, False)
    single = made.take_action([4, 5, 6])
    assert made._window([4, 5, 6]).tolist() == [[[0, 0, 0, 1, 2, 3, 4, 5, 6]]]
    assert made.take_action([[0, 0, 0], [1, 2, 3], [4, 5, 6]]) == single


@pytest.mark.parametrize("frames", [1, 2])
def test_bad_observations_are_refused(frames):
    made = model(n_frames=frames)
    with pytest.raises(ShapeError, match=r"take_action\(\) was given 2 numbers, an observation has 3 \(shape \(3,\)\)"):
        made.take_action([1, 2])
    with pytest.raises(NonFiniteError, match="an observation with NaN or infinity"):
        made.take_action([1, np.nan, 2])


# -- training -------------------------------------------------------------------------------------------------


def test_a_train_step_is_one_update():
    made = experienced()
    before = row(made)
    losses = [made.train_step() for _ in range(3)]
    assert all(loss > 0 for loss in losses)
    assert len(set(losses)) == 3  # other samples each time
    assert made.state["updates"].tolist() == [3]
    assert not torch.equal(made.state["online"], before["online"])


def test_training_alone_is_reproducible_and_depends_on_the_agent():
    def trained(agent):
        made = model()
        made.place(seed=1, agent=agent, worlds=1)
        for t in range(20):
            made.memory.add([t, 1, -t], action=t % 4, reward=1.0, done=t % 5 == 4)
        for _ in range(4):
            made.train_step()
        return row(made)

    assert equal(trained(0), trained(0))
    assert not torch.equal(trained(0)["online"], trained(1)["online"])


def test_training_learns_what_pays():
    made = DQN((1,), 2, hidden=(16,), lr=1e-2, batch_size=16, learning_starts=1, gamma=0.0)
    for t in range(40):
        made.memory.add([1.0], action=t % 2, reward=float(t % 2), done=True)
    for _ in range(150):
        made.train_step()
    made.set_epsilon(0.0)
    net = made.blueprint.network
    values = net.forward(net.bind(made.state["online"]), torch.ones(1, 1, 1))[0, 0]
    assert values.tolist() == pytest.approx([0.0, 1.0], abs=0.1)
    assert made.take_action([1.0]) == 1


def test_with_too_little_to_learn_from_nothing_is_learnt():
    made = experienced(turns=5, learning_starts=50)
    before = row(made)
    assert made.train_step() == 0.0
    assert equal(row(made), before)
    assert model().train_step() == 0.0


def test_a_train_step_reads_under_the_memorys_lock():
    made = experienced()
    made.memory = ThreadSafeBuffer.taking_over(made.memory)
    held = []
    original = type(made.blueprint).snapshot

    def snapshot(*args, **kwargs):
        held.append(made.memory._lock._is_owned())
        return original(made.blueprint, *args, **kwargs)

    object.__setattr__(made.blueprint, "snapshot", snapshot)
    made.train_step()
    assert held == [True]


def test_training_by_hand_during_a_run_is_refused():
    made = experienced()
    before = row(made)
    made.busy = "a run is on its way"
    with pytest.raises(RunError, match=r"train_step\(\) was called while a run is on its way"):
        made.train_step()
    assert equal(row(made), before)
    made.busy = None
    made.train_step()


def test_reset_forgets_the_memory_and_keeps_the_network():
    made = experienced()
    made.train_step()
    before = row(made)
    made.reset()
    assert len(made.memory) == 0
    assert equal(row(made), before)


# -- its place in a run ---------------------------------------------------------------------------------------


def test_a_model_is_placed_once():
    made = model()
    made.place(seed=3, agent=1, worlds=2)
    assert made.identity == Identity((3,), (1,))
    assert made.blueprint.worlds == 2
    made.place(seed=3, agent=1, worlds=2)
    for other in ({"seed": 3, "agent": 2}, {"seed": 4, "agent": 1}):
        with pytest.raises(SharingError, match=r"already is agent 1 \(seed 3\).*give every agent a model of its own"):
            made.place(**other, worlds=2)
    assert made.identity == Identity((3,), (1,))


def test_a_model_that_remembers_cannot_change_its_number_of_worlds():
    made = experienced()
    with pytest.raises(ShapeError, match="remembers 1 worlds and cannot take part in 4"):
        made.place(seed=0, agent=0, worlds=4)


def test_initial_weights_are_drawn_for_whom_the_model_is():
    early, late = model(), model()
    early.take_action([0, 0, 0])  # looked at before it is placed
    for made in (early, late):
        made.place(seed=5, agent=2, worlds=1)
    assert equal(row(early), row(late))
    assert not torch.equal(row(late)["online"], row(model())["online"])


# -- options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hiden": (8,)}, r"unknown key model\.hiden; did you mean model\.hidden\?"),
        ({"hidden": ("8",)}, r"model\.hidden\[0\] is '8' \(str\): allowed is int"),
        ({"hidden": 8.5}, r"model\.hidden is 8\.5"),
        ({"hidden": (0,)}, "each must be at least 1"),
        ({"lr": 0.0}, r"model\.lr is 0\.0: give a number above 0"),
        ({"lr": float("nan")}, r"model\.lr is nan"),
        ({"lr": float("inf")}, r"model\.lr is inf"),
        ({"clip": -1.0}, r"model\.clip is -1\.0: give a number above 0"),
        ({"gamma": 1.5}, r"model\.gamma is 1\.5: give a number from 0 to 1"),
        ({"epsilon": -0.1}, r"model\.epsilon is -0\.1"),
        ({"tau": float("nan")}, r"model\.tau is nan"),
        ({"batch_size": 0}, r"model\.batch_size is 0: give a whole number of at least 1"),
        ({"n_step": 0}, r"model\.n_step is 0"),
        ({"learning_starts": -1}, r"model\.learning_starts is -1: give a whole number of at least 0"),
        ({"target_interval": -1}, r"model\.target_interval is -1"),
        ({"lr_final": 0.1}, r"model\.lr_final is given without model\.lr_updates"),
        ({"lr_final": -0.1, "lr_updates": 5}, r"model\.lr_final is -0\.1: give a number from 0"),
        ({"lr_final": float("nan"), "lr_updates": 5}, r"model\.lr_final is nan"),
        ({"lr_updates": -1}, r"model\.lr_updates is -1"),
        ({"lr_schedule": "steps"}, r"model\.lr_schedule is 'steps'.*'linear', 'exponential', 'cosine'"),
        (
            {"lr_final": 0.0, "lr_updates": 5, "lr_schedule": "exponential"},
            r"model\.lr_schedule is 'exponential': lr_final must be above 0",
        ),
        ({"epsilon_final": 0.0, "epsilon_schedule": "exponential"}, r"model\.epsilon_schedule is 'exponential'"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        DQN((3,), 2, **options).blueprint.network  # noqa: B018


def test_an_agent_needs_an_action():
    with pytest.raises(ConfigError, match="n_actions is 0: an agent needs at least one action"):
        DQN((3,), 0)


def test_options_reach_the_learner_and_the_memory():
    made = DQN(
        3, 2, hidden=[5, 6], dueling=True, double=False, lr=0.5, lr_final=0.1, lr_updates=9, gamma=0.5, n_step=3,
        n_frames=2, batch_size=7, updates_per_round=4, learning_starts=11, buffer_size=50, clip=2.0, tau=0.3,
        target_interval=8,
    )  # fmt: skip
    plan, learner = made.blueprint, made.blueprint.learner()
    assert (plan.network.inputs, plan.network.hidden, plan.network.outputs, plan.network.dueling) == (
        6,
        (5, 6),
        2,
        True,
    )
    assert (learner.updates, learner.batch, learner.double) == (4, 7, False)
    assert (made.memory.shape.capacity, made.memory.shape.frames, made.memory.shape.observation) == (50, 2, (3,))
    state = {
        name.removeprefix("hyper."): tensor.item() for name, tensor in made.state.tensors.items() if "hyper" in name
    }
    rates = {"lr": 0.5, "lr_final": 0.1, "lr_updates": 9, "lr_shape": 0}
    assert state == {**rates, "clip": 2.0, "tau": 0.3, "target_interval": 8, "batch_growth": 1}


def test_a_model_section_makes_a_model():
    made = model_from_config({"algorithm": "dqn", "lr": 0.5, "hidden": [4]}, (3,), 2)
    assert isinstance(made, DQN)
    assert made.hyper["lr"] == 0.5
    assert isinstance(model_from_config({}, (3,), 2), DQN)
    with pytest.raises(ConfigError, match=r"model\.algorithm is 'sarsa': allowed is .*dqn.*random"):
        model_from_config({"algorithm": "sarsa"}, (3,), 2)
    assert DQNOptions().hidden == (64, 64)
