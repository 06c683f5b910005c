"""Checkpoints on disk: damaged ones are noticed and passed over, hostile ones run nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.checkpoint.store import Manifest, Store, _canonical
from parallel_agents.core.errors import CheckpointError, CorruptCheckpoint


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three good checkpoints that share a file."""
    made = Store(tmp_path)
    made.open_for_writing()
    shared = made.write("memory-0-000001.safetensors", {"rows": np.arange(50.0)})
    for epoch in (1, 2, 3):
        name = f"state-{epoch:06d}.safetensors"
        own = made.write(name, {"weights": np.full(20, epoch, np.float32), "on": np.array([True, False])})
        made.commit(Manifest(epoch, {name: own, "memory-0-000001.safetensors": shared}, {"epoch": epoch}))
    return made


def newest(store: Store) -> int:
    return store.newest_good()[0].epoch


def test_what_was_written_is_read(store: Store) -> None:
    manifest, troubles = store.newest_good()
    assert (manifest.epoch, dict(manifest.values), troubles) == (3, {"epoch": 3}, [])
    arrays = store.read(manifest, "state-000003.safetensors")
    assert arrays["weights"].tolist() == [3.0] * 20
    assert arrays["on"].tolist() == [True, False]


def test_arrays_keep_their_shape_whatever_it_is_and_however_they_lie_in_memory(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open_for_writing()
    block = np.arange(24.0).reshape(2, 3, 4)
    given = {"number": np.array(7), "none": np.zeros((0, 3)), "turned": block.T, "every_other": block[:, ::2, 1:]}
    name = "state-000001.safetensors"
    store.commit(Manifest(1, {name: store.write(name, given)}, {}))
    found = store.read(store.manifest(1), name)
    assert {key: array.shape for key, array in found.items()} == {key: array.shape for key, array in given.items()}
    assert all(np.array_equal(found[key], array) for key, array in given.items())


def test_every_flipped_bit_is_noticed(store: Store) -> None:
    draws = np.random.Generator(np.random.Philox(7))
    files = [store.folder / name for name in ("state-000003.safetensors", "epoch-000003.json")]
    for _ in range(200):
        path = files[int(draws.integers(2))]
        good = path.read_bytes()
        at, bit = int(draws.integers(len(good))), int(draws.integers(8))
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :])
        manifest, troubles = store.newest_good()
        assert manifest.epoch == 2, f"bit {bit} of byte {at} of {path.name} went unnoticed"
        assert path.name in troubles[0]
        path.write_bytes(good)
    assert newest(store) == 3


@pytest.mark.parametrize("name", ["state-000003.safetensors", "epoch-000003.json"])
def test_a_truncated_or_absent_file_is_noticed(store: Store, name: str) -> None:
    path = store.folder / name
    path.write_bytes(path.read_bytes()[:-7])
    assert newest(store) == 2
    path.unlink()
    assert newest(store) == 2


def test_swapped_files_are_noticed(store: Store) -> None:
    one, other = (store.folder / f"state-00000{n}.safetensors" for n in (2, 3))
    one.write_bytes(other.read_bytes())
    with pytest.raises(CorruptCheckpoint, match="state-000002"):
        store.check(store.manifest(2))


def test_a_damaged_shared_file_is_read_from_its_copy_and_repaired(store: Store) -> None:
    shared = store.folder / "memory-0-000001.safetensors"
    copy = store.folder / "memory-0-000001.copy.safetensors"
    whole = shared.read_bytes()
    assert copy.read_bytes() == whole
    for damaged in (shared, copy):
        damaged.write_bytes(whole[:-1] + b"!")
        manifest, troubles = store.newest_good()
        assert manifest.epoch == 3
        assert [damaged.name in trouble for trouble in troubles] == ([True] if damaged is shared else [])
        assert store.read(manifest, shared.name)["rows"].tolist() == list(range(50))
        store.mend(manifest)
        assert damaged.read_bytes() == whole
        damaged.unlink()
        store.mend(manifest)
        assert damaged.read_bytes() == whole


def test_no_checkpoint_is_usable_if_both_copies_of_a_shared_file_are_lost(store: Store) -> None:
    for path in store.folder.glob("memory-0-000001.*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"(?s)no usable checkpoint.*memory-0-000001.*move it away and resume"):
        store.newest_good()


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is none, none was written so far"):
        Store(tmp_path).newest_good()


def test_rotation_keeps_what_kept_checkpoints_need(store: Store) -> None:
    store.rotate(3, 1)
    names = sorted(path.name for path in store.folder.iterdir())
    shared = ["memory-0-000001.copy.safetensors", "memory-0-000001.safetensors"]
    assert names == ["epoch-000003.json", *shared, "state-000003.safetensors"]


def test_rotation_counts_only_checkpoints_that_can_be_used(store: Store) -> None:
    """A damaged manifest and one without its file: the good one before them must stay."""
    (store.folder / "epoch-000003.json").write_text("{")
    (store.folder / "state-000002.safetensors").unlink()
    store.rotate(3, 1)
    assert newest(store) == 1
    name = "state-000004.safetensors"
    store.commit(Manifest(4, {name: store.write(name, {"weights": np.ones(3)})}, {}))
    store.rotate(4, 1)
    assert store.epochs() == [4]


def test_rotation_never_removes_the_checkpoint_just_written(store: Store) -> None:
    """The run went on from epoch 1, since what is newer was damaged in a way that only its bytes show."""
    for epoch in (2, 3):
        path = store.folder / f"state-{epoch:06d}.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    store.rotate(1, 1)
    assert newest(store) == 1
    store.forget_after(1)
    assert store.epochs() == [1]


def test_a_manifest_that_cannot_be_read_just_now_protects_its_files(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files is no reason to remove anything."""
    import parallel_agents.checkpoint.store as module

    def busy(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(module, "read_json", busy)
    store.remove_unreferenced()
    monkeypatch.undo()
    assert newest(store) == 3


def test_leftovers_of_a_killed_writer_are_removed(store: Store) -> None:
    (store.folder / ".state-000004.safetensors.abcd.unfinished").write_bytes(b"half")
    (store.folder / "state-000004.safetensors").write_bytes(b"whole, but its manifest was never written")
    store.open_for_writing()
    assert not [path for path in store.folder.iterdir() if "000004" in path.name]
    assert newest(store) == 3


class Bomb:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('code ran')",))


def forged(store: Store, files: dict[str, Any], **changes: Any) -> None:
    body = {"format": 1, "epoch": 9, "files": files, "values": {}, **changes}
    seal = hashlib.sha256(_canonical(body)).hexdigest()
    (store.folder / "epoch-000009.json").write_text(json.dumps({**body, "sha256": seal}))


def entry(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_a_pickle_in_place_of_arrays_runs_nothing(store: Store) -> None:
    data = pickle.dumps(Bomb())
    (store.folder / "state-000009.safetensors").write_bytes(data)
    forged(store, {"state-000009.safetensors": entry(data)})
    manifest = store.manifest(9)
    with pytest.raises(CorruptCheckpoint, match="not a safetensors file"):
        store.read(manifest, "state-000009.safetensors")


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "state-1.safetensors/../x", "weights.pkl"])
def test_a_manifest_cannot_name_files_elsewhere(store: Store, name: str) -> None:
    forged(store, {name: entry(b"")})
    with pytest.raises(CorruptCheckpoint, match="only files of a checkpoint"):
        store.manifest(9)
    assert newest(store) == 3


def test_a_header_that_promises_too_much_is_refused(store: Store) -> None:
    data = (2**60).to_bytes(8, "little") + b"{}"
    (store.folder / "state-000009.safetensors").write_bytes(data)
    forged(store, {"state-000009.safetensors": entry(data)})
    with pytest.raises(CorruptCheckpoint, match="not a safetensors file"):
        store.read(store.manifest(9), "state-000009.safetensors")


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"sha256": 3}', '{"format": 1}', "{" * 1000, "[" * 200_000, '{"a":' * 200_000]
)
def test_files_that_are_no_manifests_are_passed_over(store: Store, text: str) -> None:
    """Deep JSON ends the parser with a RecursionError, which is no ValueError."""
    (store.folder / "epoch-000009.json").write_text(text)
    assert newest(store) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": 8},
        {"epoch": "9"},
        {"values": 3},
        {"files": []},
        {"files": {"state-000009.safetensors": {"bytes": -1, "sha256": ""}}},
        {"files": {"state-000009.safetensors": {"bytes": "4", "sha256": ""}}},
        {"files": {"state-000009.safetensors": {"bytes": True, "sha256": ""}}},
        {"files": {"state-000009.safetensors": {"sha256": ""}}},
        {"files": {"state-000009.safetensors": 4}},
    ],
)
def test_mistyped_values_in_a_manifest_are_named_and_passed_over(store: Store, changes: dict[str, Any]) -> None:
    forged(store, **{"files": {}, **changes})
    with pytest.raises(CorruptCheckpoint, match=r"epoch-000009.json"):
        store.manifest(9)
    assert newest(store) == 3


def test_a_size_that_no_memory_holds_is_refused_before_anything_is_read(store: Store) -> None:
    """The manifest and the sparse file agree on a petabyte."""
    with (store.folder / "state-000009.safetensors").open("wb") as file:
        file.truncate(2**43)
    forged(store, {"state-000009.safetensors": {"bytes": 2**43, "sha256": "0" * 64}})
    with pytest.raises(CorruptCheckpoint, match="more than there is memory"):
        store.check(store.manifest(9))
    assert newest(store) == 3


def test_a_manifest_above_the_limit_is_neither_written_nor_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import parallel_agents.checkpoint.store as module

    monkeypatch.setattr(module, "_LARGEST_MANIFEST", 2_000)
    with pytest.raises(CheckpointError, match="this checkpoint is not written"):
        store.commit(Manifest(9, {}, {"history": list(range(1000))}))
    assert store.epochs() == [1, 2, 3]
    (store.folder / "epoch-000009.json").write_text(" " * 3_000)
    with pytest.raises(CorruptCheckpoint, match="at most 2,000 can be right"):
        store.manifest(9)
    assert newest(store) == 3


def test_another_format_is_named(store: Store) -> None:
    forged(store, {}, format=99)
    with pytest.raises(CheckpointError, match="format 99, this version reads 1"):
        store.manifest(9)
