"""The rules of `examples/iowa.py`."""

import numpy as np
import pytest

from examples.iowa import Iowa, cards, sensible
from parallel_agents.games import random_policy
from tests.games.boards import make_game, mean_return

UP, DOWN = np.array([[0]]), np.array([[1]])


def place(game, cell):
    """Place the only agent of every world in a cell."""
    for world in range(game.n_worlds):
        if tuple(game.grid.positions[0, world]) != cell:
            game.grid.place_agent(0, world, cell)


def test_ten_cards_bring_what_the_table_says():
    assert cards().sum(axis=1) == pytest.approx([-0.25, -0.25, 0.25, 0.25])
    assert cards().max(axis=1) == pytest.approx([0.1, 0.1, 0.05, 0.05])
    assert cards().min(axis=1) == pytest.approx([-0.25, -1.15, -0.025, -0.2])


def test_the_room_has_four_decks_in_its_upper_row():
    game = make_game(Iowa)
    place(game, (3, 7))
    assert game.grid.text().split() == ["#########", "#A.B.C.D#", "#.......#", "#......a#", "#########"]


@pytest.mark.parametrize(("deck", "column"), [(0, 1), (1, 3), (2, 5), (3, 7)])
def test_entering_a_deck_draws_one_of_its_cards(deck, column):
    game = make_game(Iowa, worlds=500)
    place(game, (2, column))
    game.turn = 1
    rewards = game.apply_actions(np.repeat(UP, 500, axis=1))
    values, counts = np.unique(cards()[deck], return_counts=True)
    for value, count in zip(values, counts, strict=True):
        assert (rewards == value).mean() == pytest.approx(count / 10, abs=0.08)
    assert np.isin(rewards, values).all()


def test_standing_on_a_deck_draws_no_card_and_stepping_on_it_again_does():
    game = make_game(Iowa)
    place(game, (2, 5))
    game.turn = 1
    game.apply_actions(UP)
    assert game.apply_actions(UP).tolist() == [[0.0]]  # against the wall
    assert game.apply_actions(DOWN).tolist() == [[0.0]]
    rewards = set()
    for game.turn in range(2, 30, 2):
        rewards.add(float(game.apply_actions(UP)[0, 0]))
        game.apply_actions(DOWN)
    assert rewards <= set(cards()[2].tolist())
    assert len(rewards) > 1


def test_players_who_know_the_decks_win():
    assert mean_return(Iowa, sensible, worlds=32) > 0.8
    assert mean_return(Iowa, random_policy, worlds=32) < 0.3
