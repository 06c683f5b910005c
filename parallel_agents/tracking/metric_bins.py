"""Read metrics in memory that does not grow with their number: means over bins of epochs, and the newest records."""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.tracking.jsonl import parse_lines

Floats = NDArray[np.float64]
RECENT_EPOCHS = 100
"""Epochs whose rewards are kept one by one."""
MAX_AGENTS = 10_000
_MAX_COLUMNS = 64


class Bins:
    """Means of columns over equal bins of epochs. When epochs outgrow the bins, neighbouring bins are merged.

    >>> bins = Bins(capacity=4)
    >>> bins.add("reward", np.arange(1, 9), np.arange(8.0)[:, None])
    >>> bins.epochs().tolist(), bins.means("reward")[:, 0].tolist()
    ([1.5, 3.5, 5.5, 7.5], [0.5, 2.5, 4.5, 6.5])
    """

    def __init__(self, capacity: int = 512) -> None:
        self._capacity, self._width, self._filled = capacity, 1, 0
        self._columns: dict[str, tuple[Floats, Floats]] = {}

    def add(self, name: str, epochs: NDArray[np.int64], values: Floats) -> None:
        """Add the values (k, n) of a column at the epochs (k,), counted from 1; NaN is left out."""
        while epochs.max() > self._capacity * self._width:
            self._merge()
        width = values.shape[1]
        if name not in self._columns:
            if len(self._columns) >= _MAX_COLUMNS:
                return
            self._columns[name] = np.zeros((self._capacity, width)), np.zeros((self._capacity, width))
        sums, counts = self._columns[name]
        if sums.shape[1] != width:
            return  # a run does not change its number of agents
        places = (epochs - 1) // self._width
        known = np.isfinite(values)
        np.add.at(sums, places, np.where(known, values, 0.0))
        np.add.at(counts, places, known)
        self._filled = max(self._filled, int(places.max()) + 1)

    def cut(self, epoch: int) -> None:
        """Forget everything from the bin of `epoch` on."""
        self._filled = min(self._filled, max(0, (epoch - 1) // self._width))
        for column in self._columns.values():
            for array in column:
                array[self._filled :] = 0.0

    def names(self) -> list[str]:
        """Return the names of the columns, in the order of their first values."""
        return list(self._columns)

    def epochs(self) -> Floats:
        """Return the middle epoch of each bin, (p,)."""
        return np.arange(self._filled, dtype=np.float64) * self._width + (self._width + 1) / 2

    def means(self, name: str) -> Floats:
        """Return the means (p, n) of a column; NaN where a bin has no value."""
        sums, counts = (array[: self._filled] for array in self._columns[name])
        means: Floats = np.full(sums.shape, np.nan)
        np.divide(sums, counts, out=means, where=counts > 0)
        return means

    def total(self, name: str) -> Floats:
        """Return the sums (n,) of a column over all epochs; empty if there is no such column."""
        return np.asarray(self._columns[name][0].sum(axis=0)) if name in self._columns else np.empty(0)

    def _merge(self) -> None:
        self._width *= 2
        self._filled = (self._filled + 1) // 2
        for column in self._columns.values():
            for array in column:
                merged = array[0::2] + array[1::2]
                array[: len(merged)] = merged
                array[len(merged) :] = 0.0


class MetricsState:
    """What is known of a metrics file after some of its lines."""

    def __init__(self) -> None:
        self.start: dict[str, Any] = {}
        self.bins = Bins()
        self.last_epoch: dict[str, Any] = {}
        self.last_round: dict[str, Any] = {}
        self.recent: deque[Floats] = deque(maxlen=RECENT_EPOCHS)
        """Rewards (agents,) of the last epochs."""
        self.broken = 0

    @property
    def replicas(self) -> int:
        """Number of seeds that were trained together; 1 if the file does not say."""
        count = self.start.get("replicas")
        agents = len(self.agents)
        return count if isinstance(count, int) and 0 < count <= agents and agents % count == 0 else 1

    @property
    def agents(self) -> list[str]:
        """The names of all agents, one replica after the other."""
        names, rewards = self.start.get("agents"), self.last_epoch.get("rewards") or ()
        if isinstance(names, list) and (len(names) == len(rewards) or not rewards):
            return [str(name) for name in names[:MAX_AGENTS]]
        return [f"agent_{n}" for n in range(min(len(rewards), MAX_AGENTS))]

    def add(self, data: bytes) -> None:
        """Add whole lines."""
        records, broken = parse_lines(data)
        self.broken += broken
        for kind, group in groupby(records, key=lambda record: record.get("kind")):
            chosen = list(group)
            if kind == "start":
                for record in chosen:
                    self._begin(record)
            elif kind in ("epoch", "round"):
                valid = [record for record in chosen if _is_epoch(record.get("epoch"), least=kind == "epoch")]
                self.broken += len(chosen) - len(valid)
                if valid:
                    self._add_epochs(valid) if kind == "epoch" else self._add_rounds(valid)

    def _begin(self, record: dict[str, Any]) -> None:
        first = record.get("first_epoch")
        if not isinstance(first, int) or not _is_epoch(first):
            self.broken += 1
            return
        self.start = record
        if first <= self.last_epoch.get("epoch", 0):  # resumed from a checkpoint before the last epoch
            for _ in range(min(len(self.recent), self.last_epoch["epoch"] - first + 1)):
                self.recent.pop()
            self.bins.cut(first)

    def _add_epochs(self, records: list[dict[str, Any]]) -> None:
        epochs = np.array([record["epoch"] for record in records], np.int64)
        rewards = self._add_column("rewards", epochs, [record.get("rewards") for record in records])
        names = dict.fromkeys(name for record in (records[0], records[-1]) for name in record)
        for name in names:
            if name not in ("epoch", "kind", "rewards", "metrics"):
                values = [record.get(name) for record in records]
                self._add_column(name, epochs, values, scalar=not isinstance(values[-1], list))
        self._add_metrics(epochs, records)
        self.last_epoch = records[-1]
        if rewards is not None:
            self.recent.extend(rewards[-RECENT_EPOCHS:])
            turns = _matrix([record.get("turns") for record in records], scalar=True)
            self._add_social(epochs, rewards, turns)

    def _add_rounds(self, records: list[dict[str, Any]]) -> None:
        epochs = np.maximum(np.array([record["epoch"] for record in records], np.int64), 1)
        for name in ("updates", "rejected"):
            self._add_column(f"round_{name}", epochs, [record.get(name) for record in records])
        self._add_metrics(epochs, records)
        self.last_round = records[-1]

    def _add_metrics(self, epochs: NDArray[np.int64], records: list[dict[str, Any]]) -> None:
        metrics = [found if isinstance(found := record.get("metrics"), dict) else {} for record in records]
        for name in dict.fromkeys(name for entry in (metrics[0], metrics[-1]) for name in entry):
            self._add_column(name, epochs, [entry.get(name) for entry in metrics])

    def _add_column(
        self, name: str, epochs: NDArray[np.int64], values: list[Any], *, scalar: bool = False
    ) -> Floats | None:
        matrix = _matrix(values, scalar=scalar)
        if matrix is not None and 0 < matrix.shape[1] <= MAX_AGENTS:
            self.bins.add(name[:80], epochs, matrix)
            return matrix
        return None

    def _add_social(self, epochs: NDArray[np.int64], rewards: Floats, turns: Floats | None) -> None:
        """Add efficiency and equality (1 - Gini) of each replica, if a replica has several agents."""
        groups = rewards.reshape(len(rewards), self.replicas, -1) if rewards.shape[1] % self.replicas == 0 else None
        if groups is None or groups.shape[2] < 2:
            return
        ordered, n = np.sort(groups, axis=2), groups.shape[2]
        total = groups.sum(axis=2)
        rank = 2.0 * np.arange(1, n + 1) - n - 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            equality = np.clip(1.0 - ordered @ rank / (n * total), 0.0, 1.0)  # less than 0 if some lost
            self.bins.add("equality", epochs, np.where(total > 0, equality, np.nan))
            if turns is not None:
                self.bins.add("efficiency", epochs, total / turns)


def _is_epoch(value: object, *, least: bool = True) -> bool:
    return type(value) is int and int(least) <= value < 2**53


def _matrix(values: list[Any], *, scalar: bool = False) -> Floats | None:
    """Return (k, n) numbers; None if there are none. Entries that are no numbers, or too many or few, are NaN."""
    with suppress(ValueError, TypeError, OverflowError):  # then one by one
        array = np.array(values, np.float64)
        if array.ndim == 2 - scalar:
            return array[:, None] if scalar else array
    rows = [_row([value] if scalar else value) for value in values]
    width = next((len(row) for row in rows if row), 0)
    return np.array([row if len(row) == width else [math.nan] * width for row in rows]) if width else None


def _row(value: Any) -> list[float]:
    if not isinstance(value, list):
        return []
    return [float(x) if isinstance(x, int | float) and abs(x) < 1e300 else math.nan for x in value]
