"""What Ctrl-C and SIGTERM do: the first finishes the epoch, the second leaves, the third ends the process at once.

By default Python would let SIGTERM end the process without any clean-up. The handler may be interrupted by itself at
any place: it only counts, writes to a descriptor, and raises.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from types import FrameType

from parallel_agents.errors import Interrupted

__all__ = ["ASK", "GRACE", "STOPS", "Signals", "graceful_stop"]

GRACE = 30.0
"""Seconds that an epoch may still take after a signal; after them the last checkpoint stands."""
STOPS = (signal.SIGINT, signal.SIGTERM)
ASK = signal.SIGUSR2
"""Sent by the process that watches this one: look at how often it was asked to stop."""
PASSED_ON, DIRECT, NUMBER = range(3)
"""Cells: signals that the watching process got, signals that this one got, and which of them came last."""


class Signals:
    """Handles the signals of the main thread while a `with` block lasts.

    cells: three whole numbers, shared with the process that watches this one, if there is one. A terminal sends
    Ctrl-C to both, `kill` to either of them: the larger count is how often somebody asked.
    """

    current: Signals | None = None

    def __init__(self, cells: MutableSequence[int] | None = None) -> None:
        self._cells = [0, 0, 0] if cells is None else cells
        self._obeyed = 0
        self.finish: Callable[[int], None] | None = None
        """What the first signal calls; None: it leaves."""

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._on_stop) for number in STOPS}
        self._before[ASK] = signal.signal(ASK, self._on_ask)
        Signals.current = self
        try:
            self._obey()  # what came before anybody listened
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        Signals.current = None
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_stop(self, number: int, _: FrameType | None) -> None:
        self._cells[DIRECT] += 1
        self._cells[NUMBER] = number
        self._obey()

    def _on_ask(self, _: int, __: FrameType | None) -> None:
        self._obey()

    def _obey(self) -> None:
        asked, number = max(self._cells[PASSED_ON], self._cells[DIRECT]), self._cells[NUMBER]
        if asked <= self._obeyed:
            return
        self._obeyed = asked
        if asked > 2:
            os._exit(128 + number)
        if asked == 2 or self.finish is None:
            raise Interrupted("left before the epoch was over; the last checkpoint stands", signal_number=number)
        _say(f"finishing the epoch (at most {GRACE:g} s); once more to leave, a third time to end at once\n")
        self.finish(number)


@contextmanager
def graceful_stop(finish: Callable[[int], None]) -> Iterator[None]:
    """While the block runs, let the first signal call `finish`, where a command handles signals at all."""
    signals = Signals.current
    if signals is None:
        yield
        return
    signals.finish = finish
    try:
        yield
    finally:
        signals.finish = None


def _say(text: str) -> None:
    """Write to stderr past its buffer, which the signal may have interrupted while it was written to."""
    try:
        os.write(2, text.encode())
    except OSError:
        return  # nobody reads it any more
