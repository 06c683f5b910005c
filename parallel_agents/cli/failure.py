"""Why a run ended before its time: the last record of its log."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from parallel_agents.errors import (
    CheckpointError,
    ConfigError,
    ContractError,
    DeadlineError,
    Interrupted,
    LearnerError,
    TargetError,
    WorkerDied,
    WorldError,
)
from parallel_agents.tracking.logs import bind, configure_logs
from parallel_agents.tracking.runfolder import RunFolder

if TYPE_CHECKING:
    from parallel_agents.runtime.run import Run

__all__ = ["RunLog", "recorded"]

_ADVICE: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    (Interrupted, ""),
    ((WorldError, ContractError), "mend the environment at that place"),
    (LearnerError, "--backend inline runs the same round in this process, for a debugger"),
    (WorkerDied, "if the system ran out of memory, give fewer workers (parallel.num_workers) or smaller buffers"),
    (
        DeadlineError,
        "stacks-NN.txt in the run folder says where everybody was; if it was only slow, raise parallel.world_deadline "
        "or parallel.round_deadline",
    ),
    ((ConfigError, TargetError, CheckpointError), "do what the message says"),
    (MemoryError, "give fewer worlds, agents or workers, or smaller buffers"),
    (OSError, "make room on the disk, or mend it"),
    (Exception, "mend the code at that place"),
)
_LONGEST = 4000


@dataclass
class RunLog:
    """The log of a run folder while it is open; `run` is set as soon as there is one."""

    folder: RunFolder
    run: Run | None = None

    def failed(self, kind: str, message: str, advice: str, **place: Any) -> None:
        """Write why the run ended: the last record."""
        place |= self.run.place() if self.run is not None and self.run.loop.epoch else {}
        advice = "; ".join(part for part in (advice, self._way_on()) if part)
        structlog.get_logger().error("run_failed", error=kind, message=message[:_LONGEST], **place, advice=advice)

    def _way_on(self) -> str:
        checkpointer = self.run.checkpointer if self.run is not None else None
        if checkpointer is None:
            return ""
        epochs = checkpointer.store.epochs()
        start = f"after epoch {epochs[-1]}" if epochs else "from its first epoch"
        return f"`parallel-agents resume {self.folder.path}` goes on {start}"


@contextmanager
def recorded(folder: RunFolder, *, quiet: bool) -> Iterator[RunLog]:
    """Write the log of a run folder while the block runs; where it raises, why and where is the last record."""
    with configure_logs(folder.log, run=folder.run_id, console=not quiet), bind(role="conductor"):
        log = RunLog(folder)
        try:
            yield log
        except BaseException as error:
            advice = next((told for kind, told in _ADVICE if isinstance(error, kind)), "")
            log.failed(type(error).__name__, str(error), advice, place=_place(error))
            raise


def _place(error: BaseException) -> str:
    """File, line and function where it began."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}()" if frames else ""
