"""`parallel-agents export`: the weights of one agent of a run, as a file of their own."""

from __future__ import annotations

import json

from parallel_agents.cli.answers import answer
from parallel_agents.cli.commands import Export
from parallel_agents.cli.target import load_target
from parallel_agents.cli.train import read_config
from parallel_agents.errors import ConfigError
from parallel_agents.models import Model
from parallel_agents.runtime.checkpoints import restore
from parallel_agents.tracking.runfolder import RunFolder

__all__ = ["export"]


def export(options: Export) -> None:
    """Run the command and print what was written."""
    folder = RunFolder.open(options.run_dir)
    environment = load_target(options.target or folder.environment)(config=read_config(folder))
    run = environment.prepare()
    count = len(run.environments)
    if not 0 <= options.replica < count:
        raise ConfigError(f"--replica {options.replica}: this run has replicas 0 to {count - 1}")
    chosen = run.environments[options.replica]
    agents = {str(agent.name): agent for agent in chosen.agents}
    if options.agent not in agents:
        raise ConfigError(f"--agent {options.agent}: this run has {', '.join(agents)}")
    model = agents[options.agent].model
    if not isinstance(model, Model):
        raise ConfigError(f"--agent {options.agent}: its model is a {type(model).__name__}, which has no weights")
    manifest, _ = restore(run, folder.path, best=options.best)
    model.save_weights(options.out)
    epoch = run.best.epochs[options.replica] if options.best else manifest.epoch
    place = {"agent": options.agent, "seed": chosen.seed, "replica": options.replica, "epoch": epoch}
    found = {**place, "out": str(options.out)}
    said = f"weights of {options.agent} (seed {chosen.seed}, epoch {epoch}) written to {options.out}\n"
    answer(json.dumps(found) + "\n" if options.json else said)
