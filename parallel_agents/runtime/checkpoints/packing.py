"""Nested Python values as JSON and arrays, and back: the state of objects whose form only their owner knows.

Allowed are numbers, strings, None, arrays, tensors, and dicts, lists and tuples of these. Nothing else is accepted, and
nothing is ever unpickled, so a file can bring back data and never code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parallel_agents.errors import ContractError, CorruptCheckpoint
from parallel_agents.types import Array

__all__ = ["pack", "unpack"]


def pack(value: Any, arrays: dict[str, Array], head: str, where: str = "") -> Any:
    """Return `value` as JSON; its arrays are copied into `arrays` under names that begin with `head`.

    where: the place within the outermost value, for the error message.

    >>> arrays = {}
    >>> packed = pack({"steps": 3, "table": np.zeros(2)}, arrays, "a")
    >>> sorted(arrays), unpack(packed, arrays)["steps"]
    (['a.0'], 3)
    """

    def inside(part: Any, place: Any) -> Any:
        return pack(part, arrays, head, f"{where}[{place!r}]")

    match value:
        case None | bool() | int() | str():
            return {"value": value}
        case float():
            return {"float": value.hex()}  # exact, also for NaN and infinity, which JSON has no words for
        case torch.Tensor():
            if value.dtype == torch.bfloat16:  # numpy has no such type
                raise ContractError(f"the state{where} is a tensor of bfloat16: give it as float32")
            return {"tensor": _put(value.detach().cpu().numpy(), arrays, head, where)}
        case np.ndarray():
            return {"array": _put(value, arrays, head, where)}
        case np.generic():
            return {"scalar": _put(value, arrays, head, where)}
        case Mapping():
            return {"dict": [[inside(key, "key"), inside(part, key)] for key, part in value.items()]}
        case tuple():
            return {"tuple": [inside(part, place) for place, part in enumerate(value)]}
        case list():
            return {"list": [inside(part, place) for place, part in enumerate(value)]}
    raise ContractError(
        f"the state{where} is a {type(value).__name__}: give numbers, strings, None, arrays, tensors, and dicts, lists "
        "and tuples of these"
    )


def _put(value: Any, arrays: dict[str, Array], head: str, where: str) -> str:
    array = np.array(value)
    if array.dtype.kind not in "biuf":
        raise ContractError(f"the state{where} is an array of {array.dtype}: give an array of numbers")
    name = f"{head}.{len(arrays)}"
    arrays[name] = array
    return name


def unpack(packed: Any, arrays: Mapping[str, Array]) -> Any:
    """Return the value that `pack` was given; its arrays are copies."""
    try:
        [(kind, held)] = packed.items()
        match kind:
            case "value":
                return held
            case "float":
                return float.fromhex(held)
            case "tensor":
                return torch.from_numpy(np.array(arrays[held]))
            case "array":
                return np.array(arrays[held])
            case "scalar":
                return arrays[held][()]
            case "dict":
                return {unpack(key, arrays): unpack(part, arrays) for key, part in held}
            case "tuple":
                return tuple(unpack(part, arrays) for part in held)
            case "list":
                return [unpack(part, arrays) for part in held]
        raise CorruptCheckpoint(f"a state in the checkpoint cannot be read: no value is written as {kind!r}")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"a state in the checkpoint cannot be read: {type(error).__name__}: {error}") from error
