"""Games written for sorrel, made faster without changing them:

    from parallel_agents.env.adapters.sorrel import ParallelEnvironment

    class Fast(TheirGame, ParallelEnvironment):
        pass

    Fast(world, config).run_experiment()

sorrel itself is never imported: any framework with its names works. `ParallelEnvironment` becomes a class between the
game and sorrel's environment class: after the game, so that what the game overrides still runs, and before sorrel,
whose turns and training it replaces. By default agents act one after the other, as in sorrel, and sorrel's own loop
counts the epochs; docs/adapters.md says what is faster.
"""

from __future__ import annotations

import types
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from parallel_agents.core.config import Parallel, build_section, merge
from parallel_agents.core.errors import ConfigError, ContractError
from parallel_agents.env.adapters.background_trainer import BackgroundTrainer, can_train_in_background
from parallel_agents.env.adapters.batched_networks import (
    BatchedNetworks,
    ForwardCall,
    ForwardRequest,
    eval_mode,
    networks_of,
    replaced_forward,
)

SORREL_DEFAULTS = {"turn_order": "sequential", "train_interval": 1}
"""Settings that differ from our own defaults, so that a game plays as it does in sorrel."""


def parallelize(game: type) -> type:
    """Return `class Fast(game, ParallelEnvironment): pass`."""
    return types.new_class(f"Fast{game.__name__}", types.resolve_bases((game, ParallelEnvironment)))


class _ParallelEnvironmentBase:
    """Stands for a base class that is made once the game's framework is known."""

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (_mixed_with(_framework_of([base for base in bases if isinstance(base, type)])),)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, ParallelMixin)


ParallelEnvironment: Any = _ParallelEnvironmentBase()
"""Write it as a base class after the game."""


def _framework_of(games: list[type]) -> type:
    """Return sorrel's environment class: the oldest ancestor with `run_experiment` and `take_turn`."""
    for ancestor in (ancestor for game in games for ancestor in reversed(game.__mro__)):
        if "run_experiment" in vars(ancestor) and "take_turn" in vars(ancestor):
            return ancestor
    raise ContractError(
        "ParallelEnvironment of adapters.sorrel needs a game with sorrel's run_experiment() and take_turn() before it: "
        "class Fast(TheirGame, ParallelEnvironment)"
    )


@lru_cache(maxsize=16)
def _mixed_with(framework: type) -> type:
    return types.new_class("ParallelEnvironment", (ParallelMixin, framework))


@dataclass
class _AdapterState:
    """What the adapter keeps for one game."""

    flags: Parallel
    trainer: BackgroundTrainer | None = None
    background: frozenset[str] = frozenset()
    """Agents whose models the trainer trains."""
    batches: dict[int, BatchedNetworks] = field(default_factory=dict)
    """The batch of each network, by the network's id."""
    train_calls: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    """How many trainings are done, without those of the current trainer."""
    started: bool = False
    """True once our `run_experiment`, or the warning that it was not called, has come."""

    @property
    def wants_background(self) -> bool:
        """True if the settings ask for training in the background."""
        flags = self.flags
        return flags.enabled and flags.async_learning and flags.policy_lag > 0 and flags.backend != "inline"

    def close_trainer(self) -> None:
        if self.trainer is not None:
            self.trained += self.trainer.steps
            self.trainer.close()
            self.trainer, self.background = None, frozenset()


def _read_flags(config: Any) -> Parallel:
    """Return the game's `parallel` section over sorrel's defaults; raise if it asks for what cannot be done."""
    flags = build_section(Parallel, merge(SORREL_DEFAULTS, dict(config.get("parallel") or {})), "parallel")
    if flags.backend in ("process", "ray") or flags.use_threads is False:
        raise ConfigError(
            f"parallel.backend is {flags.backend or 'process'!r}: sorrel's models are trained by a thread or inline; "
            "leave it out, or use 'thread' or 'inline'"
        )
    if flags.policy_lag > 1 or flags.publish == "asap":
        raise ConfigError(
            f"parallel.policy_lag is {flags.policy_lag} and parallel.publish is {flags.publish!r}: sorrel's models act "
            "at most one training behind, always as scheduled; use a lag of 0 or 1 and 'scheduled'"
        )
    return flags


class ParallelMixin:
    """Works on any class with sorrel's `world`, `agents`, `turn`, `config` and loop."""

    world: Any
    agents: list[Any]
    turn: int
    config: Any
    _adapter_state: _AdapterState | None = None

    @property
    def _adapter(self) -> _AdapterState:
        if self._adapter_state is None:
            self._adapter_state = _AdapterState(_read_flags(self.config))
        return self._adapter_state

    @property
    def train_steps(self) -> int:
        """How many calls of `train_step` are done, of all agents together."""
        trainer = self._adapter.trainer
        return self._adapter.trained + (trainer.steps if trainer is not None else 0)

    # -- what sorrel's loop calls ------------------------------------------------------------------------------

    def run_experiment(self, *args: Any, **kwargs: Any) -> Any:
        """Run sorrel's own loop, then wait for trainings that are still running."""
        with ExitStack() as stack:
            self._start_trainer(stack)
            result = super().run_experiment(*args, **kwargs)  # type: ignore[misc]
            if self._adapter.trainer is not None:
                self._adapter.trainer.finish()
        return result

    def take_turn(self, *args: Any, **kwargs: Any) -> None:
        """Take one turn: sorrel's own, or one in which all agents choose at once."""
        adapter = self._adapter
        if not adapter.started and adapter.wants_background:
            adapter.started = True
            game = type(self).__name__
            warnings.warn(f"{game} has a run_experiment() of its own: its training stays inline", stacklevel=3)
        if adapter.flags.turn_order == "sequential":
            super().take_turn(*args, **kwargs)  # type: ignore[misc]
            return
        self.turn += 1
        self._move_entities()
        self._act_at_once()
        if getattr(self, "_active_logger", None) is not None and hasattr(self, "collect_turn_stats"):
            epoch = args[0] if args else kwargs.get("epoch", 0)
            self.on_turn_end(self.collect_turn_stats(epoch))  # type: ignore[attr-defined]

    def _model_start_epoch_action(self, agent: Any, epoch: int) -> None:
        super()._model_start_epoch_action(agent, epoch)  # type: ignore[misc]
        trainer, name = self._adapter.trainer, _agent_name(self.agents, agent)
        if trainer is not None and name in self._adapter.background:
            trainer.start_epoch(name, epoch)

    def _model_train_step(self, agent: Any) -> Any:
        """Train an agent in every `train_interval`-th call, in the background if possible; return its latest loss."""
        adapter, name = self._adapter, _agent_name(self.agents, agent)
        adapter.train_calls[name] += 1
        if adapter.train_calls[name] % adapter.flags.train_interval:
            return 0.0
        if adapter.trainer is not None and name in adapter.background:
            return adapter.trainer.train(name)
        adapter.trained += 1
        return super()._model_train_step(agent)  # type: ignore[misc]

    def _start_trainer(self, stack: ExitStack) -> None:
        """Start to train models in the background, those that can be, if the settings ask for it."""
        adapter = self._adapter
        adapter.started = True
        if not adapter.wants_background:
            return
        if not hasattr(super(), "_model_train_step"):
            warnings.warn("this version of sorrel trains without a hook: training stays inline", stacklevel=3)
            return
        models = {
            _agent_name(self.agents, agent): agent.model
            for agent in self.agents
            if can_train_in_background(agent.model)
        }
        if len({id(model) for model in models.values()}) < len(models):
            warnings.warn("agents share a model: training stays inline", stacklevel=3)
            return
        if models:
            adapter.background = frozenset(models)
            adapter.trainer = BackgroundTrainer(models, adapter.flags.round_deadline)
            stack.callback(adapter.close_trainer)
            networks = [network for model in models.values() for network in networks_of(model).values()]
            stack.enter_context(eval_mode(networks))

    # -- turns in which all agents choose at once --------------------------------------------------------------

    def _move_entities(self) -> None:
        """Move everything on the map that is not an agent; the map is read cell by cell, since moves may change it."""
        for entity in self.world.map.flat:
            if entity.has_transitions and not hasattr(entity, "pov"):
                entity.transition(self.world)

    def _act_at_once(self) -> None:
        """Let all agents observe, all choose, then all act in list order; overridden transitions run as they are."""
        world = self.world
        regular = [agent for agent in self.agents if type(agent).transition is _agent_class(type(agent)).transition]
        states = [agent.pov(world) for agent in regular]
        actions = self._choose_actions(regular, states)
        choices = {id(agent): pair for agent, *pair in zip(regular, states, actions, strict=True)}
        for agent in self.agents:
            if id(agent) not in choices:
                agent.transition(world)
                continue
            state, action = choices[id(agent)]
            reward = agent.act(world, action)
            done = agent.is_done(world)
            world.total_reward += reward
            agent.add_memory(state, action, reward, done)

    def _choose_actions(self, agents: list[Any], states: list[Any]) -> list[Any]:
        """Return the action of every agent's own `get_action`, with equal networks computed in one batch.

        `get_action` is called once to find the inputs of the network, and again with its output.
        """
        actions: list[Any] = [None] * len(agents)
        calls: dict[int, ForwardCall] = {}
        batched = self._adapter.flags.enabled and self._adapter.flags.parallel_actions
        for index, (agent, state) in enumerate(zip(agents, states, strict=True)):
            networks = list(networks_of(agent.model).values()) if batched else []
            try:
                with replaced_forward(networks, ForwardRequest.forward):
                    actions[index] = agent.get_action(state)
            except ForwardRequest as request:
                calls[index] = request.call
        for index, output in self._compute(calls).items():
            agent, network = agents[index], calls[index].network
            with replaced_forward([network], lambda *_, output=output, **__: output), _no_exploration(agent.model):
                actions[index] = agent.get_action(states[index])
        return actions

    def _compute(self, calls: dict[int, ForwardCall]) -> dict[int, Any]:
        """Return the output of each call, computed in one batch per architecture."""
        groups: dict[BatchedNetworks, list[int]] = {}
        for index, call in calls.items():
            groups.setdefault(self._batch_of(call.network), []).append(index)
        outputs: dict[int, Any] = {}
        with torch.no_grad():
            for batch, indices in groups.items():
                outputs |= zip(indices, batch.forward([calls[index] for index in indices]), strict=True)
        return outputs

    def _batch_of(self, network: Any) -> BatchedNetworks:
        """Return the batch of a network and those like it: the same attribute of other agents' models."""
        batches = self._adapter.batches
        if id(network) not in batches:
            held = [networks_of(agent.model) for agent in self.agents]
            attribute = next(name for named in held for name, other in named.items() if other is network)
            others = [named[attribute] for named in held if attribute in named]
            alike = [other for other in others if BatchedNetworks.key(other) == BatchedNetworks.key(network)]
            batches.update(dict.fromkeys(map(id, alike), BatchedNetworks(list(dict.fromkeys(alike)))))
        return batches[id(network)]


def _agent_name(agents: list[Any], agent: Any) -> str:
    return f"agent_{next(index for index, other in enumerate(agents) if other is agent)}"


@contextmanager
def _no_exploration(model: Any) -> Iterator[None]:
    """Keep a model that has decided not to explore from deciding again."""
    epsilon = getattr(model, "epsilon", None)
    if epsilon is not None:
        model.epsilon = 0.0
    try:
        yield
    finally:
        if epsilon is not None:
            model.epsilon = epsilon


def _agent_class(cls: type) -> Any:
    """Return sorrel's own agent class: the oldest ancestor with `pov`."""
    return next(ancestor for ancestor in reversed(cls.__mro__) if "pov" in vars(ancestor))
