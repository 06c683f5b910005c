"""When rounds happen: pure arithmetic on epochs, never on the clock."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Schedule"]


@dataclass(frozen=True)
class Schedule:
    """Rounds r = 1, 2, … belong to the boundaries after epochs r · interval; acting is `lag` rounds behind.

    >>> schedule = Schedule(interval=3, lag=1)
    >>> [schedule.round_after(epoch) for epoch in range(1, 8)]
    [None, None, 1, None, None, 2, None]
    >>> schedule.due_at(2), schedule.rounds_until(13)
    (1, 4)
    """

    interval: int
    lag: int

    def round_after(self, epoch: int) -> int | None:
        """The round whose boundary comes after this epoch."""
        return epoch // self.interval if epoch % self.interval == 0 else None

    def due_at(self, round_: int) -> int:
        """The round that is published at the boundary of `round_`; 0 or less: none yet."""
        return round_ - self.lag

    def rounds_until(self, epoch: int) -> int:
        """How many rounds have been submitted once this epoch and its boundary are over."""
        return epoch // self.interval
