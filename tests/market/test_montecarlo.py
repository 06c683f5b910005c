"""One agent in many worlds at once: results do not depend on the grouping, failures are reported by world."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from parallel_agents.algorithms import DQN
from parallel_agents.core.errors import ConfigError, ContractError, WorldError
from parallel_agents.env.external_training import ExternalUpdateAgent
from parallel_agents.execution.ray import RayCluster
from parallel_agents.market.experiences import aggregate_parallel_experiences, world_context
from parallel_agents.market.montecarlo import (
    EpisodeSetting,
    MonteCarloSimulator,
    ParallelWorldSimulator,
    weight_by_competition_level,
)
from parallel_agents.market.worlds import share_intervals
from parallel_agents.replay.world_weights import WorldRule, combine_weights, normalize_weights

SHORT = EpisodeSetting(steps=6, auctions_per_step=20.0, threads=1)


class Fixed:
    """An agent that always chooses the same action."""

    def __init__(self, action: int = 9) -> None:
        self.action = action

    def act(self, state):
        return self.action


def simulator(patterns, worlds=12, concurrent=100, setting=SHORT, **options) -> MonteCarloSimulator:
    return MonteCarloSimulator(worlds, None, concurrent, 10_000, patterns=patterns, setting=setting, **options)


def run(simulation, agent, size=None):
    return asyncio.run(simulation.run_episode_batch(agent, size))


def same(one, other) -> bool:
    return all(
        a.world == b.world and a.lap == b.lap and (a.states == b.states).all() and (a.rewards == b.rewards).all()
        for a, b in zip(one, other, strict=True)
    )


def test_a_hundred_worlds_are_simulated_together(patterns):
    """The agent gets the states of all worlds at a step before it gets any state of the next step."""
    agent = Fixed()
    with simulator(patterns, worlds=100) as simulation:
        calls = []
        agent.act = lambda state: (calls.append((simulation.in_flight, round(float(state[0]) * 6))), 9)[1]
        batch = run(simulation, agent)
    assert batch.most_in_flight == 100
    assert {concurrent for concurrent, _ in calls} == {100}
    assert [step for _, step in calls] == [t for t in range(6) for _ in range(100)]


@pytest.mark.parametrize("agent", [Fixed(), ExternalUpdateAgent(DQN((48,), 28, hidden=(8,)))])
def test_results_do_not_depend_on_the_number_of_concurrent_worlds(patterns, agent):
    episodes = {}
    for concurrent, threads in ((1, 1), (5, 1), (100, 2)):
        with simulator(patterns, concurrent=concurrent, setting=replace(SHORT, threads=threads)) as simulation:
            batch = run(simulation, agent, 20)
            assert batch.most_in_flight == min(concurrent, 12)
            episodes[concurrent] = batch.experiences
    assert same(episodes[1], episodes[5])
    assert same(episodes[1], episodes[100])
    laps = [e.lap for e in episodes[1]]
    assert laps == [0] * 12 + [1] * 8
    assert not same(episodes[1][:8], [replace(e, lap=0) for e in episodes[1][12:]])


def test_one_world_alone_gives_the_same_episode(patterns):
    with simulator(patterns) as simulation:
        batch = run(simulation, Fixed())
        alone = asyncio.run(simulation.world(4).run_episode(Fixed(), 0))
    assert same([alone], [batch.experiences[4]])
    world = ParallelWorldSimulator(simulation.worlds[4], SHORT)
    world.reset(seed=0)
    rewards = []
    done = False
    while not done:
        _, reward, done, truncated, summary = world.step(9)
        rewards.append(reward)
        assert summary["event_type"] in ("crisis_parent", "regular_parent")
    assert not truncated
    np.testing.assert_allclose(rewards, alone.rewards, rtol=1e-6)


def test_all_action_methods_give_the_same_episodes(patterns):
    class Many:
        def act_many(self, states):
            return np.full(len(states), 9)

    class Waiting:
        async def take_action(self, state):
            await asyncio.sleep(0)
            return 9

    with simulator(patterns) as simulation:
        batches = [run(simulation, agent, 24).experiences for agent in (Fixed(), Many(), Waiting())]
    assert len({e.cost for e in batches[0]}) > 6
    with simulator(patterns) as simulation:
        again = [run(simulation, Fixed(), 24).experiences for _ in range(3)]
    for one, other in zip(batches, again, strict=True):
        assert same(one, other)


def test_a_failing_world_is_reported_and_the_others_are_kept(patterns):
    class Failing:
        """Fails in the worlds that begin at a given hour (its sine is `refused`)."""

        def act(self, state):
            if state[0] == 0.0 and abs(float(state[1]) - self.refused) < 1e-6:
                raise ValueError("not at this hour")
            return 9

    with simulator(patterns) as simulation:
        whole = run(simulation, Fixed())
        agent = Failing()
        hours = [float(e.states[0, 1]) for e in whole]
        agent.refused = max(hours)
        failing = [i for i, h in enumerate(hours) if abs(h - max(hours)) < 1e-6]
        simulation.episodes = 0
        batch = run(simulation, agent)
    assert [f.world for f in batch.failures] == failing
    assert batch.failures[0].reason == "ValueError: not at this hour"
    assert batch.failures[0].kind is simulation.worlds[failing[0]].kind
    assert simulation.failures == dict.fromkeys(failing, 1)
    assert same(batch, [e for i, e in enumerate(whole) if i not in failing])
    assert simulation.in_flight == 0


def test_an_agent_whose_actions_run_out_is_reported_at_once(patterns):
    agent, actions = Fixed(), iter(range(3))
    agent.act = lambda state: next(actions)
    with simulator(patterns, worlds=2, deadline=30.0) as simulation:
        start = time.perf_counter()
        failures = run(simulation, agent).failures
    assert [failure.reason for failure in failures] == [
        "ContractError: the agent raised StopIteration: give an action for every state"
    ] * 2
    assert time.perf_counter() - start < 20.0


def test_an_invalid_world_is_reported_and_the_others_are_kept(patterns):
    with simulator(patterns) as simulation:
        broken = simulation.worlds[7]
        state = replace(broken.market_state, reserve=-broken.market_state.reserve)
        worlds = list(simulation.worlds)
        worlds[7] = replace(broken, market_state=state)
        simulation.worlds = tuple(worlds)
        batch = run(simulation, Fixed())
    assert len(batch) == 11
    assert [f.world for f in batch.failures] == [7]
    assert "world 7: market_state.reserve must be 0 or more" in batch.failures[0].reason


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_an_agent_that_never_answers_exceeds_the_deadline(patterns, kind):
    class Stuck:
        def act(self, state):
            time.sleep(1.5)
            return 0

    class Waiting:
        async def act(self, state):
            await asyncio.sleep(60)

    began = time.monotonic()
    with simulator(patterns, worlds=1, deadline=0.2) as simulation:
        batch = run(simulation, Stuck() if kind == "thread" else Waiting())
    assert time.monotonic() - began < 30
    assert len(batch) == 0
    assert "DeadlineError: 1 worlds took longer than 0.2 s" in batch.failures[0].reason
    with pytest.raises(WorldError, match=r"all 1 episodes failed; the first was world 0 \("):
        simulation.require_success(batch)


def test_an_agent_for_which_the_system_gives_no_thread_is_a_failure(patterns, monkeypatch):
    """Called in the event loop it could hold up everything, however long."""
    with simulator(patterns, worlds=1, deadline=30.0) as simulation:
        monkeypatch.setattr(threading.Thread, "start", refuse_to_start)
        failures = run(simulation, Fixed()).failures
    assert [failure.reason for failure in failures] == ["RuntimeError: can't start new thread"]


def refuse_to_start(thread):
    raise RuntimeError("can't start new thread")


def test_aggregated_figures_are_those_of_the_episodes(patterns):
    mix = {"normal_market": 0.2, "crisis_parent": 0.8}
    setting = EpisodeSetting(steps=30, auctions_per_step=200.0)
    with MonteCarloSimulator(30, mix, 30, 10_000, patterns=patterns, setting=setting) as simulation:
        batch = run(simulation, Fixed(8))
        summary = simulation.aggregate_experiences(batch)
    assert summary["episodes"] == 30
    assert summary["transitions"] == 900
    np.testing.assert_allclose(summary["total_reward"], sum(e.total_reward for e in batch))
    assert summary["roas"] == pytest.approx(sum(e.revenue for e in batch) / sum(e.cost for e in batch))
    assert sum(part["episodes"] for part in summary["world_type_breakdown"].values()) == 30
    assert 0.0 < summary["crisis_rate"] <= 1.0
    assert 0.2 < summary["crisis_revenue_share"] < 1.0
    natural = simulation.orchestrator.natural
    by_type = {k: np.mean([e.total_reward for e in batch if e.kind.value == k]) for k in mix}
    counts = {k: sum(e.kind.value == k for e in batch) for k in mix}
    raw = {
        k: counts[k] * natural[kind] / simulation.orchestrator.mix[kind] for kind in natural if (k := kind.value) in mix
    }
    expected = sum(raw[k] * by_type[k] for k in mix) / sum(raw.values())
    assert summary["weighted_reward"] == pytest.approx(expected)
    rows = summary["training_batch"]
    assert rows["states"].shape == rows["next_states"].shape == (900, len(simulation.world(0).names))
    assert rows["dones"].sum() == 30
    np.testing.assert_array_equal(rows["next_states"][:29], rows["states"][1:30])
    context = list(batch.experiences[0].context)
    assert context[:4] == ["crisis_share", "competition", "behavioural_health", "ios_share"]
    assert rows["context"].shape == (900, len(context))
    np.testing.assert_allclose(rows["context"][0], list(batch.experiences[0].context.values()), rtol=1e-6)
    with pytest.raises(ContractError, match="there are no experiences to aggregate"):
        simulation.aggregate_experiences([])


def test_importance_sampling_makes_crises_half_of_the_batch_and_corrects_for_it(patterns):
    setting = EpisodeSetting(steps=40, auctions_per_step=150.0)
    with MonteCarloSimulator(40, None, 40, 10_000, patterns=patterns, setting=setting) as simulation:
        with pytest.raises(ContractError, match="run a batch of episodes first"):
            simulation.importance_sampling(10)
        summary = simulation.aggregate_experiences(run(simulation, Fixed(8)))
        natural = summary["training_batch"]["crisis"].mean()
        assert 0.01 < natural < 0.3
        focused = simulation.importance_sampling(1500)
        plain = simulation.importance_sampling(1500, focus_rare_events=False)
    assert focused["crisis"].mean() == pytest.approx(0.5, abs=0.05)
    assert plain["crisis"].mean() == pytest.approx(natural, abs=0.03)
    corrected = np.average(focused["rewards"], weights=focused["weights"])
    truth, spread = summary["training_batch"]["rewards"].mean(), summary["training_batch"]["rewards"].std()
    assert abs(corrected - truth) < 4 * spread / np.sqrt(400)
    assert abs(focused["rewards"].mean() - truth) > abs(corrected - truth)


def test_the_mix_of_worlds_adapts_within_its_bounds(patterns):
    with simulator(patterns, worlds=40) as simulation:
        batch = run(simulation, Fixed())
        before, natural = simulation.worlds, dict(simulation.orchestrator.natural)
        mix = simulation.adapt(batch)
        after = simulation.worlds
    assert sum(mix.values()) == pytest.approx(1.0)
    for kind, (low, high) in share_intervals(patterns).items():
        assert low - 1e-6 <= mix[kind.value] <= high + 1e-6
    worst = min(simulation.orchestrator.history[0]["earned"].items(), key=lambda item: item[1])[0]
    assert mix[worst] > natural[type(before[0].kind)(worst)]
    shares = {tuple(w.users.share) for w in before}
    assert not shares & {tuple(w.users.share) for w in after}
    with simulator(patterns, worlds=40) as again:
        assert again.adapt(run(again, Fixed())) == mix
        assert [tuple(w.users.share) for w in again.worlds] == [tuple(w.users.share) for w in after]


def test_world_weights_come_from_the_data_and_follow_what_worlds_brought(patterns):
    with simulator(patterns, worlds=30) as simulation:
        orchestrator = simulation.orchestrator
        weights = orchestrator.calculate_world_weights(simulation.worlds)
        crisis = np.array([w.users.share[w.crisis] for w in simulation.worlds])
        contexts = [world_context(w) for w in simulation.worlds]
        others = [
            weight_by_competition_level(c) * (1 + c["behavioural_health"]) * (1 + c["ios_share"]) for c in contexts
        ]
        expected = (1 + crisis * (orchestrator.value_multiplier() - 1)) * others
        batch = run(simulation, Fixed())
        value = 1.0 + 40.0 * crisis  # only crisis parents bring value here
        planted = [replace(e, values=np.full(6, v / 6, np.float32)) for e, v in zip(batch, value, strict=True)]
        rule = orchestrator.fit_world_weights(planted)
        fitted = orchestrator.calculate_world_weights(simulation.worlds)
    assert sum(weights.values()) == pytest.approx(1.0) == pytest.approx(sum(fitted.values()))
    np.testing.assert_allclose(list(weights.values()), expected / expected.sum())  # each factor counts in proportion
    assert np.corrcoef(value, list(fitted.values()))[0, 1] > 0.98
    assert abs(rule.exponents[1]) < 0.5 < rule.exponents[0]  # competition brought nothing
    assert simulation.orchestrator.value_multiplier() > 3.0


def test_the_documents_names_weigh_and_order_a_training_batch(patterns):
    with simulator(patterns, worlds=12) as simulation:
        batch = simulation.run_parallel_episodes(Fixed())
        assert len(batch) == 12
        rows = aggregate_parallel_experiences(batch)
        assert rows["batch_size"] == len(rows["rewards"]) == 72
        weighted = simulation.apply_importance_weights(rows)
        weights = simulation.orchestrator.calculate_world_weights(simulation.worlds)
        order = simulation.prioritize(rows)
        orchestrator = simulation.orchestrator
        again = [asyncio.run(orchestrator.run_parallel_episodes(Fixed(), 5, setting=SHORT))]
        orchestrator.adapt(again[0], rate=0.0)  # the same mix, and the worlds of the next generation
        again.append(asyncio.run(orchestrator.run_parallel_episodes(Fixed(), 5, setting=SHORT)))
    assert weighted["importance_weights"].mean() == pytest.approx(1.0)
    heaviest = max(weights, key=lambda world: weights[world] * rows["importance_weights"][6 * world])
    assert rows["worlds"][order[0]] == heaviest
    assert sorted(order.tolist()) == list(range(72))
    assert [len(episodes) for episodes in again] == [5, 5]
    assert all(one.context != other.context for one, other in zip(*again, strict=True))
    assert normalize_weights([1.0, 3.0]).tolist() == [0.25, 0.75]
    factors = np.array([[2.0, 3.0, 1.0, 1.5], [1.0, 3.0, 1.0, 1.5]])
    assert combine_weights(np.log(factors), WorldRule()).tolist() == pytest.approx([1.0, 0.5])  # over the largest


def test_invalid_arguments_are_refused(patterns):
    for arguments, text in (
        ({"n_worlds": 0}, "n_worlds 0 is too few"),
        ({"max_concurrent_worlds": 0}, "max_concurrent_worlds is 0"),
        ({"experience_buffer_size": 0}, "a buffer of capacity 0"),
        ({"deadline": 0.0}, "deadline is 0.0"),
        ({"world_types_distribution": {"odd": 1.0}}, "world type 'odd' is unknown"),
    ):
        with pytest.raises(ConfigError, match=text):
            MonteCarloSimulator(patterns=patterns, **arguments)
    with simulator(patterns, worlds=2) as simulation:
        with pytest.raises(ConfigError, match="batch_size is 0"):
            run(simulation, Fixed(), 0)
        with pytest.raises(ContractError, match="object does not act"):
            run(simulation, object())


@pytest.fixture(scope="module")
def imported_ray() -> None:
    """Import Ray before the test: it adds a folder of its own to sys.path, which no test may leave changed."""
    importlib.import_module("ray")


@pytest.mark.slow
@pytest.mark.usefixtures("imported_ray")
def test_worlds_on_ray_give_the_same_experiences_in_the_order_of_the_worlds(patterns):
    cluster = RayCluster(None, workers=2)
    try:
        for agent in (Fixed(), ExternalUpdateAgent(DQN((48,), 28, hidden=(8,)))):
            with simulator(patterns) as here, simulator(patterns, concurrent=5, cluster=cluster) as there:
                wanted, found = run(here, agent, 20), run(there, agent, 20)
            assert not found.failures
            assert [(e.world, e.lap) for e in found.experiences] == [(e.world, e.lap) for e in wanted.experiences]
            assert same(found.experiences, wanted.experiences)
            assert all(e.states.flags.writeable for e in found.experiences)
    finally:
        cluster.close()
