"""The cache of compiled kernels on disk: renewed by every edit that matters, shared by processes and installations.

numba recompiles a cached function when its file has changed, but not when a function that it calls, or a constant
that it reads, has changed in another file. So the functions of a module are stored in a folder whose name holds a hash
of the module and of everything that it imports from this package, directly or not: an edit recompiles the modules that
can see it, and no others. Functions from outside this package may call any kernel: their folder, which is numba's own
cache folder, is named by a hash of all of them. Installations with equal sources share folders, wherever they are.

All folders are below `$XDG_CACHE_HOME/parallel_agents/numba`, or below `$NUMBA_CACHE_DIR` where that is set. If that
cannot be written, or if others may write into it, it is not used, since numba unpickles what it finds there: a private
temporary folder is used instead and removed at the end. Folders that nobody has used for some days are removed.
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
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator

PACKAGE = Path(__file__).parents[1]
HEAD = "kernels-"
"""Start of every folder's name."""
DAYS_KEPT = 7
_IMPORT = re.compile(r"^from (parallel_agents[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
COMPILE_PATIENCE = 300.0
"""Seconds to wait for another process that compiles a function; then this one compiles it too."""
_compiling: dict[str, tuple[int, int]] = {}
"""Lock files that this process holds while it compiles: descriptor, and how often it was taken."""


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _imported(path: Path, package: Path) -> frozenset[Path]:
    """Return the files of the package that a source file imports from."""
    found = set()
    for module, names in _IMPORT.findall(_text(path)):
        for name in (module, *(f"{module}.{word}" for word in re.findall(r"\w+", names))):
            place = package.parent.joinpath(*name.split("."))
            found |= {file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()}
    return frozenset(found)


@cache
def source_hash(*paths: Path, package: Path = PACKAGE) -> str:
    """Return a hash of source files and of all that they import from the package, directly or not."""
    seen: set[Path] = set()
    new = set(paths)
    while new:
        seen |= new
        new = {file for path in new for file in _imported(path, package)} - seen
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(seen):
        place = path.relative_to(package) if path.is_relative_to(package) else path.name
        digest.update(f"{place}:{len(_text(path))}:{_text(path)}".encode())
    return digest.hexdigest()[:16]


def kernel_hash(package: Path = PACKAGE) -> str:
    """Return a hash of every source that kernels are compiled from."""
    marked = "from parallel_agents.core.compiled import"
    return source_hash(*(path for path in package.rglob("*.py") if marked in _text(path)), package=package)


def usable_base() -> Path:
    """Return the folder below which all kernels are stored: the user's, or a private one for this process only."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "parallel_agents", "numba")
    if setting := os.environ.get("NUMBA_CACHE_DIR"):
        given = Path(setting).absolute()
        # a process that was started by another one finds what that one has set
        base = given.parent if given.name.startswith(HEAD) else given / "parallel_agents"
    try:
        if not base.is_absolute():
            raise FileNotFoundError(f"{base} is relative: there is no home folder, or XDG_CACHE_HOME is not absolute")
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = base.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022 or not stat.S_ISDIR(status.st_mode):
            raise PermissionError(f"{base} does not belong to this user, or others may write into it")
        os.utime(base)
        tempfile.TemporaryFile(dir=base).close()
    except OSError as error:
        base = Path(tempfile.mkdtemp(prefix="parallel_agents-"))
        atexit.register(shutil.rmtree, base, ignore_errors=True)
        logging.getLogger(__name__).info("compiled kernels are cached for this process only: %s", error)
    return base


def folder_of(name: str) -> Path:
    """Return the folder with this name, made anew if it is missing, and remember that it is in use."""
    folder = _base / f"{HEAD}{name}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.utime(folder)
    return folder


def sweep(base: Path) -> None:
    """Remove the folders that no process has used for some days."""
    oldest = time.time() - DAYS_KEPT * 86400
    for folder in base.glob(f"{HEAD}*"):
        try:
            if folder.lstat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:
            continue  # another process has removed it


class _PackageLocator(UserProvidedCacheLocator):  # type: ignore[misc]
    """Store functions of this package by module and by the sources that they are compiled from."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)
        module = ".".join(Path(py_file).relative_to(PACKAGE).with_suffix("").parts)
        self._cache_path = str(_base / f"{HEAD}{module}-{source_hash(Path(py_file))}")

    def get_source_stamp(self) -> str:
        """Return a constant: the name of the folder holds a hash of all sources."""
        return "package"

    def ensure_cache_path(self) -> None:
        """Make the folder, and remember that it is in use."""
        folder_of(Path(self._cache_path).name.removeprefix(HEAD))

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
        if found is not None:  # numba forgets what to load before it, which its callers inherit when they are compiled
            found.library._reload_init.update(found.reload_init)
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
            self._impl.locator.ensure_cache_path()
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


_base = usable_base()
sweep(_base)
FOLDER = folder_of(kernel_hash())
"""For functions from outside this package, and for what else depends on all kernels."""
# Set in the environment, so that worker processes use the same folder; `reload_config` makes numba read it again.
os.environ["NUMBA_CACHE_DIR"] = str(FOLDER)
numba.config.reload_config()
