"""IQN as a model: options, blueprint, and the class users hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import ArrayLike

from parallel_agents.config import build_section
from parallel_agents.errors import ConfigError
from parallel_agents.learning import IQNLearner
from parallel_agents.models.base import Model
from parallel_agents.models.door import replay_update
from parallel_agents.models.options import in_units
from parallel_agents.models.replay import ReplayBlueprint, ReplayOptions, replay, replay_hyper
from parallel_agents.networks import QuantileNetwork

__all__ = ["IQN", "IQNBlueprint", "IQNOptions"]


@dataclass(frozen=True, kw_only=True)
class IQNOptions(ReplayOptions):
    """The `model` section for `algorithm = "iqn"`."""

    layer: int = 250
    """Width of the hidden layers."""
    quantiles: int = 12
    """Quantiles drawn for each sample of an update."""
    acting_quantiles: int = 12
    """Evenly spaced quantiles whose mean acting uses."""
    batch_size: int = 64
    n_step: int = 3
    n_frames: int = 5
    gamma: float = 0.99
    tau: float = 0.001
    updates_per_round: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("layer", "quantiles", "acting_quantiles"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name} is {getattr(self, name)}: give a whole number of at least 1")


@dataclass(frozen=True, kw_only=True)
class IQNBlueprint(ReplayBlueprint):
    """IQN at a shape."""

    layer: int
    quantiles: int
    acting_quantiles: int

    @cached_property
    def network(self) -> QuantileNetwork:
        return QuantileNetwork(self.inputs, self.layer, self.actions, self.acting_quantiles)

    def learner(self, *, device: str = "cpu", updates: int | None = None) -> Any:
        count = updates or self.updates
        learner = IQNLearner(self.network, count, self.batch, self.double, device, quantiles=self.quantiles)
        return in_units(learner, self.inputs, self.normalise)


class IQN(Model):
    """An implicit quantile learner with noisy, dueling layers; defaults as in sorrel's games.

    >>> model = IQN(obs_shape=(3,), n_actions=2, layer=8, n_frames=1, learning_starts=1)
    >>> for t in range(4):
    ...     model.memory.add([t, 0, 1], action=0, reward=1.0, done=t == 3)
    >>> model.train_step() >= 0.0, model.take_action([0, 0, 1]) in (0, 1)
    (True, True)
    """

    def __init__(self, obs_shape: int | tuple[int, ...], n_actions: int, *, worlds: int = 1, **options: Any) -> None:
        chosen = build_section(IQNOptions, options, "model")
        shape = {name: getattr(chosen, name) for name in ("layer", "quantiles", "acting_quantiles")}
        super().__init__(IQNBlueprint(**replay(chosen, obs_shape, n_actions, worlds), **shape), replay_hyper(chosen))

    def update_policy(self, batch: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """One update from B rows that somebody else has drawn; see `models.door`."""
        return replay_update(self, batch)
