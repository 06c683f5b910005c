"""The rules of `examples/cleanup.py`."""

import numpy as np
import pytest

from examples.cleanup import Cleanup, sensible
from parallel_agents.games import play, random_policy
from tests.games.boards import LEFT, RIGHT, UP, act, make_game, make_staged, next_turn

STILL = {"apple_probability": 0.0, "waste_probability": 0.0, "dirty_at_first": 0.0}
"""Nothing appears."""
ONE_WASTE = "......... .w....... ........."
"""The river of the smallest field has two cells in its only row: half of it is waste."""


def stage(things, ground="", facing=UP, **world):
    return make_staged(Cleanup, things, ground, facing, **STILL | world)


def test_the_field_has_a_river_an_orchard_and_a_wall():
    game = make_game(Cleanup, height=4, width=9, agents=1, **STILL)
    game.grid.cells[0, 1][tuple(game.grid.positions[0, 0])] = 0
    assert game.grid.text().split() == ["#########", "#~~.....#", "#~~.....#", "#########"]
    assert sorted(set(game.orchard[:, 1].tolist())) == [6, 7]


def test_an_apple_is_worth_one():
    game = stage("######### #.....0o# #########", facing=RIGHT)
    assert act(game, "forward") == [1.0]
    assert act(game, "backward") == [0.0]


def test_the_cleaning_beam_removes_the_first_waste_of_each_column():
    things = "######### #...0...# #.......# #.......# #########"
    ground = "......... .ww...... .ww...... ......... ........."
    game = stage(things, ground, facing=LEFT)
    assert act(game, "clean") == [0.0]
    assert game.grid.cells[0, 0, :, 1:3].tolist() == [[0, 0], [3, 2], [3, 2], [0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("row", "length", "dirty"),
    [("#.#..0..#", 9, 0.5), ("#....0..#", 3, 0.5), ("#...0...#", 3, 0.0)],
    ids=["a wall stops it", "too far away", "near enough"],
)
def test_the_cleaning_beam_ends_at_its_length_and_at_walls(row, length, dirty):
    game = stage(f"######### {row} #########", ONE_WASTE, facing=LEFT, beam_length=length)
    act(game, "clean")
    assert game.dirty_share()[0] == pytest.approx(dirty)


def test_the_zapping_beam_freezes_agents_for_the_next_turns():
    game = stage("######### #.0.1...# #########", facing=RIGHT, frozen_turns=2)
    assert act(game, "zap", "forward") == [0.0, 0.0]
    able = []
    for _ in range(4):
        able.append(next_turn(game)[1])
        act(game, "stay", "turn_left")
    assert able == [False, False, True, True]
    assert game.grid.headings[1, 0] == LEFT  # it faced right, and turned left in the two turns in which it could act
    assert game.grid.positions[1, 0].tolist() == [1, 5]


def test_a_frozen_agent_fires_no_beam():
    game = stage("######### #.0.1.2.# #########", facing=RIGHT)
    act(game, "zap", "stay", "stay")
    assert next_turn(game) == [True, False, True]
    act(game, "stay", "zap", "stay")
    assert next_turn(game) == [True, False, True]


def test_beams_are_visible_for_one_turn():
    game = stage("######### #.0.....# #########", facing=RIGHT)
    act(game, "zap")
    assert game.grid.text().split()[1] == "#~azzz..#"
    act(game, "stay")
    assert "z" not in game.grid.text()


def test_beams_are_fired_after_all_have_moved():
    game = stage("######### #.0....1# #########", facing=RIGHT, beam_length=3)
    game.grid.headings[1] = LEFT
    act(game, "zap", "forward")
    assert next_turn(game) == [True, True]  # one step is not enough
    act(game, "zap", "forward")
    assert next_turn(game) == [True, False]


@pytest.mark.parametrize(("dirty", "grows"), [(0.0, True), (1.0, False)])
def test_apples_grow_only_if_the_river_is_clean(dirty, grows):
    game = make_game(Cleanup, worlds=3, **STILL | {"apple_probability": 1.0, "dirty_at_first": dirty})
    next_turn(game)
    apples = (game.grid.cells == game.grid.field.code("apple")).any(axis=(1, 2, 3))
    assert apples.tolist() == [grows] * 3
    assert game.dirty_share().tolist() == [dirty] * 3


def test_half_as_many_apples_grow_at_half_the_limit():
    counts = []
    for dirty in (0.0, 0.2):
        game = make_game(Cleanup, worlds=300, **STILL | {"apple_probability": 0.2})
        river = game.river[: round(dirty * len(game.river))]
        game.grid.cells[:, 0, river[:, 0], river[:, 1]] = game.grid.field.code("waste")
        next_turn(game)
        counts.append(int((game.grid.cells == game.grid.field.code("apple")).sum()))
    assert counts[1] / counts[0] == pytest.approx(0.5, rel=0.1)


def test_a_quarter_of_the_river_is_dirty_at_first():
    game = make_game(Cleanup, worlds=64)
    game.reset()
    assert game.dirty_share().mean() == pytest.approx(0.25, abs=0.03)


def test_waste_appears_on_the_river_only():
    game = make_game(Cleanup, worlds=2, **STILL | {"waste_probability": 1.0})
    next_turn(game)
    assert game.dirty_share().tolist() == [1.0, 1.0]
    assert (game.grid.cells == game.grid.field.code("waste")).sum() == 2 * len(game.river)


def test_walking_over_waste_leaves_it_there():
    game = stage("######### #.0.....# #########", ONE_WASTE, facing=LEFT)
    act(game, "forward")
    act(game, "backward")
    assert game.dirty_share()[0] == pytest.approx(1 / 2)


def test_sensible_players_share_the_work_and_beat_random_ones():
    scripted, chance = (play(make_game(Cleanup, worlds=4), policy).returns for policy in (sensible, random_policy))
    assert scripted.mean() > 10 * max(chance.mean(), 0.5)
    assert scripted[2:].mean() > 10 * scripted[:2].mean()  # cleaning does not pay the cleaner


def test_the_window_turns_with_the_agent():
    game = stage("######### #..o0...# #########", facing=LEFT, radius=1)
    kinds = len(game.grid.field.kinds)
    ahead = game.observe().reshape(kinds, 3, 3)[:, 0, 1]
    assert np.flatnonzero(ahead).tolist() == [game.grid.field.code("apple") - 1]
