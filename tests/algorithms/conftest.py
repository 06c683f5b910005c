"""Every test of the algorithms runs in the numeric environment of a run."""

from __future__ import annotations

import pytest

from parallel_agents.nn import numerics


@pytest.fixture(autouse=True)
def _numeric_environment() -> None:
    numerics.require()
