"""Grid games without learning: what a turn costs the worlds alone, and what it costs with acting and remembering.

The ratio is agent-steps per second at W worlds over those at one world, on one core; the goal is 20 at 256 worlds.

Treasure hunt alone falls short of it, since one world costs so little already that more of them can save only
calls. A turn of 8 agents (µs, on one core of two that were never quite idle):

|               | worlds | appear | see | act | whole | ratio    |
|---------------|--------|--------|-----|-----|-------|----------|
| treasure hunt |      1 |    1.7 | 1.2 | 4.3 |   7.4 |          |
| treasure hunt |    256 |     29 |  53 |  30 |   112 | 14 to 20 |
| cleanup       |      1 |     14 | 1.8 |  18 |    34 |          |
| cleanup       |    256 |     75 | 214 | 136 |   437 | 18 to 28 |

Half of treasure hunt's turn is what 2048 agents see: 25 cells each looked up and written as one of 125 numbers, 1 MB a
turn, 26 ns a window. Tried and slower: comparing whole windows with every kind instead of writing ones, worlds before
agents, tables of offsets, writing backwards without a table of kinds, skipping empty cells. Bytes instead of floats
would take a third off what is seen, and give bytes to everybody whose own models play.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.measure import Row, medians, row
from examples.cleanup import Cleanup
from examples.treasure_hunt import TreasureHunt
from parallel_agents.games import GridEnvironment, random_player

AGENTS, WORLDS = 8, (1, 16, 256)
GAMES: dict[str, type[GridEnvironment]] = {"treasure hunt": TreasureHunt, "cleanup": Cleanup}
TURNS = 100
NO_LEARNING = {"algorithm": "dqn", "learning_starts": 10**9, "buffer_size": 256}


def rows() -> list[Row]:
    found = []
    for name, game in GAMES.items():
        found += _rates(f"{name}, worlds alone", {worlds: _world_turns(game, worlds) for worlds in WORLDS}, 20.0)
        found += _rates(f"{name}, with acting", {worlds: _run_turns(game, worlds) for worlds in WORLDS}, 20.0)
    return [*found, _sorrels_sizes()]


SORREL = {"agents": 16, "turns_per_second": 80.5}
"""sorrel 1.6.0's treasure hunt on two AMD EPYC cores: 750 inputs, IQN of width 250, ε 0.6, an update per agent and
epoch of 100 turns."""


def _sorrels_sizes(epochs: int = 60) -> Row:
    """Whole runs with as many agents, inputs, updates and as much exploration as sorrel's own treasure hunt."""
    model = {
        "algorithm": "iqn",
        "n_frames": 6,  # of 125 numbers each: 750 inputs
        "updates_per_round": 1,
        "learning_starts": 64,
        "buffer_size": 1024,
        "epsilon": 0.6,
        "epsilon_final": 0.6,
    }
    experiment = {"epochs": epochs, "max_turns": TURNS, "record_period": 0}
    rates = []
    for _ in range(3):
        config = {"experiment": experiment, "world": {"agents": SORREL["agents"]}, "model": model}
        summary = TreasureHunt(config={**config, "parallel": {"train_interval": 1}}).run_experiment()
        rates.append(summary["turns_per_second"])
    rate = statistics.median(rates)
    return row(
        "treasure hunt with sorrel's sizes (16 agents, IQN, 750 inputs): turns/s / sorrel's 80.5",
        rate / SORREL["turns_per_second"],
        5.0,
        "times",
        3,
        turns_per_second=round(rate),
        updates=summary["updates"],
        updates_per_agent_and_100_turns=summary["updates"] / (SORREL["agents"] * epochs),
        backend=summary["backend"],
    )


def _make(game: type[GridEnvironment], worlds: int, **model: Any) -> GridEnvironment:
    experiment = {"worlds": worlds, "max_turns": TURNS, "record_period": 0}
    config = {"experiment": experiment, "world": {"agents": AGENTS}, "model": model, "parallel": {"backend": "inline"}}
    return game(config=config)


def _world_turns(game: type[GridEnvironment], worlds: int) -> Callable[[], None]:
    """`TURNS` turns of random players: things appear, all observe, all act."""
    made = _make(game, worlds, algorithm="random")
    made.begin_epoch(1)
    made.reset()
    actions = []
    for made.turn in range(1, TURNS + 1):
        actions.append(random_player(made))

    def turns() -> None:
        for turn, chosen in enumerate(actions, 1):
            made.turn = turn
            made.begin_turn()
            made.observe()
            made.can_act()
            made.apply_actions(chosen)

    return turns


def _run_turns(game: type[GridEnvironment], worlds: int) -> Callable[[], None]:
    """One more epoch of a run that never learns: networks are asked, transitions are kept."""
    made = _make(game, worlds, **NO_LEARNING)
    epochs = iter(range(1, 1000))
    return lambda: made.run_experiment(next(epochs)) and None


def _rates(name: str, ways: dict[int, Callable[[], None]], goal: float | None) -> list[Row]:
    seconds = medians({str(worlds): way for worlds, way in ways.items()}, repeats=7)
    rates = {worlds: TURNS * worlds / seconds[str(worlds)] for worlds in ways}
    return [
        row(
            f"{name}, {AGENTS} agents: {worlds} worlds / 1 world, agent-steps/s",
            rates[worlds] / rates[1],
            goal if worlds == 256 else None,
            "times",
            7,
            world_turns_per_second=round(rates[worlds]),
            agent_steps_per_second=round(AGENTS * rates[worlds]),
            microseconds_per_turn=round(1e6 * seconds[str(worlds)] / TURNS, 1),
        )
        for worlds in ways
    ]
