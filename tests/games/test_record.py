"""Recorded episodes."""

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games import Field, Grid, GridEnvironment, Kind, Recorder, walled
from parallel_agents.games import draw as drawing

imageio = pytest.importorskip("imageio.v3")


class Empty(GridEnvironment):
    def build(self):
        kinds = [Kind(name, name[0], (200, 90, 90), passable=False) for name in ("wall", "agent")]
        return Grid(Field(kinds, walled(5, 5, "w")), agents=2, worlds=self.n_worlds, radius=1)


def make(epochs=5):
    experiment = {"epochs": epochs, "max_turns": 6, "worlds": 2}
    return Empty(config={"experiment": experiment, "world": {"radius": 1}, "model": {"algorithm": "random"}})


def test_the_wanted_epochs_and_the_last_one_leave_a_gif_each(tmp_path):
    env = make()
    recorder = Recorder(env, tmp_path / "pictures", every=2, world=1, cell=6)
    env.run_experiment(listeners=[recorder])
    assert [path.name for path in recorder.written] == [
        "episode_000002.gif",
        "episode_000004.gif",
        "episode_000005.gif",
    ]
    assert sorted((tmp_path / "pictures").iterdir()) == recorder.written
    for path in recorder.written:
        assert imageio.imread(path).shape[1:3] == (
            30 + 2 * 16,
            64,
        )  # two lines of what was earned below; equal neighbours are written as one frame


def test_the_pictures_are_those_of_the_recorded_world(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        "parallel_agents.games.record.write_gif", lambda path, frames, fps: written.append(list(frames))
    )
    env = make(epochs=1)
    env.run_experiment(listeners=[Recorder(env, tmp_path, every=1, world=1, cell=6)])
    (frames,) = written
    assert len(frames) == 6 + 1
    assert np.array_equal(frames[-1][:30, :30], drawing.frame(env.grid, 1, 6))
    assert len(np.unique(np.stack(frames), axis=0)) > 1


def test_recording_changes_nothing(tmp_path):
    plain, recorded = make(), make()
    recorded_summary = recorded.run_experiment(listeners=[Recorder(recorded, tmp_path, every=1)])
    assert plain.run_experiment()["mean_reward"] == recorded_summary["mean_reward"]
    assert plain.grid.padded.tobytes() == recorded.grid.padded.tobytes()


def test_an_environment_brings_its_recorder(tmp_path):
    (recorder,) = make().recorders(tmp_path)
    assert isinstance(recorder, Recorder)
    silent = Empty(config={"experiment": {"record_period": 0}, "world": {"radius": 1}})
    assert silent.recorders(tmp_path) == ()


def test_without_imageio_there_is_a_warning_and_no_recorder(tmp_path, monkeypatch, captured_logs):
    monkeypatch.setattr("parallel_agents.games.environment.find_spec", lambda name: None)
    assert make().recorders(tmp_path) == ()
    assert [(log["event"], log["log_level"], log["reason"]) for log in captured_logs] == [
        ("no_recording", "warning", "imageio is not installed")
    ]


def test_a_period_of_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"recording every 0 epochs: give a whole number of at least 1"):
        Recorder(make(), tmp_path, every=0)


def test_without_imageio_it_fails_before_the_run(tmp_path, monkeypatch):
    def absent():
        raise ConfigError("writing a GIF needs imageio")

    monkeypatch.setattr("parallel_agents.games.record.load_imageio", absent)
    env = make()
    with pytest.raises(ConfigError, match="needs imageio"):
        Recorder(env, tmp_path, every=1)
    assert env.recorder is None
