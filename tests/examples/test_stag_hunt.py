"""The rules of `examples/stag_hunt.py`."""

import pytest

from examples.stag_hunt import StagHunt, sensible
from parallel_agents.games import random_policy
from tests.games.boards import act, make_game, make_staged, mean_return


def stage(text, **world):
    return make_staged(StagHunt, text, **{"stags": 0, "hares": 0} | world)


def test_a_hare_can_be_caught_alone():
    game = stage("##### #0h.# #####")
    assert act(game, "right") == [1.0]
    assert game.grid.text().split()[1] == "#.a.#"


def test_a_stag_blocks_one_agent_and_is_caught_by_two():
    game = stage("####### #0.s.1# #######")
    for _ in range(2):
        assert act(game, "right", "stay") == [0.0, 0.0]
        assert game.grid.text().split()[1] == "#.as.a#"
    assert act(game, "stay", "left") == [5.0, 5.0]
    assert game.grid.text().split()[1] == "#.a.a.#"


@pytest.mark.parametrize(
    ("text", "hunters", "rewards"),
    [
        ("##### #0s.# #####", 2, [0.0]),
        ("##### #0..# #.s1# #####", 2, [0.0, 0.0]),
        ("##### #0s1# #.2.# #####", 2, [5.0, 5.0, 5.0]),
        ("####### #0s1.2# #######", 2, [5.0, 5.0, 0.0]),
        ("##### #0s1# #####", 3, [0.0, 0.0]),
        ("##### #0s.# #####", 1, [5.0]),
    ],
    ids=["one is not enough", "corners do not count", "three earn as much each", "others earn nothing", "three", "one"],
)
def test_a_stag_pays_every_agent_beside_it_if_they_are_enough(text, hunters, rewards):
    assert act(stage(text, hunters=hunters), *["stay"] * len(rewards)) == rewards


def test_caught_animals_appear_again():
    game = stage("####### #0s1..# #.h...# #######", stags=1, hares=1)
    assert act(game, "stay", "stay") == [5.0, 5.0]
    assert game.grid.text().count("s") == game.grid.text().count("h") == 1


def test_a_new_field_has_its_animals():
    game = make_game(StagHunt, worlds=3)
    for world in range(3):
        assert game.grid.text(world).count("s") == 2
        assert game.grid.text(world).count("h") == 4


def test_sensible_players_trust_and_beat_random_ones():
    assert mean_return(StagHunt, sensible, worlds=4) > 5 * mean_return(StagHunt, random_policy, worlds=4)
