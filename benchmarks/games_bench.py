"""Grid games without learning: what a turn costs the worlds alone, and what it costs with acting and remembering.

The ratio is one world's seconds over those of W worlds, for as many agent-steps, on one core; the goal is 20 at 256
worlds. Treasure hunt alone falls short of it, since one world costs so little already that more of them can save only
calls; half of its turn is what the agents see. Tried and slower: comparing whole windows with every kind instead of
writing ones, worlds before agents, tables of offsets, writing backwards without a table of kinds, skipping empty cells.
Bytes instead of floats would take a third off what is seen, and give bytes to everybody whose own models play.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.measure import Done, Effort, Row, Side, compare
from benchmarks.run import Bench
from examples.cleanup import Cleanup
from examples.treasure_hunt import TreasureHunt
from parallel_agents.games import GridEnvironment, random_player

AGENTS, WORLDS, TURNS = 8, (16, 256), 100
GAMES: dict[str, type[GridEnvironment]] = {"treasure hunt": TreasureHunt, "cleanup": Cleanup}
NO_LEARNING = {"algorithm": "dqn", "learning_starts": 10**9, "buffer_size": 256}


def benches(effort: Effort) -> Iterator[tuple[str, Bench]]:
    ways: dict[str, Callable[[type[GridEnvironment], int, int], Callable[[], Done]]] = {
        "worlds alone": _world_turns,
        "with acting": _run_turns,
    }
    for name, game in GAMES.items():
        for how, way in ways.items():
            for worlds in WORLDS:
                what = f"{name}, {how}, {AGENTS} agents: 1 world / {worlds} worlds"
                yield what, partial(_compare, what, game, way, worlds, effort)


def _compare(what: str, game: type[GridEnvironment], way: Any, worlds: int, effort: Effort) -> Iterator[Row]:
    words = f"{worlds} x {TURNS} turns of {AGENTS} agents"
    yield compare(
        what,
        Side("1 world", f"{words}, one episode after the other", way(game, 1, worlds)),
        Side(f"{worlds} worlds", f"{words}, all episodes side by side", way(game, worlds, 1)),
        goal=20.0 if worlds == max(WORLDS) else None,
        repeats=effort.repeats(5),
    )


def _make(game: type[GridEnvironment], worlds: int, **model: Any) -> GridEnvironment:
    experiment = {"worlds": worlds, "max_turns": TURNS, "record_period": 0, "epochs": 10**6}
    config = {"experiment": experiment, "world": {"agents": AGENTS}, "model": model, "parallel": {"backend": "inline"}}
    return game(config=config)


def _world_turns(game: type[GridEnvironment], worlds: int, episodes: int) -> Callable[[], Done]:
    """So many episodes of random players: things appear, all observe, all act."""
    made = _make(game, worlds, algorithm="random")
    made.begin_epoch(1)
    made.reset()
    actions = []
    for made.turn in range(1, TURNS + 1):
        actions.append(random_player(made))

    def play() -> Done:
        steps = 0
        for _ in range(episodes):
            for turn, chosen in enumerate(actions, 1):
                made.turn = turn
                made.begin_turn()
                made.observe()
                made.can_act()
                steps += made.apply_actions(chosen).size
        return Done({"agent_steps": steps})

    return play


def _run_turns(game: type[GridEnvironment], worlds: int, episodes: int) -> Callable[[], Done]:
    """So many more epochs of a run that never learns: networks are asked, transitions are kept."""
    made = _make(game, worlds, **NO_LEARNING)
    before = {"epochs": 0, "turns": 0}

    def play() -> Done:
        summary = made.run_experiment(before["epochs"] + episodes)
        turns = summary["turns"] - before["turns"]
        before.update(epochs=summary["epochs"], turns=summary["turns"])
        return Done({"agent_steps": turns * worlds * AGENTS}, summary["backend"])

    return play
