"""Every test leaves the process as it found it, so that the order of tests never matters; a test that does not fails."""

from __future__ import annotations

import gc
import logging
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import structlog
from structlog.contextvars import get_contextvars

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)  # SIGALRM is that of pytest-timeout
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
_OURS = ("learner", "slow-model", "watchdog", "world", "checkpoint")
_OTHERS = {  # variables set by pytest, and by packages when they are imported
    "PYTEST_CURRENT_TEST",
    "PYGAME_HIDE_SUPPORT_PROMPT",
    "SDL_AUDIODRIVER",
    "TORCHINDUCTOR_CACHE_DIR",
}
_PATIENCE = 2.0  # seconds for threads that are about to end


def _torch() -> tuple[object, ...]:
    """Return torch's settings; importing torch is left to the tests that need it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    return torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()


_STATE: dict[str, Callable[[], object]] = {
    "structlog's configuration": lambda: (structlog.is_configured(), structlog.get_config()["processors"]),
    "the context of log records": get_contextvars,
    "environment variables": lambda: {k: v for k, v in os.environ.items() if k not in _OTHERS},
    "the current folder": os.getcwd,
    "sys.path": lambda: list(sys.path),
    "signal handlers": lambda: [signal.getsignal(number) for number in _SIGNALS],
    "resource limits": lambda: [resource.getrlimit(limit) for limit in _LIMITS],
    "handlers of the root logger": lambda: [h for h in logging.root.handlers if "pytest" not in type(h).__module__],
    "numpy's treatment of errors": np.geterr,
    "torch's settings": _torch,
    "the interpreter's settings": lambda: (gc.isenabled(), sys.getrecursionlimit(), sys.getswitchinterval()),
    "the priority of the process": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "threads": lambda: sorted(t.name for t in threading.enumerate() if t.name.startswith(_OURS)),
}


@contextmanager
def same_process() -> Iterator[None]:
    """Fail by name what a block leaves changed of all that tests share; put the global generators back."""
    torch = sys.modules.get("torch")
    generators = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
    before = {name: read() for name, read in _STATE.items()}
    yield
    # Libraries and modules without a seed draw from the global generators: put back, they draw alike in every order.
    random.setstate(generators[0])
    np.random.set_state(generators[1])
    if torch is None:
        before["torch's settings"] = _torch()  # the test was free to import it
    else:
        torch.set_rng_state(generators[2])
    until = time.monotonic() + _PATIENCE
    while _STATE["threads"]() != before["threads"] and time.monotonic() < until:
        time.sleep(0.01)
    changed = {name: (before[name], after) for name, read in _STATE.items() if (after := read()) != before[name]}
    if changed:
        told = "; ".join(f"{name}: {_difference(*values)}" for name, values in changed.items())
        pytest.fail(f"the test left behind {told}", pytrace=False)


@pytest.fixture(autouse=True)
def _leaves_the_process_as_it_was() -> Iterator[None]:
    """Set up before all other fixtures of a test, so that it looks after they are undone."""
    with same_process():
        yield


def _difference(before: object, after: object) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
        before, after = ({key: values.get(key) for key in keys} for values in (before, after))
    return f"{str(before)[:300]} became {str(after)[:300]}"


@pytest.fixture(autouse=True, scope="session")
def _runs_start_no_process_that_compiles() -> Iterator[None]:
    """Let runs compile what they miss themselves: beside other workers a second process only imports everything again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parallel_agents.engine.precompile.cores", lambda: 1)
        yield


@pytest.fixture
def captured_logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """Collect the records of structlog, which `capture_logs` alone would leave configured."""
    with structlog.testing.capture_logs() as records:
        yield records
    structlog.reset_defaults()


@pytest.fixture
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test load targets, which puts their folder on the path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
