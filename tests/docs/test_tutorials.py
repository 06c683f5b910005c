"""Files that tutorials let their readers write do what the page says of them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parallel_agents import train
from parallel_agents.cli import main
from parallel_agents.env.adapters.pettingzoo import pettingzoo_environment
from parallel_agents.testing import check_environment

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Return a function that writes the file of a page into an empty folder and returns the name of its module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    modules: list[str] = []

    def write(page: str) -> str:
        ((name, text),) = re.findall(r'^```python title="(\w+)\.py"\n(.*?)^```', (DOCS / page).read_text(), re.S | re.M)
        Path(f"{name}.py").write_text(text)
        modules.append(name)
        return str(name)

    yield write
    for name in modules:
        sys.modules.pop(name, None)


def test_the_pettingzoo_environment_is_sound_and_learned(written: Callable[[str], str]) -> None:
    target = written("pettingzoo.md")
    findings = check_environment(pettingzoo_environment(target))
    assert [str(finding) for finding in findings if not finding.passed] == []
    assert len(findings) == 13
    run = train(f"pettingzoo:{target}", worlds=8, epochs=100, out="runs/meet", progress=False)
    assert run.evaluate(episodes=100).mean_return > 27.0  # "about 29 of 30"
    assert 2.0 < run.evaluate(episodes=100, exploration=1.0).mean_return < 6.0  # "3 or 4"


def test_the_defender_has_the_score_that_is_printed(
    written: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = written("defender.md")
    assert main(["workflow", "evaluate", f"{target}:Defender", "--episodes", "200", "--json", "--quiet"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert "-222.04" in (DOCS / "defender.md").read_text()
    assert round(scores["variants"]["leaderboard"]["total"], 2) == -222.04


def test_the_learner_of_the_page_on_algorithms_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    block = re.findall(r"^```python\n(.*?)^```", (DOCS / "algorithms.md").read_text(), re.S | re.M)[0]
    Path("averages.py").write_text(block.partition("\n\nrun = train")[0])

    def digest(*words: str) -> str:
        assert main([*words, "--json", "--quiet"]) == 0
        return str(json.loads(capsys.readouterr().out)["digest"])

    learner = ("train", "averages.py:Machines", "--algo", "averages.py:Averages")
    digest(*learner, "--epochs", "7", "--out", "part")
    assert digest("resume", "part", "--epochs", "20") == digest(*learner, "--epochs", "20", "--out", "whole")
