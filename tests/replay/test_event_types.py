"""Event types of experiences: signals, words in texts, and the percentile of values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.core.errors import CheckpointError, ConfigError, ContractError, NonFiniteError
from parallel_agents.replay.event_types import (
    CRISIS_INDICATORS,
    Decision,
    ExperienceAggregator,
    RunningPercentile,
    Words,
    texts,
)


def about(**metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata, "value": 1.0}


def taught(values: Any = range(100), **options: Any) -> ExperienceAggregator:
    aggregator = ExperienceAggregator(**options)
    for value in values:
        aggregator.identify_event_type({"value": float(value)})
    return aggregator


def test_a_label_wins_over_everything_else() -> None:
    aggregator = taught()
    loud = {"profile": "urgent crisis", "campaign": "crisis"}
    labelled = {"event_type": "regular_parent", "metadata": loud, "value": 1e9}
    assert aggregator.decide(labelled) == Decision("regular_parent", "label", "labelled regular_parent")
    assert aggregator.decide({"metadata": {"event_type": "crisis_parent"}}).event_type == "crisis_parent"
    assert aggregator.decide({"event_type": None, "metadata": loud}).signal == "profile"


@pytest.mark.parametrize(
    ("experience", "signal"),
    [
        (about(profile="family in crisis"), "profile"),
        (about(user_profile={"notes": ["calm", "high priority"]}), "profile"),
        (about(profile={"emergency": True}), "profile"),
        (about(behaviour={"crisis_content_engagement": 0.5}), "behaviour"),
        (about(behavior={"crisis_content_engagement": 0.9}), "behaviour"),
        (about(behaviour={"searches": ["pizza", "help teenager asap"]}), "behaviour"),
        (about(behaviour={"urgent_searches": 1}), "behaviour"),
        (about(campaign={"name": "Spring", "audience": "crisis_parent"}), "campaign"),
        (about(campaign_context={"crisis": True}), "campaign"),
        (about(profile="calm", campaign="crisis support"), "campaign"),
        ({"value": 99.5}, "value"),
        ({"reward": 99.5}, "value"),
    ],
)
def test_each_signal_decides_and_says_so(experience: dict[str, Any], signal: str) -> None:
    decision = taught().decide(experience)
    assert (decision.event_type, decision.signal) == ("crisis_parent", signal)


@pytest.mark.parametrize(
    "experience",
    [
        {},
        about(profile="not in crisis"),
        about(profile="no longer urgent"),
        about(profile={"priority": "non-urgent", "crisis": False}),
        about(behaviour={"crisis_content_engagement": 0.49, "searches": ["not urgent"], "urgent_searches": 0}),
        about(behaviour={"content": "crisis"}),
        about(campaign={"name": "not crisis related"}),
        {"metadata": None, "value": 50.0},
        {"value": 0.0, "reward": 1e9},  # value 0.0 is a value
    ],
)
def test_without_a_signal_an_experience_is_regular(experience: dict[str, Any]) -> None:
    assert taught().decide(experience) == Decision("regular_parent", "none", "no signal")


def test_earlier_signals_come_first() -> None:
    everything = about(profile="urgent", behaviour={"urgent_searches": 5}, campaign="crisis", value=1e9)
    order = []
    for remaining in (
        ("profile", "behaviour", "campaign", "value"),
        ("value", "campaign", "behaviour"),
        ("value", "campaign"),
    ):
        order.append(taught(signals=remaining).decide({**everything, "value": 1e9}).signal)
    assert order == ["profile", "behaviour", "campaign"]
    assert taught(signals=()).decide({**everything, "value": 1e9}).signal == "none"


def test_details_name_what_was_found() -> None:
    aggregator = taught()
    assert aggregator.decide(about(profile="it is urgent")).detail == "urgent in 'it is urgent'"
    assert aggregator.decide(about(behaviour={"urgent_searches": 2})).detail == "2 urgent searches"
    assert aggregator.decide({"value": 99.5}).detail == "value 99.5 above 89.1, percentile 90"


def test_every_kind_of_signal_can_be_configured() -> None:
    aggregator = ExperienceAggregator(
        crisis_indicators=["meltdown"],
        search_indicators=["therapist"],
        campaign_indicators=["relief"],
        engagement_threshold=0.8,
        urgent_searches_threshold=2,
    )
    assert aggregator.decide(about(profile="crisis")).signal == "none"
    assert aggregator.decide(about(profile="a meltdown")).signal == "profile"
    assert aggregator.decide(about(campaign="meltdown")).signal == "none"
    assert aggregator.decide(about(campaign="relief fund")).signal == "campaign"
    assert aggregator.decide(about(behaviour={"crisis_content_engagement": 0.7})).signal == "none"
    assert aggregator.decide(about(behaviour={"searches": ["therapist near me"]})).signal == "none"
    assert aggregator.decide(about(behaviour={"searches": ["therapist"] * 2})).signal == "behaviour"


def test_the_threshold_is_learned_from_the_data_whatever_its_scale() -> None:
    rng = np.random.default_rng(0)
    for scale in (1e-6, 1.0, 1e6):
        aggregator = ExperienceAggregator(value_threshold_percentile=90.0)
        values = rng.lognormal(size=3000) * scale
        types = [aggregator.identify_event_type({"value": v}) for v in values]
        assert np.mean([t == "crisis_parent" for t in types]) == pytest.approx(0.1, abs=0.02)
        assert aggregator.value_threshold == pytest.approx(np.percentile(values, 90))
    assert taught(range(9)).value_threshold is None
    assert taught(range(9)).decide({"value": 1e9}).signal == "none"


def test_ties_at_the_threshold_are_not_rare() -> None:
    assert taught([0.0] * 100).decide({"value": 0.0}).signal == "none"


def test_explaining_teaches_nothing_and_identifying_teaches_once() -> None:
    aggregator = taught(range(50))
    before = aggregator.state()["values"].tolist()
    aggregator.decide({"value": 7.0})
    assert aggregator.state()["values"].tolist() == before
    aggregator.identify_event_type({"value": 7.0, "event_type": "crisis_parent"})
    assert aggregator.state()["values"].tolist() == [*before, 7.0]
    aggregator.identify_event_type({})
    assert len(aggregator.state()["values"]) == 51


def test_a_stored_aggregator_goes_on_as_if_never_stored() -> None:
    aggregator, copy = taught(range(30)), ExperienceAggregator()
    copy.load_state(aggregator.state())
    assert copy.decide({"value": 27.0}) == aggregator.decide({"value": 27.0})
    assert copy.value_threshold == aggregator.value_threshold
    with pytest.raises(CheckpointError, match="finite numbers"):
        copy.load_state({"values": np.array([np.nan])})


def test_bad_input_is_named_and_teaches_nothing() -> None:
    aggregator = taught(range(20))
    bad: list[tuple[Any, type[Exception], str]] = [
        ({"event_type": "vip"}, ContractError, "unknown event type 'vip': known are crisis_parent"),
        ({"value": float("nan")}, NonFiniteError, "value is nan"),
        ({"event_type": "crisis_parent", "value": float("nan")}, NonFiniteError, "value is nan"),
        ({"value": "much"}, ContractError, "value is 'much': give a number"),
        ({"metadata": "crisis"}, ContractError, "metadata is a str"),
        (about(behaviour="urgent"), ContractError, "behaviour is a str"),
        (about(behaviour={"urgent_searches": "x"}), ContractError, "urgent_searches is 'x'"),
        ([1, 2], ContractError, "an experience is a list"),
    ]
    for experience, error, message in bad:
        with pytest.raises(error, match=message):
            aggregator.identify_event_type(experience)
        with pytest.raises(error, match=message):
            aggregator.decide(experience)
    assert len(aggregator.state()["values"]) == 20


def test_options_that_cannot_work_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown signals weather"):
        ExperienceAggregator(signals=("weather",))
    with pytest.raises(ConfigError, match="must hold crisis_parent and regular_parent"):
        ExperienceAggregator(event_types=("crisis_parent",))
    with pytest.raises(ConfigError, match=r"engagement_threshold 0.0 must lie in \(0, 1\]"):
        ExperienceAggregator(engagement_threshold=0.0)
    with pytest.raises(ConfigError, match="percentile is 0"):
        ExperienceAggregator(value_threshold_percentile=0.0)
    wider = ExperienceAggregator(event_types=("crisis_parent", "regular_parent", "researcher"))
    assert wider.identify_event_type({"event_type": "researcher"}) == "researcher"


# -- words in texts ---------------------------------------------------------------------------------------------


WORDS = Words(CRISIS_INDICATORS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("family in CRISIS", "crisis"),
        ("crisis_parent", "crisis"),
        ("this is an emergency!", "emergency"),
        ("High-Priority", "high_priority"),
        ("high priority", "high_priority"),
        ("high_priority_case", "high_priority"),
        ("not only urgent but dire", "urgent"),
        ("no doubt urgent", "urgent"),
        ("not employed, in crisis", "crisis"),
        ("not employed and in crisis", "crisis"),
        ("does not sleep. urgent.", "urgent"),
        ("never seen anyone take so long to answer an emergency", "emergency"),
        ("crisis not resolved", "crisis"),
        ("crisis-free last year, urgent today", "urgent"),
    ],
)
def test_an_affirmed_indicator_is_found(text: str, found: str) -> None:
    assert WORDS.find(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "calm",
        "crisiscore",
        "nonurgent",
        "insurgent",
        "priority high",
        "not in crisis",
        "Not currently in any crisis",
        "no longer urgent",
        "non-urgent",
        "non urgent",
        "without crisis",
        "never an emergency",
        "isn't urgent",
        "isn\u2019t urgent",
        "not urgent or in crisis",
        "neither urgent nor an emergency",
        "nothing urgent",
        "crisis-free",
        "the crisis was averted",
        "crisis has been resolved",
        "not high-priority",
    ],
)
def test_an_absent_or_negated_indicator_is_not_found(text: str) -> None:
    assert WORDS.find(text) is None


def test_nested_texts_come_in_an_order_of_their_own() -> None:
    one = {"b": ["x", {"urgent": True, "calm": False}], "a": "y", "n": 3, "none": None, "s": {"q", "p"}}
    two = dict(reversed(list(one.items())))
    assert list(texts(one)) == list(texts(two)) == ["y", "x", "urgent", "p", "q"]


def test_indicators_must_be_words() -> None:
    with pytest.raises(ConfigError, match="indicators is the text 'crisis'"):
        Words("crisis")
    with pytest.raises(ConfigError, match="indicator '_' holds no word"):
        Words(["_"])


# -- running percentile -----------------------------------------------------------------------------------------


@given(
    values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=80),
    percentile=st.floats(1, 99),
    window=st.integers(2, 40),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_running_percentile_is_the_exact_percentile_of_the_last_values(
    values: list[float], percentile: float, window: int
) -> None:
    running = RunningPercentile(percentile, window)
    for number, value in enumerate(values, 1):
        running.add(value)
        latest = values[max(0, number - window) : number]
        found = running.value()
        assert len(running) == len(latest)
        if len(latest) < running.enough:
            assert found is None
        else:
            assert found == pytest.approx(np.percentile(latest, percentile), rel=1e-9, abs=1e-6)


def test_there_are_enough_values_when_one_value_is_expected_beyond() -> None:
    assert [RunningPercentile(p).enough for p in (90.0, 99.0, 50.0, 10.0, 95.0)] == [10, 100, 2, 10, 20]


def test_a_running_percentile_follows_a_stream_that_changes() -> None:
    running = RunningPercentile(90.0, window=1000)
    rng = np.random.default_rng(0)
    for value in rng.normal(0, 1, 3000):
        running.add(value)
    before = running.value()
    for value in rng.normal(100, 1, 1000):
        running.add(value)
    assert before == pytest.approx(1.28, abs=0.2)
    assert running.value() == pytest.approx(101.28, abs=0.2)


def test_a_stored_percentile_goes_on_as_if_never_stored() -> None:
    running, copy = RunningPercentile(70.0, 50), RunningPercentile(70.0, 50)
    values = np.random.default_rng(0).random(200)
    for value in values[:120]:
        running.add(value)
    copy.load_state(running.state())
    for value in values[120:]:
        running.add(value)
        copy.add(value)
        assert copy.value() == running.value()


def test_bad_input_changes_no_percentile() -> None:
    running = RunningPercentile(50.0, 3)
    running.add(1.0)
    with pytest.raises(NonFiniteError, match="value nan has no place"):
        running.add(float("nan"))
    with pytest.raises(CheckpointError, match="not at most 3 finite numbers"):
        running.load_state({"values": np.arange(4.0)})
    with pytest.raises(CheckpointError, match="not at most 3 finite numbers"):
        running.load_state({})
    assert running.state()["values"].tolist() == [1.0]
    with pytest.raises(ConfigError, match="percentile is 100"):
        RunningPercentile(100.0)
    with pytest.raises(ConfigError, match="a window of 1 values"):
        RunningPercentile(50.0, 1)
