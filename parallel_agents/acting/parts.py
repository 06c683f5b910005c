"""Observations made of parts, in a dict or a tuple, as one row of numbers; and back.

>>> flattened({"view": np.zeros((2, 2)), "hunger": 0.5}).tolist()
[0.0, 0.0, 0.0, 0.0, 0.5]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_agents.errors import ShapeError
from parallel_agents.types import Array

__all__ = ["flat_shape", "flattened", "split"]


def flat_shape(shape: Any) -> tuple[int, ...]:
    """The shape of an observation; of one made of parts, whose shapes a dict or tuple gives, its one row.

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


def flattened(seen: Any, axes: int = 0) -> Any:
    """What was seen with its parts one after the other, in their order; arrays stay as they are.

    axes: how many leading axes (agents, worlds) every part has.
    """
    if isinstance(seen, Mapping):
        parts = list(seen.values())
    elif isinstance(seen, tuple) and any(isinstance(part, np.ndarray | Mapping | tuple) for part in seen):
        parts = list(seen)
    else:
        return seen
    rows = [np.asarray(flattened(part, axes), np.float32) for part in parts]
    leading = {row.shape[:axes] for row in rows}
    if len(leading) != 1:
        raise ShapeError(
            f"the parts of an observation have shapes {[row.shape for row in rows]}: the first {axes} axes must agree"
        )
    return np.concatenate([row.reshape(*row.shape[:axes], -1) for row in rows], axis=-1)


def split(rows: Array, shape: Any) -> Any:
    """(…, D) rows of numbers -> parts (…, *part), in a dict or tuple as the shapes are given; the way back.

    >>> split(np.arange(5.0), {"view": (2, 2), "hunger": ()})["hunger"].tolist()
    4.0
    """
    if not isinstance(shape, Mapping) and (isinstance(shape, int) or all(isinstance(size, int) for size in shape)):
        return rows.reshape((*rows.shape[:-1], *flat_shape(shape)))
    names = list(shape) if isinstance(shape, Mapping) else range(len(shape))
    ends = np.cumsum([math.prod(flat_shape(shape[name])) for name in names])
    pieces = [rows[..., end - math.prod(flat_shape(shape[name])) : end] for name, end in zip(names, ends, strict=True)]
    parts = [split(piece, shape[name]) for name, piece in zip(names, pieces, strict=True)]
    return dict(zip(names, parts, strict=True)) if isinstance(shape, Mapping) else tuple(parts)
