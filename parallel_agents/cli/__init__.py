"""The command line `parallel-agents`: parse the options, run one command, report errors."""

from __future__ import annotations

import difflib
import io
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from parallel_agents.cli import commands
from parallel_agents.cli.market import Market
from parallel_agents.cli.output import reserve_stdout
from parallel_agents.cli.process_watchdog import SharedStatus, can_fork, run_in_child
from parallel_agents.cli.signals import Signals
from parallel_agents.cli.workflow import Workflow
from parallel_agents.core import PACKAGE, __version__
from parallel_agents.core.config import ELSEWHERE
from parallel_agents.core.errors import ConfigError, Interrupted, ParallelAgentsError, WorldError

__all__ = ["main"]

COMMANDS: dict[str, type[commands.Command]] = {
    "train": commands.Train,
    "resume": commands.Resume,
    "eval": commands.Eval,
    "export": commands.Export,
    "curve": commands.Curve,
    "watch": commands.Watch,
    "report": commands.Report,
    "trace": commands.Trace,
    "runs": commands.Runs,
    "compare": commands.Compare,
    "verify": commands.Verify,
    "diff": commands.Diff,
    "config": commands.ShowConfig,
    "games": commands.Games,
    "new": commands.New,
    "check": commands.Check,
    "doctor": commands.Doctor,
    "market": Market,
    "workflow": Workflow,
}
ABOUT = """Train many independent agents: the same bytes, faster.

First steps:
  parallel-agents games                           what can be trained
  parallel-agents train treasure_hunt --worlds 8  train it; prints a run folder
  parallel-agents watch RUN                       see in a browser how they learn
  parallel-agents eval RUN --watch                see what the agents of that folder do
  parallel-agents runs                            which runs there are; compare, verify and diff set them side by side
  parallel-agents new berries                     write a game of your own
  parallel-agents train --help                    every option of a command
  parallel-agents --version                       which version this is

Tab completion: parallel-agents --tyro-print-completion bash (or zsh, tcsh); docs/command_line.md says where it goes."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    Without `arguments`, use those of the process, and run the command in a child process that this one watches.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if words == ["--version"]:
        sys.stdout.write(f"parallel-agents {__version__}\n")
        return 0
    as_json = "--json" in words
    try:
        try:
            return _main(words, as_json=as_json, watched=arguments is None)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(words: list[str], *, as_json: bool, watched: bool) -> int:
    try:
        with _completing_files() if words == ["--tyro-print-completion", "bash"] else nullcontext():
            command = parse(words)
    except SystemExit as error:  # tyro has written to stderr what was wrong
        if error.code and as_json:
            _print_error("UsageError", "bad usage; what was wrong is on stderr")
        raise
    except ParallelAgentsError as error:
        return _report(error, as_json=as_json)
    if watched:  # the process is ours
        warnings.formatwarning = _format_warning
        if not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would call a missing screen an error
    if watched and can_fork():
        return run_in_child(partial(_run, command, as_json=as_json), as_json=as_json)
    return _run(command, as_json=as_json)


@contextmanager
def _completing_files() -> Iterator[None]:
    """Let bash complete names of files, too, where the script that is printed meanwhile has nothing to offer."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        sys.stdout.write(printed.getvalue().replace("complete -F ", "complete -o bashdefault -o default -F "))


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning as one line, with its place if that is not in this package."""
    own = PACKAGE in Path(filename).parents
    return f"warning: {message}\n" if own else f"warning: {message} ({category.__name__}, {filename}:{lineno})\n"


def parse(words: list[str]) -> Any:
    """Return the command that these words ask for, without running it."""
    words = _write_out_numbers(_complete_watch(words))
    _check_command(words)
    _check_foreign_options(words)
    return tyro.extras.subcommand_cli_from_dict(
        dict[str, Callable[..., Any]](COMMANDS),
        prog="parallel-agents",
        description=ABOUT,
        args=words,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


def _run(command: Any, *, as_json: bool) -> int:
    """Run a parsed command and return its exit code."""
    path, status = [*sys.path], SharedStatus.current
    try:
        with (
            Signals(None if status is None else status.cells),
            reserve_stdout() if as_json else nullcontext(),
        ):
            code = command.run()  # None, or the exit code of a command that reports its failures itself
    except BrokenPipeError:
        raise
    except (Interrupted, Exception, SystemExit) as error:
        return _report(error, as_json=as_json)
    finally:
        sys.path[:] = path  # remove the folder of the target
    return int(code or 0)


def _complete_watch(words: list[str]) -> list[str]:
    """Complete `--watch` without a value: the page of a training, the terminal for an evaluation."""
    default = "terminal" if words[:1] == ["eval"] else "page"
    bare = [word == "--watch" and words[k + 1 : k + 2] not in (["page"], ["terminal"]) for k, word in enumerate(words)]
    return [part for word, alone in zip(words, bare, strict=True) for part in ((word, default) if alone else (word,))]


def _write_out_numbers(words: list[str]) -> list[str]:
    """Write 1e6 as 1000000, after the options that say how long a run is.

    >>> _write_out_numbers(["train", "--total-timesteps", "1e4", "--epochs=2e2"])
    ['train', '--total-timesteps', '10000', '--epochs=200']
    """
    found = []
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.rpartition("=")
        name = (option if equals else before).replace("_", "-")
        number = re.fullmatch(r"\d+e\d", value) if name in ("--total-timesteps", "--epochs") else None
        found.append(word if number is None else f"{option}{equals}{int(float(value))}")
    return found


def _check_command(words: list[str]) -> None:
    """Raise a ConfigError for an unknown command, also of a group, with the command that was likely meant."""
    _check_word(words[:1], COMMANDS)
    if words and words[0] in COMMANDS and (members := COMMANDS[words[0]].members):
        _check_word(words[1:2], members, f"{words[0]} ")


def _check_word(words: list[str], known: Collection[str], group: str = "") -> None:
    """Raise a ConfigError for each word that is no known command, with the one that was likely meant."""
    for word in words:
        if not word.startswith("-") and word not in known:
            similar = difflib.get_close_matches(word, known, n=1)
            hint = f"; did you mean {group}{similar[0]}?" if similar else "."
            raise ConfigError(f"there is no command {group + word!r}{hint} Commands: {', '.join(known)}")


def _check_foreign_options(words: list[str]) -> None:
    """Raise a ConfigError for an option of Stable-Baselines3 or CleanRL that has another name here."""
    command = COMMANDS.get(words[0]) if words else None
    known = {f.name for f in fields(command)} if is_dataclass(command) else set(ELSEWHERE)
    for word in words[1:]:
        name = word.removeprefix("--").partition("=")[0].replace("-", "_")
        if word.startswith("--") and name in ELSEWHERE and name not in known:
            key = ELSEWHERE[name]
            option = f"--set {key}=VALUE" if "." in key and " " not in key else key
            if (short := key.partition(".")[2]) in known:  # it has an option of its own
                option = f"--{short.replace('_', '-')} VALUE"
            raise ConfigError(f"{word} is no option of {words[0]}: here it is {option}")


def _report(error: BaseException, *, as_json: bool) -> int:
    """Write an error and return the exit code; add the traceback if the error comes from code of the user."""
    if isinstance(error, WorldError) or not isinstance(error, ParallelAgentsError | Interrupted):
        sys.stderr.write("".join(traceback.format_exception(error)))
    message = f"sys.exit({error.code!r}) was called" if isinstance(error, SystemExit) else str(error)
    sys.stderr.write(f"{message}\n" if isinstance(error, Interrupted) else f"error: {message}\n")
    if as_json:
        _print_error(type(error).__name__, message)
    return int(getattr(error, "exit_code", 1))


def _print_error(error: str, message: str) -> None:
    sys.stdout.write(json.dumps({"error": error, "message": message}) + "\n")
