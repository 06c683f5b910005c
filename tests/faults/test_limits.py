"""With too little shared memory, too few descriptors or processes, a lower backend is used, with one warning.

The limits are real: a small tmpfs in a mount namespace, `RLIMIT_NOFILE`, and `RLIMIT_NPROC` under a user of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from parallel_agents.core.kernel_cache import PACKAGE, source_hash
from parallel_agents.execution import resources, workers
from parallel_agents.execution.resources import Needs, shortage
from tests.execution.stub_stacks import MarkStack
from tests.execution.test_launcher import launcher
from tests.faults.conftest import output
from tests.faults.forked import module

USER = 54_321
"""A user without other processes that would count against the limit."""
CAPABILITIES = "-all,+dac_override,+dac_read_search"


def as_another_user(words: list[str]) -> list[str]:
    """Return the command as run by a user whom limits bind, who may read all files of Python."""
    keep = [f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES[5:]}", f"--bounding-set={CAPABILITIES}"]
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *keep, *words]


def with_small_shared_memory(words: list[str]) -> list[str]:
    """Return the command in a mount namespace with 64 MB of /dev/shm, as in a container."""
    return ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh", *words]


WRAPS = {"shm": with_small_shared_memory, "nproc": as_another_user}


@cache
def permitted(limit: str) -> bool:
    """Return whether the system lets us set the limit."""
    words = WRAPS.get(limit, list)(["true"])
    try:
        return subprocess.run(words, capture_output=True, timeout=20, check=False).returncode == 0
    except OSError:
        return False


@cache
def runs(limit: str, count: int, when: str, *backends: str) -> dict[str, Any]:
    """Return digest, backend and events of a run on each backend."""
    if not permitted(limit):
        pytest.skip(f"this machine does not let us set the limit {limit}: it takes root, unshare and setpriv")
    words = (limit, count, when, *backends)
    if limit not in WRAPS:
        return dict(json.loads(module("tests.faults.crowd", *words, timeout=110.0).splitlines()[-1]))
    with tempfile.TemporaryDirectory() as folder:
        kernels = compiled_kernels_of_that_user(Path(folder)) if limit == "nproc" else {}
        printed = output("-B", "-m", "tests.faults.crowd", *words, wrap=WRAPS[limit], environment=kernels, timeout=110)
    return dict(json.loads(printed.splitlines()[-1]))


def compiled_kernels_of_that_user(folder: Path) -> dict[str, str]:
    """Return the environment in which that other user finds a copy of our compiled kernels, so as not to compile them."""
    own = Path(os.environ["NUMBA_CACHE_DIR"])
    hashes = {own.name.rpartition("-")[2], *map(source_hash, PACKAGE.rglob("*.py"))}
    for kernels in own.parent.iterdir():
        if kernels.name.rpartition("-")[2] in hashes:  # not those of other versions of the package
            shutil.copytree(kernels, folder / kernels.name)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    return {"NUMBA_CACHE_DIR": str(folder / own.name)}


@pytest.mark.parametrize(
    ("limit", "count", "lower", "lacking"),
    [
        ("shm", 0, "thread", "bytes of shared memory are needed"),
        ("nofile", 20, "thread", "more open files are needed"),
        ("nproc", 2, "thread", "more processes and threads are needed"),
        pytest.param("nproc", 0, "inline", "more processes and threads are needed", marks=pytest.mark.slow),
    ],
)
def test_f71_a_backend_that_cannot_be_started_is_replaced_by_a_lower_one_with_one_warning(
    limit: str, count: int, lower: str, lacking: str
) -> None:
    results = runs(limit, count, "start", "inline", "process", "thread", "auto")
    assert len({result["digest"] for result in results.values()}) == 1
    assert results["inline"]["events"] == []
    for wanted in ("process", "thread"):
        used, events = results[wanted]["backend"], results[wanted]["events"]
        degraded = [fields for name, fields in events if name == "backend_degraded"]
        assert used == lower
        assert [(fields["wanted"], fields["used"]) for fields in degraded] == [(wanted, lower)] * (wanted != lower)
        assert all(lacking in fields["cause"] for fields in degraded)
    kept = [fields for name, fields in results["auto"]["events"] if name == "backend_kept"]
    assert [lacking in fields["cause"] for fields in kept] == [True]
    assert results["auto"]["backend"] == "inline"


@pytest.mark.parametrize(("limit", "count"), [("nofile", 4), pytest.param("nproc", 2, marks=pytest.mark.slow)])
def test_f71_a_lower_backend_is_used_if_a_worker_cannot_be_replaced_in_the_middle_of_a_run(
    limit: str, count: int
) -> None:
    results = runs(limit, count, "middle", "process", "inline")
    names = [name for name, _ in results["process"]["events"]]
    assert names.count("backend_degraded") == 1
    assert {"round_failed", "worker_replaced"} & set(names)
    assert results["process"]["backend"] == "thread"
    assert results["process"]["digest"] == results["inline"]["digest"]


def test_f71_what_torch_raises_is_caught_even_if_the_system_says_there_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the check and the start another process may take what is left."""

    def share(tensor: Any) -> Any:
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"
        )

    monkeypatch.setattr(workers, "_share", share)
    stack = MarkStack(4)
    made, events = launcher(stack, "process")
    made.launch([stack.state], 1, last_round=3, workers=2).close()
    assert [(name, fields["used"]) for name, fields in events] == [("backend_degraded", "thread")]


@pytest.mark.parametrize(
    ("kind", "free"),
    [("shared_bytes", "_free_shared_bytes"), ("descriptors", "_free_descriptors"), ("tasks", "_free_tasks")],
)
def test_f71_what_is_needed_is_compared_with_what_is_free(
    kind: str, free: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, free, lambda: 10)
    assert shortage(Needs(**{kind: 10})) is None
    assert "11" in str(shortage(Needs(**{kind: 11})))
    monkeypatch.setattr(resources, free, lambda: None)
    assert shortage(Needs(**{kind: 2**60})) is None
