"""Runs the `workflow` commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

from parallel_agents.algorithms import Model
from parallel_agents.checkpoint import restore
from parallel_agents.cli import commands
from parallel_agents.cli.output import ProgressLines, print_result
from parallel_agents.cli.record import open_environment
from parallel_agents.cli.target import load_object, load_target
from parallel_agents.cli.train import train
from parallel_agents.cli.workflow import Evaluate, Landscape, Replay, Search, Train, Version
from parallel_agents.core.config import merge, parse_setting
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import plain, write_atomically, write_json
from parallel_agents.core.seeding import Purpose
from parallel_agents.tracking.jsonl import JsonlFile
from parallel_agents.tracking.plots import Panel, draw_panel, write_section
from parallel_agents.tracking.run_folder import RunFolder
from parallel_agents.workflows import blue_policies
from parallel_agents.workflows.blue_policies import ChallengeAgents, PolicyFactory, TrainedDefender
from parallel_agents.workflows.conditioned import POLICY_FILE, ParallelOrderConditionedPPO, load_policy, save_policy
from parallel_agents.workflows.evaluation import Z95, Score, evaluate_in_order, markdown, record_episode, score_table
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDERS, Order, check_order
from parallel_agents.workflows.pictures import (
    episode_animation,
    orders_picture,
    score_panels,
    search_panels,
    timeline_picture,
    training_panels,
)
from parallel_agents.workflows.recordings import replay
from parallel_agents.workflows.search import landscape
from parallel_agents.workflows.trainer import (
    SEARCH_FILE,
    ParallelWorkflowRLTrainer,
    TrainingHistory,
    read_search,
    train_all_orders,
    train_order,
)
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

_DEFENCE = "parallel_agents.workflows.defence:NetworkDefence"
_SAVE_EVERY = 10  # episodes


def replay_recording(options: Replay) -> int:
    """Replay a recording and print how many turns differ; return 1 if any does."""
    ProgressLines(options.quiet).write(f"replaying {options.file} as {options.version}")
    result = replay(options.file, options.version)
    text = (
        f"{result['episodes']} episodes, {result['steps']:,} steps, {result['mismatches']} mismatches "
        f"with version {options.version}"
    )
    if (first := result["first_mismatch"]) is not None:
        text += f"\nfirst mismatch: {json.dumps(first)}"
        if first["episode"] == 0:
            others = " or ".join(f"--version {name}" for name in get_args(Version) if name != options.version)
            text += f"\nthe first episode differs: if another version of the game was recorded, give {others}"
    print_result({"version": options.version, **result}, text + "\n", as_json=options.json)
    return int(result["mismatches"] > 0)


def train_defender(options: Train) -> None:
    """Train the environment `NetworkDefence` as the command `train` does, or with an order a conditioned defender."""
    if options.order is not None or options.resume is not None:
        _train_in_order(options)
        return
    given = {"--alignment": options.alignment, "--rule": options.rule, "--start": options.start,
             "--clone": options.clone or None, "--plots": options.plots or None}  # fmt: skip
    if needless := [name for name, value in given.items() if value is not None]:
        raise ConfigError(
            f"{', '.join(needless)} needs a defender that is trained on an order: give --order too, or leave it out"
        )
    settings = (
        f"world.red={json.dumps(options.red)}",
        f"world.version={options.version}",
        f"world.late_start={options.late_start}",
        *options.set,
    )
    train(
        commands.Train(
            target=_DEFENCE, epochs=options.epochs, worlds=options.worlds, seed=options.seed, seeds=options.seeds,
            set=settings, out=options.out, json=options.json, quiet=options.quiet,
        )
    )  # fmt: skip


def _train_in_order(options: Train) -> None:
    """Train a conditioned defender on one order, or on all of them; or go on with such a training."""
    lines = ProgressLines(options.quiet)
    if options.resume is None:
        agent, about = _new_agent(options, lines)
        opened = RunFolder.create("workflow-order", options.out)
    else:
        if not (options.resume / POLICY_FILE).is_file() and (options.resume / "config.json").is_file():
            raise ConfigError(
                f"{options.resume} is a run without --order: go on with it by `parallel-agents resume {options.resume}`"
            )
        agent, about = load_policy(options.resume)
        about["episodes"] = about["episodes"] if options.epochs is None else options.epochs
        opened = RunFolder.open(options.resume, write=True)
    history = TrainingHistory(**about["history"])
    envs = ParallelEnvWrapper(agent.n_envs, **about["game"])
    with opened as folder, closing(JsonlFile(folder.metrics, partial(print, file=sys.stderr))) as metrics:

        def save() -> None:
            save_policy(agent, folder.path, about | {"history": asdict(history)})
            write_section(folder.path, "order", "Training on an order", list(training_panels({"": history}).values()))

        def on_episode(history: TrainingHistory) -> None:
            last = history.last
            metrics.write(json.dumps(plain({"kind": "episode", **last})))
            lines.write(
                f"episode {last['episode']}/{about['episodes']}  compliance {last['compliance']:.2f}  "
                f"(documented {last['documented']:.2f})  return {last['return']:.1f}"
            )
            if history.episodes % _SAVE_EVERY == 0 and not agent.buffer.turns:
                save()

        if about["order"] == "all":
            seed = int(agent.settings["seed"])
            train_all_orders(agent, envs, about["episodes"], seed=seed, history=history, on_episode=on_episode)
        else:
            agent.set_order(about["order"])
            train_order(agent, envs, about["episodes"], history=history, on_episode=on_episode)
        save()
        if options.plots:
            _draw(training_panels({"": history}), folder.path)
    values = {
        "order": about["order"], **about["game"], "run_dir": str(folder.path), "episodes": history.episodes,
        "stopped": history.stopped, "compliance": history.compliance, "documented": history.documented,
        "returns": history.returns, "agreement": about["agreement"],
    }  # fmt: skip
    end = "learnt" if history.stopped else "all episodes used"
    print_result(
        values,
        f"{history.episodes} episodes ({end}), compliance {history.compliance[-1]:.2f} "
        f"(documented measure {history.documented[-1]:.2f}), return {history.returns[-1]:.1f}\n"
        f"run folder {folder.path}\n",
        as_json=options.json,
    )


def _new_agent(options: Train, lines: ProgressLines) -> tuple[ParallelOrderConditionedPPO, dict[str, Any]]:
    """Return a new conditioned agent, perhaps cloned from the script, and what is stored beside it."""
    order = "all" if options.order == "all" else _parse_order(str(options.order))
    n_envs = 25 if options.worlds is None else options.worlds
    episodes = 50 if options.epochs is None else options.epochs
    for name, number in (("--worlds", n_envs), ("--epochs", episodes), ("--clone", options.clone + 1)):
        if number < 1:
            raise ConfigError(f"{name} is {number}: give a whole number of at least 1")
    if options.seeds is not None:
        raise ConfigError("--seeds is for a defender without an order: leave out --order or --seeds")
    settings = merge(*(parse_setting(text) for text in options.set)) if options.set else {}
    if other := sorted(settings.keys() - {"model"}):
        raise ConfigError(f"--set {other[0]}.…: with --order only values of model can be set")
    names = {"n_epochs": "K_epochs", "clip_range": "eps_clip"}
    chosen = {names.get(name, name): value for name, value in settings.get("model", {}).items()}
    chosen |= {"n_envs": n_envs, "seed": options.seed, "version": options.version}
    if options.rule is not None:
        chosen["rule"] = options.rule
    if options.alignment is not None:
        chosen["alignment_weight"] = options.alignment
    agent = ParallelOrderConditionedPPO(**chosen) if options.start is None else load_policy(options.start, **chosen)[0]
    game: dict[str, Any] = {
        "red": [options.red[w % len(options.red)] for w in range(n_envs)], "version": options.version,
        "late_start": options.late_start, "seed": options.seed,
    }  # fmt: skip
    agreement: list[float] = []
    if options.clone:
        lines.write(f"learning from the script for {options.clone} episodes", important=True)
        agreement = agent.clone_script(ParallelEnvWrapper(n_envs, **game), options.clone)
    about = {"order": order, "game": game, "episodes": episodes, "history": asdict(TrainingHistory())}
    return agent, about | {"agreement": agreement}


def search_orders(options: Search) -> None:
    """Run a whole search, or the rest of one."""
    trainer = ParallelWorkflowRLTrainer(
        options.envs, options.workflows, options.episodes, options.threshold, min_episodes=options.min_episodes,
        method=options.method, rule=options.rule, alignment_weight=options.alignment, noise=options.noise,
        start=None if options.start is None else str(options.start), seed=options.seed,
        worlds={"red": options.red, "version": options.version, "late_start": options.late_start},
    )  # fmt: skip
    folder, lines = options.out, ProgressLines(options.quiet)
    if folder is None:
        with RunFolder.create("workflow-search") as created:  # its lock is released here, and the search takes it
            folder = created.path

    def progress(name: str, fields: Mapping[str, Any]) -> None:
        number = f"workflow {fields['number']}/{options.workflows}"
        if name == "episode":
            lines.write(
                f"{number}  episode {fields['episode']}/{options.episodes}  "
                f"compliance {fields['compliance']:.2f}  (documented {fields['documented']:.2f})  "
                f"return {fields['return']:.1f}"
            )
        else:
            panels = search_panels(read_search(folder / SEARCH_FILE)[1], options.noise)
            write_section(folder, "search", "Search", list(panels.values()))
            lines.write(f"{number}  {' > '.join(fields['order'])}  return {fields['value']:.1f}", important=True)

    search = trainer.run_workflow_search(folder, progress)
    pictures = _draw(search_panels(search.results, options.noise), folder) if options.plots else []
    results = [
        {
            "order": list(result.order), **asdict(result.evaluation), "stopped": result.training.stopped,
            "learnt": result.evaluation.learnt(options.threshold), "episodes": result.training.episodes,
        }
        for result in search.results
    ]  # fmt: skip
    values = {
        "best": list(search.best), "seconds": search.seconds, "run_dir": str(folder), "pictures": pictures,
        "results": results,
    }  # fmt: skip
    print_result(
        values,
        f"{len(search.results)} orders in {search.seconds:.0f} s; best by the Gaussian process: "
        f"{' > '.join(search.best)}; highest return {max(trial.value for trial in search.trials):.1f}\n"
        f"run folder {folder}\n",
        as_json=options.json,
    )


def evaluate_defender(options: Evaluate) -> None:
    """Score a defender by the challenge's measure, or judge it under an order."""
    if not options.defender:
        raise ConfigError("no defender is named: give a run folder, module:Class, or a scripted policy")
    values: dict[str, Any] = {"run_dir": " ".join(options.defender), "episodes": options.episodes}
    ordered = (Path(options.defender[0]) / POLICY_FILE).is_file()
    if ordered or options.order is not None:
        make_policy = _evaluate_in_order(options, values, ordered=ordered)
    else:
        make_policy = _policy_factory(options)
        ProgressLines(options.quiet).write(
            f"playing {options.episodes} episodes against each red agent, in four variants of the game"
        )
        table = score_table(make_policy, options.episodes, options.seed)
        values |= {
            "total": table["leaderboard"].total, "variants": {name: score.as_json() for name, score in table.items()},
        }  # fmt: skip
        values["text"] = "\n".join(_score_rows(table))
        if options.out is not None:
            _write_table(options.out, values, table)
    values |= _write_pictures(options, make_policy)
    text = values.pop("text")
    print_result(values, text + "\n", as_json=options.json)


def _write_table(folder: Path, values: Mapping[str, Any], table: Mapping[str, Score]) -> None:
    """Write the table as JSON, Markdown, a picture, and panels for the report."""
    panels = score_panels(table)
    write_section(folder, "scores", "Scores", panels)
    draw_panel(panels[-1], folder / "table.png")
    write_atomically(folder / "table.md", [markdown(table).encode()])
    write_json(folder / "table.json", plain({name: value for name, value in values.items() if name != "text"}))


def _policy_factory(options: Evaluate) -> PolicyFactory:
    """Return a function that makes the policy to evaluate for a batch of worlds."""
    name = options.defender[0]
    if name in blue_policies.SCRIPTED and len(options.defender) == 1:
        return lambda worlds: blue_policies.scripted(name, options.seed)
    if ":" in name and not Path(name).exists():
        agents = cache(partial(ChallengeAgents, load_object(name)))  # instances play all games, as in the challenge
        return lambda worlds: agents(worlds.n_worlds)
    if name in blue_policies.SCRIPTED:
        raise ConfigError(f"{name} is a script: give it alone, since only trained defenders vote together")
    if not Path(name).exists():
        raise ConfigError(
            f"no defender is called {name!r}: give a run folder, a file of weights, my_file.py:Class, or one of "
            f"{', '.join(blue_policies.SCRIPTED)}"
        )
    if Path(name).suffix == ".py":
        raise ConfigError(f"{name} is a file: name the class in it, as in {name}:Defender")
    models = [model for each in options.defender for model in _models(Path(each), best=options.best)]
    return lambda worlds: TrainedDefender(models, worlds)


def _models(path: Path, *, best: bool) -> list[Model]:
    """Return the models of a run, one per replica; or the model of a file of weights."""
    if path.suffix == ".safetensors":
        return [load_target(_DEFENCE)(config={"world": {"weights": str(path)}}).agents[0].model]
    folder = RunFolder.open(path)
    if folder.environment != _DEFENCE:
        raise ConfigError(f"{path} is a run of {folder.environment}: give one of `workflow train`")
    run = open_environment(folder).prepare()
    restore(run, folder.path, best=best)
    if best:
        for stack in run.group.stacks:
            stack.copy_acting_weights()
    return [replica.agents[0].model for replica in run.environments]


def _score_rows(table: Mapping[str, Score]) -> list[str]:
    """Return the lines of a table of scores: means, and the 95 % interval of the total."""
    rows = [f"{'':36}{'total':>16}   B_line 30/50/100       Meander 30/50/100      Sleep 30/50/100"]
    for name, score in table.items():
        cells = "".join(f"   {'/'.join(f'{mean:.2f}' for mean in means):<20}" for means in score.means.values())
        rows.append(f"{name:36}{score.total:9.2f} ± {Z95 * score.total_error:4.2f}{cells}")
    return rows


def _evaluate_in_order(options: Evaluate, values: dict[str, Any], *, ordered: bool) -> PolicyFactory:
    """Judge a defender under an order, and add the result to the values; return its policies."""
    late_start = options.late_start
    if ordered:
        agent, about = load_policy(Path(options.defender[0]))
        if options.order is None and about["order"] == "all":
            raise ConfigError(f"{options.defender[0]} was trained on all orders: say with --order which one to use")
        order = check_order(about["order"]) if options.order is None else _parse_order(options.order)
        late_start = late_start or int(about["game"]["late_start"])

        make_policy: PolicyFactory = partial(agent.policy, order)
    else:
        order, make_policy = _parse_order(str(options.order)), _policy_factory(options)
    worlds = _evaluation_worlds(options, options.episodes, late_start)
    result = evaluate_in_order(make_policy(worlds), order, worlds)
    values |= {"order": list(order), "mean_return": result.value, **asdict(result), "learnt": result.learnt()}
    values["text"] = (
        f"{' > '.join(order)}\nreturn {result.value:.1f} ± {Z95 * result.error:.1f} (script {result.script:.1f}), "
        f"compliance {result.compliance:.3f} (documented measure {result.documented:.3f}): "
        f"{'learnt' if result.learnt() else 'not learnt'}"
    )
    return make_policy


def _evaluation_worlds(options: Evaluate, n_worlds: int, late_start: int) -> NetworkWorlds:
    return NetworkWorlds(
        n_worlds, red=options.red, version=options.version, steps=options.steps, late_start=late_start,
        seed=options.seed, purpose=Purpose.EVALUATION_WORLD,
    )  # fmt: skip


def _write_pictures(options: Evaluate, make_policy: PolicyFactory) -> dict[str, Path | None]:
    """Write an episode as a GIF or a timeline if asked to; return the paths."""
    paths = {"animation": options.animation, "timeline": options.timeline}
    if any(paths.values()):
        worlds = _evaluation_worlds(options, 1, options.late_start)
        episode = record_episode(worlds, make_policy(worlds))
        if options.animation is not None:
            episode_animation(episode, options.animation)
        if options.timeline is not None:
            timeline_picture(episode, options.timeline)
    return paths


def show_landscape(options: Landscape) -> None:
    """Evaluate all orders by brute force and print them, best first."""
    lines = ProgressLines(options.quiet)
    make_policy = None if options.policy is None else load_policy(options.policy)[0].policy
    result = landscape(
        options.red, options.version, late_start=options.late_start, episodes=options.episodes, seed=options.seed,
        make_policy=make_policy, on_order=lambda played: lines.write(f"{played}/{len(ORDERS)} orders"),
    )  # fmt: skip
    if options.picture is not None:
        orders_picture({"mean return": result.means, "compliance": result.compliance}, options.picture)
    ranking = [
        (ORDERS[i], result.means[i], result.errors[i], result.compliance[i]) for i in result.means.argsort()[::-1]
    ]
    values = {
        "best": list(result.best), "picture": options.picture,
        "orders": [{"order": list(order), "mean": mean, "error": error, "compliance": compliance}
                   for order, mean, error, compliance in ranking],
    }  # fmt: skip
    rows = [f"{mean:9.2f} ± {Z95 * error:.2f}  compliance {compliance:.3f}  {' > '.join(order)}"
            for order, mean, error, compliance in ranking]  # fmt: skip
    print_result(values, "\n".join(rows) + "\n", as_json=options.json)


def _draw(panels: Mapping[str, Panel], folder: Path) -> list[str]:
    """Draw every chart into a file with its name; return the paths."""
    paths = {name: folder / f"{name}.png" for name, panel in panels.items() if panel["kind"] == "chart"}
    for name, path in paths.items():
        draw_panel(panels[name], path)
    return [str(path) for path in paths.values()]


def _parse_order(text: str) -> Order:
    """Return the order that a comma-separated text names."""
    return check_order([name.strip() for name in text.split(",")])
