"""How the columns of an export are read as numbers and times, and what is said of values that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.database import identifier, literal

if TYPE_CHECKING:
    import duckdb

_THOUSANDS = literal(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")


@dataclass(frozen=True)
class Remarks:
    """What is noticed while an export is read: how columns were understood, and what looks wrong."""

    understood: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Column:
    """A column of an export, which belongs to a table of ours and is selected from `rows`."""

    connection: duckdb.DuckDBPyConnection
    table: str
    rows: str
    name: str
    kind: str

    def number(self, remarks: Remarks) -> str:
        """Return the SQL of the column as numbers, null where there is none; refuse decimal commas."""
        column = identifier(self.name)
        if self.kind != "VARCHAR":
            return f"TRY_CAST({column} AS DOUBLE)"
        text = f"trim({column}, ' %')"
        thousands = f"regexp_full_match({text}, {_THOUSANDS})"
        number = f"TRY_CAST(CASE WHEN {thousands} THEN replace({text}, ',', '') ELSE {text} END AS DOUBLE)"
        decimal = rf"regexp_matches({text}, '\d,\d') AND NOT {thousands}"
        unread = rf"regexp_matches({text}, '\d') AND {number} IS NULL"  # no digit, such as "--": a gap
        commas, comma, count, example = self._one(
            f"count(*) FILTER ({decimal}), min({column}) FILTER ({decimal}), "
            f"count(*) FILTER ({unread}), min({column}) FILTER ({unread})"
        )
        if commas:
            raise ConfigError(
                f"{self.table}: {commas} values of {self.name!r} have a comma that separates no thousands, such as "
                f"{comma!r}: write numbers with a decimal point, such as 1234.56 or 1,234.56"
            )
        if count:
            remarks.odd.append(
                f"{self.table}: {count} values of {self.name!r} count as empty, since they are no plain numbers: "
                f"{example!r}, for example"
            )
        return number

    def microseconds(self, remarks: Remarks) -> str:
        """Return the SQL of the column as microseconds since 1970: ISO text, dates, seconds, milliseconds or finer."""
        column = identifier(self.name)
        if self.kind.startswith(("TIMESTAMP", "DATE")):
            sql = f"epoch_us(CAST({column} AS TIMESTAMP))"
        else:
            largest = self._one(f"max(TRY_CAST({column} AS DOUBLE))")[0]
            unit = "ISO text" if largest is None else "seconds" if largest < 1e11 else "milli- or microseconds"
            remarks.understood.append(f"{self.table}: {self.name!r} is read as {unit}")
            if largest is None:  # text that is no number
                sql = f"epoch_us(TRY_CAST({column} AS TIMESTAMP))"
            else:
                scale = 1_000_000 if largest < 1e11 else 1_000 if largest < 1e14 else 1
                divisor = 1_000 if largest > 1e17 else 1
                sql = f"CAST(TRY_CAST({column} AS DOUBLE) * {scale} / {divisor} AS BIGINT)"
        self._check_times(sql, remarks)
        return sql

    def _check_times(self, sql: str, remarks: Remarks) -> None:
        """Remark how many rows have no time that can be read; raise if all values are of this kind."""
        text = f"nullif(trim(CAST({identifier(self.name)} AS VARCHAR)), '')"
        rows, values, read, example = self._one(
            f"count(*), count({text}), count({sql}), min({text}) FILTER (({sql}) IS NULL)"
        )
        if values and not read:
            raise ConfigError(
                f"{self.table}: none of {values} values of {self.name!r} could be read as a time, such as {example!r}: "
                "write times as 2024-01-31 10:00, or as seconds since 1970"
            )
        if read < rows:
            why = "is empty" if example is None else f"is empty or cannot be read as a time, such as {example!r}"
            remarks.odd.append(f"{self.table}: {rows - read} of {rows} rows are left out: their {self.name!r} {why}")

    def _one(self, columns: str) -> Any:
        return self.connection.execute(f"SELECT {columns} FROM {self.rows}").fetchall()[0]
