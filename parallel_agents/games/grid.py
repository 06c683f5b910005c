"""What a grid game declares (the kinds of things, and maps of glyphs), and the state of its worlds and agents.

An agent always stands in exactly one cell, alone, and never in a cell that it may not enter.

>>> field = Field([WALL, Kind("gem", "g", (60, 200, 90), value=10.0), AGENT], walled_map(4, 6))
>>> grid = Grid(field, agents=1)
>>> grid.cells[0, 0, 1, 2] = field.code("gem")
>>> print(grid.text())
######
#ag..#
#....#
######
>>> entered = grid.move(np.array([[grid.actions.index("right")]]))
>>> print(grid.text(), field.values[entered])
######
#.a..#
#....#
###### [[10.]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.by_reference import by_reference
from parallel_agents.core.errors import ActionError, ConfigError, ContractError, ShapeError
from parallel_agents.core.types import Array
from parallel_agents.games import kernels
from parallel_agents.games.kernels import Bytes, Flags, GridArrays, Ints, TurnKey

# -- what a game declares --------------------------------------------------------------------------------------------

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

    >>> field = Field([WALL, Kind("gem", "g", (60, 200, 90), value=10.0)], "#.g#")
    >>> field.height, field.width, field.sites().tolist(), field.sites("gem").tolist()
    (1, 4, [[0, 1]], [[0, 2]])
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


# -- worlds and agents -----------------------------------------------------------------------------------------------

DIRECTIONS = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])
"""Row and column offsets of up, right, down and left. Headings count clockwise, so that turning is adding."""
MOVES = ("up", "down", "left", "right", "stay")
"""The moves of most games."""
MOVE_OFFSETS = np.array([(-1, 0), (1, 0), (0, -1), (0, 1), (0, 0)])
"""Row and column offsets of `MOVES`."""
TURNING_MOVES = ("forward", "backward", "step_left", "step_right", "turn_left", "turn_right", "stay")
"""The moves of games in which the heading of an agent matters."""
ABSOLUTE_MOVES = {"up": 0, "right": 1, "down": 2, "left": 3}
"""A step in that direction; the agent then faces there."""
RELATIVE_MOVES = {"forward": 0, "step_right": 1, "backward": 2, "step_left": 3}
"""A step in that direction, counted from the heading, which does not change."""
_TURNS = {"stay": 0, "turn_right": 1, "turn_left": 3}
"""No step; the number is added to the heading."""


class Grid:
    """W copies of a field, with N agents in each.

    All agents appear as the kind `agent_kinds`, or each as its own. `radius` is the largest radius of observation
    windows. The actions are moves: absolute (up, down, left, right; an agent faces where it goes), relative to its
    heading (forward, backward, step_left, step_right, turn_left, turn_right), or stay. `extra_actions` names further
    actions, in which an agent stays where it is and the game decides the effect.
    """

    def __init__(
        self,
        field: Field,
        *,
        agents: int,
        worlds: int = 1,
        radius: int = 1,
        agent_kinds: str | Sequence[str] = "agent",
        actions: Sequence[str] = ("up", "down", "left", "right"),
        extra_actions: Sequence[str] = (),
    ) -> None:
        self.field = field
        self.starts = field.sites()
        """(S, 2) the cells in which agents may start."""
        _check_sizes(agents, worlds, radius, len(self.starts))
        self.actions = (*actions, *extra_actions)
        self.step_table = _step_table(self.actions, extra_actions)
        """(A, 4, 3) rows, columns and new heading of each action for each heading."""
        self.margin = max(radius, 1)
        """Cells around the field, so that neither a window nor a step can leave the array."""
        self.template = _with_margin(field, self.margin)
        """(L, H + 2m, C + 2m) the initial field with its margin."""
        self.padded = np.repeat(self.template[None], worlds, axis=0)
        """(W, L, H + 2m, C + 2m) the cells with their margin."""
        inner = slice(self.margin, -self.margin)
        self.cells = self.padded[:, :, inner, inner]
        """(W, L, H, C) the code in each cell: a view of `padded`."""
        self.positions = np.zeros((agents, worlds, 2), np.int32)
        """(N, W, 2) row and column of each agent. Read only; `reset`, `move` and `place_agent` write it."""
        self.headings = np.zeros((agents, worlds), np.uint8)
        """(N, W) the direction each agent faces: 0 up, 1 right, 2 down, 3 left."""
        self.agent_kinds = _agent_codes(field, agent_kinds, agents, worlds)
        """(N, W) the code of the kind as which each agent appears."""
        self.arrays = by_reference(
            GridArrays(
                self.padded, self.margin, field.layer, self.positions, self.headings, self.agent_kinds, field.passable
            )
        )
        """What kernels take."""
        self._all_agents = np.ones((agents, worlds), np.bool_)
        self._all_worlds = np.ones(worlds, np.bool_)
        self._rules = 0
        for n, (y, x) in enumerate(self.starts[:agents]):  # until the first `reset`
            self.positions[n] = y, x
            self.cells[:, field.layer, y, x] = self.agent_kinds[n]

    def new_rule_number(self) -> int:
        """Return the number of one more rule that draws; it addresses the draws of that rule."""
        self._rules += 1
        return self._rules - 1

    def reset(self, turn_key: TurnKey, world_mask: Flags | None = None) -> None:
        """Put the initial field into the worlds of the (W,) mask, and their agents on random cells."""
        mask = self.world_mask(world_mask)
        kernels.reset(self.padded, self.template, mask)
        kernels.place(self.arrays, self.starts, turn_key, mask)

    def count(self, name: str, sites: Ints, layer: int) -> Ints:
        """Return (W,) the number of sites, as `check_sites` returns them, on which a kind lies."""
        counts: Ints = kernels.count(self.padded, self.margin, layer, sites, self.field.code(name))
        return counts

    def check_sites(self, sites: Array | None) -> Ints:
        """Return (S, 2) cells for kernels, which check nothing; None: all cells in which agents may start."""
        sites = self.starts if sites is None else np.ascontiguousarray(sites, np.int32)
        size = self.field.height, self.field.width
        if sites.ndim != 2 or sites.shape[1] != 2 or (sites < 0).any() or (sites >= size).any():
            raise ConfigError(f"things appear on sites that are no cells of a field of {size}: give rows and columns")
        return sites

    def world_mask(self, mask: Flags | None) -> Flags:
        """Return a checked (W,) mask; None: all worlds."""
        return self._all_worlds if mask is None else _check_mask(mask, self._all_worlds)

    def agent_mask(self, mask: Flags | None) -> Flags:
        """Return a checked (N, W) mask; None: all agents."""
        return self._all_agents if mask is None else _check_mask(mask, self._all_agents)

    def move(self, actions: Array, first: int = 0, able: Flags | None = None) -> Bytes:
        """Let the agents from `first` on take their (n, W) actions in list order; return (n, W) the codes they entered.

        The code is 0 where an agent stays, is blocked, or is not `able`, (N, W).
        """
        self._check_actions(actions, first)
        entered = np.empty(actions.shape, np.uint8)
        chosen = np.ascontiguousarray(actions, np.int64)
        invalid = kernels.move(self.arrays, self.agent_mask(able), self.step_table, chosen, first, entered)
        if invalid >= 0:
            agent, world = divmod(invalid, actions.shape[1])
            raise ActionError(
                f"agent {first + agent} did action {actions[agent, world]} in world {world}: "
                f"give 0 to {len(self.actions) - 1} ({', '.join(self.actions)})"
            )
        return entered

    def place_agent(self, agent: int, world: int, cell: tuple[int, int]) -> None:
        """Move an agent to another cell; what lies there on its layer is removed."""
        if not (0 <= cell[0] < self.field.height and 0 <= cell[1] < self.field.width):
            raise ContractError(f"agent {agent} cannot stand on {cell} of world {world}: it is outside of the field")
        codes = self.cells[world, :, cell[0], cell[1]]
        layer = self.cells[world, self.field.layer]
        if not self.field.passable[codes].all():
            names = [self.field.kinds[code - 1].name for code in codes if not self.field.passable[code]]
            raise ContractError(
                f"agent {agent} cannot stand on {cell} of world {world}: {names[0]} is there; choose a free cell"
            )
        layer[tuple(self.positions[agent, world])] = 0
        layer[cell] = self.agent_kinds[agent, world]
        self.positions[agent, world] = cell

    def set_agent_kinds(self, codes: Array) -> None:
        """Let the agents appear as the (N, W) codes from now on."""
        if codes.shape != self.agent_kinds.shape or self.field.passable[codes].any():
            shape = self.agent_kinds.shape
            raise ContractError(f"agent kinds of shape {codes.shape}: give codes {shape} of kinds agents cannot enter")
        self.agent_kinds[:] = codes
        worlds = np.arange(codes.shape[1])
        self.cells[worlds, self.field.layer, self.positions[..., 0], self.positions[..., 1]] = self.agent_kinds

    def text(self, world: int = 0) -> str:
        """Return a world as glyphs, the topmost thing of each cell."""
        glyphs = np.array([EMPTY, *(kind.glyph for kind in self.field.kinds)])
        return "\n".join("".join(row) for row in glyphs[top_codes(self.cells[world])])

    def _check_actions(self, actions: Array, first: int) -> None:
        agents, worlds = self.headings.shape
        if actions.ndim != 2 or actions.shape[1] != worlds or not 0 <= first <= agents - len(actions):
            raise ShapeError(
                f"actions of shape {actions.shape} for the agents from {first} on: there are {agents} agents "
                f"in {worlds} worlds; give one row per agent, one column per world"
            )
        if actions.dtype.kind not in "iu":
            raise ShapeError(f"actions of type {actions.dtype}: give whole numbers")


def top_codes(cells: Bytes) -> Bytes:
    """Return (H, C) the topmost code of each cell of (L, H, C) layers.

    >>> top_codes(np.array([[[1, 2]], [[0, 3]]], np.uint8)).tolist()
    [[1, 3]]
    """
    top: Bytes = cells[0]
    for layer in cells[1:]:
        top = np.where(layer > 0, layer, top)
    return top


def values_at(values: Array, cells: Array) -> Array:
    """Return (N, W, …) the values of (W, H, C), or of each agent's own (N, W, H, C), at the cells (N, W, …, 2)."""
    y, x = cells[..., 0], cells[..., 1]
    agents, worlds = (np.arange(size).reshape(-1, *[1] * (y.ndim - 1 - axis)) for axis, size in enumerate(y.shape[:2]))
    return np.asarray(values[worlds, y, x] if values.ndim == 3 else values[agents, worlds, y, x])


def _check_mask(mask: Flags, like: Flags) -> Flags:
    """Return a mask for kernels, which check nothing, or raise an error if its shape or type is wrong."""
    if mask.shape != like.shape or mask.dtype != np.bool_:
        raise ShapeError(f"a mask came as {mask.dtype} {mask.shape}: give bool {like.shape}")
    return np.ascontiguousarray(mask)


def _check_sizes(agents: int, worlds: int, radius: int, starts: int) -> None:
    for name, value, least in (("agents", agents, 1), ("worlds", worlds, 1), ("radius", radius, 0)):
        if value < least:
            raise ConfigError(f"a grid with {name} = {value}: give a whole number of at least {least}")
    if starts < agents:
        raise ConfigError(f"{agents} agents on a field with {starts} free cells: enlarge it or take fewer agents")


def _agent_codes(field: Field, kinds: str | Sequence[str], agents: int, worlds: int) -> Bytes:
    """Return (N, W) the codes of the kinds as which agents appear: one kind for all, or one for each."""
    names = [kinds] * agents if isinstance(kinds, str) else list(kinds)
    if len(names) != agents:
        raise ConfigError(f"{len(names)} kinds for {agents} agents: give one for all, or one for each")
    codes = np.array([field.blocking_code(name) for name in names], np.uint8)
    return np.repeat(codes[:, None], worlds, axis=1)


def _with_margin(field: Field, margin: int) -> Bytes:
    """Return (L, H + 2m, C + 2m) the initial field, with the outside kind around the agents' layer."""
    padded = np.pad(field.cells, ((0, 0), (margin, margin), (margin, margin)))
    padded[field.layer] = np.pad(field.cells[field.layer], margin, constant_values=field.outside)
    return padded


def _step_table(actions: Sequence[str], extra_actions: Sequence[str]) -> NDArray[np.int8]:
    """Return (A, 4, 3) rows, columns and new heading of each action for each heading; extra actions change nothing."""
    known = [*_TURNS, *ABSOLUTE_MOVES, *RELATIVE_MOVES]
    if not actions or not set(actions) <= {*known, *extra_actions}:
        raise ConfigError(
            f"the actions are {list(actions)}: name at least one, all of them out of {', '.join(known)}"
            + (f", or the game's own {', '.join(extra_actions)}" if extra_actions else "")
        )
    table = np.zeros((len(actions), 4, 3), np.int8)
    for row, name in zip(table, actions, strict=True):
        for heading in range(4):
            if name in ABSOLUTE_MOVES:
                row[heading] = *DIRECTIONS[ABSOLUTE_MOVES[name]], ABSOLUTE_MOVES[name]
            elif name in RELATIVE_MOVES:
                row[heading] = *DIRECTIONS[(heading + RELATIVE_MOVES[name]) % 4], heading
            else:
                row[heading] = 0, 0, (heading + _TURNS.get(name, 0)) % 4
    return table
