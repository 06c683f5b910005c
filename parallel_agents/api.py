"""Train, load and evaluate from Python, with the run folder, progress and checkpoints of the command line.

from parallel_agents import load_run, train

run = train(TreasureHunt, agents=8, epochs=200, out="runs/x")
run.summary["ep_rew_mean"], run.evaluate(episodes=20)
load_run("runs/x").agents[0].model.take_action(observation)
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel_agents.algorithms import register_algorithm
from parallel_agents.checkpoint import restore
from parallel_agents.cli.commands import TrackingOptions
from parallel_agents.cli.record import open_environment, read_summary
from parallel_agents.cli.signals import Signals
from parallel_agents.cli.target import is_loading, load_algorithm, load_target
from parallel_agents.cli.train import short_options, start_run
from parallel_agents.core.config import Config, merge
from parallel_agents.core.errors import ConfigError
from parallel_agents.engine.run import RunSummary
from parallel_agents.env import Agent, Environment
from parallel_agents.env.evaluation import Evaluation
from parallel_agents.tracking.callbacks import Callback
from parallel_agents.tracking.metrics import Metrics, read_metrics
from parallel_agents.tracking.run_folder import RunFolder


@dataclass(frozen=True, repr=False)
class TrainedRun:
    """A run and its folder: trained agents, metrics, configuration, summary."""

    path: Path
    environment: Environment
    """The environment of the first replica, with its trained agents."""
    summary: RunSummary
    """What `--json` prints; empty if the run has not finished."""

    def __repr__(self) -> str:
        mean, digest = self.summary.get("ep_rew_mean"), self.summary.get("digest")
        results = ("" if mean is None else f", ep_rew_mean {mean:.4g}") + (f", digest {digest[:12]}" if digest else "")
        return f"TrainedRun({self.path}: {self.environment!r}, epoch {self.environment.prepare().epoch}{results})"

    @property
    def agents(self) -> list[Agent]:
        """The trained agents of the first replica; `agent.model.take_action(observation)` lets one act."""
        return self.environment.agents

    @property
    def replicas(self) -> list[Environment]:
        """One environment with trained agents per seed and setting."""
        return list(self.environment.prepare().environments)

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return self.environment.config

    @property
    def metrics(self) -> Metrics:
        """What was recorded; `pandas.DataFrame(run.metrics.table())` has a row per epoch and agent."""
        return read_metrics(self.path)

    def evaluate(self, episodes: int = 20, *, exploration: float = 0.0, replica: int = 0) -> Evaluation:
        """Let the agents of one replica play whole episodes in new worlds, without learning."""
        return self.replicas[replica].evaluate(episodes, exploration=exploration)


def train(
    environment: type[Environment] | str,
    *,
    agents: int | None = None,
    worlds: int | None = None,
    epochs: int | None = None,
    total_timesteps: int | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    algo: str | type[Any] | None = None,
    backend: str | None = None,
    config: Config | Mapping[str, Any] | str | Path | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    tensorboard: bool = False,
    callbacks: Sequence[Callback] = (),
) -> TrainedRun:
    """Train agents as `parallel-agents train` does, and return the run.

    environment: a class, or a target as on the command line, such as "gymnasium:CartPole-v1".
    algo: a name, "file.py:Class", or a class of your own. config: sections, or a TOML file; the keywords win.
    """
    if is_loading():
        raise ConfigError('this file trains when it is loaded: put that below `if __name__ == "__main__":`')
    algorithm = _target(algo) if isinstance(algo, type) else algo
    if isinstance(algo, type):
        register_algorithm(_target(algo), algo)
    given = config.as_dict() if isinstance(config, Config) else Config.read(config)
    short = short_options(
        agents=agents, worlds=worlds, epochs=epochs, total_timesteps=total_timesteps, seed=seed, seeds=seeds,
        backend=backend, algo=algorithm,
    )  # fmt: skip
    merged = merge(given, short)
    if not isinstance(algo, type):
        load_algorithm(merged)
    game = load_target(environment)(config=merged)
    tracking = TrackingOptions(quiet=not progress, tensorboard=tensorboard)
    in_main_thread = threading.current_thread() is threading.main_thread()
    with Signals() if in_main_thread else nullcontext():  # Ctrl-C ends the run after its epoch, with a checkpoint
        summary = start_run(
            game,
            environment if isinstance(environment, str) else _target(environment),
            out=None if out is None else Path(out),
            tracking=tracking,
            algorithm=algorithm,
            callbacks=callbacks,
        )
    return TrainedRun(Path(summary["run_dir"]), game, summary)


def _target(cls: type[Any]) -> str:
    """Return a class as a target: its file and name if it is of the script that runs, else its module and name."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if cls.__module__ == "__main__" and file is not None:
        return f"{file}:{cls.__qualname__}"
    return f"{cls.__module__}:{cls.__qualname__}"


def load_run(path: str | Path, *, best: bool = False, environment: type[Environment] | str | None = None) -> TrainedRun:
    """Return a run from its folder, with its agents as the newest checkpoint left them.

    best: with the weights of the best evaluation. environment: where it comes from now, if it has moved, or was defined
    in a notebook.
    """
    folder = RunFolder.open(Path(path))
    game = open_environment(folder, environment)
    restore(game.prepare(), folder.path, best=best)
    return TrainedRun(folder.path, game, read_summary(folder))


def evaluate(
    run: TrainedRun | Environment | str | Path, episodes: int = 20, *, exploration: float = 0.0, replica: int = 0
) -> Evaluation:
    """Let trained agents play whole episodes in new worlds: those of a run, a run folder or an environment."""
    if isinstance(run, Environment):
        return run.evaluate(episodes, exploration=exploration)
    found = run if isinstance(run, TrainedRun) else load_run(run)
    return found.evaluate(episodes, exploration=exploration, replica=replica)
