"""Foreign worlds may leave nothing behind either."""

from __future__ import annotations

from tests.runtime.conftest import nothing_left as nothing_left
