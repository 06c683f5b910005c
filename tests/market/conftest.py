"""One sample, its patterns and its worlds, shared by the market tests since making them takes seconds."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.market import baselines
from parallel_agents.market.discovery import Patterns, discover, sample_patterns
from parallel_agents.market.sample import Sample, draw_sample
from parallel_agents.market.worlds import World, create_world_variants


@pytest.fixture(scope="session")
def sample() -> Sample:
    return draw_sample(users=3_000, seed=1)


@pytest.fixture(scope="session")
def patterns() -> Patterns:
    """Return the patterns of `sample`, which a test compares with what discovery finds."""
    return sample_patterns()


@pytest.fixture(scope="session")
def small_sample() -> Sample:
    """Return four weeks of few users: enough for tests that ask what is read, not how exactly."""
    return draw_sample(users=800, days=28, seed=1)


@pytest.fixture(scope="session")
def small_patterns(small_sample: Sample) -> Patterns:
    return discover(small_sample.tables)


@pytest.fixture(scope="session")
def worlds(patterns: Patterns) -> tuple[World, ...]:
    return create_world_variants(patterns, 40, seed=0)


@pytest.fixture
def rng() -> np.random.Generator:
    return generator(7, Purpose.WORLD)


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the oracle try few candidates: what it finds is tested with the baselines, here that it takes part."""
    monkeypatch.setattr(baselines, "_POPULATION", 3)
    monkeypatch.setattr(baselines, "_ELITE", 2)
