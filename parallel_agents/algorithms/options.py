"""The parts of the `model` section that several algorithms share, and the networks that it can describe."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

import torch

from parallel_agents.core.errors import ConfigError
from parallel_agents.kernels.schedules import SCHEDULES
from parallel_agents.nn import MLP, ActorCritic, Architecture, Convolution, Distribution, Factory, Recurrent

Schedule = Literal["linear", "exponential", "cosine"]
Kernels = Literal["auto", "torch"]
ConvolutionalLayers = tuple[tuple[int, ...], ...]
Head = TypeVar("Head", MLP, ActorCritic)


def require_positive(options: Any, *names: str) -> None:
    """Raise ConfigError unless each of these options is a finite number above 0."""
    for name in names:
        if not 0.0 < getattr(options, name) < math.inf:
            raise ConfigError(f"model.{name} is {getattr(options, name)}: give a number above 0")


def require_at_least(options: Any, least: int, *names: str) -> None:
    """Raise ConfigError unless each of these options is a finite number of at least `least`."""
    for name in names:
        value = getattr(options, name)
        if not least <= value < math.inf:
            number = "whole number" if isinstance(value, int) else "number"
            raise ConfigError(f"model.{name} is {value}: give a {number} of at least {least}")


def require_share(options: Any, *names: str) -> None:
    """Raise ConfigError unless each of these options is a number from 0 to 1."""
    for name in names:
        if not 0.0 <= getattr(options, name) <= 1.0:
            raise ConfigError(f"model.{name} is {getattr(options, name)}: give a number from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class LearnerOptions:
    """Options of every learner."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "clip": "max_grad_norm",
        "normalise_observations": "normalize_observations",
        "normalise_rewards": "normalize_rewards",
    }

    lr: float = 1e-3
    lr_final: float | None = None
    """Learning rate after `lr_updates` updates; None: constant."""
    lr_updates: int = 0
    lr_schedule: Schedule = "linear"
    """How the learning rate goes from `lr` to `lr_final`."""
    max_grad_norm: float = 10.0
    """Largest norm of an agent's gradient."""
    kernels: Kernels = "auto"
    """auto: compiled kernels where the network is a plain perceptron on the CPU, torch elsewhere; torch: everywhere."""
    training_priority: int = 0
    """Agents with a higher priority are trained, and published, before the others."""
    normalize_observations: bool = False
    """Scale observations to mean 0 and deviation 1, from what the agent has observed so far."""
    normalize_rewards: bool = False
    """Scale rewards so that the returns so far have deviation 1."""
    importance: dict[str, Any] | None = None
    """Draw by event class, with corrections: the options of `EventWeighting`, {} for its defaults; None: uniformly."""

    def __post_init__(self) -> None:
        require_positive(self, "lr", "max_grad_norm")
        require_at_least(self, 0, "lr_updates")
        if self.lr_final is None:
            return  # constant, whatever the other keys say: this one key switches off the schedule of a recipe
        if not 0.0 <= self.lr_final < math.inf:
            raise ConfigError(f"model.lr_final is {self.lr_final}: give a number from 0")
        if self.lr_updates < 1:
            raise ConfigError(
                "model.lr_final is given without model.lr_updates: say over how many updates it is reached"
            )
        if self.lr_schedule == "exponential" and self.lr_final == 0.0:
            raise ConfigError("model.lr_schedule is 'exponential': lr_final must be above 0, it is reached by factors")

    @property
    def learning_rates(self) -> dict[str, float]:
        """The hyper-parameters of the learning rate, under their stored names."""
        final = self.lr if self.lr_final is None else self.lr_final
        schedule = float(SCHEDULES.index(self.lr_schedule))
        return {"lr": self.lr, "lr_final": final, "lr_updates": float(self.lr_updates), "lr_shape": schedule}

    @property
    def normalize(self) -> tuple[bool, bool]:
        """Whether observations and rewards are normalized."""
        return self.normalize_observations, self.normalize_rewards


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Options of the networks that a `model` section can describe."""

    hidden: int | tuple[int, ...] = (64, 64)
    """Widths of the hidden layers; with `recurrent`, the last is that of the hidden state."""
    convolutional: ConvolutionalLayers = ()
    """Layers (filters, kernel side, stride) before the hidden ones, where observations are images."""
    recurrent: bool = False
    """Carry a hidden state from turn to turn (a GRU)."""
    sequence: int = 16
    """Turns of the sequences that a recurrent network learns from."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "sequence")
        if self.recurrent and not self.widths:
            raise ConfigError("model.recurrent with an empty model.hidden: its last number is the size of the state")

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.hidden,) if isinstance(self.hidden, int) else self.hidden


def user_architecture(network: Factory, options: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a user's factory makes; raise ConfigError if options describe a network too."""
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
    shape: tuple[int, ...],
    hidden: tuple[int, ...],
    actions: int,
    dueling: bool,
    convolutional: ConvolutionalLayers,
    recurrent: bool,
) -> MLP | Recurrent:
    """Return a network from observations of this shape to a value for each action."""
    head = partial(MLP, outputs=actions, dueling=dueling)
    return _network(head, shape, hidden, convolutional, recurrent, activation="relu")


def policy_network(
    shape: tuple[int, ...],
    hidden: tuple[int, ...],
    distribution: Distribution,
    convolutional: ConvolutionalLayers,
    recurrent: bool,
) -> ActorCritic | Recurrent:
    """Return a network from observations of this shape to a policy and a value; a recurrent one shares its state."""
    head, init = partial(ActorCritic, distribution=distribution), {"orthogonal": True, "head_gain": math.sqrt(2.0)}
    return _network(head, shape, hidden, convolutional, recurrent, activation="tanh", **init)


def _network(
    head: Callable[..., Head],
    shape: tuple[int, ...],
    hidden: tuple[int, ...],
    convolutional: ConvolutionalLayers,
    recurrent: bool,
    **encoder: Any,
) -> Head | Recurrent:
    """Return `head(inputs, hidden)`; or a recurrent unit with a head, after an encoder with the first hidden layers."""
    inputs = math.prod(shape)
    if recurrent and convolutional and len(hidden) < 2:
        raise ConfigError(
            f"model.convolutional and model.recurrent with model.hidden {hidden}: give at least two widths, "
            "of a layer between the images and the state, and of the state"
        )
    convolution = Convolution(shape, convolutional) if convolutional else None
    if not recurrent:
        return head(inputs, hidden, convolution=convolution)
    before = MLP(inputs, hidden[:-2], hidden[-2], convolution=convolution, **encoder) if len(hidden) > 1 else None
    return Recurrent(inputs, hidden[-1], head(hidden[-1], ()), before)
