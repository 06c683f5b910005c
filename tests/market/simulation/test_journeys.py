"""Attribution: how a purchase is divided among the clicks before it. Journeys are tested in test_step.py."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.market.simulation.journeys import Attribution, credit_shares


@pytest.mark.parametrize("rule", list(Attribution))
@pytest.mark.parametrize("touches", range(1, 9))
def test_credit_shares_are_not_negative_and_add_up_to_one(rule, touches):
    shares = np.full(8, np.nan)
    credit_shares(int(rule), touches, shares)
    assert shares[:touches].sum() == pytest.approx(1.0, abs=1e-15)
    assert (shares[:touches] >= 0).all()


def test_attribution_rules_give_the_documented_shares():
    shares = {}
    for rule in Attribution:
        shares[rule] = np.empty(4)
        credit_shares(int(rule), 4, shares[rule])
    np.testing.assert_allclose(shares[Attribution.LAST_CLICK], [0, 0, 0, 1])
    np.testing.assert_allclose(shares[Attribution.LINEAR], [0.25] * 4)
    np.testing.assert_allclose(shares[Attribution.POSITION], [0.4, 0.1, 0.1, 0.4])
