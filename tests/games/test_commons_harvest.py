"""The rules of `examples/commons_harvest.py`, on hand-made boards."""

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.games import play
from parallel_agents.games.social import sustainability

RIGHT = 1


@pytest.fixture(scope="module")
def module(boards):
    return boards.load("commons_harvest")


def row(text):
    """A board of the least height, with one row to play in."""
    return " ".join([*["#" * len(text)] * 3, text, *["#" * len(text)] * 4])


@pytest.fixture(scope="module")
def stage(boards, module):
    return lambda text, **world: boards.staged(module.CommonsHarvest, text, "", RIGHT, **world)


def test_the_field_has_patches(module):
    assert module.patches(8, 14).split() == [
        "##############",
        "#............#",
        "#..oo....oo..#",
        "#.oooo..oooo.#",
        "#.oooo..oooo.#",
        "#..oo....oo..#",
        "#............#",
        "##############",
    ]


def test_an_apple_is_worth_one_and_gone(boards, stage):
    game = stage(row("#0oo....#"))
    assert boards.act(game, "forward") == [1.0]
    assert game.grid.text().split()[3] == "#.ao....#"


def test_what_was_picked_grows_again_only_with_apples_near(boards, module):
    chances = (0.0, 1.0)
    game = boards.game(module.CommonsHarvest, agents=1, height=8, width=14, regrowth=chances)
    apple = game.grid.field.code("apple")
    cells = game.grid.cells[0, 0]
    cells[:, 1:7][cells[:, 1:7] == apple] = 0  # the left patch is bare
    cells[3, 9] = 0  # one is missing in the right one
    for game.turn in range(1, 4):
        game.begin_turn()
    assert cells[3, 9] == apple
    assert not (cells[:, 1:7] == apple).any()


def test_an_episode_ends_when_no_apple_is_left(boards, stage):
    game = stage(row("#0o.1...#"))
    assert not game.dones()[0].any()
    boards.act(game, "forward", "stay")
    terminated, truncated = game.dones()
    assert terminated.all()
    assert not truncated.any()


def test_zapping_freezes(boards, stage):
    game = stage(row("#0...1.o#"), frozen_turns=1)
    assert boards.act(game, "zap", "stay") == [0.0, 0.0]
    assert game.grid.text().split()[3] == "#azzzz.o#"
    free = []
    for game.turn in (2, 3):
        game.begin_turn()
        free.append(game.can_act()[:, 0].tolist())
    assert free == [[True, False], [True, True]]


def test_a_fresh_episode_frees_everyone(boards, stage):
    game = stage(row("#0...1.o#"), frozen_turns=9)
    boards.act(game, "zap", "stay")
    game.reset_worlds(np.array([True]))
    game.begin_turn()
    assert game.can_act().all()


def test_the_greedy_end_the_commons_and_the_restrained_live_on(boards, module):
    def played(spare):
        game = boards.game(module.CommonsHarvest, worlds=3, turns=150)
        return play(game, lambda game: module.sensible(game, spare)), game.apples.left()

    greedy, none_left = played(0)
    restrained, left = played(2)
    assert not none_left.any()
    assert left.all()
    assert sustainability(restrained.rewards).min() > 3 * sustainability(greedy.rewards).max()
    assert restrained.returns.mean() > 1.5 * greedy.returns.mean()


def test_nothing_is_paid_in_a_world_that_has_ended(boards, module):
    game = boards.game(module.CommonsHarvest, worlds=2, turns=60)
    episode = play(game, lambda game: module.sensible(game, 0))
    last = np.flatnonzero(episode.rewards.any(axis=(1, 2))).max()
    assert not episode.free[last + 1 :].any()


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"height": 7}, r"world\.height is 7: a patch needs at least 8"),
        ({"regrowth": (2.0,)}, r"apple grows with chances \[2\.0\]"),
    ],
)
def test_a_wrong_world_section_is_refused(boards, module, world, message):
    with pytest.raises(ConfigError, match=message):
        boards.game(module.CommonsHarvest, **world)
