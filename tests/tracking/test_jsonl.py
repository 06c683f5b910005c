from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from parallel_agents.core.errors import ConfigError, RunError
from parallel_agents.tracking.jsonl import JsonlFile, read_jsonl

ROOT = Path(__file__).parents[2]


def _fail(message: str) -> None:
    raise AssertionError(message)


def _numbers(path: Path) -> list[int]:
    return [record["n"] for record in read_jsonl(path)]


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "x.jsonl", _fail)
    for n in range(5):
        file.write(json.dumps({"n": n}))
    file.close()
    assert _numbers(tmp_path / "x.jsonl") == [0, 1, 2, 3, 4]


def test_each_line_is_written_to_the_file_at_once(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "x.jsonl", _fail)
    file.write('{"n": 0}')
    assert (tmp_path / "x.jsonl").read_text() == '{"n": 0}\n'


def test_rotation_bounds_the_total_size_and_keeps_the_newest_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file = JsonlFile(path, _fail, max_bytes=1000, backups=2)
    for n in range(1000):
        file.write(json.dumps({"n": n}))
    parts = sorted(tmp_path.iterdir())
    assert [part.name for part in parts] == ["x.jsonl", "x.jsonl.1", "x.jsonl.2"]
    assert all(part.stat().st_size <= 1000 for part in parts)
    kept = _numbers(path)
    assert kept == list(range(kept[0], 1000))
    assert len(kept) > 150


def test_a_line_longer_than_a_part_is_still_written(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file = JsonlFile(path, _fail, max_bytes=10, backups=1)
    for n in range(3):
        file.write(json.dumps({"n": n, "text": "x" * 50}))
    assert _numbers(path) == [1, 2]


def test_an_incomplete_last_line_is_skipped_and_the_next_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 0}\n{"n": 1, "te')
    with capture_logs() as logs:
        assert _numbers(path) == [0]
    assert logs == []
    JsonlFile(path, _fail).write('{"n": 2}')
    with capture_logs() as logs:
        assert _numbers(path) == [0, 2]
    assert [(entry["event"], entry["line"]) for entry in logs] == [("broken_line_skipped", 2)]


@pytest.mark.parametrize("broken", ["not json", "[1, 2]", "[" * 100_000, "1" * 5000])
def test_a_broken_line_is_skipped_with_a_warning_that_names_it(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 0}\n' + broken + '\n{"n": 1}\n')
    with capture_logs() as logs:
        assert _numbers(path) == [0, 1]
    assert logs[0]["file"] == str(path)
    assert logs[0]["line"] == 2


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_reported_once_and_lost_lines_are_counted(tmp_path: Path) -> None:
    messages: list[str] = []
    path = tmp_path / "x.jsonl"
    file = JsonlFile(path, messages.append)
    file.write("{}")
    file.write("{}")
    assert messages == [f"cannot write {path}: File too large; its lines are lost until that is repaired"]
    assert file.lost_lines == 2


def test_writing_continues_when_the_folder_is_back(tmp_path: Path) -> None:
    messages: list[str] = []
    folder, moved = tmp_path / "folder", tmp_path / "moved"
    folder.mkdir()
    file = JsonlFile(folder / "x.jsonl", messages.append)
    file.write('{"n": 0}')
    folder.rename(moved)
    file.write('{"n": 1}')
    file.write('{"n": 2}')
    moved.rename(folder)
    file.write('{"n": 3}')
    assert _numbers(folder / "x.jsonl") == [0, 3]
    assert len(messages) == 2
    assert "No such file or directory" in messages[0]
    assert messages[1].endswith("can be written again; 2 lines were lost")


HALF_A_LINE = """
import resource, sys
from pathlib import Path
from parallel_agents.tracking.jsonl import JsonlFile

file = JsonlFile(Path(sys.argv[1]), print)
file.write('{"n": 0}')
resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
file.write('{"n": 1, "text": "xxxxxxxxxxxxxxxxxxxxxxxx"}')
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.write('{"n": 2}')
"""


def test_a_line_written_in_part_does_not_damage_the_next_line(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    path = tmp_path / "x.jsonl"
    done = python(HALF_A_LINE, path)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert "1 lines were lost" in done.stdout
    assert path.read_text() == '{"n": 0}\n{"n": 1, "t\n{"n": 2}\n'
    with capture_logs():
        assert _numbers(path) == [0, 2]


WRITE_FOR_EVER = """
import itertools, json, sys
from pathlib import Path
from parallel_agents.tracking.jsonl import JsonlFile

file = JsonlFile(Path(sys.argv[1]), print, max_bytes=10_000_000, backups=50)
for n in itertools.count():
    file.write(json.dumps({"n": n, "text": "x" * 20_000}))
    if n == 20:
        print("ready", flush=True)
"""


def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    for attempt in range(3):
        path = tmp_path / f"{attempt}.jsonl"
        with subprocess.Popen(
            [sys.executable, "-c", WRITE_FOR_EVER, str(path)],
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": str(ROOT)},
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            writer.kill()
        with capture_logs() as logs:
            numbers = _numbers(path)
        assert numbers == list(range(len(numbers)))
        assert logs == []


WRITE_MANY = """
import json, sys
from pathlib import Path
from parallel_agents.tracking.jsonl import JsonlFile

file = JsonlFile(Path(sys.argv[1]), print, max_bytes=4000, backups=200)
for n in range(1500):
    file.write(json.dumps({"writer": int(sys.argv[2]), "n": n}))
"""


def test_processes_share_a_file_and_lose_no_line_in_rotations(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE_MANY, str(path), str(number)], env={"PYTHONPATH": str(ROOT)})
        for number in range(3)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    with capture_logs() as logs:
        records = list(read_jsonl(path))
    assert logs == []
    assert len(list(tmp_path.iterdir())) > 1
    for number in range(3):
        assert sorted(r["n"] for r in records if r["writer"] == number) == list(range(1500))


def test_threads_share_a_file_and_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file = JsonlFile(path, _fail, max_bytes=2000, backups=500)

    def work(first: int) -> None:
        for n in range(first, first + 500):
            file.write(json.dumps({"n": n}))

    threads = [threading.Thread(target=work, args=(500 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(_numbers(path)) == list(range(2000))


def test_a_rotation_that_another_process_has_just_made_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    file = JsonlFile(path, _fail, max_bytes=25)
    file.write('{"n": 0}')
    file.write('{"n": 1}')
    flock = fcntl.flock

    def rotate_first(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        JsonlFile(path, _fail, max_bytes=25).write('{"n": 2}')  # as another process would
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", rotate_first)
    file.write('{"n": 3}')
    assert _numbers(path) == [0, 1, 2, 3]
    assert sorted(part.name for part in tmp_path.iterdir()) == ["x.jsonl", "x.jsonl.1"]


def test_a_signal_handler_may_write_while_its_thread_is_writing(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file = JsonlFile(path, _fail, max_bytes=5000, backups=100)
    signals = 0

    def handler(*_: object) -> None:
        nonlocal signals
        signals += 1
        file.write('{"n": -1}')

    previous = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        for n in range(3000):
            file.write(json.dumps({"n": n}))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    numbers = _numbers(path)
    assert [n for n in numbers if n >= 0] == list(range(3000))
    assert numbers.count(-1) == signals > 0


def test_a_reader_sees_each_part_once_and_a_removed_file_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file = JsonlFile(path, _fail)
    file.write('{"n": 0}')
    os.link(path, tmp_path / "x.jsonl.1")  # as a reader sees it in the middle of a rotation
    assert _numbers(path) == [0]
    path.unlink()
    file.write('{"n": 1}')
    assert _numbers(path) == [0, 1]


def test_a_line_after_close_is_reported_as_lost(tmp_path: Path) -> None:
    messages: list[str] = []
    file = JsonlFile(tmp_path / "x.jsonl", messages.append)
    file.close()
    file.close()
    file.write("{}")
    assert len(messages) == 1
    assert "it is closed" in messages[0]


def test_impossible_sizes_and_missing_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rotation of x.jsonl after 0 bytes with 3 older parts is impossible"):
        JsonlFile(tmp_path / "x.jsonl", _fail, max_bytes=0)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunError, match=r"cannot open .*x.jsonl for writing: No such file or directory; choose"):
        JsonlFile(tmp_path / "absent" / "x.jsonl", _fail)
