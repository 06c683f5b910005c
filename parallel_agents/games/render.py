"""Pictures of one world: as an array, in the terminal, and as animations of recorded episodes.

Walls and floors fill their cells, things are smaller squares, and agents are discs, each in its own colour, with a
dark triangle that points where they face. Agents of different kinds show their kind in the middle. Frozen agents are
crossed out. Below stands the return of each agent, beside its colour.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group
from rich.style import Style
from rich.table import Table
from rich.text import Text

from parallel_agents.core.errors import ConfigError
from parallel_agents.core.system import in_background
from parallel_agents.core.types import EpochStats, RunInfo
from parallel_agents.games.grid import Grid, top_codes
from parallel_agents.games.kernels import Bytes, Flags, Floats
from parallel_agents.tracking.callbacks import BaseCallback, Throttle
from parallel_agents.tracking.plots import load_imageio, write_animation, write_picture

if TYPE_CHECKING:
    from parallel_agents.games.environment import GridEnvironment

_BACKGROUND = (24, 26, 32)
_PATIENCE = 600.0
"""Seconds that writing an animation may take."""
_SUBPIXELS = 4
"""Points along each side of a pixel that decide how much of it is painted."""
_GOLDEN_RATIO = 0.618033988749895
"""Steps of the golden ratio round the colour circle keep the colours of any number of agents apart."""


@cache
def agent_colour(agent: int) -> Bytes:
    """Return (3,) the colour of an agent, by its number."""
    rgb = colorsys.hsv_to_rgb((0.08 + agent * _GOLDEN_RATIO) % 1.0, 0.45 + 0.25 * (agent % 2), 1.0)
    colour: Bytes = np.rint(255 * np.array(rgb)).astype(np.uint8)
    return colour


def draw_world(
    grid: Grid, world: int = 0, cell: int = 16, *, frozen: Flags | None = None, seen: tuple[int, int] | None = None
) -> Bytes:
    """Return (H * cell, C * cell, 3) a picture with cells of `cell` pixels.

    `frozen`, (N,), is who is crossed out. `seen`, (agent, radius), darkens everything that the agent does not see.
    """
    if cell < 4:
        raise ConfigError(f"cells of {cell} pixels are too small to draw: give at least 4")
    field = grid.field
    layers = grid.cells[world].copy()
    layers[field.layer, grid.positions[:, world, 0], grid.positions[:, world, 1]] = 0  # agents are drawn last
    columns = layers.reshape(len(layers), -1)
    different, place = np.unique(columns, axis=1, return_inverse=True)  # a few of many cells: each is drawn once
    tiles = np.empty((different.shape[1], cell, cell, 3), np.uint8)
    tiles[:] = _BACKGROUND
    for number, codes in enumerate(different):
        inset = field.passable[codes] & (number >= field.layer)  # walls and floors fill their cells
        painted = (codes > 0)[:, None, None] & (~inset[:, None, None] | _square(cell))
        np.copyto(tiles, field.palette[codes][:, None, None], where=painted[..., None])
    image = tiles[place.reshape(field.height, field.width)].swapaxes(1, 2).copy()  # (H, cell, C, cell, 3)
    several_kinds = bool(np.ptp(grid.agent_kinds[:, world]))
    for n in range(len(grid.positions)):
        y, x = grid.positions[n, world]
        here = image[y, :, x]
        here[:] = _agent_tile(here.tobytes(), cell, n, int(grid.headings[n, world]))
        if several_kinds:
            here[_centre(cell)] = field.palette[grid.agent_kinds[n, world]]
        if frozen is not None and frozen[n]:
            here[_cross(cell)] = _BACKGROUND
    if seen is not None:
        agent, radius = seen
        y, x = grid.positions[agent, world]
        rows, columns = abs(np.arange(field.height) - y) > radius, abs(np.arange(field.width) - x) > radius
        hidden = (rows[:, None] | columns)[:, None, :, None, None]
        np.copyto(image, image // 3, where=hidden)
    return image.reshape(field.height * cell, field.width * cell, 3)


_FONT = dict(zip("0123456789-.k", (
    0x3A33AE62E, 0x11842108E, 0x3A211111F, 0x7C441062E, 0x08CA97C42, 0x7E1E0862E, 0x1910F462E, 0x7C2222108,
    0x3A317462E, 0x3A317844C, 0x0000F8000, 0x00000018C, 0x4212A6292,
), strict=True))  # fmt: skip
"""5 x 7 dots of each character, row by row, the first in the highest bit."""
_DOT, _SWATCH, _CHARACTERS = 2, 14, 6
_TEXT_COLOUR = (236, 239, 244)


def draw_scores(returns: NDArray[Any], width: int) -> Bytes:
    """Return (rows, at least width, 3) each agent's colour and return, in as many lines as needed.

    >>> draw_scores(np.array([3.5]), 120).shape
    (24, 120, 3)
    """
    entry = _SWATCH + (6 * _CHARACTERS + 7) * _DOT
    columns, line = max(1, width // entry), 7 * _DOT + 10
    strip = _blank(line * -(-len(returns) // columns), max(width, entry)).copy()
    for n, value in enumerate(returns.tolist()):
        top, left = n // columns * line + 5, n % columns * entry + 4
        strip[top : top + _SWATCH, left : left + _SWATCH] = _swatch(n)
        text = _number_mask(value)
        strip[top : top + len(text), left + _SWATCH + 3 * _DOT :][:, : text.shape[1]][text] = _TEXT_COLOUR
    return strip


def stack_vertically(upper: Bytes, lower: Bytes) -> Bytes:
    """Return one picture above the other, the narrower one widened."""
    image = np.empty((len(upper) + len(lower), max(upper.shape[1], lower.shape[1]), 3), np.uint8)
    for rows, picture in ((image[: len(upper)], upper), (image[len(upper) :], lower)):
        rows[:, : picture.shape[1]] = picture
        rows[:, picture.shape[1] :] = _BACKGROUND
    return image


def terminal_view(game: GridEnvironment, world: int = 0) -> Group:
    """Return one world for the terminal, two characters a cell, with its turn and the returns of its agents."""
    returns = Table.grid(padding=(0, 1))
    colours = [_style_colour(agent_colour(n)) for n in range(len(game.agents))]
    for n, agent in enumerate(game.agents):
        returns.add_row(Text("●", colours[n]), str(agent.name), Text(f"{game.earned[n, world]:.4g}", justify="right"))
    columns = Table.grid(padding=(0, 3))
    columns.add_row(_terminal_field(game, world, colours), returns)
    return Group(Text(f"{type(game).__name__}, turn {game.turn}", "bold"), columns)


def _terminal_field(game: GridEnvironment, world: int, colours: list[str]) -> Text:
    """Return the cells of a world, with arrows for agents and crosses for frozen ones."""
    grid, frozen = game.grid, game.frozen()
    agent_at = {(int(y), int(x)): n for n, (y, x) in enumerate(grid.positions[:, world])}
    lines = Text(no_wrap=True)
    for y, row in enumerate(top_codes(grid.cells[world])):
        for x, code in enumerate(row):
            background = _style_colour(grid.field.palette[code] if code else _BACKGROUND)
            n = agent_at.get((y, x))
            if n is None:
                lines.append("  ", Style(bgcolor=background))
                continue
            glyph = "✖" if frozen[n, world] else "▲▶▼◀"[grid.headings[n, world]]
            if code == grid.agent_kinds[n, world]:  # else it is a beam over the agent, which stays visible
                background = _style_colour(_BACKGROUND)
            lines.append(f"{glyph} ", Style(color=colours[n], bgcolor=background, bold=True))
        lines.append("\n")
    return lines


class LivePicture(BaseCallback):
    """Keeps a picture of the first world as it is now in the run folder, for the live page."""

    def __init__(self, game: GridEnvironment, folder: Path) -> None:
        self._game, self._folder = game, folder
        self._throttle = Throttle(every=1.0)

    def on_epoch(self, stats: EpochStats) -> None:
        self._throttle.call(lambda: write_picture(self._folder, self._game.render(), epoch=stats.epoch))


class Recorder(BaseCallback):
    """Records a world in the epochs `every`, 2 * `every`, … and in the last one, as `episode_<epoch>.gif`.

    A thread writes an episode while the run goes on; the next one waits until it has ended.
    Give it to the run: `game.run_experiment(callbacks=[Recorder(game, "pictures", every=50)])`.
    """

    def __init__(
        self, game: GridEnvironment, folder: str | Path, *, every: int, world: int = 0, cell: int = 16, fps: float = 8.0
    ) -> None:
        if every < 1:
            raise ConfigError(f"recording every {every} epochs: give a whole number of at least 1")
        load_imageio(Path("episode.gif"))
        self._game, self._folder, self._every = game, Path(folder), every
        self._world, self._cell, self._fps = world, cell, fps
        self._last_epoch = 0
        self._frames: list[Bytes] = []
        self._writing: Future[Path] | None = None
        self._recorded_epoch = 0
        self.written: list[Path] = []
        """The GIFs so far, without one that is being written."""
        game.recorder = self

    def on_start(self, run: RunInfo) -> None:
        """Store which epoch is the last."""
        self._last_epoch = run.epochs

    @property
    def busy(self) -> bool:
        """Whether the GIF of an earlier epoch is still being written."""
        earlier = self._recorded_epoch < self._game.epoch
        return earlier and self._writing is not None and not self._writing.done()

    @property
    def is_due(self) -> bool:
        """True in the epochs that are recorded."""
        return self._game.epoch % self._every == 0 or self._game.epoch == self._last_epoch

    def capture(self) -> None:
        """Keep a picture of the world before a turn; the game calls it."""
        if self._game.turn == 1:
            self._frames.clear()
        if self.is_due:
            self._frames.append(self._game.render(self._world, self._cell))

    def on_epoch(self, stats: EpochStats) -> None:
        """Begin to write the pictures of the epoch, and one of its end, as a GIF."""
        if self._frames:
            self._finish()
            self._frames.append(self._game.render(self._world, self._cell))
            path = self._folder / f"episode_{stats.epoch:06d}.gif"
            self._writing = in_background(partial(write_animation, path, self._frames, fps=self._fps), "recorder")
            self._frames, self._recorded_epoch = [], stats.epoch

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Wait until the last GIF is written."""
        self._finish()

    def _finish(self) -> None:
        """Wait for the GIF that is being written; raise what was raised there."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            self.written.append(writing.result(_PATIENCE))


def _number_mask(value: float) -> NDArray[np.bool_]:
    """Return (7 dots, characters * 6 dots) where a number is painted, in at most `_CHARACTERS` characters."""
    digits = 2 if abs(value) < 10.0 else 1 if abs(value) < 1000.0 else 0
    text = f"{value:.{digits}f}"
    text = text if len(text) <= _CHARACTERS else f"{value / 1000:.0f}k"
    return np.concatenate([_character_mask(character) for character in text[:_CHARACTERS]], axis=1)


@cache
def _character_mask(character: str) -> NDArray[np.bool_]:
    """Return (7 dots, 6 dots) where a character is painted, with a space after it."""
    dots = (_FONT.get(character, 0) >> np.arange(34, -1, -1) & 1).astype(np.bool_).reshape(7, 5)
    return np.kron(np.pad(dots, ((0, 0), (0, 1))), np.ones((_DOT, _DOT), np.bool_))


@cache
def _blank(height: int, width: int) -> Bytes:
    """Return (height, width, 3) the background."""
    return np.full((height, width, 3), _BACKGROUND, np.uint8)


@lru_cache(maxsize=4096)  # agents stand on few kinds of cells, and are drawn in every turn of a recorded episode
def _agent_tile(cell_picture: bytes, cell: int, agent: int, heading: int) -> Bytes:
    """Return (cell, cell, 3) an agent that stands on a cell of which this is the picture."""
    empty = np.frombuffer(cell_picture, np.uint8).reshape(cell, cell, 3)
    disc = _painted(empty, _disc(cell), agent_colour(agent))
    return _painted(disc, _beak(cell, heading), np.array(_BACKGROUND, np.uint8))


@cache
def _swatch(agent: int) -> Bytes:
    """Return (_SWATCH, _SWATCH, 3) a disc in the colour of an agent."""
    return _painted(np.array(_BACKGROUND, np.uint8), _disc(_SWATCH), agent_colour(agent))


def _painted(image: Bytes, cover: Floats, colour: Bytes) -> Bytes:
    """Return an image (h, w, 3) with a colour where the cover (h, w) is 1, and a mix of both where it is less."""
    painted: Bytes = np.rint(image + cover[..., None] * (colour.astype(np.float32) - image)).astype(np.uint8)
    return painted


@cache
def _square(cell: int) -> NDArray[np.bool_]:
    """Return (cell, cell) where a thing is painted: a square with the background around it."""
    edge = np.minimum(np.arange(cell), np.arange(cell)[::-1])
    return np.minimum.outer(edge, edge) >= max(1, cell // 5)


@cache
def _centre(cell: int) -> NDArray[np.bool_]:
    """Return (cell, cell) the middle of an agent."""
    distance = np.abs(np.arange(cell) - (cell - 1) / 2)
    return np.asarray(np.maximum.outer(distance, distance) <= cell / 8)


@cache
def _cross(cell: int) -> NDArray[np.bool_]:
    """Return (cell, cell) the two diagonals over a frozen agent."""
    down, right = np.indices((cell, cell))
    thickness = max(1, cell // 8)
    return np.asarray((abs(down - right) < thickness) | (abs(down + right - cell + 1) < thickness))


@cache
def _disc(cell: int) -> Floats:
    """Return (cell, cell) how much of each pixel a disc covers."""
    across, along = _fine_grid(cell)
    return _coverage(across**2 + along**2 <= (cell / 2 - 0.5) ** 2)


@cache
def _beak(cell: int, heading: int) -> Floats:
    """Return (cell, cell) how much of each pixel the triangle covers that points where an agent faces."""
    across, along = _fine_grid(cell)  # for an agent that faces up
    triangle = (along > 0.06 * cell) & (np.abs(across) < 0.26 * cell * (1.0 - (along / cell - 0.06) / 0.36))
    return np.rot90(_coverage(triangle), -heading)


def _fine_grid(cell: int) -> tuple[Floats, Floats]:
    """Return coordinates, to the right and up from the middle, of the points that smooth edges are computed from."""
    points = (np.arange(cell * _SUBPIXELS, dtype=np.float32) + 0.5) / _SUBPIXELS - cell / 2
    across, down = np.meshgrid(points.astype(np.float32), points.astype(np.float32))
    return across, -down


def _coverage(inside: NDArray[np.bool_]) -> Floats:
    cell = len(inside) // _SUBPIXELS
    covered: Floats = inside.reshape(cell, _SUBPIXELS, cell, _SUBPIXELS).mean(axis=(1, 3), dtype=np.float32)
    return covered


def _style_colour(rgb: Sequence[int] | Bytes) -> str:
    """Return a colour as rich's styles name it."""
    red, green, blue = (int(part) for part in rgb)
    return f"rgb({red},{green},{blue})"
