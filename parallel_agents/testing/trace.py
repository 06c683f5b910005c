"""Watch what an environment does: what it returned, call by call, where two runs differ, and shared generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import torch

from parallel_agents.core.errors import ContractError
from parallel_agents.core.types import Array
from parallel_agents.env import Environment

HOOKS = ("observe", "observe_agent", "can_act", "apply_actions", "apply_agent", "dones")


class Entry(NamedTuple):
    """One call of a hook by the engine, and what the environment returned."""

    epoch: int
    turn: int
    hook: str
    values: list[Array]
    """Copies, so that later changes of the arrays do not matter."""

    def __str__(self) -> str:
        return f"{self.hook}() in epoch {self.epoch}, turn {self.turn}"


@dataclass
class Trace:
    """Every call of a hook, in order."""

    entries: list[Entry] = field(default_factory=list)
    impure: Entry | None = None
    """The first `observe()` that returned something different when it was called again."""
    overwrites: Entry | None = None
    """The first call that changed the actions in its argument."""

    def of(self, hook: str) -> list[Entry]:
        """Return the calls of one hook."""
        return [entry for entry in self.entries if entry.hook == hook]


def record(environment: Environment) -> Trace:
    """Record what an environment returns from now on; call it before the run."""
    trace = Trace()
    for hook in HOOKS:
        setattr(environment, hook, _recorded(environment, hook, getattr(environment, hook), trace))
    return trace


def _recorded(environment: Environment, hook: str, call: Callable[..., Any], trace: Trace) -> Callable[..., Any]:
    @wraps(call)
    def recorded(*args: Any) -> Any:
        actions = copied_arrays(args[-1]) if hook.startswith("apply") else []
        result = call(*args)
        entry = Entry(environment.epoch, environment.turn, hook, copied_arrays(result))
        trace.entries.append(entry)
        if actions and trace.overwrites is None and not equal_bytes(copied_arrays(args[-1]), actions):
            trace.overwrites = entry
        if hook == "observe" and trace.impure is None and not equal_bytes(copied_arrays(call()), entry.values):
            trace.impure = entry
        return result

    return recorded


def copied_arrays(value: Any) -> list[Array]:
    """Return copies of the arrays in a hook's result: one, several, or none."""
    if value is None:
        return []
    if isinstance(value, tuple | list):
        return [array for item in value for array in copied_arrays(item)]
    if isinstance(value, dict):
        return [array for name in sorted(value) for array in copied_arrays(value[name])]
    return [np.array(value)]


def equal_bytes(one: list[Array], other: list[Array]) -> bool:
    """Return True if arrays have equal types, shapes and bytes."""
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


def first_difference(one: Trace, other: Trace) -> str | None:
    """Describe where two traces first differ; return None if they are equal."""
    for a, b in zip(one.entries, other.entries, strict=False):
        if a[:3] != b[:3]:
            return f"epoch {a.epoch}, turn {a.turn}: {a.hook}() was called in one run, {b.hook}() in the other"
        if not equal_bytes(a.values, b.values):
            return f"epoch {a.epoch}, turn {a.turn}: {a.hook}() returned something different"
    if len(one.entries) != len(other.entries):
        return f"one run had {len(one.entries)} calls, the other {len(other.entries)}: an episode ended at another turn"
    return None


# -- global generators -----------------------------------------------------------------------------------------------

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
"""A module or class, its name in errors, and its functions that draw from, or seed, a global generator; numpy's
`default_rng` does so without a seed, when the system's entropy decides."""


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
                setattr(owner, name, _raise_on_call(f"{title}.{name}", getattr(owner, name)))
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _raise_on_call(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def forbidden(*args: Any, **keywords: Any) -> Any:
        seeds = [*args, *keywords.values()]
        if name == "np.random.default_rng" and seeds and seeds[0] is not None:
            return original(*args, **keywords)
        raise ContractError(f"{name}() draws from a generator that everybody shares")

    return forbidden
