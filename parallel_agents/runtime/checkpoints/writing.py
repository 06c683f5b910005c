"""The checkpoints of a run: taken at once, written by a thread while the run goes on.

Copying what the run writes into takes milliseconds; hashing and syncing files takes many more. At most one checkpoint
is under way: the next one, and the end of the run, wait for it.
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_agents.errors import CheckpointError
from parallel_agents.runtime.background import in_background
from parallel_agents.runtime.checkpoints.contents import arrays_of, values_of
from parallel_agents.runtime.checkpoints.memory import Segments, columns, compact
from parallel_agents.runtime.checkpoints.store import Manifest, Store
from parallel_agents.tracking.files import plain
from parallel_agents.tracking.locks import FolderLock
from parallel_agents.types import Array

if TYPE_CHECKING:
    from parallel_agents.runtime.run import Run

__all__ = ["DEADLINE", "Checkpointer"]

DEADLINE = 600.0
"""Seconds after which a file system that still has not written a checkpoint is given up."""

EVERY = 120.0
"""Seconds between two checkpoints, at least, where `experiment.checkpoint_every` does not count epochs."""
SHARE = 0.01
"""Share of the time that checkpoints may then take, writing beside the run included."""

LEAVING = 1.0
"""Seconds that a checkpoint under way is waited for when a run ends by an error or at once."""


@dataclass(frozen=True)
class _Taken:
    """What a run was at one epoch boundary, in arrays of its own."""

    epoch: int
    state: Mapping[str, Array]
    segments: Mapping[str, Mapping[str, Array]]
    """By file name."""
    shared: frozenset[str]
    """Files of earlier checkpoints that this one needs."""
    values: Mapping[str, Any]


class Checkpointer:
    """Takes and writes the checkpoints of one run."""

    def __init__(self, run: Run, folder: Path, *, keep_last: int, lock: FolderLock | None = None) -> None:
        """lock: of the folder, where the caller holds it; otherwise it is held from now until the run stops."""
        self._run, self._keep = run, keep_last
        self.store = Store(folder, lock)
        self.store.open_for_writing()
        self._left_with: list[int] | None = None
        """The epochs that had a checkpoint when the lock was given back."""
        self._since = time.monotonic()
        self._cost = 0.0
        """Seconds that the last checkpoint took, in this thread and beside it."""
        self._segments = [Segments(stack.ring) for stack in run.crew.stacks]
        self._files: dict[str, tuple[int, str]] = {}
        self._count = 0
        self._before = self._segments
        self._writing: Future[dict[str, tuple[int, str]]] | None = None
        self.epoch = 0
        """Of the checkpoint that was taken last."""
        self.unwritten = 0
        """Checkpoints that could not be written."""

    def goes_on(self, manifest: Manifest) -> None:
        """Share the segments of the checkpoint that the run was resumed from."""
        self._files = {name: found for name, found in manifest.files.items() if name.startswith("memory-")}
        self._count = int(manifest.values["segments_written"])
        for index, stack in enumerate(self._run.crew.stacks):
            self._segments[index].resume(manifest.values["segments"][index], stack.ring)
        self.store.mend(manifest)
        self.store.forget_after(manifest.epoch)

    def enter(self) -> None:
        """Before the first epoch, and before a run goes on: be the one writer of the folder again."""
        if self._left_with is not None:
            self.store.open_for_writing()
            if self.store.epochs() != self._left_with:
                self.store.close()
                raise CheckpointError(
                    f"another run has written checkpoints into {self.store.folder} since this one stopped: make a new "
                    "environment and restore it from there, or give another folder"
                )
            self._left_with = None
        self._since = time.monotonic()

    def due(self, epoch: int) -> bool:
        """Return whether a checkpoint is to be taken after this epoch."""
        every = self._run.config.experiment.checkpoint_every
        if every is not None:
            return every > 0 and epoch % every == 0
        return time.monotonic() - self._since >= max(EVERY, self._cost / SHARE)

    def room(self) -> tuple[int, int, int]:
        """Bytes free where checkpoints go, bytes of the smallest checkpoint, and of one with full buffers."""
        stacks = self._run.crew.stacks
        smallest = sum(tensor.nbytes for stack in stacks for tensor in stack.state.tensors.values())
        rings = sum(column.nbytes for stack in stacks for column in columns(stack.ring).values())
        return shutil.disk_usage(self.store.folder).free, smallest, smallest + 2 * rings  # segments stand twice

    def begin(self) -> None:
        """Take the run as it is now, at an epoch boundary, rounds in flight awaited, and start to write it."""
        began = time.monotonic()
        self.finish()
        self._run.rounds.await_all()
        self._before = [copy.copy(segments) for segments in self._segments]
        taken = self._take()
        self.epoch = taken.epoch
        self._since = time.monotonic()
        self._cost = self._since - began
        self._writing = in_background(lambda: self._write(taken), "checkpoint writer")

    def wait(self, timeout: float) -> bool:
        """Wait for the checkpoint under way; True if there is none any more that `finish` would wait for."""
        return self._writing is None or not wait([self._writing], timeout).not_done

    def finish(self) -> None:
        """See that the checkpoint under way exists, or say why it could not be written and leave all as before."""
        if not self.wait(DEADLINE):
            raise CheckpointError(
                f"the checkpoint of epoch {self.epoch} was not written within {DEADLINE:g} s: look at the disk of "
                f"{self.store.folder}; those before stand, and `resume` goes on from them"
            )
        writing, self._writing = self._writing, None
        try:
            self._files = writing.result() if writing else self._files
        except (OSError, CheckpointError) as error:  # must not end a run of days: the older checkpoints stand
            self._segments = self._before  # but no name is used twice: a checkpoint that does exist may hold its file
            with suppress(OSError, CheckpointError):  # the disk that failed may fail here too: swept at the next start
                self.store.remove_unreferenced()
            self.unwritten += 1
            advice = "the run goes on and the checkpoints before stand; make room"
            told = {"epoch": self.epoch, "cause": str(error), "advice": advice, "level": "error"}
            self._run.tell("checkpoint_failed", told)

    def look(self) -> None:
        """Finish if nothing has to be waited for: a failure is told of now, not at the next checkpoint."""
        if self.wait(0.0):
            self.finish()

    def leave(self) -> None:
        """However the run ended: nothing is left writing, but who leaves at once does not wait for a slow disk."""
        if self.wait(LEAVING):
            self.finish()
            self._left_with = self.store.epochs()
            self.store.close()
        else:
            advice = "those before stand; what is unfinished is removed at the next start"
            self._run.tell("checkpoint_unfinished", {"epoch": self.epoch, "advice": advice})

    def _take(self) -> _Taken:
        run = self._run
        self._count += 1
        new: dict[str, Mapping[str, Array]] = {}
        needed: list[dict[str, Any]] = []
        for index, (stack, segments) in enumerate(zip(run.crew.stacks, self._segments, strict=True)):
            name = f"memory-{index}-{self._count:06d}.safetensors"
            new[name] = segments.take(name, stack.ring)
            needed.append(segments.values())
        shared = frozenset(name for own in needed for name in own["names"]) - new.keys()
        state = {name: column.copy() for name, column in arrays_of(run).items()}
        values = {**values_of(run, state), "segments": needed, "segments_written": self._count}
        return _Taken(run.epoch, state, new, shared, plain(values))

    def _write(self, taken: _Taken) -> dict[str, tuple[int, str]]:
        """All or nothing; the memory files that the checkpoint needs, with size and sha256."""
        began = time.monotonic()
        with self._run.timeline.span("write checkpoint", "writer", epoch=taken.epoch):
            files = {name: self._files[name] for name in taken.shared}
            files |= {name: self.store.write(name, compact(own)) for name, own in taken.segments.items()}
            state = f"state-{taken.epoch:06d}.safetensors"
            entry = self.store.write(state, taken.state)
            self.store.commit(Manifest(taken.epoch, {**files, state: entry}, taken.values))
            self.store.rotate(taken.epoch, self._keep)
        self._cost += time.monotonic() - began
        return files
