"""A grid game as an environment: what all of them share, so that a game only says what is its own.

A game names its options (`Rules`), builds its grid (`build`), and overrides what differs:

    begin_turn   what happens by itself each turn; here the spawnings
    populate     what lies on a fresh field; here the spawnings again
    earn         what agents get for what they entered; here its value
    settle       what happens once all have moved (beams, meetings), and what it pays; here nothing

`freeze` takes agents out for some turns. The same code serves the simultaneous and the sequential turn order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import structlog

from parallel_agents.config import build_section
from parallel_agents.environment import Agent, ParallelEnvironment
from parallel_agents.errors import ConfigError, ContractError
from parallel_agents.games.draw import beneath, frame, scores
from parallel_agents.games.field import Field
from parallel_agents.games.grid import Grid, Spawning
from parallel_agents.games.kernels import Bytes, Flags, Floats, Ints, Moment, Stream
from parallel_agents.games.record import Recorder
from parallel_agents.games.sight import Sight
from parallel_agents.seeding import Purpose, key, uniforms
from parallel_agents.types import Array

__all__ = ["GridEnvironment", "Rules"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The `world` section of every grid game; a game's own keys are the fields of a subclass."""

    agents: int = 8
    height: int = 21
    width: int = 21
    radius: int = 2
    """How far agents see: windows of 2 * radius + 1 cells a side."""
    observation: Literal["onehot", "rgb"] = "onehot"
    """A channel per kind, or three colours."""

    def __post_init__(self) -> None:
        for name, least in (("agents", 1), ("height", 3), ("width", 3), ("radius", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"world.{name} is {getattr(self, name)}: give a whole number of at least {least}")


class GridEnvironment(ParallelEnvironment):
    """N agents on W copies of a field."""

    options: ClassVar[type[Rules]] = Rules
    """What the `world` section may hold."""
    rules: Rules
    grid: Grid
    sight: Sight
    egocentric: ClassVar[bool] = False
    """Whether windows turn with the agents, as suits moves relative to where they face."""
    spawnings: Sequence[Spawning] = ()
    """What appears by itself, on a fresh field and at each turn."""
    _frozen: Ints | None = None
    """(N, W) turns for which agents are out; None: none ever was."""
    _able: Flags | None = None
    """(N, W) who may act in this turn."""
    earned: Array
    """(N, W) what each agent has earned in its episode so far."""
    recorder: Recorder | None = None
    """Shown every turn before it begins."""

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The game's own `model` section is for the algorithm that it names; another one has its own defaults."""
        asked, own = (section.get("model", {}) for section in (given, cls.default_config))
        other = isinstance(asked, Mapping) and asked.get("algorithm", own.get("algorithm")) != own.get("algorithm")
        return {**cls.default_config, "model": {}} if other else cls.default_config

    def build(self) -> Grid:
        """The game's grid, after `self.rules`, in `self.n_worlds` worlds; it may set `self.spawnings` too."""
        raise ContractError(f"{type(self).__name__}.build() is missing: return the game's Grid")

    def grid_on(self, field: Field, **options: Any) -> Grid:
        """A grid on a field, with as many agents and worlds and such a radius as the configuration says."""
        rules = self.rules
        return Grid(field, agents=rules.agents, worlds=self.n_worlds, **{"radius": rules.radius} | options)

    def populate(self, moment: Moment, which: Flags) -> None:
        """Put what lies on a fresh field into the worlds of the (W,) mask; the agents stand there already."""
        for rule in self.spawnings:
            self.grid.spawn(rule, moment, Stream.POPULATE, which)

    def earn(self, entered: Bytes, first: int) -> Floats:
        """What the agents from `first` on get for the (n, W) codes they entered.

        Gives (n, W), or (N, W) where others earn or lose by it too.
        """
        return self.grid.field.values.take(entered)

    def settle(self) -> Floats | None:
        """What happens once all agents have moved; (N, W) what it pays, None: nothing.

        It comes at the end of a turn in both turn orders; `did` tells what agents chose.
        """
        return None

    def did(self, action: str) -> Flags:
        """(N, W) who chose an action in this turn and was free to."""
        chosen: Flags = self._chosen == self.grid.actions.index(action)
        return chosen if self._able is None else chosen & self._able

    def freeze(self, which: Flags, turns: int) -> None:
        """Take the agents of the (N, W) mask out for so many turns, from the next one on."""
        if self._frozen is None:
            self._frozen = np.zeros(self.grid.headings.shape, np.int32)
        np.maximum(self._frozen, turns, out=self._frozen, where=which)

    def moment(self) -> Moment:
        """Where this turn's draws are."""
        return (*self._key, self.epoch, self.turn)

    def draws(self, slots: int = 1, purpose: Purpose = Purpose.WORLD) -> Array:
        """(N, W, slots) numbers in [0, 1) of this turn, each agent's own, for a game's rules or a scripted policy."""
        agents, worlds = self.grid.headings.shape
        who = [self.seed] * agents, purpose, range(agents), range(worlds)
        numbers: Array = uniforms(*who, epoch=self.epoch, turns=1, slots=slots, first_turn=self.turn)[0]
        return numbers

    def recorders(self, folder: Path) -> Sequence[Recorder]:
        """A recorder of the first world, each `experiment.record_period` epochs, if GIFs can be written."""
        period = self.config.experiment.record_period
        if period and find_spec("imageio") is None:
            structlog.get_logger().warning(
                "no_recording",
                reason="imageio is not installed",
                advice="install parallel-agents with the extra 'report', or set experiment.record_period = 0",
            )
            return ()
        return (Recorder(self, folder, every=period),) if period else ()

    def frozen(self) -> Flags:
        """(N, W) who is out of the game for now."""
        return np.zeros(self.grid.headings.shape, np.bool_) if self._frozen is None else self._frozen > 0

    def credit(self, rewards: Array) -> None:
        """Add (N, W) rewards to what agents have earned in their episodes, for those who look on."""
        super().credit(rewards)
        self.earned += rewards

    def render(self, world: int = 0, cell: int = 16) -> Bytes:
        """A picture of one world as it is now, with what its agents have earned."""
        picture = frame(self.grid, world, cell, frozen=self.frozen()[:, world])
        return beneath(picture, scores(self.earned[:, world], picture.shape[1]))

    # -- the contract with the runtime -----------------------------------------------------------------------

    def setup_agents(self) -> None:
        """Build the grid, and give every agent a model that fits what it sees and can do."""
        self._key = key(self.seed, Purpose.WORLD)
        self.rules = build_section(self.options, self.config.world, "world")
        self.grid = self.build()
        self.sight = Sight(
            self.grid, radius=self.rules.radius, observation=self.rules.observation, egocentric=self.egocentric
        )
        self._chosen = np.full(self.grid.headings.shape, -1)
        self._frozen = self._able = None
        self.earned = np.zeros(self.grid.headings.shape)
        seen, actions = self.sight.shape, len(self.grid.actions)
        self.agents = [Agent(model=self.make_model(seen, actions)) for _ in self.grid.positions]

    def populate_environment(self) -> None:
        """A fresh field in every world."""
        self.reset_worlds(np.ones(self.n_worlds, np.bool_))

    def reset_worlds(self, which: Array) -> None:
        """A fresh field in the worlds of the (W,) mask."""
        self.grid.fresh(self.moment(), which)
        self.earned[:, which] = 0.0
        if self._frozen is not None:
            self._frozen[:, which] = 0
        self.populate(self.moment(), which)

    def begin_turn(self) -> None:
        """Let those who were frozen long enough go, and things appear."""
        if self.recorder is not None:
            self.recorder.look()
        if self._frozen is not None:
            self._able = self._frozen == 0
            self._frozen -= ~self._able
        for rule in self.spawnings:
            self.grid.spawn(rule, self.moment())

    def observe(self) -> Array:
        """(N, W, obs) in an array that is written anew at every call."""
        return self.sight.all()

    def observe_agent(self, index: int) -> Array:
        """(W, obs) what one agent sees now."""
        return self.sight.one(index)

    def can_act(self) -> Flags | None:
        """(N, W) who is not frozen in this turn; None: nobody ever was."""
        return self._able

    def apply_actions(self, actions: Array) -> Array:
        """All agents act in list order."""
        return self._act(actions, 0)

    def apply_agent(self, index: int, actions: Array) -> Array:
        """One agent acts; (W,) what it earned, or (N, W) if others earned by it too."""
        earned = self._act(actions[None], index)
        return earned[0] if len(earned) == 1 else earned

    def _act(self, actions: Array, first: int) -> Floats:
        """Some agents act, from `first` on; after the last one, what follows is settled."""
        entered = self.grid.move(actions, first, self.can_act())
        earned = self.earn(entered, first)
        self._chosen[first : first + len(actions)] = actions
        if first + len(actions) < len(self._chosen):
            return earned
        settled = self.settle()
        if settled is None:
            return earned
        if len(earned) == len(settled):
            return earned + settled
        settled[first:] += earned
        return settled
