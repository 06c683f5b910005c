"""What the `workflow` commands do."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallel_agents.cli import commands
from parallel_agents.cli.answers import answer
from parallel_agents.cli.target import load_target
from parallel_agents.cli.train import read_config, train
from parallel_agents.cli.workflow import Evaluate, Landscape, Replay, Search, Train
from parallel_agents.errors import ConfigError
from parallel_agents.runtime.checkpoints import restore
from parallel_agents.seeding import Purpose
from parallel_agents.tracking.files import plain
from parallel_agents.tracking.runfolder import RunFolder
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO
from parallel_agents.workflows.landscape import landscape
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDERS, UNIT_TYPES, Order, check_order
from parallel_agents.workflows.policies import SCRIPTED, scripted
from parallel_agents.workflows.replay import replay
from parallel_agents.workflows.score import Defender, Made, Score, score_table
from parallel_agents.workflows.stored import MARK, load_policy, save_policy
from parallel_agents.workflows.trainer import ParallelWorkflowRLTrainer
from parallel_agents.workflows.training import evaluate_order, train_all_orders, train_order
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

__all__ = ["evaluate_defender", "replay_file", "search_orders", "show_landscape", "train_defender", "train_in_order"]

_DEFENCE = "parallel_agents.workflows.defence:NetworkDefence"
_EVERY = 5.0  # seconds between two lines of progress


class _Lines:
    """Progress as lines on stderr: at most one every few seconds, but each that matters."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._due = quiet, 0.0

    def say(self, text: str, *, matters: bool = False) -> None:
        """Write a line if it is time for one."""
        now = time.monotonic()
        if not self._quiet and (matters or now >= self._due):
            self._due = now + _EVERY
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def replay_file(options: Replay) -> None:
    """Replay a recording and print how many turns differ."""
    _Lines(options.quiet).say(f"replaying {options.file} as {options.version}")
    found = replay(options.file, options.version)
    told = f"{found['episodes']} episodes, {found['steps']:,} steps, {found['mismatches']} mismatches"
    first = found["first_mismatch"]
    _print(found, options.json, told if first is None else f"{told}\nfirst mismatch: {json.dumps(first)}")


def train_defender(options: Train) -> None:
    """Train the environment `NetworkDefence` as `train` would."""
    if options.alignment is not None:
        raise ConfigError("--alignment is for a defender that is told an order: give --order too, or leave it out")
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


def train_in_order(options: Train) -> None:
    """Train a conditioned defender on one order, or on all of them."""
    if options.set:
        raise ConfigError("--set is for the configuration of a defender without an order: leave out --order or --set")
    everything, lines = options.order == "all", _Lines(options.quiet)
    order = UNIT_TYPES if everything else _order(str(options.order))
    n_envs, episodes = options.worlds or 25, options.epochs or 50
    weight = {} if options.alignment is None else {"alignment_weight": options.alignment}
    agent = ParallelOrderConditionedPPO(order, n_envs, seed=options.seed, **weight)  # type: ignore[arg-type]
    game: dict[str, Any] = {"red": options.red[0], "version": options.version, "late_start": options.late_start}
    envs = ParallelEnvWrapper(n_envs, seed=options.seed, **game)
    about = {"order": "all" if everything else list(order), **game}

    def tell(episode: int, compliance: float, mean_return: float) -> None:
        lines.say(f"episode {episode}/{episodes}  compliance {compliance:.2f}  return {mean_return:.1f}")

    with RunFolder.create("workflow-order", options.out) as folder:
        if everything:
            training = train_all_orders(agent, envs, episodes, seed=options.seed, tell=tell)
        else:
            training = train_order(agent, envs, episodes, tell=tell)
        save_policy(agent, folder.path, about)
    values = {**about, "run_dir": str(folder.path), "episodes": training.episodes, "stopped": training.stopped,
              "compliance": training.compliance, "returns": training.returns}  # fmt: skip
    ended = "learnt" if training.stopped else "budget spent"
    _print(
        values, options.json,
        f"{training.episodes} episodes ({ended}), compliance {training.compliance[-1]:.2f}, "
        f"return {training.returns[-1]:.1f}\nrun folder {folder.path}",
    )  # fmt: skip


def search_orders(options: Search) -> None:
    """Run the whole search, or the rest of one."""
    trainer = ParallelWorkflowRLTrainer(
        options.envs, options.workflows, options.episodes, options.threshold, min_episodes=options.min_episodes,
        method=options.method, alignment_weight=options.alignment, seed=options.seed,
        worlds={"red": options.red, "version": options.version, "late_start": options.late_start},
    )  # fmt: skip
    folder, lines = options.out or _fresh_folder("workflow-search"), _Lines(options.quiet)

    def progress(name: str, fields: Mapping[str, Any]) -> None:
        number = f"workflow {fields['number']}/{options.workflows}"
        if name == "episode":
            lines.say(
                f"{number}  episode {fields['episode']}/{options.episodes}  "
                f"compliance {fields['compliance']:.2f}  return {fields['return']:.1f}"
            )
        else:
            lines.say(f"{number}  {' > '.join(fields['order'])}  worth {fields['value']:.1f}", matters=True)

    found = trainer.run_workflow_search(folder, progress)
    pictures = _search_pictures(found.results, folder) if options.plots else []
    values = {
        "best": list(found.best), "seconds": found.seconds, "run_dir": str(folder), "pictures": pictures,
        "results": [
            {"order": list(r.order), "value": r.verdict.value, "error": r.verdict.error, "stopped": r.training.stopped,
             "episodes": r.training.episodes, "compliance": r.training.compliance[-1]} for r in found.results
        ],
    }  # fmt: skip
    best = max(found.results, key=lambda result: result.verdict.value)
    _print(
        values, options.json,
        f"{len(found.results)} orders in {found.seconds:.0f} s; best by the Gaussian process: "
        f"{' > '.join(found.best)}; highest return {best.verdict.value:.1f}\nrun folder {folder}",
    )  # fmt: skip


def _fresh_folder(environment: str) -> Path:
    """Make a run folder whose lock whoever writes into it takes."""
    with RunFolder.create(environment) as made:
        return made.path


def _search_pictures(results: Any, folder: Path) -> list[str]:
    from parallel_agents.workflows.pictures import posterior_picture, training_picture

    training_picture(results, folder / "training.png")
    posterior_picture(results, folder / "posterior.png")
    return [str(folder / "training.png"), str(folder / "posterior.png")]


def evaluate_defender(options: Evaluate) -> None:
    """Score a defender by the challenge's measure, or a conditioned one under its order."""
    if (Path(options.run_dir) / MARK).is_file():
        _evaluate_in_order(options)
        return
    if options.order is not None:
        raise ConfigError(f"{options.run_dir} was not trained on an order: leave out --order")
    made, lines = _made(options), _Lines(options.quiet)
    lines.say(f"playing {options.episodes} episodes against each red agent, in four variants of the game")
    table = score_table(made, options.episodes, options.seed)
    values = {
        "run_dir": options.run_dir, "total": table["leaderboard"].total, "episodes": options.episodes,
        "variants": {name: found.as_json() for name, found in table.items()},
        "animation": _animation(options, made),
    }  # fmt: skip
    _print(values, options.json, "\n".join(_rows(table)))


def _made(options: Evaluate) -> Made:
    """From worlds to the policy that is to be evaluated in them."""
    if options.run_dir in SCRIPTED:
        return lambda worlds: scripted(options.run_dir, options.seed)
    folder = RunFolder.open(Path(options.run_dir))
    if folder.environment != _DEFENCE:
        raise ConfigError(f"{options.run_dir} is a run of {folder.environment}: give one of `workflow train`")
    environment = load_target(_DEFENCE)(config=read_config(folder))
    run = environment.prepare()
    restore(run, folder.path, best=options.best)
    if options.best:
        for stack in run.crew.stacks:
            stack.show_acting()
    model = environment.agents[0].model
    return lambda worlds: Defender(model, worlds)


def _evaluate_in_order(options: Evaluate) -> None:
    agent, about = load_policy(Path(options.run_dir))
    if options.order is None and about["order"] == "all":
        raise ConfigError(f"{options.run_dir} was trained on all orders: say with --order which one it is to keep")
    order = check_order(about["order"]) if options.order is None else _order(options.order)
    worlds = NetworkWorlds(
        options.episodes, red=options.red, version=options.version, late_start=int(about["late_start"]),
        seed=options.seed, purpose=Purpose.EVALUATION_WORLD,
    )  # fmt: skip
    verdict = evaluate_order(agent, order, worlds)
    values = {
        "run_dir": options.run_dir, "order": list(order), "mean_return": verdict.value, "error": verdict.error,
        "compliance": verdict.compliance, "episodes": options.episodes,
        "animation": _animation(options, lambda _: agent.policy(order)),
    }  # fmt: skip
    _print(
        values, options.json,
        f"{' > '.join(order)}\nreturn {verdict.value:.1f} ± {verdict.error:.1f}, compliance {verdict.compliance:.2f}",
    )  # fmt: skip


def _animation(options: Evaluate, made: Made) -> str | None:
    if options.animation is None:
        return None
    from parallel_agents.workflows.pictures import episode_animation

    worlds = NetworkWorlds(
        1, red=options.red, version=options.version, steps=50, seed=options.seed, purpose=Purpose.EVALUATION_WORLD
    )
    episode_animation(worlds, made(worlds), options.animation)
    return str(options.animation)


def show_landscape(options: Landscape) -> None:
    """Brute-force all orders and print them, best first."""
    lines = _Lines(options.quiet)
    found = landscape(
        options.red, options.version, late_start=options.late_start, episodes=options.episodes, seed=options.seed,
        tell=lambda done: lines.say(f"{done}/{len(ORDERS)} orders"),
    )  # fmt: skip
    rank = found.means.argsort()[::-1]
    values = {
        "best": list(found.best),
        "orders": [{"order": list(ORDERS[i]), "mean": found.means[i], "error": found.errors[i]} for i in rank],
    }
    rows = [f"{found.means[i]:9.2f} ± {found.errors[i]:.2f}  {' > '.join(ORDERS[i])}" for i in rank]
    _print(values, options.json, "\n".join(rows))


def _order(text: str) -> Order:
    return check_order([name.strip() for name in text.split(",")])


def _rows(table: Mapping[str, Score]) -> list[str]:
    rows = [f"{'':36}{'total':>16}   B_line 30/50/100       Meander 30/50/100      Sleep 30/50/100"]
    for name, found in table.items():
        cells = "".join(f"   {'/'.join(f'{mean:.2f}' for mean in own):<20}" for own in found.means.values())
        rows.append(f"{name:36}{found.total:9.2f} ± {found.total_error:4.2f}{cells}")
    return rows


def _print(values: Mapping[str, Any], as_json: bool, told: str) -> None:
    answer((json.dumps(plain(values), allow_nan=False) if as_json else told) + "\n")
