"""`make bench` writes every row, with where it was measured, and exits with 1 where one is not good."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import benchmarks.run
from benchmarks import guard
from benchmarks.measure import Measured, Row
from benchmarks.run import main, provenance, run


def a_row(name: str, ratio: float | None = 2.0, **fields: Any) -> Row:
    return Row(name=name, ratio=ratio, goal=1.5, unit="times as fast", repeats=1, **fields)


def below() -> Iterator[Row]:
    yield a_row("slow", 1.0)


def raising() -> Iterator[Row]:
    yield a_row("before the error")
    raise RuntimeError("the peer has gone")


def stored(path: Path) -> dict[str, Any]:
    return {own["name"]: own for own in json.loads(path.read_text())}


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the benches of each benchmark, to be filled by a test; a benchmark without any has one good row."""
    own: dict[str, Any] = {}
    monkeypatch.setattr(benchmarks.run.guard, "reference_seconds", lambda: (0.01, 0.01))  # measured around every bench
    monkeypatch.setattr(
        benchmarks.run, "load", lambda name, effort: own.get(name, [(name, lambda: [a_row(f"fast {name}")])])
    )
    return own


def test_it_exits_1_below_a_goal_after_having_written_all_rows(
    benches: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benches["engine"] = [("slow", below), ("fast", lambda: [a_row("fast")])]
    assert main(["engine"], results=tmp_path) == 1
    found = stored(tmp_path / "rows" / "engine.json")
    assert {name: own["good"] for name, own in found.items()} == {"slow": False, "fast": True}
    assert "MISSED" in capsys.readouterr().out


def test_it_exits_1_where_a_bench_raises_and_keeps_the_rows_of_the_others(
    benches: dict[str, Any], tmp_path: Path
) -> None:
    benches["engine"] = [("broken", raising), ("fast", lambda: [a_row("fast")])]
    assert main(["engine"], results=tmp_path) == 1
    found = stored(tmp_path / "rows" / "engine.json")
    assert list(found) == ["before the error", "broken", "fast"]
    assert found["broken"]["failed"] == "RuntimeError: the peer has gone"


def test_it_exits_0_if_all_are_good_and_shows_what_was_skipped(
    benches: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skipped = a_row("sorrel", None, skipped="no python3.12 on the path")
    benches["engine"] = [("fast", lambda: [a_row("fast"), skipped])]
    assert main(["engine"], results=tmp_path) == 0
    assert "SKIPPED sorrel: no python3.12 on the path" in capsys.readouterr().out


def test_a_quick_run_judges_no_goal_but_fails_where_a_row_failed(benches: dict[str, Any], tmp_path: Path) -> None:
    benches["engine"] = [("slow", below)]
    assert main(["engine", "--quick"], results=tmp_path) == 0
    benches["engine"] = [("slow", below), ("broken", raising)]
    assert main(["engine", "--quick"], results=tmp_path) == 1


def test_a_run_without_rows_is_no_success(benches: dict[str, Any], tmp_path: Path) -> None:
    benches["engine"] = []
    assert main(["engine"], results=tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_each_benchmark_stores_its_rows_when_it_has_ended(benches: dict[str, Any], tmp_path: Path) -> None:
    def interrupted() -> Iterator[Row]:
        raise KeyboardInterrupt
        yield

    benches["market"] = [("interrupted", interrupted)]
    with pytest.raises(KeyboardInterrupt):
        main(["engine", "market"], results=tmp_path)
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["engine.json"]


@pytest.mark.parametrize("words", [["--quick"], ["--rows", "engine"]])
def test_quick_runs_and_runs_of_some_rows_never_touch_the_files_of_whole_runs(
    words: list[str], benches: dict[str, Any], tmp_path: Path
) -> None:
    assert main([], results=tmp_path) == 0
    whole = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert {path.name for path in whole} > {"latest.json", "engine.json"}
    assert main(["engine", *words], results=tmp_path) == 0
    assert {path: path.read_bytes() for path in whole} == whole
    partial = stored(tmp_path / "partial.json")
    assert list(partial) == ["fast engine"]
    assert partial["fast engine"]["partial"]
    assert not any(own["partial"] or own["quick"] for own in json.loads(whole[tmp_path / "latest.json"]))


def test_every_run_but_a_quick_one_adds_to_the_trend(benches: dict[str, Any], tmp_path: Path) -> None:
    side = Measured(name="ours", work="a loop", counts={"turns": 1}, seconds=2.0, lowest=1.9, highest=2.1)
    benches["engine"] = [("timed", lambda: [a_row("timed", sides=(side,))])]
    trend = tmp_path / "trend.jsonl"
    main(["engine", "--quick"], results=tmp_path)
    assert not trend.exists()
    for words in ([], ["--rows", "timed"], ["--accept"]):
        main(["engine", *words], results=tmp_path)
    assert [list(run["costs"]) for run in guard.read(trend)] == [["timed"]] * 3


def test_an_unknown_benchmark_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["enginee"])
    assert "no benchmark is called enginee" in capsys.readouterr().err


def test_rows_carry_commit_date_machine_load_and_versions() -> None:
    (own,) = run([("fast", lambda: [a_row("fast")])], provenance() | {"quick": False, "partial": False})
    assert len(own["commit"]) == 40
    assert isinstance(own["dirty"], bool)
    assert own["date"].endswith("+00:00")
    assert own["machine"]["cpu"]
    assert own["machine"]["cores"] >= 1
    assert set(own["versions"]) == {"python", "torch", "numpy", "numba"}
    assert own["load_start"] >= 0.0 <= own["load_end"]


STORED = sorted((benchmarks.run.RESULTS / "rows").glob("*.json"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_stored_rows_of_a_benchmark_are_of_one_whole_run_of_one_commit(path: Path) -> None:
    rows = json.loads(path.read_text())
    assert not any(own["partial"] or own["quick"] for own in rows)
    assert len({(own["commit"], own["date"]) for own in rows}) == 1
    for own in rows:
        assert own["ratio"] is None or own["sides"], f"{own['name']} does not say what was done"
        counts = [side["counts"] for side in own["sides"]]
        assert own["ratio"] is None or all(one == counts[0] for one in counts), own["name"]
        assert all(side["work"] for side in own["sides"])
        assert not own["unit"].startswith("share") or 0.0 <= own["ratio"] <= 1.0
