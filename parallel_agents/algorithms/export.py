"""One agent's weights outside of a run: as a safetensors file, and as an ordinary `torch.nn.Module`; and back.

A file holds a description of the network too, and the moments of observations and returns where the agent normalizes
them. Nothing is unpickled. The size of a file is checked before it is read, and its description before any array is
used. A module has ordinary names in its `state_dict`; it can be used anywhere, traced to TorchScript, or exported to
ONNX. It takes observations (R, *shape), or flattened (R, inputs), and returns what the network returns: values of
actions, or policy outputs and the value.
"""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor, nn

from parallel_agents.algorithms.learner import LearnerState
from parallel_agents.core.errors import CheckpointError, ConfigError, CorruptCheckpoint, NonFiniteError
from parallel_agents.core.files import write_atomically
from parallel_agents.core.types import Array
from parallel_agents.nn import MLP, ActorCritic, ModuleNetwork, Network, SquashedGaussian

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


# -- modules ---------------------------------------------------------------------------------------------------------

SHOWN = 6
"""How many weights that do not fit an error names."""


def to_module(network: Network, row: Tensor) -> nn.Module:
    """Return a network with the weights of one agent's row (1, size) as a module of its own."""
    module = _empty_module(network)
    _copy(network, row, module, into_row=False)
    return module


def load_module(network: Network, row: Tensor, weights: nn.Module | Mapping[str, Tensor]) -> Tensor:
    """Return a copy of one agent's row (1, size) with the weights of a module, or of its `state_dict`."""
    module, new = _empty_module(network), row.clone()
    given = dict(weights.state_dict() if isinstance(weights, nn.Module) else weights)
    asked, found = _shapes(module.state_dict()), _shapes(given)
    different = [
        f"{name}: asked {asked.get(name, 'none')}, found {found.get(name, 'none')}"
        for name in asked | found
        if asked.get(name) != found.get(name)
    ]
    if different:
        more = f" and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
        raise ConfigError(
            f"the weights do not fit this agent's network: {'; '.join(different[:SHOWN])}{more}. Give weights with the "
            "names and shapes of to_module(), or make the agent with their sizes (model.hidden, model.network)"
        )
    module.load_state_dict(given)
    if not all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters()):
        raise ConfigError("the weights hold NaN or infinity: they are of no use")
    _copy(network, new, module, into_row=True)
    return new


def _shapes(weights: Mapping[str, Any]) -> dict[str, str]:
    """Return the shape of every tensor, or the type of what is none, as a text."""
    return {
        name: str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
        for name, value in weights.items()
    }


class _Dueling(nn.Module):
    """value + advantage - mean advantage."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.value, self.advantage = nn.Linear(inputs, 1), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        advantage = self.advantage(x)
        return torch.as_tensor(self.value(x) + advantage - advantage.mean(-1, keepdim=True))


class _FlattenCells(nn.Module):
    """(R, channels, rows, columns) -> (R, rows · columns · channels), in the order in which networks here read."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


class _ActorCritic(nn.Module):
    """Policy outputs and the value, side by side."""

    def __init__(self, network: ActorCritic) -> None:
        super().__init__()
        self.policy, self.value = _mlp(network.policy), _mlp(network.value)
        gaussian = isinstance(network.distribution, SquashedGaussian)
        self.log_std = nn.Parameter(torch.zeros(1, network.policy.outputs)) if gaussian else None

    def forward(self, x: Tensor) -> Tensor:
        outputs = [self.policy(x), self.value(x)]
        if self.log_std is not None:
            outputs.insert(1, self.log_std.expand(len(x), -1))
        return torch.cat(outputs, -1)


def _empty_module(network: Network) -> nn.Module:
    """Return the module of a network, with weights that have yet to be set."""
    match network:
        case ModuleNetwork():
            return copy.deepcopy(network.architecture.module)
        case MLP():
            return _mlp(network)
        case ActorCritic():
            return _ActorCritic(network)
    raise ConfigError(
        f"a {type(network).__name__} has no ordinary module: only networks without hidden state and noise do, that is, "
        "those of DQN and PPO that are not recurrent, and your own"
    )


def _mlp(network: MLP) -> nn.Sequential:
    activation = nn.ReLU if network.activation == "relu" else nn.Tanh
    parts: list[nn.Module] = [nn.Flatten(1)]
    width = network.inputs
    if network.convolution is not None:
        parts.append(nn.Unflatten(1, network.convolution.image))
        channels = network.convolution.image[0]
        for filters, kernel, stride in network.convolution.layers:
            parts += [nn.Conv2d(channels, filters, kernel, stride), activation()]
            channels = filters
        parts.append(_FlattenCells())
        width = network.convolution.outputs
    for hidden in network.hidden:
        parts += [nn.Linear(width, hidden), activation()]
        width = hidden
    head = _Dueling(width, network.outputs) if network.dueling else nn.Linear(width, network.outputs)
    return nn.Sequential(*parts, head)


@torch.no_grad()
def _copy(network: Network, row: Tensor, module: nn.Module, *, into_row: bool) -> None:
    """Copy every weight from a row into a module, or the other way."""
    views = network.named(network.bind(row))
    pairs: list[tuple[Tensor, Tensor, slice | None]] = []
    match network:
        case ModuleNetwork():
            pairs = [(views[name], parameter, None) for name, parameter in module.named_parameters()]
        case ActorCritic():
            for part in ("policy", "value"):
                own = {name.removeprefix(f"{part}."): view for name, view in views.items() if name.startswith(part)}
                pairs += _mlp_pairs(getattr(network, part), own, getattr(module, part))
            if "log_std" in views:
                pairs.append((views["log_std"], module.get_parameter("log_std"), None))
        case _:
            pairs = _mlp_pairs(network, views, module)
    for view, parameter, rows in pairs:
        inside = _inside(view[0], parameter, rows)
        if into_row:
            inside.copy_(parameter.reshape(inside.shape))
        else:
            parameter.copy_(inside.reshape(parameter.shape))


def _mlp_pairs(
    network: Any, views: Mapping[str, Tensor], module: nn.Module
) -> list[tuple[Tensor, Tensor, slice | None]]:
    """Return every weight in a row with the parameter of the module that it is, and the rows of it that are meant."""
    layers = [part for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    pairs: list[tuple[Tensor, Tensor, slice | None]] = []
    last = len(views) // 2 - 1
    for index, part in enumerate(layers):
        place = min(index, last)  # both parts of a dueling head stand in one layer: the value first
        rows = None if not network.dueling or index < last else slice(0, 1) if index == last else slice(1, None)
        assert part.bias is not None
        pairs += [(views[f"weight{place}"], part.weight, rows), (views[f"bias{place}"], part.bias, rows)]
    return pairs


def _inside(view: Tensor, parameter: Tensor, rows: slice | None) -> Tensor:
    """Return the part of a padded view (out, in) or (1, out) that a parameter fills."""
    if parameter.ndim == 1:
        flat = view[0] if view.ndim == 2 and view.shape[0] == 1 else view
        return (flat if rows is None else flat[rows])[: parameter.shape[0]]
    if parameter.ndim == view.ndim and parameter.shape == view.shape:
        return view
    wide = view if rows is None else view[rows]
    return wide[: parameter.shape[0], : parameter[0].numel()]


def write_module(path: Path, module: nn.Module, observation: tuple[int, ...]) -> None:
    """Write a module as ONNX (.onnx) or TorchScript (.pt), for any number of observations of this shape."""
    module, example, data = module.eval(), torch.zeros(2, *observation), io.BytesIO()
    with warnings.catch_warnings():  # torch's exporters warn of their own future
        warnings.simplefilter("ignore")
        if path.suffix == ".pt":
            torch.jit.save(torch.jit.trace(module, example), data)  # type: ignore[no-untyped-call]
        elif path.suffix == ".onnx":
            rows = {0: torch.export.Dim("rows")}
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses packages that no network here needs
            try:
                program = torch.onnx.export(
                    module,
                    (example,),
                    input_names=["observations"],
                    output_names=["outputs"],
                    dynamo=True,
                    dynamic_shapes=(rows,),
                    verbose=False,
                )
            except ImportError as error:
                raise ConfigError(f"{path}: ONNX needs a package ({error}): pip install onnx onnxscript") from error
            assert program is not None
            data.write(program.model_proto.SerializeToString())
        else:
            raise ConfigError(f"{path}: give a name that ends in .onnx (ONNX) or .pt (TorchScript)")
    write_atomically(path, [data.getvalue()])
