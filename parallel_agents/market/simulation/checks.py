"""Checks of worlds before anything is simulated: of one shape, finite, and within their ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parallel_agents.errors import ConfigError, NonFiniteError
from parallel_agents.market.worlds import World

__all__ = ["check_worlds"]


def check_worlds(worlds: Sequence[World]) -> None:
    """Raise a clear error for the first world that cannot be simulated."""
    if not worlds:
        raise ConfigError("no worlds were given: give at least one")
    head = worlds[0]
    names = ("segments", "devices", "campaigns", "creatives", "rivals")
    for world in worlds:
        for name in names:
            if getattr(world, name) != getattr(head, name):
                raise ConfigError(
                    f"world {world.index} has {name} {getattr(world, name)}, world {head.index} has "
                    f"{getattr(head, name)}: worlds of one batch come from the same patterns"
                )
        _check_values(world)


_POSITIVE = (
    ("users", "share"), ("users", "activity"), ("competitors", "spread"), ("market_state", "usual_bid"),
    ("time_period", "volume"), ("time_period", "hours"), ("auction_pressure", "volume"), ("auction_pressure", "spend"),
    ("conversion_dynamics", "value_log_spread"), ("conversion_dynamics", "delay_hours"),
    ("conversion_dynamics", "delay_shape"),
)  # fmt: skip
_NOT_NEGATIVE = (
    ("users", "device"), ("users", "interest"), ("market_state", "reserve"), ("market_state", "campaign_share"),
    ("market_state", "channel_factor"), ("market_state", "volatility"), ("competitors", "participation"),
    ("creative_variance", "click_rate"), ("creative_variance", "fatigue"), ("creative_variance", "position"),
    ("conversion_dynamics", "base"), ("conversion_dynamics", "device_factor"), ("conversion_dynamics", "visit_factor"),
)  # fmt: skip


def _check_values(world: World) -> None:
    for part in (n for n, _ in (*_POSITIVE, *_NOT_NEGATIVE)):
        for name, value in vars(getattr(world, part)).items():
            if not np.isfinite(value).all():
                raise NonFiniteError(f"world {world.index}: {part}.{name} is not finite: {value}")
    for bad, names, word in ((np.less_equal, _POSITIVE, "positive"), (np.less, _NOT_NEGATIVE, "0 or more")):
        for part, name in names:
            value = getattr(getattr(world, part), name)
            if bad(value, 0).any():
                raise ConfigError(f"world {world.index}: {part}.{name} must be {word}: found {np.min(value)}")
    if world.users.count < 1:
        raise ConfigError(f"world {world.index}: users.count must be positive: found {world.users.count}")
