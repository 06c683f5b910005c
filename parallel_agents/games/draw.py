"""Pictures of one world: a frame as an array, several as a GIF.

Walls and floors fill their cells, things are smaller squares, agents are discs, each in its own colour, with
a notch on the side they face and, where they look different, what they look like in the middle. Those who are frozen
are crossed out. Below stands what each agent has earned, beside its colour.
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
from parallel_agents.games.kernels import Bytes, Flags
from parallel_agents.tracking.files import write_atomically

__all__ = ["agent_colours", "beneath", "frame", "load_imageio", "scores", "write_gif"]

_GROUND = (24, 26, 32)
_GOLDEN = 0.618033988749895
"""Steps of the golden ratio round the colour circle keep any number of agents apart."""


def agent_colours(agents: int) -> Bytes:
    """(N, 3) a colour for each agent, the same whatever N is."""
    hues = [(0.08 + n * _GOLDEN) % 1.0 for n in range(agents)]
    rgb = [colorsys.hsv_to_rgb(hue, 0.45 + 0.25 * (n % 2), 1.0) for n, hue in enumerate(hues)]
    colours: Bytes = np.rint(255 * np.array(rgb)).astype(np.uint8)
    return colours


def frame(grid: Grid, world: int = 0, cell: int = 16, *, frozen: Flags | None = None) -> Bytes:
    """(H * cell, C * cell, 3) one world as it is now, each cell `cell` pixels wide; `frozen`, (N,), who is out."""
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
        if frozen is not None and frozen[n]:
            image[y, :, x][_cross(cell)] = _GROUND
    return image.reshape(field.height * cell, field.width * cell, 3)


_FONT = dict(
    zip("0123456789-.", (31599, 9362, 29671, 29391, 23497, 31183, 31215, 29257, 31727, 31695, 448, 2), strict=True)
)
"""3 x 5 dots of each sign, row by row, the first one highest."""
_DOT, _SWATCH, _SIGNS = 2, 8, 6
_LIGHT = (230, 232, 238)


def scores(earned: NDArray[Any], width: int) -> Bytes:
    """(rows, at least width, 3) each agent's colour and what it has earned, in as many lines as are needed.

    >>> scores(np.array([3.5]), 120).shape
    (16, 120, 3)
    """
    place = _SWATCH + (4 * _SIGNS + 4) * _DOT
    columns, line = max(1, width // place), 5 * _DOT + 6
    strip = np.full((line * -(-len(earned) // columns), max(width, place), 3), _GROUND, np.uint8)
    for n, (value, colour) in enumerate(zip(earned, agent_colours(len(earned)), strict=True)):
        top, left = n // columns * line + 3, n % columns * place + _DOT
        strip[top : top + 5 * _DOT, left : left + _SWATCH] = colour
        text = _text(float(value))
        strip[top : top + len(text), left + _SWATCH + _DOT :][:, : text.shape[1]][text] = _LIGHT
    return strip


def beneath(picture: Bytes, strip: Bytes) -> Bytes:
    """A strip beneath a picture, the narrower one widened."""
    width = max(picture.shape[1], strip.shape[1])
    whole = np.full((len(picture) + len(strip), width, 3), _GROUND, np.uint8)
    whole[: len(picture), : picture.shape[1]] = picture
    whole[len(picture) :, : strip.shape[1]] = strip
    return whole


def _text(value: float) -> NDArray[np.bool_]:
    """(5 dots, signs * 4 dots) where a number is painted, in at most `_SIGNS` signs."""
    digits = 2 if abs(value) < 10.0 else 1 if abs(value) < 1000.0 else 0
    bits = np.array([_FONT.get(sign, 0) for sign in f"{value:.{digits}f}"[:_SIGNS]])
    dots = (bits[:, None] >> np.arange(14, -1, -1) & 1).astype(np.bool_).reshape(-1, 5, 3)
    spaced = np.pad(dots, ((0, 0), (0, 0), (0, 1)))  # (signs, 5, 4)
    return np.kron(np.concatenate(spaced, axis=1), np.ones((_DOT, _DOT), np.bool_))


def write_gif(path: Path | str, frames: Sequence[Bytes], *, fps: float = 8.0) -> Path:
    """Write frames as an endless GIF; needs imageio, from the extra `report`."""
    if not frames:
        raise ConfigError(f"no frames for {path}: record at least one")
    path, imageio = Path(path), load_imageio()
    path.parent.mkdir(parents=True, exist_ok=True)
    data = imageio.imwrite("<bytes>", np.stack(frames), extension=".gif", duration=1000.0 / fps, loop=0)
    write_atomically(path, [data])
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


def _cross(cell: int) -> NDArray[np.bool_]:
    """(cell, cell) the two diagonals, over an agent that is out."""
    down, right = np.indices((cell, cell))
    thick = max(1, cell // 8)
    return np.asarray((abs(down - right) < thick) | (abs(down + right - cell + 1) < thick))


def _disc(cell: int, heading: int) -> NDArray[np.bool_]:
    """(cell, cell) where an agent is painted: a disc, notched on the side it faces."""
    centre = (cell - 1) / 2
    across, along = np.meshgrid(np.arange(cell) - centre, centre - np.arange(cell))  # seen facing up
    disc = across**2 + along**2 <= (cell / 2 - 0.5) ** 2
    notch = (np.abs(across) <= cell / 8) & (along > cell / 8)
    return np.rot90(disc & ~notch, -heading)
