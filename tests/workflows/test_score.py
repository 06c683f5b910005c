"""The challenge's measure."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.seeding import Purpose
from parallel_agents.workflows.defence import NetworkDefence
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.policies import play, react_restore, sleep
from parallel_agents.workflows.score import Defender, score, score_table


def test_the_total_is_the_sum_of_nine_means() -> None:
    found = score(lambda _: react_restore, "head", episodes=40)
    assert found.total == pytest.approx(sum(sum(own) for own in found.means.values()))
    worlds = NetworkWorlds(40, red="Meander", seed=0, purpose=Purpose.EVALUATION_WORLD)
    rewards = play(worlds, react_restore, 0)
    expected = tuple(rewards[:n].sum(axis=0).mean() for n in (30, 50, 100))
    assert found.means["Meander"] == pytest.approx(expected)
    assert found.errors["Meander"][2] == pytest.approx(rewards.sum(axis=0).std(ddof=1) / np.sqrt(40))
    assert found.total_error > 0
    assert found.as_json()["means"]["Sleep"] == [0.0, 0.0, 0.0]


def test_variants_switch_version_and_quirk() -> None:
    table = score_table(lambda _: sleep, episodes=4)
    assert list(table) == [
        "leaderboard", "leaderboard, service stays killable", "head", "head, service stays killable",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="at least two are needed"):
        score(lambda _: sleep, episodes=1)


@pytest.mark.parametrize("history", [True, False])
def test_a_defender_plays_as_the_engine_evaluates_it(history: bool) -> None:
    """The same model on the same worlds: notes kept by the policy are those kept by the environment."""
    env = NetworkDefence(
        config={
            "experiment": {"epochs": 3, "max_turns": 20, "worlds": 6},
            "world": {"red": "Meander", "history": history},
            "model": {"hidden": (16,), "lr": 0.05},
        }
    )
    env.run_experiment()
    model = env.agents[0].model
    worlds = NetworkWorlds(6, red="Meander", steps=20, seed=9)
    policy = Defender(model, worlds)
    returns = play(worlds, policy, 0).sum(axis=0)
    np.testing.assert_array_equal(play(worlds, policy, 0).sum(axis=0), returns)  # a new episode, new notes
    again = NetworkDefence(config=env.config)
    again.worlds = NetworkWorlds(6, red="Meander", steps=20, seed=9)
    again.epoch = 0
    again.reset()
    model.set_epsilon(0.0)
    earned = np.zeros(6)
    for _ in range(20):
        outputs = policy._inference.forward(again.observe())
        earned += again.apply_actions(outputs[..., :-1].argmax(-1))[0]
    np.testing.assert_array_equal(earned, returns)
