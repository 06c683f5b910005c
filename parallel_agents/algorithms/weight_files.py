"""Write one agent's weights to a safetensors file, with a description of their network, and read them back.

The file also holds the moments of observations and returns, where the agent normalizes them. Nothing is unpickled. The
size of a file is checked before it is read, and its description before any array is used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from parallel_agents.algorithms.learner import LearnerState
from parallel_agents.core.errors import CheckpointError, CorruptCheckpoint, NonFiniteError
from parallel_agents.core.files import write_atomically
from parallel_agents.core.types import Array
from parallel_agents.nn import Network

FORMAT = "parallel_agents.weights.1"
COPIES = ("online", "target")
"""Tensors of a learner's state that start as copies of the same weights."""
_LARGEST_HEADER = 2**20


def write_weights(path: Path, network: Network, state: LearnerState) -> None:
    """Write the weights and moments that an agent acts with, from its one-row state; atomically."""
    data = save(_arrays(network, state), metadata={"format": FORMAT, "network": repr(network)})
    try:
        write_atomically(path, [data])
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error


def read_weights(path: Path, network: Network, fresh: LearnerState) -> LearnerState:
    """Return a fresh one-row state that starts from the weights of a file; raise if the file is of another network."""
    wanted = _arrays(network, fresh)
    limit = _LARGEST_HEADER + sum(array.nbytes for array in wanted.values())
    try:
        if path.stat().st_size > limit:
            raise CheckpointError(
                f"{path} has {path.stat().st_size:,} bytes, the weights of {network} at most {limit:,}: "
                "it belongs to another network"
            )
        with safe_open(path, framework="numpy") as file:
            _check_description(path, file.metadata() or {}, network)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise CorruptCheckpoint(f"{path} is not a whole safetensors file: {error}") from error
    _check_arrays(path, arrays, wanted)
    row = torch.zeros_like(fresh["online"])
    for name, view in network.named(network.bind(row)).items():
        view[0] = torch.from_numpy(arrays[name])
    copies = {name: row.clone() for name in COPIES if name in fresh.tensors}
    moments = {name: torch.from_numpy(arrays[name])[None].to(row.device) for name in _moments(fresh)}
    return LearnerState({**fresh.tensors, **copies, **moments})


def _arrays(network: Network, state: LearnerState) -> dict[str, Array]:
    """Return the parameters of the network and the moments of the agent, by name."""
    tensors = network.named(network.bind(state["online"].detach().cpu()))
    tensors |= {name: state[name].cpu() for name in _moments(state)}
    return {name: np.ascontiguousarray(tensor[0].numpy()) for name, tensor in tensors.items()}


def _moments(state: LearnerState) -> list[str]:
    """Return the names of the normalization's moments; the discount beside them is a hyper-parameter."""
    return [name for name in state.tensors if name.startswith("norm.") and name != "norm.gamma"]


def _check_description(path: Path, description: dict[str, str], network: Network) -> None:
    """Raise CheckpointError unless a file's description is that of this network."""
    if description.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} says format {description.get('format')!r}, wanted is {FORMAT!r}: give a file that `save_weights` "
            "or `parallel-agents export` wrote"
        )
    if description.get("network") != repr(network):
        raise CheckpointError(
            f"{path} holds weights of {description.get('network')}, this agent has {network}: make the `model` section "
            "the one that they were trained with"
        )


def _check_arrays(path: Path, arrays: dict[str, Array], wanted: dict[str, Array]) -> None:
    """Raise unless a file's arrays have the names, shapes and types of `wanted` and only finite numbers."""
    if set(arrays) != set(wanted):
        different = ", ".join(sorted(set(arrays) ^ set(wanted)))
        raise CheckpointError(
            f"{path} and this agent differ in {different}: make the `model` section (its normalization too) the one "
            "that the weights were trained with"
        )
    for name, array in arrays.items():
        example = wanted[name]
        if array.shape != example.shape or array.dtype != example.dtype:
            raise CorruptCheckpoint(
                f"{path}: {name} is {array.dtype} {array.shape}, wanted is {example.dtype} {example.shape}"
            )
        if not np.isfinite(array).all():
            raise NonFiniteError(f"{path}: {name} holds NaN or infinity; such weights are of no use")
