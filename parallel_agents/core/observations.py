"""Flatten observations that consist of several arrays, in a dict or a tuple, to one row of numbers; and back.

>>> flatten_observation({"view": np.zeros((2, 2)), "hunger": 0.5}).tolist()
[0.0, 0.0, 0.0, 0.0, 0.5]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_agents.core.errors import ShapeError
from parallel_agents.core.types import Array


def flat_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape of an observation; for a dict or tuple of shapes, the length of the flat row.

    >>> flat_shape(4), flat_shape((3, 2)), flat_shape({"view": (3, 2), "hunger": ()}), flat_shape(((3, 2), 4))
    ((4,), (3, 2), (7,), (10,))
    """
    if isinstance(shape, int):
        return (shape,)
    if isinstance(shape, Mapping):
        return (sum(math.prod(flat_shape(part)) for part in shape.values()),)
    if all(isinstance(size, int) for size in shape):
        return tuple(shape)
    return (sum(math.prod(flat_shape(part)) for part in shape),)


def flatten_observation(observation: Any, axes: int = 0) -> Any:
    """Return an observation with its parts concatenated in their order; an array is returned as it is.

    axes: how many leading axes (agents, worlds) every part has.
    """
    if isinstance(observation, Mapping):
        parts = list(observation.values())
    elif isinstance(observation, tuple) and any(isinstance(part, np.ndarray | Mapping | tuple) for part in observation):
        parts = list(observation)
    else:
        return observation
    rows = [np.asarray(flatten_observation(part, axes), np.float32) for part in parts]
    leading = {row.shape[:axes] for row in rows}
    if len(leading) != 1:
        raise ShapeError(
            f"the parts of an observation have shapes {[row.shape for row in rows]}: the first {axes} axes must agree"
        )
    return np.concatenate([row.reshape(*row.shape[:axes], -1) for row in rows], axis=-1)


def unflatten_observation(rows: Array, shape: Any) -> Any:
    """Return the parts (…, *part) of flat rows (…, D), in a dict or tuple like the shapes.

    >>> unflatten_observation(np.arange(5.0), {"view": (2, 2), "hunger": ()})["hunger"].tolist()
    4.0
    """
    if not isinstance(shape, Mapping) and (isinstance(shape, int) or all(isinstance(size, int) for size in shape)):
        return rows.reshape((*rows.shape[:-1], *flat_shape(shape)))
    names = list(shape) if isinstance(shape, Mapping) else range(len(shape))
    ends = np.cumsum([math.prod(flat_shape(shape[name])) for name in names])
    pieces = [rows[..., end - math.prod(flat_shape(shape[name])) : end] for name, end in zip(names, ends, strict=True)]
    parts = [unflatten_observation(piece, shape[name]) for name, piece in zip(names, pieces, strict=True)]
    return dict(zip(names, parts, strict=True)) if isinstance(shape, Mapping) else tuple(parts)
