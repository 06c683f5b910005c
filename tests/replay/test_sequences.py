"""Sequences for networks that carry a state: aligned with their episodes, never across an end."""

from __future__ import annotations

import numpy as np

from parallel_agents.core.types import Transitions
from parallel_agents.replay import Ring, RingShape, gather_sequences


def ring(turns: str, *, capacity: int = 100, masks: bool = False) -> Ring:
    """One agent in one world. A letter is a turn: a acted, f could not act, t terminated, u truncated, | the epoch ends.

    Turn k sees k, keeps the state k / 100, does action k % 3 and earns 1.
    """
    kept = Ring(RingShape(capacity, (1,), extras={"hidden": (2,)}, choices=3 if masks else 0), agents=1)
    first, at = True, 0
    for letter in turns:
        here = np.full((1, 1, 1), at, np.float32)
        if letter == "|":
            kept.close(here, ended=True)
            first, at = True, at + 1
            continue
        flag = np.ones((1, 1), np.bool_)
        extras = {"hidden": np.full((1, 1, 2), at / 100, np.float32)}
        if masks:
            extras["masks"] = np.arange(3)[None, None] != at % 3
        kept.add(
            Transitions(
                here, np.full((1, 1), at % 3), np.ones((1, 1), np.float32), flag & (letter == "t"), flag & (letter == "u"),
                flag & (letter != "f"), flag & first, np.ones(1, np.bool_), 0, extras,
            )
        )  # fmt: skip
        first, at = False, at + 1
    return kept


def take(kept: Ring, serial: int, *, length: int = 3, n_step: int = 1, gamma: float = 0.5) -> dict[str, list[float]]:
    found = gather_sequences(
        kept, np.array([[serial]], np.int64), length=length, n_step=n_step, gammas=np.array([gamma])
    )
    return {name: column[0, 0].squeeze().tolist() for name, column in found.items()}


def test_a_transition_stands_for_the_sequence_it_falls_into() -> None:
    kept = ring("aaaaaaaa|")
    for serial in (3, 4, 5):
        found = take(kept, serial)
        assert found["states"] == [3, 4, 5, 6]
        assert np.allclose(found["hidden"], 0.03)
        assert found["actions"] == [0, 1, 2]
        assert found["ahead"] == [1, 2, 3]
        assert found["counted"] == [1, 1, 1]
        assert found["discounts"] == [0.5, 0.5, 0.5]


def test_a_sequence_stops_at_the_end_of_its_episode() -> None:
    kept = ring("aaaa|aa|")
    found = take(kept, 3)
    assert found["states"] == [3, 4, 0, 0]  # 4 is what the last turn led to
    assert found["counted"] == [1, 0, 0]
    assert found["discounts"][0] == 0.5  # the epoch's end cut it off
    assert take(kept, 4)["states"] == [5, 6, 7, 0]


def test_a_termination_has_no_value_after_it() -> None:
    found = take(ring("at|"), 1)
    assert found["returns"] == [1, 1, 0]
    assert found["discounts"] == [0.5, 0, 0]
    assert found["counted"] == [1, 1, 0]


def test_turns_without_an_action_are_gathered_but_not_counted() -> None:
    found = take(ring("afa|"), 0)
    assert found["states"] == [0, 1, 2, 3]
    assert found["counted"] == [1, 0, 1]
    assert found["returns"] == [2, 0, 1]  # what was earned meanwhile goes to the last action
    assert found["ahead"] == [2, 0, 3]


def test_n_step_returns_stay_within_the_episode_and_the_gathered_states() -> None:
    found = take(ring("aaaaaa|"), 0, n_step=2)
    assert found["states"] == [0, 1, 2, 3, 4]
    assert found["returns"] == [1.5, 1.5, 1.5]
    assert found["ahead"] == [2, 3, 4]
    assert found["discounts"] == [0.25] * 3
    short = take(ring("aat|"), 0, n_step=2)
    assert short["returns"] == [1.5, 1.5, 1]
    assert short["discounts"] == [0.25, 0, 0]
    far = take(ring("aaffffa|"), 0, n_step=1)
    assert far["counted"] == [1, 0, 0]  # what turn 1 led to lies beyond


def test_a_sequence_never_starts_at_an_overwritten_row() -> None:
    kept = ring("aaaaaaa", capacity=4)
    kept.close(np.full((1, 1, 1), 7, np.float32), ended=False)
    serial = int(kept.tail[0])
    oldest = int(kept.oldest[0])
    found = take(kept, serial)
    assert found["states"][0] == oldest
    assert np.allclose(found["hidden"], oldest / 100)
    assert found["states"][-1] == 7


def test_sequences_hold_masks() -> None:
    found = gather_sequences(
        ring("aaaa|", masks=True), np.array([[0]], np.int64), length=3, n_step=1, gammas=np.ones(1)
    )
    assert found["masks"][0, 0].argmin(-1).tolist() == [0, 1, 2, 0]
