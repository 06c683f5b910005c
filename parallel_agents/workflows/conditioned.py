"""A defender that is conditioned on an order of repair: PPO that reads its history and the order's 25 numbers.

Keeping an order takes memory: which hosts were active since their last Restore, and how long ago that was. So the agent
adds the features of `network.observations.History` to the 52 bits by itself. It is the package's PPO whose worlds are
the n environments, with an interface of arrays for training loops written by hand:

    observations = envs.reset()
    for _ in range(100):
        actions = agent.get_actions(observations)
        next_observations, rewards, dones = envs.step(actions)
        agent.buffer.add(observations, actions, rewards, dones)      # the observations *before* the actions
        observations = next_observations
    agent.update()

`save_policy` writes a defender to a folder: its learner state in `policy.safetensors`; its settings, the sha256 of the
state and metadata in `policy.json`, which is written last. A training goes on from there with the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
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
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Array, Transitions
from parallel_agents.engine.stacks import Stack
from parallel_agents.nn import numerics
from parallel_agents.nn.optimizer import RowAdam, clip_rows, gradient_rows
from parallel_agents.workflows.blue_policies import Policy, TrainedDefender, repair_in_order
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.network.observations import HISTORY_SIZE, ORDERED_SIZE, History
from parallel_agents.workflows.network.scenario import N_ACTIONS, OBSERVATION_SIZE, SLEEP, compile_rules, version_quirks
from parallel_agents.workflows.orders import (
    ORDERS,
    RIGHT_REPAIRS,
    UNIT_TYPES,
    Compliance,
    Order,
    check_order,
    encode,
    host_ranks,
)
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

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
    rate 0.002, discount 0.99, clip range 0.2. `version` is that of the game. `options` are further options of the
    package's PPO.

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
        rule: str = RIGHT_REPAIRS,
        alignment_weight: float | None = None,
        version: str = "head",
        seed: int = 0,
        **options: Any,
    ) -> None:
        numerics.require()
        if steps < 1:
            raise ConfigError(f"steps is {steps}: an update needs at least one turn")
        self.n_envs, self.steps = n_envs, steps
        self.settings = {
            "n_envs": n_envs, "steps": steps, "K_epochs": K_epochs, "lr": lr, "gamma": gamma, "eps_clip": eps_clip,
            "rule": rule, "alignment_weight": alignment_weight, "version": version, "seed": seed, **options,
        }  # fmt: skip
        self.buffer = ParallelTrajectoryBuffer(n_envs)
        self.compliance = Compliance(order, n_envs, rule, alignment_weight)
        """Counters of a rule per environment; `observe` returns the alignment reward."""
        self._encode_orders()
        self.model = PPO(
            ORDERED_SIZE + self._code.shape[1], N_ACTIONS, worlds=n_envs, rollout=steps,
            n_epochs=K_epochs, lr=lr, gamma=gamma, clip_range=eps_clip,
            **{"n_minibatches": 1, "ent_coef": 0.01, **options},
        )  # fmt: skip
        self.model.place(seed=seed, agent=0, worlds=n_envs)
        self._stack = Stack([self.model], together=True)
        self._stack.start_epoch(0)
        self._history = History(n_envs, compile_rules(version_quirks(version)), ORDERED_SIZE)
        self._records = self._history.records.copy()  # before the turn that is being played
        self._episode_starts = np.ones((1, n_envs), np.bool_)
        self._last_actions = np.zeros(n_envs, np.int64)
        self._choices: list[tuple[Array, Array, dict[str, Array]]] = []  # per turn: inputs, actions, policy outputs
        self.updates = 0
        """Number of updates so far."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """The order of every environment."""
        return self.compliance.orders

    def set_order(self, order: Iterable[str] | Sequence[Iterable[str]]) -> None:
        """Switch to another order, or to one order per environment, and reset the counters."""
        self.compliance = Compliance(order, self.n_envs, self.compliance.rule, self.compliance.weight)
        self._encode_orders()

    def _encode_orders(self) -> None:
        """Set the part of the network's input that describes the orders, (n, 25)."""
        self._code = np.stack([encode(order) for order in self.orders])

    def _inputs(self, observations: ArrayLike) -> Array:
        """Return the network's input (1, n, 236) for observations (n, 52) of the turn after the last one added."""
        starts, actions = self._episode_starts[0], self._last_actions
        if self.buffer.turns:
            starts, actions = self.buffer.dones[-1], self.buffer.actions[-1]
        self._history.records[:] = self._records
        self._history.records[starts] = 0
        self._history.records["turn"][starts] = -1
        features = self._history.update(np.where(starts, SLEEP, actions), np.asarray(observations, np.uint8))
        return np.concatenate([features, self._code], axis=1)[None]

    def get_actions(self, observations: ArrayLike) -> NDArray[np.int64]:
        """Return actions (n,) drawn from the policy for observations (n, 52)."""
        shape = np.shape(observations)
        if shape != (self.n_envs, OBSERVATION_SIZE):
            raise ShapeError(
                f"observations have shape {shape}: give one row of {OBSERVATION_SIZE} bits "
                f"for each of the {self.n_envs} environments"
            )
        if len(self._choices) > self.buffer.turns:
            self._choices.pop()  # called again in the same turn: the last call counts
        else:
            self._records = self._history.records.copy()
        inputs = self._inputs(observations)
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
        if next_observations is not None:
            self._records = self._history.records.copy()
            closing = self._inputs(next_observations)
            self._history.records[:] = self._records
        for turn in range(turns):
            self._store_turn(turn, last=next_observations is None and turn == turns - 1)
        if next_observations is not None:
            self._stack.close(closing, ended=True)
        self.updates += 1
        snapshot = self._stack.snapshot(self.updates)
        self.model.state, result = self._stack.learner.learn(self.model.state, snapshot, self._stack.identity)
        self._stack.publish(self.updates, self.model.state)
        self._last_actions = self.buffer.actions[-1]
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

    def policy(self, order: Iterable[str], worlds: NetworkWorlds) -> Policy:
        """Return a policy that takes the likeliest actions under an order in some worlds."""
        return TrainedDefender(self.model, worlds, check_order(order))

    def set_weights(self, state: LearnerState, updates: int) -> None:
        """Go on from a learner's state after so many updates."""
        self.model.state, self.updates = state, updates
        self._stack.publish(updates, state)

    def clone_script(self, envs: ParallelEnvWrapper, episodes: int, lr: float = 0.002) -> list[float]:
        """Learn to do what `OrderScript` does, under random orders; return how often it did in each episode.

        The script acts in one half of the environments and the policy in the other, so that the policy also learns what
        to do where its own actions lead. The value network learns the discounted returns.
        """
        network, state = self.model.spec.network, self.model.state.clone()
        rows, gradients = state["online"], torch.empty_like(state["online"])
        moments = torch.zeros_like(rows), torch.zeros_like(rows)
        adam = RowAdam(rows, gradients, *moments, torch.zeros(1))
        leaves, shares = network.leaves(rows), []
        for episode in range(episodes):
            draws = generator(self.settings["seed"], Purpose.PERMUTATION, epoch=episode)
            self.set_order([ORDERS[i] for i in draws.integers(0, len(ORDERS), self.n_envs)])
            inputs, labels, returns, share = self._demonstrate(envs, state)
            shares.append(share)
            for places in np.array_split(draws.permutation(len(labels)), max(1, len(labels) // 400)):
                with torch.enable_grad():
                    outputs = network.forward(leaves, torch.from_numpy(inputs[places])[None])[0]
                    target = torch.from_numpy(returns[places])
                    loss = torch.nn.functional.cross_entropy(outputs[:, :-1], torch.from_numpy(labels[places]))
                    loss = loss + 0.1 * (outputs[:, -1] - target).square().mean()
                    gradient_rows(loss, network.layout, leaves, gradients)
                clip_rows(gradients, torch.ones(1))
                adam.step([lr], [True])
        self.set_weights(state, self.updates)
        return shares

    def _demonstrate(
        self, envs: ParallelEnvWrapper, state: LearnerState
    ) -> tuple[Array, NDArray[np.int64], NDArray[np.float32], float]:
        """Play an episode; return inputs (T·n, 236), the script's actions, returns (T·n,) and how often it agreed."""
        self._stack.publish(self.updates, state)
        ranks = np.stack([host_ranks(order) for order in self.orders])
        follows = np.arange(self.n_envs) % 2 == 0
        inputs, labels, rewards, same = list[Array](), list[Array](), list[Array](), list[float]()
        observations, access, done = envs.reset(), envs.access, False
        history = History(self.n_envs, self._history.rules, ORDERED_SIZE)
        features = history.reset(observations)
        while not done:
            wanted = repair_in_order(observations, features[:, HISTORY_SIZE:] > 0, ranks)
            inputs.append(np.concatenate([features, self._code], axis=1))
            chosen = self._stack.act(inputs[-1][None], self._episode_starts, self.updates, len(labels))[0][0]
            same.append(float(np.mean(chosen == wanted)))
            actions = np.where(follows, wanted, chosen)
            before = observations
            observations, earned, dones = envs.step(actions)
            rewards.append(earned + self.compliance.observe(actions, access, before, envs.repaired))
            labels.append(wanted)
            features, access, done = history.update(actions, observations), envs.access, bool(dones.all())
        returns = np.array(rewards, np.float32)
        for turn in reversed(range(len(returns) - 1)):
            returns[turn] += self.settings["gamma"] * returns[turn + 1]
        return np.concatenate(inputs), np.concatenate(labels), returns.reshape(-1), float(np.mean(same))


def save_policy(agent: ParallelOrderConditionedPPO, folder: Path, metadata: dict[str, Any]) -> None:
    """Write the agent's learner state, settings and the metadata to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    data = save({name: np.ascontiguousarray(tensor.numpy()) for name, tensor in agent.model.state.tensors.items()})
    write_atomically(folder / _WEIGHTS_FILE, [data])
    weights = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    content = {"settings": agent.settings, "updates": agent.updates, "weights": weights, "about": metadata}
    write_json(folder / POLICY_FILE, content)


def load_policy(folder: Path, **changes: Any) -> tuple[ParallelOrderConditionedPPO, dict[str, Any]]:
    """Return the agent and the metadata that `save_policy` wrote; `changes` replace settings of the agent."""
    try:
        content = read_json(folder / POLICY_FILE, _MAX_JSON_BYTES)
        data = read_file(folder / _WEIGHTS_FILE, _MAX_WEIGHTS_BYTES)
        if hashlib.sha256(data).hexdigest() != content["weights"]["sha256"]:
            raise CorruptCheckpoint(f"{folder / _WEIGHTS_FILE} does not hold the bytes that were written: train again")
        agent = ParallelOrderConditionedPPO(**{**content["settings"], **changes})
        tensors = {name: torch.from_numpy(array.copy()) for name, array in load(data).items()}
        fresh = agent.model.state.tensors
        tensors |= {name: fresh[name] for name in tensors.keys() & fresh if name.startswith("hyper.")}  # as changed
        if (updates := int(content["updates"])) < 0:
            raise CorruptCheckpoint(f"{folder / POLICY_FILE} tells of {updates} updates: train again")
        agent.set_weights(_fitting(agent, tensors, folder), updates)
        return agent, dict(content["about"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as fault:
        raise CheckpointError(f"{folder} holds no readable conditioned defender ({fault}): train one there") from fault


def _fitting(agent: ParallelOrderConditionedPPO, tensors: Mapping[str, torch.Tensor], folder: Path) -> LearnerState:
    """Return the state of an agent from tensors of a folder; raise CorruptCheckpoint if it cannot have such a state."""
    try:
        return agent.model.state.replaced(tensors)
    except CorruptCheckpoint as fault:
        raise CorruptCheckpoint(
            f"{folder / _WEIGHTS_FILE} does not fit the network that {POLICY_FILE} describes ({fault}): train again"
        ) from fault
