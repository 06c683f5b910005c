"""Scripted and trained defenders, and the challenge's score."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from parallel_agents.core.errors import ActionError, ConfigError
from parallel_agents.workflows.blue_policies import (
    SCRIPTED,
    ChallengeAgents,
    OrderScript,
    TrainedDefender,
    blue_react_restore,
    play,
    random_actions,
    react_remove,
    react_restore,
    scripted,
)
from parallel_agents.workflows.defence import NetworkDefence
from parallel_agents.workflows.network import ACTION_NAMES, HOST_NAMES, NetworkWorlds, action_id


def remembering(**memory: str) -> np.ndarray:
    """Return an observation with these bits of remembered compromise."""
    bits = "".join("00" + memory.get(host, "00") for host in HOST_NAMES)
    return np.array([[int(bit) for bit in bits]], np.uint8)


def test_react_restore_restores_the_first_suspect_except_user0():
    assert react_restore(remembering(User0="01", User2="10", User4="11"), 0, 5).tolist() == [
        action_id("Restore", "User2")
    ]
    assert react_restore(remembering(User0="01"), 0, 5).tolist() == [0]


def test_react_remove_acts_on_user_level_only():
    observation = remembering(User0="01", User1="10", User2="11", User3="01")
    assert react_remove(observation, 0, 5).tolist() == [action_id("Remove", "User3")]


def test_the_script_repairs_the_most_urgent_type_and_active_hosts_of_more_urgent_ones_first():
    observation = remembering(Enterprise1="01", Op_Host1="10", Op_Server0="11", User2="01")
    for order, host in (
        (("op_server", "enterprise", "op_host", "user", "defender"), "Op_Server0"),
        (("user", "op_server", "enterprise", "op_host", "defender"), "User2"),
        (("defender", "op_host", "op_server", "enterprise", "user"), "Op_Host1"),
        (("enterprise", "op_server", "op_host", "user", "defender"), "Enterprise1"),
    ):
        assert OrderScript(order)(observation, 0, 0).tolist() == [action_id("Restore", host)]
    script = OrderScript(("enterprise", "op_server", "op_host", "user", "defender"))
    scanned = np.zeros((1, 52), np.uint8)
    scanned[0, [4, 4 * HOST_NAMES.index("User0"), 4 * HOST_NAMES.index("User4")]] = 1
    assert script(scanned, 0, 0).tolist() == [0]  # nothing appears compromised
    suspect = remembering(User2="01")
    assert script(suspect, 0, 1).tolist() == [action_id("Restore", "Enterprise0")]  # scanned, and more urgent
    assert script(suspect, 0, 2).tolist() == [action_id("Restore", "User2")]  # Enterprise0 is fresh now
    script(scanned, 0, 3)
    assert script(suspect, 0, 0).tolist() == [action_id("Restore", "User2")]  # a new episode


def test_the_challenges_own_heuristic_restores_all_hosts_in_turn():
    bits = np.zeros((2, 52), np.uint8)
    names = [ACTION_NAMES[blue_react_restore(bits, 0, turn)[0]] for turn in range(14)]
    assert names[0] == names[13] == "Monitor"
    assert names[1:13] == [f"Restore {host}" for host in HOST_NAMES if host != "User0"]


def test_challenge_agents_play_one_instance_per_world():
    class Counting:
        def __init__(self):
            self.turns = 0

        def get_action(self, observation, action_space):
            assert observation.shape == (52,)
            self.turns += 1
            return np.int64(self.turns % action_space)

    class Keeping(Counting):
        def end_episode(self):
            self.turns = 100

    bits = np.zeros((3, 52), np.uint8)
    fresh, kept = ChallengeAgents(Counting, 3), ChallengeAgents(Keeping, 3)
    assert [fresh(bits, 0, turn).tolist() for turn in (0, 1, 0)] == [[1] * 3, [2] * 3, [1] * 3]
    assert [kept(bits, 0, turn).tolist() for turn in (0, 1, 0)] == [[1] * 3, [2] * 3, [101] * 3]
    with pytest.raises(ConfigError, match=r"has no get_action\(observation, action_space\)"):
        ChallengeAgents(object, 2)
    Counting.get_action = lambda *_: "Sleep"
    with pytest.raises(ActionError, match="get_action must return whole numbers from 0 to 144"):
        ChallengeAgents(Counting, 2)(bits[:2], 0, 0)


def test_random_actions_are_uniform_and_depend_on_epoch_turn_and_world():
    observations = np.zeros((20_000, 52), np.uint8)
    policy = random_actions(seed=4)
    drawn = policy(observations, 3, 7)
    assert (drawn == policy(observations, 3, 7)).all()
    assert (drawn[:10] == policy(observations[:10], 3, 7)).all()
    assert (drawn != policy(observations, 3, 8)).any()
    counts = np.bincount(drawn, minlength=145)
    assert len(counts) == 145
    assert (np.abs(counts - 20_000 / 145) < 5 * np.sqrt(20_000 / 145)).all()


def test_an_action_is_chosen_on_the_observation_before_the_step():
    """A historical fault: the buffer stored the observation after the step beside the action chosen before it."""
    worlds = NetworkWorlds(3, red="Meander", steps=30, late_start=5)
    twin = NetworkWorlds(3, red="Meander", steps=30, late_start=5)
    expected = [twin.reset(2)]
    received: list[tuple[int, np.ndarray]] = []

    def policy(observations, epoch, turn):
        received.append((turn, observations.copy()))
        return react_restore(observations, epoch, turn)

    rewards = play(worlds, policy, epoch=2)
    for _, observations in received:
        expected.append(twin.step(react_restore(observations, 2, 0))[0])
    assert [turn for turn, _ in received] == list(range(5, 30))
    assert all((a == b).all() for (_, a), b in zip(received, expected[:-1], strict=True))
    assert rewards.shape == (25, 3)


def test_the_scripted_policies_repeat_the_recorded_actions(recordings):
    for path in recordings.values():
        with gzip.open(path, "rt") as stream:
            episodes = [json.loads(line) for line in stream][1:]
        for episode in episodes:
            if episode["blue"] in ("sleep", "react_restore", "react_remove"):
                before = [episode["obs0"], *episode["obs"][:-1]]
                observations = np.array([[int(bit) for bit in bits] for bits in before], np.uint8)
                assert scripted(episode["blue"])(observations, 0, 1).tolist() == episode["a"]


def test_an_unknown_policy_is_refused():
    with pytest.raises(ConfigError, match="blue policy 'panic' is unknown: choose one of sleep, random, react_restore"):
        scripted("panic")


# Mean and standard error of the return after 30, 50 and 100 turns, as measured on the reference simulator …
REFERENCE = {
    ("B_line", "sleep"): ((-219.9, 1.8), (-481.9, 1.8), (-1136.9, 1.8)),
    ("B_line", "random"): ((-161.5, 7.0), (-346.9, 14.2), (-745.1, 32.2)),
    ("B_line", "react_restore"): ((-15.0, 0.3), (-27.4, 0.8), (-62.3, 2.7)),
    ("B_line", "react_remove"): ((-77.8, 6.9), (-280.4, 13.9), (-920.8, 17.4)),
    ("B_line", "op_once"): ((-63.6, 0.5), (-125.6, 0.5), (-280.6, 0.5)),
    ("Meander", "sleep"): ((-35.9, 1.8), (-260.0, 6.8), (-970.0, 6.5)),
    ("Meander", "random"): ((-34.7, 2.2), (-175.7, 13.6), (-540.4, 38.2)),
    ("Meander", "react_restore"): ((-11.4, 0.1), (-22.7, 0.2), (-56.5, 0.9)),
    ("Meander", "react_remove"): ((-19.9, 0.6), (-110.8, 7.3), (-642.4, 23.1)),
    ("Meander", "op_once"): ((-32.1, 0.6), (-109.4, 1.4), (-318.7, 3.4)),
}
# … and, over 1000 episodes each (so with our own standard error), on a model of it.
MODEL = {
    ("B_line", "sleep"): (-218.3, -480.3, -1135.3),
    ("B_line", "random"): (-153.1, -337.9, -732.5),
    ("B_line", "react_restore"): (-14.9, -27.3, -63.8),
    ("B_line", "react_remove"): (-92.6, -301.7, -937.6),
    ("B_line", "op_once"): (-63.8, -125.8, -280.8),
    ("Meander", "sleep"): (-39.4, -267.5, -971.3),
    ("Meander", "random"): (-33.5, -165.3, -560.4),
    ("Meander", "react_restore"): (-11.5, -23.1, -56.8),
    ("Meander", "op_once"): (-32.8, -109.8, -315.3),
}
LEADERBOARD = {
    ("B_line", "sleep"): (-218.65, -480.17, -1134.03),
    ("B_line", "random"): (-154.06, -347.1, -726.92),
    ("Meander", "sleep"): (-39.31, -267.6, -972.43),
    ("Meander", "random"): (-33.43, -171.49, -566.41),
    ("Sleep", "random"): (-2.8, -4.45, -8.94),
    ("B_line", "blue_react_restore"): (-58.83, -93.05, -184.34),
    ("Meander", "blue_react_restore"): (-44.29, -85.75, -192.63),
    ("Sleep", "blue_react_restore"): (-27.0, -46.0, -92.0),
}
ROUNDING = 0.05  # the reference figures have one decimal


def returns(red: str, blue: str, version: str) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard errors over 1000 episodes after 30, 50 and 100 turns."""
    totals = play(NetworkWorlds(1000, red=red, version=version), scripted(blue), epoch=0).cumsum(axis=0)
    totals = totals[[29, 49, 99]]
    return totals.mean(axis=1), totals.std(axis=1, ddof=1) / np.sqrt(1000)


@pytest.mark.slow
@pytest.mark.parametrize(("red", "blue"), sorted(REFERENCE))
def test_means_are_within_three_standard_errors_of_the_reference(red, blue):
    means, errors = returns(red, blue, "head")
    expected, spread = np.array(REFERENCE[red, blue]).T
    assert (np.abs(means - expected) < 3 * np.hypot(errors, spread) + ROUNDING).all(), (means, errors)
    if (red, blue) in MODEL:
        assert (np.abs(means - MODEL[red, blue]) < 3 * np.sqrt(2) * errors + ROUNDING).all(), (means, errors)


@pytest.mark.slow
@pytest.mark.parametrize(("red", "blue"), sorted(LEADERBOARD))
def test_means_are_those_of_the_official_leaderboard(red, blue):
    means, errors = returns(red, blue, "leaderboard")
    assert (np.abs(means - LEADERBOARD[red, blue]) < 3 * np.sqrt(2) * errors + ROUNDING).all(), (means, errors)


@pytest.mark.slow
def test_means_of_the_debugged_variant():
    means, errors = returns("B_line", "sleep", "debugged")
    assert means[2] == pytest.approx(-1143.8)
    assert errors[2] == pytest.approx(0.0, abs=1e-9)
    for red, blue, expected, spread in (
        ("Meander", "sleep", -968.9, 8.4), ("B_line", "random", -775.5, 46.2), ("Meander", "random", -592.6, 39.7),
    ):  # fmt: skip
        means, errors = returns(red, blue, "debugged")
        assert abs(means[2] - expected) < 3 * np.hypot(errors[2], spread)


def test_against_a_sleeping_red_only_restores_cost_points():
    for blue in SCRIPTED:
        total = play(NetworkWorlds(50, red="Sleep", steps=30), scripted(blue), epoch=0).sum()
        assert (total < 0) == (blue in ("random", "op_once", "blue_react_restore"))


@pytest.mark.parametrize("history", [True, False])
def test_a_trained_defender_acts_as_its_model_does_in_the_environment(history: bool) -> None:
    """The history that the policy keeps is the one that the environment keeps."""
    config = {
        "experiment": {"epochs": 3, "max_turns": 20, "worlds": 6, "seed": 9},
        "world": {"red": "Meander", "history": history},
        "model": {"hidden": (16,), "lr": 0.05},
    }
    env = NetworkDefence(config=config)
    env.run_experiment()
    model = env.agents[0].model
    worlds = NetworkWorlds(6, red="Meander", steps=20, seed=9)
    policy = TrainedDefender(model, worlds)
    rewards = play(worlds, policy, 0)
    np.testing.assert_array_equal(play(worlds, policy, 0), rewards)  # a new episode, a new history
    again = NetworkDefence(config=config)
    again.epoch = 0
    again.reset()
    model.set_epsilon(0.0)
    for own in rewards:
        actions = policy.likeliest(again.observe()[0])
        np.testing.assert_array_equal(again.apply_actions(actions[None])[0], own.astype(np.float32))


def test_an_ensemble_takes_the_action_with_the_highest_mean_probability() -> None:
    config = {"experiment": {"epochs": 1, "max_turns": 5, "worlds": 2}, "model": {"hidden": (8,)}}
    models = [
        NetworkDefence(config={**config, "experiment": {**config["experiment"], "seed": seed}}).agents[0].model
        for seed in range(3)
    ]
    worlds = NetworkWorlds(4, red="Meander", steps=10)
    features = np.random.default_rng(0).normal(size=(4, 198)).astype(np.float32)
    probabilities = 0.0
    for model in models:
        inference = TrainedDefender(model, worlds)._members[0]
        logits = inference.forward(features[None])[0][:, :-1].astype(np.float64)
        probabilities = probabilities + np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(TrainedDefender(models, worlds).likeliest(features), probabilities.argmax(axis=1))
    other = NetworkDefence(config={**config, "world": {"history": False}}).agents[0].model
    with pytest.raises(ConfigError, match=r"these models have \[\(52, 45\), \(198, 45\)\] inputs and choices"):
        TrainedDefender([*models, other], worlds)
    many = NetworkDefence(config={**config, "world": {"all_actions": True}}).agents[0].model
    with pytest.raises(ConfigError, match=r"these models have \[\(198, 45\), \(198, 145\)\] inputs and choices"):
        TrainedDefender([*models, many], worlds)
