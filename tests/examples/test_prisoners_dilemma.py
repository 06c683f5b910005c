"""The rules of `examples/prisoners_dilemma.py`."""

import numpy as np
import pytest

from examples.prisoners_dilemma import AGENT_KINDS, COOPERATOR, DEFECTOR, NOTHING, PrisonersDilemma, sensible
from parallel_agents.games import play, random_policy
from tests.games.boards import act, make_game, make_staged, mean_return

C, D = COOPERATOR, DEFECTOR


def stage(text, hands=(), **world):
    game = make_staged(PrisonersDilemma, text, **world)
    game.hands[: len(hands), 0] = hands
    kinds = np.array([game.grid.field.code(name) for name in AGENT_KINDS])
    game.grid.set_agent_kinds(kinds[game.hands])
    return game


def test_an_agent_carries_the_last_token_it_took():
    game = stage("####### #0gr..# #######")
    for column, side, glyph in ((2, C, "c"), (3, D, "d")):
        assert act(game, "right") == [0.0]
        assert game.hands[0, 0] == side
        assert game.grid.text().split()[1][column] == glyph


@pytest.mark.parametrize(
    ("hands", "rewards"),
    [((C, C), [3.0, 3.0]), ((C, D), [0.0, 5.0]), ((D, C), [5.0, 0.0]), ((D, D), [1.0, 1.0])],
)
def test_agents_who_meet_are_paid_by_their_sides(hands, rewards):
    game = stage("####### #0.1..# #.....# #######", hands)
    assert act(game, "right", "stay") == rewards
    assert (game.hands == NOTHING).all()


def test_agents_who_met_start_again_elsewhere_with_nothing():
    game = stage("####### #01...# #.....# #######", (C, C))
    act(game, "stay", "stay")
    assert game.grid.text().count("e") == 2
    assert not {tuple(cell) for cell in game.grid.positions[:, 0].tolist()} & {(1, 1), (1, 2)}


def test_agents_with_nothing_in_hand_do_not_meet():
    game = stage("####### #01...# #######", (C, NOTHING))
    assert act(game, "stay", "stay") == [0.0, 0.0]
    assert game.hands[:, 0].tolist() == [C, NOTHING]


def test_a_third_agent_has_to_wait():
    game = stage("####### #012..# #######", (C, C, D))
    assert act(game, "stay", "stay", "stay") == [3.0, 3.0, 0.0]
    assert game.hands[:, 0].tolist() == [NOTHING, NOTHING, D]


def test_taken_tokens_appear_again():
    game = stage("####### #0g...# #.....# #######", tokens=1)
    game.grid.cells[0, 0, 2, 5] = game.grid.field.code("red")
    act(game, "right")
    assert game.grid.text().count("g") == game.grid.text().count("r") == 1


def test_a_new_episode_starts_with_empty_hands():
    game = make_game(PrisonersDilemma, worlds=2, turns=40)
    play(game, sensible)
    game.hands[:] = D
    game.reset_worlds(np.array([False, True]))
    assert (game.hands[:, 1] == NOTHING).all()
    assert (game.hands[:, 0] == D).all()


def test_defecting_pays_one_agent_and_costs_the_group():
    cooperators = mean_return(PrisonersDilemma, sensible)
    defectors = mean_return(PrisonersDilemma, lambda game: sensible(game, D))
    assert cooperators > 1.5 * defectors > 1.5 * mean_return(PrisonersDilemma, random_policy)

    def one_defects(game):
        return np.where((np.arange(4) == 0)[:, None], sensible(game, D), sensible(game, C))

    mixed = play(make_game(PrisonersDilemma, worlds=8), one_defects).returns.mean(axis=1)
    assert mixed[0] > cooperators > mixed[1:].max()
