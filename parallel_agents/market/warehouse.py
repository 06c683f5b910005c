"""Store batches of experiences as tables `episodes` and `steps`, each batch once and whole.

`batch_tables` defines the tables; every writer takes its columns from them. `Warehouse` keeps them as Parquet files in
a folder and queries them with DuckDB:

    episodes/batch-000000100.parquet     steps/batch-000000100.parquet     batches/batch-000000100.json

Files are written under a temporary name and renamed; the note in `batches` comes last, and a batch exists if and only
if its note does. So a writer that is killed at any moment leaves every batch whole or absent, and writing a batch again
changes nothing. `Stream` sends batches to a sink that may fail, such as `bigquery.BigQuerySink`.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from parallel_agents.core.errors import ConfigError, ContractError, CorruptCheckpoint, RunError
from parallel_agents.core.files import open_folder, read_file, remove_unfinished, write_atomically
from parallel_agents.core.types import Array, RoundStats
from parallel_agents.market.database import connect, explained, load_pyarrow, path_list
from parallel_agents.market.experiences import EpisodeExperience
from parallel_agents.tracking.callbacks import BaseCallback

TABLES = ("episodes", "steps")
SAMPLING = "sampling"  # one row per round of training: how well importance sampling works
_LARGEST_FILE = 2**32
_BATCH_NAME = re.compile(r"[A-Za-z0-9_-]{1,120}")


def _pyarrow() -> Any:
    return load_pyarrow("the warehouse")


def batch_tables(batch_id: str, experiences: Iterable[EpisodeExperience]) -> dict[str, Any]:
    """Return a batch as Arrow tables: a row per episode, and a row per step; every row names its batch."""
    pa, episodes = _pyarrow(), list(experiences)
    if not episodes:
        raise ContractError(f"batch {batch_id!r} holds no experience: every world failed, or none was run")
    lengths = [len(e.rewards) for e in episodes]
    episode_columns = {
        "batch": [batch_id] * len(episodes),
        "world": [e.world for e in episodes],
        "world_type": [e.kind.value for e in episodes],
        "lap": [e.lap for e in episodes],
        "reward": [e.total_reward for e in episodes],
        "revenue": [e.revenue for e in episodes],
        "crisis_revenue": [e.crisis_parent_revenue for e in episodes],
        "cost": [e.cost for e in episodes],
        "conversions": [e.conversions for e in episodes],
        "importance_weight": [e.importance_weight for e in episodes],
        **{name: [e.context[name] for e in episodes] for name in episodes[0].context},
    }
    step_columns = {
        "batch": pa.array([batch_id] * sum(lengths)).dictionary_encode(),
        "world": np.repeat([e.world for e in episodes], lengths),
        "lap": np.repeat([e.lap for e in episodes], lengths),
        "step": np.concatenate([np.arange(n) for n in lengths]),
        "reward": np.concatenate([e.rewards for e in episodes]),
        "value": np.concatenate([e.values for e in episodes]),
        "crisis_value": np.concatenate([e.crisis_values for e in episodes]),
        "action": _list_column(np.concatenate([e.actions.reshape(len(e.rewards), -1) for e in episodes])),
        "state": _list_column(np.concatenate([e.states[:-1] for e in episodes])),
    }
    return dict(zip(TABLES, (pa.table(episode_columns), pa.table(step_columns)), strict=True))


def _list_column(rows: Array) -> Any:
    """Return rows (n, F) as a column of lists."""
    pa = _pyarrow()
    flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
    return pa.ListArray.from_arrays(pa.array(np.arange(0, rows.size + 1, rows.shape[1]), pa.int32()), flat)


class Sink(Protocol):
    """A destination of batches."""

    def has(self, batch_id: str) -> bool:
        """Return whether a batch of this name was taken, whole."""

    def put(self, batch_id: str, tables: dict[str, Any]) -> None:
        """Take a batch, all of it or nothing."""


class Warehouse(Sink):
    """A folder of batches."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (*TABLES, SAMPLING, "batches"):
            with open_folder(self.folder / name, self.folder, create=True):
                remove_unfinished(self.folder / name, root=self.folder)

    def batches(self) -> list[str]:
        """Return the names of the whole batches."""
        return sorted(_checked_name(path.stem) for path in (self.folder / "batches").glob("*.json"))

    def write(self, batch_id: str, experiences: Iterable[EpisodeExperience]) -> None:
        """Store a batch; a batch that is stored already stays as it is."""
        if not self.has(batch_id):
            self.put(batch_id, batch_tables(batch_id, experiences))

    def has(self, batch_id: str) -> bool:
        """Return whether a batch is stored, whole."""
        return self._note(_checked_name(batch_id)).is_file()

    def put(self, batch_id: str, tables: dict[str, Any]) -> None:
        """Store a batch given as tables, in place of one of that name."""
        _checked_name(batch_id)
        note: dict[str, Any] = {}
        for name in TABLES:
            data = self._write(name, batch_id, tables[name], use_dictionary=["batch"], use_byte_stream_split=False)
            note[name] = {"rows": tables[name].num_rows, "sha256": hashlib.sha256(data).hexdigest()}
        write_atomically(self._note(batch_id), [json.dumps(note).encode()], root=self.folder)

    def log_sampling(self, run_id: str, rows: Sequence[Mapping[str, float]]) -> None:
        """Store the figures of importance sampling of a run, by round; a resumed run goes on after its earlier ones."""
        pa, path = _pyarrow(), self._parquet(SAMPLING, _checked_name(run_id))
        columns: dict[str, list[Any]] = {"run": [run_id] * len(rows)}
        columns |= {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        table = pa.table(columns)
        if rows and path.is_file():
            before = [("round", "<", rows[0]["round"])]
            table = pa.concat_tables([pa.parquet.read_table(io.BytesIO(self._read(path)), filters=before), table])
        self._write(SAMPLING, run_id, table)

    def _write(self, name: str, batch_id: str, table: Any, **options: Any) -> bytes:
        """Write a table to its Parquet file, and return the bytes."""
        buffer = io.BytesIO()
        _pyarrow().parquet.write_table(table, buffer, compression="zstd", **options)
        write_atomically(self._parquet(name, batch_id), [buffer.getvalue()], root=self.folder)
        return buffer.getvalue()

    def tables(self, batch_id: str) -> dict[str, Any]:
        """Return a stored batch as tables."""
        return {
            name: _pyarrow().parquet.read_table(io.BytesIO(self._read(self._parquet(name, batch_id))))
            for name in TABLES
        }

    def query(self, sql: str, parameters: Iterable[Any] = ()) -> dict[str, Any]:
        """Run a query over the views `episodes` and `steps` of whole batches, and `sampling`; return its columns.

        The query can read no file but those of the batches.
        """
        names = self.batches()
        paths = {table: [self._parquet(table, name) for name in names] for table in TABLES}
        paths[SAMPLING] = sorted((self.folder / SAMPLING).glob("*.parquet"))
        paths = {table: files for table, files in paths.items() if files}
        if not paths:
            raise ContractError(f"the warehouse in {self.folder} is empty: write a batch first")
        with connect([path for table_paths in paths.values() for path in table_paths]) as connection:
            for table, table_paths in paths.items():
                source = f"read_parquet({path_list(table_paths)}, hive_partitioning = false)"
                connection.execute(f"CREATE VIEW {table} AS SELECT * FROM {source}")
            with explained("the query failed: {}"):
                return dict(connection.execute(sql, list(parameters)).fetchnumpy())

    def verify(self) -> int:
        """Compare the bytes of every batch with their checksums; return the number of rows of steps."""
        rows = 0
        for name in self.batches():
            note = json.loads(self._read(self._note(name)))
            for table in TABLES:
                data = self._read(self._parquet(table, name))
                if hashlib.sha256(data).hexdigest() != note[table]["sha256"]:
                    raise CorruptCheckpoint(
                        f"{table} of batch {name} are not the bytes that were written: write it again"
                    )
            rows += note["steps"]["rows"]
        return rows

    def _read(self, path: Path) -> bytes:
        """Return the bytes of a file of the warehouse; raise if it is a link, no regular file or far too large."""
        try:
            return read_file(path, _LARGEST_FILE, root=self.folder)
        except OSError as error:
            raise CorruptCheckpoint(f"{path} cannot be read: {error.strerror}; write its batch again") from error

    def _parquet(self, table: str, batch_id: str) -> Path:
        return self.folder / table / f"{batch_id}.parquet"

    def _note(self, batch_id: str) -> Path:
        return self.folder / "batches" / f"{batch_id}.json"


class SamplingLog(BaseCallback):
    """A callback that logs how importance sampling works, round by round, to a warehouse when the run ends."""

    _FIGURES = (
        "crisis_parent_ratio_in_batch", "importance_weights_mean", "importance_weights_std", "effective_sample_share",
    )  # fmt: skip

    def __init__(self, warehouse: Warehouse, run_id: str) -> None:
        self._warehouse, self._run_id = warehouse, run_id
        self._rows: list[dict[str, float]] = []

    def on_round(self, result: RoundStats) -> None:
        """Take the figures of every agent in a round."""
        known = [name for name in self._FIGURES if name in result.metrics]
        for agent in range(len(result.metrics[known[0]]) if known else 0):
            figures = {name: float(result.metrics[name][agent]) for name in known}
            self._rows.append({"round": float(result.round), "agent": float(agent), **figures})

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Store them, if there are any."""
        if self._rows:
            self._warehouse.log_sampling(self._run_id, self._rows)


def _checked_name(batch_id: str) -> str:
    """Return the name of a batch; raise if it could not be the name of a file."""
    if not _BATCH_NAME.fullmatch(batch_id):
        raise ConfigError(f"batch {batch_id!r}: give a name of letters, digits, - and _, at most 120")
    return batch_id


class Stream:
    """Sends batches, in order, to a sink that may fail; a batch that the sink does not take is kept and sent later.

    A batch first goes into a local warehouse, the spool, then to the sink under its own name. That the sink took it is
    noted beside the spool; after a restart everything without a note is sent again. The sink takes a batch all or
    nothing and knows its name, so nothing is lost and nothing is stored twice.

    attempts: to send one batch. pause: seconds before the second attempt; it doubles with each.
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
        """errors of the sink, the latest last"""

    def write(self, batch_id: str, experiences: Iterable[EpisodeExperience]) -> None:
        """Keep a batch, then send it and whatever else is pending."""
        self.spool.write(batch_id, experiences)
        self.flush()

    def pending(self) -> list[str]:
        """Return the batches that the sink has not taken yet, oldest first."""
        return [name for name in self.spool.batches() if not (self._taken / name).exists()]

    def flush(self) -> list[str]:
        """Send pending batches in order until one fails; return those that are still pending."""
        for name in self.pending():
            if not self._send(name):
                break
        return self.pending()

    def close(self) -> None:
        """Send the remaining batches; raise if the sink does not take them. The spool keeps them for the next start."""
        left = self.flush()
        if left:
            raise RunError(
                f"{len(left)} batches from {left[0]} on are not in the sink yet: {self.errors[-1]}; they are kept in "
                f"{self.spool.folder}, open the stream again to send them"
            )

    def _send(self, name: str) -> bool:
        """Send one batch, with several attempts; return whether the sink took it."""
        for attempt in range(self._attempts):
            try:
                if not self.sink.has(name):
                    self.sink.put(name, self.spool.tables(name))
            except Exception as error:  # a sink may raise anything: record it and try again
                self.errors.append(f"{name}: {type(error).__name__}: {error}")
                if attempt + 1 < self._attempts:
                    self._sleep(self._pause * 2**attempt)
            else:
                write_atomically(self._taken / name, [b""], root=self.spool.folder)
                return True
        return False
