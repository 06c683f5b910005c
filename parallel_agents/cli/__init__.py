"""The command line. Each command imports what it needs when it runs, so that `--help` stays quick."""

from __future__ import annotations

import difflib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import tyro

from parallel_agents.cli.commands import Check, Curve, Doctor, Eval, Export, Games, New, Resume, Train
from parallel_agents.cli.market import Market
from parallel_agents.cli.signals import terminated
from parallel_agents.cli.workflow import Workflow
from parallel_agents.errors import ConfigError, ParallelAgentsError, WorldError

__all__ = ["main"]

COMMANDS: dict[str, Callable[..., Any]] = {
    "train": Train,
    "resume": Resume,
    "eval": Eval,
    "export": Export,
    "curve": Curve,
    "games": Games,
    "new": New,
    "check": Check,
    "doctor": Doctor,
    "market": Market,
    "workflow": Workflow,
}
ABOUT = """Train many independent agents: the same bytes, faster.

First steps:
  parallel-agents games                           what can be trained
  parallel-agents train treasure_hunt --worlds 8  train it; prints a run folder
  parallel-agents eval RUN --watch                see what the agents of that folder do
  parallel-agents new berries                     write a game of your own
  parallel-agents train --help                    every option of a command

Tab completion: parallel-agents --tyro-print-completion bash (or zsh, tcsh); docs/command_line.md says where it goes."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    previous = {number: signal.signal(number, terminated) for number in (signal.SIGINT, signal.SIGTERM)}
    words = sys.argv[1:] if arguments is None else arguments
    path = [*sys.path]
    try:
        _check_command(words)
        command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="parallel-agents",
            description=ABOUT,
            args=words,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        code = command.run()  # None, or the exit code of a command that has told its failure itself
    except SystemExit as leaving:  # tyro has said on stderr what was wrong
        if leaving.code and "--json" in words:
            _report_json("UsageError", "bad usage; what was wrong is on stderr")
        raise
    except BrokenPipeError:  # whoever read our output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
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
        sys.path[:] = path  # without the folder of a target
    return int(code or 0)


def _check_command(words: list[str]) -> None:
    """A command that does not exist, with the one that was likely meant."""
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise ConfigError(f"there is no command {words[0]!r}{hint} Commands: {', '.join(COMMANDS)}")


def _report(error: Exception, *, as_json: bool) -> None:
    sys.stderr.write(f"error: {error}\n")
    if as_json:
        _report_json(type(error).__name__, str(error))


def _report_json(error: str, message: str) -> None:
    sys.stdout.write(json.dumps({"error": error, "message": message}) + "\n")
