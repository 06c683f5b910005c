"""Measure what learning in many worlds gains. It takes long, and is therefore not part of `benchmarks.run`.

    python -m benchmarks.market_learning worlds       100 worlds compared with one, on unseen worlds and an unseen type
    python -m benchmarks.market_learning time         a shorter study, and seconds until as good as with one world
    python -m benchmarks.market_learning importance   batches with more crisis parents compared with uniform batches
    python -m benchmarks.market_learning focus        learning with and without robust strategies to start from

Ten paired seeds each, 20 for worlds and 5 for time; prints one JSON object per figure, and stores the results in
results/market_learning.json, from which `python -m benchmarks.tables` writes the table of docs/market.md.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.run import provenance
from benchmarks.tables import measured
from parallel_agents.algorithms import DQN
from parallel_agents.market.compare import Paired, WorldsStudy, compare_importance, compare_wall_time, compare_worlds
from parallel_agents.market.discovery import Patterns
from parallel_agents.market.montecarlo import (
    EpisodeSetting,
    Focus,
    MonteCarloSimulator,
    MonteCarloTrainingConfig,
    MonteCarloTrainingOrchestrator,
    constant_strategies,
    detect_convergence_patterns,
    play_strategies,
)
from parallel_agents.market.pattern_source import sample_patterns
from parallel_agents.market.policy_agents import ExternalUpdateAgent
from parallel_agents.market.world_types import WorldType

RESULTS = Path(__file__).parent / "results" / "market_learning.json"
WORLDS, STEPS = 30, 20
STUDIES = {
    "worlds": "100 worlds against one",
    "time": "one world after another against all at once",
    "importance": "crisis parents sought or drawn as they come",
    "focus": "starting from robust strategies or not",
}


def tell(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def setting(seed: int = 0) -> EpisodeSetting:
    return EpisodeSetting(steps=STEPS, auctions_per_step=50.0, threads=1, seed=seed)


def curve(patterns: Patterns, unseen: MonteCarloSimulator, focus: Focus | None, seed: int) -> list[float]:
    """Return profit / budget in unseen worlds after 3, 6 and 9 steps of training."""
    config = MonteCarloTrainingConfig(
        n_worlds=WORLDS,
        max_concurrent_worlds=WORLDS,
        batch_size=WORLDS,
        updates_per_step=10,
        update_rows=128,
        importance_sampling_ratio=0.0,
        experience_buffer_size=20_000,
        seed=seed,
    )
    trainer = MonteCarloTrainingOrchestrator(config, patterns=patterns, setting=setting(seed))
    world = trainer.simulator.world(0)
    model = DQN((len(world.names),), world.space, hidden=(32,), lr=2e-3, gamma=0.98, epsilon_epochs=8)
    model.place(seed=seed, agent=0, worlds=1)
    door, scores = ExternalUpdateAgent(model), []
    for steps in (3, 6, 9):
        asyncio.run(trainer.train_agent_with_monte_carlo(door, steps, focus=focus))
        model.set_epsilon(0.0)
        unseen.episodes = 0
        scores.append(float(np.mean([e.total_reward for e in asyncio.run(unseen.run_episode_batch(model))])))
        model.set_epsilon(None)
    trainer.simulator.close()
    return scores


def compare_focus(patterns: Patterns, seeds: int = 10) -> Paired:
    """Compare the mean of the learning curve with and without robust strategies in half of the worlds at first."""
    with MonteCarloSimulator(60, None, 60, 1000, patterns=patterns, setting=setting(), seed=777) as simulator:
        strategies = constant_strategies(setting().levels, simulator.worlds[0].creatives)
        results = asyncio.run(play_strategies(simulator, strategies, laps=3))
    robust = detect_convergence_patterns(results.returns, results.kinds).robust
    tell(f"robust strategies: {', '.join(robust) or 'none'}")
    focus = Focus([strategies[name] for name in robust[:4]], share=0.5, laps=8)
    scores: dict[str, list[float]] = {"focused": [], "plain": []}
    with MonteCarloSimulator(60, None, 60, 1000, patterns=patterns, setting=setting(), seed=2**40) as unseen:
        for seed in range(seeds):
            for name, option in (("focused", focus), ("plain", None)):
                scores[name].append(float(np.mean(curve(patterns, unseen, option, seed))))
            tell(f"focus: seed {seed + 1} of {seeds}")
    return Paired(
        "mean of the learning curve", ("focused", "plain"), (np.array(scores["focused"]), np.array(scores["plain"]))
    )


def main(name: str) -> None:
    """Run one study, print and store it."""
    patterns = sample_patterns()
    if name == "worlds":
        results = compare_worlds(WorldsStudy(patterns, seeds=20, held_out=WorldType.HIGH_COMPETITION), tell)
    elif name == "time":
        study = WorldsStudy(patterns, epochs=40, seeds=5)
        results = compare_worlds(study, tell)
        results.append(compare_wall_time(study, results[0].values[1].tolist(), tell))
    elif name == "importance":
        results = compare_importance(patterns, tell=tell)
    elif name == "focus":
        results = [compare_focus(patterns)]
    else:
        raise SystemExit(__doc__)
    for result in results:
        print(json.dumps(result.as_dict()), flush=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    where = provenance()
    known[STUDIES[name]] = {"measured": measured([where]), **where, "found": [result.as_dict() for result in results]}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:2] or [""])
