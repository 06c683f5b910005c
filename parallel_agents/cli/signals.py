"""What Ctrl-C and SIGTERM do: the epoch is finished and a checkpoint written, within a grace period.

A second Ctrl-C leaves at once. By default Python would let SIGTERM end the process without any clean-up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from parallel_agents.errors import Interrupted

__all__ = ["GRACE", "graceful_stop", "terminated"]

GRACE = 30.0
"""Seconds that an epoch may still take after a signal; after them the last checkpoint stands."""


@contextmanager
def graceful_stop(request: Callable[[int], None], grace: float = GRACE) -> Iterator[None]:
    """While the block runs, the first signal calls `request`; the second, or the end of the grace, leaves."""
    timers: list[threading.Timer] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if timers:
            raise Interrupted(f"left before the epoch was over (a second signal, or {grace:g} s)", signal_number=number)
        sys.stderr.write(f"finishing the epoch (at most {grace:g} s); once more to leave at once\n")
        timers.append(threading.Timer(grace, os.kill, (os.getpid(), number)))
        timers[0].daemon = True
        timers[0].start()
        request(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def terminated(number: int, _: FrameType | None) -> None:
    """Before a run has started, a signal just leaves, with everything closed on the way out."""
    raise Interrupted("terminated", signal_number=number)
