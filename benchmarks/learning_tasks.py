"""Tasks of `peers_learning.py`, with settings of PPO for all sides. Peers read this file too: it imports little."""

import importlib
from dataclasses import dataclass
from typing import Any

import gymnasium


@dataclass(frozen=True)
class Task:
    """An environment, the return that counts as learned, how much experience is given, and settings of PPO."""

    name: str
    level: float | None
    """None where a return says little by itself."""
    steps: int
    """Steps of all worlds together."""
    worlds: int = 8
    turns: int = 32
    """Turns of a rollout in each world."""
    passes: int = 20
    minibatches: int = 1
    lr: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.8
    entropy: float = 0.0
    hidden: tuple[int, ...] = (64, 64)
    repeat: int = 1
    """Turns of the environment for which an action is held, as one step."""

    @property
    def multi_agent(self) -> bool:
        return self.name.startswith("mpe2.")

    @property
    def file(self) -> str:
        """The name of the file that holds what was learned."""
        return f"{self.name.replace(':', '.')}.jsonl"

    def settings(self) -> dict[str, Any]:
        """Return what a peer is told, as JSON holds it."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Task":
        """Return the task of such settings; a setting that is not named has its default."""
        return cls(**{**settings, "hidden": tuple(settings["hidden"])})


LONG = {"turns": 128, "passes": 10, "minibatches": 8, "lr": 3e-4, "gamma": 0.99, "gae_lambda": 0.95}
"""Rollouts of 1024 transitions and minibatches of 128."""
TASKS = {
    task.name: task
    for task in (
        Task("CartPole-v1", 475.0, 150_000),
        Task("Acrobot-v1", -100.0, 150_000, **LONG),  # type: ignore[arg-type]
        Task("LunarLander-v3", 200.0, 450_000, worlds=16, turns=128, passes=10, minibatches=32, lr=3e-4, gamma=0.999,
             gae_lambda=0.98, entropy=0.01),
        # noise that is drawn anew in every turn does not reach the flag, and standing still costs nothing
        Task("MountainCarContinuous-v0", 90.0, 100_000, **LONG, repeat=8),  # type: ignore[arg-type]
        Task("mpe2.simple_spread_v3", None, 300_000, **LONG),  # type: ignore[arg-type]
        Task("mpe2.simple_tag_v3", None, 150_000, **LONG),  # type: ignore[arg-type]
        # without entropy all sides solve it and lose it again: where every episode is the same, advantages are noise
        Task("minigrid:MiniGrid-Empty-5x5-v0", 0.9, 100_000, **LONG, entropy=0.01),  # type: ignore[arg-type]
    )
}  # fmt: skip
"""By name. The rates do not decay, so that a curve does not depend on where it ends."""
EVALUATIONS, EPISODES = 20, 20
"""Evaluations on the way, and episodes of each."""


class Repeat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Holds each action for some turns, and adds up their rewards."""

    def __init__(self, env: gymnasium.Env[Any, Any], turns: int) -> None:
        super().__init__(env)
        self._turns = turns

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self._turns):
            seen, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return seen, total, terminated, truncated, info


def made(name: str, repeat: int = 1) -> gymnasium.Env[Any, Any]:
    """Return the Gymnasium environment of a task; of MiniGrid's observations only the image, as numbers in a row."""
    package, _, env_id = name.rpartition(":")
    wrappers = importlib.import_module(f"{package}.wrappers") if package else None  # importing it registers its tasks
    env = gymnasium.make(env_id)
    if wrappers is not None:
        env = gymnasium.wrappers.FlattenObservation(wrappers.ImgObsWrapper(env))
    return Repeat(env, repeat) if repeat > 1 else env
