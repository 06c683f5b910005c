"""The commands of `parallel-agents market`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.algorithms import DQN
from parallel_agents.cli.market import Compare, Discover, Sample, Simulate, Train, Worlds
from parallel_agents.cli.output import write_result
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.files import write_atomically
from parallel_agents.market import market_plots
from parallel_agents.market.compare import WorldsStudy, compare_importance, compare_wall_time, compare_worlds
from parallel_agents.market.discovery import Patterns, discover
from parallel_agents.market.montecarlo import (
    EpisodeExperience,
    EpisodeSetting,
    Failure,
    Focus,
    MonteCarloSimulator,
    MonteCarloTrainingConfig,
    MonteCarloTrainingOrchestrator,
    aggregate_experiences,
    constant_strategies,
    detect_convergence_patterns,
    play_strategies,
    world_context,
)
from parallel_agents.market.pattern_source import load_patterns
from parallel_agents.market.policy_agents import ExternalUpdateAgent
from parallel_agents.market.sample import draw_sample, write_sample
from parallel_agents.market.warehouse import Warehouse
from parallel_agents.market.world_types import WorldType
from parallel_agents.market.world_variants import create_world_variants
from parallel_agents.tracking.callbacks import BaseCallback

_PROGRESS_SECONDS = 5.0  # between two lines of progress


class _Progress(BaseCallback):
    """Progress as lines on stderr, at most one every few seconds."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._next = quiet, 0.0

    def write(self, text: str) -> None:
        """Write a line, unless the last one is too recent."""
        if not self._quiet and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_SECONDS
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        if name == "monte_carlo":
            self.write(f"step {fields['step']:.0f}  reward {fields['mean_reward']:.3f}")


def write_export(options: Sample) -> None:
    """Draw a sample and write it."""
    _Progress(options.quiet).write(f"drawing {options.users} users over {options.days} days")
    sample = draw_sample(users=options.users, days=options.days, seed=options.seed)
    folder = write_sample(options.out, sample, form=options.form, truth=options.truth)
    result = {"out": str(folder), "events": sample.events.num_rows, "users": options.users, "days": options.days}
    _print(result, options.json, f"{result['events']:,} events of {options.users:,} users in {folder}\n")


def find_patterns(options: Discover) -> None:
    """Discover the patterns of an export and store them."""
    _Progress(options.quiet).write(f"reading {options.export}")
    patterns = discover(options.export, utc_offset_hours=options.utc_offset_hours)
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
    _print(result, options.json, "\n".join([*lines, f"stored in {options.out}\n"]))


def show_worlds(options: Worlds) -> None:
    """Draw worlds and describe them."""
    worlds = create_world_variants(load_patterns(options.patterns), options.worlds, seed=options.seed)
    rows = [{"world": w.index, "type": w.kind.value, "users": w.users.count, **world_context(w)} for w in worlds]
    counts = dict(Counter(w.kind.value for w in worlds).most_common())
    if options.plot is not None:
        market_plots.world_atlas(worlds, options.plot)
    lines = [f"{len(worlds)} worlds"] + [f"  {kind:<20} {count:4d}" for kind, count in counts.items()]
    _print({"worlds": rows, "types": counts, "plot": _path(options.plot)}, options.json, "\n".join(lines) + "\n")


def simulate(options: Simulate) -> None:
    """Simulate episodes, in batches of one per world, and summarise them."""
    if options.episodes < 1:
        raise ConfigError(f"--episodes {options.episodes}: give at least 1")
    progress = _Progress(options.quiet)
    setting = EpisodeSetting(
        steps=options.steps,
        auctions_per_step=options.auctions,
        fidelity=options.fidelity,
        threads=options.threads,
        seed=options.seed,
    )
    patterns = load_patterns(options.patterns)
    concurrent = options.concurrent or options.worlds
    with MonteCarloSimulator(
        options.worlds, None, concurrent, patterns=patterns, setting=setting, seed=options.seed
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
    summary = aggregate_experiences(experiences)
    summary.pop("training_batch")
    result = {
        "episodes_per_second": len(experiences) / seconds,
        "auctions_per_second": len(experiences) / seconds * options.steps * options.auctions,
        "seconds": seconds,
        "worlds": options.worlds,
        "most_in_flight": most_in_flight,
        "failures": [{"world": f.world, "type": f.kind.value, "reason": f.reason} for f in failures],
        **summary,
    }
    if options.plot is not None:
        options.plot.mkdir(parents=True, exist_ok=True)
        market_plots.reward_by_type(experiences, options.plot / "reward_by_type.png")
        market_plots.crisis_share(experiences, options.plot / "crisis_share.png")
        result["plots"] = [str(p) for p in sorted(options.plot.glob("*.png"))]
    _print(
        result,
        options.json,
        f"{len(experiences)} episodes in {options.worlds} worlds at {result['episodes_per_second']:,.0f} episodes/s\n"
        f"profit over budget {summary['weighted_reward']:.2f}, success rate {summary['success_rate']:.0%}, "
        f"{summary['crisis_revenue_share']:.0%} of the value from crisis parents, {len(failures)} failures\n",
    )


def _simulated_agent(simulator: MonteCarloSimulator, options: Simulate) -> Any:
    """Return the agent that the options of `simulate` name: a network, or a fixed level with the first creative."""
    if options.network:
        world = simulator.world(0)
        return ExternalUpdateAgent(DQN((len(world.names),), world.space, hidden=(64, 64)))
    levels = simulator.setting.levels
    if options.level not in levels:
        raise ConfigError(f"--level {options.level}: give one of {', '.join(f'{level:g}' for level in levels)}")
    creatives = simulator.worlds[0].creatives
    return constant_strategies(levels, creatives)[f"{options.level:g} {creatives[0]}"]


def train_bidder(options: Train) -> None:
    """Train a DQN bidder over many worlds."""
    progress = _Progress(options.quiet)
    config = MonteCarloTrainingConfig(
        n_worlds=options.worlds,
        max_concurrent_worlds=options.worlds,
        batch_size=options.batch,
        updates_per_step=options.updates,
        importance_sampling_ratio=options.importance,
        adapt_every=options.adapt_every,
        checkpoint_every=max(1, options.steps // 10),
        seed=options.seed,
    )
    trainer = MonteCarloTrainingOrchestrator(
        config, patterns=load_patterns(options.patterns), folder=options.out, callbacks=[progress]
    )
    world = trainer.simulator.world(0)
    model = DQN((len(world.names),), world.space, gamma=0.98, lr=1e-3, epsilon_epochs=max(1, options.steps // 2))
    model.place(seed=options.seed, agent=0, worlds=1)
    focus = asyncio.run(_robust_focus(trainer.simulator, progress)) if options.focus else None
    train = trainer.resume if options.resume else trainer.train_agent_with_monte_carlo
    summary = asyncio.run(train(ExternalUpdateAgent(model), options.steps, focus=focus))
    trainer.simulator.close()
    options.out.mkdir(parents=True, exist_ok=True)
    rewards = [line["mean_reward"] for line in trainer.history]
    market_plots.convergence({"training": rewards}, options.out / "convergence.png")
    result = {**summary, "run_dir": str(options.out), "history": trainer.history}
    write_atomically(options.out / "summary.json", [json.dumps(result, indent=1).encode()])
    _print(
        result,
        options.json,
        f"{summary['steps']} steps, {summary['episodes']} episodes, profit over budget {summary['mean_reward']:.2f} "
        f"(last tenth), {summary['crisis_revenue_share']:.0%} of the value from crisis parents\n"
        f"stored in {options.out}\n",
    )


async def _robust_focus(simulator: MonteCarloSimulator, progress: _Progress) -> Focus | None:
    """Return the robust ones among all constant strategies, if there are any; the episode counter is set back to 0."""
    strategies = constant_strategies(simulator.setting.levels, simulator.worlds[0].creatives)
    results = await play_strategies(simulator, strategies, laps=5)
    simulator.episodes = 0
    robust = detect_convergence_patterns(results.returns, results.kinds).robust
    progress.write(f"robust strategies: {', '.join(robust) or 'none'}")
    return Focus([strategies[name] for name in robust]) if robust else None


def compare(options: Compare) -> None:
    """Compare two ways to train, or strategies."""
    progress, patterns = _Progress(options.quiet), load_patterns(options.patterns)
    if options.what == "strategies":
        _compare_strategies(options, patterns, progress)
        return
    if options.what == "importance":
        comparisons = compare_importance(
            patterns,
            seeds=options.seeds,
            steps=options.epochs,
            worlds=options.worlds,
            episodes=options.episodes,
            emit=progress.write,
        )
    else:
        study = WorldsStudy(
            patterns,
            worlds=options.worlds,
            epochs=options.epochs,
            seeds=options.seeds,
            held_out=None if options.held_out is None else _world_type(options.held_out),
            episodes=options.episodes,
        )
        comparisons = compare_worlds(study, progress.write)
        if options.what == "time":
            comparisons.append(compare_wall_time(study, comparisons[0].values[1].tolist(), progress.write))
    lines = []
    for one in comparisons:
        mean, low, high = one.difference
        (first, second), (a, b) = one.ways, one.values
        lines.append(
            f"{one.figure}: {first} {a.mean():.3f}, {second} {b.mean():.3f}, difference {mean:+.3f} "
            f"({low:+.3f} to {high:+.3f}) over {len(a)} seeds\n"
        )
    rows = [one.as_dict() for one in comparisons]
    _print({"what": options.what, "comparisons": rows}, options.json, "".join(lines))


def _compare_strategies(options: Compare, patterns: Patterns, progress: _Progress) -> None:
    with MonteCarloSimulator(options.worlds, None, options.worlds, patterns=patterns) as simulator:
        progress.write(f"simulating every level with every creative in {options.worlds} worlds")
        strategies = constant_strategies(simulator.setting.levels, simulator.worlds[0].creatives)
        results = asyncio.run(play_strategies(simulator, strategies, laps=min(options.epochs, 10)))
    found_patterns = detect_convergence_patterns(results.returns, results.kinds)
    if options.plot is not None:
        market_plots.robustness(found_patterns, options.plot)
    threshold, worlds = found_patterns.robustness_threshold, found_patterns.worlds
    lines = [f"robust in more than {threshold:.0%} of {worlds} worlds:"]
    lines += [
        f"  {'*' if r.robust else ' '} {r.name:<20} mean {r.mean:6.2f}  CVaR {r.cvar:6.2f}  wins {r.success_share:4.0%}"
        for r in found_patterns.strategies
    ]
    result = {"what": "strategies", **found_patterns.as_dict(), "plot": _path(options.plot)}
    _print(result, options.json, "\n".join(lines) + "\n")


def _world_type(name: str) -> WorldType:
    try:
        return WorldType(name)
    except ValueError as error:
        raise ConfigError(f"--held-out {name!r}: give one of {', '.join(k.value for k in WorldType)}") from error


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _print(result: Mapping[str, Any], as_json: bool, text: str) -> None:
    """Print the result as one JSON object, or the text."""
    write_result(json.dumps(result, default=_plain) + "\n" if as_json else text)


def _plain(value: Any) -> Any:
    """Return a numpy value as JSON knows it."""
    return value.item() if isinstance(value, np.generic) else value.tolist()
