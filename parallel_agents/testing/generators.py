"""Traps on the global random generators: whoever draws from one is named."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from parallel_agents.errors import ContractError

__all__ = ["no_global_generators"]

TRAPS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (random, "random", ("seed", "random", "randint", "randrange", "choice", "choices", "shuffle", "sample", "uniform",
                        "gauss", "betavariate", "expovariate")),
    (np.random, "np.random", ("seed", "random", "rand", "randn", "randint", "choice", "shuffle", "permutation",
                              "uniform", "normal", "binomial", "poisson", "exponential", "standard_normal",
                              "random_sample", "default_rng")),
    (torch, "torch", ("seed", "manual_seed", "rand", "randn", "randint", "randperm", "normal", "bernoulli",
                      "multinomial", "rand_like", "randn_like", "randint_like")),
    (torch.Tensor, "Tensor", ("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_")),
)  # fmt: skip
"""Owner, what it is called, and its functions that draw from, or seed, a generator that everybody shares."""


@contextlib.contextmanager
def no_global_generators() -> Iterator[None]:
    """While the block runs, every draw from a global generator raises `ContractError` with its name.

    >>> with no_global_generators():
    ...     random.random()
    Traceback (most recent call last):
        ...
    parallel_agents.errors.ContractError: random.random() draws from a generator that everybody shares
    """
    before = [(owner, name, getattr(owner, name)) for owner, _, names in TRAPS for name in names]
    try:
        for owner, title, names in TRAPS:
            for name in names:
                setattr(owner, name, _trap(f"{title}.{name}"))
        yield
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)


def _trap(name: str) -> Callable[..., Any]:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise ContractError(f"{name}() draws from a generator that everybody shares")

    return forbidden
