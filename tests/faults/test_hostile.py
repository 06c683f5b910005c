"""Hostile files are checked before they are read, never run, and reach nothing outside the run folder."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.checkpoint.store import Manifest, Store, _canonical
from parallel_agents.core.config import Config, merge, parse_setting
from parallel_agents.core.errors import CheckpointError, ConfigError, CorruptCheckpoint
from parallel_agents.core.files import write_atomically
from parallel_agents.env.adapters.gymnasium import gymnasium_environment
from parallel_agents.tracking.run_folder import RunFolder
from tests.env.line_worlds import TINY
from tests.equivalence.test_importance import CASES as EVENTS
from tests.faults.test_files import rewritten


class Bomb:
    def __reduce__(self) -> Any:
        return (os.system, ("touch ran",))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    made = Store(tmp_path / "run")
    made.open_for_writing()
    name = "state-000001.safetensors"
    made.commit(Manifest(1, {name: made.write(name, {"a": np.arange(5.0)})}, {}))
    return made


def forge(store: Store, name: str, data: bytes, **changes: Any) -> Manifest:
    """Write a hostile file with a manifest that fits it, as anybody who can write into the folder could."""
    (store.folder / "state-000009.safetensors").write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}
    body = {"format": 1, "epoch": 9, "files": {name: entry}, "values": {}}
    seal = hashlib.sha256(_canonical(body)).hexdigest()
    (store.folder / "epoch-000009.json").write_text(json.dumps({**body, "sha256": seal}))
    return store.manifest(9)


HEADER = json.dumps({"a": {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]}}).encode()


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Bomb()),
        b"PK\x03\x04" + pickle.dumps(Bomb()),
        (2**63).to_bytes(8, "little") + b"{}",
        len(HEADER).to_bytes(8, "little") + HEADER,
        b"",
        b"\x00" * 100,
    ],
    ids=["pickle", "zip", "endless header", "huge shape", "empty", "zeros"],
)
def test_f32_a_hostile_checkpoint_runs_nothing_and_is_refused(store: Store, data: bytes, tmp_path: Path) -> None:
    manifest = forge(store, "state-000009.safetensors", data)
    with pytest.raises(CorruptCheckpoint, match="not a safetensors file"):
        store.read(manifest, "state-000009.safetensors")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "/etc/passwd", "state-1.safetensors/../../x", "state-..safetensors", "state-1.pkl",
     "state-000009.safetensors\n", "memory-../../1.safetensors", "C:\\x.safetensors"],
)  # fmt: skip
def test_f32_a_manifest_names_no_file_elsewhere(store: Store, name: str) -> None:
    with pytest.raises(CorruptCheckpoint, match="only files of a checkpoint"):
        forge(store, name, b"x")


def test_f32_links_are_not_followed_out_of_the_folder(store: Store, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"private")
    forge(store, "state-000009.safetensors", b"private")
    path = store.folder / "state-000009.safetensors"
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(CorruptCheckpoint, match="is a link"):
        store.check(store.manifest(9))
    manifest = store.folder / "epoch-000009.json"
    manifest.rename(tmp_path / "moved.json")
    manifest.symlink_to(tmp_path / "moved.json")
    with pytest.raises(CorruptCheckpoint, match="is a link"):
        store.manifest(9)
    assert store.newest_good()[0].epoch == 1


def test_f32_writing_replaces_a_link_and_never_writes_through_it(store: Store, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (store.folder / "state-000002.safetensors").symlink_to(victim)
    store.write("state-000002.safetensors", {"a": np.ones(3)})
    assert victim.read_bytes() == b"precious"
    with pytest.raises(CheckpointError, match="only files of a checkpoint"):
        store.write("../victim", {"a": np.ones(3)})
    (tmp_path / "link.json").symlink_to(victim)
    write_atomically(tmp_path / "link.json", [b"{}"])
    assert victim.read_bytes() == b"precious"


def test_f32_a_folder_of_checkpoints_that_is_a_link_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keep.safetensors").write_bytes(b"somebody's")
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="is a link"):
        Store(run).open_for_writing()
    assert (elsewhere / "keep.safetensors").exists()


def test_f32_sizes_are_checked_before_anything_is_read(store: Store) -> None:
    manifest = forge(store, "state-000009.safetensors", b"tiny")
    with (store.folder / "state-000009.safetensors").open("wb") as file:
        file.truncate(2**40)  # sparse: takes no room, and must not be read
    with pytest.raises(CorruptCheckpoint, match="4 bytes were written, cannot be read: it has 1,099,511,627,776 bytes"):
        store.read(manifest, "state-000009.safetensors")
    with (store.folder / "epoch-000009.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(CorruptCheckpoint, match="at most 67,108,864 can be right"):
        store.manifest(9)


@pytest.mark.parametrize(
    "text",
    [
        "[experiment]\nepochs = '''__import__('os').system('touch ran')'''",
        "[model]\nhidden = \"__import__('os').system('touch ran')\"",
        "experiment = \"!!python/object/apply:os.system ['touch ran']\"",
        "[experiment]\nepochs = " + "[" * 100_000,
    ],
)
def test_f33_a_hostile_configuration_is_data(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(text)
    try:
        from parallel_agents.algorithms import model_from_config

        config = Config.build("config.toml")
        with pytest.raises(ConfigError):
            model_from_config(config.model, (3,), 2)
    except ConfigError:
        config = None
    assert not Path("ran").exists()


def test_f33_values_on_the_command_line_and_run_folders_are_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    value = parse_setting("world.size=__import__('os').system('touch ran')")["world"]["size"]
    assert value == "__import__('os').system('touch ran')"
    assert not Path("ran").exists()
    huge = tmp_path / "run"
    huge.mkdir()
    with (huge / "run.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ConfigError, match="is not a run folder"):
        RunFolder.open(huge)


CART = gymnasium_environment("CartPole-v1")
CART_CONFIG = {
    "experiment": {"epochs": 9, "max_turns": 6, "worlds": 2, "checkpoint_every": 2, "eval_every": 2},
    "model": {"algorithm": "dqn", **TINY, "lr_final": None, "priority_alpha": 0.6, "normalize_observations": True},
    "parallel": {"train_interval": 2, "policy_lag": 1, "backend": "inline"},
}


@pytest.fixture(scope="module")
def cart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder with three checkpoints, in the middle of episodes of compiled worlds."""
    folder, game = tmp_path_factory.mktemp("cart"), CART(config=CART_CONFIG)
    game.prepare().checkpointer = Checkpointer(game.prepare(), folder, keep_last=3)
    game.run_experiment(6)
    return folder


def filled(value: Any) -> Any:
    """Return a change of an array: its last number becomes this one."""

    def changed(array: Any) -> Any:
        own = array.copy()
        own.reshape(-1)[-1] = value
        return own

    return changed


def longer_episode(arrays: dict[str, Any]) -> None:
    """Let an episode be longer than compiled worlds have room for."""
    arrays["loop.0.world.lengths"] = np.array([100_000, 0])
    arrays["loop.0.world.actions"] = np.zeros((100_000, 1))


ARRAYS: dict[str, tuple[str, Any, str]] = {
    "worlds that are missing": ("loop.0.alive", lambda own: own[:, :1], r"alive is bool \(1, 1\), wanted is bool \(1, 2\)"),
    "first turns as numbers": ("loop.0.first", lambda own: own.astype(np.int64), "first is int64"),
    "an endless return": ("running.0", filled(np.inf), "NaN or infinity in running.0"),
    "a negative seed": ("loop.0.world.seeds", filled(-1), "seeds holds -1"),
    "an action that a world does not know": ("loop.0.world.actions", filled(1e15), "agent_0 is none of its space"),
    "fewer actions than turns": ("loop.0.world.actions", lambda own: own[1:], "actions is float64 .* wanted is float64"),
    "no lengths of episodes": ("loop.0.world.lengths", None, "KeyError: 'lengths'"),
    "short weights": ("0.acting", lambda own: own[:, :1], r"0.acting is float32 \(1, 1\)"),
    "weights as whole numbers": ("0.acting", lambda own: own.astype(np.int64), "0.acting is int64"),
    "NaN in frames": ("0.frames", filled(np.nan), "NaN or infinity in 0.frames"),
    "recurrent state": ("0.recall", lambda own: np.zeros((1, 2, 9), np.float32), r"recall is float32 \(1, 2, 9\)"),
    "a negative priority": ("0.priority", filled(-1.0), "0.priority holds -1.0"),
    "a priority that is no number": ("0.priority", filled(np.nan), "NaN or infinity in 0.priority"),
    "one priority for all": ("0.priority", lambda own: own[:, :1], "0.priority is float32"),
    "steps before the first": ("0.newest.steps", filled(-5.0), "steps holds -5.0"),
    "steps without end": ("0.newest.steps", filled(1e30), "steps holds 1.*e[+]30"),
    "a negative second moment": ("0.newest.second", filled(-1.0), "second holds -1.0"),
    "an endless first moment": ("0.newest.first", filled(np.inf), "NaN or infinity in first"),
    "a negative learning rate": ("0.newest.hyper.lr", filled(-1.0), "hyper.lr holds -1.0"),
    "a negative clip": ("0.newest.hyper.clip", filled(-1.0), "hyper.clip holds -1.0"),
    "a target that overshoots": ("0.newest.hyper.tau", filled(1.5), "hyper.tau holds 1.5"),
    "a negative count": ("0.newest.norm.count", filled(-1.0), "norm.count holds -1.0"),
    "a negative variance": ("0.newest.norm.square", filled(-1.0), "norm.square holds -1.0"),
    "waiting weights": ("0.pending.3.online", filled(np.nan), "NaN or infinity in online"),
    "waiting updates": ("0.updates.3", filled(-1), "0.updates.3 holds -1"),
    "waiting priorities": ("0.surprise.3.errors", lambda own: own[:, :1], "errors is float64"),
    "waiting metrics": ("0.metric.3.loss", lambda own: np.float64(3.0), "loss of round 3 are not those of 1 agents"),
    "best weights": ("0.best", lambda own: own[:, :1], "0.best is torch.float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_f58_an_older_checkpoint_is_used_if_an_array_cannot_be_right(name: str, cart: Path, tmp_path: Path) -> None:
    array, change, trouble = ARRAYS[name]

    def changed(arrays: dict[str, Any]) -> dict[str, Any]:
        kept = {key: own for key, own in arrays.items() if key != array}
        return kept if change is None else kept | {array: change(arrays[array])}

    refused(cart, tmp_path, trouble, arrays=changed)


def test_f58_an_older_checkpoint_is_used_if_an_episode_is_longer_than_its_limit(cart: Path, tmp_path: Path) -> None:
    """Compiled worlds write the actions of an episode into room for as many as there can be."""

    def changed(arrays: dict[str, Any]) -> dict[str, Any]:
        longer_episode(arrays)
        return arrays

    refused(cart, tmp_path, "lengths holds 100000, wanted are numbers from 0 to 500", arrays=changed)


def changed_setting(values: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    settings = values["settings"][0][0]
    return values | {"settings": [[settings | {name: value}]]}


VALUES: dict[str, tuple[Any, str]] = {
    "rounds that never end": (lambda own: own | {"rounds": own["rounds"] | {"submitted": 10**15}}, "of 10{15} rounds"),
    "a waiting round that is not stored": (lambda own: own | {"pending": []}, r"the rounds \[\] are stored"),
    "segments to be overwritten": (lambda own: own | {"segments_written": 0}, "the next ones would overwrite it"),
    "rows of another segment": (
        lambda own: own | {"segments": [own["segments"][0] | {"ends": [[7]] * len(own["segments"][0]["ends"])}]},
        r"does not hold the rows",
    ),
    "a replica too many": (lambda own: own | {"recent": [[0.0, 0.0]]}, "reshape array of size 2"),
    "evaluations of other replicas": (
        lambda own: own | {"best": {"epochs": [2, 2], "returns": [1.0, 1.0]}},
        "are not those of 1 replicas",
    ),
    "negative failures": (lambda own: own | {"failures": -1}, "-1 cannot be a counter"),
    "half an update": (lambda own: own | {"rounds": own["rounds"] | {"updates": 0.5}}, "0.5 cannot be a counter"),
    "a word in place of gamma": (
        lambda own: changed_setting(own, "hyper", own["settings"][0][0]["hyper"] | {"gamma": "x"}),
        "model.gamma is 'x'",
    ),
    "frozen by a word": (lambda own: changed_setting(own, "frozen", "no"), "frozen is 'no'"),
    "exploration by a word": (lambda own: changed_setting(own, "exploration", "much"), "could not convert"),
    "a negative gamma": (
        lambda own: changed_setting(own, "hyper", own["settings"][0][0]["hyper"] | {"gamma": -1.0}),
        "model.gamma is -1.0",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_f58_an_older_checkpoint_is_used_if_a_value_cannot_be_right(name: str, cart: Path, tmp_path: Path) -> None:
    change, trouble = VALUES[name]
    refused(cart, tmp_path, trouble, values=change)


@pytest.mark.parametrize(
    ("column", "change", "trouble"),
    [
        ("row.observations", filled(np.nan), "NaN or infinity in observations"),
        ("row.age", lambda own: own[:, :1], r"age is .*, 1\), wanted is"),
        ("counter.pos", lambda own: own.astype(np.float64), "pos is float64"),
        ("counter.ages", lambda own: own - 1_000, "an episode began -"),
    ],
)
def test_f58_an_older_checkpoint_is_used_if_columns_are_of_another_kind(
    column: str, change: Any, trouble: str, cart: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(cart, folder)
    store = Store(folder)
    manifest, _ = store.newest_good()
    name = manifest.values["segments"][0]["names"][-1]
    rows = store.read(manifest, name)
    entry = store.write(name, rows | {column: change(rows[column])})
    store.commit(Manifest(manifest.epoch, {**manifest.files, name: entry}, manifest.values))
    passed_over(folder, trouble)


@pytest.mark.parametrize(
    ("column", "odd", "trouble"),
    [("event_type", 7.0, "event types holds 7.0"), ("event_value", np.nan, "NaN or infinity in extra.event_value")],
)
def test_f58_an_older_checkpoint_is_used_if_an_event_is_none(
    column: str, odd: float, trouble: str, tmp_path: Path
) -> None:
    cls, problem = EVENTS["dqn"]
    config = merge(problem, {"experiment": {"epochs": 6, "checkpoint_every": 2}})
    game = cls(config=config)
    game.prepare().checkpointer = Checkpointer(game.prepare(), tmp_path, keep_last=3)
    game.run_experiment(4)
    store = Store(tmp_path)
    manifest, _ = store.newest_good()
    *_, name, _ = manifest.values["segments"][0]["names"] * 2
    rows = store.read(manifest, name)
    key = f"row.extra.{column}"
    own = rows[key].astype(np.float32)
    own.reshape(-1)[: own.size // 2] = odd
    entry = store.write(name, rows | {key: own})
    store.commit(Manifest(manifest.epoch, {**manifest.files, name: entry}, manifest.values))
    found, troubles = restore(cls(config=config).prepare(), tmp_path)
    assert found.epoch == 2
    assert trouble in troubles[0]


def refused(cart: Path, tmp_path: Path, trouble: str, **changes: Any) -> None:
    """Change the newest checkpoint of a copy: a run is restored from the one before, and the reason is named."""
    folder = tmp_path / "run"
    shutil.copytree(cart, folder)
    rewritten(folder, **changes)
    passed_over(folder, trouble)


def passed_over(folder: Path, trouble: str) -> None:
    manifest, troubles = restore(CART(config=CART_CONFIG).prepare(), folder)
    assert manifest.epoch == 4
    assert re.search(trouble, troubles[0]), troubles[0]
