"""Fixtures: no thread or process may be left behind."""

from __future__ import annotations

from tests.execution.conftest import nothing_left as nothing_left
