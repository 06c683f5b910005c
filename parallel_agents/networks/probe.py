"""The probe: does computing agents together give each the bytes it would get alone?

The numeric rules are facts of one library on one machine. So whenever a stack is built, in every mode, its
real computation is run once at its real shapes: whole, one agent at a time, and in the groups that workers will get.
Where the bytes differ, that stack is computed one agent at a time in *every* mode, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Invariance", "probe"]


@dataclass(frozen=True)
class Invariance:
    """What the probe found."""

    holds: bool
    detail: str


def probe(compute: Callable[[slice], Sequence[Tensor]], agents: int, groups: Sequence[slice] = ()) -> Invariance:
    """Compare a computation over all agents with the same one over each agent alone and over each of some groups.

    compute: takes the agents' slice and gives tensors whose first axis is the agent.

    >>> x = torch.arange(6.0).reshape(3, 2)
    >>> probe(lambda part: [x[part] * 2], 3).holds
    True
    >>> probe(lambda part: [x[part] - x[part].mean()], 3).holds
    False
    """
    whole = compute(slice(0, agents))
    for group in [*(slice(n, n + 1) for n in range(agents)), *groups]:
        for index, (tensor, own) in enumerate(zip(whole, compute(group), strict=True)):
            if not _same_bytes(tensor[group], own):
                size = group.stop - group.start
                return Invariance(False, f"result {index} of {agents} agents differs from groups of {size}")
    return Invariance(True, f"{agents} agents agree with one at a time, byte for byte")


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    if a.dtype.is_floating_point:  # NaN equals itself here, and 0.0 does not equal -0.0
        whole = torch.int64 if a.dtype == torch.float64 else torch.int32
        a, b = a.contiguous().view(whole), b.contiguous().view(whole)
    return torch.equal(a, b)
