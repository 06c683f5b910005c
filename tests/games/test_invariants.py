"""What no sequence of turns, beams, growth and respawning may break."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from parallel_agents.games import TURNING_MOVES, Beam, Field, Grid, Kind, Regrowth, Scattering, blank, respawn
from parallel_agents.seeding import Purpose, key

KINDS = (
    Kind("wall", "#", (1, 1, 1), passable=False),
    Kind("apple", "o", (2, 2, 2), value=1.0),
    Kind("coin", "c", (3, 3, 3), value=1.0),
    Kind("river", "~", (4, 4, 4)),
    Kind("waste", "w", (5, 5, 5)),
    Kind("ray", "*", (6, 6, 6)),
    Kind("agent", "a", (7, 7, 7), passable=False),
    Kind("other", "b", (8, 8, 8), passable=False),
)
GROUND = "........\n.~~~....\n.~~.....\n........\n........"
THINGS = "########\n#...#..#\n#......#\n#.#..oo#\n########"
FIELD = Field(KINDS, GROUND, THINGS, blank(5, 8), layer=1)
WALL, APPLE, COIN, RIVER, WASTE, RAY, AGENT, OTHER = (FIELD.code(kind.name) for kind in KINDS)
COINS = 3


class Invariants(RuleBasedStateMachine):
    """Agents stand alone in free cells as they look, walls and the river stay, and nothing comes from nowhere."""

    @initialize(agents=st.integers(1, 5), worlds=st.integers(1, 3), seed=st.integers(0, 2**63 - 1))
    def start(self, agents, worlds, seed):
        self.grid = Grid(FIELD, agents=agents, worlds=worlds, radius=2, actions=TURNING_MOVES)
        self.regrowth = Regrowth(self.grid, "apple", sites=FIELD.sites("apple"), chances=(0.0, 0.5), radius=2.0)
        self.coins = Scattering(self.grid, "coin", count=COINS)
        self.waste = self.grid.spawning(
            "waste", probability=0.3, sites=np.argwhere(FIELD.cells[0] == RIVER), layer=0, over="river"
        )
        self.zap = Beam(self.grid, "ray", length=3, width=3, agents=True)
        self.clean = Beam(self.grid, "ray", length=2, changes={"waste": "river"})
        self.number, self.seed, self.turn = self.grid.number(), seed, 0

    def moment(self):
        self.turn += 1
        return (*key(self.seed, Purpose.WORLD), 1, self.turn)

    def mask(self, data):
        agents, worlds = self.grid.headings.shape
        rows = st.lists(st.booleans(), min_size=worlds, max_size=worlds)
        return np.array(data.draw(st.lists(rows, min_size=agents, max_size=agents)))

    def count(self, code, layer=1):
        return (self.grid.cells[:, layer] == code).sum(axis=(1, 2))

    @rule()
    def fresh(self):
        self.grid.fresh(self.moment())
        assert (self.count(APPLE) == 2).all()
        assert not self.count(COIN).any()

    @rule(data=st.data())
    def move(self, data):
        agents, worlds = self.grid.headings.shape
        rows = st.lists(st.integers(0, len(TURNING_MOVES) - 1), min_size=worlds, max_size=worlds)
        actions = np.array(data.draw(st.lists(rows, min_size=agents, max_size=agents)))
        able, places, ways = self.mask(data), self.grid.positions.copy(), self.grid.headings.copy()
        things = self.count(APPLE) + self.count(COIN)
        entered = self.grid.move(actions, able=able)
        taken = np.isin(entered, [APPLE, COIN]).sum(axis=0)
        assert np.array_equal(things - taken, self.count(APPLE) + self.count(COIN))
        moved = np.abs(self.grid.positions - places).sum(axis=-1)
        assert moved.max() <= 1
        assert not moved[~able].any()
        assert np.array_equal(self.grid.headings[~able], ways[~able])

    @rule(data=st.data())
    def fire(self, data):
        before, things = self.count(WASTE, 0), self.grid.cells[:, 1].copy()
        self.zap.clear()
        hits = self.clean.fire(self.mask(data))
        assert np.array_equal(before - self.count(WASTE, 0), hits.changed.sum(axis=0))
        firing = self.mask(data)
        hits = self.zap.fire(firing)
        assert np.array_equal(hits.suffered.sum(axis=0), hits.dealt.sum(axis=0))
        assert not hits.dealt[~firing].any()
        assert hits.dealt.max() <= 3  # one for each column
        assert np.array_equal(self.grid.cells[:, 1], things)

    @rule()
    def grow(self):
        before = self.count(APPLE)
        self.regrowth.grow(self.moment())
        after = self.count(APPLE)
        assert (after >= before).all()
        assert not after[before == 0].any()
        assert after.max() <= 2
        self.grid.spawn(self.waste, self.moment())

    @rule()
    def refill(self):
        self.coins.refill(self.moment())
        assert (self.count(COIN) == COINS).all()

    @rule(data=st.data())
    def start_anew(self, data):
        which, places = self.mask(data), self.grid.positions.copy()
        things = self.count(APPLE) + self.count(COIN)
        respawn(self.grid, which, self.moment(), self.number)
        assert np.array_equal(self.grid.positions[~which], places[~which])
        assert np.array_equal(things, self.count(APPLE) + self.count(COIN))

    @rule(data=st.data())
    def look(self, data):
        self.grid.look(np.where(self.mask(data), OTHER, AGENT))

    @invariant()
    def everyone_stands_alone_as_they_look(self):
        agents, worlds = self.grid.headings.shape
        y, x = np.moveaxis(self.grid.positions, -1, 0)
        assert np.array_equal(self.grid.cells[np.arange(worlds), 1, y, x], self.grid.looks)
        assert (self.count(AGENT) + self.count(OTHER) == agents).all()
        assert self.grid.headings.max() <= 3

    @invariant()
    def walls_and_the_river_stay_and_beams_are_not_in_walls(self):
        walls = FIELD.cells[1] == WALL
        assert ((self.grid.cells[:, 1] == WALL) == walls).all()
        assert (self.count(RIVER, 0) + self.count(WASTE, 0) == 5).all()
        assert not self.grid.cells[:, 2, walls].any()
        assert np.isin(self.grid.cells[:, 2], [0, RAY]).all()


TestInvariants = Invariants.TestCase
TestInvariants.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
