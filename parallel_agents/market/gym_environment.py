"""The market as a Gymnasium environment: `gymnasium.make("parallel_agents/Market-v0", patterns="patterns.json")`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.discovery import Patterns, load_patterns
from parallel_agents.market.montecarlo.simulator import EpisodeSetting, ParallelWorldSimulator
from parallel_agents.market.worlds import create_world_variants
from parallel_agents.nn import MultiDiscrete, SquashedGaussian


class MarketGym(gymnasium.Env[NDArray[np.float32], Any]):
    """One bidder in one of many worlds; every reset draws a world and an episode.

    patterns: patterns, a patterns file or an export; "" draws a sample. Further options are those of `EpisodeSetting`.
    """

    metadata = {"render_modes": []}

    def __init__(self, patterns: Patterns | str | Path = "", worlds: int = 100, seed: int = 0, **options: Any) -> None:
        if worlds < 1:
            raise ConfigError(f"worlds {worlds} is too few: give at least 1")
        found = patterns if isinstance(patterns, Patterns) else load_patterns(patterns)
        setting = EpisodeSetting(**{"actions": "paced", "threads": 1, "seed": seed, **options})
        variants = create_world_variants(found, worlds, seed=seed)
        self._world = lru_cache(maxsize=16)(lambda index: ParallelWorldSimulator(variants[index], setting))
        self._worlds = worlds
        self._current = self._world(0)
        limit = np.full(len(self._current.names), np.inf, np.float32)
        self.observation_space = gymnasium.spaces.Box(-limit, limit)
        self.action_space = _space(self._current.space)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries of an observation."""
        return self._current.names

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode; the same seed gives the same world and episode. `options` may name the `world`."""
        super().reset(seed=seed)
        index, episode = int(self.np_random.integers(self._worlds)), int(self.np_random.integers(2**31))
        self._current = self._world(int((options or {}).get("world", index)))
        return self._current.reset(seed=episode)

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated and a dictionary with `event_type`, `value` and `cost`."""
        if isinstance(self.action_space, gymnasium.spaces.Box):
            low, high = (np.array(bound) for bound in (self._current.space.low, self._current.space.high))
            action = low + (np.clip(np.asarray(action, np.float64), -1.0, 1.0) + 1.0) / 2.0 * (high - low)
        return self._current.step(action)


def _space(space: Any) -> gymnasium.Space[Any]:
    """Return the space of a form of actions; continuous ones are scaled to −1 … 1."""
    if isinstance(space, SquashedGaussian):
        return gymnasium.spaces.Box(-1.0, 1.0, (len(space.low),))
    if isinstance(space, MultiDiscrete):
        return gymnasium.spaces.MultiDiscrete(list(space.sizes))
    return gymnasium.spaces.Discrete(int(space))
