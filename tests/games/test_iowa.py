"""The rules of `examples/iowa.py`."""

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games import play, random_player

UP, DOWN = 0, 1


@pytest.fixture(scope="module")
def module(boards):
    return boards.load("iowa")


def stand(game, cell):
    """Put the only agent of every world there."""
    for world in range(game.n_worlds):
        if tuple(game.grid.positions[0, world]) != cell:
            game.grid.put(0, world, cell)


def test_ten_cards_bring_what_the_table_says(module):
    assert module.cards().sum(axis=1) == pytest.approx([-0.25, -0.25, 0.25, 0.25])
    assert module.cards().max(axis=1) == pytest.approx([0.1, 0.1, 0.05, 0.05])
    assert module.cards().min(axis=1) == pytest.approx([-0.25, -1.15, -0.025, -0.2])


def test_the_room(boards, module):
    game = boards.game(module.Iowa)
    stand(game, (3, 7))
    assert game.grid.text().split() == ["#########", "#A.B.C.D#", "#.......#", "#......a#", "#########"]


@pytest.mark.parametrize(("deck", "column"), [(0, 1), (1, 3), (2, 5), (3, 7)])
def test_entering_a_deck_draws_one_of_its_cards(boards, module, deck, column):
    game = boards.game(module.Iowa, worlds=500)
    stand(game, (2, column))
    game.turn = 1
    drawn = game.apply_actions(np.full((1, 500), UP))
    values, often = np.unique(module.cards()[deck], return_counts=True)
    for value, cards in zip(values, often, strict=True):
        assert (drawn == value).mean() == pytest.approx(cards / 10, abs=0.08)
    assert np.isin(drawn, values).all()


def test_standing_on_it_draws_no_more_and_stepping_on_again_does(boards, module):
    game = boards.game(module.Iowa)
    stand(game, (2, 5))
    up, down = np.array([[UP]]), np.array([[DOWN]])
    game.turn = 1
    game.apply_actions(up)
    assert game.apply_actions(up).tolist() == [[0.0]]  # against the wall
    assert game.apply_actions(down).tolist() == [[0.0]]
    drawn = []
    for game.turn in range(2, 30, 2):
        drawn.append(float(game.apply_actions(up)[0, 0]))
        game.apply_actions(down)
    assert set(drawn) <= set(module.cards()[2].tolist())
    assert len(set(drawn)) > 1


def test_who_knows_wins(boards, module):
    sensible, chance = (
        play(boards.game(module.Iowa, worlds=32), policy).returns.mean() for policy in (module.sensible, random_player)
    )
    assert sensible > 0.8
    assert chance < 0.3


def test_four_decks_need_room(boards, module):
    with pytest.raises(ConfigError, match=r"a room of 5 x 7: four decks need at least 4 x 9"):
        boards.game(module.Iowa, width=7)
