"""The audit fails on findings, and says plainly when it has looked nothing up."""

from __future__ import annotations

from typing import Any

import pytest

from tools.audit import verdict

SOUND = {"name": "numpy", "version": "2.0", "vulns": []}
BAD = {"name": "old", "version": "1.0", "vulns": [{"id": "CVE-2025-32434"}]}
UNKNOWN = {"name": "ours", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([SOUND, UNKNOWN], 0, "1 packages audited, 1 unknown to the database: no known vulnerability"),
        ([SOUND, BAD], 1, "known vulnerabilities:\nold 1.0: CVE-2025-32434"),
        ([UNKNOWN, UNKNOWN], 0, "NOT AUDITED"),
        (None, 0, "NOT AUDITED"),
    ],
)
def test_the_verdict(packages: list[dict[str, Any]] | None, code: int, words: str) -> None:
    found = verdict(None if packages is None else {"dependencies": packages})
    assert found[0] == code
    assert found[1].startswith(words)
