"""Does a defender repair in the order it was given? Rules, counters, the reward for it, and when to stop.

A *fix* is a Remove or a Restore. Whether it is compliant is judged on the true state before it is carried out:

- `no_higher_compromised` (the default): no type of higher priority has a red session on any of its hosts;
- `highest_compromised`: its type is the highest compromised one, or none is;
- `fixed_types`: every type of higher priority has had a fix in this episode.

The last two are historical. `highest_compromised` counts User0, where red always has a session, so that with
"user" first every other fix is a violation; `fixed_types` is satisfied for ever by five free Removes in order.

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

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parallel_agents.errors import ConfigError, ShapeError
from parallel_agents.workflows.network import action_id
from parallel_agents.workflows.network import tables as t
from parallel_agents.workflows.orders import HOST_TYPE, UNIT_TYPES, Order, check_order, ranks

__all__ = ["ALIGNMENT_WEIGHT", "RULES", "Compliance", "average_compliance", "compliant", "fix_hosts", "should_stop"]

RULES = ("no_higher_compromised", "highest_compromised", "fixed_types")
ALIGNMENT_WEIGHT = 30.0
NO_FIXES = 0.5  # what an episode without fixes counts in an average
WINDOW = 5  # episodes per environment that the stopping rule looks back on
MIN_FIXES = 10  # fixes in all, below which a compliance says nothing

_N_TYPES = len(UNIT_TYPES)
_FIRST_REMOVE = action_id("Remove", t.HOST_NAMES[0])
_FIRST_RESTORE = action_id("Restore", t.HOST_NAMES[0])
_IS_TYPE = HOST_TYPE[:, None] == np.arange(_N_TYPES)  # (13, 5)
_BUT_USER0 = _IS_TYPE & (np.arange(t.N_HOSTS) != t.USER0)[:, None]


def fix_hosts(actions: ArrayLike) -> NDArray[np.int64]:
    """The host that each action fixes, -1 where it is no Remove or Restore. Same shape."""
    chosen = np.asarray(actions)
    removed, restored = chosen - _FIRST_REMOVE, chosen - _FIRST_RESTORE
    host = np.where((removed >= 0) & (removed < t.N_HOSTS), removed, -1)
    return np.where((restored >= 0) & (restored < t.N_HOSTS), restored, host)


def compliant(
    hosts: NDArray[np.int64],
    access: NDArray[np.uint8],
    priority: NDArray[np.int64],
    fixed: NDArray[np.bool_],
    rule: str = RULES[0],
) -> NDArray[np.bool_]:
    """Which fixes keep the order. Hosts (W,), access before the action (W, 13), priority and fixed (W, 5).

    `priority` is each type's place, 0 first; `fixed` are the types fixed earlier in the episode.
    """
    of_type = HOST_TYPE[hosts]
    rank = priority[np.arange(len(hosts)), of_type]
    higher = priority < rank[:, None]
    held: NDArray[np.bool_] = (access > 0) @ (_BUT_USER0 if rule == "no_higher_compromised" else _IS_TYPE)
    waiting = ~fixed if rule == "fixed_types" else held
    kept: NDArray[np.bool_] = ~np.any(higher & waiting, axis=1)
    if rule == "highest_compromised":
        kept &= held[np.arange(len(hosts)), of_type] | ~np.any(held, axis=1)
    return kept


class Compliance:
    """Counters of fixes, one pair per environment, for one order or one per environment.

    `observe` takes a turn's actions with red's access *before* them and gives the alignment reward
    `weight` x (c now - c before), c being the share of compliant fixes, 0 before the first. Over an episode it
    adds up to `weight` x c, whatever the number of fixes.
    """

    def __init__(
        self,
        order: Iterable[str] | Sequence[Iterable[str]],
        n_envs: int,
        rule: str = RULES[0],
        weight: float = ALIGNMENT_WEIGHT,
    ) -> None:
        if n_envs < 1:
            raise ConfigError(f"n_envs is {n_envs}: at least one environment is needed")
        if rule not in RULES:
            raise ConfigError(f"compliance rule {rule!r} is unknown: choose one of {', '.join(RULES)}")
        self.orders = _orders(order, n_envs)
        self.n_envs, self.rule, self.weight = n_envs, rule, weight
        self._priority = np.stack([ranks(one) for one in self.orders])
        self.reset()

    def reset(self) -> None:
        """Begin an episode in every environment."""
        self.compliant_fixes = np.zeros(self.n_envs, np.int64)
        self.total_fixes = np.zeros(self.n_envs, np.int64)
        self._fixed = np.zeros((self.n_envs, _N_TYPES), np.bool_)

    def observe(self, actions: ArrayLike, access: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Count a turn's fixes; the alignment reward (W,)."""
        chosen = np.asarray(actions)
        if chosen.shape != (self.n_envs,) or access.shape != (self.n_envs, t.N_HOSTS):
            raise ShapeError(
                f"actions {chosen.shape} and access {access.shape} do not fit {self.n_envs} environments: "
                f"give shapes ({self.n_envs},) and ({self.n_envs}, {t.N_HOSTS})"
            )
        hosts = fix_hosts(chosen)
        is_fix = hosts >= 0
        before = self._shares()
        kept = is_fix & compliant(hosts, access, self._priority, self._fixed, self.rule)
        self.compliant_fixes += kept
        self.total_fixes += is_fix
        self._fixed[is_fix, HOST_TYPE[hosts[is_fix]]] = True
        return self.weight * (self._shares() - before)

    def rates(self) -> NDArray[np.float64]:
        """Compliance of the running episode, NaN (undefined) where there were no fixes. Shape (W,)."""
        return np.where(self.total_fixes > 0, self._shares(), np.nan)

    def _shares(self) -> NDArray[np.float64]:
        return self.compliant_fixes / np.maximum(self.total_fixes, 1)


def average_compliance(rates: ArrayLike) -> float:
    """The mean of many episodes' compliance, an episode without fixes counting one half.

    >>> average_compliance([1.0, float("nan")])
    0.75
    """
    return float(np.nan_to_num(np.asarray(rates, np.float64), nan=NO_FIXES).mean())


def should_stop(rates: ArrayLike, total_fixes: int, threshold: float = 0.95, min_episodes: int = 10) -> bool:
    """Whether an order counts as learnt. `rates` (episodes, W): compliance of every episode that has ended.

    Every environment has ended `min_episodes`, `MIN_FIXES` fixes were seen in all, and the mean over the last
    `WINDOW` episodes of all environments has reached the threshold.
    """
    ended = np.asarray(rates, np.float64)
    if ended.ndim != 2:
        raise ShapeError(f"rates have shape {ended.shape}: give one row per episode, one column per environment")
    if len(ended) < max(min_episodes, 1) or total_fixes < MIN_FIXES:
        return False
    return average_compliance(ended[-WINDOW:]) >= threshold


def _orders(order: Iterable[str] | Sequence[Iterable[str]], n_envs: int) -> tuple[Order, ...]:
    given = (order,) if isinstance(order, str) else tuple(order)
    if given and all(isinstance(entry, str) for entry in given):
        return (check_order(given),) * n_envs  # type: ignore[arg-type]
    if len(given) != n_envs:
        raise ConfigError(f"{len(given)} orders for {n_envs} environments: give one order, or one per environment")
    return tuple(check_order(one) for one in given)
