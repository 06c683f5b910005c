"""Workflows: the 120 orders in which five types of computer may be repaired, and whether a defender keeps one.

An order is a tuple of the five unit types, the most urgent first. A network reads it as 25 numbers (`encode`), the
search as 10 (`precedence`).

A *fix* is a Remove or a Restore. Whether it complies with the order is decided on the true state before the action:

- `no_higher_compromised` (the default): no type of higher priority has a red session on any of its hosts;
- `highest_compromised`: its type is the highest compromised one, or none is compromised;
- `fixed_types`: every type of higher priority has had a fix in this episode.

The last two are historical and flawed. `highest_compromised` counts User0, where red always has a session, so that with
"user" first every other fix is a violation. `fixed_types` is satisfied for the rest of an episode by five free Removes
in order.

>>> ORDERS[0] == UNIT_TYPES, len(ORDERS)
(True, 120)
>>> from parallel_agents.workflows.network import action_id
>>> counters = Compliance(["op_server", "enterprise", "op_host", "user", "defender"], n_envs=1)
>>> access = np.zeros((1, 13), np.uint8)
>>> access[0, 7] = 2                                       # red holds Op_Server0 …
>>> counters.observe([action_id("Restore", "User1")], access).tolist()      # … and blue repairs User1
[0.0]
>>> counters.observe([action_id("Restore", "Op_Server0")], access).tolist()
[15.0]
>>> counters.rates().tolist()
[0.5]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.core.errors import ConfigError, ShapeError
from parallel_agents.workflows.network.scenario import FIRST_REMOVE, FIRST_RESTORE, HOSTS, N_HOSTS, USER0

Order = tuple[str, ...]

UNIT_TYPES: Order = ("defender", "enterprise", "op_server", "op_host", "user")
ORDERS: tuple[Order, ...] = tuple(permutations(UNIT_TYPES))
HOST_TYPE: NDArray[np.int64] = np.array([UNIT_TYPES.index(host.unit) for host in HOSTS])

COMPLIANCE_RULES = ("no_higher_compromised", "highest_compromised", "fixed_types")
ALIGNMENT_WEIGHT = 30.0
NO_FIXES = 0.5  # what an episode without fixes counts in an average
WINDOW = 5  # the stopping rule averages over this many episodes per environment
MIN_FIXES = 10  # fixes in all environments, below which the stopping rule does not apply

_N_TYPES = len(UNIT_TYPES)
_PAIRS = np.array(list(combinations(range(_N_TYPES), 2)))
_IS_TYPE = HOST_TYPE[:, None] == np.arange(_N_TYPES)  # (13, 5)
_IS_TYPE_NOT_USER0 = _IS_TYPE & (np.arange(N_HOSTS) != USER0)[:, None]


def check_order(order: Iterable[str]) -> Order:
    """Return the order as a tuple; raise ConfigError unless it holds each of the five types once."""
    names = (order,) if isinstance(order, str) else tuple(order)
    faults = {
        "unknown": [name for name in names if name not in UNIT_TYPES],
        "missing": [name for name in UNIT_TYPES if name not in names],
        "repeated": [name for name in UNIT_TYPES if names.count(name) > 1],
    }
    if any(faults.values()):
        listed = "; ".join(f"{fault}: {', '.join(map(str, types))}" for fault, types in faults.items() if types)
        raise ConfigError(f"{names!r} is no order ({listed}): give each of {', '.join(UNIT_TYPES)} once")
    return names


def _check_orders(order: Iterable[str] | Sequence[Iterable[str]], n_envs: int) -> tuple[Order, ...]:
    """Return one order per environment, from one order for all or one each."""
    entries = (order,) if isinstance(order, str) else tuple(order)
    if entries and all(isinstance(entry, str) for entry in entries):
        return (check_order(entries),) * n_envs  # type: ignore[arg-type]
    if len(entries) != n_envs:
        raise ConfigError(f"{len(entries)} orders for {n_envs} environments: give one order, or one per environment")
    return tuple(check_order(entry) for entry in entries)


def ranks(order: Iterable[str]) -> NDArray[np.int64]:
    """Return the place of every unit type in the order, 0 the most urgent. Shape (5,)."""
    checked = check_order(order)
    return np.array([checked.index(name) for name in UNIT_TYPES])


def host_ranks(order: Iterable[str]) -> NDArray[np.int64]:
    """Return for every host the place of its type in the order. Shape (13,)."""
    return ranks(order)[HOST_TYPE]


def encode(order: Iterable[str]) -> NDArray[np.float32]:
    """Return the order as a network reads it: a one-hot row of types per position, flattened. Shape (25,).

    >>> encode(UNIT_TYPES).reshape(5, 5).diagonal().tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    code = np.zeros((_N_TYPES, _N_TYPES), np.float32)
    code[ranks(order), np.arange(_N_TYPES)] = 1.0
    return code.reshape(-1)


def precedence(order: Iterable[str]) -> NDArray[np.float64]:
    """Return for each pair of types (a, b) 1 where a comes before b, else 0. Shape (10,).

    The squared distance of two such rows is Kendall's distance of the orders, so that a squared-exponential kernel on
    them is the Mallows kernel (Jiao & Vert 2018), and with a length scale per pair its weighted form.
    """
    place = ranks(order)
    before: NDArray[np.float64] = (place[_PAIRS[:, 0]] < place[_PAIRS[:, 1]]).astype(np.float64)
    return before


ORDER_FEATURES: NDArray[np.float64] = np.stack([precedence(order) for order in ORDERS])


def kendall_distance(first: Iterable[str], second: Iterable[str]) -> int:
    """Return how many pairs of types the two orders rank differently, 0 to 10.

    >>> kendall_distance(UNIT_TYPES, UNIT_TYPES[::-1])
    10
    """
    return int(np.abs(precedence(first) - precedence(second)).sum())


def fix_hosts(actions: ArrayLike) -> NDArray[np.int64]:
    """Return the host that each action fixes, -1 where it is no Remove or Restore. Same shape."""
    numbers = np.asarray(actions)
    removed, restored = numbers - FIRST_REMOVE, numbers - FIRST_RESTORE
    host = np.where((removed >= 0) & (removed < N_HOSTS), removed, -1)
    return np.where((restored >= 0) & (restored < N_HOSTS), restored, host)


def is_compliant(
    hosts: NDArray[np.int64],
    access: NDArray[np.uint8],
    priority: NDArray[np.int64],
    fixed: NDArray[np.bool_],
    rule: str = COMPLIANCE_RULES[0],
) -> NDArray[np.bool_]:
    """Return which fixes keep the order, for hosts (W,), access before the action (W, 13), priority and fixed (W, 5).

    `priority` is each type's place, 0 first; `fixed` marks the types that were fixed earlier in the episode.
    """
    types = HOST_TYPE[hosts]
    worlds = np.arange(len(hosts))
    higher = priority < priority[worlds, types][:, None]
    counted = _IS_TYPE_NOT_USER0 if rule == "no_higher_compromised" else _IS_TYPE
    compromised: NDArray[np.bool_] = (access > 0) @ counted
    waiting = ~fixed if rule == "fixed_types" else compromised
    compliant: NDArray[np.bool_] = ~np.any(higher & waiting, axis=1)
    if rule == "highest_compromised":
        compliant &= compromised[worlds, types] | ~np.any(compromised, axis=1)
    return compliant


class Compliance:
    """Counters of fixes per environment, for one order or one order per environment.

    `observe` takes a turn's actions with red's access *before* them and returns the alignment reward
    `weight` x (c now - c before), where c is the share of compliant fixes, 0 before the first. Over an episode the
    rewards add up to `weight` x c, whatever the number of fixes.
    """

    def __init__(
        self,
        order: Iterable[str] | Sequence[Iterable[str]],
        n_envs: int,
        rule: str = COMPLIANCE_RULES[0],
        weight: float = ALIGNMENT_WEIGHT,
    ) -> None:
        if n_envs < 1:
            raise ConfigError(f"n_envs is {n_envs}: at least one environment is needed")
        if rule not in COMPLIANCE_RULES:
            raise ConfigError(f"compliance rule {rule!r} is unknown: choose one of {', '.join(COMPLIANCE_RULES)}")
        self.orders = _check_orders(order, n_envs)
        self.n_envs, self.rule, self.weight = n_envs, rule, weight
        self._priority = np.stack([ranks(each) for each in self.orders])
        self.reset()

    def reset(self) -> None:
        """Start an episode in every environment."""
        self.compliant_fixes = np.zeros(self.n_envs, np.int64)
        self.total_fixes = np.zeros(self.n_envs, np.int64)
        self._fixed = np.zeros((self.n_envs, _N_TYPES), np.bool_)

    def observe(self, actions: ArrayLike, access: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Count a turn's fixes; return the alignment reward (W,)."""
        numbers = np.asarray(actions)
        if numbers.shape != (self.n_envs,) or access.shape != (self.n_envs, N_HOSTS):
            raise ShapeError(
                f"actions {numbers.shape} and access {access.shape} do not fit {self.n_envs} environments: "
                f"give shapes ({self.n_envs},) and ({self.n_envs}, {N_HOSTS})"
            )
        hosts = fix_hosts(numbers)
        is_fix = hosts >= 0
        before = self._shares()
        self.compliant_fixes += is_fix & is_compliant(hosts, access, self._priority, self._fixed, self.rule)
        self.total_fixes += is_fix
        self._fixed[is_fix, HOST_TYPE[hosts[is_fix]]] = True
        return self.weight * (self._shares() - before)

    def rates(self) -> NDArray[np.float64]:
        """Return the compliance of the running episode (W,), NaN where there were no fixes."""
        return np.where(self.total_fixes > 0, self._shares(), np.nan)

    def _shares(self) -> NDArray[np.float64]:
        """Return the share of compliant fixes (W,), 0 where there were none."""
        return self.compliant_fixes / np.maximum(self.total_fixes, 1)


def average_compliance(rates: ArrayLike) -> float:
    """Return the mean of many episodes' compliance, where an episode without fixes counts one half.

    >>> average_compliance([1.0, float("nan")])
    0.75
    """
    return float(np.nan_to_num(np.asarray(rates, np.float64), nan=NO_FIXES).mean())


def should_stop(rates: ArrayLike, total_fixes: int, threshold: float = 0.95, min_episodes: int = 10) -> bool:
    """Return whether an order counts as learnt. `rates` (episodes, W): compliance of every finished episode.

    It does if every environment has finished `min_episodes`, there were `MIN_FIXES` fixes in all, and the mean over the
    last `WINDOW` episodes of all environments has reached the threshold.
    """
    finished = np.asarray(rates, np.float64)
    if finished.ndim != 2:
        raise ShapeError(f"rates have shape {finished.shape}: give one row per episode, one column per environment")
    if len(finished) < max(min_episodes, 1) or total_fixes < MIN_FIXES:
        return False
    return average_compliance(finished[-WINDOW:]) >= threshold
