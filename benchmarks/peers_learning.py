"""What ours and its peers learn from the same number of steps, and what a level costs each.

python -m benchmarks.peers_learning                                 every task, 10 seeds: about 3 hours on two cores
python -m benchmarks.peers_learning CartPole-v1 --seeds 3           some tasks, some seeds
python -m benchmarks.peers_learning Acrobot-v1 --sides ours random  some sides
python -m benchmarks.peers_learning CartPole-v1 --again             trains anew what is stored already
python -m benchmarks.peers_learning CartPole-v1 --steps 20000 --dry shows that it works; stores nothing

Sides: ours (PPO), ours without lag (`parallel.policy_lag = 0`), Stable-Baselines3 (PPO), IPPO in JAX as JaxMARL
writes it (a network for each agent, jitted rollout steps and updates), and random play. All have the settings,
networks and worlds of `benchmarks/learning_tasks.py`. After every twentieth of the steps the most likely actions are
evaluated in 20 new episodes. Seconds are CPU seconds of playing and learning, without evaluating and without
compiling: other work on the machine does not count, and neither does it help to use both cores. With several agents a
return is the mean over them.

Every trained seed becomes a line of `results/peers_learning/TASK.jsonl` as soon as it has ended. A run trains what is
not stored yet, so one that was stopped goes on; several runs may take different tasks at the same time. Lines of other
settings than those of `learning_tasks.py` do not count. `python -m benchmarks.tables` writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning_tasks import EPISODES, EVALUATIONS, TASKS, Task, made
from benchmarks.peers import Unavailable, ask, box2d, peer_python
from benchmarks.run import RESULTS, provenance
from parallel_agents.env.adapters.gymnasium import GymnasiumAdapter, GymnasiumEnvironment, gymnasium_environment
from parallel_agents.env.adapters.pettingzoo import pettingzoo_environment
from parallel_agents.env.adapters.sync_envs import MakeAdapter
from parallel_agents.env.environment import Environment
from parallel_agents.tracking.statistics import mean_interval

Curve = list[tuple[int, float, float]]
"""Steps, CPU seconds of learning until then, and evaluated return."""
Learn = Callable[[Task, int], Curve]


def ours(task: Task, seed: int, lag: int = 1) -> Curve:
    """Train PPO in this process, where all its CPU time is counted; the backend changes nothing else."""
    _ours(task, seed, lag).run_experiment(1)  # compiles what is not in the cache yet
    environment = _ours(task, seed, lag)
    epochs = max(EVALUATIONS, task.steps // (task.worlds * task.turns))
    curve, seconds = [], 0.0
    for k in range(1, EVALUATIONS + 1):
        start = time.process_time()
        summary = environment.run_experiment(epochs * k // EVALUATIONS)
        seconds += time.process_time() - start
        steps = summary["turns"] * task.worlds
        curve.append((steps, seconds, environment.evaluate(EPISODES).mean_return))
    return curve


def ours_without_lag(task: Task, seed: int) -> Curve:
    """Train PPO on data of the newest weights, as the peers do."""
    return ours(task, seed, lag=0)


def random_play(task: Task, seed: int) -> Curve:
    """Evaluate an untrained agent that explores in every turn."""
    return [(0, 0.0, _ours(task, seed).evaluate(EPISODES, exploration=1.0).mean_return)]


def _ours(task: Task, seed: int, lag: int = 1) -> Any:
    kind: type[Environment] = pettingzoo_environment(task.name) if task.multi_agent else _one_agent(task)
    model = {
        "algorithm": "ppo", "hidden": task.hidden, "lr": task.lr, "lr_final": None, "lr_updates": 0,
        "gamma": task.gamma, "gae_lambda": task.gae_lambda, "n_epochs": task.passes, "n_minibatches": task.minibatches,
        "ent_coef": task.entropy,
    }  # fmt: skip
    experiment = {"seed": seed, "worlds": task.worlds, "max_turns": task.turns, "record_period": 0, "eval_every": 0}
    config = {"experiment": experiment, "model": model, "parallel": {"backend": "inline", "policy_lag": lag}}
    return kind(config=config)


def _one_agent(task: Task) -> type[Environment]:
    """Return our environment; through the wrappers of the other sides where the task has some."""
    kind = gymnasium_environment(task.name)
    if ":" not in task.name and task.repeat == 1:
        return kind

    class Wrapped(GymnasiumEnvironment):
        def adapter_factory(self) -> MakeAdapter:
            return partial(GymnasiumAdapter, partial(made, task.name, task.repeat))

    return type(kind.__name__, (Wrapped, kind), {})


def sb3(task: Task, seed: int) -> Curve:
    """Train PPO of Stable-Baselines3 in this process."""
    from stable_baselines3 import PPO
    from stable_baselines3.common import evaluation
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    if task.multi_agent:
        raise Unavailable("Stable-Baselines3 trains one agent in an environment")

    def make() -> Any:
        return Monitor(made(task.name, task.repeat))

    evaluate: Any = evaluation.evaluate_policy
    model: Any = PPO(
        "MlpPolicy", DummyVecEnv([make] * task.worlds), learning_rate=task.lr, n_steps=task.turns,
        batch_size=task.turns * task.worlds // task.minibatches, n_epochs=task.passes, gamma=task.gamma,
        gae_lambda=task.gae_lambda, ent_coef=task.entropy, seed=seed, device="cpu",
        policy_kwargs={"net_arch": list(task.hidden)},
    )  # fmt: skip
    judges = DummyVecEnv([make] * EPISODES)
    judges.seed(10_000 + seed)
    curve, seconds = [], 0.0
    for k in range(1, EVALUATIONS + 1):
        start = time.process_time()
        left = task.steps * k // EVALUATIONS - model.num_timesteps
        if left > 0:
            model.learn(left, reset_num_timesteps=False, log_interval=None)
        seconds += time.process_time() - start
        curve.append((model.num_timesteps, seconds, float(evaluate(model, judges, EPISODES)[0])))
    return curve


class InJax:
    """IPPO in JAX, in a process of its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, task: Task, seed: int) -> Curve:
        if self._process is None:
            command = [peer_python("jax_learning"), Path(__file__).parent / "peers" / "jax_learning_side.py"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answer: dict[str, Any] = {}
        asked = {"what": "learn", "task": task.settings(), "seed": seed}
        ask(self._process, asked, answer, patience=7200.0)
        return [(steps, seconds, value) for steps, seconds, value in answer["curve"]]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)


def stored(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a task that were made with its settings."""
    path = folder / task.file
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if Task.of(line["task"]) == task]


def study(task: Task, seeds: int, sides: dict[str, Learn], done: Iterable[tuple[str, int]]) -> Iterable[dict[str, Any]]:
    """Train what is not done yet, and return a line for each: seed after seed, so that all sides have equally many."""
    absent: set[str] = set()
    missing = [(side, seed) for seed in range(seeds) for side in sides if (side, seed) not in set(done)]
    for side, seed in missing:
        if side in absent:
            continue
        line: dict[str, Any] = {"side": side, "seed": seed, "load_start": round(os.getloadavg()[0], 2)}
        try:
            if task.name.startswith("LunarLander"):
                box2d()
            line["curve"] = sides[side](task, seed)
        except Unavailable as reason:
            absent.add(side)
            line["skipped"] = str(reason)
        yield {**line, "load_end": round(os.getloadavg()[0], 2), "task": task.settings(), **provenance()}


def summary(task: Task, lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return what one side reaches on a task: the last returns, and steps and seconds to the level, by seed."""
    by_seed = {line["seed"]: line for line in lines}  # the last line of a seed is the one that counts
    curves = [line["curve"] for _, line in sorted(by_seed.items()) if "curve" in line]
    if not curves:
        return {"skipped": next((line["skipped"] for line in by_seed.values()), "not trained yet")}
    level = float("inf") if task.level is None else task.level
    reached = [next((point for point in curve if point[2] >= level), None) for curve in curves]
    return {
        "final": list(mean_interval([curve[-1][2] for curve in curves])),
        "steps_to_level": [None if point is None else point[0] for point in reached],
        "seconds_to_level": [None if point is None else point[1] for point in reached],
        "seconds": [curve[-1][1] for curve in curves],
    }


def main(arguments: Sequence[str] | None = None, *, folder: Path = RESULTS / "peers_learning") -> None:
    """Train what is asked for and not stored yet, and store each seed as soon as it has ended."""
    in_jax = InJax()
    sides: dict[str, Learn] = {
        "ours": ours, "ours-without-lag": ours_without_lag, "sb3": sb3, "jax": in_jax, "random": random_play,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"some of: {', '.join(TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=None, help="other than the task's own number; needs --dry")
    parser.add_argument("--sides", nargs="+", choices=sides, default=list(sides))
    parser.add_argument("--again", action="store_true", help="also train what is stored already")
    parser.add_argument("--dry", action="store_true", help="read and store nothing")
    options = parser.parse_args(arguments)
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"no task is called {', '.join(sorted(unknown))}: choose from {', '.join(TASKS)}")
    if options.steps is not None and not options.dry:
        parser.error("with other steps than the task's nothing can be stored: add --dry")
    torch.set_num_threads(1)
    try:
        for name in options.tasks or TASKS:
            task = TASKS[name]
            if options.steps is not None:
                task = Task(**{**vars(task), "steps": options.steps})
            known = [] if options.dry or options.again else stored(task, folder)
            done = [(line["side"], line["seed"]) for line in known if "curve" in line]
            for line in study(task, options.seeds, {side: sides[side] for side in options.sides}, done):
                if not options.dry:
                    folder.mkdir(exist_ok=True)
                    with (folder / task.file).open("a") as file:
                        file.write(json.dumps(line) + "\n")
                ended = line["skipped"] if "skipped" in line else line["curve"][-1]
                sys.stdout.write(f"{name}, {line['side']}, seed {line['seed']}: {ended}\n")
                sys.stdout.flush()
    finally:
        in_jax.close()


if __name__ == "__main__":
    main()
