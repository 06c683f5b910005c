"""PPO as a model: options, blueprint, and the class users hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.acting import discrete, gaussian, greedy, squash
from parallel_agents.config import build_section
from parallel_agents.errors import ConfigError, ContractError, RunError
from parallel_agents.learning import PPOLearner
from parallel_agents.memory import EVENT_COLUMNS, EventWeighting, Ring, RingShape, draw_classed
from parallel_agents.models.base import DIRECT, Model
from parallel_agents.models.door import trajectory, update
from parallel_agents.models.options import LearnerOptions, in_units
from parallel_agents.models.shapes import NetworkOptions, own_architecture, policy_network
from parallel_agents.networks import (
    Architecture,
    Discrete,
    Distribution,
    Factory,
    ModuleNetwork,
    MultiDiscrete,
    SquashedGaussian,
)
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array, Identity, Snapshot

__all__ = ["PPO", "PPOBlueprint", "PPOOptions"]


@dataclass(frozen=True, kw_only=True)
class PPOOptions(NetworkOptions, LearnerOptions):
    """The `model` section for `algorithm = "ppo"`; hidden layers are those of the policy and of the value alike."""

    lr: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    passes: int = 4
    """Passes over the data of a round."""
    minibatches: int = 4
    """Updates of one pass."""
    ratio_clip: float = 0.2
    value_clip: float = 0.0
    """How far a value may move in a round; 0: as far as it will."""
    value_weight: float = 0.5
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    target_kl: float = 0.0
    """Stop an agent's round once it has moved so far from its start; 0: never."""
    clip: float = 0.5
    """Largest norm of an agent's gradient."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        LearnerOptions.__post_init__(self)
        if self.recurrent and self.importance is not None:
            raise ConfigError(
                "model.importance and model.recurrent are both given: a recurrent network learns from sequences, not "
                "from single samples; leave one of them out"
            )
        for name in ("passes", "minibatches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name} is {getattr(self, name)}: give a whole number of at least 1")
        for name in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"model.{name} is {getattr(self, name)}: give a number from 0 to 1")
        if not 0.0 < self.ratio_clip < math.inf:
            raise ConfigError(f"model.ratio_clip is {self.ratio_clip}: give a number above 0")
        for name in ("value_clip", "value_weight", "entropy", "target_kl"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"model.{name} is {getattr(self, name)}: give a number of at least 0")


@dataclass(frozen=True)
class PPOBlueprint:
    """PPO at a shape; see `Blueprint`."""

    observation: tuple[int, ...]
    distribution: Distribution
    worlds: int
    hidden: tuple[int, ...]
    passes: int
    minibatches: int
    rollout: int
    """Turns between two rounds, at most."""
    epochs: int
    """Epochs between two rounds: each leaves one row more, for what its last turn led to."""
    training_priority: int = 0
    normalise: tuple[bool, bool] = (False, False)
    """Observations, rewards."""
    masked: bool = False
    """True where the environment says which actions are allowed."""
    importance: bool = False
    """Samples are drawn by event class; how is each agent's own matter."""
    capacity: int = 0
    """Set for acting without learning; 0: what a round needs."""
    on_policy: bool = True
    convolutional: tuple[tuple[int, ...], ...] = ()
    sequence: int = 0
    """Turns of the sequences that a recurrent network learns from; 0: it is none."""
    architecture: Architecture | None = None
    """Of a network that the user brought."""

    @cached_property
    def network(self) -> Any:
        if self.architecture is not None:
            outputs = self.distribution.outputs + 1
            return ModuleNetwork(self.architecture, self.observation, outputs, self.distribution)
        shape = (self.observation, self.hidden, self.distribution, self.convolutional)
        return policy_network(*shape, recurrent=self.sequence > 0)

    @property
    def state(self) -> int:
        return self.hidden[-1] if self.sequence else 0

    @property
    def actions(self) -> int | None:
        return self.distribution.n if isinstance(self.distribution, Discrete) else None

    @property
    def slots(self) -> int:
        return len(self._sizes) or self.distribution.outputs

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Sizes of the discrete choices; empty for continuous actions."""
        match self.distribution:
            case Discrete(n):
                return (n,)
            case MultiDiscrete(sizes):
                return sizes
            case _:
                return ()

    @property
    def choices(self) -> int:
        return sum(self._sizes)

    @property
    def ring(self) -> RingShape:
        extras: dict[str, tuple[int, ...]] = {"log_prob": (), "value": ()}
        if isinstance(self.distribution, SquashedGaussian):
            extras["raw"] = self.distribution.shape
        if self.sequence:
            extras["hidden"] = (self.state,)
        if self.importance:
            extras |= EVENT_COLUMNS
        turns = self.capacity or (self.rollout + self.epochs) * self.worlds
        return RingShape(
            turns,
            self.observation,
            self.worlds,
            action=self.distribution.shape,
            action_dtype=self.distribution.dtype,
            extras=extras,
            choices=self.choices if self.masked else 0,
        )

    @property
    def _batch(self) -> int:
        """Samples of a minibatch, or sequences of them, at most."""
        samples = self.rollout * self.worlds
        if self.sequence:
            samples = -(-(self.rollout + self.epochs) // self.sequence) * self.worlds
        return -(-samples // self.minibatches)

    def learner(self, *, device: str = "cpu", updates: int | None = None) -> Any:
        learner = PPOLearner(self.network, self.passes, self.minibatches, self._batch, device, max(1, self.sequence))
        inputs = math.prod(self.observation)
        return in_units(learner, inputs, self.normalise)

    def choose(
        self, outputs: Array, draws: Array, exploration: Array, masks: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        policy, value = np.ascontiguousarray(outputs[..., :-1]), outputs[..., -1]
        if isinstance(self.distribution, SquashedGaussian):
            raw, log_prob = gaussian(policy, draws)
            mean = policy[..., : raw.shape[-1]]
            raw = np.where((exploration > 0)[:, None, None], raw, mean)
            actions = squash(raw, self.distribution.low, self.distribution.high)
            return actions, {"log_prob": log_prob, "value": value, "raw": raw}
        actions, log_prob = discrete(policy, draws, self._sizes, masks)
        if not exploration.all():
            best = greedy(policy, self._sizes, masks)
            actions = np.where((exploration > 0)[:, None, None], actions, best)
        actions = actions[..., 0] if isinstance(self.distribution, Discrete) else actions
        return actions, {"log_prob": log_prob, "value": value}

    def asked(self, draws: Array, exploration: Array) -> Array | None:
        return None

    def closing(self, outputs: Array) -> dict[str, Array]:
        return {"value": outputs[..., -1]}

    def explore(self, hyper: Mapping[str, Any], epoch: int) -> float:
        return 1.0

    def snapshot(
        self,
        ring: Ring,
        identity: Identity,
        hyper: Sequence[Mapping[str, Any]],
        round_: int,
        updates: int,
        world: int = 0,
    ) -> Snapshot:
        """The whole trajectories since the last round, in order."""
        raw = isinstance(self.distribution, SquashedGaussian)
        agents, rows, worlds = ring.valid.shape
        actions = ring.extras["raw"] if raw else ring.actions.reshape(agents, rows, worlds, *self.distribution.shape)
        columns: dict[str, Array] = {
            "observations": ring.observations,
            "actions": actions,
            "rewards": ring.rewards,
            "terminated": ring.terminated,
            "truncated": ring.truncated,
            "valid": ring.valid,
            "follow": ring.follow,
            "log_prob": ring.extras["log_prob"],
            "value": ring.extras["value"],
            "ready": np.ones(agents, np.bool_),
        }
        if self.masked:
            columns["masks"] = ring.extras["masks"]
        if self.sequence:
            columns["hidden"], columns["age"] = ring.extras["hidden"][:, :: self.sequence], ring.age
        if self.importance:
            columns |= self._by_class(ring, identity, hyper, round_, world)
        return Snapshot(round_, columns)

    def _by_class(
        self, ring: Ring, identity: Identity, hyper: Sequence[Mapping[str, Any]], round_: int, world: int
    ) -> dict[str, Array]:
        """Places (N, S) of the samples of a round's minibatches, drawn by class among all of it, and corrections."""
        size, updates = self._batch, self.passes * self.minibatches
        done = world - DIRECT if world else max(0, round_ - 1) * updates
        drawn = []
        for row, (seed, agent) in enumerate(zip(identity.seeds, identity.agents, strict=True)):
            places = np.flatnonzero(ring.valid[row].reshape(-1))
            events, values = (ring.extras[name][row].reshape(-1)[places] for name in EVENT_COLUMNS)
            numbers = generator(seed, Purpose.SAMPLE, agent=agent, world=world, epoch=round_).random(
                (2, updates * size)
            )
            own = draw_classed(events, values, hyper[row]["importance"], numbers, batch=size, done=done)
            drawn.append(own._replace(rows=places[own.rows] if len(places) else own.rows))
        names = {"rows": "drawn", "weights": "weights", "rare": "rare"}
        return {given: np.stack([getattr(own, name) for own in drawn]) for name, given in names.items()}

    def rehearsal(self, agents: int, *, updates: int) -> Snapshot:
        draws = generator(0, Purpose.SAMPLE, world=1)
        block = (agents, self.rollout, self.worlds)
        kinds = self._sizes or (2,)
        actions: Array = draws.integers(0, min(kinds), (*block, *self.distribution.shape))
        if isinstance(self.distribution, SquashedGaussian):
            actions = draws.standard_normal((*block, *self.distribution.shape), np.float32)
        columns: dict[str, Array] = {
            "observations": draws.standard_normal((*block, math.prod(self.observation)), np.float32),
            "actions": actions,
            "rewards": draws.standard_normal(block, np.float32),
            "terminated": draws.random(block) < 0.05,
            "truncated": np.zeros(block, np.bool_),
            "valid": np.ones(block, np.bool_),
            "follow": np.ones(block, np.int32),
            "log_prob": -draws.random(block, np.float32),
            "value": draws.standard_normal(block, np.float32),
            "ready": np.ones(agents, np.bool_),
        }
        columns["valid"][:, -1] = False
        if self.masked:
            columns["masks"] = np.ones((*block, self.choices), np.bool_)
        if self.sequence:
            pieces = (agents, -(-self.rollout // self.sequence), self.worlds, self.state)
            columns["hidden"] = draws.standard_normal(pieces, np.float32)
            columns["age"] = draws.integers(0, 5, block)
        if self.importance:
            samples = (agents, self.passes * self.minibatches * self._batch)
            columns["drawn"] = draws.integers(0, max(1, (self.rollout - 1) * self.worlds), samples)
            columns |= {"weights": draws.random(samples, np.float32), "rare": draws.random(samples) < 0.5}
        return Snapshot(0, columns)

    def rehearsal_hyper(self) -> dict[str, Any]:
        return _hyper(PPOOptions(clip=1e-3))  # small enough to take effect, so that the probe sees how it clips


class PPO(Model):
    """A learner of a policy and a value.

    actions: a number of actions, a tuple of numbers for several choices at once, or a `Distribution`.
    rollout, epochs: turns and epochs between two rounds; an environment's `make_model` fills them in.
    network: a function that makes a fresh `torch.nn.Module` from (R, *obs_shape) to the policy's numbers and the value,
    (R, K + 1) or a pair; K is the number of actions, their sum, or for continuous ones means and log deviations.

    >>> model = PPO(obs_shape=(3,), actions=2, hidden=(8,))
    >>> model.take_action([0.0, 0.0, 1.0]) in (0, 1)
    True
    """

    def __init__(
        self,
        obs_shape: int | tuple[int, ...],
        actions: int | tuple[int, ...] | Distribution,
        *,
        worlds: int = 1,
        rollout: int = 128,
        epochs: int = 1,
        network: Factory | None = None,
        **options: Any,
    ) -> None:
        chosen = build_section(PPOOptions, options, "model")
        if isinstance(actions, int):
            actions = Discrete(actions)
        elif isinstance(actions, tuple):
            actions = MultiDiscrete(actions)
        blueprint = PPOBlueprint(
            observation=(obs_shape,) if isinstance(obs_shape, int) else tuple(obs_shape),
            distribution=actions,
            worlds=worlds,
            hidden=chosen.widths if network is None else (),
            passes=chosen.passes,
            minibatches=chosen.minibatches,
            rollout=rollout,
            epochs=epochs,
            training_priority=chosen.training_priority,
            normalise=chosen.units,
            importance=chosen.importance is not None,
            convolutional=chosen.convolutional,
            sequence=chosen.sequence if chosen.recurrent else 0,
            architecture=None if network is None else own_architecture(network, options),
        )
        super().__init__(blueprint, _hyper(chosen))
        _ = self.blueprint.network  # what does not fit is refused here, before anything runs

    @property
    def version(self) -> int:
        """Which weights act now: how many updates made them."""
        return int(self.state["updates"][0])

    def decide(self, state: Any, mask: Any = None) -> dict[str, Any]:
        """An action as `take_action` chooses it, and what `update_policy` will want to know of it."""
        actions, beside = self._chosen(state, mask)
        names = {"log_prob": "log_probs", "value": "values", "raw": "raw"}
        told = {names[name]: column[0, 0] for name, column in beside.items()}
        return {"actions": actions[0, 0], **told, "versions": self.version}

    def update_policy(self, batch: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """A round of updates from T steps in their order, as `decide` tells them; see `models.door.trajectory`.

        Each step's surrogate, value and entropy terms are weighted once; advantages come from the whole trajectory.
        """
        if self.blueprint.state:
            raise ContractError("update_policy() takes single steps, this network is recurrent: let a run train it")
        snapshot = trajectory(batch, self.blueprint, version=self.version)
        steps, blueprint = snapshot["valid"].shape[1] - 1, self.blueprint
        assert isinstance(blueprint, PPOBlueprint)
        return update(self, snapshot, -(-steps // blueprint.minibatches))

    def train_step(self) -> float:
        """Learn from everything in memory, by the same kernel as in a run, and forget it; the loss."""
        if self.busy is not None:
            raise RunError(f"train_step() was called while {self.busy}: the scheduled rounds train this agent")
        now = DIRECT + self.version
        snapshot = self.blueprint.snapshot(self.memory.ring, self.identity, [self.hyper], now, 0, world=now)
        self.state, result = self.blueprint.learner().learn(self.state, snapshot, self.identity)
        self.memory.clear()
        return float(result.metrics["loss"][0])


def _hyper(options: PPOOptions) -> dict[str, Any]:
    """The values that may differ between the rows of a stack."""
    names = ("clip", "ratio_clip", "value_clip", "value_weight", "entropy", "gamma", "target_kl")
    own: dict[str, Any] = {name: float(getattr(options, name)) for name in names}
    if options.importance is not None:
        own["importance"] = build_section(EventWeighting, options.importance, "model.importance")
    return {**own, **options.rates, "lambda": options.gae_lambda}
