"""`parallel-agents eval`, `export` and `curve`: evaluate the agents of a run, save their weights, draw their curves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.algorithms import Model
from parallel_agents.checkpoint import restore
from parallel_agents.cli.commands import Curve, Eval, Export
from parallel_agents.cli.output import print_result
from parallel_agents.cli.target import load_target
from parallel_agents.cli.train import read_config
from parallel_agents.cli.viewers import GifRecorder, TerminalViewer, require_grid_game
from parallel_agents.core.errors import ConfigError
from parallel_agents.env import Environment
from parallel_agents.env.evaluation import Evaluation
from parallel_agents.games import GridEnvironment, social_metrics
from parallel_agents.tracking.learning_curves import learning_curve
from parallel_agents.tracking.metrics import read_metrics
from parallel_agents.tracking.run_folder import RunFolder
from parallel_agents.tracking.statistics import Interval, bootstrap_interval, mean_interval


def evaluate_run(options: Eval) -> None:
    """Evaluate the agents of a run and print their returns."""
    if options.episodes < 1:
        raise ConfigError(f"--episodes {options.episodes}: give a whole number of at least 1")
    if not 0.1 <= options.fps <= 100:
        raise ConfigError(f"--fps {options.fps:g}: give a number of turns a second from 0.1 to 100")
    folder, environment = _open_run(options)
    if options.watch or options.gif is not None:
        require_grid_game(environment, "--watch" if options.watch else "--gif")
    gif = None if options.gif is None else GifRecorder(Path(options.gif), options.fps)
    run = environment.prepare()
    manifest, _ = restore(run, folder.path, best=options.best)
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
    result = _summarise(run.environments, evaluations, epochs)
    result |= {"episodes": options.episodes, "run_dir": str(folder.path)}
    if gif is not None:
        result["gif"] = str(gif.write())
    print_result(result, _format(result), as_json=options.json)


def _open_run(options: Eval | Export) -> tuple[RunFolder, Environment]:
    folder = RunFolder.open(options.run_dir)
    return folder, load_target(options.target or folder.environment)(config=read_config(folder))


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
    low, high = (float("nan") if bound is None else bound for bound in result["interval"])
    replicas = result["replicas"] if len(result["replicas"]) > 1 else []
    over = f"{len(replicas)} seeds, " if replicas else ""
    lines = [
        f"mean return {result['mean_return']:.2f} [{low:.2f}, {high:.2f}] over {over}{result['episodes']} episodes, "
        f"weights of epoch {result['epoch']}"
    ]
    lines += [f"  {name:<16} {mean:10.2f}" for name, mean in result["agents"].items()]
    lines += [f"  seed {row['seed']:<11} {row['mean_return']:10.2f}  epoch {row['epoch']}" for row in replicas]
    if "social" in result:
        known = [f"{name} {value:.3g}" for name, value in result["social"].items() if value is not None]
        lines.append("the group: " + ", ".join(known))
    if "gif" in result:
        lines.append(f"an episode: {result['gif']}")
    return "\n".join(lines) + "\n"


def export_weights(options: Export) -> None:
    """Write the weights of one agent of a run into a file."""
    folder, environment = _open_run(options)
    run = environment.prepare()
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


def draw_curve(options: Curve) -> None:
    """Draw the learning curves of runs, with intervals over seeds or agents."""
    if not options.run_dirs:
        raise ConfigError("no run to draw: give at least one run folder, as `train` printed it")
    curves = {}
    over = set()
    for path in options.run_dirs:
        metrics = read_metrics(RunFolder.open(path).path)
        if not metrics.epochs:
            raise ConfigError(f"{path} has no finished epoch yet: wait for the first one")
        several = metrics.start.get("replicas", 1) > 1
        over.add("seeds" if several else "agents")
        curves[path.name] = metrics.seeds() if several else metrics.rewards()
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        learning_curve(curves, options.out, over=" or ".join(sorted(over)))
    except OSError as error:
        raise ConfigError(f"cannot write {options.out}: {error.strerror}; give another --out") from error
    result = {"file": str(options.out), "runs": list(curves), "interval_over": sorted(over)}
    print_result(result, f"learning curve {options.out}\n", as_json=options.json)
