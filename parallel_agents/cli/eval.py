"""`parallel-agents eval`: how good the agents of a run are."""

from __future__ import annotations

import json
import sys

from parallel_agents.cli.commands import Eval
from parallel_agents.cli.target import load_target
from parallel_agents.cli.train import read_config
from parallel_agents.errors import ConfigError
from parallel_agents.runtime.checkpoints import restore
from parallel_agents.tracking.runfolder import RunFolder

__all__ = ["evaluate_run"]


def evaluate_run(options: Eval) -> None:
    """Run the command and print what came of it."""
    if options.episodes < 1:
        raise ConfigError(f"--episodes {options.episodes}: give a whole number of at least 1")
    folder = RunFolder.open(options.run_dir)
    environment = load_target(options.target or folder.environment)(config=read_config(folder))
    run = environment.prepare()
    manifest, _ = restore(run, folder.path, best=options.best)
    if options.best:
        for stack in run.crew.stacks:
            stack.show_acting()
    found = environment.evaluate(options.episodes, exploration=options.exploration)
    _, low, high = found.interval
    per_agent = found.returns.mean(axis=1)
    if options.json:
        values = {
            "mean_return": found.mean_return,
            "interval": [low, high],
            "agents": {agent.name: float(own) for agent, own in zip(environment.agents, per_agent, strict=True)},
            "episodes": options.episodes,
            "epoch": manifest.epoch,
            "run_dir": str(folder.path),
        }
        sys.stdout.write(json.dumps(values) + "\n")
        return
    lines = [f"  {agent.name:<16} {own:10.2f}" for agent, own in zip(environment.agents, per_agent, strict=True)]
    sys.stdout.write(
        f"mean return {found.mean_return:.2f} [{low:.2f}, {high:.2f}] over {options.episodes} episodes, "
        f"weights of epoch {manifest.epoch}\n" + "\n".join(lines) + "\n"
    )
