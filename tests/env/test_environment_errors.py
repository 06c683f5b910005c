"""Environments and agents that break their contract raise a clear error, as early as possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.core.errors import ConfigError, ContractError, NonFiniteError, ShapeError, SharingError
from tests.env.line_worlds import Field, Line, LineOfObjects, Walker, tiny


def test_two_agents_with_one_model_raise_at_construction() -> None:
    class Shared(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[2].model = self.agents[0].model

    with pytest.raises(SharingError, match="agent_0 and agent_2 hold the same model: nothing may be shared"):
        Shared(config=tiny())


def test_two_agents_with_one_buffer_raise_at_construction() -> None:
    class Shared(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[2].model.memory = self.agents[1].model.memory

    with pytest.raises(SharingError, match=r"agent_1 and agent_2 hold the same buffer: .* give every agent a buffer"):
        Shared(config=tiny())


def test_two_agents_with_one_name_raise_at_construction() -> None:
    class Shared(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[0].name = self.agents[1].name = "Ada"

    with pytest.raises(SharingError, match="Ada and Ada hold the same name"):
        Shared(config=tiny())


def test_using_a_model_in_setup_agents_does_not_change_its_weights_or_the_run() -> None:
    class Curious(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            for agent in self.agents:
                agent.model.take_action(np.zeros(3))
                assert len(agent.model.memory) == 0

    weights = [[agent.model.state["online"] for agent in kind(config=tiny()).agents] for kind in (Line, Curious)]
    for plain, looked_at in zip(*weights, strict=True):
        assert plain.equal(looked_at)
    assert Curious(config=tiny()).run_experiment()["digest"] == Line(config=tiny()).run_experiment()["digest"]


def test_weights_set_in_setup_agents_are_kept() -> None:
    trained = Line(config=tiny())
    trained.run_experiment()

    class Warm(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            for agent, teacher in zip(self.agents, trained.agents, strict=True):
                agent.model.state = teacher.model.state

    for agent, teacher in zip(Warm(config=tiny()).agents, trained.agents, strict=True):
        assert agent.model.state["online"].equal(teacher.model.state["online"])


def test_one_model_in_two_environments_raises() -> None:
    model = Line(config=tiny()).agents[0].model

    class Second(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1].model = model

    with pytest.raises(SharingError, match="this model already is agent 0"):
        Second(config=tiny())


def test_an_environment_without_agents_and_an_agent_without_a_model_raise() -> None:
    class Empty(Line):
        def setup_agents(self) -> None:
            self.agents = []

    with pytest.raises(ContractError, match=r"Empty.setup_agents\(\) left self.agents empty"):
        Empty(config=tiny())
    with pytest.raises(ContractError, match=r"setup_agents\(\) is missing"):
        ParallelEnvironment()
    with pytest.raises(ContractError, match="an agent was made without a model"):
        Agent()


@pytest.mark.parametrize(("hook", "message"), [("pov", r"pov\(world\) is missing"), ("act", r"act\(world, action\)")])
def test_a_missing_hook_of_an_agent_raises_with_its_name(hook: str, message: str) -> None:
    class Half(Walker):
        pass

    setattr(Half, hook, getattr(Agent, hook))

    class Game(LineOfObjects):
        walker = Half

    with pytest.raises(ContractError, match=f"Half.{message}"):
        Game(config=tiny()).run_experiment()


def test_a_vectorised_environment_without_apply_actions_or_apply_agent_raises() -> None:
    class Deaf(Line):
        apply_agent = ParallelEnvironment.apply_agent

    with pytest.raises(ContractError, match=r"Deaf has neither apply_actions\(actions\) nor apply_agent"):
        Deaf(config=tiny()).run_experiment()


# -- what worlds show ----------------------------------------------------------------------------------------


def shows(change: Any, *, order: str = "simultaneous", late: bool = False) -> Any:
    class Odd(Line):
        def observe(self) -> Any:
            seen = super().observe()
            return seen if late else change(seen)

        def observe_agent(self, index: int) -> Any:
            seen = super().observe()
            return (change(seen) if late else seen)[index]

    return Odd(config=tiny(parallel={"turn_order": order}))


def _spoilt(value: float) -> Any:
    def spoil(seen: Any) -> Any:
        seen[1, 0, 2] = value
        return seen

    return spoil


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("order", "late"), [("simultaneous", False), ("sequential", True)])
def test_nan_or_infinity_in_an_observation_raises_before_anything_is_stored(
    value: float, order: str, late: bool
) -> None:
    game = shows(_spoilt(value), order=order, late=late)
    with pytest.raises(NonFiniteError, match="the observation of agent_1 in world 0 holds NaN or infinity"):
        game.run_experiment()
    assert [len(agent.model.memory) for agent in game.agents] == [0, 0, 0]


def test_infinities_that_cancel_out_and_numbers_beyond_float32_raise() -> None:
    def both(seen: Any) -> Any:
        seen[0, 0, :2] = np.inf, -np.inf
        return seen

    with pytest.raises(NonFiniteError, match="the observation of agent_0"):
        shows(both).run_experiment()
    with pytest.raises(NonFiniteError, match="the observation of agent_0"):
        shows(lambda seen: seen.astype(np.float64) + 1e300).run_experiment()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda seen: seen[..., :2], r"the observation of agent_0 has shape \(1, 2\), wanted is .* = \(1, 3\)"),
        (lambda seen: seen.repeat(2, axis=1), r"has shape \(2, 3\), wanted is \(worlds, \*obs\) = \(1, 3\)"),
        (lambda seen: seen[:2], r"Odd has 3 agents, but observe\(\) gave what 2 see"),
        (lambda seen: [*seen[:2], seen[2, :, :1]], r"the observation of agent_2 has shape \(1, 1\)"),
    ],
)
def test_an_observation_of_the_wrong_shape_raises(change: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        shows(change).run_experiment()


def test_an_observation_of_the_wrong_shape_raises_in_sequential_order_too() -> None:
    game = shows(lambda seen: seen[..., :2], order="sequential", late=True)
    with pytest.raises(ShapeError, match=r"the observation of agent_0 has shape \(1, 2\)"):
        game.run_experiment()


def test_a_pov_of_the_wrong_shape_raises() -> None:
    class Squint(Walker):
        def pov(self, world: Any) -> Any:
            return super().pov(world)[: 2 if self.number == 1 else 3]

    class Game(LineOfObjects):
        walker = Squint

    with pytest.raises(ShapeError, match=r"the observation of agent_1 has shape \(1, 2\)"):
        Game(config=tiny()).run_experiment()


# -- what worlds give ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_or_infinity_in_a_reward_raises_with_agent_and_world(value: float, order: str) -> None:
    class Odd(Line):
        def apply_agent(self, index: int, actions: Any) -> Any:
            rewards = super().apply_agent(index, actions)
            if index == 1 and self.turn == 3 and self.epoch == 2:
                rewards[1] = value
            return rewards

    game = Odd(config=tiny(experiment={"worlds": 2}, parallel={"turn_order": order}))
    with pytest.raises(NonFiniteError, match=r"the reward of agent_1 in world 1 is .* \(epoch 2, turn 3\)"):
        game.run_experiment()


def test_rewards_of_the_wrong_shape_raise() -> None:
    class Odd(Line):
        def apply_actions(self, actions: Any) -> Any:
            return super().apply_actions(actions)[:2]

    with pytest.raises(
        ShapeError, match=r"Odd gave rewards of shape \(2, 1\), wanted is \(agents, worlds\) = \(3, 1\)"
    ):
        Odd(config=tiny()).run_experiment()


# -- configuration -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"world": {"agentz": 3}}, r"unknown key world.agentz; did you mean world.agents\?"),
        ({"model": {"learning_rate": 1.0}}, "unknown key model.learning_rate"),
        ({"model": {"algorithm": "sarsa"}}, "model.algorithm is 'sarsa': allowed is"),
        ({"experiment": {"epochs": 0}}, "experiment.epochs is 0: give a whole number of at least 1"),
        ({"parallel": {"train_interval": 0}}, "parallel.train_interval is 0"),
        ({"parallel": {"num_workers": -1}}, "parallel.num_workers is -1"),
        ({"parallel": {"turn_order": "random"}}, "parallel.turn_order is 'random'"),
    ],
)
def test_a_wrong_configuration_raises_at_construction(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Line(config=tiny(**sections))


def test_ray_raises_before_the_run_if_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    game = Line(config=tiny(parallel={"backend": "ray"}))
    with pytest.raises(ConfigError, match=r"parallel\.backend is 'ray', but Ray"):
        game.prepare()


def test_worlds_are_copies_of_the_given_world() -> None:
    world = Field()
    game = LineOfObjects(world, tiny(experiment={"worlds": 2, "seeds": 2}))
    assert game.world is world
    game.run_experiment()
    assert game.copies_of(0)[1].field is not world
