"""The checks of a buffer of one's own: bounded, in order, frozen when it is snapshotted, deaf to NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parallel_agents.testing.conformance import Finding

__all__ = ["check_buffer"]


def check_buffer(make: Callable[[], Any], obs_shape: tuple[int, ...], *, capacity: int) -> list[Finding]:
    """What a buffer of `capacity` transitions must keep to.

    make: a fresh, empty buffer each time it is called, with `add(obs, action, reward, done)`, `len`, and
    `get_buffer_snapshot()`.

    >>> from parallel_agents import Buffer
    >>> all(finding.passed for finding in check_buffer(lambda: Buffer(8, (2,)), (2,), capacity=8))
    True
    """
    checks = [
        ("empty at first", lambda: (len(make()) == 0, "a fresh buffer already holds something")),
        ("bounded", lambda: _bounded(make(), obs_shape, capacity)),
        ("oldest first, newest kept", lambda: _in_order(make(), obs_shape, capacity)),
        ("snapshots are frozen", lambda: _frozen(make(), obs_shape)),
        ("not finite is refused", lambda: _refuses(make(), obs_shape)),
    ]
    return [_finding(name, check) for name, check in checks]


def _finding(name: str, check: Callable[[], tuple[bool, str]]) -> Finding:
    try:
        passed, detail = check()
    except Exception as error:  # whatever a user's buffer raises is a finding
        passed, detail = False, f"{type(error).__name__}: {error}"
    if passed:
        return Finding(name, True, "as it should be")
    return Finding(name, False, detail, "see parallel_agents.memory.Buffer, which keeps to it")


def _fill(buffer: Any, obs_shape: tuple[int, ...], count: int) -> None:
    for n in range(count):
        buffer.add(np.full(obs_shape, n, np.float32), 0, float(n), False)


def _bounded(buffer: Any, obs_shape: tuple[int, ...], capacity: int) -> tuple[bool, str]:
    _fill(buffer, obs_shape, 3 * capacity)
    return len(buffer) <= capacity, f"after {3 * capacity} transitions it holds {len(buffer)}, more than {capacity}"


def _in_order(buffer: Any, obs_shape: tuple[int, ...], capacity: int) -> tuple[bool, str]:
    _fill(buffer, obs_shape, 2 * capacity)
    kept = np.asarray(buffer.get_buffer_snapshot()["rewards"], float).reshape(-1).tolist()
    newest = [float(n) for n in range(2 * capacity)][-len(kept) :] if kept else []
    return bool(kept) and kept == newest, f"after {2 * capacity} transitions it holds {kept}"


def _frozen(buffer: Any, obs_shape: tuple[int, ...]) -> tuple[bool, str]:
    _fill(buffer, obs_shape, 3)
    taken = buffer.get_buffer_snapshot()
    before = np.array(taken["rewards"])
    _fill(buffer, obs_shape, 50)
    return np.array_equal(before, np.array(taken["rewards"])), "a snapshot changed when the buffer was written to"


def _refuses(buffer: Any, obs_shape: tuple[int, ...]) -> tuple[bool, str]:
    for seen, reward in ((np.nan, 0.0), (0.0, np.inf)):
        try:
            buffer.add(np.full(obs_shape, seen, np.float32), 0, reward, False)
        except Exception:
            continue
        return False, f"it kept an observation of {seen} with a reward of {reward}"
    return len(buffer) == 0, "it kept something of what it refused"
