"""Attribution: how the value of a purchase is shared among the clicks that led to it. Shares add up to one."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit

__all__ = ["Attribution", "credit_shares"]


class Attribution(IntEnum):
    """Last click; ends (first and last touch take 40 % each, the others share the rest); linear."""

    LAST_CLICK = 0
    POSITION = 1
    LINEAR = 2


_ENDS = 0.4  # the customary share of the first and of the last touch


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def credit_shares(rule: int, touches: int, out: NDArray[np.float64]) -> None:
    """The share of each of `touches` ≥ 1 clicks, oldest first, into `out`; the last takes what is left of one.

    >>> shares = np.empty(4)
    >>> credit_shares(int(Attribution.POSITION), 4, shares)
    >>> shares.round(2).tolist()
    [0.4, 0.1, 0.1, 0.4]
    """
    given = 0.0
    for i in range(touches - 1):
        if rule == 0:
            out[i] = 0.0
        elif rule == 2 or touches == 2:
            out[i] = 1.0 / touches
        elif i == 0:
            out[i] = _ENDS
        else:
            out[i] = (1.0 - 2.0 * _ENDS) / (touches - 2)
        given += out[i]
    out[touches - 1] = 1.0 - given
