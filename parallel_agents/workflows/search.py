"""Which order to try next, given the returns of the earlier ones; and what every order is worth, by brute force.

- `gp_ucb`: a Gaussian process over precedence features; of all 120 orders the one with the highest upper confidence
  bound, mean + coefficient x deviation (Srinivas et al. 2010). An order may be tried again: returns are noisy.
- `random`: any order not yet tried.

Both begin with the same few random orders. Nothing is stored between calls: a search resumes from its trials.

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
from parallel_agents.workflows.blue_policies import OrderScript, Policy
from parallel_agents.workflows.evaluation import evaluate_in_order
from parallel_agents.workflows.gaussian_process import fit
from parallel_agents.workflows.network import NetworkWorlds
from parallel_agents.workflows.orders import ORDER_FEATURES, ORDERS, Order, check_order

STARTS = 3


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
    coefficient: float = 3.0,  # with 2 it more often settles next to the best order
    starts: int = STARTS,
    noise: float | None = None,
) -> Order:
    """Return the order to try next. The first `starts` orders are random.

    noise: standard deviation of a return, for the Gaussian process; None: it is fitted.
    """
    if method not in METHODS:
        raise ConfigError(f"search method {method!r} is unknown: choose one of {', '.join(METHODS)}")
    if starts < 1:
        raise ConfigError(f"starts is {starts}: a search begins with at least one random order")
    if method == "random" or len(trials) < starts:
        return _untried(trials, seed)
    mean, deviation = posterior(trials, noise)
    return ORDERS[int((mean + coefficient * deviation).argmax())]


def posterior(trials: Sequence[Trial], noise: float | None = None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the Gaussian process's mean and deviation for all 120 orders: both (120,)."""
    tried, values = _columns(trials)
    return fit(ORDER_FEATURES[tried], values, noise).predict(ORDER_FEATURES)


def recommend(trials: Sequence[Trial], noise: float | None = None) -> Order:
    """Return the order with the highest posterior mean of those tried; noise affects it less than the raw best."""
    tried, _ = _columns(trials)
    means, _ = posterior(trials, noise)
    return ORDERS[int(tried[means[tried].argmax()])]


METHODS = ("gp_ucb", "random")


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
    """Mean return, its standard error and compliance per order, (120,) each, in the order of `ORDERS`."""

    means: NDArray[np.float64]
    errors: NDArray[np.float64]
    compliance: NDArray[np.float64]

    @property
    def best(self) -> Order:
        """The order with the highest mean."""
        return ORDERS[int(self.means.argmax())]


def landscape(
    red: str = "Meander", version: str = "head", steps: int = 100, late_start: int = 50, episodes: int = 200,
    seed: int = 0, *, make_policy: Callable[[Order, NetworkWorlds], Policy] | None = None,
    on_order: Callable[[int], None] | None = None,
) -> Landscape:  # fmt: skip
    """Play all 120 orders in the same `episodes` worlds, so that their luck is equal.

    make_policy: returns the policy for an order; by default `OrderScript`. on_order: called after each order with the
    number of orders played.
    """
    if episodes < 2:
        raise ConfigError(f"episodes is {episodes}: at least two are needed for a standard error")
    worlds = NetworkWorlds(episodes, red=red, version=version, steps=steps, late_start=late_start, seed=seed)
    rows = np.empty((len(ORDERS), 3))
    for i, order in enumerate(ORDERS):
        policy = OrderScript(order) if make_policy is None else make_policy(order, worlds)
        result = evaluate_in_order(policy, order, worlds)
        rows[i] = result.value, result.error, result.compliance
        if on_order is not None:
            on_order(i + 1)
    return Landscape(*rows.T)
