"""What agents observe: square windows around them, as numbers for a network.

The encoding `onehot` has a channel per kind, in the order of the field's kinds: 1 where that kind lies on any layer.
`rgb` has three channels, 0 to 1: the colour of the topmost kind. Both are flat, (channels, side, side) by rows. Cells
beyond the field show the field's outside kind. An `egocentric` window turns with the agent: up is where it faces.

Cells, positions and the order of agents are those of `kernels`.

>>> from parallel_agents.games.grid import AGENT, WALL, Field, walled_map
>>> observer = WindowObserver(Grid(Field([WALL, AGENT], walled_map(3, 4)), agents=1, radius=1), radius=1)
>>> observer.observe_all().reshape(2, 3, 3).astype(int).tolist()
[[[1, 1, 1], [1, 0, 0], [1, 1, 1]], [[0, 0, 0], [0, 1, 0], [0, 0, 0]]]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.by_reference import by_reference
from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.errors import ConfigError
from parallel_agents.games.grid import Grid
from parallel_agents.games.kernels import Bytes, Floats, GridArrays

_ONE = np.uint64(1)


class Windows(NamedTuple):
    """The windows of all agents, by reference."""

    numbers: Floats
    """(N * W windows and some spare numbers,)"""
    up: Bytes
    """(N, W) headings, or zeros."""
    offsets: NDArray[np.uint64]
    """Of each kind in a window."""
    palette: Floats
    side: int
    onehot: int
    """1: kinds are channels."""


class WindowObserver:
    """The observation windows of a grid's agents. Every call overwrites the arrays it returns: copy what you keep."""

    def __init__(self, grid: Grid, *, radius: int, observation: str = "onehot", egocentric: bool = False) -> None:
        if observation not in ("onehot", "rgb"):
            raise ConfigError(f"observation is {observation!r}: give 'onehot' or 'rgb'")
        if not 0 <= radius <= grid.margin:
            raise ConfigError(
                f"a window of radius {radius} on a grid made for 0 to {grid.margin}: make the grid with that radius"
            )
        agents, worlds = grid.headings.shape
        side = 2 * radius + 1
        area = side * side
        kinds = len(grid.field.kinds)
        self.shape = (kinds if observation == "onehot" else 3, side, side)
        """Channels, rows, columns."""
        self.size = self.shape[0] * area
        self._grid = grid.arrays
        self._up = grid.headings if egocentric else np.zeros_like(grid.headings)
        offsets = np.roll(np.arange(kinds + 1, dtype=np.uint64) * np.uint64(area), 1)
        palette = grid.field.palette.astype(np.float32) / np.float32(255.0)
        self._shape = offsets, palette, side, observation == "onehot"
        self._all = np.zeros(agents * worlds * self.size + area, np.float32)
        self._all_windows: Floats = self._all[:-area].reshape(agents, worlds, self.size)
        # Windows of single agents have arrays of their own: the engine compares them with those of all agents.
        self._single = np.zeros((agents, worlds * self.size + area), np.float32)
        self._single_windows: Floats = self._single[:, :-area].reshape(agents, worlds, self.size)

    @property
    def windows(self) -> Windows:
        """What compiled code needs to observe everyone."""
        offsets, palette, side, onehot = self._shape
        return by_reference(Windows(self._all, self._up, offsets, palette, side, int(onehot)))

    def observe_all(self) -> Floats:
        """Return (N, W, size) what every agent observes now."""
        observe_windows(self._all, self._grid, self._up, 0, *self._shape)
        return self._all_windows

    def observe_agent(self, agent: int) -> Floats:
        """Return (W, size) what one agent observes now."""
        observe_windows(self._single[agent], self._grid, self._up, agent, *self._shape)
        windows: Floats = self._single_windows[agent]
        return windows


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _window(y: int, x: int, radius: int, width: int, up: int) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Return the upper left cell of a window in which the direction `up` points up, and the steps down and right.

    Cells are counted by rows of `width`; a negative step is a large unsigned one, with the same result.
    """
    if up == 0:
        corner, down, right = (y - radius) * width + x - radius, width, 1
    elif up == 1:
        corner, down, right = (y - radius) * width + x + radius, -1, width
    elif up == 2:
        corner, down, right = (y + radius) * width + x + radius, -width, -1
    else:
        corner, down, right = (y + radius) * width + x - radius, 1, -width
    return np.uint64(corner), np.uint64(down), np.uint64(right)


@compiled_once
def observe_windows(
    out: Floats,
    grid: GridArrays,
    up: Bytes,
    first: int,
    starts: NDArray[np.uint64],
    palette: Floats,
    side: int,
    onehot: bool,
) -> None:
    """Write the windows of the agents from `first` on, turned so that the direction (N, W) `up` points up.

    `out` holds n * W windows of (K, d, d) or (3, d, d), and d * d spare numbers at its end.
    """
    if onehot:
        _onehot(out, grid, up, first, starts, side)
    else:
        _rgb(out, grid, up, first, palette, side)


@compiled_once
def _onehot(out: Floats, grid: GridArrays, up: Bytes, first: int, starts: NDArray[np.uint64], side: int) -> None:
    """Write 1 where kind k = 1 … K lies, else 0; `starts[k]` is the offset of kind k in a window.

    So that no cell needs a branch, empty cells are written too, but into the next window (`starts[0]` = K * d * d),
    which is cleared before it is filled.
    """
    cells, margin, positions = grid.cells, grid.margin, grid.positions
    worlds, layers, height, width = cells.shape
    area = side * side
    size = np.uint64((len(starts) - 1) * area)
    flat = cells.reshape(-1)
    window = np.uint64(0)
    for i in range((len(out) - area) // (worlds * (len(starts) - 1) * area)):
        for w in range(worlds):
            for offset in range(size):
                out[window + offset] = np.float32(0.0)
            y, x = positions[first + i, w, 0] + margin, positions[first + i, w, 1] + margin
            corner, down, right = _window(y, x, side // 2, width, up[first + i, w])
            for plane in range(w * layers, (w + 1) * layers):
                target = window
                row = np.uint64(plane * height * width) + corner
                for _ in range(side):
                    cell = row
                    for _ in range(side):
                        out[target + starts[flat[cell]]] = np.float32(1.0)
                        target += _ONE
                        cell += right
                    row += down
            window += size


@compiled_once
def _rgb(out: Floats, grid: GridArrays, up: Bytes, first: int, palette: Floats, side: int) -> None:
    """Write the colours, out of (K + 1, 3), of the topmost kinds."""
    cells, margin, positions = grid.cells, grid.margin, grid.positions
    worlds, layers, height, width = cells.shape
    plane, area = np.uint64(height * width), np.uint64(side * side)
    flat = cells.reshape(-1)
    target = np.uint64(0)
    for i in range((len(out) - side * side) // (worlds * 3 * side * side)):
        for w in range(worlds):
            y, x = positions[first + i, w, 0] + margin, positions[first + i, w, 1] + margin
            corner, down, right = _window(y, x, side // 2, width, up[first + i, w])
            row = np.uint64(w * layers * height * width) + corner
            for _ in range(side):
                cell = row
                for _ in range(side):
                    kind, above = flat[cell], cell
                    for _ in range(1, layers):
                        above += plane
                        kind = flat[above] if flat[above] else kind
                    out[target] = palette[kind, 0]
                    out[target + area] = palette[kind, 1]
                    out[target + area + area] = palette[kind, 2]
                    target += _ONE
                    cell += right
                row += down
            target += area + area
