"""What kind of event an experience is, and which of its signals says so.

    label -> profile words -> behaviour -> campaign -> value -> regular

The first signal that speaks decides. A label is taken as it is; the next three read the metadata; the value
is compared with a percentile of the values seen so far, so that nothing is assumed about its scale.

>>> aggregator = ExperienceAggregator()
>>> aggregator.identify_event_type({"metadata": {"profile": "needs help, urgent"}, "value": 3.0})
'crisis_parent'
>>> aggregator.decide({"metadata": {"profile": "not in crisis"}, "value": 3.0})
Decision(event_type='regular_parent', signal='none', detail='no signal')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from parallel_agents.errors import ConfigError, ContractError, NonFiniteError
from parallel_agents.sampling.quantile import RunningPercentile
from parallel_agents.sampling.rule import CRISIS_PARENT, REGULAR_PARENT
from parallel_agents.sampling.text import Words, texts

__all__ = ["CRISIS_INDICATORS", "SIGNALS", "Decision", "ExperienceAggregator"]

CRISIS_INDICATORS = ("crisis", "urgent", "emergency", "high_priority")
SIGNALS = ("profile", "behaviour", "campaign", "value")

_SEARCH_INDICATORS = ("immediately", "right_now", "asap", "hotline")  # beside the crisis indicators
_SPELLINGS = {
    "profile": ("profile", "user_profile"),
    "behaviour": ("behaviour", "behavior", "user_behaviour", "user_behavior"),
    "campaign": ("campaign", "campaign_context"),
}


class Decision(NamedTuple):
    """An event type, the signal that decided ("label", one of SIGNALS, or "none") and what was found."""

    event_type: str
    signal: str
    detail: str


class ExperienceAggregator:
    """Classifies experiences: mappings with an optional `event_type`, `metadata`, `value` and `reward`.

    Metadata may hold a `profile` (texts, nested as you like), a `behaviour` (`crisis_content_engagement`
    from 0 to 1, `urgent_searches` as a count, `searches` as texts) and a `campaign` (texts, or flags that
    are True). `signals` names those to use; indicator words can be given for each kind of text. The value is
    `value`, or `reward` where there is none; it speaks if it lies above the percentile of earlier values.
    """

    def __init__(
        self,
        crisis_indicators: Sequence[str] = CRISIS_INDICATORS,
        value_threshold_percentile: float = 90.0,
        *,
        search_indicators: Sequence[str] | None = None,
        campaign_indicators: Sequence[str] | None = None,
        engagement_threshold: float = 0.5,
        urgent_searches_threshold: int = 1,
        signals: Sequence[str] = SIGNALS,
        event_types: Sequence[str] = (CRISIS_PARENT, REGULAR_PARENT),
        window: int = 10_000,
    ) -> None:
        unknown = sorted(set(signals) - set(SIGNALS))
        if unknown:
            raise ConfigError(f"unknown signals {', '.join(unknown)}: known are {', '.join(SIGNALS)}")
        if not {CRISIS_PARENT, REGULAR_PARENT} <= set(event_types):
            raise ConfigError(f"event_types {list(event_types)} must hold {CRISIS_PARENT} and {REGULAR_PARENT}")
        if not (0.0 < engagement_threshold <= 1.0 and urgent_searches_threshold >= 1):
            raise ConfigError(
                f"engagement_threshold {engagement_threshold} must lie in (0, 1] "
                f"and urgent_searches_threshold {urgent_searches_threshold} be at least 1"
            )
        words = Words(crisis_indicators)
        self._profile_words = words
        self._campaign_words = words if campaign_indicators is None else Words(campaign_indicators)
        self._search_words = Words(
            (*crisis_indicators, *_SEARCH_INDICATORS) if search_indicators is None else search_indicators
        )
        self._engagement, self._searches = engagement_threshold, urgent_searches_threshold
        self._event_types = tuple(event_types)
        self._values = RunningPercentile(value_threshold_percentile, window)
        readers: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
            "profile": self._profile,
            "behaviour": self._behaviour,
            "campaign": self._campaign,
            "value": self._value,
        }
        self._readers = [(name, readers[name]) for name in SIGNALS if name in signals]

    def identify_event_type(self, experience: Mapping[str, Any]) -> str:
        """The event type of an experience; its value is then taken into the running percentile."""
        decision = self.decide(experience)
        value = _value_of(experience)
        if value is not None:
            self._values.add(value)
        return decision.event_type

    def decide(self, experience: Mapping[str, Any]) -> Decision:
        """The event type, with the signal that decided; nothing is learned from the experience."""
        if not isinstance(experience, Mapping):
            raise ContractError(f"an experience is a {type(experience).__name__}: give a mapping such as a dict")
        metadata = _metadata_of(experience)
        _value_of(experience)  # a broken value is an error even where another signal decides
        label = experience.get("event_type", metadata.get("event_type"))
        if label is not None:
            if label not in self._event_types:
                raise ContractError(f"unknown event type {label!r}: known are {', '.join(self._event_types)}")
            return Decision(label, "label", f"labelled {label}")
        for signal, reader in self._readers:
            detail = reader(experience)
            if detail is not None:
                return Decision(CRISIS_PARENT, signal, detail)
        return Decision(REGULAR_PARENT, "none", "no signal")

    @property
    def value_threshold(self) -> float | None:
        """The percentile that values are compared with; None until enough were seen."""
        return self._values.value()

    def state(self) -> dict[str, Any]:
        """The values behind the percentile: all that is learned."""
        return self._values.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a stored state, checked first."""
        self._values.load_state(state)

    def _profile(self, experience: Mapping[str, Any]) -> str | None:
        return _first(self._profile_words, _part(experience, "profile"))

    def _campaign(self, experience: Mapping[str, Any]) -> str | None:
        return _first(self._campaign_words, _part(experience, "campaign"))

    def _behaviour(self, experience: Mapping[str, Any]) -> str | None:
        behaviour = _part(experience, "behaviour")
        if behaviour is None:
            return None
        if not isinstance(behaviour, Mapping):
            raise ContractError(f"behaviour is a {type(behaviour).__name__}: give a mapping")
        engagement = _number("crisis_content_engagement", behaviour.get("crisis_content_engagement", 0.0))
        if engagement >= self._engagement:
            return f"engagement {engagement:g} with crisis content"
        urgent = sum(self._search_words.find(text) is not None for text in texts(behaviour.get("searches")))
        count = max(urgent, _number("urgent_searches", behaviour.get("urgent_searches", 0)))
        return f"{count:g} urgent searches" if count >= self._searches else None

    def _value(self, experience: Mapping[str, Any]) -> str | None:
        value, threshold = _value_of(experience), self._values.value()
        if value is None or threshold is None or value <= threshold:
            return None
        return f"value {value:g} above {threshold:g}, percentile {self._values.percentile:g}"


def _first(words: Words, content: object) -> str | None:
    """The indicator that the texts of a content affirm, with the text it stands in."""
    for text in texts(content):
        word = words.find(text)
        if word is not None:
            return f"{word} in {text!r}"
    return None


def _metadata_of(experience: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = experience.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise ContractError(f"metadata is a {type(metadata).__name__}: give a mapping")
    return metadata


def _part(experience: Mapping[str, Any], kind: str) -> Any:
    metadata = _metadata_of(experience)
    return next((metadata[name] for name in _SPELLINGS[kind] if metadata.get(name) is not None), None)


def _value_of(experience: Mapping[str, Any]) -> float | None:
    """The value, 0.0 included; the reward only where there is no value."""
    for name in ("value", "reward"):
        if experience.get(name) is not None:
            return _number(name, experience[name])
    return None


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ContractError(f"{name} is {value!r}: give a number") from None
    if not math.isfinite(number):
        raise NonFiniteError(f"{name} is {number}: give a finite number")
    return number
