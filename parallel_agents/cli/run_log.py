"""The log of a run folder. If a run fails, its last record says why and where."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from parallel_agents.core.errors import (
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
from parallel_agents.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from parallel_agents.engine.run import Run

_ADVICE: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    ((WorldError, ContractError), "fix the environment at that place"),
    (LearnerError, "--backend inline runs the same round in this process, for a debugger"),
    (WorkerDied, "if the system ran out of memory, give fewer workers (parallel.num_workers) or smaller buffers"),
    (
        DeadlineError,
        "stacks-NN.txt in the run folder says where every thread was; if it was only slow, raise "
        "parallel.world_deadline or parallel.round_deadline",
    ),
    ((ConfigError, TargetError, CheckpointError), "do what the message says"),
    (MemoryError, "give fewer worlds, agents or workers, or smaller buffers"),
    (OSError, "free space on the disk, or repair it"),
    (Exception, "fix the code at that place"),
)
_MAX_MESSAGE = 4000


@dataclass
class RunLog:
    """The open log of a run folder; `run` is set as soon as the run exists."""

    folder: RunFolder
    run: Run | None = None

    def log_failure(self, kind: str, message: str, advice: str, **place: Any) -> None:
        """Write the last record: why the run failed and what to do."""
        place |= self.run.position() if self.run is not None and self.run.loop.epoch else {}
        advice = "; ".join(part for part in (advice, self.resume_hint()) if part)
        structlog.get_logger().error("run_failed", error=kind, message=message[:_MAX_MESSAGE], **place, advice=advice)

    def resume_hint(self) -> str:
        """Return the command that goes on with the run, and from where; empty if there is none."""
        checkpointer = self.run.checkpointer if self.run is not None else None
        if checkpointer is None:
            return ""
        epochs = checkpointer.written()
        start = f"after epoch {epochs[-1]}" if epochs else "from its first epoch"
        return f"`parallel-agents resume {self.folder.path}` goes on {start}"


@contextmanager
def open_run_log(folder: RunFolder, *, quiet: bool) -> Iterator[RunLog]:
    """Write the log of a run folder during the block; if the block raises, log why last."""
    with configure_logs(folder.log, run=folder.run_id, console=not quiet), bind(role="conductor"):
        log = RunLog(folder)
        try:
            yield log
        except Interrupted as error:
            structlog.get_logger().info("run_stopped", message=str(error), advice=log.resume_hint())
            raise
        except BaseException as error:
            advice = next((text for kinds, text in _ADVICE if isinstance(error, kinds)), "")
            log.log_failure(type(error).__name__, str(error), advice, place=_origin(error))
            raise


def _origin(error: BaseException) -> str:
    """Return file, line and function in which the first cause of an error was raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}()" if frames else ""
