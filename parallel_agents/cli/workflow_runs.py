"""Runs the `workflow` commands."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallel_agents.checkpoint import restore
from parallel_agents.cli import commands
from parallel_agents.cli.output import print_result
from parallel_agents.cli.target import load_target
from parallel_agents.cli.train import read_config, train
from parallel_agents.cli.workflow import Evaluate, Landscape, Replay, Search, Train
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import plain
from parallel_agents.core.seeding import Purpose
from parallel_agents.tracking.run_folder import RunFolder
from parallel_agents.workflows import blue_policies
from parallel_agents.workflows.blue_policies import PolicyFactory, Score
from parallel_agents.workflows.conditioned import POLICY_FILE, ParallelOrderConditionedPPO, load_policy, save_policy
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDERS, UNIT_TYPES, Order, check_order
from parallel_agents.workflows.recordings import replay
from parallel_agents.workflows.search import landscape
from parallel_agents.workflows.trainer import ParallelWorkflowRLTrainer, evaluate_order, train_all_orders, train_order
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

_DEFENCE = "parallel_agents.workflows.defence:NetworkDefence"
_PROGRESS_SECONDS = 5.0


def run(options: Any) -> None:
    """Run the command with these options."""
    match options:
        case Replay():
            _replay(options)
        case Train(order=None):
            _train(options)
        case Train():
            _train_in_order(options)
        case Search():
            _search(options)
        case Evaluate():
            _evaluate_in_order(options) if (Path(options.run_dir) / POLICY_FILE).is_file() else _evaluate(options)
        case Landscape():
            _landscape(options)


class _ProgressLines:
    """Writes progress to stderr: at most one line every few seconds, and every important line."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._next_time = quiet, 0.0

    def write(self, text: str, *, important: bool = False) -> None:
        """Write a line, unless the last one was written only just now."""
        now = time.monotonic()
        if not self._quiet and (important or now >= self._next_time):
            self._next_time = now + _PROGRESS_SECONDS
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def _replay(options: Replay) -> None:
    """Replay a recording and print how many turns differ."""
    _ProgressLines(options.quiet).write(f"replaying {options.file} as {options.version}")
    result = replay(options.file, options.version)
    text = f"{result['episodes']} episodes, {result['steps']:,} steps, {result['mismatches']} mismatches"
    if result["first_mismatch"] is not None:
        text += f"\nfirst mismatch: {json.dumps(result['first_mismatch'])}"
    _print(result, options.json, text)


def _train(options: Train) -> None:
    """Train the environment `NetworkDefence`, as the command `train` does."""
    if options.alignment is not None:
        raise ConfigError("--alignment needs a defender that is trained on an order: give --order too, or leave it out")
    settings = (
        f"world.red={json.dumps(options.red)}",
        f"world.version={options.version}",
        f"world.late_start={options.late_start}",
        *options.set,
    )
    train(
        commands.Train(
            target=_DEFENCE, epochs=options.epochs, worlds=options.worlds, seed=options.seed, set=settings,
            out=options.out, json=options.json, quiet=options.quiet,
        )
    )  # fmt: skip


def _train_in_order(options: Train) -> None:
    """Train a conditioned defender on one order, or on all of them."""
    if options.set:
        raise ConfigError("--set is for the configuration of a defender without an order: leave out --order or --set")
    all_orders, lines = options.order == "all", _ProgressLines(options.quiet)
    order = UNIT_TYPES if all_orders else _parse_order(str(options.order))
    n_envs, episodes = options.worlds or 25, options.epochs or 50
    weight: dict[str, Any] = {} if options.alignment is None else {"alignment_weight": options.alignment}
    agent = ParallelOrderConditionedPPO(order, n_envs, seed=options.seed, **weight)
    game: dict[str, Any] = {"red": options.red[0], "version": options.version, "late_start": options.late_start}
    envs = ParallelEnvWrapper(n_envs, seed=options.seed, **game)
    metadata = {"order": "all" if all_orders else list(order), **game}

    def on_episode(episode: int, compliance: float, mean_return: float) -> None:
        lines.write(f"episode {episode}/{episodes}  compliance {compliance:.2f}  return {mean_return:.1f}")

    with RunFolder.create("workflow-order", options.out) as folder:
        if all_orders:
            history = train_all_orders(agent, envs, episodes, seed=options.seed, on_episode=on_episode)
        else:
            history = train_order(agent, envs, episodes, on_episode=on_episode)
        save_policy(agent, folder.path, metadata)
    values = {**metadata, "run_dir": str(folder.path), "episodes": history.episodes, "stopped": history.stopped,
              "compliance": history.compliance, "returns": history.returns}  # fmt: skip
    end = "learnt" if history.stopped else "all episodes used"
    _print(
        values, options.json,
        f"{history.episodes} episodes ({end}), compliance {history.compliance[-1]:.2f}, "
        f"return {history.returns[-1]:.1f}\nrun folder {folder.path}",
    )  # fmt: skip


def _search(options: Search) -> None:
    """Run a whole search, or the rest of one."""
    trainer = ParallelWorkflowRLTrainer(
        options.envs, options.workflows, options.episodes, options.threshold, min_episodes=options.min_episodes,
        method=options.method, alignment_weight=options.alignment, seed=options.seed,
        worlds={"red": options.red, "version": options.version, "late_start": options.late_start},
    )  # fmt: skip
    folder, lines = options.out, _ProgressLines(options.quiet)
    if folder is None:
        with RunFolder.create("workflow-search") as created:  # its lock is released here, and the search takes it
            folder = created.path

    def progress(name: str, fields: Mapping[str, Any]) -> None:
        number = f"workflow {fields['number']}/{options.workflows}"
        if name == "episode":
            lines.write(
                f"{number}  episode {fields['episode']}/{options.episodes}  "
                f"compliance {fields['compliance']:.2f}  return {fields['return']:.1f}"
            )
        else:
            lines.write(f"{number}  {' > '.join(fields['order'])}  return {fields['value']:.1f}", important=True)

    search = trainer.run_workflow_search(folder, progress)
    pictures: list[str] = []
    if options.plots:
        from parallel_agents.workflows.pictures import posterior_picture, training_picture

        training_picture(search.results, folder / "training.png")
        posterior_picture(search.results, folder / "posterior.png")
        pictures = [str(folder / "training.png"), str(folder / "posterior.png")]
    results = [
        {"order": list(result.order), "value": result.evaluation.value, "error": result.evaluation.error,
         "stopped": result.training.stopped, "episodes": result.training.episodes,
         "compliance": result.training.compliance[-1]} for result in search.results
    ]  # fmt: skip
    values = {
        "best": list(search.best), "seconds": search.seconds, "run_dir": str(folder), "pictures": pictures,
        "results": results,
    }  # fmt: skip
    _print(
        values, options.json,
        f"{len(search.results)} orders in {search.seconds:.0f} s; best by the Gaussian process: "
        f"{' > '.join(search.best)}; highest return {max(trial.value for trial in search.trials):.1f}\n"
        f"run folder {folder}",
    )  # fmt: skip


def _evaluate(options: Evaluate) -> None:
    """Score a defender by the challenge's measure."""
    if options.order is not None:
        raise ConfigError(f"{options.run_dir} was not trained on an order: leave out --order")
    make_policy = _policy_factory(options)
    _ProgressLines(options.quiet).write(
        f"playing {options.episodes} episodes against each red agent, in four variants of the game"
    )
    table = blue_policies.score_table(make_policy, options.episodes, options.seed)
    values = {
        "run_dir": options.run_dir, "total": table["leaderboard"].total, "episodes": options.episodes,
        "variants": {name: score.as_json() for name, score in table.items()},
        "animation": _write_animation(options, make_policy),
    }  # fmt: skip
    _print(values, options.json, "\n".join(_score_rows(table)))


def _policy_factory(options: Evaluate) -> PolicyFactory:
    """Return a function that makes the policy to evaluate for a batch of worlds."""
    if options.run_dir in blue_policies.SCRIPTED:
        return lambda worlds: blue_policies.scripted(options.run_dir, options.seed)
    folder = RunFolder.open(Path(options.run_dir))
    if folder.environment != _DEFENCE:
        raise ConfigError(f"{options.run_dir} is a run of {folder.environment}: give one of `workflow train`")
    environment = load_target(_DEFENCE)(config=read_config(folder))
    run = environment.prepare()
    restore(run, folder.path, best=options.best)
    if options.best:
        for stack in run.group.stacks:
            stack.copy_acting_weights()
    model = environment.agents[0].model
    return lambda worlds: blue_policies.TrainedDefender(model, worlds)


def _score_rows(table: Mapping[str, Score]) -> list[str]:
    """Return the lines of a table of scores."""
    rows = [f"{'':36}{'total':>16}   B_line 30/50/100       Meander 30/50/100      Sleep 30/50/100"]
    for name, score in table.items():
        cells = "".join(f"   {'/'.join(f'{mean:.2f}' for mean in means):<20}" for means in score.means.values())
        rows.append(f"{name:36}{score.total:9.2f} ± {score.total_error:4.2f}{cells}")
    return rows


def _evaluate_in_order(options: Evaluate) -> None:
    """Evaluate a conditioned defender under its order, or under another one."""
    agent, metadata = load_policy(Path(options.run_dir))
    if options.order is None and metadata["order"] == "all":
        raise ConfigError(f"{options.run_dir} was trained on all orders: say with --order which one to use")
    order = check_order(metadata["order"]) if options.order is None else _parse_order(options.order)
    worlds = NetworkWorlds(
        options.episodes, red=options.red, version=options.version, late_start=int(metadata["late_start"]),
        seed=options.seed, purpose=Purpose.EVALUATION_WORLD,
    )  # fmt: skip
    result = evaluate_order(agent, order, worlds)
    values = {
        "run_dir": options.run_dir, "order": list(order), "mean_return": result.value, "error": result.error,
        "compliance": result.compliance, "episodes": options.episodes,
        "animation": _write_animation(options, lambda _: agent.policy(order)),
    }  # fmt: skip
    _print(
        values, options.json,
        f"{' > '.join(order)}\nreturn {result.value:.1f} ± {result.error:.1f}, compliance {result.compliance:.2f}",
    )  # fmt: skip


def _write_animation(options: Evaluate, make_policy: PolicyFactory) -> str | None:
    """Write an episode as a GIF if asked to; return its path."""
    if options.animation is None:
        return None
    from parallel_agents.workflows.pictures import episode_animation

    worlds = NetworkWorlds(
        1, red=options.red, version=options.version, steps=50, seed=options.seed, purpose=Purpose.EVALUATION_WORLD
    )
    episode_animation(worlds, make_policy(worlds), options.animation)
    return str(options.animation)


def _landscape(options: Landscape) -> None:
    """Evaluate all orders by brute force and print them, best first."""
    lines = _ProgressLines(options.quiet)
    result = landscape(
        options.red, options.version, late_start=options.late_start, episodes=options.episodes, seed=options.seed,
        on_order=lambda played: lines.write(f"{played}/{len(ORDERS)} orders"),
    )  # fmt: skip
    ranking = [(ORDERS[i], result.means[i], result.errors[i]) for i in result.means.argsort()[::-1]]
    values = {
        "best": list(result.best),
        "orders": [{"order": list(order), "mean": mean, "error": error} for order, mean, error in ranking],
    }
    rows = [f"{mean:9.2f} ± {error:.2f}  {' > '.join(order)}" for order, mean, error in ranking]
    _print(values, options.json, "\n".join(rows))


def _parse_order(text: str) -> Order:
    """Return the order that a comma-separated text names."""
    return check_order([name.strip() for name in text.split(",")])


def _print(values: Mapping[str, Any], as_json: bool, text: str) -> None:
    """Print the values as JSON, or the text."""
    print_result(plain(values), text + "\n", as_json=as_json)
