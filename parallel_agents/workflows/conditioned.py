"""A defender that is told in which order to repair: PPO whose input is 52 bits and the order's 25.

It is the engine's PPO (`models.PPO`) with n environments as its worlds; this module adds the order and the arrays
that a hand-written training loop passes around:

    observations = envs.reset()
    for _ in range(100):
        actions = agent.get_actions(observations)
        following, rewards, dones = envs.step(actions)
        agent.buffer.add(observations, actions, rewards, dones)      # what was seen *before* the actions
        observations = following
    agent.update()
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.acting import Inference
from parallel_agents.errors import ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.models import PPO, Stack
from parallel_agents.networks import numerics
from parallel_agents.types import Array, Transitions, Weights
from parallel_agents.workflows.compliance import ALIGNMENT_WEIGHT, RULES, Compliance
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.orders import UNIT_TYPES, Order, check_order, encode
from parallel_agents.workflows.policies import Policy

__all__ = ["ParallelOrderConditionedPPO", "ParallelTrajectoryBuffer"]

_CODE = len(UNIT_TYPES) ** 2


class ParallelTrajectoryBuffer:
    """What `n_envs` environments gave since the last update, turn by turn.

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
        """Forget everything."""
        self.observations: list[Array] = []
        self.actions: list[Array] = []
        self.rewards: list[Array] = []
        self.dones: list[Array] = []

    def add(
        self, observations: ArrayLike, actions: ArrayLike, rewards: ArrayLike, dones: ArrayLike | None = None
    ) -> None:
        """Keep one turn: observations (n, …) that the actions (n,) were chosen from, and what these earned."""
        seen, chosen = np.asarray(observations, np.float32), np.asarray(actions, np.int64)
        earned = np.asarray(rewards, np.float32)
        ended = np.zeros(self.n_envs, np.bool_) if dones is None else np.asarray(dones, np.bool_)
        columns: dict[str, Array] = {"observations": seen, "actions": chosen, "rewards": earned, "dones": ended}
        for name, array in columns.items():
            if array.shape[:1] != (self.n_envs,) or array.ndim != (2 if name == "observations" else 1):
                raise ShapeError(
                    f"{name} have shape {array.shape}: give one row per environment, there are {self.n_envs}"
                )
        if not np.isfinite(earned).all():
            raise NonFiniteError(f"rewards {earned.tolist()} hold NaN or infinity: check the environments")
        for name, array in columns.items():
            getattr(self, name).append(array.copy())

    @property
    def turns(self) -> int:
        """Turns kept."""
        return len(self.rewards)

    def __len__(self) -> int:
        """Transitions kept."""
        return self.turns * self.n_envs


class ParallelOrderConditionedPPO:
    """One defender in `n_envs` environments, conditioned on an order of repair, or on one order per environment.

    Defaults are the documented ones: 25 environments, an update after 100 turns (2500 transitions), 4 passes over
    them whole, learning rate 0.002, discount 0.99, ratio clipped at 0.2. `options` are further ones of `models.PPO`.

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
        rule: str = RULES[0],
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
        """Counters of fixes per environment; `observe` gives the alignment reward."""
        self.model = PPO(
            t.OBSERVATION_SIZE + _CODE, t.N_ACTIONS, worlds=n_envs, rollout=steps,
            passes=K_epochs, lr=lr, gamma=gamma, ratio_clip=eps_clip, **{"minibatches": 1, "entropy": 0.01, **options},
        )  # fmt: skip
        self.model.place(seed=seed, agent=0, worlds=n_envs)
        self._stack = Stack([self.model], together=True)
        self._stack.start_epoch(0)
        self._code = self._codes()
        self._first = np.ones((1, n_envs), np.bool_)
        self._choices: list[tuple[Array, Array, dict[str, Array]]] = []
        self.updates = 0
        """Rounds learnt from so far."""

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return self.model.blueprint.network.policy.hidden  # type: ignore[no-any-return]

    @property
    def orders(self) -> tuple[Order, ...]:
        """The order of every environment."""
        return self.compliance.orders

    def set_order(self, order: Iterable[str] | Sequence[Iterable[str]]) -> None:
        """Repair in another order from now on, or in one per environment; counters start again."""
        self.compliance = Compliance(order, self.n_envs, self.compliance.rule, self.compliance.weight)
        self._code = self._codes()

    def get_actions(self, observations: ArrayLike) -> NDArray[np.int64]:
        """(n, 52) observations -> (n,) actions, drawn from the policy."""
        seen = np.asarray(observations, np.float32)
        if seen.shape != (self.n_envs, t.OBSERVATION_SIZE):
            raise ShapeError(
                f"observations have shape {seen.shape}: give one row of {t.OBSERVATION_SIZE} bits "
                f"for each of the {self.n_envs} environments"
            )
        inputs = np.concatenate([seen, self._code], axis=1)[None]
        if len(self._choices) > self.buffer.turns:
            self._choices.pop()  # asked again in the same turn: the last answer counts
        actions, extras = self._stack.act(inputs, self._first, self.updates, self.buffer.turns)
        self._choices.append((inputs, actions, extras))
        return np.asarray(actions[0])

    def update(self, following: ArrayLike | None = None) -> dict[str, float]:
        """Learn from the buffer, empty it and act with what was learnt; losses and the like.

        following: (n, 52) what the last turn led to, where episodes go on; None: they end with it.
        """
        if not self.buffer.turns:
            raise ContractError("update() was called with an empty buffer: add at least one turn first")
        if self.buffer.turns > self.steps:
            raise ContractError(f"{self.buffer.turns} turns are kept, an update takes {self.steps}: update earlier")
        for turn in range(self.buffer.turns):
            self._check(turn)
        for turn in range(self.buffer.turns):
            self._keep(turn, last=following is None and turn == self.buffer.turns - 1)
        if following is not None:
            inputs = np.concatenate([np.asarray(following, np.float32), self._code], axis=1)
            self._stack.close(inputs[None], ended=True)
        self.updates += 1
        snapshot = self._stack.snapshot(self.updates)
        self.model.state, result = self._stack.learner.learn(self.model.state, snapshot, self._stack.identity)
        self._stack.publish(self.updates, self.model.state)
        self.buffer.reset()
        self._choices.clear()
        return {name: float(column[0]) for name, column in result.metrics.items()}

    def _check(self, turn: int) -> None:
        """Refuse actions beside observations that they were not chosen from."""
        seen, taken = self.buffer.observations[turn], self.buffer.actions[turn]
        if turn >= len(self._choices):
            raise ContractError(f"turn {turn} was kept without get_actions(): let this policy choose the actions")
        inputs, actions, _ = self._choices[turn]
        if not np.array_equal(seen, inputs[0, :, : seen.shape[1]]) or not np.array_equal(taken, actions[0]):
            raise ContractError(
                f"turn {turn} of the buffer pairs actions with observations they were not chosen from: "
                "add(observations, actions, rewards) takes what was seen before the step, and the actions as given"
            )

    def _keep(self, turn: int, *, last: bool) -> None:
        """One turn of the buffer into the engine's memory, with what the policy said of it when it acted."""
        inputs, actions, extras = self._choices[turn]
        dones = self.buffer.dones[turn]
        everyone = np.ones((1, self.n_envs), np.bool_)
        self._stack.add(
            Transitions(
                observations=inputs, actions=actions, rewards=self.buffer.rewards[turn][None],
                terminated=(dones | last)[None], truncated=~everyone, valid=everyone, first=self._first,
                present=everyone[:, 0], version=self.updates, extras=extras,
            )
        )  # fmt: skip
        self._first = (dones | last)[None]

    def policy(self, order: Iterable[str]) -> Policy:
        """The likeliest actions under an order, for `policies.play` in any number of worlds."""
        return OrderedPolicy(self.model, order)

    def _codes(self) -> NDArray[np.float32]:
        return np.stack([encode(order) for order in self.orders])


class OrderedPolicy:
    """A trained model that repairs in one order, choosing the likeliest action."""

    def __init__(self, model: PPO, order: Iterable[str]) -> None:
        self.order = check_order(order)
        self._model = model
        self._weights = Weights(0, model.blueprint.learner().policy(model.state))
        self._inference: Inference | None = None

    def __call__(self, observations: NDArray[np.uint8], epoch: int, turn: int) -> NDArray[np.int64]:
        worlds = len(observations)
        if self._inference is None or self._inference.worlds != worlds:
            self._inference = Inference(self._model.blueprint.network, 1, worlds, together=True)
            self._inference.publish(self._weights)
        code = np.broadcast_to(encode(self.order), (worlds, _CODE))
        inputs = np.concatenate([observations.astype(np.float32), code], axis=1)
        return np.asarray(self._inference.forward(inputs[None])[0, :, :-1].argmax(-1))
