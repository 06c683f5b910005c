"""The rules of `examples/cleanup.py`, on hand-made boards."""

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games import play, random_player

UP, RIGHT, DOWN, LEFT = range(4)
STILL = {"apple_probability": 0.0, "waste_probability": 0.0, "dirty_at_first": 0.0}


@pytest.fixture(scope="module")
def module(boards):
    return boards.load("cleanup")


@pytest.fixture(scope="module")
def stage(boards, module):
    def staged(things, ground="", facing=UP, **world):
        return boards.staged(module.Cleanup, things, ground, facing, **STILL | world)

    return staged


def test_the_field_has_a_river_an_orchard_and_a_wall(boards, module):
    game = boards.game(module.Cleanup, height=4, width=9, agents=1, **STILL)
    game.grid.cells[0, 1][tuple(game.grid.positions[0, 0])] = 0
    assert game.grid.text().split() == ["#########", "#~~.....#", "#~~.....#", "#########"]
    assert sorted(set(game.orchard[:, 1].tolist())) == [6, 7]


def test_an_apple_is_worth_one(boards, stage):
    game = stage("######### #.....0o# #########", facing=RIGHT)
    assert boards.act(game, "forward") == [1.0]
    assert boards.act(game, "backward") == [0.0]


def test_the_cleaning_beam_removes_the_first_waste_of_each_column(boards, stage):
    things = "######### #...0...# #.......# #.......# #########"
    ground = "......... .ww...... .ww...... ......... ........."
    game = stage(things, ground, facing=LEFT)
    assert boards.act(game, "clean") == [0.0]
    assert game.grid.cells[0, 0, :, 1:3].tolist() == [[0, 0], [3, 2], [3, 2], [0, 0], [0, 0]]


def test_it_does_not_reach_beyond_its_length_nor_through_walls(boards, stage):
    game = stage("######### #.#..0..# #########", "......... .w....... .........", facing=LEFT, beam_length=9)
    boards.act(game, "clean")
    assert game.dirty_share()[0] == pytest.approx(1 / 2)
    game = stage("######### #....0..# #########", "......... .w....... .........", facing=LEFT, beam_length=3)
    boards.act(game, "clean")
    assert game.dirty_share()[0] == pytest.approx(1 / 2)
    game = stage("######### #...0...# #########", "......... .w....... .........", facing=LEFT, beam_length=3)
    boards.act(game, "clean")
    assert game.dirty_share()[0] == 0.0


def test_whom_the_zapping_beam_hits_is_frozen_for_the_next_turns(boards, stage):
    game = stage("######### #.0.1...# #########", facing=RIGHT, frozen_turns=2)
    assert boards.act(game, "zap", "forward") == [0.0, 0.0]
    free = []
    for game.turn in range(2, 6):
        game.begin_turn()
        free.append(bool(game.can_act()[1, 0]))
        boards.act(game, "stay", "turn_left")
    assert free == [False, False, True, True]
    assert game.grid.headings[1, 0] == LEFT  # two turns to the left, from facing right: those in which it was free
    assert game.grid.positions[1, 0].tolist() == [1, 5]


def test_who_is_frozen_fires_no_beam(boards, stage):
    game = stage("######### #.0.1.2.# #########", facing=RIGHT)
    boards.act(game, "zap", "stay", "stay")
    game.turn = 2
    game.begin_turn()
    boards.act(game, "stay", "zap", "stay")
    assert game.can_act()[:, 0].tolist() == [True, False, True]
    game.turn = 3
    game.begin_turn()
    assert game.can_act()[:, 0].tolist() == [True, False, True]


def test_beams_are_seen_for_one_turn(boards, stage):
    game = stage("######### #.0.....# #########", facing=RIGHT)
    boards.act(game, "zap")
    assert game.grid.text().split()[1] == "#~azzz..#"
    boards.act(game, "stay")
    assert "z" not in game.grid.text()


def test_beams_are_fired_once_all_have_moved(boards, stage):
    game = stage("######### #.0....1# #########", facing=RIGHT, beam_length=3)
    game.grid.headings[1] = LEFT
    boards.act(game, "zap", "forward")
    game.turn = 2
    game.begin_turn()
    assert game.can_act().all()  # one step is not enough
    boards.act(game, "zap", "forward")
    game.turn = 3
    game.begin_turn()
    assert game.can_act()[:, 0].tolist() == [True, False]


@pytest.mark.parametrize(("dirty", "grows"), [(0.0, True), (1.0, False)])
def test_apples_grow_only_if_the_river_is_clean(boards, module, dirty, grows):
    world = STILL | {"apple_probability": 1.0, "dirty_at_first": dirty}
    game = boards.game(module.Cleanup, worlds=3, **world)
    game.turn = 1
    game.begin_turn()
    apples = (game.grid.cells == game.grid.field.code("apple")).any(axis=(1, 2, 3))
    assert apples.tolist() == [grows] * 3
    assert game.dirty_share().tolist() == [dirty] * 3


def test_half_as_many_apples_at_half_the_limit(boards, module):
    found = []
    for dirty in (0.0, 0.2):
        game = boards.game(module.Cleanup, worlds=300, **STILL | {"apple_probability": 0.2})
        river = game.river[: round(dirty * len(game.river))]
        game.grid.cells[:, 0, river[:, 0], river[:, 1]] = game.grid.field.code("waste")
        game.turn = 1
        game.begin_turn()
        found.append(int((game.grid.cells == game.grid.field.code("apple")).sum()))
    assert found[1] / found[0] == pytest.approx(0.5, rel=0.1)


def test_a_quarter_of_the_river_is_dirty_at_first(boards, module):
    cleanup = boards.game(module.Cleanup, worlds=64)
    cleanup.reset()
    assert cleanup.dirty_share().mean() == pytest.approx(0.25, abs=0.03)


def test_waste_appears_on_the_river_only(boards, module):
    game = boards.game(module.Cleanup, worlds=2, **STILL | {"waste_probability": 1.0})
    game.turn = 1
    game.begin_turn()
    assert game.dirty_share().tolist() == [1.0, 1.0]
    assert (game.grid.cells == game.grid.field.code("waste")).sum() == 2 * len(game.river)


def test_walking_over_waste_leaves_it_there(boards, stage):
    game = stage("######### #.0.....# #########", "......... .w....... .........", facing=LEFT)
    boards.act(game, "forward")
    boards.act(game, "backward")
    assert game.dirty_share()[0] == pytest.approx(1 / 2)


def test_sensible_players_share_the_work_and_beat_random_ones(boards, module):
    sensible, chance = (
        play(boards.game(module.Cleanup, worlds=4), policy).returns for policy in (module.sensible, random_player)
    )
    assert sensible.mean() > 10 * max(chance.mean(), 0.5)
    assert sensible[2:].mean() > 10 * sensible[:2].mean()  # cleaning does not pay the cleaner


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"width": 8}, r"world\.width is 8: river and orchard need at least 9"),
        ({"barren_from": 2.0}, r"world\.barren_from is 2\.0: give a number from 0 to 1"),
        ({"beam_length": 0}, r"a beam of length 0"),
    ],
)
def test_a_wrong_world_section_is_refused(boards, module, world, message):
    with pytest.raises(ConfigError, match=message):
        boards.game(module.Cleanup, **world)


def test_what_is_seen_turns_with_the_agent(boards, stage):
    game = stage("######### #..o0...# #########", facing=LEFT, radius=1)
    kinds = len(game.grid.field.kinds)
    ahead = game.observe().reshape(kinds, 3, 3)[:, 0, 1]
    assert np.flatnonzero(ahead).tolist() == [game.grid.field.code("apple") - 1]
