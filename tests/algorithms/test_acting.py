"""Acting: draws, frames, recurrent state, the forward pass and exploration."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from parallel_agents.algorithms import acting
from parallel_agents.algorithms.acting import (
    EPSILON_SLOTS,
    ActionDraws,
    Choice,
    FrameStack,
    Inference,
    RecurrentState,
    Weights,
    needs_forward,
)
from parallel_agents.algorithms.acting_kernels import Rule
from parallel_agents.core.errors import ActionError, ShapeError
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.core.types import Transitions
from parallel_agents.nn import MLP, ActorCritic, Discrete, QuantileNetwork, SquashedGaussian
from parallel_agents.replay import Ring, RingShape

# -- draws ----------------------------------------------------------------------------------------------------

AGENTS = Identity((3, 3, 9), (0, 4, 0))


@pytest.mark.parametrize("block_numbers", [1, 40, 500_000])
def test_each_draw_belongs_to_its_address_whatever_the_block(
    monkeypatch: pytest.MonkeyPatch, block_numbers: int
) -> None:
    monkeypatch.setattr(acting, "BLOCK_NUMBERS", block_numbers)
    draws = ActionDraws(AGENTS, range(4), 2)
    for epoch, turn in ((1, 1), (1, 2), (2, 1), (1, 300), (1, 1)):  # backwards as well
        drawn = draws.at(epoch, turn)
        assert drawn.shape == (3, 4, 2)
        for n, world in np.ndindex(3, 4):
            address = {"agent": AGENTS.agents[n], "world": world, "epoch": epoch, "turn": turn}
            assert drawn[n, world].tolist() == generator(AGENTS.seeds[n], Purpose.ACT, **address).random(2).tolist()


def test_an_agent_has_the_same_draws_in_every_stack() -> None:
    together = ActionDraws(AGENTS, range(3), 2).at(5, 7)
    for n in range(3):
        assert (ActionDraws(AGENTS.rows(slice(n, n + 1)), range(3), 2).at(5, 7)[0] == together[n]).all()


# -- frames ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4])
def test_frames_in_acting_equal_the_windows_of_the_buffer(count: int) -> None:
    agents, worlds, size, turns = 2, 3, 2, 40
    random = generator(0, Purpose.NOISE)
    frames = FrameStack(agents, worlds, size, count)
    ring = Ring(RingShape(capacity=worlds * (turns + 5), observation=(size,), worlds=worlds, frames=count), agents)
    windows, first = [], np.ones((agents, worlds), np.bool_)
    for _ in range(turns):
        observations = random.standard_normal((agents, worlds, size), np.float32)
        windows.append(frames.push(observations, first).copy())
        terminated = random.random((agents, worlds)) < 0.15
        zeros = np.zeros((agents, worlds))
        ring.add(
            Transitions(
                observations, zeros.astype(np.int64), zeros.astype(np.float32), terminated, np.zeros_like(terminated),
                np.ones_like(terminated), first, np.ones(agents, np.bool_), 0,
            )
        )  # fmt: skip
        first = terminated
    ring.close(np.zeros((agents, worlds, size), np.float32), ended=True)
    serials = np.arange(turns * worlds)[None].repeat(agents, 0)
    states = ring.gather(serials, n_step=1, gammas=np.ones(agents))["states"]
    assert states.reshape(agents, turns, worlds, -1).tobytes() == np.stack(windows, 1).tobytes()


def test_newer_observations_of_one_agent_replace_its_last_frame() -> None:
    frames = FrameStack(agents=2, worlds=1, size=1, count=3)
    for value in (1.0, 2.0):
        window = frames.push(np.full((2, 1, 1), value, np.float32), np.full((2, 1), value == 1.0))
    assert window.tolist() == [[[0, 1, 2]], [[0, 1, 2]]]
    assert frames.replace(1, np.array([[9.0]], np.float32)).tolist() == [[0, 1, 9]]
    window = frames.push(np.full((2, 1, 1), 3.0, np.float32), np.zeros((2, 1), np.bool_))
    assert window.tolist() == [[[1, 2, 3]], [[1, 9, 3]]]


def test_a_single_frame_is_returned_as_it_is() -> None:
    frames, observations = FrameStack(1, 1, 2, 1), np.ones((1, 1, 2), np.float32)
    assert frames.push(observations, np.ones((1, 1), np.bool_)) is observations
    assert frames.replace(0, observations[0]) is not None


def test_the_next_turn_does_not_write_into_a_returned_window() -> None:
    frames = FrameStack(1, 1, 1, 2)
    window = frames.push(np.ones((1, 1, 1), np.float32), np.ones((1, 1), np.bool_))
    frames.push(np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), np.bool_))
    assert window.tolist() == [[[0, 1]]]


# -- recurrent state ------------------------------------------------------------------------------------------


def per_world(*values: float) -> np.ndarray:
    """Return (1, W, 1): one number of one agent in each world."""
    return np.array(values, np.float32).reshape(1, -1, 1)


def test_hidden_states_go_from_turn_to_turn_and_start_at_zero_with_an_episode() -> None:
    recurrent = RecurrentState(agents=1, worlds=2, size=1)
    assert recurrent.inputs(per_world(5, 6), np.array([[True, True]])).tolist() == [[[5, 0], [6, 0]]]
    assert recurrent.outputs(np.array([[[50.0, 0.5], [60.0, 0.6]]], np.float32)).tolist() == [[[50], [60]]]
    assert np.allclose(recurrent.inputs(per_world(7, 8), np.array([[False, True]])), [[[7, 0.5], [8, 0]]])
    assert np.allclose(recurrent.columns()["hidden"], per_world(0.5, 0))


def test_an_agent_that_observes_again_in_a_turn_starts_from_the_same_hidden_state() -> None:
    recurrent = RecurrentState(agents=2, worlds=1, size=1)
    recurrent.after = np.array([[[0.1]], [[0.2]]], np.float32)
    recurrent.inputs(np.zeros((2, 1, 1), np.float32), np.zeros((2, 1), np.bool_))
    recurrent.outputs(np.array([[[0.0, 1.0]], [[0.0, 2.0]]], np.float32))
    assert np.allclose(recurrent.inputs_again(1, np.array([[9.0]], np.float32)), [[9, 0.2]])
    assert recurrent.outputs_again(1, np.array([[4.0, 3.0]], np.float32)).tolist() == [[4.0]]
    assert recurrent.after[:, 0, 0].tolist() == [1.0, 3.0]
    assert np.allclose(recurrent.columns()["hidden"][:, 0, 0], [0.1, 0.2])


def test_computing_a_turn_ahead_changes_no_hidden_state() -> None:
    recurrent = RecurrentState(agents=1, worlds=1, size=1)
    recurrent.after = per_world(0.7)
    assert np.allclose(recurrent.inputs_ahead(per_world(3)), [[[3, 0.7]]])
    assert recurrent.outputs_ahead(np.array([[[1.0, 2.0]]], np.float32)).tolist() == [[[1.0]]]
    assert np.allclose(recurrent.after, per_world(0.7))


def test_networks_without_hidden_state_get_their_arrays_unchanged() -> None:
    recurrent = RecurrentState(agents=1, worlds=2, size=0)
    observations = per_world(1, 2)
    assert recurrent.inputs(observations, np.ones((1, 2), np.bool_)) is observations
    assert recurrent.outputs(observations) is observations
    assert recurrent.inputs_again(0, observations[0]).tolist() == observations[0].tolist()
    assert recurrent.inputs_ahead(observations) is observations
    assert recurrent.columns() == {}


# -- the forward pass -----------------------------------------------------------------------------------------


def make_inference(network: Any, agents: int, worlds: int, *, together: bool, compiled: bool = False) -> Inference:
    inference = Inference(network, agents, worlds, together=together, compiled=compiled)
    inference.weights = Weights(1, network.init(Identity((0,) * agents, tuple(range(agents)))))
    return inference


def test_the_worlds_of_a_shard_keep_their_places_in_tiles() -> None:
    network, worlds = MLP(17, (33, 9), 5), 150
    inputs, whole = random_inputs(network, 3, worlds), make_inference(network, 3, worlds, together=True)
    wanted = whole.forward(inputs)
    for cuts in ((0, 75, 150), (0, 1, 64, 65, 129, 150)):
        for first, end in itertools.pairwise(cuts):
            place = {"first_world": first, "all_worlds": worlds}
            shard = Inference(network, 3, end - first, together=True, **place)  # type: ignore[arg-type]
            shard.weights = whole.weights
            part = shard.forward(np.ascontiguousarray(inputs[:, first:end]))
            assert part.tobytes() == wanted[:, first:end].tobytes()
            assert shard.forward_agent(1, inputs[1, first:end]).tobytes() == wanted[1, first:end].tobytes()


def random_inputs(network: Any, agents: int, worlds: int, seed: int = 0) -> np.ndarray:
    return generator(seed, Purpose.NOISE).standard_normal((agents, worlds, network.inputs), np.float32)


@pytest.mark.parametrize("worlds", [1, 3, 4, 64, 65, 130])
def test_one_agent_gets_the_bytes_it_gets_among_all(worlds: int) -> None:
    network = MLP(17, (33, 9), 5)
    inputs = random_inputs(network, 5, worlds)
    together, apart = (make_inference(network, 5, worlds, together=together) for together in (True, False))
    outputs = together.forward(inputs)
    assert outputs.shape == (5, worlds, 5)
    assert apart.forward(inputs).tobytes() == outputs.tobytes()
    for n in range(5):
        assert together.forward_agent(n, inputs[n]).tobytes() == outputs[n].tobytes()
        assert apart.forward_agent(n, inputs[n]).tobytes() == outputs[n].tobytes()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("worlds", [1, 65])
def test_skipping_agents_changes_no_byte_of_the_others(worlds: int, together: bool) -> None:
    network = MLP(300, (200,), 3)
    inference, inputs = make_inference(network, 6, worlds, together=together), random_inputs(network, 6, worlds)
    outputs = inference.forward(inputs)
    assert inference.skips_agents
    for rows in ([], [4], [1, 2]):
        needed = np.isin(range(6), rows)
        some = inference.forward_some(inputs, needed, 3)
        assert some[needed].tobytes() == outputs[needed].tobytes()
        assert not some[~needed].any()  # really skipped
    most = inference.forward_some(inputs, np.arange(6) > 0, 3)
    assert most[1:].tobytes() == outputs[1:].tobytes()
    assert most[0].any() == together  # one agent fewer saves nothing where all are computed at once


def test_small_networks_are_always_computed_together() -> None:
    assert not make_inference(MLP(8, (64, 64), 4), 8, 1, together=True).skips_agents


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 33]), min_size=2, max_size=4),
    agents=st.integers(1, 9),
    worlds=st.sampled_from([1, 2, 3, 5, 7, 66]),
    dueling=st.booleans(),
)
def test_together_equals_apart_for_any_widths_and_numbers_of_agents(
    sizes: list[int], agents: int, worlds: int, dueling: bool
) -> None:
    assert together_equals_apart(MLP(sizes[0], tuple(sizes[1:-1]), sizes[-1], dueling), agents, worlds)


def together_equals_apart(network: MLP, agents: int, worlds: int) -> bool:
    inputs = random_inputs(network, agents, worlds)
    together, apart = (make_inference(network, agents, worlds, together=together) for together in (True, False))
    return together.forward(inputs).tobytes() == apart.forward(inputs).tobytes()


def test_mutant_tiles_of_changing_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the number of rows per agent were not fixed, two ways of running the same agents would differ."""
    sizes = itertools.cycle([64, 2])
    monkeypatch.setattr(acting, "tile_rows", lambda worlds: next(sizes))
    networks = (MLP(17, (33,), 5), MLP(7, (64,), 2), MLP(52, (64, 64), 4), MLP(3, (5,), 2))
    assert not all([together_equals_apart(network, 3, 130) for network in networks])  # noqa: C419 - run all of them


@pytest.mark.parametrize("worlds", [3, 65, 130])
def test_the_inputs_of_other_worlds_change_nothing(worlds: int) -> None:
    network = MLP(17, (33,), 5)
    inference = make_inference(network, 2, worlds, together=True)
    inputs = random_inputs(network, 2, worlds)
    outputs = inference.forward(inputs)
    others = random_inputs(network, 2, worlds, seed=1)
    others[:, worlds - 1] = inputs[:, worlds - 1]
    assert inference.forward(others)[:, worlds - 1].tobytes() == outputs[:, worlds - 1].tobytes()


@pytest.mark.parametrize("worlds", [65, 130])
@pytest.mark.parametrize("network", [MLP(17, (33,), 5), MLP(7, (64,), 2), MLP(243, (64,), 4)])
def test_the_last_tile_has_as_many_rows_as_the_others(network: MLP, worlds: int) -> None:
    inputs, full = random_inputs(network, 2, worlds), random_inputs(network, 2, 64, seed=1)
    place = (worlds - 1) % 64
    full[:, place] = inputs[:, -1]
    tile = make_inference(network, 2, 64, together=True).forward(full)
    outputs = make_inference(network, 2, worlds, together=True).forward(inputs)
    assert outputs[:, -1].tobytes() == tile[:, place].tobytes()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "network",
    [
        MLP(4, (8,), 3),
        MLP(17, (33, 9), 5, dueling=True),
        MLP(1, (), 1, activation="elu"),
        ActorCritic(8, (16, 5), Discrete(3)),
        ActorCritic(3, (6,), SquashedGaussian((-1.0, -2.0), (1.0, 1.0))),
        QuantileNetwork(20, 24, 4, 12),
    ],
    ids=str,
)
def test_the_outputs_are_those_of_the_network(network: Any, compiled: bool) -> None:
    inference, inputs = (
        make_inference(network, 3, 130, together=True, compiled=compiled),
        random_inputs(network, 3, 130),
    )
    for n in range(3):
        assert inference.forward_agent(n, inputs[n]).tobytes() == inference.forward(inputs)[n].tobytes()
    expected = network.forward(network.bind(inference.weights.rows), torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(inference.forward(inputs), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("network", [MLP(37, (20, 9), 3), ActorCritic(37, (20,), Discrete(3))])
def test_inputs_that_are_mostly_zero_give_the_same_bytes_in_one_world_and_in_many(network: Any, zeros: float) -> None:
    draws = np.random.default_rng(1)
    inputs = draws.standard_normal((2, 16, 37), np.float32) * (draws.random((2, 16, 37)) >= zeros)
    rows = network.init(Identity((3, 3), (0, 1)))
    found = {}
    for worlds in (1, 16):  # few rows leave out zeros, many do not
        inference = Inference(network, 2, worlds, together=True, compiled=True)
        inference.weights = Weights(0, rows)
        parts = range(0, 16, worlds)
        found[worlds] = [inference.forward(np.ascontiguousarray(inputs[:, w : w + worlds])) for w in parts]
    assert np.concatenate(found[1], axis=1).tobytes() == found[16][0].tobytes()


def test_new_weights_replace_all_weights_at_once() -> None:
    network = MLP(4, (8,), 3)
    inference, inputs = make_inference(network, 2, 3, together=True), random_inputs(network, 2, 3)
    before, agent_before = inference.forward(inputs), inference.forward_agent(1, inputs[1])
    inference.weights = Weights(8, inference.weights.rows * 2)
    assert inference.version == 8
    after, agent_after = inference.forward(inputs), inference.forward_agent(1, inputs[1])
    assert after.tobytes() != before.tobytes()
    assert agent_after.tobytes() == after[1].tobytes() != agent_before.tobytes()


def test_before_anything_is_published_the_version_is_0() -> None:
    assert Inference(MLP(1, (), 1), 1, 1, together=True).version == 0


# -- exploration ----------------------------------------------------------------------------------------------


def epsilon_greedy(values: np.ndarray, *rest: Any) -> np.ndarray:
    return Choice(Rule.EPSILON_GREEDY, sizes=(values.shape[2],))(values, *rest)[0]


def sample_categorical(logits: np.ndarray, draws: np.ndarray, masks: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return one choice (N, W) and its log-probability; the value that networks put behind their logits is 0."""
    outputs = np.concatenate([logits, np.zeros_like(logits[..., :1])], -1)
    actions, columns = Choice(Rule.CATEGORICAL, sizes=logits.shape[2:])(outputs, draws, np.ones(len(logits)), masks)
    return actions, columns["log_prob"]


def plain_epsilon_greedy(values: Any, draws: Any, epsilons: Any, masks: Any) -> np.ndarray:
    """The definition, one choice at a time."""
    actions = np.zeros(values.shape[:2], np.int64)
    for n, w in np.ndindex(*actions.shape):
        allowed = [a for a in range(values.shape[2]) if masks is None or masks[n, w, a]]
        explores, which = draws[n, w]
        if explores < epsilons[n]:
            actions[n, w] = allowed[int(which * len(allowed))]
        else:
            actions[n, w] = max(allowed, key=lambda a: (values[n, w, a], -a))
    return actions


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    agents=st.integers(1, 5),
    worlds=st.integers(1, 5),
    actions=st.integers(1, 6),
    masked=st.booleans(),
)
def test_epsilon_greedy_equals_its_plain_definition(
    seed: int, agents: int, worlds: int, actions: int, masked: bool
) -> None:
    random = generator(seed, Purpose.NOISE)
    values = random.integers(-2, 3, (agents, worlds, actions)).astype(np.float32)  # with ties
    draws, epsilons = random.random((agents, worlds, EPSILON_SLOTS)), random.random(agents)
    masks = None
    if masked:
        masks = random.random((agents, worlds, actions)) < 0.5
        masks[..., random.integers(actions)] = True
    chosen = epsilon_greedy(values, draws, epsilons, masks)
    assert chosen.tolist() == plain_epsilon_greedy(values, draws, epsilons, masks).tolist()
    if masks is not None:
        assert np.take_along_axis(masks, chosen[..., None], -1).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), agents=st.integers(1, 5), worlds=st.integers(1, 3))
def test_values_of_agents_that_need_no_forward_pass_decide_nothing(seed: int, agents: int, worlds: int) -> None:
    random = generator(seed, Purpose.NOISE)
    values = random.standard_normal((agents, worlds, 4), np.float32)
    draws, epsilons = random.random((agents, worlds, EPSILON_SLOTS)), random.random(agents)
    needed = needs_forward(draws, epsilons)
    without = np.where(needed[:, None, None], values, np.float32(0.0))
    assert epsilon_greedy(without, draws, epsilons).tolist() == epsilon_greedy(values, draws, epsilons).tolist()
    assert needed.tolist() == [any(draws[n, w, 0] >= epsilons[n] for w in range(worlds)) for n in range(agents)]


def test_epsilon_0_takes_the_best_action_and_epsilon_1_a_uniform_one() -> None:
    values = np.tile(np.array([0.0, 1.0, 0.0], np.float32), (1, 500, 1))
    draws = generator(0, Purpose.NOISE).random((1, 500, 2))
    assert (epsilon_greedy(values, draws, np.zeros(1)) == 1).all()
    counts = np.bincount(epsilon_greedy(values, draws, np.ones(1))[0], minlength=3)
    assert chisquare(counts).pvalue > 1e-3


def test_the_first_of_equal_values_is_taken() -> None:
    assert epsilon_greedy(np.zeros((1, 1, 4), np.float32), np.full((1, 1, 2), 0.9), np.zeros(1)).item() == 0


def test_draws_and_epsilon_of_one_agent_do_not_affect_the_others() -> None:
    values = generator(1, Purpose.NOISE).random((3, 4, 5)).astype(np.float32)
    draws = generator(2, Purpose.NOISE).random((3, 4, 2))
    before = epsilon_greedy(values, draws, np.full(3, 0.5))
    changed = draws.copy()
    changed[1] = 1.0 - changed[1]
    after = epsilon_greedy(values, changed, np.array([0.5, 1.0, 0.5]))
    assert (before[[0, 2]] == after[[0, 2]]).all()


def test_a_mask_that_forbids_every_action_is_refused() -> None:
    masks = np.ones((2, 3, 4), np.bool_)
    masks[1, 2] = False
    with pytest.raises(ActionError, match="the action mask of agent 1 in world 2 forbids every action"):
        epsilon_greedy(np.zeros((2, 3, 4), np.float32), np.zeros((2, 3, 2)), np.zeros(2), masks)


@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 3, 5), (2, 3)])
def test_a_mask_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ShapeError, match=r"action masks of shape .*: wanted is \(agents, worlds, actions\) = \(2, 3, 4\)"
    ):
        epsilon_greedy(np.zeros((2, 3, 4), np.float32), np.zeros((2, 3, 2)), np.zeros(2), np.ones(shape, np.bool_))


def test_sampled_actions_follow_the_policy() -> None:
    logits = np.tile(np.log(np.array([0.1, 0.2, 0.7], np.float32)), (1, 30_000, 1))
    draws = generator(5, Purpose.NOISE).random((1, 30_000, 1))
    actions, log_prob = sample_categorical(logits, draws)
    shares = np.bincount(actions[0], minlength=3) / 30_000
    assert np.allclose(shares, [0.1, 0.2, 0.7], atol=0.01)
    assert np.allclose(np.exp(log_prob[0]), np.array([0.1, 0.2, 0.7])[actions[0]], atol=1e-5)


def test_masked_actions_are_never_sampled() -> None:
    logits = np.zeros((1, 500, 3), np.float32)
    draws = generator(6, Purpose.NOISE).random((1, 500, 1))
    masks = np.tile(np.array([True, False, True]), (1, 500, 1))
    actions, log_prob = sample_categorical(logits, draws, masks)
    assert set(actions[0].tolist()) == {0, 2}
    assert np.allclose(np.exp(log_prob), 0.5)
    masks[0, 7] = False
    with pytest.raises(ActionError, match="agent 0 in world 7 forbids every action"):
        sample_categorical(logits, draws, masks)
