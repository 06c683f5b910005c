"""The worlds as an environment of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from parallel_agents.core.errors import ActionError, ConfigError, ContractError
from parallel_agents.workflows.defence import NetworkDefence
from parallel_agents.workflows.network import RedAgent, action_id
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


@pytest.mark.parametrize(
    "world",
    [{}, {"turn_weights": True, "all_actions": True, "late_start": 3}, {"history": False, "green": True}],
)
def test_whole_epochs_in_compiled_code_give_the_bytes_of_single_turns(world: dict[str, object]) -> None:
    def run(together: bool) -> tuple[object, str | None]:
        flags = {"backend": "inline", "parallel_actions": together}
        env = NetworkDefence(config={**SMALL, "world": world, "parallel": flags})
        summary = env.run_experiment()
        return [
            summary[name] for name in ("digest", "turns", "updates", "mean_reward")
        ], env.prepare().loop.why_not_compiled()

    (compiled, none), (single, reason) = run(together=True), run(together=False)
    assert compiled == single
    assert none is None
    assert reason is not None
    assert "one by one" in reason


def test_recorded_epochs_and_red_agents_in_python_are_played_turn_by_turn(tmp_path: Path) -> None:
    class Idle(RedAgent):
        def get_action(self, knowledge: Mapping[str, object]) -> str:
            return "Sleep"

    env = defence()
    (recorder,) = env.recorders(tmp_path)
    assert env.compiled_world() == "the epoch is recorded"
    recorder.is_due = False
    assert env.prepare().loop.why_not_compiled() is None
    own = defence(red=("B_line", Idle))
    assert own.compiled_world() == "the red agent Idle is written in Python"
    assert not own.portable, "nobody knows what its functions give on another machine"
    idle, asleep = (defence(red=red).run_experiment() for red in (Idle, "Sleep"))
    assert idle["mean_reward"] == asleep["mean_reward"] != 0.0


def test_recording_does_not_change_a_run(tmp_path: Path) -> None:
    env = defence()
    assert env.run_experiment(callbacks=env.recorders(tmp_path))["digest"] == defence().run_experiment()["digest"]


def test_a_choice_that_does_not_exist_is_refused() -> None:
    env = defence()
    env.reset()
    with pytest.raises(ActionError, match="choice 45 of world 1 is not one of the 45"):
        env.apply_actions(np.array([[44, 45, 0, 0]]))
    for _ in range(12):
        env.apply_actions(np.zeros((1, 4), np.int64))
    with pytest.raises(ContractError, match="the episode of 12 steps is over"):
        env.apply_actions(np.zeros((1, 4), np.int64))


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


def test_episodes_that_cross_epochs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"experiment\.autoreset is true"):
        NetworkDefence(config={"experiment": {"autoreset": True}})
