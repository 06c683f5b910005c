"""Checkpoints as files: arrays in safetensors, the rest in JSON, a manifest with the sha256 of every part last.

    checkpoints/
        state-000013.safetensors          arrays of one checkpoint
        memory-0-000004.safetensors       rows of a ring, written once, shared by later checkpoints
        memory-0-000004.copy.safetensors  the same again: what checkpoints share must not be lost with one byte
        epoch-000013.json                 the manifest; with it, and only with it, the checkpoint exists

Nothing is ever unpickled. Neither safetensors nor any archive notices a flipped bit, hence the hashes; sizes are
checked before anything is read, and a name in a manifest can only be a file beside it. Whoever writes holds the lock
of the run folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from parallel_agents.errors import CheckpointError, CorruptCheckpoint
from parallel_agents.runtime.staffing import available_bytes
from parallel_agents.tracking.files import open_folder, read_file, read_json, sweep, write_atomically
from parallel_agents.tracking.locks import FolderLock
from parallel_agents.types import Array

__all__ = ["Manifest", "Store"]

FORMAT = 1
_NAME = re.compile(r"^(state|memory)-[0-9-]+\.safetensors\Z")
_MANIFEST = re.compile(r"^epoch-[0-9]{6,}\.json\Z")
_SHARED = "memory-"
_LARGEST_MANIFEST = 64 * 2**20


@dataclass(frozen=True)
class Manifest:
    """One checkpoint: its files with size and sha256, and everything that is not an array."""

    epoch: int
    files: Mapping[str, tuple[int, str]]
    values: Mapping[str, Any]

    @property
    def file_name(self) -> str:
        return _manifest_name(self.epoch)


class Store:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, lock: FolderLock | None = None) -> None:
        """lock: of the folder, where the caller holds it already."""
        self.root, self.folder = folder, folder / "checkpoints"
        self._lock = lock
        self._own: FolderLock | None = None

    def open_for_writing(self) -> None:
        """Lock the run folder unless the caller has, make the folder, and sweep what a killed writer left."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not any(lock is not None and lock.held for lock in (self._lock, self._own)):
                self._own = FolderLock(self.root)
            with open_folder(self.folder, self.root, create=True):
                sweep(self.folder, root=self.root)
        except OSError as error:
            self.close()
            raise CheckpointError(f"checkpoints cannot be written into {self.folder}: {error.strerror}") from error
        self.remove_unreferenced()

    def close(self) -> None:
        """Give the lock back, if it was taken here."""
        if self._own is not None:
            self._own.release()
            self._own = None

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, name: str, arrays: Mapping[str, Array]) -> tuple[int, str]:
        """Write one file of arrays, and its copy if checkpoints share it; its size and sha256."""
        if not _NAME.match(name):
            raise CheckpointError(f"{name!r} cannot be written: only files of a checkpoint may stand there")
        # `ascontiguousarray` would give a number without axes an axis.
        data = save({key: np.asarray(value, order="C") for key, value in arrays.items()})
        for path in self._places(name):
            write_atomically(path, [data], root=self.root)
        return len(data), hashlib.sha256(data).hexdigest()

    def commit(self, manifest: Manifest) -> None:
        """Make the checkpoint exist."""
        files = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in manifest.files.items()}
        body = {"format": FORMAT, "epoch": manifest.epoch, "files": files, "values": manifest.values}
        seal = hashlib.sha256(_canonical(body)).hexdigest()
        text = json.dumps({**body, "sha256": seal}, allow_nan=False).encode()
        if len(text) > _LARGEST_MANIFEST:
            raise CheckpointError(
                f"the manifest of epoch {manifest.epoch} would have {len(text):,} bytes, at most "
                f"{_LARGEST_MANIFEST:,} could be read again: this checkpoint is not written"
            )
        write_atomically(self.folder / manifest.file_name, [text], root=self.root)

    def rotate(self, newest: int, keep: int) -> None:
        """Keep the newest `keep` usable checkpoints up to epoch `newest`; forget older ones and what none needs.

        A manifest that cannot be read, or whose files are missing or of another size, is not counted.
        """
        usable = [epoch for epoch in reversed(self.epochs()) if epoch <= newest and self._usable(epoch)]
        if len(usable) > keep:
            self._remove(_manifest_name(epoch) for epoch in self.epochs() if epoch < usable[keep - 1])
        self.remove_unreferenced()

    def forget_after(self, epoch: int) -> None:
        """Forget what is newer than the checkpoint that a run goes on from: it was passed over as damaged."""
        self._remove(_manifest_name(newer) for newer in self.epochs() if newer > epoch)
        self.remove_unreferenced()

    def remove_unreferenced(self) -> None:
        """Forget every file that no checkpoint needs."""
        wanted: set[str] = set()
        for epoch in self.epochs():
            try:
                wanted |= {path.name for name in self.manifest(epoch).files for path in self._places(name)}
            except CorruptCheckpoint:  # it is lost, and so is what only it could have named
                continue
            except CheckpointError:  # of another version, or not to be read just now: its files are not touched
                return
        with open_folder(self.folder, self.root) as folder:
            found = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
        self._remove(name for name in found if name not in wanted)

    def mend(self, manifest: Manifest) -> None:
        """Write damaged or missing copies of a checkpoint's files again, from those that are whole."""
        for name, (size, digest) in manifest.files.items():
            good: list[bytes] = []
            bad: list[Path] = []
            for path in self._places(name):
                try:
                    good = [self._checked(path, size, digest)]
                except CorruptCheckpoint:
                    bad.append(path)
            for path in bad if good else ():
                write_atomically(path, good, root=self.root)

    def _remove(self, names: Iterable[str]) -> None:
        with open_folder(self.folder, self.root) as folder:
            for name in names:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)

    # -- reading ---------------------------------------------------------------------------------------------

    def epochs(self) -> list[int]:
        """Epochs that have a manifest, oldest first."""
        try:
            with open_folder(self.folder, self.root) as folder:
                names = os.listdir(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read: {error.strerror}") from error
        return sorted(int(name[6:-5]) for name in names if _MANIFEST.match(name))

    def manifest(self, epoch: int) -> Manifest:
        """The manifest of an epoch, checked against its own seal."""
        path = self.folder / _manifest_name(epoch)
        try:
            body = read_json(path, _LARGEST_MANIFEST, root=self.root)
            seal = body.pop("sha256")
            if seal != hashlib.sha256(_canonical(body)).hexdigest():
                raise CorruptCheckpoint(f"{path} is damaged: its sha256 does not fit")
            if body["format"] != FORMAT:
                raise CheckpointError(f"{path} has format {body['format']}, this version reads {FORMAT}")
            if body["epoch"] != epoch:
                raise CorruptCheckpoint(f"{path} is of epoch {body['epoch']!r}: it does not belong here")
            files = {str(name): _entry(entry) for name, entry in body["files"].items()}
            found = Manifest(epoch, files, dict(body["values"]))
        except OSError as error:
            kind = CorruptCheckpoint if error.errno in _REFUSED else CheckpointError
            raise kind(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptCheckpoint(f"{path} is unreadable: {type(error).__name__}: {error}") from error
        for name in found.files:
            if not _NAME.match(name):
                raise CorruptCheckpoint(f"{path} names {name!r}: only files of a checkpoint may stand there")
        return found

    def good(self, troubles: list[str]) -> Iterator[Manifest]:
        """Yield the checkpoints whose every byte is right, newest first; what is damaged is told in `troubles`."""
        for epoch in reversed(self.epochs()):
            try:
                manifest = self.manifest(epoch)
                mendable = self.check(manifest)
            except CheckpointError as error:
                troubles.append(str(error))
            else:
                troubles += mendable
                yield manifest

    def newest_good(self) -> tuple[Manifest, list[str]]:
        """The newest checkpoint whose every byte is right, and what was wrong with newer ones."""
        troubles: list[str] = []
        for manifest in self.good(troubles):
            return manifest, troubles
        raise self.none_usable(troubles)

    def none_usable(self, troubles: Iterable[str]) -> CheckpointError:
        """An error that says why no checkpoint can be taken, and what to do."""
        found = "; ".join(troubles)
        if not found:
            return CheckpointError(f"no usable checkpoint in {self.folder}: there is none, none was written so far")
        return CheckpointError(
            f"no usable checkpoint in {self.folder}: {found}. Restore that folder from elsewhere; without it, move it "
            "away and resume: the run then starts from its first epoch"
        )

    def check(self, manifest: Manifest) -> list[str]:
        """See that every file has its bytes, once at least; what is damaged but stands a second time."""
        troubles: list[str] = []
        for name in manifest.files:
            self._bytes(manifest, name, troubles)
        return troubles

    def read(self, manifest: Manifest, name: str) -> dict[str, Array]:
        """The arrays of one file, checked."""
        data = self._bytes(manifest, name, [])
        try:
            return dict(load(data))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(f"{self.folder / name} is not a safetensors file: {error}") from error

    def _usable(self, epoch: int) -> bool:
        """Whether a checkpoint could be taken, as far as its manifest and the sizes of its files tell."""
        try:
            files = self.manifest(epoch).files
            with open_folder(self.folder, self.root) as folder:
                return all(
                    any(_size(folder, path.name) == size for path in self._places(name))
                    for name, (size, _) in files.items()
                )
        except (CheckpointError, OSError):
            return False

    def _places(self, name: str) -> list[Path]:
        """Where a file stands: what checkpoints share stands twice."""
        path = self.folder / name
        return [path, path.with_suffix(f".copy{path.suffix}")] if name.startswith(_SHARED) else [path]

    def _bytes(self, manifest: Manifest, name: str, troubles: list[str]) -> bytes:
        """The bytes of a file; damage that its copy makes good is told in `troubles`."""
        faults: list[str] = []
        for path in self._places(name):
            try:
                data = self._checked(path, *manifest.files[name])
            except CorruptCheckpoint as error:
                faults.append(str(error))
            else:
                troubles += [f"{fault}; {path.name} is whole and was taken" for fault in faults]
                return data
        raise CorruptCheckpoint("; ".join(faults))

    def _checked(self, path: Path, size: int, digest: str) -> bytes:
        try:
            if size > available_bytes():
                raise CorruptCheckpoint(f"{path} would have {size:,} bytes, more than there is memory")
            data = read_file(path, size, root=self.root)
        except OSError as error:
            raise CorruptCheckpoint(f"{path}, {size} bytes were written, cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise CorruptCheckpoint(f"{path} has {len(data)} bytes, {size} were written")
        if hashlib.sha256(data).hexdigest() != digest:
            raise CorruptCheckpoint(f"{path} is damaged: its sha256 is not the one that was written")
        return data


_REFUSED = (errno.ELOOP, errno.EINVAL, errno.EFBIG, errno.ENOENT)
"""What `tracking.files` raises for links, FIFOs and files that are too large."""


def _manifest_name(epoch: int) -> str:
    return f"epoch-{epoch:06d}.json"


def _entry(entry: Mapping[str, Any]) -> tuple[int, str]:
    """Size and sha256 of a file, as a manifest gives them."""
    match entry:
        case {"bytes": int(size), "sha256": str(digest)} if size >= 0 and not isinstance(size, bool):
            return size, digest
    raise ValueError(f"{entry!r} is no size with a sha256")


def _size(folder: int, name: str) -> int:
    """Bytes of a file, -1 where it cannot be told."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    except OSError:
        return -1


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
