from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.folder_lock import FolderLock
from parallel_agents.tracking import run_view
from parallel_agents.tracking.jsonl import JsonlFile, JsonlTail, sample_jsonl
from parallel_agents.tracking.metric_bins import Bins, MetricsState
from parallel_agents.tracking.plots import LIVE_PICTURE, write_picture
from parallel_agents.tracking.run_view import RunView, compare_runs, open_views
from tests.tracking.run_folders import epoch_line, make_run_folder


def panels(view: RunView, **options: Any) -> dict[str, dict[str, Any]]:
    return {panel["title"] or panel["kind"]: panel for entry in view.sections(**options) for panel in entry["panels"]}


def tiles(view: RunView) -> dict[str, str]:
    return {label: value for label, value, _ in panels(view)["tiles"]["tiles"]}


def refreshed(path: Path) -> RunView:
    view = RunView(path)
    view.refresh()
    return view


def test_the_newest_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    path = make_run_folder(tmp_path / "run", epochs=30)
    view = refreshed(path)
    last = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    shown = tiles(view)
    assert (shown["Epoch"], shown["Status"]) == ("30", "ended")
    assert float(shown["Reward"]) == pytest.approx(last["mean_reward"], rel=1e-3)
    assert float(shown["Turns/s"].replace(",", "")) == pytest.approx(last["turns_per_second"], rel=1e-3)
    reward = panels(view)["Reward per epoch"]
    assert [entry["name"] for entry in reward["lines"]] == ["a", "b", "mean"]
    assert reward["lines"][0]["values"][-1] == pytest.approx(last["rewards"][0], rel=1e-5)
    assert reward["x"] == list(range(1, 31))
    view.close()


def test_updates_of_rounds_that_end_after_the_last_epoch_are_counted(tmp_path: Path) -> None:
    path = make_run_folder(tmp_path / "run", epochs=8)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    in_epochs = max(line["updates"] for line in lines if line["kind"] == "epoch")
    for epochs, updates in ((8, in_epochs + 64), (7, in_epochs)):  # a summary of epoch 7 is older than the metrics
        (path / "summary.json").write_text(json.dumps({"epochs": epochs, "updates": in_epochs + 64}))
        view = refreshed(path)
        (note,) = [note for label, _, note in panels(view)["tiles"]["tiles"] if label == "Updates/s"]
        assert note == f"{updates:,} in all"
        view.close()


def test_an_agent_is_shown_by_itself_and_every_column_has_a_chart(tmp_path: Path) -> None:
    path = make_run_folder(
        tmp_path / "run", epochs=5, extra={"ep_rew_mean": 1.5, "anything": 7, "episode_returns": [1, 3]}
    )
    view = refreshed(path)
    shown = panels(view, agent=1)
    assert [entry["name"] for entry in shown["Reward per epoch"]["lines"]] == ["b"]
    assert shown["Mean episode return"]["lines"][0]["values"] == [1.5] * 5
    assert shown["Episode return of each agent"]["lines"][0]["values"] == [3.0] * 5
    assert shown["anything"]["lines"][0]["values"] == [7.0] * 5
    assert {"Loss", "Exploration (ε)", "Buffer fill", "Lag, in rounds", "Equality of returns"} <= set(shown)
    assert shown["Warnings and errors"]["rows"][0][2] == "worker_replaced"
    view.close()


def test_appended_lines_are_read_and_a_resume_replaces_epochs(tmp_path: Path) -> None:
    path = make_run_folder(tmp_path / "run", epochs=10)
    view = refreshed(path)
    assert not view.refresh()
    with (path / "metrics.jsonl").open("a") as file:
        file.write(
            json.dumps({"kind": "start", "first_epoch": 5, "epochs": 12, "agents": ["a", "b"], "replicas": 1}) + "\n"
        )
        file.write(epoch_line(5, [100.0, 300.0]) + "\n" + epoch_line(6, [1.0, 1.0])[:20])
    assert view.refresh()
    values = panels(view)["Reward per epoch"]["lines"][-1]["values"]
    assert len(values) == 5
    assert values[-1] == 200.0
    with (path / "metrics.jsonl").open("a") as file:
        file.write(epoch_line(6, [1.0, 1.0])[20:] + "\n")
    assert view.refresh()
    assert tiles(view)["Epoch"] == "6"
    view.close()


def test_status_follows_the_lock_of_the_folder(tmp_path: Path) -> None:
    path = make_run_folder(tmp_path / "run", epochs=2, summary=False)
    view = refreshed(path)
    assert view.status == "stopped"
    with FolderLock(path):
        assert view.refresh()
        assert view.status == "running"
    view.refresh()
    assert view.status == "stopped"
    view.close()


def test_broken_lines_are_counted_and_hostile_values_are_left_out(tmp_path: Path) -> None:
    path = make_run_folder(tmp_path / "run", epochs=3)
    lines = [
        "{broken", "[1, 2]", '"text"', "null", '{"kind": "epoch"}', '{"kind": "epoch", "epoch": "x"}',
        '{"kind": "epoch", "epoch": true}', '{"kind": "epoch", "epoch": -4, "rewards": [1, 2]}',
        '{"kind": "epoch", "epoch": 4, "rewards": [1, "x"], "metrics": 7, "turns": {"a": 1}, "lag": [1]}',
        '{"kind": "epoch", "epoch": 5, "rewards": [1, 2, 3], "metrics": {"loss": "x"}}',
        '{"kind": "epoch", "epoch": 6, "rewards": [1e999, 2], "mean_reward": 1' + "0" * 400 + "}",
        '{"kind": "start", "first_epoch": null}', '{"kind": "start", "first_epoch": 7, "agents": {"x": 1}}',
        '{"kind": ' * 3000, "\x00\x01", epoch_line(7, [5.0, 7.0]),
    ]  # fmt: skip
    with (path / "metrics.jsonl").open("a") as file:
        file.write("\n".join(lines) + "\n")
    view = refreshed(path)
    assert tiles(view)["Epoch"] == "7"
    assert panels(view)["Reward per epoch"]["lines"][-1]["values"][-1] == 6.0
    (notice,) = [notice for notice in view.notices() if "broken lines" in notice]
    assert int(notice.split()[0]) >= 8
    view.close()


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "trace.json", "log.jsonl", "now.json"])
def test_a_link_out_of_the_folder_is_not_followed(name: str, tmp_path: Path) -> None:
    path = make_run_folder(tmp_path / "run", epochs=3)
    secret = tmp_path / "secret"
    secret.write_text(epoch_line(9, [41.5, 41.5]) + "\n")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(secret)
    view = refreshed(path)
    view.sections()
    assert any(f"{name}: it is a link" in notice for notice in view.notices())
    assert "41.5" not in json.dumps(view.sections())
    view.close()


def test_a_picture_must_be_a_recorded_episode_of_the_folder(tmp_path: Path) -> None:
    path = make_run_folder(tmp_path / "run", epochs=1)
    (path / "episode_000002.gif").symlink_to("/etc/hostname")
    view = refreshed(path)
    assert view.picture("episode_000001.gif").startswith(b"GIF")
    for name in ("episode_000002.gif", "../run/episode_000001.gif", "summary.json", "episode_1.gif\n"):
        with pytest.raises(OSError, match=r"link|not the name"):
            view.picture(name)
    view.close()


def game_panel(path: Path) -> dict[str, Any]:
    view = refreshed(path)
    view.close()
    return panels(view)["The game"]


def test_the_game_now_is_shown_while_a_run_goes_on(tmp_path: Path) -> None:
    path = make_run_folder(tmp_path / "run", epochs=1)
    write_picture(path, np.zeros((4, 5, 3), np.uint8), epoch=1200)
    with FolderLock(path):
        panel = game_panel(path)
        assert (panel["now"]["label"], panel["names"]) == ("epoch 1,200", ["episode_000001.gif"])
        assert panel["now"]["data"].startswith("data:image/png;base64,iVBORw0KGgo")
        for broken in ("7", '{"epoch": "1", "png": "AA=="}', '{"epoch": 1, "png": "x\' onerror=alert(1)"}'):
            (path / LIVE_PICTURE).write_text(broken)
            assert game_panel(path)["now"] is None
    write_picture(path, np.zeros((4, 5, 3), np.uint8), epoch=3)
    assert game_panel(path)["now"] is None, "the run has ended and has recorded an episode"
    (path / "episode_000001.gif").unlink()
    assert game_panel(path)["now"]["label"] == "epoch 3"


def test_panels_that_an_application_leaves_are_shown(tmp_path: Path) -> None:
    path = make_run_folder(tmp_path / "run", epochs=1)
    good = {"kind": "table", "title": "Orders", "columns": ["order"], "rows": [["a > b"]]}
    (path / "orders.panels.json").write_text(json.dumps({"title": "Search", "panels": [good, {"kind": "script"}, 7]}))
    (path / "other.panels.json").write_text("7")
    view = refreshed(path)
    (found,) = [entry for entry in view.sections() if entry["title"] == "Search"]
    assert found["panels"] == [good]
    (path / "orders.panels.json").write_text("[" * 10_000)
    view.refresh()
    assert any("orders.panels.json: it is nested too deeply" in notice for notice in view.notices())
    view.close()


def test_folders_that_are_no_runs_are_refused_and_folders_of_runs_are_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run folder: give the folder that `train` printed"):
        open_views([tmp_path / "nothing"])
    with pytest.raises(ConfigError, match="no run to show"):
        open_views([tmp_path])
    make_run_folder(tmp_path / "one", epochs=1)
    make_run_folder(tmp_path / "two", epochs=1)
    views = open_views([tmp_path])
    assert sorted(view.name for view in views) == ["one", "two"]


def test_runs_with_equal_seeds_are_compared_in_pairs(tmp_path: Path) -> None:
    paths = [
        make_run_folder(tmp_path / name, epochs=20, replicas=3, offset=offset)
        for name, offset in (("a", 0.0), ("b", 2.0))
    ]
    views = [refreshed(path) for path in paths]
    found = {panel["title"]: panel for entry in compare_runs(views) for panel in entry["panels"]}
    assert [entry["name"] for entry in found["Reward per epoch"]["lines"]] == ["a", "b"]
    first, second = found["Interquartile mean"]["rows"]
    assert second["estimate"] - first["estimate"] == pytest.approx(2.0, abs=0.3)
    assert found["Probability of improvement"]["rows"][0]["estimate"] == 1.0
    difference = found["Difference on equal seeds"]["rows"][0]
    assert difference["low"] <= 2.0 <= difference["high"]
    for view in views:
        view.close()


def test_the_settings_of_a_sweep_are_lines_of_their_own(tmp_path: Path) -> None:
    path = make_run_folder(tmp_path / "run", epochs=20, replicas=4)
    config = {"experiment": {"seed": 3, "sweep": {"model.lr": [0.1, 0.2]}}}
    (path / "config.json").write_text(json.dumps(config))
    view = refreshed(path)
    settings = ["model.lr=0.1", "model.lr=0.2"]
    assert [entry["name"] for entry in panels(view)["Reward per epoch"]["lines"]] == settings
    found = {panel["title"]: panel for entry in compare_runs([view]) for panel in entry["panels"]}
    assert [row["name"] for row in found["Interquartile mean"]["rows"]] == settings
    assert found["Difference on equal seeds"]["rows"][0]["name"] == "model.lr=0.2 − model.lr=0.1"
    view.close()


# -- long runs ---------------------------------------------------------------------------------------------------------


def test_bins_hold_the_means_of_any_number_of_epochs() -> None:
    bins, values = Bins(capacity=64), np.random.default_rng(1).normal(size=(5000, 2))
    for first in range(0, 5000, 700):
        bins.add("x", np.arange(first, min(first + 700, 5000)) + 1, values[first : first + 700])
    epochs, means = bins.epochs(), bins.means("x")
    width = 128
    assert len(means) == -(-5000 // width) <= 64
    assert means[3] == pytest.approx(values[3 * width : 4 * width].mean(axis=0))
    assert epochs[3] == 3.5 * width + 0.5
    bins.cut(129)
    assert len(bins.means("x")) == 1
    assert bins.total("x") == pytest.approx(values[:width].sum(axis=0))


def test_chunks_of_any_size_give_the_same_bins() -> None:
    text = "".join(epoch_line(epoch, [epoch * 1.0, 2.0]) + "\n" for epoch in range(1, 1500)).encode()
    whole, pieces = MetricsState(), MetricsState()
    whole.add(text)
    lines = text.splitlines(keepends=True)
    for first in range(0, len(lines), 37):
        pieces.add(b"".join(lines[first : first + 37]))
    for name in whole.bins.names():
        assert np.allclose(whole.bins.means(name), pieces.bins.means(name), equal_nan=True)
    assert whole.last_epoch == pieces.last_epoch


def test_a_long_file_is_sampled_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "_SAMPLE_ABOVE", 100_000)
    path = make_run_folder(tmp_path / "run", epochs=2000)
    view = RunView(path)
    view.refresh()
    assert not view.complete
    assert tiles(view)["Epoch"] == "2,000", "the newest record is part of the sample"
    sampled = panels(view)["Reward per epoch"]
    view.refresh()
    assert view.complete
    exact = panels(view)["Reward per epoch"]
    assert len(exact["x"]) == 500
    assert sampled["x"][0] <= exact["x"][0] + 8
    assert not view.refresh()
    view.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_million_epochs_have_a_first_picture_within_a_second(tmp_path: Path) -> None:
    path = make_run_folder(tmp_path / "run", epochs=1)
    with (path / "metrics.jsonl").open("a") as file:
        for first in range(2, 1_000_002, 10_000):
            file.write("".join(epoch_line(epoch, [1.0, epoch / 1e6]) + "\n" for epoch in range(first, first + 10_000)))
    view = RunView(path)
    began = time.process_time()  # what others do on the machine does not count
    view.refresh(0.4)
    view.sections()
    first_picture = time.process_time() - began
    assert tiles(view)["Epoch"] == "1,000,001"
    while not view.complete:
        view.refresh(0.4)
    seconds = time.process_time() - began
    began = time.process_time()
    size = len(json.dumps(view.sections()))
    assert first_picture < 0.3
    assert seconds < 60.0
    assert time.process_time() - began < 0.2
    assert size < 300_000
    view.close()


def test_the_tail_of_a_file_follows_rotations(tmp_path: Path) -> None:
    writer = JsonlFile(tmp_path / "x.jsonl", lambda message: None, max_bytes=400, backups=50)
    tail, found = JsonlTail(tmp_path / "x.jsonl"), b""
    assert tail.read() == b""
    for number in range(200):
        writer.write(json.dumps({"n": number}))
        if number % 60 == 0:  # several rotations between two looks
            while data := tail.read():
                found += data
    while data := tail.read(50):
        found += data
    assert [json.loads(text)["n"] for text in found.splitlines()] == list(range(200))
    assert tail.restarts == 1
    writer.close()
    tail.close()


def test_another_file_in_the_place_of_the_old_one_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("1\n2\n")
    tail = JsonlTail(path)
    assert tail.read() == b"1\n2\n"
    (tmp_path / "new").write_text("3\n")
    os.replace(tmp_path / "new", path)
    assert tail.read() == b"3\n"
    assert tail.restarts == 2
    path.write_text("4\n")  # truncated and written again: shorter than what was read, or equal
    path.write_text("")
    assert tail.read() == b""
    tail.close()


def test_a_sample_covers_the_whole_file_and_its_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(20_000)))
    found = [json.loads(text)["n"] for text in sample_jsonl(path, 50)]
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] == 19_999
    assert max(np.diff(found)) < 1000
