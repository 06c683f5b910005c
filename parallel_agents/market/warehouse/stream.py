"""`Stream`: batches, in order, to a sink that may die.

A batch first goes into a local warehouse, the spool, then to the sink under its own name. What a sink has taken is
noted beside the spool after the sink said so; after a restart everything not noted is sent again. The sink takes a
batch all or nothing and knows its name, so nothing is lost and nothing is doubled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from parallel_agents.errors import ConfigError, RunError
from parallel_agents.market.montecarlo.experiences import EpisodeExperience
from parallel_agents.market.warehouse.parquet import Warehouse
from parallel_agents.market.warehouse.tables import EPISODES, STEPS, arrow
from parallel_agents.tracking.files import open_folder, write_atomically

__all__ = ["Sink", "Stream"]


class Sink(Protocol):
    """A place for batches."""

    def has(self, batch_id: str) -> bool:
        """Whether a batch of this name was taken, whole."""

    def put(self, batch_id: str, tables: dict[str, Any]) -> None:
        """Take a batch, all of it or nothing."""


class Stream:
    """Sends batches to a sink; tries again a few times, then keeps them for later and goes on.

    attempts: for one batch at one time. pause: seconds before the second; it doubles with each.
    """

    def __init__(
        self,
        spool: str | Path,
        sink: Sink,
        *,
        attempts: int = 3,
        pause: float = 0.1,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if attempts < 1 or not pause >= 0:
            raise ConfigError(f"{attempts} attempts with a pause of {pause} s: give at least 1 and 0")
        self.spool, self.sink = Warehouse(spool), sink
        self._taken = self.spool.folder / "taken"
        with open_folder(self._taken, self.spool.folder, create=True):
            pass
        self._attempts, self._pause, self._sleep = attempts, pause, sleep
        self.errors: list[str] = []
        """what went wrong, the latest last"""

    def write(self, batch_id: str, experiences: Iterable[EpisodeExperience]) -> None:
        """Keep a batch, and send it and whatever is still pending."""
        self.spool.write(batch_id, experiences)
        self.flush()

    def pending(self) -> list[str]:
        """Batches that the sink has not taken yet, oldest first."""
        return [name for name in self.spool.batches() if not (self._taken / name).exists()]

    def flush(self) -> list[str]:
        """Send what is pending, in order, until one fails; what is still pending then."""
        for name in self.pending():
            if not self._send(name):
                break
        return self.pending()

    def close(self) -> None:
        """Send the rest; raise if the sink still does not take it. The spool keeps it for the next start."""
        left = self.flush()
        if left:
            raise RunError(
                f"{len(left)} batches from {left[0]} on are not in the sink yet: {self.errors[-1]}; they are kept in "
                f"{self.spool.folder}, open the stream again to send them"
            )

    def _send(self, name: str) -> bool:
        for attempt in range(self._attempts):
            try:
                if not self.sink.has(name):
                    tables = {t: self._read(t, name) for t in (EPISODES, STEPS)}
                    self.sink.put(name, tables)
            except Exception as error:  # of the sink, whatever it is: told, and tried again
                self.errors.append(f"{name}: {type(error).__name__}: {error}")
                if attempt + 1 < self._attempts:
                    self._sleep(self._pause * 2**attempt)
            else:
                write_atomically(self._taken / name, [b""], root=self.spool.folder)
                return True
        return False

    def _read(self, table: str, name: str) -> Any:
        return arrow().parquet.read_table(self.spool.folder / table / f"{name}.parquet")
