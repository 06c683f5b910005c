from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.workflows.network import NetworkWorlds, action_id
from parallel_agents.workflows.network.engine import ADMITTED, TARGET_REFUSED

LINE = {
    "User2": "Enterprise1", "User1": "Enterprise1", "User3": "Enterprise0", "User4": "Enterprise0",
}  # fmt: skip


def history(worlds: NetworkWorlds, actions: list[int], turns: int) -> list[str]:
    worlds.reset(epoch=0)
    taken = []
    for turn in range(turns):
        worlds.step([actions[turn] if turn < len(actions) else 0])
        taken.append(worlds.red_actions[0])
    return taken


def test_b_line_walks_its_line_when_nothing_fails():
    walked = set()
    for seed in range(40):
        worlds = NetworkWorlds(1, red="B_line", version="debugged", seed=seed)
        taken = history(worlds, [], 16)
        entry = taken[1].partition(":")[2]
        link = LINE[entry]
        walked.add(entry)
        assert taken == [
            "DiscoverRemoteSystems:User", f"DiscoverNetworkServices:{entry}", f"ExploitRemoteService:{entry}",
            f"PrivilegeEscalate:{entry}", f"DiscoverNetworkServices:{link}", f"ExploitRemoteService:{link}",
            f"PrivilegeEscalate:{link}", "DiscoverRemoteSystems:Enterprise", "DiscoverNetworkServices:Enterprise2",
            "ExploitRemoteService:Enterprise2", "PrivilegeEscalate:Enterprise2", "DiscoverNetworkServices:Op_Server0",
            "ExploitRemoteService:Op_Server0", "PrivilegeEscalate:Op_Server0", "Impact:Op_Server0",
            "Impact:Op_Server0",
        ]  # fmt: skip
        assert not worlds.ot_running[0]
    assert walked == set(LINE)


def to_the_server(play):
    """B_line up to its session on the server, everything having worked."""
    play.turn(red="DiscoverRemoteSystems:User").own("User1").own("Enterprise1")
    return play.turn(red="DiscoverRemoteSystems:Enterprise").own("Enterprise2").own("Op_Server0")


def test_where_b_line_goes_back_to_after_each_failure(game):
    play = to_the_server(game(red="B_line"))
    steps_back = [
        ("Restore Op_Server0", "Impact:Op_Server0"),  # stage 14
        ("Sleep", "PrivilegeEscalate:Op_Server0"),  # 13
        ("Restore Enterprise1", "ExploitRemoteService:Op_Server0"),  # 12, and it works
        ("Restore Op_Server0", "PrivilegeEscalate:Op_Server0"),  # 13
        ("Restore Enterprise2", "ExploitRemoteService:Op_Server0"),  # 12, the route is gone
        ("Sleep", "ExploitRemoteService:Enterprise2"),  # 9, and it works
        ("Restore Enterprise2", "PrivilegeEscalate:Enterprise2"),  # 10
        ("Sleep", "ExploitRemoteService:Enterprise2"),  # 9
    ]
    for blue, red in steps_back:
        assert play.turn(blue, red, "SSHBruteForce").verdict == ADMITTED, (blue, red)


def test_b_line_falls_back_along_the_users_side(game):
    play = game(red="B_line").turn(red="DiscoverRemoteSystems:User").own("User1").scan("Enterprise1")
    play.exploit("Enterprise1", "EternalBlue")  # stage 5 fails …
    assert (play.verdict, play.red_worked) == (ADMITTED, False)
    assert play.exploit("User1", "SSHBruteForce").verdict == ADMITTED  # … and it is back at 2
    assert play.escalate("User1", blue="Restore User1").verdict == ADMITTED  # 3 fails
    assert play.exploit("User1", "SSHBruteForce").verdict == ADMITTED
    play.escalate("User1").scan("Enterprise1").exploit("Enterprise1", "SSHBruteForce")
    assert play.escalate("Enterprise1", blue="Restore Enterprise1").verdict == ADMITTED  # 6 fails
    assert play.exploit("Enterprise1", "SSHBruteForce").verdict == ADMITTED


def test_b_line_starts_again_when_it_never_saw_the_server(game):
    play = game(red="B_line").turn(red="DiscoverRemoteSystems:User").own("User1").own("Enterprise1")
    play.turn(red="DiscoverRemoteSystems:Enterprise").scan("Enterprise2").exploit("Enterprise2", "SSHBruteForce")
    play.escalate("Enterprise2", blue="Restore Enterprise1")
    play.scan("Op_Server0", blue="Restore Enterprise2")  # no route: nothing learnt, and yet a success
    assert (play.verdict, play.red_worked, play.ports("Op_Server0")) == (ADMITTED, True, set())
    assert play.scan("User1").verdict == ADMITTED
    assert play.exploit("User1", "SSHBruteForce").verdict == ADMITTED


def test_b_line_goes_on_blindly_once_it_has_aimed_at_the_server(game):
    play = to_the_server(game(red="B_line"))
    play.turn("Restore Op_Server0", "Impact:Op_Server0").escalate("Op_Server0")
    play.turn("Restore Enterprise1", "ExploitRemoteService:Op_Server0", "SSHBruteForce")
    play.escalate("Op_Server0", blue="Restore Op_Server0")
    play.turn("Restore Enterprise2", "ExploitRemoteService:Op_Server0", "SSHBruteForce")
    play.exploit("Enterprise2", "SSHBruteForce").escalate("Enterprise2")
    play.scan("Op_Server0", blue="Restore Enterprise2")  # stage 11, no route, but 12 was reached before
    assert play.verdict == ADMITTED
    assert play.exploit("Op_Server0", "SSHBruteForce").verdict == ADMITTED


def test_b_line_keeps_its_entry(game):
    play = game(red="B_line").turn(red="DiscoverRemoteSystems:User").scan("User3")
    assert play.verdict == ADMITTED
    assert play.exploit("User2", "BlueKeep").verdict == TARGET_REFUSED


def test_meander_order_of_preference(game):
    play = game(red="Meander")
    assert play.scan("User0").verdict == TARGET_REFUSED  # it sweeps first
    play = game(red="Meander").turn(red="DiscoverRemoteSystems:User")
    assert play.verdict == ADMITTED
    assert play.escalate("User0").verdict == TARGET_REFUSED  # there are addresses to scan
    play = game(red="Meander").turn(red="DiscoverRemoteSystems:User")
    for user in ("User3", "User0", "User4", "User1", "User2"):
        assert play.scan(user).verdict == ADMITTED
    assert play.exploit("User1", "SSHBruteForce").verdict == TARGET_REFUSED  # User0 is to be escalated first


@pytest.fixture
def meander(game):
    """Meander after it has scanned the users and escalated on User0."""
    play = game(red="Meander").turn(red="DiscoverRemoteSystems:User")
    for user in ("User0", "User1", "User2", "User3", "User4"):
        play.scan(user)
    return play.escalate("User0")


def test_meander_learns_the_link_by_escalating(meander):
    assert meander.exploit("User1", "SSHBruteForce").verdict == ADMITTED
    assert meander.escalate("User1").verdict == ADMITTED
    assert meander.scan("Enterprise1").verdict == ADMITTED
    assert meander.exploit("Enterprise0", "SSHBruteForce").verdict == TARGET_REFUSED


def test_meander_tries_a_failed_exploit_again_but_not_a_held_host(meander):
    meander.exploit("User3", "BlueKeep")
    assert not meander.red_worked
    assert meander.exploit("User3", "BlueKeep").verdict == ADMITTED
    assert meander.exploit("User1", "SSHBruteForce").verdict == ADMITTED
    assert meander.exploit("User1", "SSHBruteForce").verdict == TARGET_REFUSED


def own_enterprise(play):
    play.exploit("User1", "SSHBruteForce").escalate("User1").scan("Enterprise1")
    play.exploit("Enterprise1", "SSHBruteForce").escalate("Enterprise1")
    play.turn(red="DiscoverRemoteSystems:Enterprise")
    for host in ("Defender", "Enterprise0", "Enterprise2"):
        play.scan(host)
    assert play.verdict == ADMITTED
    return play


def test_a_failed_exploit_makes_meander_forget_the_enterprise_hosts(meander):
    own_enterprise(meander).exploit("Defender", "SSHBruteForce")
    assert meander.verdict == ADMITTED
    assert meander.exploit("Enterprise1", "SSHBruteForce").verdict == ADMITTED
    assert meander.escalate("Enterprise1").verdict == ADMITTED


def test_a_failed_escalation_unmarks_the_host(meander):
    meander.exploit("User1", "SSHBruteForce").escalate("User1", blue="Restore User1")
    assert (meander.verdict, meander.red_worked) == (ADMITTED, False)
    assert meander.exploit("User1", "SSHBruteForce").verdict == ADMITTED


def test_meander_impacts_as_soon_as_the_server_is_escalated(meander):
    own_enterprise(meander).exploit("Enterprise2", "SSHBruteForce").escalate("Enterprise2").scan("Op_Server0")
    meander.exploit("Op_Server0", "SSHBruteForce").escalate("Op_Server0")
    assert meander.turn(red="Impact:Op_Server0").verdict == ADMITTED
    assert not meander.service
    meander.turn("Restore Op_Server0", red="Impact:Op_Server0")
    assert (meander.verdict, meander.red_worked) == (ADMITTED, False)
    assert meander.turn(red="DiscoverRemoteSystems:Operational").verdict == ADMITTED


def test_a_sleeping_red_does_nothing():
    worlds = NetworkWorlds(1, red="Sleep", steps=30)
    assert set(history(worlds, [action_id("Restore", "User1")], 30)) == {"Sleep"}
    assert worlds.access.sum() == 2


def test_meander_takes_uniformly():
    worlds = NetworkWorlds(4000, red="Meander")
    worlds.reset(epoch=0)
    worlds.step(np.zeros(4000, np.int64))
    worlds.step(np.zeros(4000, np.int64))
    names, counts = np.unique(worlds.red_actions, return_counts=True)
    assert names.tolist() == [f"DiscoverNetworkServices:User{i}" for i in range(5)]
    assert (np.abs(counts - 800) < 4 * np.sqrt(800 * 0.8)).all()


def test_an_unknown_red_agent_is_refused():
    with pytest.raises(ConfigError, match=r"red agent 'Blotto' is unknown: choose one of B_line, Meander, Sleep"):
        NetworkWorlds(2, red=["Blotto", "Sleep"])
