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

from parallel_agents.core.kernel_cache import HEAD, KEPT, MARK, PACKAGE, SharedCache, kernel_hash, sweep
from parallel_agents.kernels.optimizer import squared_norm

FOLDER = "import numba, parallel_agents.core.kernel_cache\nprint(numba.config.CACHE_DIR)\n"
CALLER = """
import numpy as np
from parallel_agents.core.compiled import njit
from parallel_agents.core.seeding import draw

@njit(cache=True)
def words(turn):
    return draw(np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(turn), np.uint64(4), np.uint64(5))
"""
CALL = "from parallel_agents.caller import words\nprint(words(6), sum(words.stats.cache_hits.values()))\n"


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


def test_installations_with_equal_sources_share_compiled_kernels(tmp_path: Path) -> None:
    printed = []
    for place in ("one", "other"):
        package = tmp_path / place / "parallel_agents"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / "caller.py").write_text(CALLER)
        printed.append(in_process(tmp_path / place, CALL, NUMBA_CACHE_DIR=str(tmp_path / "cache"))[0].rsplit(" ", 1))
    (first, compiled), (second, loaded) = printed
    assert first == second
    assert (compiled, loaded) == ("0", "1"), "the second installation loads what the first one has compiled"


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
        ("cli/authoring.py", False),
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
        "from parallel_agents.core import kernel_cache\n"
        "base = pathlib.Path(sys.argv[1])\n"
        "for count in range(60):\n"
        "    folder = base / f'kernels-{(count * int(sys.argv[2])) % 11}'\n"
        "    kernel_cache._hold(folder)\n"
        "    kernel_cache.sweep(base)\n"
        "    (folder / 'kernel.nbc').write_text('')\n"
        "    os.close(kernel_cache._held.pop())\n"
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
