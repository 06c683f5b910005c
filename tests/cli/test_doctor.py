"""`doctor`: what this machine has."""

from __future__ import annotations

from tests.cli.conftest import Command


def test_doctor_reports_versions_and_equal_bytes(command: Command) -> None:
    result = command("doctor", "--json").json
    assert result["equal_bytes"] is True
    assert result["numeric_problem"] is None
    assert result["packages"]["torch"] in result["fingerprint"]["torch"]
    assert result["cores"] >= 1
    text = command("doctor")
    assert text.code == 0
    assert "equal bytes    yes" in text.out
