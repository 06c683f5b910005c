"""Any `torch.nn.Module` as a network of rows: layer by layer where its layers are usual ones, or by `torch.func`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from parallel_agents.errors import ConfigError
from parallel_agents.networks.architecture import Architecture, OwnDraws
from parallel_agents.networks.distributions import Distribution
from parallel_agents.networks.layerwise import Layerwise
from parallel_agents.networks.rows import Layout
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Identity

__all__ = ["ModuleNetwork"]

TRIAL = 3
"""Observations of the trial that a module must pass."""


@dataclass(frozen=True)
class ModuleNetwork:
    """(N, R, inputs) -> (N, R, outputs) by modules of one architecture, each agent with its own weights.

    A module is called with (R, *observation) and gives (R, outputs), or several tensors that make it up together.
    It is tried out at once: a module that does not fit, that draws random numbers, that mixes the observations of a
    batch or changes its buffers is refused.

    >>> net = ModuleNetwork(Architecture(lambda: torch.nn.Linear(4, 3)), observation=(4,), outputs=3)
    >>> rows = net.init(Identity(seeds=(0, 0), agents=(0, 1)))
    >>> tuple(net.forward(net.bind(rows), torch.zeros(2, 5, 4)).shape)
    (2, 5, 3)
    """

    architecture: Architecture
    observation: tuple[int, ...]
    outputs: int
    distribution: Distribution | None = None
    """Of actions, for those who learn a policy."""
    layout: Layout = field(init=False, compare=False, repr=False)
    layers: Layerwise | None = field(init=False, compare=False, repr=False)
    """The module's layers, where all of them are usual ones."""
    stackable: bool = field(init=False, compare=False, repr=False)
    """False where `vmap` cannot do it either; then agents are computed one after the other."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", Layout.of(self.architecture.shapes))
        self._try_out()
        object.__setattr__(self, "layers", self._try_layers())
        object.__setattr__(self, "stackable", self.layers is None and self._try_stacked())

    @property
    def inputs(self) -> int:
        return math.prod(self.observation)

    @property
    def size(self) -> int:
        return self.layout.length

    def init(self, identity: Identity) -> Tensor:
        """(N, size) whatever the factory draws, from each agent's own stream."""
        rows = torch.zeros(len(identity), self.size)
        for row, seed, agent in zip(rows, identity.seeds, identity.agents, strict=True):
            fresh = self.architecture.initial(seed, agent)
            for name, view in zip(self.layout.names, self.layout.views(row[None]), strict=True):
                view[0] = fresh[name]
        return rows

    def bind(self, rows: Tensor) -> list[Tensor]:
        """The parameters as `forward` takes them, without a graph."""
        return self.layout.views(rows)

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """The parameters as `forward` takes them, as leaves of the graph."""
        return self.layout.leaves(rows)

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """(N, R, inputs) -> (N, R, outputs)."""
        if self.layers is not None:
            return self._through(self.layers.ready(self._named(parameters)), inputs)
        x = inputs.reshape(*inputs.shape[:2], *self.observation)
        if self.stackable:
            return self._stacked(list(parameters), x)
        return torch.stack([self._one([own[n] for own in parameters], x[n]) for n in range(len(x))])

    def acting(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """`forward` with these rows, made ready once for many calls where that is possible."""
        if self.layers is not None:
            return partial(self._through, self.layers.ready(self._named(self.bind(rows))))
        return partial(self.forward, self.bind(rows))

    def _named(self, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.layout.names, parameters, strict=True))

    def _through(self, ready: Callable[[Tensor], Any], inputs: Tensor) -> Tensor:
        return _joined(ready(inputs.reshape(*inputs.shape[:2], *self.observation)), inputs.shape[:2])

    def _stacked(self, parameters: list[Tensor], x: Tensor) -> Tensor:
        joined: Tensor = vmap(self._one)(parameters, x)
        return joined

    def _one(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """One agent's (R, *observation) -> (R, outputs)."""
        module = self.architecture.module
        own = self._named(parameters)
        own |= {name: buffer.to(x.device) for name, buffer in module.named_buffers()}
        return _joined(functional_call(module, own, (x,)), x.shape[:1])

    # -- the trial -------------------------------------------------------------------------------------------

    def _trial(self) -> tuple[list[Tensor], Tensor]:
        """Parameters as they were made first, and made-up observations."""
        draws = generator(0, Purpose.INIT, world=1)
        x = torch.from_numpy(draws.standard_normal((TRIAL, *self.observation), np.float32))
        return [own.detach() for own in self.architecture.module.parameters()], x

    def _try_out(self) -> None:
        parameters, x = self._trial()
        name = type(self.architecture.module).__name__
        buffers = {key: own.clone() for key, own in self.architecture.module.named_buffers()}
        with torch.no_grad(), OwnDraws(None):
            try:
                outputs = self._one(parameters, x)
            except ConfigError:
                raise
            except Exception as error:
                raise ConfigError(
                    f"the network {name} cannot be called with {TRIAL} observations of shape {self.observation}, "
                    f"that is, with a tensor of shape {tuple(x.shape)}: {error}"
                ) from error
            self._check_outputs(name, outputs)
            others = torch.cat([x[:1], 2.0 * x[1:] + 1.0])
            alone = self._one(parameters, others)[0]
        changed = [key for key, own in self.architecture.module.named_buffers() if not torch.equal(own, buffers[key])]
        if changed:
            raise ConfigError(
                f"the network {name} changes its buffers ({', '.join(changed)}) when it is called, as BatchNorm does: "
                "what an agent computes may depend on its weights and what it sees only; LayerNorm does no harm"
            )
        if not torch.allclose(outputs[0], alone, rtol=1e-3, atol=1e-5):
            raise ConfigError(
                f"the network {name} mixes the observations of a batch, as BatchNorm does: what it gives for one may "
                "not depend on the others; LayerNorm does no harm"
            )

    def _check_outputs(self, name: str, outputs: Tensor) -> None:
        if tuple(outputs.shape) == (TRIAL, self.outputs) and outputs.dtype == torch.float32:
            return
        wanted = f"a value for each of {self.outputs} actions"
        if self.distribution is not None:
            wanted = f"{self.outputs - 1} numbers of the policy ({self.distribution}) and 1 value"
        raise ConfigError(
            f"the network {name} gives {outputs.dtype} of shape {tuple(outputs.shape)} for {TRIAL} observations: "
            f"wanted is float32 of shape {(TRIAL, self.outputs)}, {wanted}"
        )

    def _try_layers(self) -> Layerwise | None:
        """The module's layers, if they give what it gives itself."""
        layers = Layerwise.of(self.architecture.module)
        if layers is None:
            return None
        parameters, x = self._trial()
        stacked = [torch.stack([own, own + 0.01]) for own in parameters]
        with torch.no_grad():
            try:
                ready = layers.ready(self._named(stacked))
                found = _joined(ready(torch.stack([x, x])), (2, TRIAL))
            except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError):
                return None  # a call that means something else with one axis more
            wanted = torch.stack([self._one([own[n] for own in stacked], x) for n in range(2)])
        close = found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-3, atol=1e-5)
        return layers if close else None

    def _try_stacked(self) -> bool:
        parameters, x = self._trial()
        leaves = [torch.stack([own, own]).requires_grad_() for own in parameters]
        try:
            outputs = self._stacked(leaves, torch.stack([x, x]))
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


def _joined(outputs: Any, rows: Sequence[int]) -> Tensor:
    """One (…, outputs) tensor from one or several, with these axes before."""
    if isinstance(outputs, Tensor):
        return outputs
    if not isinstance(outputs, tuple | list) or not all(isinstance(own, Tensor) for own in outputs):
        raise ConfigError(f"the network gives a {type(outputs).__name__}: it must give a tensor or a pair of them")
    return torch.cat([own.reshape(*rows, -1) for own in outputs], -1)
