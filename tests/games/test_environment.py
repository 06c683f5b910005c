"""A grid game as an environment: the hooks, the seams, and that nothing depends on how the work is arranged."""

import numpy as np
import pytest

from parallel_agents.errors import ActionError, ConfigError, ContractError
from parallel_agents.games import Field, Grid, GridEnvironment, Kind, walled
from parallel_agents.protocols import World

KINDS = (
    Kind("wall", "#", (90, 90, 90), passable=False),
    Kind("gem", "g", (0, 0, 255), value=10.0),
    Kind("agent", "a", (255, 255, 255), passable=False),
)
SMALL = {"agents": 3, "height": 6, "width": 7, "radius": 1}


class Gems(GridEnvironment):
    """A game that says only what it must."""

    def build(self):
        rules = self.rules
        field = Field(KINDS, walled(rules.height, rules.width))
        grid = Grid(field, agents=rules.agents, worlds=self.n_worlds, radius=rules.radius)
        self.spawnings = [grid.spawning("gem", probability=0.05)]
        return grid


def make(game=Gems, worlds=1, seed=0, **world):
    sections = {"experiment": {"worlds": worlds, "seed": seed}, "world": SMALL | world}
    return game(config={**sections, "model": {"algorithm": "random"}})


def episode(env, turns=12, *, one_by_one=False):
    """What an epoch shows and pays, with actions that depend on world and turn only."""
    env.begin_epoch(1)
    env.reset()
    seen, paid = [], []
    for turn in range(1, turns + 1):
        env.turn = turn
        env.begin_turn()
        columns = [np.random.default_rng([turn, w]).integers(0, 4, len(env.agents)) for w in range(env.n_worlds)]
        actions = np.stack(columns, axis=1)
        seen.append(env.observe().copy())
        if one_by_one:
            paid.append(np.stack([env.apply_agent(n, own) for n, own in enumerate(actions)]))
        else:
            paid.append(env.apply_actions(actions))
    return np.stack(seen), np.stack(paid)


def test_a_game_is_a_world_for_the_runtime():
    env = make(worlds=4)
    assert isinstance(env, World)
    assert env.vectorised
    assert len(env.agents) == 3
    assert env.observe().shape == (3, 4, 3 * 9)
    assert env.observe_agent(2).shape == (4, 3 * 9)
    assert env.can_act() is None
    assert not np.any(env.dones())


def test_rewards_are_the_values_of_what_was_entered():
    env = make(worlds=2)
    env.grid.put(0, 1, (4, 4))
    env.grid.cells[1, 0, 4, 5] = env.grid.field.code("gem")
    rewards = env.apply_actions(np.full((3, 2), env.grid.actions.index("right")))
    assert rewards.dtype == np.float32
    assert rewards[0, 1] == 10.0


@pytest.mark.parametrize("observation", ["onehot", "rgb"])
def test_a_world_does_not_depend_on_how_many_there_are(observation):
    few, many = (episode(make(worlds=worlds, observation=observation)) for worlds in (4, 8))
    for a, b in zip(few, many, strict=True):
        assert a[:, :, 3].tobytes() == b[:, :, 3].tobytes()
    assert few[1].any()


def test_acting_one_by_one_is_acting_in_list_order():
    together, apart = episode(make(worlds=3)), episode(make(worlds=3), one_by_one=True)
    assert np.array_equal(together[0], apart[0])
    assert np.array_equal(together[1], apart[1])


def test_epochs_repeat_with_their_number_and_differ_otherwise():
    env = make(worlds=2)
    first = episode(env)
    assert np.array_equal(first[0], episode(env)[0])
    assert not np.array_equal(first[0], episode(make(worlds=2, seed=1))[0])


def test_only_the_worlds_of_the_mask_start_afresh():
    env = make(worlds=3)
    episode(env)
    before = env.grid.padded.copy()
    env.reset_worlds(np.array([False, True, False]))
    assert np.array_equal(env.grid.padded[[0, 2]], before[[0, 2]])
    assert not np.array_equal(env.grid.padded[1], before[1])


def test_a_fresh_field_is_filled_with_the_same_probability():
    env = make(worlds=500)
    gems = (env.grid.cells == env.grid.field.code("gem")).sum()
    free = env.grid.starts.shape[0] - 3
    assert gems == pytest.approx(0.05 * free * 500, rel=0.15)
    before = env.grid.cells.copy()
    env.reset()
    assert np.array_equal(env.grid.cells, before)


def test_things_appear_each_turn_by_other_draws_than_on_a_fresh_field():
    env = make(worlds=3)
    env.grid.fresh(env.moment())
    env.populate(env.moment(), np.ones(3, np.bool_))
    fresh = env.grid.cells.copy()
    env.grid.fresh(env.moment())
    env.begin_turn()
    assert not np.array_equal(env.grid.cells, fresh)


class Frozen(Gems):
    """Agent 1 can never act."""

    def can_act(self):
        return np.arange(3)[:, None] != np.full((3, self.n_worlds), 1)


def test_who_cannot_act_does_not():
    env = make(Frozen, worlds=2)
    before = env.grid.positions.copy()
    env.apply_actions(np.full((3, 2), 1))
    env.apply_agent(1, np.full(2, 3))
    assert np.array_equal(env.grid.positions[1], before[1])
    assert not np.array_equal(env.grid.positions, before)


class Waving(Gems):
    """Who waves earns 1 and is out for two turns."""

    def build(self):
        return self.grid_on(Field(KINDS, walled(6, 7)), actions=("up", "down"), deeds=("wave",))

    def settle(self):
        waved = self.did("wave")
        self.freeze(waved, turns=2)
        return waved.astype(np.float32)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_deeds_are_settled_once_all_have_acted_and_who_is_frozen_does_none(one_by_one):
    env = make(Waving)
    env.begin_epoch(1)
    env.reset()
    paid = []
    for env.turn in range(1, 5):
        env.begin_turn()
        actions = np.array([[2], [0], [2]])
        if one_by_one:
            parts = [env.apply_agent(n, own) for n, own in enumerate(actions)]
            assert parts[0].shape == (1,)
            assert parts[2].shape == (3, 1)
            paid.append(parts[2][:, 0].tolist())
        else:
            paid.append(env.apply_actions(actions)[:, 0].tolist())
    assert paid == [[1.0, 0.0, 1.0], [0.0] * 3, [0.0] * 3, [1.0, 0.0, 1.0]]


def test_a_longer_freeze_is_not_cut_short_by_a_shorter_one():
    env = make()
    everyone = np.ones((3, 1), np.bool_)
    env.freeze(everyone, 3)
    env.freeze(everyone, 1)
    free = []
    for env.turn in range(1, 5):
        env.begin_turn()
        free.append(bool(env.can_act().any()))
    assert free == [False, False, False, True]


def test_draws_are_each_agents_own_and_the_same_within_a_turn():
    env = make(worlds=2)
    env.turn = 3
    draws = env.draws(4)
    assert draws.shape == (3, 2, 4)
    assert len(np.unique(draws)) == 24
    assert np.array_equal(draws, env.draws(4))
    more = make(worlds=5)
    more.turn = 3
    assert np.array_equal(draws[:, 1], more.draws(4)[:, 1])
    env.turn = 4
    assert not np.array_equal(draws, env.draws(4))


class Envy(Gems):
    """Whoever takes a gem takes its value from all others."""

    def earn(self, entered, first):
        rewards = np.zeros(self.grid.headings.shape, np.float32)
        own = super().earn(entered, first)
        rewards[first : first + len(own)] += own
        return rewards - (own.sum(axis=0) - rewards)


def test_others_may_earn_or_lose_by_what_one_enters():
    env = make(Envy)
    env.grid.cells[0, 0, 2, 1] = env.grid.field.code("gem")
    env.grid.put(0, 0, (1, 1))
    assert env.apply_agent(0, np.array([env.grid.actions.index("down")]))[:, 0].tolist() == [
        10.0,
        -10.0,
        -10.0,
    ]
    one, other = (episode(make(Envy, worlds=2), one_by_one=way)[1] for way in (False, True))
    assert np.array_equal(one, other.sum(axis=1))


def test_a_picture_of_a_world():
    picture = make().render(cell=8)
    assert picture.shape == (6 * 8 + 3 * 16, 64, 3), "the field, and below it a line for what each agent has earned"


@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
def test_a_run_plays_it(order):
    config = {"experiment": {"epochs": 2, "max_turns": 5, "worlds": 2}, "world": SMALL}
    summary = Gems(config={**config, "parallel": {"turn_order": order, "backend": "inline"}}).run_experiment()
    assert summary["turns"] == 10
    assert summary["transitions"] == 10 * 3 * 2


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"agents": 0}, r"world\.agents is 0: give a whole number of at least 1"),
        ({"height": 2}, r"world\.height is 2: give a whole number of at least 3"),
        ({"radius": -1}, r"world\.radius is -1: give a whole number of at least 0"),
        ({"agents": 21}, r"21 agents on a field with 20 free cells"),
        ({"agents": 2.5}, r"world\.agents is 2\.5 \(float\): allowed is int"),
        ({"agnets": 3}, r"unknown key world\.agnets; did you mean world\.agents\?"),
        ({"observation": "sonar"}, r"world\.observation is 'sonar' .*: allowed is 'onehot', 'rgb'"),
    ],
)
def test_a_wrong_world_section_is_refused(world, message):
    with pytest.raises(ConfigError, match=message):
        make(**world)


def test_a_game_without_a_grid_says_so():
    class Nothing(GridEnvironment):
        pass

    with pytest.raises(ContractError, match=r"Nothing\.build\(\) is missing: return the game's Grid"):
        make(Nothing)


def test_an_action_that_does_not_exist_is_refused_in_both_orders():
    env = make()
    with pytest.raises(ActionError, match=r"agent 2 did action 4 in world 0: give 0 to 3 \(up, down, left, right\)"):
        env.apply_actions(np.array([[0], [0], [4]]))
    with pytest.raises(ActionError, match=r"agent 2 did action -1 in world 0"):
        env.apply_agent(2, np.array([-1]))


def test_a_games_own_settings_are_for_the_algorithm_that_it_names():
    class Tuned(Gems):
        default_config = {"world": {"radius": 1}, "model": {"algorithm": "dqn", "n_step": 3}, "parallel": {}}

    assert Tuned().config.model == {"algorithm": "dqn", "n_step": 3}
    assert Tuned(config={"model": {"lr": 0.1}}).config.model == {"algorithm": "dqn", "n_step": 3, "lr": 0.1}
    assert Tuned(config={"model": {"algorithm": "random"}}).config.model == {"algorithm": "random"}
