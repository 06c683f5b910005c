"""Define every exception that the library raises on purpose.

A message says what was asked for, what was found, and what to do.
"""

from __future__ import annotations


class ParallelAgentsError(Exception):
    """Base of all exceptions that the library raises on purpose."""

    exit_code = 1


class ConfigError(ParallelAgentsError):
    """An unknown key, a wrong type, a value out of range, or options that contradict each other."""

    exit_code = 2


class TargetError(ParallelAgentsError):
    """A target that holds no environment class, or more than one."""

    exit_code = 2


class FolderInUse(ParallelAgentsError):
    """Another process writes into the run folder."""

    exit_code = 2


class ContractError(ParallelAgentsError):
    """A world, an agent or a model broke its contract."""


class ShapeError(ContractError):
    """An array of the wrong shape or type."""


class NonFiniteError(ContractError):
    """NaN or infinity in an observation, a reward, a loss or a gradient."""


class ActionError(ContractError):
    """An action outside the action space, or a mask that allows none."""


class SharingError(ContractError):
    """Two agents hold the same model, buffer or id: nothing may be shared."""


class NumericsError(ParallelAgentsError):
    """The numeric environment cannot give equal bytes."""


class RunError(ParallelAgentsError):
    """A run cannot continue."""


class LearnerError(RunError):
    """A round of training failed."""


class WorkerDied(RunError):
    """A worker process ended unexpectedly."""


class DeadlineError(RunError):
    """Something took longer than its deadline allows."""


class WorldError(RunError):
    """A world raised while it was reset, observed or stepped."""


class Interrupted(BaseException):
    """A signal asked the run to stop; `exit_code` is that of the signal.

    It is no `Exception`, so that a learner, a world or a callback that catches every `Exception` does not catch it.
    """

    def __init__(self, message: str, *, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class CheckpointError(ParallelAgentsError):
    """A checkpoint is missing, unreadable, or made for another configuration."""


class CorruptCheckpoint(CheckpointError):
    """The bytes on disk are not the bytes that were written."""
