"""`parallel-agents train` and `resume`: from options to a run folder with a result in it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import structlog

from parallel_agents.cli.answers import answer
from parallel_agents.cli.commands import Resume, Train
from parallel_agents.cli.failure import RunLog, recorded
from parallel_agents.cli.guard import Page
from parallel_agents.cli.signals import graceful_stop
from parallel_agents.cli.target import load_target
from parallel_agents.config import MAX_CONFIG_BYTES, Config, merge, parse_setting, parse_sweep
from parallel_agents.environment import Environment
from parallel_agents.errors import ConfigError
from parallel_agents.runtime import supervision
from parallel_agents.runtime.checkpoints import Checkpointer, restore, why_not
from parallel_agents.runtime.checkpoints.store import Store
from parallel_agents.tracking.files import read_json
from parallel_agents.tracking.logs import EventLog
from parallel_agents.tracking.metrics import MetricsWriter
from parallel_agents.tracking.progress import show_progress
from parallel_agents.tracking.runfolder import RunFolder
from parallel_agents.tracking.statistics import mean_interval
from parallel_agents.tracking.tables import write_table
from parallel_agents.tracking.tensorboard import TensorBoardWriter, load_tensorboard

__all__ = ["conduct", "give_up", "layers", "read_config", "resume", "show_outside", "train"]


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
    experiment = environment.config.experiment
    with RunFolder.create(options.target, options.out) as folder, recorded(folder, quiet=options.quiet) as log:
        folder.write_config(environment.config.as_dict())
        if reason:
            sys.stderr.write(f"no checkpoint will be written, so `resume` and `eval` will not work: {reason}\n")
        else:
            run.checkpointer = Checkpointer(run, folder.path, keep_last=experiment.keep_last, lock=folder.lock)
        conduct(environment, log, experiment.epochs, options)


def resume(options: Resume) -> None:
    """Go on with a run from its newest good checkpoint, or from its first epoch if it stopped before the first one."""
    if options.tensorboard:
        load_tensorboard()
    with (
        RunFolder.open(options.run_dir, write=True) as folder,
        recorded(folder, quiet=options.quiet) as log,
    ):
        environment = load_target(options.target or folder.environment)(config=read_config(folder))
        run, experiment = environment.prepare(), environment.config.experiment
        if reason := why_not(run):
            raise ConfigError(
                f"{folder.path} has nothing to go on from, since no checkpoint could be taken: {reason}; then train it "
                "with another --out"
            )
        begun = bool(Store(folder.path).epochs())
        manifest, troubles = restore(run, folder.path) if begun else (None, [])
        for trouble in troubles:
            structlog.get_logger().warning("checkpoint_damaged", detail=trouble)
            sys.stderr.write(f"damaged: {trouble}\n")
        run.checkpointer = Checkpointer(run, folder.path, keep_last=experiment.keep_last, lock=folder.lock)
        if manifest is None:
            sys.stderr.write("the run stopped before its first checkpoint: it starts from its first epoch\n")
        else:
            run.checkpointer.goes_on(manifest)
        conduct(environment, log, options.epochs or experiment.epochs, options)


def conduct(environment: Environment, log: RunLog, epochs: int, options: Train | Resume) -> None:
    """Run with everything that listens, and leave the results in the run folder."""
    run, folder = environment.prepare(), log.folder
    log.run = run
    run.run_id = folder.run_id  # one name in folder, log and metrics
    environment.timeline.enabled = True
    run.supervisor.folder, run.supervisor.give_up = folder.path, partial(give_up, log)
    show_outside(environment, folder)
    metrics = MetricsWriter(folder.metrics)
    listeners = [
        EventLog(),
        metrics,
        show_progress(quiet=options.quiet),
        *([TensorBoardWriter(folder.path / "tensorboard", root=folder.path)] if options.tensorboard else []),
        *environment.recorders(folder.path),
    ]
    unwritten = 0
    try:
        with graceful_stop(run.request_stop):
            summary = environment.run_experiment(epochs, listeners=listeners)
    finally:
        for own in run.environments:
            _fails(f"close() of {type(own).__name__}", own.close)
        unwritten += _fails("trace.json", lambda: environment.timeline.write(folder.trace))
        unwritten += _fails("metrics.csv", lambda: write_table(folder.path))
    unwritten += _fails("fingerprint.json", lambda: folder.write_fingerprint(summary["fingerprint"]))
    unwritten += run.dropped_listeners + bool(metrics.lost_lines)
    summary = {**summary, "unwritten_outputs": unwritten, "run_dir": str(folder.path)}
    if _fails("summary.json", lambda: folder.write_summary(summary)):
        summary["unwritten_outputs"] += 1
    answer(json.dumps(summary) + "\n" if options.json else _told(summary))


def _fails(name: str, write: Callable[[], object]) -> bool:
    """Do something that the result does not depend on; True where that failed, which is logged and ends nothing."""
    try:
        write()
    except Exception as error:
        structlog.get_logger().error(
            "output_failed", output=name, cause=f"{type(error).__name__}: {error}", advice="the result stands"
        )
        return True
    return False


def give_up(log: RunLog, cause: str) -> None:
    """End the process where nothing else can: code that never returns cannot be unwound."""
    log.failed("Hung", cause, "stacks-NN.txt in the run folder says where everybody was")
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
        return Config.build(read_json(path, MAX_CONFIG_BYTES))
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
