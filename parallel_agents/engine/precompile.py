"""Compile the kernels of agents in a second process, while the process of a run compiles those of its worlds.

numba compiles under one lock per process, so threads do not help. At the first start on a machine, another process lets
one agent of each stack store a turn, learn and act. What it compiles goes into the cache (`core.kernel_cache`), where
the run finds it or waits for it. Whatever happens to that process, the run compiles what it does not find.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any, Self

import numpy as np
from numba.core import event

from parallel_agents.algorithms.base import Model
from parallel_agents.core.kernel_cache import FOLDER
from parallel_agents.core.types import Transitions
from parallel_agents.engine.stacks import Stack, random_snapshot
from parallel_agents.execution.backend import PATIENCE
from parallel_agents.execution.forkserver import end_with, interpreter
from parallel_agents.execution.resources import cores
from parallel_agents.nn import numerics

LONGEST = 60
"""Seconds until the process ends: if it hung, the run would wait for the kernel that it compiles."""


class Precompiler(event.Listener):  # type: ignore[misc]
    """Starts the process when this one compiles something: where all kernels are cached, nothing happens.

    A file in the cache says for which kinds of agents that was done. Sizes make no difference to compiled code.
    """

    def __init__(self, stacks: Sequence[Stack]) -> None:
        specs = [stack.spec for stack in stacks if stack.native]
        known = all(type(spec).__module__.startswith("parallel_agents.") for spec in specs)  # else code of users runs
        self._specs = specs if known and cores() > 1 else []
        self.process: Popen[bytes] | None = None
        kinds = re.sub(r"\d+", "", repr(specs))
        self._done = FOLDER / f"precompiled-{hashlib.sha256(kinds.encode()).hexdigest()[:16]}"

    def __enter__(self) -> Self:
        event.register("numba:compile", self)
        return self

    def __exit__(self, *_: object) -> None:
        """End the process; if it was not done, a later run starts another one."""
        event.unregister("numba:compile", self)
        if self.process is not None:
            self.process.kill()
            with suppress(TimeoutExpired):  # a killed process may wait for a disk
                self.process.wait(PATIENCE)
            if self.process.returncode != 0:
                self._done.unlink(missing_ok=True)

    def on_start(self, event: Any) -> None:
        """Take the start of a compilation: start the process, once."""
        specs, self._specs = self._specs, []
        if specs:
            with suppress(OSError):  # another run has started it, or the system gives no process
                self._start(specs)

    def on_end(self, event: Any) -> None:
        """Take the end of a compilation: let the system forget the process if it has ended."""
        if self.process is not None:
            self.process.poll()

    def _start(self, specs: list[Any]) -> None:
        """Start the process; raise OSError if that was done before, or is not possible."""
        command = interpreter(f"from {__name__} import main; main({os.getpid()})")
        ours, theirs = Pipe()
        with ours, theirs:
            ours.send(specs)  # small enough to wait in the pipe
            self._done.touch(mode=0o600, exist_ok=False)
            try:
                self.process = Popen(command, stdin=theirs.fileno(), stdout=DEVNULL, stderr=DEVNULL)
            except OSError:
                self._done.unlink()
                raise


# -- in the process --------------------------------------------------------------------------------------------------


def main(parent: int) -> None:
    """Compile what agents of the given kinds call, and end: before the run does, and soon in any case."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides
    signal.alarm(LONGEST)
    end_with(parent)
    numerics.require()
    with Connection(sys.stdin.fileno()) as given:
        specs = given.recv()
    for spec in specs:
        precompile(replace(spec, worlds=1))


def precompile(spec: Any) -> None:
    """Let one agent store a turn, learn and act; what the run needs last comes last."""
    model = Model(spec, spec.probe_hyper())
    model.shrink_memory()
    stack, no = Stack([model], together=True), np.zeros((1, 1), np.bool_)
    observations = np.zeros((1, 1, math.prod(spec.observation)), np.float32)
    extras = {name: column[:, 0] for name, column in stack.ring.extras.items()}
    actions = stack.ring.actions[:, 0].copy()
    rewards = np.zeros((1, 1), np.float32)
    stack.start_epoch(1)
    stack.add(Transitions(observations, actions, rewards, no, no, ~no, ~no, ~no[0], 0, extras))
    stack.close(observations, ended=True)
    spec.learner(updates=1).learn(stack.state, random_snapshot(spec, 1, updates=1), stack.identity)
    stack.act(observations, ~no, 1, 1, extras.get("masks"))
