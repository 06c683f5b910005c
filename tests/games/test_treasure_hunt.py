"""The rules of `examples/treasure_hunt.py`, on hand-made boards, and its scripted players."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from parallel_agents.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "examples" / "treasure_hunt.py"
UP, DOWN, LEFT, RIGHT = range(4)


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location("treasure_hunt", EXAMPLE)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def make(module):
    def made(worlds=1, seed=0, **world):
        experiment = {"worlds": worlds, "seed": seed}
        return module.TreasureHunt(config={"experiment": experiment, "world": world, "model": {"algorithm": "random"}})

    return made


@pytest.fixture
def stage(make):
    """A game on a hand-made board: digits are agents, g gems, f food, b bones."""

    def staged(text, **world):
        rows = text.split()
        agents = sorted((glyph, y, x) for y, row in enumerate(rows) for x, glyph in enumerate(row) if glyph.isdigit())
        sizes = {"agents": len(agents), "height": len(rows), "width": len(rows[0]), "spawn_probability": 0.0}
        game = make(**sizes | world)
        codes = {
            ".": 0,
            "#": 1,
            **{name[0]: game.grid.field.code(name) for name in ("gem", "food", "bone", "agent")},
        }
        for y, row in enumerate(rows):
            game.grid.cells[0, 0, y] = [codes["a" if glyph.isdigit() else glyph] for glyph in row]
        game.grid.positions[:, 0] = [(y, x) for _, y, x in agents]
        return game

    return staged


def test_the_defaults_are_those_of_the_rules(make):
    game = make()
    assert (len(game.agents), game.grid.field.height, game.grid.field.width) == (8, 21, 21)
    assert game.grid.actions == ("up", "down", "left", "right")
    assert game.observe().shape == (8, 1, 5 * 5 * 5)
    assert game.config.experiment.max_turns == 100
    assert game.config.parallel.enabled
    edge = np.ones((21, 21), bool)
    edge[1:-1, 1:-1] = False
    assert np.array_equal(game.grid.cells[0, 0] == game.grid.field.code("wall"), edge)


@pytest.mark.parametrize(("thing", "value"), [("g", 10.0), ("f", 5.0), ("b", -10.0)])
def test_things_have_their_values_and_are_taken(stage, thing, value):
    game = stage(f"#### #0{thing}# ####")
    assert game.apply_actions(np.array([[RIGHT]])).tolist() == [[value]]
    assert game.grid.text().split() == ["####", "#.a#", "####"]


def test_values_can_be_changed_one_by_one(stage):
    game = stage("#### #0g# ####", values={"gem": 3.0})
    assert game.apply_actions(np.array([[RIGHT]])).tolist() == [[3.0]]
    assert game.rules.values == {"gem": 3.0, "food": 5.0, "bone": -10.0}


def test_walls_and_agents_block(stage):
    game = stage("#### #01# ####")
    assert game.apply_actions(np.array([[RIGHT], [UP]])).tolist() == [[0.0], [0.0]]
    assert game.grid.positions[:, 0].tolist() == [[1, 1], [1, 2]]


def test_the_first_in_the_list_takes_what_two_want(stage):
    game = stage("##### #1g0# #####")
    assert game.apply_actions(np.array([[LEFT], [RIGHT]])).tolist() == [[10.0], [0.0]]


def test_all_three_appear_equally_often_at_the_given_rate(make):
    game = make(worlds=300, agents=1)
    game.epoch = 1
    game.grid.fresh(game.moment())
    for game.turn in range(1, 11):
        game.begin_turn()
    counts = [(game.grid.cells == game.grid.field.code(name)).sum() for name in ("gem", "food", "bone")]
    assert sum(counts) == pytest.approx(300 * 360 * (1 - 0.995**10), rel=0.05)
    assert np.ptp(counts) < 0.1 * sum(counts) / 3


def test_nothing_ends_an_episode(make):
    game = make()
    game.turn = 100
    assert not np.any(game.dones())


@pytest.mark.parametrize(
    ("board", "action"),
    [
        ("####### #..g..# #.....# #..0..# #.....# #.....# #######", UP),
        ("####### #.....# #.....# #g.0..# #.....# #.....# #######", LEFT),
        ("####### #.....# #..f..# #..0.g# #.....# #.....# #######", RIGHT),
        ("####### #.....# #..b..# #.b0b.# #.....# #.....# #######", DOWN),
        ("####### #.....# #..b..# #.b0b.# #..1..# #.....# #######", None),
    ],
)
def test_sensible_players_go_for_the_best_and_round_bones(module, stage, board, action):
    game = stage(board)
    first = int(module.sensible(game)[0, 0])
    if action is None:
        assert first != DOWN  # somebody stands there: even a bone is better than standing still
    else:
        assert first == action


def test_sensible_players_are_far_better_than_random_ones(module, make):
    totals = []
    for sensible in (True, False):
        game = make(worlds=8)
        game.begin_epoch(1)
        game.reset()
        draws, total = np.random.default_rng(0), 0.0
        for game.turn in range(1, 101):
            game.begin_turn()
            actions = module.sensible(game) if sensible else draws.integers(0, 4, (8, 8))
            total += float(game.apply_actions(actions).mean())
        totals.append(total)
    assert totals[0] > 4 * max(totals[1], 5.0)


def test_a_short_run_trains_and_is_repeatable(module):
    config = {"experiment": {"epochs": 4, "max_turns": 20, "seed": 3}, "world": {"agents": 2}}
    model = {"algorithm": "dqn", "learning_starts": 16, "updates_per_round": 2}
    parallel = {"train_interval": 2, "policy_lag": 1, "backend": "inline"}
    one, two = (
        module.TreasureHunt(config=config | {"model": model, "parallel": parallel}).run_experiment() for _ in range(2)
    )
    assert one["digest"] == two["digest"]
    assert one["updates"] > 0


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"spawn_probability": 2.0}, r"things appear with probability 2\.0: give a number from 0 to 1"),
        ({"values": {"gold": 1.0}}, r"world\.values is .*gold.*: give a number for each of gem, food, bone"),
        ({"colour": "red"}, r"unknown key world\.colour"),
    ],
)
def test_a_wrong_world_section_is_refused(make, world, message):
    with pytest.raises(ConfigError, match=message):
        make(**world)
