"""The environment that users subclass: N agents in W worlds.

There are two ways to write one. A vectorised environment steps all its worlds at once, in arrays:

    class Game(ParallelEnvironment):
        def setup_agents(self): self.agents = [Agent(model=self.make_model((obs,), n_actions)) for _ in range(8)]
        def reset(self): …                       # start an episode in every world
        def observe(self): …                     # return observations (N, W, obs)
        def apply_actions(self, actions): …      # take actions (N, W), return rewards (N, W)

An environment made of objects overrides none of these batch hooks: its agents implement `pov` and `act` instead. Its W
worlds are W copies of one world object, and agent i uses the same model in all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, overload

import numpy as np

from parallel_agents.algorithms import Model, model_from_config
from parallel_agents.core.config import Config, check_keys, merge, nested
from parallel_agents.core.errors import ContractError, SharingError
from parallel_agents.core.observations import flatten_observation
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Array
from parallel_agents.engine.collect import CompiledWorld
from parallel_agents.engine.run import Run, RunSummary
from parallel_agents.env.agent import Agent
from parallel_agents.env.evaluation import Evaluation, evaluate
from parallel_agents.execution.backend import Heartbeat, Monitored
from parallel_agents.nn import Factory
from parallel_agents.tracking.timeline import Timeline

TURN_HOOKS = (
    "begin_turn", "observe", "observe_agent", "can_act", "apply_actions", "apply_agent", "dones", "reset_worlds",
    "add_rewards", "events",
)  # fmt: skip
"""Methods that compiled epochs do not call."""


class Streams(Sequence[np.random.Generator]):
    """One random generator per world, each made when it is first asked for: compiled worlds need none."""

    def __init__(self, seed: int, worlds: range, epoch: int) -> None:
        self._seed, self._worlds, self._epoch = seed, worlds, epoch
        self._made: dict[int, np.random.Generator] = {}

    def __len__(self) -> int:
        return len(self._worlds)

    @overload
    def __getitem__(self, index: int) -> np.random.Generator: ...

    @overload
    def __getitem__(self, index: slice) -> list[np.random.Generator]: ...

    def __getitem__(self, index: int | slice) -> np.random.Generator | list[np.random.Generator]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        world = self._worlds[index]
        if world not in self._made:
            self._made[world] = generator(self._seed, Purpose.WORLD, world=world, epoch=self._epoch)
        return self._made[world]


class Environment:
    """N agents in W worlds. Without a `parallel` section in its configuration, a run is plainly sequential."""

    default_config: ClassVar[Mapping[str, Any]] = {}
    """Sections and keys of the configuration; what a user passes overrides them."""
    event_types: ClassVar[Sequence[str]] = ("crisis_parent", "regular_parent")
    """Names of the event types that `events` returns as indices; used by agents that sample by event class."""
    shardable: ClassVar[bool] = False
    """True if worlds may be played elsewhere (`parallel.world_shards`): what happens in a world follows from its number
    in `world_numbers`, the epoch and the actions alone, and nothing of an epoch reaches the next one."""
    portable: bool = False
    """True if worlds call no function whose last digits depend on the machine, such as `np.exp` and `math.sin`; sums,
    products, quotients and square roots do not. Then a run of compiled kernels has the same bytes on every machine."""

    def __init__(
        self,
        world: Any = None,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        *,
        train_interval: int | None = None,
        worlds: range | None = None,
    ) -> None:
        """worlds: which of the configured worlds this environment holds, in a shard of a run; None: all of them."""
        self.config = _first_of_sweep(self._build_config(config, train_interval))
        self.seed = self.config.experiment.seed
        self.world_numbers = range(self.config.experiment.worlds) if worlds is None else worlds
        """The number of each world held here: it addresses the world's draws."""
        self.n_worlds = len(self.world_numbers)
        self.agents: list[Agent] = []
        self.evaluation_turns = self.config.experiment.max_turns
        """The maximum number of turns of an evaluation episode."""
        self.epoch = 0
        self.turn = 0
        self.active = np.ones(self.n_worlds, np.bool_)
        """(W,) worlds that take part in this turn; the others have ended."""
        self.acting = np.ones((0, self.n_worlds), np.bool_)
        """(N, W) agents that act in this turn; the others' episodes have ended, or they cannot act."""
        self._initial_world = copy.deepcopy(world)
        self._copies: list[tuple[Any, list[Agent]]] = []
        """The world object and the agents of each world; a single entry if the environment is vectorised."""
        self.streams = self._make_streams()
        """One random generator per world, new in each epoch."""
        self.selected = 0
        """The index of the world that `self.world` is now, in environments made of objects."""
        self.makes_models = False
        """True once `make_model` was called: the `model` section then says how the agents learn."""
        self.heartbeat = Heartbeat()
        """Tells the watchdog which turn is running."""
        self._run: Run | None = None
        self._engine_turn: Callable[[], None] | None = None
        self.timeline = Timeline(enabled=False)
        """Records what ran when; enable it before the run."""
        self._set_up(world)
        self._check_agents()
        self.acting = np.ones((len(self.agents), self.n_worlds), np.bool_)

    def __repr__(self) -> str:
        counts = {"agent": len(self.agents), "world": self.n_worlds}
        things = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items())
        return f"{type(self).__name__}({things}, seed {self.seed})"

    # -- hooks that users write --------------------------------------------------------------------------------

    def setup_agents(self) -> None:
        """Put the agents into `self.agents`, each with a model of its own."""
        raise ContractError(f"{type(self).__name__}.setup_agents() is missing: put the agents into self.agents")

    def populate_environment(self) -> None:
        """Fill `self.world`; called at the start of each episode in environments made of objects."""

    def make_model(self, obs_shape: Any, n_actions: Any, *, network: Factory | None = None) -> Any:
        """Return a new model as the `model` section of the configuration describes it.

        obs_shape: a number, a shape, or a dict or tuple with the shape of each part of an observation.
        n_actions: a number; for PPO also a tuple of numbers (several choices) or a `networks.Distribution`.
        network: a function that returns a new `torch.nn.Module`, for a network of your own.
        """
        self.makes_models = True
        epochs = self.config.parallel.train_interval
        turns = epochs * self.config.experiment.max_turns
        return model_from_config(self.config.model, obs_shape, n_actions, rollout=turns, epochs=epochs, network=network)

    def reset(self) -> None:
        """Start a new episode: in every world if vectorised, else in `self.world`."""
        if hasattr(self.world, "is_done"):
            self.world.is_done = False
        if hasattr(self.world, "create_world"):
            self.world.create_world()
        self.populate_environment()
        for agent in self.agents:
            agent.reset()

    def reset_worlds(self, which: Array) -> None:
        """Start a new episode in the worlds of the (W,) mask."""
        if self.vectorised:
            if not which.all():
                raise ContractError(f"{type(self).__name__}.reset_worlds(which) is missing: it is needed for autoreset")
            self.reset()
            return
        for index in np.flatnonzero(which):
            self._select(int(index))
            self.reset()
        self._select(0)

    def take_turn(self) -> None:
        """Take one turn in every world. Override it to add something before or after `super().take_turn()`."""
        if self._engine_turn is None:
            raise ContractError(
                "take_turn() was called outside of run_experiment(): call run_experiment(), which takes the turns"
            )
        self._engine_turn()

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
        """Return (N, W, *obs), or one (W, *obs) per agent if shapes differ; each may be a dict of parts."""
        observations = [self.observe_agent(index) for index in range(len(self.agents))]
        same_shape = len({observation.shape for observation in observations}) == 1
        return np.stack(observations) if same_shape else observations

    def observe_agent(self, index: int) -> Array:
        """Return the (W, *obs) observations of one agent."""
        if self.vectorised:
            return np.asarray(flatten_observation(flatten_observation(self.observe(), 2)[index], 1))
        observations = [flatten_observation(agents[index].pov(world)) for _, world, agents in self._each_world()]
        return np.stack([np.asarray(observation, np.float32) for observation in observations])

    def can_act(self) -> Array | None:
        """Return (N, W) bool, or None if all agents can act."""
        if self.vectorised:
            return None
        return np.array([[bool(agent.can_act()) for agent in agents] for _, agents in self._copies]).T

    def action_masks(self) -> Any:
        """Return the allowed actions: (N, W, A) bool, or for each agent (W, A), or None if all are allowed."""
        return [self.action_mask_of(index) for index in range(len(self.agents))]

    def apply_actions(self, actions: Any) -> Array:
        """Apply (N, W) actions in list order and return (N, W) rewards."""
        rewards = np.zeros((len(self.agents), self.n_worlds), np.float32)
        for index in range(len(self.agents)):
            earned = self.apply_agent(index, actions[index])
            if earned.ndim == 1:
                rewards[index] += earned
            else:
                rewards += earned
        return rewards

    def apply_agent(self, index: int, actions: Array) -> Array:
        """Apply one agent's (W,) actions; return its (W,) rewards, or (N, W) if other agents earn by them too."""
        if self.vectorised:
            raise ContractError(
                f"{type(self).__name__} has neither apply_actions(actions) nor apply_agent(index, actions): write one"
            )
        rewards = np.zeros(self.n_worlds, np.float32)
        for column, world, agents in self._each_world():
            if self.acting[index, column]:
                rewards[column] = agents[index].act(world, actions[column])
        return rewards

    def dones(self) -> tuple[Array, Array] | None:
        """Return (N, W) terminated and (N, W) truncated after this turn, or None if no episode ended."""
        if self.vectorised:
            return None
        rows = [[bool(agent.is_done(world)) for agent in agents] for _, world, agents in self._each_world()]
        terminated = np.array(rows).T
        return terminated, np.zeros_like(terminated)

    def events(self) -> tuple[Array, Array | None] | None:
        """Return what the last actions led to: (N, W) indices into `event_types` (-1: no label), (N, W) values.

        Called after each turn if an agent samples by event class. If the values are None, the rewards are used. If the
        result is None, there are no labels: transitions above a percentile of an agent's rewards count as rare.
        """
        if self.vectorised or all(type(agent).event_type is Agent.event_type for agent in self.agents):
            return None
        indices: dict[str | None, int] = {name: index for index, name in enumerate(self.event_types)}
        indices[None] = -1
        names = [[agent.event_type(world) for agent in agents] for _, world, agents in self._each_world()]
        for name in {name for row in names for name in row} - set(indices):
            raise ContractError(
                f"an agent's event_type(world) gave {name!r}: {type(self).__name__}.event_types are "
                f"{', '.join(self.event_types)}"
            )
        return np.array([[indices[name] for name in row] for row in names]).T, None

    def compiled_world(self) -> CompiledWorld | str:
        """Return the worlds as compiled functions, for whole epochs in one call; or why this is not possible."""
        return f"{type(self).__name__} is written in Python: it has no compiled_world()"

    def hook_in_python(self, base: type, names: Sequence[str] = TURN_HOOKS) -> str | None:
        """Return which of these methods is not the one of a base class, so that compiled code would skip it."""
        for name in names:
            if name in vars(self) or getattr(type(self), name) is not getattr(base, name):
                return f"{type(self).__name__}.{name}() is written in Python"
        return None

    def state(self) -> Mapping[str, Array]:
        """Return arrays from which the worlds can continue in the middle of an episode; needed for autoreset only."""
        raise ContractError(
            f"{type(self).__name__}.state() is missing: with autoreset, episodes cross epochs, so a checkpoint needs "
            "the worlds' state; write state() and load_state(), or set experiment.checkpoint_every = 0"
        )

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from what `state` returned."""
        raise ContractError(f"{type(self).__name__}.load_state(state) is missing: restore what state() returned")

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the default configuration; override it if the defaults depend on what the user passed."""
        return cls.default_config

    def recorders(self, folder: Path) -> Sequence[Any]:
        """Return callbacks that write pictures of the run into a folder; none unless the environment can be drawn."""
        return ()

    def close(self) -> None:
        """Release what the environment holds outside of this process; usually nothing."""

    # -- what the engine calls ---------------------------------------------------------------------------------

    @cached_property
    def vectorised(self) -> bool:
        """True if `observe` is overridden."""
        return type(self).observe is not Environment.observe

    @property
    def overrides_take_turn(self) -> bool:
        """True if `take_turn` is overridden; then replicas take their turns one after the other."""
        return type(self).take_turn is not Environment.take_turn

    @property
    def masks_actions(self) -> bool:
        """True if `action_masks`, or the `action_mask` of an agent, is overridden."""
        return self._overrides_action_masks or any(
            type(agent).action_mask is not Agent.action_mask for agent in self.agents
        )

    @property
    def _overrides_action_masks(self) -> bool:
        return type(self).action_masks is not Environment.action_masks

    @property
    def rng(self) -> np.random.Generator:
        """Return the random generator of the selected world in this epoch, `self.streams[self.selected]`."""
        return self.streams[self.selected]

    @rng.setter
    def rng(self, _: Any) -> None:
        raise ContractError(
            f"{type(self).__name__} assigns self.rng, which is the generator of the selected world and is made anew in "
            "every epoch: draw from it, or give a generator of your own another name"
        )

    @property
    def has_state(self) -> bool:
        """True if `state` is overridden."""
        return type(self).state is not Environment.state

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch and make its random generators; called before each epoch."""
        self.epoch, self.turn = epoch, 0
        self.streams = self._make_streams()
        self._select(0)

    def run_turn(self, engine_turn: Callable[[], None]) -> None:
        """Call `take_turn`, which calls `engine_turn` through `super().take_turn()`."""
        self._engine_turn = engine_turn
        try:
            self.take_turn()
        finally:
            self._engine_turn = None

    def action_mask_of(self, index: int) -> Array | None:
        """Return the (W, A) allowed actions of one agent, or None if all are allowed."""
        if self._overrides_action_masks:
            masks: Array | None = self.action_masks()[index]
            return masks
        rows = [agents[index].action_mask(world) for _, world, agents in self._each_world()]
        return None if any(mask is None for mask in rows) else np.array(rows, np.bool_)

    def copies_of(self, index: int) -> list[Agent]:
        """Return the `Agent` object of agent `index` in each world; a single one if the environment is vectorised."""
        return [agents[index] for _, agents in self._copies]

    def add_rewards(self, rewards: Array) -> None:
        """Add the (N, W) rewards of a turn to the `total_reward` of the worlds."""
        self.add_to_total(rewards)

    def add_to_total(self, rewards: Array) -> None:
        """Add (N, W) rewards of one or several turns to the `total_reward` of the worlds."""
        for column, (world, _) in enumerate(self._copies):
            if hasattr(world, "total_reward"):
                world_rewards = rewards if self.vectorised else rewards[:, column]
                world.total_reward += float(np.add.reduce(world_rewards, axis=None))

    def workers(self) -> Sequence[Monitored]:
        """Return the worker processes of the worlds, for the watchdog; none if the worlds live in this process."""
        return ()

    # -- running -----------------------------------------------------------------------------------------------

    def run_experiment(self, epochs: int | None = None, *, callbacks: Sequence[Any] = ()) -> RunSummary:
        """Run until `epochs` epochs are done (by default as configured) and train every scheduled round.

        Called again with more epochs, it continues where it stopped.
        """
        total = self.config.experiment.epochs if epochs is None else epochs
        return self.prepare().until(total, callbacks=callbacks)

    def prepare(self) -> Run:
        """Return the run with its replicas, stacks and plan; raise here, before it starts, if it cannot work."""
        if self._run is None:
            self._run = Run(self.replicas(), self.config, timeline=self.timeline)
        return self._run

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        exploration: float = 0.0,
        on_turn: Callable[[Environment], None] | None = None,
    ) -> Evaluation:
        """Measure the agents as they are now: whole episodes in new worlds, with random numbers of their own.

        on_turn: called after every turn with the environment of the evaluation, for example to draw it.
        """
        count = episodes or self.config.experiment.eval_episodes
        return evaluate(self, count, exploration=exploration, on_turn=on_turn)

    def replicas(self) -> list[Environment]:
        """Return this environment, and one for each further seed and each further combination of a sweep."""
        seeds = range(self.seed, self.seed + self.config.experiment.seeds)
        configs = [self.config.replica(seed, setting) for setting in self.config.experiment.settings for seed in seeds]
        return [self, *(self.with_config(config) for config in configs[1:])]

    def with_config(self, config: Config) -> Environment:
        """Return a new environment of this class with another configuration."""
        if self._initial_world is None:
            return type(self)(config=config)
        return type(self)(copy.deepcopy(self._initial_world), config)

    def shard_maker(self) -> Callable[..., Environment]:
        """Return a function that makes this environment with some of its worlds, `worlds=range(…)`, in any process."""
        return partial(type(self), copy.deepcopy(self._initial_world), self.config)

    # -- details -----------------------------------------------------------------------------------------------

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

    def _set_up(self, world: Any) -> None:
        """Make the agents, once if vectorised, else once per world, with the models of the first world."""
        for index in range(1 if self.vectorised else self.n_worlds):
            world_copy = world if index == 0 else copy.deepcopy(self._initial_world)
            self.world = SimpleNamespace(total_reward=0.0, is_done=False) if world_copy is None else world_copy
            self.agents = []
            self.selected = index
            if hasattr(self.world, "create_world"):
                self.world.create_world()
            self.setup_agents()
            if not self.agents:
                raise ContractError(
                    f"{type(self).__name__}.setup_agents() left self.agents empty: put at least one Agent there"
                )
            self._copies.append((self.world, self.agents))
            for agent, first in zip(self.agents, self._copies[0][1], strict=True):
                agent.model = first.model
            self.populate_environment()
        self._select(0)

    def _check_agents(self) -> None:
        """Name the agents, raise if two of them share a model, a buffer or a name, and initialise their models."""
        for index, agent in enumerate(self.agents):
            agent.name = agent.name or f"agent_{index}"
        _check_distinct(self.agents, "model", lambda agent: agent.model)
        _check_distinct(self.agents, "name", lambda agent: agent.name, by_value=True)
        for index, agent in enumerate(self.agents):
            if hasattr(agent.model, "place"):
                agent.model.place(seed=self.seed, agent=index, worlds=self.n_worlds)
            if self.masks_actions and isinstance(agent.model, Model):
                agent.model.use_masks()
        _check_distinct(self.agents, "buffer", lambda agent: getattr(agent.model, "memory", None))

    def _make_streams(self) -> Streams:
        return Streams(self.seed, self.world_numbers, self.epoch)

    def _each_world(self) -> Iterator[tuple[int, Any, list[Agent]]]:
        """Yield each world's index, object and agents, with `self.world`, `self.agents` and `self.rng` set to it."""
        for index, (world, agents) in enumerate(self._copies):
            self._select(index)
            yield index, world, agents
        self._select(0)

    def _select(self, index: int) -> None:
        """Set `self.world`, `self.agents` and `self.rng` to those of one world."""
        self.selected = index
        self.world, self.agents = self._copies[index]


class ParallelEnvironment(Environment):
    """An `Environment` whose configuration may ask for batched acting, stacked training and background learning."""


def _first_of_sweep(config: Config) -> Config:
    """Return the configuration with the first combination of a sweep's values: those of this environment itself."""
    first = config.experiment.settings[0]
    return Config.build(merge(config.as_dict(), *(nested(key, value) for key, value in first.items())))


def _check_distinct(agents: Sequence[Agent], what: str, get: Callable[[Agent], Any], *, by_value: bool = False) -> None:
    """Raise `SharingError` if two agents have the same object (or, by_value, equal values); None is not compared."""
    owners: dict[Any, Agent] = {}
    for agent in agents:
        value = get(agent)
        if value is None:
            continue
        owner = owners.setdefault(value if by_value else id(value), agent)
        if owner is not agent:
            raise SharingError(
                f"{owner.name} and {agent.name} hold the same {what}: nothing may be shared, "
                f"give every agent a {what} of its own"
            )
