"""Write the results of a command to stdout, apart from what other code prints meanwhile, and progress to stderr."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from parallel_agents.core.files import plain

_PROGRESS_SECONDS = 5.0
_pending: list[str] | None = None
"""Results kept until the end of `reserve_stdout`; None outside of it."""


def print_result(values: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Write the result of a command to stdout: `values` as one JSON object, or `text`.

    Within `reserve_stdout`, keep it until its end.
    """
    if as_json:
        text = json.dumps(plain(values)) + "\n"
    if _pending is None:
        sys.stdout.write(text)
    else:
        _pending.append(text)


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Redirect everything printed in the block to stderr, also by C code and child processes; then write the results.

    If the block raises, its results are not written: the caller writes the error instead.
    """
    global _pending
    stdout, _pending = sys.stdout, []
    stdout.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stderr.flush()
        stdout.flush()  # what was printed to `sys.__stdout__` belongs to stderr as well
        ctypes.CDLL(None).fflush(None)  # what C code has printed may still be in its own buffer
        os.dup2(descriptor, 1)
        os.close(descriptor)
        sys.stdout, results, _pending = stdout, _pending, None
    stdout.write("".join(results))
    stdout.flush()


class ProgressLines:
    """Write progress to stderr: at most one line every few seconds, and every important line."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._due = quiet, 0.0

    def write(self, text: str, *, important: bool = False) -> None:
        """Write a line, unless the last one was written only just now."""
        if not self._quiet and (important or time.monotonic() >= self._due):
            self._due = time.monotonic() + _PROGRESS_SECONDS
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
