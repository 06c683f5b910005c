"""`parallel-agents eval`: how good the agents of a run are, and what they do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.cli.answers import answer
from parallel_agents.cli.commands import Eval
from parallel_agents.cli.onlookers import Filmed, Shown, grid_game
from parallel_agents.cli.target import load_target
from parallel_agents.cli.train import read_config
from parallel_agents.environment import Environment
from parallel_agents.environment.evaluation import Evaluation
from parallel_agents.errors import ConfigError
from parallel_agents.games import GridEnvironment, social
from parallel_agents.runtime.checkpoints import restore
from parallel_agents.tracking.runfolder import RunFolder
from parallel_agents.tracking.statistics import Interval, bootstrap_interval, mean_interval

__all__ = ["evaluate_run"]


def evaluate_run(options: Eval) -> None:
    """Run the command and print what came of it."""
    if options.episodes < 1:
        raise ConfigError(f"--episodes {options.episodes}: give a whole number of at least 1")
    folder = RunFolder.open(options.run_dir)
    environment = load_target(options.target or folder.environment)(config=read_config(folder))
    shown, filmed = _onlookers(environment, options)
    run = environment.prepare()
    manifest, _ = restore(run, folder.path, best=options.best)
    play = partial(Environment.evaluate, episodes=options.episodes, exploration=options.exploration)
    with shown as watch:
        found = [play(environment, onlooker=partial(_show, [watch, *filmed]))]
    found += [play(replica) for replica in run.environments[1:]]
    epochs = run.best.epochs if options.best else [manifest.epoch] * len(found)
    told = _figures(run.environments, found, epochs) | {"episodes": options.episodes, "run_dir": str(folder.path)}
    if filmed:
        told["gif"] = str(filmed[0].write())
    answer(json.dumps(told) + "\n" if options.json else _text(told))


def _show(looks: Sequence[Callable[[Environment], None]], stage: Environment) -> None:
    for look in looks:
        look(stage)


def _onlookers(environment: Environment, options: Eval) -> tuple[Any, list[Filmed]]:
    """What shows an episode and what films it, refused before anything is played where that cannot be done."""
    if not 0.1 <= options.fps <= 100:
        raise ConfigError(f"--fps {options.fps:g}: give a number of turns a second from 0.1 to 100")
    if options.watch or options.gif is not None:
        grid_game(environment, "--watch" if options.watch else "--gif")
    shown = Shown(sys.stderr if options.json else sys.stdout, options.fps) if options.watch else Shown.nothing()
    return shown, [Filmed(Path(options.gif), options.fps)] if options.gif is not None else []


def _figures(played: Sequence[Environment], found: Sequence[Evaluation], epochs: Sequence[int]) -> dict[str, Any]:
    """Means with intervals, over seeds where there are several replicas, else over episodes."""
    replicas = [
        {"seed": env.seed, "epoch": epoch, "mean_return": own.mean_return, "interval": _bounds(own.interval)}
        for env, own, epoch in zip(played, found, epochs, strict=True)
    ]
    episodes = np.stack([own.returns.mean(axis=0) for own in found])  # (replicas, episodes)
    several = len(found) > 1
    samples = episodes.mean(axis=1) if several else episodes[0]
    agents = np.mean([own.returns.mean(axis=1) for own in found], axis=0)
    middle = bootstrap_interval(samples)
    told = {
        "mean_return": float(episodes.mean()),
        "interval": _bounds(mean_interval(samples)),
        "interval_over": "seeds" if several else "episodes",
        "interquartile_mean": middle.estimate,
        "interquartile_interval": _bounds(middle),
        "agents": {agent.name: float(own) for agent, own in zip(played[0].agents, agents, strict=True)},
        "epoch": max(epochs),
        "replicas": replicas,
    }
    return told | ({"social": _social(found)} if isinstance(played[0], GridEnvironment) else {})


def _social(found: Sequence[Evaluation]) -> dict[str, float | None]:
    """What the episodes meant for the group."""
    metrics = {
        "efficiency": [social.efficiency(own.rewards) for own in found],
        "equality": [social.equality(own.rewards) for own in found],
        "sustainability": [social.sustainability(own.rewards) for own in found],
        "peace": [social.peace(own.acted) for own in found],
    }
    means = {}
    for name, values in metrics.items():
        known = np.concatenate(values)
        known = known[np.isfinite(known)]  # nothing earned, no equality
        means[name] = float(known.mean()) if known.size else None
    return means


def _bounds(interval: Interval) -> list[float | None]:
    return [float(bound) if np.isfinite(bound) else None for bound in interval[1:]]


def _text(told: Mapping[str, Any]) -> str:
    low, high = (float("nan") if bound is None else bound for bound in told["interval"])
    several = len(told["replicas"]) > 1
    over = f"{len(told['replicas'])} seeds, " if several else ""
    lines = [
        f"mean return {told['mean_return']:.2f} [{low:.2f}, {high:.2f}] over {over}{told['episodes']} episodes, "
        f"weights of epoch {told['epoch']}"
    ]
    lines += [f"  {name:<16} {own:10.2f}" for name, own in told["agents"].items()]
    if several:
        lines += [
            f"  seed {own['seed']:<11} {own['mean_return']:10.2f}  epoch {own['epoch']}" for own in told["replicas"]
        ]
    if "social" in told:
        known = [f"{name} {value:.3g}" for name, value in told["social"].items() if value is not None]
        lines.append("the group: " + ", ".join(known))
    if "gif" in told:
        lines.append(f"an episode: {told['gif']}")
    return "\n".join(lines) + "\n"
