"""The rules of `examples/stag_hunt.py`, on hand-made boards."""

import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games import play, random_player

NONE = {"stags": 0, "hares": 0}


@pytest.fixture(scope="module")
def module(boards):
    return boards.load("stag_hunt")


@pytest.fixture(scope="module")
def stage(boards, module):
    return lambda text, **world: boards.staged(module.StagHunt, text, **NONE | world)


def test_a_hare_can_be_had_alone(boards, stage):
    game = stage("##### #0h.# #####")
    assert boards.act(game, "right") == [1.0]
    assert game.grid.text().split()[1] == "#.a.#"


def test_two_who_stand_beside_a_stag_catch_it(boards, stage):
    game = stage("###### #0.s1# ######")
    assert boards.act(game, "right", "stay") == [5.0, 5.0]
    assert game.grid.text().split()[1] == "#.a.a#"


def test_one_alone_does_not(boards, stage):
    game = stage("###### #0.s.# ######")
    assert boards.act(game, "right") == [0.0]
    assert boards.act(game, "right") == [0.0]
    assert game.grid.text().split()[1] == "#.as.#"


def test_corners_do_not_count(boards, stage):
    game = stage("##### #0..# #.s1# #####")
    assert boards.act(game, "stay", "stay") == [0.0, 0.0]


def test_three_earn_as_much_each(boards, stage):
    game = stage("##### #0s1# #.2.# #####")
    assert boards.act(game, "stay", "stay", "stay") == [5.0, 5.0, 5.0]


def test_who_is_elsewhere_earns_nothing(boards, stage):
    game = stage("####### #0s1.2# #######")
    assert boards.act(game, "stay", "stay", "stay") == [5.0, 5.0, 0.0]


def test_as_many_hunters_as_the_rules_say(boards, stage):
    assert boards.act(stage("##### #0s1# #####", hunters=3), "stay", "stay") == [0.0, 0.0]
    assert boards.act(stage("##### #0s.# #####", hunters=1), "stay") == [5.0]


def test_what_is_taken_appears_anew(boards, stage):
    game = stage("####### #0s1..# #.h...# #######", stags=1, hares=1)
    assert boards.act(game, "stay", "stay") == [5.0, 5.0]
    assert game.grid.text().count("s") == game.grid.text().count("h") == 1


def test_a_fresh_field_has_its_animals(boards, module):
    game = boards.game(module.StagHunt, worlds=3)
    for world in range(3):
        assert game.grid.text(world).count("s") == 2
        assert game.grid.text(world).count("h") == 4


def test_sensible_players_trust_and_beat_random_ones(boards, module):
    sensible, chance = (
        play(boards.game(module.StagHunt, worlds=4), policy).returns.mean()
        for policy in (module.sensible, random_player)
    )
    assert sensible > 5 * chance


def test_a_wrong_world_section_is_refused(boards, module):
    with pytest.raises(ConfigError, match=r"world\.hunters is 0: give a whole number of at least 1"):
        boards.game(module.StagHunt, hunters=0)
