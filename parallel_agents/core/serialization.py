"""Nested Python values as JSON and arrays, and back: for the state of objects that users have written.

Numbers, strings, None, arrays, tensors, and dicts, lists and tuples of these are accepted. Nothing is ever unpickled,
so a file can contain data and never code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from parallel_agents.core.errors import ContractError, CorruptCheckpoint
from parallel_agents.core.types import Array

Restored = TypeVar("Restored", Array, torch.Tensor)


def pack(value: Any, arrays: dict[str, Array], prefix: str, where: str = "") -> Any:
    """Return a value as JSON, and copy its arrays into `arrays` under names that begin with `prefix`.

    where: the place within the outermost value, for error messages.

    >>> arrays = {}
    >>> packed = pack({"steps": 3, "table": np.zeros(2)}, arrays, "a")
    >>> sorted(arrays), unpack(packed, arrays)["steps"]
    (['a.0'], 3)
    """

    def inside(part: Any, place: Any) -> Any:
        return pack(part, arrays, prefix, f"{where}[{place!r}]")

    match value:
        case None | bool() | int() | str():
            return {"value": value}
        case float():
            return {"float": value.hex()}  # exact, also for NaN and infinity, which JSON cannot express
        case torch.Tensor():
            if value.dtype == torch.bfloat16:  # numpy has no such type
                raise ContractError(f"the state{where} is a tensor of bfloat16: give it as float32")
            return {"tensor": _put(value.detach().cpu().numpy(), arrays, prefix, where)}
        case np.ndarray():
            return {"array": _put(value, arrays, prefix, where)}
        case np.generic():
            return {"scalar": _put(value, arrays, prefix, where)}
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


def _put(value: Any, arrays: dict[str, Array], prefix: str, where: str) -> str:
    """Copy an array into `arrays` and return its name there."""
    array = np.array(value)
    if array.dtype.kind not in "biuf":
        raise ContractError(f"the state{where} is an array of {array.dtype}: give an array of numbers")
    name = f"{prefix}.{len(arrays)}"
    arrays[name] = array
    return name


def unpack(packed: Any, arrays: Mapping[str, Array]) -> Any:
    """Return the value that `pack` was given; its arrays are copies."""
    try:
        [(kind, content)] = packed.items()
        match kind:
            case "value":
                return content
            case "float":
                return float.fromhex(content)
            case "tensor":
                return torch.from_numpy(np.array(arrays[content]))
            case "array":
                return np.array(arrays[content])
            case "scalar":
                return arrays[content][()]
            case "dict":
                return {unpack(key, arrays): unpack(part, arrays) for key, part in content}
            case "tuple":
                return tuple(unpack(part, arrays) for part in content)
            case "list":
                return [unpack(part, arrays) for part in content]
        raise CorruptCheckpoint(f"a state in the checkpoint cannot be read: no value is written as {kind!r}")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"a state in the checkpoint cannot be read: {type(error).__name__}: {error}") from error


def require_like(name: str, found: Any, wanted: Any) -> None:
    """Raise CorruptCheckpoint unless an array or tensor of a checkpoint has the type and shape of another one."""
    if found.dtype != wanted.dtype or tuple(found.shape) != tuple(wanted.shape):
        raise CorruptCheckpoint(
            f"{name} is {found.dtype} {tuple(found.shape)}, wanted is {wanted.dtype} {tuple(wanted.shape)}"
        )


def restored(name: str, found: Restored, wanted: Any, *, least: float = -math.inf, most: float = math.inf) -> Restored:
    """Return an array or tensor of a checkpoint; raise CorruptCheckpoint if it cannot take the place of `wanted`.

    It must have the same type and shape, and finite numbers from `least` to `most`: compiled code relies on it.

    >>> restored("steps", np.array([3, -1]), np.zeros(2, int), least=0)
    Traceback (most recent call last):
    parallel_agents.core.errors.CorruptCheckpoint: steps holds -1, wanted are numbers from 0 to inf
    """
    require_like(name, found, wanted)
    numbers = np.asarray(found)
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise CorruptCheckpoint(f"NaN or infinity in {name}")
    outside = numbers[(numbers < least) | (numbers > most)]
    if outside.size:
        raise CorruptCheckpoint(f"{name} holds {outside[0]}, wanted are numbers from {least} to {most}")
    return found
