"""Workflows: the 120 orders in which five kinds of computer may be repaired.

An order is a tuple of the five unit types, the most urgent first. For a network it is 25 numbers (a one-hot row
of types per position); for the search it is 10 (for each pair of types, which one comes before the other).

>>> ORDERS[0] == UNIT_TYPES, len(ORDERS)
(True, 120)
>>> check_order(["user", "op_host", "op_server", "enterprise", "defender"])[0]
'user'
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.workflows.network.tables import HOSTS

__all__ = [
    "HOST_TYPE", "ORDERS", "ORDER_FEATURES", "UNIT_TYPES", "Order", "check_order", "encode", "host_ranks",
    "kendall_distance", "precedence", "ranks",
]  # fmt: skip

Order = tuple[str, ...]

UNIT_TYPES: Order = ("defender", "enterprise", "op_server", "op_host", "user")
ORDERS: tuple[Order, ...] = tuple(permutations(UNIT_TYPES))
HOST_TYPE: NDArray[np.int64] = np.array([UNIT_TYPES.index(host.unit) for host in HOSTS])
_PAIRS = np.array(list(combinations(range(len(UNIT_TYPES)), 2)))


def check_order(order: Iterable[str]) -> Order:
    """The order as a tuple, if each of the five types is in it once."""
    given = (order,) if isinstance(order, str) else tuple(order)
    unknown = [name for name in given if name not in UNIT_TYPES]
    missing = [name for name in UNIT_TYPES if name not in given]
    repeated = [name for name in UNIT_TYPES if given.count(name) > 1]
    faults = (("unknown", unknown), ("missing", missing), ("repeated", repeated))
    if any(names for _, names in faults):
        told = "; ".join(f"{what}: {', '.join(map(str, names))}" for what, names in faults if names)
        raise ConfigError(f"{given!r} is no order ({told}): give each of {', '.join(UNIT_TYPES)} once")
    return given


def ranks(order: Iterable[str]) -> NDArray[np.int64]:
    """Per unit type, its place in the order, 0 the most urgent. Shape (5,)."""
    checked = check_order(order)
    return np.array([checked.index(name) for name in UNIT_TYPES])


def host_ranks(order: Iterable[str]) -> NDArray[np.int64]:
    """Per host, the place of its type in the order. Shape (13,)."""
    return ranks(order)[HOST_TYPE]


def encode(order: Iterable[str]) -> NDArray[np.float32]:
    """What a network reads: position by type, one-hot, flattened. Shape (25,).

    >>> encode(UNIT_TYPES).reshape(5, 5).diagonal().tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    n = len(UNIT_TYPES)
    code = np.zeros((n, n), np.float32)
    code[ranks(order), np.arange(n)] = 1.0
    return code.reshape(-1)


def precedence(order: Iterable[str]) -> NDArray[np.float64]:
    """For each pair of types (a, b), 1 where a comes before b. Shape (10,).

    The squared distance of two such rows is Kendall's distance of the orders, so that a squared-exponential
    kernel on them is the Mallows kernel (Jiao & Vert 2018), and with a length scale each its weighted form.
    """
    place = ranks(order)
    before: NDArray[np.float64] = (place[_PAIRS[:, 0]] < place[_PAIRS[:, 1]]).astype(np.float64)
    return before


ORDER_FEATURES: NDArray[np.float64] = np.stack([precedence(order) for order in ORDERS])


def kendall_distance(first: Iterable[str], second: Iterable[str]) -> int:
    """How many pairs of types the two orders put in opposite order, 0 to 10.

    >>> kendall_distance(UNIT_TYPES, UNIT_TYPES[::-1])
    10
    """
    return int(np.abs(precedence(first) - precedence(second)).sum())
