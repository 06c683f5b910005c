"""Pictures."""

import builtins

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games.draw import agent_colours, beneath, frame, scores, write_gif


def test_walls_fill_their_cells_and_things_are_inset(boards):
    image = frame(boards.board("#g. .0."), cell=10)
    assert image.shape == (20, 30, 3)
    assert (image[:10, :10] == (100, 100, 100)).all()
    assert tuple(image[5, 15]) == (0, 0, 255)
    assert tuple(image[0, 10]) == tuple(image[5, 25]) != (0, 0, 255)


@pytest.mark.parametrize(("heading", "pixel"), [(0, (1, 8)), (1, (8, 14)), (2, (14, 8)), (3, (8, 1))])
def test_an_agent_is_a_disc_in_its_colour_notched_where_it_faces(boards, heading, pixel):
    grid = boards.board("0")
    grid.headings[:] = heading
    image = frame(grid, cell=16)
    colour = tuple(agent_colours(1)[0])
    assert tuple(image[8, 8]) == colour
    assert tuple(image[0, 0]) != colour
    sides = {side: tuple(image[side]) == colour for side in ((1, 8), (8, 14), (14, 8), (8, 1))}
    assert sides == {side: side != pixel for side in sides}


def test_agents_that_look_different_show_it_in_the_middle(boards):
    image = frame(boards.board("01", looks=("rival", "agent")), cell=16)
    assert tuple(image[8, 8]) == (50, 60, 70)
    assert tuple(image[8, 24]) == (255, 255, 255)
    assert tuple(image[4, 4]) == tuple(agent_colours(1)[0])


def test_those_who_are_frozen_are_crossed_out(boards):
    grid = boards.board("01")
    free, out = frame(grid, cell=16), frame(grid, cell=16, frozen=np.array([False, True]))
    assert np.array_equal(free[:, :16], out[:, :16])
    assert tuple(out[8, 24]) != tuple(free[8, 24]) == tuple(agent_colours(2)[1])


def test_what_was_earned_stands_beside_each_agents_colour():
    strip = scores(np.array([7.0, -1.25]), 200)
    assert strip.shape == (16, 200, 3)
    for colour in agent_colours(2):
        assert (strip == colour).all(axis=-1).any()
    lit = (strip == (230, 232, 238)).all(axis=-1)[:, 12:20]
    assert ["".join("#" if dot else "." for dot in row) for row in lit[3:13:2, :6:2]] == [
        "###",
        "..#",
        "..#",
        "..#",
        "..#",
    ]


@pytest.mark.parametrize("values", [[0.0, 0.0], [-12.34, 999.9], [1e9, -1e9], [0.05, 12345.0]])
def test_the_strip_has_one_size_whatever_was_earned(values):
    assert scores(np.array(values), 90).shape == scores(np.zeros(2), 90).shape


def test_a_strip_wider_than_its_picture_is_not_cut():
    whole = beneath(np.zeros((4, 10, 3), np.uint8), np.full((2, 30, 3), 9, np.uint8))
    assert whole.shape == (6, 30, 3)
    assert (whole[4:] == 9).all()


def test_floors_show_around_what_stands_on_them(boards):
    image = frame(boards.board("0.", floor="ss"), cell=8)
    assert tuple(image[0, 0]) == tuple(image[4, 12]) == (200, 200, 0)


def test_each_world_has_its_own_picture(boards):
    grid = boards.open_field(worlds=2)
    assert not np.array_equal(frame(grid, 0), frame(grid, 1))


def test_colours_differ_and_do_not_depend_on_how_many_agents_there_are():
    assert len(np.unique(agent_colours(64), axis=0)) == 64
    assert np.array_equal(agent_colours(64)[:5], agent_colours(5))


def test_a_gif_holds_the_frames(boards, tmp_path):
    imageio = pytest.importorskip("imageio.v3")
    grid = boards.open_field(agents=2)
    frames = []
    for action in ("up", "down", "left", "right"):
        grid.move(np.full((2, 1), boards.ACTIONS.index(action)))
        frames.append(frame(grid, cell=8))
    path = write_gif(tmp_path / "new" / "episode.gif", frames, fps=5)
    back = imageio.imread(path)
    assert back.shape == (4, *frames[0].shape)
    assert np.abs(back.astype(int) - np.stack(frames)).mean() < 4
    assert imageio.immeta(path)["duration"] == 200


def test_without_imageio_the_error_says_what_to_install(boards, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **options):
        if name.startswith("imageio"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"needs imageio, which is not installed: .* extra 'report'"):
        write_gif(tmp_path / "a.gif", [frame(boards.board("0"))])
    assert not list(tmp_path.iterdir())


def test_pictures_that_cannot_be_are_refused(boards, tmp_path):
    with pytest.raises(ConfigError, match=r"cells of 3 pixels are too small to draw: give at least 4"):
        frame(boards.board("0"), cell=3)
    with pytest.raises(ConfigError, match=r"no frames for .*: record at least one"):
        write_gif(tmp_path / "a.gif", [])
