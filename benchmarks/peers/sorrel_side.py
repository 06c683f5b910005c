"""sorrel's treasure hunt, run by the Python of sorrel's own environment: one line of JSON asks, one answers.

Reads `{"agents": 16, "epochs": 10, "max_turns": 100, "epsilon": 0.6, "backend": null}`, runs sorrel's own
`run_experiment` with its own loop, or the same game through our adapter with a backend, and writes what it did, counted
while it did it, and the seconds it took. Ends with its input.
"""

import json
import platform
import sys
import time
from collections import Counter
from typing import Any

import torch
from sorrel.examples.treasurehunt.entities import EmptyEntity
from sorrel.examples.treasurehunt.env import TreasurehuntEnv
from sorrel.examples.treasurehunt.world import TreasurehuntWorld

from parallel_agents.env.adapters.sorrel import parallelize

WORLD = {"height": 21, "width": 21, "gem_value": 10, "food_value": 5, "bone_value": -10, "spawn_prob": 0.005}


class CountedEnv(TreasurehuntEnv):
    """The game as it is, with a count of its turns."""

    turns = 0

    def take_turn(self, epoch: int = 0) -> None:
        self.turns += 1
        super().take_turn(epoch)


def count(owner: Any, method: str, counts: Counter[str], name: str) -> None:
    """Let every call of a method add to a count."""
    own = getattr(owner, method)

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return own(*args, **kwargs)

    setattr(owner, method, counted)


def play(agents: int, epochs: int, max_turns: int, epsilon: float, backend: str | None) -> dict[str, Any]:
    config = {
        "experiment": {"epochs": epochs - 1, "max_turns": max_turns, "record_period": 10**9},  # sorrel runs one more
        "model": {
            "num_agents": agents,
            "agent_vision_radius": 2,
            "epsilon_decay": 0.0,
            "observation_spec": "onehot",
            "save_weights": False,
        },
        "world": WORLD,
        "parallel": {"backend": backend},
    }
    game: Any = CountedEnv if backend is None else parallelize(CountedEnv)
    env = game(TreasurehuntWorld(config=config, default_entity=EmptyEntity()), config)
    counts: Counter[str] = Counter()
    for agent in env.agents:
        model = agent.model
        model.epsilon = epsilon
        count(agent, "act", counts, "agent_steps")
    began = time.perf_counter()
    env.run_experiment(animate=False, logging=False)
    seconds = time.perf_counter() - began
    for model in (agent.model for agent in env.agents):
        updates = {int(state["step"]) for state in model.optimizer.state_dict()["state"].values()}
        counts["updates"] += max(updates)
        counts["samples"] += max(updates) * model.batch_size
    model = env.agents[0].model
    return {
        "counts": {"turns": env.turns, **{name: counts[name] for name in ("agent_steps", "updates", "samples")}},
        "seconds": seconds,
        "inputs": int(model.qnetwork_local.head1.in_features),
        "parameters": sum(own.numel() for own in model.qnetwork_local.parameters()),
        "epsilon": model.epsilon,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(play(**json.loads(line))) + "\n")
        sys.stdout.flush()
