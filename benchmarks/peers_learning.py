"""What ours and its peers learn from the same number of steps, and what a level costs each.

python -m benchmarks.peers_learning                                 every task, 10 seeds: about 3 hours on two cores
python -m benchmarks.peers_learning CartPole-v1 --seeds 3           some tasks, some seeds
python -m benchmarks.peers_learning Acrobot-v1 --sides ours random  some sides
python -m benchmarks.peers_learning CartPole-v1 --steps 20000 --dry shows that it works; stores nothing

Sides: ours (PPO), Stable-Baselines3 (PPO), IPPO in JAX as JaxMARL writes it (a network for each agent, jitted rollout
steps and updates), and random play. All have the settings, networks and worlds of `benchmarks/learning_tasks.py`. After
every twentieth of the steps the most likely actions are evaluated in 20 new episodes. Seconds are CPU seconds of
playing and learning, without evaluating and without compiling: other work on the machine does not count, and neither
does it help to use both cores. With several agents a return is the mean over them. Results of a task replace those of
the last run of it in `results/peers_learning.json`; `python -m benchmarks.tables` writes them into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch

from benchmarks.learning_tasks import EPISODES, EVALUATIONS, TASKS, Task
from benchmarks.peers import Unavailable, ask, box2d, peer_python
from benchmarks.run import RESULTS, provenance
from parallel_agents.env.adapters.gymnasium import gymnasium_environment
from parallel_agents.env.adapters.pettingzoo import pettingzoo_environment
from parallel_agents.tracking.statistics import mean_interval

Curve = list[tuple[int, float, float]]
"""Steps, CPU seconds of learning until then, and evaluated return."""
Learn = Callable[[Task, int], Curve]


def ours(task: Task, seed: int) -> Curve:
    """Train PPO in this process, with the default backend."""
    _ours(task, seed).run_experiment(1)  # compiles what is not in the cache yet
    environment = _ours(task, seed)
    epochs = max(EVALUATIONS, task.steps // (task.worlds * task.turns))
    curve, seconds = [], 0.0
    for k in range(1, EVALUATIONS + 1):
        start = time.process_time()
        summary = environment.run_experiment(epochs * k // EVALUATIONS)
        seconds += time.process_time() - start
        steps = summary["turns"] * task.worlds
        curve.append((steps, seconds, environment.evaluate(EPISODES).mean_return))
    return curve


def random_play(task: Task, seed: int) -> Curve:
    """Evaluate an untrained agent that explores in every turn."""
    return [(0, 0.0, _ours(task, seed).evaluate(EPISODES, exploration=1.0).mean_return)]


def _ours(task: Task, seed: int) -> Any:
    make = pettingzoo_environment if task.multi_agent else gymnasium_environment
    model = {
        "algorithm": "ppo", "hidden": task.hidden, "lr": task.lr, "lr_final": None, "lr_updates": 0,
        "gamma": task.gamma, "gae_lambda": task.gae_lambda, "n_epochs": task.passes, "n_minibatches": task.minibatches,
        "ent_coef": task.entropy,
    }  # fmt: skip
    experiment = {"seed": seed, "worlds": task.worlds, "max_turns": task.turns, "record_period": 0, "eval_every": 0}
    return make(task.name)(config={"experiment": experiment, "model": model})


def sb3(task: Task, seed: int) -> Curve:
    """Train PPO of Stable-Baselines3 in this process."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    if task.multi_agent:
        raise Unavailable("Stable-Baselines3 trains one agent in an environment")
    make: Any = partial(_monitored, Monitor, task.name)
    model = PPO(
        "MlpPolicy", DummyVecEnv([make] * task.worlds), learning_rate=task.lr, n_steps=task.turns,
        batch_size=task.turns * task.worlds // task.minibatches, n_epochs=task.passes, gamma=task.gamma,
        gae_lambda=task.gae_lambda, ent_coef=task.entropy, seed=seed, device="cpu",
        policy_kwargs={"net_arch": list(task.hidden)},
    )  # fmt: skip
    judges = DummyVecEnv([make])
    judges.seed(10_000 + seed)
    curve, seconds = [], 0.0
    for k in range(1, EVALUATIONS + 1):
        start = time.process_time()
        left = task.steps * k // EVALUATIONS - model.num_timesteps
        if left > 0:
            model.learn(left, reset_num_timesteps=False, log_interval=None)
        seconds += time.process_time() - start
        curve.append((model.num_timesteps, seconds, float(evaluate_policy(model, judges, EPISODES)[0])))
    return curve


def _monitored(monitor: Any, name: str) -> Any:
    package, _, env_id = name.rpartition(":")
    if not package:
        return monitor(gymnasium.make(env_id))
    seen = importlib.import_module(f"{package}.wrappers").ImgObsWrapper(gymnasium.make(env_id))
    return monitor(gymnasium.wrappers.FlattenObservation(seen))


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


def side_of(learn: Learn, task: Task, seeds: int) -> dict[str, Any]:
    """Return what one side reaches on a task: every curve, the last returns, and steps and seconds to the level."""
    try:
        if task.name.startswith("LunarLander"):
            box2d()
        curves = [learn(task, seed) for seed in range(seeds)]
    except Unavailable as reason:
        return {"skipped": str(reason)}
    level = float("inf") if task.level is None else task.level
    reached = [next((point for point in curve if point[2] >= level), None) for curve in curves]
    return {
        "final": list(mean_interval([curve[-1][2] for curve in curves])),
        "steps_to_level": [None if point is None else point[0] for point in reached],
        "seconds_to_level": [None if point is None else point[1] for point in reached],
        "curves": curves,
    }


def study(task: Task, seeds: int, sides: dict[str, Learn]) -> dict[str, Any]:
    """Return what all sides reach on a task, and where that was measured."""
    loads = {"load_start": round(os.getloadavg()[0], 2)}
    results = {}
    for name, learn in sides.items():
        results[name] = side_of(learn, task, seeds)
        shown = {key: value for key, value in results[name].items() if key != "curves"}
        sys.stdout.write(f"{task.name}, {name}: {json.dumps(shown)}\n")
        sys.stdout.flush()
    loads["load_end"] = round(os.getloadavg()[0], 2)
    return {**task.settings(), "seeds": seeds, "sides": results, **provenance(), **loads}


def main(arguments: Sequence[str] | None = None, *, target: Path = RESULTS / "peers_learning.json") -> None:
    """Study the tasks that are asked for, and store each as soon as it has ended."""
    in_jax = InJax()
    sides: dict[str, Learn] = {"ours": ours, "sb3": sb3, "jax": in_jax, "random": random_play}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"some of: {', '.join(TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=None, help="other than the task's own number")
    parser.add_argument("--sides", nargs="+", choices=sides, default=list(sides))
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args(arguments)
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"no task is called {', '.join(sorted(unknown))}: choose from {', '.join(TASKS)}")
    if options.seeds < 2 and not options.dry:
        parser.error("one seed has no interval: give --seeds 2 or more, or --dry")
    torch.set_num_threads(1)
    try:
        for name in options.tasks or TASKS:
            task = TASKS[name]
            if options.steps is not None:
                task = Task(**{**vars(task), "steps": options.steps})
            result = study(task, options.seeds, {side: sides[side] for side in options.sides})
            if not options.dry:
                known = json.loads(target.read_text()) if target.exists() else {}
                target.write_text(json.dumps(known | {name: result}) + "\n")
    finally:
        in_jax.close()


if __name__ == "__main__":
    main()
