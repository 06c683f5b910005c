"""What an environment shows and gives, turn by turn, and where two runs first differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from parallel_agents.environment import Environment
from parallel_agents.types import Array

__all__ = ["Entry", "Trace", "first_difference", "record"]

HOOKS = ("observe", "observe_agent", "can_act", "apply_actions", "apply_agent", "dones")


class Entry(NamedTuple):
    """One call of the engine, and what the environment answered."""

    epoch: int
    turn: int
    hook: str
    values: list[Array]
    """Copies, so that a later change of an array does not change what was shown."""


@dataclass
class Trace:
    """Every answer of an environment, in order."""

    entries: list[Entry] = field(default_factory=list)
    impure: Entry | None = None
    """The first observation that changed when it was asked for again."""
    overwrites: Entry | None = None
    """The first call that left other actions in its argument than it was given."""

    def of(self, hook: str) -> list[Entry]:
        """The answers of one hook."""
        return [entry for entry in self.entries if entry.hook == hook]


def record(environment: Environment) -> Trace:
    """Let an environment write down what it answers; call it before the run."""
    trace = Trace()
    for hook in HOOKS:
        setattr(environment, hook, _recorded(environment, hook, getattr(environment, hook), trace))
    return trace


def _recorded(environment: Environment, hook: str, call: Callable[..., Any], trace: Trace) -> Callable[..., Any]:
    @wraps(call)
    def answer(*given: Any) -> Any:
        before = arrays_of(given[-1]) if hook.startswith("apply") else []
        found = call(*given)
        entry = Entry(environment.epoch, environment.turn, hook, arrays_of(found))
        trace.entries.append(entry)
        if before and trace.overwrites is None and not same(arrays_of(given[-1]), before):
            trace.overwrites = entry
        if hook == "observe" and trace.impure is None and not same(arrays_of(call()), entry.values):
            trace.impure = entry
        return found

    return answer


def arrays_of(value: Any) -> list[Array]:
    """Copies of the arrays in an answer: one, several, or none."""
    if value is None:
        return []
    if isinstance(value, tuple | list):
        return [array for own in value for array in arrays_of(own)]
    if isinstance(value, dict):
        return [array for name in sorted(value) for array in arrays_of(value[name])]
    return [np.array(value)]


def same(one: list[Array], other: list[Array]) -> bool:
    """Equal types, shapes and bytes."""
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


def first_difference(one: Trace, other: Trace) -> str | None:
    """Where two traces part, in words; None where they are equal."""
    for a, b in zip(one.entries, other.entries, strict=False):
        if a[:3] != b[:3]:
            return f"epoch {a.epoch}, turn {a.turn}: {a.hook}() was called in one run, {b.hook}() in the other"
        if not same(a.values, b.values):
            return f"epoch {a.epoch}, turn {a.turn}: {a.hook}() gave something else"
    if len(one.entries) != len(other.entries):
        return f"one run had {len(one.entries)} calls, the other {len(other.entries)}: an episode ended at another turn"
    return None
