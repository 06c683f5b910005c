"""The threads of a market: woken by compiled code, undisturbed by signals, waited for in vain for a while only."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest

from parallel_agents.core.errors import RunError
from parallel_agents.market.simulation import MarketWorlds, step
from tests.market.builders import plain_world


def market(threads: int) -> MarketWorlds:
    return MarketWorlds([plain_world(i) for i in range(4)], steps=12, threads=threads, auctions_per_step=300)


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "market"]


def played(own: MarketWorlds) -> np.ndarray:
    own.reset(1)
    bids = np.exp(own.parameters.usual_bid)[None]
    return np.array([own.step(bids) for _ in range(own.steps)])


def test_signals_while_a_step_waits_for_its_threads_change_nothing() -> None:
    with market(1) as own:
        expected = played(own)
    before, caught = signal.getsignal(signal.SIGALRM), []
    signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
    try:
        with market(4) as own:
            played(own)  # compiled
            signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
            give_up = time.monotonic() + 20.0
            while len(caught) < 50 and time.monotonic() < give_up:
                np.testing.assert_array_equal(played(own), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert len(caught) >= 50


@pytest.mark.parametrize("closed", [True, False])
def test_threads_and_pipes_end_with_their_market(closed: bool) -> None:
    gc.collect()
    threads, files = len(helpers()), len(os.listdir("/dev/fd"))
    own = market(3)
    expected = played(own)
    assert len(helpers()) == threads + 2
    if closed:
        own.close()
        np.testing.assert_array_equal(played(own), expected)  # in this thread
    else:
        del own
        gc.collect()
    assert len(helpers()) == threads
    assert len(os.listdir("/dev/fd")) == files


def test_a_forked_process_computes_all_worlds_itself() -> None:
    with market(3) as own, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of newer Pythons: this process has threads
        expected = played(own)
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(played(own), expected) else 1)
        give_up = time.monotonic() + 60.0
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < give_up:
            time.sleep(0.01)
        if ended == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert ended == (child, 0)
        np.testing.assert_array_equal(played(own), expected)


def test_a_thread_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "_help", lambda *_: None)
    monkeypatch.setattr(step, "_HELPER_SECONDS", 0.1)
    with market(2) as own, pytest.raises(RunError, match="a thread of the market did not answer"):
        played(own)
