"""What a grid game declares: the kinds of things, and the initial field as maps of glyphs.

>>> gem = Kind("gem", "g", (60, 200, 90), value=10.0)
>>> field = Field([WALL, gem], '''####
...                               #.g#
...                               ####''')
>>> field.height, field.width, field.sites().tolist(), field.sites("gem").tolist()
(3, 4, [[1, 1]], [[1, 2]])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallel_agents.core.errors import ConfigError
from parallel_agents.games.kernels import Bytes, Ints

EMPTY = "."
"""The glyph of an empty cell."""
_MAX_KINDS = 255


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of thing that can lie or stand in a cell."""

    name: str
    glyph: str
    """One character, for maps and text."""
    colour: tuple[int, int, int]
    """Red, green and blue, 0 to 255."""
    value: float = 0.0
    """The reward for entering its cell."""
    passable: bool = True
    """Whether an agent may enter its cell."""


WALL = Kind("wall", "#", (96, 100, 112), passable=False)
AGENT = Kind("agent", "a", (250, 250, 250), passable=False)


class Field:
    """Kinds of things, and one map per layer, the lowest first.

    A kind is stored as its code: 1 for the first kind; 0 means nothing. Agents stand on the last layer, or on `layer`
    if something, such as a beam, lies above them. Things on their layer block them or are removed when they enter;
    things on other layers stay. `outside` names the kind beyond the edge of the field.
    """

    def __init__(self, kinds: Sequence[Kind], *maps: str, outside: str = "wall", layer: int | None = None) -> None:
        self.kinds = tuple(kinds)
        _check_kinds(self.kinds)
        self._codes = {kind.name: code for code, kind in enumerate(self.kinds, 1)}
        self.cells = _parse_maps(self.kinds, maps)
        """(L, H, C) the codes of the initial field."""
        self.height, self.width = self.cells.shape[1:]
        self.layer = len(maps) - 1 if layer is None else layer
        if not 0 <= self.layer < len(maps):
            raise ConfigError(f"agents on layer {layer} of a field with {len(maps)}: give 0 to {len(maps) - 1}")
        self.values = np.array([0.0, *(kind.value for kind in self.kinds)], np.float32)
        """(K + 1,) the reward for entering each code."""
        self.passable = np.array([True, *(kind.passable for kind in self.kinds)])
        """(K + 1,) whether each code may be entered."""
        self.palette = np.array([(0, 0, 0), *(kind.colour for kind in self.kinds)], np.uint8)
        """(K + 1, 3) the colour of each code."""
        self.outside = self.blocking_code(outside)

    def code(self, name: str) -> int:
        """Return the code of a kind."""
        if name not in self._codes:
            raise ConfigError(f"there is no kind {name!r} in this game: there are {', '.join(self._codes)}")
        return self._codes[name]

    def blocking_code(self, name: str) -> int:
        """Return the code of a kind that must not be passable: an agent, or the kind outside the field."""
        if self.kinds[self.code(name) - 1].passable:
            raise ConfigError(f"the kind {name!r} is passable, but agents must not enter it: give it passable=False")
        return self.code(name)

    def sites(self, name: str | None = None) -> Ints:
        """Return (S, 2) the cells with `name`, or nothing, on the agents' layer that no other layer blocks."""
        open_cells = self.passable[np.delete(self.cells, self.layer, axis=0)].all(axis=0)
        matching = self.cells[self.layer] == (0 if name is None else self.code(name))
        return np.ascontiguousarray(np.argwhere(matching & open_cells), np.int32)


def blank_map(height: int, width: int) -> str:
    """Return the map of an empty layer.

    >>> blank_map(2, 3).split()
    ['...', '...']
    """
    return "\n".join([EMPTY * width] * height)


def walled_map(height: int, width: int, wall: str = "#") -> str:
    """Return the map of an empty field surrounded by a wall.

    >>> print(walled_map(3, 4))
    ####
    #..#
    ####
    """
    if height < 3 or width < 3:
        raise ConfigError(f"a walled field of {height} x {width} has no room inside: give at least 3 x 3")
    inside = wall + EMPTY * (width - 2) + wall
    return "\n".join([wall * width, *[inside] * (height - 2), wall * width])


def _check_kinds(kinds: Sequence[Kind]) -> None:
    """Raise an error for kinds that cannot be told apart, stored or drawn."""
    if not 1 <= len(kinds) <= _MAX_KINDS:
        raise ConfigError(f"a game with {len(kinds)} kinds: give 1 to {_MAX_KINDS}")
    for attribute in ("name", "glyph"):
        values = [getattr(kind, attribute) for kind in kinds]
        if len(set(values)) < len(values):
            raise ConfigError(
                f"two kinds have the same {attribute}: found {', '.join(map(repr, values))}; make them differ"
            )
    for kind in kinds:
        if len(kind.glyph) != 1 or kind.glyph.isspace() or kind.glyph == EMPTY:
            raise ConfigError(
                f"the kind {kind.name!r} has the glyph {kind.glyph!r}: give one character, neither blank nor {EMPTY!r}"
            )
        if len(kind.colour) != 3 or not all(0 <= part <= 255 for part in kind.colour):
            raise ConfigError(f"the kind {kind.name!r} has the colour {kind.colour}: give three numbers from 0 to 255")


def _parse_maps(kinds: Sequence[Kind], maps: Sequence[str]) -> Bytes:
    """Return (L, H, C) the codes of the maps; blanks around a row are indentation, not cells."""
    codes = {EMPTY: 0, **{kind.glyph: code for code, kind in enumerate(kinds, 1)}}
    layers = [[line.strip() for line in text.split("\n") if line.strip()] for text in maps]
    shapes = {(len(lines), *sorted({len(line) for line in lines})) for lines in layers}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise ConfigError(
            "a field needs at least one map, with all rows of one length and all maps of one height: "
            f"found (rows, lengths) {sorted(shapes)}"
        )
    unknown = {glyph for lines in layers for line in lines for glyph in line} - set(codes)
    if unknown:
        raise ConfigError(f"the map has {sorted(unknown)}, which no kind has as its glyph: there are {' '.join(codes)}")
    return np.array([[[codes[glyph] for glyph in line] for line in lines] for lines in layers], np.uint8)
