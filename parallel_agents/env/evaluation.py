"""Evaluation: whole episodes in new worlds, with random numbers of their own and without learning."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_agents.algorithms import Model
from parallel_agents.core.config import Config, merge
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Array, Step
from parallel_agents.engine.agents import AgentGroup
from parallel_agents.engine.loop import Loop
from parallel_agents.engine.plan import resolve
from parallel_agents.engine.standalone import state_accessors
from parallel_agents.tracking.statistics import Interval, mean_interval

if TYPE_CHECKING:
    from parallel_agents.env.environment import Environment


@dataclass(frozen=True)
class Evaluation:
    """The results of evaluation episodes, turn by turn."""

    rewards: Array
    """(turns, agents, episodes); 0 once an episode has ended."""
    acted: Array
    """(turns, agents, episodes) whether the agent acted: not if it was frozen or its episode had ended."""

    def __repr__(self) -> str:
        _, low, high = self.interval
        return f"Evaluation(mean_return {self.mean_return:.4g} [{low:.4g}, {high:.4g}], {self.acted.shape[2]} episodes)"

    @property
    def returns(self) -> Array:
        """(agents, episodes) sums of the rewards."""
        return np.asarray(self.rewards.sum(axis=0, dtype=np.float64))

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the mean return per agent; episodes are the independent samples."""
        return mean_interval(self.returns.mean(axis=0))


def evaluate(
    environment: Environment,
    episodes: int = 20,
    *,
    exploration: float = 0.0,
    on_turn: Callable[[Environment], None] | None = None,
) -> Evaluation:
    """Let the environment's agents play whole episodes in new worlds, all side by side.

    exploration: 0 for the agents' best actions, 1 for a random policy in the same worlds.
    on_turn: called after every turn with the environment in which the episodes are played, a copy of the given one.
    """
    seed = int(generator(environment.seed, Purpose.EVALUATION_WORLD).integers(2**62))
    config = merge(
        environment.config.as_dict(),
        {"experiment": {"seed": seed, "seeds": 1, "worlds": episodes, "autoreset": False}},
    )
    eval_env = environment.with_config(Config.build(config))
    eval_env.heartbeat = environment.heartbeat
    for index, trained in enumerate(environment.agents):
        model = _evaluation_model(eval_env.agents[index].model, trained.model, exploration)
        for agent in eval_env.copies_of(index):
            agent.model = model
    keep = _EvaluatedModels([agent.model for agent in environment.agents], exploration)
    flags = eval_env.config.parallel
    plan = resolve(flags, agents=len(eval_env.agents))
    rewards: list[Array] = []
    acted: list[Array] = []

    def after_turn(step: Step) -> None:
        rewards.append(step.rewards[0].copy())
        acted.append(step.acted[0].copy())
        if on_turn is not None:
            on_turn(eval_env)

    group = AgentGroup([eval_env], plan, world_deadline=flags.world_deadline, locked=False)
    loop = Loop(
        [eval_env],
        group,
        max_turns=eval_env.evaluation_turns,
        autoreset=False,
        sequential=flags.turn_order == "sequential",
        stores=False,
        on_turn=after_turn,
    )
    try:
        with keep:
            loop.run_epoch(1)
    finally:
        eval_env.close()
    shape = -1, *loop.returns[0].shape  # for the case of no turns at all, if take_turn never calls super().take_turn()
    return Evaluation(np.array(rewards, np.float32).reshape(shape), np.array(acted, np.bool_).reshape(shape))


class _EvaluatedModels:
    """Users' own models during an evaluation: they explore as asked, and afterwards are as they were before."""

    def __init__(self, models: Sequence[Any], exploration: float) -> None:
        self._models = [model for model in models if not isinstance(model, Model)]
        self._exploration = exploration
        self._states: list[tuple[Callable[[Any], Any], Any]] = []

    def __enter__(self) -> None:
        for model in self._models:
            if (found := state_accessors(model)) is not None:
                read, write = found
                self._states.append((write, copy.deepcopy(read())))
            self._explore(model, self._exploration)

    def __exit__(self, *_: object) -> None:
        for model in self._models:
            self._explore(model, None)
        for write, state in self._states:
            write(state)

    @staticmethod
    def _explore(model: Any, exploration: float | None) -> None:
        if hasattr(model, "set_epsilon"):
            model.set_epsilon(exploration)


def _evaluation_model(fresh: Any, trained: Any, exploration: float) -> Any:
    """Return `fresh` with the weights of the trained model and hardly any memory; a user's own model as it is."""
    if not isinstance(trained, Model):
        return trained
    fresh.state = trained.state
    fresh.set_epsilon(exploration)
    fresh.shrink_memory()
    return fresh
