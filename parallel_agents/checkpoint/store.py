"""Checkpoints as files: arrays in safetensors, the rest in JSON, a manifest with the sha256 of every part last.

    checkpoints/
        state-000013.safetensors          arrays of one checkpoint
        memory-0-000004.safetensors       rows of replay buffers, written once, shared by later checkpoints
        memory-0-000004.copy.safetensors  the same again, since one damaged byte must not spoil several checkpoints
        epoch-000013.json                 the manifest; the checkpoint exists if and only if this file does

Nothing is ever unpickled. Neither safetensors nor any archive notices a flipped bit, hence the hashes. Sizes are
checked before anything is read, and a manifest can only name files beside it. The writer holds the lock of the run
folder.
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

from parallel_agents.core.errors import CheckpointError, CorruptCheckpoint
from parallel_agents.core.files import open_folder, read_file, read_json, remove_unfinished, write_atomically
from parallel_agents.core.folder_lock import FolderLock
from parallel_agents.core.system import available_bytes
from parallel_agents.core.types import Array

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
        """lock: of the folder, if the caller holds it already."""
        self.root, self.folder = folder, folder / "checkpoints"
        self._lock = lock
        self._own_lock: FolderLock | None = None

    def open_for_writing(self) -> None:
        """Lock the run folder unless the caller has, make the folder, and remove what a killed writer left."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not any(lock is not None and lock.held for lock in (self._lock, self._own_lock)):
                self._own_lock = FolderLock(self.root)
            with open_folder(self.folder, self.root, create=True):
                remove_unfinished(self.folder, root=self.root)
        except OSError as error:
            self.close()
            raise CheckpointError(f"checkpoints cannot be written into {self.folder}: {error.strerror}") from error
        self.remove_unreferenced()

    def close(self) -> None:
        """Release the lock if it was taken here."""
        if self._own_lock is not None:
            self._own_lock.release()
            self._own_lock = None

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, name: str, arrays: Mapping[str, Array]) -> tuple[int, str]:
        """Write a file of arrays, and its copy if checkpoints share it. Return its size and sha256."""
        if not _NAME.match(name):
            raise CheckpointError(f"{name!r} cannot be written: only files of a checkpoint may stand there")
        # `ascontiguousarray` would add an axis to a number without axes.
        data = save({key: np.asarray(value, order="C") for key, value in arrays.items()})
        for path in self._places(name):
            write_atomically(path, [data], root=self.root)
        return len(data), hashlib.sha256(data).hexdigest()

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest: from now on the checkpoint exists."""
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
        """Keep the newest `keep` usable checkpoints up to epoch `newest`; remove older ones and files that none needs.

        A manifest that cannot be read, or whose files are missing or of another size, does not count.
        """
        usable = [epoch for epoch in reversed(self.epochs()) if epoch <= newest and self._usable(epoch)]
        if len(usable) > keep:
            self._remove(_manifest_name(epoch) for epoch in self.epochs() if epoch < usable[keep - 1])
        self.remove_unreferenced()

    def forget_after(self, epoch: int) -> None:
        """Remove checkpoints after an epoch: those that a restored run has passed over as damaged."""
        self._remove(_manifest_name(newer) for newer in self.epochs() if newer > epoch)
        self.remove_unreferenced()

    def remove_unreferenced(self) -> None:
        """Remove every file that no checkpoint needs."""
        needed: set[str] = set()
        for epoch in self.epochs():
            try:
                needed |= {path.name for name in self.manifest(epoch).files for path in self._places(name)}
            except CorruptCheckpoint:  # it is lost, and so are files that only it names
                continue
            except CheckpointError:  # another version, or unreadable just now: remove nothing
                return
        with open_folder(self.folder, self.root) as folder:
            names = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
        self._remove(name for name in names if name not in needed)

    def mend(self, manifest: Manifest) -> None:
        """Replace damaged or missing copies of a checkpoint's files by those that are whole."""
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
        """Return the epochs that have a manifest, oldest first."""
        try:
            with open_folder(self.folder, self.root) as folder:
                names = os.listdir(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read: {error.strerror}") from error
        return sorted(int(name[6:-5]) for name in names if _MANIFEST.match(name))

    def manifest(self, epoch: int) -> Manifest:
        """Return the manifest of an epoch, checked against its own sha256."""
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
            manifest = Manifest(epoch, files, dict(body["values"]))
        except OSError as error:
            kind = CorruptCheckpoint if error.errno in _REFUSED else CheckpointError
            raise kind(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptCheckpoint(f"{path} is unreadable: {type(error).__name__}: {error}") from error
        for name in manifest.files:
            if not _NAME.match(name):
                raise CorruptCheckpoint(f"{path} names {name!r}: only files of a checkpoint may stand there")
        return manifest

    def good(self, troubles: list[str]) -> Iterator[Manifest]:
        """Yield the checkpoints whose every byte is right, newest first. What is damaged is added to `troubles`."""
        for epoch in reversed(self.epochs()):
            try:
                manifest = self.manifest(epoch)
                repairable = self.check(manifest)
            except CheckpointError as error:
                troubles.append(str(error))
            else:
                troubles += repairable
                yield manifest

    def newest_good(self) -> tuple[Manifest, list[str]]:
        """Return the newest checkpoint whose every byte is right, and what is wrong with newer ones."""
        troubles: list[str] = []
        for manifest in self.good(troubles):
            return manifest, troubles
        raise self.none_usable(troubles)

    def none_usable(self, troubles: Iterable[str]) -> CheckpointError:
        """Return an error that says why no checkpoint can be used, and what to do."""
        causes = "; ".join(troubles)
        if not causes:
            return CheckpointError(f"no usable checkpoint in {self.folder}: there is none, none was written so far")
        return CheckpointError(
            f"no usable checkpoint in {self.folder}: {causes}. Restore that folder from elsewhere; without it, move it "
            "away and resume: the run then starts from its first epoch"
        )

    def check(self, manifest: Manifest) -> list[str]:
        """Raise if a file is damaged and has no whole copy. Return what is damaged but has one."""
        troubles: list[str] = []
        for name in manifest.files:
            self._bytes(manifest, name, troubles)
        return troubles

    def read(self, manifest: Manifest, name: str) -> dict[str, Array]:
        """Return the arrays of one file, after checking its bytes."""
        data = self._bytes(manifest, name, [])
        try:
            return dict(load(data))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(f"{self.folder / name} is not a safetensors file: {error}") from error

    def _usable(self, epoch: int) -> bool:
        """Return whether a checkpoint can be used, judged by its manifest and the sizes of its files."""
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
        """Return the paths of a file: files that checkpoints share are stored twice."""
        path = self.folder / name
        return [path, path.with_suffix(f".copy{path.suffix}")] if name.startswith(_SHARED) else [path]

    def _bytes(self, manifest: Manifest, name: str, troubles: list[str]) -> bytes:
        """Return the bytes of a file from its first whole copy. Damaged copies are added to `troubles`."""
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
        """Return the bytes of a path. Raise `CorruptCheckpoint` if they are not those that were written."""
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
"""What `core.files` raises for links, FIFOs, files that are too large and missing files."""


def _manifest_name(epoch: int) -> str:
    return f"epoch-{epoch:06d}.json"


def _entry(entry: Mapping[str, Any]) -> tuple[int, str]:
    """Return size and sha256 of a file, from its entry in a manifest."""
    match entry:
        case {"bytes": int(size), "sha256": str(digest)} if size >= 0 and not isinstance(size, bool):
            return size, digest
    raise ValueError(f"{entry!r} is no size with a sha256")


def _size(folder: int, name: str) -> int:
    """Return the bytes of a file; -1 if the system does not say."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    except OSError:
        return -1


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
