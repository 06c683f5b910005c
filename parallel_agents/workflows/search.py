"""Which order to try next, given the returns of the earlier ones; and what every order is worth, by brute force.

- `gp_ucb`: a Gaussian process over precedence features; of all 120 orders the one with the highest upper confidence
  bound, mean + coefficient x deviation (Srinivas et al. 2010). An order may be tried again: returns are noisy.
- `random`: any order not yet tried.
- `historical`: what an earlier system used instead of a Gaussian process, for comparison: a mean weighted by
  closeness, and a bonus that grows with the distance from the nearest order tried.

All methods begin with the same few random orders. Nothing is stored between calls: a search resumes from its trials.

>>> trials = [Trial(ORDERS[0], -80.0), Trial(ORDERS[119], -40.0), Trial(ORDERS[60], -60.0)]
>>> next_order(trials) in ORDERS, recommend(trials) == ORDERS[119]
(True, True)

From a clean start the order hardly matters to a defender that repairs at once: red takes one action per turn, so two
types seldom wait together. After a late start many hosts are compromised, and the order decides. The place of
"defender" counts although that host is never compromised: Meander's failed attempts on it appear as exploits, and an
order that puts it first spends Restores on false alarms (some ten points after a late start).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError, NonFiniteError
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.workflows.blue_policies import play, restore_in_order
from parallel_agents.workflows.gaussian_process import fit
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDER_FEATURES, ORDERS, Order, check_order

STARTS = 3

_DISTANCE = np.abs(ORDER_FEATURES[:, None] - ORDER_FEATURES[None]).sum(axis=2)  # Kendall's, (120, 120)


@dataclass(frozen=True)
class Trial:
    """An order that was tried, and its return."""

    order: Order
    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", check_order(self.order))
        if not np.isfinite(self.value):
            raise NonFiniteError(f"order {self.order} returned {self.value}: leave failed trials out")

    @property
    def index(self) -> int:
        """Position of the order in `ORDERS`."""
        return ORDERS.index(self.order)


def next_order(
    trials: Sequence[Trial],
    method: str = "gp_ucb",
    seed: int = 0,
    coefficient: float | None = None,
    starts: int = STARTS,
) -> Order:
    """Return the order to try next. The first `starts` orders are random."""
    if method not in METHODS:
        raise ConfigError(f"search method {method!r} is unknown: choose one of {', '.join(METHODS)}")
    if starts < 1:
        raise ConfigError(f"starts is {starts}: a search begins with at least one random order")
    if method == "random" or len(trials) < starts:
        return _untried(trials, seed)
    scores, default = _SCORES[method]
    return ORDERS[int(scores(trials, default if coefficient is None else coefficient).argmax())]


def posterior(trials: Sequence[Trial]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the Gaussian process's mean and deviation for all 120 orders: both (120,)."""
    tried, values = _columns(trials)
    return fit(ORDER_FEATURES[tried], values).predict(ORDER_FEATURES)


def recommend(trials: Sequence[Trial]) -> Order:
    """Return the order with the highest posterior mean of those tried; noise affects it less than the raw best."""
    tried, _ = _columns(trials)
    means, _ = posterior(trials)
    return ORDERS[int(tried[means[tried].argmax()])]


def upper_bounds(trials: Sequence[Trial], coefficient: float) -> NDArray[np.float64]:
    """Return posterior mean + coefficient x deviation of all 120 orders."""
    mean, deviation = posterior(trials)
    return mean + coefficient * deviation


def historical_scores(trials: Sequence[Trial], coefficient: float) -> NDArray[np.float64]:
    """Return the historical scores of all 120 orders.

    Untried: mean weighted by closeness + coefficient x (nearest distance + 1). Tried: own mean + coefficient x
    1 / (1 + visits).
    """
    tried, values = _columns(trials)
    distances = _DISTANCE[:, tried]
    weights = 1.0 / (1.0 + distances)
    mean = (weights @ values) / weights.sum(axis=1)
    bonus = distances.min(axis=1) + 1.0
    visits = np.bincount(tried, minlength=len(ORDERS))
    visited = visits > 0
    mean[visited] = np.bincount(tried, values, minlength=len(ORDERS))[visited] / visits[visited]
    bonus[visited] = 1.0 / (1.0 + visits[visited])
    scores: NDArray[np.float64] = mean + coefficient * bonus
    return scores


# The scores of all orders, and the default coefficient. With 2, gp_ucb more often settles next to the best order.
_SCORES: dict[str, tuple[Callable[[Sequence[Trial], float], NDArray[np.float64]], float]] = {
    "gp_ucb": (upper_bounds, 3.0),
    "historical": (historical_scores, 2.0),
}
METHODS = ("gp_ucb", "random", "historical")


def _untried(trials: Sequence[Trial], seed: int) -> Order:
    """Return the first untried order of a sequence that the seed fixes; after all 120 the sequence starts again."""
    sequence = generator(seed, Purpose.SAMPLE).permutation(len(ORDERS))
    tried = {trial.index for trial in trials}
    untried = [i for i in sequence if i not in tried]
    return ORDERS[int(untried[0] if untried else sequence[len(trials) % len(sequence)])]


def _columns(trials: Sequence[Trial]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the trials' positions in `ORDERS` and their returns."""
    if not trials:
        raise ConfigError("there are no trials: evaluate at least one order first")
    return np.array([trial.index for trial in trials]), np.array([trial.value for trial in trials], np.float64)


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
        """Difference between the best mean and each order's mean. Shape (120,)."""
        regrets: NDArray[np.float64] = self.means.max() - self.means
        return regrets


def landscape(
    red: str = "Meander", version: str = "head", steps: int = 100, late_start: int = 50, episodes: int = 200,
    seed: int = 0, on_order: Callable[[int], None] | None = None,
) -> Landscape:  # fmt: skip
    """Play all 120 orders with a scripted defender in the same `episodes` worlds, so that their luck is equal.

    on_order: called after each order with the number of orders played.
    """
    if episodes < 2:
        raise ConfigError(f"episodes is {episodes}: at least two are needed for a standard error")
    worlds = NetworkWorlds(episodes, red=red, version=version, steps=steps, late_start=late_start, seed=seed)
    returns = np.empty((len(ORDERS), episodes))
    for i, order in enumerate(ORDERS):
        returns[i] = play(worlds, restore_in_order(order), epoch=0).sum(axis=0)
        if on_order is not None:
            on_order(i + 1)
    return Landscape(returns.mean(axis=1), returns.std(axis=1, ddof=1) / np.sqrt(episodes))


def search_regrets(
    values: NDArray[np.float64], noise: float, n_trials: int, method: str = "gp_ucb", seed: int = 0
) -> NDArray[np.float64]:
    """Search a known landscape (120,) whose returns get Gaussian noise of this deviation.

    Return the simple regret after each trial (n_trials,): the best value minus that of the best order tried so far.
    """
    errors = generator(seed, Purpose.NOISE).normal(0.0, noise, n_trials)
    trials: list[Trial] = []
    for error in errors:
        order = next_order(trials, method, seed)
        trials.append(Trial(order, float(values[ORDERS.index(order)] + error)))
    regrets: NDArray[np.float64] = values.max() - np.maximum.accumulate([values[trial.index] for trial in trials])
    return regrets
