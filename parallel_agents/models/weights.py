"""One agent's weights as a file: safetensors, with a description of the network that they belong to.

With the weights go the units in which the agent sees its observations, where it normalises them. Nothing is
unpickled. The size of a file is checked before it is read, the description before a number is taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from parallel_agents.errors import CheckpointError, CorruptCheckpoint, NonFiniteError
from parallel_agents.tracking.files import write_atomically
from parallel_agents.types import Array, State

__all__ = ["read_weights", "write_weights"]

FORMAT = "parallel_agents.weights.1"
COPIES = ("online", "target")
"""Parts of a learner's state that a fresh learner starts with as equals."""
_LARGEST_HEADER = 2**20


def write_weights(path: Path, network: Any, state: State) -> None:
    """Write what an agent acts with, of its one-row state, all or nothing."""
    data = save(_arrays(network, state), metadata={"format": FORMAT, "network": repr(network)})
    try:
        write_atomically(path, [data])
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error


def read_weights(path: Path, network: Any, fresh: State) -> State:
    """A fresh one-row state, starting from the weights of a file that was written for such an agent."""
    wanted = _arrays(network, fresh)
    largest = _LARGEST_HEADER + sum(array.nbytes for array in wanted.values())
    try:
        if path.stat().st_size > largest:
            raise CheckpointError(
                f"{path} has {path.stat().st_size:,} bytes, the weights of {network} at most {largest:,}: "
                "it belongs to another network"
            )
        with safe_open(path, framework="numpy") as file:
            _check_description(path, file.metadata() or {}, network)
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise CorruptCheckpoint(f"{path} is not a whole safetensors file: {error}") from error
    _check_arrays(path, found, wanted)
    row = torch.zeros_like(fresh["online"])
    for name, view in zip(network.layout.names, network.layout.views(row), strict=True):
        view[0] = torch.from_numpy(found[name])
    copies = {name: row.clone() for name in COPIES if name in fresh.tensors}
    units = {name: torch.from_numpy(found[name])[None].to(row.device) for name in _units(fresh)}
    return State({**fresh.tensors, **copies, **units})


def _arrays(network: Any, state: State) -> dict[str, Array]:
    """The parameters of the network by name, and the agent's units."""
    layout = network.layout
    views = dict(zip(layout.names, layout.views(state["online"].detach().cpu()), strict=True))
    tensors = views | {name: state[name].cpu() for name in _units(state)}
    return {name: np.ascontiguousarray(tensor[0].numpy()) for name, tensor in tensors.items()}


def _units(state: State) -> list[str]:
    """What an agent has met so far; the discount beside it is a hyper-parameter."""
    return [name for name in state.tensors if name.startswith("norm.") and name != "norm.gamma"]


def _check_description(path: Path, found: dict[str, str], network: Any) -> None:
    if found.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} says format {found.get('format')!r}, wanted is {FORMAT!r}: give a file that `save_weights` "
            "or `parallel-agents export` wrote"
        )
    if found.get("network") != repr(network):
        raise CheckpointError(
            f"{path} holds weights of {found.get('network')}, this agent has {network}: make the `model` section the "
            "one that they were trained with"
        )


def _check_arrays(path: Path, found: dict[str, Array], wanted: dict[str, Array]) -> None:
    if set(found) != set(wanted):
        odd = ", ".join(sorted(set(found) ^ set(wanted)))
        raise CheckpointError(
            f"{path} and this agent differ in {odd}: make the `model` section (its normalisation too) the one that "
            "the weights were trained with"
        )
    for name, array in found.items():
        like = wanted[name]
        if array.shape != like.shape or array.dtype != like.dtype:
            raise CorruptCheckpoint(
                f"{path}: {name} is {array.dtype} {array.shape}, wanted is {like.dtype} {like.shape}"
            )
        if not np.isfinite(array).all():
            raise NonFiniteError(f"{path}: {name} holds NaN or infinity; such weights are of no use")
