"""Check what callers pass to buffers and samplers, and convert it to arrays of one type and layout.

Everything is checked before anything is written, and compiled kernels see one signature.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import ActionError, ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.core.types import Array, Ints
from parallel_agents.replay.ring import all_finite

_LARGEST = float(np.finfo(np.float32).max)


def require_share(name: str, value: float, *, above: float | None = None, below: float | None = None) -> None:
    """Raise unless `value` lies in [0, 1]; `above` and `below` exclude an end."""
    low = value > above if above is not None else value >= 0.0
    high = value < below if below is not None else value <= 1.0
    if not (low and high):
        interval = f"{'[0' if above is None else '(0'}, {'1]' if below is None else '1)'}"
        raise ConfigError(f"{name} is {value}: give a number in {interval}")


def require_positive(name: str, value: float) -> None:
    """Raise unless `value` is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} is {value}: give a finite number above 0")


def detached(value: Any) -> Any:
    """Return a tensor's numbers without its autograd graph, which would keep all its past in memory."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def finite(name: str, values: ArrayLike) -> NDArray[np.float32]:
    """Return numbers of any shape as float32."""
    with np.errstate(over="ignore"):  # a number that is too large becomes infinity, which is refused here
        array = np.asarray(detached(values), np.float32)
    if not np.isfinite(array).all():
        raise NonFiniteError(f"{name} hold NaN, infinity or a number beyond float32: give finite numbers")
    return array


def state_rows(name: str, states: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return states (n, *shape) as rows (n, size)."""
    array = finite(name, states)
    if array.shape[1:] != shape:
        raise ShapeError(f"{name} have shape {array.shape[1:]} each: this buffer keeps {shape}")
    return np.ascontiguousarray(array).reshape(len(array), -1)


def one_state(name: str, state: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return one state (*shape) as a row (1, size)."""
    if type(state) is np.ndarray and state.dtype == np.float32 and state.shape == shape:
        row = np.ascontiguousarray(state).reshape(1, -1)
        if not all_finite(row):
            raise NonFiniteError(f"{name} holds NaN or infinity: give finite numbers")
        return row
    return state_rows(name, np.asarray(detached(state))[None], shape)


def fitting_actions(values: ArrayLike, column: Array) -> Array:
    """Return actions (n, ...) that the column (capacity, ...) can store without changing them."""
    actions = np.asarray(detached(values))
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


def one_action(value: ArrayLike, column: Array) -> Any:
    """Return one action that the column (capacity, ...) can store without changing it."""
    return fitting_actions(np.asarray(detached(value))[None], column)[0]


def one_number(name: str, value: Any) -> float:
    """Return one number that float32 can hold."""
    number = float(detached(value))
    if not -_LARGEST <= number <= _LARGEST:
        raise NonFiniteError(f"{name} is {number}: give a finite number that float32 can hold")
    return number


def json_texts(metadata: Sequence[Mapping[str, Any] | None] | None, count: int) -> dict[int, str]:
    """Return the metadata of `count` rows as JSON, by row; rows without metadata are left out."""
    if metadata is None:
        return {}
    if len(metadata) != count:
        raise ShapeError(f"{len(metadata)} metadata for {count} transitions: give one for each, or None")
    try:
        return {row: json.dumps(dict(entry), allow_nan=False) for row, entry in enumerate(metadata) if entry}
    except (TypeError, ValueError) as error:
        raise ContractError(f"metadata cannot be kept as JSON: {error}") from error


def whole_numbers(name: str, values: ArrayLike) -> Ints:
    """Return whole numbers (n,), or a single one, as a contiguous array."""
    array = np.atleast_1d(np.asarray(values))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ShapeError(f"{name} of shape {array.shape} and type {array.dtype}: give whole numbers, shape (n,)")
    return np.ascontiguousarray(array, np.int64)


def positions_below(capacity: int, positions: ArrayLike) -> Ints:
    """Return buffer positions (n,), or a single one; raise unless they lie in 0 .. capacity - 1."""
    whole = whole_numbers("positions", positions)
    if not within(whole, 0, capacity):
        raise ContractError(f"a position is outside 0 .. {capacity - 1}: found {whole.min()} .. {whole.max()}")
    return whole


def repeated(values: ArrayLike, count: int, kind: type[np.generic]) -> NDArray[Any]:
    """Return values (count,), or a single one repeated, as a contiguous array."""
    array = np.asarray(values, kind)
    if array.shape == (count,):
        return np.ascontiguousarray(array)
    if array.shape not in ((), (1,)):
        raise ShapeError(f"values of shape {array.shape} for {count} positions: give one for each, or one for all")
    return np.full(count, array)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def within(numbers: Ints, low: int, end: int) -> bool:
    """Return whether every number (n,) lies in low .. end - 1; numpy would need several passes."""
    for number in numbers:  # noqa: SIM110 - compiled
        if not low <= number < end:
            return False
    return True
