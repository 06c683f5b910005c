"""Checkpoints survive cut, flipped and swapped files, kills in the middle of a write, and full disks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.algorithms.dqn import DQNLearner
from parallel_agents.checkpoint import Checkpointer, restore
from parallel_agents.checkpoint.store import Manifest, Store
from parallel_agents.core.errors import CheckpointError, RunError
from parallel_agents.core.files import write_atomically
from tests.engine.test_standalone import Counting
from tests.env.line_worlds import Line, tiny
from tests.faults.conftest import run
from tests.faults.forked import script
from tests.faults.test_learners import Events

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def checkpoints(tmp_path: Path) -> tuple[Path, str]:
    """Return a run folder with three checkpoints, and the digest of the run at epoch 9."""
    config = tiny(experiment={"epochs": 9, "checkpoint_every": 2})
    game = Line(config=config)
    game.prepare().checkpointer = Checkpointer(game.prepare(), tmp_path, keep_last=3)
    game.run_experiment(6)
    return tmp_path, str(Line(config=config).run_experiment(9)["digest"])


def resumed(folder: Path) -> tuple[str, int, list[str]]:
    """Return the digest at epoch 9 of the resumed run, the epoch it was resumed from, and what is wrong with newer ones."""
    game = Line(config=tiny(experiment={"epochs": 9, "checkpoint_every": 2}))
    manifest, troubles = restore(game.prepare(), folder)
    return str(game.run_experiment(9)["digest"]), manifest.epoch, troubles


KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
import numpy as np
from parallel_agents.checkpoint.store import Manifest, Store

store = Store(Path(sys.argv[1]))
store.open_for_writing()
store.commit(Manifest(1, {"state-000001.safetensors": store.write("state-000001.safetensors", {"a": np.arange(9.0)})}, {}))
store.close()
steps = []

def step(name):
    steps.append(name)
    if in_child and len(steps) == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

for name in ("fsync", "open", "close", "replace", "unlink"):
    def shim(*given, real=getattr(os, name), name=name, **more):
        step(f"before {name}")
        done = real(*given, **more)
        step(f"after {name}")
        return done
    setattr(os, name, shim)

in_child, kill_at, died = False, 1, True
while died:
    steps.clear()
    child = os.fork()
    if child == 0:
        in_child = True
        store.commit(Manifest(2, {"state-000002.safetensors": store.write("state-000002.safetensors", {"a": np.ones(9)})}, {}))
        store.rotate(2, 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    died = os.WIFSIGNALED(status)
    fresh = Store(Path(sys.argv[1]))
    good, troubles = fresh.newest_good()
    assert not troubles, (kill_at, troubles)
    expected = np.ones(9) if good.epoch == 2 else np.arange(9.0)
    assert (fresh.read(good, f"state-{good.epoch:06d}.safetensors")["a"] == expected).all()
    fresh.open_for_writing()
    fresh.close()
    left = sorted(path.name for path in fresh.folder.iterdir())
    assert not [name for name in left if name.startswith(".")], left
    if died:
        for epoch in fresh.epochs():
            if epoch == 2:
                (fresh.folder / "epoch-000002.json").unlink()
        if 1 not in fresh.epochs():
            store.commit(Manifest(1, {"state-000001.safetensors": store.write("state-000001.safetensors", {"a": np.arange(9.0)})}, {}))
    kill_at += 1
print(kill_at - 2)
"""


def test_f25_a_kill_at_every_step_of_a_checkpoint_leaves_a_good_one(tmp_path: Path) -> None:
    ended = script(tmp_path, KILLED_WRITER, tmp_path / "run").ended()
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= 8, "kills at so many different steps"


def test_f26_a_file_is_synced_before_it_is_renamed_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        steps.append("folder synced" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file synced")
        fsync(descriptor)

    def renamed(aside: str, target: str, **folders: int) -> None:
        steps.append("renamed")
        replace(aside, target, **folders)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_atomically(tmp_path / "x", [b"1"])
    assert steps == ["file synced", "renamed", "folder synced"]
    steps.clear()
    store = Store(tmp_path)
    store.open_for_writing()
    files = {name: store.write(name, {"a": np.ones(3)}) for name in ("state-000001.safetensors",)}
    store.commit(Manifest(1, files, {}))
    assert steps == ["file synced", "renamed", "folder synced"] * 2  # the manifest last


def test_f27_parts_of_different_checkpoints_are_never_mixed(checkpoints: tuple[Path, str]) -> None:
    folder, digest = checkpoints
    states = sorted((folder / "checkpoints").glob("state-*.safetensors"))
    shutil.copyfile(states[0], states[-1])
    found, epoch, troubles = resumed(folder)
    assert (found, epoch) == (digest, 4)
    assert states[-1].name in troubles[0]
    states[1].unlink()
    assert resumed(folder)[:2] == (digest, 2)


def noticed(store: Store, epoch: int, name: str) -> bool:
    """Return whether damage is named; only shared files have a copy and can still be used."""
    try:
        troubles = store.check(store.manifest(epoch))
    except CheckpointError as error:
        return name in str(error) and not name.startswith("memory-")
    return name.startswith("memory-") and any(name in trouble for trouble in troubles)


def test_f28_flipped_bits_and_cut_files_are_noticed_and_an_older_checkpoint_is_used(
    checkpoints: tuple[Path, str],
) -> None:
    folder, digest = checkpoints
    store, draws = Store(folder), np.random.Generator(np.random.Philox(3))
    newest, _ = store.newest_good()
    for name in [*newest.files, newest.file_name]:
        path = store.folder / name
        good = path.read_bytes()
        for _ in range(40):
            at, bit = int(draws.integers(len(good))), int(draws.integers(8))
            path.write_bytes(good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :])
            assert noticed(store, newest.epoch, name)
        path.write_bytes(good[: len(good) // 2])
        assert noticed(store, newest.epoch, name)
        path.write_bytes(good)
    os.truncate(store.folder / newest.file_name, 10)
    assert resumed(folder)[:2] == (digest, 4)


# -- no room -------------------------------------------------------------------------------------------------


def small_disk(megabytes: float) -> Iterator[Path]:
    """Yield a file system of the given size; skip the test if the system does not let us make one."""
    where = Path(tempfile.mkdtemp(prefix="small_disk_"))
    size = f"size={int(megabytes * 1024)}k"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(where)], capture_output=True, check=False)
    if made.returncode != 0:
        where.rmdir()
        pytest.skip(f"no file system of a given size can be made here: {made.stderr.decode().strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)
        where.rmdir()


@pytest.fixture
def quarter_megabyte() -> Iterator[Path]:
    yield from small_disk(0.25)


def test_f29_a_full_disk_is_reported_and_the_run_continues(quarter_megabyte: Path) -> None:
    """The disk fills up after two checkpoints, is freed later, and the next checkpoint is whole again."""
    config = tiny(experiment={"epochs": 16, "checkpoint_every": 2})
    game, recorded = Line(config=config), Events()
    game.prepare().checkpointer = Checkpointer(game.prepare(), quarter_megabyte, keep_last=3)
    ballast = quarter_megabyte / "ballast"

    class Filler(Events):
        def on_epoch(self, stats: Any) -> None:
            if stats.epoch == 5:
                assert game.prepare().checkpointer.wait(20.0)  # type: ignore[union-attr]
                _fill(ballast)
            if stats.epoch == 11:
                assert game.prepare().checkpointer.wait(20.0)  # type: ignore[union-attr]
                assert Store(quarter_megabyte).newest_good()[0].epoch == 4  # what was good stays good
                ballast.unlink()

    summary = game.run_experiment(callbacks=[recorded, Filler()])
    failed = [fields for name, fields in recorded.events if name == "checkpoint_failed"]
    assert [fields["epoch"] for fields in failed] == [6, 8, 10]
    assert all("No space left" in fields["cause"] for fields in failed)
    assert summary["unwritten_checkpoints"] == 3
    assert not list(quarter_megabyte.rglob(".*"))
    again = Line(config=config)
    assert restore(again.prepare(), quarter_megabyte)[0].epoch == 16
    assert summary["digest"] == Line(config=config).run_experiment()["digest"]
    assert again.run_experiment(20)["digest"] == Line(config=config).run_experiment(20)["digest"]


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


def test_f29_free_space_is_checked_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(free: int) -> tuple[Any, Events]:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**40, 2**40 - free, free))  # type: ignore[attr-defined]
        game, recorded = Line(config=tiny()), Events()
        game.prepare().checkpointer = Checkpointer(game.prepare(), tmp_path, keep_last=1)
        return game, recorded

    game, recorded = start(100)
    with pytest.raises(
        RunError, match=r"a checkpoint needs at least [\d,]+ bytes, but only 100 are free in .*make room"
    ):
        game.run_experiment(callbacks=[recorded])
    game, recorded = start(20_000)
    game.run_experiment(2, callbacks=[recorded])
    assert recorded.names() == ["disk_is_short"]
    game, recorded = start(2**30)
    game.run_experiment(2, callbacks=[recorded])
    assert recorded.names() == []


def test_f29_a_limit_on_file_sizes_is_a_full_disk_too(tmp_path: Path) -> None:
    ended = script(
        tmp_path,
        """
import resource, signal, sys
from pathlib import Path
from parallel_agents.checkpoint import Checkpointer
from parallel_agents.checkpoint.store import Store
from tests.env.line_worlds import Line, tiny
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
game = Line(config=tiny(experiment={"checkpoint_every": 1}))
game.prepare().checkpointer = Checkpointer(game.prepare(), Path("run"), keep_last=3)
game.run_experiment(2)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
summary = game.run_experiment(4)
assert summary["unwritten_checkpoints"] == 3, summary
assert Store(Path("run")).newest_good()[0].epoch == 2
assert not list(Path("run").rglob(".*"))
""",
    ).ended()
    assert ended.returncode == 0, ended.stderr


def test_f31_a_checkpoint_with_rounds_in_flight_awaits_and_records_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, learn = threading.Event(), DQNLearner.learn

    def blocked(self: Any, *given: Any) -> Any:
        assert gate.wait(30.0)
        return learn(self, *given)

    flags = {"backend": "thread", "num_workers": 1, "policy_lag": 2, "train_interval": 1}
    config = tiny(experiment={"epochs": 8, "checkpoint_every": 2}, parallel=flags)
    whole = Line(config=config).run_experiment()["digest"]
    game = Line(config=config)
    run = game.prepare()
    run.checkpointer = Checkpointer(run, tmp_path, keep_last=9)
    monkeypatch.setattr(DQNLearner, "learn", blocked)
    threading.Timer(0.3, gate.set).start()
    game.run_experiment(4)
    manifest, _ = Store(tmp_path).newest_good()
    assert manifest.values["pending"] == [3, 4]
    again = Line(config=config)
    restore(again.prepare(), tmp_path)
    assert again.run_experiment()["digest"] == whole


def test_f25_leftovers_of_a_killed_writer_are_gone_after_the_next_start(tmp_path: Path) -> None:
    script = "import os,sys,pathlib;from parallel_agents.core import files;os.fsync=lambda fd:os.kill(os.getpid(),9);files.write_atomically(pathlib.Path(sys.argv[1])/'state-000009.safetensors',[b'x'])"
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    killed = run("-c", script, folder)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(folder.glob(".*.unfinished"))) == 1
    Store(tmp_path).open_for_writing()
    assert list(folder.iterdir()) == []


# -- what checkpoints share, and checkpoints that are not this run's -----------------------------------------


def test_f55_one_damaged_byte_or_one_lost_file_never_loses_every_checkpoint(checkpoints: tuple[Path, str]) -> None:
    folder, digest = checkpoints
    for path in sorted((folder / "checkpoints").iterdir()):
        good = path.read_bytes()
        path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
        assert resumed(folder)[0] == digest, f"one byte of {path.name} lost everything"
        path.unlink()
        assert resumed(folder)[0] == digest, f"without {path.name} everything was lost"
        path.write_bytes(good)


def long_run(folder: Path, epochs: int, capacity: int) -> int:
    """Write a checkpoint after every epoch, and return the greatest number of files at any time."""
    model = {"buffer_size": capacity, "updates_per_round": 1}
    config = tiny(experiment={"epochs": epochs, "max_turns": 1, "checkpoint_every": 1}, model=model)
    game, most = Line(config=config), 0
    game.prepare().checkpointer = Checkpointer(game.prepare(), folder, keep_last=3)

    class Counts(Events):
        def on_epoch(self, stats: Any) -> None:
            nonlocal most
            most = max(most, len(os.listdir(folder / "checkpoints")))

    summary = game.run_experiment(callbacks=[Counts()])
    again = Line(config=config)
    restore(again.prepare(), folder)
    assert again.run_experiment(epochs)["digest"] == summary["digest"]
    return most


def test_f56_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 checkpoints of a buffer that none of them leaves: levels 0 to 2, twice each, and what three more need."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no power is lost here, and waiting for the disk takes long
    assert long_run(tmp_path, 100, 2_000) <= 80


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
def test_f56_thousands_of_checkpoints_need_few_files(tmp_path: Path) -> None:
    assert long_run(tmp_path, 2_501, 5_000) <= 130


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"experiment": {"seed": 4}}, "experiment.seed is 4, there 3"),
        ({"experiment": {"max_turns": 7}}, "experiment.max_turns is 7, there 6"),
        ({"parallel": {"policy_lag": 2}}, "parallel.policy_lag is 2, there 1"),
        ({"world": {"lives": True}}, "world.lives is True, there False"),
        ({"model": {"gamma": 0.5}}, "model.gamma is 0.5, there None"),
    ],
)
def test_f57_a_checkpoint_of_another_run_is_refused_with_what_differs(
    change: dict[str, Any], key: str, checkpoints: tuple[Path, str]
) -> None:
    game = Line(config=tiny(**change))
    with pytest.raises(CheckpointError, match=f"another configuration: .*{key}"):
        restore(game.prepare(), checkpoints[0])


def test_f57_how_the_work_is_run_may_differ(checkpoints: tuple[Path, str]) -> None:
    how = {"backend": "thread", "num_workers": 2, "round_deadline": 99.0, "parallel_actions": False}
    game = Line(config=tiny(experiment={"epochs": 9, "checkpoint_every": 0, "keep_last": 7}, parallel=how))
    restore(game.prepare(), checkpoints[0])
    assert game.run_experiment()["digest"] == checkpoints[1]


def rewritten(folder: Path, values: Any = None, arrays: Any = None) -> None:
    """The newest checkpoint with other contents and the right hashes, as a fault of ours or a stranger makes it."""
    store = Store(folder)
    manifest, _ = store.newest_good()
    state = f"state-{manifest.epoch:06d}.safetensors"
    files = dict(manifest.files)
    if arrays is not None:
        files[state] = store.write(state, arrays(store.read(manifest, state)))
    store.commit(Manifest(manifest.epoch, files, manifest.values if values is None else values(dict(manifest.values))))


def test_f58_missing_and_mistyped_values_are_named_and_an_older_checkpoint_is_used(
    checkpoints: tuple[Path, str],
) -> None:
    folder, digest = checkpoints
    values = Store(folder).newest_good()[0].values
    path = folder / "checkpoints" / "epoch-000006.json"
    good = path.read_bytes()
    restored = set(values) - {"shape"}  # which is compared: another one is of another run
    for key in sorted(restored):
        for odd in ("absent", "text"):
            rewritten(
                folder,
                lambda own, key=key, odd=odd: (
                    {k: v for k, v in own.items() if k != key} | ({} if odd == "absent" else {key: odd})
                ),
            )
            game = Line(config=tiny(experiment={"epochs": 9, "checkpoint_every": 2}))
            manifest, troubles = restore(game.prepare(), folder)
            assert manifest.epoch == 4, f"{key} = {odd!r} was taken"
            assert "epoch 6" in troubles[0]
            path.write_bytes(good)
    rewritten(folder, lambda own: own | {"segments": [{**own["segments"][0], "levels": ["x"]}]})
    assert resumed(folder)[:2] == (digest, 4)
    rewritten(folder, lambda own: own | {"best": 3})
    assert resumed(folder)[:2] == (digest, 4)


@pytest.mark.parametrize("count", [-1, 10**30])
def test_f58_an_older_checkpoint_is_used_if_a_counter_cannot_be_right(
    count: int, checkpoints: tuple[Path, str]
) -> None:
    folder, digest = checkpoints
    rewritten(folder, lambda own: own | {"rounds": own["rounds"] | {"submitted": count}})
    found, epoch, troubles = resumed(folder)
    assert (found, epoch) == (digest, 4)
    assert f"{count} cannot be a counter" in troubles[0]


@pytest.mark.parametrize(("part", "where"), [("newest.online", "online"), ("acting", "0.acting")])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_f58_an_older_checkpoint_is_used_if_weights_are_not_finite(
    part: str, where: str, odd: float, checkpoints: tuple[Path, str]
) -> None:
    folder, digest = checkpoints

    def spoiled(arrays: dict[str, Any]) -> dict[str, Any]:
        own = arrays[f"0.{part}"].copy()
        own.flat[3] = odd
        return arrays | {f"0.{part}": own}

    rewritten(folder, arrays=spoiled)
    found, epoch, troubles = resumed(folder)
    assert (found, epoch) == (digest, 4)
    assert f"NaN or infinity in {where}" in troubles[0]


def test_f58_an_older_checkpoint_is_used_if_values_are_nested_too_deeply(checkpoints: tuple[Path, str]) -> None:
    """JSON reads this depth; what builds a configuration from it may not."""
    folder, digest = checkpoints
    deep: Any = 3
    for _ in range(110):
        deep = {"agents": deep}
    rewritten(folder, lambda own: own | {"config": own["config"] | {"world": deep}})
    found, epoch, troubles = resumed(folder)
    assert (found, epoch) == (digest, 4)
    assert "nested too deeply: more than 100 levels" in troubles[0]


ROWS: dict[str, tuple[str, Any, str]] = {
    "more rows than memory": ("end", lambda end: end + 2**40, "it has .* rows, the buffers 60"),
    "fewer rows than none": ("end", lambda end: end - 2**40, "it has .* rows, the buffers 60"),
    "rows that are not there": ("end", lambda end: end + 1, r"is .* \(42, .* wanted is .* \(45,"),
    "a buffer that is too long": (
        "counter.pos",
        lambda pos: pos + 2**40,
        "rows 0 to .* are not those of a buffer of 60",
    ),
    "too many transitions": ("counter.head", lambda head: head + 2**40, "transitions 0 to .* are not those"),
    "an open row that comes later": (
        "counter.opened",
        lambda opened: opened + 2**40,
        "an open transition stands outside",
    ),
    "links forwards": ("row.follow", lambda follow: follow + np.int32(2**30), "leads to a row that is not stored"),
    "links backwards": ("row.follow", lambda follow: follow - np.int32(2**30), "leads to a row that is not stored"),
    "an action that is none": ("row.actions", lambda actions: actions + np.int64(2**40), "none of 0 to 2"),
    "an action that is no number": ("row.actions", lambda actions: actions * np.float32(np.nan), "none of 0 to 2"),
}


@pytest.mark.parametrize("name", ROWS)
def test_f58_an_older_checkpoint_is_used_if_rows_are_not_those_of_a_buffer(
    name: str, checkpoints: tuple[Path, str]
) -> None:
    """Compiled code takes numbers of rows and actions for indices, so that wrong ones would end the process."""
    column, change, trouble = ROWS[name]
    folder, digest = checkpoints
    store = Store(folder)
    manifest, _ = store.newest_good()
    *_, with_rows, last = manifest.values["segments"][0]["names"]
    segment = last if column.startswith("counter.") else with_rows
    rows = store.read(manifest, segment)
    entry = store.write(segment, rows | {column: change(rows[column])})
    store.commit(Manifest(manifest.epoch, {**manifest.files, segment: entry}, manifest.values))
    found, epoch, troubles = resumed(folder)
    assert (found, epoch) == (digest, 4)
    assert re.search(trouble, troubles[0])


OWN: dict[str, tuple[Any, Any, str]] = {
    "a value that is missing": (lambda own: own["dict"].pop(0), None, "KeyError: 'learner'"),
    "text in place of a dict": (lambda own: own.update(dict=None, value="text"), None, "cannot be read"),
    "NaN weights": (None, lambda weights: weights * np.float32(np.nan), "NaN or infinity in online"),
}


@pytest.mark.parametrize("name", OWN)
def test_f58_an_older_checkpoint_is_used_if_the_model_of_a_standalone_agent_is_wrong(name: str, tmp_path: Path) -> None:
    change, spoil, trouble = OWN[name]
    config = tiny(experiment={"epochs": 9, "checkpoint_every": 2})
    game = Counting(config=config)
    game.prepare().checkpointer = Checkpointer(game.prepare(), tmp_path, keep_last=3)
    game.run_experiment(6)

    def changed(values: dict[str, Any]) -> dict[str, Any]:
        model = {key["value"]: part for key, part in values["own"][0]["dict"]}["model"]
        if change is not None:
            change(model)
        return values

    def spoiled(arrays: dict[str, Any]) -> dict[str, Any]:
        own = {name: array for name, array in arrays.items() if name.startswith("own.0.") and array.dtype == np.float32}
        return arrays if spoil is None else arrays | {name: spoil(array) for name, array in own.items()}

    rewritten(tmp_path, changed, spoiled)
    again = Counting(config=config)
    manifest, troubles = restore(again.prepare(), tmp_path)
    assert manifest.epoch == 4
    assert trouble in troubles[0]
    assert again.run_experiment(9)["digest"] == Counting(config=config).run_experiment(9)["digest"]


def test_f59_rotation_after_damage_keeps_a_checkpoint_that_can_be_used(checkpoints: tuple[Path, str]) -> None:
    """Only one is kept; two newer manifests are there, one unreadable and one whose state is damaged."""
    folder, digest = checkpoints
    (folder / "checkpoints" / "epoch-000006.json").write_text("{" * 100_000)
    state = folder / "checkpoints" / "state-000004.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"!")
    game = Line(config=tiny(experiment={"epochs": 9, "checkpoint_every": 1}))
    run = game.prepare()
    manifest, troubles = restore(run, folder)
    assert (manifest.epoch, len(troubles)) == (2, 2)
    run.checkpointer = Checkpointer(run, folder, keep_last=1)
    run.checkpointer.continue_from(manifest)
    game.run_experiment(3)
    assert Store(folder).epochs() == [3]
    assert resumed(folder)[:2] == (digest, 3)
