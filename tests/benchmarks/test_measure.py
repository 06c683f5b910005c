"""Rows compare equal work: both sides are counted, and a row whose counts differ has failed."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest

from benchmarks.measure import Done, Effort, Measured, Row, Side, compare, measure, rate, ratio_of


def side(name: str, seconds: float, **counts: int) -> Side:
    return Side(name, f"what {name} does", lambda: Done(counts, seconds=seconds))


def row(**fields: object) -> Row:
    return Row(**{"name": "a row", "ratio": 1.0, "goal": None, "unit": "times as fast", "repeats": 1} | fields)  # type: ignore[arg-type]


def test_a_row_of_equal_work_names_both_sides_and_their_counts() -> None:
    found = compare("draws", side("theirs", 6.0, draws=256), side("ours", 2.0, draws=256), goal=2.0, repeats=3)
    assert found.ratio == 3.0
    assert found.good
    assert [(own.name, own.work, own.counts) for own in found.sides] == [
        ("theirs", "what theirs does", {"draws": 256}),
        ("ours", "what ours does", {"draws": 256}),
    ]


def test_a_row_whose_sides_do_unequal_work_fails_whatever_its_ratio() -> None:
    """A draw set beside a draw with priority update, as the importance row once was."""
    theirs = side("theirs", 100.0, draws=256, priority_updates=256)
    found = compare("draws", theirs, side("ours", 1.0, draws=256), goal=5.0, repeats=1)
    assert found.ratio is None
    assert not found.good
    assert found.failed == ("unequal work: theirs did {'draws': 256, 'priority_updates': 256}, ours did {'draws': 256}")


def test_a_side_that_does_less_from_call_to_call_is_refused() -> None:
    left = itertools.count(10, -1)
    with pytest.raises(ValueError, match=r"ours did \{'updates': 9\}, but at first \{'updates': 10\}"):
        measure([Side("ours", "fewer each time", lambda: Done({"updates": next(left)}))], repeats=2)


def test_sides_are_measured_in_turn_and_in_changing_order() -> None:
    said: list[str] = []

    def speaking(name: str) -> Side:
        return Side(name, "", lambda: said.append(name) or Done({"calls": 1}))  # type: ignore[func-returns-value]

    measure([speaking("a"), speaking("b")], repeats=3)
    assert "".join(said) == "ab" + "ab" + "ba" + "ab"  # the first of each is not counted


def test_the_clock_is_read_around_the_calls_and_divided_by_them() -> None:
    ticks = iter([0.0, 1.0, 10.0, 16.0, 20.0, 32.0])  # the first call takes 1 and is not counted
    (found,) = measure([Side("s", "", lambda: Done({"calls": 1}))], repeats=2, calls=3, clock=lambda: next(ticks))
    assert (found.lowest, found.seconds, found.highest) == (2.0, 3.0, 4.0)  # of one call, not of three


def test_a_side_that_measures_itself_says_whether_its_seconds_are_those_of_the_processor() -> None:
    done = Done({"draws": 1}, seconds=2.0)
    sides = [Side("wall", "", lambda: done), Side("processor", "", lambda: replace(done, processor_time=True))]
    assert [own.processor_time for own in measure(sides, repeats=1)] == [False, True]
    by_clock = [Side("wall", "", lambda: done), Side("clock", "", lambda: Done({"draws": 1}))]
    assert [own.processor_time for own in measure(by_clock, repeats=1, clock=time.process_time)] == [False, True]


def test_a_rate_is_what_was_counted_over_the_seconds() -> None:
    assert rate("auctions", side("market", 2.0, auctions=6), "auctions", goal=None, unit="/s", repeats=2).ratio == 3.0


@pytest.mark.parametrize("ratio", [1.151, -0.01])
def test_a_share_outside_0_and_1_is_an_error(ratio: float) -> None:
    with pytest.raises(ValueError, match="a part is never more than the whole"):
        row(ratio=ratio, unit="share of wall time")


@pytest.mark.parametrize(
    ("fields", "good"),
    [
        ({"goal": 2.0, "ratio": 2.0}, True),
        ({"goal": 2.0, "ratio": 1.99}, False),
        ({"goal": 2.0, "ratio": 2.01, "at_most": True}, False),
        ({"goal": 2.0, "ratio": None, "skipped": "no Python 3.12"}, True),
        ({"goal": None, "ratio": None, "failed": "unequal work"}, False),
    ],
)
def test_a_row_is_good_if_it_reached_its_goal_or_was_skipped(fields: dict[str, object], good: bool) -> None:
    assert row(**fields).good is good


def test_a_row_without_a_ratio_must_say_why() -> None:
    with pytest.raises(ValueError, match="says why it was skipped or has failed"):
        row(ratio=None)


def test_the_backend_in_use_is_part_of_a_side() -> None:
    behind = Side("learner", "", lambda: Done({"updates": 1}, backend="process"))
    first = Measured("inline", "", {"updates": 1}, 1.0, 1.0, 1.0, "inline")
    assert [own.backend for own in ratio_of("r", first, *measure([behind], repeats=1), goal=None, repeats=1).sides] == [
        "inline",
        "process",
    ]


def test_a_quick_run_does_less_and_never_more() -> None:
    assert [Effort(quick).of(7) for quick in (False, True)] == [7, 2]
    assert Effort(True).of(1, 5) == 1
    assert [Effort(quick).repeats(7) for quick in (False, True)] == [7, 0]


def test_without_repeats_the_first_call_is_what_is_kept() -> None:
    ticks = iter([0.0, 5.0])
    (found,) = measure([Side("s", "", lambda: Done({"calls": 1}))], repeats=0, calls=3, clock=lambda: next(ticks))
    assert found.seconds == 5.0
