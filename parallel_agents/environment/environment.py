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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from parallel_agents.acting import flattened
from parallel_agents.config import Config, check_keys, merge, nested
from parallel_agents.environment.agent import Agent
from parallel_agents.environment.evaluation import Evaluation, evaluate
from parallel_agents.errors import ContractError, SharingError
from parallel_agents.models import Model, model_from_config
from parallel_agents.networks import Factory
from parallel_agents.runtime.heartbeat import Heart
from parallel_agents.runtime.run import Run, RunSummary
from parallel_agents.runtime.supervision import Watched
from parallel_agents.seeding import Purpose, generator
from parallel_agents.tracking.timeline import Timeline
from parallel_agents.types import Array

__all__ = ["Environment", "ParallelEnvironment"]


class Environment:
    """N agents in W worlds. Without a `parallel` section in its configuration a run is plainly sequential."""

    default_config: ClassVar[Mapping[str, Any]] = {}
    """Sections and keys that a given configuration is laid over."""
    event_types: ClassVar[Sequence[str]] = ("crisis_parent", "regular_parent")
    """Names of the kinds of events that `events` tells; read by agents that draw by event class."""

    def __init__(
        self,
        world: Any = None,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        *,
        train_interval: int | None = None,
    ) -> None:
        self.config = _first_of_sweep(self._build_config(config, train_interval))
        self.seed = self.config.experiment.seed
        self.n_worlds = self.config.experiment.worlds
        self.agents: list[Agent] = []
        self.evaluation_turns = self.config.experiment.max_turns
        """Turns of an evaluation episode, at most."""
        self.epoch = 0
        self.turn = 0
        self.active = np.ones(self.n_worlds, np.bool_)
        """(W,) worlds that take part in this turn; the others have ended."""
        self.acting = np.ones((0, self.n_worlds), np.bool_)
        """(N, W) agents that act in this turn; the others' episodes have ended, or they cannot act."""
        self._pristine = copy.deepcopy(world)
        self._copies: list[tuple[Any, list[Agent]]] = []
        self.streams = self._make_streams()
        self.selected = 0
        """The world that `self.world` is now, where worlds are made of objects."""
        self.heart = Heart()
        """Says which turn is conducted, to whoever watches over a run."""
        self._run: Run | None = None
        self._conduct: Callable[[], None] | None = None
        self.timeline = Timeline(enabled=False)
        """Who did what when; enable it before a run to have it recorded."""
        self._set_up(world)
        self._check()
        self.acting = np.ones((len(self.agents), self.n_worlds), np.bool_)

    def _build_config(
        self, config: Config | Mapping[str, Any] | str | Path | None, train_interval: int | None
    ) -> Config:
        if isinstance(config, Config):
            return config
        given = Config.read(config)
        layers: list[Mapping[str, Any]] = [self.defaults(given), given]
        if train_interval is not None:
            layers.append({"parallel": {"train_interval": train_interval}})
        if "world" in self.default_config:
            check_keys(given.get("world", {}), list(self.default_config["world"]), "key", prefix="world.")
        return Config.build(merge(*layers))

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a given configuration is laid over; override it where that depends on what is given."""
        return cls.default_config

    def _set_up(self, world: Any) -> None:
        copies = 1 if self.vectorised else self.n_worlds
        worlds = [world if index == 0 else copy.deepcopy(self._pristine) for index in range(copies)]
        for index, own in enumerate(worlds):
            self.world = own if own is not None else SimpleNamespace(total_reward=0.0, is_done=False)
            self.agents = []
            self.rng = self.streams[index]
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
            if self.masks_actions and isinstance(agent.model, Model):
                agent.model.use_masks()
        _distinct(self.agents, "buffer", lambda agent: getattr(agent.model, "memory", None))

    # -- hooks that users write ------------------------------------------------------------------------------

    def setup_agents(self) -> None:
        """Put the agents into `self.agents`, each with a model of its own."""
        raise ContractError(f"{type(self).__name__}.setup_agents() is missing: put the agents into self.agents")

    def populate_environment(self) -> None:
        """Put everything into the world; called for each fresh episode of a world made of objects."""

    def make_model(self, obs_shape: Any, n_actions: Any, *, network: Factory | None = None) -> Any:
        """A fresh model as the `model` section describes it.

        obs_shape: a number, a shape, or the shapes of the parts of an observation in a dict or tuple.
        n_actions: a number; for PPO also a tuple of numbers (several choices) or a `networks.Distribution`.
        network: a function that makes a fresh `torch.nn.Module`, for a network of your own.
        """
        epochs = self.config.parallel.train_interval
        turns = epochs * self.config.experiment.max_turns
        return model_from_config(self.config.model, obs_shape, n_actions, rollout=turns, epochs=epochs, network=network)

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
        if self._conduct is None:
            raise ContractError(
                "take_turn() was called outside of run_experiment(): let run_experiment conduct the turns"
            )
        self._conduct()

    # -- the contract with the runtime; vectorised worlds override these ------------------------------------------

    @property
    def vectorised(self) -> bool:
        return type(self).observe is not Environment.observe

    @property
    def takes_own_turns(self) -> bool:
        """True where `take_turn` was overridden: then replicas take their turns one after the other."""
        return type(self).take_turn is not Environment.take_turn

    def conducted_turn(self, conduct: Callable[[], None]) -> None:
        """Take a turn, in which `take_turn` may call on the loop to conduct it."""
        self._conduct = conduct
        try:
            self.take_turn()
        finally:
            self._conduct = None

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

    def observe(self) -> Any:
        """(N, W, *obs), or one (W, *obs) per agent where spaces differ; either may be a dict of parts."""
        seen = [self.observe_agent(index) for index in range(len(self.agents))]
        return np.stack(seen) if len({one.shape for one in seen}) == 1 else seen

    def observe_agent(self, index: int) -> Array:
        """(W, *obs): what one agent sees now."""
        if self.vectorised:
            return np.asarray(flattened(flattened(self.observe(), 2)[index], 1))
        seen = [flattened(agents[index].pov(world)) for _, world, agents in self._each()]
        return np.stack([np.asarray(own, np.float32) for own in seen])

    @property
    def masks_actions(self) -> bool:
        """True where `action_masks`, or an agent's `action_mask`, was written."""
        own = type(self).action_masks is not Environment.action_masks
        return own or any(type(agent).action_mask is not Agent.action_mask for agent in self.agents)

    def action_masks(self) -> Any:
        """(N, W, A) bool: which actions are allowed now; or for each agent (W, A), or None where all are."""
        return [self.action_mask_of(index) for index in range(len(self.agents))]

    def action_mask_of(self, index: int) -> Array | None:
        """(W, A) bool: which actions one agent may take now; None: all."""
        if type(self).action_masks is not Environment.action_masks:
            masks: Array | None = self.action_masks()[index]
            return masks
        own = [agents[index].action_mask(world) for _, world, agents in self._each()]
        return None if any(mask is None for mask in own) else np.array(own, np.bool_)

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
        for column, world, agents in self._each():
            if self.acting[index, column]:
                rewards[column] = agents[index].act(world, actions[column])
        return rewards

    def dones(self) -> tuple[Array, Array] | None:
        """(N, W) terminated and (N, W) truncated, as they are after this turn; None if nothing ended."""
        if self.vectorised:
            return None
        terminated = np.array([[bool(agent.is_done(world)) for agent in agents] for _, world, agents in self._each()]).T
        return terminated, np.zeros_like(terminated)

    def events(self) -> tuple[Array, Array | None] | None:
        """(N, W) places in `event_types` (-1: no label) and (N, W) values of what the last actions brought.

        Asked after each turn if some agent draws by event class. Values None: the rewards. None: no labels either;
        then what lies above a percentile of an agent's rewards is rare.
        """
        if self.vectorised or all(type(agent).event_type is Agent.event_type for agent in self.agents):
            return None
        places: dict[str | None, int] = {name: place for place, name in enumerate(self.event_types)}
        places[None] = -1
        told = [[agent.event_type(world) for agent in agents] for _, world, agents in self._each()]
        for name in {name for own in told for name in own} - set(places):
            raise ContractError(
                f"an agent's event_type(world) gave {name!r}: {type(self).__name__}.event_types are "
                f"{', '.join(self.event_types)}"
            )
        return np.array([[places[name] for name in own] for own in told]).T, None

    @property
    def gives_state(self) -> bool:
        """True where `state` was written."""
        return type(self).state is not Environment.state

    def state(self) -> Mapping[str, Array]:
        """Arrays from which the worlds can go on in the middle of their episodes; needed for autoreset only."""
        raise ContractError(
            f"{type(self).__name__}.state() is missing: with autoreset, episodes cross epochs, so a checkpoint needs "
            "the worlds' state; write state() and load_state(), or set experiment.checkpoint_every = 0"
        )

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` gave."""
        raise ContractError(f"{type(self).__name__}.load_state(state) is missing: it is the way back from state()")

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
        self.streams = self._make_streams()
        self._select(0)

    def _make_streams(self) -> list[np.random.Generator]:
        """One generator per world and epoch, for worlds made of objects to draw from as `self.rng`."""
        return [generator(self.seed, Purpose.WORLD, world=w, epoch=self.epoch) for w in range(self.n_worlds)]

    def _each(self) -> Iterator[tuple[int, Any, list[Agent]]]:
        """World after world, with `self.world`, `self.agents` and `self.rng` set to each in turn."""
        for index, (world, agents) in enumerate(self._copies):
            self._select(index)
            yield index, world, agents
        self._select(0)

    def _select(self, index: int) -> None:
        """Let `self.world`, `self.agents` and `self.rng` be those of one world."""
        self.selected = index
        self.world, self.agents = self._copies[index]
        self.rng = self.streams[index]

    # -- running ---------------------------------------------------------------------------------------------

    def replicas(self) -> list[Environment]:
        """This environment, and the same with every further seed and every further combination of a sweep."""
        seeds = range(self.seed, self.seed + self.config.experiment.seeds)
        every = [self.config.replica(seed, setting) for setting in self.config.experiment.settings for seed in seeds]
        return [self, *(self.remade(config) for config in every[1:])]

    def remade(self, config: Config) -> Environment:
        """The same environment with another configuration."""
        if self._pristine is None:
            return type(self)(config=config)
        return type(self)(copy.deepcopy(self._pristine), config)

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        exploration: float = 0.0,
        onlooker: Callable[[Environment], None] | None = None,
    ) -> Evaluation:
        """How good the agents are now: whole episodes in fresh worlds, on draws of their own.

        onlooker: shown the environment in which they play after every turn, to draw it for example.
        """
        count = episodes or self.config.experiment.eval_episodes
        return evaluate(self, count, exploration=exploration, onlooker=onlooker)

    def close(self) -> None:
        """Give back what the environment holds outside of this process; nothing, usually."""

    def recorders(self, folder: Path) -> Sequence[Any]:
        """Listeners that leave pictures of the run in a folder; none unless the environment can be drawn."""
        return ()

    def members(self) -> Sequence[Watched]:
        """Worker processes of the worlds, for whoever watches over a run; none where they live in this process."""
        return ()

    def prepare(self) -> Run:
        """The run, with its replicas, stacks and plan; whatever cannot work is refused here, before it starts."""
        if self._run is None:
            self._run = Run(self.replicas(), self.config, timeline=self.timeline)
        return self._run

    def run_experiment(self, epochs: int | None = None, *, listeners: Sequence[Any] = ()) -> RunSummary:
        """Run exactly `epochs` epochs in all (by default those of the configuration) and train every scheduled round.

        Called again with more epochs, it goes on from where it stopped.
        """
        wanted = self.config.experiment.epochs if epochs is None else epochs
        return self.prepare().until(wanted, listeners=listeners)


def _first_of_sweep(config: Config) -> Config:
    """With its own values those of the first replica."""
    first = config.experiment.settings[0]
    return Config.build(merge(config.as_dict(), *(nested(key, value) for key, value in first.items())))


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
