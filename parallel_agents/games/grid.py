"""The state of W grid worlds with N agents in each, as arrays, and what may happen to it.

Whatever happens, an agent stands in exactly one cell, alone there, and never where it may not enter.

>>> from parallel_agents.games.field import Field, Kind, walled
>>> kinds = [Kind("wall", "#", (90, 90, 90), passable=False), Kind("gem", "g", (60, 200, 90), value=10.0),
...          Kind("agent", "a", (250, 250, 250), passable=False)]
>>> field = Field(kinds, walled(4, 6))
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

from parallel_agents.errors import ActionError, ConfigError, ContractError, ShapeError
from parallel_agents.games import kernels
from parallel_agents.games.field import EMPTY, Field
from parallel_agents.games.kernels import Bytes, Chances, Flags, Ints, Moment, Stream
from parallel_agents.games.steps import step_table
from parallel_agents.types import Array

__all__ = ["Grid", "Spawning", "uppermost"]


@dataclass(frozen=True, slots=True)
class Spawning:
    """What appears by itself, where, and how likely; `Grid.spawning` makes one."""

    kinds: Bytes
    over: int
    """What must lie there before: 0 for nothing."""
    chances: Chances
    """(W,)"""
    sites: Ints
    layer: int
    number: int
    """Its place among the rules of its grid that draw, which addresses its draws."""


class Grid:
    """W copies of a field, with N agents in each.

    Agents look like the kind `looks`, or each like its own. `radius` says how far a `Sight` may reach. The
    actions are moves, absolute (up, down, left, right: an agent faces where it goes) or relative to where it
    faces (forward, backward, step_left, step_right, turn_left, turn_right), or stay; `deeds` names further
    ones, in which an agent stays where it is and the game does the rest.
    """

    def __init__(
        self,
        field: Field,
        *,
        agents: int,
        worlds: int = 1,
        radius: int = 1,
        looks: str | Sequence[str] = "agent",
        actions: Sequence[str] = ("up", "down", "left", "right"),
        deeds: Sequence[str] = (),
    ) -> None:
        self.field = field
        self.starts = field.sites()
        """(S, 2) where agents may stand on a fresh field."""
        _check_sizes(agents, worlds, radius, len(self.starts))
        self.actions = (*actions, *deeds)
        self._steps = step_table(self.actions, deeds)
        self.margin = max(radius, 1)
        """Cells around the field, so that neither a window nor a step can leave the array."""
        self._bare = _surrounded(field, self.margin)
        self.padded = np.repeat(self._bare[None], worlds, axis=0)
        """(W, L, H + 2m, C + 2m) the cells with their margin, as kernels take them."""
        inner = slice(self.margin, -self.margin)
        self.cells = self.padded[:, :, inner, inner]
        """(W, L, H, C) the code of what lies where: a view of `padded`."""
        self.positions = np.zeros((agents, worlds, 2), np.int32)
        """(N, W, 2) row and column of each agent. Read it; `fresh`, `move` and `put` write it."""
        self.headings = np.zeros((agents, worlds), np.uint8)
        """(N, W) which way each agent faces: 0 up, 1 right, 2 down, 3 left."""
        self.looks = _look_table(field, looks, agents, worlds)
        """(N, W) the code of the kind as which each agent is seen."""
        self._everyone = np.ones((agents, worlds), np.bool_)
        self._everywhere = np.ones(worlds, np.bool_)
        self._rules = 0
        self._stand()

    def number(self) -> int:
        """A number for one more rule that draws, which addresses its draws."""
        self._rules += 1
        return self._rules - 1

    def fresh(self, moment: Moment, which: Flags | None = None) -> None:
        """Put the bare field into the worlds of the (W,) mask, their agents on cells drawn at `moment`."""
        which = self.worlds_of(which)
        kernels.clear(self.padded, self._bare, which)
        kernels.place(
            self.padded, self.margin, self.field.layer, self.positions, self.headings, self.looks,
            self.starts, moment, which,
        )  # fmt: skip

    def spawning(
        self,
        *names: str,
        probability: float,
        sites: Ints | None = None,
        layer: int | None = None,
        over: str | None = None,
    ) -> Spawning:
        """A rule for `spawn`: the kinds, equally likely, and the sites (None: wherever agents may stand).

        They appear where nothing lies, or where `over` lies and is gone then.
        """
        if not 0.0 <= probability <= 1.0:
            raise ConfigError(f"things appear with probability {probability}: give a number from 0 to 1")
        if not names:
            raise ConfigError("no kind is named that should appear: name at least one")
        codes = np.array([self.field.code(name) for name in names], np.uint8)
        layer = self.field.layer if layer is None else layer
        if not 0 <= layer < len(self.field.cells):
            raise ConfigError(f"things appear on layer {layer}: give 0 to {len(self.field.cells) - 1}")
        chances = np.full(len(self._everywhere), float(probability))
        under = 0 if over is None else self.field.code(over)
        return Spawning(codes, under, chances, self.checked_sites(sites), layer, self.number())

    def checked_sites(self, sites: Array | None) -> Ints:
        """(S, 2) cells, for kernels, which check nothing; None: wherever agents may stand on a fresh field."""
        sites = self.starts if sites is None else np.ascontiguousarray(sites, np.int32)
        size = self.field.height, self.field.width
        if sites.ndim != 2 or sites.shape[1] != 2 or (sites < 0).any() or (sites >= size).any():
            raise ConfigError(f"things appear on sites that are no cells of a field of {size}: give rows and columns")
        return sites

    def spawn(
        self,
        rule: Spawning,
        moment: Moment,
        stream: Stream = Stream.SPAWN,
        which: Flags | None = None,
        chances: Chances | None = None,
    ) -> None:
        """Let things appear in the worlds of the mask; `chances`, (W,), in place of the rule's own."""
        kernels.spawn(
            self.padded, self.margin, rule.layer, rule.sites, rule.kinds, rule.over,
            rule.chances if chances is None else _chances(chances, rule.chances), moment, stream + rule.number,
            self.worlds_of(which),
        )  # fmt: skip

    def worlds_of(self, which: Flags | None) -> Flags:
        """A (W,) mask for kernels; None: every world."""
        return self._everywhere if which is None else _mask(which, self._everywhere)

    def agents_of(self, which: Flags | None) -> Flags:
        """An (N, W) mask for kernels; None: everyone."""
        return self._everyone if which is None else _mask(which, self._everyone)

    def move(self, actions: Array, first: int = 0, able: Flags | None = None) -> Bytes:
        """Let the agents from `first` on do their (n, W) actions, in list order; (n, W) what they entered.

        What is entered is given as its code, or 0 where an agent stays, is blocked, or is not `able`, (N, W).
        """
        self._check_actions(actions, first)
        entered = np.empty(actions.shape, np.uint8)
        wrong = kernels.move(
            self.padded, self.margin, self.field.layer, self.positions, self.headings, self.looks,
            self.field.passable, self._steps, np.ascontiguousarray(actions, np.int64), first,
            self.agents_of(able), entered,
        )  # fmt: skip
        if wrong >= 0:
            agent, world = divmod(wrong, actions.shape[1])
            raise ActionError(
                f"agent {first + agent} did action {actions[agent, world]} in world {world}: "
                f"give 0 to {len(self.actions) - 1} ({', '.join(self.actions)})"
            )
        return entered

    def put(self, agent: int, world: int, cell: tuple[int, int]) -> None:
        """Stand an agent on another cell; what lies there on its layer is gone."""
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
        layer[cell] = self.looks[agent, world]
        self.positions[agent, world] = cell

    def look(self, codes: Array) -> None:
        """Let the agents be seen as the (N, W) codes from now on."""
        if codes.shape != self.looks.shape or self.field.passable[codes].any():
            raise ContractError(f"looks of shape {codes.shape}: give codes {self.looks.shape} of kinds not passable")
        self.looks[:] = codes
        worlds = np.arange(codes.shape[1])
        self.cells[worlds, self.field.layer, self.positions[..., 0], self.positions[..., 1]] = self.looks

    def text(self, world: int = 0) -> str:
        """A world in glyphs, of each cell the uppermost thing."""
        glyphs = np.array([EMPTY, *(kind.glyph for kind in self.field.kinds)])
        return "\n".join("".join(row) for row in glyphs[uppermost(self.cells[world])])

    def _check_actions(self, actions: Array, first: int) -> None:
        agents, worlds = self.headings.shape
        if actions.ndim != 2 or actions.shape[1] != worlds or not 0 <= first <= agents - len(actions):
            raise ShapeError(
                f"actions of shape {actions.shape} for the agents from {first} on: there are {agents} agents "
                f"in {worlds} worlds; give one row per agent, one column per world"
            )
        if actions.dtype.kind not in "iu":
            raise ShapeError(f"actions of type {actions.dtype}: give whole numbers")

    def _stand(self) -> None:
        """Before the first `fresh` the agents stand on the first cells they can, in reading order."""
        for n, (y, x) in enumerate(self.starts[: len(self.positions)]):
            self.positions[n] = y, x
            self.cells[:, self.field.layer, y, x] = self.looks[n]


def _mask(mask: Flags, like: Flags) -> Flags:
    """A mask from outside, for kernels, which check nothing."""
    if mask.shape != like.shape or mask.dtype != np.bool_:
        raise ShapeError(f"a mask came as {mask.dtype} {mask.shape}: give bool {like.shape}")
    return np.ascontiguousarray(mask)


def _chances(chances: Chances, like: Chances) -> Chances:
    """Probabilities from outside, for kernels."""
    if chances.shape != like.shape or not ((chances >= 0.0) & (chances <= 1.0)).all():
        raise ShapeError(
            f"chances of shape {chances.shape}, {chances.min()} to {chances.max()}: "
            f"give one per world, {like.shape}, from 0 to 1"
        )
    return np.ascontiguousarray(chances, np.float64)


def uppermost(cells: Bytes) -> Bytes:
    """(L, H, C) -> (H, C): of each cell the code of what lies highest.

    >>> uppermost(np.array([[[1, 2]], [[0, 3]]], np.uint8)).tolist()
    [[1, 3]]
    """
    top: Bytes = cells[0]
    for layer in cells[1:]:
        top = np.where(layer > 0, layer, top)
    return top


def _check_sizes(agents: int, worlds: int, radius: int, room: int) -> None:
    for name, found, least in (("agents", agents, 1), ("worlds", worlds, 1), ("radius", radius, 0)):
        if found < least:
            raise ConfigError(f"a grid with {name} = {found}: give a whole number of at least {least}")
    if room < agents:
        raise ConfigError(f"{agents} agents on a field with {room} free cells: enlarge the field or take fewer agents")


def _look_table(field: Field, looks: str | Sequence[str], agents: int, worlds: int) -> Bytes:
    names = [looks] * agents if isinstance(looks, str) else list(looks)
    if len(names) != agents:
        raise ConfigError(f"{len(names)} looks for {agents} agents: give one for all, or one for each")
    codes = np.array([field.blocking(name) for name in names], np.uint8)
    return np.repeat(codes[:, None], worlds, axis=1)


def _surrounded(field: Field, margin: int) -> Bytes:
    """(L, H + 2m, C + 2m) the bare field, with what lies outside around the agents' layer."""
    padded = np.pad(field.cells, ((0, 0), (margin, margin), (margin, margin)))
    padded[field.layer] = np.pad(field.cells[field.layer], margin, constant_values=field.outside)
    return padded
