"""Write the results of a command to stdout, separate from what other code prints meanwhile."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_pending: list[str] | None = None
"""Results kept until the end of `reserve_stdout`; None outside of it."""


def print_result(values: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Write the result of a command to stdout: `values` as one JSON object, or `text`."""
    write_result(json.dumps(values) + "\n" if as_json else text)


def write_result(text: str) -> None:
    """Write text to stdout, or keep it until the end of `reserve_stdout`."""
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
        os.dup2(descriptor, 1)
        os.close(descriptor)
        sys.stdout, results, _pending = stdout, _pending, None
    stdout.write("".join(results))
    stdout.flush()
