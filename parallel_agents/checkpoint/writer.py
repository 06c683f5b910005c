"""The checkpoints of a run: copied at an epoch boundary, written by a thread while the run continues.

Copying what the run writes into takes milliseconds; hashing and syncing files takes far longer. At most one checkpoint
is being written: the next one, and the end of the run, wait for it.
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
from typing import Any

from parallel_agents.checkpoint.contents import checkpoint_obstacle, run_arrays, run_values
from parallel_agents.checkpoint.segments import Segments, compact
from parallel_agents.checkpoint.store import Manifest, Store
from parallel_agents.core.errors import CheckpointError, RunError
from parallel_agents.core.files import plain
from parallel_agents.core.folder_lock import FolderLock
from parallel_agents.core.system import in_background
from parallel_agents.core.types import Array
from parallel_agents.engine.run import Run

DEADLINE = 600.0
"""Seconds after which a checkpoint that is still not written ends the run."""
EVERY = 120.0
"""Seconds between two checkpoints, at least, if `experiment.checkpoint_every` does not count epochs."""
SHARE = 0.01
"""Share of the time that such checkpoints may take, including writing beside the run."""
CLOSING = 1.0
"""Seconds to wait for a checkpoint that is being written when a run ends by an error or at once."""


@dataclass(frozen=True)
class _Copy:
    """A run at one epoch boundary, in arrays of its own."""

    epoch: int
    state: Mapping[str, Array]
    segments: Mapping[str, Mapping[str, Array]]
    """New buffer segments by file name."""
    shared: frozenset[str]
    """Files of earlier checkpoints that this one needs."""
    values: Mapping[str, Any]


class Checkpointer:
    """Takes and writes the checkpoints of one run."""

    def __init__(self, run: Run, folder: Path, *, keep_last: int, lock: FolderLock | None = None) -> None:
        """lock: of the folder, if the caller holds it; otherwise it is held from now until the run stops."""
        self._run, self._keep = run, keep_last
        self.store = Store(folder, lock)
        self.store.open_for_writing()
        self._epochs_at_close: list[int] | None = None
        """The epochs that had a checkpoint when the lock was released."""
        self._last_time = time.monotonic()
        self._cost = 0.0
        """Seconds that the last checkpoint took, in the thread of the loop and beside it."""
        self._segments = [Segments(stack.ring) for stack in run.group.stacks]
        self._segments_before = self._segments
        self._segments_written = 0
        self._files: dict[str, tuple[int, str]] = {}
        """Size and sha256 of the segment files that the last checkpoint needs."""
        self._writing: Future[dict[str, tuple[int, str]]] | None = None
        self.epoch = 0
        """The epoch of the last checkpoint."""
        self.unwritten = 0
        """Checkpoints that could not be written."""

    def continue_from(self, manifest: Manifest) -> None:
        """Share the segments of the checkpoint that the run was restored from."""
        self._files = {name: entry for name, entry in manifest.files.items() if name.startswith("memory-")}
        self._segments_written = int(manifest.values["segments_written"])
        for index, stack in enumerate(self._run.group.stacks):
            self._segments[index].resume(manifest.values["segments"][index], stack.ring)
        self.store.mend(manifest)
        self.store.forget_after(manifest.epoch)

    def open(self) -> None:
        """Become the one writer of the folder again, before the first epoch and before a run continues."""
        if self._epochs_at_close is not None:
            self.store.open_for_writing()
            if self.store.epochs() != self._epochs_at_close:
                self.store.close()
                raise CheckpointError(
                    f"another run has written checkpoints into {self.store.folder} since this one stopped: make a new "
                    "environment and restore it from there, or give another folder"
                )
            self._epochs_at_close = None
        self._check_disk_space()
        self._last_time = time.monotonic()

    def due(self, epoch: int) -> bool:
        """Return whether a checkpoint is due after this epoch."""
        every = self._run.config.experiment.checkpoint_every
        if every is not None:
            return every > 0 and epoch % every == 0
        return time.monotonic() - self._last_time >= max(EVERY, self._cost / SHARE)

    def written(self) -> list[int]:
        """Return the epochs that have a checkpoint, oldest first."""
        return self.store.epochs()

    def _check_disk_space(self) -> None:
        """Raise RunError if not even the smallest checkpoint fits on the disk; emit an event if space is short."""
        stacks, free = self._run.group.stacks, shutil.disk_usage(self.store.folder).free
        smallest = sum(tensor.nbytes for stack in stacks for tensor in stack.state.tensors.values())
        buffers = sum(column.nbytes for stack in stacks for column in stack.ring.lasting_columns().values())
        largest = smallest + 2 * buffers  # segments are stored twice
        if free < smallest:
            raise RunError(
                f"a checkpoint needs at least {smallest:,} bytes, but only {free:,} are free in {self.store.folder}: "
                "make room, or give another folder"
            )
        if free < 2 * largest:  # a new checkpoint is written before an old one is removed
            self._run.emit("disk_is_short", {"free_bytes": free, "needed_bytes": 2 * largest})

    def begin(self) -> None:
        """Wait for rounds in flight, copy the run as it is now, at an epoch boundary, and start to write the copy."""
        began = time.monotonic()
        self.finish()
        self._run.rounds.receive_all()
        if (reason := checkpoint_obstacle(self._run)) is not None:  # a constant of a model was replaced since the start
            self.epoch, self._last_time = self._run.epoch, began
            self._report_failure(reason, "the run goes on, but `resume` cannot go on from here")
            return
        self._segments_before = [copy.copy(segments) for segments in self._segments]
        taken = self._copy_run()
        self.epoch = taken.epoch
        self._last_time = time.monotonic()
        self._cost = self._last_time - began
        self._writing = in_background(lambda: self._write(taken), "checkpoint writer")

    def wait(self, timeout: float) -> bool:
        """Wait for the checkpoint that is being written; return False if it still is after `timeout` seconds."""
        return self._writing is None or not wait([self._writing], timeout).not_done

    def finish(self) -> None:
        """Wait for the checkpoint that is being written. If it failed, emit `checkpoint_failed` and drop it."""
        if not self.wait(DEADLINE):
            raise CheckpointError(
                f"the checkpoint of epoch {self.epoch} was not written within {DEADLINE:g} s: look at the disk of "
                f"{self.store.folder}; those before stand, and `resume` goes on from them"
            )
        writing, self._writing = self._writing, None
        try:
            self._files = writing.result() if writing else self._files
        except (OSError, CheckpointError) as error:  # must not end a run of days: the older checkpoints are whole
            self._segments = self._segments_before  # but never reuse a name: an existing checkpoint may hold its file
            with suppress(OSError, CheckpointError):  # the disk may fail here too: leftovers go at the next start
                self.store.remove_unreferenced()
            self._report_failure(str(error), "the run goes on and the checkpoints before stand; make room")

    def _report_failure(self, cause: str, advice: str) -> None:
        self.unwritten += 1
        fields = {"epoch": self.epoch, "cause": cause, "advice": advice, "level": "error"}
        self._run.emit("checkpoint_failed", fields)

    def poll(self) -> None:
        """Finish if there is nothing to wait for, so that a failure is reported now, not at the next checkpoint."""
        if self.wait(0.0):
            self.finish()

    def close(self) -> None:
        """Release the folder however the run ended, but do not wait long for a slow disk."""
        if self.wait(CLOSING):
            self.finish()
            self._epochs_at_close = self.store.epochs()
            self.store.close()
        else:
            advice = "those before stand; what is unfinished is removed at the next start"
            self._run.emit("checkpoint_unfinished", {"epoch": self.epoch, "advice": advice})

    def _copy_run(self) -> _Copy:
        run = self._run
        self._segments_written += 1
        new: dict[str, Mapping[str, Array]] = {}
        needed: list[dict[str, Any]] = []
        for index, (stack, segments) in enumerate(zip(run.group.stacks, self._segments, strict=True)):
            name = f"memory-{index}-{self._segments_written:06d}.safetensors"
            new[name] = segments.take(name, stack.ring)
            needed.append(segments.values())
        shared = frozenset(name for values in needed for name in values["names"]) - new.keys()
        state = {name: column.copy() for name, column in run_arrays(run).items()}
        values = {**run_values(run, state), "segments": needed, "segments_written": self._segments_written}
        return _Copy(run.epoch, state, new, shared, plain(values))

    def _write(self, taken: _Copy) -> dict[str, tuple[int, str]]:
        """Write a checkpoint, all or nothing, and return its segment files with size and sha256."""
        began = time.monotonic()
        with self._run.timeline.span("write checkpoint", "writer", epoch=taken.epoch):
            files = {name: self._files[name] for name in taken.shared}
            files |= {name: self.store.write(name, compact(arrays)) for name, arrays in taken.segments.items()}
            state = f"state-{taken.epoch:06d}.safetensors"
            entry = self.store.write(state, taken.state)
            self.store.commit(Manifest(taken.epoch, {**files, state: entry}, taken.values))
            self.store.rotate(taken.epoch, self._keep)
        self._cost += time.monotonic() - began
        return files
