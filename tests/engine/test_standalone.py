"""Standalone agents are in digest and checkpoint like all others; where a state is missing, the run says why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents import PPO, Agent, Buffer
from parallel_agents.algorithms import RandomModel
from parallel_agents.checkpoint import Checkpointer, checkpoint_obstacle, restore
from parallel_agents.core.errors import CheckpointError, ContractError
from parallel_agents.core.seeding import Purpose, generator
from tests.env.line_worlds import ACTIONS, CELLS, Line, LineOfObjects, Walker, tiny
from tests.equivalence.worlds import Odd


class Tabular:
    """Tabular Q-learning (Watkins 1989), written without this library."""

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


class OwnMemory(Agent):
    """Overrides `add_memory` to store in its model."""

    def add_memory(self, state: Any, action: Any, reward: float, done: bool) -> None:
        self.model.add(state, action, reward)


class CountingWalker(Walker):
    """Overrides `get_action` by a count that it carries from epoch to epoch; its model learns all the same."""

    chosen = 0

    def get_action(self, state: Any) -> int:
        self.chosen += 1
        return self.chosen % ACTIONS

    def state(self) -> Any:
        return {"chosen": self.chosen}

    def load_state(self, state: Any) -> None:
        self.chosen = state["chosen"]


class SelectiveWalker(Walker):
    """Overrides `add_memory` to store rewarded transitions only, in its model's own buffer."""

    def add_memory(self, state: Any, action: Any, reward: float, done: bool) -> None:
        if reward > 0:
            super().add_memory(state, action, reward, done)

    def state(self) -> Any:
        return {}

    def load_state(self, state: Any) -> None: ...


class Mixed(Line):
    """One stacked agent, one with a model that is not of this library, one that acts at random."""

    def setup_agents(self) -> None:
        super().setup_agents()
        self.agents[1] = OwnMemory(model=Tabular())
        self.agents[2].model = RandomModel((3,), ACTIONS)


class Counting(LineOfObjects):
    walker = CountingWalker


class Selecting(LineOfObjects):
    walker = SelectiveWalker


KINDS = [Mixed, Counting, Selecting]


def resume(kind: Any, folder: Path, half: int, epochs: int, **sections: Any) -> tuple[Any, dict[str, Any]]:
    first = kind(config=tiny(**sections))
    first.prepare().checkpointer = Checkpointer(first.prepare(), folder, keep_last=1)
    first.run_experiment(half)
    first.prepare().checkpointer = None
    second = kind(config=tiny(**sections))
    restore(second.prepare(), folder)
    return second, second.run_experiment(epochs)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_with_standalone_agents_equals_the_whole_run(kind: Any, lag: int, tmp_path: Path) -> None:
    flags = {"policy_lag": lag, "train_interval": 2}
    game = kind(config=tiny(parallel=flags))
    whole = game.run_experiment(11)
    again, summary = resume(kind, tmp_path, 5, 11, parallel=flags)
    assert whole["digest"] is not None
    assert summary["digest"] == whole["digest"]
    if kind is not Mixed:
        counts = [
            [(int(agent.model.state["updates"][0]), len(agent.model.memory)) for agent in own.agents]
            for own in (game, again)
        ]
        assert counts[0] == counts[1]
        assert max(counts[0]) > (1, 0), "they learn and store"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{"backend": "thread"}, {"enabled": False, "backend": None}])
def test_the_digest_does_not_depend_on_how_the_run_is_done(kind: Any, flags: dict[str, Any]) -> None:
    assert (
        kind(config=tiny(parallel=flags)).run_experiment()["digest"] == kind(config=tiny()).run_experiment()["digest"]
    )


def test_another_seed_gives_another_digest_without_any_stack() -> None:
    first, second = (Counting(config=tiny(experiment={"seed": seed})).run_experiment() for seed in (1, 2))
    assert first["digest"] != second["digest"]


CHANGES: dict[str, Any] = {
    "a number in a table": lambda game: game.agents[1].model.table.__setitem__((0, 0, 0), 7.0),
    "the position of a generator": lambda game: game.agents[1].model.draws.random(),
    "one more row": lambda game: game.agents[1].model.add(np.zeros(3), 0, 1.0),
    "a count": lambda game: setattr(game.agents[1].model, "updates", 99),
}


@pytest.mark.parametrize("name", CHANGES)
def test_everything_in_the_state_of_an_own_model_is_in_the_digest(name: str) -> None:
    game = Mixed(config=tiny())
    game.run_experiment()
    before = game.prepare().digests()
    CHANGES[name](game)
    assert game.prepare().digests() != before


def test_weights_rows_and_state_of_a_standalone_agent_are_in_the_digest() -> None:
    game = Counting(config=tiny())
    game.run_experiment()
    run, model = game.prepare(), game.agents[1].model
    digests = [run.digests()]
    for change in (
        lambda: model.state["online"].add_(1.0),
        lambda: model.memory.ring.rewards.__iadd__(1.0),
        lambda: setattr(model, "frozen", True),
        lambda: setattr(game.agents[1], "chosen", 1000),
    ):
        change()
        digests.append(run.digests())
    assert len({str(own) for own in digests}) == len(digests)


# -- missing states ------------------------------------------------------------------------------------


class WithoutStateDict(Tabular):
    """Learns, but has no `state_dict`."""

    state_dict = None  # type: ignore[assignment]


class Scripted:
    """Always acts in the same way."""

    def __init__(self, action: Any) -> None:
        self.action = action

    def take_action(self, state: Any) -> int:
        return int(self.action if isinstance(self.action, int) else self.action[0])


class WithUnreadableMemory(Scripted):
    """Has a memory without `state`."""

    def __init__(self) -> None:
        super().__init__(1)
        self.memory: Any = type("Memory", (), {"add": lambda *_: None})()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


class WithUnstorableState(Tabular):
    """Has a state that cannot be stored."""

    def state_dict(self) -> dict[str, Any]:
        return {"table": {1, 2}}


def line_with(model: Any, game: type[Line] = Line) -> Any:
    """Return a game whose agent 1 has this model."""

    class Game(game):  # type: ignore[misc, valid-type]
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1].model = model

    return Game(config=tiny())


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            WithoutStateDict(),
            r"the model of agent_1 \(WithoutStateDict\) can learn or remember, but has no state_dict\(\)",
        ),
        (WithUnreadableMemory(), r"the memory of agent_1 \(Memory\) has no state\(\) and load_state\(state\)"),
        (
            WithUnstorableState(),
            r"the state of agent_1 cannot be stored: ContractError: the state\['model'\]\['table'\] is a set",
        ),
    ],
)
def test_a_missing_state_gives_no_digest_no_checkpoint_and_a_reason(model: Any, reason: str) -> None:
    game = line_with(model)
    summary = game.run_experiment(2)
    assert (summary["digest"], summary["digests"], summary["reproducible"]) == (None, None, False)
    assert summary["replicas"][0]["digest"] is None
    assert re.search(reason, summary["no_digest"])
    assert checkpoint_obstacle(game.prepare()) == summary["no_digest"]


def test_a_run_with_a_missing_state_refuses_a_checkpoint(tmp_path: Path) -> None:
    first = Mixed(config=tiny())
    first.prepare().checkpointer = Checkpointer(first.prepare(), tmp_path, keep_last=1)
    first.run_experiment(2)
    with pytest.raises(
        CheckpointError, match=r"has no checkpoint to start from: the model of agent_1 \(WithoutStateDict\) can learn"
    ):
        restore(line_with(WithoutStateDict(), Mixed).prepare(), tmp_path)


@pytest.mark.parametrize("action", [1, (1, 2)])
def test_a_model_with_constant_attributes_needs_no_state(action: Any) -> None:
    game = line_with(Scripted(action))
    assert game.run_experiment(2)["digest"] is not None


@pytest.mark.parametrize("action", [[1], np.array([1]), {0: 1}])
def test_a_model_with_mutable_attributes_needs_a_state(action: Any) -> None:
    summary = line_with(Scripted(action)).run_experiment(2)
    assert summary["digest"] is None


def test_a_model_whose_constant_was_replaced_needs_a_state() -> None:
    model = Scripted(1)
    game = line_with(model)
    game.prepare()
    model.action = 2
    assert game.run_experiment(2)["digest"] is None


def test_models_with_mutable_closures_or_class_attributes_need_a_state() -> None:
    mutable: list[int] = []

    class WithList(Scripted):
        values: list[int] = []

    assert line_with(Scripted(1)).run_experiment(2)["digest"] is not None
    assert line_with(WithList(1)).run_experiment(2)["digest"] is None
    model = Scripted(1)
    model.rule = lambda: mutable  # type: ignore[attr-defined]
    assert line_with(model).run_experiment(2)["digest"] is None


def test_a_model_that_counts_in_a_class_or_in_a_closure_needs_a_state() -> None:
    class InClass(Scripted):
        turns = 0

        def take_action(self, state: Any) -> int:
            type(self).turns += 1
            return self.turns % ACTIONS

    class InClosure(Scripted):
        def __init__(self) -> None:
            turns = 0

            def count() -> int:
                nonlocal turns
                turns += 1
                return turns % ACTIONS

            self.count = count

        def take_action(self, state: Any) -> int:
            return self.count()

    for model in (InClass(1), InClosure()):
        assert "can learn or remember" in (line_with(model).run_experiment(2)["no_digest"] or "")


def test_a_torch_module_that_remembers_outside_of_its_state_dict_needs_one_of_its_own() -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rate = float("nan")
            self.inner = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.LSTM(2, 2))

        @torch.no_grad()
        def take_action(self, state: Any) -> int:
            self.inner.eval()
            return 1

    class Decays(Module):
        def train_step(self) -> None:
            self.rate = 0.5

    class Counts(Module):
        def train_step(self) -> None:
            self.inner[0].momentum += 0.1

    class Hides(Module):
        def __init__(self) -> None:
            super().__init__()
            self._seen: list[int] = []

    class Buffers(Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1), persistent=False)

    assert line_with(Module()).run_experiment(2)["digest"] is not None
    for kind, name in ((Decays, "rate"), (Counts, "inner.0.momentum"), (Hides, "_seen"), (Buffers, "seen")):
        assert f"leaves out {name}:" in (line_with(kind()).run_experiment(2)["no_digest"] or "")


def test_an_agent_that_counts_in_its_class_needs_a_state() -> None:
    class Counting(Agent):
        turns = 0

        def get_action(self, state: Any) -> int:
            type(self).turns += 1
            return self.turns % ACTIONS

    class Game(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1] = Counting(model=self.agents[1].model)

    assert "has attributes of its own (turns)" in (Game(config=tiny()).run_experiment(2)["no_digest"] or "")


def test_a_hook_that_is_set_on_an_agent_itself_is_used() -> None:
    class Game(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1].get_action = lambda state: asked.append(state) or 1  # type: ignore[func-returns-value]

    asked: list[Any] = []
    summary = Game(config=tiny()).run_experiment(2)
    assert asked
    assert "has attributes of its own (get_action)" in (summary["no_digest"] or "")


def test_no_checkpoint_is_written_once_a_model_has_changed_that_gives_no_state(tmp_path: Path) -> None:
    model = Scripted(1)
    game = line_with(model)
    run = game.prepare()
    run.checkpointer = Checkpointer(run, tmp_path, keep_last=9)
    run.checkpointer.begin()
    model.action = 2
    run.checkpointer.begin()
    run.checkpointer.close()
    assert (run.checkpointer.written(), run.checkpointer.unwritten) == ([0], 1)


def test_a_standalone_agent_with_attributes_of_its_own_needs_a_state() -> None:
    class WithoutState(Walker):
        def get_action(self, state: Any) -> int:
            return 1

    class Game(LineOfObjects):
        walker = WithoutState

    summary = Game(config=tiny()).run_experiment(2)
    assert summary["digest"] is None
    assert "agent_0 (WithoutState) overrides get_action() or add_memory() and has attributes" in summary["no_digest"]
    assert "field, life, number, place, rules" in summary["no_digest"]


def test_the_buffer_of_an_own_model_is_stored_with_it(tmp_path: Path) -> None:
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
    again, summary = resume(Game, tmp_path, 3, 8)
    assert summary["digest"] == whole["digest"]
    assert len(again.agents[1].model.memory) == len(game.agents[1].model.memory) > 30


def test_the_state_of_a_stacked_agent_is_stored(tmp_path: Path) -> None:
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
    assert resume(Game, tmp_path, 3, 8, **sections)[1]["digest"] == whole["digest"]


@pytest.mark.parametrize("hook", ["get_action", "add_memory"])
def test_an_on_policy_agent_that_overrides_a_hook_is_refused(hook: str) -> None:
    class Overriding(Agent):
        pass

    setattr(Overriding, hook, lambda self, *given: 0)

    class Game(Odd):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents.append(Overriding(model=PPO(self.agents[0].model.spec.observation, 2, rollout=8)))

    with pytest.raises(ContractError, match=r"overrides get_action\(\) or add_memory\(\), but PPO learns from the"):
        Game().prepare()
