"""The hooks that users write: called in the right order, the right number of times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_agents import Agent, Environment
from parallel_agents.algorithms import DQN
from parallel_agents.core.errors import ContractError, RunError
from parallel_agents.core.seeding import Purpose, generator
from tests.env.line_worlds import TINY, Field, Line, LineOfObjects, Walker, tiny


class Diary(LineOfObjects):
    """Records every call of a hook."""

    def __init__(self, world: Any = None, config: Any = None) -> None:
        self.lines: list[str] = []
        super().__init__(world, config)

    def setup_agents(self) -> None:
        self.lines.append("setup_agents")
        super().setup_agents()
        for agent in self.agents:
            for hook in ("start_epoch_action", "end_epoch_action"):
                setattr(agent.model, hook, self._noted(hook, getattr(agent.model, hook)))

    def _noted(self, name: str, hook: Any) -> Any:
        def noted(**given: Any) -> Any:
            self.lines.append(f"{name} {given['epoch']}")
            return hook(**given)

        return noted

    def populate_environment(self) -> None:
        self.lines.append(f"populate_environment {self.world.index}")
        super().populate_environment()

    def reset(self) -> None:
        self.lines.append(f"reset {self.world.index}")
        super().reset()

    def take_turn(self) -> None:
        self.lines.append(f"before turn {self.turn + 1}")
        super().take_turn()
        self.lines.append(f"after turn {self.turn}")

    def begin_turn(self) -> None:
        self.lines.append("begin_turn")
        super().begin_turn()

    def observe(self) -> Any:
        self.lines.append("observe")
        return super().observe()

    def apply_actions(self, actions: Any) -> Any:
        self.lines.append("apply_actions")
        return super().apply_actions(actions)

    @property
    def vectorised(self) -> bool:
        return False  # `observe` is overridden only to be written down


TURN = ["begin_turn", "observe", "apply_actions"]


def test_hooks_are_called_in_order_and_as_often_as_documented() -> None:
    game = Diary(config=tiny(experiment={"worlds": 2, "epochs": 2, "max_turns": 2}, world={"agents": 1}))
    assert game.lines == [line for w in (0, 1) for line in ("setup_agents", f"populate_environment {w}")]
    game.lines.clear()
    game.run_experiment()
    wanted = []
    for epoch in (1, 2):
        wanted += [f"start_epoch_action {epoch}"]
        wanted += [line for w in (0, 1) for line in (f"reset {w}", f"populate_environment {w}")]
        for turn in (1, 2):
            wanted += [f"before turn {turn}", *TURN, f"after turn {turn}"]
        wanted += ["observe", f"end_epoch_action {epoch}"]
    assert game.lines == wanted


def test_worlds_are_reset_every_epoch_without_autoreset_and_only_in_the_first_with_it() -> None:
    def resets(**experiment: Any) -> int:
        game = Diary(config=tiny(experiment={"worlds": 2, "epochs": 3, **experiment}))
        game.lines.clear()
        game.run_experiment()
        return sum(line.startswith("reset") for line in game.lines)

    assert resets() == 3 * 2
    assert resets(autoreset=True) == 2


def test_each_agent_is_reset_with_its_world() -> None:
    class Counted(Walker):
        resets = 0

        def reset(self) -> None:
            type(self).resets += 1

    class Game(LineOfObjects):
        walker = Counted

    Game(config=tiny(experiment={"worlds": 2, "epochs": 4})).run_experiment()
    assert Counted.resets == 4 * 2 * 3


def test_agents_do_not_act_in_a_turn_without_super_take_turn() -> None:
    class Lazy(Line):
        def take_turn(self) -> None:
            if self.prepare().loop.turn_number % 2:
                super().take_turn()

    summary = Lazy(config=tiny(experiment={"epochs": 2, "max_turns": 6})).run_experiment()
    assert summary["turns"] == 12
    assert summary["transitions"] == 2 * 3 * 3


def test_take_turn_outside_of_a_run_raises_before_and_after_it() -> None:
    class Own(Line):
        def take_turn(self) -> None:
            super().take_turn()

    game = Own(config=tiny())
    for _ in range(2):
        with pytest.raises(ContractError, match=r"take_turn\(\) was called outside of run_experiment\(\)"):
            game.take_turn()
        game.run_experiment()


def test_train_step_raises_during_a_run_and_trains_one_agent_outside_of_it() -> None:
    class Eager(Line):
        def take_turn(self) -> None:
            super().take_turn()
            self.agents[0].model.train_step()

    with pytest.raises(RunError, match=r"train_step\(\) was called while a run is on its way"):
        Eager(config=tiny()).run_experiment()
    game = Line(config=tiny())
    game.run_experiment()
    one, other = game.agents[0].model, game.agents[1].model
    before = [model.state["online"].clone() for model in (one, other)]
    assert np.isfinite(one.train_step())
    assert not one.state["online"].equal(before[0])
    assert other.state["online"].equal(before[1]), "that agent alone"


def test_a_run_that_goes_on_learns_from_direct_updates_made_in_between() -> None:
    game, untouched = Line(config=tiny()), Line(config=tiny())
    epochs = game.config.experiment.epochs
    game.run_experiment()
    untouched.run_experiment()
    game.agents[0].model.train_step()
    trained = game.agents[0].model.state["updates"].item()
    game.run_experiment(epochs + game.config.parallel.train_interval)
    untouched.run_experiment(epochs + game.config.parallel.train_interval)
    found, other = (own.agents[0].model.state["updates"].item() for own in (game, untouched))
    assert found == other + 1 > trained, "the direct update counts, and so do those of the next round"
    online = [own.agents[0].model.state["online"] for own in (game, untouched)]
    assert not online[0].equal(online[1])


def test_total_reward_is_the_sum_of_all_rewards() -> None:
    rewards_per_epoch: list[Any] = []

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            return (lambda stats: rewards_per_epoch.append(stats.rewards)) if name == "on_epoch" else (lambda *_: None)

    game = LineOfObjects(config=tiny(experiment={"worlds": 2}, world={"lives": True}))
    summary = game.run_experiment(callbacks=[Recorder()])
    total = sum(game.copies_of(0)[w].field.total_reward for w in (0, 1))
    assert total == pytest.approx(float(np.sum(rewards_per_epoch)) * 2)
    assert summary["mean_reward"] == pytest.approx(float(np.mean(rewards_per_epoch)))
    vectorised = Line(config=tiny(experiment={"worlds": 2}, world={"lives": True}))
    vectorised.run_experiment()
    assert vectorised.world.total_reward == pytest.approx(total)


def test_create_world_is_called_per_episode_and_is_done_ends_the_epoch() -> None:
    class Grid(Field):
        def __init__(self) -> None:
            super().__init__()
            self.made, self.is_done = 0, False

        def create_world(self) -> None:
            self.made += 1

    class Ender(Walker):
        def act(self, world: Any, action: Any) -> float:
            world.is_done = world.age >= 2
            return 1.0

        is_done = Agent.is_done

    class Game(LineOfObjects):
        walker = Ender

    world = Grid()
    summary = Game(world, tiny(experiment={"epochs": 3})).run_experiment()
    assert world.made == 1 + 3
    assert summary["turns"] == 3 * 2, "each epoch ends when the world says so"


def test_each_world_and_epoch_has_random_numbers_of_its_own_that_repeat() -> None:
    class Dice(LineOfObjects):
        def populate_environment(self) -> None:
            super().populate_environment()
            self.rolls = getattr(self, "rolls", [])
            self.rolls.append((self.epoch, self.world.index, self.rng.random()))

    first, again = (Dice(config=tiny(experiment={"worlds": 2, "epochs": 2})) for _ in range(2))
    first.run_experiment()
    again.run_experiment()
    assert first.rolls == again.rolls
    assert len({roll for *_, roll in first.rolls}) == len(first.rolls) == 3 * 2


def test_a_plain_environment_is_sequential_and_takes_train_interval_as_a_keyword() -> None:
    class Plain(Environment):
        default_config = Line.default_config
        setup_agents = Line.setup_agents
        reset_worlds = Line.reset_worlds
        begin_turn = Line.begin_turn
        observe = Line.observe
        can_act = Line.can_act
        apply_agent = Line.apply_agent
        _move = Line._move
        dones = Line.dones

    sections = {name: values for name, values in tiny().items() if name != "parallel"}
    plain = Plain(config=sections)
    assert plain.config.parallel.enabled is False
    assert plain.run_experiment()["backend"] == "inline"
    assert Plain(config=sections, train_interval=2).config.parallel.train_interval == 2


def test_agents_with_different_learning_rates_share_a_stack() -> None:
    class Own(Line):
        def setup_agents(self) -> None:
            super().setup_agents()
            for rank, agent in enumerate(self.agents):
                agent.model = DQN((3,), 3, **{**TINY, "lr": 1e-3 * (rank + 1)})

    game = Own(config=tiny())
    game.run_experiment()
    assert len(game.prepare().group.stacks) == 1, "values may differ between the rows of a stack"
    assert [float(agent.model.state["hyper.lr"][0]) for agent in game.agents] == [1e-3, 2e-3, 3e-3]


def test_every_world_has_a_generator_of_its_own_that_goes_on_until_the_next_epoch() -> None:
    game = Line(config=tiny(experiment={"worlds": 3, "seed": 4}))
    game.begin_epoch(2)
    expected = [generator(4, Purpose.WORLD, world=world, epoch=2).random(2).tolist() for world in range(3)]
    assert len(game.streams) == 3
    assert [[own.random() for _ in range(2)] for own in game.streams] == expected
    assert game.streams[-1] is game.streams[2] is list(game.streams)[2] is game.streams[1:][1]
    assert game.rng is game.streams[0]
    with pytest.raises(IndexError):
        game.streams[3]
    old = game.streams[1]
    game.begin_epoch(3)
    assert game.streams[1] is not old
    with pytest.raises(ContractError, match=r"Line assigns self\.rng.*another name"):
        game.rng = np.random.default_rng(0)
