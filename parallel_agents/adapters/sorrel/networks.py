"""The networks of foreign models: finding them, keeping them still while they act, computing equal ones together."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

__all__ = ["Call", "Chorus", "Wanted", "networks", "still"]

FEWEST = 4
"""Networks below which one call for all costs more than a call for each."""


class Call(NamedTuple):
    """What a network is asked."""

    network: nn.Module
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


class Wanted(Exception):
    """No error: it carries out of foreign code what a model wants of its network, to be computed with others."""

    def __init__(self, call: Call) -> None:
        super().__init__("a network's answer is wanted")
        self.call = call


def networks(model: Any) -> dict[str, nn.Module]:
    """The networks that a model holds, by name."""
    if isinstance(model, nn.Module):
        return dict(model.named_children())
    return {name: value for name, value in vars(model).items() if isinstance(value, nn.Module)}


@contextmanager
def still(nets: Sequence[nn.Module]) -> Iterator[None]:
    """Keep networks that only act in evaluation mode, and spare them the switching to and fro."""
    before = [net.training for net in nets]
    for net in nets:
        net.eval()
        net.__dict__["eval"] = net.__dict__["train"] = lambda *_, own=net: own
    try:
        yield
    finally:
        for net, training in zip(nets, before, strict=True):
            del net.__dict__["eval"], net.__dict__["train"]
            net.train(training)


@contextmanager
def answering(nets: Sequence[nn.Module], forward: Callable[..., Any]) -> Iterator[None]:
    """Let `forward(network, …)` answer for networks."""
    for net in nets:
        net.__dict__["forward"] = lambda *arguments, own=net, **keywords: forward(own, *arguments, **keywords)
    try:
        yield
    finally:
        for net in nets:
            del net.__dict__["forward"]


def ask(net: nn.Module, *arguments: Any, **keywords: Any) -> Any:
    """In the place of a network: carry the question out."""
    raise Wanted(Call(net, arguments, keywords))


class Chorus:
    """Networks of one architecture, each with its own weights, which become views into one stack of them.

    Whoever writes to the weights in place (an optimizer, a soft update, `load_state_dict`) writes to the stack.
    """

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        self._places = {id(net): row for row, net in enumerate(nets)}
        self._template = copy.deepcopy(nets[0]).to("meta").eval()
        self._values = {
            **_stacked([dict(net.named_parameters()) for net in nets]),
            **_stacked([dict(net.named_buffers()) for net in nets]),
        }
        self._works = True

    @staticmethod
    def key(net: nn.Module) -> Any:
        """Equal for networks that can be computed together."""
        return type(net), repr(net), tuple((name, value.shape, value.dtype) for name, value in net.state_dict().items())

    def answers(self, calls: Sequence[Call]) -> list[Any]:
        """The answer to each call, together where there are enough of them."""
        if self._works and len(calls) >= max(FEWEST, len(self._places) // 2) and _alike(calls):
            try:
                return self._together(calls)
            except Exception as error:  # whatever torch.func says of foreign code
                self._works = False
                warnings.warn(f"{type(calls[0].network).__name__} is computed one by one: {error}", stacklevel=2)
        return [call.network.forward(*call.arguments, **call.keywords) for call in calls]

    def _together(self, calls: Sequence[Call]) -> list[Any]:
        rows = [self._places[id(call.network)] for call in calls]
        first = calls[0]
        inputs = []
        for position, example in enumerate(first.arguments):
            if isinstance(example, Tensor):
                block = example.new_zeros(len(self._places), *example.shape)
                for row, call in zip(rows, calls, strict=True):
                    block[row] = call.arguments[position]
                inputs.append(block)
        outputs = torch.vmap(self._one(first), in_dims=(0, *[0] * len(inputs)), randomness="different")(
            self._values, *inputs
        )
        return [tree_map(lambda block, row=row: block[row], outputs) for row in rows]

    def _one(self, example: Call) -> Callable[..., Any]:
        def compute(values: dict[str, Tensor], *tensors: Tensor) -> Any:
            given = iter(tensors)
            arguments = tuple(next(given) if isinstance(own, Tensor) else own for own in example.arguments)
            return functional_call(self._template, values, arguments, dict(example.keywords))

        return compute


def _stacked(own: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """(N, …) per name, of which the given tensors become views."""
    stacked = {}
    for name in own[0]:
        block = torch.stack([tensors[name].detach() for tensors in own])
        for row, tensors in enumerate(own):
            tensors[name].data = block[row]
        stacked[name] = block
    return stacked


def _alike(calls: Sequence[Call]) -> bool:
    def form(call: Call) -> Any:
        return [own.shape if isinstance(own, Tensor) else own for own in call.arguments], call.keywords

    tensors = any(isinstance(own, Tensor) for own in calls[0].keywords.values())
    return not tensors and all(form(call) == form(calls[0]) for call in calls[1:])
