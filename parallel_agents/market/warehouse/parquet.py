"""`Warehouse`: a folder of Parquet files, one per table and batch, queried with DuckDB.

    episodes/batch-000000100.parquet     steps/batch-000000100.parquet     batches/batch-000000100.json

Files are written aside and renamed; the note in `batches` comes last, and a batch exists with it and only with it. So a
writer that is killed at any moment leaves every batch whole or absent, and writing a batch again changes nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parallel_agents.errors import ConfigError, ContractError, CorruptCheckpoint
from parallel_agents.market.database import connect, driver, files
from parallel_agents.market.montecarlo.experiences import EpisodeExperience
from parallel_agents.market.warehouse.tables import EPISODES, STEPS, arrow, batch_tables
from parallel_agents.tracking.files import open_folder, sweep, write_atomically

__all__ = ["Warehouse"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,120}")
_TABLES = (EPISODES, STEPS)


class Warehouse:
    """Experiences in a folder; also a `Sink` of a `Stream`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (*_TABLES, "batches"):
            with open_folder(self.folder / name, self.folder, create=True):
                sweep(self.folder / name, root=self.folder)

    def batches(self) -> list[str]:
        """Names of the batches that are there, whole."""
        return sorted(_checked(path.stem) for path in (self.folder / "batches").glob("*.json"))

    def write(self, batch_id: str, experiences: Iterable[EpisodeExperience]) -> None:
        """Store a batch; one that is there already stays as it is."""
        if not self.has(batch_id):
            self.put(batch_id, batch_tables(batch_id, experiences))

    def has(self, batch_id: str) -> bool:
        """Whether a batch is there, whole."""
        return (self.folder / "batches" / f"{_checked(batch_id)}.json").is_file()

    def put(self, batch_id: str, tables: dict[str, Any]) -> None:
        """Store a batch given as tables; again, if it must be."""
        _checked(batch_id)
        note: dict[str, Any] = {}
        for name in _TABLES:
            out = io.BytesIO()
            arrow().parquet.write_table(
                tables[name], out, compression="zstd", use_dictionary=["batch"], use_byte_stream_split=False
            )
            data = out.getvalue()
            write_atomically(self.folder / name / f"{batch_id}.parquet", [data], root=self.folder)
            note[name] = {"rows": tables[name].num_rows, "sha256": hashlib.sha256(data).hexdigest()}
        write_atomically(self.folder / "batches" / f"{batch_id}.json", [json.dumps(note).encode()], root=self.folder)

    def query(self, sql: str, parameters: Iterable[Any] = ()) -> dict[str, Any]:
        """Run a query over the views `episodes` and `steps`; columns as numpy arrays. Unfinished batches are not seen.

        The query reaches no file but those of the batches.
        """
        names = self.batches()
        if not names:
            raise ContractError(f"the warehouse in {self.folder} is empty: write a batch first")
        paths = {table: [self.folder / table / f"{name}.parquet" for name in names] for table in _TABLES}
        with connect([path for own in paths.values() for path in own]) as connection:
            for table, own in paths.items():
                connection.execute(
                    f"CREATE VIEW {table} AS SELECT * FROM read_parquet({files(own)}, hive_partitioning = false)"
                )
            try:
                return dict(connection.execute(sql, list(parameters)).fetchnumpy())
            except driver().Error as error:
                raise ConfigError(f"the query failed: {str(error).partition(chr(10))[0]}") from error

    def verify(self) -> int:
        """Check every byte of every batch; how many rows of steps there are."""
        rows = 0
        for name in self.batches():
            note = json.loads((self.folder / "batches" / f"{name}.json").read_text())
            for table in _TABLES:
                data = (self.folder / table / f"{name}.parquet").read_bytes()
                if hashlib.sha256(data).hexdigest() != note[table]["sha256"]:
                    raise CorruptCheckpoint(
                        f"{table} of batch {name} are not the bytes that were written: write it again"
                    )
            rows += note[STEPS]["rows"]
        return rows


def _checked(batch_id: str) -> str:
    if not _NAME.fullmatch(batch_id):
        raise ConfigError(f"batch {batch_id!r}: give a name of letters, digits, - and _, at most 120")
    return batch_id
