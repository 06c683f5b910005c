"""The commands of `parallel-agents market`, each with one JSON object on stdout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from parallel_agents.cli import main, market_commands
from parallel_agents.market import compare as study
from parallel_agents.market.baselines import Constant, PIDPacer, Random
from parallel_agents.market.policies import load_policy
from parallel_agents.market.warehouse import Warehouse
from parallel_agents.tracking.run_view import RunView


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
    made = run_market("sample", "--out", str(tmp_path / "export"), "--users", "800", "--days", "28", "--seed", "1")
    assert made["events"] > 800
    out = tmp_path / "none" / "yet" / "patterns.json"
    result = run_market("discover", str(tmp_path / "export"), "--out", str(out))
    assert result["estimates"] > 100
    assert sum(s["share"] for s in result["segments"].values()) == pytest.approx(1.0, abs=0.05)
    assert out.is_file()


def test_a_column_map_is_written_into_a_new_folder_but_never_over_another(tmp_path, capsys):
    export, path = tmp_path / "hits.csv", tmp_path / "none" / "map.toml"
    export.write_text("user_id,time,event\na,2024-01-01 10:00,page_view\n")
    words = ["profile", str(export), "--write-columns", str(path)]
    assert main(["market", *words, "--json"]) == 0
    path.write_text("# edited\n")
    export.unlink()  # refused before the export is read
    capsys.readouterr()
    assert main(["market", *words, "--json"]) == 2
    assert "map.toml exists already" in json.loads(capsys.readouterr().out)["message"]
    assert path.read_text() == "# edited\n"


def test_pictures_are_named_in_the_text(patterns_file, tmp_path, capsys):
    atlas, pictures = tmp_path / "atlas.png", tmp_path / "pictures"
    words = ["--worlds", "2", "--quiet", "--plot"]
    assert main(["market", "worlds", patterns_file, *words, str(atlas)]) == 0
    assert capsys.readouterr().out.endswith(f"drawn in {atlas}\n")
    play = ["--episodes", "2", "--steps", "8", "--auctions", "100"]
    assert main(["market", "simulate", patterns_file, *play, *words, str(pictures)]) == 0
    assert capsys.readouterr().out.endswith(f"drawn in {pictures}\n")


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


@pytest.mark.usefixtures("short_search")
def test_train_evaluate_and_export(run_market, patterns_file, tmp_path, capsys, monkeypatch):
    """Someone trains a bidder, compares it with the baselines, exports it, and cannot overwrite it by accident."""
    fit = study.study_baselines  # fitted in an episode of 2 worlds instead of 3 of 60, which takes half a minute
    asked = {}

    def fit_little(patterns, worlds, **options):
        asked.update(options)
        return fit(patterns, 2, epochs=(0,), **options)

    monkeypatch.setattr(market_commands, "study_baselines", fit_little)
    run = str(tmp_path / "run")
    words = ["train", patterns_file, "--out", run, "--worlds", "4", "--epochs", "2", "--episodes", "0"]
    words += ["--objective", "profit"]
    assert run_market(*words)["updates"] > 0
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "run").rglob("*"))
    assert main(["market", *words, "--json", "--quiet"]) == 2
    assert "run" in json.loads(capsys.readouterr().out)["message"]
    assert before == sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "run").rglob("*"))
    evaluate = ["evaluate", run, "--episodes", "4", "--budget", "50", "--plot", str(tmp_path / "day.png")]
    assert main(["market", *evaluate, "--quiet"]) == 0
    assert capsys.readouterr().out.endswith(f"drawn in {tmp_path / 'day.png'}\n")
    result = run_market(*evaluate)
    assert set(result["results"]) == {"trained", "random", "best constant", "pid pacer", "oracle"}
    assert asked["by"] == "profit"  # as the bidder was trained
    mean, low, high = result["results"]["trained"]["score"]
    assert low <= mean <= high
    assert (tmp_path / "day.png").is_file()
    view = RunView(Path(run))
    view.refresh()
    shown = {(section["title"], panel["title"]): panel for section in view.sections() for panel in section["panels"]}
    view.close()
    assert all(point["value"] is not None for point in shown["Worlds of the training", "4 worlds"]["points"])
    assert [row[0] for row in shown["Unseen worlds", "Bidders"]["rows"]] == list(result["results"])
    lines = shown["Unseen worlds", "Training beside the bidders in unseen worlds"]["lines"]
    assert [one["name"] for one in lines] == ["mean", *result["results"]]
    main(["market", "export", run, "--out", str(tmp_path / "policy"), "--json"])
    files = json.loads(capsys.readouterr().out)
    policy, description = load_policy(Path(files["module"])), json.loads(Path(files["description"]).read_text())
    alphas, scores = policy(torch.zeros(3, len(description["inputs"])))
    assert alphas.shape == (3, len(description["campaigns"]))
    assert scores.shape == (3, len(description["creatives"]))
    assert bool((alphas > 0).all())


def test_train_with_more_crisis_parents_in_every_batch(run_market, patterns_file, tmp_path):
    words = ["train", patterns_file, "--worlds", "8", "--epochs", "3", "--episodes", "0", "--importance", "0.5"]
    for correction, weighted in (("0", False), ("1", True)):
        run = tmp_path / correction
        result = run_market(*words, "--out", str(run), "--correction", correction)
        assert result["config"]["model"]["importance"]["beta"] == float(correction)
        figures = Warehouse(run / "warehouse").query("SELECT * FROM sampling ORDER BY round")
        assert figures["crisis_parent_ratio_in_batch"][-1] == pytest.approx(0.5, abs=0.05)
        assert weighted == (figures["effective_sample_share"][-1] < 0.99)


def test_compare_strategies(run_market, patterns_file, tmp_path):
    words = ["compare", patterns_file, "--what", "strategies", "--worlds", "20", "--epochs", "1"]
    result = run_market(*words, "--plot", str(tmp_path / "robust.png"))
    assert len(result["strategies"]) == 28
    assert 0.5 < result["robustness_threshold"] < 1.0
    assert (tmp_path / "robust.png").is_file()


def test_strategies_in_too_few_worlds_are_not_called_robust(patterns_file, capsys):
    words = ["compare", patterns_file, "--what", "strategies", "--worlds", "4", "--epochs", "1", "--quiet"]
    assert main(["market", *words]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("no strategy is robust (none has a *): by luck alone one succeeds in 100% of 4 worlds")
    assert "--worlds" in first
    assert len(rows) == 28


@pytest.mark.usefixtures("short_search")
def test_compare_ways_to_train_beside_the_baselines(run_market, patterns_file, monkeypatch):
    cheap = {"random": Random(), "best constant": Constant(0.1), "pid pacer": PIDPacer()}
    monkeypatch.setattr(study, "study_baselines", lambda *_, **__: cheap)
    words = ["compare", patterns_file, "--worlds", "2", "--epochs", "1", "--seeds", "2", "--episodes", "3"]
    result = run_market(*words, "--held-out", "high_competition")
    figures = [one["figure"] for one in result["comparisons"]]
    assert figures[::5] == ["score, unseen worlds", "score, unseen type high_competition"]
    assert all(len(one["difference"]) == len(one["over_worlds"]) == 3 for one in result["comparisons"])
    rivals = [next(key for key in one if key not in ("figure", "many worlds")) for one in result["comparisons"][:5]]
    assert rivals == ["one world", "random", "best constant", "pid pacer", "oracle"]
    assert set(result["baselines"]) == {"random", "best constant", "pid pacer", "oracle"}
    result = run_market(*words, "--what", "importance", "--algo", "dqn", "--objective", "profit")
    figures = [one["figure"].removesuffix(", unseen worlds") for one in result["comparisons"]]
    aims = ["value from crisis parents", "value", "share of the budget that is spent", "profit over budget"]
    assert figures[::5] == aims
    reached = {one["figure"]: one["oracle"] for one in result["comparisons"] if "oracle" in one}
    assert result["baselines"]["oracle"][0] == pytest.approx(reached["profit over budget, unseen worlds"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["discover", "nowhere", "--out", "p.json"], "export nowhere does not exist"),
        (["simulate", "PATTERNS", "--alpha", "7"], "--alpha 7.0: give one of 0, 0.02"),
        (["simulate", "PATTERNS", "--episodes", "0"], "--episodes 0: give at least 1"),
        (["simulate", "PATTERNS", "--worlds", "2", "--concurrent", "0"], "max_concurrent_worlds is 0"),
        (["compare", "PATTERNS", "--seeds", "1"], "seeds 1 is too few for an interval"),
        (["compare", "PATTERNS", "--held-out", "odd"], "world type 'odd' is unknown"),
    ],
)
def test_invalid_arguments_are_refused_with_code_2(words, text, patterns_file, capsys):
    arguments = [patterns_file if word == "PATTERNS" else word for word in words]
    assert main(["market", *arguments, "--json", "--quiet"]) == 2
    assert text in json.loads(capsys.readouterr().out)["message"]


def test_the_next_command_evaluates_a_bidder(patterns_file, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["market", "train", patterns_file, "--out", str(run), "--worlds", "2", "--epochs", "1", "--episodes", "0"]
    assert main([*words, "--quiet"]) == 0
    assert f"next: parallel-agents market evaluate {run}   or: " in capsys.readouterr().out
