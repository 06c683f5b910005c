"""Which algorithm a `model` section names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallel_agents.errors import ConfigError
from parallel_agents.models.dqn import DQN
from parallel_agents.models.simple import RandomModel

__all__ = ["ALGORITHMS", "model_from_config"]

ALGORITHMS: dict[str, Any] = {"dqn": DQN, "random": RandomModel}


def model_from_config(section: Mapping[str, Any], obs_shape: int | tuple[int, ...], n_actions: int) -> Any:
    """A fresh model as a `model` section describes it; `algorithm` defaults to DQN.

    >>> type(model_from_config({"algorithm": "dqn", "hidden": (8,)}, (4,), 2)).__name__
    'DQN'
    """
    options = dict(section)
    name = options.pop("algorithm", "dqn")
    if name not in ALGORITHMS:
        raise ConfigError(f"model.algorithm is {name!r}: allowed is {', '.join(sorted(ALGORITHMS))}")
    return ALGORITHMS[name](obs_shape, n_actions, **options)
