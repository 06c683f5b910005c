"""Who is next to whom or what: the four cells beside each agent."""

from __future__ import annotations

import numpy as np

from parallel_agents.compiled import njit
from parallel_agents.games.grid import Grid
from parallel_agents.games.kernels import Flags, Ints
from parallel_agents.games.steps import WAYS

__all__ = ["beside", "crowd", "meetings"]


def beside(grid: Grid) -> Ints:
    """(N, W, 4, 2) rows and columns of the cells above, right of, below and left of each agent."""
    return np.asarray(grid.positions[:, :, None] + WAYS, np.int32)


def crowd(grid: Grid) -> Ints:
    """(W, H, C) how many agents stand next to each cell."""
    _, worlds = grid.headings.shape
    count = np.zeros((worlds, grid.field.height + 2, grid.field.width + 2), np.int32)
    at = beside(grid) + 1
    np.add.at(count, (np.arange(worlds)[:, None], at[..., 0], at[..., 1]), 1)
    return count[:, 1:-1, 1:-1]


def meetings(grid: Grid, ready: Flags) -> Ints:
    """(N, W) whom each agent meets, -1: nobody.

    Agents of the (N, W) mask who stand next to each other meet, in pairs: in list order, each the first in the list
    that is still free.

    >>> from parallel_agents.games.field import Field, Kind
    >>> grid = Grid(Field([Kind("agent", "a", (9, 9, 9), passable=False)], "....", outside="agent"), agents=3)
    >>> meetings(grid, np.ones((3, 1), np.bool_))[:, 0].tolist()
    [1, 0, -1]
    """
    partner = np.full(ready.shape, -1, np.int32)
    _pair(grid.positions, grid.agents_of(ready), partner)
    return partner


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _pair(positions: Ints, ready: Flags, partner: Ints) -> None:
    agents, worlds = ready.shape
    for w in range(worlds):
        for n in range(agents):
            for m in range(n + 1, agents):
                if not (ready[n, w] and ready[m, w]) or partner[n, w] >= 0 or partner[m, w] >= 0:
                    continue
                far = abs(positions[n, w, 0] - positions[m, w, 0]) + abs(positions[n, w, 1] - positions[m, w, 1])
                if far == 1:
                    partner[n, w], partner[m, w] = m, n
