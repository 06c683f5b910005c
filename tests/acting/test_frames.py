"""Frames: what acting sees is what the buffer's windows hold."""

import numpy as np
import pytest

from parallel_agents.acting import Frames
from parallel_agents.memory import Ring, RingShape
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Transitions


@pytest.mark.parametrize("count", [1, 2, 4])
def test_frames_are_the_windows_of_the_buffer(count):
    agents, worlds, size, turns = 2, 3, 2, 40
    some = generator(0, Purpose.NOISE)
    frames = Frames(agents, worlds, size, count)
    ring = Ring(RingShape(capacity=worlds * (turns + 5), observation=(size,), worlds=worlds, frames=count), agents)
    seen, over = [], np.ones((agents, worlds), np.bool_)
    for _ in range(turns):
        observations = some.standard_normal((agents, worlds, size), np.float32)
        seen.append(frames.push(observations, over).copy())
        ended = some.random((agents, worlds)) < 0.15
        block = np.zeros((agents, worlds))
        ring.add(
            Transitions(
                observations, block.astype(np.int64), block.astype(np.float32), ended, np.zeros_like(ended),
                np.ones_like(ended), over, np.ones(agents, np.bool_), 0,
            )
        )  # fmt: skip
        over = ended
    ring.close(np.zeros((agents, worlds, size), np.float32), ended=True)
    every = np.arange(turns * worlds)[None].repeat(agents, 0)
    states = ring.gather(every, n_step=1, gammas=np.ones(agents))["states"]
    assert states.reshape(agents, turns, worlds, -1).tobytes() == np.stack(seen, 1).tobytes()


def test_newer_observations_of_one_agent_replace_its_last_frame():
    frames = Frames(agents=2, worlds=1, size=1, count=3)
    for value in (1.0, 2.0):
        window = frames.push(np.full((2, 1, 1), value, np.float32), np.full((2, 1), value == 1.0))
    assert window.tolist() == [[[0, 1, 2]], [[0, 1, 2]]]
    assert frames.replace(1, np.array([[9.0]], np.float32)).tolist() == [[0, 1, 9]]
    window = frames.push(np.full((2, 1, 1), 3.0, np.float32), np.zeros((2, 1), np.bool_))
    assert window.tolist() == [[[1, 2, 3]], [[1, 9, 3]]]


def test_a_single_frame_is_passed_on_as_it_is():
    frames, x = Frames(1, 1, 2, 1), np.ones((1, 1, 2), np.float32)
    assert frames.push(x, np.ones((1, 1), np.bool_)) is x
    assert frames.replace(0, x[0]) is not None


def test_what_was_handed_out_is_not_written_to_by_the_next_turn():
    frames = Frames(1, 1, 1, 2)
    first = frames.push(np.ones((1, 1, 1), np.float32), np.ones((1, 1), np.bool_))
    frames.push(np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), np.bool_))
    assert first.tolist() == [[[0, 1]]]
