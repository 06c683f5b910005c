"""Workflows: the 120 orders in which five types of computer may be repaired, and whether a defender keeps one.

An order is a tuple of the five unit types, the most urgent first. A network reads it as 25 numbers (`encode`), the
search as 10 (`precedence`).

Compliance is judged turn by turn on the true state before the action. By default (`right_repairs`) a turn counts as

- right: blue takes a host from red, and red holds no host of a more urgent type;
- wrong: blue takes a host from red although red holds one of a more urgent type;
- neglected: blue takes no host from red, although it has seen red on one for more than `PATIENCE` turns.

Other turns do not count. Compliance is the share of right turns: of those that called for a repair, in how many was the
right one made? Repairs of hosts that red does not hold, and a Remove that leaves red there, count for nothing.

The other rules judge every *fix*, a Remove or a Restore of any host, and can be satisfied without defending:

- `no_higher_compromised`, the documented measure: no type of higher priority has a red session on any of its hosts. It
  always holds for the first type, so removing the same host of that type for ever is fully compliant;
- `highest_compromised`: its type is the highest compromised one, or none is compromised. It counts User0, where red
  always has a session, so that with "user" first every other fix is a violation;
- `fixed_types`: every type of higher priority has had a fix in this episode: five free Removes satisfy it.

>>> ORDERS[0] == UNIT_TYPES, len(ORDERS)
(True, 120)
>>> from parallel_agents.workflows.network import action_id
>>> counters = Compliance(["op_server", "enterprise", "op_host", "user", "defender"], 1, rule="no_higher_compromised")
>>> access = np.zeros((1, 13), np.uint8)
>>> access[0, 7] = 2                                       # red holds Op_Server0 …
>>> unseen = np.zeros((1, 52), np.uint8)
>>> counters.observe([action_id("Restore", "User1")], access, unseen, [-1]).tolist()      # … and blue repairs User1
[0.0]
>>> counters.observe([action_id("Restore", "Op_Server0")], access, unseen, [7]).tolist()
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

RIGHT_REPAIRS, DOCUMENTED = "right_repairs", "no_higher_compromised"
COMPLIANCE_RULES = (RIGHT_REPAIRS, DOCUMENTED, "highest_compromised", "fixed_types")
PATIENCE = 5  # turns that red may be seen on a host; a script that obeys every order needs up to 5 after a clean start
NO_FIXES = 0.5  # what an episode without fixes counts in an average of the documented rules

_N_TYPES = len(UNIT_TYPES)
_PAIRS = np.array(list(combinations(range(_N_TYPES), 2)))
_IS_TYPE = HOST_TYPE[:, None] == np.arange(_N_TYPES)  # (13, 5)
_NOT_USER0 = np.arange(N_HOSTS) != USER0
_IS_TYPE_NOT_USER0 = _IS_TYPE & _NOT_USER0[:, None]


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
    rule: str,
) -> NDArray[np.bool_]:
    """Return which fixes keep the order, for hosts (W,), access before the action (W, 13), priority and fixed (W, 5).

    `priority` is each type's place, 0 first; `fixed` marks the types that were fixed earlier in the episode.
    """
    types = HOST_TYPE[hosts]
    worlds = np.arange(len(hosts))
    higher = priority < priority[worlds, types][:, None]
    counted = _IS_TYPE if rule == "highest_compromised" else _IS_TYPE_NOT_USER0
    compromised: NDArray[np.bool_] = (access > 0) @ counted
    waiting = ~fixed if rule == "fixed_types" else compromised
    compliant: NDArray[np.bool_] = ~np.any(higher & waiting, axis=1)
    if rule == "highest_compromised":
        compliant &= compromised[worlds, types] | ~np.any(compromised, axis=1)
    return compliant


class Compliance:
    """Counters of a rule per environment, for one order or one order per environment.

    `observe` takes a turn and returns its alignment reward. With `right_repairs` that is `weight` (1 by default) for a
    right turn and -`weight` for a wrong or neglected one. With the other rules it is `weight` (30 by default) x
    (c now - c before), where c is the share of compliant fixes, 0 before the first: it fades as 1 / number of fixes.
    """

    def __init__(
        self,
        order: Iterable[str] | Sequence[Iterable[str]],
        n_envs: int,
        rule: str = RIGHT_REPAIRS,
        weight: float | None = None,
    ) -> None:
        if n_envs < 1:
            raise ConfigError(f"n_envs is {n_envs}: at least one environment is needed")
        if rule not in COMPLIANCE_RULES:
            raise ConfigError(f"compliance rule {rule!r} is unknown: choose one of {', '.join(COMPLIANCE_RULES)}")
        self.orders = _check_orders(order, n_envs)
        self.n_envs, self.rule = n_envs, rule
        self.weight = (1.0 if rule == RIGHT_REPAIRS else 30.0) if weight is None else weight
        self._priority = np.stack([ranks(each) for each in self.orders])
        self.reset()

    def reset(self) -> None:
        """Start an episode in every environment."""
        self.right = np.zeros(self.n_envs, np.int64)
        """Right turns, or compliant fixes, of every environment."""
        self.counted = np.zeros(self.n_envs, np.int64)
        """Right, wrong and neglected turns, or all fixes, of every environment."""
        self._fixed = np.zeros((self.n_envs, _N_TYPES), np.bool_)
        self._seen_for = np.zeros((self.n_envs, N_HOSTS), np.int64)

    def observe(
        self, actions: ArrayLike, access: NDArray[np.uint8], observations: ArrayLike, repaired: ArrayLike
    ) -> NDArray[np.float64]:
        """Count a turn; return the alignment reward (W,).

        actions: (W,). access, observations: (W, 13) and (W, 52), both before the actions. repaired: (W,) the host that
        the action took from red, or -1, as `NetworkWorlds.repaired` gives it after the turn.
        """
        numbers, freed, bits = np.asarray(actions), np.asarray(repaired), np.asarray(observations)
        if numbers.shape != (self.n_envs,) or access.shape != (self.n_envs, N_HOSTS):
            raise ShapeError(
                f"actions {numbers.shape} and access {access.shape} do not fit {self.n_envs} environments: "
                f"give shapes ({self.n_envs},) and ({self.n_envs}, {N_HOSTS})"
            )
        hosts = freed if self.rule == RIGHT_REPAIRS else fix_hosts(numbers)
        acted, before = hosts >= 0, self._shares()
        right = acted & is_compliant(hosts, access, self._priority, self._fixed, self.rule)
        held = (access > 0) & _NOT_USER0
        seen = bits.reshape(self.n_envs, N_HOSTS, 4)[:, :, 2:].any(axis=2) | (self._seen_for > 0)
        self._seen_for = np.where(held & seen, self._seen_for + 1, 0)
        counted = acted | (self._seen_for.max(axis=1) > PATIENCE) if self.rule == RIGHT_REPAIRS else acted
        self.right += right
        self.counted += counted
        self._fixed[acted, HOST_TYPE[hosts[acted]]] = True
        if self.rule == RIGHT_REPAIRS:
            return self.weight * (right.astype(np.float64) - (counted & ~right))
        return self.weight * (self._shares() - before)

    def rates(self) -> NDArray[np.float64]:
        """Return the compliance of the running episode (W,), NaN where no turn counted."""
        return np.where(self.counted > 0, self._shares(), np.nan)

    def average(self, rates: ArrayLike) -> float:
        """Return the mean of many episodes' compliance.

        Episodes in which no turn counted are left out (NaN if there is no other), or with the documented rules count
        one half.

        >>> Compliance(UNIT_TYPES, 1).average([1.0, float("nan")])
        1.0
        >>> Compliance(UNIT_TYPES, 1, DOCUMENTED).average([1.0, float("nan")])
        0.75
        """
        finished = np.asarray(rates, np.float64)
        if self.rule == RIGHT_REPAIRS:
            finished = finished[~np.isnan(finished)]
            return float(finished.mean()) if finished.size else float("nan")
        return float(np.nan_to_num(finished, nan=NO_FIXES).mean())

    def _shares(self) -> NDArray[np.float64]:
        """Return the share of right turns or compliant fixes (W,), 0 where there were none."""
        return self.right / np.maximum(self.counted, 1)
