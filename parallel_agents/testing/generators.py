"""An error for every use of a global random generator, with the name of the function."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from parallel_agents.core.errors import ContractError

GLOBAL_FUNCTIONS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (random, "random", ("seed", "random", "randint", "randrange", "choice", "choices", "shuffle", "sample", "uniform",
                        "gauss", "betavariate", "expovariate")),
    (np.random, "np.random", ("seed", "random", "rand", "randn", "randint", "choice", "shuffle", "permutation",
                              "uniform", "normal", "binomial", "poisson", "exponential", "standard_normal",
                              "random_sample", "default_rng")),
    (torch, "torch", ("seed", "manual_seed", "rand", "randn", "randint", "randperm", "normal", "bernoulli",
                      "multinomial", "rand_like", "randn_like", "randint_like")),
    (torch.Tensor, "Tensor", ("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_")),
)  # fmt: skip
"""A module or class, its name in errors, and its functions that draw from, or seed, a global generator."""


@contextlib.contextmanager
def no_global_generators() -> Iterator[None]:
    """Raise `ContractError` for every draw from a global generator while the block runs.

    >>> with no_global_generators():
    ...     random.random()
    Traceback (most recent call last):
        ...
    parallel_agents.core.errors.ContractError: random.random() draws from a generator that everybody shares
    """
    originals = [(owner, name, getattr(owner, name)) for owner, _, names in GLOBAL_FUNCTIONS for name in names]
    try:
        for owner, title, names in GLOBAL_FUNCTIONS:
            for name in names:
                setattr(owner, name, _raise_on_call(f"{title}.{name}"))
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _raise_on_call(name: str) -> Callable[..., Any]:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise ContractError(f"{name}() draws from a generator that everybody shares")

    return forbidden
