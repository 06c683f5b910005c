"""Checkpoints as files: arrays in safetensors, the rest in JSON, a manifest with the sha256 of every part last.

    checkpoints/
        state-000013.safetensors          arrays of one checkpoint
        memory-0-000004.safetensors       rows of a ring, written once, shared by later checkpoints
        epoch-000013.json                 the manifest; with it, and only with it, the checkpoint exists

Nothing is ever unpickled. Neither safetensors nor any archive notices a flipped bit, hence the hashes; sizes are
checked before anything is read, and a name in a manifest can only be a file beside it.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from parallel_agents.errors import CheckpointError, CorruptCheckpoint
from parallel_agents.tracking.files import sweep, write_atomically
from parallel_agents.types import Array

__all__ = ["Manifest", "Store"]

FORMAT = 1
_NAME = re.compile(r"^(state|memory)-[0-9-]+\.safetensors\Z")
_MANIFEST = re.compile(r"^epoch-[0-9]{6,}\.json\Z")
_LARGEST_MANIFEST = 64 * 2**20


@dataclass(frozen=True)
class Manifest:
    """One checkpoint: its files with size and sha256, and everything that is not an array."""

    epoch: int
    files: Mapping[str, tuple[int, str]]
    values: Mapping[str, Any]

    @property
    def file_name(self) -> str:
        return f"epoch-{self.epoch:06d}.json"


class Store:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkpoints"

    def open_for_writing(self) -> None:
        """Make the folder and sweep what a killed writer left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.folder.is_symlink():
            raise CheckpointError(f"{self.folder} is a link: checkpoints are written into the run folder itself")
        sweep(self.folder)
        self.remove_unreferenced()

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, name: str, arrays: Mapping[str, Array]) -> tuple[int, str]:
        """One file of arrays; its size and sha256."""
        if not _NAME.match(name):
            raise CheckpointError(f"{name!r} cannot be written: only files of a checkpoint may stand there")
        # `ascontiguousarray` would give a number without axes an axis.
        data = save({key: np.asarray(value, order="C") for key, value in arrays.items()})
        write_atomically(self.folder / name, [data])
        return len(data), hashlib.sha256(data).hexdigest()

    def commit(self, manifest: Manifest) -> None:
        """Make the checkpoint exist."""
        files = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in manifest.files.items()}
        body = {"format": FORMAT, "epoch": manifest.epoch, "files": files, "values": manifest.values}
        seal = hashlib.sha256(_canonical(body)).hexdigest()
        text = json.dumps({**body, "sha256": seal}, allow_nan=False)
        write_atomically(self.folder / manifest.file_name, [text.encode()])

    def rotate(self, keep: set[int]) -> None:
        """Forget all checkpoints but those of these epochs, and every file that none of them needs."""
        for epoch in self.epochs():
            if epoch not in keep:
                (self.folder / f"epoch-{epoch:06d}.json").unlink(missing_ok=True)
        self.remove_unreferenced()

    def remove_unreferenced(self) -> None:
        """Forget every file that no checkpoint needs."""
        wanted: set[str] = set()
        for epoch in self.epochs():
            try:
                wanted |= set(self.manifest(epoch).files)
            except CheckpointError:  # an unreadable manifest: keep its files for whoever looks into it
                return
        for path in self.folder.glob("*.safetensors"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)

    # -- reading ---------------------------------------------------------------------------------------------

    def epochs(self) -> list[int]:
        """Epochs that have a manifest, oldest first."""
        names = [path.name for path in self.folder.glob("epoch-*.json") if _MANIFEST.match(path.name)]
        return sorted(int(name[6:-5]) for name in names)

    def manifest(self, epoch: int) -> Manifest:
        """The manifest of an epoch, checked against its own seal."""
        path = self.folder / f"epoch-{epoch:06d}.json"
        try:
            if _size(path) > _LARGEST_MANIFEST:
                raise CorruptCheckpoint(f"{path} is larger than any manifest: it is not one")
            body = json.loads(path.read_text(encoding="utf-8"))
            seal = body.pop("sha256")
            if seal != hashlib.sha256(_canonical(body)).hexdigest():
                raise CorruptCheckpoint(f"{path} is damaged: its sha256 does not fit")
            if body["format"] != FORMAT:
                raise CheckpointError(f"{path} has format {body['format']}, this version reads {FORMAT}")
            files = {str(n): (int(f["bytes"]), str(f["sha256"])) for n, f in body["files"].items()}
            found = Manifest(int(body["epoch"]), files, dict(body["values"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptCheckpoint(f"{path} is unreadable: {type(error).__name__}: {error}") from error
        for name in found.files:
            if not _NAME.match(name):
                raise CorruptCheckpoint(f"{path} names {name!r}: only files of a checkpoint may stand there")
        return found

    def check(self, manifest: Manifest) -> None:
        """Every file is there, of the right size and with the right bytes."""
        for name in manifest.files:
            self._bytes(manifest, name)

    def read(self, manifest: Manifest, name: str) -> dict[str, Array]:
        """The arrays of one file, checked."""
        data = self._bytes(manifest, name)
        try:
            return dict(load(data))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(f"{self.folder / name} is not a safetensors file: {error}") from error

    def _bytes(self, manifest: Manifest, name: str) -> bytes:
        path = self.folder / name
        size, digest = manifest.files[name]
        try:
            if (found := _size(path)) != size:
                raise CorruptCheckpoint(f"{path} has {found} bytes, {size} were written")
            data = path.read_bytes()
        except OSError as error:
            raise CorruptCheckpoint(f"{path} cannot be read: {error.strerror or error}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise CorruptCheckpoint(f"{path} is damaged: its sha256 is not the one that was written")
        return data

    def newest_good(self) -> tuple[Manifest, list[str]]:
        """The newest checkpoint whose every byte is right, and what was wrong with newer ones."""
        troubles: list[str] = []
        for epoch in reversed(self.epochs()):
            try:
                manifest = self.manifest(epoch)
                self.check(manifest)
                return manifest, troubles
            except CheckpointError as error:
                troubles.append(str(error))
        found = "; ".join(troubles) or "there is none"
        raise CheckpointError(f"no usable checkpoint in {self.folder}: {found}. Start the run anew with `train`")


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _size(path: Path) -> int:
    """Bytes of a file of its own; whoever can put a link here must not make us read something elsewhere."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise CorruptCheckpoint(f"{path} is a link or no file at all: it was not written by a run")
    return found.st_size
