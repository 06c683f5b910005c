"""`parallel-agents eval`: how good the agents of a run are."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parallel_agents.cli.commands import Eval
from parallel_agents.cli.target import load_target
from parallel_agents.cli.train import read_config
from parallel_agents.environment.evaluation import Evaluation
from parallel_agents.errors import ConfigError
from parallel_agents.runtime.checkpoints import restore
from parallel_agents.tracking.runfolder import RunFolder
from parallel_agents.tracking.statistics import mean_interval

__all__ = ["evaluate_run"]


def evaluate_run(options: Eval) -> None:
    """Run the command and print what came of it."""
    if options.episodes < 1:
        raise ConfigError(f"--episodes {options.episodes}: give a whole number of at least 1")
    folder = RunFolder.open(options.run_dir)
    environment = load_target(options.target or folder.environment)(config=read_config(folder))
    run = environment.prepare()
    manifest, _ = restore(run, folder.path, best=options.best)
    found = [env.evaluate(options.episodes, exploration=options.exploration) for env in run.environments]
    epochs = run.best.epochs if options.best else [manifest.epoch] * len(found)
    names = [str(agent.name) for agent in environment.agents]
    values = {**_figures(found, names, epochs, [env.seed for env in run.environments]), "run_dir": str(folder.path)}
    sys.stdout.write(json.dumps(values) + "\n" if options.json else _told(values))


def _figures(
    found: Sequence[Evaluation], names: Sequence[str], epochs: Sequence[int], seeds: Sequence[int]
) -> dict[str, Any]:
    """What is printed. With several replicas they are the independent samples, with one its episodes are."""
    means = [own.mean_return for own in found]
    interval = mean_interval(means) if len(found) > 1 else found[0].interval
    per_agent = np.mean([own.returns.mean(axis=1) for own in found], axis=0)
    return {
        "mean_return": interval.estimate,
        "interval": [interval.low, interval.high],
        "agents": {name: float(own) for name, own in zip(names, per_agent, strict=True)},
        "episodes": found[0].returns.shape[1],
        "epoch": max(epochs),
        "replicas": [
            {"seed": seed, "epoch": epoch, "mean_return": own.mean_return, "interval": list(own.interval[1:])}
            for own, epoch, seed in zip(found, epochs, seeds, strict=True)
        ],
    }


def _told(values: Mapping[str, Any]) -> str:
    low, high = values["interval"]
    lines = [
        f"mean return {values['mean_return']:.2f} [{low:.2f}, {high:.2f}] over {values['episodes']} episodes, "
        f"weights of epoch {values['epoch']}"
    ]
    lines += [f"  {name:<16} {own:10.2f}" for name, own in values["agents"].items()]
    if len(values["replicas"]) > 1:
        lines += [
            f"  seed {own['seed']:<11} {own['mean_return']:10.2f}  epoch {own['epoch']}" for own in values["replicas"]
        ]
    return "\n".join(lines) + "\n"
