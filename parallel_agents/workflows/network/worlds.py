"""A batch of network-defence worlds.

>>> worlds = NetworkWorlds(2, red=("B_line", "Sleep"), steps=30)
>>> worlds.reset(epoch=1).shape
(2, 52)
>>> observations, rewards, dones = worlds.step([0, 139])
>>> rewards.tolist(), dones.tolist()
([0.0, -1.0], [False, False])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.errors import ActionError, ConfigError, ContractError, ShapeError
from parallel_agents.seeding import Purpose, key
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.network.attack import KIND_NAMES, SLEEP, SWEEP
from parallel_agents.workflows.network.engine import show, sleep_worlds, step_worlds
from parallel_agents.workflows.network.quirks import Quirks, compile_rules, quirks_of
from parallel_agents.workflows.network.red import RED_AGENTS, red_id
from parallel_agents.workflows.network.state import STATE, fill_access, fresh

__all__ = ["NetworkWorlds"]


class NetworkWorlds:
    """`n_worlds` games of CAGE-2, one step at a time, all in one compiled loop.

    Blue is the caller. `red` is one agent for all worlds or one name per world; `version` picks a preset of
    `quirks`, which may be given instead. With `late_start=K`, `reset` plays the first K of the `steps` turns
    with a sleeping blue, and the caller plays the rest. World w draws its randomness at the address of world
    `first_world + w`, so a world gives the same bytes alone as in any batch.
    """

    def __init__(
        self,
        n_worlds: int,
        red: str | Sequence[str] = "B_line",
        version: str = "head",
        quirks: Quirks | None = None,
        steps: int = 100,
        green: bool = False,
        late_start: int = 0,
        seed: int = 0,
        *,
        purpose: Purpose = Purpose.WORLD,
        first_world: int = 0,
    ) -> None:
        if n_worlds < 1:
            raise ConfigError(f"n_worlds is {n_worlds}: at least one world is needed")
        if not 0 <= late_start < steps:
            raise ConfigError(f"late_start is {late_start} of {steps} steps: give a number from 0 to steps - 1")
        if first_world < 0:
            raise ConfigError(f"first_world is {first_world}: worlds are numbered from 0")
        self.n_worlds, self.steps, self.late_start, self.green = n_worlds, steps, late_start, bool(green)
        preset = quirks_of(version)
        self.quirks = preset if quirks is None else quirks
        self._agents = _red_ids(red, n_worlds)
        self.rules = compile_rules(self.quirks)
        """The tables as these quirks leave them, as the compiled kernels read them."""
        self._fresh = fresh()
        self._state = np.zeros(n_worlds, STATE)
        self._keys = tuple(np.uint64(part) for part in key(seed, purpose))
        self._first_world = np.uint64(first_world)
        self._epoch = np.uint64(0)
        self._turn = steps  # nothing to step before the first reset

    @property
    def red(self) -> tuple[str, ...]:
        """Each world's red agent."""
        return tuple(RED_AGENTS[i] for i in self._agents)

    def reset(self, epoch: int) -> NDArray[np.uint8]:
        """Start every world afresh with the draws of this epoch. Observations (W, 52)."""
        if epoch < 0:
            raise ConfigError(f"epoch is {epoch}: epochs are numbered from 0")
        self._state[:] = self._fresh
        self._epoch, self._turn = np.uint64(epoch), self.late_start
        sleep_worlds(
            self._state, self.rules, self._agents, self.green, *self._keys, self._epoch, self.late_start,
            self._first_world,
        )  # fmt: skip
        observations = np.empty((self.n_worlds, t.OBSERVATION_SIZE), np.uint8)
        show(self._state, observations)
        return observations

    def step(self, actions: ArrayLike) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_]]:
        """One turn of every world: observations (W, 52), rewards (W,), dones (W,). Actions: (W,) of 0 to 144."""
        if self._turn >= self.steps:
            raise ContractError(f"the episode of {self.steps} steps is over or not begun: call reset(epoch)")
        chosen = self._checked(actions)
        observations = np.empty((self.n_worlds, t.OBSERVATION_SIZE), np.uint8)
        rewards = np.empty(self.n_worlds)
        bad = step_worlds(
            self._state, self.rules, self._agents, self.green, *self._keys, self._epoch, np.uint64(self._turn),
            self._first_world, chosen, observations, rewards,
        )  # fmt: skip
        if bad >= 0:
            raise ActionError(
                f"action {chosen[bad]} of world {bad} is not one of blue's {t.N_ACTIONS}: "
                f"give whole numbers from 0 to {t.N_ACTIONS - 1}"
            )
        self._turn += 1
        return observations, rewards, np.full(self.n_worlds, self._turn == self.steps)

    def _checked(self, actions: ArrayLike) -> NDArray[np.int64]:
        chosen = np.asarray(actions)
        if chosen.shape != (self.n_worlds,) or chosen.dtype.kind not in "iu":
            raise ShapeError(
                f"actions have shape {chosen.shape} and type {chosen.dtype}: "
                f"give one whole number per world, shape ({self.n_worlds},)"
            )
        return chosen.astype(np.int64, copy=False)

    @property
    def turn(self) -> int:
        """How many turns of the episode have been played, a late start included."""
        return self._turn

    @property
    def access(self) -> NDArray[np.uint8]:
        """The truth, per world and host (W, 13): 0 no red session, 1 user-level, 2 privileged."""
        out = np.empty((self.n_worlds, t.N_HOSTS), np.uint8)
        fill_access(self._state, out)
        return out

    @property
    def ot_running(self) -> NDArray[np.bool_]:
        """Whether the operational service runs, per world (W,)."""
        return self._state["ot_running"].astype(np.bool_)

    @property
    def blue_success(self) -> NDArray[np.int8]:
        """How blue's last action went, per world (W,): 0 failed, 1 worked, 2 untold."""
        return self._state["blue_success"].copy()

    @property
    def red_success(self) -> NDArray[np.int8]:
        """How red's last action went, per world (W,): 0 failed, 1 worked, 2 untold."""
        return self._state["red_success"].copy()

    @property
    def red_actions(self) -> tuple[str, ...]:
        """Red's last action in every world, by name."""
        return tuple(red_action_name(int(s["red_kind"]), int(s["red_target"])) for s in self._state)


def red_action_name(kind: int, target: int) -> str:
    """A red action as recordings spell it.

    >>> red_action_name(KIND_NAMES.index("Impact"), t.OP_SERVER)
    'Impact:Op_Server0'
    """
    if kind == SLEEP:
        return KIND_NAMES[SLEEP]
    return f"{KIND_NAMES[kind]}:{(t.SUBNETS if kind == SWEEP else t.HOST_NAMES)[target]}"


def _red_ids(red: str | Sequence[str], n_worlds: int) -> NDArray[np.int8]:
    names = (red,) * n_worlds if isinstance(red, str) else tuple(red)
    if len(names) != n_worlds:
        raise ConfigError(f"{len(names)} red agents for {n_worlds} worlds: name one, or one per world")
    return np.array([red_id(name) for name in names], np.int8)
