from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.tracking import report
from parallel_agents.tracking.report import write_report
from tests.tracking.run_folders import make_run_folder

HOSTILE = "</script><script>alert(1)</script>"


def test_a_report_is_one_file_whose_scripts_are_named_by_their_hashes(tmp_path: Path) -> None:
    run = make_run_folder(tmp_path / "run", epochs=10, agents=(HOSTILE, "b"))
    result = write_report([run], tmp_path / "new" / "report.html")
    text = (tmp_path / "new" / "report.html").read_text()
    assert result["bytes"] == len(text.encode()) < report.MAX_BYTES
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    assert text.count("<script") == text.count("</script>") == 3
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    data = json.loads(text.partition('type="application/json">')[2].partition("</script>")[0])
    assert data["title"] == "run"
    assert HOSTILE in json.dumps(data)
    titles = [section["title"] for section in data["sections"]]
    assert titles == ["", "Is it learning?", "Losses, exploration and buffers", "Speed", "The group", "Where the time goes",
                      "Agents", "Faults", "What was run"]  # fmt: skip
    pictures = [panel for section in data["sections"] for panel in section["panels"] if panel["kind"] == "image"]
    assert [panel["data"][:22] for panel in pictures] == ["data:image/gif;base64,"]


def test_every_plot_of_a_report_is_a_file_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = make_run_folder(tmp_path / "run", epochs=3)
    result = write_report([run], tmp_path / "report.html", plots=tmp_path / "plots")
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    charts = [stem for stem in result["plots"] if f"{stem}.png" in names]
    assert len(charts) >= 8
    assert all({f"{stem}.svg", f"{stem}.csv"} <= names for stem in charts)
    assert any("last_epochs" in stem for stem in result["plots"])


def test_a_report_of_many_runs_leaves_out_details_to_stay_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_BYTES", 130_000)
    runs = [make_run_folder(tmp_path / f"run{n}", epochs=60) for n in range(4)]
    result = write_report(runs, tmp_path / "report.html")
    assert result["bytes"] <= 130_000
    text = (tmp_path / "report.html").read_text()
    assert re.search(r"details of \d runs are left out", text)
    assert "Interquartile mean" in text


def test_a_report_needs_a_name_that_ends_in_html_and_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"report.pdf: give a file name that ends in .html"):
        write_report([tmp_path], tmp_path / "report.pdf")
    with pytest.raises(ConfigError, match="no run to show"):
        write_report([tmp_path], tmp_path / "report.html")
