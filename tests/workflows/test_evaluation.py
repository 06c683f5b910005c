"""The challenge's score, defenders under an order, and an episode turn by turn."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Purpose
from parallel_agents.workflows.blue_policies import OrderScript, op_once, play, react_restore, sleep
from parallel_agents.workflows.evaluation import evaluate_in_order, markdown, record_episode, score, score_table
from parallel_agents.workflows.network import NetworkWorlds, action_id
from parallel_agents.workflows.trainer import effective_orders


def test_the_total_is_the_sum_of_nine_means() -> None:
    result = score(lambda _: react_restore, "head", episodes=40)
    assert result.total == pytest.approx(sum(sum(means) for means in result.means.values()))
    worlds = NetworkWorlds(40, red="Meander", seed=0, purpose=Purpose.EVALUATION_WORLD)
    rewards = play(worlds, react_restore, 0)
    expected = tuple(rewards[:n].sum(axis=0).mean() for n in (30, 50, 100))
    assert result.means["Meander"] == pytest.approx(expected)
    assert result.errors["Meander"][2] == pytest.approx(rewards.sum(axis=0).std(ddof=1) / np.sqrt(40))
    assert result.total_error > 0
    assert result.as_json()["means"]["Sleep"] == (0.0, 0.0, 0.0)


def test_the_table_has_both_versions_with_and_without_the_quirk() -> None:
    table = score_table(lambda _: sleep, episodes=4)
    assert list(table) == [
        "leaderboard", "leaderboard, service stays killable", "head", "head, service stays killable",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="at least two are needed"):
        score(lambda _: sleep, episodes=1)


@pytest.mark.parametrize("red", ["B_line", "Meander"])
def test_the_script_obeys_every_order(red: str) -> None:
    """All 24 orders that differ, by both measures, with a useful return."""
    worlds = NetworkWorlds(40, red=red)
    for order in effective_orders():
        result = evaluate_in_order(OrderScript(order), order, worlds)
        assert (result.compliance, result.documented) == (1.0, 1.0)
        assert -80.0 < result.value == result.script < -45.0
        assert result.learnt()


DEGENERATE = {
    "Remove Enterprise1": 0.05, "Remove Op_Server0": 0.0, "Remove User1": 0.05, "Analyse Op_Host1": 0.0, "Sleep": 0.0,
    "Restore Enterprise1": 0.25, "Restore User1": 0.3, "Restore Op_Server0": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("red", ["B_line", "Meander"])
def test_the_same_action_for_ever_is_no_defence(name: str, red: str) -> None:
    """By the documented measure a repair of the first type is always compliant, whatever it is worth."""
    action = np.full(30, action_id(*name.split(" ")))
    worlds = NetworkWorlds(30, red=red)
    results = [evaluate_in_order(lambda *_: action, order, worlds) for order in effective_orders()[::5]]
    assert max(result.compliance for result in results) <= DEGENERATE[name]
    assert not any(result.learnt() for result in results)
    if name.startswith("Remove"):
        kind = {"Enterprise1": "enterprise", "Op_Server0": "op_server", "User1": "user"}[name.split(" ")[1]]
        first = next(order for order in effective_orders() if order[0] == kind)
        assert evaluate_in_order(lambda *_: action, first, worlds).documented == 1.0


def test_the_table_in_markdown_has_intervals() -> None:
    table = score_table(lambda _: op_once, episodes=3)
    lines = markdown(table).splitlines()
    assert lines[0].startswith("| game | total | B_line 30 | B_line 50 | B_line 100 | Meander 30")
    assert lines[2].endswith("| -1.00 ± 0.00 | -1.00 ± 0.00 | -1.00 ± 0.00 |")
    low, high = table["head"].as_json()["interval"]
    assert low < table["head"].total < high


def test_an_episode_is_recorded_turn_by_turn_after_a_late_start() -> None:
    worlds = NetworkWorlds(2, red="B_line", steps=40, late_start=25)
    episode = record_episode(worlds, react_restore)
    expected = play(worlds, react_restore, 0)[:, 0]
    np.testing.assert_allclose(episode.costs, -expected)
    assert (episode.first_turn, len(episode.actions), episode.access.shape) == (25, 15, (16, 13))
    assert episode.access[0].sum() > 2  # red has been at work
    assert episode.actions[0].startswith("Restore")
