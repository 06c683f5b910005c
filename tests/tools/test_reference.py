"""The recorded digests are those of the reference runs, and the commands of these runs exist."""

from __future__ import annotations

import json
import re

import pytest

from tools.reference import RECORDED, main, reference_runs


def test_every_reference_run_is_recorded_on_every_machine() -> None:
    machines = json.loads(RECORDED.read_text(encoding="utf-8"))["machines"]
    assert machines
    for machine in machines:
        assert list(machine["digests"]) == list(reference_runs())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["market", "network defence"])
def test_the_commands_of_the_applications_still_give_a_digest(name: str) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", reference_runs()[name]())


@pytest.mark.slow
def test_the_digests_are_those_recorded_on_a_machine_like_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "everything"]) == 0, capsys.readouterr().out
