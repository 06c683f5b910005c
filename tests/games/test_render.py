"""Pictures, the terminal, and recorded episodes."""

import base64
import io
import json
import sys
import threading
from types import SimpleNamespace

import imageio.v3 as imageio
import numpy as np
import pytest
from rich.console import Console

from parallel_agents.core.errors import ConfigError
from parallel_agents.games import (
    AGENT,
    MOVES,
    TURNING_MOVES,
    WALL,
    Beam,
    Field,
    GridEnvironment,
    Kind,
    Recorder,
    blank_map,
)
from parallel_agents.games.render import (
    LivePicture,
    agent_colour,
    draw_scores,
    draw_world,
    stack_vertically,
    terminal_view,
)
from parallel_agents.games.social_metrics import SocialRecorder
from parallel_agents.tracking import callbacks
from parallel_agents.tracking.callbacks import BaseCallback
from parallel_agents.tracking.plots import write_animation
from tests.games.boards import board, make_staged, open_field


def test_walls_fill_their_cells_and_things_are_inset():
    image = draw_world(board("#g. .0."), cell=10)
    assert image.shape == (20, 30, 3)
    assert (image[:10, :10] == (100, 100, 100)).all()
    assert tuple(image[5, 15]) == (0, 0, 255)
    assert tuple(image[0, 10]) == tuple(image[5, 25]) != (0, 0, 255)


@pytest.mark.parametrize(("heading", "pixel"), [(0, (4, 8)), (1, (8, 11)), (2, (11, 8)), (3, (8, 4))])
def test_an_agent_is_a_disc_in_its_colour_with_a_dark_triangle_where_it_faces(heading, pixel):
    grid = board("0")
    grid.headings[:] = heading
    image = draw_world(grid, cell=16)
    colour = tuple(agent_colour(0))
    assert tuple(image[8, 8]) == colour
    assert tuple(image[0, 0]) != colour
    sides = {side: tuple(image[side]) == colour for side in ((4, 8), (8, 11), (11, 8), (8, 4))}
    assert sides == {side: side != pixel for side in sides}


def test_agents_of_different_kinds_show_them_in_the_middle():
    image = draw_world(board("01", agent_kinds=("rival", "agent")), cell=16)
    assert tuple(image[8, 8]) == (50, 60, 70)
    assert tuple(image[8, 24]) == (255, 255, 255)
    assert tuple(image[4, 4]) == tuple(agent_colour(0))


def test_frozen_agents_are_crossed_out():
    grid = board("01")
    plain, crossed = draw_world(grid, cell=16), draw_world(grid, cell=16, frozen=np.array([False, True]))
    assert np.array_equal(plain[:, :16], crossed[:, :16])
    assert tuple(crossed[8, 24]) != tuple(plain[8, 24]) == tuple(agent_colour(1))


def test_the_return_of_each_agent_stands_beside_its_colour():
    strip = draw_scores(np.array([7.0, -1.25]), 240)
    assert strip.shape == (24, 240, 3)
    for colour in map(agent_colour, range(2)):
        assert (strip == colour).all(axis=-1).any()
    lit = (strip == (236, 239, 244)).all(axis=-1)[:, 24:34]
    seven = " ".join("".join("#" if dot else "." for dot in row) for row in lit[5:19:2, ::2])
    assert seven == "##### ....# ...#. ..#.. .#... .#... .#..."


@pytest.mark.parametrize("values", [[0.0, 0.0], [-12.34, 999.9], [1e9, -1e9], [0.05, 12345.0]])
def test_the_strip_of_returns_has_one_size_for_all_values(values):
    assert draw_scores(np.array(values), 90).shape == draw_scores(np.zeros(2), 90).shape


def test_a_strip_wider_than_its_picture_is_not_cut():
    image = stack_vertically(np.zeros((4, 10, 3), np.uint8), np.full((2, 30, 3), 9, np.uint8))
    assert image.shape == (6, 30, 3)
    assert (image[4:] == 9).all()


def test_what_an_agent_does_not_see_is_darkened():
    grid = board("0...g")
    whole, seen = draw_world(grid, cell=8), draw_world(grid, cell=8, seen=(0, 2))
    assert np.array_equal(whole[:, :24], seen[:, :24])
    assert tuple(seen[4, 36]) == tuple(whole[4, 36] // 3)


def test_floors_show_around_what_stands_on_them():
    image = draw_world(board("0.", floor="ss"), cell=8)
    assert tuple(image[0, 0]) == tuple(image[4, 12]) == (200, 200, 0)


def test_each_world_has_its_own_picture():
    grid = open_field(worlds=2)
    assert not np.array_equal(draw_world(grid, 0), draw_world(grid, 1))


def test_colours_differ_and_do_not_depend_on_how_many_agents_there_are():
    assert len({tuple(agent_colour(n)) for n in range(64)}) == 64


def test_a_gif_holds_the_frames(tmp_path):
    imageio = pytest.importorskip("imageio.v3")
    grid = open_field(agents=2)
    frames = []
    for action in ("up", "down", "left", "right"):
        grid.move(np.full((2, 1), MOVES.index(action)))
        frames.append(draw_world(grid, cell=8))
    frames[2][0, 0] = (1, 2, 3)  # a colour of this frame alone
    path = write_animation(tmp_path / "new" / "episode.gif", frames, fps=5)
    back = imageio.imread(path)
    assert back.shape == (4, *frames[0].shape)
    assert np.array_equal(back, np.stack(frames)), "few colours are kept as they are"
    assert imageio.immeta(path)["duration"] == 200


def test_an_mp4_holds_the_frames(tmp_path):
    pytest.importorskip("imageio_ffmpeg", reason="MP4 needs the extra 'video'")
    path = write_animation(tmp_path / "episode.mp4", [draw_world(board("0.g"), cell=15)] * 5, fps=5)
    assert path.read_bytes()[4:8] == b"ftyp"


def test_without_imageio_the_error_says_what_to_install_before_a_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio", None)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r"a.gif needs imageio, which is not installed: .* extra 'report'"):
        write_animation(tmp_path / "a.gif", [draw_world(board("0"))])
    with pytest.raises(ConfigError, match=r"a.mp4 needs imageio-ffmpeg, which is not installed: .* extra 'video'"):
        write_animation(tmp_path / "a.mp4", [draw_world(board("0"))])
    assert not list(tmp_path.iterdir())
    game = make_empty()
    with pytest.raises(ConfigError, match=r"needs imageio"):
        Recorder(game, tmp_path, every=1)
    assert game.recorder is None


def test_wrong_pictures_and_periods_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cells of 3 pixels are too small to draw: give at least 4"):
        draw_world(board("0"), cell=3)
    with pytest.raises(ConfigError, match=r"no frames for .*: record at least one"):
        write_animation(tmp_path / "a.gif", [])
    with pytest.raises(ConfigError, match=r"a.avi: give a file name that ends in .gif or .mp4"):
        write_animation(tmp_path / "a.avi", [draw_world(board("0"))])
    with pytest.raises(ConfigError, match=r"recording every 0 epochs: give a whole number of at least 1"):
        Recorder(make_empty(), tmp_path, every=0)


def test_the_game_as_it_is_now_is_kept_in_the_run_folder(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    game, seen = make_empty(), []

    class Look(BaseCallback):
        def on_epoch(self, stats):
            content = json.loads((tmp_path / "now.json").read_text())
            picture = imageio.imread(base64.b64decode(content["png"]))
            seen.append((content["epoch"], bool(np.array_equal(picture, game.render()))))
            now[0] += 0.6

    with_picture = game.run_experiment(4, callbacks=[LivePicture(game, tmp_path), Look()])
    assert [epoch for epoch, _ in seen] == [1, 1, 3, 3], "at most once a second"
    assert [seen[0][1], seen[2][1]] == [True, True], "it is the world at the end of that epoch"
    assert with_picture["digest"] == make_empty().run_experiment(4)["digest"]


class Duel(GridEnvironment):
    """Agents zap with a ray that freezes."""

    def build(self):
        kinds = [WALL, Kind("apple", "o", (10, 200, 30)), AGENT, Kind("ray", "*", (255, 210, 90))]
        field = Field(kinds, "######\n#....#\n#...o#\n######", blank_map(4, 6), layer=0)
        grid = self.make_grid(field, actions=TURNING_MOVES, extra_actions=("zap",))
        self.ray = Beam(grid, "ray", length=3, hits_agents=True)
        return grid

    def settle(self):
        self.ray.clear()
        self.freeze(self.ray.fire(self.chose("zap")).received > 0, 5)


def terminal_text(game):
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="truecolor", width=80).print(terminal_view(game))
    return out.getvalue()


def test_the_terminal_shows_agents_beams_frozen_agents_and_returns():
    game = make_staged(Duel, "###### #..10# #...o# ######")
    game.grid.headings[:] = [[3], [0]]  # the first faces left, where the second stands
    before = terminal_text(game)
    assert "Duel, turn 1" in before
    assert before.count("◀") == before.count("▲") == 1
    assert "48;2;10;200;30" in before, "the apple"
    assert "48;2;255;210;90" not in before
    game.apply_actions(np.array([[game.grid.actions.index("zap")], [game.grid.actions.index("stay")]]))
    game.add_rewards(np.array([[2.5], [0.0]], np.float32))
    after = terminal_text(game)
    assert after.count("✖") == 1, "the second is frozen"
    assert "48;2;255;210;90" in after, "the ray"
    assert "2.5" in after


class Empty(GridEnvironment):
    def build(self):
        return self.make_walled_grid([WALL, AGENT])


def make_empty(epochs=5):
    experiment = {"epochs": epochs, "max_turns": 6, "worlds": 2}
    world = {"agents": 2, "height": 5, "width": 5, "radius": 1}
    return Empty(config={"experiment": experiment, "world": world, "model": {"algorithm": "random"}})


def test_every_nth_epoch_and_the_last_one_leave_a_gif(tmp_path):
    imageio = pytest.importorskip("imageio.v3")
    game = make_empty()
    recorder = Recorder(game, tmp_path / "pictures", every=2, world=1, cell=6)
    game.run_experiment(callbacks=[recorder])
    assert [path.name for path in recorder.written] == [f"episode_00000{epoch}.gif" for epoch in (2, 4, 5)]
    assert sorted((tmp_path / "pictures").iterdir()) == recorder.written
    for path in recorder.written:  # equal neighbours are written as one frame
        assert imageio.imread(path).shape[1:3] == (30 + 2 * 24, 100), "with two lines of returns below"


def test_the_run_goes_on_while_an_episode_is_written(tmp_path, monkeypatch):
    pytest.importorskip("imageio.v3")
    played = threading.Event()

    def write(path, frames, fps):
        assert played.wait(10.0)
        return path

    class AfterTheThird(BaseCallback):
        def on_epoch(self, stats):
            if stats.epoch == 3:
                played.set()

    monkeypatch.setattr("parallel_agents.games.render.write_animation", write)
    game = make_empty()
    recorder = Recorder(game, tmp_path, every=2)
    game.run_experiment(callbacks=[recorder, AfterTheThird()])
    assert [path.name for path in recorder.written] == [f"episode_00000{epoch}.gif" for epoch in (2, 4, 5)]


def test_an_episode_that_cannot_be_written_is_reported_and_the_run_goes_on(tmp_path, monkeypatch, captured_logs):
    pytest.importorskip("imageio.v3")

    def write(path, frames, fps):
        raise OSError("no space is left")

    monkeypatch.setattr("parallel_agents.games.render.write_animation", write)
    game = make_empty()
    assert game.run_experiment(callbacks=[Recorder(game, tmp_path, every=5)])["epochs"] == 5
    (dropped,) = [record for record in captured_logs if record["event"] == "callback_dropped"]
    assert (dropped["callback"], dropped["error"]) == ("Recorder", "OSError: no space is left")


def test_a_gif_shows_the_recorded_world(tmp_path, monkeypatch):
    pytest.importorskip("imageio.v3")
    written = []
    monkeypatch.setattr(
        "parallel_agents.games.render.write_animation", lambda path, frames, fps: written.append(list(frames))
    )
    game = make_empty(epochs=1)
    game.run_experiment(callbacks=[Recorder(game, tmp_path, every=1, world=1, cell=6)])
    (frames,) = written
    assert len(frames) == 6 + 1
    assert np.array_equal(frames[-1][:30, :30], draw_world(game.grid, 1, 6))
    assert len(np.unique(np.stack(frames), axis=0)) > 1


def test_recording_does_not_change_a_run(tmp_path):
    pytest.importorskip("imageio.v3")
    plain, recorded = make_empty(), make_empty()
    recorded_summary = recorded.run_experiment(callbacks=[Recorder(recorded, tmp_path, every=1)])
    assert plain.run_experiment()["mean_reward"] == recorded_summary["mean_reward"]
    assert plain.grid.padded.tobytes() == recorded.grid.padded.tobytes()


def test_a_game_makes_its_recorder_unless_the_period_is_0(tmp_path):
    pytest.importorskip("imageio.v3")
    assert [type(one) for one in make_empty().recorders(tmp_path)] == [Recorder, LivePicture, SocialRecorder]
    silent = Empty(config={"experiment": {"record_period": 0}, "model": {"algorithm": "random"}})
    assert silent.recorders(tmp_path) == ()


def test_without_imageio_there_is_a_message_and_no_recorder(tmp_path, monkeypatch, captured_logs):
    monkeypatch.setattr("parallel_agents.games.environment.find_spec", lambda name: None)
    assert [type(one) for one in make_empty().recorders(tmp_path)] == [LivePicture, SocialRecorder]
    assert [(log["event"], log["log_level"], log["reason"]) for log in captured_logs] == [
        ("no_recording", "info", "imageio is not installed")
    ]
