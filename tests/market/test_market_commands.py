"""The commands of `parallel-agents market`, each with one JSON object on stdout."""

from __future__ import annotations

import json

import pytest

from parallel_agents.cli import main


@pytest.fixture(scope="module")
def patterns_file(patterns, tmp_path_factory):
    path = tmp_path_factory.mktemp("market") / "patterns.json"
    patterns.save(path)
    return str(path)


@pytest.fixture
def run_market(capsys):
    def run(*words: str) -> dict:
        code = main(["market", *words, "--json", "--quiet"])
        out = capsys.readouterr().out
        assert code == 0, out
        return json.loads(out)

    return run


def test_sample_and_discover(run_market, tmp_path):
    made = run_market("sample", "--out", str(tmp_path / "export"), "--users", "1500", "--days", "56", "--seed", "1")
    assert made["events"] > 1500
    result = run_market("discover", str(tmp_path / "export"), "--out", str(tmp_path / "patterns.json"))
    assert result["estimates"] > 100
    assert sum(s["share"] for s in result["segments"].values()) == pytest.approx(1.0, abs=0.05)
    assert (tmp_path / "patterns.json").is_file()


def test_worlds(run_market, patterns_file, tmp_path):
    result = run_market("worlds", patterns_file, "--worlds", "12", "--seed", "3", "--plot", str(tmp_path / "atlas.png"))
    assert len(result["worlds"]) == 12
    assert sum(result["types"].values()) == 12
    assert (tmp_path / "atlas.png").read_bytes()[:4] == b"\x89PNG"


def test_simulate(run_market, patterns_file, tmp_path):
    words = ["simulate", patterns_file, "--worlds", "10", "--episodes", "25", "--steps", "8", "--auctions", "100"]
    result = run_market(*words, "--warehouse", str(tmp_path / "store"), "--plot", str(tmp_path / "pictures"))
    assert result["episodes"] == 25
    assert result["episodes_per_second"] > 0
    assert result["most_in_flight"] == 10
    assert result["failures"] == []
    assert len(result["plots"]) == 2
    assert len(list((tmp_path / "store" / "episodes").glob("*.parquet"))) == 3
    again = run_market(*words, "--concurrent", "3", "--threads", "1")
    assert again["most_in_flight"] == 3
    for name in ("total_reward", "revenue", "cost", "crisis_revenue"):
        assert again[name] == result[name]
    network = run_market(*words[:4], "--episodes", "4", "--steps", "5", "--network")
    assert network["episodes"] == 4


def test_train_and_resume(run_market, patterns_file, tmp_path):
    words = ["train", patterns_file, "--out", str(tmp_path / "run"), "--worlds", "6", "--batch", "6", "--updates", "2"]
    first = run_market(*words, "--steps", "3")
    assert first["steps"] == 3
    assert (tmp_path / "run" / "convergence.png").is_file()
    second = run_market(*words, "--steps", "5", "--resume")
    assert second["steps"] == 5
    assert second["history"][:3] == first["history"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 5


def test_compare_strategies(run_market, patterns_file, tmp_path):
    words = ["compare", patterns_file, "--what", "strategies", "--worlds", "20", "--epochs", "1"]
    result = run_market(*words, "--plot", str(tmp_path / "robust.png"))
    assert len(result["strategies"]) == 24
    assert 0.5 < result["robustness_threshold"] < 1.0
    assert (tmp_path / "robust.png").is_file()


@pytest.mark.parametrize("what", ["time", "importance"])
def test_compare_ways_to_train(run_market, patterns_file, what):
    result = run_market(
        "compare", patterns_file, "--what", what, "--worlds", "2", "--epochs", "2", "--seeds", "2", "--episodes", "4"
    )
    assert len(result["comparisons"]) == 2
    assert all(len(one["difference"]) == 3 for one in result["comparisons"])


def test_compare_with_a_held_out_type(run_market, patterns_file):
    words = ["compare", patterns_file, "--worlds", "2", "--epochs", "1", "--seeds", "2"]
    result = run_market(*words, "--held-out", "high_competition", "--episodes", "4")
    assert [one["figure"] for one in result["comparisons"]] == ["unseen worlds", "unseen type high_competition"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["discover", "nowhere", "--out", "p.json"], "export nowhere does not exist"),
        (["simulate", "PATTERNS", "--level", "7"], "--level 7.0: give one of 0, 0.5, 1"),
        (["simulate", "PATTERNS", "--episodes", "0"], "--episodes 0: give at least 1"),
        (["compare", "PATTERNS", "--seeds", "1"], "1 seeds give no interval"),
        (["compare", "PATTERNS", "--held-out", "odd"], "--held-out 'odd'"),
    ],
)
def test_invalid_arguments_are_refused_with_code_2(words, text, patterns_file, capsys):
    arguments = [patterns_file if word == "PATTERNS" else word for word in words]
    assert main(["market", *arguments, "--json", "--quiet"]) == 2
    assert text in json.loads(capsys.readouterr().out)["message"]
