"""Handle Ctrl-C and SIGTERM: the first finishes the epoch, the second leaves the run, the third ends the process.

Without a handler, SIGTERM would end the process without any clean-up. A handler may interrupt itself at any place.
Therefore it only counts, writes to a descriptor, and raises.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from types import FrameType

from parallel_agents.core.errors import Interrupted

GRACE = 30.0
"""Seconds that an epoch may still take after the first signal; then the run ends at its last checkpoint."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
WAKE_SIGNAL = signal.SIGUSR2
"""Sent by the parent process: read the count of stop signals in the shared cells."""
PASSED_ON, DIRECT, LAST_SIGNAL = range(3)
"""Cells: signals that the parent process got, signals that this process got, and the number of the last one."""


class Signals:
    """Handle signals in the main thread during a `with` block.

    `cells` are three integers in memory shared with the parent process, if there is one. A terminal sends Ctrl-C to
    both processes, `kill` to one of them: the larger of both counts is the number of stop signals.
    """

    current: Signals | None = None

    def __init__(self, cells: MutableSequence[int] | None = None) -> None:
        self._cells = [0, 0, 0] if cells is None else cells
        self._handled = 0
        self.finish: Callable[[int], None] | None = None
        """Called at the first signal; None: the first signal raises `Interrupted`."""

    def __enter__(self) -> Signals:
        self._previous = {number: signal.signal(number, self._on_stop) for number in STOP_SIGNALS}
        self._previous[WAKE_SIGNAL] = signal.signal(WAKE_SIGNAL, self._on_wake)
        Signals.current = self
        try:
            self._handle()  # signals that came before the handlers were installed
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        Signals.current = None
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_stop(self, number: int, _: FrameType | None) -> None:
        self._cells[DIRECT] += 1
        self._cells[LAST_SIGNAL] = number
        self._handle()

    def _on_wake(self, _: int, __: FrameType | None) -> None:
        self._handle()

    def _handle(self) -> None:
        count, number = max(self._cells[PASSED_ON], self._cells[DIRECT]), self._cells[LAST_SIGNAL]
        if count <= self._handled:
            return
        self._handled = count
        if count > 2:
            os._exit(128 + number)
        if count == 2 or self.finish is None:
            trains = self.finish is not None
            left = "left before the epoch was over; the last checkpoint stands" if trains else "interrupted"
            raise Interrupted(left, signal_number=number)
        _write_stderr(f"finishing the epoch (at most {GRACE:g} s); once more to leave, a third time to end at once\n")
        self.finish(number)


@contextmanager
def graceful_stop(finish: Callable[[int], None]) -> Iterator[None]:
    """Call `finish` at the first signal within the block, if a command handles signals at all."""
    signals = Signals.current
    if signals is None:
        yield
        return
    signals.finish = finish
    try:
        yield
    finally:
        signals.finish = None


def _write_stderr(text: str) -> None:
    """Write to stderr without its buffer, since the signal may have interrupted a write to that buffer."""
    try:
        os.write(2, text.encode())
    except OSError:
        return  # stderr is closed
