"""`parallel-agents train` and `resume`: from options to a run folder with a result in it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parallel_agents.cli.answers import answer
from parallel_agents.cli.commands import Resume, Train
from parallel_agents.cli.guard import Page
from parallel_agents.cli.signals import graceful_stop
from parallel_agents.cli.target import load_target
from parallel_agents.config import MAX_CONFIG_BYTES, Config, merge, parse_setting, parse_sweep
from parallel_agents.environment import Environment
from parallel_agents.errors import ConfigError, RunError
from parallel_agents.runtime import supervision
from parallel_agents.runtime.checkpoints import Checkpointer, restore, why_not
from parallel_agents.tracking.logs import EventLog, bind, configure_logs
from parallel_agents.tracking.metrics import MetricsWriter
from parallel_agents.tracking.progress import show_progress
from parallel_agents.tracking.runfolder import RunFolder
from parallel_agents.tracking.statistics import mean_interval
from parallel_agents.tracking.tables import write_table
from parallel_agents.tracking.tensorboard import TensorBoardWriter, load_tensorboard

__all__ = ["conduct", "give_up", "layers", "read_config", "resume", "train"]


def train(options: Train) -> None:
    """Run the command and print what came of it."""
    if options.tensorboard:
        load_tensorboard()  # an absent package is told of before anything is written
    environment = load_target(options.target)(config=layers(options))
    run = environment.prepare()  # what cannot work is refused before anything is written
    reason = why_not(run)
    if environment.config.experiment.checkpoint_every and reason:
        raise ConfigError(
            f"experiment.checkpoint_every is set, but no checkpoint can be taken: {reason}; or set it to 0"
        )
    folder = RunFolder.create(options.target, options.out)
    folder.write_config(environment.config.as_dict())
    if reason:
        sys.stderr.write(f"no checkpoint will be written, so `resume` and `eval` will not work: {reason}\n")
    else:
        run.checkpointer = Checkpointer(run, folder.path, keep_last=environment.config.experiment.keep_last)
    conduct(environment, folder, environment.config.experiment.epochs, options)


def resume(options: Resume) -> None:
    """Go on with a run from its newest good checkpoint."""
    if options.tensorboard:
        load_tensorboard()
    folder = RunFolder.open(options.run_dir)
    environment = load_target(options.target or folder.environment)(config=read_config(folder))
    run = environment.prepare()
    manifest, troubles = restore(run, folder.path)
    for trouble in troubles:
        sys.stderr.write(f"passed over a damaged checkpoint: {trouble}\n")
    run.checkpointer = Checkpointer(run, folder.path, keep_last=environment.config.experiment.keep_last)
    run.checkpointer.goes_on(manifest)
    epochs = options.epochs or environment.config.experiment.epochs
    conduct(environment, folder, epochs, options)


def conduct(environment: Environment, folder: RunFolder, epochs: int, options: Train | Resume) -> None:
    """Run with everything that listens, and leave the results in the run folder."""
    environment.prepare().run_id = folder.run_id  # one name in folder, log and metrics
    environment.timeline.enabled = True
    supervisor = environment.prepare().supervisor
    supervisor.folder, supervisor.give_up = folder.path, give_up
    show_outside(environment, folder)
    with configure_logs(folder.log, run=folder.run_id, console=not options.quiet), bind(role="conductor"):
        listeners = [
            EventLog(),
            MetricsWriter(folder.metrics),
            show_progress(quiet=options.quiet),
            *([TensorBoardWriter(folder.path / "tensorboard")] if options.tensorboard else []),
            *environment.recorders(folder.path),
        ]
        try:
            with graceful_stop(environment.prepare().request_stop):
                summary = environment.run_experiment(epochs, listeners=listeners)
        finally:
            for own in environment.prepare().environments:
                own.close()
            _leave(lambda: environment.timeline.write(folder.trace))
            write_table(folder.path)
    summary = {**summary, "run_dir": str(folder.path)}
    _leave(lambda: folder.write_fingerprint(summary["fingerprint"]))
    _leave(lambda: folder.write_summary(summary))
    answer(json.dumps(summary) + "\n" if options.json else _told(summary))


def _leave(write: Callable[[], None]) -> None:
    """Write something that the result does not depend on: on a full disk it is missing, and that is said."""
    try:
        write()
    except (OSError, RunError) as error:
        sys.stderr.write(f"not written: {error}\n")


def give_up(cause: str) -> None:
    """End the process where nothing else can: code that never returns cannot be unwound."""
    if Page.current is not None:
        Page.current.tell(cause=cause)  # the parent says it
    else:
        sys.stderr.write(f"error: {cause}; the last checkpoint stands, and `resume` goes on from it\n")
        sys.stderr.flush()
    os._exit(1)


def show_outside(environment: Environment, folder: RunFolder) -> None:
    """Let the process that watches this one, if there is one, see which turn it is and that somebody is awake."""
    page, run = Page.current, environment.prepare()
    if page is None:
        return
    round_limit = environment.config.parallel.round_deadline + supervision.LAST_GRACE
    run.supervisor.on_look = lambda: page.tick(run.turn_limit + supervision.LAST_GRACE, round_limit)
    run.supervisor.on_exit = page.rest
    run.loop.heart.cells = page.heart
    page.tell(folder=str(folder.path.absolute()), name=type(environment).__name__)


def read_config(folder: RunFolder) -> Config:
    """The configuration that a run was started with."""
    path = folder.path / "config.json"
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path} is larger than any configuration: it is not one")
        return Config.build(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def layers(options: Train) -> dict[str, Any]:
    """The options as sections, later ones over earlier ones: file, short options, --set."""
    short: dict[str, dict[str, Any]] = {
        "world": {"agents": options.agents},
        "model": {"algorithm": options.algo},
        "experiment": {
            "worlds": options.worlds,
            "epochs": options.epochs,
            "seed": options.seed,
            "seeds": options.seeds,
        },
        "parallel": {"backend": options.backend},
    }
    given = {name: {key: value for key, value in keys.items() if value is not None} for name, keys in short.items()}
    if options.sweep:
        given.setdefault("experiment", {})["sweep"] = merge(*(parse_sweep(text) for text in options.sweep))
    settings = [parse_setting(text) for text in options.set]
    for setting in settings:
        for section, keys in setting.items():
            for key in keys:
                if key in given.get(section, {}):
                    raise ConfigError(f"{section}.{key} is given twice: by its own option and by --set; leave one out")
    filed = Config.read(options.config)
    return merge(filed, {name: keys for name, keys in given.items() if keys}, *settings)


def _told(summary: Mapping[str, Any]) -> str:
    digest = summary["digest"] or f"none: {summary['no_digest']}"
    return (
        f"{summary['epochs']} epochs, {summary['turns']:,} turns at {summary['turns_per_second']:,.0f}/s, "
        f"{summary['updates']:,} updates at {summary['updates_per_second']:,.0f}/s in {summary['wall_seconds']:.1f} s\n"
        f"mean reward per agent and epoch {summary['mean_reward']:.2f} (last 100 epochs)\n"
        f"{_swept(summary['replicas'])}"
        f"digest {digest}\n"
        f"run folder {summary['run_dir']}\n"
    )


def _swept(replicas: Sequence[Mapping[str, Any]]) -> str:
    """A line for each combination of a sweep, the best first; with several seeds, its 95 % interval."""
    groups: dict[str, list[float]] = {}
    for replica in replicas:
        words = " ".join(f"{key}={value}" for key, value in replica["setting"].items())
        groups.setdefault(words, []).append(replica["mean_reward"])
    if "" in groups:
        return ""
    intervals = {words: mean_interval(np.array(rewards)) for words, rewards in groups.items()}
    ranked = sorted(intervals.items(), key=lambda pair: -pair[1].estimate)
    return "".join(f"  {words}: {found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]\n" for words, found in ranked)
