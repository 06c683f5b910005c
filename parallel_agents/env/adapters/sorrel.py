"""Games written for sorrel, made faster without changing them:

    from parallel_agents.env.adapters.sorrel import ParallelEnvironment

    class Fast(TheirGame, ParallelEnvironment):
        pass

    Fast(world, config).run_experiment()

sorrel itself is never imported: any framework with its names works. `ParallelEnvironment` becomes a class between the
game and sorrel's environment class: after the game, so that what the game overrides still runs, and before sorrel,
whose turns and training it replaces. The results are those of sorrel, bit for bit, unless `parallel.backend` is
"process": then models are trained in the background and act one training behind.
"""

from __future__ import annotations

import copy
import random
import types
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PosixPath
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn

from parallel_agents.core.config import Parallel, build_section, merge
from parallel_agents.core.errors import ConfigError, ContractError, DeadlineError, LearnerError
from parallel_agents.core.types import Array
from parallel_agents.execution.backend import Heartbeat
from parallel_agents.execution.workers import START_DEADLINE, SharedBlock, Worker
from parallel_agents.nn import numerics

SORREL_DEFAULTS = {"turn_order": "sequential", "train_interval": 1, "backend": "inline"}
"""Settings that differ from our own defaults, so that a game gives the results that it has in sorrel."""


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
    train_calls: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    """How many trainings are done, without those of the current trainer."""
    started: bool = False
    """True once our `run_experiment`, or the warning that it was not called, has come."""

    @property
    def wants_background(self) -> bool:
        """True if the settings ask for training in the background."""
        return self.flags.enabled and self.flags.backend == "process"

    def close_trainer(self) -> None:
        if self.trainer is not None:
            self.trained += self.trainer.steps
            self.trainer.close()
            self.trainer, self.background = None, frozenset()


def _read_flags(config: Any) -> Parallel:
    """Return the game's `parallel` section over sorrel's defaults; raise if it asks for what cannot be done."""
    flags = build_section(Parallel, merge(SORREL_DEFAULTS, dict(config.get("parallel") or {})), "parallel")
    if flags.backend not in ("process", "inline") or flags.use_threads:
        raise ConfigError(
            f"parallel.backend is {flags.backend!r}, parallel.use_threads is {flags.use_threads}: sorrel's models are "
            "trained inline or by a process; leave both out, or set parallel.backend = 'process'"
        )
    if flags.policy_lag != 1 or flags.publish == "asap":
        raise ConfigError(
            f"parallel.policy_lag is {flags.policy_lag} and parallel.publish is {flags.publish!r}: sorrel's models act "
            "one training behind with parallel.backend = 'process', else with their newest weights; leave both out"
        )
    if flags.turn_order != "sequential":
        raise ConfigError(f"parallel.turn_order is {flags.turn_order!r}: sorrel's agents act one after the other")
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
            copy_shallowly(getattr(self.world, "default_entity", None))
            for agent in self.agents:
                for network in networks_of(agent.model).values():
                    ModeSwitch.install(network)
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
        """Take one turn as sorrel does."""
        adapter = self._adapter
        if not adapter.started and adapter.wants_background:
            adapter.started = True
            game = type(self).__name__
            warnings.warn(f"{game} has a run_experiment() of its own: its training stays inline", stacklevel=3)
        self.turn += 1
        self._move_entities()
        with fast_observations(self.agents):
            for agent in self.agents:
                agent.transition(self.world)
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
        models = {_agent_name(self.agents, agent): agent.model for agent in self.agents}
        if len({id(model) for model in models.values()}) < len(models):
            warnings.warn("agents share a model: training stays inline", stacklevel=3)
            return
        pickled = {name: sent for name, model in models.items() if (sent := pickled_learner(model)) is not None}
        models = {name: models[name] for name in pickled}
        if models:
            adapter.background = frozenset(models)
            adapter.trainer = BackgroundTrainer(models, pickled, adapter.flags.round_deadline)
            stack.callback(adapter.close_trainer)
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)  # the other cores are the learner's

    def _move_entities(self) -> None:
        """Move everything on the map that is not an agent; the map is read cell by cell, since moves may change it."""
        for entity in self.world.map.flat:
            if entity.has_transitions and not hasattr(entity, "pov"):
                entity.transition(self.world)


def _agent_name(agents: list[Any], agent: Any) -> str:
    return f"agent_{next(index for index, other in enumerate(agents) if other is agent)}"


# -- networks: finding them, switching their mode ----------------------------------------------------------------------


def networks_of(model: Any) -> dict[str, nn.Module]:
    """Return the networks that a model holds, by attribute name."""
    if isinstance(model, nn.Module):
        return dict(model.named_children())
    return {name: value for name, value in vars(model).items() if isinstance(value, nn.Module)}


class ModeSwitch:
    """Sets the mode of a network as `Module.train` does: sorrel's models switch twice for each action."""

    def __init__(self, network: nn.Module) -> None:
        self._modules = list(network.modules())

    @classmethod
    def install(cls, network: nn.Module) -> None:
        """Replace a network's `train`, which its `eval` calls too, unless a part of it has its own."""
        if all(type(part).train is nn.Module.train for part in network.modules()):
            network.__dict__["train"] = cls(network)  # an object and no closure: a copy of the network switches itself

    def __call__(self, mode: bool = True) -> nn.Module:
        for part in self._modules:
            part.__dict__["training"] = mode
        return self._modules[0]


# -- sorrel's worlds: the same results in less time --------------------------------------------------------------------

_IMMUTABLE = {bool, int, float, str, type(None), PosixPath}


def copy_shallowly(entity: Any) -> None:
    """Let `copy.deepcopy` share what cannot change: sorrel's worlds copy an entity twice for each step of an agent."""
    cls: Any = type(entity)
    own = any(
        getattr(cls, name) is not getattr(object, name) for name in ("__reduce_ex__", "__reduce__", "__getstate__")
    )
    if own or hasattr(entity, "__deepcopy__") or hasattr(cls, "__setstate__") or not hasattr(entity, "__dict__"):
        return

    def copied(memo: dict[int, Any]) -> Any:
        twin = memo[id(entity)] = cls.__new__(cls)
        for name, value in vars(entity).items():
            if name != "__deepcopy__":
                vars(twin)[name] = value if type(value) in _IMMUTABLE else copy.deepcopy(value, memo)
        return twin

    entity.__deepcopy__ = copied


@contextmanager
def fast_observations(agents: Sequence[Any]) -> Iterator[None]:
    """Replace the function with which sorrel's observation specs look up one cell after the other, for one turn."""
    specs: set[Any] = {type(getattr(agent, "observation_spec", None)) for agent in agents}
    modules = {id(module): module for spec in specs if (module := _encoder_module(spec)) is not None}
    own = {key: module["_build_one_hot"] for key, module in modules.items()}
    encoder = Encoder()
    for module in modules.values():
        module["_build_one_hot"] = encoder
    try:
        yield
    finally:
        for key, module in modules.items():
            module["_build_one_hot"] = own[key]


@lru_cache(maxsize=64)
def _encoder_module(spec: Any) -> dict[str, Any] | None:
    """Return the names of the module whose `_build_one_hot` a spec's `observe` uses, if it is sorrel's."""
    for cls in spec.__mro__:
        field_of_view = getattr(vars(cls).get("observe"), "__globals__", {}).get("visual_field")
        names: dict[str, Any] = getattr(field_of_view, "__globals__", {})
        if "_build_one_hot" in names:
            return names
    return None


class Encoder:
    """Encodes regions of a map as sorrel's `_build_one_hot` does: appearances by kind, summed over layers.

    The tables of one encoder serve one turn, since a game may change its appearances.
    """

    def __init__(self) -> None:
        self._tables: dict[int, tuple[dict[str, int], Array]] = {}

    def __call__(self, region: Array, appearances: Mapping[str, Array], channels: int) -> Array:
        table = self._tables.get(id(appearances))
        if table is None:
            columns = np.array(list(appearances.values()), np.float64).T
            table = {kind: column for column, kind in enumerate(appearances)}, np.ascontiguousarray(columns)
            self._tables[id(appearances)] = table
        column_of, columns = table
        seen = [column_of[entity.kind] for entity in region.ravel().tolist()]
        total: Array = np.add.reduce(columns.take(seen, axis=1).reshape(channels, *region.shape), axis=-1)
        return total


# -- training in the background ----------------------------------------------------------------------------------------


def pickled_learner(model: Any) -> bytes | None:
    """Return a model that learns off-policy from arrays with networks, as bytes; None for others."""
    memory = getattr(model, "memory", None)
    if memory is None or not networks_of(model) or not hasattr(model, "train_step"):
        return None
    if "rollout" in type(memory).__name__.lower() or hasattr(model, "eps_clip"):  # on-policy
        return None
    if any(array.dtype.kind not in "biuf" for array in _arrays(memory).values()):
        return None
    try:
        return bytes(cloudpickle.dumps(model))
    except TypeError:  # it holds a lock or a handle
        return None


def _arrays(memory: Any) -> dict[str, Array]:
    """Return the arrays of a memory, also those in dictionaries, by name."""
    found = {}
    for name, value in vars(memory).items():
        for key, inner in value.items() if isinstance(value, dict) else [("", value)]:
            if isinstance(inner, np.ndarray):
                found[f"{name}.{key}"] = inner
    return found


def _numbers(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if isinstance(value, int | float)}


def _weights(model: Any) -> dict[str, Tensor]:
    """Return the tensors of a model's networks by name."""
    return {
        f"{attribute}.{name}": tensor
        for attribute, network in networks_of(model).items()
        for name, tensor in network.state_dict().items()
    }


class BackgroundTrainer:
    """Trains learner copies of some models in another process, in the order of the calls of `train`.

    A learner copy learns from a copy of its model's memory, while the model itself acts with constant weights. When the
    next training is due, the copy's weights are published to the model. So acting is exactly one training behind, and
    no weight is read while it is written. Memories and weights go through shared memory: a model's part of it is
    written by the parent before it sends a request, and by the process before it answers.
    """

    def __init__(self, models: dict[str, Any], pickled: dict[str, bytes], deadline: float) -> None:
        self._models, self._deadline = models, deadline
        self._first_numbers = {name: _numbers(model) for name, model in models.items()}
        self._block = SharedBlock(
            {
                f"{name}.{key}": (tuple(tensor.shape), tensor.dtype)
                for name, model in models.items()
                for key, tensor in (_weights(model) | _tensors(_arrays(model.memory))).items()
            }
        )
        self._sent: deque[str] = deque()
        self._trained: dict[str, float] = {}
        """Losses of trainings whose weights are not published yet."""
        self._losses = dict.fromkeys(models, 0.0)
        self._epochs: dict[str, int] = {}
        self.steps = 0
        """How many trainings are done."""
        seed = int(np.random.randint(2**31))  # so that a game that seeds its generators can be repeated
        self._worker = Worker("learner-sorrel", _serve, pickled, self._block, seed)

    def start_epoch(self, name: str, epoch: int) -> None:
        """Call `start_epoch_action` of the learner copy before its next training, as was done with the model."""
        self._epochs[name] = epoch

    def train(self, name: str) -> float:
        """Publish the last training, start the next one from the model's memory of now, and return the last loss."""
        self._publish(name)
        memory = self._models[name].memory
        for key, array in _arrays(memory).items():
            np.copyto(self._block[f"{name}.{key}"].numpy(), array)
        self._worker.send((name, self._epochs.pop(name, None), _numbers(memory)))
        self._sent.append(name)
        return self._losses[name]

    def finish(self) -> None:
        """Wait for every training, and copy weights, optimizers and counters to the models."""
        for name in self._models:
            self._publish(name)
        self._worker.send(None)
        for name, (optimizers, numbers) in cloudpickle.loads(self._receive()).items():
            model, first = self._models[name], self._first_numbers[name]
            for attribute, state in optimizers.items():
                getattr(model, attribute).load_state_dict(state)
            for attribute, value in numbers.items():  # those that training has changed and the model itself has not
                if value != first[attribute] and getattr(model, attribute) == first[attribute]:
                    setattr(model, attribute, value)

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def _publish(self, name: str) -> None:
        """Wait for the training of a model, if there is one, and copy its weights to the model."""
        while name in self._sent:
            self._trained[self._sent[0]] = self._receive()
            self._sent.popleft()
            self.steps += 1
        if name in self._trained:
            self._losses[name] = self._trained.pop(name)
            for key, tensor in _weights(self._models[name]).items():
                tensor.copy_(self._block[f"{name}.{key}"])

    def _receive(self) -> Any:
        if not self._worker.ready(START_DEADLINE):
            raise DeadlineError(f"{self._worker} did not start within {START_DEADLINE:g} s")
        try:
            return self._worker.receive(self._deadline)
        except DeadlineError as error:
            waiting = self._sent[0] if self._sent else "the end"
            raise DeadlineError(f"the training of {waiting}: {error} (parallel.round_deadline)") from error


def _tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _serve(heartbeat: Heartbeat, pickled: dict[str, bytes], block: SharedBlock, seed: int) -> Callable[[Any], Any]:
    """Prepare the learner process, and return the function that trains one model, or gives what is left at the end."""
    numerics.require()
    learners: dict[str, Any] = {name: cloudpickle.loads(model) for name, model in pickled.items()}
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)

    def train(name: str, epoch: int | None, numbers: dict[str, Any]) -> float:
        learner = learners[name]
        if epoch is not None:
            learner.start_epoch_action(epoch=epoch)
        for key, array in _arrays(learner.memory).items():
            np.copyto(array, block[f"{name}.{key}"].numpy())
        vars(learner.memory).update(numbers)
        try:
            loss = float(np.asarray(learner.train_step()).mean())
        except Exception as error:
            raise LearnerError(f"train_step() of {name} raised {type(error).__name__}: {error}") from error
        for key, tensor in _weights(learner).items():
            block[f"{name}.{key}"].copy_(tensor)
        return loss

    def answer(request: tuple[str, int | None, dict[str, Any]] | None) -> Any:
        if request is not None:
            return train(*request)
        return cloudpickle.dumps({name: (_optimizers(own), _numbers(own)) for name, own in learners.items()})

    return answer


def _optimizers(model: Any) -> dict[str, Any]:
    return {name: own.state_dict() for name, own in vars(model).items() if isinstance(own, torch.optim.Optimizer)}
