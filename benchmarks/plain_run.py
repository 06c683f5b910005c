"""A whole run as it is usually written: one module, optimizer and replay buffer per agent, in a Python loop.

It plays the same worlds as our runs (with their `observe` and `apply_actions`), explores with the same schedule, and
makes as many updates from batches of the same size at the same epochs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.measure import Done
from benchmarks.plain import PlainDQN, mlp
from parallel_agents.core.types import Array
from parallel_agents.games import GridEnvironment


class Replay:
    """A ring buffer of transitions."""

    def __init__(self, capacity: int, inputs: int) -> None:
        self.states, self.next_states = (np.zeros((capacity, inputs), np.float32) for _ in range(2))
        self.actions, self.rewards = np.zeros(capacity, np.int64), np.zeros(capacity, np.float32)
        self.capacity, self.added = capacity, 0

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, state: Array, action: int, reward: float, next_state: Array) -> None:
        row = self.added % self.capacity
        self.states[row], self.next_states[row] = state, next_state
        self.actions[row], self.rewards[row] = action, reward
        self.added += 1

    def sample(self, size: int, gamma: float, draws: np.random.Generator) -> dict[str, torch.Tensor]:
        rows = draws.integers(0, len(self), size)
        return {
            "states": torch.from_numpy(self.states[rows]),
            "actions": torch.from_numpy(self.actions[rows]),
            "returns": torch.from_numpy(self.rewards[rows]),
            "discounts": torch.full((size,), gamma),  # an epoch's end is a truncation, so every row has a next state
            "next_states": torch.from_numpy(self.next_states[rows]),
        }


def plain_run(game: GridEnvironment, model: Any, epochs: int) -> Done:
    """Train every agent of a game in one world with a learner of its own; `model` is the game's `DQNOptions`."""
    turns, interval = game.config.experiment.max_turns, game.config.parallel.train_interval
    agents, actions = len(game.agents), len(game.grid.actions)
    game.begin_epoch(1)
    game.reset_worlds(np.ones(1, np.bool_))
    inputs = game.observe().shape[-1]
    learners = [PlainDQN(mlp(inputs, model.widths, actions)) for _ in range(agents)]
    memories = [Replay(model.buffer_size, inputs) for _ in range(agents)]
    draws, played = np.random.default_rng(0), 0
    for epoch in range(1, epochs + 1):
        share = min(1.0, (epoch - 1) / model.epsilon_epochs)
        epsilon = model.epsilon + share * (model.epsilon_final - model.epsilon)
        game.begin_epoch(epoch)
        game.reset_worlds(np.ones(1, np.bool_))
        before: tuple[Array, Array, Array] | None = None
        for turn in range(1, turns + 1):
            game.turn = turn
            game.begin_turn()
            states = game.observe().copy()
            if before is not None:
                _store(memories, *before, states)
            rows = zip(learners, states, strict=True)
            chosen = np.array([[_choose(learner, state, epsilon, actions, draws)] for learner, state in rows])
            before = states, chosen, game.apply_actions(chosen).copy()
            played += 1
        if before is not None:
            _store(memories, *before, game.observe())
        if epoch % interval == 0:
            for learner, memory in zip(learners, memories, strict=True):
                if len(memory) >= model.learning_starts:
                    for _ in range(model.updates_per_round):
                        learner.learn(memory.sample(model.batch_size, model.gamma, draws), 1)
    return Done(
        {
            "turns": played,
            "transitions": sum(memory.added for memory in memories),
            "updates": sum(learner.updates for learner in learners),
            "samples": sum(learner.samples for learner in learners),
        },
        "inline",
    )


def _store(memories: list[Replay], states: Array, actions: Array, rewards: Array, next_states: Array) -> None:
    """Store the transitions of one turn."""
    for agent, memory in enumerate(memories):
        memory.add(states[agent, 0], actions[agent, 0], rewards[agent, 0], next_states[agent, 0])


def _choose(learner: PlainDQN, state: Array, epsilon: float, actions: int, draws: np.random.Generator) -> int:
    """Return a random action with probability ε, else the greedy one."""
    if draws.random() < epsilon:
        return int(draws.integers(actions))
    return int(learner.act(torch.from_numpy(state))[0])
