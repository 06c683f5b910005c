"""`ExperienceAggregator`: say what kind of event an experience is, and which of its signals decides.

    label -> profile words -> behaviour -> campaign -> value -> regular

The first signal that applies decides. A label is taken as it is. The next three read the metadata. The value is
compared with a percentile of the values seen so far, so that nothing is assumed about its scale.

Texts are searched for whole words, with negation. A negation holds from its word to the end of its clause, or for five
words: "not in crisis", "no longer urgent", "non-urgent", "not urgent or in crisis". A clause ends at punctuation and at
words such as "but" and "and". A few words negate what stands before them: "crisis-free", "the crisis was averted".

>>> aggregator = ExperienceAggregator()
>>> aggregator.identify_event_type({"metadata": {"profile": "needs help, urgent"}, "value": 3.0})
'crisis_parent'
>>> aggregator.decide({"metadata": {"profile": "not in crisis"}, "value": 3.0})
Decision(event_type='regular_parent', signal='none', detail='no signal')
>>> Words(("crisis", "urgent", "high_priority")).find("Not in crisis, but High-Priority case")
'high_priority'
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError, ContractError, CorruptCheckpoint, NonFiniteError
from parallel_agents.replay.importance_sampler import CRISIS_PARENT, REGULAR_PARENT

CRISIS_INDICATORS = ("crisis", "urgent", "emergency", "high_priority")
SIGNALS = ("profile", "behaviour", "campaign", "value")

_SEARCH_INDICATORS = ("immediately", "right_now", "asap", "hotline")  # beside the crisis indicators
_SPELLINGS = {
    "profile": ("profile", "user_profile"),
    "behaviour": ("behaviour", "behavior", "user_behaviour", "user_behavior"),
    "campaign": ("campaign", "campaign_context"),
}
_VERBS = ("is", "are", "was", "were", "does", "do", "did", "has", "have")
_NEGATIONS = {"not", "no", "non", "never", "without", "neither", "nor", "none", "nothing"} | {
    verb + ending for verb in _VERBS for ending in ("n't", "nt")
}
_AFTERWARDS = {"free", "averted", "resolved"}
_NO_NEGATION_BEFORE = {"only", "just", "merely", "simply", "doubt", "question"}  # "not only urgent but ..."
_BREAKS = {"but", "and", "however", "yet", "although", "though", "except"}
_REACH_BEFORE, _REACH_AFTER = 5, 3
_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[.,;:!?()\n]")


class Decision(NamedTuple):
    """An event type, the signal that decided ("label", one of SIGNALS, or "none") and what it found."""

    event_type: str
    signal: str
    detail: str


class ExperienceAggregator:
    """Classifies experiences: mappings with an optional `event_type`, `metadata`, `value` and `reward`.

    Metadata may hold a `profile` (texts, in any nesting), a `behaviour` (`crisis_content_engagement` from 0 to 1,
    `urgent_searches` as a count, `searches` as texts) and a `campaign` (texts, or flags that are True). `signals` names
    the signals to use; indicator words can be given for each kind of text. The value is `value`, or `reward` if there
    is none; it decides if it lies above the percentile of earlier values.
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
        campaign_words = words if campaign_indicators is None else Words(campaign_indicators)
        self._search_words = Words(
            (*crisis_indicators, *_SEARCH_INDICATORS) if search_indicators is None else search_indicators
        )
        self._engagement, self._searches = engagement_threshold, urgent_searches_threshold
        self._event_types = tuple(event_types)
        self._values = RunningPercentile(value_threshold_percentile, window)
        readers: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
            "profile": partial(_affirmed, "profile", words),
            "behaviour": self._behaviour,
            "campaign": partial(_affirmed, "campaign", campaign_words),
            "value": self._value,
        }
        self._readers = [(name, readers[name]) for name in SIGNALS if name in signals]

    def identify_event_type(self, experience: Mapping[str, Any]) -> str:
        """Return the event type of an experience, and add its value to the running percentile."""
        decision = self.decide(experience)
        value = _value_of(experience)
        if value is not None:
            self._values.add(value)
        return decision.event_type

    def decide(self, experience: Mapping[str, Any]) -> Decision:
        """Return the event type and the signal that decided; nothing is learned from the experience."""
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
        """The percentile that values are compared with; None until there are enough values."""
        return self._values.value()

    def state(self) -> dict[str, Any]:
        """Return the values behind the percentile: all that is learned."""
        return self._values.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the values by what `state` returned; raise if they do not fit."""
        self._values.load_state(state)

    def _behaviour(self, experience: Mapping[str, Any]) -> str | None:
        """Return the crisis behaviour: engagement with crisis content, or urgent searches."""
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
        """Return the value and the percentile, if the value lies above it."""
        value, threshold = _value_of(experience), self._values.value()
        if value is None or threshold is None or value <= threshold:
            return None
        return f"value {value:g} above {threshold:g}, percentile {self._values.percentile:g}"


def _affirmed(kind: str, words: Words, experience: Mapping[str, Any]) -> str | None:
    """Return the first indicator that a part of the metadata affirms, with its text; None if there is none."""
    for text in texts(_part(experience, kind)):
        word = words.find(text)
        if word is not None:
            return f"{word} in {text!r}"
    return None


def _metadata_of(experience: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of an experience, {} if there are none."""
    metadata = experience.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise ContractError(f"metadata is a {type(metadata).__name__}: give a mapping")
    return metadata


def _part(experience: Mapping[str, Any], kind: str) -> Any:
    """Return a part of the metadata, under any of its spellings; None if there is none."""
    metadata = _metadata_of(experience)
    return next((metadata[name] for name in _SPELLINGS[kind] if metadata.get(name) is not None), None)


def _value_of(experience: Mapping[str, Any]) -> float | None:
    """Return the value, which may be 0.0; the reward only if there is no value."""
    for name in ("value", "reward"):
        if experience.get(name) is not None:
            return _number(name, experience[name])
    return None


def _number(name: str, value: Any) -> float:
    """Return a value as a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ContractError(f"{name} is {value!r}: give a number") from None
    if not math.isfinite(number):
        raise NonFiniteError(f"{name} is {number}: give a finite number")
    return number


# -- words in texts -------------------------------------------------------------------------------------------


class Words:
    """Words or phrases to look for; "high_priority", "high-priority" and "high priority" are the same."""

    def __init__(self, indicators: Sequence[str]) -> None:
        if isinstance(indicators, str):
            raise ConfigError(f"indicators is the text {indicators!r}: give a sequence of words")
        self._phrases = [(word, tuple(_tokens(word))) for word in indicators]
        for word, phrase in self._phrases:
            if not phrase:
                raise ConfigError(f"indicator {word!r} holds no word: give letters or digits")

    def find(self, text: str) -> str | None:
        """Return the first indicator that the text affirms, or None."""
        for clause in _clauses(text):
            for start in range(len(clause)):
                for word, phrase in self._phrases:
                    end = start + len(phrase)
                    if tuple(clause[start:end]) == phrase and not _negated(clause, start, end):
                        return word
        return None


def _negated(clause: list[str], start: int, end: int) -> bool:
    """Return whether the words start .. end - 1 of a clause are negated."""
    for place in range(max(0, start - _REACH_BEFORE), start):
        if clause[place] in _NEGATIONS and clause[place + 1] not in _NO_NEGATION_BEFORE:
            return True
    after = set(clause[end : end + _REACH_AFTER])
    return bool(after & _AFTERWARDS) and not after & _NEGATIONS  # "crisis not resolved" is a crisis


def texts(content: object) -> Iterator[str]:
    """Yield every text within nested sequences and mappings; the order of mappings does not matter.

    A key counts as a text where its value is True: {"urgent": True} says urgent, {"urgent": False} does not.
    """
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping):
        for key in sorted(content, key=str):
            if content[key] is True:
                yield str(key)
            else:
                yield from texts(content[key])
    elif isinstance(content, AbstractSet):
        yield from (text for item in sorted(content, key=str) for text in texts(item))
    elif isinstance(content, Sequence):
        for item in content:
            yield from texts(item)


def _tokens(text: str) -> list[str]:
    """Return words and punctuation marks in lower case."""
    return _TOKEN.findall(text.lower().replace("\u2019", "'"))


def _clauses(text: str) -> Iterator[list[str]]:
    """Yield the words of each clause."""
    clause: list[str] = []
    for token in _tokens(text):
        if token in _BREAKS or not token[0].isalnum():
            yield clause
            clause = []
        else:
            clause.append(token)
    yield clause


# -- a percentile of a stream ---------------------------------------------------------------------------------


class RunningPercentile:
    """The percentile of the last `window` values: exact, bounded in memory, and the same on every run.

    >>> running = RunningPercentile(50.0)
    >>> for value in (3.0, 1.0, 2.0, 10.0):
    ...     running.add(value)
    >>> running.value()
    2.5
    """

    def __init__(self, percentile: float, window: int = 10_000) -> None:
        if not 0.0 < percentile < 100.0:
            raise ConfigError(f"percentile is {percentile}: give a number between 0 and 100")
        if window < 2:
            raise ConfigError(f"a window of {window} values has no percentile: give at least 2")
        self.percentile = percentile
        self._window = window
        self._arrived: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._arrived)

    @property
    def enough(self) -> int:
        """How many values are needed until one of them is expected to lie beyond the percentile."""
        tail = min(self.percentile, 100.0 - self.percentile)
        return min(self._window, math.ceil(round(100.0 / tail, 9)))

    def add(self, value: float) -> None:
        """Add one value; the oldest one beyond the window is dropped."""
        if not math.isfinite(value):
            raise NonFiniteError(f"value {value} has no place in a percentile: give a finite number")
        if len(self._arrived) == self._window:
            del self._sorted[bisect_left(self._sorted, self._arrived.popleft())]
        self._arrived.append(value)
        insort(self._sorted, value)

    def value(self) -> float | None:
        """Return the percentile, interpolated between the two values around it; None until there are enough values."""
        if len(self) < self.enough:
            return None
        place = self.percentile / 100.0 * (len(self) - 1)
        below = math.floor(place)
        above = min(below + 1, len(self) - 1)
        low, high = self._sorted[below], self._sorted[above]
        return low if low == high else low + (high - low) * (place - below)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the values in order of arrival."""
        return {"values": np.array(self._arrived, np.float64)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the values by stored ones; raise if they do not fit."""
        values = np.asarray(state.get("values", np.nan), np.float64)
        if values.ndim != 1 or len(values) > self._window or not np.isfinite(values).all():
            raise CorruptCheckpoint(
                f"stored values of shape {values.shape} are not at most {self._window} finite numbers"
            )
        self._arrived = deque(values.tolist())
        self._sorted = sorted(self._arrived)
