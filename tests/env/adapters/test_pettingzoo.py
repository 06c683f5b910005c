"""PettingZoo environments as our environments."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import mpe2.simple_spread_v3
import numpy as np
import pytest

from parallel_agents.cli import main
from parallel_agents.core.errors import ConfigError, ContractError, TargetError
from parallel_agents.env import evaluation
from parallel_agents.env.adapters.pettingzoo import adapt, pettingzoo_environment
from parallel_agents.env.adapters.sync_envs import SharedBuffers
from tests.env.adapters.small_envs import Leavers

pytestmark = pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")

SMALL: dict[str, Any] = {
    "experiment": {"epochs": 4, "max_turns": 30, "worlds": 2},
    "model": {"hidden": (8,), "learning_starts": 20},
}


def test_steps_equal_those_of_the_original_environment() -> None:
    game = pettingzoo_environment("mpe2.simple_spread_v3")(config=SMALL)
    game.begin_epoch(1)
    game.reset()
    alone = mpe2.simple_spread_v3.parallel_env()
    seen, _ = alone.reset(seed=int(game.state()["seeds"][1]))
    for turn in range(25):
        assert np.array_equal(game.observe()[:, 1], np.stack(list(seen.values())))
        actions = np.array([[0, (turn + k) % 5] for k in range(3)])
        rewards = game.apply_actions(actions)
        seen, earned, *_ = alone.step({name: actions[k, 1] for k, name in enumerate(seen)})
        assert rewards[:, 1].tolist() == pytest.approx(list(earned.values()))
    terminated, truncated = game.dones()
    assert truncated.all()
    assert not terminated.any()


def test_agents_may_have_different_spaces_join_late_and_leave_early() -> None:
    env = Leavers()
    adapter = adapt(env)
    buffers = SharedBuffers(adapter.agents, 1)
    row = buffers.row(0)
    adapter.reset(3, row)
    assert row.can_act.tolist() == [True, True, False]
    assert row.observations[1].tolist() == np.eye(4)[env.first].tolist()
    assert row.masks[1].tolist() == [True, False, False]
    buffers.write_actions([[1], [0], [[1, 2]]])
    adapter.step(row)
    assert env.taken[-1] == {"short": 2, "long": 0}  # its actions start at 1; one that has not come does nothing
    assert row.can_act.tolist() == [True, True, True]
    adapter.step(row)
    assert env.taken[-1]["late"].tolist() == [1, 2]
    assert row.terminated.tolist() == [True, False, False]
    assert row.rewards.tolist() == [2.0, 2.0, 2.0]
    adapter.step(row)
    assert row.rewards.tolist() == [0.0, 3.0, 3.0]
    adapter.step(row)
    assert row.terminated.tolist() == [True, False, True]
    assert row.truncated.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("fault", "message"), [("revive", r"\['short'\] came back"), ("vanish", r"\['long'\] left without")]
)
def test_an_agent_that_comes_back_or_leaves_without_an_end_raises(fault: str, message: str) -> None:
    adapter = adapt(Leavers(**{fault: True}))
    row = SharedBuffers(adapter.agents, 1).row(0)
    adapter.reset(0, row)
    for _ in range(2):
        adapter.step(row)
    with pytest.raises(ContractError, match=message):
        adapter.step(row)


def test_a_turn_of_an_aec_environment_is_one_step_of_one_agent() -> None:
    game = pettingzoo_environment("pettingzoo.classic.tictactoe_v3")(config=SMALL)
    game.begin_epoch(1)
    game.reset()
    assert game.masks_actions
    for turn, cell in enumerate((0, 3, 1, 4)):
        assert game.can_act()[:, 0].tolist() == [turn % 2 == 0, turn % 2 == 1]
        mask = game.action_masks()[turn % 2]
        assert mask is not None
        assert mask[0].sum() == 9 - turn
        rewards = game.apply_actions(np.full((2, 2), cell))
        assert not rewards.any()
    other = game.action_masks()[1]
    assert other is not None
    assert other.all()  # one that cannot act is not held to a mask
    assert game.apply_actions(np.full((2, 2), 2)).tolist() == [[1.0, 1.0], [-1.0, -1.0]]
    assert game.dones()[0].all()


@pytest.mark.parametrize("name", ["mpe2.simple_spread_v3", "mpe2.simple_tag_v3", "pettingzoo.classic.connect_four_v3"])
def test_environments_are_trained_and_repeat_exactly(name: str) -> None:
    game = pettingzoo_environment(name)(config=SMALL)
    summary = game.run_experiment()
    assert summary["turns"] == 120
    assert summary["updates"] > 0
    assert summary["digest"] == pettingzoo_environment(name)(config=SMALL).run_experiment()["digest"]


def test_a_users_own_module_is_trained_saved_and_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("leavers_v0")
    module.parallel_env = Leavers  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "leavers_v0", module)
    config = {**SMALL, "model": {"algorithm": "ppo", "hidden": (8,)}}
    game = pettingzoo_environment("leavers_v0")(config=config)
    assert [agent.name for agent in game.agents] == ["short", "long", "late"]
    summary = game.run_experiment()
    assert summary["updates"] > 0
    again = pettingzoo_environment("leavers_v0")(config=config)
    again.load_state(game.state())
    assert all(np.array_equal(a, b) for a, b in zip(again.observe(), game.observe(), strict=True))
    assert evaluation.evaluate(game, 3).returns.shape == (3, 3)


def test_a_module_that_cannot_be_imported_or_has_no_environment_raises() -> None:
    with pytest.raises(TargetError, match=r"pettingzoo:no\.such_thing cannot be imported"):
        pettingzoo_environment("no.such_thing")
    with pytest.raises(TargetError, match="has neither parallel_env"):
        pettingzoo_environment("json")


def test_resume_from_the_command_line_gives_the_digest_of_the_whole_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def words(folder: str, epochs: int) -> list[str]:
        target = ["pettingzoo:mpe2.simple_spread_v3", "--worlds", "2", "--set", "experiment.max_turns=17"]
        return ["train", *target, "--epochs", str(epochs), "--out", str(tmp_path / folder), "--json", "--quiet"]

    assert main(words("whole", 4)) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main(words("parts", 2)) == 0  # 34 turns: in the middle of an episode
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "parts"), "--epochs", "4", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == whole["digest"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{N: 5}", 'give the keywords of mpe2.simple_spread_v3 as an object, such as {"N": 5}'),
        ({"M": 5}, "cannot be made with world.options {'M': 5}: .*unexpected keyword argument 'M'"),
    ],
)
def test_keywords_that_an_environment_does_not_take_are_named(options: Any, message: str) -> None:
    game = pettingzoo_environment("mpe2.simple_spread_v3")
    with pytest.raises(ConfigError, match=message):
        game(config={**SMALL, "world": {"options": options}})


def test_a_mistake_inside_an_environment_is_not_blamed_on_its_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: Any) -> None:
        raise TypeError("helper() got an unexpected keyword argument 'colour'")

    monkeypatch.setattr("mpe2.simple_spread_v3.parallel_env", broken)
    game = pettingzoo_environment("mpe2.simple_spread_v3")
    with pytest.raises(TypeError, match="helper"):
        game(config={**SMALL, "world": {"options": {"N": 2}}})
