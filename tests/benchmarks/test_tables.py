"""Figures of benchmarks in the documentation are those of the stored results, written by the program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables
from benchmarks.run import store_whole


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: page.name)
def test_every_marked_block_is_what_the_program_writes(page: Path) -> None:
    text = page.read_text()
    assert text == tables.rewritten(text), f"{page.name}: run `python -m benchmarks.tables`"


def test_every_kind_of_figures_stands_on_a_page() -> None:
    marked = {name for page in tables.pages() for name in re.findall(r"<!-- figures: (.+?) -->", page.read_text())}
    assert marked == set(tables.WRITERS)


def test_a_figure_changed_by_hand_is_found_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    page.write_text("Before.\n<!-- figures: one or many -->\nten times faster\n<!-- end of figures -->\nAfter.\n")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.main(["--check"]) == 1
    assert "ten times faster" in page.read_text()
    assert tables.main([]) == 0
    assert "ten times faster" not in page.read_text()
    assert page.read_text().startswith("Before.\n<!-- figures: one or many -->\nMeasured")
    assert page.read_text().endswith("less.\n<!-- end of figures -->\nAfter.\n")
    assert tables.main(["--check"]) == 0


def test_unknown_figures_are_refused() -> None:
    with pytest.raises(SystemExit, match="no figures are called 'speed'"):
        tables.rewritten("<!-- figures: speed -->\n<!-- end of figures -->\n")


def test_a_row_says_where_it_was_measured() -> None:
    own = {
        "commit": "0123456789abcdef",
        "dirty": True,
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {"cpu": "A CPU", "cores": 2},
        "versions": {"python": "3.11.7"},
        "load_start": 0.5,
        "load_end": 1.25,
    }
    assert tables.measured([own]) == (
        "Measured at commit 0123456789 with changes on 2026-01-02: A CPU, 2 cores, load 0.5 to 1.25; python 3.11.7."
    )
    later = own | {"commit": "fedcba9876543210", "dirty": False, "date": "2026-01-05T03:04:05+00:00", "load_end": 2.0}
    assert tables.measured([own, later, later]) == (
        "Measured at commits 0123456789 with changes on 2026-01-02, fedcba9876 on 2026-01-05: A CPU, 2 cores, "
        "load 0.5 to 2; python 3.11.7."
    )


def test_our_speed_stands_beside_those_that_were_recorded_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    side = {"work": "an episode", "counts": {"auctions": 3_000_000}, "seconds": 2.0}
    row = {"name": "market: auctions, 1 thread", "ratio": 1.5, "sides": [side], "commit": "0123456789abcdef"}
    row |= {"machine": {"cpu": "A CPU"}}
    monkeypatch.setattr(tables, "rows_of", lambda name: [row] if name == "market" else [])
    text = tables.recorded()
    assert "| AuctionGym | commit d4f65b9 |" in text
    ours = "1,500,000 auctions per second | measured here, A CPU, one core |"
    assert f"| ours | commit 0123456789 | an episode | {ours}" in text
    assert "| ours |  | network defence | not measured yet | `python -m benchmarks.run workflows` |" in text


def test_a_benchmark_that_was_not_measured_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert tables.rows_table("engine") == "Not measured yet: `python -m benchmarks.run engine`."


def test_peers_are_compared_on_every_processor_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of another processor are kept when a benchmark is measured anew, and replaced by new ones of their own."""

    def record(cpu: str, ratio: float) -> dict[str, Any]:
        where = {"commit": "0123456789abcdef", "dirty": False, "date": "2026-01-02", "versions": {}}
        name = "whole loop, 8-64-64-4, batch 64, 8 agents, 1 cores: JAX / ours"
        sides = [{"backend": None}, {"backend": "inline"}]
        return {"name": name, "ratio": ratio, "sides": sides, "machine": {"cpu": cpu, "cores": 2}, **where}

    for cpu, ratio in (("A CPU", 1.25), ("B CPU", 1.5), ("A CPU", 1.75), ("B CPU", 2.0)):
        store_whole([record(cpu, ratio)], tmp_path / "rows", "kernels")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    lines = [line for line in tables.peers().splitlines() if line.startswith("| JAX")]
    assert lines == [
        "| JAX, 1 core for each side (B CPU) | 2 |",
        "| JAX, 1 core for each side (A CPU) | 1.75 |",
    ]


def test_peers_are_compared_at_other_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"commit": "0123456789abcdef", "dirty": False, "date": "2026-01-02", "versions": {}}
    machine = {"cpu": "A CPU", "cores": 2}
    rows = (
        ("52-64-64-4, batch 32, 8 agents, 2 cores: JAX", 1.25, "thread"),
        ("52-64-64-4, batch 32, 8 agents: TorchRL", 25.0, "thread"),
        ("750-250-250-4, batch 64, 8 agents: TorchRL", 7.5, "inline"),
    )
    records = [
        {
            "name": f"whole loop, {name} / ours", "ratio": ratio, "machine": machine,
            "sides": [{"backend": None}, {"backend": backend}], **where,
        }
        for name, ratio, backend in rows
    ]  # fmt: skip
    store_whole(records, tmp_path / "rows", "sizes")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert tables.sizes().splitlines()[2:] == [
        "| times as fast as | 8 agents, 52-64-64-4, batch 32 | 8 agents, 750-250-250-4, batch 64 |",
        "| --- | --: | --: |",
        "| JAX, 2 cores for each side | 1.25 |  |",
        "| TorchRL | 25† | 7.5 |",
        "",
        "†: here learning took place in a thread of its own on our side, so ours used two cores.",
    ]
