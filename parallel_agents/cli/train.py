"""`parallel-agents train`, `resume` and `config`: run a training and leave its results in a run folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from parallel_agents.checkpoint import Checkpointer, checkpoint_obstacle, restore
from parallel_agents.checkpoint.store import Store
from parallel_agents.cli.commands import Resume, ShowConfig, TrackingOptions, Train
from parallel_agents.cli.output import print_result
from parallel_agents.cli.process_watchdog import SharedStatus
from parallel_agents.cli.record import RunLog, open_environment, open_run_log, setting_name, write_record
from parallel_agents.cli.signals import graceful_stop
from parallel_agents.cli.target import load_algorithm, load_callback, load_target
from parallel_agents.cli.viewers import TerminalCallback, require_grid_game
from parallel_agents.cli.watching import watched
from parallel_agents.core.config import Config, merge, parse_setting, parse_sweep
from parallel_agents.core.errors import ConfigError, Interrupted
from parallel_agents.core.files import plain
from parallel_agents.engine.run import RunSummary
from parallel_agents.env import Environment
from parallel_agents.execution import watchdog
from parallel_agents.tracking.callbacks import Callback
from parallel_agents.tracking.logs import EventLog
from parallel_agents.tracking.metrics import MetricsWriter, write_table
from parallel_agents.tracking.progress import show_progress
from parallel_agents.tracking.run_folder import RunFolder
from parallel_agents.tracking.services import SERVICES
from parallel_agents.tracking.statistics import mean_interval
from parallel_agents.tracking.timeline import TraceWriter

_EVALUATE = {
    "parallel_agents.market.market_environment:MarketEnvironment": "market evaluate",
    "parallel_agents.workflows.defence:NetworkDefence": "workflow evaluate",
}
"""The commands that evaluate the runs of `market train` and `workflow train`, by target."""


def train(options: Train) -> None:
    """Train the agents of a target and print a summary."""
    config = merge_options(options)
    load_algorithm(config)
    make = load_target(options.target)
    summary = start_run(make(config=config), options.target, out=options.out, tracking=options, algorithm=options.algo)
    print_result(summary, _format(summary, options.target), as_json=options.json)


def resume(options: Resume) -> None:
    """Continue a run from its newest good checkpoint; start at its first epoch if it has no checkpoint yet."""
    open_trackers(options)  # report a missing package before anything is written
    with RunFolder.open(options.run_dir, write=True) as folder:
        environment = open_environment(folder, options.target)
        run, experiment = environment.prepare(), environment.config.experiment
        if reason := checkpoint_obstacle(run):
            raise ConfigError(
                f"{folder.path} has nothing to go on from, since no checkpoint could be taken: {reason}; then train it "
                "with another --out"
            )
        with open_run_log(folder, quiet=options.quiet) as log:
            has_checkpoint = bool(Store(folder.path).epochs())
            manifest, damages = restore(run, folder.path) if has_checkpoint else (None, [])
            for damage in damages:
                structlog.get_logger().warning("checkpoint_damaged", detail=damage)
                sys.stderr.write(f"damaged: {damage}\n")
            checkpointer = Checkpointer(run, folder.path, keep_last=experiment.keep_last, lock=folder.lock)
            run.checkpointer = checkpointer
            epochs = options.epochs or experiment.epochs
            if manifest is not None and manifest.epoch >= epochs:
                sys.stderr.write(f"epoch {manifest.epoch} is reached already: a larger --epochs goes on\n")
            if manifest is None:
                sys.stderr.write("the run stopped before its first checkpoint: it starts from its first epoch\n")
            else:
                checkpointer.continue_from(manifest)
            summary = _run_training(environment, log, epochs, options)
    print_result(summary, _format(summary, folder.environment), as_json=options.json)


def start_run(
    environment: Environment,
    target: str,
    *,
    out: Path | None = None,
    tracking: TrackingOptions,
    algorithm: str | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunSummary:
    """Train an environment in a new run folder and return the summary; refuse what cannot work before it is made.

    algorithm: the one that was asked for, which the environment must use.
    """
    open_trackers(tracking)
    _check_algorithm(environment, algorithm)
    if tracking.watch == "terminal":
        require_grid_game(environment, "--watch terminal")
    run, experiment = environment.prepare(), environment.config.experiment
    reason = checkpoint_obstacle(run)
    if experiment.checkpoint_every and reason:
        raise ConfigError(
            f"experiment.checkpoint_every is set, but no checkpoint can be taken: {reason}; or set it to 0"
        )
    with RunFolder.create(target, out) as folder, open_run_log(folder, quiet=tracking.quiet) as log:
        folder.write("config.json", environment.config.as_dict())
        write_record(folder, environment)
        if reason:
            sys.stderr.write(f"no checkpoint will be written, so `resume` and `eval` will not work: {reason}\n")
        else:
            run.checkpointer = Checkpointer(run, folder.path, keep_last=experiment.keep_last, lock=folder.lock)
        return _run_training(environment, log, experiment.epochs, tracking, callbacks)


def _check_algorithm(environment: Environment, algorithm: str | None) -> None:
    """Raise ConfigError if an algorithm was asked for that the environment does not use."""
    if algorithm is not None and not environment.makes_models:
        kinds = ", ".join(sorted({type(agent.model).__name__ for agent in environment.agents}))
        raise ConfigError(
            f"--algo {algorithm} cannot apply: {type(environment).__name__}.setup_agents() makes its own models "
            f"({kinds}); leave --algo out, or make them by self.make_model(obs_shape, n_actions)"
        )


def open_trackers(options: TrackingOptions, folder: Path | None = None) -> list[Callback]:
    """Return the trackers that were asked for; raise ConfigError for a package that is not installed.

    folder: the run folder; None: only check that every tracker can be made.
    """
    chosen = [service for service in SERVICES if getattr(options, service.name)]
    for service in chosen:
        service.load()
    listeners = [load_callback(name) for name in options.listener]
    return [] if folder is None else [*(service(folder) for service in chosen), *listeners]


def _run_training(
    environment: Environment,
    log: RunLog,
    epochs: int,
    options: TrackingOptions,
    callbacks: Sequence[Callback] = (),
) -> RunSummary:
    """Run the experiment with all callbacks, write the results into the run folder and return the summary."""
    run, folder = environment.prepare(), log.folder
    log.run, log.epochs = run, epochs
    run.run_id = folder.run_id  # the same id in folder, log and metrics
    environment.timeline.enabled = True
    run.watchdog.folder, run.watchdog.give_up = folder.path, partial(_exit_hung_run, log)
    _report_to_parent(environment, folder)
    metrics = MetricsWriter(folder.metrics)
    everyone = [
        EventLog(),
        metrics,
        TerminalCallback(environment, sys.stderr)
        if options.watch == "terminal"
        else show_progress(quiet=options.quiet),
        TraceWriter(environment.timeline, folder.trace),
        *open_trackers(options, folder.path),
        # Worlds that are played elsewhere cannot be drawn here.
        *(() if environment.config.parallel.world_shards else environment.recorders(folder.path)),
        *callbacks,
    ]
    unwritten = 0
    try:
        with graceful_stop(run.request_stop), watched(folder.path) if options.watch == "page" else nullcontext():
            summary = environment.run_experiment(epochs, callbacks=everyone)
    except Interrupted as error:
        error.args = (f"{error}; go on with: {log.resume_command}",)
        raise
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
    return summary


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


def merge_options(options: Train) -> dict[str, Any]:
    """Return the configuration of the options; later sources win: file, short options, --set."""
    return merge(*(layer for _, layer in option_layers(options)))


def option_layers(options: Train) -> list[tuple[str, dict[str, Any]]]:
    """Return every source of configuration on the command line with its sections, in the order in which they win."""
    names = ("agents", "algo", "worlds", "epochs", "total_timesteps", "seed", "seeds", "backend")
    short = short_options(**{name: getattr(options, name) for name in names})
    if options.sweep:
        short.setdefault("experiment", {})["sweep"] = merge(*(parse_sweep(text) for text in options.sweep))
    settings = merge(*(parse_setting(text) for text in options.set))
    for section, keys in settings.items():
        for key in keys:
            if key in short.get(section, {}):
                raise ConfigError(f"{section}.{key} is given twice: by its own option and by --set; leave one out")
    return [(str(options.config), Config.read(options.config)), ("option", short), ("--set", settings)]


def short_options(**given: Any) -> dict[str, dict[str, Any]]:
    """Return the options that have names of their own as sections of the configuration, without those that are None."""
    if given.get("epochs") is not None and given.get("total_timesteps") is not None:
        raise ConfigError("--epochs and --total-timesteps both say how long the run is: leave one out")
    sections = {"agents": ("world", "agents"), "algo": ("model", "algorithm"), "backend": ("parallel", "backend")}
    found: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        section, key = sections.get(name, ("experiment", name))
        if value is not None:
            found.setdefault(section, {})[key] = value
    return found


def show_config(options: ShowConfig) -> None:
    """Print every value of the configuration and where it comes from."""
    layers = option_layers(options)
    given = merge(*(layer for _, layer in layers))
    load_algorithm(given)
    make = load_target(options.target)
    environment = make(config=given)
    sections = environment.config.as_dict()
    own = getattr(environment.agents[0].model, "options", None)
    if is_dataclass(own) and not isinstance(own, type):
        sections["model"] = {**asdict(own), **sections["model"]}
    layers.insert(0, (make.__name__, dict(environment.defaults(given))))
    rows = [
        {"key": f"{section}.{key}", "value": plain(value), "origin": _origin(layers, section, key)}
        for section, keys in sections.items()
        for key, value in keys.items()
    ]
    width = max(len(row["key"]) for row in rows)
    values = max(min(40, len(str(row["value"]))) for row in rows)
    text = "".join(f"{row['key']:<{width}}  {row['value']!s:<{values}}  {row['origin']}\n" for row in rows)
    print_result({"target": options.target, "config": rows}, text, as_json=options.json)


def _origin(layers: list[tuple[str, dict[str, Any]]], section: str, key: str) -> str:
    """Return the last source that gives a key."""
    found = [name for name, layer in layers if isinstance(layer.get(section), Mapping) and key in layer[section]]
    return found[-1] if found else "default"


def _format(summary: Mapping[str, Any], target: str) -> str:
    digest = summary["digest"] or f"none: {summary['no_digest']}"
    run_dir = summary["run_dir"]
    evaluate = _EVALUATE.get(target, "eval")
    commands = [evaluate, "watch"] if Store(Path(run_dir)).epochs() else ["watch"]
    epochs = f"{summary['epochs']} epoch{'s' if summary['epochs'] != 1 else ''}"
    return (
        f"{epochs}, {summary['total_timesteps']:,} timesteps at {summary['fps']:,.0f} fps, "
        f"{summary['updates']:,} updates at {summary['updates_per_second']:,.0f}/s in {summary['wall_seconds']:.1f} s\n"
        f"{_format_no_round(summary)}"
        f"{_format_episodes(summary)}"
        f"digest {digest}\n"
        f"run folder {run_dir}\n"
        f"next: {'   or: '.join(f'parallel-agents {command} {run_dir}' for command in commands)}\n"
    )


def _format_no_round(summary: Mapping[str, Any]) -> str:
    """Return why nothing was learned, if the run ended before its first round of training; else an empty text."""
    interval = summary["config"]["parallel"]["train_interval"]
    if summary["updates"] or summary["epochs"] >= interval:
        return ""
    return f"nothing was learned: fewer epochs than parallel.train_interval = {interval}\n"


def _format_episodes(summary: Mapping[str, Any]) -> str:
    """Return the mean return of the newest episodes; of a sweep only by setting, since settings are no seeds."""
    replicas = summary["replicas"]
    if any(replica["setting"] for replica in replicas):
        ended = all(replica["ep_rew_mean"] is not None for replica in replicas)
        return _format_sweep(replicas, "ep_rew_mean" if ended else "mean_reward")
    if summary["ep_rew_mean"] is None:
        return f"no episode has ended; mean reward per agent and epoch {summary['mean_reward']:.2f}\n"
    return f"ep_rew_mean {summary['ep_rew_mean']:.2f}, ep_len_mean {summary['ep_len_mean']:.1f} (newest episodes)\n"


def _format_sweep(replicas: Sequence[Mapping[str, Any]], measure: str) -> str:
    """Return a line for each combination of a sweep, the best first, with its 95 % interval over seeds."""
    groups: dict[str, list[float]] = {}
    for replica in replicas:
        groups.setdefault(setting_name(replica["setting"]), []).append(replica[measure])
    intervals = {setting: mean_interval(np.array(values)) for setting, values in groups.items()}
    ranked = sorted(intervals.items(), key=lambda pair: -pair[1].estimate)
    if min(map(len, groups.values())) < 2:
        rows = "".join(f"  {setting}: {interval.estimate:.2f}\n" for setting, interval in ranked)
        return f"{measure} of each setting, with one seed (--seeds gives intervals):\n{rows}"
    rows = "".join(f"  {setting}: {mean:.2f} [{low:.2f}, {high:.2f}]\n" for setting, (mean, low, high) in ranked)
    return f"{measure} of each setting, with its 95 % interval over seeds:\n{rows}"
