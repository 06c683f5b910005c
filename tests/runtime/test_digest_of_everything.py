"""Each piece that a checkpoint stores, changed by itself, gives another digest; statistics alone are exempt, by name."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from parallel_agents import Agent
from parallel_agents.config import merge
from parallel_agents.environment import Environment
from parallel_agents.errors import CheckpointError
from parallel_agents.runtime.checkpoints import Checkpointer, restore
from parallel_agents.runtime.checkpoints.store import Manifest, Store
from tests.equivalence.worlds import Odd

STATISTICS = (
    r"\d+\.metric\..*", r"best.*", r"config\..*", r"fingerprint\..*", r"seconds", r"failures", r"recent\..*",
    r"loop\.(turns|transitions)", r"crew\..*", r"rounds\.(updates|rejected)", r"segments.*", r"first", r"end",
)  # fmt: skip
"""Arrays and values that say how a run went, how it was run or where rows lie, and decide nothing of how it goes on."""
SMALL = {"batch_size": 6, "updates_per_round": 2, "learning_starts": 5, "buffer_size": 40}


class Talkative(Agent):
    """Chooses by itself, so it is computed outside of stacks."""

    def get_action(self, state: Any) -> Any:
        return self.model.take_action(state)


class Mixed(Odd):
    """One agent in a stack and one outside of it."""

    default_config: ClassVar = {**Odd.default_config, "model": {}}

    def setup_agents(self) -> None:
        super().setup_agents()
        self.agents[1] = Talkative(model=self.make_model((3,), 3))


class Bare(Odd):
    default_config: ClassVar = {**Odd.default_config, "model": {}}


CASES: dict[str, tuple[type[Environment], dict[str, Any]]] = {
    "dqn with frames and priorities": (Bare, {"hidden": (4,), **SMALL, "n_frames": 2, "priority_alpha": 0.6}),
    "dqn, recurrent": (Bare, {"hidden": (4,), **SMALL, "recurrent": True, "sequence": 3}),
    "dqn by event class, growing batches": (Bare, {"hidden": (4,), **SMALL, "importance": {}, "batch_growth": 4}),
    "iqn in units of what was met": (
        Bare,
        {"algorithm": "iqn", "layer": 4, **SMALL, "normalise_observations": True, "normalise_rewards": True},
    ),
    "ppo": (Bare, {"algorithm": "ppo", "hidden": (4,), "passes": 1, "minibatches": 1}),
    "an agent outside of stacks": (Mixed, {"hidden": (4,), **SMALL}),
}


class Changed(Store):
    """A store whose checkpoints differ from what was written in one piece."""

    file: ClassVar[str | None] = None
    name: ClassVar[str] = ""
    place: ClassVar[tuple[int, ...]] = ()
    values: ClassVar[Mapping[str, Any] | None] = None

    def read(self, manifest: Manifest, name: str) -> Any:
        arrays = super().read(manifest, name)
        if name == self.file:
            array = arrays[self.name].copy()
            array[self.place] = other(array[self.place])
            arrays[self.name] = array
        return arrays

    def good(self, troubles: list[str]) -> Iterator[Manifest]:
        for manifest in super().good(troubles):
            yield manifest if self.values is None else replace(manifest, values=self.values)


def other(value: Any) -> Any:
    """A value of the same kind that is not the same."""
    if isinstance(value, bool | np.bool_):
        return not value
    if value is None:
        return 0.5
    return value + "?" if isinstance(value, str) else value + 1


def exempt(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in STATISTICS)


def places(name: str, array: Any, segment: Mapping[str, Any] | None) -> Iterator[tuple[int, ...]]:
    """One place of every agent, world or part along the first axis; of a segment the newest row of every agent."""
    if segment is not None and name.startswith("row."):
        for end in np.cumsum(segment["end"] - segment["first"]):
            yield (int(end) - 1, *(0,) * (array.ndim - 1))
    elif not array.ndim:
        yield ()
    else:
        for index in range(array.shape[0] if array.ndim > 1 or array.size <= 8 else 1):
            yield (index, *(0,) * (array.ndim - 1))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for key, inner in enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


def written(cls: type[Environment], model: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A checkpoint with two rounds waiting and episodes in the middle; the configuration of its run."""
    config = merge(
        {"experiment": {"autoreset": True, "worlds": 2, "max_turns": 8}, "world": {"agents": 2}, "model": model},
        {"parallel": {"backend": "inline", "policy_lag": 2, "train_interval": 2}},
    )
    game = cls(config=config)
    run = game.prepare()
    run.checkpointer = Checkpointer(run, folder, keep_last=1)
    game.run_experiment(7)
    assert len(run.rounds.waiting) == 2
    return config


@pytest.mark.parametrize("name", CASES)
def test_every_stored_piece_is_in_the_digest(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cls, model = CASES[name]
    config = written(cls, model, tmp_path)
    manifest, _ = Store(tmp_path).newest_good()
    monkeypatch.setattr("parallel_agents.runtime.checkpoints.contents.Store", Changed)
    run = cls(config=config).prepare()

    def digest() -> str:
        """Of the run that goes on from what was stored; "refused" where that does not fit any more."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # another fingerprint, a collapse of weights
                restore(run, tmp_path)
        except CheckpointError:
            return "refused"
        return str(run.digests())

    whole = digest()
    assert whole != "refused"
    unnoticed, tried = [], 0
    for file in [own for own in manifest.files if own.endswith(".safetensors")]:
        arrays = Store(tmp_path).read(manifest, file)
        segment = arrays if "first" in arrays else None
        for piece in [own for own in arrays if not exempt(own) and arrays[own].size]:
            for place in places(piece, arrays[piece], segment):
                monkeypatch.setattr(Changed, "file", file)
                monkeypatch.setattr(Changed, "name", piece)
                monkeypatch.setattr(Changed, "place", place)
                tried += 1
                if digest() == whole:
                    unnoticed.append(f"{piece} at {place}")
    monkeypatch.setattr(Changed, "file", None)
    for path in leaves(manifest.values):
        if exempt(".".join(map(str, path))):
            continue
        values: Any = copy.deepcopy(dict(manifest.values))
        inner = values
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = other(inner[path[-1]])
        monkeypatch.setattr(Changed, "values", values)
        tried += 1
        if digest() == whole:
            unnoticed.append(".".join(map(str, path)))
    monkeypatch.setattr(Changed, "values", None)
    assert digest() == whole  # nothing of the changes has stayed
    assert unnoticed == []
    assert tried > 60
