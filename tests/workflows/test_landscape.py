from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.workflows.landscape import landscape
from parallel_agents.workflows.orders import ORDERS


def test_the_order_matters_after_a_late_start_and_not_before():
    on_time = landscape(late_start=0, episodes=20)
    late = landscape(late_start=50, episodes=20)
    assert np.ptp(on_time.means) < 1.0
    assert np.ptp(late.means) > 50.0
    assert late.best.index("op_server") < late.best.index("enterprise") < late.best.index("user")
    assert late.regrets.min() == 0.0
    assert (late.errors > 0).all()
    with pytest.raises(ConfigError, match="episodes is 1: at least two"):
        landscape(episodes=1)


# Meander, late start 50: the reference's mean return by which of three types comes first, measured with the
# Defender's false alarms repaired before all else.
REFERENCE = {
    ("op_server", "enterprise", "user"): -47.6,
    ("op_server", "user", "enterprise"): -59.0,
    ("enterprise", "op_server", "user"): -81.3,
    ("user", "op_server", "enterprise"): -91.8,
    ("enterprise", "user", "op_server"): -117.0,
    ("user", "enterprise", "op_server"): -125.5,
}


@pytest.mark.slow
def test_the_late_start_landscape_is_the_references():
    found = landscape(episodes=200)
    for (first, second, third), expected in REFERENCE.items():
        i = ORDERS.index(("defender", first, second, third, "op_host"))
        assert abs(found.means[i] - expected) < 3 * np.hypot(found.errors[i], 1.4)
