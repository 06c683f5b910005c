"""A grid game as an environment: everything that games share, so that a game states only its own rules.

A game names its options (`Rules`), builds its grid (`build`), and overrides what differs:

    parts        the mechanics that take effect by themselves (spawning, beams, captures, …)

A game made of parts alone is played in compiled code, whole epochs at a time. What no part does is a hook in Python:

    begin_turn   what happens at the start of each turn
    populate     what lies on a new field
    earn         rewards for the cells that agents entered; by default the values of the kinds
    settle       what happens after all agents have moved (beams, meetings), and its rewards
    dones        which episodes have ended

By default each lets the parts take effect. `freeze` stops agents from acting for some turns. The same code serves
simultaneous and sequential turn order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import structlog

from parallel_agents.core.config import build_section
from parallel_agents.core.errors import ConfigError, ContractError
from parallel_agents.core.seeding import Purpose, key, uniforms
from parallel_agents.core.types import Array
from parallel_agents.engine.collect import CompiledWorld
from parallel_agents.env import Agent, ParallelEnvironment
from parallel_agents.env.environment import TURN_HOOKS
from parallel_agents.games import program
from parallel_agents.games.grid import Field, Grid, Kind, walled_map
from parallel_agents.games.kernels import Bytes, Flags, Floats, TurnKey
from parallel_agents.games.observation import WindowObserver
from parallel_agents.games.program import Effect, GridWorld, Part, Phase
from parallel_agents.games.render import LivePicture, Recorder, draw_scores, draw_world, stack_vertically
from parallel_agents.games.social_metrics import SocialRecorder
from parallel_agents.tracking.callbacks import Callback

_NO_REWARDS = np.empty((0, 0), np.float32)
_HOOKS = (*TURN_HOOKS, "populate", "earn", "settle", "freeze", "chose", "turn_key", "draws")
"""Methods that compiled epochs do not call."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The `world` section of every grid game; a game adds its own keys as fields of a subclass."""

    agents: int = 8
    height: int = 21
    width: int = 21
    radius: int = 2
    """How far agents see: windows have 2 * radius + 1 cells a side."""
    observation: Literal["onehot", "rgb"] = "onehot"
    """A channel per kind, or three colours."""

    def __post_init__(self) -> None:
        self.check_at_least(agents=1, height=3, width=3, radius=0)

    def check_at_least(self, **least: int) -> None:
        """Raise an error for each named key whose value is less than the given number."""
        for name, number in least.items():
            if getattr(self, name) < number:
                raise ConfigError(f"world.{name} is {getattr(self, name)}: give a whole number of at least {number}")

    def check_shares(self, *names: str) -> None:
        """Raise an error for each named key whose value is not between 0 and 1."""
        for name in names:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"world.{name} is {getattr(self, name)}: give a number from 0 to 1")


def dqn_defaults(rules: Rules, *, epochs: int = 150, max_turns: int = 100, n_step: int = 3) -> dict[str, Any]:
    """Return a `default_config` with which most games learn: DQN, exploring during the first half of the epochs."""
    model = {"algorithm": "dqn", "n_step": n_step, "batch_size": 64, "gamma": 0.97, "epsilon_epochs": epochs // 2}
    return {
        "experiment": {"epochs": epochs, "max_turns": max_turns},
        "world": asdict(rules),
        "model": model,
        "parallel": {"train_interval": 1},
    }


class GridEnvironment(ParallelEnvironment):
    """N agents on W copies of a field."""

    shardable = portable = True
    options: ClassVar[type[Rules]] = Rules
    """The class of the `world` section."""
    rules: Rules
    grid: Grid
    observer: WindowObserver
    egocentric: ClassVar[bool] = False
    """Whether windows turn with the agents, for games with moves relative to the heading."""
    parts: Sequence[Part] = ()
    """The mechanics that take effect by themselves, in order: set them in `build`."""
    worlds: GridWorld
    """The state of the worlds, as compiled code reads and writes it."""
    earned: Array
    """(N, W) the return of each agent in its episode so far."""
    recorder: Recorder | None = None
    """Captures each turn before it begins."""
    social: SocialRecorder | None = None

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the game's defaults, without its `model` section if the user names another algorithm than the game."""
        requested, default = (section.get("model", {}) for section in (given, cls.default_config))
        algorithm = default.get("algorithm")
        other = isinstance(requested, Mapping) and requested.get("algorithm", algorithm) != algorithm
        return {**cls.default_config, "model": {}} if other else cls.default_config

    def build(self) -> Grid:
        """Return the game's grid for `self.rules` and `self.n_worlds`; may set `parts` too."""
        raise ContractError(f"{type(self).__name__}.build() is missing: return the game's Grid")

    def make_grid(self, field: Field, **options: Any) -> Grid:
        """Return a grid on a field, with the agents, worlds and radius of the configuration."""
        rules = self.rules
        return Grid(field, agents=rules.agents, worlds=self.n_worlds, **{"radius": rules.radius} | options)

    def make_walled_grid(self, kinds: Sequence[Kind], **options: Any) -> Grid:
        """Return a grid on an empty field of the configured size, surrounded by a wall."""
        return self.make_grid(Field(kinds, walled_map(self.rules.height, self.rules.width)), **options)

    def populate(self, turn_key: TurnKey, world_mask: Flags) -> None:
        """Put things on the new fields of the (W,) mask; the agents have been placed already."""
        program.run_phase(self.worlds, Phase.RESET, world_mask, self.epoch, self.turn, _NO_REWARDS)

    def earn(self, entered: Bytes, first: int) -> Floats:
        """Return the rewards of the agents from `first` on for the (n, W) codes they entered.

        The rewards are (n, W), or (N, W) if other agents gain or lose too.
        """
        if Phase.EARN not in self._phases:
            return self.grid.field.values.take(entered)
        rewards = np.zeros(self.grid.headings.shape, np.float32)
        program.earn(self.worlds, entered, first, rewards, self.epoch, self.turn)
        return rewards

    def settle(self) -> Floats | None:
        """Apply what happens after all agents have moved, and return its (N, W) rewards; None: no rewards.

        It is called at the end of a turn in both turn orders; `chose` tells which actions agents took.
        """
        if Phase.SETTLE not in self._phases:
            return None
        rewards = np.zeros(self.grid.headings.shape, np.float32)
        program.settle(self.worlds, self.active, rewards, self.epoch, self.turn)
        return rewards

    def chose(self, action: str) -> Flags:
        """Return (N, W) which agents took an action in this turn and were able to."""
        if action not in self.grid.actions:
            raise ConfigError(f"no action is called {action!r}: this game has {', '.join(self.grid.actions)}")
        return np.asarray((self.worlds.chosen == self.grid.actions.index(action)) & self.worlds.able)

    def freeze(self, agent_mask: Flags, turns: int) -> None:
        """Stop the agents of the (N, W) mask from acting for some turns, from the next one on."""
        self._freezes = True
        np.maximum(self.worlds.frozen, turns, out=self.worlds.frozen, where=agent_mask)

    def frozen(self) -> Flags:
        """Return (N, W) which agents are frozen."""
        return np.asarray(self.worlds.frozen > 0)

    def turn_key(self) -> TurnKey:
        """Return the address of this turn's draws."""
        return (*self._key[:2], self.epoch, self.turn, self._key[2])

    def draws(self, slots: int = 1, purpose: Purpose = Purpose.WORLD) -> Array:
        """Return (N, W, slots) random numbers in [0, 1) of this turn, for a game's rules or a scripted policy."""
        agents = len(self.grid.headings)
        address = [self.seed] * agents, purpose, range(agents), self.world_numbers
        numbers: Array = uniforms(*address, epoch=self.epoch, turns=1, slots=slots, first_turn=self.turn)[0]
        return numbers

    def recorders(self, folder: Path) -> Sequence[Callback]:
        """Return recorders of the first world: its picture now, and every `experiment.record_period` epochs a GIF.

        If there are several agents, record their sustainability and peace too.
        """
        period = self.config.experiment.record_period
        if not period:
            return ()
        live = LivePicture(self, folder), *((SocialRecorder(self, folder),) if len(self.agents) > 1 else ())
        if find_spec("imageio") is None:
            structlog.get_logger().info(
                "no_recording",
                reason="imageio is not installed",
                advice="install parallel-agents with the extra 'report', or set experiment.record_period = 0",
            )
            return live
        return (Recorder(self, folder, every=period), *live)

    def add_rewards(self, rewards: Array) -> None:
        """Add (N, W) rewards to the returns that pictures and the terminal show."""
        super().add_rewards(rewards)
        self.earned += rewards
        if self.social is not None:
            self.social.add(rewards)

    def render(self, world: int = 0, cell: int = 16, *, seen_by: int | None = None) -> Bytes:
        """Return a picture of one world as it is now, with the returns of its agents.

        With `seen_by`, everything is darkened that this agent does not see.
        """
        seen = None if seen_by is None else (seen_by, self.rules.radius)
        picture = draw_world(self.grid, world, cell, frozen=self.frozen()[:, world], seen=seen)
        return stack_vertically(picture, draw_scores(self.earned[:, world], picture.shape[1]))

    def compiled_world(self) -> CompiledWorld | str:
        """Return the worlds as compiled code, or, where the game has rules in Python, the first of these."""
        if hook := self.hook_in_python(GridEnvironment, _HOOKS):
            return hook
        if self.recorder is not None and self.recorder.is_due:
            return "the epoch is recorded"
        in_turn = program.observe_agent, program.apply_agent
        return CompiledWorld(self.worlds, program.reset, program.begin_turn, program.observe, program.apply, *in_turn)

    # -- the environment's contract with the engine ------------------------------------------------------------

    def setup_agents(self) -> None:
        """Build the grid, and give every agent a model that fits its observations and actions."""
        self._key = (*key(self.seed, Purpose.WORLD), self.world_numbers.start)
        self.rules = build_section(self.options, self.config.world, "world")
        self.grid = self.build()
        self.observer = WindowObserver(
            self.grid, radius=self.rules.radius, observation=self.rules.observation, egocentric=self.egocentric
        )
        self.worlds = program.grid_world(self.grid, self.observer, self._key, self.parts)
        self.earned = self.worlds.earned
        effects = {row.effect for part in self.parts for row in part.rows()}
        self._phases = {row.phase for part in self.parts for row in part.rows()}
        self._freezes, self._ends = bool(effects & {Effect.BEAM, Effect.TAG}), Effect.END_WITHOUT in effects
        shape, actions = self.observer.shape, len(self.grid.actions)
        self.agents = [Agent(model=self.make_model(shape, actions)) for _ in self.grid.positions]

    def populate_environment(self) -> None:
        """Start every world on a new field."""
        self.reset_worlds(np.ones(self.n_worlds, np.bool_))

    def reset_worlds(self, which: Array) -> None:
        """Start the worlds of the (W,) mask on a new field."""
        if not self.hook_in_python(GridEnvironment, ("populate", "turn_key")):
            program.reset(self.worlds, self.grid.world_mask(which), self.epoch, self.turn)
            return
        self.grid.reset(self.turn_key(), which)
        self.earned[:, which] = 0.0
        self.worlds.frozen[:, which] = 0
        self.populate(self.turn_key(), which)

    def begin_turn(self) -> None:
        """Count frozen turns down, and let things appear."""
        if self.recorder is not None:
            self.recorder.capture()
        program.begin_turn(self.worlds, self.active, self.worlds.able, self.epoch, self.turn)

    def observe(self) -> Array:
        """Return (N, W, obs) in an array that every call overwrites."""
        return self.observer.observe_all()

    def observe_agent(self, index: int) -> Array:
        """Return (W, obs) what one agent observes now."""
        return self.observer.observe_agent(index)

    def can_act(self) -> Flags | None:
        """Return (N, W) which agents are not frozen in this turn; None: no agent ever was."""
        return self.worlds.able if self._freezes else None

    def dones(self) -> tuple[Flags, Flags] | None:
        """Return (N, W) terminated and truncated; None if no part ends an episode."""
        if not self._ends:
            return None
        terminated = np.zeros(self.grid.headings.shape, np.bool_)
        program.end_episodes(self.worlds, terminated)
        return terminated, np.zeros_like(terminated)

    def apply_actions(self, actions: Array) -> Array:
        """Let all agents act in list order; return their (N, W) rewards."""
        return self._act(actions, 0)

    def apply_agent(self, index: int, actions: Array) -> Array:
        """Let one agent act; return (W,) its rewards, or (N, W) if other agents gain or lose too."""
        rewards = self._act(actions[None], index)
        return rewards[0] if len(rewards) == 1 else rewards

    def _act(self, actions: Array, first: int) -> Floats:
        """Let the agents from `first` on act; after the last agent, settle the turn."""
        entered = self.grid.move(actions, first, self.can_act())
        rewards = self.earn(entered, first)
        self.worlds.chosen[first : first + len(actions)] = actions
        if first + len(actions) < len(self.worlds.chosen):
            return rewards
        settled = self.settle()
        if Phase.END in self._phases:
            program.run_phase(self.worlds, Phase.END, self.grid.world_mask(None), self.epoch, self.turn, _NO_REWARDS)
        if settled is None:
            return rewards
        shape = self.grid.headings.shape
        if np.shape(settled) != shape:
            raise ContractError(f"settle() returned shape {np.shape(settled)}: give (agents, worlds) = {shape}")
        if len(rewards) < len(settled):
            own, rewards = rewards, np.zeros(shape, np.float32)
            rewards[first:] = own
        return rewards + settled  # a new array: the game may keep the one that it returned
