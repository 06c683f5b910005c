"""Pictures of one world: a frame as an array, several as a GIF.

Walls and floors fill their cells, things are smaller squares, agents are discs, each in its own colour, with
a notch on the side they face and, where they look different, what they look like in the middle.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_agents.errors import ConfigError
from parallel_agents.games.grid import Grid
from parallel_agents.games.kernels import Bytes

__all__ = ["agent_colours", "frame", "load_imageio", "write_gif"]

_GROUND = (24, 26, 32)
_GOLDEN = 0.618033988749895
"""Steps of the golden ratio round the colour circle keep any number of agents apart."""


def agent_colours(agents: int) -> Bytes:
    """(N, 3) a colour for each agent, the same whatever N is."""
    hues = [(0.08 + n * _GOLDEN) % 1.0 for n in range(agents)]
    rgb = [colorsys.hsv_to_rgb(hue, 0.45 + 0.25 * (n % 2), 1.0) for n, hue in enumerate(hues)]
    colours: Bytes = np.rint(255 * np.array(rgb)).astype(np.uint8)
    return colours


def frame(grid: Grid, world: int = 0, cell: int = 16) -> Bytes:
    """(H * cell, C * cell, 3) one world as it is now, each cell `cell` pixels wide."""
    if cell < 4:
        raise ConfigError(f"cells of {cell} pixels are too small to draw: give at least 4")
    field = grid.field
    layers = grid.cells[world].copy()
    layers[field.layer, grid.positions[:, world, 0], grid.positions[:, world, 1]] = 0  # agents come last
    image = np.empty((field.height, cell, field.width, cell, 3), np.uint8)
    image[:] = _GROUND
    for number, codes in enumerate(layers):
        inset = field.passable[codes] & (number >= field.layer)  # walls and floors fill their cells
        painted = (codes > 0)[:, None, :, None] & (~inset[:, None, :, None] | _tile(cell)[:, None, :])
        np.copyto(image, field.palette[codes][:, None, :, None], where=painted[..., None])
    for n, colour in enumerate(agent_colours(len(grid.positions))):
        y, x = grid.positions[n, world]
        image[y, :, x][_disc(cell, int(grid.headings[n, world]))] = colour
        if np.ptp(grid.looks[:, world]):
            image[y, :, x][_core(cell)] = field.palette[grid.looks[n, world]]
    return image.reshape(field.height * cell, field.width * cell, 3)


def write_gif(path: Path | str, frames: Sequence[Bytes], *, fps: float = 8.0) -> Path:
    """Write frames as an endless GIF; needs imageio, from the extra `report`."""
    if not frames:
        raise ConfigError(f"no frames for {path}: record at least one")
    path, imageio = Path(path), load_imageio()
    path.parent.mkdir(parents=True, exist_ok=True)
    imageio.imwrite(path, np.stack(frames), extension=".gif", duration=1000.0 / fps, loop=0)
    return path


def load_imageio() -> Any:
    """What writes GIFs, or an error that says how to get it."""
    try:
        from imageio import v3
    except ImportError as error:
        raise ConfigError(
            "writing a GIF needs imageio, which is not installed: install parallel-agents with the extra 'report'"
        ) from error
    return v3


def _tile(cell: int) -> NDArray[np.bool_]:
    """(cell, cell) where a thing is painted: a square with the ground around it."""
    edge = np.minimum(np.arange(cell), np.arange(cell)[::-1])
    rim = max(1, cell // 5)
    return np.minimum.outer(edge, edge) >= rim


def _core(cell: int) -> NDArray[np.bool_]:
    """(cell, cell) the middle of an agent."""
    away = np.abs(np.arange(cell) - (cell - 1) / 2)
    return np.asarray(np.maximum.outer(away, away) <= cell / 8)


def _disc(cell: int, heading: int) -> NDArray[np.bool_]:
    """(cell, cell) where an agent is painted: a disc, notched on the side it faces."""
    centre = (cell - 1) / 2
    across, along = np.meshgrid(np.arange(cell) - centre, centre - np.arange(cell))  # seen facing up
    disc = across**2 + along**2 <= (cell / 2 - 0.5) ** 2
    notch = (np.abs(across) <= cell / 8) & (along > cell / 8)
    return np.rot90(disc & ~notch, -heading)
