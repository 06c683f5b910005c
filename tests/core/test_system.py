"""What the operating system reports."""

from __future__ import annotations

from parallel_agents.core.system import available_bytes, free_memory


def test_free_memory_is_a_share_and_available_memory_is_bytes() -> None:
    assert 0.0 < free_memory() <= 1.0
    assert available_bytes() > 2**20
