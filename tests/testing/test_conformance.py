"""The conformance suite finds what is broken, says how to fix it, and passes sound environments and buffers."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from parallel_agents import Buffer
from parallel_agents.cli import main
from parallel_agents.core.errors import ContractError
from parallel_agents.testing import check_buffer, check_environment, no_global_generators
from parallel_agents.testing import conformance as suite
from tests.env.line_worlds import CELLS, TINY, Line, LineOfObjects
from tests.equivalence.worlds import Odd

SMALL: dict[str, Any] = {"experiment": {"max_turns": 6}, "model": TINY}
CHECKS: dict[str, Callable[..., str]] = {
    "shapes": suite._shapes,
    "dones": suite._dones,
    "pure": suite._observe_is_pure,
    "actions": suite._actions_only_read,
    "seeding": suite._seeding,
    "generators": suite._generators,
    "worlds differ": suite._worlds_differ,
    "buffers": suite._buffers,
    "modes": partial(suite._modes, backends=("inline", "thread")),
    "compiled": suite._compiled,
    "state": suite._state,
    "resume": suite._resume,
}


def found(check: str, kind: Any, **sections: Any) -> suite.Finding:
    """Return the finding of one check of an environment."""
    return suite._run(check, partial(CHECKS[check], suite._Suite(kind, {**SMALL, **sections}, 4)))


@pytest.mark.parametrize("kind", [Line, LineOfObjects])
def test_a_sound_environment_passes_every_check(kind: Any) -> None:
    findings = check_environment(kind, SMALL, epochs=4)
    assert [str(finding) for finding in findings if not finding.passed] == []
    assert len(findings) == 1 + len(CHECKS)


def test_a_sound_environment_with_autoreset_passes_every_check() -> None:
    findings = check_environment(Odd, {"experiment": {"autoreset": True}}, epochs=4)
    assert [str(finding) for finding in findings if not finding.passed] == []


class Shrinks(Line):
    def observe(self) -> Any:
        seen = super().observe()
        return seen if self.turn < 3 else seen[..., :2]


class BothEnds(Line):
    def dones(self) -> Any:
        ended = np.ones(self.places.shape, np.bool_) & (self.turn == 4)
        return ended, ended


class NumbersAsDones(Line):
    def dones(self) -> Any:
        return np.zeros(self.places.shape), np.zeros(self.places.shape)


class WritesActions(Line):
    def apply_actions(self, actions: Any) -> Any:
        earned = super().apply_actions(actions)
        actions[:] = 0
        return earned


class MovesWhenSeen(Line):
    def observe(self) -> Any:
        self.goals = (self.goals + 1) % CELLS
        return super().observe()


class GlobalDraws(Line):
    def begin_turn(self) -> None:
        self.goals[:] = np.random.randint(CELLS)


class PythonDraws(Line):
    def begin_turn(self) -> None:
        self.goals[:] = random.randrange(CELLS)


class Clock(Line):
    def begin_turn(self) -> None:
        self.goals[:] = time.perf_counter_ns() // 100 % CELLS


class LateClock(Line):
    """Depends on the clock in a single turn, which a test of the first step would miss."""

    def apply_agent(self, index: int, actions: Any) -> Any:
        late = self.epoch == 3 and self.turn == 5
        return super().apply_agent(index, actions) + (time.perf_counter_ns() % 97 if late else 0)


class SharedSeed(Line):
    def reset_worlds(self, which: Any) -> None:
        super().reset_worlds(which)
        self.places[:] = self.places[:, :1]
        self.goals[:] = self.goals[:1]


class NeverActs(Line):
    def can_act(self) -> Any:
        return np.zeros(self.places.shape, np.bool_)


class Counts(Line):
    made: ClassVar[Any] = itertools.count()

    def setup_agents(self) -> None:
        super().setup_agents()
        self.number = next(self.made)

    def apply_agent(self, index: int, actions: Any) -> Any:
        return super().apply_agent(index, actions) + self.number


class CarriesOver(Line):
    """Carries a sum from epoch to epoch that is not in a checkpoint."""

    mood = 0.0

    def apply_agent(self, index: int, actions: Any) -> Any:
        rewards = super().apply_agent(index, actions)
        self.mood += float(rewards.sum())
        return rewards + self.mood


class Forgets(Odd):
    def state(self) -> Any:
        return {"place": self.place}

    def load_state(self, state: Any) -> None:
        self.place = state["place"] * 0
        self.dead = np.zeros(self.place.shape[:2], np.bool_)


class ForgetsTheDead(Odd):
    def state(self) -> Any:
        return {"place": self.place}

    def load_state(self, state: Any) -> None:
        self.place = state["place"].copy() + 0
        self.dead = np.zeros(self.place.shape[:2], np.bool_)


class GivesWords(Odd):
    def state(self) -> Any:
        return {"place": np.array(["here", "there"])}


@pytest.mark.parametrize(
    ("check", "kind", "detail", "advice"),
    [
        ("shapes", Shrinks, "has shape (1, 2), wanted is (worlds, *obs) = (1, 3)", "message above"),
        ("dones", BothEnds, "both terminated and was truncated", "came to its own end"),
        ("dones", NumbersAsDones, "types ['float64', 'float64']", "two boolean arrays"),
        ("actions", WritesActions, "wrote into the actions it was given", "actions = actions.copy()"),
        ("pure", MovesWhenSeen, "when it was called a second time", "observe() must change nothing"),
        ("seeding", GlobalDraws, "two runs with the same seed differ in epoch 1", "self.rng"),
        ("seeding", Clock, "two runs with the same seed differ in epoch 1", "no clock"),
        ("seeding", LateClock, "differ in epoch 3, turn 5: apply_", "no clock"),
        ("generators", GlobalDraws, "np.random.randint() draws from a generator that everybody shares", "self.rng"),
        ("generators", PythonDraws, "random.randrange() draws from a generator that everybody shares", "self.streams"),
        ("worlds differ", SharedSeed, "three worlds start alike in every epoch", "self.streams[w]"),
        ("buffers", NeverActs, "no agent has kept a single transition", "can_act()"),
        ("modes", Counts, "the results are not those of parallel.enabled = false", "no counters of calls"),
        (
            "resume",
            CarriesOver,
            "4 epochs with a resume after each are not 4 epochs",
            "reset() must set everything anew",
        ),
    ],
)
def test_a_broken_environment_fails_with_a_detail_and_advice(check: str, kind: Any, detail: str, advice: str) -> None:
    finding = found(check, kind)
    assert not finding.passed
    assert detail in finding.detail
    assert advice in finding.advice
    assert str(finding).startswith("FAILED")


@pytest.mark.parametrize(
    ("check", "kind", "detail"),
    [
        ("state", Line, "they are missing"),
        ("state", Forgets, "state() gives another 'place'"),
        ("state", GivesWords, "which is no array of numbers"),
        ("resume", Forgets, "4 epochs with a resume after each are not 4 epochs"),
    ],
)
def test_an_incomplete_state_fails(check: str, kind: Any, detail: str) -> None:
    autoreset = {"experiment": {"max_turns": 6, "autoreset": True}}
    finding = found(check, kind, **autoreset, model={})
    assert not finding.passed
    assert detail in finding.detail


def test_an_environment_that_cannot_be_constructed_gives_a_single_finding() -> None:
    class Needs(Line):
        def __init__(self, size: int, config: Any = None) -> None:
            super().__init__(config=config)

    (finding,) = check_environment(Needs)
    assert (finding.check, finding.passed) == ("construction", False)
    assert "size" in finding.detail


# -- buffers and global generators ---------------------------------------------------------------------------------------


class Endless(Buffer):
    def __len__(self) -> int:
        return 10**6


class Live(Buffer):
    def get_buffer_snapshot(self) -> Any:
        return {"rewards": self.ring.rewards}


class Reversed(Buffer):
    def get_buffer_snapshot(self) -> Any:
        return {"rewards": super().get_buffer_snapshot()["rewards"][::-1]}


class Trusting(Buffer):
    def add(self, obs: Any, action: Any, reward: float, done: bool, **extras: Any) -> None:
        super().add(np.nan_to_num(obs), action, float(np.nan_to_num(reward)), done, **extras)


@pytest.mark.parametrize(
    ("kind", "check"),
    [(Endless, "bounded"), (Live, "snapshots are frozen"), (Reversed, "oldest first, newest kept"),
     (Trusting, "not finite is refused"), (Endless, "empty at first")],
)  # fmt: skip
def test_a_broken_buffer_fails_the_check(kind: Any, check: str) -> None:
    findings = {finding.check: finding for finding in check_buffer(lambda: kind(8, (2,)), (2,), capacity=8)}
    assert not findings[check].passed


def test_no_global_generators_raises_and_restores_the_functions_afterwards() -> None:
    before = random.random, np.random.rand
    with pytest.raises(ContractError, match=r"np\.random\.rand\(\) draws"), no_global_generators():
        np.random.rand()
    assert (random.random, np.random.rand) == before


def test_a_generator_with_a_seed_of_its_own_is_not_a_global_one() -> None:
    """As in environments of PettingZoo, whose `reset` is given a seed."""
    expected = np.random.default_rng(3).random()
    with no_global_generators():
        assert np.random.default_rng(3).random() == np.random.default_rng(seed=3).random() == expected
        for given in ((), (None,)):
            with pytest.raises(ContractError, match=r"np\.random\.default_rng\(\) draws"):
                np.random.default_rng(*given)


# -- the command ---------------------------------------------------------------------------------------------

GAME = """
import numpy as np
from tests.env.line_worlds import Line as Base, TINY


class Game(Base):
    default_config = {"world": {**Base.default_config["world"], "fair": True}, "model": TINY,
                      "experiment": {"max_turns": 5}}

    def begin_turn(self):
        super().begin_turn()
        if not self.config.world["fair"]:
            self.goals[:] = np.random.randint(7)
"""


def test_the_command_prints_findings_and_its_exit_code_says_whether_all_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "game.py").write_text(GAME)
    assert main(["check", str(tmp_path / "game.py"), "--epochs", "3"]) == 0
    assert "13 of 13 checks passed" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "game.py"), "--epochs", "3", "--json", "--set", "world.fair=false"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["passed"] is False
    failed = {finding["check"] for finding in result["findings"] if not finding["passed"]}
    assert {"seeding over whole episodes", "global generators"} <= failed
    assert all(finding["advice"] for finding in result["findings"] if not finding["passed"])


class Depends(Line):
    """Changes its rules if the run is parallel."""

    def begin_turn(self) -> None:
        super().begin_turn()
        if self.config.parallel.enabled:
            self.goals[:] = 0


def test_asap_publication_does_not_hide_a_dependence_on_the_mode() -> None:
    finding = found("modes", Depends, parallel={"publish": "asap"})
    assert finding.passed is False
    assert "the results are not those of parallel.enabled = false" in finding.detail


class Unknown(Line):
    """An agent whose model learns and has no state_dict()."""

    def setup_agents(self) -> None:
        super().setup_agents()
        self.agents[1].model = _Secret()


class _Secret:
    def take_action(self, state: Any) -> int:
        return 1

    def train_step(self) -> float:
        return 0.0


@pytest.mark.parametrize("check", ["modes", "resume"])
def test_a_check_without_a_digest_is_not_checked_rather_than_passed(check: str) -> None:
    finding = found(check, Unknown)
    assert finding.passed is None
    assert str(finding).startswith(f"not checked {check}: the model of agent_1 (_Secret) can learn or remember")


def test_the_command_counts_checks_that_could_not_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    game = "tests.testing.test_conformance:Unknown"
    assert main(["check", game, "--epochs", "2", "--set", "experiment.max_turns=4"]) == 1
    assert "11 of 13 checks passed, 2 could not be made" in capsys.readouterr().out
    assert main(["check", game, "--epochs", "2", "--set", "experiment.max_turns=4", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["passed"] is False
    assert [own["check"] for own in result["findings"] if own["passed"] is None] == [
        "equality of modes",
        "exact resume",
    ]
