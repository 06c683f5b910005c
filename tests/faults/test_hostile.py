"""Hostile files are checked before they are read, never run, and reach nothing outside the run folder."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.checkpoint.store import Manifest, Store, _canonical
from parallel_agents.core.config import Config, parse_setting
from parallel_agents.core.errors import CheckpointError, ConfigError, CorruptCheckpoint
from parallel_agents.core.files import write_atomically
from parallel_agents.tracking.run_folder import RunFolder


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
