"""A run folder has one writer, links do not lead out of it, and its log says why a run failed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from parallel_agents.checkpoint import Checkpointer, restore, writer
from parallel_agents.checkpoint.store import Store
from parallel_agents.cli import main, record
from parallel_agents.core.errors import FolderInUse
from parallel_agents.core.files import read_file
from parallel_agents.core.folder_lock import FolderLock
from parallel_agents.tracking.plots import write_animation
from parallel_agents.tracking.timeline import Timeline
from parallel_agents.workflows.trainer import ParallelWorkflowRLTrainer
from tests.cli.guess_game import GAME
from tests.env.line_worlds import Line, tiny
from tests.faults.conftest import ROOT, begin, until
from tests.faults.test_commands import started

Command = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Run commands in a folder that holds a game as guess.py; return exit code, printed JSON and stderr."""
    (tmp_path / "guess.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, dict[str, Any], str]:
        capfd.readouterr()
        code = main([*words, "--json"])
        out, err = capfd.readouterr()
        return code, json.loads(out), err

    yield run
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    for name in [name for name in sys.modules if name.startswith("parallel_agents_target_")]:
        del sys.modules[name]


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# -- one writer ----------------------------------------------------------------------------------------------


def test_f51_a_second_writer_is_told_who_holds_the_folder_and_changes_nothing(command: Command, tmp_path: Path) -> None:
    process = started(tmp_path, "--backend", "thread")
    folder = tmp_path / "mine"
    writer = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())  # the command watches its run
    try:
        os.kill(writer, signal.SIGSTOP)  # so that every change would be the second writer's
        assert until(lambda: Path(f"/proc/{writer}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        before = contents(folder)
        for words in (("resume", "mine", "--quiet"), ("train", "count.py", "--out", "mine", "--quiet")):
            code, told, _ = command(*words)
            assert (code, told["error"]) == (2, "FolderInUse")
            assert f"process {writer} on {socket.gethostname()} since 20" in told["message"]
            assert "train count.py" in told["message"]
        game = Line(config=tiny())
        with pytest.raises(FolderInUse, match=f"process {writer} on"):
            Checkpointer(game.prepare(), folder, keep_last=1)
        assert contents(folder) == before
        assert command("eval", "mine", "--episodes", "1")[0] == 0, "who only reads needs no lock"
        assert contents(folder) == before
    finally:
        os.kill(writer, signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    newest = Store(folder).newest_good()[0].epoch
    code, told, _ = command("resume", "mine", "--quiet", "--epochs", str(newest + 2))
    assert (code, told["epochs"]) == (0, newest + 2)


HOLDER = """
import os, subprocess, sys, time
from pathlib import Path
from parallel_agents.core.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
forked = os.fork()
if not forked:
    time.sleep(100)
    os._exit(0)
spawned = subprocess.Popen(["sleep", "100"], close_fds=False)
print(forked, spawned.pid, flush=True)
time.sleep(100)
"""


def test_f52_the_lock_ends_with_a_killed_process_though_its_children_live_on(tmp_path: Path) -> None:
    holder = begin("-c", HOLDER, tmp_path)
    assert holder.stdout is not None
    children = [int(pid) for pid in holder.stdout.readline().split()]
    try:
        with pytest.raises(FolderInUse, match=f"process {holder.pid} on"):
            FolderLock(tmp_path)
        holder.kill()
        holder.wait(timeout=20)
        assert [os.kill(pid, 0) for pid in children] == [None, None]
        FolderLock(tmp_path).release()
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        holder.communicate(timeout=20)


def test_f51_a_continued_run_is_the_one_writer_again_or_refuses(tmp_path: Path) -> None:
    """Between two calls the folder is free; what another run wrote meanwhile is never mixed with one's own."""
    config = tiny(experiment={"epochs": 8, "checkpoint_every": 2})
    whole = Line(config=config).run_experiment()["digest"]
    first = Line(config=config)
    first.prepare().checkpointer = Checkpointer(first.prepare(), tmp_path, keep_last=3)
    with pytest.raises(FolderInUse):
        FolderLock(tmp_path)
    first.run_experiment(4)
    FolderLock(tmp_path).release()
    assert first.run_experiment(6)["epochs"] == 6
    second = Line(config=config)
    manifest, _ = restore(second.prepare(), tmp_path)
    second.prepare().checkpointer = Checkpointer(second.prepare(), tmp_path, keep_last=3)
    second.prepare().checkpointer.continue_from(manifest)  # type: ignore[union-attr]
    assert second.run_experiment()["digest"] == whole
    with pytest.raises(Exception, match="another run has written checkpoints"):
        first.run_experiment(8)


def test_f51_searches_and_trainings_beside_runs_are_locked_too(tmp_path: Path) -> None:
    search = ParallelWorkflowRLTrainer(2, 1, 1, 0.5)
    with FolderLock(tmp_path):
        with pytest.raises(FolderInUse):
            search.run_workflow_search(tmp_path)
        with pytest.raises(FolderInUse):
            Store(tmp_path).open_for_writing()  # by which market trainings write
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


# -- no way out ----------------------------------------------------------------------------------------------

APPENDED = ("log.jsonl", "metrics.jsonl", "run.lock")
REPLACED = ("metrics.csv", "trace.json", "summary.json", "fingerprint.json")


def test_f53_links_in_a_run_folder_are_never_followed_for_writing(command: Command, tmp_path: Path) -> None:
    assert command("train", "guess.py", "--out", "good", "--quiet")[0] == 0
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (*APPENDED, *REPLACED):
        for how in (os.symlink, os.link):
            shutil.rmtree("bad", ignore_errors=True)
            shutil.copytree("good", "bad")
            (tmp_path / "bad" / name).unlink()
            how(victim, tmp_path / "bad" / name)
            code, told, _ = command("resume", "bad", "--quiet", "--epochs", "5")
            assert victim.read_text() == "precious", f"{name} was written through {how.__name__}"
            if name in APPENDED:
                assert code == 1
                assert "link" in told["message"]
            else:
                assert (code, told["unwritten_outputs"]) == (0, 0)
                assert not (tmp_path / "bad" / name).is_symlink()


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_f53_a_linked_folder_below_a_run_folder_is_refused(name: str, command: Command, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    assert command("train", "guess.py", "--out", "run", "--quiet", "--tensorboard")[0] == 0
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "run" / name).rename(elsewhere)
    (tmp_path / "run" / name).symlink_to(elsewhere)
    before = contents(elsewhere)
    code, told, _ = command("resume", "run", "--quiet", "--tensorboard", "--epochs", "6")
    assert code == 1
    assert "it is a link" in told["message"]
    assert contents(elsewhere) == before


def test_f53_a_link_above_the_run_folder_is_followed(command: Command, tmp_path: Path) -> None:
    (tmp_path / "big_disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "big_disk")
    (tmp_path / "mine").symlink_to(tmp_path / "big_disk" / "one")
    assert command("train", "guess.py", "--out", "runs/one", "--quiet")[0] == 0
    code, told, _ = command("resume", "mine", "--quiet", "--epochs", "5")
    assert (code, told["epochs"]) == (0, 5)


def test_f53_every_file_of_a_run_folder_is_written_by_the_module_that_follows_no_link() -> None:
    """Whatever else in the package opens a file for writing makes a new one in a place that the user has named."""
    writes = re.compile(
        r"""write_text\(|write_bytes\(|open\(\s*["'][wax]|open\([^)]*,\s*["'][wax]|O_WRONLY|O_RDWR|imwrite\("""
    )
    named_by_users = {"cli/authoring.py", "market/sample/export_writer.py"}
    in_memory = {"tracking/plots.py"}
    by_descriptor = {
        "core/files.py",
        "core/folder_lock.py",
        "tracking/jsonl.py",
        "cli/__init__.py",
        "cli/process_watchdog.py",
    }
    in_the_cache, to_nowhere = {"core/kernel_cache.py"}, {"execution/forkserver.py"}
    package = ROOT / "parallel_agents"
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if writes.search(path.read_text())}
    assert found <= named_by_users | in_memory | by_descriptor | in_the_cache | to_nowhere


def test_f53_pictures_and_traces_replace_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("episode.gif", "trace.json"):
        (tmp_path / name).symlink_to(victim)
    write_animation(tmp_path / "episode.gif", [np.zeros((8, 8, 3), np.uint8)] * 2)
    Timeline().write(tmp_path / "trace.json")
    assert victim.read_text() == "precious"
    assert (tmp_path / "episode.gif").read_bytes().startswith(b"GIF8")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        before = Path.cwd()
        os.chdir(path.parent)  # a name of a socket is at most 107 bytes long
        made.bind(path.name)
        os.chdir(before)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def ten_gigabytes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * 2**30)


READ = ("run.json", "config.json", "metrics.jsonl", "checkpoints/epoch-000004.json",
        "checkpoints/state-000004.safetensors")  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize("make", [fifo, unix_socket, device, ten_gigabytes])
def test_f54_fifos_sockets_devices_and_huge_files_are_refused_before_they_are_read(
    make: Callable[[Path], None], command: Command, tmp_path: Path
) -> None:
    """Nobody is at the other end of the FIFO, /dev/zero never ends, and ten gigabytes of holes are no manifest."""
    assert command("train", "guess.py", "--out", "good", "--quiet")[0] == 0
    for name in READ:
        shutil.rmtree("bad", ignore_errors=True)
        shutil.copytree("good", "bad")
        path = tmp_path / "bad" / name
        path.unlink()
        make(path)
        began = time.monotonic()
        with pytest.raises(OSError, match=r"it is a|it has 10,737,418,240 bytes"):
            read_file(path, 2**20)
        for words in (("eval", "bad", "--episodes", "1"), ("curve", "bad", "--out", "curve.png")):
            needed = not name.startswith("checkpoints") if words[0] == "curve" else name != "metrics.jsonl"
            if needed and not (words[0] == "curve" and name == "config.json"):
                code, told, _ = command(*words)
                assert code != 0, f"{words[0]} took {name}"
                assert path.name in told["message"]
        assert time.monotonic() - began < 30.0


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["fifo", "link"])
def test_f54_copied_sources_that_are_no_regular_files_are_refused_before_they_are_read(
    make: Callable[[Path], None], command: Command, tmp_path: Path
) -> None:
    assert command("train", "guess.py", "--out", "good", "--quiet")[0] == 0
    shutil.copytree("good", "bad")
    copy = tmp_path / "bad" / "source" / "target" / "guess.py"
    copy.unlink()
    make(copy)
    with pytest.raises(OSError, match="it is a"):
        read_file(copy, 2**20)
    verify = ("verify", "bad", "--certificate", "c.json", "--target", "guess.py")
    for words in (("resume", "bad"), ("eval", "bad"), ("diff", "bad", "good"), verify):
        code, told, _ = command(*words)
        assert (code, told["error"]) == (2, "ConfigError")
        assert str(copy) in told["message"]


# -- what a failed run leaves --------------------------------------------------------------------------------


def last_record(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "log.jsonl").read_text().splitlines()[-1]))


def test_f60_the_last_record_of_a_failed_run_says_why_where_and_what_to_do(command: Command, tmp_path: Path) -> None:
    code, told, _ = command("train", "guess.py", "--out", "run", "--quiet", "--set", "world.spoil=raise")
    assert (code, told["error"]) == (1, "WorldError")
    record = last_record(tmp_path / "run")
    assert (record["event"], record["level"], record["error"]) == ("run_failed", "error", "WorldError")
    assert "the world has come to an end" in record["message"]
    line = 1 + GAME[: GAME.index("raise ZeroDivisionError")].count("\n")
    assert record["place"] == f"{tmp_path / 'guess.py'}:{line} in apply_actions()"
    assert (record["epoch"], record["turn"], record["round"]) == (1, 1, 0)
    assert "fix the environment" in record["advice"]
    assert f"`parallel-agents resume {tmp_path / 'run'}` goes on from its first epoch" in record["advice"]
    code, _, _ = command("resume", "run", "--quiet")
    assert code == 1
    (tmp_path / "guess.py").write_text(GAME.replace("raise ZeroDivisionError", "str"))
    assert command("resume", "run", "--quiet")[0] == 0, "the advice works"
    assert last_record(tmp_path / "run")["event"] == "run_ended"


@pytest.mark.timeout(60)
def test_f83_an_error_that_is_its_own_cause_is_reported_like_any_other(command: Command, tmp_path: Path) -> None:
    """A world's `raise error from error`, and a file in place of the folder of checkpoints."""
    raised = "error = ZeroDivisionError('again'); raise error from error"
    game = re.sub(r"raise ZeroDivisionError\(.*\)", raised, GAME)
    assert raised in game
    (tmp_path / "guess.py").write_text(game)
    assert command("train", "guess.py", "--out", "run", "--quiet", "--set", "world.spoil=raise")[0] == 1
    assert last_record(tmp_path / "run")["place"].endswith("in apply_actions()")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "checkpoints").touch()
    assert command("resume", "run", "--quiet")[0] == 1
    assert "Not a directory" in last_record(tmp_path / "run")["message"]


def test_f60_a_run_that_fails_before_its_first_epoch_says_so_too(command: Command, tmp_path: Path) -> None:
    assert command("train", "guess.py", "--out", "run", "--quiet")[0] == 0
    for path in (tmp_path / "run" / "checkpoints").glob("epoch-*.json"):
        path.write_text("{")
    code, _, _ = command("resume", "run", "--quiet")
    record = last_record(tmp_path / "run")
    assert (code, record["event"], record["error"]) == (1, "run_failed", "CheckpointError")
    assert "no usable checkpoint" in record["message"]


def test_f60_an_interrupted_run_says_how_to_go_on(command: Command, tmp_path: Path) -> None:
    code, _, _ = command("train", "guess.py", "--out", "run", "--quiet", "--set", "world.spoil=interrupt")
    record = last_record(tmp_path / "run")
    assert (code, record["event"], record["level"]) == (130, "run_stopped", "info")
    assert "goes on after epoch 2" in record["advice"]


def test_f61_outputs_that_cannot_be_written_never_cost_the_result(command: Command, tmp_path: Path) -> None:
    """Folders stand where files should go, and a line of the metrics does not fit the agents."""
    whole = command("train", "guess.py", "--out", "whole", "--quiet", "--epochs", "6")[1]
    assert command("train", "guess.py", "--out", "run", "--quiet", "--epochs", "3")[0] == 0
    run = tmp_path / "run"
    for name in REPLACED:
        (run / name).unlink()
        if name != "metrics.csv":
            (run / name).mkdir()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    odd = {**json.loads(next(line for line in lines if '"epoch":2,' in line)), "rewards": [1.0]}
    (run / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(odd)]) + "\n")
    code, told, err = command("resume", "run", "--epochs", "6")
    assert (code, told["digest"]) == (0, whole["digest"])
    assert told["unwritten_outputs"] == 4
    for name in REPLACED:
        assert f"output={name}" in err.replace("'", "")
    assert whole["unwritten_outputs"] == 0


def test_f61_a_callback_that_fails_is_counted(command: Command, tmp_path: Path) -> None:
    recorder = """
    def recorders(self, folder):
        from parallel_agents.tracking.callbacks import BaseCallback
        class Broken(BaseCallback):
            def on_epoch(self, stats):
                raise OSError("no pictures today")
        return [Broken()]

    def reset(self):
"""
    (tmp_path / "guess.py").write_text(GAME.replace("\n    def reset(self):\n", recorder, 1))
    code, told, _ = command("train", "guess.py", "--out", "run", "--quiet")
    assert (code, told["unwritten_outputs"]) == (0, 1)


class Breaks(Line):
    """Fails in its fourth epoch."""

    def begin_turn(self) -> None:
        super().begin_turn()
        if self.epoch == 4:
            raise RuntimeError("something broke")


def test_f62_a_failing_run_keeps_checkpoints_that_nobody_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints come by the clock unless their epochs are set, and no digest depends on them."""
    monkeypatch.setattr(writer, "EVERY", 0.0)
    monkeypatch.setattr(writer, "SHARE", 1e9)
    config = tiny(experiment={"epochs": 6})
    whole = Line(config=config).run_experiment()["digest"]
    game = Breaks(config=config)
    game.prepare().checkpointer = Checkpointer(game.prepare(), tmp_path, keep_last=2)
    with pytest.raises(Exception, match="something broke"):
        game.run_experiment()
    assert Store(tmp_path).epochs() == [2, 3]
    again = Line(config=config)
    manifest, _ = restore(again.prepare(), tmp_path)
    again.prepare().checkpointer = Checkpointer(again.prepare(), tmp_path, keep_last=2)
    again.prepare().checkpointer.continue_from(manifest)  # type: ignore[union-attr]
    assert again.run_experiment()["digest"] == whole


def test_f62_checkpoints_by_the_clock_take_no_more_than_their_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one that took a tenth of a second, the next one is due ten seconds later, whatever EVERY says."""
    monkeypatch.setattr(writer, "EVERY", 0.0)
    write = Store.commit

    def slow(self: Store, manifest: Any) -> None:
        time.sleep(0.1)
        write(self, manifest)

    monkeypatch.setattr(Store, "commit", slow)
    game = Line(config=tiny(experiment={"epochs": 30}))
    run = game.prepare()
    run.checkpointer = Checkpointer(run, tmp_path, keep_last=99)
    game.run_experiment()
    assert len(Store(tmp_path).epochs()) <= 4


def test_f63_resume_and_train_do_not_send_the_user_to_each_other(command: Command, tmp_path: Path) -> None:
    """A run that was killed before its first checkpoint is resumed from its first epoch."""
    whole = command("train", "guess.py", "--out", "whole", "--quiet")[1]
    shutil.copytree("whole", "killed")
    shutil.rmtree("killed/checkpoints")
    code, told, _ = command("train", "guess.py", "--out", "killed", "--quiet")
    assert code == 2
    assert "`parallel-agents resume killed`" in told["message"]
    code, told, err = command("resume", "killed", "--quiet")
    assert (code, told["digest"]) == (0, whole["digest"])
    assert "it starts from its first epoch" in err


def test_f63_the_advice_works_if_every_checkpoint_is_damaged(command: Command, tmp_path: Path) -> None:
    whole = command("train", "guess.py", "--out", "run", "--quiet")[1]
    for path in (tmp_path / "run" / "checkpoints").glob("state-*"):
        path.write_bytes(b"damaged")
    code, told, _ = command("resume", "run", "--quiet")
    assert code == 1
    assert "move it away and resume: the run then starts from its first epoch" in told["message"]
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "away")
    code, told, _ = command("resume", "run", "--quiet")
    assert (code, told["digest"]) == (0, whole["digest"])


def test_f81_a_command_that_asks_git_never_takes_the_lock_of_the_repository(tmp_path: Path) -> None:
    """A killed command would leave it there, and git would refuse to commit until somebody removes it."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@b"]
    (tmp_path / "game.py").write_text("")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "A game"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    os.utime(tmp_path / "game.py", (1, 1))  # git would write down that its content is the same nevertheless
    before = (tmp_path / ".git" / "index").stat()
    state = record._git_state(tmp_path)
    assert state is not None
    assert (len(state["commit"]), state["dirty"]) == (40, False)
    after = (tmp_path / ".git" / "index").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
