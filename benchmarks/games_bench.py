"""Grid games without learning: the cost of a turn of the worlds alone, and with acting and storing transitions.

The ratio is the seconds of one world divided by those of W worlds, for as many agent-steps, on one core; the goal is 20
at 256 worlds. Treasure hunt alone misses it: one world already costs so little that more worlds can save only calls.
Half of its turn is the observation. Tried and slower: comparing whole windows with every kind instead of writing ones,
worlds before agents, tables of offsets, writing backwards without a table of kinds, skipping empty cells. Observations
of bytes instead of floats would save a third of the observation, but custom models would get bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.measure import Done, Effort, Row, Side, compare
from benchmarks.run import Bench
from examples.cleanup import Cleanup
from examples.treasure_hunt import TreasureHunt
from parallel_agents.games import GridEnvironment, random_policy

AGENTS, WORLDS, TURNS = 8, (16, 256), 100
GAMES: dict[str, type[GridEnvironment]] = {"treasure hunt": TreasureHunt, "cleanup": Cleanup}
NO_LEARNING = {"algorithm": "dqn", "learning_starts": 10**9, "buffer_size": 256}


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    variants: dict[str, Callable[[type[GridEnvironment], int, int], Callable[[], Done]]] = {
        "worlds alone": _world_turns,
        "with acting": _run_turns,
    }
    for name, game in GAMES.items():
        for variant, measured in variants.items():
            for worlds in WORLDS:
                row = f"{name}, {variant}, {AGENTS} agents: 1 world / {worlds} worlds"
                yield row, partial(_compare, row, game, measured, worlds, effort)


def _compare(name: str, game: type[GridEnvironment], measured: Any, worlds: int, effort: Effort) -> Iterator[Row]:
    """Compare one world, many episodes in a row, with many worlds side by side."""
    words = f"{worlds} x {TURNS} turns of {AGENTS} agents"
    yield compare(
        name,
        Side("1 world", f"{words}, one episode after the other", measured(game, 1, worlds)),
        Side(f"{worlds} worlds", f"{words}, all episodes side by side", measured(game, worlds, 1)),
        goal=20.0 if worlds == max(WORLDS) else None,
        repeats=effort.repeats(5),
    )


def _make(game: type[GridEnvironment], worlds: int, **model: Any) -> GridEnvironment:
    experiment = {"worlds": worlds, "max_turns": TURNS, "record_period": 0, "epochs": 10**6}
    config = {"experiment": experiment, "world": {"agents": AGENTS}, "model": model, "parallel": {"backend": "inline"}}
    return game(config=config)


def _world_turns(game: type[GridEnvironment], worlds: int, episodes: int) -> Callable[[], Done]:
    """Return a function that plays episodes of random players: things appear, all observe, all act."""
    env = _make(game, worlds, algorithm="random")
    env.begin_epoch(1)
    env.reset()
    actions = []
    for env.turn in range(1, TURNS + 1):
        actions.append(random_policy(env))

    def play() -> Done:
        steps = 0
        for _ in range(episodes):
            for turn, turn_actions in enumerate(actions, 1):
                env.turn = turn
                env.begin_turn()
                env.observe()
                env.can_act()
                steps += env.apply_actions(turn_actions).size
        return Done({"agent_steps": steps})

    return play


def _run_turns(game: type[GridEnvironment], worlds: int, episodes: int) -> Callable[[], Done]:
    """Return a function that runs more epochs without learning: networks choose actions, transitions are stored."""
    env = _make(game, worlds, **NO_LEARNING)
    before = {"epochs": 0, "turns": 0}

    def play() -> Done:
        summary = env.run_experiment(before["epochs"] + episodes)
        turns = summary["turns"] - before["turns"]
        before.update(epochs=summary["epochs"], turns=summary["turns"])
        return Done({"agent_steps": turns * worlds * AGENTS}, summary["backend"])

    return play
