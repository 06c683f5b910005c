"""Standalone agents: custom models, slow models, overridden hooks; and several stacks in one run."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from parallel_agents import Agent, Buffer, ParallelEnvironment
from parallel_agents.algorithms import DQN, RandomModel
from parallel_agents.core.errors import ActionError, ContractError, DeadlineError, RunError, ShapeError
from tests.env.line_worlds import ACTIONS, TINY, Line, LineOfObjects, Walker, tiny


class Habit:
    """A minimal model that records its calls."""

    def __init__(self, action: int = 1) -> None:
        self.action = action
        self.seen: list[Any] = []
        self.trained: list[int] = []

    def take_action(self, state: Any) -> int:
        self.seen.append(np.array(state))
        return self.action

    def train_step(self) -> float:
        self.trained.append(len(self.seen))
        return 0.0


class Diligent(Habit):
    """A model with the optional hooks and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Buffer(100, (3,))
        self.epochs: list[tuple[str, int]] = []

    def start_epoch_action(self, epoch: int) -> None:
        self.epochs.append(("start", epoch))

    def end_epoch_action(self, epoch: int) -> None:
        self.epochs.append(("end", epoch))


def line_with(*models: Any, kind: type[Any] = Line, **sections: dict[str, Any]) -> Any:
    """Return the game with these models for its last agents."""

    class Game(kind):  # type: ignore[misc, valid-type]
        def setup_agents(self) -> None:
            super().setup_agents()
            for agent, model in zip(self.agents[::-1], models[::-1], strict=False):
                agent.model = model

    return Game(config=tiny(**sections))


ORDERS = pytest.mark.parametrize("order", ["simultaneous", "sequential"])


@ORDERS
@pytest.mark.parametrize("kind", [Line, LineOfObjects])
def test_a_custom_model_acts_in_every_turn_and_trains_once_per_round(kind: Any, order: str) -> None:
    model = Diligent()
    game = line_with(model, kind=kind, parallel={"turn_order": order})
    summary = game.run_experiment()
    assert len(model.seen) == 6 * 6
    assert model.trained == [12, 24, 36], "inline, at the boundary"
    assert model.epochs == [(when, epoch) for epoch in range(1, 7) for when in ("start", "end")]
    kept = model.memory.get_buffer_snapshot()
    cut = np.arange(5, 30, 6)  # what the last turn of an epoch led to is not known to a buffer of its own
    np.testing.assert_array_equal(kept["states"], np.delete(np.array(model.seen), cut, axis=0))
    assert set(kept["actions"].ravel().tolist()) == {1}
    assert summary["updates"] == 2 * 3 * 2 + 3, "the others learn as ever, and each train_step counts as an update"
    assert len(game.prepare().group.stacks[0]) == 2


def test_the_memory_of_a_custom_model_gets_the_end_of_an_episode() -> None:
    model = Diligent()
    game = line_with(model, world={"lives": True}, experiment={"epochs": 1, "max_turns": 12})
    game.run_experiment()
    life = int(game.lives[2, 0])
    kept = model.memory.get_buffer_snapshot()
    assert kept["dones"].tolist() == [False] * (life - 1) + [True]


@pytest.mark.parametrize("flags", [{"backend": "thread"}, {"enabled": False, "backend": None}])
def test_with_custom_models_the_digest_is_equal_in_every_mode(flags: dict[str, Any]) -> None:
    def digest(**parallel: Any) -> Any:
        return line_with(RandomModel((3,), 3), Habit(), parallel=parallel).run_experiment()["digest"]

    assert digest(**flags) == digest()


def test_a_frozen_model_is_not_trained() -> None:
    model = Habit()
    model.frozen = True  # type: ignore[attr-defined]
    game = line_with(model)
    game.agents[0].model.frozen = True
    before = game.agents[0].model.state["online"].clone()
    game.run_experiment()
    assert model.trained == []
    assert game.agents[0].model.state["online"].equal(before)
    assert int(game.agents[1].model.state["updates"][0]) > 0


def test_a_run_with_standalone_agents_only_counts_their_updates() -> None:
    models = [Habit(0), Habit(1), Habit(2)]
    summary = line_with(*models).run_experiment()
    assert summary["updates"] == 3 * 3
    assert summary["rounds"] == 3
    assert [len(model.trained) for model in models] == [3, 3, 3]


def test_a_model_without_take_action_raises() -> None:
    with pytest.raises(ContractError, match=r"the model of agent_2 has no take_action\(state\): give it one"):
        line_with(object()).run_experiment()


@ORDERS
@pytest.mark.parametrize("action", [3, -1])
def test_an_action_out_of_range_raises_if_the_range_is_known(action: int, order: str) -> None:
    model = Habit(action)
    model.n_actions = 3  # type: ignore[attr-defined]
    game = line_with(model, parallel={"turn_order": order})
    with pytest.raises(ActionError, match=rf"agent_2 chose action \[{action}\], but its actions are 0 to 2"):
        game.run_experiment()


# -- slow models ---------------------------------------------------------------------------------------------


class Service(Habit):
    """A slow model, which waits for the others of a barrier or for some seconds."""

    slow = True

    def __init__(self, meeting: threading.Barrier | None = None, seconds: float = 0.0) -> None:
        super().__init__()
        self.meeting, self.seconds = meeting, seconds

    def take_action(self, state: Any) -> int:
        if self.meeting is not None:
            self.meeting.wait(timeout=20.0)
        time.sleep(self.seconds)
        return super().take_action(state)


def _slow_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("slow-model")]


def test_slow_models_are_called_in_parallel_threads() -> None:
    meeting = threading.Barrier(3)  # nobody gets through alone
    models = [Service(meeting) for _ in range(3)]
    line_with(*models, experiment={"epochs": 2}).run_experiment()
    assert [len(model.seen) for model in models] == [12, 12, 12]
    assert _slow_threads() == []


@ORDERS
def test_a_slow_model_that_exceeds_world_deadline_raises(order: str) -> None:
    game = line_with(Service(seconds=1.0), parallel={"world_deadline": 0.05, "turn_order": order})
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"the model of agent_2 did not act within 0\.05 s \(world_deadline\)"):
        game.run_experiment()
    assert time.monotonic() - began < 1.0


def test_a_timeout_error_of_the_model_itself_is_not_reported_as_our_deadline() -> None:
    class Down(Service):
        def take_action(self, state: Any) -> int:
            raise TimeoutError("the service is down")

    with pytest.raises(RunError, match=r"agent_2 could not choose an action: TimeoutError: the service is down"):
        line_with(Down()).run_experiment()


def test_a_model_that_never_returns_does_not_keep_the_interpreter_from_exiting(tmp_path: Any) -> None:
    import subprocess

    script = tmp_path / "hangs.py"
    script.write_text(
        "import threading\n"
        "from parallel_agents.core.system import in_background\n"
        "in_background(threading.Event().wait, 'slow-model')\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=60)


# -- overridden hooks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("worlds", [1, 2])
def test_an_agent_that_overrides_get_action_still_learns(worlds: int) -> None:
    class Stubborn(Walker):
        def get_action(self, state: Any) -> int:
            return 2 if state[0] < state[1] else 0

    class Game(LineOfObjects):
        walker = Stubborn

    game = Game(config=tiny(experiment={"worlds": worlds}, model={"buffer_size": 100}))
    game.run_experiment()
    for agent in game.agents:
        assert len(agent.model.memory) == 36 * worlds
        assert set(agent.model.memory.get_buffer_snapshot()["actions"].tolist()) <= {0, 2}
        assert int(agent.model.state["updates"][0]) == 3, "one train_step at each boundary"


def test_an_agent_that_overrides_add_memory_decides_what_is_stored() -> None:
    class Picky(Walker):
        """Stores transitions with a positive reward only."""

        diary: list[tuple[float, bool]] = []

        def add_memory(self, state: Any, action: Any, reward: float, done: bool) -> None:
            self.diary.append((reward, done))
            if reward > 0:
                super().add_memory(state, action, reward, done)

    class Game(LineOfObjects):
        walker = Picky

    game = Game(config=tiny(world={"lives": True}))
    summary = game.run_experiment()
    assert len(Picky.diary) == summary["transitions"]
    assert any(done for _, done in Picky.diary)
    kept = [agent.model.memory.get_buffer_snapshot()["rewards"] for agent in game.agents]
    assert sum(map(len, kept)) > 0
    assert {float(reward) for own in kept for reward in own} == {1.0}


def test_add_memory_into_a_buffer_of_several_worlds_raises() -> None:
    class Scribe(Walker):
        def add_memory(self, state: Any, action: Any, reward: float, done: bool) -> None:
            super().add_memory(state, action, reward, done)

    class Game(LineOfObjects):
        walker = Scribe

    with pytest.raises(ShapeError, match=r"this buffer has 2 worlds: use add_turn\(\)"):
        Game(config=tiny(experiment={"worlds": 2})).run_experiment()


# -- different spaces ----------------------------------------------------------------------------------------


class Uneven(ParallelEnvironment):
    """Agent i sees i + 1 numbers (a square for the last one) and has i + 2 actions."""

    def setup_agents(self) -> None:
        shapes: list[tuple[int, ...]] = [(1,), (2,), (2,), (2, 2)]
        self.agents = [Agent(model=self.make_model(shape, i + 2)) for i, shape in enumerate(shapes)]
        self.shapes, self.largest = shapes, [0] * 4

    def reset(self) -> None:
        self.count = 0

    def begin_turn(self) -> None:
        self.count += 1

    def observe(self) -> Any:
        return [np.full((self.n_worlds, *shape), self.count, np.float32) for shape in self.shapes]

    def apply_actions(self, actions: Any) -> Any:
        assert len(actions) == 4
        self.largest = [max(old, int(own.max())) for old, own in zip(self.largest, actions, strict=True)]
        return np.array([(own == i).astype(np.float32) for i, own in enumerate(actions)])


@pytest.mark.parametrize("worlds", [1, 3])
def test_agents_with_different_spaces_are_in_different_stacks_and_learn(worlds: int) -> None:
    def make(**flags: Any) -> Uneven:
        return Uneven(config=tiny(experiment={"worlds": worlds, "epochs": 12}, parallel=flags))

    game = make()
    summary = game.run_experiment()
    assert [len(stack) for stack in game.prepare().group.stacks] == [1, 1, 1, 1]
    assert game.largest == [1, 2, 3, 4], "each uses its own actions"
    assert summary["updates"] == 4 * 6 * 2
    assert make(enabled=False).run_experiment()["digest"] == summary["digest"]
    assert make(backend="thread", num_workers=3).run_experiment()["digest"] == summary["digest"]


def test_equal_agents_share_a_stack_whatever_their_order() -> None:
    class Shuffled(Line):
        default_config = {"world": {**Line.default_config["world"], "agents": 4}}

        def setup_agents(self) -> None:
            super().setup_agents()
            for agent in self.agents[::2]:
                agent.model = DQN((3,), ACTIONS, **{**TINY, "hidden": (5,)})

    game = Shuffled(config=tiny())
    summary = game.run_experiment()
    assert [[agent_id.agent for agent_id in members] for members in game.prepare().group.members] == [[0, 2], [1, 3]]
    assert summary["digest"] == Shuffled(config=tiny(parallel={"enabled": False})).run_experiment()["digest"]
