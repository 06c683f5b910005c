"""Gymnasium environments as worlds: W instances, in this process or in others, or one vector environment.

parallel-agents train gymnasium:CartPole-v1 --algo ppo --worlds 8
parallel-agents train gymnasium:minigrid:MiniGrid-Empty-5x5-v0     # `minigrid` is imported first
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium

from parallel_agents.adapters.foreign import ForeignEnvironment
from parallel_agents.adapters.guests import Place, Row, write_mask
from parallel_agents.adapters.recipes import recipe
from parallel_agents.adapters.spaces import MASK, Deeds, Sight
from parallel_agents.adapters.vector import VectorWorlds
from parallel_agents.adapters.worlds import Make, Worlds
from parallel_agents.config import merge
from parallel_agents.errors import ConfigError, TargetError

__all__ = ["GymnasiumEnvironment", "GymnasiumGuest", "gymnasium_environment"]


def gymnasium_environment(name: str) -> type[GymnasiumEnvironment]:
    """The environment class of a registered Gymnasium environment, `Name-v0` or `package:Name-v0`."""
    module, _, own = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(own)
    except (ImportError, gymnasium.error.Error) as error:
        raise TargetError(
            f"gymnasium:{name} is not a registered environment: {error}. If a package registers it, name that too: "
            "gymnasium:package:Name-v0; it must be installed or on PYTHONPATH, the current folder is not searched"
        ) from error
    title = "".join(word.capitalize() for word in own.replace("/", "-").split("-"))
    return type(title, (GymnasiumEnvironment,), {"name": name, "__doc__": f"Gymnasium's {own}."})


def make(name: str, options: dict[str, Any]) -> Any:
    """One instance of `Name-v0` or `package:Name-v0`."""
    return gymnasium.make(name, **options)


class GymnasiumGuest:
    """One Gymnasium environment."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.env = make()
        name = str(self.env.spec.id if self.env.spec is not None else self.env)
        self.limit = self.env.spec.max_episode_steps if self.env.spec is not None else None
        sight, deeds = Sight.of(self.env.observation_space, name), Deeds.of(self.env.action_space, name)
        _, info = self.env.reset(seed=0)
        masked = (sight.masked or MASK in info) and deeds.choices is not None
        self.places = (Place("agent_0", sight, deeds, masked),)

    def reset(self, seed: int, row: Row) -> None:
        seen, info = self.env.reset(seed=seed)
        row.rewards[:], row.terminated[:], row.truncated[:], row.able[:] = 0.0, False, False, True
        self._show(seen, info, row)

    def step(self, row: Row) -> None:
        place = self.places[0]
        seen, reward, terminated, truncated, info = self.env.step(place.deeds.native(row.actions[0]))
        row.rewards[:], row.terminated[:], row.truncated[:] = reward, terminated, truncated
        self._show(seen, info, row)

    def close(self) -> None:
        self.env.close()

    def _show(self, seen: Any, info: Any, row: Row) -> None:
        place = self.places[0]
        place.sight.write(seen, row.sights[0])
        write_mask(place, seen, info, row.masks[0], able=not (row.terminated[0] or row.truncated[0]))


class GymnasiumEnvironment(ForeignEnvironment):
    """W instances of one Gymnasium environment."""

    default_config = {
        "experiment": {"max_turns": 32, "autoreset": True, "worlds": 8},
        "world": {"workers": 0, "vector": False, "options": {}},
        "parallel": {"train_interval": 1},
    }

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The recipe of the algorithm that the configuration names."""
        model = given.get("model", {})
        algorithm = model.get("algorithm", "dqn") if isinstance(model, Mapping) else None
        return merge(cls.default_config, recipe(str(algorithm), cls.name))

    def maker(self) -> Make:
        return partial(GymnasiumGuest, partial(make, self.name, dict(self.config.world["options"])))

    def open_worlds(self) -> Worlds:
        section = self.config.world
        if not section["vector"]:
            return super().open_worlds()
        if section["workers"]:
            raise ConfigError("world.vector and world.workers are both set: a vector environment steps its own worlds")
        return VectorWorlds(partial(gymnasium.make_vec, self.name, **section["options"]), self.n_worlds)

    @property
    def gives_state(self) -> bool:
        """False for a vector environment, whose worlds cannot be played again one by one."""
        return not self.config.world["vector"]
