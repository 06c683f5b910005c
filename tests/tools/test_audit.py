"""The audit fails on findings and if nothing was looked up; it reports an unreachable database."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tools.audit import audit

SOUND = {"name": "numpy", "version": "2.0", "vulns": []}
BAD = {"name": "old", "version": "1.0", "vulns": [{"id": "CVE-2025-32434"}]}
UNKNOWN = {"name": "ours", "skip_reason": "not found"}


def fake_pip_audit(folder: Path, environment: list[dict[str, Any]], known: list[dict[str, Any]]) -> list[str]:
    """Return the command of a fake pip-audit: its reports for the environment and for the known package."""
    script = folder / "pip_audit.py"
    answers = {False: {"dependencies": environment}, True: {"dependencies": known}}
    script.write_text(f"import json, sys\nprint(json.dumps({answers!r}['-r' in sys.argv]))\n")
    return [sys.executable, str(script)]


@pytest.mark.parametrize(
    ("environment", "known", "code", "words"),
    [
        ([SOUND, UNKNOWN], [BAD], 0, "1 packages audited, 1 unknown to the database: no known vulnerability"),
        ([SOUND, BAD], [BAD], 1, "known vulnerabilities:\nold 1.0: CVE-2025-32434"),
        ([UNKNOWN, UNKNOWN], [BAD], 1, "NOTHING AUDITED: the advisory database answered, but knew none of 2 packages"),
        ([], [BAD], 1, "NOTHING AUDITED: the advisory database answered, but knew none of 0 packages"),
        ([UNKNOWN, UNKNOWN], [UNKNOWN], 1, "NOT AUDITED: the advisory database cannot be reached from here"),
    ],
)
def test_an_audit_of_nothing_fails(
    environment: list[dict[str, Any]], known: list[dict[str, Any]], code: int, words: str, tmp_path: Path
) -> None:
    result = audit(fake_pip_audit(tmp_path, environment, known))
    assert result[0] == code
    assert result[1].startswith(words)


def test_without_a_network_the_audit_fails_unless_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the real pip-audit for one package, with a proxy port on which nothing listens."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("numpy==2.0.0\n")
    command = [sys.executable, "-m", "pip_audit", "-r", str(requirements), "--no-deps", "--disable-pip"]
    for allowed, expected in ((True, 0), (False, 1)):
        code, words = audit(command, offline_passes=allowed)
        assert code == expected
        assert words.startswith("NOT AUDITED: the advisory database cannot be reached from here")


def test_a_missing_or_broken_pip_audit_fails(tmp_path: Path) -> None:
    code, words = audit([str(tmp_path / "pip-audit")])
    assert (code, words.split(" (")[0]) == (1, "NOT AUDITED: pip-audit cannot be started")
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('an option it does not know')\n")
    code, words = audit([sys.executable, str(broken)])
    assert code == 1
    assert words.endswith("wrote no report: an option it does not know")
