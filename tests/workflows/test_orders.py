"""Orders of repair, and whether a defender keeps one."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_agents.core.errors import ConfigError, ShapeError
from parallel_agents.workflows.network import HOST_NAMES, NetworkWorlds, action_id
from parallel_agents.workflows.orders import (
    COMPLIANCE_RULES,
    DOCUMENTED,
    HOST_TYPE,
    ORDER_FEATURES,
    ORDERS,
    PATIENCE,
    UNIT_TYPES,
    Compliance,
    check_order,
    encode,
    fix_hosts,
    host_ranks,
    precedence,
    ranks,
)
from parallel_agents.workflows.wrapper import ParallelEnvWrapper

ORDER = ("op_server", "user", "defender", "enterprise", "op_host")


def test_there_are_120_orders_of_five_types():
    assert UNIT_TYPES == ("defender", "enterprise", "op_server", "op_host", "user")
    assert len(set(ORDERS)) == 120
    assert [UNIT_TYPES[i] for i in HOST_TYPE] == [
        "defender", *["enterprise"] * 3, *["op_host"] * 3, "op_server", *["user"] * 5,
    ]  # fmt: skip


def test_encoding_is_position_by_type():
    code = encode(ORDER)
    assert (code.shape, code.dtype) == ((25,), np.float32)
    assert [UNIT_TYPES[i] for i in code.reshape(5, 5).argmax(axis=1)] == list(ORDER)
    assert code.sum() == 5
    assert len({encode(order).tobytes() for order in ORDERS}) == 120


def test_ranks_are_places_in_the_order():
    assert ranks(ORDER).tolist() == [2, 3, 0, 4, 1]
    assert host_ranks(ORDER)[7] == 0
    assert host_ranks(ORDER)[1:4].tolist() == [3, 3, 3]


def test_precedence_features_by_hand():
    # d(efender) e(nterprise) s(erver) h(ost) u(ser)
    pairs = ["de", "ds", "dh", "du", "es", "eh", "eu", "sh", "su", "hu"]
    before = dict(zip(pairs, precedence(ORDER), strict=True))
    assert [pair for pair, first in before.items() if first] == ["de", "dh", "eh", "sh", "su"]
    assert ORDER_FEATURES.shape == (120, 10)
    assert len(np.unique(ORDER_FEATURES, axis=0)) == 120


def test_squared_feature_distance_is_kendalls():
    for order, other in zip(ORDERS[::7], ORDERS[::-7], strict=False):
        place = {name: other.index(name) for name in UNIT_TYPES}
        inversions = sum(place[a] > place[b] for i, a in enumerate(order) for b in order[i + 1 :])
        assert np.square(precedence(order) - precedence(other)).sum() == inversions


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (UNIT_TYPES[:4], r"missing: user\): give each of defender, enterprise"),
        ((*UNIT_TYPES[:4], "op_host"), r"missing: user; repeated: op_host"),
        ((*UNIT_TYPES, "user"), r"\(repeated: user\)"),
        ((*UNIT_TYPES[:4], "printer"), r"unknown: printer; missing: user"),
        ((), r"missing: defender, enterprise, op_server, op_host, user"),
        ("defender", r"\('defender',\) is no order \(missing: enterprise"),
        ((0, 1, 2, 3, 4), r"unknown: 0, 1, 2, 3, 4"),
    ],
)
def test_an_incomplete_or_wrong_order_is_refused(order, message):
    for function in (check_order, encode, precedence, host_ranks):
        with pytest.raises(ConfigError, match=message):
            function(order)


SERVER_FIRST = ("op_server", "enterprise", "op_host", "user", "defender")
USER_FIRST = ("user", "op_server", "enterprise", "op_host", "defender")


def access(*held: str) -> np.ndarray:
    """Return red's access when it holds User0 and these hosts."""
    row = np.zeros((1, 13), np.uint8)
    row[0, HOST_NAMES.index("User0")] = 2
    for host in held:
        row[0, HOST_NAMES.index(host)] = 1
    return row


UNSEEN, NOTHING = np.zeros((1, 52), np.uint8), [-1]


def seeing(*hosts: str) -> np.ndarray:
    """Return blue's bits when it remembers red on these hosts."""
    bits = np.zeros((1, 52), np.uint8)
    for host in hosts:
        bits[0, 4 * HOST_NAMES.index(host) + 3] = 1
    return bits


def verdicts_of(rule: str, order, *turns: tuple[str, str, tuple[str, ...]]) -> list[bool]:
    """Return whether each fix (block, host, hosts held by red before it) is compliant."""
    counters = Compliance(order, n_envs=1, rule=rule)
    verdicts = []
    for block, host, held in turns:
        before = counters.right[0]
        counters.observe([action_id(block, host)], access(*held), UNSEEN, NOTHING)
        verdicts.append(bool(counters.right[0] > before))
    return verdicts


def test_only_remove_and_restore_are_fixes():
    hosts = fix_hosts(np.arange(145))
    assert hosts[15:28].tolist() == hosts[132:145].tolist() == list(range(13))
    assert (hosts >= 0).sum() == 26


def test_the_documented_rule_is_no_higher_type_compromised():
    assert verdicts_of(
        DOCUMENTED, SERVER_FIRST,
        ("Restore", "User1", ("User1",)),
        ("Restore", "User1", ("User1", "Op_Host0")),
        ("Remove", "User1", ("Op_Server0",)),
        ("Remove", "Op_Host1", ("User1", "Enterprise2")),
        ("Restore", "Enterprise0", ("Enterprise2", "User1")),
        ("Restore", "Op_Server0", ("Enterprise2", "User1")),
        ("Restore", "Op_Host0", ()),
    ) == [True, False, False, False, True, True, True]  # fmt: skip


def test_user0_does_not_count_as_compromised():
    """A historical fault: red always holds User0, so with users first every other fix was a violation."""
    fix = ("Restore", "Op_Server0", ("Op_Server0",))
    assert verdicts_of("no_higher_compromised", USER_FIRST, fix) == [True]
    assert verdicts_of("highest_compromised", USER_FIRST, fix) == [False]
    assert verdicts_of("no_higher_compromised", USER_FIRST, ("Restore", "Op_Server0", ("Op_Server0", "User3"))) == [
        False
    ]


def test_the_defenders_place_does_not_matter():
    """The Defender host is never compromised: 120 orders are 24."""
    turns = [("Restore", "User1", ("User1",)), ("Restore", "Op_Host0", ("Enterprise1",)), ("Remove", "Op_Server0", ())]
    verdicts = {}
    for order in ORDERS:
        rest = tuple(name for name in order if name != "defender")
        verdicts.setdefault(rest, set()).add(tuple(verdicts_of(DOCUMENTED, order, *turns)))
    assert len(verdicts) == 24
    assert all(len(results) == 1 for results in verdicts.values())


def test_removes_at_the_start_do_not_satisfy_the_default_rule():
    """A historical fault: five Removes in order satisfied the fixed-types rule for the rest of the episode."""
    ritual = [("Remove", host, ()) for host in ("Op_Server0", "Enterprise0", "Op_Host0", "User1", "Defender")]
    violation = ("Restore", "User1", ("Op_Server0", "User1"))
    assert verdicts_of("fixed_types", SERVER_FIRST, *ritual, violation) == [True] * 6
    assert verdicts_of("no_higher_compromised", SERVER_FIRST, *ritual, violation) == [True] * 5 + [False]


def test_fixed_types_requires_an_earlier_fix_of_every_higher_type():
    assert verdicts_of(
        "fixed_types", SERVER_FIRST,
        ("Remove", "Enterprise0", ()),
        ("Remove", "Op_Server0", ()),
        ("Remove", "Enterprise0", ()),
        ("Remove", "User4", ()),
        ("Remove", "Op_Host2", ()),
        ("Remove", "User4", ()),
    ) == [False, True, True, False, True, True]  # fmt: skip
    # A fix counts as done even when it was a violation: Enterprise0 above, then Op_Host2.


def test_highest_compromised_requires_a_fix_of_exactly_that_type():
    assert verdicts_of(
        "highest_compromised", SERVER_FIRST,
        ("Restore", "Enterprise0", ("Enterprise1",)),
        ("Restore", "Op_Server0", ("Enterprise1",)),
        ("Restore", "User1", ("Enterprise1",)),
        ("Restore", "User1", ()),
        ("Restore", "Op_Server0", ()),
    ) == [True, False, False, True, False]  # fmt: skip


def test_every_fix_is_compliant_if_nothing_is_compromised():
    counters = Compliance(SERVER_FIRST, n_envs=1, rule="highest_compromised")
    counters.observe([action_id("Restore", "User1")], np.zeros((1, 13), np.uint8), UNSEEN, NOTHING)
    assert counters.rates().tolist() == [1.0]


def test_compliance_reads_the_true_state_of_the_worlds():
    """A historical fault: the detector read keys that the simulator does not have, and never saw a compromise."""
    worlds = NetworkWorlds(40, red="B_line", version="debugged")
    worlds.reset(0)
    for _ in range(20):
        worlds.step([0] * 40)
    for order, expected in ((SERVER_FIRST, 0.0), (USER_FIRST, 1.0)):
        counters = Compliance(order, n_envs=40, rule=DOCUMENTED)
        counters.observe([action_id("Restore", "User2")] * 40, worlds.access, np.zeros((40, 52)), [-1] * 40)
        assert counters.rates().tolist() == [expected] * 40


def test_counters_are_per_environment_and_each_may_have_its_own_order():
    counters = Compliance([SERVER_FIRST, USER_FIRST, SERVER_FIRST], n_envs=3, rule=DOCUMENTED)
    bits, nothing = np.zeros((3, 52)), [-1] * 3
    before = np.concatenate([access("Op_Server0")] * 3)
    fix = action_id("Restore", "User1")
    counters.observe([fix, fix, 0], before, bits, nothing)
    counters.observe([action_id("Restore", "Op_Server0"), 5, action_id("Monitor")], before, bits, nothing)
    assert counters.right.tolist() == [1, 1, 0]
    assert counters.counted.tolist() == [2, 1, 0]
    assert counters.rates()[:2].tolist() == [0.5, 1.0]
    assert np.isnan(counters.rates()[2])
    counters.reset()
    assert counters.counted.tolist() == [0, 0, 0]


@pytest.mark.parametrize("rule", COMPLIANCE_RULES[1:])
def test_the_alignment_reward_adds_up_to_the_share_of_compliant_fixes(rule):
    worlds = NetworkWorlds(30, red="Meander")
    worlds.reset(0)
    counters = Compliance(USER_FIRST, n_envs=30, rule=rule)
    total = np.zeros(30)
    for chosen in np.random.default_rng(0).integers(0, 145, (100, 30)):
        total += counters.observe(chosen, worlds.access, np.zeros((30, 52)), [-1] * 30)
        worlds.step(chosen)
    assert counters.counted.min() > 0
    assert np.allclose(total, 30.0 * counters.rates())
    assert 0.0 < counters.rates().mean() < 1.0


def test_the_weight_scales_the_reward():
    counters = Compliance(SERVER_FIRST, n_envs=1, rule=DOCUMENTED, weight=300.0)
    assert counters.observe([action_id("Restore", "User1")], access(), UNSEEN, NOTHING).tolist() == [300.0]
    assert counters.observe([0], access(), UNSEEN, NOTHING).tolist() == [0.0]
    repeated = counters.observe([action_id("Restore", "User1")], access("Op_Server0"), UNSEEN, NOTHING)
    assert repeated.tolist() == [-150.0]


def test_a_right_repair_takes_a_host_from_red_while_no_more_urgent_type_is_held():
    counters, user1, server = Compliance(SERVER_FIRST, 1, weight=2.0), HOST_NAMES.index("User1"), 7
    restore = [action_id("Restore", "User1")]
    assert counters.observe(restore, access("User1"), UNSEEN, [user1]).tolist() == [2.0]  # right
    assert counters.observe(restore, access("User1", "Op_Server0"), UNSEEN, [user1]).tolist() == [-2.0]  # wrong
    assert counters.observe(restore, access("Op_Server0"), UNSEEN, NOTHING).tolist() == [0.0]  # User1 was not held
    assert counters.observe([action_id("Remove", "Op_Server0")], access("Op_Server0"), UNSEEN, NOTHING).tolist() == [
        0.0
    ]
    assert counters.observe([action_id("Restore", "Op_Server0")], access("Op_Server0"), UNSEEN, [server]).tolist() == [
        2.0
    ]
    assert (counters.right.tolist(), counters.counted.tolist()) == ([2], [3])


def test_a_host_that_red_is_seen_to_hold_must_be_repaired_in_time():
    counters = Compliance(SERVER_FIRST, 1)
    rewards = [counters.observe([0], access("User1"), seeing("User1"), NOTHING)[0] for _ in range(PATIENCE + 2)]
    assert rewards == [0.0] * PATIENCE + [-1.0, -1.0]
    counters.reset()
    unseen = [counters.observe([0], access("User1"), UNSEEN, NOTHING)[0] for _ in range(30)]
    assert not any(unseen)  # nobody could know
    assert np.isnan(counters.rates()[0])


def test_episodes_without_a_counted_turn_are_left_out_or_count_one_half():
    rates = [[1.0, np.nan], [0.5, 0.0]]
    assert Compliance(SERVER_FIRST, 1).average(rates) == 0.5
    assert Compliance(SERVER_FIRST, 1, DOCUMENTED).average(rates) == 0.5
    assert Compliance(SERVER_FIRST, 1, DOCUMENTED).average([np.nan]) == 0.5
    assert np.isnan(Compliance(SERVER_FIRST, 1).average([np.nan]))


def test_bad_input_is_refused():
    with pytest.raises(ConfigError, match="n_envs is 0: at least one environment is needed"):
        Compliance(SERVER_FIRST, n_envs=0)
    with pytest.raises(ConfigError, match="compliance rule 'kind' is unknown: choose one of right_repairs, no_higher"):
        Compliance(SERVER_FIRST, n_envs=1, rule="kind")
    with pytest.raises(ConfigError, match="missing: user"):
        Compliance(UNIT_TYPES[:4], n_envs=1)
    with pytest.raises(ConfigError, match="2 orders for 3 environments"):
        Compliance([SERVER_FIRST, USER_FIRST], n_envs=3)
    counters = Compliance(SERVER_FIRST, n_envs=2)
    with pytest.raises(ShapeError, match=r"actions \(1,\) and access \(1, 13\) do not fit 2 environments"):
        counters.observe([0], access(), UNSEEN, NOTHING)


def test_a_user_fix_violates_an_order_as_soon_as_red_holds_an_enterprise_host_that_ranks_higher() -> None:
    envs = ParallelEnvWrapper(1, red="B_line", steps=100)
    counters = Compliance(SERVER_FIRST, 1, DOCUMENTED)
    envs.reset()
    while not envs.access[0, 1:4].any():
        counters.observe([action_id("Remove", "User1")], envs.access, UNSEEN, NOTHING)
        envs.step(np.zeros(1, np.int64))
    assert counters.rates()[0] == 1.0
    counters.observe([action_id("Remove", "User1")], envs.access, UNSEEN, NOTHING)
    assert counters.rates()[0] < 1.0
