"""DQN as a model: options, blueprint, and the class users hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.config import build_section
from parallel_agents.errors import ConfigError
from parallel_agents.learning import DQNLearner, RecurrentDQNLearner
from parallel_agents.memory import Ring, RingShape, gather_sequences
from parallel_agents.models.base import Model
from parallel_agents.models.door import replay_update
from parallel_agents.models.options import in_units
from parallel_agents.models.replay import ReplayBlueprint, ReplayOptions, replay, replay_hyper
from parallel_agents.models.shapes import NetworkOptions, own_architecture, value_network
from parallel_agents.networks import Architecture, Factory, ModuleNetwork
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Array, Snapshot

__all__ = ["DQN", "DQNBlueprint", "DQNOptions"]


@dataclass(frozen=True, kw_only=True)
class DQNOptions(NetworkOptions, ReplayOptions):
    """The `model` section for `algorithm = "dqn"`."""

    dueling: bool = False

    def __post_init__(self) -> None:
        ReplayOptions.__post_init__(self)
        NetworkOptions.__post_init__(self)
        if self.recurrent and self.n_frames > 1:
            raise ConfigError(
                f"model.n_frames is {self.n_frames} with model.recurrent: a recurrent network remembers by itself, "
                "leave n_frames at 1"
            )
        if self.recurrent and (self.importance is not None or self.priority_alpha > 0):
            key = "importance" if self.importance is not None else "priority_alpha"
            raise ConfigError(
                f"model.{key} with model.recurrent: it weighs single transitions, but a recurrent network learns from "
                "sequences; leave one of them out"
            )


@dataclass(frozen=True, kw_only=True)
class DQNBlueprint(ReplayBlueprint):
    """DQN at a shape."""

    hidden: tuple[int, ...]
    dueling: bool
    convolutional: tuple[tuple[int, ...], ...] = ()
    sequence: int = 0
    """Turns of the sequences that a recurrent network learns from; 0: it is none."""
    architecture: Architecture | None = None
    """Of a network that the user brought."""

    @cached_property
    def network(self) -> Any:
        if self.architecture is not None:
            return ModuleNetwork(self.architecture, self.window, self.actions)
        shape = (self.window, self.hidden, self.actions, self.dueling, self.convolutional)
        return value_network(*shape, recurrent=self.sequence > 0)

    @property
    def state(self) -> int:
        return self.hidden[-1] if self.sequence else 0

    @property
    def ring(self) -> RingShape:
        plain = super().ring
        return replace(plain, extras={**plain.extras, "hidden": (self.state,)}) if self.sequence else plain

    def learner(self, *, device: str = "cpu", updates: int | None = None) -> Any:
        kind = RecurrentDQNLearner if self.sequence else DQNLearner
        return in_units(
            kind(self.network, updates or self.updates, self.batch, self.double, device), self.inputs, self.normalise
        )

    def _gather(self, ring: Ring, serials: Array, gammas: Array) -> dict[str, Array]:
        if not self.sequence:
            return super()._gather(ring, serials, gammas)
        return gather_sequences(ring, serials, length=self.sequence, n_step=self.n_step, gammas=gammas)

    def rehearsal(self, agents: int, *, updates: int) -> Snapshot:
        if not self.sequence:
            return super().rehearsal(agents, updates=updates)
        draws = generator(0, Purpose.SAMPLE, world=1)
        samples, span = (agents, updates * self.batch), self.sequence + self.n_step
        block = (*samples, self.sequence)
        columns: dict[str, Array] = {
            "states": draws.standard_normal((*samples, span, self.inputs), np.float32),
            "hidden": draws.standard_normal((*samples, self.state), np.float32),
            "actions": draws.integers(0, self.actions, block),
            "returns": draws.standard_normal(block, np.float32),
            "discounts": draws.random(block, np.float32),
            "ahead": draws.integers(0, span, block),
            "counted": (draws.random(block) < 0.9).astype(np.float32),
            "ready": np.ones(agents, np.bool_),
        }
        if self.masked:
            columns["masks"] = draws.random((*samples, span, self.actions)) < 0.8
            columns["masks"][..., 0] = True
        return Snapshot(0, columns)


class DQN(Model):
    """A deep Q-learner.

    network: a function that makes a fresh `torch.nn.Module` from (R, *obs_shape) to (R, n_actions), with several
    frames one after the other along the first axis of an observation; instead of `hidden` and `dueling`.

    >>> model = DQN(obs_shape=(3,), n_actions=2, hidden=(8,), learning_starts=1)
    >>> for t in range(4):
    ...     model.memory.add([t, 0, 1], action=0, reward=1.0, done=t == 3)
    >>> model.train_step() >= 0.0, model.take_action([0, 0, 1]) in (0, 1)
    (True, True)
    """

    def __init__(
        self,
        obs_shape: int | tuple[int, ...],
        n_actions: int,
        *,
        worlds: int = 1,
        network: Factory | None = None,
        **options: Any,
    ) -> None:
        chosen = build_section(DQNOptions, options, "model")
        shape: dict[str, Any] = {
            "hidden": chosen.widths,
            "dueling": chosen.dueling,
            "convolutional": chosen.convolutional,
            "sequence": chosen.sequence if chosen.recurrent else 0,
        }
        if network is not None:
            shape = {"hidden": (), "dueling": False, "architecture": own_architecture(network, options)}
        super().__init__(DQNBlueprint(**replay(chosen, obs_shape, n_actions, worlds), **shape), replay_hyper(chosen))
        _ = self.blueprint.network  # what does not fit is refused here, before anything runs

    def update_policy(self, batch: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """One update from B rows that somebody else has drawn; see `models.door`."""
        return replay_update(self, batch)
