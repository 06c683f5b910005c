from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from parallel_agents.errors import ConfigError
from parallel_agents.workflows.orders import (
    HOST_TYPE,
    ORDER_FEATURES,
    ORDERS,
    UNIT_TYPES,
    check_order,
    encode,
    host_ranks,
    kendall_distance,
    precedence,
    ranks,
)

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


def test_ranks():
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
        assert kendall_distance(order, other) == inversions
    neighbours = [kendall_distance(a, b) for a, b in pairwise([ORDER, ("user", "op_server", *ORDER[2:])])]
    assert neighbours == [1]


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
def test_what_is_no_order_is_refused(order, message):
    for function in (check_order, encode, precedence, host_ranks):
        with pytest.raises(ConfigError, match=message):
            function(order)
