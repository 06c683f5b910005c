"""How good are the agents as they are: episodes on draws of their own, without learning anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_agents.config import Config, merge
from parallel_agents.models import Model
from parallel_agents.runtime.crew import Crew
from parallel_agents.runtime.loop import Loop
from parallel_agents.runtime.plan import resolve
from parallel_agents.runtime.turn import Outcome
from parallel_agents.seeding import Purpose, generator
from parallel_agents.tracking.statistics import Interval, mean_interval
from parallel_agents.types import Array

if TYPE_CHECKING:
    from parallel_agents.environment.environment import Environment

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """What evaluation episodes brought, turn by turn."""

    rewards: Array
    """(turns, agents, episodes); 0 once an episode has ended."""
    acted: Array
    """(turns, agents, episodes) who really acted: neither frozen nor at the end of its episode."""

    @property
    def returns(self) -> Array:
        """(agents, episodes)"""
        return np.asarray(self.rewards.sum(axis=0, dtype=np.float64))

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def interval(self) -> Interval:
        """95 % interval of the mean return per agent; episodes are the independent samples."""
        return mean_interval(self.returns.mean(axis=0))


def evaluate(
    environment: Environment,
    episodes: int = 20,
    *,
    exploration: float = 0.0,
    onlooker: Callable[[Environment], None] | None = None,
) -> Evaluation:
    """Let the environment's agents play whole episodes in fresh worlds, all side by side.

    exploration: 0 for the agents' best actions, 1 for a random policy on the same worlds. onlooker: shown the
    stage, an environment like this one in which the episodes are played, after every turn.
    """
    seed = int(generator(environment.seed, Purpose.EVALUATION_WORLD).integers(2**62))
    config = merge(
        environment.config.as_dict(),
        {"experiment": {"seed": seed, "seeds": 1, "worlds": episodes, "autoreset": False}},
    )
    stage = environment.remade(Config.build(config))
    stage.heart = environment.heart
    for index, trained in enumerate(environment.agents):
        model = _acting_copy(stage.agents[index].model, trained.model, exploration)
        for body in stage.bodies(index):
            body.model = model
    flags = stage.config.parallel
    plan = resolve(flags, agents=len(stage.agents))
    rewards: list[Array] = []
    acted: list[Array] = []

    def after_turn(outcome: Outcome) -> None:
        rewards.append(outcome.rewards[0].copy())
        acted.append(outcome.acted[0].copy())
        if onlooker is not None:
            onlooker(stage)

    crew = Crew([stage], plan, world_deadline=flags.world_deadline, locked=False)
    loop = Loop(
        [stage],
        crew,
        max_turns=stage.evaluation_turns,
        autoreset=False,
        sequential=flags.turn_order == "sequential",
        remembers=False,
        onlooker=after_turn,
    )
    try:
        loop.run_epoch(1)
    finally:
        stage.close()
    shape = -1, *loop.returns[0].shape  # no turn at all where the environment's own take_turn conducted none
    return Evaluation(np.array(rewards, np.float32).reshape(shape), np.array(acted, np.bool_).reshape(shape))


def _acting_copy(fresh: Any, trained: Any, exploration: float) -> Any:
    """A model that acts as the trained one does and remembers next to nothing."""
    if not isinstance(trained, Model):
        return trained
    fresh.state = trained.state
    fresh.set_epsilon(exploration)
    fresh.remember_little()
    return fresh
