"""What every run asks of the process it is in."""

from __future__ import annotations

import platform
from types import SimpleNamespace

import pytest
import torch

from parallel_agents.networks import numerics


@pytest.mark.parametrize(("library", "asked"), [("glibc", 2), ("musl", 0)])
def test_freed_memory_is_kept_where_the_c_library_can_be_asked(
    library: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(platform, "libc_ver", lambda: (library, ""))
    fake = SimpleNamespace(mallopt=lambda option, value: calls.append((option, value)))
    monkeypatch.setattr(numerics.ctypes, "CDLL", lambda _: fake)
    numerics._keep_memory.__wrapped__()
    assert len(calls) == asked
    assert all(value > 2**20 for _, value in calls)


def test_the_sigmoid_in_place_has_the_same_bytes() -> None:
    x = torch.linspace(-40.0, 40.0, 1001)
    assert torch.equal(numerics.sigmoid_(x.clone()), numerics.sigmoid(x))
