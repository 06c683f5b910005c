"""How a process starts and ends quickly, though torch and numba make half a million objects when they are imported."""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import NoReturn

_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def import_quickly(module: str) -> ModuleType:
    """Import a module while the garbage collector pauses: what is imported stays, and to look through it takes long."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if collecting:
            gc.enable()


def leave(code: int) -> NoReturn:
    """End this process as `sys.exit` does, but let the system take its memory back as a whole.

    The interpreter would remove one object after the other, which takes half a second once torch is imported.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads that are no daemons
    atexit._run_exitfuncs()
    _flush_files()
    ctypes.CDLL(None).fflush(None)  # what C code has printed may still be in its own buffer
    os._exit(code)


def _flush_files() -> None:
    """Write what files that nobody has closed still hold, as the interpreter does when it removes them."""
    for thing in gc.get_objects():
        if issubclass(type(thing), _WRITERS):
            with suppress(OSError, ValueError):  # closed or broken: the interpreter says nothing either
                thing.flush()
