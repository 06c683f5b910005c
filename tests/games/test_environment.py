"""A grid game as an environment: its hooks, and that nothing depends on worlds, epochs or turn order."""

import numpy as np
import pytest

from parallel_agents.core.errors import ActionError, ConfigError, ContractError
from parallel_agents.games import AGENT, WALL, FixedCount, GridEnvironment, Kind, RandomSpawn
from parallel_agents.games.program import Effect

KINDS = (WALL, Kind("gem", "g", (0, 0, 255), value=10.0), AGENT)
SMALL = {"agents": 3, "height": 6, "width": 7, "radius": 1}


class Gems(GridEnvironment):
    """A game that defines only what it must."""

    def build(self):
        grid = self.make_walled_grid(KINDS)
        self.parts = [RandomSpawn(grid, "gem", probability=0.05)]
        return grid


def make(game=Gems, worlds=1, seed=0, **world):
    sections = {"experiment": {"worlds": worlds, "seed": seed}, "world": SMALL | world}
    return game(config={**sections, "model": {"algorithm": "random"}})


def episode(env, turns=12, *, one_by_one=False):
    """Return the observations and rewards of an epoch; actions depend on world and turn only."""
    env.begin_epoch(1)
    env.reset()
    observations, rewards = [], []
    for turn in range(1, turns + 1):
        env.turn = turn
        env.begin_turn()
        columns = [np.random.default_rng([turn, w]).integers(0, 4, len(env.agents)) for w in range(env.n_worlds)]
        actions = np.stack(columns, axis=1)
        observations.append(env.observe().copy())
        if one_by_one:
            rewards.append(np.stack([env.apply_agent(n, row) for n, row in enumerate(actions)]))
        else:
            rewards.append(env.apply_actions(actions))
    return np.stack(observations), np.stack(rewards)


def test_a_game_fulfils_the_contract_of_an_environment():
    env = make(worlds=4)
    assert env.vectorised
    assert len(env.agents) == 3
    assert env.observe().shape == (3, 4, 3 * 9)
    assert env.observe_agent(2).shape == (4, 3 * 9)
    assert env.can_act() is None
    assert not np.any(env.dones())


def test_a_game_compiles_only_the_effects_that_it_uses():
    assert np.flatnonzero(make().worlds.effects.any(axis=1)).tolist() == [Effect.SPAWN]


def test_rewards_are_the_values_of_what_was_entered():
    env = make(worlds=2)
    env.grid.place_agent(0, 1, (4, 4))
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


def test_only_the_worlds_of_the_mask_are_reset():
    env = make(worlds=3)
    episode(env)
    before = env.grid.padded.copy()
    env.reset_worlds(np.array([False, True, False]))
    assert np.array_equal(env.grid.padded[[0, 2]], before[[0, 2]])
    assert not np.array_equal(env.grid.padded[1], before[1])


def test_a_new_field_is_filled_with_the_same_probability():
    env = make(worlds=500)
    gems = (env.grid.cells == env.grid.field.code("gem")).sum()
    free = env.grid.starts.shape[0] - 3
    assert gems == pytest.approx(0.05 * free * 500, rel=0.15)
    before = env.grid.cells.copy()
    env.reset()
    assert np.array_equal(env.grid.cells, before)


def test_a_turn_and_a_new_field_do_not_share_draws():
    env = make(worlds=3)
    env.grid.reset(env.turn_key())
    env.populate(env.turn_key(), np.ones(3, np.bool_))
    populated = env.grid.cells.copy()
    env.grid.reset(env.turn_key())
    env.begin_turn()
    assert not np.array_equal(env.grid.cells, populated)


class Refilled(Gems):
    """Every world always holds four gems."""

    def build(self):
        grid = self.make_walled_grid(KINDS)
        self.parts = [FixedCount(grid, "gem", count=4)]
        return grid


@pytest.mark.parametrize("one_by_one", [False, True])
def test_fixed_counts_are_refilled_on_a_new_field_and_at_the_end_of_each_turn(one_by_one):
    env = make(Refilled, worlds=2)
    gem = env.grid.field.code("gem")
    assert (env.grid.cells == gem).sum(axis=(1, 2, 3)).tolist() == [4, 4]
    rewards = episode(env, turns=30, one_by_one=one_by_one)[1]
    assert (rewards == 10.0).any()
    assert (env.grid.cells == gem).sum(axis=(1, 2, 3)).tolist() == [4, 4]


class Waving(Gems):
    """An agent that waves earns 1 and is frozen for two turns."""

    def build(self):
        return self.make_walled_grid(KINDS, actions=("up", "down"), extra_actions=("wave",))

    def settle(self):
        waved = self.chose("wave")
        self.freeze(waved, turns=2)
        return waved.astype(np.float32)


class Taxed(Gems):
    """Every agent earns 3 and pays a tax of 1 at the end of a turn, from an array that the game keeps."""

    shape = (3, 1)

    def build(self):
        self.tax = np.full(self.shape, -1.0, np.float32)
        return self.make_walled_grid(KINDS)

    def earn(self, entered, first):
        return np.full(entered.shape, 3.0, np.float32)

    def settle(self):
        return self.tax


@pytest.mark.parametrize("one_by_one", [False, True])
def test_an_array_that_settle_returns_is_not_changed(one_by_one):
    env = make(Taxed)
    rewards = in_turn(env, 4) if one_by_one else episode(env, turns=4)[1]
    assert (rewards[:, -1] == 2.0).all()
    assert (env.tax == -1.0).all()


def in_turn(env, turns):
    """Return the rewards (turns, N, W) of the last agent's actions, each of which ends a turn."""
    env.begin_epoch(1)
    env.reset()
    rewards = []
    for env.turn in range(1, turns + 1):
        env.begin_turn()
        for n in range(len(env.agents)):
            earned = env.apply_agent(n, np.zeros(1, np.int64))
        rewards.append(earned)
    return np.stack(rewards)


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3,), (3, 2)])
def test_rewards_of_settle_with_another_shape_are_refused(shape, one_by_one):
    env = make(type("Misshapen", (Taxed,), {"shape": shape}))
    with pytest.raises(ContractError) as error:
        in_turn(env, 1) if one_by_one else episode(env, turns=1)
    assert str(error.value) == f"settle() returned shape {shape}: give (agents, worlds) = (3, 1)"


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_turn_is_settled_after_all_have_acted_and_frozen_agents_take_no_part(one_by_one):
    env = make(Waving)
    env.begin_epoch(1)
    env.reset()
    rewards = []
    for env.turn in range(1, 5):
        env.begin_turn()
        actions = np.array([[2], [0], [2]])
        if one_by_one:
            parts = [env.apply_agent(n, row) for n, row in enumerate(actions)]
            assert parts[0].shape == (1,)
            assert parts[2].shape == (3, 1)
            rewards.append(parts[2][:, 0].tolist())
        else:
            rewards.append(env.apply_actions(actions)[:, 0].tolist())
    assert rewards == [[1.0, 0.0, 1.0], [0.0] * 3, [0.0] * 3, [1.0, 0.0, 1.0]]


def test_an_action_that_the_game_does_not_have_is_named():
    env = make(Waving)
    with pytest.raises(ConfigError, match="no action is called 'waev': this game has up, down, wave"):
        env.chose("waev")


def test_a_longer_freeze_is_not_cut_short_by_a_shorter_one():
    env = make()
    everyone = np.ones((3, 1), np.bool_)
    env.freeze(everyone, 3)
    env.freeze(everyone, 1)
    able = []
    for env.turn in range(1, 5):
        env.begin_turn()
        able.append(bool(env.can_act().any()))
    assert able == [False, False, False, True]


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
    """An agent that takes a gem takes its value from all others."""

    def earn(self, entered, first):
        rewards = np.zeros(self.grid.headings.shape, np.float32)
        gained = super().earn(entered, first)
        rewards[first : first + len(gained)] += gained
        return rewards - (gained.sum(axis=0) - rewards)


def test_other_agents_may_gain_or_lose_by_what_one_enters():
    env = make(Envy)
    env.grid.cells[0, 0, 2, 1] = env.grid.field.code("gem")
    env.grid.place_agent(0, 0, (1, 1))
    rewards = env.apply_agent(0, np.array([env.grid.actions.index("down")]))
    assert rewards[:, 0].tolist() == [10.0, -10.0, -10.0]
    together, apart = (episode(make(Envy, worlds=2), one_by_one=one_by_one)[1] for one_by_one in (False, True))
    assert np.array_equal(together, apart.sum(axis=1))


def test_a_picture_shows_the_field_and_a_line_for_the_return_of_each_agent():
    assert make().render(cell=8).shape == (6 * 8 + 3 * 24, 100, 3)


@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
def test_a_run_plays_a_game_in_both_turn_orders(order):
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


def test_a_game_without_build_is_refused():
    class Nothing(GridEnvironment):
        pass

    with pytest.raises(ContractError, match=r"Nothing\.build\(\) is missing: return the game's Grid"):
        make(Nothing)


def test_an_unknown_action_is_refused_in_both_turn_orders():
    env = make()
    with pytest.raises(ActionError, match=r"agent 2 did action 4 in world 0: give 0 to 3 \(up, down, left, right\)"):
        env.apply_actions(np.array([[0], [0], [4]]))
    with pytest.raises(ActionError, match=r"agent 2 did action -1 in world 0"):
        env.apply_agent(2, np.array([-1]))


def test_the_model_section_of_a_game_holds_only_for_its_algorithm():
    class Tuned(Gems):
        default_config = {"world": {"radius": 1}, "model": {"algorithm": "dqn", "n_step": 3}, "parallel": {}}

    assert Tuned().config.model == {"algorithm": "dqn", "n_step": 3}
    assert Tuned(config={"model": {"lr": 0.1}}).config.model == {"algorithm": "dqn", "n_step": 3, "lr": 0.1}
    assert Tuned(config={"model": {"algorithm": "random"}}).config.model == {"algorithm": "random"}
