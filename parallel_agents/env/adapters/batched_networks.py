"""The networks of sorrel's models: finding them, fixing them in evaluation mode, and batching equal ones."""

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

MIN_BATCH = 4
"""With fewer calls than this, one call per network is faster than one batched call."""


def networks_of(model: Any) -> dict[str, nn.Module]:
    """Return the networks that a model holds, by attribute name."""
    if isinstance(model, nn.Module):
        return dict(model.named_children())
    return {name: value for name, value in vars(model).items() if isinstance(value, nn.Module)}


@contextmanager
def eval_mode(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Keep networks in evaluation mode, and ignore calls of `eval()` and `train()` meanwhile.

    sorrel's models switch the mode twice for each action. That costs time, and only acting uses these networks.
    """
    modes = [network.training for network in networks]
    for network in networks:
        network.eval()
        network.__dict__["eval"] = network.__dict__["train"] = lambda *_, network=network: network
    try:
        yield
    finally:
        for network, training in zip(networks, modes, strict=True):
            del network.__dict__["eval"], network.__dict__["train"]
            network.train(training)


@contextmanager
def replaced_forward(networks: Sequence[nn.Module], forward: Callable[..., Any]) -> Iterator[None]:
    """Let `forward(network, …)` compute the outputs of networks."""
    for network in networks:
        network.__dict__["forward"] = lambda *args, network=network, **kwargs: forward(network, *args, **kwargs)
    try:
        yield
    finally:
        for network in networks:
            del network.__dict__["forward"]


class ForwardCall(NamedTuple):
    """A call of a network's `forward`."""

    network: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class ForwardRequest(Exception):
    """Carries a call of a network out of a model's code, so that it can be batched with others; not an error."""

    def __init__(self, call: ForwardCall) -> None:
        super().__init__("the output of a network is needed")
        self.call = call

    @staticmethod
    def forward(network: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Raise the request, in place of the network's own `forward`."""
        raise ForwardRequest(ForwardCall(network, args, kwargs))


class BatchedNetworks:
    """Networks of one architecture, computed with one `vmap` call.

    Their weights become views into stacked tensors, so that in-place writes (by an optimizer, a soft update or
    `load_state_dict`) reach the stack.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._rows = {id(network): row for row, network in enumerate(networks)}
        self._template = copy.deepcopy(networks[0]).to("meta").eval()
        self._values = {
            **_stack([dict(network.named_parameters()) for network in networks]),
            **_stack([dict(network.named_buffers()) for network in networks]),
        }
        self._can_batch = True

    @staticmethod
    def key(network: nn.Module) -> Any:
        """Return a value that is equal for networks that can be batched."""
        layout = tuple((name, value.shape, value.dtype) for name, value in network.state_dict().items())
        return type(network), repr(network), layout

    def forward(self, calls: Sequence[ForwardCall]) -> list[Any]:
        """Return the output of each call, computed in one batch if there are enough of them."""
        if self._can_batch and len(calls) >= max(MIN_BATCH, len(self._rows) // 2) and _same_form(calls):
            try:
                return self._forward_batched(calls)
            except Exception as error:  # torch.func may refuse another library's code in many ways
                self._can_batch = False
                warnings.warn(f"{type(calls[0].network).__name__} is computed one by one: {error}", stacklevel=2)
        return [call.network.forward(*call.args, **call.kwargs) for call in calls]

    def _forward_batched(self, calls: Sequence[ForwardCall]) -> list[Any]:
        rows = [self._rows[id(call.network)] for call in calls]
        example = calls[0]
        batches = []
        for position, argument in enumerate(example.args):
            if isinstance(argument, Tensor):
                batch = argument.new_zeros(len(self._rows), *argument.shape)
                for row, call in zip(rows, calls, strict=True):
                    batch[row] = call.args[position]
                batches.append(batch)

        def forward_one(values: dict[str, Tensor], *tensors: Tensor) -> Any:
            remaining = iter(tensors)
            args = tuple(next(remaining) if isinstance(argument, Tensor) else argument for argument in example.args)
            return functional_call(self._template, values, args, dict(example.kwargs))

        in_dims = (0, *[0] * len(batches))
        outputs = torch.vmap(forward_one, in_dims=in_dims, randomness="different")(self._values, *batches)
        return [tree_map(lambda output, row=row: output[row], outputs) for row in rows]


def _stack(tensors_per_network: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return (N, …) tensors by name, and make the given tensors views into them."""
    stacked = {}
    for name in tensors_per_network[0]:
        stack = torch.stack([tensors[name].detach() for tensors in tensors_per_network])
        for row, tensors in enumerate(tensors_per_network):
            tensors[name].data = stack[row]
        stacked[name] = stack
    return stacked


def _same_form(calls: Sequence[ForwardCall]) -> bool:
    """Return True if calls differ in the values of positional tensors only."""

    def form(call: ForwardCall) -> Any:
        return [value.shape if isinstance(value, Tensor) else value for value in call.args], call.kwargs

    tensor_kwargs = any(isinstance(value, Tensor) for value in calls[0].kwargs.values())
    return not tensor_kwargs and all(form(call) == form(calls[0]) for call in calls[1:])
