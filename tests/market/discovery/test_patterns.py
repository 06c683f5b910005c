"""Patterns are unchanged by JSON; wrong files raise an error that names the place."""

from __future__ import annotations

import json

import pytest

from parallel_agents.core.errors import ConfigError
from parallel_agents.market.discovery import Patterns


def test_patterns_read_back_from_json_are_equal(patterns, tmp_path):
    assert Patterns.from_json(patterns.to_json()) == patterns
    patterns.save(tmp_path / "patterns.json")
    assert Patterns.load(tmp_path / "patterns.json") == patterns
    assert json.loads(patterns.to_json())["format"] == 2


def test_every_estimate_has_an_address_an_interval_and_a_source(patterns):
    found = patterns.estimates()
    assert len(found) > 300
    assert "segments/crisis_parent/share" in found
    for address, e in found.items():
        assert e.low <= e.value <= e.high, address
        assert e.source, address


def broken(patterns, change) -> str:
    data = json.loads(patterns.to_json())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.update(format=1), "not of format 2"),
        (lambda d: d.pop("hours"), "patterns lacks hours"),
        (lambda d: d.update(more=1), "unknown key patterns.more"),
        (lambda d: d["hours"].pop(), "hours has 23 entries, expected 24"),
        (
            lambda d: d["hours"][3].update(value="high"),
            r"patterns\.hours\[3\]\.value is 'high' \(str\): allowed is float",
        ),
        (lambda d: d["hours"][3].update(value=True), "value is True"),
        (lambda d: d["hours"][3].update(value=float("nan")), "is not finite"),
        (lambda d: d["hours"][3].update(scale="cubic"), "allowed is 'linear', 'log', 'logit'"),
        (lambda d: d.update(users=1.5), r"patterns\.users is 1.5 \(float\): allowed is int"),
        (lambda d: d.update(segments=[]), "there is no segment"),
        (lambda d: d.update(segments={}), r"patterns\.segments is {} \(dict\): allowed is tuple"),
        (lambda d: d.update(months=[]), r"patterns\.months is \[\] \(list\): allowed is Mapping"),
        (lambda d: d["periods"][0].update(landscape=99), "a period names landscape 99"),
        (lambda d: d["competition"]["competitors"]["novus"]["pacing"].pop(), "novus has 2 gains"),
        (lambda d: d["periods"][1]["effects"].pop("delay"), "the period from .* lacks delay"),
        (lambda d: d["segments"][1]["devices"].pop("ios"), "segment .* lacks ios"),
        (lambda d: d["segments"][1]["campaigns"].popitem(), "segment .* lacks "),
        (lambda d: d["competition"]["landscapes"][0]["level"].pop("novus"), "level in landscape 0 lacks novus"),
        (lambda d: d["competition"]["landscapes"][0]["participation"].pop("novus"), "landscape 0 lacks novus"),
        (lambda d: d["competition"]["landscapes"][0]["level"]["novus"].popitem(), "of novus in landscape 0 lacks "),
    ],
)
def test_a_wrong_value_raises_an_error_that_names_its_place(patterns, change, text):
    with pytest.raises(ConfigError, match=text):
        Patterns.from_json(broken(patterns, change))


def test_files_that_are_no_patterns_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="are not JSON"):
        Patterns.from_json("{")
    with pytest.raises(ConfigError, match="not of format"):
        Patterns.from_json("[]")
    for content, text in ((b"{", "are not JSON"), (b"[]", "are not of format 2"), (b"\xff", "are not text")):
        (tmp_path / "odd.json").write_bytes(content)
        with pytest.raises(
            ConfigError, match=rf"odd\.json.*{text}.*`parallel-agents market discover EXPORT --out FILE`"
        ):
            Patterns.load(tmp_path / "odd.json")
    with pytest.raises(ConfigError, match=r"none\.json do not exist: `parallel-agents market discover EXPORT"):
        Patterns.load(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="too large"):
        Patterns.from_json(" " * (64 * 2**20 + 1))
    with pytest.raises(ConfigError, match="no segment 'nobody' was found"):
        raise_for_nobody()


def raise_for_nobody() -> None:
    from dataclasses import fields

    empty = {f.name: () for f in fields(Patterns)}
    Patterns(**empty).segment("nobody")
