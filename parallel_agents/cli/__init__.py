"""The command line. Each command imports what it needs when it runs, so that `--help` stays quick."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import tyro

from parallel_agents.cli.commands import Doctor, Train
from parallel_agents.errors import ParallelAgentsError

__all__ = ["main"]

COMMANDS: dict[str, Callable[..., Any]] = {"train": Train, "doctor": Doctor}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    # A second signal must not be needed to stop, nor may SIGTERM skip clean-up, which by default it does.
    previous = signal.signal(signal.SIGTERM, _terminate)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="parallel-agents",
            description="Train many independent agents: the same bytes, faster.",
            args=words,
        )
        command.run()
    except ParallelAgentsError as error:
        _report(error, as_json="--json" in words)
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except _Terminated:
        sys.stderr.write("terminated\n")
        return 143
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


class _Terminated(BaseException):
    """SIGTERM, as an exception, so that workers are ended and files closed on the way out."""


def _terminate(*_: object) -> None:
    raise _Terminated


def _report(error: ParallelAgentsError, *, as_json: bool) -> None:
    sys.stderr.write(f"error: {error}\n")
    if as_json:
        sys.stdout.write(json.dumps({"error": type(error).__name__, "message": str(error)}) + "\n")
