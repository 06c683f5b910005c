"""Measure trained, random and scripted players of every game, with intervals over seeds: the table of docs/games.md.

Each row says where it was measured; `python -m benchmarks.tables` then writes the table.

python -m benchmarks.games_table                        all games, 5 seeds each: about half an hour of processor time
python -m benchmarks.games_table iowa tag --seeds 2     some of them, quicker
python -m benchmarks.games_table --print                the stored results, as Markdown
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.run import provenance
from parallel_agents.cli.target import load_target, shipped_games
from parallel_agents.core.config import merge
from parallel_agents.games import Episode, GridEnvironment, play, random_policy, social_metrics
from parallel_agents.tracking.statistics import mean_interval

RESULTS = Path(__file__).parent / "results" / "games_table.json"
EPISODES = 32
WORLDS = 8
AMONG_RANDOM = ("tag",)
"""Games in which one agent gains what another loses: the first agent is evaluated among random others."""

SELFISH: dict[str, dict[str, Any]] = {
    "cleanup": {"cleaners": 0},
    "coins": {"selfish": True},
    "commons_harvest": {"spare": 0},
    "prisoners_dilemma": {"side": 1},
}
"""The dilemmas, and the options with which their scripted players are selfish."""

Policy = Callable[..., np.ndarray]


def measure(name: str, seeds: int, epochs: int | None) -> dict[str, Any]:
    """Train a game with its own defaults, and evaluate it."""
    start = time.process_time()
    cls = load_target(name)
    experiment = {"worlds": WORLDS, "seeds": seeds, "record_period": 0, **({"epochs": epochs} if epochs else {})}
    game = cls(config={"experiment": experiment, "parallel": {"backend": "inline"}})
    assert isinstance(game, GridEnvironment)
    summary = game.run_experiment()
    sensible = importlib.import_module(cls.__module__).sensible
    results: dict[str, list[Episode]] = {}
    for env in game.prepare().environments:
        for players, episode in (_one_among_random if name in AMONG_RANDOM else _all_alike)(env, sensible).items():
            results.setdefault(players, []).append(episode)
        if name in SELFISH:
            results.setdefault("selfish", []).append(play(_fresh_game(env), partial(sensible, **SELFISH[name])))
    return {
        "game": name,
        "seeds": seeds,
        "epochs": summary["epochs"],
        "updates": summary["updates"] // (seeds * len(game.agents)),
        "processor_seconds": round(time.process_time() - start),
        **{players: _figures(name, episodes) for players, episodes in results.items()},
        **provenance(),
    }


def _all_alike(trained: Any, sensible: Policy) -> dict[str, Episode]:
    """Return episodes in fresh worlds in which all players are of one kind."""
    greedy, chance = trained.evaluate(EPISODES), trained.evaluate(EPISODES, exploration=1.0)
    return {
        "trained": Episode(greedy.rewards, greedy.acted),
        "random": Episode(chance.rewards, chance.acted),
        "scripted": play(_fresh_game(trained), sensible),
    }


def _one_among_random(trained: Any, sensible: Policy) -> dict[str, Episode]:
    """Return episodes in which the first agent is trained, random or scripted, and all others are random."""
    model = trained.agents[0].model
    model.set_epsilon(0.0)

    def greedy(game: GridEnvironment) -> np.ndarray:
        return np.array([[int(model.take_action(observation)) for observation in game.observe()[0]]])

    def among_random(policy: Policy, game: GridEnvironment) -> np.ndarray:
        return np.concatenate([policy(game)[:1], random_policy(game)[1:]])

    policies: dict[str, Policy] = {"trained": greedy, "random": random_policy, "scripted": sensible}
    return {name: play(_fresh_game(trained), partial(among_random, policy)) for name, policy in policies.items()}


def _fresh_game(trained: Any) -> Any:
    """Return the same game in fresh worlds, for any policy."""
    config = trained.config.as_dict() | {"model": {"algorithm": "random"}}
    return type(trained)(config=merge(config, {"experiment": {"seed": trained.seed + 1000, "worlds": EPISODES}}))


def _figures(name: str, episodes: list[Episode]) -> dict[str, Any]:
    """Return mean return and social metrics, with intervals over seeds."""
    evaluated = slice(0, 1) if name in AMONG_RANDOM else slice(None)
    means = {
        "return": [float(episode.returns[evaluated].mean()) for episode in episodes],
        "sustainability": [float(social_metrics.sustainability(episode.rewards).mean()) for episode in episodes],
        "equality": [float(np.nanmean(social_metrics.equality(episode.rewards))) for episode in episodes],
        "peace": [float(social_metrics.peace(episode.free).mean()) for episode in episodes],
    }
    return {name: list(mean_interval(values)) if np.isfinite(values).all() else None for name, values in means.items()}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table of the documentation."""
    lines = [
        "| game | epochs | trained | random | scripted | scripted, selfish | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        kinds = ("trained", "random", "scripted", "selfish")
        cells = " | ".join(_cell(row[kind]["return"]) if kind in row else "" for kind in kinds)
        lines.append(f"| {row['game']} | {row['epochs']} | {cells} | {row['processor_seconds']} |")
    return "\n".join(lines)


def _cell(interval: list[float]) -> str:
    mean, low, high = interval
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    """Measure the requested games, store and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", metavar="GAME", help="names of `parallel-agents games`; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="by default those of each game")
    parser.add_argument("--print", action="store_true", help="print the stored results")
    options = parser.parse_args()
    known = {row["game"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    for name in [] if options.print else options.games or list(shipped_games()):
        known[name] = measure(name, options.seeds, options.epochs)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps([known[each] for each in sorted(known)], indent=1) + "\n")
        print(markdown([known[name]]).splitlines()[-1], flush=True)
    sys.stdout.write(markdown([known[each] for each in sorted(known)]) + "\n")


if __name__ == "__main__":
    main()
