"""The rules of `examples/coins.py`."""

import numpy as np
import pytest

from examples.coins import Coins, sensible
from parallel_agents.games import play, random_policy
from tests.games.boards import act, make_game, make_staged, mean_return


def stage(**coins):
    """Return a game with coins in the cells, by their colours."""
    game = make_staged(Coins, "##### #0..# #..1# #####", coins=max(len(coins), 1))
    for colour, cell in coins.items():
        game.grid.cells[(0, 0, *cell)] = game.grid.field.code(f"{colour} coin")
    return game


@pytest.mark.parametrize(
    ("coins", "rewards"),
    [
        ({"red": (1, 2)}, [1.0, 0.0]),
        ({"blue": (2, 2)}, [0.0, 1.0]),
        ({"blue": (1, 2)}, [1.0, -2.0]),
        ({"red": (2, 2)}, [-2.0, 1.0]),
        ({"blue": (1, 2), "red": (2, 2)}, [-1.0, -1.0]),
    ],
    ids=["red takes red", "blue takes blue", "red takes blue", "blue takes red", "each takes the other's"],
)
def test_a_coin_is_worth_one_and_costs_the_other_two_if_it_has_its_colour(coins, rewards):
    assert act(stage(**coins), "right", "left") == rewards
    game = stage(**coins)
    right, left = (np.array([game.grid.actions.index(name)]) for name in ("right", "left"))
    total = game.apply_agent(0, right) + game.apply_agent(1, left)
    assert total[:, 0].tolist() == rewards, "one agent after the other"


def test_a_new_coin_appears_at_once():
    game = stage(red=(1, 2))
    act(game, "right", "left")
    assert game.grid.text().count("1") + game.grid.text().count("2") == 1


def test_both_colours_appear_equally_often():
    game = make_game(Coins, worlds=2000)
    red, blue = ((game.grid.cells == game.grid.field.code(f"{colour} coin")).sum() for colour in ("red", "blue"))
    assert red + blue == 2000
    assert abs(red - 1000) < 100


def test_cooperation_pays_and_selfishness_does_not():
    cooperative = mean_return(Coins, sensible)
    assert cooperative > 10 * max(1.0, mean_return(Coins, random_policy))
    assert cooperative > 5 * max(1.0, mean_return(Coins, lambda game: sensible(game, selfish=True)))


def test_cooperative_players_never_take_the_others_coin():
    assert play(make_game(Coins, worlds=8), sensible).rewards.min() == 0.0
