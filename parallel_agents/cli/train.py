"""`parallel-agents train` and `resume`: run a training and leave its results in a run folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import structlog

from parallel_agents.checkpoint import Checkpointer, checkpoint_obstacle, restore
from parallel_agents.checkpoint.store import Store
from parallel_agents.cli.commands import Resume, Train
from parallel_agents.cli.output import print_result
from parallel_agents.cli.process_watchdog import SharedStatus
from parallel_agents.cli.run_log import RunLog, open_run_log
from parallel_agents.cli.signals import graceful_stop
from parallel_agents.cli.target import load_target
from parallel_agents.core.config import MAX_CONFIG_BYTES, Config, merge, parse_setting, parse_sweep
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import read_json
from parallel_agents.env import Environment
from parallel_agents.execution import watchdog
from parallel_agents.tracking.logs import EventLog
from parallel_agents.tracking.metrics import MetricsWriter, write_table
from parallel_agents.tracking.progress import show_progress
from parallel_agents.tracking.run_folder import RunFolder
from parallel_agents.tracking.statistics import mean_interval
from parallel_agents.tracking.tensorboard import TensorBoardWriter, load_tensorboard


def train(options: Train) -> None:
    """Train the agents of a target and print a summary."""
    if options.tensorboard:
        load_tensorboard()  # report a missing package before anything is written
    environment = load_target(options.target)(config=merge_options(options))
    run = environment.prepare()  # refuse what cannot work before anything is written
    experiment = environment.config.experiment
    reason = checkpoint_obstacle(run)
    if experiment.checkpoint_every and reason:
        raise ConfigError(
            f"experiment.checkpoint_every is set, but no checkpoint can be taken: {reason}; or set it to 0"
        )
    with RunFolder.create(options.target, options.out) as folder, open_run_log(folder, quiet=options.quiet) as log:
        folder.write("config.json", environment.config.as_dict())
        if reason:
            sys.stderr.write(f"no checkpoint will be written, so `resume` and `eval` will not work: {reason}\n")
        else:
            run.checkpointer = Checkpointer(run, folder.path, keep_last=experiment.keep_last, lock=folder.lock)
        _run_training(environment, log, experiment.epochs, options)


def resume(options: Resume) -> None:
    """Continue a run from its newest good checkpoint; start at its first epoch if it has no checkpoint yet."""
    if options.tensorboard:
        load_tensorboard()
    with (
        RunFolder.open(options.run_dir, write=True) as folder,
        open_run_log(folder, quiet=options.quiet) as log,
    ):
        environment = load_target(options.target or folder.environment)(config=read_config(folder))
        run, experiment = environment.prepare(), environment.config.experiment
        if reason := checkpoint_obstacle(run):
            raise ConfigError(
                f"{folder.path} has nothing to go on from, since no checkpoint could be taken: {reason}; then train it "
                "with another --out"
            )
        has_checkpoint = bool(Store(folder.path).epochs())
        manifest, damages = restore(run, folder.path) if has_checkpoint else (None, [])
        for damage in damages:
            structlog.get_logger().warning("checkpoint_damaged", detail=damage)
            sys.stderr.write(f"damaged: {damage}\n")
        run.checkpointer = Checkpointer(run, folder.path, keep_last=experiment.keep_last, lock=folder.lock)
        if manifest is None:
            sys.stderr.write("the run stopped before its first checkpoint: it starts from its first epoch\n")
        else:
            run.checkpointer.continue_from(manifest)
        _run_training(environment, log, options.epochs or experiment.epochs, options)


def _run_training(environment: Environment, log: RunLog, epochs: int, options: Train | Resume) -> None:
    """Run the experiment with all callbacks, write the results into the run folder and print a summary."""
    run, folder = environment.prepare(), log.folder
    log.run = run
    run.run_id = folder.run_id  # the same id in folder, log and metrics
    environment.timeline.enabled = True
    run.watchdog.folder, run.watchdog.give_up = folder.path, partial(_exit_hung_run, log)
    _report_to_parent(environment, folder)
    metrics = MetricsWriter(folder.metrics)
    callbacks = [
        EventLog(),
        metrics,
        show_progress(quiet=options.quiet),
        *([TensorBoardWriter(folder.path / "tensorboard", root=folder.path)] if options.tensorboard else []),
        *environment.recorders(folder.path),
    ]
    unwritten = 0
    try:
        with graceful_stop(run.request_stop):
            summary = environment.run_experiment(epochs, callbacks=callbacks)
    finally:
        for replica in run.environments:
            _fails(f"close() of {type(replica).__name__}", replica.close)
        unwritten += _fails("trace.json", lambda: environment.timeline.write(folder.trace))
        unwritten += _fails("metrics.csv", lambda: write_table(folder.path))
    unwritten += _fails("fingerprint.json", lambda: folder.write("fingerprint.json", summary["fingerprint"]))
    unwritten += run.dropped_callbacks + bool(metrics.lost_lines)
    summary = {**summary, "unwritten_outputs": unwritten, "run_dir": str(folder.path)}
    if _fails("summary.json", lambda: folder.write("summary.json", summary)):
        summary["unwritten_outputs"] += 1
    print_result(summary, _format(summary), as_json=options.json)


def _fails(name: str, write: Callable[[], object]) -> bool:
    """Write an output that the result does not depend on; log a failure and return whether there was one."""
    try:
        write()
    except Exception as error:
        structlog.get_logger().error(
            "output_failed", output=name, cause=f"{type(error).__name__}: {error}", advice="the result stands"
        )
        return True
    return False


def _exit_hung_run(log: RunLog, cause: str) -> None:
    """Exit the process at once: code that never returns to Python cannot be interrupted otherwise."""
    log.log_failure("Hung", cause, "stacks-NN.txt in the run folder says where every thread was")
    if SharedStatus.current is not None:
        SharedStatus.current.set_messages(cause=cause)  # the parent process writes the error
    else:
        sys.stderr.write(f"error: {cause}; the last checkpoint stands, and `resume` goes on from it\n")
        sys.stderr.flush()
    os._exit(1)


def _report_to_parent(environment: Environment, folder: RunFolder) -> None:
    """Share epoch, turn and the state of the interpreter's lock with the parent process, if that watches this one."""
    status, run = SharedStatus.current, environment.prepare()
    if status is None:
        return
    round_limit = environment.config.parallel.round_deadline + watchdog.LAST_GRACE
    run.watchdog.on_check = lambda: status.tick(run.turn_limit + watchdog.LAST_GRACE, round_limit)
    run.watchdog.on_exit = status.stop_ticking
    run.loop.heartbeat.cells = status.heartbeat
    status.set_messages(folder=str(folder.path.absolute()), name=type(environment).__name__)


def read_config(folder: RunFolder) -> Config:
    """Return the configuration that a run was started with."""
    path = folder.path / "config.json"
    try:
        return Config.build(read_json(path, MAX_CONFIG_BYTES))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def merge_options(options: Train) -> dict[str, Any]:
    """Return the configuration of the options; later sources win: file, short options, --set."""
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
    short = {name: {key: value for key, value in keys.items() if value is not None} for name, keys in short.items()}
    if options.sweep:
        short["experiment"]["sweep"] = merge(*(parse_sweep(text) for text in options.sweep))
    settings = [parse_setting(text) for text in options.set]
    for setting in settings:
        for section, keys in setting.items():
            for key in keys:
                if key in short.get(section, {}):
                    raise ConfigError(f"{section}.{key} is given twice: by its own option and by --set; leave one out")
    return merge(Config.read(options.config), {name: keys for name, keys in short.items() if keys}, *settings)


def _format(summary: Mapping[str, Any]) -> str:
    digest = summary["digest"] or f"none: {summary['no_digest']}"
    return (
        f"{summary['epochs']} epochs, {summary['turns']:,} turns at {summary['turns_per_second']:,.0f}/s, "
        f"{summary['updates']:,} updates at {summary['updates_per_second']:,.0f}/s in {summary['wall_seconds']:.1f} s\n"
        f"mean reward per agent and epoch {summary['mean_reward']:.2f} (last 100 epochs)\n"
        f"{_format_sweep(summary['replicas'])}"
        f"digest {digest}\n"
        f"run folder {summary['run_dir']}\n"
    )


def _format_sweep(replicas: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each combination of a sweep, the best first, with its 95 % interval over seeds."""
    groups: dict[str, list[float]] = {}
    for replica in replicas:
        setting = " ".join(f"{key}={value}" for key, value in replica["setting"].items())
        groups.setdefault(setting, []).append(replica["mean_reward"])
    if "" in groups:
        return ""
    intervals = {setting: mean_interval(np.array(rewards)) for setting, rewards in groups.items()}
    ranked = sorted(intervals.items(), key=lambda pair: -pair[1].estimate)
    return "".join(f"  {setting}: {mean:.2f} [{low:.2f}, {high:.2f}]\n" for setting, (mean, low, high) in ranked)
