"""`njit` for the whole package, with a cache on disk that notices every edit of a kernel.

numba recompiles a cached function when its own file has changed, but not when a function that it calls, or a constant
that it reads, has changed in another file. So the cache lies in a folder named by a hash of all sources that kernels
are made of: an edit of any of them starts an empty cache.

The folder is `$XDG_CACHE_HOME/parallel_agents/numba/kernels-<hash>`, or `$NUMBA_CACHE_DIR/kernels-<hash>` where that is
set. Where it cannot be written, or is not the user's own (numba unpickles what it finds there), a private temporary
folder is used and removed at the end. Folders of older hashes are removed, except the newest few and those in use.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numba
from numba import njit

__all__ = ["cache_folder", "kernel_hash", "njit", "sweep"]

HEAD, MARK = "kernels-", "in_use"
KEPT = 4
"""Folders that stay: a few checkouts or branches can be worked on in turn without compiling again."""
_IMPORT = re.compile(r"^from (parallel_agents[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
_held: list[int] = []
"""Descriptors that tell other processes which folder is in use, open until this process ends."""


def kernel_hash(package: Path) -> str:
    """Return a hash of every source that kernels are made of: their modules, and the modules these import from."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    chosen = {path for path, text in texts.items() if "import njit" in text}
    chosen |= {path for kernel in chosen for path in _imported(package, texts[kernel]) if path in texts}
    total = hashlib.sha256(numba.__version__.encode())
    for path in sorted(chosen):
        total.update(f"{path.relative_to(package)}:{len(texts[path])}:{texts[path]}".encode())
    return total.hexdigest()[:16]


def _imported(package: Path, text: str) -> Iterator[Path]:
    """Where the modules may be that a module's text imports from."""
    for module, names in _IMPORT.findall(text):
        for name in (module, *(f"{module}.{word}" for word in re.findall(r"\w+", names))):
            yield package.parent.joinpath(*name.split(".")).with_suffix(".py")


def cache_folder(package: Path) -> Path:
    """Return the folder for the kernels of a package as it is now: made, writable, and marked as in use."""
    base = _base()
    folder = base / f"{HEAD}{kernel_hash(package)}"
    try:
        _hold(folder)
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix="parallel_agents-")) / folder.name
        folder.mkdir()
        atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
        logging.getLogger(__name__).info("compiled kernels are kept for this process alone: %s", error)
    else:
        sweep(base)
    return folder


def _base() -> Path:
    """Return the folder below which the caches of all hashes are."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        folder = Path(given).absolute()
        return folder.parent if folder.name.startswith(HEAD) else folder  # set by the process that started this one
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "parallel_agents", "numba")


def _hold(folder: Path) -> None:
    """Make a folder and mark it as in use until this process ends."""
    if not folder.is_absolute():
        raise FileNotFoundError(f"{folder} is relative: there is no home folder, or XDG_CACHE_HOME is not absolute")
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022 or not stat.S_ISDIR(found.st_mode):
            raise PermissionError(f"{folder} is not this user's own, or others may write into it")
        try:
            mark = os.open(folder / MARK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # removed meanwhile by another process
            continue
        fcntl.flock(mark, fcntl.LOCK_SH)
        if os.fstat(mark).st_nlink:
            _held.append(mark)
            os.utime(folder)
            return
        os.close(mark)  # removed between opening and locking it


def sweep(base: Path) -> None:
    """Remove the folders of older hashes, except the newest few and those that a process uses."""
    for folder in sorted(base.glob(f"{HEAD}*"), key=_last_used)[:-KEPT]:
        try:
            mark = os.open(folder / MARK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # not made by this module, or being removed by another process
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            removed = folder.rename(folder.with_name(f"removed-{os.getpid()}-{folder.name}"))
            shutil.rmtree(removed, ignore_errors=True)
        except OSError:
            continue  # in use
        finally:
            os.close(mark)
    for left in base.glob("removed-*"):  # by a process that was killed meanwhile
        shutil.rmtree(left, ignore_errors=True)


def _last_used(folder: Path) -> float:
    try:
        return folder.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


# In the environment, so that worker processes find it too; the compiler reads it anew when it has changed.
os.environ["NUMBA_CACHE_DIR"] = str(cache_folder(Path(__file__).parent))
numba.config.reload_config()
