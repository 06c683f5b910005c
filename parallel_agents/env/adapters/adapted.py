"""The base class of environments that adapt those of another library."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled

from parallel_agents.core.errors import ConfigError, ContractError, CorruptCheckpoint
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.serialization import restored
from parallel_agents.core.types import Array
from parallel_agents.env import Agent, ParallelEnvironment
from parallel_agents.env.adapters.sync_envs import Episode, MakeAdapter, SyncEnvs
from parallel_agents.env.adapters.worker_envs import WorkerEnvs
from parallel_agents.execution.backend import Monitored

MAX_EVALUATION_TURNS = 100_000
"""The maximum number of turns of an evaluation episode if the environment has no time limit."""
_SEEDS = 2**31
"""Seeds of episodes are whole numbers below this."""


class AdaptedEnvironment(ParallelEnvironment):
    """W instances of one environment of another library, in this process or (`world.workers`) in worker processes."""

    name = ""

    def adapter_factory(self) -> MakeAdapter:
        """Return a function that makes one adapted environment."""
        raise ContractError(f"{type(self).__name__}.adapter_factory() is missing: return what makes one environment")

    def open_envs(self) -> SyncEnvs:
        """Make all environments, in this process or in as many workers as `world.workers` asks for."""
        flags, workers = self.config.parallel, self.config.world["workers"]
        if not isinstance(workers, int) or workers < 0:
            raise ConfigError(f"world.workers is {workers!r}: give a number of processes, 0 for none")
        options = self.config.world.get("options", {})
        if not isinstance(options, Mapping):
            raise ConfigError(
                f'world.options is {options!r}: give the keywords of {self.name} as an object, such as {{"N": 5}}'
            )
        if workers == 0:
            try:
                return SyncEnvs(self.adapter_factory(), self.n_worlds)
            except TypeError as error:
                if "render_mode" in str(error):
                    raise ConfigError(
                        f"{self.name} cannot be made with a render_mode, so it draws no pictures: {error}; let it take "
                        'render_mode="rgb_array", and return an array (rows, columns, 3) from render()'
                    ) from error
                if any(f"unexpected keyword argument {name!r}" in str(error) for name in options):
                    raise ConfigError(f"{self.name} cannot be made with world.options {options}: {error}") from error
                raise
        return WorkerEnvs(
            self.adapter_factory(),
            self.n_worlds,
            workers=workers,
            deadline=flags.world_deadline,
            max_failures=flags.max_failures,
        )

    def setup_agents(self) -> None:
        """Make the environments, and for each of their agents a model that fits its spaces."""
        self.envs = self.open_envs()
        self.evaluation_turns = self.envs.max_episode_steps or MAX_EVALUATION_TURNS
        self.agents = [
            Agent(model=self.make_model(spec.observation.shape, spec.action.model), name=spec.name)
            for spec in self.envs.agents
        ]
        left_out = self.envs.agents[0].observation.left_out
        if left_out:
            warnings.warn(
                f"{self.name}: agents do not see {', '.join(left_out)}, which holds no numbers",
                stacklevel=2,
            )
        shapes = {spec.observation.shape for spec in self.envs.agents}
        self._common_shape = shapes.pop() if len(shapes) == 1 else None
        """The shape of every agent's observation; None if they differ."""

    def close(self) -> None:
        self.envs.close()

    def workers(self) -> list[Monitored]:
        return self.envs.workers()

    def draws_itself(self) -> None:
        """Let copies of this environment, such as those of an evaluation, draw pictures; the run stays as it is."""
        world = dict(self.config.world)
        world |= {"options": {**world.get("options", {}), "render_mode": "rgb_array"}, "workers": 0}
        self.config = replace(self.config, world=world)

    def render(self) -> Array:
        """Return a picture (rows, columns, 3) of the first world; `draws_itself` has to be called before it is made."""
        try:
            frame = self.envs.render()
        except DependencyNotInstalled as error:
            raise ConfigError(f"{self.name} cannot be drawn: {error}") from error
        if not isinstance(frame, np.ndarray) or frame.ndim != 3:
            raise ConfigError(f"{self.name} draws no pictures: its render() gave a {type(frame).__name__}")
        return frame

    # -- turns -------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        self.reset_worlds(np.ones(self.n_worlds, np.bool_))

    def reset_worlds(self, which: Array) -> None:
        """Start new episodes, each from a seed of its own."""
        self._set_turn_label()
        seeds = {}
        for world in map(int, np.flatnonzero(which)):
            draws = generator(self.seed, Purpose.WORLD, world=world, epoch=self.epoch, turn=self.turn)
            seeds[world] = int(draws.integers(_SEEDS))
        self.envs.begin(seeds)

    def observe(self) -> Any:
        if self._common_shape is not None:
            shape = self.n_worlds, len(self.agents), *self._common_shape
            return self.envs.buffers["observations"].reshape(shape).swapaxes(0, 1)
        return [
            self.envs.buffers.of_agent("observations", index).reshape(self.n_worlds, *spec.observation.shape)
            for index, spec in enumerate(self.envs.agents)
        ]

    def can_act(self) -> Array:
        return self.envs.buffers["can_act"].T.copy()

    @property
    def masks_actions(self) -> bool:
        """True if the environment says which actions are allowed."""
        return any(spec.masked for spec in self.envs.agents)

    def action_masks(self) -> list[Array | None]:
        return [
            self.envs.buffers.of_agent("masks", index) if spec.masked else None
            for index, spec in enumerate(self.envs.agents)
        ]

    def apply_actions(self, actions: Any) -> Array:
        self._set_turn_label()
        self.envs.buffers.write_actions(actions)
        self.envs.advance([int(world) for world in np.flatnonzero(self.active)])
        return np.where(self.active, self.envs.buffers["rewards"].T, 0.0).astype(np.float32)

    def dones(self) -> tuple[Array, Array]:
        return self.envs.buffers["terminated"].T.copy(), self.envs.buffers["truncated"].T.copy()

    def _set_turn_label(self) -> None:
        self.envs.turn_label = f"epoch {self.epoch}, turn {self.turn}"

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Array]:
        """Return the seed and the actions of every world's episode, since the inner state is not accessible."""
        episodes = self.envs.stored_episodes()
        actions = [action for episode in episodes for action in episode.actions]
        width = self.envs.buffers["actions"].shape[1]
        return {
            "seeds": np.array([episode.seed for episode in episodes], np.int64),
            "lengths": np.array([len(episode.actions) for episode in episodes], np.int64),
            "actions": np.array(actions, np.float64).reshape(-1, width),
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replay every world's episode up to where it was; raise CorruptCheckpoint if no episode can be like that."""
        self._check_episodes(state)
        actions = np.split(state["actions"], np.cumsum(state["lengths"])[:-1])
        pairs = zip(state["seeds"], actions, strict=True)
        self.envs.replay({world: Episode(int(seed), list(rows)) for world, (seed, rows) in enumerate(pairs)})

    def _check_episodes(self, state: Mapping[str, Array]) -> None:
        """Raise CorruptCheckpoint unless these can be episodes: compiled worlds write actions at their numbers."""
        worlds, buffers = np.zeros(self.n_worlds, np.int64), self.envs.buffers
        restored("seeds", state["seeds"], worlds, least=0, most=_SEEDS - 1)
        longest = self.envs.max_episode_steps or len(state["actions"])
        lengths = restored("lengths", state["lengths"], worlds, least=0, most=longest)
        rows = np.broadcast_to(buffers["actions"][:1], (int(lengths.sum()), buffers["actions"].shape[1]))
        actions, start = restored("actions", state["actions"], rows), 0
        for agent in self.envs.agents:
            if not agent.action.holds(actions[:, start : start + agent.action.size]):
                raise CorruptCheckpoint(f"an action of {agent.name} is none of its space")
            start += agent.action.size
