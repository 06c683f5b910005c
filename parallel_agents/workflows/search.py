"""Which order to try next, given what the earlier ones returned: history in, order out.

- `gp_ucb`: a Gaussian process over precedence features; the order with the highest upper confidence bound,
  mean + coefficient x deviation, of all 120 (Srinivas et al. 2010). Orders may come again: returns are noisy.
- `random`: any order not yet tried.
- `historical`: what an earlier system used in place of a Gaussian process, for comparison: a mean weighted by
  closeness, and a bonus that grows with the distance from the nearest order tried.

All begin with the same few random orders. Nothing is remembered between calls: a search resumes from its history.

>>> history = [Evaluation(ORDERS[0], -80.0), Evaluation(ORDERS[119], -40.0), Evaluation(ORDERS[60], -60.0)]
>>> next_order(history) in ORDERS, recommend(history) == ORDERS[119]
(True, True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError, NonFiniteError
from parallel_agents.seeding import Purpose, generator
from parallel_agents.workflows.gaussian_process import fit
from parallel_agents.workflows.orders import ORDER_FEATURES, ORDERS, Order, check_order

__all__ = [
    "METHODS",
    "Evaluation",
    "historical_scores",
    "next_order",
    "posterior",
    "recommend",
    "search_regrets",
    "upper_bounds",
]

STARTS = 3

_DISTANCE = np.abs(ORDER_FEATURES[:, None] - ORDER_FEATURES[None]).sum(axis=2)  # Kendall's, (120, 120)


@dataclass(frozen=True)
class Evaluation:
    """An order that was tried, and the return it gave."""

    order: Order
    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", check_order(self.order))
        if not np.isfinite(self.value):
            raise NonFiniteError(f"order {self.order} returned {self.value}: leave failed evaluations out")

    @property
    def index(self) -> int:
        """Its place in `ORDERS`."""
        return ORDERS.index(self.order)


def next_order(
    history: Sequence[Evaluation],
    method: str = "gp_ucb",
    seed: int = 0,
    coefficient: float | None = None,
    starts: int = STARTS,
) -> Order:
    """The order to try next."""
    if method not in METHODS:
        raise ConfigError(f"search method {method!r} is unknown: choose one of {', '.join(METHODS)}")
    if starts < 1:
        raise ConfigError(f"starts is {starts}: a search begins with at least one random order")
    if method == "random" or len(history) < starts:
        return _untried(history, seed)
    rule, usual = _RULES[method]
    scores = rule(history, usual if coefficient is None else coefficient)
    return ORDERS[int(scores.argmax())]


def posterior(history: Sequence[Evaluation]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the Gaussian process expects of all 120 orders, and how unsure it is: both (120,)."""
    tried, values = _columns(history)
    return fit(ORDER_FEATURES[tried], values).predict(ORDER_FEATURES)


def recommend(history: Sequence[Evaluation]) -> Order:
    """Of the orders tried, the one with the highest posterior mean: noise counts for less than in the raw best."""
    tried, _ = _columns(history)
    means, _ = posterior(history)
    return ORDERS[int(tried[means[tried].argmax()])]


def search_regrets(
    values: NDArray[np.float64], noise: float, evaluations: int, method: str = "gp_ucb", seed: int = 0
) -> NDArray[np.float64]:
    """A search rehearsed on a known landscape (120,): how far the best order tried is from the best there is.

    Returns carry Gaussian noise of this deviation. Simple regret after each evaluation, (evaluations,).
    """
    errors = generator(seed, Purpose.NOISE).normal(0.0, noise, evaluations)
    history: list[Evaluation] = []
    for error in errors:
        order = next_order(history, method, seed)
        history.append(Evaluation(order, float(values[ORDERS.index(order)] + error)))
    regrets: NDArray[np.float64] = values.max() - np.maximum.accumulate([values[e.index] for e in history])
    return regrets


def upper_bounds(history: Sequence[Evaluation], coefficient: float) -> NDArray[np.float64]:
    """Posterior mean and so many deviations, of all 120 orders."""
    mean, deviation = posterior(history)
    return mean + coefficient * deviation


def historical_scores(history: Sequence[Evaluation], coefficient: float) -> NDArray[np.float64]:
    """No probability in it: closeness-weighted mean and nearest distance; own mean and 1 / (1 + visits) if tried."""
    tried, values = _columns(history)
    apart = _DISTANCE[:, tried]
    weights = 1.0 / (1.0 + apart)
    mean = (weights @ values) / weights.sum(axis=1)
    bonus = apart.min(axis=1) + 1.0
    visits = np.bincount(tried, minlength=len(ORDERS))
    seen = visits > 0
    mean[seen] = np.bincount(tried, values, minlength=len(ORDERS))[seen] / visits[seen]
    bonus[seen] = 1.0 / (1.0 + visits[seen])
    scores: NDArray[np.float64] = mean + coefficient * bonus
    return scores


# The scores of all orders, and how much a rule explores unless told otherwise. With 2, gp_ucb settles beside the
# best order a little more often.
_RULES: dict[str, tuple[Callable[[Sequence[Evaluation], float], NDArray[np.float64]], float]] = {
    "gp_ucb": (upper_bounds, 3.0),
    "historical": (historical_scores, 2.0),
}
METHODS = ("gp_ucb", "random", "historical")


def _untried(history: Sequence[Evaluation], seed: int) -> Order:
    """The first order, in a sequence fixed by the seed, that was not tried; when all were, the sequence again."""
    sequence = generator(seed, Purpose.SAMPLE).permutation(len(ORDERS))
    tried = {evaluation.index for evaluation in history}
    left = [i for i in sequence if i not in tried]
    return ORDERS[int(left[0] if left else sequence[len(history) % len(sequence)])]


def _columns(history: Sequence[Evaluation]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if not history:
        raise ConfigError("the history is empty: evaluate at least one order first")
    return np.array([e.index for e in history]), np.array([e.value for e in history], np.float64)
