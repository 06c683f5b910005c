"""What a grid game declares and nothing changes: the kinds of things, and the bare field as a map of glyphs.

>>> wall = Kind("wall", "#", (90, 90, 90), passable=False)
>>> gem = Kind("gem", "g", (60, 200, 90), value=10.0)
>>> field = Field([wall, gem], '''####
...                               #.g#
...                               ####''')
>>> field.height, field.width, field.sites().tolist(), field.sites("gem").tolist()
(3, 4, [[1, 1]], [[1, 2]])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallel_agents.errors import ConfigError
from parallel_agents.games.kernels import Bytes, Ints

__all__ = ["EMPTY", "Field", "Kind", "blank", "walled"]

EMPTY = "."
"""The glyph of a cell in which nothing lies."""
_MOST_KINDS = 255


@dataclass(frozen=True, slots=True)
class Kind:
    """What may lie or stand in a cell."""

    name: str
    glyph: str
    """One character, for maps and text."""
    colour: tuple[int, int, int]
    """Red, green and blue, 0 to 255."""
    value: float = 0.0
    """What an agent earns by entering its cell."""
    passable: bool = True
    """Whether an agent may enter its cell."""


class Field:
    """Kinds, and one map per layer, the lowest first.

    A kind is stored as its code: 1 for the first one, 0 stands for nothing. Agents stand on the last layer,
    or on `layer` where something, such as a beam, is to lie above them. What else lies on their layer blocks
    them or is gone once they enter; what lies on other layers stays. `outside` is what lies beyond the field.
    """

    def __init__(self, kinds: Sequence[Kind], *maps: str, outside: str = "wall", layer: int | None = None) -> None:
        self.kinds = tuple(kinds)
        _check_kinds(self.kinds)
        self._codes = {kind.name: code for code, kind in enumerate(self.kinds, 1)}
        self.cells = _read(self.kinds, maps)
        """(L, H, C) the bare field."""
        self.height, self.width = self.cells.shape[1:]
        self.layer = len(maps) - 1 if layer is None else layer
        if not 0 <= self.layer < len(maps):
            raise ConfigError(f"agents on layer {layer} of a field with {len(maps)}: give 0 to {len(maps) - 1}")
        self.values = np.array([0.0, *(kind.value for kind in self.kinds)], np.float32)
        """(K + 1,) what entering each code pays."""
        self.passable = np.array([True, *(kind.passable for kind in self.kinds)])
        """(K + 1,) whether each code may be entered."""
        self.palette = np.array([(0, 0, 0), *(kind.colour for kind in self.kinds)], np.uint8)
        """(K + 1, 3) the colour of each code."""
        self.outside = self.blocking(outside)

    def code(self, name: str) -> int:
        """The number by which a kind is stored."""
        if name not in self._codes:
            raise ConfigError(f"there is no kind {name!r} in this game: there are {', '.join(self._codes)}")
        return self._codes[name]

    def blocking(self, name: str) -> int:
        """The code of a kind that must not be passable: an agent, or what lies outside."""
        if self.kinds[self.code(name) - 1].passable:
            raise ConfigError(f"the kind {name!r} is passable, but agents must not enter it: give it passable=False")
        return self.code(name)

    def sites(self, name: str | None = None) -> Ints:
        """(S, 2) the cells where `name`, or nothing, lies on the agents' layer and no other layer blocks."""
        open_ = self.passable[np.delete(self.cells, self.layer, axis=0)].all(axis=0)
        here = self.cells[self.layer] == (0 if name is None else self.code(name))
        return np.argwhere(here & open_).astype(np.int32)


def blank(height: int, width: int) -> str:
    """The map of a layer on which nothing lies at first.

    >>> blank(2, 3).split()
    ['...', '...']
    """
    return "\n".join([EMPTY * width] * height)


def walled(height: int, width: int, wall: str = "#") -> str:
    """The map of an empty field within a wall.

    >>> print(walled(3, 4))
    ####
    #..#
    ####
    """
    if height < 3 or width < 3:
        raise ConfigError(f"a walled field of {height} x {width} has no room inside: give at least 3 x 3")
    inside = wall + EMPTY * (width - 2) + wall
    return "\n".join([wall * width, *[inside] * (height - 2), wall * width])


def _check_kinds(kinds: Sequence[Kind]) -> None:
    if not 1 <= len(kinds) <= _MOST_KINDS:
        raise ConfigError(f"a game with {len(kinds)} kinds: give 1 to {_MOST_KINDS}")
    for what in ("name", "glyph"):
        seen = [getattr(kind, what) for kind in kinds]
        if len(set(seen)) < len(seen):
            raise ConfigError(f"two kinds have the same {what}: found {', '.join(map(repr, seen))}; make them differ")
    for kind in kinds:
        if len(kind.glyph) != 1 or kind.glyph.isspace() or kind.glyph == EMPTY:
            raise ConfigError(
                f"the kind {kind.name!r} has the glyph {kind.glyph!r}: give one character, neither blank nor {EMPTY!r}"
            )
        if len(kind.colour) != 3 or not all(0 <= part <= 255 for part in kind.colour):
            raise ConfigError(f"the kind {kind.name!r} has the colour {kind.colour}: give three numbers from 0 to 255")


def _read(kinds: Sequence[Kind], maps: Sequence[str]) -> Bytes:
    """(L, H, C) codes from texts; blanks around a row are layout, not cells."""
    codes = {EMPTY: 0, **{kind.glyph: code for code, kind in enumerate(kinds, 1)}}
    layers = [[line.strip() for line in text.split("\n") if line.strip()] for text in maps]
    shapes = {(len(lines), *sorted({len(line) for line in lines})) for lines in layers}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise ConfigError(
            "a field needs at least one map, with all rows of one length and all maps of one height: "
            f"found (rows, lengths) {sorted(shapes)}"
        )
    strange = {glyph for lines in layers for line in lines for glyph in line} - set(codes)
    if strange:
        raise ConfigError(f"the map has {sorted(strange)}, which no kind has as its glyph: there are {' '.join(codes)}")
    return np.array([[[codes[glyph] for glyph in line] for line in lines] for lines in layers], np.uint8)
