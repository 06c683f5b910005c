"""Check that computing agents together gives each agent the bytes that it would get alone.

The numeric rules (`rows`) are facts of one library on one machine. So whenever a stack is built, in every mode, its
real computation runs once at its real shapes: all agents together, one agent at a time, and in the groups that workers
will get. Where the bytes differ, that stack is computed one agent at a time in *every* mode, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Invariance:
    """The result of a probe."""

    holds: bool
    detail: str


def probe(compute: Callable[[slice], Sequence[Tensor]], agents: int, groups: Sequence[slice] = ()) -> Invariance:
    """Compare a computation of all agents with that of each agent alone and of each of some groups, byte for byte.

    compute: takes a slice of the agents and returns tensors whose first axis is the agent.

    >>> x = torch.arange(6.0).reshape(3, 2)
    >>> probe(lambda part: [x[part] * 2], 3).holds
    True
    >>> probe(lambda part: [x[part] - x[part].mean()], 3).holds
    False
    """
    whole = compute(slice(0, agents))
    for group in [*(slice(n, n + 1) for n in range(agents)), *groups]:
        for index, (tensor, of_group) in enumerate(zip(whole, compute(group), strict=True)):
            if not _same_bytes(tensor[group], of_group):
                size = group.stop - group.start
                return Invariance(False, f"result {index} of {agents} agents differs from groups of {size}")
    return Invariance(True, f"{agents} agents agree with one at a time, byte for byte")


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same bytes: NaN equals itself, and 0.0 does not equal -0.0."""
    if a.dtype.is_floating_point:
        integers = torch.int64 if a.dtype == torch.float64 else torch.int32
        a, b = a.contiguous().view(integers), b.contiguous().view(integers)
    return torch.equal(a, b)
