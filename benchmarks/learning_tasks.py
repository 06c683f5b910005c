"""Tasks of `peers_learning.py`, with settings of PPO for all sides. Peers read this file too: it imports little."""

from dataclasses import dataclass
from typing import Any


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


LONG = {"turns": 128, "passes": 10, "minibatches": 8, "lr": 3e-4, "gamma": 0.99, "gae_lambda": 0.95}
"""Rollouts of 1024 transitions and minibatches of 128."""
TASKS = {
    task.name: task
    for task in (
        Task("CartPole-v1", 475.0, 150_000),
        Task("Acrobot-v1", -100.0, 150_000, **LONG),  # type: ignore[arg-type]
        Task("LunarLander-v3", 200.0, 450_000, worlds=16, turns=128, passes=10, minibatches=32, lr=3e-4, gamma=0.999,
             gae_lambda=0.98, entropy=0.01),
        Task("MountainCarContinuous-v0", 90.0, 150_000, **LONG),  # type: ignore[arg-type]
        Task("mpe2.simple_spread_v3", None, 300_000, **LONG),  # type: ignore[arg-type]
        Task("mpe2.simple_tag_v3", None, 300_000, **LONG),  # type: ignore[arg-type]
        # without entropy all sides solve it and lose it again: where every episode is the same, advantages are noise
        Task("minigrid:MiniGrid-Empty-5x5-v0", 0.9, 100_000, **LONG, entropy=0.01),  # type: ignore[arg-type]
    )
}  # fmt: skip
"""By name. The rates do not decay, so that a curve does not depend on where it ends."""
EVALUATIONS, EPISODES = 20, 20
"""Evaluations on the way, and episodes of each."""
