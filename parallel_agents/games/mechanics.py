"""Mechanics that games share: beams, things that appear or regrow, agents that respawn, and neighbours.

A mechanic is an object made once for a grid. Each one that draws has a number, so that no two share a draw. In the
`parts` of a game it takes effect by itself (`rows` says when and how); a game may also call it in its own hooks.

>>> from parallel_agents.games.grid import AGENT, WALL, Field, Kind
>>> grid = Grid(Field([WALL, AGENT, Kind("ray", "*", (250, 250, 90))], "....#..", ".......", layer=0), agents=2)
>>> grid.place_agent(1, 0, (0, 3))
>>> grid.headings[:] = 1  # they face right
>>> hits = Beam(grid, "ray", length=5, hits_agents=True).fire(np.array([[True], [False]]))
>>> print(grid.text(), hits.received[:, 0])
a***#.. [0 1]
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parallel_agents.core.errors import ConfigError, ShapeError
from parallel_agents.core.types import Array
from parallel_agents.games import kernels
from parallel_agents.games.grid import DIRECTIONS, Grid
from parallel_agents.games.kernels import Flags, Ints, Probabilities, Stream, TurnKey
from parallel_agents.games.program import Effect, Phase, Row


class Hits(NamedTuple):
    """The result of firing; all (N, W)."""

    received: Ints
    """How many beams hit each agent."""
    dealt: Ints
    """How many agents each agent hit."""
    changed: Ints
    """How many things each agent changed."""


class Beam:
    """A beam that agents fire ahead of them, shown as the kind `name` on the topmost layer until it is cleared.

    It covers `width` columns side by side, up to `length` cells ahead of the agent. A column ends at a wall, at the
    edge of the field, and at the first thing that it hits. `hits_agents`: whether agents are hit. `changes`: which
    kinds it turns into which others, on the layer `changes_on`. As a part of a game it is fired by the action `action`,
    and agents that it hits cannot act for `freezes` turns.
    """

    def __init__(
        self,
        grid: Grid,
        name: str,
        *,
        length: int,
        width: int = 1,
        hits_agents: bool = False,
        changes: Mapping[str, str] | None = None,
        changes_on: int = 0,
        action: str | None = None,
        freezes: int = 0,
    ) -> None:
        field = grid.field
        if action is not None and action not in grid.actions:
            raise ConfigError(f"a beam is fired by {action!r}: the actions are {', '.join(grid.actions)}")
        if length < 1 or width < 1 or width % 2 == 0:
            raise ConfigError(f"a beam of length {length} and width {width}: give at least 1, and an odd width")
        if field.layer == len(field.cells) - 1:
            raise ConfigError("a beam needs a layer above the agents: give the field one more map, and Field(layer=…)")
        if not 0 <= changes_on < len(field.cells):
            raise ConfigError(f"a beam changes things on layer {changes_on}: give 0 to {len(field.cells) - 1}")
        self._grid = grid
        self._shape = field.code(name), length, width // 2, hits_agents, changes_on
        self._changes = np.arange(len(field.kinds) + 1, dtype=np.uint8)
        for before, after in (changes or {}).items():
            self._changes[field.code(before)] = field.code(after)
        self._hits = Hits(*(np.zeros(grid.headings.shape, np.int32) for _ in Hits._fields))
        self._action, self._freezes = action, freezes

    def rows(self) -> list[Row]:
        """Clear the beams of the last turn, and fire."""
        if self._action is None:
            raise ConfigError("a beam among the parts of a game needs the action that fires it: give it action=…")
        code, length, half, hits_agents, changes_on = self._shape
        shape = self._grid.actions.index(self._action), code, length, half, int(hits_agents), changes_on, self._freezes
        return [
            Row(Phase.CLEAR, Effect.CLEAR_BEAMS),
            Row(Phase.SETTLE, Effect.BEAM, numbers=shape, codes=self._changes),
        ]

    def clear(self) -> None:
        """Remove every beam from the topmost layer."""
        self._grid.padded[:, -1] = 0

    def fire(self, firing: Flags) -> Hits:
        """Fire the beams of the agents in the (N, W) mask, in list order.

        Every call overwrites the counts it returns: copy what you keep.
        """
        for counts in self._hits:
            counts[:] = 0
        kernels.fire(self._grid.arrays, self._grid.agent_mask(firing), self._shape, self._changes, tuple(self._hits))
        return self._hits


class _Part:
    """A mechanic with what it does in each phase of a game, as rows."""

    _rows: list[Row]

    def rows(self) -> list[Row]:
        """Return what the mechanic does in each phase."""
        return self._rows


class _Rule(_Part):
    """Kinds that appear on the sites of a layer, and the rule's number, which addresses its draws."""

    def __init__(self, grid: Grid, names: Sequence[str], sites: Array | None, layer: int | None) -> None:
        if not names:
            raise ConfigError("no kind is named that should appear: name at least one")
        self._grid = grid
        self._codes = np.array([grid.field.code(name) for name in names], np.uint8)
        self._layer = grid.field.layer if layer is None else layer
        if not 0 <= self._layer < len(grid.field.cells):
            raise ConfigError(f"things appear on layer {layer}: give 0 to {len(grid.field.cells) - 1}")
        self._sites = grid.check_sites(sites)
        self._number = grid.new_rule_number()


class Hindrance(NamedTuple):
    """What makes things appear less often: the probability falls to 0 as a kind fills the share `most` of its sites."""

    name: str
    sites: Array
    """(S, 2)"""
    layer: int
    most: float


class RandomSpawn(_Rule):
    """Kinds that appear on each site with a probability, all kinds equally likely.

    They appear where nothing lies, or replace the kind `over`. `sites` is (S, 2); None: all cells in which agents may
    start. As a part of a game it also fills a new field, with the probability `at_first` if that is given, and each
    turn's probability falls with what hinders it (`unless`).
    """

    def __init__(
        self,
        grid: Grid,
        *names: str,
        probability: float,
        sites: Array | None = None,
        layer: int | None = None,
        over: str | None = None,
        at_first: float | None = None,
        unless: Hindrance | None = None,
    ) -> None:
        at_first = probability if at_first is None else at_first
        for number in (probability, at_first):
            if not 0.0 <= number <= 1.0:
                raise ConfigError(f"things appear with probability {number}: give a number from 0 to 1")
        super().__init__(grid, names, sites, layer)
        where = self._layer, 0 if over is None else grid.field.code(over)
        self._target = self._layer, self._sites, self._codes, where[1]
        self._probabilities = np.full(grid.headings.shape[1], float(probability))
        common: Any = {"number": self._number, "sites": self._sites, "codes": self._codes}
        each_turn = Row(Phase.BEGIN, Effect.SPAWN, numbers=where, floats=(probability,), **common)
        if unless is not None:
            name, others, own_layer, most = unless
            hindered: Any = {"numbers": (*where, own_layer, grid.field.code(name)), "floats": (probability, most)}
            each_turn = each_turn._replace(effect=Effect.SPAWN_UNLESS, other_sites=grid.check_sites(others), **hindered)
        self._rows = [Row(Phase.RESET, Effect.SPAWN, numbers=where, floats=(at_first,), **common), each_turn]

    def spawn(
        self,
        turn_key: TurnKey,
        world_mask: Flags | None = None,
        stream: Stream = Stream.SPAWN,
        probabilities: Probabilities | None = None,
    ) -> None:
        """Spawn things in the worlds of the mask; `probabilities`, (W,), replaces the rule's own."""
        kernels.spawn(
            self._grid.padded, self._grid.margin, self._target,
            self._probabilities if probabilities is None else self._check(probabilities),
            turn_key, stream + self._number, self._grid.world_mask(world_mask),
        )  # fmt: skip

    def _check(self, probabilities: Probabilities) -> Probabilities:
        shape = self._probabilities.shape
        if probabilities.shape != shape or not ((probabilities >= 0.0) & (probabilities <= 1.0)).all():
            raise ShapeError(
                f"probabilities of shape {probabilities.shape}, {probabilities.min()} to {probabilities.max()}: "
                f"give one per world, {shape}, from 0 to 1"
            )
        return np.ascontiguousarray(probabilities, np.float64)


class Regrowth(_Rule):
    """A kind that grows again on its sites, depending on how much of it is near.

    `probabilities[k]` is the probability per turn for an empty site with k of the kind within `radius` (Euclidean); the
    last one holds for as many or more.
    """

    def __init__(
        self,
        grid: Grid,
        name: str,
        *,
        sites: Array,
        probabilities: Sequence[float],
        radius: float,
        layer: int | None = None,
    ) -> None:
        self._probabilities = np.array(probabilities, np.float64)
        if not len(probabilities) or not ((self._probabilities >= 0.0) & (self._probabilities <= 1.0)).all():
            raise ConfigError(
                f"{name} grows with probabilities {list(probabilities)}: give numbers from 0 to 1, at least one"
            )
        reach = range(-int(radius), int(radius) + 1)
        near = [(y, x) for y, x in itertools.product(reach, reach) if 0 < y * y + x * x <= radius**2]
        if not near or int(radius) > grid.margin:
            raise ConfigError(f"{name} grows within a radius of {radius}: give 1 to {grid.margin}, the grid's margin")
        super().__init__(grid, [name], sites, layer)
        self._name = name
        self._target = self._layer, self._sites, np.array(near, np.int32), int(self._codes[0])
        shape: Any = {"numbers": self._target[::3], "floats": tuple(self._probabilities.tolist())}
        places: Any = {"sites": self._sites, "other_sites": self._target[2]}
        self._rows = [Row(Phase.BEGIN, Effect.REGROW, self._number, **shape, **places)]

    def grow(self, turn_key: TurnKey, world_mask: Flags | None = None) -> None:
        """Grow the kind for one turn in the worlds of the mask; what grows now counts as near from the next turn."""
        kernels.regrow(
            self._grid.padded, self._grid.margin, self._target, self._probabilities, turn_key,
            Stream.SPAWN + self._number, self._grid.world_mask(world_mask),
        )  # fmt: skip

    def remaining(self) -> Ints:
        """Return (W,) how many of the kind there are."""
        return self._grid.count(self._name, self._sites, self._layer)


class FixedCount(_Rule):
    """Kinds of which every world holds `count` in total, on random free sites: kinds and sites equally likely."""

    def __init__(self, grid: Grid, *names: str, count: int, sites: Array | None = None) -> None:
        if count < 0:
            raise ConfigError(f"a world should hold {count} of {', '.join(names)}: give a whole number of at least 0")
        super().__init__(grid, names, sites, None)
        self._count = count
        self._rows = [
            Row(phase, Effect.REFILL, self._number, numbers=(count,), sites=self._sites, codes=self._codes)
            for phase in (Phase.RESET, Phase.END)
        ]

    def refill(self, turn_key: TurnKey, world_mask: Flags | None = None, stream: Stream = Stream.SPAWN) -> None:
        """Add what is missing to the worlds of the (W,) mask, or as much of it as there is room for."""
        kernels.refill(
            self._grid.arrays, self._sites, self._codes, self._count, turn_key, stream + self._number,
            self._grid.world_mask(world_mask),
        )  # fmt: skip


class EndsWithout(_Part):
    """Episodes that end when nothing of a kind is left on its sites, (S, 2)."""

    def __init__(self, grid: Grid, name: str, *, sites: Array | None = None, layer: int | None = None) -> None:
        numbers = grid.field.layer if layer is None else layer, grid.field.code(name)
        self._rows = [Row(Phase.END, Effect.END_WITHOUT, numbers=numbers, sites=grid.check_sites(sites))]


class Capture(_Part):
    """Things that agents catch together: `agents` of them must stand next to it, and each of these earns `value`."""

    def __init__(self, grid: Grid, name: str, *, agents: int, value: float) -> None:
        if agents < 1:
            raise ConfigError(f"{agents} agents catch {name}: give a whole number of at least 1")
        self._rows = [Row(Phase.SETTLE, Effect.CAPTURE, numbers=(grid.field.code(name), agents), floats=(value,))]


class LosesTo(_Part):
    """Things that belong to an agent: it loses `loss` whenever another agent enters one."""

    def __init__(self, grid: Grid, name: str, *, owner: int, loss: float) -> None:
        if not 0 <= owner < len(grid.positions):
            raise ConfigError(f"{name} belongs to agent {owner}: there are 0 to {len(grid.positions) - 1}")
        self._rows = [Row(Phase.EARN, Effect.LOSE, numbers=(grid.field.code(name), owner), floats=(loss,))]


class Lottery(_Part):
    """Things that pay one of several rewards when an agent enters them, all equally likely."""

    def __init__(self, grid: Grid, name: str, *, rewards: Sequence[float]) -> None:
        if not len(rewards):
            raise ConfigError(f"{name} pays one of no rewards: give at least one")
        self._rows = [Row(Phase.EARN, Effect.LOTTERY, numbers=(grid.field.code(name),), floats=tuple(rewards))]


class Meetings(_Part):
    """Agents with a role who meet: both are rewarded, lose their roles, and start again on random free cells.

    An agent that enters the kind `tokens[r]` takes the role r, and appears as the kind `kinds[r]`; without a role it
    appears as `kinds[-1]`. `payoffs[r][s]` is the reward of an agent with the role r who meets one with s. Neighbours
    form pairs in list order.
    """

    def __init__(
        self, grid: Grid, *, tokens: Sequence[str], kinds: Sequence[str], payoffs: Sequence[Sequence[float]]
    ) -> None:
        roles = len(tokens)
        if len(kinds) != roles + 1 or len(payoffs) != roles or any(len(row) != roles for row in payoffs):
            raise ConfigError(
                f"{roles} tokens, {len(kinds)} kinds and payoffs {list(payoffs)}: give one kind more than tokens, and "
                "a row and a column of payoffs for each token"
            )
        codes = np.array([grid.field.blocking_code(name) for name in kinds], np.uint8)
        taken = [grid.field.code(name) for name in tokens]
        meet: Any = {"floats": tuple(number for row in payoffs for number in row), "sites": grid.starts}
        self._rows = [
            Row(Phase.RESET, Effect.SET_ROLES, numbers=(roles,), codes=codes),
            *(Row(Phase.EARN, Effect.TAKE_ROLE, numbers=(code, role)) for role, code in enumerate(taken)),
            Row(Phase.SETTLE, Effect.MEET, grid.new_rule_number(), numbers=(roles,), codes=codes, **meet),
        ]


class Tagging(_Part):
    """One agent is it (role 1), pays `cost` each turn, and earns 1 by reaching another, who pays 1 and becomes it.

    An agent that was tagged cannot act for `freezes` turns. Agents appear as the kinds `runner` and `it`.
    """

    def __init__(self, grid: Grid, *, runner: str, it: str, cost: float, freezes: int) -> None:
        codes = np.array([grid.field.blocking_code(name) for name in (runner, it)], np.uint8)
        self._rows = [
            Row(Phase.RESET, Effect.CHOOSE_IT, codes=codes),
            Row(Phase.SETTLE, Effect.TAG, numbers=(freezes,), floats=(cost,), codes=codes),
        ]


class Respawn:
    """Agents that start again on a random free cell: one where agents may start and nothing lies."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._number = grid, grid.new_rule_number()

    def respawn(self, agent_mask: Flags, turn_key: TurnKey) -> None:
        """Move the agents of the (N, W) mask to free cells, in list order; where none is free, an agent stays."""
        grid = self._grid
        kernels.respawn(grid.arrays, grid.starts, grid.agent_mask(agent_mask), turn_key, Stream.SPAWN + self._number)


def neighbour_cells(grid: Grid) -> Ints:
    """Return (N, W, 4, 2) rows and columns of the cells above, right of, below and left of each agent."""
    return np.asarray(grid.positions[:, :, None] + DIRECTIONS, np.int32)


def neighbour_counts(grid: Grid) -> Ints:
    """Return (W, H, C) how many agents stand next to each cell."""
    _, worlds = grid.headings.shape
    counts = np.zeros((worlds, grid.field.height + 2, grid.field.width + 2), np.int32)
    cells = neighbour_cells(grid) + 1
    np.add.at(counts, (np.arange(worlds)[:, None], cells[..., 0], cells[..., 1]), 1)
    return counts[:, 1:-1, 1:-1]


def pair_neighbours(grid: Grid, ready: Flags) -> Ints:
    """Return (N, W) the partner of each agent, or -1.

    Agents of the (N, W) mask that stand next to each other form pairs, in list order: each takes the first agent in
    the list that is still free.

    >>> from parallel_agents.games.grid import AGENT, Field
    >>> grid = Grid(Field([AGENT], "....", outside="agent"), agents=3)
    >>> pair_neighbours(grid, np.ones((3, 1), np.bool_))[:, 0].tolist()
    [1, 0, -1]
    """
    partners = np.full(ready.shape, -1, np.int32)
    kernels.pair(grid.positions, grid.agent_mask(ready), partners)
    return partners
