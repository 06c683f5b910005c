"""All agents of a run at their places: rows of stacks, or on their own.

A *seat* is (environment, agent). The crew takes what every environment shows, lets each seat act, and gives
every seat its transition to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple

import numpy as np

from parallel_agents.errors import ActionError, ContractError, DeadlineError, NonFiniteError, ShapeError
from parallel_agents.models import Model, Stack, group
from parallel_agents.runtime.plan import Plan
from parallel_agents.runtime.turn import Acts, Outcome
from parallel_agents.types import Array, Transitions

__all__ = ["Crew", "Seat"]


class Seat(NamedTuple):
    """Where an agent sits: environment number, agent number."""

    environment: int
    agent: int


class Crew:
    """Every agent of every environment of a run."""

    def __init__(self, environments: Sequence[Any], plan: Plan, *, world_deadline: float, locked: bool) -> None:
        self.environments = list(environments)
        self.before_write: Callable[[], None] = lambda: None
        """Called before buffers are written: learners that read them by themselves may have to finish first."""
        self.worlds = self.environments[0].n_worlds
        self._deadline = world_deadline
        self.seats = [Seat(k, i) for k, env in enumerate(self.environments) for i in range(len(env.agents))]
        stacked = [seat for seat in self.seats if _fits_a_stack(self._body(seat))]
        self.alone = [seat for seat in self.seats if seat not in stacked]
        bodies = [self._body(seat) for seat in stacked]
        self.members = [[stacked[place] for place in places] for places in group([body.model for body in bodies])]
        self.stacks = [
            Stack(
                [self._body(seat).model for seat in members],
                together=plan.act_together,
                locked=locked,
                device=plan.device,
            )
            for members in self.members
        ]
        self._places = {seat: (s, row) for s, seats in enumerate(self.members) for row, seat in enumerate(seats)}
        self._slow = [seat for seat in self.alone if getattr(self._body(seat).model, "slow", False)]
        self._pool = ThreadPoolExecutor(len(self._slow), "slow-model") if self._slow else None
        self.recomputed = 0
        self.chosen = 0

    def close(self) -> None:
        """End the threads of slow models; one that still waits for its service is left behind."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # -- acting ----------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int) -> None:
        for stack in self.stacks:
            stack.start_epoch(epoch)
        self._each_alone("start_epoch_action", epoch)

    def end_epoch(self, epoch: int) -> None:
        for stack in self.stacks:
            for model in stack.models:
                model.end_epoch_action(epoch=epoch)
        self._each_alone("end_epoch_action", epoch)

    def act(self, seen: Sequence[Any], first: Sequence[Array], epoch: int, turn: int, *, stacked_only: bool) -> Acts:
        """What every agent does after seeing `seen[environment][agent]`, (W, *obs) each."""
        acts = Acts([], [], [], {})
        for stack, members in zip(self.stacks, self.members, strict=True):
            observations = self._rows(seen, members, stack)
            actions, extras = stack.act(observations, self._of(members, first), epoch, turn)
            acts.observations.append(observations)
            acts.actions.append(actions)
            acts.extras.append(extras)
            self.chosen += actions.shape[0] * actions.shape[1]
        if self.alone and not stacked_only:
            self._act_alone(seen, acts)
        return acts

    def act_in_turn(self, seat: Seat, observation: Array, acts: Acts, epoch: int, turn: int) -> None:
        """One agent at its place in the order: computed again only if what it sees has changed since all acted."""
        if seat not in self._places:
            acts.alone[seat] = self._ask(seat, observation)
            return
        index, row = self._places[seat]
        flat = np.asarray(observation, np.float32).reshape(self.worlds, -1)
        if not np.array_equal(flat, acts.observations[index][row]):
            acts.observations[index][row] = flat
            acts.actions[index][row] = self.stacks[index].act_again(row, flat, epoch, turn)
            self.recomputed += self.worlds

    def actions_of(self, environment: int, acts: Acts) -> Any:
        """(N, W) actions of one environment, or one array per agent where their shapes differ."""
        if len(self.environments) == 1 and len(self.stacks) == 1 and not self.alone:
            return acts.actions[0]
        chosen = [self.action_of(Seat(environment, i), acts) for i in range(len(self.environments[environment].agents))]
        return np.stack(chosen) if len({own.shape for own in chosen}) == 1 else chosen

    def action_of(self, seat: Seat, acts: Acts) -> Array:
        """(W, …) actions of one agent."""
        if seat in acts.alone:
            return acts.alone[seat]
        index, row = self._places[seat]
        return np.asarray(acts.actions[index][row])

    def _act_alone(self, seen: Sequence[Any], acts: Acts) -> None:
        waiting: dict[Seat, Future[Array]] = {}
        for seat in self.alone:
            observation = seen[seat.environment][seat.agent]
            if self._pool is not None and seat in self._slow:
                waiting[seat] = self._pool.submit(self._ask, seat, observation)
            else:
                acts.alone[seat] = self._ask(seat, observation)
        for seat, future in waiting.items():
            try:
                acts.alone[seat] = future.result(self._deadline)
            except FutureTimeout:
                name = self._body(seat).name
                raise DeadlineError(f"the model of {name} did not act within {self._deadline:g} s (world_deadline)") from None

    def _ask(self, seat: Seat, observation: Array) -> Array:
        bodies = self.environments[seat.environment].bodies(seat.agent)
        own = [bodies[w if len(bodies) > 1 else 0] for w in range(self.worlds)]
        actions = np.asarray([body.get_action(observation[w]) for w, body in enumerate(own)])
        limit = bodies[0].n_actions
        if limit is not None and not ((actions >= 0) & (actions < limit)).all():
            raise ActionError(
                f"{bodies[0].name} chose action {actions.tolist()}, but its actions are 0 to {limit - 1}: "
                "check its model's take_action() or its get_action()"
            )
        return actions

    # -- memory ----------------------------------------------------------------------------------------------

    def keep(self, seen: Sequence[Any], acts: Acts, outcome: Outcome) -> None:
        """Give every seat its transition."""
        self.before_write()
        for index, (stack, members) in enumerate(zip(self.stacks, self.members, strict=True)):
            stack.add(
                Transitions(
                    observations=acts.observations[index],
                    actions=acts.actions[index],
                    rewards=self._of(members, outcome.rewards),
                    terminated=self._of(members, outcome.terminated),
                    truncated=self._of(members, outcome.truncated),
                    valid=self._of(members, outcome.acted),
                    first=self._of(members, outcome.first),
                    present=np.array([outcome.present[seat.environment] for seat in members]),
                    version=stack.inference.version,
                    extras=acts.extras[index],
                )
            )
        for seat in self.alone:
            self._keep_alone(seat, seen[seat.environment][seat.agent], acts, outcome)

    def _keep_alone(self, seat: Seat, observation: Array, acts: Acts, outcome: Outcome) -> None:
        k, i = seat
        bodies = self.environments[k].bodies(i)
        for w in np.flatnonzero(outcome.acted[k][i]):
            body = bodies[w if len(bodies) > 1 else 0]
            done = bool(outcome.terminated[k][i, w] or outcome.truncated[k][i, w])
            body.add_memory(observation[w], acts.alone[seat][w], float(outcome.rewards[k][i, w]), done)

    def close_epoch(self, seen: Sequence[Any], *, ended: bool) -> None:
        """Keep what the last turn led to."""
        self.before_write()
        for stack, members in zip(self.stacks, self.members, strict=True):
            stack.close(self._rows(seen, members, stack), ended=ended)

    def train_alone(self) -> None:
        """Models without a stacked form train inline, at the boundary."""
        for seat in self.alone:
            model = self._body(seat).model
            if hasattr(model, "train_step") and not getattr(model, "frozen", False):
                model.train_step()

    # -- details ---------------------------------------------------------------------------------------------

    def _of(self, members: Sequence[Seat], arrays: Sequence[Array]) -> Array:
        """Rows of the members from one (N, W) array per environment."""
        if len(arrays) == 1 and len(members) == len(arrays[0]):
            return arrays[0]
        return np.stack([arrays[k][i] for k, i in members])

    def _rows(self, seen: Sequence[Any], members: Sequence[Seat], stack: Stack) -> Array:
        """(N, W, D) observations of the seats of a stack, checked and copied."""
        if len(seen) == 1 and len(members) == len(seen[0]) and isinstance(seen[0], np.ndarray):
            block = seen[0]
        else:
            block = np.stack([np.asarray(seen[k][i]) for k, i in members])
        wanted = (len(members), self.worlds, *stack.blueprint.observation)
        if block.shape != wanted:
            raise ShapeError(
                f"observations of {self._body(members[0]).name} and others have shape {block.shape}, "
                f"wanted is (agents, worlds, *obs) = {wanted}: check observe() or pov(), and the model's obs_shape"
            )
        block = np.array(block, np.float32).reshape(len(members), self.worlds, -1)
        if not np.isfinite(block.sum()) and not np.isfinite(block).all():
            row, world = np.argwhere(~np.isfinite(block).all(axis=-1))[0]
            name = self._body(members[row]).name
            raise NonFiniteError(f"the observation of {name} in world {world} holds NaN or infinity: check the environment")
        return block

    def _body(self, seat: Seat) -> Any:
        return self.environments[seat.environment].agents[seat.agent]

    def _each_alone(self, hook: str, epoch: int) -> None:
        for seat in self.alone:
            call = getattr(self._body(seat).model, hook, None)
            if call is not None:
                call(epoch=epoch)


def _fits_a_stack(agent: Any) -> bool:
    """True for learners that act and remember in the standard way."""
    if not isinstance(agent.model, Model):
        if not hasattr(agent.model, "take_action"):
            raise ContractError(f"the model of {agent.name} has no take_action(state): give it one")
        return False
    return not agent.acts_by_itself
