"""What every order is worth: brute force over all 120, with a scripted defender.

From a clean start the order hardly matters to a defender who repairs at once: red takes one action a turn, so
two types are seldom waiting together. After a late start much is broken, and the order decides.

The defender's place counts here although that host is never taken: Meander's failed attempts on it look like
exploits, and an order that puts it first spends Restores on false alarms (some ten points after a late start).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDERS, Order
from parallel_agents.workflows.policies import play, restore_in_order

__all__ = ["Landscape", "landscape"]


@dataclass(frozen=True)
class Landscape:
    """Mean return and its standard error per order, both (120,), in the order of `ORDERS`."""

    means: NDArray[np.float64]
    errors: NDArray[np.float64]

    @property
    def best(self) -> Order:
        """The order with the highest mean."""
        return ORDERS[int(self.means.argmax())]

    @property
    def regrets(self) -> NDArray[np.float64]:
        """How far each order's mean falls short of the best. Shape (120,)."""
        regrets: NDArray[np.float64] = self.means.max() - self.means
        return regrets


def landscape(
    red: str = "Meander", version: str = "head", steps: int = 100, late_start: int = 50, episodes: int = 200,
    seed: int = 0, tell: Callable[[int], None] | None = None,
) -> Landscape:  # fmt: skip
    """Play every order over the same `episodes` worlds, so that orders are compared under equal luck.

    tell: called after each order with how many are done.
    """
    if episodes < 2:
        raise ConfigError(f"episodes is {episodes}: at least two are needed for a standard error")
    worlds = NetworkWorlds(episodes, red=red, version=version, steps=steps, late_start=late_start, seed=seed)
    returns = np.empty((len(ORDERS), episodes))
    for done, order in enumerate(ORDERS):
        returns[done] = play(worlds, restore_in_order(order), epoch=0).sum(axis=0)
        if tell is not None:
            tell(done + 1)
    return Landscape(returns.mean(axis=1), returns.std(axis=1, ddof=1) / np.sqrt(episodes))
