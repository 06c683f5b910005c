"""The commands of `parallel-agents market`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from parallel_agents.algorithms import DQN
from parallel_agents.checkpoint import restore
from parallel_agents.cli.commands import Train as TrainCommand
from parallel_agents.cli.market import Compare, Discover, Evaluate, Export, Profile, Sample, Simulate, Train, Worlds
from parallel_agents.cli.output import ProgressLines, print_result
from parallel_agents.cli.record import open_environment
from parallel_agents.cli.train import train as run_training
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import write_atomically
from parallel_agents.env.external_training import ExternalUpdateAgent
from parallel_agents.market import market_plots
from parallel_agents.market.baselines import compare_baselines, oracle
from parallel_agents.market.bigquery import PREFIX, bigquery_tables, open_bigquery
from parallel_agents.market.compare import (
    UNSEEN_SEED,
    Study,
    recipe,
    run_study,
    study_baselines,
)
from parallel_agents.market.discovery import Patterns, Vocabulary, discover, load_patterns
from parallel_agents.market.discovery.export_reader import ColumnMap, read_column_map
from parallel_agents.market.discovery.profile import profile_of
from parallel_agents.market.experiences import EpisodeExperience, Failure, aggregate_experiences, world_context
from parallel_agents.market.market_environment import MarketEnvironment
from parallel_agents.market.montecarlo import EpisodeSetting, MonteCarloSimulator
from parallel_agents.market.policies import TrainedBidder, export_policy
from parallel_agents.market.sample import draw_sample, write_sample
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.strategies import constant_strategies, detect_convergence_patterns, play_strategies
from parallel_agents.market.warehouse import Warehouse
from parallel_agents.market.worlds import WorldType, create_world_variants
from parallel_agents.tracking.plots import draw_panel, write_section
from parallel_agents.tracking.run_folder import RunFolder

_TARGET = "parallel_agents.market.market_environment:MarketEnvironment"


def write_export(options: Sample) -> None:
    """Draw a sample and write it."""
    ProgressLines(options.quiet).write(f"drawing {options.users} users over {options.days} days")
    sample = draw_sample(users=options.users, days=options.days, seed=options.seed)
    folder = write_sample(options.out, sample, form=options.form, truth=options.truth)
    result = {"out": str(folder), "events": sample.events.num_rows, "users": options.users, "days": options.days}
    print_result(result, f"{result['events']:,} events of {options.users:,} users in {folder}\n", as_json=options.json)


def profile_export(options: Profile) -> None:
    """Describe an export, and write the column map on request."""
    if options.write_columns is not None:
        if options.write_columns.exists():
            raise ConfigError(
                f"--write-columns {options.write_columns} exists already, and may have been edited: give another name "
                "or remove it; to read it, give it as --columns"
            )
        options.write_columns.parent.mkdir(parents=True, exist_ok=True)
    profile = profile_of(options.export, columns=_column_map(options.columns))
    if options.write_columns is not None:
        write_atomically(options.write_columns, [profile.columns_toml().encode()])
    print_result(profile.as_dict(), profile.text(), as_json=options.json)


def _column_map(path: Path | None) -> ColumnMap | None:
    return None if path is None else read_column_map(path)


def find_patterns(options: Discover) -> None:
    """Discover the patterns of an export and store them."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    ProgressLines(options.quiet).write(f"reading {options.export}")
    patterns = discover(
        _export(options),
        vocabulary=None if options.vocabulary is None else Vocabulary.read(options.vocabulary),
        utc_offset_hours=options.utc_offset_hours,
        columns=_column_map(options.columns),
    )
    patterns.save(options.out)
    segments = {
        s.name: {"share": s.share.value, "interval": [s.share.low, s.share.high], "value_share": s.value_share.value}
        for s in patterns.segments
    }
    result = {
        "out": str(options.out),
        "days": patterns.days,
        "users": patterns.users,
        "estimates": len(patterns.estimates()),
        "segments": segments,
        "landscapes": len(patterns.competition.landscapes) if patterns.competition else 0,
        "not_identified": list(patterns.not_identified),
    }
    lines = [f"{result['estimates']} estimates from {patterns.users:,} users over {patterns.days} days"]
    lines += [f"  {n:<18} {s['share']:6.1%} of users, {s['value_share']:6.1%} of value" for n, s in segments.items()]
    lines += [f"  not identified: {note}" for note in patterns.not_identified]
    print_result(result, "\n".join([*lines, f"stored in {options.out}\n"]), as_json=options.json)


def _export(options: Discover) -> Path | dict[str, Any]:
    """Return the export to read: a path, or the tables of a dataset in BigQuery."""
    try:
        first, last = (
            None if day is None else date.fromisoformat(day) for day in (options.first_day, options.last_day)
        )
    except ValueError as error:
        raise ConfigError(f"{error}: give a day such as 2024-01-31") from error
    if not str(options.export).startswith(PREFIX):
        if first or last:
            raise ConfigError("--first-day and --last-day are for a dataset in BigQuery: other exports are read whole")
        return options.export
    client, dataset = open_bigquery(str(options.export))
    try:
        return bigquery_tables(client, dataset, first_day=first, last_day=last)
    finally:
        client.close()


def show_worlds(options: Worlds) -> None:
    """Draw worlds and describe them."""
    worlds = create_world_variants(load_patterns(options.patterns), options.worlds, seed=options.seed)
    rows = [{"world": w.index, "type": w.kind.value, "users": w.users.count, **world_context(w)} for w in worlds]
    counts = dict(Counter(w.kind.value for w in worlds).most_common())
    if options.plot is not None:
        draw_panel(market_plots.world_atlas(worlds), options.plot)
    lines = [f"{len(worlds)} worlds"] + [f"  {kind:<20} {count:4d}" for kind, count in counts.items()]
    text = "\n".join(lines) + "\n" + _picture(options.plot)
    print_result({"worlds": rows, "types": counts, "plot": options.plot}, text, as_json=options.json)


def _picture(path: Path | None) -> str:
    """Return the line that says where pictures are, empty if none was asked for."""
    return "" if path is None else f"drawn in {path}\n"


def simulate(options: Simulate) -> None:
    """Simulate episodes, in batches of one per world, and summarise them."""
    if options.episodes < 1:
        raise ConfigError(f"--episodes {options.episodes}: give at least 1")
    progress = ProgressLines(options.quiet)
    setting = EpisodeSetting(
        steps=options.steps,
        auctions_per_step=options.auctions,
        budget=options.budget,
        target=options.target_cpa,
        threads=options.threads,
        seed=options.seed,
    )
    patterns = load_patterns(options.patterns)
    with MonteCarloSimulator(
        options.worlds, None, options.concurrent, patterns=patterns, setting=setting, seed=options.seed
    ) as simulator:
        agent = _simulated_agent(simulator, options)
        asyncio.run(simulator.run_episode_batch(agent))  # not measured: compiles kernels, draws the populations
        simulator.episodes = 0
        warehouse = Warehouse(options.warehouse) if options.warehouse is not None else None
        experiences: list[EpisodeExperience] = []
        failures: list[Failure] = []
        seconds, most_in_flight = 0.0, 0
        while simulator.episodes < options.episodes:
            size = min(options.worlds, options.episodes - simulator.episodes)
            batch = asyncio.run(simulator.run_episode_batch(agent, size))
            simulator.require_success(batch)
            experiences += batch.experiences
            failures += batch.failures
            seconds, most_in_flight = seconds + batch.seconds, max(most_in_flight, batch.most_in_flight)
            if warehouse is not None:
                warehouse.write(f"batch-{simulator.episodes:09d}", batch)
            progress.write(f"{simulator.episodes} of {options.episodes} episodes")
        auctions = simulator.auctions_per_episode()
    summary = aggregate_experiences(experiences)
    summary.pop("training_batch")
    result = {
        "episodes_per_second": len(experiences) / seconds,
        "auctions_per_episode": auctions,
        "auctions_per_second": len(experiences) / seconds * auctions,
        "seconds": seconds,
        "worlds": options.worlds,
        "most_in_flight": most_in_flight,
        "failures": [{"world": f.world, "type": f.kind.value, "reason": f.reason} for f in failures],
        **summary,
    }
    if options.plot is not None:
        options.plot.mkdir(parents=True, exist_ok=True)
        draw_panel(market_plots.reward_by_type(experiences), options.plot / "reward_by_type.png")
        draw_panel(market_plots.crisis_share(experiences), options.plot / "crisis_share.png")
        result["plots"] = [str(p) for p in sorted(options.plot.glob("*.png"))]
    print_result(
        result,
        f"{len(experiences)} episodes in {options.worlds} worlds at {result['episodes_per_second']:,.0f} episodes/s\n"
        f"score {summary['score']:.2f}, profit over budget {summary['profit']:.2f}, "
        f"{summary['crisis_revenue_share']:.0%} of the value from crisis parents, {len(failures)} failures\n"
        + _picture(options.plot),
        as_json=options.json,
    )


def _simulated_agent(simulator: MonteCarloSimulator, options: Simulate) -> Any:
    """Return the agent that the options of `simulate` name: a network, or a fixed level with the first creative."""
    if options.network:
        world = simulator.world(0)
        return ExternalUpdateAgent(DQN((len(world.names),), world.space, hidden=(64, 64)))
    levels = simulator.setting.levels
    if options.alpha not in levels:
        raise ConfigError(f"--alpha {options.alpha}: give one of {', '.join(f'{level:g}' for level in levels)}")
    creatives = simulator.worlds[0].creatives
    return constant_strategies(levels, creatives)[f"{options.alpha:g} {creatives[0]}"]


def train_bidder(options: Train) -> None:
    """Train a bidder with the engine, then compare it with the baselines in unseen worlds."""
    chosen = recipe(options.algo, options.epochs)
    world = {
        **chosen["world"],
        "patterns": str(options.patterns.absolute()),
        "objective": options.objective,
        "budget": options.budget,
        "target_cpa": options.target_cpa,
    }
    if options.actions is not None:
        world["actions"] = options.actions
    model = dict(chosen["model"])
    if options.importance > 0.0:
        shares = {"focus_rare_events": True, "target_share": options.importance}
        model["importance"] = {**shares, "beta": options.correction, "beta_frames": None}
    settings = [
        f"{section}.{key}={json.dumps(value)}"
        for section, keys in (("world", world), ("model", model))
        for key, value in keys.items()
        if value is not None
    ]
    every = max(1, options.epochs // 10)
    run_training(
        TrainCommand(
            target=_TARGET,
            worlds=options.worlds,
            epochs=options.epochs,
            seed=options.seed,
            set=(*settings, f"experiment.checkpoint_every={every}"),
            out=options.out,
            json=options.json and not options.episodes,
            quiet=options.quiet or (options.json and bool(options.episodes)),
        )
    )
    if options.episodes:
        evaluate_bidder(
            Evaluate(
                options.out,
                options.episodes,
                budget=options.budget,
                target_cpa=options.target_cpa,
                json=options.json,
                quiet=options.quiet,
            )
        )


def _restored(run_dir: Path) -> MarketEnvironment:
    """Return the environment of a run with its trained agents."""
    folder = RunFolder.open(run_dir)
    environment = open_environment(folder)
    if not isinstance(environment, MarketEnvironment):
        raise ConfigError(f"{run_dir} is a run of {folder.environment}, not of a market: evaluate it with `eval`")
    restore(environment.prepare(), folder.path)
    return environment


def evaluate_bidder(options: Evaluate) -> None:
    """Let a trained bidder and the baselines play the same episodes."""
    if options.episodes < 2:
        raise ConfigError(f"--episodes {options.episodes}: give at least 2, an interval needs as many")
    progress, environment = ProgressLines(options.quiet), _restored(options.run_dir)
    patterns = environment.patterns if options.patterns is None else load_patterns(options.patterns)
    mix = None if options.world_type is None else {options.world_type: 1.0}
    unseen = create_world_variants(patterns, options.episodes, mix, seed=UNSEEN_SEED)
    goals = {"budget": options.budget, "target": options.target_cpa}
    objective = environment.config.world["objective"]
    progress.write("choosing the baselines in training worlds")
    bidders = {"trained": TrainedBidder.of(environment), **study_baselines(patterns, 60, by=objective, **goals)}
    with MarketWorlds(unseen, **goals) as market:  # type: ignore[arg-type]
        progress.write(f"playing {options.episodes} unseen worlds")
        results = compare_baselines(bidders, market, [0])
        rewards = {name: one.by_world(objective) for name, one in results.items()}
        if options.plot is not None:
            shown = {name: bidders[name] for name in ("trained", "pid pacer")} | {"oracle": oracle(market, 0, bidders)}
            market_plots.pacing_of_a_day(market, shown, options.plot)
    panels = market_plots.baseline_panels(results, unseen)
    if (curve := market_plots.learning_curve(options.run_dir, rewards)) is not None:
        panels.append(curve)
    write_section(options.run_dir, "bidders", "Unseen worlds", panels)
    rows = market_plots.baseline_table(results)
    result = {"run_dir": str(options.run_dir), "worlds": options.episodes, "results": rows, "plot": options.plot}
    print_result(result, _table_text(rows, options.episodes) + _picture(options.plot), as_json=options.json)


def _table_text(rows: Mapping[str, Mapping[str, Sequence[float]]], worlds: int) -> str:
    lines = [f"{'':<14} {'score':>8}  95 % interval     profit/budget  spent   ({worlds} unseen worlds)"]
    for name, row in rows.items():
        mean, low, high = row["score"]
        lines.append(
            f"{name:<14} {mean:8.2f}  {low:6.2f} to {high:6.2f}  {row['profit'][0]:13.2f}  {row['spent'][0]:5.0%}"
        )
    return "\n".join(lines) + "\n"


def export_bidder(options: Export) -> None:
    """Write the policy of a run for other programs."""
    files = export_policy(_restored(options.run_dir), options.out, onnx=options.onnx)
    print_result(files, "".join(f"{name}: {path}\n" for name, path in files.items()), as_json=options.json)


def compare(options: Compare) -> None:
    """Compare two ways to train, strategies, or baselines."""
    progress, patterns = ProgressLines(options.quiet), load_patterns(options.patterns)
    if options.what == "strategies":
        _compare_strategies(options, patterns, progress)
        return
    if options.what == "baselines":
        with MarketWorlds(create_world_variants(patterns, options.episodes, seed=UNSEEN_SEED)) as market:
            progress.write("choosing the baselines in training worlds")
            results = compare_baselines(study_baselines(patterns), market, range(min(options.epochs, 10)))
        rows = market_plots.baseline_table(results)
        print_result({"what": "baselines", "results": rows}, _table_text(rows, options.episodes), as_json=options.json)
        return
    study = Study(
        patterns,
        algorithm=options.algo,
        objective=options.objective,
        worlds=options.worlds,
        epochs=options.epochs,
        seeds=options.seeds,
        held_out=None if options.held_out is None else WorldType(options.held_out),
        episodes=options.episodes,
    )
    progress.write("training two ways, and playing the baselines")
    found = run_study(study, options.what)
    lines = []
    for one in found.paired:
        (first, second), (a, b) = one.ways, one.results
        mean, low, high = one.difference
        _, lowest, highest = one.over_worlds
        lines.append(
            f"{one.figure}: {first} {a.mean():.3f}, {second} {b.mean():.3f}, difference {mean:+.3f} "
            f"({low:+.3f} to {high:+.3f} over {len(a)} seeds, {lowest:+.3f} to {highest:+.3f} over worlds)\n"
        )
    lines += [
        f"{name}: {options.objective} {mean:.3f} ({low:.3f} to {high:.3f})\n"
        for name, (mean, low, high) in found.baselines.items()
    ]
    print_result({"what": options.what, **found.as_dict()}, "".join(lines), as_json=options.json)


def _compare_strategies(options: Compare, patterns: Patterns, progress: ProgressLines) -> None:
    with MonteCarloSimulator(options.worlds, patterns=patterns) as simulator:
        progress.write(f"simulating every level with every creative in {options.worlds} worlds")
        strategies = constant_strategies(simulator.setting.levels, simulator.worlds[0].creatives)
        results = asyncio.run(play_strategies(simulator, strategies, laps=min(options.epochs, 10)))
    found_patterns = detect_convergence_patterns(results.returns, results.kinds)
    if options.plot is not None:
        draw_panel(market_plots.robustness(found_patterns), options.plot)
    threshold, worlds = found_patterns.robustness_threshold, found_patterns.worlds
    if found_patterns.robust:
        lines = [
            f"* robust: better than luck in {worlds} worlds (in more than {threshold:.0%}), in no type of them worse"
        ]
    else:
        lines = [
            f"no strategy is robust (none has a *): by luck alone one succeeds in {threshold:.0%} of {worlds} worlds; "
            "give more of them with --worlds"
        ]
    lines += [
        f"  {'*' if r.robust else ' '} {r.name:<20} mean {r.mean:6.2f}  CVaR {r.cvar:6.2f}  wins {r.success_share:4.0%}"
        for r in found_patterns.strategies
    ]
    result = {"what": "strategies", **found_patterns.as_dict(), "plot": options.plot}
    print_result(result, "\n".join(lines) + "\n" + _picture(options.plot), as_json=options.json)
