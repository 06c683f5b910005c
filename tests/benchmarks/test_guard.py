"""The guard finds rows that became slower, and is not misled by a machine that did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import guard


def record(
    seconds: float, *, lowest: float | None = None, reference: tuple[float, float] = (0.2, 0.2), **fields: Any
) -> dict[str, Any]:
    side = {"seconds": seconds, "lowest": seconds if lowest is None else lowest}
    whole = {
        "name": "a loop", "ratio": 2.0, "sides": [{"seconds": 9.0, "lowest": 9.0}, side],
        "reference": reference, "machine": {"cpu": "A"}, "commit": "0123456789abcdef",
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


def test_the_reference_takes_time() -> None:
    assert 0.01 < guard.reference_seconds() < 60.0
