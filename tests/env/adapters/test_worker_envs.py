"""Environments in worker processes: same results; processes that hang or die are replaced, errors name the world."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_agents.cli import main
from parallel_agents.core.errors import ShapeError, WorldError
from parallel_agents.env.adapters.gymnasium import GymnasiumAdapter
from parallel_agents.env.adapters.sync_envs import SyncEnvs
from parallel_agents.env.adapters.worker_envs import WorkerEnvs
from tests.env.adapters.small_envs import Counter

ACTIONS = np.array([[0, 1, 2], [1, 1, 2], [2, 0, 0], [1, 2, 1], [2, 2, 2], [0, 0, 1], [1, 0, 2]])


def rooms(flags: Path | None = None) -> Any:
    """Return a factory that only cloudpickle can pickle, as users write them."""
    return lambda: GymnasiumAdapter(lambda: Counter(flags))


def play(envs: SyncEnvs) -> list[Any]:
    shown = [envs.reset()]
    for actions in ACTIONS:
        shown += envs.step(actions)
    return shown


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_reset_and_step_as_arrays_with_restarts() -> None:
    envs = SyncEnvs(rooms(), 3, seed=1)
    shown = play(envs)
    seen, rewards = shown[1:3]
    assert seen.shape == (3, 3)
    assert rewards.tolist() == [0.0, 1.0, 2.0]
    ends = np.stack(shown[3::4])
    assert ends.sum() == 3  # after the fifth step all worlds end,
    assert ends[4].all()
    assert (np.stack(shown[1::4])[5, :, 1] == 0).all()  # start afresh in the sixth,
    assert (np.stack(shown[2::4])[5] == 0.0).all()  # which pays nothing,
    assert len({*shown[0][:, 0], *shown[-4][:, 0]}) == 6  # and every episode has a seed of its own
    with pytest.raises(ShapeError, match="2 actions for 3 worlds"):
        envs.step(np.array([0, 1]))


@pytest.mark.timeout(300)  # three processes start one after the other
def test_a_process_that_hangs_or_dies_is_replaced_with_the_same_results(tmp_path: Path, nothing_left: None) -> None:
    wanted = play(SyncEnvs(rooms(), 3, seed=1))
    envs = WorkerEnvs(rooms(tmp_path), 3, deadline=1.0, max_failures=3, seed=1)
    (tmp_path / "hang-2").write_text("once")
    (tmp_path / "die-4").write_text("once")
    assert same(play(envs), wanted)
    assert envs.restarts == 2

    envs.reset()
    (tmp_path / "raise-1").write_text("once")
    with pytest.raises(WorldError, match=r"(?s)world \d \(step 1 of the episode from seed \d+\).*the sky fell"):
        envs.step(ACTIONS[0])

    envs.reset()
    (tmp_path / "hang-1").write_text("for ever")
    began = time.monotonic()
    envs._max_failures = 1
    with pytest.raises(WorldError, match=r"world 0 \(step 1 of .* did not come back within 1 s \(world_deadline\)"):
        envs.step(ACTIONS[0])
    assert time.monotonic() - began < 3.0
    envs.close()


def test_an_environment_that_cannot_be_made_raises_at_once(nothing_left: None) -> None:
    def made() -> GymnasiumAdapter:
        raise FileNotFoundError("no map")

    with pytest.raises(FileNotFoundError, match="no map"):
        WorkerEnvs(made, 2, workers=1)
    with pytest.raises(ShapeError, match="workers is 0"):
        WorkerEnvs(made, 2, workers=0)
    with pytest.raises(ShapeError, match="n_worlds is 0"):
        SyncEnvs(made, 0)


@pytest.mark.timeout(300)
def test_a_world_that_hangs_for_ever_ends_the_run_which_resumes_from_its_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nothing_left: None
) -> None:
    def words(name: str, workers: int) -> list[str]:
        settings = [
            f"world.workers={workers}",
            "world.options=" + json.dumps({"flags": str(tmp_path), "length": 50}),
            "experiment.max_turns=3",
            "experiment.checkpoint_every=1",
            "experiment.eval_every=0",
            "parallel.world_deadline=1",
            "parallel.max_failures=1",
        ]
        options = ["--worlds", "2", "--epochs", "4", "--out", str(tmp_path / name), "--json", "--quiet"]
        sets = [word for setting in settings for word in ("--set", setting)]
        return ["train", "gymnasium:tests.env.adapters.small_envs:Counter-v0", *options, *sets]

    assert main(words("whole", 0)) == 0
    whole = json.loads(capsys.readouterr().out)
    (tmp_path / "hang-8").write_text("for ever")  # in the third epoch
    assert main(words("parts", 1)) == 1
    errors = capsys.readouterr().err
    assert "world 0 (step 8 of the episode from seed" in errors
    assert "epoch 3, turn 2) did not come back within 1 s (world_deadline)" in errors
    (tmp_path / "hang-8").unlink()
    assert main(["resume", str(tmp_path / "parts"), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == whole["digest"]
