"""The checkpoints of a run: taken at once, written by a thread while the run goes on.

Copying what the run writes into takes milliseconds; hashing and syncing files takes many more. At most one checkpoint
is under way: the next one, and the end of the run, wait for it.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_agents.errors import CheckpointError
from parallel_agents.runtime.background import in_background
from parallel_agents.runtime.checkpoints.contents import arrays_of, values_of
from parallel_agents.runtime.checkpoints.memory import Segments, columns, compact
from parallel_agents.runtime.checkpoints.store import Manifest, Store
from parallel_agents.tracking.files import plain
from parallel_agents.types import Array

if TYPE_CHECKING:
    from parallel_agents.runtime.run import Run

__all__ = ["DEADLINE", "Checkpointer"]

DEADLINE = 600.0
"""Seconds after which a file system that still has not written a checkpoint is given up."""

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

    def __init__(self, run: Run, folder: Path, *, keep_last: int) -> None:
        self._run, self._keep = run, keep_last
        self.store = Store(folder)
        self.store.open_for_writing()
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
            own = manifest.values["segments"][index]
            self._segments[index].resume(own["names"], own["ends"], stack.ring)

    def room(self) -> tuple[int, int, int]:
        """Bytes free where checkpoints go, bytes of the smallest checkpoint, and of one with full buffers."""
        stacks = self._run.crew.stacks
        smallest = sum(tensor.nbytes for stack in stacks for tensor in stack.state.tensors.values())
        rings = sum(column.nbytes for stack in stacks for column in columns(stack.ring).values())
        return shutil.disk_usage(self.store.folder).free, smallest, smallest + rings

    def begin(self) -> None:
        """Take the run as it is now, at an epoch boundary with nothing in flight, and start to write it."""
        self.finish()
        self._before = [copy.copy(segments) for segments in self._segments]
        taken = self._take()
        self.epoch = taken.epoch
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
        except OSError as error:  # a full disk must not end a run of days: the older checkpoints stand
            self._segments = self._before  # but no name is used twice: a checkpoint that does exist may hold its file
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
            new[name] = segments.next(stack.ring)
            segments.taken(name, stack.ring)
            names, ends = segments.names(stack.ring)
            needed.append({"names": names, "ends": ends})
        shared = frozenset(name for own in needed for name in own["names"]) - new.keys()
        state = {name: column.copy() for name, column in arrays_of(run).items()}
        values = {**values_of(run, state), "segments": needed, "segments_written": self._count}
        return _Taken(run.epoch, state, new, shared, plain(values))

    def _write(self, taken: _Taken) -> dict[str, tuple[int, str]]:
        """All or nothing; the memory files that the checkpoint needs, with size and sha256."""
        with self._run.timeline.span("write checkpoint", "writer", epoch=taken.epoch):
            files = {name: self._files[name] for name in taken.shared}
            files |= {name: self.store.write(name, compact(own)) for name, own in taken.segments.items()}
            state = f"state-{taken.epoch:06d}.safetensors"
            entry = self.store.write(state, taken.state)
            self.store.commit(Manifest(taken.epoch, {**files, state: entry}, taken.values))
            self.store.rotate(set(self.store.epochs()[-self._keep :]))
            return files
