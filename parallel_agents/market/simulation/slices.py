"""A step of all worlds in several threads, at the word of compiled code.

Worlds are divided into slices. The thread that steps a market computes the first slice; the others are computed by
helpers, which wait in compiled code, without the interpreter's lock. So whole epochs in one compiled call have the
threads too. The number of a slice is a byte in a pipe: whichever helper reads it computes the slice and writes the byte
into another pipe. Waking a helper this way takes about 15 µs.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from threading import Thread
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from parallel_agents.core.compiled import compiled_once
from parallel_agents.market.simulation.step import StepInputs, step_worlds
from parallel_agents.market.simulation.world_arrays import Outcome, Parameters, State

_PATIENCE = 10.0
_transfer = types.int64(types.int32, types.voidptr, types.int64)
_read, _write = types.ExternalFunction("read", _transfer), types.ExternalFunction("write", _transfer)


class MarketArrays(NamedTuple):
    """The worlds of a market, as compiled code reads and writes them."""

    parameters: Parameters
    state: State
    last: Outcome  # of the last step
    total: Outcome  # of the episode so far
    inputs: StepInputs
    score: NDArray[np.float64]  # (N, W) room for the scores before a step
    slices: NDArray[np.int64]  # first world of each slice, then W
    pipes: NDArray[np.int32]  # (4,) read and write ends: slices to compute, slices that are done
    byte: NDArray[np.uint8]  # (1,) room for the number of a slice


@compiled_once
def step_all(market: MarketArrays) -> None:
    """Compute a step of every world, and add its results to those of the episode."""
    last, total, slices, pipes, byte = market.last.every, market.total.every, market.slices, market.pipes, market.byte
    for i in range(len(last)):
        last[i] = 0.0
    for k in range(1, len(slices) - 1):
        byte[0] = k
        _write(pipes[1], byte.ctypes, 1)
    step_worlds(market.parameters, market.state, market.last, market.inputs, slices[0], slices[1])
    for _ in range(1, len(slices) - 1):
        while _read(pipes[2], byte.ctypes, 1) < 0:  # a signal has interrupted it
            pass
    for i in range(len(last)):
        total[i] += last[i]
    market.inputs.clock[1] += 1


@compiled_once
def _help(market: MarketArrays, byte: NDArray[np.uint8]) -> None:
    """Compute slices until the pipe is closed."""
    slices, pipes = market.slices, market.pipes
    while True:
        received = _read(pipes[0], byte.ctypes, 1)
        if received == 0:
            return
        if received == 1:
            low, high = slices[byte[0]], slices[byte[0] + 1]
            step_worlds(market.parameters, market.state, market.last, market.inputs, low, high)
            _write(pipes[3], byte.ctypes, 1)


def start_helpers(owner: object, market: MarketArrays) -> Callable[[], None]:
    """Start a thread for each slice but the first; return a function that ends them, called when `owner` is gone."""
    market.pipes[:] = *os.pipe(), *os.pipe()
    helpers = [
        Thread(target=_help, args=(market, np.zeros(1, np.uint8)), name="market", daemon=True)
        for _ in market.slices[2:]
    ]
    for helper in helpers:
        helper.start()
    return weakref.finalize(owner, _stop, market.pipes.tolist(), helpers)


def _stop(pipes: Sequence[int], helpers: Sequence[Thread]) -> None:
    """Close the pipe that helpers read from, wait for them, and close the rest."""
    os.close(pipes[1])
    for helper in helpers:
        helper.join(_PATIENCE)
    for end in (pipes[0], *pipes[2:]):
        os.close(end)
