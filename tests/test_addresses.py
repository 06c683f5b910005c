"""No random number is drawn twice: not in another round, pass, update, episode, world or agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.core.config import merge
from parallel_agents.core.seeding import Purpose, generator, uniforms
from parallel_agents.env import Environment
from parallel_agents.env.adapters.gymnasium import gymnasium_environment
from tests.addresses import recorded
from tests.env.line_worlds import Line, tiny

ROOT = Path(__file__).parents[1]
SEED = 3
PURPOSES = {
    "dqn": {Purpose.INIT, Purpose.ACT, Purpose.SAMPLE, Purpose.WORLD},
    "iqn": {Purpose.INIT, Purpose.ACT, Purpose.SAMPLE, Purpose.WORLD, Purpose.QUANTILE, Purpose.NOISE},
    "ppo": {Purpose.INIT, Purpose.ACT, Purpose.PERMUTATION, Purpose.WORLD},
}
IQN = {
    "algorithm": "iqn", "layer": 6, "quantiles": 3, "n_frames": 2, "batch_size": 4, "learning_starts": 4,
    "kernels": "torch",  # compiled rounds draw by the same functions, where nobody can record them
}  # fmt: skip
PPO = {"algorithm": "ppo", "hidden": (5,), "n_epochs": 3, "n_minibatches": 2}
CLASSES: dict[str, Any] = {"importance": {}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("dqn", {}),
    "dqn, prioritised": ("dqn", {"priority_alpha": 0.6}),
    "dqn, by event class": ("dqn", CLASSES),
    "dqn, recurrent": ("dqn", {"recurrent": True, "sequence": 3}),
    "iqn": ("iqn", IQN),
    "iqn, steps of several batches": ("iqn", {**IQN, "max_accumulated_batches": 4, "updates_per_round": 6}),
    "ppo": ("ppo", PPO),
    "ppo, recurrent": ("ppo", {**PPO, "recurrent": True, "sequence": 3}),
}


def config(model: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    base = tiny(**sections)
    if "algorithm" in model:
        base["model"] = {}
    return merge(base, {"model": model})


def run(cls: type[Environment], overrides: dict[str, Any]) -> dict[str, Any]:
    return cls(config=merge({"experiment": {"seed": SEED}}, overrides)).run_experiment()


@pytest.mark.parametrize("name", CASES)
def test_no_draw_of_a_run_is_repeated(name: str) -> None:
    algorithm, model = CASES[name]
    with recorded() as addresses:
        summary = run(Line, config(model, experiment={"epochs": 8, "max_turns": 6, "worlds": 2}))
    assert summary["updates"] > 0
    assert addresses.repeated(SEED) == []
    assert set(addresses.of(SEED)) == PURPOSES[algorithm]


def test_ppo_by_event_class_draws_samples_instead_of_permutations() -> None:
    with recorded() as addresses:
        run(Line, config({**PPO, **CLASSES}, experiment={"epochs": 8, "max_turns": 6}))
    assert addresses.repeated(SEED) == []
    assert set(addresses.of(SEED)) == {Purpose.INIT, Purpose.ACT, Purpose.SAMPLE, Purpose.WORLD}


@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
def test_no_draw_is_repeated_with_autoreset(order: str) -> None:
    overrides = config(
        {},
        world={"lives": True},
        experiment={"autoreset": True, "worlds": 3, "max_turns": 9},
        parallel={"turn_order": order},
    )
    with recorded() as addresses:
        run(Line, overrides)
    assert addresses.repeated(SEED) == []
    starts = {(address[4], address[3]) for address in addresses.of(SEED)[Purpose.WORLD]}
    assert len(starts) > 3  # (epoch, turn) of fresh episodes


@pytest.mark.parametrize("autoreset", [False, True])
def test_no_draw_is_repeated_in_gymnasium_worlds(autoreset: bool) -> None:
    cls = gymnasium_environment("CartPole-v1")
    sections = {
        "experiment": {"autoreset": autoreset, "worlds": 3, "epochs": 4, "max_turns": 40},
        "parallel": {"parallel_actions": False},  # turn by turn; compiled epochs draw the same numbers in a kernel
    }
    with recorded() as addresses:
        run(cls, config({}, **sections))
    assert addresses.repeated(SEED) == []
    assert len(addresses.of(SEED)[Purpose.WORLD]) >= 3 + autoreset


def test_no_draw_is_repeated_in_replicas() -> None:
    with recorded() as addresses:
        run(Line, config(IQN, experiment={"epochs": 4, "seeds": 3}))
    for seed in range(SEED, SEED + 3):
        assert addresses.repeated(seed) == []
        assert set(addresses.of(seed)) == PURPOSES["iqn"]


def test_an_evaluation_shares_no_draw_with_training_and_repeats_none() -> None:
    game = Line(config=config({}, experiment={"epochs": 2, "worlds": 2}))
    with recorded() as addresses:
        game.run_experiment()
        trained = set(addresses.of(SEED)[Purpose.ACT])
        game.evaluate(episodes=4)
    seeds = {address[0] for address in addresses.blocks} - {0, SEED}
    assert len(seeds) == 1  # its own
    assert addresses.repeated(seeds.pop()) == []
    assert addresses.repeated(SEED) == []
    assert set(addresses.of(SEED)[Purpose.ACT]) == trained


@pytest.mark.parametrize("name", ["dqn", "iqn", "ppo"])
def test_no_draw_of_a_run_is_repeated_by_direct_calls(name: str) -> None:
    with recorded() as addresses:
        model = {**PPO, "n_epochs": 1, "n_minibatches": 1} if name == "ppo" else CASES[name][1]  # an update a round
        game = Line(config=config(model, experiment={"epochs": 12}))
        game.run_experiment()
        learner = game.agents[0].model
        for _ in range(3):
            if name == "ppo":
                step = {**learner.decide([0.0, 1.0, 2.0]), "states": [0.0, 1.0, 2.0], "rewards": 1.0, "dones": True}
                learner.update_policy({key: np.array([value] * 4) for key, value in step.items()})
            else:
                learner.take_action([0.0, 1.0, 2.0])
                learner.train_step()
    assert addresses.repeated(SEED) == []


GAMES = ("treasure_hunt", "coins", "iowa", "prisoners_dilemma", "stag_hunt", "tag")


def test_no_draw_is_repeated_by_the_kernels_of_games() -> None:
    """Cleanup and commons harvest are left out: their windows turn with the agent and count with unsigned numbers that only wrap around when compiled."""
    command = [sys.executable, "-m", "tests.uncompiled_draws", *GAMES]
    variables = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr
    games = json.loads(ended.stdout)
    assert {name: own["repeated"] for name, own in games.items()} == {name: [] for name in GAMES}
    assert all(own["read"] >= 40 for own in games.values())


# -- the recorder itself --------------------------------------------------------------------------------------


def test_the_recorder_notes_every_block_that_was_read() -> None:
    with recorded() as addresses:
        draws = generator(SEED, Purpose.NOISE, agent=2, world=1, epoch=4, turn=5)
        draws.random(5)  # two blocks of four
        uniforms([SEED], Purpose.ACT, [1], [0, 7], epoch=2, turns=3, slots=2)
    drawn = addresses.of(SEED)
    assert {address[2:] for address in drawn[Purpose.NOISE]} == {(0, 5, 4, 1), (1, 5, 4, 1)}
    assert {address[2:] for address in drawn[Purpose.ACT]} == {
        (0, turn, 2, world) for turn in range(3) for world in (0, 7)
    }
    assert addresses.repeated(SEED) == []


def test_the_recorder_notes_a_repetition() -> None:
    with recorded() as addresses:
        generator(SEED, Purpose.NOISE).random(1)
        generator(SEED, Purpose.NOISE).random(9)
        generator(SEED, Purpose.NOISE)  # not read: no repetition
    assert addresses.repeated(SEED) == ["NOISE agent 0 world 0 epoch 0 turn 0 block 0: 2 times"]
    assert np.random.Philox.__name__ == "Philox"
