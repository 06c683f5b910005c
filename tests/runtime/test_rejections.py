"""Rejected updates are told, and an agent that never learns again ends the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_agents.errors import LearnerError
from parallel_agents.runtime.rejections import Rejections
from parallel_agents.types import RoundResult
from tests.equivalence.worlds import Odd
from tests.runtime.stub_stacks import MarkStack


def result(round_: int, updates: list[int], rejected: list[int]) -> RoundResult:
    return RoundResult(round_, np.array(updates), np.array(rejected), {})


def test_only_agents_that_lost_every_update_of_rounds_in_a_row_are_given_up() -> None:
    told: list[Any] = []
    kept = Rejections([MarkStack(3, first_agent=4)], 2, lambda name, fields: told.append((name, fields)))  # type: ignore[list-item]
    kept.note(1, [result(1, [3, 0, 2], [0, 3, 1])])
    kept.note(2, [result(2, [3, 1, 0], [0, 2, 0])])  # agent 5 learnt something; agent 6 had nothing to learn
    kept.note(3, [result(3, [3, 0, 3], [0, 3, 0])])
    assert [(name, fields["agent"], fields["rejected"]) for name, fields in told] == [
        ("updates_rejected", agent, lost) for agent, lost in ((5, 3), (6, 1), (5, 2), (5, 3))
    ]
    with pytest.raises(LearnerError, match=r"agent 5 \(seed 0\): every update of 2 rounds in a row up to round 4"):
        kept.note(4, [result(4, [3, 0, 3], [0, 3, 0])])


def test_an_agent_whose_weights_explode_ends_the_run_with_its_name() -> None:
    class Exploding(Odd):
        def setup_agents(self) -> None:
            super().setup_agents()
            self.agents[1].model.hyper.update(lr=1e38, lr_final=1e38)

    game = Exploding(config={"experiment": {"epochs": 40}, "parallel": {"backend": "inline", "max_failures": 2}})
    with pytest.raises(LearnerError, match=r"agent 1 \(seed 0\).*lower model\.lr"):
        game.run_experiment()
