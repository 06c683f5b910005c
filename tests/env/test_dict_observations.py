"""Observations that are dicts or tuples are flattened; results equal those with flat arrays."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.core.errors import ShapeError
from parallel_agents.core.observations import flat_shape, flatten_observation, unflatten_observation
from tests.equivalence.worlds import Odd, run


class DictObservations(Odd):
    """`Odd` with observations as a dict of two parts."""

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model({"head": (2,), "tail": ()}, 3)) for _ in range(3)]

    def observe(self) -> Any:
        return {"head": self.place[..., :2], "tail": self.place[..., 2]}


class TupleObservations(Odd):
    """`Odd` with observations as one tuple per agent."""

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model(((2,), 1), 3)) for _ in range(3)]

    def observe(self) -> Any:
        return [(own[:, :2], own[:, 2:]) for own in self.place]


@pytest.mark.parametrize("cls", [DictObservations, TupleObservations])
@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
def test_dict_and_tuple_observations_give_the_digest_of_the_flat_array(cls: type[Odd], order: str) -> None:
    config = {"experiment": {"worlds": 2, "epochs": 4}, "parallel": {"turn_order": order}}
    assert run(cls, config)["digest"] == run(Odd, config)["digest"]


class SeesParts(Agent):
    def pov(self, world: Any) -> Any:
        return {"view": np.ones((2, 2)), "hunger": 0.5}

    def act(self, world: Any, action: Any) -> float:
        return 1.0


class Game(ParallelEnvironment):
    default_config: ClassVar = {"experiment": {"epochs": 2, "max_turns": 3}}

    def setup_agents(self) -> None:
        self.agents = [SeesParts(model=self.make_model({"view": (2, 2), "hunger": ()}, 2))]


def test_pov_may_return_a_dict() -> None:
    game = Game()
    game.run_experiment()
    states = game.agents[0].model.memory.get_buffer_snapshot()["states"]
    assert states[0].tolist() == [1.0, 1.0, 1.0, 1.0, 0.5]
    assert game.agents[0].model.take_action({"view": np.ones((2, 2)), "hunger": 0.5}) in (0, 1)


def test_split_inverts_flattened() -> None:
    shape = {"a": (2, 3), "b": ((), 4)}
    observation = {"a": np.arange(12.0).reshape(2, 2, 3), "b": (np.array([7.0, 8.0]), np.zeros((2, 4)))}
    rows = flatten_observation(observation, axes=1)
    assert rows.shape == (2, *flat_shape(shape))
    back = unflatten_observation(rows, shape)
    assert np.array_equal(back["a"], observation["a"])
    assert np.array_equal(back["b"][0], observation["b"][0])


def test_a_plain_tuple_of_numbers_is_not_flattened() -> None:
    assert flatten_observation((1.0, 2.0)) == (1.0, 2.0)


def test_parts_with_different_numbers_of_worlds_raise() -> None:
    with pytest.raises(ShapeError, match="the first 2 axes must agree"):
        flatten_observation({"a": np.zeros((2, 1, 3)), "b": np.zeros((2, 2, 3))}, axes=2)
