"""The rules of `examples/prisoners_dilemma.py`, on hand-made boards."""

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games import play, random_player

C, D, NOTHING = range(3)


@pytest.fixture(scope="module")
def module(boards):
    return boards.load("prisoners_dilemma")


@pytest.fixture(scope="module")
def stage(boards, module):
    def staged(text, hands=(), **world):
        game = boards.staged(module.PrisonersDilemma, text, **world)
        game.hands[: len(hands), 0] = hands
        game._show()
        return game

    return staged


def test_one_carries_the_last_token_one_took(boards, stage):
    game = stage("####### #0gr..# #######")
    assert boards.act(game, "right") == [0.0]
    assert game.hands[0, 0] == C
    assert game.grid.text().split()[1][2] == "c"
    boards.act(game, "right")
    assert game.hands[0, 0] == D
    assert game.grid.text().split()[1][3] == "d"


@pytest.mark.parametrize(
    ("hands", "paid"),
    [((C, C), [3.0, 3.0]), ((C, D), [0.0, 5.0]), ((D, C), [5.0, 0.0]), ((D, D), [1.0, 1.0])],
)
def test_who_meet_are_paid_by_their_sides(boards, stage, hands, paid):
    game = stage("####### #0.1..# #.....# #######", hands)
    assert boards.act(game, "right", "stay") == paid
    assert (game.hands == NOTHING).all()


def test_then_both_start_anew_elsewhere_with_nothing(boards, stage):
    game = stage("####### #01...# #.....# #######", (C, C))
    boards.act(game, "stay", "stay")
    text = game.grid.text()
    assert text.count("e") == 2
    assert not {tuple(place) for place in game.grid.positions[:, 0].tolist()} & {(1, 1), (1, 2)}


def test_with_nothing_in_hand_nobody_is_met(boards, stage):
    game = stage("####### #01...# #######", (C, NOTHING))
    assert boards.act(game, "stay", "stay") == [0.0, 0.0]
    assert game.hands[:, 0].tolist() == [C, NOTHING]


def test_a_third_one_has_to_wait(boards, stage):
    game = stage("####### #012..# #######", (C, C, D))
    assert boards.act(game, "stay", "stay", "stay") == [3.0, 3.0, 0.0]
    assert game.hands[:, 0].tolist() == [NOTHING, NOTHING, D]


def test_tokens_come_back(boards, stage):
    game = stage("####### #0g...# #.....# #######", tokens=1)
    game.grid.cells[0, 0, 2, 5] = game.grid.field.code("red")
    boards.act(game, "right")
    assert game.grid.text().count("g") == game.grid.text().count("r") == 1


def test_a_fresh_episode_starts_with_empty_hands(boards, module):
    game = boards.game(module.PrisonersDilemma, worlds=2, turns=40)
    play(game, module.sensible)
    game.hands[:] = D
    game.reset_worlds(np.array([False, True]))
    assert (game.hands[:, 1] == NOTHING).all()
    assert (game.hands[:, 0] == D).all()


def test_it_is_a_dilemma(boards, module):
    def returns(policy):
        return play(boards.game(module.PrisonersDilemma, worlds=8), policy).returns

    cooperators = returns(module.sensible).mean()
    defectors = returns(lambda game: module.sensible(game, D)).mean()
    mixed = returns(
        lambda game: np.where((np.arange(4) == 0)[:, None], module.sensible(game, D), module.sensible(game, C))
    ).mean(axis=1)
    assert cooperators > 1.5 * defectors > 1.5 * returns(random_player).mean()
    assert mixed[0] > cooperators > mixed[1:].max()


def test_a_wrong_world_section_is_refused(boards, module):
    with pytest.raises(ConfigError, match=r"world\.payoffs is \(1\.0,\): give four numbers, CC, CD, DC and DD"):
        boards.game(module.PrisonersDilemma, payoffs=(1.0,))
