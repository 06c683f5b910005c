"""The networks that a `model` section can describe, and those that users bring."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from parallel_agents.errors import ConfigError
from parallel_agents.networks import MLP, ActorCritic, Architecture, Convolution, Distribution, Factory, Recurrent

__all__ = ["NetworkOptions", "own_architecture", "policy_network", "value_network"]

Layers = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """What a `model` section says about a network."""

    hidden: int | tuple[int, ...] = (64, 64)
    """Widths of the hidden layers; with `recurrent`, the last is that of the state."""
    convolutional: Layers = ()
    """Layers (filters, side of the kernel, stride) before the hidden ones, where observations are pictures."""
    recurrent: bool = False
    """Carry a state from turn to turn (a GRU)."""
    sequence: int = 16
    """Turns of the sequences that a recurrent network learns from."""

    def __post_init__(self) -> None:
        if self.sequence < 1:
            raise ConfigError(f"model.sequence is {self.sequence}: give a whole number of at least 1")
        if self.recurrent and not self.widths:
            raise ConfigError("model.recurrent with an empty model.hidden: its last number is the size of the state")

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.hidden,) if isinstance(self.hidden, int) else self.hidden


def own_architecture(network: Factory, options: Mapping[str, Any]) -> Architecture:
    """The architecture that a user's factory makes; options that describe a network contradict it."""
    names = ("hidden", "dueling", "convolutional", "recurrent", "sequence")
    clash = [f"model.{name}" for name in names if name in options]
    if clash:
        raise ConfigError(f"{', '.join(clash)} given together with a network of your own: leave one of them out")
    if isinstance(network, torch.nn.Module) or not callable(network):
        raise ConfigError(
            f"network is a {type(network).__name__}: give a function without arguments that makes a fresh "
            "torch.nn.Module, such as lambda: nn.Sequential(…)"
        )
    return Architecture(network)


def value_network(
    shape: tuple[int, ...], hidden: tuple[int, ...], actions: int, dueling: bool, layers: Layers, recurrent: bool
) -> MLP | Recurrent:
    """From observations of this shape to a value for each action."""
    inputs = math.prod(shape)
    if recurrent:
        encoder = _encoder(shape, hidden, layers, activation="relu")
        return Recurrent(inputs, hidden[-1], MLP(hidden[-1], (), actions, dueling), encoder)
    return MLP(inputs, hidden, actions, dueling, convolution=_convolution(shape, layers))


def policy_network(
    shape: tuple[int, ...], hidden: tuple[int, ...], distribution: Distribution, layers: Layers, recurrent: bool
) -> ActorCritic | Recurrent:
    """From observations of this shape to a policy and a value; a recurrent one has one state for both."""
    inputs = math.prod(shape)
    if recurrent:
        encoder = _encoder(shape, hidden, layers, activation="tanh", orthogonal=True, head_gain=math.sqrt(2.0))
        return Recurrent(inputs, hidden[-1], ActorCritic(hidden[-1], (), distribution), encoder)
    return ActorCritic(inputs, hidden, distribution, convolution=_convolution(shape, layers))


def _encoder(
    shape: tuple[int, ...], hidden: tuple[int, ...], layers: Layers, *, activation: Literal["relu", "tanh"], **how: Any
) -> MLP | None:
    """The layers before a recurrent unit."""
    if len(hidden) > 1:
        picture = _convolution(shape, layers)
        return MLP(math.prod(shape), hidden[:-2], hidden[-2], activation=activation, convolution=picture, **how)
    if layers:
        raise ConfigError(
            f"model.convolutional and model.recurrent with model.hidden {hidden}: give at least two widths, "
            "of a layer between the pictures and the state, and of the state"
        )
    return None


def _convolution(shape: tuple[int, ...], layers: Layers) -> Convolution | None:
    return Convolution(shape, layers) if layers else None
