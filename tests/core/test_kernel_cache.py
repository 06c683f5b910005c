"""The cache of compiled kernels: it notices every edit, is shared and swept, and works without a writable folder."""

from __future__ import annotations

import ast
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from parallel_agents.core import kernel_cache
from parallel_agents.core.kernel_cache import DAYS_KEPT, HEAD, PACKAGE, SharedCache, kernel_hash, sweep
from parallel_agents.kernels.optimizer import squared_norm

FOLDER = "import numba, parallel_agents.core.kernel_cache\nprint(numba.config.CACHE_DIR)\n"
CALLER = """
from parallel_agents.core.compiled import njit
from parallel_agents.callee import doubled

@njit(cache=True)
def quadrupled(x):
    return 2 * doubled(x)
"""
CALLEE = """
from parallel_agents.core.compiled import njit
from parallel_agents.constants import TWICE

@njit(cache=True)
def doubled(x):
    return TWICE * x
"""
BYSTANDER = """
from parallel_agents.core.compiled import njit

@njit(cache=True)
def halved(x):
    return x / 2
"""
OUTSIDE = """
import numba
from parallel_agents.callee import doubled

@numba.njit(cache=True)
def increased(x):
    return doubled(x) + 1
"""
CALL = """
from parallel_agents.caller import quadrupled
from parallel_agents.bystander import halved
from outside import increased

for function in (quadrupled, halved, increased):
    print(function(6), sum(function.stats.cache_hits.values()))
"""


def in_process(checkout: Path, script: str = "", **environment: str) -> list[str]:
    """Return what a script prints with the package of this checkout, and the cache's folder."""
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(checkout), **environment}
    run = [sys.executable, "-W", "error", "-c", script + FOLDER]
    ended = subprocess.run(run, cwd=checkout, env=variables, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def checkout(folder: Path) -> Path:
    """Return a folder with a copy of the package's core and some kernels that call each other."""
    package = folder / "parallel_agents"
    shutil.copytree(PACKAGE / "core", package / "core", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "__init__.py", package)
    sources = {"caller": CALLER, "callee": CALLEE, "bystander": BYSTANDER, "constants": "TWICE = 2\n"}
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
    (folder / "outside.py").write_text(OUTSIDE)
    return folder


def test_an_edit_recompiles_what_can_see_it_and_nothing_else(tmp_path: Path) -> None:
    own, cache = checkout(tmp_path / "own"), {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert in_process(own, CALL, **cache)[:-1] == ["24 0", "3.0 0", "13 0"], "all of it is compiled"
    assert in_process(own, CALL, **cache)[:-1] == ["24 1", "3.0 1", "13 1"], "all of it is loaded"
    (own / "parallel_agents" / "constants.py").write_text("TWICE = 3\n")  # two imports away from the caller
    assert in_process(own, CALL, **cache)[:-1] == ["36 0", "3.0 1", "19 0"]


def test_installations_with_equal_sources_share_compiled_kernels(tmp_path: Path) -> None:
    for place, hits in (("one", "0"), ("other", "1")):
        printed = in_process(checkout(tmp_path / place), CALL, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert printed[:2] == [f"24 {hits}", f"3.0 {hits}"]


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
        ("cli/authoring.py", False),
    ):
        path = package / source
        original = path.read_bytes()
        path.write_bytes(original + b"\n# edited\n")
        for read in (kernel_cache._text, kernel_cache._imported, kernel_cache.source_hash):
            read.cache_clear()
        assert (kernel_hash(package) != before) is counts, source
        path.write_bytes(original)
    for read in (kernel_cache._text, kernel_cache._imported, kernel_cache.source_hash):
        read.cache_clear()


def test_numba_is_imported_in_one_place() -> None:
    """A module that imports `njit` from numba itself would be left out of the hash."""
    elsewhere = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "from numba" in path.read_text() and path.name != "compiled.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "numba"
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
    base = tmp_path / "cache" / "parallel_agents"
    if trouble == "read-only":
        base.parent.write_text("a file where the folder should be: nobody, not even root, can write below it")
    elif trouble == "open to others":
        base.mkdir(parents=True)
        base.chmod(0o777)
    else:
        base.parent.mkdir()
        (tmp_path / "elsewhere").mkdir()
        base.symlink_to(tmp_path / "elsewhere")
    (used,) = in_process(PACKAGE.parent, NUMBA_CACHE_DIR=str(base.parent), TMPDIR=str(tmp_path))
    assert Path(used).parent.parent == tmp_path
    assert Path(used).parent.name.startswith("parallel_agents-")
    assert not Path(used).exists()  # removed with the process
    assert not list(tmp_path.glob("elsewhere/*"))


def test_a_sweep_removes_only_folders_of_kernels_that_nobody_has_used_for_days(tmp_path: Path) -> None:
    for name, days in ((f"{HEAD}old", DAYS_KEPT + 1), (f"{HEAD}new", DAYS_KEPT - 1), ("somebody's", DAYS_KEPT + 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.nbc").touch()
        os.utime(tmp_path / name, (time.time() - days * 86400,) * 2)
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{HEAD}new", "somebody's"}


def test_a_function_is_stored_though_its_folder_was_removed_meanwhile(tmp_path: Path) -> None:
    own = checkout(tmp_path / "own")
    removal = (
        f"import shutil\nfrom parallel_agents.caller import quadrupled\nshutil.rmtree({str(tmp_path / 'cache')!r})\n"
    )
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert in_process(own, removal + CALL, **cache)[0] == "24 0"
    assert in_process(own, CALL, **cache)[0] == "24 1"


AT_ONCE = """
import numpy as np
from parallel_agents.many import {names}

print("imported", flush=True)
input()
for own in ({names},):
    print(int(4 * own(np.ones(3))), sum(own.stats.cache_hits.values()))
"""


def test_of_two_processes_that_need_a_function_at_once_one_compiles_it(tmp_path: Path) -> None:
    names = [f"scaled_{i}" for i in range(12)]
    checkout(tmp_path)
    body = "".join(f"@njit(cache=True)\ndef {own}(x):\n    return x.sum() / 4 + {i}\n\n" for i, own in enumerate(names))
    (tmp_path / "parallel_agents" / "many.py").write_text(f"from parallel_agents.core.compiled import njit\n\n{body}")
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE.format(names=", ".join(names))],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(tmp_path),
                "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [process.stdout.readline() for process in begun if process.stdout] == ["imported\n"] * 2
    for process in begun:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=100)[0].split() for process in begun]
    assert [words[::2] for words in printed] == [[str(3 + 4 * i) for i in range(12)]] * 2
    loaded = [list(map(int, words[1::2])) for words in printed]
    assert np.sum(loaded, axis=0).tolist() == [1] * 12, "one process compiles each function and the other loads it"


def test_a_process_waits_for_another_that_compiles_the_same_function() -> None:
    cache = SharedCache(squared_norm.py_func)
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
