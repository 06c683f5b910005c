"""Markets as a `ParallelEnvironment`: equal in every mode, with the options of the section `world`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from parallel_agents.cli import main
from parallel_agents.core.config import merge
from parallel_agents.core.errors import ActionError, ConfigError, RunError, ShapeError
from parallel_agents.market import MarketEnvironment
from parallel_agents.market.actions import ActionForm, BiddingMarket
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import create_world_variants
from parallel_agents.tracking.callbacks import BaseCallback

ROOT = Path(__file__).parents[2]
SMALL = {"hidden": (8,)}


def environment(
    patterns, *, worlds=4, epochs=2, turns=5, parallel=None, model=None, seed=3, **world
) -> MarketEnvironment:
    config = {
        "experiment": {"epochs": epochs, "max_turns": turns, "worlds": worlds, "seed": seed},
        "world": world,
        "model": {**SMALL, **(model or {})},
    }
    if parallel is not None:
        config["parallel"] = parallel
    return MarketEnvironment(patterns, config)


@pytest.mark.parametrize(
    ("actions", "model"),
    [("choices", {}), ("paced", {}), ("joint", {}), ("joint", {"algorithm": "dqn", "learning_starts": 8})],
)
def test_bidders_train_the_same_in_every_mode(patterns, actions, model):
    def run(**parallel) -> tuple[str, str | None]:
        game = environment(patterns, agents=2, pool=8, actions=actions, model=model, parallel=parallel)
        return game.run_experiment()["digest"], game.prepare().loop.why_not_compiled()

    plain, reason = run(enabled=False)
    assert plain is not None
    assert "one by one" in reason
    assert run(backend="inline") == (plain, None)  # whole epochs in compiled code
    assert run(backend="thread", parallel_actions=False)[0] == plain


@pytest.mark.parametrize("together", [True, False])
def test_the_threads_of_a_market_do_not_change_a_run(patterns, monkeypatch, together):
    def digest() -> str:
        game = environment(patterns, agents=2, parallel={"backend": "inline", "parallel_actions": together})
        return game.run_experiment()["digest"]

    alone = digest()
    monkeypatch.setattr(MarketWorlds, "_useful_threads", lambda market: 3)
    assert digest() == alone


def test_what_is_not_compiled_is_told(patterns):
    class Greedy(MarketEnvironment):
        def apply_actions(self, actions):
            return 2.0 * super().apply_actions(actions)

    def reason(kind, **model) -> str | None:
        config = {"experiment": {"worlds": 4}, "world": {"actions": "joint"}, "model": {**SMALL, **model}}
        return kind(patterns, config).prepare().loop.why_not_compiled()

    assert reason(MarketEnvironment) is None
    assert reason(Greedy) == "Greedy.apply_actions() is written in Python"
    assert "event types" in reason(MarketEnvironment, algorithm="dqn", importance={"focus_rare_events": True})


@pytest.mark.parametrize("action", [-1, 28])
def test_an_action_that_does_not_exist_is_refused(patterns, action):
    env = environment(patterns, actions="joint")
    env.reset()
    with pytest.raises(ActionError, match=r"agent_0 chose an action in world 2 that does not exist"):
        env.apply_actions(np.array([[0, 27, action, 0]]))
    with pytest.raises(ShapeError, match=r"actions have shape \(1, 3\): \(1, 4, 1\) is needed"):
        env.apply_actions(np.zeros((1, 3), np.int64))


def test_bidders_train_the_same_in_a_process(patterns):
    def digest(**parallel) -> str:
        return environment(patterns, agents=2, epochs=4, actions="joint", parallel=parallel).run_experiment()["digest"]

    assert digest(backend="process", num_workers=1) == digest(enabled=False)


def test_action_forms_give_the_expected_bids(patterns):
    market = MarketWorlds(create_world_variants(patterns, 1), target=10.0)
    market.reset(0)

    def form(name):
        return ActionForm(name, (0.0, 1.0, 4.0), campaigns=2, creatives=3)

    def bids(name, action):
        return BiddingMarket(market, form(name)).bids(np.array([[action]]))

    alphas, creative = bids("choices", [2, 0, 1])
    np.testing.assert_allclose(alphas, [[[4.0, 0.0]]])
    assert creative.item() == 1
    pace, space = float(np.exp(market.state.pace[0, 0])), form("paced").space
    assert len(space.low) == len(space.high) == 2 + 2 + 3
    no_limit, limit = np.log(10.0), np.log(0.002)
    alphas, creative = bids("paced", [np.log(3.0), no_limit, 0.0, np.log(2.0), -0.5, 0.1, 0.9])
    np.testing.assert_allclose(alphas, [[[3.0 * pace, 6.0 * pace]]])
    assert creative.item() == 2
    alphas, creative = bids("paced", [np.log(3.0), limit, 0.0, np.log(2.0), 0.5, 0.1, 0.0])
    np.testing.assert_allclose(alphas, [[[0.02, 0.04]]])  # 0.002 of the target
    assert creative.item() == 0
    every = [bids("joint", action) for action in range(form("joint").space)]
    assert len({(alphas[0, 0, 0], creative.item()) for alphas, creative in every}) == 9


@pytest.mark.parametrize("objective", ["score", "profit"])
def test_rewards_add_up_to_the_objective_and_episodes_end_with_the_last_step(patterns, objective):
    env = environment(patterns, turns=6, auctions_per_step=200.0, actions="choices", objective=objective)
    env.begin_epoch(1)
    env.reset()
    earned = np.zeros((1, 4))
    for _ in range(6):
        assert not np.any(env.dones())
        assert env.observe().shape == (1, 4, len(env.market.names))
        earned += env.apply_actions(np.tile([4, 4, 4, 4, 3], (1, 4, 1)))
    terminated, truncated = env.dones()
    assert terminated.all()
    assert not truncated.any()
    info, p = env.market.info(episode=True), env.market.parameters
    expected = env.market.score(expected=True) if objective == "score" else (info["revenue"] - info["cost"]) / p.budget
    np.testing.assert_allclose(earned, expected, rtol=1e-4, atol=1e-6)
    assert env.market.done
    with pytest.raises(RunError, match="the episode is over"):
        env.apply_actions(np.tile([4, 4, 4, 4, 3], (1, 4, 1)))
    assert np.abs(earned).max() > 0


def test_bidders_of_one_world_compete_and_each_has_its_own_model(patterns):
    env = environment(patterns, agents=3)
    assert len({id(agent.model) for agent in env.agents}) == 3
    assert env.market.bidders == 3


def test_evaluation_uses_worlds_that_training_has_not_seen(patterns, monkeypatch):
    env = environment(patterns)
    worlds_used = []
    real = MarketEnvironment.setup_agents
    monkeypatch.setattr(
        MarketEnvironment, "setup_agents", lambda self: (real(self), worlds_used.append(self.market.worlds))[0]
    )
    returns = env.evaluate(3).returns
    assert returns.shape == (1, 3)
    trained = {tuple(w.users.share) for w in env.market.worlds}
    assert len(worlds_used) == 1
    assert not trained & {tuple(w.users.share) for w in worlds_used[0]}


def test_worlds_have_the_configured_types_sizes_and_seed(patterns):
    env = environment(patterns, world_types={"luxury_seeker": 1.0}, users=(600, 600), world_seed=9)
    assert {w.kind.value for w in env.market.worlds} == {"luxury_seeker"}
    assert {w.users.count for w in env.market.worlds} == {600}
    other = environment(patterns, world_types={"luxury_seeker": 1.0}, users=(600, 600), world_seed=9, seed=4)
    np.testing.assert_array_equal(env.market.parameters.usual_bid, other.market.parameters.usual_bid)


def test_a_pool_of_worlds_is_shared_by_columns_or_used_in_turn(patterns):
    few = environment(patterns, worlds=4, pool=2).market
    bids = few.parameters.usual_bid
    np.testing.assert_array_equal(bids[0], bids[2])
    assert (bids[0] != bids[1]).any()
    assert len(set(few.parameters.world.tolist())) == 4  # the same worlds, other draws
    env = environment(patterns, worlds=2, pool=6)
    worlds_used = []
    for epoch in range(1, 5):
        env.begin_epoch(epoch)
        env.reset()
        worlds_used.append(tuple(w.index for w in env.market.worlds))
    assert worlds_used == [(0, 1), (2, 3), (4, 5), (0, 1)]
    with pytest.raises(ConfigError, match=r"world.pool is 3 with 4 worlds"):
        environment(patterns, worlds=4, pool=3)


@pytest.mark.parametrize(
    ("world", "text"),
    [
        ({"actions": "words"}, "world.actions is 'words': allowed is joint, choices, paced"),
        ({"levels": (1.0, 1.0)}, "give at least two different multiples"),
        ({"levels": (0.0, 1.0)}, "give at least two above 0"),
        ({"levels": (-1.0, 1.0)}, "multiples of the value, from 0"),
        ({"agents": 0}, "world.agents is 0: a market needs at least one bidder"),
        ({"budget": 0.0}, "budget 0.0 is not positive"),
        ({"target_cpa": 0.0}, "target 0.0 is not positive"),
        ({"objective": "fame"}, "world.objective is 'fame': allowed is score, profit"),
        ({"patterns_file": "x"}, "patterns_file"),
        ({"world_types": {"odd": 1.0}}, "world type 'odd' is unknown"),
        ({"users": (0, 3)}, "is not a range of population sizes"),
    ],
)
def test_invalid_options_are_refused_by_name(patterns, world, text):
    with pytest.raises(ConfigError, match=text):
        environment(patterns, **world)


def test_autoreset_and_missing_files_are_refused(patterns, tmp_path):
    with pytest.raises(ConfigError, match=r"experiment.autoreset is true"):
        MarketEnvironment(patterns, {"experiment": {"autoreset": True}})
    with pytest.raises(ConfigError, match="does not exist"):
        MarketEnvironment(config={"world": {"patterns": str(tmp_path / "none")}})


def test_a_run_with_a_relative_path_of_patterns_is_used_from_any_folder(patterns, tmp_path, monkeypatch):
    patterns.save(tmp_path / "patterns.json")
    monkeypatch.chdir(tmp_path)
    config = environment(patterns).config.as_dict()
    game = MarketEnvironment(config=merge(config, {"world": {"patterns": "patterns.json"}}))
    assert game.config.world["patterns"] == str(tmp_path / "patterns.json")
    monkeypatch.chdir("/")
    again = MarketEnvironment(config=game.config)
    assert again.config.as_dict() == game.config.as_dict()
    assert again.run_experiment()["digest"] == environment(patterns).run_experiment()["digest"]


def test_the_example_trains_from_the_command_line(patterns, tmp_path, capsys):
    patterns.save(tmp_path / "patterns.json")
    code = main(
        [
            "train", str(ROOT / "examples" / "market_bidding.py"), "--worlds", "3", "--epochs", "2", "--json", "--quiet",
            "--out", str(tmp_path / "run"), "--set", f"world.patterns={tmp_path / 'patterns.json'}",
            "--set", "experiment.max_turns=4",
        ]
    )  # fmt: skip
    assert code == 0
    result = json.loads(capsys.readouterr().out)
    assert result["turns"] == 8
    assert result["updates"] > 0


def test_importance_sampling_draws_the_wanted_share_of_crisis_purchases(patterns):
    """The environment labels steps that cause a crisis parent's purchase, so a batch holds the wanted share of them."""
    shares = []

    class Recorder(BaseCallback):
        def on_round(self, result):
            shares.append(float(result.metrics["crisis_parent_ratio_in_batch"][0]))

    importance = {"focus_rare_events": True, "target_share": 0.5, "beta": 1.0}
    model = {"algorithm": "dqn", "hidden": (8,), "learning_starts": 16, "batch_size": 64, "importance": importance}
    game = environment(patterns, worlds=20, epochs=4, turns=20, actions="joint", model=model)
    game.run_experiment(callbacks=[Recorder()])
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)
    types, values = game.events()
    caused = game.market.last.caused
    np.testing.assert_array_equal(types == 0, caused[..., 2] > 0)
    np.testing.assert_array_equal(values, caused[..., 1])
