"""A gated recurrent unit (GRU) between an encoder and a head (Cho et al. 2014), with parameters in rows.

Shapes: N agents, R inputs per agent, S sequences per agent, T turns of a sequence, H numbers of the hidden state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Identity, Purpose, generator
from parallel_agents.nn.actor_critic import ActorCritic
from parallel_agents.nn.distributions import Distribution
from parallel_agents.nn.layers import (
    MIN_WIDTH,
    MLP,
    Forward,
    Layer,
    Layout,
    Network,
    layer,
    sigmoid_,
    weight_gradient,
    width,
)

ENCODER, UNIT = 2, 3
"""Addresses of the initial draws of encoder and unit; heads have 0 and 1."""


class _Parts(NamedTuple):
    """The parameters of a network, part by part."""

    unit: Sequence[Tensor]
    encoder: Sequence[Tensor]
    head: Sequence[Tensor]


class _BoundParts(NamedTuple):
    """The parts of a network with their parameters bound."""

    input_gates: Layer
    hidden_gates: Layer
    encoder: Forward | None
    head: Forward


@dataclass(frozen=True)
class Recurrent(Network):
    """Observations go through an encoder into a hidden state, and the hidden state through a head to the outputs.

    One step is a plain network: (N, R, seen + state) -> (N, R, outputs + state), from an observation beside the hidden
    state before to outputs beside the hidden state after. Acting needs only that; learning uses `unroll`.

    >>> net = Recurrent(seen=3, state=4, head=MLP(4, (), 2))
    >>> rows = net.init(Identity((0,), (0,)))
    >>> tuple(net.forward(net.bind(rows), torch.zeros(1, 5, 7)).shape)
    (1, 5, 6)
    """

    seen: int
    """Numbers of an observation."""
    state: int
    """Numbers of the hidden state."""
    head: MLP | ActorCritic
    encoder: MLP | None = None
    """Layers before the unit; their outputs pass through their activation once more."""

    def __post_init__(self) -> None:
        if self.state < MIN_WIDTH:
            raise ConfigError(f"a recurrent network with a state of {self.state}: give it at least {MIN_WIDTH} numbers")
        gates = 3 * self.state
        shapes: dict[str, tuple[int, ...]] = {
            "unit.inputs.weight": (gates, width(self._unit_inputs)),
            "unit.inputs.bias": (1, gates),
            "unit.state.weight": (gates, self.state),
            "unit.state.bias": (1, gates),
        }
        for prefix, part in (("encoder", self.encoder), ("head", self.head)):
            if part is not None:
                named_shapes = zip(part.layout.names, part.layout.shapes, strict=True)
                shapes |= {f"{prefix}.{name}": shape for name, shape in named_shapes}
        object.__setattr__(self, "inputs", self.seen + self.state)
        object.__setattr__(self, "layout", Layout.of(shapes))

    @property
    def distribution(self) -> Distribution:
        """The distribution of actions, where the head is an `ActorCritic`."""
        assert isinstance(self.head, ActorCritic)
        return self.head.distribution

    @property
    def _unit_inputs(self) -> int:
        return self.seen if self.encoder is None else self.encoder.outputs

    def init(self, identity: Identity) -> Tensor:
        """Return fresh (N, size) parameters: the unit uniform in ±1/√state, encoder and head as they draw theirs."""
        rows = torch.zeros(len(identity), self.size)
        parts = self._parts(self.layout.views(rows))
        bound = 1.0 / math.sqrt(self.state)
        columns = (self._unit_inputs, 1, self.state, 1)  # of each parameter of the unit, without padding
        for n, (seed, agent) in enumerate(zip(identity.seeds, identity.agents, strict=True)):
            draws = generator(seed, Purpose.INIT, agent=agent, world=UNIT)
            for view, count in zip(parts.unit, columns, strict=True):
                shape = (view.shape[1], count) if view.shape[1] > 1 else tuple(view.shape[1:])
                drawn = torch.from_numpy(draws.uniform(-bound, bound, shape).astype(np.float32))
                view[n][..., : drawn.shape[-1]] = drawn
        if self.encoder is not None:
            _copy(self.encoder.bind(self.encoder.init(identity, part=ENCODER)), parts.encoder)
        _copy(self.head.bind(self.head.init(identity)), parts.head)
        return rows

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return (N, R, outputs + state) from (N, R, seen + state), one step; for gradients use `unroll`."""
        return self._step(self._bound_parts(parameters), inputs)

    def bound_forward(self, rows: Tensor) -> Forward:
        """Return `forward` with these (N, size) parameters bound for many calls."""
        return partial(self._step, self._bound_parts(self.bind(rows)))

    def unroll(
        self, parameters: Sequence[Tensor], observations: Tensor, hidden: Tensor, keep: Tensor | None = None
    ) -> Tensor:
        """Return the outputs (N, S, T, outputs) of whole sequences, with gradients.

        observations: (N, S, T, seen). hidden: the hidden state before the first turn, (N, S, state). keep: (N, S, T),
        0 where an episode starts and the hidden state is reset; at the first turn it is not read.
        """
        parts = self._parts(parameters)
        bound = self._bound_parts(parameters)
        agents, sequences, turns = observations.shape[:3]
        gates = self._input_gates(bound, observations.reshape(agents, sequences * turns, -1))
        gates = gates.reshape(agents, sequences, turns, -1)
        weight, bias = parts.unit[2:]
        states: Tensor = _UnrolledUnit.apply(gates, weight, bias, hidden, keep)  # type: ignore[no-untyped-call]
        outputs = bound.head(states.reshape(agents, sequences * turns, self.state))
        return outputs.reshape(agents, sequences, turns, -1)

    def _parts(self, parameters: Sequence[Tensor]) -> _Parts:
        end = 4 + (0 if self.encoder is None else len(self.encoder.layout.names))
        return _Parts(parameters[:4], parameters[4:end], parameters[end:])

    def _bound_parts(self, parameters: Sequence[Tensor]) -> _BoundParts:
        unit, encoder, head = self._parts(parameters)
        return _BoundParts(
            input_gates=layer(unit[0], unit[1]),
            hidden_gates=layer(unit[2], unit[3]),
            encoder=None if self.encoder is None else _bound(self.encoder, encoder),
            head=_bound(self.head, head),
        )

    def _step(self, parts: _BoundParts, inputs: Tensor) -> Tensor:
        input_gates = self._input_gates(parts, inputs[..., : self.seen])
        before = inputs[..., self.seen :]
        after = _unit_step(input_gates, parts.hidden_gates(before), before)[0]
        return torch.cat([parts.head(after), after], -1)

    def _input_gates(self, parts: _BoundParts, observations: Tensor) -> Tensor:
        """Return what observations (N, R, seen) add to the unit's gates, (N, R, 3·H), before the activations."""
        x = observations
        if self.encoder is not None and parts.encoder is not None:
            x = parts.encoder(x)
            x = torch.relu(x) if self.encoder.activation == "relu" else torch.tanh(x)
        if x.shape[-1] < MIN_WIDTH:
            x = torch.nn.functional.pad(x, (0, MIN_WIDTH - x.shape[-1]))
        return parts.input_gates(x)


def _unit_step(input_gates: Tensor, hidden_gates: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next hidden state (N, R, H), the reset and update gates (N, R, 2·H), and the candidate (N, R, H).

    input_gates, hidden_gates: (N, R, 3·H), what observation and hidden state add to reset gate, update gate and
    candidate, before the activations. hidden: (N, R, H).
    """
    split = 2 * hidden.shape[-1]
    gates = sigmoid_(input_gates[..., :split] + hidden_gates[..., :split])
    reset, update = gates.chunk(2, -1)
    candidate = (reset * hidden_gates[..., split:]).add_(input_gates[..., split:]).tanh_()
    return torch.lerp(candidate, hidden, update), gates, candidate


def _unit_step_gradient(
    gradient: Tensor, hidden: Tensor, hidden_gates: Tensor, gates: Tensor, candidate: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `_unit_step`'s three arguments from that of the next hidden state, (N, R, H).

    The gradient of `hidden` leaves out what goes through `hidden_gates`.
    """
    reset, update = gates.chunk(2, -1)
    of_candidate = (gradient * (1.0 - update)).mul_(1.0 - candidate * candidate)  # before tanh
    of_gates = torch.cat([of_candidate * hidden_gates[..., gates.shape[-1] :], gradient * (hidden - candidate)], -1)
    of_gates.mul_(gates - gates * gates)  # before the sigmoid
    of_input_gates = torch.cat([of_gates, of_candidate], -1)
    return of_input_gates, torch.cat([of_gates, of_candidate * reset], -1), gradient * update


class _UnrolledUnit(torch.autograd.Function):
    """Compute the hidden states of whole sequences, turn by turn, with a gradient written by hand.

    Autograd would record about twenty small operations per turn, and one product for the weight's gradient per turn;
    here all turns share one product.

    input_gates: (N, S, T, 3·H); weight and bias of the hidden state: (N, 3·H, H), (N, 1, 3·H); hidden state before:
    (N, S, H); keep: (N, S, T) or None -> (N, S, T, H).
    """

    @staticmethod
    def forward(
        ctx: Any, input_gates: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, keep: Tensor | None
    ) -> Tensor:
        before, after, all_hidden_gates, all_gates, candidates = [], [], [], [], []
        for turn, turn_input_gates in enumerate(input_gates.unbind(2)):
            if turn and keep is not None:
                hidden = hidden * keep[:, :, turn, None]
            hidden_gates = torch.baddbmm(bias, hidden, weight.transpose(1, 2))
            before.append(hidden)
            all_hidden_gates.append(hidden_gates)
            hidden, gates, candidate = _unit_step(turn_input_gates, hidden_gates, hidden)
            after.append(hidden)
            all_gates.append(gates)
            candidates.append(candidate)
        ctx.save_for_backward(weight, keep, *before, *all_hidden_gates, *all_gates, *candidates)
        return torch.stack(after, 2)

    @staticmethod
    def backward(ctx: Any, output_gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, keep, *saved = ctx.saved_tensors
        turns = output_gradients.shape[2]
        before, hidden_gates, gates, candidates = (saved[first : first + turns] for first in range(0, 4 * turns, turns))
        of_input_gates: list[Tensor] = []
        of_hidden_gates: list[Tensor] = []
        of_hidden = torch.zeros_like(before[0])
        for turn in range(turns - 1, -1, -1):
            gradient = output_gradients[:, :, turn] + of_hidden
            from_inputs, from_hidden, of_hidden = _unit_step_gradient(
                gradient, before[turn], hidden_gates[turn], gates[turn], candidates[turn]
            )
            of_hidden.add_(torch.bmm(from_hidden, weight))
            if turn and keep is not None:
                of_hidden.mul_(keep[:, :, turn, None])
            of_input_gates.append(from_inputs)
            of_hidden_gates.append(from_hidden)
        gradient, states = torch.cat(of_hidden_gates[::-1], 1), torch.cat(before, 1)  # (N, T·S, …)
        of_weight, of_bias = weight_gradient(weight, gradient, states), gradient.sum(1, keepdim=True)
        return torch.stack(of_input_gates[::-1], 2), of_weight, of_bias, of_hidden, None


def _bound(part: MLP | ActorCritic, parameters: Sequence[Tensor]) -> Forward:
    """Return the forward pass of encoder or head with its parameters bound for many calls."""
    if isinstance(part, MLP):
        return partial(part.forward_layers, part.layers(parameters))
    return partial(part.forward, parameters)


def _copy(sources: Sequence[Tensor], views: Sequence[Tensor]) -> None:
    """Copy each source into its view."""
    for source, view in zip(sources, views, strict=True):
        view.copy_(source)
