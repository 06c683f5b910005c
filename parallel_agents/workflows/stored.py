"""A conditioned defender on disk: its weights in safetensors, what they are for in JSON, with their sha256.

FOLDER/policy.safetensors    the learner's state
FOLDER/policy.json           shapes, options, the order it was trained on; written last
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from parallel_agents.errors import CheckpointError, CorruptCheckpoint
from parallel_agents.tracking.files import read_file, read_json, write_atomically, write_json
from parallel_agents.types import State
from parallel_agents.workflows.conditioned import ParallelOrderConditionedPPO

__all__ = ["MARK", "load_policy", "save_policy"]

MARK = "policy.json"
_WEIGHTS = "policy.safetensors"
_LARGEST = 2**28
_LARGEST_MARK = 2**20


def save_policy(agent: ParallelOrderConditionedPPO, folder: Path, about: dict[str, Any]) -> None:
    """Write the agent's newest weights; `about` is kept beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    data = save({name: np.ascontiguousarray(tensor.numpy()) for name, tensor in agent.model.state.tensors.items()})
    write_atomically(folder / _WEIGHTS, [data])
    shape = {"n_envs": agent.n_envs, "steps": agent.steps, "hidden": list(agent.hidden)}
    seal = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_json(folder / MARK, {"agent": shape, "weights": seal, "about": about})


def load_policy(folder: Path) -> tuple[ParallelOrderConditionedPPO, dict[str, Any]]:
    """The agent that was saved, and what was kept beside it."""
    try:
        content = read_json(folder / MARK, _LARGEST_MARK)
        shape, seal = content["agent"], content["weights"]
        data = read_file(folder / _WEIGHTS, _LARGEST)
        if hashlib.sha256(data).hexdigest() != seal["sha256"]:
            raise CorruptCheckpoint(f"{folder / _WEIGHTS} does not hold the bytes that were written: train again")
        agent = ParallelOrderConditionedPPO(
            n_envs=int(shape["n_envs"]), steps=int(shape["steps"]), hidden=tuple(shape["hidden"])
        )
        tensors = {name: torch.from_numpy(array.copy()) for name, array in load(data).items()}
        wanted = {name: tensor.shape for name, tensor in agent.model.state.tensors.items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != wanted:
            raise CheckpointError(f"{folder / _WEIGHTS} does not fit the network that {MARK} describes: train again")
        agent.model.state = State(tensors)
        return agent, dict(content["about"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as fault:
        raise CheckpointError(f"{folder} holds no readable conditioned defender ({fault}): train one there") from fault
