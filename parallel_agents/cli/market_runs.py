"""What the commands of `parallel-agents market` do."""

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

from parallel_agents.cli.answers import answer
from parallel_agents.cli.market import Compare, Discover, Sample, Simulate, Train, Worlds
from parallel_agents.errors import ConfigError
from parallel_agents.market import plots
from parallel_agents.market.compare import WorldsStudy, compare_importance, compare_wall_time, compare_worlds
from parallel_agents.market.discovery import discover
from parallel_agents.market.importance import PolicyDoor
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
from parallel_agents.market.sample import draw_sample, write_sample
from parallel_agents.market.source import patterns_of
from parallel_agents.market.warehouse import Warehouse
from parallel_agents.market.worlds import WorldType, create_world_variants
from parallel_agents.models import DQN
from parallel_agents.tracking.files import write_atomically
from parallel_agents.tracking.listeners import SilentListener

__all__ = ["compare", "find_patterns", "show_worlds", "simulate", "train_bidder", "write_export"]

_EVERY = 5.0  # seconds between two lines of progress


class _Lines(SilentListener):
    """Progress as lines on stderr: at most one every few seconds."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._due = quiet, 0.0

    def say(self, text: str) -> None:
        """Write a line if it is time for one."""
        if not self._quiet and time.monotonic() >= self._due:
            self._due = time.monotonic() + _EVERY
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        if name == "monte_carlo":
            self.say(f"step {fields['step']:.0f}  reward {fields['mean_reward']:.3f}")


def write_export(options: Sample) -> None:
    """Draw a sample and write it."""
    lines = _Lines(options.quiet)
    lines.say(f"drawing {options.users} users over {options.days} days")
    sample = draw_sample(users=options.users, days=options.days, seed=options.seed)
    folder = write_sample(options.out, sample, form=options.form, truth=options.truth)
    found = {"out": str(folder), "events": sample.events.num_rows, "users": options.users, "days": options.days}
    _print(found, options.json, f"{found['events']:,} events of {options.users:,} users in {folder}\n")


def find_patterns(options: Discover) -> None:
    """Discover an export's patterns and store them."""
    _Lines(options.quiet).say(f"reading {options.export}")
    patterns = discover(options.export, utc_offset_hours=options.utc_offset_hours)
    patterns.save(options.out)
    segments = {
        s.name: {"share": s.share.value, "interval": [s.share.low, s.share.high], "value_share": s.value_share.value}
        for s in patterns.segments
    }
    found = {
        "out": str(options.out),
        "days": patterns.days,
        "users": patterns.users,
        "estimates": len(patterns.estimates()),
        "segments": segments,
        "landscapes": len(patterns.competition.landscapes) if patterns.competition else 0,
        "not_identified": list(patterns.not_identified),
    }
    told = [f"{found['estimates']} estimates from {patterns.users:,} users over {patterns.days} days"]
    told += [f"  {n:<18} {s['share']:6.1%} of users, {s['value_share']:6.1%} of value" for n, s in segments.items()]
    told += [f"  not identified: {note}" for note in patterns.not_identified]
    _print(found, options.json, "\n".join([*told, f"stored in {options.out}\n"]))


def show_worlds(options: Worlds) -> None:
    """Draw worlds and tell what they are like."""
    worlds = create_world_variants(patterns_of(options.patterns), options.worlds, seed=options.seed)
    rows = [{"world": w.index, "type": w.kind.value, "users": w.users.count, **world_context(w)} for w in worlds]
    counts = dict(Counter(w.kind.value for w in worlds).most_common())
    if options.plot is not None:
        plots.world_atlas(worlds, options.plot)
    told = [f"{len(worlds)} worlds"] + [f"  {kind:<20} {count:4d}" for kind, count in counts.items()]
    _print({"worlds": rows, "types": counts, "plot": _path(options.plot)}, options.json, "\n".join(told) + "\n")


def simulate(options: Simulate) -> None:
    """Play episodes, a batch of one per world at a time, and tell what came of them."""
    if options.episodes < 1:
        raise ConfigError(f"--episodes {options.episodes}: give at least 1")
    lines = _Lines(options.quiet)
    setting = EpisodeSetting(
        steps=options.steps,
        auctions_per_step=options.auctions,
        fidelity=options.fidelity,
        threads=options.threads,
        seed=options.seed,
    )
    patterns = patterns_of(options.patterns)
    count = options.concurrent or options.worlds
    with MonteCarloSimulator(
        options.worlds, None, count, patterns=patterns, setting=setting, seed=options.seed
    ) as simulator:
        agent = _agent(simulator, options)
        asyncio.run(simulator.run_episode_batch(agent))  # compiles, and draws the populations
        simulator.episodes = 0
        warehouse = Warehouse(options.warehouse) if options.warehouse is not None else None
        experiences: list[EpisodeExperience] = []
        failures: list[Failure] = []
        seconds, most = 0.0, 0
        while simulator.episodes < options.episodes:
            size = min(options.worlds, options.episodes - simulator.episodes)
            batch = asyncio.run(simulator.run_episode_batch(agent, size))
            simulator.require_success(batch)
            experiences += batch.experiences
            failures += batch.failures
            seconds, most = seconds + batch.seconds, max(most, batch.most_in_flight)
            if warehouse is not None:
                warehouse.write(f"batch-{simulator.episodes:09d}", batch)
            lines.say(f"{simulator.episodes} of {options.episodes} episodes")
    told = aggregate_experiences(experiences)
    told.pop("training_batch")
    found = {
        "episodes_per_second": len(experiences) / seconds,
        "auctions_per_second": len(experiences) / seconds * options.steps * options.auctions,
        "seconds": seconds,
        "worlds": options.worlds,
        "most_in_flight": most,
        "failures": [{"world": f.world, "type": f.kind.value, "reason": f.reason} for f in failures],
        **told,
    }
    if options.plot is not None:
        options.plot.mkdir(parents=True, exist_ok=True)
        plots.reward_by_type(experiences, options.plot / "reward_by_type.png")
        plots.crisis_share(experiences, options.plot / "crisis_share.png")
        found["plots"] = [str(p) for p in sorted(options.plot.glob("*.png"))]
    _print(
        found,
        options.json,
        f"{len(experiences)} episodes in {options.worlds} worlds at {found['episodes_per_second']:,.0f} episodes/s\n"
        f"profit over budget {told['weighted_reward']:.2f}, success rate {told['success_rate']:.0%}, "
        f"{told['crisis_revenue_share']:.0%} of the value from crisis parents, {len(failures)} failures\n",
    )


def _agent(simulator: MonteCarloSimulator, options: Simulate) -> Any:
    if options.network:
        world = simulator.world(0)
        return PolicyDoor(DQN((len(world.names),), world.space, hidden=(64, 64)))
    levels = simulator.setting.levels
    if options.level not in levels:
        raise ConfigError(f"--level {options.level}: give one of {', '.join(f'{level:g}' for level in levels)}")
    creatives = simulator.worlds[0].creatives
    return constant_strategies(levels, creatives)[f"{options.level:g} {creatives[0]}"]


def train_bidder(options: Train) -> None:
    """Train a DQN bidder over many worlds."""
    lines = _Lines(options.quiet)
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
        config, patterns=patterns_of(options.patterns), folder=options.out, listeners=[lines]
    )
    world = trainer.simulator.world(0)
    model = DQN((len(world.names),), world.space, gamma=0.98, lr=1e-3, epsilon_epochs=max(1, options.steps // 2))
    model.place(seed=options.seed, agent=0, worlds=1)
    focus = asyncio.run(_focus(trainer.simulator, lines)) if options.focus else None
    train = trainer.resume if options.resume else trainer.train_agent_with_monte_carlo
    summary = asyncio.run(train(PolicyDoor(model), options.steps, focus=focus))
    trainer.simulator.close()
    options.out.mkdir(parents=True, exist_ok=True)
    plots.convergence({"training": [line["mean_reward"] for line in trainer.history]}, options.out / "convergence.png")
    found = {**summary, "run_dir": str(options.out), "history": trainer.history}
    write_atomically(options.out / "summary.json", [json.dumps(found, indent=1).encode()])
    _print(
        found,
        options.json,
        f"{summary['steps']} steps, {summary['episodes']} episodes, profit over budget {summary['mean_reward']:.2f} "
        f"(last tenth), {summary['crisis_revenue_share']:.0%} of the value from crisis parents\n"
        f"stored in {options.out}\n",
    )


async def _focus(simulator: MonteCarloSimulator, lines: _Lines) -> Focus | None:
    """The robust ones among all constant strategies, if there are any; the training's own laps stay untouched."""
    strategies = constant_strategies(simulator.setting.levels, simulator.worlds[0].creatives)
    results = await play_strategies(simulator, strategies, laps=5)
    simulator.episodes = 0
    robust = detect_convergence_patterns(results.returns, results.kinds).robust
    lines.say(f"robust strategies: {', '.join(robust) or 'none'}")
    return Focus([strategies[name] for name in robust]) if robust else None


def compare(options: Compare) -> None:
    """Compare two ways to train, or strategies."""
    lines, patterns = _Lines(options.quiet), patterns_of(options.patterns)
    if options.what == "strategies":
        _compare_strategies(options, lines)
        return
    if options.what == "importance":
        found = compare_importance(
            patterns,
            seeds=options.seeds,
            steps=options.epochs,
            worlds=options.worlds,
            episodes=options.episodes,
            tell=lines.say,
        )
    else:
        held_out = None if options.held_out is None else _world_type(options.held_out)
        study = WorldsStudy(
            patterns,
            worlds=options.worlds,
            epochs=options.epochs,
            seeds=options.seeds,
            held_out=held_out,
            episodes=options.episodes,
        )
        found = compare_worlds(study, lines.say)
        if options.what == "time":
            found.append(compare_wall_time(study, found[0].values[1].tolist(), lines.say))
    rows = [one.as_dict() for one in found]
    told = []
    for one in found:
        mean, low, high = one.difference
        (first, second), (a, b) = one.ways, one.values
        told.append(
            f"{one.figure}: {first} {a.mean():.3f}, {second} {b.mean():.3f}, difference {mean:+.3f} "
            f"({low:+.3f} to {high:+.3f}) over {len(a)} seeds\n"
        )
    _print({"what": options.what, "comparisons": rows}, options.json, "".join(told))


def _compare_strategies(options: Compare, lines: _Lines) -> None:
    with MonteCarloSimulator(options.worlds, None, options.worlds, patterns=patterns_of(options.patterns)) as simulator:
        lines.say(f"playing every level with every creative in {options.worlds} worlds")
        strategies = constant_strategies(simulator.setting.levels, simulator.worlds[0].creatives)
        results = asyncio.run(play_strategies(simulator, strategies, laps=min(options.epochs, 10)))
    found = detect_convergence_patterns(results.returns, results.kinds)
    if options.plot is not None:
        plots.robustness(found, options.plot)
    told = [f"robust in more than {found.robustness_threshold:.0%} of {found.worlds} worlds:"]
    told += [
        f"  {'*' if r.robust else ' '} {r.name:<20} mean {r.mean:6.2f}  CVaR {r.cvar:6.2f}  wins {r.success_share:4.0%}"
        for r in found.strategies
    ]
    values = {"what": "strategies", **found.as_dict(), "plot": _path(options.plot)}
    _print(values, options.json, "\n".join(told) + "\n")


def _world_type(name: str) -> WorldType:
    try:
        return WorldType(name)
    except ValueError as error:
        raise ConfigError(f"--held-out {name!r}: give one of {', '.join(k.value for k in WorldType)}") from error


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _print(values: Mapping[str, Any], as_json: bool, told: str) -> None:
    answer(json.dumps(values, default=_plain) + "\n" if as_json else told)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value.tolist()
