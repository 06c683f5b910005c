"""Agents of one stack that differ in everything that may differ: each acts and learns as it would by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parallel_agents.models import DQN, IQN, PPO, Stack
from parallel_agents.models.base import Model
from parallel_agents.networks import numerics
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Transitions

WORLDS, TURNS, EPOCHS = 2, 10, 3
REPLAY = [
    {"lr": 1e-2, "lr_final": 1e-3, "lr_updates": 5, "lr_schedule": "cosine", "clip": 0.05, "tau": 0.3, "gamma": 0.5,
     "epsilon": 1.0, "epsilon_final": 0.2, "epsilon_epochs": 2, "batch_growth": 1},
    {"lr": 3e-3, "clip": 10.0, "target_interval": 3, "gamma": 0.99, "epsilon": 0.0, "epsilon_final": 0.0,
     "batch_growth": 4},
    {"lr": 5e-3, "lr_final": 1e-2, "lr_updates": 3, "clip": 0.5, "tau": 0.9, "target_interval": 1, "gamma": 0.0,
     "epsilon": 0.5, "epsilon_final": 0.4, "epsilon_epochs": 1, "epsilon_schedule": "exponential"},
    {"lr": 1e-3, "clip": 2.0, "tau": 0.01, "gamma": 0.9, "epsilon": 0.3, "epsilon_final": 0.9, "epsilon_epochs": 5,
     "epsilon_schedule": "cosine", "batch_growth": 2},
]  # fmt: skip
PRIORITY = [
    {"priority_alpha": alpha, "priority_beta": beta, "priority_updates": updates}
    for alpha, beta, updates in ((0.3, 0.1, 4), (0.9, 0.5, 9), (0.6, 1.0, 0), (1.0, 0.0, 7))
]
IMPORTANCE = [
    {"importance": {"crisis_parent_weight": weight, "alpha": alpha, "beta": beta, "beta_frames": frames}}
    for weight, alpha, beta, frames in (
        (2.0, 1.0, 0.1, 5),
        (8.0, 0.5, 0.4, 9),
        (5.0, 0.6, 1.0, None),
        (3.0, 0.8, 0.0, 3),
    )
]
POLICY = [
    {"lr": 2e-2, "lr_final": 1e-2, "lr_updates": 5, "clip": 0.05, "ratio_clip": 0.05, "value_clip": 0.0,
     "value_weight": 0.2, "entropy": 0.0, "gamma": 0.5, "gae_lambda": 0.0, "target_kl": 0.0},
    {"lr": 8e-2, "clip": 5.0, "ratio_clip": 0.3, "value_clip": 0.1, "value_weight": 1.0, "entropy": 0.1,
     "gamma": 0.99, "gae_lambda": 0.95, "target_kl": 0.1},
    {"lr": 5e-2, "lr_schedule": "exponential", "lr_final": 1e-2, "lr_updates": 7, "clip": 0.5, "ratio_clip": 0.2,
     "value_clip": 0.5, "value_weight": 0.5, "entropy": 0.01, "gamma": 0.9, "gae_lambda": 0.5, "target_kl": 10.0},
]  # fmt: skip
SMALL = {"batch_size": 4, "updates_per_round": 4, "learning_starts": 1, "buffer_size": 60}


def made(kind: str) -> list[Model]:
    """Fresh models, placed as the agents of one run."""
    models: list[Model] = []
    match kind:
        case "dqn":
            models = [DQN((3,), 4, hidden=(6,), **SMALL, **own) for own in REPLAY]
        case "dqn, prioritised":
            models = [DQN((3,), 4, hidden=(6,), **SMALL, **own, **by) for own, by in zip(REPLAY, PRIORITY, strict=True)]
        case "dqn, by event class":
            models = [
                DQN((3,), 4, hidden=(6,), **SMALL, **own, **by) for own, by in zip(REPLAY, IMPORTANCE, strict=True)
            ]
        case "iqn":
            models = [IQN((3,), 4, layer=5, n_frames=2, quantiles=3, **SMALL, **own) for own in REPLAY]
        case "ppo":
            shape: dict[str, Any] = {"hidden": (5,), "passes": 3, "minibatches": 2, "rollout": TURNS}
            models = [PPO((3,), 4, **shape, **own) for own in POLICY]
    for agent, model in enumerate(models):
        model.place(seed=2, agent=agent, worlds=WORLDS)
    return models


def lived(stacks: list[Stack]) -> np.ndarray:
    """A few epochs and rounds of the same made-up worlds; all actions that were taken."""
    agents, taken = sum(len(one) for one in stacks), []
    for epoch in range(1, EPOCHS + 1):
        some = generator(9, Purpose.WORLD, epoch=epoch)
        first = np.ones((agents, WORLDS), np.bool_)
        for one in stacks:
            one.start_epoch(epoch)
        for turn in range(1, TURNS + 1):
            seen = some.standard_normal((agents, WORLDS, 3), np.float32)
            rewards, ended = some.standard_normal((agents, WORLDS), np.float32), some.random((agents, WORLDS)) < 0.2
            events = (some.random((agents, WORLDS)) < 0.3).astype(np.float32)
            row = 0
            for one in stacks:
                part = slice(row, row + len(one))
                row = part.stop
                chosen, extras = one.act(seen[part], first[part], epoch, turn)
                taken.append(chosen.reshape(len(one), -1))
                if one.blueprint.importance:
                    extras = {**extras, "event_type": events[part], "event_value": rewards[part]}
                never, always = np.zeros_like(ended[part]), np.ones_like(ended[part])
                present = np.ones(len(one), np.bool_)
                one.add(
                    Transitions(
                        seen[part],
                        chosen,
                        rewards[part],
                        ended[part],
                        never,
                        always,
                        first[part],
                        present,
                        epoch,
                        extras,
                    )
                )
            first = ended
        row = 0
        closing = some.standard_normal((agents, WORLDS, 3), np.float32)
        for one in stacks:
            one.close(closing[row : row + len(one)], ended=True)
            row += len(one)
            state, result = one.learner.learn(one.state, one.snapshot(epoch), one.identity)
            one.state = state
            one.publish(epoch, state, result)
            one.settle(state)
    return np.concatenate(taken)


KINDS = ("dqn", "dqn, prioritised", "dqn, by event class", "iqn", "ppo")


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_of_rows_that_differ_in_everything_is_as_many_stacks_of_one(kind: str) -> None:
    numerics.require()
    together, alone = made(kind), made(kind)
    whole, ones = [Stack(together, together=True)], [Stack([model], together=False) for model in alone]
    actions, by_one = lived(whole), lived(ones)
    agents, steps = len(together), EPOCHS * TURNS
    assert actions.reshape(steps, agents, -1).tobytes() == by_one.reshape(steps, agents, -1).tobytes()
    for n, (a, b) in enumerate(zip(together, alone, strict=True)):
        assert int(a.state["updates"][0]) > 0, n
        different = [name for name in a.state.tensors if not torch.equal(a.state[name], b.state[name])]
        assert different == [], n
        mine, theirs = a.memory.ring.live(0), b.memory.ring.live(0)
        assert [name for name in mine if mine[name].tobytes() != theirs[name].tobytes()] == [], n


@pytest.mark.parametrize(("given", "kind"), [(REPLAY, "dqn"), (POLICY, "ppo")])
def test_no_two_rows_share_what_may_differ(given: list[dict[str, Any]], kind: str) -> None:
    """What this file rests on: every value that a stack keeps by row takes more than one value here."""
    models = made(kind)
    shared = {name for name in models[0].state.tensors if name.startswith("hyper.")}
    shared -= {name for name in shared if len({float(model.state[name][0]) for model in models}) > 1}
    assert shared == set()
    assert len({tuple(sorted(own.items())) for own in given}) == len(given)
