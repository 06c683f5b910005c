"""The draws of acting: addressed, whatever the block, the stack or the order of asking."""

import numpy as np
import pytest

from parallel_agents.acting import Draws, draws
from parallel_agents.seeding import Purpose, generator
from parallel_agents.types import Identity

WHO = Identity((3, 3, 9), (0, 4, 0))


def alone(n, world, epoch, turn, slots=2):
    return generator(WHO.seeds[n], Purpose.ACT, agent=WHO.agents[n], world=world, epoch=epoch, turn=turn).random(slots)


@pytest.mark.parametrize("numbers", [1, 40, 500_000])
def test_every_number_is_that_of_its_address(monkeypatch, numbers):
    monkeypatch.setattr(draws, "BLOCK_NUMBERS", numbers)
    block = Draws(WHO, range(4), 2)
    for epoch, turn in ((1, 1), (1, 2), (2, 1), (1, 300), (1, 1)):  # backwards as well
        drawn = block.at(epoch, turn)
        assert drawn.shape == (3, 4, 2)
        for n, w in np.ndindex(3, 4):
            assert drawn[n, w].tolist() == alone(n, w, epoch, turn).tolist()


def test_an_agent_has_the_same_draws_in_every_stack():
    together = Draws(WHO, range(3), 2).at(5, 7)
    for n in range(3):
        assert (Draws(WHO.rows(slice(n, n + 1)), range(3), 2).at(5, 7)[0] == together[n]).all()


def test_purposes_do_not_share_draws():
    assert not np.intersect1d(Draws(WHO, [0], 2).at(1, 1), Draws(WHO, [0], 2, Purpose.EVALUATION_ACT).at(1, 1)).size
