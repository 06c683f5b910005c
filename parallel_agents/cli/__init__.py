"""The command line. Each command imports what it needs when it runs, so that `--help` stays quick."""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import tyro

from parallel_agents.cli.commands import Doctor, Eval, Export, Resume, Train
from parallel_agents.cli.signals import terminated
from parallel_agents.cli.workflow import Workflow
from parallel_agents.errors import ParallelAgentsError, WorldError

__all__ = ["main"]

COMMANDS: dict[str, Callable[..., Any]] = {
    "train": Train,
    "resume": Resume,
    "eval": Eval,
    "export": Export,
    "doctor": Doctor,
    "workflow": Workflow,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    previous = {number: signal.signal(number, terminated) for number in (signal.SIGINT, signal.SIGTERM)}
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
        if isinstance(error, WorldError):
            sys.stderr.write(traceback.format_exc())  # of the user's own code: where it comes from matters
        _report(error, as_json="--json" in words)
        return error.exit_code
    except Exception as error:  # of the user's own code: where it comes from matters
        sys.stderr.write(traceback.format_exc())
        _report(error, as_json="--json" in words)
        return 1
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 0


def _report(error: Exception, *, as_json: bool) -> None:
    sys.stderr.write(f"error: {error}\n")
    if as_json:
        sys.stdout.write(json.dumps({"error": type(error).__name__, "message": str(error)}) + "\n")
