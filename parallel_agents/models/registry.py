"""Which algorithm a `model` section names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallel_agents.acting import flat_shape
from parallel_agents.errors import ConfigError
from parallel_agents.models.base import Model
from parallel_agents.models.dqn import DQN
from parallel_agents.models.iqn import IQN
from parallel_agents.models.ppo import PPO
from parallel_agents.models.simple import RandomModel
from parallel_agents.networks import Factory

__all__ = ["ALGORITHMS", "model_from_config"]

ALGORITHMS: dict[str, Any] = {"dqn": DQN, "iqn": IQN, "ppo": PPO, "random": RandomModel}
ON_POLICY = {"ppo"}
OWN_NETWORK = ("dqn", "ppo")


def model_from_config(
    section: Mapping[str, Any],
    obs_shape: Any,
    actions: Any,
    *,
    rollout: int = 128,
    epochs: int = 1,
    network: Factory | None = None,
) -> Any:
    """A fresh model as a `model` section describes it; `algorithm` defaults to DQN.

    obs_shape: a number, a shape, or the shapes of the parts of an observation in a dict or tuple.
    rollout, epochs: turns and epochs between two rounds, for learners that learn from all of them.
    network: makes a `torch.nn.Module` of the user's own, for DQN and PPO.
    `weights` in the section is a file of `Model.save_weights` to start from.

    >>> type(model_from_config({"algorithm": "dqn", "hidden": (8,)}, (4,), 2)).__name__
    'DQN'
    """
    options, obs_shape = dict(section), flat_shape(obs_shape)
    name = options.pop("algorithm", "dqn")
    weights = options.pop("weights", None)
    model = _fresh(name, options, obs_shape, actions, rollout, epochs, network)
    if weights is not None:
        if not isinstance(weights, str) or not isinstance(model, Model):
            raise ConfigError(f"model.weights is {weights!r}: give the path of a file, for a learner that has weights")
        model.load_weights(weights)
    return model


def _fresh(
    name: str, options: dict[str, Any], obs_shape: Any, actions: Any, rollout: int, epochs: int, network: Factory | None
) -> Any:
    if name not in ALGORITHMS:
        raise ConfigError(f"model.algorithm is {name!r}: allowed is {', '.join(sorted(ALGORITHMS))}")
    if network is not None:
        if name not in OWN_NETWORK:
            raise ConfigError(f"model.algorithm {name!r} takes no network of your own: use {', '.join(OWN_NETWORK)}")
        options["network"] = network
    if name in ON_POLICY:
        return ALGORITHMS[name](obs_shape, actions, rollout=rollout, epochs=epochs, **options)
    if not isinstance(actions, int):
        raise ConfigError(f"model.algorithm {name!r} needs a number of actions, found {actions!r}: use 'ppo' instead")
    return ALGORITHMS[name](obs_shape, actions, **options)
