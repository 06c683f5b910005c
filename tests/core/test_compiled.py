"""Functions that are compiled once and called by a symbol, and what is shown while kernels are compiled."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from parallel_agents.core import compiled
from parallel_agents.kernels.optimizer import squared_norm
from tests.core.test_kernel_cache import checkout, in_process

CALLEE = """
import numpy as np
from parallel_agents.core.compiled import address_of, call_at, compiled_once, njit

@compiled_once
def add(numbers, more):
    numbers[0] += more

@compiled_once(allocates=True)
def doubled(numbers):
    out = np.empty(len(numbers))
    for i in range(len(numbers)):
        out[i] = 2.0 * numbers[i]
    return out

@njit(cache=True)
def call(numbers, place):
    add(numbers, 1)
    call_at(place, numbers, 10)
    return doubled(numbers)[0]

@njit(cache=True)
def between(numbers):
    add(numbers, 5)

@compiled_once
def outer(numbers):
    between(numbers)
    return numbers[0]
"""
CALL_CALLEE = """
import numpy as np
from parallel_agents.callee import add, address_of, call, doubled
numbers = np.zeros(2)
print(call(numbers, np.array(address_of(add, numbers, 10))), add.callee.stats.cache_misses.total())
"""


def test_a_callee_is_compiled_once_and_loaded_before_its_caller_from_the_disk(tmp_path: Path) -> None:
    checkout(tmp_path)
    (tmp_path / "parallel_agents" / "callee.py").write_text(CALLEE)
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert in_process(tmp_path, CALL_CALLEE, **cache)[0] == "22.0 1"
    assert in_process(tmp_path, CALL_CALLEE, **cache)[0] == "22.0 0"
    first = "import numpy as np\nfrom parallel_agents.callee import call\n"  # nothing but the caller asks for `doubled`
    refused = "try: call(np.zeros(2), np.zeros(2, np.int64))\nexcept TypeError as error: print(error)\n"
    assert in_process(tmp_path, first + refused, **cache)[0] == "the code at an address takes other arguments"


def test_a_caller_that_was_compiled_after_its_callees_were_loaded_loads_them_too(tmp_path: Path) -> None:
    checkout(tmp_path)
    (tmp_path / "parallel_agents" / "callee.py").write_text(CALLEE)
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for function in ("between", "outer", "outer"):  # the second process compiles `outer` and loads the rest
        call = f"import numpy as np\nfrom parallel_agents import callee\nprint(callee.{function}(np.ones(1)))\n"
        assert in_process(tmp_path, call, **cache)[0] == ("None" if function == "between" else "6.0")


def test_a_function_that_python_calls_keeps_its_source_and_its_meaning() -> None:
    numbers, sums = np.ones(64, np.float32), np.zeros(32, np.float32)
    assert squared_norm(numbers, 0, 64, sums) == 64.0
    assert squared_norm.py_func.__module__ == "parallel_agents.kernels.optimizer"  # type: ignore[attr-defined]


def test_named_tuples_of_the_same_name_are_told_apart() -> None:
    """Two kernels have a `Scratch`: a function that takes both is compiled twice, under two symbols."""
    numbers = np.zeros(1)

    def first() -> Any:
        class Scratch(NamedTuple):
            a: Any
            b: Any

        return numba.typeof(Scratch(numbers, numbers))

    def second() -> Any:
        class Scratch(NamedTuple):
            b: Any
            a: Any

        return numba.typeof(Scratch(numbers, numbers))

    one, other = first(), second()
    assert repr(one) == repr(other)
    assert compiled._hash((one,)) != compiled._hash((other,))


def test_compilations_are_shown_on_a_terminal_while_they_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    announcement = compiled.Announcement()

    def compilation(module: str) -> SimpleNamespace:
        return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=SimpleNamespace(__module__=module))})

    ours, other = compilation("parallel_agents.kernels.mlp"), compilation("somebody.else")
    announcement.on_start(ours)  # nobody watches
    announcement.on_end(ours)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    announcement.on_start(other)
    announcement.on_end(other)
    assert capsys.readouterr().err == ""
    announcement.on_start(ours)
    announcement.on_start(other)  # called by ours
    announcement.on_end(other)
    shown = capsys.readouterr().err
    assert shown.count("compiling kernels") == 2
    assert shown.endswith(": 3")
    announcement.on_end(ours)
    assert capsys.readouterr().err == "\r\x1b[K"
