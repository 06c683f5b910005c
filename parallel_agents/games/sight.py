"""What agents see: square windows around them, as numbers for a network.

`onehot` has a channel per kind, in the order of the field's kinds, 1 where that kind lies on any layer; `rgb`
has three channels, 0 to 1, the colour of what lies uppermost. Both are flat, (channels, side, side) by rows,
and beyond the field lies what the field has outside. An `egocentric` window is turned with the agent: up is
where it faces.

>>> from parallel_agents.games.field import Field, Kind, walled
>>> from parallel_agents.games.grid import Grid
>>> field = Field([Kind("wall", "#", (90, 90, 90), passable=False),
...                Kind("agent", "a", (250, 250, 250), passable=False)], walled(3, 4))
>>> sight = Sight(Grid(field, agents=1, radius=1), radius=1)
>>> sight.all().reshape(2, 3, 3).astype(int).tolist()
[[[1, 1, 1], [1, 0, 0], [1, 1, 1]], [[0, 0, 0], [0, 1, 0], [0, 0, 0]]]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parallel_agents.errors import ConfigError
from parallel_agents.games import windows
from parallel_agents.games.grid import Grid
from parallel_agents.games.kernels import Floats

__all__ = ["Sight"]


class Sight:
    """The windows of a grid's agents. Its arrays are written anew at every call: copy what you keep."""

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
        self._grid = grid
        self._ways = grid.headings if egocentric else np.zeros_like(grid.headings)
        self._kernel: Any = windows.onehot(side) if observation == "onehot" else windows.colours(side)
        self._table = (
            np.roll(np.arange(kinds + 1, dtype=np.uint64) * np.uint64(area), 1)
            if observation == "onehot"
            else grid.field.palette.astype(np.float32) / np.float32(255.0)
        )
        self._whole = np.zeros(agents * worlds * self.size + area, np.float32)
        self._views: Floats = self._whole[:-area].reshape(agents, worlds, self.size)
        # One agent's windows are kept apart from those of all: the runtime compares the two.
        self._rows = np.zeros((agents, worlds * self.size + area), np.float32)
        self._row_views: Floats = self._rows[:, :-area].reshape(agents, worlds, self.size)

    def all(self) -> Floats:
        """(N, W, size) what every agent sees now."""
        self._look(self._whole, 0)
        return self._views

    def one(self, agent: int) -> Floats:
        """(W, size) what one agent sees now."""
        self._look(self._rows[agent], agent)
        view: Floats = self._row_views[agent]
        return view

    def _look(self, out: Floats, first: int) -> None:
        grid = self._grid
        self._kernel(out, grid.padded, grid.margin, grid.positions, self._ways, first, self._table)
