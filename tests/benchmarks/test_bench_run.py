"""`make bench` writes every row, with where it was measured, and exits with 1 where one is not good."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import benchmarks.run
from benchmarks.measure import Row
from benchmarks.run import main, provenance, run

WHERE = {"commit": "abc", "quick": False, "partial": False}


def a_row(name: str, ratio: float | None = 2.0, **fields: Any) -> Row:
    return Row(name=name, ratio=ratio, goal=1.5, unit="times as fast", repeats=1, **fields)


def below() -> Iterator[Row]:
    yield a_row("slow", 1.0)


def raising() -> Iterator[Row]:
    yield a_row("before the error")
    raise RuntimeError("the peer has gone")


def stored(path: Path) -> dict[str, Any]:
    return {own["name"]: own for own in json.loads(path.read_text())}


def test_it_exits_1_below_a_goal_after_having_written_all_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "latest.json"
    assert run([("slow", below), ("fast", lambda: [a_row("fast")])], WHERE, target) == 1
    assert {name: own["good"] for name, own in stored(target).items()} == {"slow": False, "fast": True}
    assert "MISSED" in capsys.readouterr().out


def test_it_exits_1_where_a_bench_raises_and_keeps_the_rows_of_the_others(tmp_path: Path) -> None:
    target = tmp_path / "latest.json"
    assert run([("broken", raising), ("fast", lambda: [a_row("fast")])], WHERE, target) == 1
    found = stored(target)
    assert list(found) == ["before the error", "broken", "fast"]
    assert found["broken"]["failed"] == "RuntimeError: the peer has gone"


def test_it_exits_0_if_all_are_good_and_shows_what_was_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skipped = a_row("sorrel", None, skipped="no python3.12 on the path")
    assert run([("fast", lambda: [a_row("fast"), skipped])], WHERE, tmp_path / "latest.json") == 0
    assert "SKIPPED sorrel: no python3.12 on the path" in capsys.readouterr().out


def test_a_quick_run_judges_no_goal_but_fails_where_a_row_failed(tmp_path: Path) -> None:
    quick = WHERE | {"quick": True}
    assert run([("slow", below)], quick, tmp_path / "latest.json") == 0
    assert run([("slow", below), ("broken", raising)], quick, tmp_path / "latest.json") == 1


def test_a_run_without_rows_is_no_success(tmp_path: Path) -> None:
    assert run([], WHERE, tmp_path / "latest.json") == 1


def test_a_run_of_some_benchmarks_never_touches_the_file_of_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks.run, "load", lambda name, effort: [(name, lambda: [a_row(name)])])
    assert main([], results=tmp_path) == 0
    whole = (tmp_path / "latest.json").read_bytes()
    assert main(["engine", "--quick"], results=tmp_path) == 0
    assert (tmp_path / "latest.json").read_bytes() == whole
    partial = stored(tmp_path / "partial.json")
    assert list(partial) == ["engine"]
    assert (partial["engine"]["partial"], partial["engine"]["quick"]) == (True, True)
    assert not any(own["partial"] or own["quick"] for own in json.loads(whole))


def test_an_unknown_benchmark_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["enginee"])
    assert "no benchmark is called enginee" in capsys.readouterr().err


def test_rows_carry_commit_date_machine_load_versions_and_backend(tmp_path: Path) -> None:
    target = tmp_path / "latest.json"
    run([("fast", lambda: [a_row("fast")])], provenance() | {"quick": False, "partial": False}, target)
    own = stored(target)["fast"]
    assert len(own["commit"]) == 40
    assert isinstance(own["dirty"], bool)
    assert own["date"].endswith("+00:00")
    assert own["machine"]["cpu"]
    assert own["machine"]["cores"] >= 1
    assert set(own["versions"]) == {"python", "torch", "numpy", "numba"}
    assert own["load_start"] >= 0.0 <= own["load_end"]


def test_the_stored_results_are_of_one_whole_run_of_one_commit() -> None:
    rows = json.loads((benchmarks.run.RESULTS / "latest.json").read_text())
    assert {own["partial"] for own in rows} == {False}
    assert len({(own["commit"], own["date"]) for own in rows}) == 1
    for own in rows:
        assert own["ratio"] is None or own["sides"], f"{own['name']} does not say what was done"
        counts = [side["counts"] for side in own["sides"]]
        assert own["ratio"] is None or all(one == counts[0] for one in counts), own["name"]
        assert all(side["work"] for side in own["sides"])
        assert not own["unit"].startswith("share") or 0.0 <= own["ratio"] <= 1.0
