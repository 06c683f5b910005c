"""Models as rows of one stack: each acts, remembers and learns as it would alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.errors import ContractError
from parallel_agents.memory import Buffer, ThreadSafeBuffer
from parallel_agents.models import DQN, PPO, Stack, group, shares, stack
from parallel_agents.networks import Invariance, numerics
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Transitions

SMALL = {"hidden": (7,), "batch_size": 3, "updates_per_round": 2, "learning_starts": 1, "buffer_size": 60}


@pytest.fixture(autouse=True)
def _under_the_rules():
    numerics.require()


def models(count, worlds=2, each=None, **options):
    made = []
    for n in range(count):
        made.append(DQN((3,), 4, **{**SMALL, **options, **(each(n) if each else {})}))
        made[-1].place(seed=2, agent=n, worlds=worlds)
    return made


def play(stacks, worlds=2, turns=12, frozen=0.3):
    """The same made-up worlds for agents in one stack or in several; all actions they took."""
    agents = sum(len(one) for one in stacks)
    some = generator(9, Purpose.WORLD)
    taken, first = [], np.ones((agents, worlds), np.bool_)
    for one in stacks:
        one.start_epoch(1)
    for turn in range(1, turns + 1):
        observations = some.standard_normal((agents, worlds, 3), np.float32)
        rewards, able = some.random((agents, worlds), np.float32), some.random((agents, worlds)) >= frozen
        ended = some.random((agents, worlds)) < 0.1
        row, actions = 0, []
        for one in stacks:
            part = slice(row, row + len(one))
            row = part.stop
            chosen, extras = one.act(observations[part], first[part], 1, turn)
            actions.append(chosen)
            one.add(
                Transitions(
                    observations[part], chosen, rewards[part], ended[part], np.zeros_like(ended[part]), able[part],
                    first[part], np.ones(len(one), np.bool_), one.inference.version, extras,
                )
            )  # fmt: skip
        taken.append(np.concatenate(actions))
        first = ended
    closing = some.standard_normal((agents, worlds, 3), np.float32)
    row = 0
    for one in stacks:
        one.close(closing[row : row + len(one)], ended=True)
        row += len(one)
    return np.stack(taken)


def learn(one, round_=1):
    state, result = one.learner.learn(one.state, one.snapshot(round_), one.identity)
    one.settle(state)
    return result


@settings(max_examples=12, deadline=None)
@given(
    count=st.integers(1, 9),
    worlds=st.integers(1, 3),
    frames=st.integers(1, 2),
    n_step=st.integers(1, 3),
    dueling=st.booleans(),
)
def test_a_stack_of_n_is_n_stacks_of_one(count, worlds, frames, n_step, dueling):
    options = {
        "n_frames": frames,
        "n_step": n_step,
        "dueling": dueling,
        "each": lambda n: {"lr": 1e-3 * (n + 1), "gamma": 0.9 - 0.1 * (n % 3)},
    }
    together, alone = models(count, worlds, **options), models(count, worlds, **options)
    whole, ones = [Stack(together, together=True)], [Stack([one], together=False) for one in alone]
    assert play(whole, worlds).tobytes() == play(ones, worlds).tobytes()
    for one in (*whole, *ones):
        learn(one)
    for a, b in zip(together, alone, strict=True):
        assert all(torch.equal(a.state[name], b.state[name]) for name in a.state.tensors)
        mine, theirs = a.memory.ring.live(0), b.memory.ring.live(0)
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)


def test_models_are_grouped_by_shape_and_not_by_values():
    made = [
        *models(2, each=lambda n: {"lr": 0.1 * (n + 1), "gamma": 0.5, "epsilon": 0.3 * n}),
        *models(1, hidden=(9,)),
        *models(1, clip=3.0, tau=0.5, target_interval=7),
        *models(1, worlds=3),
        *models(1, hidden=(9,), lr=0.9),
    ]
    assert group(made) == [[0, 1, 3], [2, 5], [4]]


def test_learning_rates_differ_within_a_stack():
    slow, fast = models(2, each=lambda n: {"lr": (1e-4, 1e-1)[n]})
    before = [one.state["online"].clone() for one in (slow, fast)]
    one = Stack([slow, fast], together=True)
    play([one])
    learn(one)
    moved = [float((made.state["online"] - old).abs().max()) for made, old in zip((slow, fast), before, strict=True)]
    assert moved[1] > 100 * moved[0] > 0


def test_frozen_models_and_those_with_too_little_are_not_trained():
    made = models(3, learning_starts=5)
    one = Stack(made, together=True)
    play([one])
    made[1].frozen = True
    made[2].memory.clear()
    before = [model.state.clone() for model in made]
    result = learn(one)
    assert result.updates.tolist() == [2, 0, 0]
    assert not torch.equal(made[0].state["online"], before[0]["online"])
    for n in (1, 2):
        assert all(torch.equal(made[n].state[name], before[n][name]) for name in before[n].tensors)


def test_a_snapshot_is_a_copy():
    one = Stack(models(2), together=True)
    play([one])
    taken = one.snapshot(3)
    before = {name: column.copy() for name, column in taken.columns.items()}
    one.ring.observations[:] = 99.0
    one.ring.rewards[:] = 99.0
    assert taken.round == 3
    assert all((taken[name] == before[name]).all() for name in before)
    assert one.snapshot(4)["returns"].tobytes() != taken["returns"].tobytes()


@pytest.mark.parametrize("hidden", [(7,), (300, 300)])
def test_acting_again_with_the_same_observation_is_acting(hidden):
    one = Stack(models(3, n_frames=2, epsilon=0.5, hidden=hidden), together=True)
    one.start_epoch(1)
    some = generator(1, Purpose.WORLD)
    first = np.ones((3, 2), np.bool_)
    for turn in range(1, 6):
        observations = some.standard_normal((3, 2, 3), np.float32)
        chosen, _ = one.act(observations, first, 1, turn)
        for n in range(3):
            assert one.act_again(n, observations[n], 1, turn)[0].tolist() == chosen[n].tolist()
        first[:] = False


def test_large_networks_of_those_who_explore_are_not_computed(monkeypatch):
    """Nor does that change what anybody does."""
    options = {"hidden": (300, 300), "epsilon": 0.6, "epsilon_final": 0.6}
    sparing, thorough = (Stack(models(4, 1, **options), together=True) for _ in range(2))
    monkeypatch.setattr(type(sparing.inference), "spares", property(lambda self: self is sparing.inference))
    computed = []
    one_agent = sparing.inference.forward_agent
    monkeypatch.setattr(sparing.inference, "forward_agent", lambda n, x: computed.append(n) or one_agent(n, x))
    assert play([sparing], 1).tobytes() == play([thorough], 1).tobytes()
    assert 0 < len(computed) < 4 * 12


def test_recurrent_networks_move_on_while_their_agents_explore():
    recurrent = {"recurrent": True, "hidden": (8,), "sequence": 4, "epsilon": 1.0, "epsilon_epochs": 10**6}
    made = Stack(models(2, 1, **recurrent), together=True)
    made.start_epoch(1)
    assert made.blueprint.asked(np.zeros((2, 1, 2)), made.exploration) is None


def test_weights_act_only_once_they_are_published():
    made = models(2, epsilon=0.0, epsilon_final=0.0)
    one = Stack(made, together=True)
    one.start_epoch(1)
    x, first = np.ones((2, 2, 3), np.float32), np.ones((2, 2), np.bool_)
    play([one])
    old = one.inference.forward(x)
    state, _ = one.learner.learn(one.state, one.snapshot(1), one.identity)
    assert one.inference.forward(x).tobytes() == old.tobytes()
    one.publish(1, state)
    assert one.inference.version == 1
    assert one.inference.forward(x).tobytes() != old.tobytes()
    assert one.act(x, first, 1, 1)[0].tolist() == one.inference.forward(x).argmax(-1).tolist()


def test_settled_models_hold_values_of_their_own():
    made = models(2)
    one = Stack(made, together=True)
    one.settle(one.state)
    one.state["online"].zero_()
    assert all(bool(model.state["online"].any()) for model in made)


def test_memories_live_side_by_side_and_stay_the_users():
    made = models(2, worlds=1)
    made[1].memory.add([1, 2, 3], 0, 1.0, True)
    mine = made[1].memory
    one = Stack(made, together=True)
    assert made[1].memory is mine
    assert one.ring.sizes().tolist() == [0, 1]
    mine.add([4, 5, 6], 0, 1.0, True)
    assert one.ring.sizes().tolist() == [0, 2]


def test_locked_stacks_put_a_lock_around_each_memory():
    made = models(2)
    assert all(type(model.memory) is Buffer for model in made)
    one = Stack(made, together=True, locked=True)
    assert all(isinstance(model.memory, ThreadSafeBuffer) for model in made)
    plain = Stack(models(2), together=True)
    assert play([one]).tobytes() == play([plain]).tobytes()
    assert all(
        one.snapshot(1)[name].tobytes() == plain.snapshot(1)[name].tobytes()
        for name in ("states", "returns", "actions")
    )
    with one._locks():
        assert all(model.memory._lock._is_owned() for model in made)


# -- the probe ------------------------------------------------------------------------------------------------


def test_a_stack_is_probed_at_its_real_shapes():
    assert Stack(models(4), together=True).invariance == Invariance(
        True, "4 agents agree with one at a time, byte for byte"
    )
    assert Stack(models(1), together=True).invariance.holds


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_the_probe_tries_a_group_of_every_size_that_workers_get(workers):
    groups = stack._groups(7, workers)
    for count in range(2, workers + 1):
        sizes = {part.stop - part.start for part in shares(7, count)} - {0, 1}
        assert sizes <= {part.stop - part.start for part in groups}
    assert bool(groups) == (workers > 1)


def test_a_computation_that_differs_only_in_the_groups_of_three_workers_is_found(monkeypatch):
    from parallel_agents.learning import dqn

    def clip_pairs(gradients, limits):
        return dqn_clip(gradients.mul_(2.0) if len(gradients) == 2 else gradients, limits)

    dqn_clip = dqn.clip_rows
    monkeypatch.setattr(dqn, "clip_rows", clip_pairs)
    stack.rehearse.cache_clear()
    try:
        assert stack.rehearse(models(6)[0].blueprint, 6, "cpu", 2).holds, "pairs never happen with two workers"
        assert not stack.rehearse(models(6)[0].blueprint, 6, "cpu", 3).holds
    finally:
        stack.rehearse.cache_clear()


def test_a_coupled_computation_is_found_and_computed_one_at_a_time(monkeypatch):
    from parallel_agents.learning import dqn

    def clip_all(gradients, limits):
        norm = torch.linalg.vector_norm(gradients)
        gradients.mul_((limits / (norm + 1e-6)).clamp(max=1.0)[:, None])
        return norm.expand(len(gradients))

    monkeypatch.setattr(dqn, "clip_rows", clip_all)
    stack.rehearse.cache_clear()
    try:
        with pytest.warns(
            RuntimeWarning, match="3 agents of .* are computed one at a time: result .* differs from groups of"
        ):
            one = Stack(models(3, clip=0.01), together=True)
        assert not one.invariance.holds
        assert len(one.inference._parts) == 3
    finally:
        stack.rehearse.cache_clear()


def test_on_policy_steps_older_than_the_lag_are_refused():
    def collected(version, lag):
        model = PPO((3,), 4, hidden=(7,), rollout=4)
        one = Stack([model], together=True)
        one.lag = lag
        shape = {"log_prob": np.zeros((1, 1), np.float32), "value": np.zeros((1, 1), np.float32)}
        no, yes = np.zeros((1, 1), np.bool_), np.ones((1, 1), np.bool_)
        seen, number = np.zeros((1, 1, 3), np.float32), np.zeros((1, 1), np.float32)
        one.add(Transitions(seen, no.astype(np.int64), number, yes, no, yes, yes, yes[0], version, shape))
        return one

    collected(version=3, lag=1).snapshot(5)
    with pytest.raises(ContractError, match="steps of version 2, with a lag of 1 they may be of version 3 or newer"):
        collected(version=2, lag=1).snapshot(5)
    collected(version=2, lag=2).snapshot(5)


def test_a_published_round_gives_the_rows_it_learned_from_their_new_priorities():
    one = Stack(models(2, priority_alpha=0.6), together=True)
    play([one])
    priorities = one.ring.extras["priority"]
    assert not priorities.any()
    state, result = one.learner.learn(one.state, one.snapshot(1), one.identity)
    assert not priorities.any()  # not before they are due
    one.publish(1, state, result)
    for agent in range(2):
        places, errors = result.priorities["places"][agent], result.priorities["errors"][agent]
        for place in np.unique(places):
            found = priorities[agent].reshape(-1)[int(place)]  # no row has been written over yet
            assert np.isclose(found, np.abs(errors[places == place]) + 1e-6).any()
        assert np.count_nonzero(priorities[agent]) == len(np.unique(places))


def test_agents_act_with_the_weights_of_the_round_published_last():
    one = Stack(models(2), together=True)
    play([one])
    seen = np.ones((2, 2, 3), np.float32)
    before = one.inference.forward(seen).copy()
    state, result = one.learner.learn(one.state, one.snapshot(1), one.identity)
    assert np.array_equal(one.inference.forward(seen), before)
    one.publish(1, state, result)
    assert torch.equal(one.acting_rows, state["online"])
    assert one.inference.version == 1
    after = one.inference.forward(seen)
    assert not np.array_equal(after, before)
    with torch.no_grad():
        wanted = one.learner.network.forward(one.learner.network.bind(state["online"]), torch.from_numpy(seen))
    assert np.allclose(after, wanted.numpy(), atol=1e-6)
