"""The rules of `examples/treasure_hunt.py`, and its scripted players."""

import numpy as np
import pytest

from examples.treasure_hunt import TreasureHunt, sensible
from parallel_agents.games import random_policy
from tests.games.boards import act, make_game, make_staged, mean_return, next_turn

UP, DOWN, LEFT, RIGHT = range(4)


def stage(text, **world):
    return make_staged(TreasureHunt, text, **{"spawn_probability": 0.0} | world)


def test_the_defaults_are_those_of_the_rules():
    game = make_game(TreasureHunt)
    assert (len(game.agents), game.grid.field.height, game.grid.field.width) == (8, 21, 21)
    assert game.grid.actions == ("up", "down", "left", "right")
    assert game.observe().shape == (8, 1, 5 * 5 * 5)
    assert TreasureHunt().config.experiment.max_turns == 100
    assert game.config.parallel.enabled
    edge = np.ones((21, 21), bool)
    edge[1:-1, 1:-1] = False
    assert np.array_equal(game.grid.cells[0, 0] == game.grid.field.code("wall"), edge)


@pytest.mark.parametrize(("thing", "value"), [("g", 10.0), ("f", 5.0), ("b", -10.0)])
def test_things_have_their_values_and_are_taken(thing, value):
    game = stage(f"#### #0{thing}# ####")
    assert act(game, "right") == [value]
    assert game.grid.text().split() == ["####", "#.a#", "####"]


def test_values_can_be_changed_one_by_one():
    game = stage("#### #0g# ####", values={"gem": 3.0})
    assert act(game, "right") == [3.0]
    assert game.rules.values == {"gem": 3.0, "food": 5.0, "bone": -10.0}


def test_all_three_things_appear_equally_often_at_the_given_rate():
    game = make_game(TreasureHunt, worlds=300, agents=1)
    game.grid.reset(game.turn_key())
    for _ in range(10):
        next_turn(game)
    counts = [(game.grid.cells == game.grid.field.code(name)).sum() for name in ("gem", "food", "bone")]
    assert sum(counts) == pytest.approx(300 * 360 * (1 - 0.995**10), rel=0.05)
    assert np.ptp(counts) < 0.1 * sum(counts) / 3


def test_nothing_ends_an_episode():
    game = make_game(TreasureHunt)
    game.turn = 100
    assert not np.any(game.dones())


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("####### #..g..# #.....# #..0..# #.....# #.....# #######", UP),
        ("####### #.....# #.....# #g.0..# #.....# #.....# #######", LEFT),
        ("####### #.....# #..f..# #..0.g# #.....# #.....# #######", RIGHT),
        ("####### #.....# #..b..# #.b0b.# #.....# #.....# #######", DOWN),
    ],
)
def test_sensible_players_go_for_the_best_and_around_bones(text, action):
    assert sensible(stage(text))[0, 0] == action


def test_sensible_players_step_on_a_bone_rather_than_into_an_agent():
    assert sensible(stage("####### #.....# #..b..# #.b0b.# #..1..# #.....# #######"))[0, 0] != DOWN


def test_sensible_players_are_far_better_than_random_ones():
    assert mean_return(TreasureHunt, sensible) > 4 * max(mean_return(TreasureHunt, random_policy), 5.0)
