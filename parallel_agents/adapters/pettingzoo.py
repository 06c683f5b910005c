"""PettingZoo environments as worlds: parallel ones, and those in which agents take turns (AEC).

parallel-agents train pettingzoo:mpe2.simple_spread_v3 --worlds 4
parallel-agents train pettingzoo:pettingzoo.classic.tictactoe_v3

In an AEC environment one turn of ours is one step of one agent: the others cannot act meanwhile, store nothing, and
what they earn goes to their last action.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from parallel_agents.adapters.foreign import ForeignEnvironment
from parallel_agents.adapters.guests import Guest, Place, Row, write_mask
from parallel_agents.adapters.spaces import MASK, Deeds, Sight
from parallel_agents.adapters.worlds import Make
from parallel_agents.errors import ContractError, TargetError

__all__ = ["PettingZooEnvironment", "pettingzoo_environment"]


def pettingzoo_environment(name: str) -> type[PettingZooEnvironment]:
    """The environment class of a PettingZoo module: one with `parallel_env()` or `env()`."""
    creator(name)
    title = "".join(word.capitalize() for word in name.rpartition(".")[2].split("_"))
    return type(title, (PettingZooEnvironment,), {"name": name, "__doc__": f"PettingZoo's {name}."})


def creator(name: str) -> Callable[..., Any]:
    """What makes an instance: the module's `parallel_env` where it has one, else its `env`."""
    try:
        module = importlib.import_module(name)
    except Exception as error:  # whatever a foreign package raises while it is imported
        raise TargetError(
            f"pettingzoo:{name} cannot be imported: {type(error).__name__}: {error}. It must be installed or on "
            "PYTHONPATH, the current folder is not searched"
        ) from error
    made: Callable[..., Any] | None = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if made is None:
        raise TargetError(f"pettingzoo:{name} has neither parallel_env() nor env(): name a module that has one")
    return made


def make(name: str, options: Mapping[str, Any]) -> Guest:
    """One world of a module."""
    return guest(creator(name)(**options))


def guest(env: Any) -> Guest:
    """An instance as a guest, whichever of the two interfaces it has."""
    return TurnGuest(env) if hasattr(env, "agent_selection") or hasattr(env, "agent_iter") else ParallelGuest(env)


class ZooGuest:
    """What both interfaces share."""

    limit = None

    def __init__(self, env: Any, infos: Mapping[Any, Any]) -> None:
        self.env = env
        names = list(getattr(env, "possible_agents", None) or env.agents)
        self.places = tuple(_place(env, name, infos.get(name, {})) for name in names)
        self._seats = {name: index for index, name in enumerate(names)}
        self._gone: set[Any] = set()

    def close(self) -> None:
        self.env.close()

    def _open(self, row: Row) -> None:
        self._gone = set()
        row.rewards[:], row.terminated[:], row.truncated[:] = 0.0, False, False
        for seen, mask in zip(row.sights, row.masks, strict=True):
            seen[:], mask[:] = 0.0, True  # nothing of an earlier episode stays with those who come late

    def _native(self, name: Any, row: Row) -> Any:
        index = self._seats[name]
        return self.places[index].deeds.native(row.actions[index])

    def _show(self, seen: Mapping[Any, Any], infos: Mapping[Any, Any], able: set[Any], row: Row) -> None:
        """What agents see, who may act, and what they may do."""
        for name, index in self._seats.items():
            row.able[index] = name in able
            if name in seen:
                place = self.places[index]
                place.sight.write(seen[name], row.sights[index])
                write_mask(place, seen[name], infos.get(name), row.masks[index], able=name in able)

    def _take(
        self, rewards: Mapping[Any, float], terminated: Mapping[Any, bool], truncated: Mapping[Any, bool], row: Row
    ) -> None:
        """What agents earned, and whose episode has ended."""
        for name, index in self._seats.items():
            row.rewards[index] = rewards.get(name, 0.0)
            if terminated.get(name) or truncated.get(name):
                row.terminated[index] = bool(terminated.get(name))
                row.truncated[index] = bool(truncated.get(name))
                self._gone.add(name)

    def _check(self, before: set[Any], row: Row) -> None:
        """Nobody comes back, and nobody leaves without a word; once all have left, those that never came are done."""
        present = set(self.env.agents)
        back, lost = present & self._gone, before - present - self._gone
        if back:
            raise ContractError(f"{self.env}: {sorted(map(str, back))} came back after their episode's end")
        if lost:
            raise ContractError(f"{self.env}: {sorted(map(str, lost))} left without being terminated or truncated")
        if not present:
            row.truncated[~row.terminated] = True


class ParallelGuest(ZooGuest):
    """All agents act at once."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, env.reset(seed=0)[1])

    def reset(self, seed: int, row: Row) -> None:
        seen, infos = self.env.reset(seed=seed)
        self._open(row)
        self._show(seen, infos, set(self.env.agents), row)

    def step(self, row: Row) -> None:
        before = set(self.env.agents)
        actions = {name: self._native(name, row) for name in self.env.agents}
        seen, rewards, terminated, truncated, infos = self.env.step(actions)
        self._take(rewards, terminated, truncated, row)
        self._show(seen, infos, set(self.env.agents), row)
        self._check(before, row)


class TurnGuest(ZooGuest):
    """One agent acts at a time."""

    def __init__(self, env: Any) -> None:
        env.reset(seed=0)
        super().__init__(env, env.infos)

    def reset(self, seed: int, row: Row) -> None:
        self.env.reset(seed=seed)
        self._open(row)
        self._show_turn(row)

    def step(self, row: Row) -> None:
        env, before = self.env, set(self.env.agents)
        env.step(self._native(env.agent_selection, row))
        self._take(env.rewards, env.terminations, env.truncations, row)
        self._show_turn(row)
        self._check(before, row)

    def _show_turn(self, row: Row) -> None:
        """What every agent sees, and whose turn it is once those whose episode has ended have left."""
        env = self.env
        seen = {name: env.observe(name) for name in env.agents}
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # the empty step with which such an agent leaves
        self._show(seen, env.infos, {env.agent_selection} if env.agents else set(), row)


def _place(env: Any, name: Any, info: Mapping[str, Any]) -> Place:
    owner = f"{name} in {env}"
    sight, deeds = Sight.of(env.observation_space(name), owner), Deeds.of(env.action_space(name), owner)
    return Place(str(name), sight, deeds, (sight.masked or MASK in info) and deeds.choices is not None)


class PettingZooEnvironment(ForeignEnvironment):
    """W instances of one PettingZoo environment, whose agents may see and do different things, and may leave."""

    default_config = {
        "experiment": {"epochs": 400, "max_turns": 25, "autoreset": True, "worlds": 4},
        "world": {"workers": 0, "options": {}},
        "parallel": {"train_interval": 1},
    }

    def maker(self) -> Make:
        return partial(make, self.name, dict(self.config.world["options"]))
