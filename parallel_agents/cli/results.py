"""`parallel-agents eval`, `export` and `curve`: evaluate the agents of a run, save their weights, draw their curves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from parallel_agents.algorithms import Model
from parallel_agents.checkpoint import restore
from parallel_agents.cli.commands import Curve, Eval, Export
from parallel_agents.cli.output import print_result
from parallel_agents.cli.record import open_environment, read_config, setting_name
from parallel_agents.cli.viewers import EpisodeRecorder, TerminalViewer, require_grid_game
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.types import Array
from parallel_agents.env import Environment
from parallel_agents.env.adapters.adapted import AdaptedEnvironment
from parallel_agents.env.evaluation import Evaluation
from parallel_agents.games import GridEnvironment, social_metrics
from parallel_agents.tracking.metrics import Metrics, read_metrics
from parallel_agents.tracking.plots import learning_curve
from parallel_agents.tracking.run_folder import RunFolder
from parallel_agents.tracking.statistics import Interval, bootstrap_interval, mean_interval


def evaluate_run(options: Eval) -> None:
    """Evaluate the agents of a run and print their returns."""
    if options.episodes < 1:
        raise ConfigError(f"--episodes {options.episodes}: give a whole number of at least 1")
    if not 0.0 <= options.exploration <= 1.0:
        raise ConfigError(f"--exploration {options.exploration:g}: give 0 (the best actions) to 1 (random ones)")
    if not 0.1 <= options.fps <= 100:
        raise ConfigError(f"--fps {options.fps:g}: give a number of turns a second from 0.1 to 100")
    folder = RunFolder.open(options.run_dir)
    environment = open_environment(folder, options.target)
    if options.watch:
        require_grid_game(environment, "--watch")
    gif = None if options.gif is None else EpisodeRecorder(options.gif, options.fps, environment, options.seen_by)
    run = environment.prepare()
    manifest, _ = restore(run, folder.path, best=options.best)
    if gif is not None and isinstance(environment, AdaptedEnvironment):
        environment.draws_itself()
    play = partial(Environment.evaluate, episodes=options.episodes, exploration=options.exploration)
    with ExitStack() as stack:
        viewers: list[Callable[[Environment], None]] = [] if gif is None else [gif]
        if options.watch:
            stream = sys.stderr if options.json else sys.stdout
            viewers.insert(0, stack.enter_context(TerminalViewer(stream, options.fps)))

        def show(world: Environment) -> None:
            for viewer in viewers:
                viewer(world)

        evaluations = [play(environment, on_turn=show)]
    evaluations += [play(replica) for replica in run.environments[1:]]
    epochs = run.best.epochs if options.best else [manifest.epoch] * len(evaluations)
    result = _summarise_settings(run.config.experiment.settings, run.environments, evaluations, epochs)
    result |= {"episodes": options.episodes, "run_dir": str(folder.path)}
    if gif is not None:
        result["gif"] = str(gif.write())
    print_result(result, _format(result), as_json=options.json)


def _summarise_settings(
    settings: Sequence[Mapping[str, Any]],
    environments: Sequence[Environment],
    evaluations: Sequence[Evaluation],
    epochs: Sequence[int],
) -> dict[str, Any]:
    """Return the summary of the best setting of a sweep, and a row for each; seeds are those of one setting only."""
    each = len(environments) // len(settings)
    cuts = [slice(k * each, (k + 1) * each) for k in range(len(settings))]
    found = [_summarise(environments[cut], evaluations[cut], epochs[cut]) for cut in cuts]
    if len(settings) == 1:
        return found[0]
    names = ("mean_return", "interval", "interval_over", "replicas")
    rows = [
        {"setting": dict(setting)} | {name: own[name] for name in names}
        for setting, own in zip(settings, found, strict=True)
    ]
    order = sorted(range(len(rows)), key=lambda k: -rows[k]["mean_return"])
    return found[order[0]] | {"setting": rows[order[0]]["setting"], "settings": [rows[k] for k in order]}


def _summarise(
    environments: Sequence[Environment], evaluations: Sequence[Evaluation], epochs: Sequence[int]
) -> dict[str, Any]:
    """Return means with intervals: over seeds if there are several replicas, else over episodes."""
    replicas = [
        {"seed": env.seed, "epoch": epoch, "mean_return": result.mean_return, "interval": _bounds(result.interval)}
        for env, result, epoch in zip(environments, evaluations, epochs, strict=True)
    ]
    returns = np.stack([result.returns.mean(axis=0) for result in evaluations])  # (replicas, episodes)
    several = len(evaluations) > 1
    samples = returns.mean(axis=1) if several else returns[0]
    agents = np.mean([result.returns.mean(axis=1) for result in evaluations], axis=0)
    interquartile = bootstrap_interval(samples)
    summary = {
        "mean_return": float(returns.mean()),
        "interval": _bounds(mean_interval(samples)),
        "interval_over": "seeds" if several else "episodes",
        "interquartile_mean": interquartile.estimate,
        "interquartile_interval": _bounds(interquartile),
        "agents": {agent.name: float(mean) for agent, mean in zip(environments[0].agents, agents, strict=True)},
        "epoch": max(epochs),
        "replicas": replicas,
    }
    return summary | ({"social": _social(evaluations)} if isinstance(environments[0], GridEnvironment) else {})


def _social(evaluations: Sequence[Evaluation]) -> dict[str, float | None]:
    """Return the social metrics of a grid game, each the mean over all episodes for which it is defined."""
    metrics = {
        "efficiency": [social_metrics.efficiency(result.rewards) for result in evaluations],
        "equality": [social_metrics.equality(result.rewards) for result in evaluations],
        "sustainability": [social_metrics.sustainability(result.rewards) for result in evaluations],
        "peace": [social_metrics.peace(result.acted) for result in evaluations],
    }
    means = {}
    for name, values in metrics.items():
        known = np.concatenate(values)
        known = known[np.isfinite(known)]  # without rewards, equality is not defined
        means[name] = float(known.mean()) if known.size else None
    return means


def _bounds(interval: Interval) -> list[float | None]:
    return [float(bound) if np.isfinite(bound) else None for bound in interval[1:]]


def _format(result: Mapping[str, Any]) -> str:
    replicas = result["replicas"] if len(result["replicas"]) > 1 else []
    over = f"{len(replicas)} seeds, " if replicas else ""
    lines = [
        f"{setting_name(row['setting'])}: {_interval_text(row)} {row['interval_over']}"
        for row in result.get("settings", ())
    ]
    if lines:
        lines.append("the best setting:")
    lines += [
        f"mean return {_interval_text(result)} {over}{result['episodes']} episodes, weights of epoch {result['epoch']}"
    ]
    lines += [f"  {name:<16} {mean:10.2f}" for name, mean in result["agents"].items()]
    lines += [f"  seed {row['seed']:<11} {row['mean_return']:10.2f}  epoch {row['epoch']}" for row in replicas]
    if "social" in result:
        known = [f"{name} {value:.3g}" for name, value in result["social"].items() if value is not None]
        lines.append("the group: " + ", ".join(known))
    if "gif" in result:
        lines.append(f"an episode: {result['gif']}")
    return "\n".join(lines) + "\n"


def _interval_text(row: Mapping[str, Any]) -> str:
    low, high = (float("nan") if bound is None else bound for bound in row["interval"])
    return f"{row['mean_return']:.2f} [{low:.2f}, {high:.2f}] over"


def export_weights(options: Export) -> None:
    """Write the weights of one agent of a run into a file."""
    folder = RunFolder.open(options.run_dir)
    run = open_environment(folder, options.target).prepare()
    if options.out.suffix not in ("", ".safetensors", ".onnx", ".pt"):
        raise ConfigError(
            f"--out {options.out}: give a name that ends in .safetensors (weights), .onnx or .pt (TorchScript)"
        )
    count = len(run.environments)
    if not 0 <= options.replica < count:
        raise ConfigError(f"--replica {options.replica}: this run has replicas 0 to {count - 1}")
    replica = run.environments[options.replica]
    agents = {str(agent.name): agent for agent in replica.agents}
    if options.agent not in agents:
        raise ConfigError(f"--agent {options.agent}: this run has {', '.join(agents)}")
    model = agents[options.agent].model
    if not isinstance(model, Model):
        raise ConfigError(f"--agent {options.agent}: its model is a {type(model).__name__}, which has no weights")
    manifest, _ = restore(run, folder.path, best=options.best)
    if options.out.suffix in (".onnx", ".pt"):
        model.export(options.out)
    else:
        model.save_weights(options.out)
    epoch = run.best.epochs[options.replica] if options.best else manifest.epoch
    result = {
        "agent": options.agent,
        "seed": replica.seed,
        "replica": options.replica,
        "epoch": epoch,
        "out": str(options.out),
    }
    text = f"weights of {options.agent} (seed {replica.seed}, epoch {epoch}) written to {options.out}\n"
    print_result(result, text, as_json=options.json)


_AXES = {"epoch": "epoch", "steps": "total_timesteps", "time": "wall_seconds"}


def draw_curve(options: Curve) -> None:
    """Draw the learning curves of runs, one for each setting, with intervals over seeds or agents."""
    if not options.run_dirs:
        raise ConfigError("no run to draw: give at least one run folder, as `train` printed it")
    if options.smooth < 1:
        raise ConfigError(f"--smooth {options.smooth}: give a number of epochs of at least 1")
    curves, places, over = {}, {}, set()
    for path in options.run_dirs:
        folder = RunFolder.open(path)
        metrics, settings = read_metrics(folder.path), read_config(folder).experiment.settings
        if not metrics.epochs:
            raise ConfigError(f"{path} has no finished epoch yet: wait for the first one")
        samples = _samples(metrics, each=int(metrics.start.get("replicas", 1)) // len(settings))
        over.add("seeds" if metrics.start.get("replicas", 1) // len(settings) > 1 else "agents")
        for setting, table in zip(settings, samples.reshape(len(settings), -1, len(metrics.epochs)), strict=True):
            label = f"{path.name} {setting_name(setting)}".rstrip()
            curves[label] = _smoothed(table, options.smooth)
            places[label] = metrics.column(_AXES[options.x])
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        learning_curve(
            curves, options.out, over=" or ".join(sorted(over)), x=places, xlabel=_AXES[options.x], ylabel="ep_rew_mean"
        )
    except OSError as error:
        raise ConfigError(f"cannot write {options.out}: {error.strerror}; give another --out") from error
    last = {label: float(table[:, -1].mean()) for label, table in curves.items()}
    result = {"file": str(options.out), "runs": list(curves), "interval_over": sorted(over), "last": last}
    print_result(result, f"learning curve {options.out}\n", as_json=options.json)


def _samples(metrics: Metrics, *, each: int) -> Array:
    """Return the mean returns (samples, epochs) of replicas, or of agents where a setting has a single replica.

    An epoch in which no episode ended has the return of the one before; where none ever ended, rewards stand for it.
    """
    agents = len(metrics.epochs[0]["rewards"])
    returns = metrics.episode_returns(None if each > 1 else agents)
    if not np.isfinite(returns).any(axis=1).all():
        returns = metrics.seeds() if each > 1 else metrics.rewards()
    known = np.maximum.accumulate(np.where(np.isfinite(returns), np.arange(returns.shape[1]), 0), axis=1)
    filled = np.take_along_axis(returns, known, axis=1)
    first = np.isfinite(returns).argmax(axis=1)[:, None]
    return np.where(np.isfinite(filled), filled, np.take_along_axis(returns, first, axis=1))


def _smoothed(table: Array, epochs: int) -> Array:
    """Return the means over the newest so many epochs."""
    sums = np.cumsum(table, axis=1)
    sums[:, epochs:] -= sums[:, :-epochs].copy()
    return np.asarray(sums / np.minimum(np.arange(1, table.shape[1] + 1), epochs))
