"""What users subclass: worlds made of objects, hook by hook, or vectorised worlds by two batch hooks.

    class Game(ParallelEnvironment):
        def setup_agents(self): self.agents = [Agent(model=self.make_model((obs,), n_actions)) for _ in range(8)]
        def reset(self): …                       # start an episode in every world
        def observe(self): …                     # (N, W, obs)
        def apply_actions(self, actions): …      # (N, W) -> rewards (N, W)

An environment made of objects has none of the batch hooks; its agents have `pov` and `act` instead, and W
worlds are W copies of its world in which agent i is the same model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from parallel_agents.config import Config, check_keys, merge
from parallel_agents.environment.agent import Agent
from parallel_agents.errors import ContractError, SharingError
from parallel_agents.models import model_from_config
from parallel_agents.runtime.run import Run, RunSummary
from parallel_agents.seeding import Purpose, generator
from parallel_agents.tracking.timeline import Timeline
from parallel_agents.types import Array

__all__ = ["Environment", "ParallelEnvironment"]


class Environment:
    """N agents in W worlds. Without a `parallel` section in its configuration a run is plainly sequential."""

    default_config: ClassVar[Mapping[str, Any]] = {}
    """Sections and keys that a given configuration is laid over."""

    def __init__(
        self,
        world: Any = None,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        *,
        train_interval: int | None = None,
    ) -> None:
        self.config = self._build_config(config, train_interval)
        self.seed = self.config.experiment.seed
        self.n_worlds = self.config.experiment.worlds
        self.agents: list[Agent] = []
        self.epoch = 0
        self.turn = 0
        self.active = np.ones(self.n_worlds, np.bool_)
        """(W,) worlds that take part in this turn; the others have ended."""
        self._pristine = copy.deepcopy(world)
        self._copies: list[tuple[Any, list[Agent]]] = []
        self._streams = self._make_streams()
        self._run: Run | None = None
        self.timeline = Timeline(enabled=False)
        """Who did what when; enable it before a run to have it recorded."""
        self._set_up(world)
        self._check()

    def _build_config(
        self, config: Config | Mapping[str, Any] | str | Path | None, train_interval: int | None
    ) -> Config:
        if isinstance(config, Config):
            return config
        given = Config.read(config)
        layers: list[Mapping[str, Any]] = [self.default_config, given]
        if train_interval is not None:
            layers.append({"parallel": {"train_interval": train_interval}})
        if "world" in self.default_config:
            check_keys(given.get("world", {}), list(self.default_config["world"]), "key", prefix="world.")
        return Config.build(merge(*layers))

    def _set_up(self, world: Any) -> None:
        copies = 1 if self.vectorised else self.n_worlds
        worlds = [world if index == 0 else copy.deepcopy(self._pristine) for index in range(copies)]
        for index, own in enumerate(worlds):
            self.world = own if own is not None else SimpleNamespace(total_reward=0.0, is_done=False)
            self.agents = []
            self.rng = self._streams[index]
            if hasattr(self.world, "create_world"):
                self.world.create_world()
            self.setup_agents()
            if not self.agents:
                raise ContractError(
                    f"{type(self).__name__}.setup_agents() left self.agents empty: put at least one Agent there"
                )
            self._copies.append((self.world, self.agents))
            for agent, first in zip(self.agents, self._copies[0][1], strict=True):
                agent.model = first.model  # the agent of every world is one agent
            self.populate_environment()
        self._select(0)

    def _check(self) -> None:
        """Nothing may be shared: one model, one buffer, one name per agent."""
        for index, agent in enumerate(self.agents):
            agent.name = agent.name or f"agent_{index}"
        _distinct(self.agents, "model", lambda agent: agent.model)
        _distinct(self.agents, "name", lambda agent: agent.name, by_value=True)
        for index, agent in enumerate(self.agents):
            if hasattr(agent.model, "place"):
                agent.model.place(seed=self.seed, agent=index, worlds=self.n_worlds)
        _distinct(self.agents, "buffer", lambda agent: getattr(agent.model, "memory", None))

    # -- hooks that users write ------------------------------------------------------------------------------

    def setup_agents(self) -> None:
        """Put the agents into `self.agents`, each with a model of its own."""
        raise ContractError(f"{type(self).__name__}.setup_agents() is missing: put the agents into self.agents")

    def populate_environment(self) -> None:
        """Put everything into the world; called for each fresh episode of a world made of objects."""

    def make_model(self, obs_shape: int | tuple[int, ...], n_actions: int) -> Any:
        """A fresh model as the `model` section describes it."""
        return model_from_config(self.config.model, obs_shape, n_actions)

    def reset(self) -> None:
        """Start a fresh episode: in every world if vectorised, else in `self.world`."""
        if hasattr(self.world, "is_done"):
            self.world.is_done = False
        if hasattr(self.world, "create_world"):
            self.world.create_world()
        self.populate_environment()
        for agent in self.agents:
            agent.reset()

    def take_turn(self) -> None:
        """One turn of every world. Override it to add something before or after `super().take_turn()`."""
        if self._run is None:
            raise ContractError(
                "take_turn() was called outside of run_experiment(): let run_experiment conduct the turns"
            )
        self._run.turn_of(self)

    # -- the contract with the runtime; vectorised worlds override these ------------------------------------------

    @property
    def vectorised(self) -> bool:
        return type(self).observe is not Environment.observe

    @property
    def takes_own_turns(self) -> bool:
        """True where `take_turn` was overridden: then replicas take their turns one after the other."""
        return type(self).take_turn is not Environment.take_turn

    def reset_worlds(self, which: Array) -> None:
        """Start a fresh episode in the worlds of the (W,) mask."""
        if self.vectorised:
            if not which.all():
                raise ContractError(f"{type(self).__name__}.reset_worlds(which) is missing: it is needed for autoreset")
            self.reset()
            return
        for index in np.flatnonzero(which):
            self._select(int(index))
            self.reset()
        self._select(0)

    def begin_turn(self) -> None:
        """Move everything that is not an agent."""
        if self.vectorised:
            return
        for index, (world, _) in enumerate(self._copies):
            if self.active[index]:
                self._select(index)
                for entity in list(getattr(world, "entities", ())):
                    if not isinstance(entity, Agent) and getattr(entity, "has_transitions", True):
                        entity.transition(world)
        self._select(0)

    def observe(self) -> Array | Sequence[Array]:
        """(N, W, *obs), or one (W, *obs) per agent where spaces differ."""
        seen = [self.observe_agent(index) for index in range(len(self.agents))]
        return np.stack(seen) if len({one.shape for one in seen}) == 1 else seen

    def observe_agent(self, index: int) -> Array:
        """(W, *obs): what one agent sees now."""
        if self.vectorised:
            return np.asarray(self.observe()[index])
        return np.stack([np.asarray(agents[index].pov(world), np.float32) for world, agents in self._copies])

    def can_act(self) -> Array | None:
        """(N, W) bool, or None if all can."""
        if self.vectorised:
            return None
        return np.array([[bool(agent.can_act()) for agent in agents] for _, agents in self._copies]).T

    def apply_actions(self, actions: Any) -> Array:
        """Apply (N, W) actions in list order; (N, W) rewards."""
        rewards = np.zeros((len(self.agents), self.n_worlds), np.float32)
        for index in range(len(self.agents)):
            earned = self.apply_agent(index, actions[index])
            if earned.ndim == 1:
                rewards[index] += earned
            else:
                rewards += earned
        return rewards

    def apply_agent(self, index: int, actions: Array) -> Array:
        """Apply one agent's (W,) actions; its (W,) rewards, or (N, W) where others earn by it too."""
        if self.vectorised:
            raise ContractError(
                f"{type(self).__name__} has neither apply_actions(actions) nor apply_agent(index, actions): write one"
            )
        rewards = np.zeros(self.n_worlds, np.float32)
        able = [bool(agents[index].can_act()) for _, agents in self._copies]
        for column, (world, agents) in enumerate(self._copies):
            if self.active[column] and able[column]:
                rewards[column] = agents[index].act(world, actions[column])
        return rewards

    def dones(self) -> tuple[Array, Array] | None:
        """(N, W) terminated and (N, W) truncated, as they are after this turn; None if nothing ended."""
        if self.vectorised:
            return None
        terminated = np.array([[bool(agent.is_done(world)) for agent in agents] for world, agents in self._copies]).T
        return terminated, np.zeros_like(terminated)

    def bodies(self, index: int) -> list[Agent]:
        """Agent `index` in every world (one body for all where worlds are vectorised)."""
        return [agents[index] for _, agents in self._copies]

    def credit(self, rewards: Array) -> None:
        """Add (N, W) rewards to the worlds' running totals."""
        for column, (world, _) in enumerate(self._copies):
            if hasattr(world, "total_reward"):
                earned = rewards if self.vectorised else rewards[:, column]
                world.total_reward += float(earned.sum())

    def begin_epoch(self, epoch: int) -> None:
        """Called before each epoch."""
        self.epoch, self.turn = epoch, 0
        self._streams = self._make_streams()
        self._select(0)

    def _make_streams(self) -> list[np.random.Generator]:
        """One generator per world and epoch, for worlds made of objects to draw from as `self.rng`."""
        return [generator(self.seed, Purpose.WORLD, world=w, epoch=self.epoch) for w in range(self.n_worlds)]

    def _select(self, index: int) -> None:
        """Let `self.world`, `self.agents` and `self.rng` be those of one world."""
        self.world, self.agents = self._copies[index]
        self.rng = self._streams[index]

    # -- running ---------------------------------------------------------------------------------------------

    def replica(self, seed: int) -> Environment:
        """The same environment with another seed."""
        layers = merge(self.config.as_dict(), {"experiment": {"seed": seed, "seeds": 1}})
        config = Config.build(layers)
        return (
            type(self)(copy.deepcopy(self._pristine), config)
            if self._pristine is not None
            else type(self)(config=config)
        )

    def recorders(self, folder: Path) -> Sequence[Any]:
        """Listeners that leave pictures of the run in a folder; none unless the environment can be drawn."""
        return ()

    def run_experiment(self, epochs: int | None = None, *, listeners: Sequence[Any] = ()) -> RunSummary:
        """Run exactly `epochs` epochs in all (by default those of the configuration) and train every scheduled round.

        Called again with more epochs, it goes on from where it stopped.
        """
        if self._run is None:
            seeds = range(self.seed, self.seed + self.config.experiment.seeds)
            environments = [self, *(self.replica(seed) for seed in seeds[1:])]
            self._run = Run(environments, self.config, timeline=self.timeline)
            for environment in environments:
                environment._run = self._run
        return self._run.until(epochs or self.config.experiment.epochs, listeners=listeners)


def _distinct(agents: Sequence[Agent], what: str, of: Callable[[Agent], Any], *, by_value: bool = False) -> None:
    holders: dict[Any, Agent] = {}
    for agent in agents:
        value = of(agent)
        if value is None:
            continue
        other = holders.setdefault(value if by_value else id(value), agent)
        if other is not agent:
            raise SharingError(
                f"{other.name} and {agent.name} hold the same {what}: nothing may be shared, "
                f"give every agent a {what} of its own"
            )


class ParallelEnvironment(Environment):
    """An `Environment` whose configuration may ask for batched acting, stacked training and background learning."""
