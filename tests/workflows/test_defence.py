"""The worlds as an environment of the engine."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.workflows.defence import NetworkDefence
from parallel_agents.workflows.network import action_id
from parallel_agents.workflows.network.observations import CHOICES, HISTORY_SIZE

SMALL = {"experiment": {"epochs": 2, "max_turns": 12, "worlds": 4}, "model": {"hidden": (8,), "n_minibatches": 1}}


def defence(**world: object) -> NetworkDefence:
    return NetworkDefence(config={**SMALL, "world": world})


def test_worlds_take_the_attackers_in_turn() -> None:
    assert defence().worlds.red == ("B_line", "Meander", "B_line", "Meander")
    assert defence(red="Sleep").worlds.red == ("Sleep",) * 4


def test_two_runs_have_equal_digests() -> None:
    first, second = (defence().run_experiment() for _ in range(2))
    assert first["digest"] == second["digest"]
    assert first["transitions"] == 2 * 12 * 4
    assert first["updates"] > 0


def test_the_defender_observes_bits_or_bits_and_history() -> None:
    plain, with_history = defence(history=False), defence()
    for env, size in ((plain, 52), (with_history, HISTORY_SIZE)):
        env.reset()
        assert env.observe().shape == (1, 4, size)
        env.apply_actions(np.zeros((1, 4), np.int64))
    np.testing.assert_array_equal(plain.observe()[0], with_history.observe()[0, :, :52])


def test_a_choice_becomes_the_action_that_is_played_and_remembered() -> None:
    decoy = CHOICES.index("Decoy Enterprise1")
    few, many = defence(), defence(all_actions=True)
    for env, action in ((few, decoy), (many, action_id("DecoyFemitter", "Enterprise1"))):
        env.reset()
        env.apply_actions(np.full((1, 4), action))
    np.testing.assert_array_equal(few.observe(), many.observe())
    np.testing.assert_array_equal(few.worlds.state["decoys"], many.worlds.state["decoys"])
    assert (few.worlds.blue_success == 1).all()
    assert (few.agents[0].model.spec.actions, many.agents[0].model.spec.actions) == (len(CHOICES), 145)


def test_quirks_and_late_start_reach_the_worlds() -> None:
    env = defence(quirks={"service_unkillable_after_restore": False}, late_start=5, version="leaderboard")
    assert not env.worlds.quirks.service_unkillable_after_restore
    assert env.worlds.quirks.scans_accumulate
    assert (env.worlds.steps, env.worlds.late_start) == (17, 5)


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"red": ()}, "world.red is empty"),
        ({"red": "Purple"}, "red agent 'Purple' is unknown"),
        ({"history": 1}, "world.history is 1: say true or false"),
        ({"all_actions": "no"}, "world.all_actions is 'no': say true or false"),
        ({"quirks": {"gravity": True}}, "unknown key world.quirks.gravity"),
        ({"versoin": "head"}, "did you mean world.version"),
    ],
)
def test_bad_settings_are_refused(world: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        defence(**world)
