"""Red's choices, and what red's actions do."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.core.errors import ActionError, ConfigError
from parallel_agents.workflows.network import NetworkWorlds, RedAgent, action_id
from parallel_agents.workflows.network import scenario as sc
from parallel_agents.workflows.network.red import choose_exploit
from parallel_agents.workflows.network.step_kernels import ALLOWED, EXPLOIT_NOT_ALLOWED, TARGET_NOT_ALLOWED

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
    """B_line up to its session on the server, with every action successful."""
    play.turn(red="DiscoverRemoteSystems:User").take("User1").take("Enterprise1")
    return play.turn(red="DiscoverRemoteSystems:Enterprise").take("Enterprise2").take("Op_Server0")


def test_the_stage_that_b_line_returns_to_after_each_failure(game):
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
        assert play.turn(blue, red, "SSHBruteForce").verdict == ALLOWED, (blue, red)


def test_b_line_returns_to_the_user_host_after_a_failed_exploit_of_enterprise(game):
    play = game(red="B_line").turn(red="DiscoverRemoteSystems:User").take("User1").scan("Enterprise1")
    play.exploit("Enterprise1", "EternalBlue")  # stage 5 fails …
    assert (play.verdict, play.red_succeeded) == (ALLOWED, False)
    assert play.exploit("User1", "SSHBruteForce").verdict == ALLOWED  # … and it is back at 2
    assert play.escalate("User1", blue="Restore User1").verdict == ALLOWED  # 3 fails
    assert play.exploit("User1", "SSHBruteForce").verdict == ALLOWED
    play.escalate("User1").scan("Enterprise1").exploit("Enterprise1", "SSHBruteForce")
    assert play.escalate("Enterprise1", blue="Restore Enterprise1").verdict == ALLOWED  # 6 fails
    assert play.exploit("Enterprise1", "SSHBruteForce").verdict == ALLOWED


def test_b_line_restarts_if_its_scan_never_reached_the_server(game):
    play = game(red="B_line").turn(red="DiscoverRemoteSystems:User").take("User1").take("Enterprise1")
    play.turn(red="DiscoverRemoteSystems:Enterprise").scan("Enterprise2").exploit("Enterprise2", "SSHBruteForce")
    play.escalate("Enterprise2", blue="Restore Enterprise1")
    play.scan("Op_Server0", blue="Restore Enterprise2")  # no route: nothing learnt, and yet a success
    assert (play.verdict, play.red_succeeded, play.ports("Op_Server0")) == (ALLOWED, True, set())
    assert play.scan("User1").verdict == ALLOWED
    assert play.exploit("User1", "SSHBruteForce").verdict == ALLOWED


def test_b_line_exploits_the_server_without_a_scan_once_it_has_attacked_it(game):
    play = to_the_server(game(red="B_line"))
    play.turn("Restore Op_Server0", "Impact:Op_Server0").escalate("Op_Server0")
    play.turn("Restore Enterprise1", "ExploitRemoteService:Op_Server0", "SSHBruteForce")
    play.escalate("Op_Server0", blue="Restore Op_Server0")
    play.turn("Restore Enterprise2", "ExploitRemoteService:Op_Server0", "SSHBruteForce")
    play.exploit("Enterprise2", "SSHBruteForce").escalate("Enterprise2")
    play.scan("Op_Server0", blue="Restore Enterprise2")  # stage 11, no route, but 12 was reached before
    assert play.verdict == ALLOWED
    assert play.exploit("Op_Server0", "SSHBruteForce").verdict == ALLOWED


def test_b_line_keeps_its_entry_host(game):
    play = game(red="B_line").turn(red="DiscoverRemoteSystems:User").scan("User3")
    assert play.verdict == ALLOWED
    assert play.exploit("User2", "BlueKeep").verdict == TARGET_NOT_ALLOWED


def test_meander_sweeps_then_scans_then_escalates_then_exploits(game):
    play = game(red="Meander")
    assert play.scan("User0").verdict == TARGET_NOT_ALLOWED  # it sweeps first
    play = game(red="Meander").turn(red="DiscoverRemoteSystems:User")
    assert play.verdict == ALLOWED
    assert play.escalate("User0").verdict == TARGET_NOT_ALLOWED  # there are addresses to scan
    play = game(red="Meander").turn(red="DiscoverRemoteSystems:User")
    for user in ("User3", "User0", "User4", "User1", "User2"):
        assert play.scan(user).verdict == ALLOWED
    assert play.exploit("User1", "SSHBruteForce").verdict == TARGET_NOT_ALLOWED  # User0 is to be escalated first


@pytest.fixture
def meander(game):
    """Meander after it has scanned the users and escalated on User0."""
    play = game(red="Meander").turn(red="DiscoverRemoteSystems:User")
    for user in ("User0", "User1", "User2", "User3", "User4"):
        play.scan(user)
    return play.escalate("User0")


def test_meander_learns_the_link_by_escalating(meander):
    assert meander.exploit("User1", "SSHBruteForce").verdict == ALLOWED
    assert meander.escalate("User1").verdict == ALLOWED
    assert meander.scan("Enterprise1").verdict == ALLOWED
    assert meander.exploit("Enterprise0", "SSHBruteForce").verdict == TARGET_NOT_ALLOWED


def test_meander_tries_a_failed_exploit_again_but_not_a_held_host(meander):
    meander.exploit("User3", "BlueKeep")
    assert not meander.red_succeeded
    assert meander.exploit("User3", "BlueKeep").verdict == ALLOWED
    assert meander.exploit("User1", "SSHBruteForce").verdict == ALLOWED
    assert meander.exploit("User1", "SSHBruteForce").verdict == TARGET_NOT_ALLOWED


def own_enterprise(play):
    play.exploit("User1", "SSHBruteForce").escalate("User1").scan("Enterprise1")
    play.exploit("Enterprise1", "SSHBruteForce").escalate("Enterprise1")
    play.turn(red="DiscoverRemoteSystems:Enterprise")
    for host in ("Defender", "Enterprise0", "Enterprise2"):
        play.scan(host)
    assert play.verdict == ALLOWED
    return play


def test_a_failed_exploit_makes_meander_forget_the_enterprise_hosts(meander):
    own_enterprise(meander).exploit("Defender", "SSHBruteForce")
    assert meander.verdict == ALLOWED
    assert meander.exploit("Enterprise1", "SSHBruteForce").verdict == ALLOWED
    assert meander.escalate("Enterprise1").verdict == ALLOWED


def test_a_failed_escalation_unmarks_the_host(meander):
    meander.exploit("User1", "SSHBruteForce").escalate("User1", blue="Restore User1")
    assert (meander.verdict, meander.red_succeeded) == (ALLOWED, False)
    assert meander.exploit("User1", "SSHBruteForce").verdict == ALLOWED


def test_meander_impacts_as_soon_as_the_server_is_escalated(meander):
    own_enterprise(meander).exploit("Enterprise2", "SSHBruteForce").escalate("Enterprise2").scan("Op_Server0")
    meander.exploit("Op_Server0", "SSHBruteForce").escalate("Op_Server0")
    assert meander.turn(red="Impact:Op_Server0").verdict == ALLOWED
    assert not meander.service
    meander.turn("Restore Op_Server0", red="Impact:Op_Server0")
    assert (meander.verdict, meander.red_succeeded) == (ALLOWED, False)
    assert meander.turn(red="DiscoverRemoteSystems:Operational").verdict == ALLOWED


def test_a_sleeping_red_does_nothing():
    worlds = NetworkWorlds(1, red="Sleep", steps=30)
    assert set(history(worlds, [action_id("Restore", "User1")], 30)) == {"Sleep"}
    assert worlds.access.sum() == 2


def test_meander_picks_targets_uniformly():
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


OUTCOMES = [
    ("User0", "FTPDirectoryTraversal", "priv"), ("User0", "SSHBruteForce", "ssh"),
    ("User1", "FTPDirectoryTraversal", "priv"), ("User1", "SSHBruteForce", "ssh"),
    ("User2", "EternalBlue", "priv"), ("User2", "BlueKeep", "user"),
    ("User3", "HarakaRCE", "priv"), ("User3", "HTTPSRFI", "user"), ("User3", "HTTPRFI", "user"),
    ("User3", "BlueKeep", "nothing"),
    ("User4", "HarakaRCE", "priv"), ("User4", "SQLInjection", "priv"), ("User4", "HTTPSRFI", "user"),
    ("User4", "HTTPRFI", "user"), ("User4", "SSHBruteForce", "ssh"),
    ("Enterprise0", "SSHBruteForce", "ssh"),
    ("Enterprise1", "HTTPSRFI", "user"), ("Enterprise1", "HTTPRFI", "user"), ("Enterprise1", "BlueKeep", "priv"),
    ("Enterprise1", "SSHBruteForce", "ssh"), ("Enterprise1", "EternalBlue", "nothing"),
    ("Enterprise2", "EternalBlue", "nothing"), ("Enterprise2", "BlueKeep", "priv"),
    ("Defender", "SSHBruteForce", "refused"),
]  # fmt: skip


@pytest.mark.parametrize(("host", "exploit", "outcome"), OUTCOMES)
@pytest.mark.parametrize("detected", [True, False])
def test_the_result_of_each_exploit_on_each_host(game, host, exploit, outcome, detected):
    play = game().scan(host).exploit(host, exploit, detected=detected)
    access = 2 if outcome == "priv" or host == "User0" else 1 if outcome in ("user", "ssh") else 0
    shell_seen = detected and outcome in ("priv", "user")
    activity = {"ssh": "exploit", "refused": "exploit", "nothing": "none"}.get(
        outcome, "exploit" if shell_seen else "scan"
    )
    assert play.access(host) == access
    assert play.activity(host) == activity
    assert play.red_succeeded == (outcome in ("priv", "user", "ssh"))
    assert play.memory(host) == ("user" if activity == "exploit" else "no")
    has_malware = play.turn(f"Analyse {host}").memory(host) == "privileged"
    assert has_malware == (outcome in ("priv", "user"))


@pytest.mark.parametrize("host", ["Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0"])
def test_operational_hosts_are_reachable_only_through_the_enterprise_subnet(game, host):
    play = game().scan(host)
    assert play.red_succeeded
    assert (play.ports(host), play.activity(host)) == (set(), "none")
    play.take("Enterprise0").scan(host)
    assert (play.ports(host), play.activity(host)) == ({22}, "scan")
    assert play.exploit(host, "SSHBruteForce", blue="Restore Enterprise0").red_succeeded is False
    play.take("Enterprise0")
    assert play.exploit(host, "SSHBruteForce").red_succeeded
    assert play.access(host) == 1


def test_a_sweep_of_the_operational_subnet_needs_a_route(game):
    play = game()
    assert not play.turn(red="DiscoverRemoteSystems:Operational").red_succeeded
    assert play.turn(red="DiscoverRemoteSystems:Enterprise").red_succeeded
    play.take("Enterprise0")
    assert play.turn(red="DiscoverRemoteSystems:Operational").red_succeeded


def test_an_exploit_without_a_scan_is_refused(game):
    play = game().exploit("User1", "SSHBruteForce")
    assert (play.red_succeeded, play.activity("User1"), play.access("User1")) == (False, "none", 0)


def test_an_exploit_outside_the_remembered_ports_is_not_allowed(game):
    assert game().scan("User1").exploit("User1", "HTTPRFI").verdict == EXPLOIT_NOT_ALLOWED
    assert game().scan("User3").exploit("User3", "SQLInjection").verdict == EXPLOIT_NOT_ALLOWED
    assert game().scan("User4").exploit("User4", "SQLInjection").verdict != EXPLOIT_NOT_ALLOWED


@pytest.mark.parametrize(("others", "works"), [((), False), ((80,), True), ((443,), True), ((22,), False)])
def test_sql_injection_needs_an_open_web_port(game, others, works):
    play = game().scan("User4")
    play.state["known_ports"][0, sc.USER4] = sc.port_mask(3390, *others)
    play.exploit("User4", "SQLInjection")
    assert (play.verdict != EXPLOIT_NOT_ALLOWED and play.red_succeeded) == works


DECOY_HITS = [
    ("User1", "DecoyApache", "HTTPRFI"), ("User2", "DecoyFemitter", "FTPDirectoryTraversal"),
    ("Enterprise0", "DecoyHarakaSMPT", "HarakaRCE"), ("User1", "DecoySmss", "EternalBlue"),
    ("User1", "DecoySvchost", "BlueKeep"), ("Enterprise0", "DecoyTomcat", "HTTPSRFI"),
    ("Enterprise0", "DecoyVsftpd", "HTTPRFI"),
]  # fmt: skip


@pytest.mark.parametrize(("host", "decoy", "exploit"), DECOY_HITS)
def test_a_decoy_makes_its_exploit_fail_and_appears_as_a_scan(game, host, decoy, exploit):
    play = game().turn(f"{decoy} {host}").scan(host).exploit(host, exploit)
    assert (play.red_succeeded, play.access(host), play.activity(host)) == (False, 0, "scan")


def test_an_ssh_decoy_appears_as_an_exploit(game):
    play = game().turn("DecoySSHD User2").scan("User2").exploit("User2", "SSHBruteForce")
    assert (play.red_succeeded, play.access("User2"), play.activity("User2")) == (False, 0, "exploit")


def test_a_remembered_decoy_that_is_gone_fails_without_an_event(game):
    play = game().turn("DecoyTomcat Enterprise0").scan("Enterprise0")
    play.exploit("Enterprise0", "HTTPSRFI", blue="Restore Enterprise0")
    assert (play.red_succeeded, play.activity("Enterprise0")) == (False, "none")


def test_a_real_web_server_answers_before_a_vsftpd_decoy(game):
    play = game().turn("DecoyVsftpd User4").scan("User4").exploit("User4", "HTTPRFI")
    assert play.red_succeeded


def test_escalation_needs_a_session_and_leaves_malware(game):
    play = game().escalate("User1")
    assert not play.red_succeeded
    play.scan("User1").exploit("User1", "SSHBruteForce").escalate("User1")
    assert (play.red_succeeded, play.access("User1"), play.reward) == (True, 2, -0.1)
    assert play.activity("User1") == "none"
    assert play.turn("Analyse User1").memory("User1") == "privileged"


def test_escalating_where_red_is_privileged_leaves_no_malware(game):
    play = game().escalate("User0")
    assert play.red_succeeded
    assert play.turn("Analyse User0").memory("User0") == "no"


def test_impact_needs_a_session_and_one_escalation_and_lasts(game):
    play = game().take("Enterprise0").scan("Op_Server0").exploit("Op_Server0", "SSHBruteForce")
    play.turn(red="Impact:Op_Server0")
    assert (play.red_succeeded, play.service) == (False, True)
    play.escalate("Op_Server0").turn(red="Impact:Op_Server0")
    assert (play.red_succeeded, play.service, play.reward) == (True, False, -12.0)
    assert play.turn().reward == -12.0
    assert play.turn("Restore Op_Server0").reward == -2.0
    assert play.service
    assert not play.turn(red="Impact:Op_Server0").red_succeeded


def test_the_first_exploit_is_taken_three_times_out_of_four():
    options = 0b10110
    taken = [choose_exploit(options, u / 1000) for u in range(1000)]
    assert [taken.count(x) for x in range(5)] == [0, 750, 125, 0, 125]
    assert choose_exploit(0b1000, 0.99) == 3
    assert choose_exploit(0, 0.5) == -1


class Walker(RedAgent):
    """Sweeps, scans, exploits and escalates whatever comes first."""

    def reset(self) -> None:
        self.seen: list[dict] = []

    def get_action(self, knowledge):
        self.seen.append(dict(knowledge))
        if knowledge["success"] is None:
            return "DiscoverRemoteSystems:User"
        own = [host for host in knowledge["sessions"] if host not in knowledge["privileged"]]
        if own:
            return f"PrivilegeEscalate:{own[0]}"
        fresh = [host for host in knowledge["hosts"] if host not in knowledge["scanned"]]
        if fresh:
            return f"DiscoverNetworkServices:{fresh[0]}"
        free = [host for host in knowledge["scanned"] if host not in knowledge["sessions"]]
        return f"ExploitRemoteService:{free[0]}" if free else "Sleep"


def test_a_red_agent_of_ones_own_plays_by_the_rules():
    worlds = NetworkWorlds(3, red=[Walker, "B_line", Walker], steps=30)
    alone = NetworkWorlds(1, red="B_line", steps=30, first_world=1)
    assert worlds.red == ("Walker", "B_line", "Walker")
    worlds.reset(0), alone.reset(0)
    for _ in range(30):
        bits, rewards, _ = worlds.step([0, 0, 0])
        np.testing.assert_array_equal(bits[1], alone.step([0])[0][0])  # the other worlds are as they were
    first, second = worlds.red_in_python[0].seen[:2]
    assert (first["hosts"], first["sessions"], first["success"]) == (("User0",), ("User0",), None)
    assert (second["hosts"], second["last_action"]) == (
        ("User0", "User1", "User2", "User3", "User4"), "DiscoverRemoteSystems:User",
    )  # fmt: skip
    last = worlds.red_in_python[0].seen[-1]
    assert last["ports"]["User4"] == (22, 25, 80, 443, 3390)
    assert {"User1", "User2"} <= set(last["privileged"])
    assert rewards[0] < 0


def test_a_red_agent_of_ones_own_also_plays_while_blue_sleeps():
    late = NetworkWorlds(2, red=Walker, steps=30, late_start=12)
    late.reset(0)
    assert (late.turn, len(late.red_in_python[0].seen)) == (12, 12)
    early = NetworkWorlds(2, red=Walker, steps=30)
    early.reset(0)
    for _ in range(12):
        early.step([0, 0])
    np.testing.assert_array_equal(late.access, early.access)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("ExploitRemoteService:Op_Server0", "has a target that red has not discovered yet"),
        ("DiscoverRemoteSystems:Operational", "has a target that red has not discovered yet"),
        ("Dance:User1", "is not a known action on a known host or subnet"),
    ],
)
def test_a_red_agent_may_not_do_what_red_cannot(action, message):
    class Cheat(RedAgent):
        def get_action(self, knowledge):
            return action

    worlds = NetworkWorlds(1, red=Cheat)
    worlds.reset(0)
    with pytest.raises(ActionError, match=rf"Cheat.get_action\(knowledge\): .*{message}"):
        worlds.step([0])
