"""Worlds that raise, hang, give NaN or lose agents are reported with world, epoch, turn and seed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents import Agent
from parallel_agents.algorithms.acting import Choice
from parallel_agents.algorithms.acting_kernels import Rule
from parallel_agents.core.errors import (
    ActionError,
    DeadlineError,
    LearnerError,
    NonFiniteError,
    ParallelAgentsError,
    WorldError,
)
from parallel_agents.execution.workers import Worker
from tests.env.line_worlds import Line, LineOfObjects, Walker, tiny
from tests.faults.test_learners import fails_awkwardly

pytestmark = pytest.mark.usefixtures("nothing_left")


class Breaks(Line):
    """Raises in one turn."""

    def apply_agent(self, index: int, actions: Any) -> Any:
        if (self.epoch, self.turn, index) == (2, 3, 1):
            raise ZeroDivisionError("the pole broke")
        return super().apply_agent(index, actions)


@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_f02_a_world_that_raises_is_named_with_its_place(backend: str) -> None:
    message = (
        r"Breaks raised ZeroDivisionError: the pole broke in epoch 2, turn 3 \(seed 3\), "
        r"at .*test_worlds\.py:\d+ in apply_agent\(\)"
    )
    with pytest.raises(WorldError, match=message) as raised:
        Breaks(config=tiny(parallel={"backend": backend, "num_workers": 1})).run_experiment()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_f02_of_several_worlds_made_of_objects_the_one_that_raised_is_named() -> None:
    class Stumbler(Walker):
        def act(self, world: Any, action: Any) -> float:
            if world.index == 2:
                raise RuntimeError("a stone")
            return super().act(world, action)

    class Game(LineOfObjects):
        walker = Stumbler

    with pytest.raises(WorldError, match=r"RuntimeError: a stone in epoch 1, turn 1, world 2 \(seed 3\)"):
        Game(config=tiny(experiment={"worlds": 3})).run_experiment()


def test_f03_a_world_that_cannot_be_built_in_a_worker_is_reported_before_the_first_step() -> None:
    worker = Worker("world-1", fails_awkwardly, "start", failure=WorldError)
    with pytest.raises(WorldError, match=r"(?s)world-1 .* failed.*TwoArguments: no such device"):
        worker.ready(100.0)
    worker.close()


class Chooses:
    """A model that always returns the given action."""

    n_actions = 3

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def take_action(self, state: Any) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [3, -1, 99])
def test_f07_actions_that_do_not_fit_are_refused_before_anything_moves(answer: Any) -> None:
    class Game(Line):
        moved = False

        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1].model = Chooses(answer)

        def apply_actions(self, actions: Any) -> Any:
            type(self).moved = True
            return super().apply_actions(actions)

    with pytest.raises(ActionError, match=r"agent_1 chose action .*its actions are 0 to 2"):
        Game(config=tiny()).run_experiment()
    assert not Game.moved


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_f14_nan_in_what_is_seen_or_earned_is_named(value: float) -> None:
    class Sees(Line):
        def observe(self) -> Any:
            seen = super().observe()
            if self.turn == 2:
                seen[1, 0, 1] = value
            return seen

    class Earns(Line):
        def apply_agent(self, index: int, actions: Any) -> Any:
            return super().apply_agent(index, actions) + (value if (self.turn, index) == (2, 1) else 0.0)

    class SeesAlone(Sees):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1].model = Chooses(0)

    for kind in (Sees, SeesAlone):  # in a stack, and with a model of its own
        message = r"the observation of agent_1 in world 0 holds NaN or infinity \(epoch 1, turn 2\)"
        for order in ("simultaneous", "sequential"):
            with pytest.raises(NonFiniteError, match=message):
                kind(config=tiny(parallel={"turn_order": order})).run_experiment()
    with pytest.raises(NonFiniteError, match=r"the reward of agent_1 in world 0 is .* \(epoch 1, turn 2\)"):
        Earns(config=tiny()).run_experiment()


class Scribbles(Line):
    """Writes into the actions it is given."""

    def apply_agent(self, index: int, actions: Any) -> Any:
        earned = super().apply_agent(index, actions)
        actions[...] = 0
        return earned


@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
@pytest.mark.parametrize("seeds", [1, 2])
def test_f72_a_world_that_writes_into_the_actions_changes_nothing_that_agents_remember(seeds: int, order: str) -> None:
    config = tiny(experiment={"seeds": seeds, "worlds": 2}, parallel={"turn_order": order})
    assert Scribbles(config=config).run_experiment()["digest"] == Line(config=config).run_experiment()["digest"]


def test_f72_an_agent_outside_of_stacks_remembers_what_it_saw_when_it_chose() -> None:
    class Notes(Chooses):
        def __init__(self) -> None:
            super().__init__(0)
            self.kept: list[tuple[float, float]] = []

    class Writer(Agent):
        def add_memory(self, state: Any, action: Any, reward: float, done: bool) -> None:
            self.model.kept.append((float(state[0]), float(self.model.turn)))

    class Game(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1] = Writer(model=Notes())
            self.board = np.zeros((3, 1, 3), np.float32)

        def observe(self) -> Any:
            self.board[:] = self.turn  # one array, written again in each turn
            self.agents[1].model.turn = self.turn
            return self.board

        def apply_agent(self, index: int, actions: Any) -> Any:
            self.board[:] = -1.0
            return super().apply_agent(index, actions)

    game = Game(config=tiny())
    game.run_experiment(1)
    assert game.agents[1].model.kept
    assert all(saw == turn for saw, turn in game.agents[1].model.kept)


class Leaves(Line):
    """Calls sys.exit(0) in one turn."""

    def apply_agent(self, index: int, actions: Any) -> Any:
        if (self.epoch, self.turn) == (2, 3):
            sys.exit(0)
        return super().apply_agent(index, actions)


def test_f73_sys_exit_in_a_world_is_a_failure_with_its_place() -> None:
    with pytest.raises(WorldError, match=r"Leaves raised SystemExit: 0 in epoch 2, turn 3 \(seed 3\)"):
        Leaves(config=tiny()).run_experiment()


@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_f73_sys_exit_in_a_learner_is_a_failure_of_its_round(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from parallel_agents.algorithms.dqn import DQNLearner

    def leave(*_: Any) -> None:
        sys.exit(0)

    game = Line(config=tiny(parallel={"backend": backend, "num_workers": 1, "max_failures": 0}))
    game.prepare()
    monkeypatch.setattr(DQNLearner, "learn", leave)
    with pytest.raises(LearnerError, match=r"round 1 of agents .*SystemExit\(0\)"):
        game.run_experiment()


def test_f73_sys_exit_in_a_model_of_its_own_is_a_failure_too() -> None:
    class Quits(Chooses):
        def train_step(self) -> None:
            sys.exit(0)

    class Game(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1].model = Quits(0)

    with pytest.raises(LearnerError, match=r"called sys\.exit\(0\) in its train_step\(\), in round 1"):
        Game(config=tiny()).run_experiment()


def test_f16_a_mask_that_forbids_everything_is_refused() -> None:
    masks = np.ones((2, 1, 3), np.bool_)
    masks[1] = False
    greedy = Choice(Rule.EPSILON_GREEDY, sizes=(3,))
    with pytest.raises(ActionError, match="the action mask of agent 1 in world 0 forbids every action"):
        greedy(np.zeros((2, 1, 3), np.float32), np.zeros((2, 1, 2)), np.zeros(2), masks)


class Sleeps(Line):
    """A turn that never ends."""

    def begin_turn(self) -> None:
        if (self.epoch, self.turn) == (2, 4):
            hang_in_the_world()
        super().begin_turn()


def hang_in_the_world() -> None:
    time.sleep(600.0)


def test_f38_a_world_that_hangs_is_interrupted_and_reported_with_its_traceback(tmp_path: Path) -> None:
    game = Sleeps(config=tiny(parallel={"world_deadline": 0.3}))
    game.prepare().watchdog.folder = tmp_path
    with pytest.raises(DeadlineError, match=r"Sleeps has been at turn 4 of epoch 2 for more than 1\.3 s"):
        game.run_experiment()
    assert "in hang_in_the_world" in next(tmp_path.glob("stacks-*.txt")).read_text()


def test_f38_a_learner_that_hangs_inline_is_interrupted_and_its_round_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    from parallel_agents.algorithms.dqn import DQNLearner
    from tests.faults.test_learners import misbehaving, undisturbed

    game = Line(config=tiny(parallel={"round_deadline": 0.4}))
    game.prepare()
    monkeypatch.setattr(DQNLearner, "learn", misbehaving(1, hang_in_the_world))
    assert game.run_experiment()["digest"] == undisturbed()


def test_f38_a_slow_model_runs_into_its_deadline() -> None:
    class Slow(Chooses):
        slow = True

        def take_action(self, state: Any) -> Any:
            time.sleep(1.0)
            return 0

    class Game(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[2].model = Slow(0)

    with pytest.raises(DeadlineError, match="the model of agent_2 did not act within"):
        Game(config=tiny(parallel={"world_deadline": 0.05})).run_experiment()
    time.sleep(1.0)  # its thread cannot be ended, only awaited


def test_f44_agents_that_end_early_or_cannot_act_store_nothing() -> None:
    game = Line(config=tiny(world={"lives": True, "freezes": True}, experiment={"worlds": 2, "epochs": 4}))
    summary = game.run_experiment()
    kept = sum(len(agent.model.memory) for agent in game.agents)
    assert 0 < summary["transitions"] < 4 * 6 * 3 * 2
    assert kept == min(summary["transitions"], kept)
    objects = LineOfObjects(config=tiny(world={"lives": True, "freezes": True}, experiment={"worlds": 2, "epochs": 4}))
    assert objects.run_experiment()["digest"] == summary["digest"]


def test_f44_an_agent_that_joins_in_the_middle_is_refused() -> None:
    class Joins(Line):
        def begin_turn(self) -> None:
            super().begin_turn()
            if self.turn == 3:
                self.agents.append(Agent(model=self.make_model((3,), 3)))

    with pytest.raises(ParallelAgentsError, match="agents"):
        Joins(config=tiny()).run_experiment()
