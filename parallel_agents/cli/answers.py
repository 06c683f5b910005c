"""What a command answers on stdout, apart from whatever else is printed while it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["answer", "answers_only"]

_held: list[str] | None = None
"""Answers held back until nobody else can print any more; None: they are written at once."""


def answer(text: str) -> None:
    """Write something that belongs on stdout."""
    if _held is None:
        sys.stdout.write(text)
    else:
        _held.append(text)


@contextmanager
def answers_only() -> Iterator[None]:
    """While the block runs, send to stderr all that is printed, also by C code and child processes; then answer."""
    global _held
    out, _held = sys.stdout, []
    out.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 1)
        os.close(real)
        sys.stdout, held, _held = out, _held, None
    out.write("".join(held))  # not after a failure, which is an answer of its own
    out.flush()
