"""The check around every test: it names what a test leaves changed, and passes what a test undoes."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import structlog
import torch
from structlog.testing import capture_logs

from tests import conftest
from tests.conftest import same_process


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def logs_captured(undo: ExitStack) -> None:
    """A test once did this and made three others fail after it."""
    undo.callback(structlog.reset_defaults)
    with capture_logs():
        pass


def logs_bound(undo: ExitStack) -> None:
    undo.callback(structlog.contextvars.clear_contextvars)
    structlog.contextvars.bind_contextvars(run="left")


def variable_set(undo: ExitStack) -> None:
    undo.callback(os.environ.pop, "LEFT_BEHIND")
    os.environ["LEFT_BEHIND"] = "1"


def folder_changed(undo: ExitStack) -> None:
    undo.callback(os.chdir, os.getcwd())
    os.chdir("/")


def path_extended(undo: ExitStack) -> None:
    undo.callback(sys.path.pop, 0)
    sys.path.insert(0, "left")


def handler_kept(undo: ExitStack) -> None:
    undo.callback(signal.signal, signal.SIGUSR1, signal.getsignal(signal.SIGUSR1))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def numpy_changed(undo: ExitStack) -> None:
    undo.callback(lambda old: np.seterr(**old), np.seterr(all="raise"))


def torch_changed(undo: ExitStack) -> None:
    undo.callback(torch.set_grad_enabled, torch.is_grad_enabled())
    torch.set_grad_enabled(False)


def thread_left(undo: ExitStack) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, args=(20,), name="learner-left")
    undo.callback(thread.join, 20)
    undo.callback(end.set)
    thread.start()


@pytest.mark.parametrize(
    ("leave", "named"),
    [
        (logs_captured, "structlog's configuration"),
        (logs_bound, "the context of log records: {'run': None} became {'run': 'left'}"),
        (variable_set, "environment variables: {'LEFT_BEHIND': None} became {'LEFT_BEHIND': '1'}"),
        (folder_changed, "the current folder: .* became /"),
        (path_extended, "sys.path"),
        (handler_kept, "signal handlers"),
        (numpy_changed, "numpy's treatment of errors"),
        (torch_changed, "torch's settings"),
        (thread_left, r"threads: \[\] became \['learner-left'\]"),
    ],
)
def test_what_a_test_leaves_behind_is_named(
    leave: Callable[[ExitStack], None], named: str, undo: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "_PATIENCE", 0.0)
    with pytest.raises(pytest.fail.Exception, match=f"the test left behind {named}"), same_process():
        leave(undo)


def test_what_is_undone_passes_and_global_generators_are_put_back() -> None:
    drawn = []
    for _ in range(2):
        with same_process(), ExitStack() as undo:
            for leave in (logs_captured, logs_bound, variable_set, folder_changed, path_extended, handler_kept):
                leave(undo)
            thread_left(undo)
            drawn.append((random.random(), np.random.random(), float(torch.rand(()))))
    assert drawn[0] == drawn[1]
