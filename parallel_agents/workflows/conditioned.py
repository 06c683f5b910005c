"""A defender that is conditioned on an order of repair: PPO whose input is the 52 bits and the order's 25 numbers.

It is the package's PPO with n environments as its worlds. This module adds the order, and an interface of arrays for
training loops written by hand:

    observations = envs.reset()
    for _ in range(100):
        actions = agent.get_actions(observations)
        next_observations, rewards, dones = envs.step(actions)
        agent.buffer.add(observations, actions, rewards, dones)      # the observations *before* the actions
        observations = next_observations
    agent.update()

`save_policy` writes a defender to a folder: its learner state in `policy.safetensors`; its shapes, the sha256 of the
state and metadata in `policy.json`, which is written last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from parallel_agents.algorithms import PPO
from parallel_agents.algorithms.learner import LearnerState
from parallel_agents.core.errors import (
    CheckpointError,
    ConfigError,
    ContractError,
    CorruptCheckpoint,
    NonFiniteError,
    ShapeError,
)
from parallel_agents.core.files import read_file, read_json, write_atomically, write_json
from parallel_agents.core.types import Array, Transitions
from parallel_agents.engine.stacks import Stack
from parallel_agents.nn import numerics
from parallel_agents.workflows.blue_policies import OrderedPolicy, Policy
from parallel_agents.workflows.network.scenario import N_ACTIONS, OBSERVATION_SIZE
from parallel_agents.workflows.orders import ALIGNMENT_WEIGHT, COMPLIANCE_RULES, UNIT_TYPES, Compliance, Order, encode

POLICY_FILE = "policy.json"
_WEIGHTS_FILE = "policy.safetensors"
_MAX_JSON_BYTES, _MAX_WEIGHTS_BYTES = 2**20, 2**28


class ParallelTrajectoryBuffer:
    """The transitions of `n_envs` environments since the last update, turn by turn.

    >>> buffer = ParallelTrajectoryBuffer(n_envs=2)
    >>> buffer.add(np.zeros((2, 52)), np.array([0, 139]), np.array([0.0, -1.0]))
    >>> len(buffer), buffer.turns
    (2, 1)
    """

    def __init__(self, n_envs: int = 25) -> None:
        if n_envs < 1:
            raise ConfigError(f"n_envs is {n_envs}: at least one environment is needed")
        self.n_envs = n_envs
        self.reset()

    def reset(self) -> None:
        """Remove all transitions."""
        self.observations: list[Array] = []
        self.actions: list[Array] = []
        self.rewards: list[Array] = []
        self.dones: list[Array] = []

    def add(
        self, observations: ArrayLike, actions: ArrayLike, rewards: ArrayLike, dones: ArrayLike | None = None
    ) -> None:
        """Add one turn: observations (n, …), the actions (n,) chosen from them, and their rewards (n,)."""
        columns: dict[str, Array] = {
            "observations": np.array(observations, np.float32),
            "actions": np.array(actions, np.int64),
            "rewards": np.array(rewards, np.float32),
            "dones": np.zeros(self.n_envs, np.bool_) if dones is None else np.array(dones, np.bool_),
        }
        for name, array in columns.items():
            if array.shape[:1] != (self.n_envs,) or array.ndim != (2 if name == "observations" else 1):
                raise ShapeError(
                    f"{name} have shape {array.shape}: give one row per environment, there are {self.n_envs}"
                )
        if not np.isfinite(columns["rewards"]).all():
            raise NonFiniteError(
                f"rewards {columns['rewards'].tolist()} contain NaN or infinity: check the environments"
            )  # fmt: skip
        for name, array in columns.items():
            getattr(self, name).append(array)

    @property
    def turns(self) -> int:
        """Number of turns in the buffer."""
        return len(self.rewards)

    def __len__(self) -> int:
        """Return the number of transitions."""
        return self.turns * self.n_envs


class ParallelOrderConditionedPPO:
    """One defender in `n_envs` environments, conditioned on one order of repair or one order per environment.

    Defaults: 25 environments, an update after 100 turns (2500 transitions), 4 epochs over the whole batch, learning
    rate 0.002, discount 0.99, clip range 0.2. `options` are further options of the package's PPO.

    >>> agent = ParallelOrderConditionedPPO(n_envs=4, steps=10)
    >>> agent.get_actions(np.zeros((4, 52), np.uint8)).shape
    (4,)
    """

    def __init__(
        self,
        order: Iterable[str] | Sequence[Iterable[str]] = UNIT_TYPES,
        n_envs: int = 25,
        steps: int = 100,
        *,
        K_epochs: int = 4,  # noqa: N803 - the documented name
        lr: float = 0.002,
        gamma: float = 0.99,
        eps_clip: float = 0.2,
        rule: str = COMPLIANCE_RULES[0],
        alignment_weight: float = ALIGNMENT_WEIGHT,
        seed: int = 0,
        **options: Any,
    ) -> None:
        numerics.require()
        if steps < 1:
            raise ConfigError(f"steps is {steps}: an update needs at least one turn")
        self.n_envs, self.steps = n_envs, steps
        self.buffer = ParallelTrajectoryBuffer(n_envs)
        self.compliance = Compliance(order, n_envs, rule, alignment_weight)
        """Counters of fixes per environment; `observe` returns the alignment reward."""
        self._encode_orders()
        self.model = PPO(
            OBSERVATION_SIZE + self._code.shape[1], N_ACTIONS, worlds=n_envs, rollout=steps,
            n_epochs=K_epochs, lr=lr, gamma=gamma, clip_range=eps_clip,
            **{"n_minibatches": 1, "ent_coef": 0.01, **options},
        )  # fmt: skip
        self.model.place(seed=seed, agent=0, worlds=n_envs)
        self._stack = Stack([self.model], together=True)
        self._stack.start_epoch(0)
        self._episode_starts = np.ones((1, n_envs), np.bool_)
        self._choices: list[tuple[Array, Array, dict[str, Array]]] = []  # per turn: inputs, actions, policy outputs
        self.updates = 0
        """Number of updates so far."""

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return self.model.spec.network.policy.hidden  # type: ignore[attr-defined,no-any-return]

    @property
    def orders(self) -> tuple[Order, ...]:
        """The order of every environment."""
        return self.compliance.orders

    def set_order(self, order: Iterable[str] | Sequence[Iterable[str]]) -> None:
        """Switch to another order, or to one order per environment, and reset the counters of fixes."""
        self.compliance = Compliance(order, self.n_envs, self.compliance.rule, self.compliance.weight)
        self._encode_orders()

    def _encode_orders(self) -> None:
        """Set the part of the network's input that describes the orders, (n, 25)."""
        self._code = np.stack([encode(order) for order in self.orders])

    def _inputs(self, observations: ArrayLike) -> Array:
        """Return the network's input (1, n, 77) for observations (n, 52)."""
        return np.concatenate([np.asarray(observations, np.float32), self._code], axis=1)[None]

    def get_actions(self, observations: ArrayLike) -> NDArray[np.int64]:
        """Return actions (n,) drawn from the policy for observations (n, 52)."""
        shape = np.shape(observations)
        if shape != (self.n_envs, OBSERVATION_SIZE):
            raise ShapeError(
                f"observations have shape {shape}: give one row of {OBSERVATION_SIZE} bits "
                f"for each of the {self.n_envs} environments"
            )
        inputs = self._inputs(observations)
        if len(self._choices) > self.buffer.turns:
            self._choices.pop()  # called again in the same turn: the last call counts
        actions, outputs = self._stack.act(inputs, self._episode_starts, self.updates, self.buffer.turns)
        self._choices.append((inputs, actions, outputs))
        return np.asarray(actions[0])

    def update(self, next_observations: ArrayLike | None = None) -> dict[str, float]:
        """Learn from the buffer, empty it and use the new weights for acting; return losses and other metrics.

        next_observations: (n, 52) after the last turn, if episodes continue; None: they end with the last turn.
        """
        turns = self.buffer.turns
        if not turns:
            raise ContractError("update() was called with an empty buffer: add at least one turn first")
        if turns > self.steps:
            raise ContractError(f"the buffer holds {turns} turns, an update takes {self.steps}: update earlier")
        for turn in range(turns):
            self._check_turn(turn)
        for turn in range(turns):
            self._store_turn(turn, last=next_observations is None and turn == turns - 1)
        if next_observations is not None:
            self._stack.close(self._inputs(next_observations), ended=True)
        self.updates += 1
        snapshot = self._stack.snapshot(self.updates)
        self.model.state, result = self._stack.learner.learn(self.model.state, snapshot, self._stack.identity)
        self._stack.publish(self.updates, self.model.state)
        self.buffer.reset()
        self._choices.clear()
        return {name: float(column[0]) for name, column in result.metrics.items()}

    def _check_turn(self, turn: int) -> None:
        """Raise ContractError if a turn's actions were not chosen by this policy from its observations."""
        observations, actions = self.buffer.observations[turn], self.buffer.actions[turn]
        if turn >= len(self._choices):
            raise ContractError(f"turn {turn} was added without get_actions(): let this policy choose the actions")
        inputs, chosen, _ = self._choices[turn]
        same_observations = np.array_equal(observations, inputs[0, :, : observations.shape[1]])
        if not same_observations or not np.array_equal(actions, chosen[0]):
            raise ContractError(
                f"turn {turn} of the buffer pairs actions with observations they were not chosen from: call "
                "add(observations, actions, rewards) with the observations before the step and unchanged actions"
            )

    def _store_turn(self, turn: int, *, last: bool) -> None:
        """Store one turn of the buffer for the learner, with the policy's outputs when it acted."""
        inputs, actions, outputs = self._choices[turn]
        ends = (self.buffer.dones[turn] | last)[None]
        everywhere = np.ones((1, self.n_envs), np.bool_)
        self._stack.add(
            Transitions(
                observations=inputs, actions=actions, rewards=self.buffer.rewards[turn][None],
                terminated=ends, truncated=~everywhere, valid=everywhere, first=self._episode_starts,
                present=everywhere[:, 0], version=self.updates, extras=outputs,
            )
        )  # fmt: skip
        self._episode_starts = ends

    def policy(self, order: Iterable[str]) -> Policy:
        """Return a policy that takes the likeliest actions under an order, in any number of worlds."""
        return OrderedPolicy(self.model, order)


def save_policy(agent: ParallelOrderConditionedPPO, folder: Path, metadata: dict[str, Any]) -> None:
    """Write the agent's newest weights and the metadata to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    data = save({name: np.ascontiguousarray(tensor.numpy()) for name, tensor in agent.model.state.tensors.items()})
    write_atomically(folder / _WEIGHTS_FILE, [data])
    shape = {"n_envs": agent.n_envs, "steps": agent.steps, "hidden": list(agent.hidden)}
    weights = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_json(folder / POLICY_FILE, {"agent": shape, "weights": weights, "about": metadata})


def load_policy(folder: Path) -> tuple[ParallelOrderConditionedPPO, dict[str, Any]]:
    """Return the agent and the metadata that `save_policy` wrote."""
    try:
        content = read_json(folder / POLICY_FILE, _MAX_JSON_BYTES)
        shape = content["agent"]
        data = read_file(folder / _WEIGHTS_FILE, _MAX_WEIGHTS_BYTES)
        if hashlib.sha256(data).hexdigest() != content["weights"]["sha256"]:
            raise CorruptCheckpoint(f"{folder / _WEIGHTS_FILE} does not hold the bytes that were written: train again")
        agent = ParallelOrderConditionedPPO(
            n_envs=int(shape["n_envs"]), steps=int(shape["steps"]), hidden=tuple(shape["hidden"])
        )
        tensors = {name: torch.from_numpy(array.copy()) for name, array in load(data).items()}
        expected = {name: tensor.shape for name, tensor in agent.model.state.tensors.items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != expected:
            raise CheckpointError(
                f"{folder / _WEIGHTS_FILE} does not fit the network that {POLICY_FILE} describes: train again"
            )
        agent.model.state = LearnerState(tensors)
        return agent, dict(content["about"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as fault:
        raise CheckpointError(f"{folder} holds no readable conditioned defender ({fault}): train one there") from fault
