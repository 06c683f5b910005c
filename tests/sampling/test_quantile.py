from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_agents.errors import CheckpointError, ConfigError, NonFiniteError
from parallel_agents.sampling.quantile import RunningPercentile


@given(
    values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=80),
    percentile=st.floats(1, 99),
    window=st.integers(2, 40),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_it_is_the_exact_percentile_of_the_last_values(values: list[float], percentile: float, window: int) -> None:
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


def test_enough_is_when_one_value_is_expected_beyond() -> None:
    assert [RunningPercentile(p).enough for p in (90.0, 99.0, 50.0, 10.0, 95.0)] == [10, 100, 2, 10, 20]


def test_it_follows_a_stream_that_changes() -> None:
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


def test_bad_input_changes_nothing() -> None:
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
