"""The guard finds rows that became slower, and is not misled by a machine that did."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import guard

ROOT = Path(__file__).parents[2]


def record(
    seconds: float, *, lowest: float | None = None, reference: tuple[float, float] = (0.2, 0.2), cpu: bool = False,
    **fields: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a stored row; the reference always takes 0.2 seconds of the processor."""
    side = {"seconds": seconds, "lowest": seconds if lowest is None else lowest, "processor_time": cpu}
    whole = {
        "name": "a loop", "ratio": 2.0, "sides": [{"seconds": 9.0, "lowest": 9.0}, side],
        "reference": [(own, 0.2) for own in reference], "machine": {"cpu": "A"}, "commit": "0123456789abcdef",
    }  # fmt: skip
    return whole | fields


@pytest.fixture
def baseline(tmp_path: Path) -> dict[str, guard.Cost]:
    guard.store([record(1.0)], tmp_path / "baseline.json")
    return guard.load(tmp_path / "baseline.json")


def test_a_row_that_costs_more_is_named_with_by_how_much(baseline: dict[str, guard.Cost]) -> None:
    assert list(guard.slower([record(1.05)], baseline)) == []
    (sentence,) = guard.slower([record(1.3)], baseline)
    assert sentence == "a loop: 1.30 times the cost at commit 0123456789, where noise explains 1.10"


def test_a_machine_that_is_slower_as_a_whole_changes_nothing(baseline: dict[str, guard.Cost]) -> None:
    assert list(guard.slower([record(3.0, reference=(0.6, 0.6))], baseline)) == []
    assert len(list(guard.slower([record(1.0, reference=(0.1, 0.1))], baseline))) == 1


def test_rows_of_processor_time_are_compared_with_processor_time(tmp_path: Path) -> None:
    """Beside seconds they would look slower on a quiet machine, where the reference takes fewer seconds."""
    guard.store([record(1.0, cpu=True, reference=(0.6, 0.6))], tmp_path / "baseline.json")
    baseline = guard.load(tmp_path / "baseline.json")
    assert list(guard.slower([record(1.05, cpu=True)], baseline)) == []
    assert len(list(guard.slower([record(1.3, cpu=True, reference=(0.6, 0.6))], baseline))) == 1


@pytest.mark.parametrize(
    "fields", [{"lowest": 1.0}, {"reference": (0.2, 0.26)}, {"machine": {"cpu": "B"}}, {"name": "a new row"}]
)
def test_noise_another_processor_and_new_rows_are_no_proof(
    fields: dict[str, Any], baseline: dict[str, guard.Cost]
) -> None:
    assert list(guard.slower([record(1.3, **fields)], baseline)) == []


def test_rows_without_a_time_have_no_cost_and_others_keep_theirs(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    guard.store([record(1.0)], path)
    untimed = [record(0.0, name="memory"), record(1.0, name="skipped", ratio=None, sides=[])]
    guard.store([*untimed, record(2.0, name="another loop")], path)
    assert {name: own.cost for name, own in guard.load(path).items()} == {"a loop": 5.0, "another loop": 10.0}


# -- the trend -------------------------------------------------------------------------------------------------------


def kept(path: Path, *seconds: float, cpu: str = "A", **fields: Any) -> Path:
    """Keep a run for each number of seconds; return the path of the trend."""
    for own in seconds:
        where = {"date": "2026-01-02T03:04:05+00:00", "dirty": False, "machine": {"cpu": cpu}}
        guard.keep([record(own, **where, **fields)], path)
    return path


def test_a_run_adds_its_commit_and_costs_to_the_trend(tmp_path: Path) -> None:
    path = kept(tmp_path / "trend.jsonl", 1.0, 3.0)
    runs = guard.read(path)
    assert [run["costs"] for run in runs] == [{"a loop": 5.0}, {"a loop": 15.0}]
    assert runs[0]["commit"] == "0123456789abcdef"
    assert runs[0]["cpu"] == "A"
    kept(path, 1.0, ratio=None)
    assert len(guard.read(path)) == 2


def test_a_drift_is_shown_and_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kept(tmp_path / "trend.jsonl", 1.0, 1.02, 0.98, 1.0, 1.3, 1.3, 1.3)
    assert guard.main([str(path)]) == 1
    text = capsys.readouterr().out
    assert "a loop (A): DRIFTS, 6.5, 1.30 times that of 4 earlier runs, whose spread explains 1.13" in text


@pytest.mark.parametrize(
    "seconds",
    [
        (1.0, 1.02, 0.98, 1.0, 1.3, 1.0, 1.0),  # one run was noisy
        (1.0, 1.02, 0.98, 1.0, 0.5, 0.5, 0.5),  # faster
        (1.0, 1.4, 0.8, 1.2, 1.3, 1.3, 1.3),  # no more than the runs differ anyway
        (1.0, 1.3, 1.3, 1.3),  # too few to know
    ],
)
def test_what_is_no_drift(seconds: tuple[float, ...], tmp_path: Path) -> None:
    assert guard.main([str(kept(tmp_path / "trend.jsonl", *seconds))]) == 0


def test_another_processor_has_a_trend_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kept(tmp_path / "trend.jsonl", 1.0, 1.0, 1.0, 1.0)
    assert guard.main([str(kept(path, 2.0, 2.0, 2.0, cpu="B"))]) == 0
    assert "a loop (B): 10; 3 runs, 7 are needed for a trend" in capsys.readouterr().out


def test_a_trend_that_was_not_begun_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guard.main([str(tmp_path / "trend.jsonl")]) == 0
    assert "holds no runs yet" in capsys.readouterr().out


@pytest.fixture
def nightly() -> dict[str, str]:
    """Return the commands of CI's nightly run, by the name of their step."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "trend.yml").read_text())
    return {step.get("name", step["run"]): step["run"] for step in workflow["jobs"]["trend"]["steps"] if "run" in step}


def test_ci_keeps_the_trend_from_night_to_night(nightly: dict[str, str], tmp_path: Path) -> None:
    fetch, measure, keep = nightly.values()
    assert measure == "make trend"
    assert re.search(
        r"^trend: setup\n(\t.+\n)*\t\$\(BIN\)/python -m benchmarks.guard\n", (ROOT / "Makefile").read_text(), re.M
    )

    def sh(command: str, folder: Path) -> None:
        subprocess.run(["bash", "-ec", command], cwd=folder, check=True, timeout=60, capture_output=True)

    sh("git init -q --bare origin", tmp_path)
    for night in range(1, 4):
        checkout = tmp_path / f"night {night}"
        sh(f"git clone -q origin '{checkout}'", tmp_path)
        results = checkout / "benchmarks" / "results"
        results.mkdir(parents=True)
        sh(fetch, checkout)
        runs = guard.read(kept(results / "trend.jsonl", float(night)))
        assert [run["costs"]["a loop"] for run in runs] == [5.0 * each for each in range(1, night + 1)]
        sh(keep, checkout)


def test_the_reference_takes_time() -> None:
    seconds, processor = guard.reference_seconds()
    assert 0.01 < processor < seconds + 0.01 < 60.0
