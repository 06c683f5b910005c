"""What agents see as compiled loops: kernels made for windows of one side each.

With the side known when they are compiled, the loops over a window are unrolled, which takes a fifth to a third off
their time. `cells`, positions and the order of agents are those of `kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from parallel_agents.compiled import njit
from parallel_agents.games.kernels import Bytes, Floats, Ints

__all__ = ["colours", "onehot"]

_ONE = np.uint64(1)


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _window(y: int, x: int, radius: int, width: int, way: int) -> tuple[np.uint64, np.uint64, np.uint64]:
    """The upper left cell of a window seen with `way` pointing up, and the steps to the cells below and right.

    Cells are counted by rows of `width`; a negative step is a large unsigned one, which comes to the same.
    """
    if way == 0:
        first, down, right = (y - radius) * width + x - radius, width, 1
    elif way == 1:
        first, down, right = (y - radius) * width + x + radius, -1, width
    elif way == 2:
        first, down, right = (y + radius) * width + x + radius, -width, -1
    else:
        first, down, right = (y + radius) * width + x - radius, 1, -width
    return np.uint64(first), np.uint64(down), np.uint64(right)


@cache
def onehot(side: int) -> Callable[..., None]:
    """The kernel for windows of a side d: 1 where kind k = 1 … K lies in the windows of n agents, else 0."""
    radius, area = side // 2, side * side

    @njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
    def look(
        out: Floats, cells: Bytes, margin: int, positions: Ints, ways: Bytes, first: int, starts: NDArray[np.uint64]
    ) -> None:
        """`out` holds n * W views of (K, d, d), and d * d spare numbers at its end; `starts[k]` is where kind k
        starts in a view. So that no cell needs a branch, empty ones are written too, but into the view after
        their own (`starts[0]` = K * d * d), which is cleared when its turn comes. Unsigned indices spare the test
        for negative ones. Windows are turned so that the way (N, W) points up.
        """
        worlds, layers, height, width = cells.shape
        size = np.uint64((len(starts) - 1) * area)
        flat = cells.reshape(-1)
        view = np.uint64(0)
        for i in range((len(out) - area) // (worlds * (len(starts) - 1) * area)):
            for w in range(worlds):
                for number in range(size):
                    out[view + number] = np.float32(0.0)
                y, x = positions[first + i, w, 0] + margin, positions[first + i, w, 1] + margin
                corner, down, right = _window(y, x, radius, width, ways[first + i, w])
                for plane in range(w * layers, (w + 1) * layers):
                    to = view
                    begin = np.uint64(plane * height * width) + corner
                    for _ in range(side):
                        cell = begin
                        for _ in range(side):
                            out[to + starts[flat[cell]]] = np.float32(1.0)
                            to += _ONE
                            cell += right
                        begin += down
                view += size

    return look  # type: ignore[no-any-return]


@cache
def colours(side: int) -> Callable[..., None]:
    """The kernel for windows of a side d: the colours, out of (K + 1, 3), of the uppermost kinds in them."""
    radius = side // 2
    area = np.uint64(side * side)

    @njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
    def look(out: Floats, cells: Bytes, margin: int, positions: Ints, ways: Bytes, first: int, palette: Floats) -> None:
        """`out` holds n * W views of (3, d, d), and the same spare numbers as for `onehot`."""
        worlds, layers, height, width = cells.shape
        plane = np.uint64(height * width)
        flat = cells.reshape(-1)
        to = np.uint64(0)
        for i in range((len(out) - side * side) // (worlds * 3 * side * side)):
            for w in range(worlds):
                y, x = positions[first + i, w, 0] + margin, positions[first + i, w, 1] + margin
                corner, down, right = _window(y, x, radius, width, ways[first + i, w])
                begin = np.uint64(w * layers * height * width) + corner
                for _ in range(side):
                    cell = begin
                    for _ in range(side):
                        kind, above = flat[cell], cell
                        for _ in range(1, layers):
                            above += plane
                            kind = flat[above] if flat[above] else kind
                        out[to] = palette[kind, 0]
                        out[to + area] = palette[kind, 1]
                        out[to + area + area] = palette[kind, 2]
                        to += _ONE
                        cell += right
                    begin += down
                to += area + area

    return look  # type: ignore[no-any-return]
