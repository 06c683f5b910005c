"""Rows in small: what their sides count is what they do."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks import importance_bench, peers, sorrel_bench, start_bench, treasure_bench
from benchmarks.measure import Effort

ROOT = Path(__file__).parents[2]


def test_the_importance_rows_count_draws_and_priority_updates_apart() -> None:
    drawn = {"draws": 256, "corrections": 256, "rows_gathered": 256}
    assert importance_bench.our_draw(2000, update=False)().counts == drawn
    assert importance_bench.our_draw(2000, update=True)().counts == drawn | {"priority_updates": 256}


def test_the_weight_of_an_installation_leaves_out_what_torch_brings() -> None:
    (row,) = start_bench._weight()
    assert {"numba", "llvmlite", "rich", "parallel_agents itself"} <= set(row.detail)
    assert not {"torch", "numpy", "sympy", "matplotlib", "parallel-agents"} & set(row.detail)
    assert row.ratio == pytest.approx(sum(row.detail.values()))
    assert row.detail["llvmlite"] > 50 > row.detail["parallel_agents itself"] > 1


def test_the_processor_time_of_a_start_is_that_of_the_interpreter() -> None:
    before = start_bench._children()
    done = start_bench._python("import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass")
    assert done.counts == {"interpreters": 1}
    assert 0.2 < start_bench._children() - before < 5.0


def test_a_plain_loop_over_agents_does_the_work_of_our_run() -> None:
    work = treasure_bench._work(2, 8)
    plain = treasure_bench._plain(work, 2, 8).do()
    ours = treasure_bench._ours("ours", work, 2, 8, treasure_bench.DEFAULT).do()
    assert plain.counts == ours.counts == {"turns": 800, "transitions": 1600, "updates": 128, "samples": 4096}
    assert ours.backend == "inline"


def test_kernels_are_a_share_of_the_run_they_are_measured_in() -> None:
    rows = list(treasure_bench._kernel_shares(2, Effort(quick=True)))
    assert [row.name.split(": ")[1].split(" and")[0] for row in rows] == ["compiled turns", "acting"]
    for row in rows:
        (side,) = row.sides
        assert side.counts == {"turns": 1200, "transitions": 2400, "updates": 192, "samples": 6144}
        assert min(row.detail.values()) > 0.0  # a method that nobody calls takes no time
        assert row.ratio == pytest.approx(sum(row.detail.values()) / side.seconds)
        assert row.ratio < 1.0


def test_a_learner_in_the_background_that_was_not_there_fails_its_row() -> None:
    row = next(iter(treasure_bench._never_slower(1, Effort(quick=True))))
    with pytest.raises(ValueError, match="learning took place in inline, not in a process"):
        treasure_bench._used(row, "process")


@pytest.mark.parametrize("name", ["sorrel", "cpprb"])
def test_without_its_peer_a_row_is_skipped_and_says_why(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither Python 3.12 nor a package index that can be reached."""
    monkeypatch.setattr(peers, "VENVS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    bench = partial(sorrel_bench._beside, "adapter", 2.0, backend="process") if name == "sorrel" else _cpprb_row
    (row,) = bench(Effort(quick=True))
    assert row.ratio is None
    assert row.good
    assert row.skipped is not None
    assert ("Python 3.12" if name == "sorrel" else "install --no-deps") in row.skipped


def _cpprb_row(effort: Effort) -> object:
    return importance_bench._beside("draws", 5.0, False, 2000, effort)


def test_an_interrupted_installation_is_not_taken_for_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "VENVS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "sorrel-3.12" / "bin").mkdir(parents=True)
    (tmp_path / "sorrel-3.12" / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(peers.Unavailable):
        peers.sorrel_python()
    (tmp_path / "sorrel-3.12" / "installed").touch()
    assert peers.sorrel_python() == tmp_path / "sorrel-3.12" / "bin" / "python"


def test_every_path_that_make_quick_leaves_out_exists() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (left_out,) = [line.split(":=")[1].split() for line in text.splitlines() if line.startswith("WHOLE_RUNS")]
    assert [name for name in left_out if not (ROOT / "tests" / name).exists()] == []
