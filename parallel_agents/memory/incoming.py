"""What a buffer is given, as columns of the types it keeps: checked before anything is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.compiled import njit
from parallel_agents.errors import ActionError, ContractError, NonFiniteError, ShapeError
from parallel_agents.types import Array

__all__ = [
    "detached",
    "finite",
    "fitting_actions",
    "json_texts",
    "observations",
    "one_action",
    "one_number",
    "one_observation",
]

_LARGEST = float(np.finfo(np.float32).max)


def detached(given: Any) -> Any:
    """A tensor as the numbers it holds: a buffer that kept its autograd graph would keep all its past alive."""
    return given.detach().cpu().numpy() if hasattr(given, "detach") else given


def finite(name: str, given: ArrayLike) -> NDArray[np.float32]:
    """Numbers of any shape as float32."""
    with np.errstate(over="ignore"):  # a number too large becomes infinity, which is refused here
        array = np.asarray(detached(given), np.float32)
    if not np.isfinite(array).all():
        raise NonFiniteError(f"{name} hold NaN, infinity or a number beyond float32: give finite numbers")
    return array


def observations(name: str, given: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Observations (n, *shape) as rows (n, size)."""
    array = finite(name, given)
    if array.shape[1:] != shape:
        raise ShapeError(f"{name} have shape {array.shape[1:]} each: this buffer keeps {shape}")
    return np.ascontiguousarray(array).reshape(len(array), -1)


def fitting_actions(given: ArrayLike, column: Array) -> Array:
    """Actions (n, ...) that the column (capacity, ...) can keep as they are."""
    actions = np.asarray(detached(given))
    if actions.shape[1:] != column.shape[1:]:
        raise ShapeError(f"actions have shape {actions.shape[1:]} each: this buffer keeps {column.shape[1:]}")
    if column.dtype.kind not in "iu":
        return finite("actions", actions)
    limits = np.iinfo(column.dtype)
    if actions.dtype.kind not in "iub" or (
        actions.size and not limits.min <= actions.min() <= actions.max() <= limits.max
    ):
        raise ActionError(
            f"actions of type {actions.dtype} cannot be kept as {column.dtype}, whole numbers from {limits.min} to "
            f"{limits.max}: give the buffer another action_dtype"
        )
    return actions


def one_number(name: str, given: Any) -> float:
    """One number that float32 can hold."""
    number = float(detached(given))
    if not -_LARGEST <= number <= _LARGEST:
        raise NonFiniteError(f"{name} is {number}: give a finite number that float32 can hold")
    return number


def one_observation(name: str, given: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """One observation (*shape) as a row (1, size)."""
    if type(given) is np.ndarray and given.dtype == np.float32 and given.shape == shape:
        row = np.ascontiguousarray(given).reshape(1, -1)
        if not all_finite(row):
            raise NonFiniteError(f"{name} holds NaN or infinity: give finite numbers")
        return row
    return observations(name, np.asarray(detached(given))[None], shape)


def one_action(given: ArrayLike, column: Array) -> Any:
    """One action that the column (capacity, ...) can keep as it is."""
    return fitting_actions(np.asarray(detached(given))[None], column)[0]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def all_finite(rows: NDArray[np.float32]) -> bool:
    """True if none of (n, size) is NaN or infinite."""
    for number in rows.flat:  # noqa: SIM110 - compiled
        if not np.isfinite(number):
            return False
    return True


def json_texts(metadata: Sequence[Mapping[str, Any] | None] | None, count: int) -> dict[int, str]:
    """Place -> JSON text, for those of `count` rows that have metadata."""
    if metadata is None:
        return {}
    if len(metadata) != count:
        raise ShapeError(f"{len(metadata)} metadata for {count} transitions: give one for each, or None")
    try:
        return {place: json.dumps(dict(own), allow_nan=False) for place, own in enumerate(metadata) if own}
    except (TypeError, ValueError) as error:
        raise ContractError(f"metadata cannot be kept as JSON: {error}") from error
