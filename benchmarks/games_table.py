"""Trained, random and scripted players of every game, with intervals over seeds: the table of docs/games.md.

Each row says where it was measured; `python -m benchmarks.tables` then writes the table.

python -m benchmarks.games_table                        all games, 5 seeds each: about half an hour of processor time
python -m benchmarks.games_table iowa tag --seeds 2     some of them, quicker
python -m benchmarks.games_table --print                what was found last time, as Markdown
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
from parallel_agents.cli.games import shipped_games
from parallel_agents.cli.target import load_target
from parallel_agents.config import merge
from parallel_agents.games import Episode, GridEnvironment, play, random_player, social
from parallel_agents.tracking.statistics import mean_interval

RESULTS = Path(__file__).parent / "results" / "games_table.json"
EPISODES = 32
WORLDS = 8
AMONG_RANDOM = ("tag",)
"""Games in which what one gains another loses: there the first agent is judged among random others."""

SELFISH: dict[str, dict[str, Any]] = {
    "cleanup": {"cleaners": 0},
    "coins": {"selfish": True},
    "commons_harvest": {"spare": 0},
    "prisoners_dilemma": {"side": 1},
}
"""Dilemmas, and how scripted players play them who think of themselves alone."""

Policy = Callable[..., np.ndarray]


def measure(name: str, seeds: int, epochs: int | None) -> dict[str, Any]:
    """Train a game with its own defaults, and judge it."""
    began = time.process_time()
    cls = load_target(name)
    experiment = {"worlds": WORLDS, "seeds": seeds, "record_period": 0, **({"epochs": epochs} if epochs else {})}
    game = cls(config={"experiment": experiment, "parallel": {"backend": "inline"}})
    assert isinstance(game, GridEnvironment)
    summary = game.run_experiment()
    sensible = importlib.import_module(cls.__module__).sensible
    found: dict[str, list[Episode]] = {}
    for own in game.prepare().environments:
        for who, episode in (_one_among_random if name in AMONG_RANDOM else _all_alike)(own, sensible).items():
            found.setdefault(who, []).append(episode)
        if name in SELFISH:
            found.setdefault("selfish", []).append(play(_stage(own), partial(sensible, **SELFISH[name])))
    return {
        "game": name,
        "seeds": seeds,
        "epochs": summary["epochs"],
        "updates": summary["updates"] // (seeds * len(game.agents)),
        "processor_seconds": round(time.process_time() - began),
        **{who: _figures(name, episodes) for who, episodes in found.items()},
        **provenance(),
    }


def _all_alike(trained: Any, sensible: Policy) -> dict[str, Episode]:
    """Episodes in fresh worlds in which all are of one kind."""
    judged, chance = trained.evaluate(EPISODES), trained.evaluate(EPISODES, exploration=1.0)
    return {
        "trained": Episode(judged.rewards, judged.acted),
        "random": Episode(chance.rewards, chance.acted),
        "scripted": play(_stage(trained), sensible),
    }


def _one_among_random(trained: Any, sensible: Policy) -> dict[str, Episode]:
    """Episodes in which the first agent is trained, random or scripted, and all others are random."""
    model = trained.agents[0].model
    model.set_epsilon(0.0)

    def greedy(game: GridEnvironment) -> np.ndarray:
        return np.array([[int(model.take_action(seen)) for seen in game.observe()[0]]])

    def among_random(own: Policy, game: GridEnvironment) -> np.ndarray:
        return np.concatenate([own(game)[:1], random_player(game)[1:]])

    kinds: dict[str, Policy] = {"trained": greedy, "random": random_player, "scripted": sensible}
    return {who: play(_stage(trained), partial(among_random, own)) for who, own in kinds.items()}


def _stage(trained: Any) -> Any:
    """The same game in fresh worlds, played by whoever is asked."""
    config = trained.config.as_dict() | {"model": {"algorithm": "random"}}
    return type(trained)(config=merge(config, {"experiment": {"seed": trained.seed + 1000, "worlds": EPISODES}}))


def _figures(name: str, episodes: list[Episode]) -> dict[str, Any]:
    """Mean return and social metrics, with intervals over seeds."""
    judged = slice(0, 1) if name in AMONG_RANDOM else slice(None)
    means = {
        "return": [float(own.returns[judged].mean()) for own in episodes],
        "sustainability": [float(social.sustainability(own.rewards).mean()) for own in episodes],
        "equality": [float(np.nanmean(social.equality(own.rewards))) for own in episodes],
        "peace": [float(social.peace(own.free).mean()) for own in episodes],
    }
    return {what: list(mean_interval(values)) if np.isfinite(values).all() else None for what, values in means.items()}


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table as it stands in the documentation."""
    lines = [
        "| game | epochs | trained | random | scripted | scripted, selfish | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        kinds = ("trained", "random", "scripted", "selfish")
        cells = " | ".join(_cell(row[who]["return"]) if who in row else "" for who in kinds)
        lines.append(f"| {row['game']} | {row['epochs']} | {cells} | {row['processor_seconds']} |")
    return "\n".join(lines)


def _cell(interval: list[float]) -> str:
    mean, low, high = interval
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", metavar="GAME", help="names of `parallel-agents games`; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="by default those of each game")
    parser.add_argument("--print", action="store_true", help="print what was found last time")
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
