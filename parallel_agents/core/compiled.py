"""Provide `njit` for the whole package, with a cache on disk that is renewed by every edit of a kernel.

numba recompiles a cached function when its file has changed, but not when a function that it calls, or a constant
that it reads, has changed in another file. So the name of the cache folder holds a hash of all sources that kernels
are compiled from: an edit of any of them starts with an empty folder.

The folder is `$XDG_CACHE_HOME/parallel_agents/numba/kernels-<hash>`, or `$NUMBA_CACHE_DIR/kernels-<hash>` where that is
set. A folder that cannot be written, or that others may write into, is not used, since numba unpickles what it finds
there: a private temporary folder is used instead and removed at the end. Folders of older hashes are removed, except
the newest few and those in use.
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
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
from numba import njit as njit
from numba.core import event

HEAD, MARK = "kernels-", "in_use"
"""Start of every folder's name, and the file in it whose lock says that a process uses the folder."""
KEPT = 12
"""Number of newest folders that are kept, so that several checkouts and branches can be used in turn."""
_IMPORT = re.compile(r"^from (parallel_agents[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
_held: list[int] = []
"""Descriptors of the locks that mark folders as in use; open until this process ends."""


def kernel_hash(package: Path) -> str:
    """Return a hash of every source that kernels are compiled from: their modules, and the modules they import from."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    sources = {path for path, text in texts.items() if "import njit" in text}
    sources |= {path for kernel in sources for path in _imported(package, texts[kernel]) if path in texts}
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(sources):
        digest.update(f"{path.relative_to(package)}:{len(texts[path])}:{texts[path]}".encode())
    return digest.hexdigest()[:16]


def _imported(package: Path, text: str) -> Iterator[Path]:
    """Yield the paths where the modules may be that this source text imports from."""
    for module, names in _IMPORT.findall(text):
        for name in (module, *(f"{module}.{word}" for word in re.findall(r"\w+", names))):
            yield package.parent.joinpath(*name.split(".")).with_suffix(".py")


def cache_folder(package: Path) -> Path:
    """Return the folder for the kernels of a package with its present sources: writable, and marked as in use."""
    base = _base()
    folder = base / f"{HEAD}{kernel_hash(package)}"
    try:
        _hold(folder)
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix="parallel_agents-")) / folder.name
        folder.mkdir()
        atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
        logging.getLogger(__name__).info("compiled kernels are cached for this process only: %s", error)
    else:
        sweep(base)
    return folder


def _base() -> Path:
    """Return the folder below which the caches of all hashes are."""
    if setting := os.environ.get("NUMBA_CACHE_DIR"):
        folder = Path(setting).absolute()
        return folder.parent if folder.name.startswith(HEAD) else folder  # set by the process that started this one
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "parallel_agents", "numba")


def _hold(folder: Path) -> None:
    """Make a folder and mark it as in use until this process ends; raise OSError if it cannot be used."""
    if not folder.is_absolute():
        raise FileNotFoundError(f"{folder} is relative: there is no home folder, or XDG_CACHE_HOME is not absolute")
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022 or not stat.S_ISDIR(status.st_mode):
            raise PermissionError(f"{folder} does not belong to this user, or others may write into it")
        try:
            mark = os.open(folder / MARK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # another process has removed the folder meanwhile
            continue
        fcntl.flock(mark, fcntl.LOCK_SH)
        if os.fstat(mark).st_nlink:
            _held.append(mark)
            os.utime(folder)
            return
        os.close(mark)  # the folder was removed after the file was opened and before it was locked


def sweep(base: Path) -> None:
    """Remove the folders of older hashes, except the newest few and those that a process uses."""
    for folder in sorted(base.glob(f"{HEAD}*"), key=_last_used)[:-KEPT]:
        try:
            mark = os.open(folder / MARK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # not a folder of this module, or another process is removing it
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            removed = folder.rename(folder.with_name(f"removed-{os.getpid()}-{folder.name}"))
            shutil.rmtree(removed, ignore_errors=True)
        except OSError:
            continue  # in use
        finally:
            os.close(mark)
    for leftover in base.glob("removed-*"):  # of a process that was killed while it removed them
        shutil.rmtree(leftover, ignore_errors=True)


def _last_used(folder: Path) -> float:
    """Return when a folder was used last; 0 if it is gone."""
    try:
        return folder.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


class Announcement(event.Listener):  # type: ignore[misc]
    """Say once, on a terminal, that kernels are being compiled: the first start of a machine takes longer."""

    def __init__(self) -> None:
        self._said = False

    def on_start(self, event: Any) -> None:
        """Take the start of a compilation; what numba finds in its cache is none."""
        module = getattr(event.data["dispatcher"].py_func, "__module__", "")
        if not self._said and module.startswith("parallel_agents.") and sys.stderr.isatty():
            self._said = True
            sys.stderr.write("compiling kernels for this machine, once: about 20 seconds\n")

    def on_end(self, event: Any) -> None:
        """Take the end of a compilation."""


event.register("numba:compile", Announcement())
# Set in the environment, so that worker processes use the same folder; `reload_config` makes numba read it again.
os.environ["NUMBA_CACHE_DIR"] = str(cache_folder(Path(__file__).parents[1]))
numba.config.reload_config()
