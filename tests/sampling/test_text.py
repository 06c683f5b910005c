from __future__ import annotations

import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.sampling import CRISIS_INDICATORS
from parallel_agents.sampling.text import Words, texts

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
def test_affirmed(text: str, found: str) -> None:
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
def test_absent_or_negated(text: str) -> None:
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
