"""The cache of compiled kernels on disk: renewed by every edit of a kernel, shared by processes and installations.

numba recompiles a cached function when its file has changed, but not when a function that it calls, or a constant
that it reads, has changed in another file. So the name of the cache folder holds a hash of all sources that kernels
are compiled from: an edit of any of them starts with an empty folder. Installations with equal sources share a folder,
wherever they are.

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
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator

PACKAGE = Path(__file__).parents[1]
HEAD, MARK = "kernels-", "in_use"
"""Start of every folder's name, and the file in it whose lock says that a process uses the folder."""
KEPT = 12
"""Number of newest folders that are kept, so that several checkouts and branches can be used in turn."""
_IMPORT = re.compile(r"^from (parallel_agents[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
COMPILE_PATIENCE = 300.0
"""Seconds to wait for another process that compiles a function; then this one compiles it too."""
_held: list[int] = []
"""Descriptors of the locks that mark folders as in use; open until this process ends."""
_compiling: dict[str, tuple[int, int]] = {}
"""Lock files that this process holds while it compiles: descriptor, and how often it was taken."""


def kernel_hash(package: Path) -> str:
    """Return a hash of every source that kernels are compiled from: their modules, and the modules they import from."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    sources = {path for path, text in texts.items() if "from parallel_agents.core.compiled import" in text}
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


class _PackageLocator(UserProvidedCacheLocator):  # type: ignore[misc]
    """Store functions of this package by their place in it, not by the folder that it is installed in."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """Return the folder for the functions of a file, below that of the cache."""
        return ".".join(Path(py_file).relative_to(PACKAGE).with_suffix("").parts)

    def get_source_stamp(self) -> str:
        """Return a constant: the name of the cache's folder holds a hash of all sources."""
        return "package"

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """Return a locator for a function of this package, and None for any other."""
        return super().from_function(py_func, py_file) if Path(py_file).is_relative_to(PACKAGE) else None


class _CacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    """numba's own, except for the place of this package's functions."""

    _locator_classes = (_PackageLocator, *CompileResultCacheImpl._locator_classes)


class SharedCache(FunctionCache):  # type: ignore[misc]
    """A cache on disk in which one process at a time compiles a function; the others wait for it and load the result.

    Without a lock, two processes that store a function for different types at the same time write to one file, and one
    of them later loads the code of the other. A compilation that fails keeps the lock until its process ends.
    """

    _impl_class = _CacheImpl

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the stored code for a signature, or None: then this process has the lock and compiles it."""
        found = super().load_overload(signature, context)
        if found is None and not self._take():
            found = super().load_overload(signature, context)
            if found is not None:
                self._give_back()
        return found

    def save_overload(self, signature: Any, result: Any) -> None:
        """Store compiled code and give the lock back."""
        try:
            super().save_overload(signature, result)
        finally:
            self._give_back()

    @property
    def _path(self) -> str:
        return os.path.join(self.cache_path, f"{self._impl.filename_base}.lock")

    def _take(self) -> bool:
        """Take the lock of this function; return True if this process has it already, as functions may be nested."""
        file, times = _compiling.get(self._path, (-1, 0))
        if not times:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            give_up = time.monotonic() + COMPILE_PATIENCE
            while time.monotonic() < give_up:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05)
        _compiling[self._path] = file, times + 1
        return times > 0

    def _give_back(self) -> None:
        file, times = _compiling.pop(self._path, (-1, 0))
        if times > 1:
            _compiling[self._path] = file, times - 1
        elif times == 1:
            os.close(file)


# Set in the environment, so that worker processes use the same folder; `reload_config` makes numba read it again.
os.environ["NUMBA_CACHE_DIR"] = str(cache_folder(PACKAGE))
numba.config.reload_config()
