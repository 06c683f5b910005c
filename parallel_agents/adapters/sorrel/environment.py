"""What `class Fast(TheirGame, ParallelEnvironment)` becomes: sorrel's own loop with quicker turns and training.

The framework's environment class is found among the game's ancestors, and ours is put right in front of it: behind
the game, so that what the game overrides still runs, and before the framework, whose turns it takes over.
"""

from __future__ import annotations

import types
import warnings
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from parallel_agents.adapters.sorrel.networks import Chorus, Wanted, answering, ask, networks, still
from parallel_agents.adapters.sorrel.training import Tutor, can_study
from parallel_agents.config import Parallel, build_section, merge
from parallel_agents.errors import ConfigError, ContractError

__all__ = ["ParallelEnvironment", "ParallelMixin", "parallelize"]

DEFAULTS = {"turn_order": "sequential", "train_interval": 1}
"""What differs from our own defaults, so that a game plays as it did."""


@dataclass
class _Bench:
    """What the adapter keeps of one game."""

    flags: Parallel
    tutor: Tutor | None = None
    studying: frozenset[str] = frozenset()
    """Agents whose models the tutor trains."""
    singers: dict[int, Chorus] = field(default_factory=dict)
    """Which chorus a network belongs to, by its id."""
    calls: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    opened: bool = False

    @property
    def background(self) -> bool:
        """Whether the settings want models trained in the background."""
        flags = self.flags
        return flags.enabled and flags.async_learning and flags.policy_lag > 0 and flags.backend != "inline"

    def expect_to_be_open(self, game: str) -> None:
        """Say so, once, where a game has a loop of its own, around ours."""
        if not self.opened and self.background:
            self.opened = True
            warnings.warn(f"{game} has a run_experiment() of its own: its training stays inline", stacklevel=4)

    def dismiss(self) -> None:
        """Let the tutor go."""
        if self.tutor is not None:
            self.trained += self.tutor.steps
            self.tutor.close()
            self.tutor, self.studying = None, frozenset()


def _settings(config: Any) -> Parallel:
    """The game's `parallel` section, over what makes it play as it did."""
    flags = build_section(Parallel, merge(DEFAULTS, dict(config.get("parallel") or {})), "parallel")
    if flags.backend in ("process", "ray") or flags.use_threads is False:
        raise ConfigError(
            f"parallel.backend is {flags.backend or 'process'!r}: foreign models are trained by a thread or inline; "
            "leave it out, or use 'thread' or 'inline'"
        )
    if flags.policy_lag > 1 or flags.publish == "asap":
        raise ConfigError(
            "parallel.policy_lag and parallel.publish: foreign models act one training behind (1) or none (0), always "
            "as scheduled"
        )
    return flags


class ParallelMixin:
    """Works on whatever has sorrel's `world`, `agents`, `turn`, `config` and loop."""

    world: Any
    agents: list[Any]
    turn: int
    config: Any
    _made: _Bench | None = None

    @property
    def _bench(self) -> _Bench:
        if self._made is None:
            self._made = _Bench(_settings(self.config))
        return self._made

    @property
    def train_steps(self) -> int:
        """Calls of `train_step` that are done, of all agents together."""
        return self._bench.trained + (self._bench.tutor.steps if self._bench.tutor is not None else 0)

    # -- what sorrel's loop calls ------------------------------------------------------------------------------

    def run_experiment(self, *arguments: Any, **keywords: Any) -> Any:
        """sorrel's own loop; whatever is still being trained at its end is awaited."""
        with ExitStack() as open_:
            self._open(open_)
            result = super().run_experiment(*arguments, **keywords)  # type: ignore[misc]
            if self._bench.tutor is not None:
                self._bench.tutor.finish()
        return result

    def take_turn(self, *arguments: Any, **keywords: Any) -> None:
        """One turn: sorrel's own, or with all agents deciding at once."""
        self._bench.expect_to_be_open(type(self).__name__)
        if self._bench.flags.turn_order == "sequential":
            super().take_turn(*arguments, **keywords)  # type: ignore[misc]
            return
        self.turn += 1
        self._move_others()
        self._act_at_once()
        if getattr(self, "_active_logger", None) is not None and hasattr(self, "collect_turn_stats"):
            epoch = arguments[0] if arguments else keywords.get("epoch", 0)
            self.on_turn_end(self.collect_turn_stats(epoch))  # type: ignore[attr-defined]

    def _model_start_epoch_action(self, agent: Any, epoch: int) -> None:
        super()._model_start_epoch_action(agent, epoch)  # type: ignore[misc]
        name = _name(self.agents, agent)
        if self._bench.tutor is not None and name in self._bench.studying:
            self._bench.tutor.note_epoch(name, epoch)

    def _model_train_step(self, agent: Any) -> Any:
        """Train an agent every `train_interval` epochs, in the background where that can be; its latest loss."""
        bench, name = self._bench, _name(self.agents, agent)
        bench.calls[name] += 1
        if bench.calls[name] % bench.flags.train_interval:
            return 0.0
        if bench.tutor is not None and name in bench.studying:
            return bench.tutor.train(name)
        bench.trained += 1
        return super()._model_train_step(agent)  # type: ignore[misc]

    def _open(self, open_: ExitStack) -> None:
        """Students for all models that can have one, unless the settings want everything inline."""
        bench = self._bench
        bench.opened = True
        if not bench.background:
            return
        if not hasattr(super(), "_model_train_step"):
            warnings.warn("this version of sorrel trains without a hook: training stays inline", stacklevel=3)
            return
        models = {_name(self.agents, agent): agent.model for agent in self.agents if can_study(agent.model)}
        if len({id(model) for model in models.values()}) < len(models):
            warnings.warn("agents share a model: training stays inline", stacklevel=3)
            return
        if models:
            bench.studying = frozenset(models)
            bench.tutor = Tutor(models, bench.flags.round_deadline)
            open_.callback(bench.dismiss)
            open_.enter_context(still([net for model in models.values() for net in networks(model).values()]))

    # -- turns with all agents deciding at once --------------------------------------------------------------

    def _move_others(self) -> None:
        """Everything on the map that moves by itself and is no agent; read cell by cell, since it may change it."""
        for entity in self.world.map.flat:
            if entity.has_transitions and not hasattr(entity, "pov"):
                entity.transition(self.world)

    def _act_at_once(self) -> None:
        """All observe, all decide, then all act in list order; agents with a `transition` of their own use that."""
        world = self.world
        usual = [agent for agent in self.agents if type(agent).transition is _root(type(agent)).transition]
        states = [agent.pov(world) for agent in usual]
        decided = {id(agent): own for agent, *own in zip(usual, states, self._decide(usual, states), strict=True)}
        for agent in self.agents:
            if id(agent) not in decided:
                agent.transition(world)
                continue
            state, action = decided[id(agent)]
            reward = agent.act(world, action)
            done = agent.is_done(world)
            world.total_reward += reward
            agent.add_memory(state, action, reward, done)

    def _decide(self, agents: list[Any], states: list[Any]) -> list[Any]:
        """Every agent's own `get_action`, with the networks that they need computed together."""
        chosen: list[Any] = [None] * len(agents)
        asked: dict[int, Wanted] = {}
        together = self._bench.flags.enabled and self._bench.flags.parallel_actions
        for place, (agent, state) in enumerate(zip(agents, states, strict=True)):
            nets = list(networks(agent.model).values()) if together else []
            try:
                with answering(nets, ask):
                    chosen[place] = agent.get_action(state)
            except Wanted as wanted:
                asked[place] = wanted
        for place, answer in self._answers(asked).items():
            agent = agents[place]
            with answering([asked[place].call.network], lambda *_, own=answer, **__: own), _not_exploring(agent.model):
                chosen[place] = agent.get_action(states[place])
        return chosen

    def _answers(self, asked: dict[int, Wanted]) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        with torch.no_grad():
            for chorus, places in self._grouped(asked):
                answers |= zip(places, chorus.answers([asked[place].call for place in places]), strict=True)
        return answers

    def _grouped(self, asked: dict[int, Wanted]) -> list[tuple[Chorus, list[int]]]:
        """Places whose networks sing together."""
        singers = self._bench.singers
        for wanted in asked.values():
            if id(wanted.call.network) not in singers:
                singers.update(self._choirs(wanted.call.network))
        groups: dict[int, tuple[Chorus, list[int]]] = {}
        for place, wanted in asked.items():
            chorus = singers[id(wanted.call.network)]
            groups.setdefault(id(chorus), (chorus, []))[1].append(place)
        return list(groups.values())

    def _choirs(self, network: Any) -> dict[int, Chorus]:
        """A chorus of all networks like this one: those of the same name in the agents' models."""
        name = next(own for agent in self.agents for own, net in networks(agent.model).items() if net is network)
        alike = [networks(agent.model).get(name) for agent in self.agents]
        members = [net for net in alike if net is not None and Chorus.key(net) == Chorus.key(network)]
        chorus = Chorus(list(dict.fromkeys(members)))
        return {id(net): chorus for net in members}


class _not_exploring:  # noqa: N801 - used as a word
    """A model that has already decided not to explore does not decide again."""

    def __init__(self, model: Any) -> None:
        self._model, self._epsilon = model, getattr(model, "epsilon", None)

    def __enter__(self) -> None:
        if self._epsilon is not None:
            self._model.epsilon = 0.0

    def __exit__(self, *_: object) -> None:
        if self._epsilon is not None:
            self._model.epsilon = self._epsilon


def _name(agents: list[Any], agent: Any) -> str:
    return f"agent_{next(place for place, own in enumerate(agents) if own is agent)}"


def _root(kind: type) -> Any:
    """The framework's own class of agents: the first of its ancestors that can see."""
    return next(own for own in reversed(kind.__mro__) if "pov" in vars(own))


class _Door:
    """Stands for a class that is made once it is known which framework the game belongs to."""

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        games = [base for base in bases if isinstance(base, type)]
        return (_in_front_of(_framework(games)),)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, ParallelMixin)


ParallelEnvironment: Any = _Door()
"""Name it after a game as a base class."""


def parallelize(game: type) -> type:
    """`class Fast(game, ParallelEnvironment): pass`, in one call."""
    return types.new_class(f"Fast{game.__name__}", types.resolve_bases((game, ParallelEnvironment)))


def _framework(games: list[type]) -> type:
    """The oldest ancestor that has a loop and takes turns."""
    for own in (own for game in games for own in reversed(game.__mro__)):
        if "run_experiment" in vars(own) and "take_turn" in vars(own):
            return own
    raise ContractError(
        "ParallelEnvironment of adapters.sorrel stands after a game with sorrel's run_experiment() and take_turn(): "
        "class Fast(TheirGame, ParallelEnvironment)"
    )


@lru_cache(maxsize=16)
def _in_front_of(framework: type) -> type:
    return types.new_class("ParallelEnvironment", (ParallelMixin, framework))
