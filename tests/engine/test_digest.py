"""The digest covers everything that decides how a run goes on, and nothing else."""

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
from parallel_agents.algorithms.acting import Weights
from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.checkpoint.store import Manifest, Store
from parallel_agents.core.config import merge
from parallel_agents.core.errors import CheckpointError
from parallel_agents.engine.digest import combined, digests
from parallel_agents.env import Environment
from tests.env.line_worlds import Line, tiny
from tests.equivalence.worlds import Odd

STATISTICS = (
    r"\d+\.metric\..*", r"best.*", r"config\..*", r"fingerprint\..*", r"seconds", r"failures", r"recent.*", r"running.*",
    r"loop\.(turns|transitions|timesteps)", r"group\..*", r"rounds\.(updates|rejected)", r"segments.*", r"first", r"end",
)  # fmt: skip
"""Arrays and values that describe how a run went or was done, or where rows are; they decide nothing of what follows."""
SMALL = {"batch_size": 6, "updates_per_round": 2, "learning_starts": 5, "buffer_size": 40}


class OwnAction(Agent):
    """Overrides `get_action`, so it is a standalone agent."""

    def get_action(self, state: Any) -> Any:
        return self.model.take_action(state)


class Mixed(Odd):
    """One stacked agent and one standalone agent."""

    default_config: ClassVar = {**Odd.default_config, "model": {}}

    def setup_agents(self) -> None:
        super().setup_agents()
        self.agents[1] = OwnAction(model=self.make_model((3,), 3))


class PlainOdd(Odd):
    default_config: ClassVar = {**Odd.default_config, "model": {}}


CASES: dict[str, tuple[type[Environment], dict[str, Any]]] = {
    "dqn with frames and priorities": (PlainOdd, {"hidden": (4,), **SMALL, "n_frames": 2, "priority_alpha": 0.6}),
    "dqn, recurrent": (PlainOdd, {"hidden": (4,), **SMALL, "recurrent": True, "sequence": 3}),
    "dqn by event class, with gradient accumulation": (
        PlainOdd,
        {"hidden": (4,), **SMALL, "importance": {}, "max_accumulated_batches": 4},
    ),
    "iqn, normalized": (
        PlainOdd,
        {"algorithm": "iqn", "layer": 4, **SMALL, "normalize_observations": True, "normalize_rewards": True},
    ),
    "ppo": (PlainOdd, {"algorithm": "ppo", "hidden": (4,), "n_epochs": 1, "n_minibatches": 1}),
    "a standalone agent": (Mixed, {"hidden": (4,), **SMALL}),
}


class ChangedStore(Store):
    """A store whose checkpoints differ in one piece from what was written."""

    file: ClassVar[str | None] = None
    name: ClassVar[str] = ""
    place: ClassVar[tuple[int, ...]] = ()
    values: ClassVar[Mapping[str, Any] | None] = None

    def read(self, manifest: Manifest, name: str) -> Any:
        arrays = super().read(manifest, name)
        if name == self.file:
            array = arrays[self.name].copy()
            array[self.place] = changed(array[self.place])
            arrays[self.name] = array
        return arrays

    def good(self, troubles: list[str]) -> Iterator[Manifest]:
        for manifest in super().good(troubles):
            yield manifest if self.values is None else replace(manifest, values=self.values)


def changed(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool | np.bool_):
        return not value
    if value is None:
        return 0.5
    return value + "?" if isinstance(value, str) else value + 1


def is_statistic(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in STATISTICS)


def places(name: str, array: Any, segment: Mapping[str, Any] | None) -> Iterator[tuple[int, ...]]:
    """Yield one place for each index of the first axis; of a segment the newest row of every agent."""
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


def write_checkpoint(cls: type[Environment], model: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write a checkpoint with two rounds waiting and unfinished episodes; return the configuration of its run."""
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


# -- every piece of a checkpoint, changed by itself ------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_every_stored_piece_is_in_the_digest(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cls, model = CASES[case]
    config = write_checkpoint(cls, model, tmp_path)
    manifest, _ = Store(tmp_path).newest_good()
    monkeypatch.setattr("parallel_agents.checkpoint.contents.Store", ChangedStore)
    run = cls(config=config).prepare()

    def digest() -> str:
        """Return the digest of the run after it has read the changed checkpoint; "refused" where it refuses that."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of another fingerprint, or of collapsed class weights
                restore(run, tmp_path)
        except CheckpointError:
            return "refused"
        return str(run.digests())

    whole = digest()
    assert whole != "refused"
    unnoticed, tried = [], 0
    for file in [name for name in manifest.files if name.endswith(".safetensors")]:
        arrays = Store(tmp_path).read(manifest, file)
        segment = arrays if "first" in arrays else None
        for piece in [name for name in arrays if not is_statistic(name) and arrays[name].size]:
            for place in places(piece, arrays[piece], segment):
                monkeypatch.setattr(ChangedStore, "file", file)
                monkeypatch.setattr(ChangedStore, "name", piece)
                monkeypatch.setattr(ChangedStore, "place", place)
                tried += 1
                if digest() == whole:
                    unnoticed.append(f"{piece} at {place}")
    monkeypatch.setattr(ChangedStore, "file", None)
    for path in leaves(manifest.values):
        if is_statistic(".".join(map(str, path))):
            continue
        values: Any = copy.deepcopy(dict(manifest.values))
        inner = values
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = changed(inner[path[-1]])
        monkeypatch.setattr(ChangedStore, "values", values)
        tried += 1
        if digest() == whole:
            unnoticed.append(".".join(map(str, path)))
    monkeypatch.setattr(ChangedStore, "values", None)
    assert digest() == whole  # no change is left
    assert unnoticed == []
    assert tried > 60


# -- what a run holds, changed in memory -----------------------------------------------------------------------


def finished_run() -> Any:
    game = Line(config=tiny(parallel={"policy_lag": 1}))
    game.run_experiment()
    return game.prepare()


@pytest.mark.parametrize("name", ["online", "target", "first", "second", "steps", "updates", "hyper.lr"])
def test_each_part_of_a_learner_is_in_the_digest(name: str) -> None:
    run = finished_run()
    before = run.digests()
    run.rounds.newest[0][name][1] += 1
    assert run.digests() != before
    run.rounds.newest[0][name][1] -= 1
    assert (run.digests() == before) == (name in ("steps", "updates"))  # floats may round


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminated", "version", "valid", "follow"])
def test_each_column_of_the_buffer_is_in_the_digest(name: str) -> None:
    run = finished_run()
    before = run.digests()
    column = getattr(run.group.stacks[0].ring, name)
    column[2, 0] = ~column[2, 0] if column.dtype == bool else column[2, 0] + 1
    assert run.digests() != before


def test_acting_version_and_waiting_rounds_are_in_the_digest() -> None:
    run = finished_run()
    before = run.digests()
    stack = run.group.stacks[0]
    weights = stack.inference.weights
    stack.inference.weights = Weights(weights.version + 1, weights.rows)
    assert run.digests() != before
    stack.inference.weights = weights
    assert run.digests() == before
    assert list(run.rounds.waiting) == [3]
    run.rounds.waiting.clear()
    assert run.digests() != before


def test_settings_of_a_model_are_in_the_digest() -> None:
    run = finished_run()
    model = run.group.stacks[0].models[1]
    digests = [run.digests()]
    for change in (
        lambda: setattr(model, "frozen", True),
        lambda: model.set_epsilon(0.25),
        lambda: model.hyper.update(gamma=0.5),
        lambda: model.hyper.update(epsilon_final=0.5),
    ):
        change()
        digests.append(run.digests())
    assert len({str(own) for own in digests}) == len(digests)


def test_unfinished_episodes_are_in_the_digest() -> None:
    environment = Odd(config={"experiment": {"autoreset": True, "epochs": 4}, "model": {"n_frames": 2}})
    environment.run_experiment()
    run = environment.prepare()
    arrays = [run.loop.alive[0], run.loop.first[0], run.group.stacks[0].frames.window, *environment.state().values()]
    assert len(arrays) > 3
    for array in arrays:
        before, copy_of_array = run.digests(), array.copy()
        array[...] = ~array if array.dtype == bool else array + 1
        assert run.digests() != before
        array[...] = copy_of_array
        assert run.digests() == before


def test_unwritten_rows_are_not_in_the_digest() -> None:
    run = finished_run()
    ring = run.group.stacks[0].ring
    before, written = run.digests(), int(ring.pos[0])
    assert written < ring.valid.shape[1], "some rows have not been written yet"
    ring.observations[:, written:] = 9.0
    assert run.digests() == before


def test_time_and_failures_are_not_in_the_digest() -> None:
    run = finished_run()
    before = run.digests()
    run.seconds += 100.0
    run.failures += 1
    assert run.digests() == before


def test_one_digest_is_returned_as_it_is_and_several_are_combined() -> None:
    assert combined(["a"]) == "a"
    assert len({combined(["a", "b"]), combined(["b", "a"]), combined(["a"]), combined(["ab", ""])}) == 4


@pytest.mark.parametrize("counter", ["epoch", "rounds.published", "rounds.submitted"])
def test_how_far_a_run_has_come_is_in_the_digest(counter: str) -> None:
    """A checkpoint whose counters do not fit each other is refused, so nothing but this compares them."""
    game = Line(config=tiny())
    run = game.prepare()
    game.run_experiment(2)
    before = digests(run)
    owner, _, name = counter.rpartition(".")
    part = getattr(run, owner) if owner else run
    setattr(part, name, getattr(part, name) + 1)
    assert digests(run) != before
