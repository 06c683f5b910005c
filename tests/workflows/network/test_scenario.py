from __future__ import annotations

import pytest

from parallel_agents.core.errors import ActionError
from parallel_agents.workflows.network import ACTION_NAMES, HOST_NAMES, action_id
from parallel_agents.workflows.network import scenario as sc


def test_actions_are_numbered_as_in_the_scenario():
    assert len(ACTION_NAMES) == 145
    first = {
        "Analyse": 2, "Remove": 15, "DecoyApache": 28, "DecoyFemitter": 41, "DecoyHarakaSMPT": 54, "DecoySmss": 67,
        "DecoySSHD": 80, "DecoySvchost": 93, "DecoyTomcat": 106, "DecoyVsftpd": 119, "Restore": 132,
    }  # fmt: skip
    for block, number in first.items():
        assert [action_id(block, host) for host in HOST_NAMES] == list(range(number, number + 13))
    assert action_id("Sleep") == 0
    assert action_id("Monitor") == 1


def test_costs_in_tenths_per_unit():
    assert [(host.name, host.cost) for host in sc.HOSTS if host.cost != 1] == [
        ("Enterprise0", 10), ("Enterprise1", 10), ("Enterprise2", 10), ("Op_Server0", 10), ("User0", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("block", "host"), [("Restore", "User9"), ("Reboot", "User1"), ("Restore", None), ("Sleep", "User1")]
)
def test_an_unknown_action_or_host_is_refused(block, host):
    with pytest.raises(ActionError, match=r"there is no blue action .*one of Analyse, .* Op_Server0"):
        action_id(block, host)


def test_masks_have_one_bit_per_port_or_host():
    assert sc.port_mask(21) == 1
    assert sc.port_mask(21, 22, 22) == 3
    assert sc.subnet_mask("Operational") == 0b0000011110000
