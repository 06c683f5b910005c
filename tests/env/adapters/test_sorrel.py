"""Unmodified games written for sorrel, with a fake of its interface; `test_sorrel_games.py` plays sorrel's own."""

from __future__ import annotations

import copy
import os
import random
import types
from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.core.errors import ConfigError, ContractError, LearnerError, WorkerDied
from parallel_agents.env.adapters.sorrel import (
    Encoder,
    ModeSwitch,
    ParallelEnvironment,
    copy_shallowly,
    parallelize,
)
from tests.env.adapters import fake_sorrel
from tests.env.adapters.fake_sorrel import Gems, Model, RolloutBuffer, World


class Fast(Gems, ParallelEnvironment):
    pass


def config(**parallel: Any) -> dict[str, Any]:
    return {
        "experiment": {"epochs": 3, "max_turns": 12},
        "model": {"epsilon": 0.3, "epsilon_decay": 0.1, "width": 16},
        "world": {"agents": 5},
        "parallel": parallel,
    }


def played(kind: Any, given: dict[str, Any], logger: Any = None) -> Any:
    """Run a whole experiment after seeding the global generators, as sorrel's users do."""
    random.seed(0)
    np.random.seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        game = kind(World(7), given)
        game.run_experiment(animate=False, logging=False, logger=logger)
    return game


def weights(game: Any) -> list[Any]:
    return [value.clone() for agent in game.agents for value in agent.model.qnetwork_local.state_dict().values()]


def equal(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def test_our_class_is_between_the_game_and_the_framework() -> None:
    names = [own.__name__ for own in Fast.__mro__]
    assert names.index("Gems") < names.index("ParallelEnvironment") < names.index("Environment")
    assert isinstance(Fast(World(7), config()), ParallelEnvironment)
    assert parallelize(Gems).__mro__[1:3] == Fast.__mro__[1:3]
    with pytest.raises(ContractError, match="needs a game with sorrel"):
        types.new_class("Nothing", types.resolve_bases((ParallelEnvironment,)))


@pytest.mark.parametrize("given", [{}, {"enabled": False, "backend": "process"}, {"backend": "inline"}])
def test_inline_training_gives_the_results_of_sorrel_bit_for_bit(given: dict[str, Any]) -> None:
    logs: tuple[list[Any], list[Any]] = [], []
    theirs, ours = played(Gems, config(), logs[0]), played(Fast, config(**given), logs[1])
    assert equal(theirs, ours)
    assert theirs.log == ours.log
    assert logs[0] == logs[1]
    assert len(logs[1]) == 4 * 12  # the record of every turn
    assert len(ours.log) == 4  # sorrel's own count of epochs
    assert ours.train_steps == 4 * 5
    for a, b in zip(theirs.agents, ours.agents, strict=True):
        assert np.array_equal(a.model.memory.states, b.model.memory.states)
        assert np.array_equal(a.model.memory.extra_data["positions"], b.model.memory.extra_data["positions"])


def test_background_training_does_every_training_and_acting_is_one_behind(nothing_left: None) -> None:
    ours = played(Fast, config(backend="process"))
    assert ours.train_steps == 4 * 5
    assert [agent.model.trained for agent in ours.agents] == [4] * 5
    assert all(agent.model.optimizer.state_dict()["state"] for agent in ours.agents)
    assert all(agent.model.qnetwork_local.training for agent in ours.agents)  # as it was before
    assert ours.own_turns == 4 * 12  # what the game overrides still runs
    assert ours.agents[0].model.epsilon == pytest.approx(0.3 * 0.9**4)
    assert ours.log[0][1] == 0.0
    assert all(loss > 0.0 for _, loss, *_ in ours.log[1:])


def test_train_interval_reduces_the_number_of_trainings() -> None:
    assert played(Fast, config(train_interval=2)).train_steps == 2 * 5
    assert played(Fast, config(train_interval=2, backend="process")).train_steps == 2 * 5


def test_a_network_switches_its_mode_with_all_its_parts_and_so_does_a_copy_of_it() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Dropout(0.5)))
    ModeSwitch.install(network)
    twin = copy.deepcopy(network)
    assert network.eval() is network
    assert not any(part.training for part in network.modules())
    assert all(part.training for part in twin.modules())
    twin.eval()
    network.train()
    assert all(part.training for part in network.modules())
    assert not any(part.training for part in twin.modules())


def test_a_network_with_a_train_of_its_own_keeps_it() -> None:
    class Frozen(torch.nn.Linear):
        def train(self, mode: bool = True) -> Frozen:
            return super().train(False)

    network = torch.nn.Sequential(Frozen(2, 2))
    ModeSwitch.install(network)
    network.train()
    assert not network[0].training


def test_an_error_in_training_raises_in_the_main_thread(nothing_left: None) -> None:
    class Bad(Model):
        def train_step(self) -> Any:
            raise ArithmeticError("no such gradient")

    class Broken(Gems):
        model_type = Bad

    with pytest.raises(LearnerError, match=r"train_step\(\) of agent_0 raised ArithmeticError: no such gradient"):
        played(parallelize(Broken), config(backend="process"))


def test_on_policy_models_train_inline() -> None:
    class OnPolicy(Model):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            self.memory.__class__ = RolloutBuffer

    class Rollouts(Gems):
        model_type = OnPolicy

    assert equal(played(parallelize(Rollouts), config(backend="process")), played(Rollouts, config()))


def test_a_game_with_its_own_run_experiment_warns_and_trains_inline() -> None:
    class OwnLoop(Gems):
        def run_experiment(self, **_: Any) -> None:
            for epoch in range(2):
                self.reset()
                while self.turn < 5:
                    self.take_turn(epoch)
                for agent in self.agents:
                    agent.model.train_step()

    with pytest.warns(UserWarning, match=r"FastOwnLoop has a run_experiment\(\) of its own"):
        game = played(parallelize(OwnLoop), config(backend="process"))
    assert [agent.model.trained for agent in game.agents] == [2] * 5


def test_unsupported_settings_raise() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.backend is 'thread'.*inline or by a process"):
        played(Fast, config(backend="thread"))
    with pytest.raises(ConfigError, match=r"policy_lag is 2 .* act one training behind"):
        played(Fast, config(policy_lag=2))
    with pytest.raises(ConfigError, match="turn_order is 'simultaneous': sorrel's agents act one after the other"):
        played(Fast, config(turn_order="simultaneous"))
    with pytest.raises(ConfigError, match=r"unknown key parallel\.turn_ordr; did you mean parallel\.turn_order"):
        played(Fast, config(turn_ordr="sequential"))


def test_a_background_run_can_be_repeated(nothing_left: None) -> None:
    one, other = (played(Fast, config(backend="process")) for _ in range(2))
    assert equal(one, other)
    assert one.log == other.log


def test_a_learner_process_that_dies_ends_the_run(nothing_left: None) -> None:
    class Dying(Model):
        def train_step(self) -> Any:
            os._exit(3)

    class Broken(Gems):
        model_type = Dying

    with pytest.raises(WorkerDied, match="learner-sorrel"):
        played(parallelize(Broken), config(backend="process"))


def test_copies_of_an_entity_share_only_what_cannot_change() -> None:
    class Own(fake_sorrel.Entity):
        def __init__(self) -> None:
            super().__init__()
            self.seen = [1]

    entity = Own()
    copy_shallowly(entity)
    twin = copy.deepcopy(entity)
    assert type(twin) is Own
    assert vars(twin) == {"location": None, "kind": "Own", "seen": [1]}
    assert twin.seen is not entity.seen


def test_the_encoder_adds_appearances_over_layers() -> None:
    class At:
        def __init__(self, kind: str) -> None:
            self.kind = kind

    draws = np.random.default_rng(0)
    appearances = {kind: draws.normal(size=3) for kind in "abcd"}
    region = np.array([At(kind) for kind in draws.choice(list("abcd"), 5 * 4 * 2)], dtype=object).reshape(5, 4, 2)
    expected = np.array(
        [[appearances[cell[0].kind] + appearances[cell[1].kind] for cell in row] for row in region]
    ).transpose(2, 0, 1)
    assert np.array_equal(Encoder()(region, appearances, 3), expected)
