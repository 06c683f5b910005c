"""Too little shared memory, too few descriptors or processes: a lower backend is taken, with one warning.

The limits are real: a small tmpfs in a mount namespace, `RLIMIT_NOFILE`, and `RLIMIT_NPROC` under a user of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from parallel_agents.runtime import needs
from parallel_agents.runtime.needs import Needs, shortage
from tests.faults.conftest import ROOT

USER = 54_321
"""Nobody else's processes count against the limit of this user."""
CAPABILITIES = "-all,+dac_override,+dac_read_search"


def as_another_user(words: list[str]) -> list[str]:
    """The command as a user whom limits bind, who may read whatever files Python is made of."""
    keep = [f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES[5:]}", f"--bounding-set={CAPABILITIES}"]
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *keep, *words]


def with_small_shared_memory(words: list[str]) -> list[str]:
    """The command in a mount namespace with 64 MB of /dev/shm, as in a container."""
    return ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh", *words]


@cache
def permitted(limit: str) -> bool:
    wrap = {"shm": with_small_shared_memory, "nproc": as_another_user}.get(limit)
    try:
        return (
            wrap is None or subprocess.run(wrap(["true"]), capture_output=True, timeout=20, check=False).returncode == 0
        )
    except OSError:
        return False


@cache
def runs(limit: str, count: int, when: str, *backends: str) -> dict[str, Any]:
    """What came of a run on each backend."""
    if not permitted(limit):
        pytest.skip(f"this machine does not let us set the limit {limit}: it takes root, unshare and setpriv")
    words = [sys.executable, "-B", "-m", "tests.faults.crowd", limit, str(count), when, *backends]
    wrap = {"shm": with_small_shared_memory, "nproc": as_another_user}.get(limit, list)
    ended = subprocess.run(
        wrap(words),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("limit", "count", "lower", "lacking"),
    [
        ("shm", 0, "thread", "bytes of shared memory are needed"),
        ("nofile", 40, "thread", "more open files are needed"),
        ("nproc", 2, "thread", "more processes and threads are needed"),
        pytest.param("nproc", 0, "inline", "more processes and threads are needed", marks=pytest.mark.slow),
    ],
)
def test_f71_a_backend_that_cannot_be_had_is_replaced_by_a_lower_one_with_one_warning(
    limit: str, count: int, lower: str, lacking: str
) -> None:
    found = runs(limit, count, "start", "inline", "process", "thread", "auto")
    assert len({own["digest"] for own in found.values()}) == 1
    assert found["inline"]["told"] == []
    for wanted in ("process", "thread"):
        used, told = found[wanted]["backend"], found[wanted]["told"]
        degraded = [fields for name, fields in told if name == "backend_degraded"]
        assert used == lower
        assert [(own["wanted"], own["used"]) for own in degraded] == [(wanted, lower)] * (wanted != lower)
        assert all(lacking in own["cause"] for own in degraded)
    kept = [fields for name, fields in found["auto"]["told"] if name == "backend_kept"]
    assert [lacking in fields["cause"] for fields in kept] == [True]
    assert found["auto"]["backend"] == "inline"


@pytest.mark.parametrize(("limit", "count"), [("nofile", 4), pytest.param("nproc", 2, marks=pytest.mark.slow)])
def test_f71_a_worker_that_cannot_be_replaced_in_the_middle_of_a_run_costs_its_backend_only(
    limit: str, count: int
) -> None:
    found = runs(limit, count, "middle", "process", "inline")
    names = [name for name, _ in found["process"]["told"]]
    assert names.count("backend_degraded") == 1
    assert {"round_failed", "worker_replaced"} & set(names)
    assert found["process"]["backend"] == "thread"
    assert found["process"]["digest"] == found["inline"]["digest"]


def test_f71_what_torch_raises_is_caught_where_the_system_says_there_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the start somebody else may take it."""
    from parallel_agents.runtime.backends import process
    from tests.runtime.stub_stacks import MarkStack
    from tests.runtime.test_rounds import conduct, make

    def share(tensor: Any) -> Any:
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"
        )

    monkeypatch.setattr(process, "_share", share)
    rounds, told = make([MarkStack(4)], lag=1, backend="process")
    conduct(rounds, range(1, 4))
    assert [(name, fields["used"]) for name, fields in told] == [("backend_degraded", "thread")]


@pytest.mark.parametrize(
    ("kind", "free"),
    [("shared_bytes", "_free_shared_bytes"), ("descriptors", "_free_descriptors"), ("tasks", "_free_tasks")],
)
def test_f71_what_is_needed_is_compared_with_what_is_free(
    kind: str, free: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, free, lambda: 10)
    assert shortage(Needs(**{kind: 10})) is None
    assert "11" in str(shortage(Needs(**{kind: 11})))
    monkeypatch.setattr(needs, free, lambda: None)
    assert shortage(Needs(**{kind: 2**60})) is None
