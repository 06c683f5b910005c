"""The digest sees every byte that was learnt, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parallel_agents.runtime.digest import combined
from parallel_agents.types import Weights
from tests.environment.line_worlds import Line, tiny
from tests.equivalence.worlds import Odd


def finished() -> Any:
    game = Line(config=tiny(parallel={"policy_lag": 1}))
    game.run_experiment()
    return game.prepare()


@pytest.mark.parametrize("name", ["online", "target", "first", "second", "steps", "updates", "hyper.lr"])
def test_each_part_of_a_learner_counts(name: str) -> None:
    run = finished()
    before = run.digests()
    run.rounds.newest[0][name][1] += 1
    assert run.digests() != before
    run.rounds.newest[0][name][1] -= 1
    assert (run.digests() == before) == (name in ("steps", "updates"))  # floats may round


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminated", "version", "valid", "follow"])
def test_each_column_of_the_memory_counts(name: str) -> None:
    run = finished()
    before = run.digests()
    column = getattr(run.crew.stacks[0].ring, name)
    column[2, 0] = ~column[2, 0] if column.dtype == bool else column[2, 0] + 1
    assert run.digests() != before


def test_acting_version_and_pending_rounds_count() -> None:
    run = finished()
    before = run.digests()
    stack = run.crew.stacks[0]
    weights = stack.inference.weights
    stack.inference.publish(Weights(weights.version + 1, weights.rows))
    assert run.digests() != before
    stack.inference.publish(weights)
    assert run.digests() == before
    assert list(run.rounds.waiting) == [3]
    run.rounds.waiting.clear()
    assert run.digests() != before


def test_settings_of_a_model_count() -> None:
    run = finished()
    model = run.crew.stacks[0].models[1]
    seen = [run.digests()]
    for change in (
        lambda: setattr(model, "frozen", True),
        lambda: model.set_epsilon(0.25),
        lambda: model.hyper.update(gamma=0.5),
        lambda: model.hyper.update(epsilon_final=0.5),
    ):
        change()
        seen.append(run.digests())
    assert len({str(own) for own in seen}) == len(seen)


def test_where_episodes_are_counts() -> None:
    environment = Odd(config={"experiment": {"autoreset": True, "epochs": 4}, "model": {"n_frames": 2}})
    environment.run_experiment()
    run = environment.prepare()
    arrays = [run.loop.alive[0], run.loop.first[0], run.crew.stacks[0].frames.window, *environment.state().values()]
    assert len(arrays) > 3
    for array in arrays:
        before, kept = run.digests(), array.copy()
        array[...] = ~array if array.dtype == bool else array + 1
        assert run.digests() != before
        array[...] = kept
        assert run.digests() == before


def test_rows_that_were_overwritten_do_not_count() -> None:
    run = finished()
    ring = run.crew.stacks[0].ring
    before, kept = run.digests(), int(ring.pos[0])
    assert kept < ring.valid.shape[1], "some rows have not been written yet"
    ring.observations[:, kept:] = 9.0
    assert run.digests() == before


def test_time_does_not_count() -> None:
    run = finished()
    before = run.digests()
    run.seconds += 100.0
    run.failures += 1
    assert run.digests() == before
    assert torch.is_tensor(run.rounds.newest[0]["online"])


def test_one_digest_stands_for_itself_and_several_make_one() -> None:
    assert combined(["a"]) == "a"
    assert len({combined(["a", "b"]), combined(["b", "a"]), combined(["a"]), combined(["ab", ""])}) == 4
