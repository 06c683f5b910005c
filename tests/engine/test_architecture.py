"""The walks of docs/architecture.md: a traced turn and a traced round pass through the files that the page names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

import parallel_agents
from parallel_agents import Agent, ParallelEnvironment
from parallel_agents.core.types import Array
from parallel_agents.engine.loop import Loop, Rounds

PACKAGE = Path(parallel_agents.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
MOST_FILES = 9


class Line(ParallelEnvironment):
    """Three agents on a line, in two worlds, rewarded for standing at its middle."""

    default_config: ClassVar[dict[str, Any]] = {
        "experiment": {"epochs": 8, "max_turns": 5, "worlds": 2},
        "model": {"hidden": (8,), "learning_starts": 4, "batch_size": 4, "updates_per_round": 2},
        "parallel": {"backend": "inline", "train_interval": 2},
    }

    def setup_agents(self) -> None:
        self.agents = [Agent(model=self.make_model((2,), n_actions=3)) for _ in range(3)]

    def reset(self) -> None:
        self.position = np.zeros((len(self.agents), self.n_worlds), np.float32)

    def observe(self) -> Array:
        return np.stack([self.position, -self.position], axis=-1)

    def apply_actions(self, actions: Array) -> Array:
        self.position += actions - 1
        return -np.abs(self.position)


def named_files(walk: str) -> list[str]:
    """Return the files that the page lists for a walk, in order."""
    match = re.search(rf"<!-- walk: {walk} -->(.*?)<!-- end -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None, f"docs/architecture.md has no walk named {walk}"
    return re.findall(r"^\d+\. `([\w/]+\.py)`", match[1], re.MULTILINE)


def traced(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], files: set[str]) -> Callable[..., Any]:
    """Return a function that adds every package file whose code it executes to `files`."""

    def note(code: CodeType) -> None:
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE):
            files.add(str(path.relative_to(PACKAGE)))

    def note_frame(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            note(frame.f_code)

    def note_compiled(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if sys.getprofile() is note_frame:
            note(kernel.py_func.__code__)
        return call(kernel, *args, **kwargs)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before = sys.getprofile()
        sys.setprofile(note_frame)
        try:
            return function(*args, **kwargs)
        finally:
            sys.setprofile(before)

    call = Dispatcher.__call__
    monkeypatch.setattr(Dispatcher, "__call__", note_compiled)  # since Python 3.12 no profiler sees compiled functions
    return wrapped


@pytest.mark.parametrize(("walk", "owner", "method"), [("turn", Loop, "turn"), ("round", Rounds, "boundary")])
def test_a_walk_passes_through_the_files_that_the_page_names(
    monkeypatch: pytest.MonkeyPatch, walk: str, owner: type, method: str
) -> None:
    files: set[str] = set()
    Line().run_experiment()  # compiles what is not in the cache; compiling executes other files
    monkeypatch.setattr(owner, method, traced(monkeypatch, getattr(owner, method), files))
    Line().run_experiment()
    assert files == set(named_files(walk))
    assert len(files) <= MOST_FILES
