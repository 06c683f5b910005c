"""The promise in a minute: treasure hunt with 8 agents, one after the other and in parallel, the same bytes.

make demo        or        python -m examples.demo
"""

import sys
import time
from pathlib import Path
from typing import Any

from examples.treasure_hunt import TreasureHunt
from parallel_agents.tracking.metrics import MetricsWriter, read_metrics
from parallel_agents.tracking.plots import learning_curve
from parallel_agents.tracking.progress import show_progress
from parallel_agents.tracking.runfolder import RunFolder

AGENTS, SHORT, LONG, EPISODES = 8, 60, 300, 100


def game(epochs: int, **parallel: Any) -> TreasureHunt:
    config = {
        "world": {"agents": AGENTS},
        "experiment": {"epochs": epochs, "record_period": LONG},
        "parallel": parallel,
    }
    return TreasureHunt(config=config)


def timed(name: str, players: TreasureHunt) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    summary = players.run_experiment()
    seconds = time.perf_counter() - began
    say(
        f"  {name:<22} {seconds:6.1f} s   {summary['turns'] / seconds:7,.0f} turns/s   "
        f"{summary['updates']:,} updates   digest {summary['digest'][:16]}…"
    )
    return seconds, summary


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    say(f"Treasure hunt, {AGENTS} independent learners, {SHORT} epochs of 100 turns:")
    slow, one = timed("one after the other", game(SHORT, enabled=False))
    fast, other = timed("in parallel", game(SHORT))
    if one["digest"] != other["digest"]:
        raise SystemExit("the digests differ: this must not happen; please report it with the output of `doctor`")
    say(f"  the digests agree; {slow / fast:.1f} times faster\n")

    folder = RunFolder.create("TreasureHunt")
    say(f"Now {LONG} epochs in parallel:")
    players = game(LONG)
    recorders = players.recorders(folder.path)
    players.run_experiment(listeners=[MetricsWriter(folder.metrics), show_progress(), *recorders])
    trained, chance = players.evaluate(EPISODES), players.evaluate(EPISODES, exploration=1.0)
    low, high = trained.interval[1:]
    say(f"\nReward per agent and episode, {EPISODES} fresh episodes, 95 % intervals:")
    say(f"  trained agents   {trained.mean_return:6.1f}  [{low:.1f}, {high:.1f}]")
    low, high = chance.interval[1:]
    say(f"  random policy    {chance.mean_return:6.1f}  [{low:.1f}, {high:.1f}]  same worlds")
    say(f"  that is          {trained.mean_return / chance.mean_return:6.1f} times\n")

    curve = folder.path / "learning_curve.png"
    learnt = {f"{AGENTS} independent learners": read_metrics(folder.metrics).rewards()}
    learning_curve(learnt, curve, lines={"random policy": chance.mean_return}, title="Treasure hunt")
    say(f"learning curve   {_near(curve)}")
    for path in sorted(folder.path.glob("*.gif")):
        say(f"an episode       {_near(path)}")


def _near(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    main()
