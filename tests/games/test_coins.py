"""The rules of `examples/coins.py`, on hand-made boards."""

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games import play, random_player


@pytest.fixture(scope="module")
def module(boards):
    return boards.load("coins")


@pytest.fixture(scope="module")
def stage(boards, module):
    """Digits are players here, so coins are put by their names."""

    def staged(text, **coins):
        game = boards.staged(module.Coins, text, coins=max(len(coins), 1))
        for colour, cell in coins.items():
            game.grid.cells[(0, 0, *cell)] = game.grid.field.code(f"{colour} coin")
        return game

    return staged


def test_a_coin_of_ones_own_is_worth_one(boards, stage):
    assert boards.act(stage("##### #0..# #..1# #####", red=(1, 2)), "right", "left") == [1.0, 0.0]
    assert boards.act(stage("##### #0..# #..1# #####", blue=(2, 2)), "right", "left") == [0.0, 1.0]


def test_the_others_coin_costs_the_other_two(boards, stage):
    assert boards.act(stage("##### #0..# #..1# #####", blue=(1, 2)), "right", "down") == [1.0, -2.0]
    assert boards.act(stage("##### #0..# #..1# #####", red=(2, 2)), "up", "left") == [-2.0, 1.0]


def test_both_at_once_add_up(boards, stage):
    game = stage("##### #0..# #..1# #####", blue=(1, 2), red=(2, 2))
    assert boards.act(game, "right", "left") == [-1.0, -1.0]


def test_one_by_one_it_is_the_same(boards, stage):
    game = stage("##### #0..# #..1# #####", blue=(1, 2), red=(2, 2))
    left, right = (np.array([game.grid.actions.index(name)]) for name in ("left", "right"))
    total = game.apply_agent(0, right) + game.apply_agent(1, left)
    assert total[:, 0].tolist() == [-1.0, -1.0]


def test_a_new_coin_appears_at_once(boards, stage):
    game = stage("##### #0..# #..1# #####", red=(1, 2))
    boards.act(game, "right", "left")
    assert game.grid.text().count("1") + game.grid.text().count("2") == 1


def test_both_colours_appear_equally_often(boards, module):
    game = boards.game(module.Coins, worlds=2000)
    red = (game.grid.cells == game.grid.field.code("red coin")).sum()
    blue = (game.grid.cells == game.grid.field.code("blue coin")).sum()
    assert red + blue == 2000
    assert abs(red - 1000) < 100


def test_cooperation_pays_and_selfishness_does_not(boards, module):
    def returns(policy):
        return play(boards.game(module.Coins, worlds=8), policy).returns.mean()

    cooperative = returns(module.sensible)
    selfish = returns(lambda game: module.sensible(game, selfish=True))
    assert cooperative > 10 * max(1.0, returns(random_player))
    assert cooperative > 5 * max(1.0, selfish)


def test_cooperative_players_never_take_the_others_coin(boards, module):
    episode = play(boards.game(module.Coins, worlds=8), module.sensible)
    assert episode.rewards.min() == 0.0


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"agents": 3}, r"world\.agents is 3: coins is for 2 players"),
        ({"coins": 0}, r"world\.coins is 0: give a whole number of at least 1"),
    ],
)
def test_a_wrong_world_section_is_refused(boards, module, world, message):
    with pytest.raises(ConfigError, match=message):
        boards.game(module.Coins, **world)
