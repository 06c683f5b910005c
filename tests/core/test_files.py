from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from parallel_agents.core.files import (
    open_folder,
    open_regular,
    plain,
    read_file,
    read_json,
    remove_unfinished,
    write_atomically,
    write_json,
)


def test_bytes_are_synced_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        calls.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.split(".")[-1])
        fsync(descriptor)

    def recorded_replace(source: str, target: str, **folders: int) -> None:
        calls.append(f"rename to {target}")
        replace(source, target, **folders)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    write_atomically(tmp_path / "x.json", [b"ab", b"c"])
    assert calls == ["sync unfinished", "rename to x.json", f"sync {tmp_path.name}"]
    assert (tmp_path / "x.json").read_bytes() == b"abc"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"old")

    def failing() -> Iterator[bytes]:
        yield b"new"
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        write_atomically(path, failing())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
from pathlib import Path
from parallel_agents.core.files import write_atomically

def chunks():
    yield b"new" * 100_000
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(Path(sys.argv[1]), chunks())
"""


def test_a_kill_leaves_the_old_file_and_a_temporary_file_that_is_removed_later(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "x.json").write_bytes(b"old")
    (folder / ".hidden").write_bytes(b"a file of the user")
    command = [sys.executable, "-c", KILLED, str(folder / "x.json")]
    assert subprocess.run(command, timeout=60, check=False).returncode == -9
    assert (folder / "x.json").read_bytes() == b"old"
    assert len(list(folder.iterdir())) == 3
    removed = remove_unfinished(folder)
    assert len(removed) == 1
    assert removed[0].startswith(".x.json.")
    assert sorted(file.name for file in folder.iterdir()) == [".hidden", "x.json"]


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Point:
    x: float
    y: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (float("inf"), None),
        (np.array([[1.0, np.nan]]), [[1.0, None]]),
        (MappingProxyType({1: (2, 3)}), {"1": [2, 3]}),
        ({"b", "a"}, ["a", "b"]),
        (Path("a") / "b", "a/b"),
        (Point(1.0, Point(2.0, None)), {"x": 1.0, "y": {"x": 2.0, "y": None}}),
        (Colour.RED, "<Colour.RED: 1>"),
        (True, True),
    ],
)
def test_plain_gives_values_that_json_can_hold(value: object, expected: object) -> None:
    result = plain(value)
    assert result == expected
    assert type(result) is type(expected)
    json.dumps(result, allow_nan=False)


def test_json_is_written_indented_and_in_utf8(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"name": "Überblick", "loss": float("nan")})
    assert (tmp_path / "x.json").read_text() == '{\n  "name": "Überblick",\n  "loss": null\n}\n'


def test_a_fifo_is_refused_at_once_for_reading_and_for_appending(tmp_path: Path) -> None:
    """No process is at its other end, so that an ordinary `open` would wait for ever."""
    os.mkfifo(tmp_path / "log.jsonl")
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_APPEND | os.O_CREAT):
        with pytest.raises(OSError, match="it is a FIFO, which no run writes: remove it"):
            open_regular(tmp_path / "log.jsonl", flags)


def test_no_component_below_the_root_may_be_a_link_and_the_root_may(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "odd").symlink_to("inner")
    write_atomically(tmp_path / "link" / "inner" / "x", [b"1"], root=tmp_path / "link")
    assert (tmp_path / "real" / "inner" / "x").read_bytes() == b"1"
    for folder, root in (("link", tmp_path), ("real/odd", tmp_path), ("real/odd", tmp_path / "real")):
        with pytest.raises(OSError, match="it is a link"):
            write_atomically(tmp_path / folder / "x", [b"2"], root=root)
    with pytest.raises(ValueError, match="is not in the subpath"):
        write_atomically(tmp_path / "x", [b"2"], root=tmp_path / "real")


def test_missing_folders_are_made_only_below_the_root(tmp_path: Path) -> None:
    with open_folder(tmp_path / "a" / "b", tmp_path, create=True) as folder:
        assert os.path.samestat(os.fstat(folder), os.stat(tmp_path / "a" / "b"))
    with pytest.raises(FileNotFoundError), open_folder(tmp_path / "c" / "d", tmp_path / "c", create=True):
        pass


def test_a_file_too_large_or_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[" * 200_000)
    with pytest.raises(OSError, match="it has 200,000 bytes, at most 199,999 can be right"):
        read_file(path, 199_999)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(path, 200_000)
    assert len(read_file(path, 200_000)) == 200_000


def test_an_error_is_never_its_own_cause(tmp_path: Path) -> None:
    """Otherwise whoever looks for the first cause of an error never ends."""
    (tmp_path / "file").touch()
    for call in (
        lambda: open_regular(tmp_path / "absent"),
        lambda: open_folder(tmp_path / "file" / "inside", tmp_path).__enter__(),
    ):
        with pytest.raises(OSError, match=r"absent|file") as caught:
            call()
        assert caught.value.__cause__ is None
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a FIFO") as caught, open_folder(tmp_path / "pipe", tmp_path):
        pass
