"""Ends of episodes: which agents act, and what is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.core.errors import ContractError
from tests.env.line_worlds import Line, LineOfObjects, Walker, tiny


class Script(ParallelEnvironment):
    """Observes ten times the episode plus its turn; ends and frozen agents are class attributes."""

    agents_wanted = 2
    ends: dict[tuple[int, int], int] = {}
    """(agent, world) -> turn of the episode with which it ends; else never"""
    cut = False
    """True: an end is a truncation"""
    frozen: tuple[tuple[int, int], ...] = ()
    """(agent, turn of the episode) in which it cannot act"""

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model((1,), 2)) for _ in range(self.agents_wanted)]
        self.episodes, self.ages = np.zeros(self.n_worlds, int), np.zeros(self.n_worlds, int)

    def reset_worlds(self, which: Any) -> None:
        self.episodes[which] += 1
        self.ages[which] = 0

    def begin_turn(self) -> None:
        self.ages[self.active] += 1

    def observe(self) -> Any:
        seen = 10 * self.episodes + self.ages
        return np.repeat(seen[None, :, None], self.agents_wanted, axis=0).astype(np.float32)

    def can_act(self) -> Any:
        able = np.ones((self.agents_wanted, self.n_worlds), bool)
        for agent, turn in self.frozen:
            able[agent] &= self.ages != turn
        return able

    def apply_actions(self, actions: Any) -> Any:
        return np.repeat(self.ages[None], self.agents_wanted, axis=0)

    def dones(self) -> Any:
        over = np.zeros((self.agents_wanted, self.n_worlds), bool)
        for (agent, world), turn in self.ends.items():
            over[agent, world] = self.ages[world] >= turn
        nothing = np.zeros_like(over)
        return (nothing, over) if self.cut else (over, nothing)


def played(kind: type[Script], *, epochs: int = 1, **experiment: Any) -> tuple[Any, dict[str, Any], list[Any]]:
    """Run it; return the environment, the summary, and what each agent has stored."""
    sizes = {"epochs": epochs, "max_turns": 6, **experiment}
    game = kind(config=tiny(experiment=sizes, parallel={"train_interval": 100}, model={"buffer_size": 200}))
    summary = game.run_experiment()
    ring = game.prepare().group.stacks[0].ring
    return game, summary, [ring.live(row) for row in range(game.agents_wanted)]


def column(kept: Any, name: str, world: int = 0) -> list[Any]:
    values = kept[name][:, world]
    return list((values[:, 0] if values.ndim == 2 else values).tolist())


def led_to(kept: Any) -> dict[int, int]:
    """Return, for each turn with an action, the turn of the next observation."""
    seen, follow, valid = kept["observations"][:, 0, 0] - 10, kept["follow"][:, 0], kept["valid"][:, 0]
    return {int(seen[p]): int(seen[p + follow[p]]) for p in np.flatnonzero(valid)}


def test_the_end_of_an_epoch_is_stored_as_a_truncation() -> None:
    _, summary, (kept, _) = played(Script, epochs=2)
    assert summary["turns"] == 12
    assert column(kept, "valid") == ([True] * 6 + [False]) * 2
    assert column(kept, "terminated") == [False] * 14
    assert column(kept, "truncated") == ([False] * 5 + [True, False]) * 2
    assert column(kept, "observations") == [11, 12, 13, 14, 15, 16, 16, 21, 22, 23, 24, 25, 26, 26]


def test_a_termination_is_stored_in_its_turn_and_the_epoch_ends_with_the_last_one() -> None:
    class Ends(Script):
        ends = {(0, 0): 2, (1, 0): 4}

    game, summary, (early, late) = played(Ends)
    assert summary["turns"] == 4
    assert summary["transitions"] == 2 + 4
    assert column(early, "valid")[:4] == [True, True, False, False]
    assert column(early, "terminated")[:4] == [False, True, False, False]
    assert column(early, "rewards")[:2] == [1.0, 2.0], "what is earned after the end is nobody's"
    assert column(late, "terminated")[:4] == [False, False, False, True]
    assert not early["truncated"].any()
    assert not late["truncated"].any()
    assert game.world.total_reward == (1 + 2) + (1 + 2 + 3 + 4)


def test_a_truncation_by_the_environment_is_stored_as_a_truncation() -> None:
    class Cut(Script):
        ends = {(0, 0): 2, (1, 0): 2}
        cut = True

    _, summary, (kept, _) = played(Cut)
    assert summary["turns"] == 2
    assert column(kept, "truncated")[:2] == [False, True]
    assert not kept["terminated"].any()


def test_worlds_that_end_early_idle_until_the_last_one_ends() -> None:
    class Worlds(Script):
        ends = {(a, w): turn for a in (0, 1) for w, turn in enumerate((2, 5, 3))}

    game, summary, (kept, _) = played(Worlds, worlds=3)
    assert summary["turns"] == 5
    assert summary["transitions"] == 2 * (2 + 5 + 3)
    assert kept["valid"].sum(axis=0).tolist() == [2, 5, 3]
    assert game.ages.tolist() == [2, 5, 3], "a world that has ended is not moved on"


def test_with_autoreset_the_turn_after_an_end_stores_no_transition_and_restarts_the_world() -> None:
    class Ends(Script):
        ends = {(0, 0): 2, (1, 0): 2, (0, 1): 4, (1, 1): 4}

    game, summary, (kept, _) = played(Ends, epochs=2, autoreset=True, worlds=2)
    assert summary["turns"] == 12, "an epoch is exactly max_turns turns"
    assert column(kept, "observations") == [11, 12, 12, 21, 22, 22, 31, 32, 32, 41, 42, 42]
    assert column(kept, "valid") == [True, True, False] * 4
    assert column(kept, "terminated") == [False, True, False] * 4
    assert column(kept, "valid", world=1) == [True] * 4 + [False] + [True] * 4 + [False] + [True] * 2
    assert column(kept, "observations", world=1)[4:7] == [14, 21, 22], "an episode crosses the epochs"
    assert column(kept, "age") == [0, 1, 2] * 4, "what came before an episode is none of its frames"
    assert not kept["truncated"].any(), "the end of an epoch is no end of an episode"
    assert game.episodes.tolist() == [5, 3]


def test_with_autoreset_an_agent_that_ends_early_waits_for_its_world() -> None:
    class Ends(Script):
        ends = {(0, 0): 1, (1, 0): 3}

    _, summary, (early, late) = played(Ends, autoreset=True, epochs=2, max_turns=4)
    assert column(early, "valid") == [True, False, False, False] * 2
    assert column(late, "valid") == [True, True, True, False] * 2
    assert summary["transitions"] == 2 * (1 + 3)


def test_autoreset_without_reset_worlds_raises_if_there_are_several_worlds() -> None:
    class Whole(Script):
        ends = {(a, 0): 2 for a in (0, 1)}
        reset_worlds = ParallelEnvironment.reset_worlds

        def reset(self) -> None:
            self.ages[:] = 0

    with pytest.raises(ContractError, match=r"Whole.reset_worlds\(which\) is missing: it is needed for autoreset"):
        played(Whole, autoreset=True, worlds=2)
    _, summary, _ = played(Whole, autoreset=True, worlds=1)
    assert summary["turns"] == 6


def test_an_agent_that_cannot_act_stores_nothing_and_its_rewards_go_to_its_last_action() -> None:
    class Freezes(Script):
        frozen = ((0, 3), (0, 4), (1, 1))

    _, summary, (kept, other) = played(Freezes)
    assert column(kept, "valid")[:6] == [True, True, False, False, True, True]
    assert [r for r, v in zip(column(kept, "rewards"), column(kept, "valid"), strict=True) if v] == [1, 2 + 3 + 4, 5, 6]
    assert column(other, "valid")[:6] == [False] + [True] * 5
    assert summary["transitions"] == 4 + 5
    assert led_to(kept) == {1: 2, 2: 5, 5: 6, 6: 6}


def test_an_end_while_an_agent_cannot_act_is_stored_with_its_last_action() -> None:
    class Ends(Script):
        frozen = ((0, 3),)
        ends = {(0, 0): 3, (1, 0): 3}

    _, _, (kept, _) = played(Ends)
    assert column(kept, "valid")[:3] == [True, True, False]
    assert column(kept, "terminated")[:3] == [False, True, False]


class Ghost(Walker):
    """Records the turns in which it acts."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.acted: list[int] = []

    def act(self, world: Any, action: Any) -> float:
        self.acted.append(world.age)
        return super().act(world, action)


@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
def test_act_is_not_called_after_the_end_of_an_agents_episode(order: str) -> None:
    class Game(LineOfObjects):
        walker = Ghost

    config = tiny(
        experiment={"epochs": 1, "max_turns": 12, "worlds": 2}, world={"lives": True}, parallel={"turn_order": order}
    )
    game = Game(config=config)
    game.run_experiment()
    lives = [[agent.life for agent in game.copies_of(i)] for i in range(3)]
    assert len({life for own in lives for life in own}) > 1
    for i in range(3):
        for agent in game.copies_of(i):
            assert agent.acted == list(range(1, agent.life + 1))


class Jailer(Walker):
    """Agent 0 freezes the others with its first action."""

    def can_act(self) -> bool:
        return self.number == 0 or not getattr(self.field, "frozen", False)

    def act(self, world: Any, action: Any) -> float:
        world.acts = [*getattr(world, "acts", []), (world.age, self.number)]
        world.frozen = True
        return 0.0


@pytest.mark.parametrize(("order", "first_turn"), [("simultaneous", [0, 1, 2]), ("sequential", [0])])
def test_only_actions_that_were_carried_out_are_stored_when_agents_freeze_each_other(
    order: str, first_turn: list[int]
) -> None:
    class Game(LineOfObjects):
        walker = Jailer

    game = Game(config=tiny(experiment={"epochs": 1, "max_turns": 3}, parallel={"turn_order": order}))
    summary = game.run_experiment()
    assert game.world.acts == [(1, number) for number in first_turn] + [(2, 0), (3, 0)]
    assert summary["transitions"] == len(game.world.acts)
    assert [len(agent.model.memory) for agent in game.agents] == [3, *(int(n in first_turn) for n in (1, 2))]


def test_a_buffer_snapshot_has_the_end_in_its_last_transition() -> None:
    game = Line(config=tiny(experiment={"epochs": 1, "max_turns": 12}, world={"lives": True}))
    game.run_experiment()
    for index, agent in enumerate(game.agents):
        kept = agent.model.memory.get_buffer_snapshot()
        assert kept["size"] == game.lives[index, 0]
        assert kept["dones"].tolist() == [False] * (kept["size"] - 1) + [True]


class Paying(ParallelEnvironment):
    """Agent i earns i + 1 each turn; with `shares`, half of it goes to agent 0."""

    shares = False

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model((1,), 2)) for _ in range(3)]

    def reset_worlds(self, which: Any) -> None:
        pass

    def observe(self) -> Any:
        return np.zeros((3, self.n_worlds, 1), np.float32)

    def apply_agent(self, index: int, actions: Any) -> Any:
        if not self.shares:
            return np.full(self.n_worlds, index + 1.0, np.float32)
        everybody = np.zeros((3, self.n_worlds), np.float32)
        everybody[index] += 0.5 * (index + 1)
        everybody[0] += 0.5 * (index + 1)
        return everybody


@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
@pytest.mark.parametrize(("shares", "earned"), [(False, [1.0, 2.0, 3.0]), (True, [3.5, 1.0, 1.5])])
def test_every_agent_gets_its_reward_in_its_turn(order: str, shares: bool, earned: list[float]) -> None:
    kind = type("Paying", (Paying,), {"shares": shares})
    sections = {"experiment": {"epochs": 1, "max_turns": 4, "worlds": 2}, "parallel": {"turn_order": order}}
    if shares and order == "simultaneous":
        pytest.skip("what one earns for others is told turn by turn")
    game = kind(config=tiny(**sections))
    game.run_experiment()
    for index, agent in enumerate(game.agents):
        ring = agent.model.memory.ring
        kept = ring.rewards[0][ring.valid[0]]
        assert kept.tolist() == [earned[index]] * 8, index
