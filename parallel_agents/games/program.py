"""A grid game as a program: the rules that a game is built from, as rows of a table that compiled code executes.

A game made only of the engine's parts is played by these functions, turn by turn or, with compiled agents, whole epochs
at a time (`engine.collect`); it needs no code of its own. The lists of a `GridEnvironment` say which part takes effect
when, and `Program` packs them: each part writes one row with its numbers, and its arrays into common ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.by_reference import by_reference
from parallel_agents.core.compiled import address_of, call_at, compiled_once, njit
from parallel_agents.core.seeding import draw, uniform
from parallel_agents.core.types import Array
from parallel_agents.games import kernels
from parallel_agents.games.grid import Grid
from parallel_agents.games.kernels import Bytes, Flags, Floats, GridArrays, Ints, Stream
from parallel_agents.games.observation import Windows, observe_windows

Line = NDArray[np.int64]
"""A line of `GridWorld.table`."""


class Phase(IntEnum):
    """When a part takes effect."""

    RESET = 0
    """When a world starts on a new field."""
    BEGIN = 1
    """Before the agents observe."""
    EARN = 2
    """When agents enter cells."""
    CLEAR = 3
    """After all agents have moved."""
    SETTLE = 4
    """After that."""
    END = 5
    """At the end of a turn."""


class Effect(IntEnum):
    """What a part does; the comment says what its numbers are."""

    SPAWN = 0  # layer, code that is replaced
    SPAWN_UNLESS = 1  # layer, code that is replaced, layer and code of what hinders it
    REGROW = 2  # layer, code
    REFILL = 3  # count
    CLEAR_BEAMS = 4
    BEAM = 5  # action, code, length, half width, whether it hits agents, layer of changes, turns that hit agents freeze
    END_WITHOUT = 6  # layer, code
    CAPTURE = 7  # code, how many agents it takes
    LOSE = 8  # code, owner
    LOTTERY = 9  # code
    SET_ROLES = 10  # role
    TAKE_ROLE = 11  # code, role
    MEET = 12  # role of those who do not take part
    CHOOSE_IT = 13
    TAG = 14  # turns for which a tagged agent is frozen


NUMBERS = 8
"""Numbers of a part, at most."""


class Row(NamedTuple):
    """One part in one phase, as it is packed."""

    phase: Phase
    effect: Effect
    number: int = 0
    """Number of the part, which addresses its draws."""
    numbers: tuple[int, ...] = ()
    sites: Array | None = None
    """(S, 2) cells."""
    other_sites: Array | None = None
    """(S, 2) further cells, or offsets of cells."""
    codes: Array | None = None
    """Codes of kinds."""
    floats: tuple[float, ...] = ()
    """Probabilities, shares or rewards."""


class Part(Protocol):
    """A rule that a game is built from."""

    def rows(self) -> list[Row]:
        """Return what the rule does in each phase."""


class GridWorld(NamedTuple):
    """The worlds of a grid game, by reference: what the functions of this module read and write."""

    grid: GridArrays
    template: Bytes
    starts: Ints
    step_table: NDArray[np.int8]
    values: Floats
    """(K + 1,) the reward for entering each code."""
    key: NDArray[np.uint64]
    """(3,) the random key of the game, and the number of its first world."""
    frozen: NDArray[np.int32]
    """(N, W) turns for which each agent cannot act."""
    able: Flags
    """(N, W) agents that can act in this turn."""
    chosen: NDArray[np.int64]
    """(N, W) the action that each agent took in this turn."""
    roles: NDArray[np.int64]
    """(N, W) the role of each agent, in games that have roles."""
    earned: NDArray[np.float64]
    """(N, W) reward of each agent in this episode."""
    windows: Windows
    table: NDArray[np.int64]
    """(R, 12 + NUMBERS) phase, effect, number, begin and end of sites, of other sites, codes and floats; numbers."""
    sites: Ints
    codes: Bytes
    floats: NDArray[np.float64]
    effects: NDArray[np.int64]
    """(E, 2) where the compiled code of each effect that the game uses is: see `core.compiled.call_at`."""


_HEAD = 11


def pack_rows(rows: list[Row]) -> tuple[NDArray[np.int64], Ints, Bytes, NDArray[np.float64]]:
    """Return the table of the rows, and the sites, codes and floats of all of them."""
    sites: list[Array] = [np.empty((0, 2), np.int32)]
    codes: list[Array] = [np.empty(0, np.uint8)]
    floats: list[float] = []
    table = np.zeros((len(rows), _HEAD + NUMBERS), np.int64)

    def placed(pool: list[Array], array: Array | None) -> tuple[int, int]:
        begin = sum(map(len, pool))
        pool.append(pool[0] if array is None else np.asarray(array, pool[0].dtype))
        return begin, begin + len(pool[-1])

    for line, row in zip(table, rows, strict=True):
        begin = len(floats)
        floats += row.floats
        places = (*placed(sites, row.sites), *placed(sites, row.other_sites), *placed(codes, row.codes))
        line[:_HEAD] = int(row.phase), int(row.effect), row.number, *places, begin, len(floats)
        line[_HEAD : _HEAD + len(row.numbers)] = row.numbers
    return table, np.concatenate(sites), np.concatenate(codes), np.array(floats)


# -- compiled --------------------------------------------------------------------------------------------------------


@compiled_once(allocates=True)
def reset(world: GridWorld, which: Flags, epoch: int, turn: int) -> None:
    """Start the worlds of the mask on a new field."""
    key = (world.key[0], world.key[1], np.uint64(epoch), np.uint64(turn), world.key[2])
    kernels.reset(world.grid.cells, world.template, which)
    kernels.place(world.grid, world.starts, key, which)
    frozen, earned = world.frozen, world.earned
    for w in range(len(which)):
        if which[w]:
            for n in range(len(frozen)):
                frozen[n, w] = 0
                earned[n, w] = 0.0
    run_phase(world, Phase.RESET, which, epoch, turn, np.empty((0, 0), np.float32))


@compiled_once(allocates=True)
def begin_turn(world: GridWorld, active: Flags, able: Flags, epoch: int, turn: int) -> None:
    """Count frozen turns down, and let things appear."""
    frozen, own = world.frozen, world.able
    agents, worlds = frozen.shape
    for n in range(agents):
        for w in range(worlds):
            able[n, w] = own[n, w] = frozen[n, w] == 0
            frozen[n, w] -= frozen[n, w] > 0
    run_phase(world, Phase.BEGIN, np.ones(worlds, np.bool_), epoch, turn, np.empty((0, 0), np.float32))


@compiled_once
def observe(world: GridWorld, out: Floats) -> None:
    """Write what every agent observes into (N, W, size)."""
    own, flat = world.windows, out.reshape(-1)
    numbers = own.numbers
    observe_windows(numbers, world.grid, own.up, np.int64(0), own.offsets, own.palette, own.side, np.bool_(own.onehot))
    for at in range(len(flat)):
        flat[at] = numbers[at]


@compiled_once
def observe_agent(world: GridWorld, n: int, out: Floats) -> None:
    """Write what one agent observes into (W, size)."""
    own, flat = world.windows, out.reshape(-1)
    numbers = own.numbers[: len(flat) + own.side * own.side]  # room for its windows alone
    observe_windows(numbers, world.grid, own.up, n, own.offsets, own.palette, own.side, np.bool_(own.onehot))
    for at in range(len(flat)):
        flat[at] = numbers[at]


@compiled_once
def apply(
    world: GridWorld, actions: NDArray[np.int64], acting: Flags, active: Flags, rewards: Floats, terminated: Flags,
    truncated: Flags, epoch: int, turn: int,
) -> int:  # fmt: skip
    """Let all agents act in list order, then settle the turn."""
    return _act(world, actions, 0, active, rewards, terminated, epoch, turn)


@compiled_once
def apply_agent(
    world: GridWorld, n: int, actions: NDArray[np.int64], acting: Flags, active: Flags, rewards: Floats,
    terminated: Flags, truncated: Flags, epoch: int, turn: int,
) -> int:  # fmt: skip
    """Let one agent act; after the last one, settle the turn."""
    return _act(world, actions[n : n + 1], n, active, rewards, terminated, epoch, turn)


@compiled_once(allocates=True)
def _act(
    world: GridWorld, actions: NDArray[np.int64], first: int, active: Flags, rewards: Floats, terminated: Flags,
    epoch: int, turn: int,
) -> int:  # fmt: skip
    """Let the agents from `first` on take their actions (n, W, 1), and add their rewards (N, W)."""
    agents, worlds = rewards.shape
    entered, own = np.empty((len(actions), worlds), np.uint8), np.zeros((agents, worlds), np.float32)
    chosen = actions.reshape(len(actions), worlds)
    invalid = kernels.move(world.grid, world.able, world.step_table, chosen, first, entered)
    if invalid >= 0:
        return first * worlds + invalid
    taken, earned = world.chosen, world.earned
    for i in range(len(actions)):
        for w in range(worlds):
            taken[first + i, w] = chosen[i, w]
    earn(world, entered, first, own, epoch, turn)
    last = first + len(actions) == agents
    if last:
        settled = np.zeros((agents, worlds), np.float32)
        settle(world, active, settled, epoch, turn)
        run_phase(world, Phase.END, np.ones(worlds, np.bool_), epoch, turn, settled)
        end_episodes(world, terminated)
        for n in range(agents):
            for w in range(worlds):
                own[n, w] += settled[n, w]
    for n in range(agents):
        for w in range(worlds):
            rewards[n, w] += own[n, w]
            if last and active[w]:
                earned[n, w] += rewards[n, w]
    return -1


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _agent_draw(world: GridWorld, n: int, w: int, epoch: int, turn: int) -> float:
    """Return slot 0 of an agent's own address in a world and turn."""
    key, number = world.key[1] + np.uint64(n), world.key[2] + np.uint64(w)
    words = draw(world.key[0], key, np.uint64(0), np.uint64(turn), np.uint64(epoch), number)
    return float(uniform(words[0]))


@compiled_once
def earn(world: GridWorld, entered: Bytes, first: int, rewards: Floats, epoch: int, turn: int) -> None:
    """Add to rewards (N, W) what the agents from `first` on earn by the (n, W) codes they entered."""
    values, table = world.values, world.table
    for i in range(len(entered)):
        for w in range(entered.shape[1]):
            rewards[first + i, w] += values[entered[i, w]]
    for row in range(len(table)):
        line = table[row]
        if line[0] != Phase.EARN:
            continue
        code, owner, floats = line[11], line[12], world.floats[line[9] : line[10]]
        for i in range(len(entered)):
            for w in range(entered.shape[1]):
                if entered[i, w] != code:
                    continue
                if line[1] == Effect.TAKE_ROLE:
                    world.roles[first + i, w] = owner
                elif line[1] == Effect.LOTTERY:
                    card = int(_agent_draw(world, first + i, w, epoch, turn) * len(floats))
                    rewards[first + i, w] += np.float32(floats[card])
                elif first + i != owner:
                    rewards[owner, w] -= np.float32(floats[0])


@compiled_once
def settle(world: GridWorld, active: Flags, rewards: Floats, epoch: int, turn: int) -> None:
    """Apply what happens after all agents have moved, and add its rewards (N, W)."""
    run_phase(world, Phase.CLEAR, active, epoch, turn, rewards)
    run_phase(world, Phase.SETTLE, active, epoch, turn, rewards)


@compiled_once(allocates=True)
def end_episodes(world: GridWorld, terminated: Flags) -> None:
    """Set (N, W) True in worlds whose episode has ended."""
    for row in range(len(world.table)):
        line = world.table[row]
        if line[1] == Effect.END_WITHOUT:
            left = kernels.count(
                world.grid.cells, world.grid.margin, line[11], world.sites[line[3] : line[4]], line[12]
            )
            for n in range(len(terminated)):
                for w in range(len(left)):
                    terminated[n, w] |= left[w] == 0


@compiled_once
def run_phase(world: GridWorld, phase: int, which: Flags, epoch: int, turn: int, rewards: Floats) -> None:
    """Let every part of a phase take effect, in order; rewards: (N, W), read in the phase `SETTLE` only."""
    table = world.table
    for row in range(len(table)):
        line = table[row]
        if line[0] == phase and line[1] != Effect.END_WITHOUT:
            call_at(world.effects[line[1]], world, line, which, epoch, turn, rewards)


# -- effects: (world, line of the table, worlds that take part, epoch, turn, rewards) --------------------------------


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _address(world: GridWorld, line: Line, epoch: int, turn: int) -> tuple[Any, Any]:
    """Return the address of a part's draws: that of the turn, and its stream."""
    key = (world.key[0], world.key[1], np.uint64(epoch), np.uint64(turn), world.key[2])
    return key, line[2] + (Stream.POPULATE if line[0] == Phase.RESET else Stream.SPAWN)


@compiled_once(allocates=True)
def _spawn(world: GridWorld, line: Line, which: Flags, epoch: int, turn: int, rewards: Floats) -> None:
    key, stream = _address(world, line, epoch, turn)
    sites, codes = world.sites[line[3] : line[4]], world.codes[line[7] : line[8]]
    probabilities = np.empty(len(which))
    for w in range(len(which)):
        probabilities[w] = world.floats[line[9]]
    if line[1] == Effect.SPAWN_UNLESS:
        others, most = world.sites[line[5] : line[6]], max(world.floats[line[9] + 1], 1e-9)
        hindered = kernels.count(world.grid.cells, world.grid.margin, line[13], others, line[14])
        for w in range(len(which)):
            probabilities[w] *= 1.0 - min(hindered[w] / len(others) / most, 1.0)
    target = line[11], sites, codes, line[12]
    kernels.spawn(world.grid.cells, world.grid.margin, target, probabilities, key, stream, which)


@compiled_once
def _regrow(world: GridWorld, line: Line, which: Flags, epoch: int, turn: int, rewards: Floats) -> None:
    key, stream = _address(world, line, epoch, turn)
    target = line[11], world.sites[line[3] : line[4]], world.sites[line[5] : line[6]], line[12]
    floats = world.floats[line[9] : line[10]]
    kernels.regrow(world.grid.cells, world.grid.margin, target, floats, key, stream, which)


@compiled_once
def _refill(world: GridWorld, line: Line, which: Flags, epoch: int, turn: int, rewards: Floats) -> None:
    key, stream = _address(world, line, epoch, turn)
    sites, codes = world.sites[line[3] : line[4]], world.codes[line[7] : line[8]]
    kernels.refill(world.grid, sites, codes, line[11], key, stream, which)


@compiled_once
def _clear_beams(world: GridWorld, line: Line, which: Flags, epoch: int, turn: int, rewards: Floats) -> None:
    cells = world.grid.cells
    worlds, layers, height, width = cells.shape
    for w in range(worlds):
        for y in range(height):
            for x in range(width):
                cells[w, layers - 1, y, x] = 0


@compiled_once(allocates=True)
def _fire(world: GridWorld, line: Line, which: Flags, epoch: int, turn: int, rewards: Floats) -> None:
    """Fire the beams of the agents that chose to, and freeze those that were hit."""
    agents, worlds = world.chosen.shape
    firing = np.empty((agents, worlds), np.bool_)
    hits = np.zeros((3, agents, worlds), np.int32)
    for n in range(agents):
        for w in range(worlds):
            firing[n, w] = world.able[n, w] and world.chosen[n, w] == line[11]
    shape = (line[12], line[13], line[14], line[15] > 0, line[16])
    kernels.fire(world.grid, firing, shape, world.codes[line[7] : line[8]], (hits[0], hits[1], hits[2]))
    for n in range(agents):
        for w in range(worlds):
            if hits[0, n, w] > 0:
                world.frozen[n, w] = max(world.frozen[n, w], line[17])


@compiled_once(allocates=True)
def _capture(world: GridWorld, line: Line, which: Flags, epoch: int, turn: int, rewards: Floats) -> None:
    """Remove the things of a kind on the agents' layer beside which enough agents stand, and reward these agents."""
    grid = world.grid
    cells, margin, layer = grid.cells, grid.margin, grid.layer
    positions, code, wanted, value = grid.positions, line[11], line[12], world.floats[line[9]]
    agents, worlds = positions.shape[:2]
    for w in range(worlds):
        caught = np.zeros(4 * agents, np.int64)
        for n in range(agents):
            catches = 0
            for side in range(4):
                down, right = kernels.ahead(side)
                y, x = positions[n, w, 0] + margin + down, positions[n, w, 1] + margin + right
                if cells[w, layer, y, x] != code:
                    continue
                beside = 0
                for m in range(agents):
                    rows = abs(positions[m, w, 0] + margin - y)
                    beside += rows + abs(positions[m, w, 1] + margin - x) == 1
                if beside >= wanted:
                    catches += 1
                    caught[4 * n + side] = y * cells.shape[3] + x
            rewards[n, w] += np.float32(value * catches)
        for cell in caught:
            if cell:
                cells[w, layer, cell // cells.shape[3], cell % cells.shape[3]] = 0


@compiled_once
def _show_roles(world: GridWorld, line: Line) -> None:
    """Let the agents appear as the kinds of their roles."""
    grid = world.grid
    cells, margin, layer = grid.cells, grid.margin, grid.layer
    positions, agent_kinds = grid.positions, grid.agent_kinds
    for n in range(world.roles.shape[0]):
        for w in range(world.roles.shape[1]):
            agent_kinds[n, w] = world.codes[line[7] + world.roles[n, w]]
            cells[w, layer, positions[n, w, 0] + margin, positions[n, w, 1] + margin] = agent_kinds[n, w]


@compiled_once
def _set_roles(world: GridWorld, line: Line, which: Flags, epoch: int, turn: int, rewards: Floats) -> None:
    for n in range(len(world.roles)):
        for w in range(len(which)):
            if which[w]:
                world.roles[n, w] = line[11]
    _show_roles(world, line)


@compiled_once(allocates=True)
def _meet(world: GridWorld, line: Line, which: Flags, epoch: int, turn: int, rewards: Floats) -> None:
    """Reward pairs of neighbours by their roles, let them lose these, and move them to free sites."""
    key, stream = _address(world, line, epoch, turn)
    roles, nothing, payoffs = world.roles, line[11], world.floats[line[9] : line[10]]
    agents, worlds = roles.shape
    size = int(np.sqrt(len(payoffs)))
    ready, met = np.empty((agents, worlds), np.bool_), np.empty((agents, worlds), np.bool_)
    partners = np.full((agents, worlds), np.int32(-1))
    for n in range(agents):
        for w in range(worlds):
            ready[n, w] = which[w] and roles[n, w] != nothing
    kernels.pair(world.grid.positions, ready, partners)
    for n in range(agents):
        for w in range(worlds):
            met[n, w] = partners[n, w] >= 0
            if met[n, w]:
                rewards[n, w] += np.float32(payoffs[roles[n, w] * size + roles[partners[n, w], w]])
    for n in range(agents):
        for w in range(worlds):
            if met[n, w]:
                roles[n, w] = nothing
    kernels.respawn(world.grid, world.sites[line[3] : line[4]], met, key, stream)
    _show_roles(world, line)


@compiled_once
def _choose_it(world: GridWorld, line: Line, which: Flags, epoch: int, turn: int, rewards: Floats) -> None:
    """Give the role 1 to one agent of each world, all equally likely."""
    for w in range(len(which)):
        if not which[w]:
            continue
        it, top = 0, -1.0
        for n in range(len(world.roles)):
            number = _agent_draw(world, n, w, epoch, turn)
            if number > top:
                it, top = n, number
        for n in range(len(world.roles)):
            world.roles[n, w] = n == it
    _show_roles(world, line)


@compiled_once
def _tag(world: GridWorld, line: Line, which: Flags, epoch: int, turn: int, rewards: Floats) -> None:
    """Let the agent with role 1 pass it on to the first neighbour, who is then frozen; it costs something each turn."""
    positions, roles, cost = world.grid.positions, world.roles, np.float32(world.floats[line[9]])
    agents, worlds = roles.shape
    for w in range(worlds):
        it = 0
        for n in range(agents):
            it = n if roles[n, w] else it
        rewards[it, w] -= cost
        for n in range(agents if which[w] and world.able[it, w] else 0):
            rows = abs(positions[n, w, 0] - positions[it, w, 0])
            if rows + abs(positions[n, w, 1] - positions[it, w, 1]) == 1:
                rewards[it, w] += np.float32(1.0)
                rewards[n, w] -= np.float32(1.0)
                roles[it, w], roles[n, w] = 0, 1
                world.frozen[n, w] = max(world.frozen[n, w], line[11])
                break
    _show_roles(world, line)


_EFFECTS = {
    Effect.SPAWN: _spawn, Effect.SPAWN_UNLESS: _spawn, Effect.REGROW: _regrow, Effect.REFILL: _refill,
    Effect.CLEAR_BEAMS: _clear_beams, Effect.BEAM: _fire, Effect.CAPTURE: _capture, Effect.SET_ROLES: _set_roles,
    Effect.MEET: _meet, Effect.CHOOSE_IT: _choose_it, Effect.TAG: _tag,
}  # fmt: skip
"""What an effect does; those that are missing here are part of `earn` and `end_episodes`."""


def grid_world(grid: Grid, observer: Any, key: tuple[int, int, int], parts: Sequence[Part]) -> GridWorld:
    """Return the worlds of a game that is made of these parts. Only the effects that it uses are compiled."""
    table, sites, codes, floats = pack_rows([row for part in parts for row in part.rows()])
    shape = grid.headings.shape
    fields = GridWorld(
        grid=grid.arrays,
        template=grid.template,
        starts=grid.starts,
        step_table=grid.step_table,
        values=grid.field.values,
        key=np.array(key, np.uint64),
        frozen=np.zeros(shape, np.int32),
        able=np.ones(shape, np.bool_),
        chosen=np.full(shape, -1),
        roles=np.zeros(shape, np.int64),
        earned=np.zeros(shape),
        windows=observer.windows,
        table=table,
        sites=sites,
        codes=codes,
        floats=floats,
        effects=np.zeros((len(Effect), 2), np.int64),
    )
    world = by_reference(fields)
    examples = world, np.zeros(1, np.int64), np.ones(1, np.bool_), 0, 0, np.zeros((1, 1), np.float32)
    for effect in sorted({Effect(number) for number in table[:, 1]} & set(_EFFECTS)):
        world.effects[effect] = address_of(_EFFECTS[effect], *examples)
    return world
