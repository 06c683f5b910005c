"""Agents outside of stacks are in digest and checkpoint like all others; what cannot give its state says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents import Agent, Buffer
from parallel_agents.errors import CheckpointError
from parallel_agents.models import RandomModel
from parallel_agents.runtime.checkpoints import Checkpointer, restore, why_not
from parallel_agents.seeding import Purpose, generator
from tests.environment.line_worlds import ACTIONS, CELLS, Line, LineOfObjects, Walker, tiny


class Tabular:
    """Tabular Q-learning (Watkins 1989), written by somebody who knows nothing of stacks."""

    def __init__(self) -> None:
        self.table = np.zeros((CELLS, CELLS, ACTIONS))
        self.draws = generator(0, Purpose.ACT, agent=77)
        self.episode: list[tuple[Any, int, float]] = []
        self.updates = 0

    def take_action(self, state: Any) -> int:
        if self.draws.random() < 0.3:
            return int(self.draws.integers(ACTIONS))
        return int(self.table[int(state[0]), int(state[1])].argmax())

    def add(self, state: Any, action: Any, reward: float) -> None:
        self.episode.append((np.array(state), int(action), reward))

    def train_step(self) -> float:
        for state, action, reward in self.episode:
            value = self.table[int(state[0]), int(state[1])]
            value[action] += 0.1 * (reward - value[action])
        self.updates += 1
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "draws": self.draws.bit_generator.state,
            "episode": self.episode,
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.table, self.episode, self.updates = state["table"], state["episode"], state["updates"]
        self.draws.bit_generator.state = state["draws"]


class Keeps(Agent):
    """Remembers by itself: in its model, which is not told by the usual way."""

    def add_memory(self, state: Any, action: Any, reward: float, done: bool) -> None:
        self.model.add(state, action, reward)


class Counts(Walker):
    """Chooses by itself, by a count that it carries from epoch to epoch, and learns all the same."""

    chosen = 0

    def get_action(self, state: Any) -> int:
        self.chosen += 1
        return self.chosen % ACTIONS

    def state(self) -> Any:
        return {"chosen": self.chosen}

    def load_state(self, state: Any) -> None:
        self.chosen = state["chosen"]


class Picky(Walker):
    """Remembers by itself, in its model's own buffer."""

    def add_memory(self, state: Any, action: Any, reward: float, done: bool) -> None:
        if reward > 0:
            super().add_memory(state, action, reward, done)

    def state(self) -> Any:
        return {}

    def load_state(self, state: Any) -> None: ...


class Mixed(Line):
    """One agent in a stack, one with a model of its own, one that plays at random."""

    def setup_agents(self) -> None:
        super().setup_agents()
        self.agents[1] = Keeps(model=self.own_model())
        self.agents[2].model = RandomModel((3,), ACTIONS)

    def own_model(self) -> Any:
        return Tabular()


class Counting(LineOfObjects):
    walker = Counts


class Picking(LineOfObjects):
    walker = Picky


KINDS = [Mixed, Counting, Picking]


def resumed(kind: Any, folder: Path, half: int, epochs: int, **sections: Any) -> tuple[Any, dict[str, Any]]:
    first = kind(config=tiny(**sections))
    first.prepare().checkpointer = Checkpointer(first.prepare(), folder, keep_last=1)
    first.run_experiment(half)
    first.prepare().checkpointer = None
    second = kind(config=tiny(**sections))
    restore(second.prepare(), folder)
    return second, second.run_experiment(epochs)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_with_agents_outside_of_stacks_is_the_run(kind: Any, lag: int, tmp_path: Path) -> None:
    flags = {"policy_lag": lag, "train_interval": 2}
    game = kind(config=tiny(parallel=flags))
    whole = game.run_experiment(11)
    again, summary = resumed(kind, tmp_path, 5, 11, parallel=flags)
    assert whole["digest"] is not None
    assert summary["digest"] == whole["digest"]
    if kind is not Mixed:
        counts = [
            [(int(own.model.state["updates"][0]), len(own.model.memory)) for own in g.agents] for g in (game, again)
        ]
        assert counts[0] == counts[1]
        assert max(counts[0]) > (1, 0), "they learn and remember"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{"backend": "thread"}, {"enabled": False, "backend": None}])
def test_the_digest_does_not_depend_on_how_the_run_is_done(kind: Any, flags: dict[str, Any]) -> None:
    assert (
        kind(config=tiny(parallel=flags)).run_experiment()["digest"] == kind(config=tiny()).run_experiment()["digest"]
    )


def test_another_seed_gives_another_digest_though_no_agent_is_in_a_stack() -> None:
    one, other = (Counting(config=tiny(experiment={"seed": seed})).run_experiment() for seed in (1, 2))
    assert one["digest"] != other["digest"]


CHANGES: dict[str, Any] = {
    "a number in a table": lambda game: game.agents[1].model.table.__setitem__((0, 0, 0), 7.0),
    "the position of a generator": lambda game: game.agents[1].model.draws.random(),
    "one more row": lambda game: game.agents[1].model.add(np.zeros(3), 0, 1.0),
    "a count": lambda game: setattr(game.agents[1].model, "updates", 99),
}


@pytest.mark.parametrize("name", CHANGES)
def test_everything_that_an_own_learner_tells_is_in_the_digest(name: str) -> None:
    game = Mixed(config=tiny())
    game.run_experiment()
    before = game.prepare().digests()
    CHANGES[name](game)
    assert game.prepare().digests() != before


def test_weights_and_rows_of_an_agent_that_chooses_by_itself_are_in_the_digest() -> None:
    game = Counting(config=tiny())
    game.run_experiment()
    run, model = game.prepare(), game.agents[1].model
    seen = [run.digests()]
    for change in (
        lambda: model.state["online"].add_(1.0),
        lambda: model.memory.ring.rewards.__iadd__(1.0),
        lambda: setattr(model, "frozen", True),
        lambda: setattr(game.agents[1], "chosen", 1000),
    ):
        change()
        seen.append(run.digests())
    assert len({str(own) for own in seen}) == len(seen)


# -- what cannot give its state ------------------------------------------------------------------------------------


class Mute(Tabular):
    """Learns, and cannot say what."""

    state_dict = None  # type: ignore[assignment]


class Scripted:
    """Always does the same."""

    def __init__(self, action: Any) -> None:
        self.action = action

    def take_action(self, state: Any) -> int:
        return int(self.action if isinstance(self.action, int) else self.action[0])


class Forgetful(Scripted):
    """Has a memory that cannot tell what it holds."""

    def __init__(self) -> None:
        super().__init__(1)
        self.memory: Any = type("Memory", (), {"add": lambda *_: None})()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


class Odd(Tabular):
    """Tells something that cannot be stored."""

    def state_dict(self) -> dict[str, Any]:
        return {"table": {1, 2}}


def with_model(model: Any) -> Any:
    class Game(Mixed):
        def own_model(self) -> Any:
            return model

    return Game(config=tiny())


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Mute(), r"the model of agent_1 \(Mute\) can learn or remember, but has no state_dict\(\)"),
        (Forgetful(), r"the memory of agent_1 \(Memory\) has no state\(\) and load_state\(state\)"),
        (Odd(), r"the state of agent_1 cannot be stored: ContractError: the state\['model'\]\['table'\] is a set"),
    ],
)
def test_without_a_state_there_is_no_digest_no_checkpoint_and_a_reason(model: Any, reason: str) -> None:
    game = line_with(model)
    summary = game.run_experiment(2)
    assert (summary["digest"], summary["digests"], summary["reproducible"]) == (None, None, False)
    assert summary["replicas"][0]["digest"] is None
    assert re.search(reason, summary["no_digest"])
    assert why_not(game.prepare()) == summary["no_digest"]


def test_a_checkpoint_is_refused_by_a_run_whose_agents_cannot_take_it(tmp_path: Path) -> None:
    first = Mixed(config=tiny())
    first.prepare().checkpointer = Checkpointer(first.prepare(), tmp_path, keep_last=1)
    first.run_experiment(2)
    with pytest.raises(CheckpointError, match=r"cannot be gone on with: the model of agent_1 \(Mute\) can learn"):
        restore(with_model(Mute()).prepare(), tmp_path)


@pytest.mark.parametrize("action", [1, (1, 2)])
def test_a_scripted_player_that_cannot_remember_needs_no_state(action: Any) -> None:
    game = line_with(Scripted(action))
    assert game.run_experiment(2)["digest"] is not None


@pytest.mark.parametrize("action", [[1], np.array([1]), {0: 1}])
def test_a_player_with_something_that_can_change_needs_one(action: Any) -> None:
    summary = line_with(Scripted(action)).run_experiment(2)
    assert summary["digest"] is None


def test_a_player_whose_constant_was_replaced_has_remembered_something() -> None:
    model = Scripted(1)
    game = line_with(model)
    game.prepare()
    model.action = 2
    assert game.run_experiment(2)["digest"] is None


def test_closures_and_class_attributes_can_remember_too() -> None:
    seen: list[int] = []

    class Noted(Scripted):
        notes: list[int] = []

    assert line_with(Scripted(1)).run_experiment(2)["digest"] is not None
    assert line_with(Noted(1)).run_experiment(2)["digest"] is None
    model = Scripted(1)
    model.rule = lambda: seen  # type: ignore[attr-defined]
    assert line_with(model).run_experiment(2)["digest"] is None


def line_with(model: Any) -> Any:
    class Game(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1].model = model

    return Game(config=tiny())


def test_an_agent_with_attributes_of_its_own_that_chooses_by_itself_must_tell_them() -> None:
    class Silent(Walker):
        def get_action(self, state: Any) -> int:
            return 1

    class Game(LineOfObjects):
        walker = Silent

    summary = Game(config=tiny()).run_experiment(2)
    assert summary["digest"] is None
    assert "agent_0 (Silent) overrides get_action() or add_memory() and has attributes" in summary["no_digest"]
    assert "field, life, number, place, rules" in summary["no_digest"]


def test_the_memory_of_an_own_model_is_stored_with_it(tmp_path: Path) -> None:
    class Buffered(Tabular):
        def __init__(self) -> None:
            super().__init__()
            self.memory = Buffer(50, (3,))

    class Game(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1].model = Buffered()

    game = Game(config=tiny())
    whole = game.run_experiment(8)
    again, summary = resumed(Game, tmp_path, 3, 8)
    assert summary["digest"] == whole["digest"]
    assert len(again.agents[1].model.memory) == len(game.agents[1].model.memory) > 30


def test_a_stacked_agent_may_carry_something_too(tmp_path: Path) -> None:
    class Tired(Walker):
        steps = 0

        def act(self, world: Any, action: Any) -> float:
            self.steps += 1
            return super().act(world, action) * (1.0 if self.steps < 20 else 0.5)

        def state(self) -> Any:
            return {"steps": self.steps}

        def load_state(self, state: Any) -> None:
            self.steps = state["steps"]

    class Game(LineOfObjects):
        walker = Tired

    sections: dict[str, Any] = {"experiment": {"worlds": 2}}
    whole = Game(config=tiny(**sections)).run_experiment(8)
    assert resumed(Game, tmp_path, 3, 8, **sections)[1]["digest"] == whole["digest"]
