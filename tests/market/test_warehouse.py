"""Batches are stored once and whole, whichever writer or sink fails."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError, ContractError, CorruptCheckpoint, RunError
from parallel_agents.market import warehouse
from parallel_agents.market.montecarlo import EpisodeSetting, MonteCarloSimulator
from parallel_agents.market.strategies import Strategy
from parallel_agents.market.warehouse import SamplingLog, Stream, Warehouse, batch_tables


@pytest.fixture(scope="module")
def batches(patterns):
    setting = EpisodeSetting(steps=6, auctions_per_step=100.0, threads=1)
    with MonteCarloSimulator(5, None, 5, 1000, patterns=patterns, setting=setting) as simulator:
        return [asyncio.run(simulator.run_episode_batch(Strategy(9))) for _ in range(6)]


class FailingSink:
    """A sink that fails at given calls: before a batch, within it, or after it without an answer."""

    def __init__(self, folder: Path, deaths: dict[int, str]) -> None:
        self.store, self.deaths, self.calls = Warehouse(folder), deaths, 0

    def has(self, batch_id):
        return self.store.has(batch_id)

    def put(self, batch_id, tables):
        self.calls += 1
        how = self.deaths.get(self.calls)
        if how == "before":
            raise ConnectionError("gone")
        if how == "within":
            (self.store.folder / "episodes" / f"{batch_id}.parquet").write_bytes(b"half")
            raise ConnectionError("gone in the middle")
        self.store.put(batch_id, tables)
        if how == "after":
            raise ConnectionError("taken, but the answer was lost")


def totals(store: Warehouse) -> tuple[int, int, float]:
    found = store.query("SELECT count(*) AS n, count(DISTINCT batch) AS b, sum(reward) AS r FROM episodes")
    return int(found["n"][0]), int(found["b"][0]), float(found["r"][0])


def test_written_batches_can_be_queried(batches, tmp_path):
    store = Warehouse(tmp_path)
    for number, batch in enumerate(batches):
        store.write(f"batch-{number}", batch)
    everything = [e for batch in batches for e in batch]
    count, names, reward = totals(store)
    assert (count, names) == (30, 6)
    assert reward == pytest.approx(sum(e.total_reward for e in everything))
    steps = store.query("SELECT * FROM steps WHERE batch = ? ORDER BY world, step", ["batch-2"])
    np.testing.assert_array_equal(np.stack(steps["state"]), np.concatenate([e.states[:-1] for e in batches[2]]))
    np.testing.assert_array_equal(steps["reward"], np.concatenate([e.rewards for e in batches[2]]))
    by_type = store.query("SELECT world_type, avg(crisis_share) AS c FROM episodes GROUP BY ALL")
    assert (by_type["c"] > 0).all()
    assert store.verify() == 30 * 6


def test_writing_a_batch_again_changes_nothing(batches, tmp_path):
    store = Warehouse(tmp_path)
    for _ in range(3):
        store.write("one", batches[0])
    assert totals(store)[:2] == (5, 1)


@pytest.mark.parametrize("how", ["before", "within", "after"])
@pytest.mark.parametrize("attempts", [1, 3])
def test_nothing_is_lost_or_doubled_if_the_sink_fails(batches, tmp_path, how, attempts):
    sink = FailingSink(tmp_path / "sink", {2: how, 3: how})
    stream = Stream(tmp_path / "spool", sink, attempts=attempts, sleep=lambda _: None)
    for number, batch in enumerate(batches[:3]):
        stream.write(f"batch-{number}", batch)
    reopened = Stream(tmp_path / "spool", sink, attempts=attempts, sleep=lambda _: None)  # the writer died as well
    for number, batch in enumerate(batches[3:], start=3):
        reopened.write(f"batch-{number}", batch)
    reopened.close()
    assert reopened.pending() == []
    count, names, reward = totals(sink.store)
    assert (count, names) == (30, 6)
    assert reward == pytest.approx(sum(e.total_reward for batch in batches for e in batch))
    assert sink.store.verify() == 180


def test_batches_for_a_sink_that_keeps_failing_are_kept_and_close_raises(batches, tmp_path):
    sink = FailingSink(tmp_path / "sink", dict.fromkeys(range(1, 100), "before"))
    pauses = []
    stream = Stream(tmp_path / "spool", sink, attempts=3, pause=0.5, sleep=pauses.append)
    stream.write("batch-0", batches[0])
    assert pauses == [0.5, 1.0]
    with pytest.raises(
        RunError, match=r"1 batches from batch-0 on are not in the sink yet: batch-0: ConnectionError: gone"
    ):
        stream.close()
    assert stream.pending() == ["batch-0"]


def put_all(store: Warehouse, tables) -> None:
    for name, own in tables.items():
        if not store.has(name):
            store.put(name, own)


def test_a_writer_killed_at_any_moment_leaves_whole_batches(batches, tmp_path, monkeypatch):
    """Whichever write it is killed at, a second writer can go on, and then each batch is stored once."""
    tables = {name: batch_tables(name, batches[number]) for number, name in enumerate(("one", "two"))}
    real = warehouse.write_atomically

    def dying(at: int, after: bool):
        calls = []

        def write(path, chunks, **where):
            calls.append(path)
            if len(calls) == at and not after:
                path.with_name(f".{path.name}.0.unfinished").write_bytes(b"half")
                raise KeyboardInterrupt
            real(path, chunks, **where)
            if len(calls) == at:
                raise KeyboardInterrupt

        return write

    for moment in range(1, 7):
        for after in (False, True):
            folder = tmp_path / f"{moment}-{after}"
            store = Warehouse(folder)
            monkeypatch.setattr(warehouse, "write_atomically", dying(moment, after))
            with pytest.raises(KeyboardInterrupt):
                put_all(store, tables)
            monkeypatch.setattr(warehouse, "write_atomically", real)
            second = Warehouse(folder)
            assert len(second.batches()) == (moment - (not after)) // 3
            put_all(second, tables)
            assert totals(second)[:2] == (10, 2)
            assert second.verify() == 60
            assert not list(folder.rglob("*.unfinished"))


def test_unfinished_batches_are_ignored_and_damaged_ones_fail_verification(batches, tmp_path):
    store = Warehouse(tmp_path)
    store.write("good", batches[0])
    (tmp_path / "episodes" / "half.parquet").write_bytes(b"half")
    assert totals(store)[:2] == (5, 1)
    path = tmp_path / "steps" / "good.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptCheckpoint, match="steps of batch good are not the bytes that were written"):
        store.verify()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["fifo", "link"])
def test_links_and_fifos_in_a_warehouse_are_refused_before_they_are_read(batches, tmp_path, make):
    for place in ("batches/good.json", "steps/good.parquet"):
        store = Warehouse(tmp_path / place[:5])
        store.write("good", batches[0])
        (store.folder / place).unlink()
        make(store.folder / place)
        with pytest.raises(CorruptCheckpoint, match="it is a"):
            store.verify()
        if place.endswith(".parquet"):
            with pytest.raises(CorruptCheckpoint, match="it is a"):
                store.tables("good")
            with pytest.raises(ConfigError, match="is a folder, a FIFO, a socket or a device"):
                store.query("SELECT count(*) FROM steps")


def test_bad_requests_are_refused(batches, tmp_path):
    store = Warehouse(tmp_path)
    with pytest.raises(ContractError, match="is empty: write a batch first"):
        store.query("SELECT 1")
    for name in ("../evil", "a b", ""):
        with pytest.raises(ConfigError, match="give a name of letters"):
            store.write(name, batches[0])
    with pytest.raises(ContractError, match="'none' holds no experience"):
        batch_tables("none", [])
    store.write("one", batches[0])
    with pytest.raises(ConfigError, match="the query failed"):
        store.query("SELECT nothing FROM nowhere")
    with pytest.raises(ConfigError, match="0 attempts"):
        Stream(tmp_path / "spool", store, attempts=0)
    assert json.loads((tmp_path / "batches" / "one.json").read_text())["episodes"]["rows"] == 5


def test_a_query_can_read_only_the_files_of_the_batches(batches, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("secret.csv").write_text("a\n1\n")
    store = Warehouse("store")
    store.write("one", batches[0])
    assert totals(store)[:2] == (5, 1)
    for sql in (
        "SELECT * FROM read_csv('secret.csv')",
        "SELECT * FROM 'secret.csv'",
        "COPY episodes TO 'out.csv'",
        "ATTACH 'out.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
    ):
        with pytest.raises(ConfigError, match=r"the query failed: .*(disabled|locked)"):
            store.query(sql)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.csv", "store"]


@pytest.mark.parametrize("name", ["x']); COPY (SELECT 1) TO 'out.csv'; --", "*", "o?e", "[o]ne", "one\n", 'x"'])
def test_a_batch_file_with_an_invalid_name_is_refused(batches, tmp_path, name):
    store = Warehouse(tmp_path)
    store.write("one", batches[0])
    for folder, suffix in (("episodes", "parquet"), ("steps", "parquet"), ("batches", "json")):
        whole = (tmp_path / folder / f"one.{suffix}").read_bytes()
        (tmp_path / folder / f"{name}.{suffix}").write_bytes(whole)
    with pytest.raises(ConfigError, match="give a name of letters"):
        store.query("SELECT * FROM episodes")
    with pytest.raises(ConfigError, match="give a name of letters"):
        store.write(name, batches[0])


def test_figures_of_importance_sampling_are_logged_beside_the_batches(tmp_path):
    store = Warehouse(tmp_path)
    log = SamplingLog(store, "run-1")
    for number in (1, 2):
        metrics = {"crisis_parent_ratio_in_batch": np.array([0.5, 0.4]), "loss": np.zeros(2)}
        log.on_round(SimpleNamespace(round=number, metrics=metrics))
    log.on_end({})
    found = store.query(
        "SELECT run, count(*) AS n, avg(crisis_parent_ratio_in_batch) AS share FROM sampling GROUP BY 1"
    )
    assert (found["run"][0], found["n"][0]) == ("run-1", 4)
    assert found["share"][0] == pytest.approx(0.45)
    again = SamplingLog(store, "run-1")  # resumed after round 1
    for number in (2, 3):
        again.on_round(SimpleNamespace(round=number, metrics={"crisis_parent_ratio_in_batch": np.array([0.1, 0.1])}))
    again.on_end({})
    found = store.query("SELECT * FROM sampling ORDER BY round, agent")
    assert found["round"].tolist() == [1, 1, 2, 2, 3, 3]
    assert found["crisis_parent_ratio_in_batch"].tolist() == [0.5, 0.4, 0.1, 0.1, 0.1, 0.1]
