"""The numeric environment: threads, MKL's mode, memory of the C library, the fingerprint, and the probe."""

from __future__ import annotations

import ast
import json
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from parallel_agents.core.errors import NumericsError
from parallel_agents.nn import numerics, probe


@pytest.fixture(autouse=True)
def _required_numerics():
    numerics.require()


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


# -- MKL ------------------------------------------------------------------------------------------------------

MKL_PROBE = """
import json, os, sys
import parallel_agents
if sys.argv[1] == "unset":
    del os.environ["MKL_CBWR"]
import torch
from parallel_agents.core.errors import NumericsError
from parallel_agents.nn import layers, numerics

torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
differ = []
for agents in (3, 5, 7, 8, 9):
    for count in (1, 2, 33):
        for into, out in ((17, 64), (31, 65), (33, 33), (243, 33), (243, 7), (128, 128)):
            x, w, b = (torch.randn(agents, *s, generator=g) for s in ((count, into), (out, into), (1, out)))
            whole = layers.linear(x, w, b)
            alone = torch.cat([layers.linear(x[n:n+1].clone(), w[n:n+1].clone(), b[n:n+1].clone()) for n in range(agents)])
            if not torch.equal(whole, alone):
                differ.append((agents, count, into, out))
try:
    numerics.require()
    message = ""
except NumericsError as error:
    message = str(error)
print(json.dumps({"mode": numerics.fingerprint()["mkl_mode"], "differ": differ, "error": message}))
"""


def ask_mkl(argument):
    """Return what a fresh process finds out about its MKL, with the package's setting or with it unset."""
    # The oldest instruction set that MKL still has shows it on every machine; newer ones hide it on some.
    environment = {**os.environ, "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
    environment.pop("MKL_CBWR", None)
    done = subprocess.run(
        [sys.executable, "-c", MKL_PROBE, argument],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


needs_mkl = pytest.mark.skipif(numerics.fingerprint()["mkl_mode"] == "absent", reason="this torch has no MKL")


@needs_mkl
def test_importing_the_package_puts_mkl_into_its_reproducible_mode():
    assert ask_mkl("as it is") == {"mode": "2", "differ": [], "error": ""}


@needs_mkl
def test_mutant_mkl_without_its_mode():
    result = ask_mkl("unset")
    assert result["differ"]
    assert result["mode"] == "1"
    assert "MKL runs in mode 1 instead of 2 (AUTO)" in result["error"]
    assert "set MKL_CBWR=AUTO in the environment" in result["error"]


def test_require_sets_one_thread_and_raises_in_another_mkl_mode(monkeypatch):
    torch.set_num_threads(2)
    numerics.require()
    assert torch.get_num_threads() == 1
    monkeypatch.setattr(numerics, "_mkl_mode", lambda: 3)
    with pytest.raises(NumericsError, match=r"MKL runs in mode 3 .* Import parallel_agents first"):
        numerics.require()
    monkeypatch.setattr(numerics, "_mkl_mode", lambda: None)
    numerics.require()
    assert numerics.fingerprint()["mkl_mode"] == "absent"


def test_the_fingerprint_names_what_equal_bytes_depend_on():
    fingerprint = numerics.fingerprint()
    versions = {"parallel_agents", "python", "torch", "numpy", "numba", "llvm", "libc"}
    instructions = {"machine", "cpu_capability", "numpy_cpu", "numba_cpu", "numba_features", "mkl_mode"}
    assert set(fingerprint) == versions | instructions | {"threads", "device"}
    assert fingerprint["threads"] == "1"
    assert fingerprint["device"] == "cpu"
    assert all(isinstance(value, str) for value in fingerprint.values())


def test_the_fingerprint_of_compiled_kernels_names_libraries_for_worlds_that_may_call_them_only():
    everything = numerics.facts()
    portable = numerics.fingerprint(native=True, portable_worlds=True)
    assert portable == {"arithmetic": numerics.PORTABLE}
    worlds = numerics.fingerprint(native=True)
    assert worlds == {name: everything[name] for name in ("arithmetic", *numerics.WORLD_FACTS)}
    assert not {"torch", "mkl_mode", "threads"} & set(worlds)


def test_the_fingerprint_changes_with_the_instructions_that_numba_and_numpy_may_use():
    script = "from parallel_agents.nn import numerics; numerics.require(); print(numerics.fingerprint())"
    env = {**os.environ, "NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2"}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True, timeout=100
    )
    numerics.require()
    here, other = numerics.fingerprint(), ast.literal_eval(ended.stdout)
    changed = {name for name in here if here[name] != other[name]}
    assert changed == {"numba_cpu", "numba_features"}


# -- the probe ------------------------------------------------------------------------------------------------

X = torch.arange(1.0, 31.0).reshape(5, 6)

COUPLED = {
    "common mean": lambda x: x - x.mean(),
    "common norm": lambda x: x / torch.linalg.vector_norm(x),
    "neighbour": lambda x: x + x.roll(1, 0),
    "cumulative": lambda x: x.cumsum(0),
    "only in pairs": lambda x: x + (len(x) == 2),
    "sign of zero": lambda x: torch.full_like(x, -0.0 if len(x) > 1 else 0.0),
    "last bit": lambda x: x + (len(x) > 1) * 2.0**-19 * x,
}


@pytest.mark.parametrize("name", COUPLED)
def test_coupled_computations_fail_the_probe(name):
    result = probe(lambda part: [X[part] * 2, COUPLED[name](X[part])], 4, [slice(0, 2)])
    assert not result.holds
    assert "result 1 of 4 agents differs from groups of" in result.detail


@pytest.mark.parametrize("agents", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_computations_by_row_pass_the_probe(agents, dtype):
    result = probe(lambda part: [X.to(dtype)[part]], agents)
    assert result.holds
    assert f"{agents} agents agree" in result.detail


def test_nan_equals_itself():
    assert probe(lambda part: [X[part] * torch.nan], 3).holds


def test_each_agent_alone_and_each_group_is_computed():
    computed = []
    probe(lambda part: [computed.append((part.start, part.stop)) or X[part]], 3, [slice(1, 3)])
    assert computed == [(0, 3), (0, 1), (1, 2), (2, 3), (1, 3)]
