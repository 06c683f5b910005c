"""Runs on Ray: a function that Ray Tune can search with, and replicas as whole runs on the nodes of a cluster.

tune.Tuner(trainable("treasure_hunt"), param_space={"model.lr": tune.loguniform(1e-4, 1e-2)}).fit()
train_replicas("treasure_hunt", seeds=100, address="auto", out="/shared/runs")
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parallel_agents.api import load_run, train
from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.checkpoint.store import Store
from parallel_agents.cli.target import load_algorithm, load_target
from parallel_agents.core.config import Config, merge, nested
from parallel_agents.core.errors import ConfigError
from parallel_agents.engine.digest import combined
from parallel_agents.engine.run import RunSummary
from parallel_agents.env import Environment
from parallel_agents.execution.ray import RayCluster, require_ray

Make = type[Environment] | str
"""An environment: its class, or a target as on the command line."""


def trainable(
    environment: Make, *, config: Mapping[str, Any] | str | Path | None = None, report_every: int = 1
) -> Callable[[dict[str, Any]], None]:
    """Return a function for `ray.tune.Tuner`: each trial is a run with the values that Tune chose.

    Tune's values are `section.key`, such as `model.lr` or `experiment.seed`, over those of `config`. After every
    `report_every` epochs a trial reports the numbers of its summary, such as `ep_rew_mean`, with a checkpoint; a trial
    that Tune pauses, moves or repeats goes on from there with the same bytes. A clone with other values is refused.
    """
    require_ray()
    if report_every < 1:
        raise ConfigError(f"report_every is {report_every}: give at least 1")
    given = Config.read(config)

    def run_trial(values: dict[str, Any]) -> None:
        tune = importlib.import_module("ray.tune")
        merged = merge(given, *(nested(key, value) for key, value in values.items()))
        load_algorithm(merged)
        game = load_target(environment)(config=merged)
        run, epochs = game.prepare(), game.config.experiment.epochs
        with tempfile.TemporaryDirectory() as folder:
            checkpointer = Checkpointer(run, Path(folder), keep_last=1)
            run.checkpointer = checkpointer
            stored = tune.get_checkpoint()
            if stored is not None:
                with stored.as_directory() as path:
                    shutil.copytree(path, folder, dirs_exist_ok=True)
                checkpointer.continue_from(restore(run, Path(folder))[0])
            while run.epoch < epochs:
                summary = game.run_experiment(min(run.epoch + report_every, epochs))
                tune.report(numbers(summary), checkpoint=tune.Checkpoint.from_directory(folder))

    return run_trial


def numbers(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and the digest of a summary, as Tune reports them."""
    return {name: value for name, value in summary.items() if isinstance(value, int | float) or name == "digest"}


def train_replicas(
    environment: Make,
    *,
    seeds: int = 1,
    sweep: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | str | Path | None = None,
    address: str | None = None,
    resources: Mapping[str, float] | None = None,
    out: str | Path,
    timeout: float | None = None,
) -> RunSummary:
    """Train every seed and every combination of a sweep as a run of its own, on the nodes of a cluster.

    Each run leaves its folder in `out`, which all nodes must share; if its node is lost, another one continues it from
    its newest checkpoint. The digests are those of one run with all replicas on one machine.

    resources: of one run, such as {"CPU": 2}. timeout: seconds for all of them; None: as long as they take.
    """
    replicas = {"experiment": {"seeds": seeds, "sweep": dict(sweep or {})}}
    whole = load_target(environment)(config=merge(Config.read(config), replicas)).config
    configs = [
        whole.replica(whole.experiment.seed + k, setting) for setting in whole.experiment.settings for k in range(seeds)
    ]
    cluster = RayCluster(address, workers=len(configs) if address is None else 1)
    try:
        folders = [Path(out).resolve() / f"replica-{index:04d}" for index in range(len(configs))]
        tasks = [
            cluster.task(train_replica, environment, own.as_dict(), str(folder), resources=resources)
            for own, folder in zip(configs, folders, strict=True)
        ]
        summaries: list[RunSummary] = cluster.results(tasks, timeout)
    finally:
        cluster.close()
    digests = [summary["digest"] for summary in summaries]
    known = [digest for digest in digests if digest is not None]
    return {
        "digest": combined(known) if len(known) == len(digests) else None,
        "digests": known if len(known) == len(digests) else None,
        "replicas": [replica for summary in summaries for replica in summary["replicas"]],
        "run_dir": str(Path(out)),
    }


def train_replica(environment: Make, config: Mapping[str, Any], folder: str) -> RunSummary:
    """Train one replica in its folder, or continue it there, in a process of Ray's."""
    if not Store(Path(folder)).epochs():
        shutil.rmtree(folder, ignore_errors=True)  # what a node has left that was lost before the first checkpoint
        return train(environment, config=config, out=folder, progress=False).summary
    begun = load_run(folder, environment=environment)
    game = begun.environment
    run = game.prepare()
    checkpointer = Checkpointer(run, begun.path, keep_last=game.config.experiment.keep_last)
    run.checkpointer = checkpointer
    checkpointer.continue_from(restore(run, begun.path)[0])
    return game.run_experiment()
