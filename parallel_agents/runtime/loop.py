"""The loop: the whole flow on one screen.

worlds -> acting -> memory -> (boundary) snapshot -> learning -> publish -> acting …
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from parallel_agents.acting import flattened
from parallel_agents.errors import NonFiniteError, ParallelAgentsError, ShapeError, WorldError
from parallel_agents.runtime.crew import Crew, Seat
from parallel_agents.runtime.events import told_events
from parallel_agents.runtime.turn import Acts, Outcome, all_finite
from parallel_agents.types import Array

__all__ = ["Loop"]


class Loop:
    """Turns and epochs of all environments of a run; sequential and parallel are the same loop."""

    def __init__(
        self,
        environments: Sequence[Any],
        crew: Crew,
        *,
        max_turns: int,
        autoreset: bool,
        sequential: bool,
        remembers: bool = True,
        onlooker: Callable[[Outcome], None] | None = None,
    ) -> None:
        """onlooker: told after each turn of some environments what came of it; it looks and never touches."""
        self.environments, self.crew = list(environments), crew
        self.max_turns, self.autoreset, self.sequential = max_turns, autoreset, sequential
        self._remembers, self._onlooker = remembers, onlooker
        self.epoch = 0
        self.turn = 0
        self.turns = 0
        self.transitions = 0
        shapes = [(len(env.agents), env.n_worlds) for env in self.environments]
        self._nobody = [np.zeros(shape, np.bool_) for shape in shapes]
        self.alive = [~nobody for nobody in self._nobody]
        """(N, W) agents whose episode goes on."""
        self._complete = [True] * len(self.environments)
        """Nobody's episode has ended: the usual case, in which much can be spared."""
        self._every_world = np.ones(self.environments[0].n_worlds, np.bool_)
        self.first = [~nobody for nobody in self._nobody]
        """(N, W) agents whose episode starts with the next turn."""
        self.returns = [np.zeros(shape) for shape in shapes]
        """(N, W) what each agent has earned in this epoch."""
        self.heart = self.environments[0].heart
        self._masked = [env.masks_actions for env in self.environments]
        self._asked = 0
        """The environment that was asked last."""

    def run_epoch(self, epoch: int) -> int:
        """One epoch; how many turns it took. What a world raises is told with its place."""
        self.epoch, self.turn = epoch, 0
        try:
            return self._run_epoch(epoch)
        except ParallelAgentsError:
            raise
        except (Exception, SystemExit) as error:  # sys.exit() in a world is no end of a run
            raise self._at_fault(error) from error
        finally:
            self.heart.rest()

    def _run_epoch(self, epoch: int) -> int:
        self.heart.beat(epoch)
        for env, earned in zip(self.environments, self.returns, strict=True):
            earned[:] = 0.0
            env.begin_epoch(epoch)
        self.crew.start_epoch(epoch)
        if not self.autoreset or epoch == 1:
            self._start_episodes({k: np.ones(env.n_worlds, np.bool_) for k, env in enumerate(self.environments)})
        while self.turn < self.max_turns and (going := self._going()):
            self.turn += 1
            self.heart.beat(epoch, self.turn)
            self._one_turn(going)
        if self._remembers:
            self.crew.close_epoch(self._observe(), self._masks(), ended=not self.autoreset)
        self.crew.end_epoch(epoch)
        self.turns += self.turn
        return self.turn

    def _going(self) -> list[int]:
        """Environments in which somebody's episode goes on."""
        return [k for k, alive in enumerate(self.alive) if self.autoreset or self._complete[k] or alive.any()]

    def _one_turn(self, going: Sequence[int]) -> None:
        if any(env.takes_own_turns for env in self.environments):
            for k in going:
                self.environments[k].conducted_turn(partial(self.conduct, [k]))
        else:
            self.conduct(going)

    def conduct(self, which: Sequence[int]) -> None:
        """One turn of some environments: everything else moves, all observe, all act, all remember."""
        for k in which:
            self._asked, env = k, self.environments[k]
            env.turn = self.turn
            env.active = self._every_world if self._complete[k] else self.alive[k].any(axis=0)
            env.begin_turn()
        seen, masks = self._observe(), self._masks()
        acts = self.crew.act(which, seen, masks, self.first, self.epoch, self.turn, stacked_only=self.sequential)
        outcome = Outcome.nothing(self._nobody, self.first)
        for k in which:
            rewards, acted = self._apply_in_turn(k, acts) if self.sequential else self._apply(k, acts)
            self._judge(k, rewards, acted, outcome)
        if self._remembers:
            self.crew.keep(acts, outcome)
        if self._onlooker is not None:
            self._onlooker(outcome)
        if self.autoreset:
            self._start_episodes({k: ~self.environments[k].active for k in which})

    def _apply(self, k: int, acts: Acts) -> tuple[Array, Array]:
        """All actions at once, in list order; (N, W) rewards and who really acted."""
        self._asked, env = k, self.environments[k]
        able = env.can_act()
        env.acting = acted = self.alive[k] if able is None else self.alive[k] & able
        return env.apply_actions(self.crew.actions_of(k, acts)), acted

    def _apply_in_turn(self, k: int, acts: Acts) -> tuple[Array, Array]:
        """Agent by agent, each seeing what the earlier ones have done; recomputed only where that changed."""
        self._asked, env, alive = k, self.environments[k], self.alive[k]
        total, acted = np.zeros(alive.shape, np.float32), np.zeros(alive.shape, np.bool_)
        env.acting = acted
        for i in range(len(env.agents)):
            seat = Seat(k, i)
            self.heart.beat(self.epoch, self.turn)
            able = env.can_act()
            able_now = alive[i] if able is None else alive[i] & able[i]
            mask = _where_asked(env.action_mask_of(i), able_now) if self._masked[k] else None
            self.crew.act_in_turn(seat, env.observe_agent(i), mask, acts, self.epoch, self.turn)
            acted[i] = able_now
            earned = env.apply_agent(i, self.crew.action_of(seat, acts))
            if earned.ndim == 1:
                total[i] += earned
            else:
                total += earned
        return total, acted

    def _judge(self, k: int, rewards: Array, acted: Array, outcome: Outcome) -> None:
        """What the turn gave to those whose episode goes on, and whose episode ends with it."""
        env, alive = self.environments[k], self.alive[k]
        if np.shape(rewards) != alive.shape:
            raise ShapeError(
                f"{type(env).__name__} gave rewards of shape {np.shape(rewards)}, "
                f"wanted is (agents, worlds) = {alive.shape}"
            )
        if not self._complete[k]:
            rewards = np.where(alive, rewards, 0.0)
        outcome.rewards[k] = rewards = np.asarray(rewards, np.float32)
        if not all_finite(rewards):
            agent, world = np.argwhere(~np.isfinite(rewards))[0]
            raise NonFiniteError(
                f"the reward of {env.agents[agent].name} in world {world} is {rewards[agent, world]} "
                f"(epoch {self.epoch}, turn {self.turn}): check the environment's rewards"
            )
        outcome.acted[k], outcome.present[k] = acted, True
        if self._remembers and self.crew.keeps_events:
            outcome.events[k] = told_events(env, rewards)
        env.credit(rewards)
        self.returns[k] += rewards
        self.transitions += int(np.count_nonzero(acted))
        self.first[k] = self._nobody[k]
        ends = env.dones()
        if ends is not None:
            terminated, truncated = ends
            outcome.terminated[k] = terminated & alive
            outcome.truncated[k] = truncated & alive & ~terminated
            self.alive[k] = alive & ~(terminated | truncated)
            self._complete[k] = bool(self.alive[k].all())

    def restore(self, k: int, alive: Array, first: Array) -> None:
        """Put one environment's episodes where a checkpoint left them."""
        self.alive[k], self.first[k], self._complete[k] = alive, first, bool(alive.all())

    def _start_episodes(self, which: Mapping[int, Array]) -> None:
        for k, mask in which.items():
            if mask.any():
                self._asked = k
                self.environments[k].reset_worlds(mask)
                self.alive[k] = self.alive[k] | mask
                self._complete[k] = bool(self.alive[k].all())
                self.first[k] = self.first[k] | mask

    def _observe(self) -> list[Any]:
        return [flattened(env.observe(), 2) for env in self.environments]

    def _masks(self) -> list[list[Array | None] | None]:
        """Per environment and agent what it may do, (W, A) bool; None: everything."""
        return [self._masks_in(k) if masked else None for k, masked in enumerate(self._masked)]

    def _masks_in(self, k: int) -> list[Array | None]:
        env, alive = self.environments[k], self.alive[k]
        able = env.can_act()
        asked = alive if able is None else alive & able
        masks = env.action_masks()
        if len(masks) != len(alive):
            raise ShapeError(
                f"{type(env).__name__} has {len(alive)} agents, but action_masks() gave masks of {len(masks)}"
            )
        return [_where_asked(own, asked[i]) for i, own in enumerate(masks)]

    def _at_fault(self, error: Exception | SystemExit) -> WorldError:
        """What an environment raised, with everything needed to see it again."""
        env = self.environments[self._asked]
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"epoch {self.epoch}, turn {self.turn}" + ("" if env.vectorised else f", world {env.selected}")
        return WorldError(
            f"{type(env).__name__} raised {type(error).__name__}: {error} in {where} (seed {env.seed}), "
            f"at {place.filename}:{place.lineno} in {place.name}()"
        )


def _where_asked(mask: Array | None, asked: Array) -> Array | None:
    """(W, A) masks that bind only in the (W,) worlds where the agent is asked: nobody else's choice counts."""
    return None if mask is None else np.asarray(mask, np.bool_) | ~asked[:, None]
