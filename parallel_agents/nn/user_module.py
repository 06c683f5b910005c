"""A user's own `torch.nn.Module` as a network whose parameters are rows.

The user gives a factory, which is called once for every agent. `Architecture` is what its modules have in common:
everything but the weights. Modules of one architecture may be rows of one stack: their parts have the same classes,
plain attributes, buffers and parameter shapes. Which function made them does not matter. `ModuleNetwork` computes with
them: layer by layer where `module_layers` knows every layer, else by `torch.func`.

Initial weights are drawn by whatever the factory calls (`nn.Linear`, `nn.init`, `torch.randn`), but from the agent's
own random stream: `SeededRandomOps` gives torch's random operations a generator, so that torch's global generator is
neither read nor moved.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.machinery
import math
import pickle
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from parallel_agents.core.errors import ConfigError, RunError
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.nn.distributions import Distribution
from parallel_agents.nn.layers import Forward, Layout, Network
from parallel_agents.nn.module_layers import ModuleLayers

Factory = Callable[[], nn.Module]
TRIAL = 3
"""Observations of the trial that a module must pass."""


class Architecture:
    """A module without its weights; equal for all modules that compute the same function of weights and inputs.

    >>> one, other = (Architecture(lambda: nn.Linear(3, 2)) for _ in range(2))
    >>> one == other, one == Architecture(lambda: nn.Linear(3, 1))
    (True, False)
    """

    def __init__(self, factory: Factory) -> None:
        self._factory: Factory | None = factory
        self._module = self._build(seed=0, agent=0)
        self.classes = tuple(type(part) for part in self._module.modules())
        self.description = _description(self._module)
        self._local = threading.local()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter."""
        return {name: tuple(parameter.shape) for name, parameter in self._module.named_parameters()}

    @property
    def module(self) -> nn.Module:
        """A module of this architecture for the calling thread alone, since `functional_call` writes into it."""
        if not hasattr(self._local, "module"):
            self._local.module = copy.deepcopy(self._module)
        module: nn.Module = self._local.module
        return module

    def initial_parameters(self, seed: int, agent: int) -> dict[str, Tensor]:
        """Return fresh parameters of one agent by name, from its own draws."""
        module = self._build(seed, agent)
        parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
        if _description(module) != self.description:
            raise ConfigError(
                "the network's factory made another architecture than the first time it was called: "
                "it must make the same layers for every call, and only the weights may differ"
            )
        return parameters

    def _build(self, seed: int, agent: int) -> nn.Module:
        """Return a fresh module of one agent; raise ConfigError if it cannot be trained."""
        if self._factory is None:
            raise RunError("a network that was sent to a worker cannot make fresh weights there")
        draws = torch.Generator()
        draws.manual_seed(int(generator(seed, Purpose.INIT, agent=agent).integers(2**63 - 1)))
        with SeededRandomOps(draws):
            module = self._factory()
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"the network's factory gave {module!r}: it must be a function without arguments that gives a fresh "
                "torch.nn.Module, such as lambda: nn.Sequential(…)"
            )
        _check_parameters(module)
        return module

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Architecture):
            return False
        return self.classes == other.classes and self.description == other.description

    def __hash__(self) -> int:
        return hash(self.description)

    def __repr__(self) -> str:
        """Return text that is the same in every process, since checkpoints compare it."""
        digest = hashlib.sha256(self.description.encode()).hexdigest()[:16]
        return f"Architecture({type(self._module).__name__}, {digest})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a worker process gets: the module itself, and the classes that it could not import."""
        try:
            with _pickled_by_value(self.classes):
                return _from_bytes, (cloudpickle.dumps(self._module), self.description)
        except Exception as error:
            raise RunError(
                f"the network {type(self._module).__name__} cannot be sent to a learner process: {error!r}. "
                "Keep only plain values in it, or use backend = 'thread' or 'inline'"
            ) from error


def _from_bytes(packed: bytes, description: str) -> Architecture:
    """Return the architecture in a worker, from bytes that come from the parent's memory, never from a file."""
    received = object.__new__(Architecture)
    received._factory, received.description = None, description
    received._module = pickle.loads(packed)
    received.classes = tuple(type(part) for part in received._module.modules())
    received._local = threading.local()
    return received


@dataclass(frozen=True)
class ModuleNetwork(Network):
    """(N, R, inputs) -> (N, R, outputs) by modules of one architecture, each agent with its own weights.

    A module takes (R, *observation) and returns (R, outputs), or several tensors that are joined to that.
    The module is tried out at once. One that does not fit, draws random numbers, mixes the observations of a batch or
    changes its buffers is refused with a ConfigError.

    >>> net = ModuleNetwork(Architecture(lambda: torch.nn.Linear(4, 3)), observation=(4,), outputs=3)
    >>> rows = net.init(Identity(seeds=(0, 0), agents=(0, 1)))
    >>> tuple(net.forward(net.bind(rows), torch.zeros(2, 5, 4)).shape)
    (2, 5, 3)
    """

    architecture: Architecture
    observation: tuple[int, ...]
    outputs: int
    distribution: Distribution | None = None
    """The distribution of actions, for learners of a policy."""
    layers: ModuleLayers | None = field(init=False, compare=False, repr=False)
    """The module's layers, if `module_layers` knows all of them."""
    stackable: bool = field(init=False, compare=False, repr=False)
    """True if `vmap` computes all agents together. Without it and `layers`, agents are computed one after the other."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", math.prod(self.observation))
        object.__setattr__(self, "layout", Layout.of(self.architecture.shapes))
        self._check_module()
        object.__setattr__(self, "layers", self._try_layers())
        object.__setattr__(self, "stackable", self.layers is None and self._try_vmap())

    def init(self, identity: Identity) -> Tensor:
        """Return (N, size) parameters as the factory draws them, from each agent's own stream."""
        rows = torch.zeros(len(identity), self.size)
        for row, seed, agent in zip(rows, identity.seeds, identity.agents, strict=True):
            fresh = self.architecture.initial_parameters(seed, agent)
            for name, view in self.named(self.bind(row[None])).items():
                view[0] = fresh[name]
        return rows

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return (N, R, outputs) from (N, R, inputs)."""
        if self.layers is not None:
            return self._forward_layers(self.layers.bind(self.named(parameters)), inputs)
        x = inputs.reshape(*inputs.shape[:2], *self.observation)
        if self.stackable:
            return self._forward_vmap(list(parameters), x)
        return torch.stack([self._forward_one([view[n] for view in parameters], x[n]) for n in range(len(x))])

    def bound_forward(self, rows: Tensor) -> Forward:
        """Return `forward` with these (N, size) parameters bound for many calls."""
        if self.layers is not None:
            return partial(self._forward_layers, self.layers.bind(self.named(self.bind(rows))))
        return super().bound_forward(rows)

    def _forward_layers(self, layers: Callable[[Tensor], Any], inputs: Tensor) -> Tensor:
        """Return (N, R, outputs) from (N, R, inputs), layer by layer."""
        return _join_outputs(layers(inputs.reshape(*inputs.shape[:2], *self.observation)), inputs.shape[:2])

    def _forward_vmap(self, parameters: list[Tensor], x: Tensor) -> Tensor:
        """Return (N, R, outputs) from (N, R, *observation), by `vmap`."""
        outputs: Tensor = vmap(self._forward_one)(parameters, x)
        return outputs

    def _forward_one(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return (R, outputs) from one agent's (R, *observation), by the module itself."""
        module = self.architecture.module
        buffers = {name: buffer.to(x.device) for name, buffer in module.named_buffers()}
        return _join_outputs(functional_call(module, self.named(parameters) | buffers, (x,)), x.shape[:1])

    # -- the trial -------------------------------------------------------------------------------------------

    def _trial(self) -> tuple[list[Tensor], Tensor]:
        """Return the parameters of the first module, and random observations (TRIAL, *observation)."""
        draws = generator(0, Purpose.INIT, world=1)
        x = torch.from_numpy(draws.standard_normal((TRIAL, *self.observation), np.float32))
        return [parameter.detach() for parameter in self.architecture.module.parameters()], x

    def _check_module(self) -> None:
        """Call the module; raise ConfigError unless its outputs depend on its weights and one observation alone."""
        parameters, x = self._trial()
        module = self.architecture.module
        name = type(module).__name__
        buffers = {key: buffer.clone() for key, buffer in module.named_buffers()}
        with torch.no_grad(), SeededRandomOps(None):
            try:
                outputs = self._forward_one(parameters, x)
            except ConfigError:
                raise
            except Exception as error:
                raise ConfigError(
                    f"the network {name} cannot be called with {TRIAL} observations of shape {self.observation}, "
                    f"that is, with a tensor of shape {tuple(x.shape)}: {error}"
                ) from error
            self._check_outputs(name, outputs)
            other_batch = torch.cat([x[:1], 2.0 * x[1:] + 1.0])
            first_again = self._forward_one(parameters, other_batch)[0]
        changed = [key for key, buffer in module.named_buffers() if not torch.equal(buffer, buffers[key])]
        if changed:
            raise ConfigError(
                f"the network {name} changes its buffers ({', '.join(changed)}) when it is called, as BatchNorm does: "
                "its outputs may depend only on its weights and the observation; LayerNorm is fine"
            )
        if not torch.allclose(outputs[0], first_again, rtol=1e-3, atol=1e-5):
            raise ConfigError(
                f"the network {name} mixes the observations of a batch, as BatchNorm does: its outputs for one "
                "observation may not depend on the others; LayerNorm is fine"
            )

    def _check_outputs(self, name: str, outputs: Tensor) -> None:
        """Raise ConfigError unless the outputs of the trial have the right shape and type."""
        if tuple(outputs.shape) == (TRIAL, self.outputs) and outputs.dtype == torch.float32:
            return
        wanted = f"a value for each of {self.outputs} actions"
        if self.distribution is not None:
            wanted = f"{self.outputs - 1} numbers of the policy ({self.distribution}) and 1 value"
        raise ConfigError(
            f"the network {name} gives {outputs.dtype} of shape {tuple(outputs.shape)} for {TRIAL} observations: "
            f"wanted is float32 of shape {(TRIAL, self.outputs)}, {wanted}"
        )

    def _try_layers(self) -> ModuleLayers | None:
        """Return the module's layers if they compute what the module computes; else None."""
        layers = ModuleLayers.of(self.architecture.module)
        if layers is None:
            return None
        parameters, x = self._trial()
        stacked = [torch.stack([parameter, parameter + 0.01]) for parameter in parameters]
        with torch.no_grad():
            try:
                outputs = _join_outputs(layers.bind(self.named(stacked))(torch.stack([x, x])), (2, TRIAL))
            except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError):
                return None  # a call that means something else with one axis more
            wanted = torch.stack([self._forward_one([view[n] for view in stacked], x) for n in range(2)])
        close = outputs.shape == wanted.shape and torch.allclose(outputs, wanted, rtol=1e-3, atol=1e-5)
        return layers if close else None

    def _try_vmap(self) -> bool:
        """Return whether `vmap` can compute outputs and gradients; warn if it cannot."""
        parameters, x = self._trial()
        leaves = [torch.stack([parameter, parameter]).requires_grad_() for parameter in parameters]
        try:
            outputs = self._forward_vmap(leaves, torch.stack([x, x]))
            torch.autograd.grad(outputs.sum(), leaves, materialize_grads=True)
        except Exception as error:
            warnings.warn(
                f"torch.func cannot stack the network {type(self.architecture.module).__name__}: its agents are "
                f"computed one after the other ({error})",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        return True


def _join_outputs(outputs: Any, axes: Sequence[int]) -> Tensor:
    """Return one (*axes, outputs) tensor from the tensor or the several tensors that a module returned."""
    if isinstance(outputs, Tensor):
        return outputs
    if not isinstance(outputs, tuple | list) or not all(isinstance(part, Tensor) for part in outputs):
        raise ConfigError(f"the network gives a {type(outputs).__name__}: it must give a tensor or a pair of them")
    return torch.cat([part.reshape(*axes, -1) for part in outputs], -1)


# -- random draws ----------------------------------------------------------------------------------------------------


class SeededRandomOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Give torch's random operations this generator instead of the global one; without a generator, refuse them."""

    def __init__(self, draws: torch.Generator | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws = draws

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled here, and to skip its compiler torch would first load it, for seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or _drops_nothing(func, args, kwargs):
            return func(*args, **kwargs)
        if self._draws is None:
            raise ConfigError(
                f"the network draws random numbers in its forward pass ({func}), as dropout does: take that layer out"
            )
        return _with_generator(func)(*args, **{**kwargs, "generator": self._draws})


def _drops_nothing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operation that may drop numbers at random, such as attention, drops none in this call."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**{argument.name: argument.default_value for argument in func._schema.arguments}, **kwargs}
    given |= dict(zip(names, args, strict=False))
    shares = [given[name] for name in ("dropout_p", "p") if name in names]
    return shares == [0.0] and "dropout" in f"{func} {names}"


def _with_generator(func: Any) -> Any:
    """Return the form of a random operation that takes a generator."""
    names = [argument.name for argument in func._schema.arguments]
    if "generator" in names:
        return func
    packet = func.overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        if [a.name for a in overload._schema.arguments if a.name != "generator"] == names and overload is not func:
            return overload
    raise ConfigError(f"the network's factory draws by {func}, which takes no generator: use the usual nn.init ones")


# -- what modules have in common -------------------------------------------------------------------------------------

_INTERNAL = set(vars(nn.Module()))
"""Attributes that every module has."""
_DEEPEST = 8
"""Levels of nested values that are described."""


def _check_parameters(module: nn.Module) -> None:
    """Raise ConfigError unless the module has parameters that can be trained as rows."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(f"parameter {name} of the network is lazy: give its layer all sizes")
        if parameter.dtype != torch.float32:
            raise ConfigError(f"parameter {name} of the network is {parameter.dtype}: agents are computed in float32")
        if not parameter.requires_grad:
            raise ConfigError(f"parameter {name} of the network is frozen: keep what is not trained in a buffer")
    if not any(True for _ in module.parameters()):
        raise ConfigError(f"the network {type(module).__name__} has no parameters: there is nothing to learn")


def _description(module: nn.Module) -> str:
    """Return everything but the weights, as text. Its hash is stored in checkpoints and weight files."""
    lines = []
    for name, part in module.named_modules(remove_duplicate=False):
        attributes = {key: value for key, value in vars(part).items() if key not in _INTERNAL}
        cls = type(part)
        lines.append(f"{name}: {cls.__module__}.{cls.__qualname__} {_describe(attributes)} training={part.training}")
    lines += [f"{name}: {tuple(own.shape)}" for name, own in module.named_parameters(remove_duplicate=False)]
    lines += [f"{name}: {_describe(buffer)}" for name, buffer in module.named_buffers(remove_duplicate=False)]
    return "\n".join(lines)


def _describe(value: Any, depth: int = 0) -> str:
    """Return a value as text that is equal for equal values, in every process."""
    describe = partial(_describe, depth=depth + 1)
    if depth > _DEEPEST:
        raise ConfigError("the network holds values nested too deeply to be compared: keep plain ones in it")
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes() | torch.dtype() | torch.device():
            return repr(value)
        case weakref.ReferenceType() | nn.Parameter():  # torch's recurrent layers point at their own weights
            return "own weights"
        case Tensor():
            return describe(value.detach().cpu().numpy())
        case np.ndarray() | np.generic():
            array = np.ascontiguousarray(value)
            return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
        case Mapping():
            return "{" + ", ".join(f"{describe(key)}: {describe(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(describe, value)) + "]"
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(describe, value))) + "}"
        case nn.Module():
            return f"module {type(value).__qualname__}"
        case partial():
            return f"partial {describe([value.func, value.args, value.keywords])}"
        case types.FunctionType():
            closure = [cell.cell_contents for cell in value.__closure__ or ()]
            code = hashlib.sha256(value.__code__.co_code).hexdigest()
            constants = [item for item in value.__code__.co_consts if not isinstance(item, types.CodeType)]
            return f"{value.__qualname__} {code} {describe([closure, value.__defaults__, constants])}"
        case _ if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            return f"{value.__module__}.{value.__qualname__}"
        case _ if hasattr(value, "__dict__"):
            return f"{type(value).__module__}.{type(value).__qualname__} {describe(vars(value))}"
    raise ConfigError(
        f"the network holds a {type(value).__name__}, which cannot be compared with another agent's: "
        "keep plain values, tensors or modules in it"
    )


# -- to other processes ----------------------------------------------------------------------------------------------


@contextmanager
def _pickled_by_value(classes: tuple[type, ...]) -> Iterator[None]:
    """Let cloudpickle pack classes whole that a fresh process could not import; for `__main__` it does so anyway."""
    names = {cls.__module__ for cls in classes} - {"__main__"}
    modules = [sys.modules[name] for name in sorted(names) if name in sys.modules and not _importable(name)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _importable(name: str) -> bool:
    """Return whether the search path leads to the file that this module was loaded from."""
    root = name.partition(".")[0]
    if root in sys.builtin_module_names:
        return True
    spec = importlib.machinery.PathFinder.find_spec(root)
    return spec is not None and (root != name or spec.origin == getattr(sys.modules[name], "__file__", None))
