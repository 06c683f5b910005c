"""Does a text say that something is urgent, or that it is not? Whole words, with negation.

A negation holds from its word to the end of its clause, or for five words: "not in crisis", "no longer
urgent", "non-urgent", "not urgent or in crisis". A clause ends at punctuation and at words such as "but" and
"and". A few words negate what stands before them: "crisis-free", "the crisis was averted".

>>> Words(("crisis", "urgent", "high_priority")).find("Not in crisis, but High-Priority case")
'high_priority'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from parallel_agents.errors import ConfigError

__all__ = ["Words", "texts"]

_VERBS = ("is", "are", "was", "were", "does", "do", "did", "has", "have")
_NEGATIONS = {"not", "no", "non", "never", "without", "neither", "nor", "none", "nothing"} | {
    verb + ending for verb in _VERBS for ending in ("n't", "nt")
}
_AFTERWARDS = {"free", "averted", "resolved"}
_NO_NEGATION_BEFORE = {"only", "just", "merely", "simply", "doubt", "question"}  # "not only urgent but ..."
_BREAKS = {"but", "and", "however", "yet", "although", "though", "except"}
_REACH_BEFORE, _REACH_AFTER = 5, 3
_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[.,;:!?()\n]")


class Words:
    """Indicators to look for, words or phrases: "high_priority", "high-priority", "high priority" are one."""

    def __init__(self, indicators: Sequence[str]) -> None:
        if isinstance(indicators, str):
            raise ConfigError(f"indicators is the text {indicators!r}: give a sequence of words")
        self._phrases = [(word, tuple(_tokens(word))) for word in indicators]
        for word, phrase in self._phrases:
            if not phrase:
                raise ConfigError(f"indicator {word!r} holds no word: give letters or digits")

    def find(self, text: str) -> str | None:
        """The first indicator that the text affirms, or None."""
        for clause in _clauses(text):
            for start in range(len(clause)):
                for word, phrase in self._phrases:
                    end = start + len(phrase)
                    if tuple(clause[start:end]) == phrase and not _negated(clause, start, end):
                        return word
        return None


def _negated(clause: list[str], start: int, end: int) -> bool:
    for place in range(max(0, start - _REACH_BEFORE), start):
        if clause[place] in _NEGATIONS and clause[place + 1] not in _NO_NEGATION_BEFORE:
            return True
    after = set(clause[end : end + _REACH_AFTER])
    return bool(after & _AFTERWARDS) and not after & _NEGATIONS  # "crisis not resolved" is a crisis


def texts(content: object) -> Iterator[str]:
    """Every text within nested sequences and mappings, in an order that does not depend on that of mappings.

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
    return _TOKEN.findall(text.lower().replace("\u2019", "'"))


def _clauses(text: str) -> Iterator[list[str]]:
    clause: list[str] = []
    for token in _tokens(text):
        if token in _BREAKS or not token[0].isalnum():
            yield clause
            clause = []
        else:
            clause.append(token)
    yield clause
