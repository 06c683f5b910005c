"""The cache of compiled kernels: it notices every edit, is swept, and works without a writable folder."""

from __future__ import annotations

import ast
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from parallel_agents.core import compiled
from parallel_agents.core.compiled import HEAD, KEPT, MARK, kernel_hash, sweep
from parallel_agents.kernels.optimizer import squared_norm

PACKAGE = Path(compiled.__file__).parents[1]
FOLDER = "import numba, parallel_agents.core.compiled\nprint(numba.config.CACHE_DIR)\n"
CALLER = """
import numpy as np
from parallel_agents.core.compiled import njit
from parallel_agents.core.seeding import draw

@njit(cache=True)
def words(turn):
    return draw(np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(turn), np.uint64(4), np.uint64(5))
"""
CALL = "from parallel_agents.caller import words\nprint(words(6))\n"


def in_process(checkout: Path, script: str = "", **environment: str) -> list[str]:
    """Return what a script prints with the package of this checkout, and the cache's folder."""
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(checkout), **environment}
    run = [sys.executable, "-W", "error", "-c", script + FOLDER]
    ended = subprocess.run(run, cwd=checkout, env=variables, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_cached_kernels_notice_a_changed_callee_in_another_file(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "parallel_agents", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "parallel_agents" / "caller.py").write_text(CALLER)
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    before, first = in_process(tmp_path, CALL, **cache)
    assert list(Path(first).rglob("caller.words*.nbc"))
    seeding = tmp_path / "parallel_agents" / "core" / "seeding.py"
    text = seeding.read_text()
    assert text.count("for _ in range(10):") == 1
    seeding.write_text(text.replace("for _ in range(10):", "for _ in range(9):"))
    edited, other = in_process(tmp_path, CALL, **cache)
    assert edited != before
    assert other != first


def test_the_hash_covers_kernels_and_what_they_import_but_no_other_source(tmp_path: Path) -> None:
    package = tmp_path / "parallel_agents"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    before = kernel_hash(package)
    assert before == kernel_hash(PACKAGE)
    for source, counts in (
        ("core/seeding.py", True),
        ("kernels/functions.py", True),
        ("algorithms/acting_kernels.py", True),
        ("games/kernels.py", True),
        ("games/program.py", True),
        ("engine/collect.py", True),
        ("workflows/network/scenario.py", True),  # constants only: compiled into the kernels of the simulator
        ("market/simulation/world_arrays.py", True),
        ("algorithms/dqn.py", False),
        ("cli/doctor.py", False),
    ):
        path = package / source
        original = path.read_bytes()
        path.write_bytes(original + b"\n# edited\n")
        assert (kernel_hash(package) != before) is counts, source
        path.write_bytes(original)


def test_numba_is_imported_in_one_place() -> None:
    """A module that imports `njit` from numba itself would be left out of the hash."""
    elsewhere = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "numba" and path.name != "compiled.py"
        if any(name.name not in ("types",) for name in node.names)
    ]
    assert elsewhere == []


def test_the_users_folder_is_used_and_shared_with_started_processes(tmp_path: Path) -> None:
    (own,) = in_process(PACKAGE.parent, XDG_CACHE_HOME=str(tmp_path))
    assert Path(own) == tmp_path / "parallel_agents" / "numba" / f"{HEAD}{kernel_hash(PACKAGE)}"
    (inherited,) = in_process(PACKAGE.parent, NUMBA_CACHE_DIR=own)  # as a worker inherits it
    assert inherited == own


@pytest.mark.parametrize("trouble", ["read-only", "open to others", "a link"])
def test_a_folder_that_is_unsafe_or_not_writable_is_replaced_by_a_private_one(tmp_path: Path, trouble: str) -> None:
    base = tmp_path / "cache"
    folder = base / f"{HEAD}{kernel_hash(PACKAGE)}"
    if trouble == "read-only":
        base.write_text("a file where the folder should be: nobody, not even root, can write below it")
    elif trouble == "open to others":
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    else:
        base.mkdir()
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    (used,) = in_process(PACKAGE.parent, NUMBA_CACHE_DIR=str(base), TMPDIR=str(tmp_path))
    assert Path(used).parent.parent == tmp_path
    assert Path(used).parent.name.startswith("parallel_agents-")
    assert not Path(used).exists()  # removed with the process
    assert not list(tmp_path.glob("elsewhere/*"))


def test_a_sweep_keeps_the_newest_folders_and_those_in_use(tmp_path: Path) -> None:
    for age in range(KEPT + 3):
        folder = tmp_path / f"{HEAD}{age}"
        folder.mkdir()
        (folder / MARK).touch()
        (folder / "kernel.nbc").touch()
        os.utime(folder, (1000 - age, 1000 - age))
    (tmp_path / "removed-1-kernels-x").mkdir()
    (tmp_path / "somebody's").mkdir()
    user = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH); print(flush=True); sys.stdin.read()"
    )
    oldest = tmp_path / f"{HEAD}{KEPT + 2}"
    started = [sys.executable, "-c", user, str(oldest / MARK)]
    with subprocess.Popen(started, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sweep(tmp_path)
        process.communicate(b"", timeout=30)
    kept = {f"{HEAD}{age}" for age in range(KEPT)} | {oldest.name, "somebody's"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert (oldest / "kernel.nbc").exists()
    sweep(tmp_path)  # its user has ended
    assert not oldest.exists()


def test_processes_that_start_and_sweep_at_once_never_lose_their_folder(tmp_path: Path) -> None:
    script = (
        "import os, sys, pathlib; os.environ['NUMBA_CACHE_DIR'] = sys.argv[1]\n"
        "from parallel_agents.core import compiled\n"
        "base = pathlib.Path(sys.argv[1])\n"
        "for count in range(60):\n"
        "    folder = base / f'kernels-{(count * int(sys.argv[2])) % 11}'\n"
        "    compiled._hold(folder)\n"
        "    compiled.sweep(base)\n"
        "    (folder / 'kernel.nbc').write_text('')\n"
        "    os.close(compiled._held.pop())\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), str(stride)], env=variables, stderr=subprocess.PIPE
        )
        for stride in (1, 3, 7)
    ]
    errors = [process.communicate(timeout=100)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors


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
"""
CALL_CALLEE = """
import numpy as np
from parallel_agents.callee import add, address_of, call, doubled
numbers = np.zeros(2)
print(call(numbers, np.array(address_of(add, numbers, 10))), add.callee.stats.cache_misses.total())
"""


def test_a_callee_is_compiled_once_and_loaded_before_its_caller_from_the_disk(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "parallel_agents", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "parallel_agents" / "callee.py").write_text(CALLEE)
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert in_process(tmp_path, CALL_CALLEE, **cache)[0] == "22.0 1"
    assert in_process(tmp_path, CALL_CALLEE, **cache)[0] == "22.0 0"
    first = "import numpy as np\nfrom parallel_agents.callee import call\n"  # nothing but the caller asks for `doubled`
    refused = "try: call(np.zeros(2), np.zeros(2, np.int64))\nexcept TypeError as error: print(error)\n"
    assert in_process(tmp_path, first + refused, **cache)[0] == "the code at an address takes other arguments"


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


AT_ONCE = """
import sys, time
import numpy as np
from parallel_agents.many import {names}

time.sleep(max(0.0, float(sys.argv[1]) - time.time()))
for own in ({names},):
    print(int(4 * own(np.ones(3))), sum(own.stats.cache_hits.values()))
"""


def test_of_two_processes_that_need_a_function_at_once_one_compiles_it(tmp_path: Path) -> None:
    names = [f"scaled_{i}" for i in range(12)]
    shutil.copytree(PACKAGE, tmp_path / "parallel_agents", ignore=shutil.ignore_patterns("__pycache__"))
    body = "".join(f"@njit(cache=True)\ndef {own}(x):\n    return x.sum() / 4 + {i}\n\n" for i, own in enumerate(names))
    (tmp_path / "parallel_agents" / "many.py").write_text(f"from parallel_agents.core.compiled import njit\n\n{body}")
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE.format(names=", ".join(names)), str(time.time() + 5.0)],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(tmp_path),
                "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=100)[0].split() for process in begun]
    assert [words[::2] for words in printed] == [[str(3 + 4 * i) for i in range(12)]] * 2
    loaded = [list(map(int, words[1::2])) for words in printed]
    assert np.sum(loaded, axis=0).tolist() == [1] * 12, "one process compiles each function and the other loads it"


def test_a_process_waits_for_another_that_compiles_the_same_function(tmp_path: Path) -> None:
    cache = compiled.SharedCache(squared_norm.py_func)
    assert not cache._take()
    assert cache._take(), "the same process may compile it for other types meanwhile"
    other = os.open(cache._path, os.O_RDWR)
    try:
        for _ in range(2):
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            cache._give_back()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)
