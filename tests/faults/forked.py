"""Commands and scripts in processes that are forked from one that has imported the package already.

Such a process begins its work at once, whereas a new interpreter needs seconds for its imports. It has a session of its
own, and the parent that watches a command. Tests that are about how a command starts start a new interpreter.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from parallel_agents.core.system import leave
from parallel_agents.execution import forkserver


class Forked:
    """A process that calls a function of this module; used as a `Popen` is."""

    def __init__(self, folder: Path, main: Callable[..., None], *arguments: Any) -> None:
        from parallel_agents.cli.train import train

        self._folder = tempfile.TemporaryDirectory(prefix="forked-")
        self._streams = [Path(self._folder.name, name) for name in ("out", "err")]
        self._process = forkserver.start("forked", _begin, folder, self._streams, main, arguments, train)
        assert self._process.known(60.0), self._process.end
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code as `Popen` does; None while the process runs."""
        return self.returncode if self._process.poll() else None

    @property
    def returncode(self) -> int:
        how, _, what = str(self._process.end).rpartition(" ")
        return -getattr(signal, what) if how == "signal" else int(what)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.signal(signal.SIGKILL)

    def communicate(self, timeout: float = 100.0) -> tuple[str, str]:
        """Wait for the end, and return what was printed on stdout and stderr."""
        try:
            assert self._process.poll(timeout), f"it still runs; its stderr: {self._streams[1].read_text()}"
            out, err = (path.read_text() for path in self._streams)
        finally:
            self.kill()
            self._folder.cleanup()
        return out, err

    def ended(self, timeout: float = 100.0) -> CompletedProcess[str]:
        out, err = self.communicate(timeout)
        return CompletedProcess([], self.returncode, out, err)


def command(folder: Path, *words: str, patches: Mapping[str, object] | None = None) -> Forked:
    """Begin a command in a folder, with other values for some module:name, and return it."""
    return Forked(folder, _run_command, list(words), dict(patches or {}))


def script(folder: Path, text: str, *words: object) -> Forked:
    """Begin a script in a folder, and return it."""
    return Forked(folder, _run_script, text, [str(word) for word in words])


def module(name: str, *words: object, timeout: float) -> str:
    """Run a module of this repository to its end, and return what it printed; fail unless it ended well."""
    text = f"import runpy; runpy.run_module({name!r}, run_name='__main__')"
    ended = script(Path(__file__).parents[2], text, *words).ended(timeout)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    return ended.stdout


# -- in the forked process ---------------------------------------------------------------------------------------------


def _begin(folder: Path, streams: list[Path], main: Callable[..., None], arguments: tuple[Any, ...], _: object) -> None:
    """Become a process as from a terminal, whose output goes to files. The last argument is imported before the fork."""
    os.setsid()
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in enumerate(streams, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.dup2(file, number)
        os.close(file)
    main(*arguments)


def _run_command(words: list[str], patches: dict[str, object]) -> None:
    from parallel_agents.cli import main, process_watchdog

    for place, value in patches.items():
        module, _, name = place.partition(":")
        assert hasattr(import_module(module), name)
        setattr(import_module(module), name, value)
    sys.argv = ["parallel-agents", *words]
    leave(process_watchdog.run_in_child(partial(main, words), as_json="--json" in words))


def _run_script(text: str, words: list[str]) -> None:
    sys.argv = ["script.py", *words]
    exec(compile(text, "script.py", "exec"), {"__name__": "__main__"})
