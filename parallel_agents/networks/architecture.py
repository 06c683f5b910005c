"""What a user's `torch.nn.Module` is, apart from its weights.

A factory makes a module for each agent. Two modules are of one architecture, and may be rows of one stack, if their
parts have the same classes, plain attributes, buffers and parameter shapes; who made them does not matter.

Initial weights are drawn by whatever the factory calls (`nn.Linear`, `nn.init`, `torch.randn`), but from the agent's
own stream: torch's random operations are given a generator of their own, so its global one is neither read nor moved.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.machinery
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from parallel_agents.errors import ConfigError, RunError
from parallel_agents.seeding import Purpose, generator

__all__ = ["Architecture", "Factory", "OwnDraws"]

Factory = Callable[[], nn.Module]


class Architecture:
    """A module without its weights; equal for all modules that compute the same function of weights and inputs.

    >>> one, other = (Architecture(lambda: nn.Linear(3, 2)) for _ in range(2))
    >>> one == other, one == Architecture(lambda: nn.Linear(3, 1))
    (True, False)
    """

    def __init__(self, factory: Factory) -> None:
        self._factory: Factory | None = factory
        self._module = self._build(seed=0, agent=0)
        self.kinds = tuple(type(part) for part in self._module.modules())
        self.text = _description(self._module)
        self._own = threading.local()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every parameter."""
        return {name: tuple(own.shape) for name, own in self._module.named_parameters()}

    @property
    def module(self) -> nn.Module:
        """A module of this architecture for the calling thread alone: `functional_call` writes into it."""
        if not hasattr(self._own, "module"):
            self._own.module = copy.deepcopy(self._module)
        mine: nn.Module = self._own.module
        return mine

    def initial(self, seed: int, agent: int) -> dict[str, Tensor]:
        """Fresh parameters of one agent, from its own draws."""
        module = self._build(seed, agent)
        found = {name: own.detach() for name, own in module.named_parameters()}
        if _description(module) != self.text:
            raise ConfigError(
                "the network's factory made another architecture than the first time it was called: "
                "it must make the same layers for every call, and only the weights may differ"
            )
        return found

    def _build(self, seed: int, agent: int) -> nn.Module:
        if self._factory is None:
            raise RunError("a network that was sent to a worker cannot make fresh weights there")
        draws = torch.Generator()
        draws.manual_seed(int(generator(seed, Purpose.INIT, agent=agent).integers(2**63 - 1)))
        with OwnDraws(draws):
            module = self._factory()
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"the network's factory gave {module!r}: it must be a function without arguments that gives a fresh "
                "torch.nn.Module, such as lambda: nn.Sequential(…)"
            )
        _check_parameters(module)
        return module

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Architecture) and self.kinds == other.kinds and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        """The same in every process, since checkpoints compare it."""
        return f"Architecture({type(self._module).__name__}, {hashlib.sha256(self.text.encode()).hexdigest()[:16]})"

    def __reduce__(self) -> tuple[Any, ...]:
        """What a worker process gets: the module itself, with classes by value that it could not import."""
        try:
            with _by_value(self.kinds):
                return _from_bytes, (cloudpickle.dumps(self._module), self.text)
        except Exception as error:
            raise RunError(
                f"the network {type(self._module).__name__} cannot be sent to a learner process: {error!r}. "
                "Keep only plain values in it, or use backend = 'thread' or 'inline'"
            ) from error


def _from_bytes(packed: bytes, text: str) -> Architecture:
    """In the worker: from the parent's memory, never from a file."""
    received = object.__new__(Architecture)
    received._factory, received.text = None, text
    received._module = pickle.loads(packed)
    received.kinds = tuple(type(part) for part in received._module.modules())
    received._own = threading.local()
    return received


class OwnDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives torch's random operations this generator instead of the global one; without one, refuses them."""

    def __init__(self, draws: torch.Generator | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws = draws

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; torch would load its compiler, for seconds, only to leave it alone."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        if self._draws is None:
            raise ConfigError(
                f"the network draws random numbers in its forward pass ({func}), as dropout does: take that layer out"
            )
        return _seeded(func)(*args, **{**(kwargs or {}), "generator": self._draws})


def _seeded(func: Any) -> Any:
    """The form of a random operation that takes a generator."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    wanted = [argument.name for argument in func._schema.arguments]
    packet = func.overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        if [a.name for a in overload._schema.arguments if a.name != "generator"] == wanted and overload is not func:
            return overload
    raise ConfigError(f"the network's factory draws by {func}, which takes no generator: use the usual nn.init ones")


def _check_parameters(module: nn.Module) -> None:
    for name, own in module.named_parameters():
        if isinstance(own, nn.parameter.UninitializedParameter):
            raise ConfigError(f"parameter {name} of the network is lazy: give its layer all sizes")
        if own.dtype != torch.float32:
            raise ConfigError(f"parameter {name} of the network is {own.dtype}: agents are computed in float32")
        if not own.requires_grad:
            raise ConfigError(f"parameter {name} of the network is frozen: keep what is not trained in a buffer")
    if not any(True for _ in module.parameters()):
        raise ConfigError(f"the network {type(module).__name__} has no parameters: there is nothing to learn")


# -- what modules have in common -----------------------------------------------------------------------------------

_INTERNAL = set(vars(nn.Module()))


def _description(module: nn.Module) -> str:
    """Everything but the weights, as text."""
    lines = []
    for name, part in module.named_modules(remove_duplicate=False):
        plain = {key: value for key, value in vars(part).items() if key not in _INTERNAL}
        kind = type(part)
        lines.append(f"{name}: {kind.__module__}.{kind.__qualname__} {_described(plain)} training={part.training}")
    lines += [f"{name}: {tuple(own.shape)}" for name, own in module.named_parameters(remove_duplicate=False)]
    lines += [f"{name}: {_described(own)}" for name, own in module.named_buffers(remove_duplicate=False)]
    return "\n".join(lines)


def _described(value: Any, depth: int = 0) -> str:
    """A value as text that is equal for equal values, in every process."""
    deeper = partial(_described, depth=depth + 1)
    if depth > 8:
        raise ConfigError("the network holds values nested too deeply to be compared: keep plain ones in it")
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes() | torch.dtype() | torch.device():
            return repr(value)
        case weakref.ReferenceType() | nn.Parameter():  # torch's recurrent layers point at their own weights
            return "own weights"
        case Tensor():
            return deeper(value.detach().cpu().numpy())
        case np.ndarray() | np.generic():
            array = np.ascontiguousarray(value)
            return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
        case Mapping():
            return "{" + ", ".join(f"{deeper(key)}: {deeper(own)}" for key, own in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(deeper, value)) + "]"
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(deeper, value))) + "}"
        case nn.Module():
            return f"module {type(value).__qualname__}"
        case partial():
            return f"partial {deeper([value.func, value.args, value.keywords])}"
        case types.FunctionType():
            held = [cell.cell_contents for cell in value.__closure__ or ()]
            code = hashlib.sha256(value.__code__.co_code).hexdigest()
            constants = [own for own in value.__code__.co_consts if not isinstance(own, types.CodeType)]
            return f"{value.__qualname__} {code} {deeper([held, value.__defaults__, constants])}"
        case _ if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            return f"{value.__module__}.{value.__qualname__}"
        case _ if hasattr(value, "__dict__"):
            return f"{type(value).__module__}.{type(value).__qualname__} {deeper(vars(value))}"
    raise ConfigError(
        f"the network holds a {type(value).__name__}, which cannot be compared with another agent's: "
        "keep plain values, tensors or modules in it"
    )


@contextmanager
def _by_value(kinds: tuple[type, ...]) -> Iterator[None]:
    """Classes that a fresh process could not import are pickled whole; cloudpickle does so for `__main__` anyway."""
    names = {kind.__module__ for kind in kinds} - {"__main__"}
    strange = [sys.modules[name] for name in sorted(names) if name in sys.modules and not _importable(name)]
    for module in strange:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in strange:
            cloudpickle.unregister_pickle_by_value(module)


def _importable(name: str) -> bool:
    """Whether the search path leads to the file that this module was loaded from."""
    root = name.partition(".")[0]
    if root in sys.builtin_module_names:
        return True
    found = importlib.machinery.PathFinder.find_spec(root)
    return found is not None and (root != name or found.origin == getattr(sys.modules[name], "__file__", None))
