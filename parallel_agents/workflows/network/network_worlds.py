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
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.errors import ActionError, ConfigError, ContractError, ShapeError
from parallel_agents.core.seeding import Purpose, key
from parallel_agents.workflows.network.red import (
    CUSTOM,
    RED_AGENTS,
    RedAgent,
    parse_red_action,
    red_action_name,
    red_id,
    red_knowledge,
)
from parallel_agents.workflows.network.scenario import (
    N_ACTIONS,
    N_HOSTS,
    OBSERVATION_SIZE,
    SLEEP,
    Quirks,
    compile_rules,
    version_quirks,
)
from parallel_agents.workflows.network.state import initial_state, write_access
from parallel_agents.workflows.network.step_kernels import EPISODE, step_worlds, write_observations

Red = str | type[RedAgent]


class NetworkWorlds:
    """`n_worlds` games of CAGE-2, stepped together in one compiled loop. The caller plays blue.

    red: one red agent for all worlds, or one per world: a name, or a subclass of `RedAgent`.
    version: which revision of the simulator to follow; `quirks` overrides it.
    late_start: `reset` plays this many of the `steps` turns with a sleeping blue, and the caller plays the rest.
    first_world: world w uses the random draws of world `first_world + w`, so that a world gives the same bytes alone
        as in any batch.
    """

    def __init__(
        self,
        n_worlds: int,
        red: Red | Sequence[Red] = "B_line",
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
        reds = tuple(red) if isinstance(red, Sequence) and not isinstance(red, str) else (red,) * n_worlds
        if len(reds) != n_worlds:
            raise ConfigError(f"{len(reds)} red agents for {n_worlds} worlds: name one, or one per world")
        preset = version_quirks(version)
        self.n_worlds, self.steps, self.late_start = n_worlds, steps, late_start
        self.quirks = preset if quirks is None else quirks
        self.rules = compile_rules(self.quirks)
        """The rules under these quirks, as the compiled kernels read them."""
        self.red_in_python = {w: each() for w, each in enumerate(reds) if isinstance(each, type)}
        """The red agents that are written in Python, by world."""
        self._initial = initial_state(np.array([CUSTOM if isinstance(r, type) else red_id(r) for r in reds], np.int8))
        self.state, self.episode = self._initial.copy(), np.zeros(1, EPISODE)
        """The worlds, and where their random words are, as the compiled kernels read and write them."""
        self.episode["key"] = key(seed, purpose)
        self.episode["first_world"] = first_world
        self.episode["green"] = green
        self._turn = self.episode["turn"]
        self._turn[0] = steps  # no step is allowed before the first reset

    @property
    def red(self) -> tuple[str, ...]:
        """Each world's red agent."""
        return tuple(
            type(self.red_in_python[w]).__name__ if w in self.red_in_python else RED_AGENTS[i]
            for w, i in enumerate(self._initial["red_agent"])
        )

    def reset(self, epoch: int) -> NDArray[np.uint8]:
        """Start an episode in every world with the draws of this epoch; return observations (W, 52)."""
        if epoch < 0:
            raise ConfigError(f"epoch is {epoch}: epochs are numbered from 0")
        self.state[:] = self._initial
        self.episode["epoch"], self._turn[0] = epoch, 0
        for agent in self.red_in_python.values():
            agent.reset()
        while self.turn < self.late_start:
            self.step(np.full(self.n_worlds, SLEEP))
        observations = np.empty((self.n_worlds, OBSERVATION_SIZE), np.uint8)
        write_observations(self.state, observations)
        return observations

    def step(self, actions: ArrayLike) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_]]:
        """Play one turn of every world with actions (W,) from 0 to 144.

        Return observations (W, 52), rewards (W,) and dones (W,).
        """
        self.begin_turn()
        chosen = np.asarray(actions)
        if chosen.shape != (self.n_worlds,) or chosen.dtype.kind not in "iu":
            raise ShapeError(
                f"actions have shape {chosen.shape} and type {chosen.dtype}: "
                f"give one whole number per world, shape ({self.n_worlds},)"
            )
        chosen = chosen.astype(np.int64, copy=False)
        observations = np.empty((self.n_worlds, OBSERVATION_SIZE), np.uint8)
        rewards = np.empty(self.n_worlds)
        invalid = step_worlds(self.state, self.rules, self.episode, chosen, observations, rewards)
        if invalid >= 0:
            raise ActionError(
                f"action {chosen[invalid]} of world {invalid} is not one of blue's {N_ACTIONS}: "
                f"give whole numbers from 0 to {N_ACTIONS - 1}"
            )
        return observations, rewards, np.full(self.n_worlds, self.turn == self.steps)

    def begin_turn(self) -> None:
        """Raise ContractError if the episode is over; let the red agents that are written in Python choose."""
        if self.turn >= self.steps:
            raise ContractError(f"the episode of {self.steps} steps is over or not begun: call reset(epoch)")
        for w, agent in self.red_in_python.items():
            self.state[w]["next_kind"], self.state[w]["next_target"] = self._red_choice(agent, self.state[w])

    @staticmethod
    def _red_choice(agent: RedAgent, record: Any) -> tuple[int, int]:
        """Return the kind and the target that a red agent written in Python chooses."""
        try:
            return parse_red_action(agent.get_action(red_knowledge(record)), record)
        except ActionError as fault:
            raise ActionError(f"{type(agent).__name__}.get_action(knowledge): {fault}") from fault

    @property
    def turn(self) -> int:
        """Turns of the episode played so far, a late start included."""
        return int(self._turn.item())

    @property
    def access(self) -> NDArray[np.uint8]:
        """Red's true access per world and host (W, 13): 0 no session, 1 user-level, 2 privileged."""
        out = np.empty((self.n_worlds, N_HOSTS), np.uint8)
        write_access(self.state, out)
        return out

    @property
    def ot_running(self) -> NDArray[np.bool_]:
        """Whether the operational service runs, per world (W,)."""
        return self.state["ot_running"].astype(np.bool_)

    @property
    def repaired(self) -> NDArray[np.int64]:
        """The host that blue's last action took from red, per world (W,), or -1."""
        return self.state["repaired"].astype(np.int64)

    @property
    def blue_success(self) -> NDArray[np.int8]:
        """Result of blue's last action, per world (W,): 0 failed, 1 succeeded, 2 unknown."""
        return self.state["blue_success"].copy()

    @property
    def red_success(self) -> NDArray[np.int8]:
        """Result of red's last action, per world (W,): 0 failed, 1 succeeded, 2 unknown."""
        return self.state["red_success"].copy()

    @property
    def red_actions(self) -> tuple[str, ...]:
        """Red's last action in every world, by name."""
        return tuple(red_action_name(int(s["red_kind"]), int(s["red_target"])) for s in self.state)
