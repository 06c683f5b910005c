"""Observations made of parts: dicts and tuples become rows, the same as if they had been written so."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.acting import flat_shape, flattened, split
from parallel_agents.errors import ShapeError
from tests.equivalence.worlds import Odd, run


class InParts(Odd):
    """`Odd`, whose observations of three numbers come as a dict of two parts."""

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model({"head": (2,), "tail": ()}, 3)) for _ in range(3)]

    def observe(self) -> Any:
        return {"head": self.place[..., :2], "tail": self.place[..., 2]}


class EachInParts(Odd):
    """The same, one tuple per agent."""

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model(((2,), 1), 3)) for _ in range(3)]

    def observe(self) -> Any:
        return [(own[:, :2], own[:, 2:]) for own in self.place]


@pytest.mark.parametrize("cls", [InParts, EachInParts])
@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
def test_parts_give_the_bytes_of_the_whole(cls: type[Odd], order: str) -> None:
    config = {"experiment": {"worlds": 2, "epochs": 4}, "parallel": {"turn_order": order}}
    assert run(cls, config)["digest"] == run(Odd, config)["digest"]


class Body(Agent):
    def pov(self, world: Any) -> Any:
        return {"view": np.ones((2, 2)), "hunger": 0.5}

    def act(self, world: Any, action: Any) -> float:
        return 1.0


class Game(ParallelEnvironment):
    default_config: ClassVar = {"experiment": {"epochs": 2, "max_turns": 3}}

    def setup_agents(self) -> None:
        self.agents = [Body(model=self.make_model({"view": (2, 2), "hunger": ()}, 2))]


def test_agents_made_of_objects_may_see_parts() -> None:
    game = Game()
    game.run_experiment()
    kept = game.agents[0].model.memory.get_buffer_snapshot()["states"]
    assert kept[0].tolist() == [1.0, 1.0, 1.0, 1.0, 0.5]
    assert game.agents[0].model.take_action({"view": np.ones((2, 2)), "hunger": 0.5}) in (0, 1)


def test_there_and_back() -> None:
    shape = {"a": (2, 3), "b": ((), 4)}
    seen = {"a": np.arange(12.0).reshape(2, 2, 3), "b": (np.array([7.0, 8.0]), np.zeros((2, 4)))}
    rows = flattened(seen, axes=1)
    assert rows.shape == (2, *flat_shape(shape))
    back = split(rows, shape)
    assert np.array_equal(back["a"], seen["a"])
    assert np.array_equal(back["b"][0], seen["b"][0])


def test_a_plain_tuple_of_numbers_stays_what_it_is() -> None:
    assert flattened((1.0, 2.0)) == (1.0, 2.0)


def test_parts_of_different_worlds_are_refused() -> None:
    with pytest.raises(ShapeError, match="the first 2 axes must agree"):
        flattened({"a": np.zeros((2, 1, 3)), "b": np.zeros((2, 2, 3))}, axes=2)
