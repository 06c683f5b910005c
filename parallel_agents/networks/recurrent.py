"""A gated recurrent unit of rows, between hidden layers and a head (Cho et al. 2014)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_agents.errors import ConfigError
from parallel_agents.networks.actor_critic import ActorCritic
from parallel_agents.networks.distributions import Distribution
from parallel_agents.networks.mlp import MLP
from parallel_agents.networks.numerics import MIN_WIDTH, Layer, layer, sigmoid_, weight_gradient, width
from parallel_agents.networks.rows import Layout
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Identity

__all__ = ["Recurrent"]

Through = Callable[[Tensor], Tensor]
Unit = tuple[Layer, Layer]
ENCODER, UNIT = 2, 3
"""Addresses of the parts' initial draws; heads have 0 and 1."""


@dataclass(frozen=True)
class Recurrent:
    """What is seen, through an encoder into a state, and from the state through a head to the outputs.

    One step is a plain network from what is seen and the state to outputs and the next state, side by side:
    (N, R, seen + state) -> (N, R, outputs + state). Acting needs no more; `unroll` is for learning.

    >>> net = Recurrent(seen=3, state=4, head=MLP(4, (), 2))
    >>> rows = net.init(Identity((0,), (0,)))
    >>> tuple(net.forward(net.bind(rows), torch.zeros(1, 5, 7)).shape)
    (1, 5, 6)
    """

    seen: int
    state: int
    head: MLP | ActorCritic
    encoder: MLP | None = None
    """Layers before the unit; their outputs pass through their activation once more."""
    layout: Layout = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.state < MIN_WIDTH:
            raise ConfigError(f"a recurrent network with a state of {self.state}: give it at least {MIN_WIDTH} numbers")
        gates = 3 * self.state
        shapes: dict[str, tuple[int, ...]] = {
            "unit.inputs.weight": (gates, width(self._entering)),
            "unit.inputs.bias": (1, gates),
            "unit.state.weight": (gates, self.state),
            "unit.state.bias": (1, gates),
        }
        for prefix, part in (("encoder", self.encoder), ("head", self.head)):
            if part is not None:
                own = zip(part.layout.names, part.layout.shapes, strict=True)
                shapes |= {f"{prefix}.{name}": shape for name, shape in own}
        object.__setattr__(self, "layout", Layout.of(shapes))

    @property
    def inputs(self) -> int:
        return self.seen + self.state

    @property
    def size(self) -> int:
        return self.layout.length

    @property
    def distribution(self) -> Distribution:
        """Of actions, where the head is a policy and a value."""
        assert isinstance(self.head, ActorCritic)
        return self.head.distribution

    @property
    def _entering(self) -> int:
        return self.seen if self.encoder is None else self.encoder.outputs

    def init(self, identity: Identity) -> Tensor:
        """(N, size): the unit uniform in ±1/√state, the other parts as they are by themselves."""
        rows = torch.zeros(len(identity), self.size)
        unit, encoder, head = self._parts(self.layout.views(rows))
        bound = 1.0 / math.sqrt(self.state)
        fans = (self._entering, 1, self.state, 1)  # what enters each, apart from padding
        for n, (seed, agent) in enumerate(zip(identity.seeds, identity.agents, strict=True)):
            draws = generator(seed, Purpose.INIT, agent=agent, world=UNIT)
            for view, fan in zip(unit, fans, strict=True):
                shape = (view.shape[1], fan) if view.shape[1] > 1 else tuple(view.shape[1:])
                drawn = torch.from_numpy(draws.uniform(-bound, bound, shape).astype(np.float32))
                view[n][..., : drawn.shape[-1]] = drawn
        if self.encoder is not None:
            _fill(encoder, self.encoder.layout.views(self.encoder.init(identity, part=ENCODER)))
        _fill(head, self.head.layout.views(self.head.init(identity)))
        return rows

    def bind(self, rows: Tensor) -> list[Tensor]:
        """The parameters as `forward` takes them, without a graph."""
        return self.layout.views(rows)

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """The parameters as `forward` takes them, as leaves of the graph."""
        return self.layout.leaves(rows)

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """One step: (N, R, seen + state) -> (N, R, outputs + state); without gradients, which `unroll` is for."""
        unit, encoder, head = self._parts(parameters)
        through = partial(self.encoder.forward, encoder) if self.encoder is not None else None
        return self._step(_ready(unit), through, partial(self.head.forward, head), inputs)

    def acting(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """`forward` with these rows, made ready once for many calls."""
        unit, encoder, head = self._parts(self.bind(rows))
        through = _acting(self.encoder, encoder) if self.encoder is not None else None
        return partial(self._step, _ready(unit), through, _acting(self.head, head))

    def _step(self, unit: Unit, encoder: Through | None, head: Through, inputs: Tensor) -> Tensor:
        entering = self._enter(unit, encoder, inputs[..., : self.seen])
        before = inputs[..., self.seen :]
        state = _gated(entering, unit[1](before), before)[0]
        return torch.cat([head(state), state], -1)

    def unroll(self, parameters: Sequence[Tensor], seen: Tensor, state: Tensor, keep: Tensor | None = None) -> Tensor:
        """Whole sequences: seen (N, S, T, seen), the state before them (N, S, state) -> (N, S, T, outputs).

        keep: (N, S, T), 0 where an episode starts, and with it a fresh state; the first turn starts from `state`.
        """
        unit, encoder, head = self._parts(parameters)
        through = partial(self.encoder.forward, encoder) if self.encoder is not None else None
        agents, sequences, turns = seen.shape[:3]
        entering = self._enter(_ready(unit), through, seen.reshape(agents, sequences * turns, -1))
        entering = entering.reshape(agents, sequences, turns, -1)
        states: Tensor = _Unrolled.apply(entering, unit[2], unit[3], state, keep)  # type: ignore[no-untyped-call]
        flat = states.reshape(agents, sequences * turns, self.state)
        return self.head.forward(head, flat).reshape(agents, sequences, turns, -1)

    def _parts(self, parameters: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """Parameters of the unit, the encoder and the head."""
        end = 4 + (len(self.encoder.layout.names) if self.encoder is not None else 0)
        return parameters[:4], parameters[4:end], parameters[end:]

    def _enter(self, unit: Unit, encoder: Through | None, seen: Tensor) -> Tensor:
        """(N, R, seen) -> (N, R, 3·state): what the unit's gates get from what is seen."""
        x = seen
        if self.encoder is not None and encoder is not None:
            x = encoder(x)
            x = torch.relu(x) if self.encoder.activation == "relu" else torch.tanh(x)
        if x.shape[-1] < MIN_WIDTH:
            x = torch.nn.functional.pad(x, (0, MIN_WIDTH - x.shape[-1]))
        return unit[0](x)


def _gated(entering: Tensor, own: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next state, and what makes it up: how much to reset and to keep, and what to take in.

    entering, own: (N, R, 3·state), what the gates get from what is seen and from the state; state: (N, R, state).
    """
    gates = 2 * state.shape[-1]
    open_ = sigmoid_(entering[..., :gates] + own[..., :gates])
    reset, keep = open_.chunk(2, -1)
    new = (reset * own[..., gates:]).add_(entering[..., gates:]).tanh_()
    return torch.lerp(new, state, keep), open_, new


class _Unrolled(torch.autograd.Function):
    """The states of whole sequences, turn by turn, with their gradient by hand.

    Left to the graph, each turn would be twenty small steps and a product for the weight; so all turns share one.

    entering: (N, S, T, 3·state); weight and bias of the state: (N, 3·state, state), (N, 1, 3·state); state before:
    (N, S, state); keep: (N, S, T) or None -> (N, S, T, state).
    """

    @staticmethod
    def forward(ctx: Any, entering: Tensor, weight: Tensor, bias: Tensor, state: Tensor, keep: Tensor | None) -> Tensor:
        before, afters, opened, taken, owns = [], [], [], [], []
        for turn, seen in enumerate(entering.unbind(2)):
            if turn and keep is not None:
                state = state * keep[:, :, turn, None]
            own = torch.baddbmm(bias, state, weight.transpose(1, 2))
            before.append(state)
            owns.append(own)
            state, open_, new = _gated(seen, own, state)
            afters.append(state)
            opened.append(open_)
            taken.append(new)
        ctx.save_for_backward(weight, keep, *before, *owns, *opened, *taken)
        return torch.stack(afters, 2)

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        weight, keep, *kept = ctx.saved_tensors
        turns = slopes.shape[2]
        before, owns, opened, taken = (kept[first : first + turns] for first in range(0, 4 * turns, turns))
        entering: list[Tensor] = []
        of_own: list[Tensor] = []
        back = torch.zeros_like(before[0])
        for turn in range(turns - 1, -1, -1):
            slope = slopes[:, :, turn] + back
            given, mine, back = _gated_back(slope, before[turn], owns[turn], opened[turn], taken[turn])
            back.add_(torch.bmm(mine, weight))
            if turn and keep is not None:
                back.mul_(keep[:, :, turn, None])
            entering.append(given)
            of_own.append(mine)
        slope, states = torch.cat(of_own[::-1], 1), torch.cat(before, 1)  # (N, T·S, …)
        found = weight_gradient(weight, slope, states)
        return torch.stack(entering[::-1], 2), found, slope.sum(1, keepdim=True), back, None


def _gated_back(slope: Tensor, state: Tensor, own: Tensor, opened: Tensor, new: Tensor) -> tuple[Tensor, ...]:
    """The way back through `_gated`: slopes of what entered, of what came from the state, and of the state itself."""
    reset, keep = opened.chunk(2, -1)
    taken = (slope * (1.0 - keep)).mul_(1.0 - new * new)  # of what tanh was given
    gates = torch.cat([taken * own[..., opened.shape[-1] :], slope * (state - new)], -1)
    gates.mul_(opened - opened * opened)  # of what the gates were given
    return torch.cat([gates, taken], -1), torch.cat([gates, taken * reset], -1), slope * keep


def _ready(unit: Sequence[Tensor]) -> Unit:
    """The unit's layers: of what enters it, and of its state."""
    return layer(unit[0], unit[1]), layer(unit[2], unit[3])


def _acting(part: MLP | ActorCritic, parameters: Sequence[Tensor]) -> Through:
    """A part's `forward`, made ready once for many calls."""
    if isinstance(part, MLP):
        return partial(part.through, part.layers(parameters))
    return partial(part.forward, parameters)


def _fill(views: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for view, source in zip(views, sources, strict=True):
        view.copy_(source)
