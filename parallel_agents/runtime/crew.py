"""All agents of a run at their places: rows of stacks, or on their own.

A *seat* is (environment, agent). The crew takes what every environment shows, lets each seat act, and gives
every seat its transition to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any

import numpy as np

from parallel_agents.errors import (
    ActionError,
    CheckpointError,
    ContractError,
    DeadlineError,
    ParallelAgentsError,
    RunError,
)
from parallel_agents.models import Model, Stack, group
from parallel_agents.runtime import standalone
from parallel_agents.runtime.background import in_background
from parallel_agents.runtime.checkpoints.packing import pack
from parallel_agents.runtime.events import class_ids, event_columns
from parallel_agents.runtime.intake import Intake, Masks, Seat, mask_of
from parallel_agents.runtime.plan import Plan
from parallel_agents.runtime.turn import Acts, Outcome
from parallel_agents.types import Array, RoundResult, Transitions

__all__ = ["Crew", "Seat"]


class Crew:
    """Every agent of every environment of a run."""

    def __init__(self, environments: Sequence[Any], plan: Plan, *, world_deadline: float, locked: bool) -> None:
        self.environments = list(environments)
        self.before_write: Callable[[], None] = lambda: None
        """Called before buffers are written: learners that read them by themselves may have to finish first."""
        self.worlds = self.environments[0].n_worlds
        self._intake = Intake(self.environments)
        self._deadline = world_deadline
        self.seats = [Seat(k, i) for k, env in enumerate(self.environments) for i in range(len(env.agents))]
        stacked = [seat for seat in self.seats if _fits_a_stack(self._body(seat))]
        self.alone = [seat for seat in self.seats if seat not in stacked]
        self.members = self._grouped(stacked)
        self.stacks = [
            Stack(
                [self._body(seat).model for seat in members],
                together=plan.act_together,
                locked=locked,
                device=plan.device,
                workers=plan.most_workers,
            )
            for members in self.members
        ]
        self._places = {seat: (s, row) for s, seats in enumerate(self.members) for row, seat in enumerate(seats)}
        self._numbers = {seat: number for number, seat in enumerate(self.seats)}
        self._own_buffers = {
            seat: self._body(seat).model.memory for seat in self.alone if _remembers_as_usual(self._body(seat))
        }
        """Buffers of learners that act by themselves and remember as everybody does."""
        self._event_ids = {
            seat: class_ids(self.environments[seat.environment], self._body(seat))
            for seat in (*stacked, *self._own_buffers)
            if self._body(seat).model.event_types
        }
        """What the environment's event types are called by agents that draw by them."""
        self._constants = {seat: standalone.constants(self._body(seat).model) for seat in self.alone}
        self._everyone = np.ones(len(self.seats), np.bool_)
        self.recomputed = 0
        self.chosen = 0

    @property
    def keeps_events(self) -> bool:
        """True where somebody draws by event class."""
        return bool(self._event_ids)

    def _grouped(self, stacked: Sequence[Seat]) -> list[list[Seat]]:
        """Seats that share a stack. Environments that take their own turns share none: those do not coincide."""
        pools = [list(stacked)]
        if any(env.takes_own_turns for env in self.environments):
            pools = [[seat for seat in stacked if seat.environment == k] for k in range(len(self.environments))]
        models = [[self._body(seat).model for seat in pool] for pool in pools]
        grouped = [
            [pool[place] for place in places] for pool, own in zip(pools, models, strict=True) for places in group(own)
        ]
        # in the order in which they will be trained and published
        return sorted(grouped, key=lambda members: -self._body(members[0]).model.blueprint.training_priority)

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

    def act(
        self,
        which: Collection[int],
        seen: Sequence[Any],
        masks: Sequence[Masks],
        first: Sequence[Array],
        epoch: int,
        turn: int,
        *,
        stacked_only: bool,
    ) -> Acts:
        """What every agent of some environments does after seeing `seen[environment][agent]`, (W, *obs) each.

        masks[environment][agent]: (W, A) what it may do; None for an environment or agent: everything.
        """
        acts = Acts()
        for index, (stack, members) in enumerate(zip(self.stacks, self.members, strict=True)):
            if not any(seat.environment in which for seat in members):
                continue
            observations = self._intake.rows(seen, members, stack.blueprint)
            allowed = self._intake.allowed(masks, members, stack.blueprint)
            actions, extras = stack.act(observations, self._of(members, first), epoch, turn, allowed)
            acts.observations[index], acts.actions[index], acts.extras[index] = observations, actions, extras
            self.chosen += actions.shape[0] * actions.shape[1]
        if self.alone and not stacked_only:
            here = [seat for seat in self.alone if seat.environment in which]
            sights = {seat: self._intake.own(seen[seat.environment][seat.agent], seat) for seat in here}
            self._act_alone(sights, {seat: mask_of(masks, seat) for seat in here}, acts)
        return acts

    def act_in_turn(
        self, seat: Seat, observation: Array, mask: Array | None, acts: Acts, epoch: int, turn: int
    ) -> None:
        """One agent at its place in the order: computed again only if what it sees or may do has changed."""
        if seat not in self._places:
            self._act_alone({seat: self._intake.own(observation, seat)}, {seat: mask}, acts)
            return
        index, row = self._places[seat]
        stack = self.stacks[index]
        seen, known = np.asarray(observation, np.float32), acts.observations[index][row]
        allowed = self._intake.fitting(mask, seat, stack.blueprint) if stack.blueprint.masked else None
        same = allowed is None or np.array_equal(allowed, acts.extras[index]["masks"][row])
        if not (same and np.array_equal(seen.reshape(-1), known.reshape(-1))):
            acts.observations[index][row] = flat = self._intake.checked([seen], [seat], stack.blueprint)[0]
            acts.actions[index][row], columns = stack.act_again(row, flat, epoch, turn, allowed)
            for name, column in columns.items():
                acts.extras[index][name][row] = column
            self.recomputed += self.worlds

    def actions_of(self, environment: int, acts: Acts) -> Any:
        """(N, W) actions of one environment, or one array per agent where their shapes differ.

        They are copies: what a world writes into them must not reach what the agents remember.
        """
        if len(self.environments) == 1 and len(self.stacks) == 1 and not self.alone:
            return acts.actions[0].copy()
        count = len(self.environments[environment].agents)
        chosen = [self._chosen_by(Seat(environment, i), acts) for i in range(count)]
        return np.stack(chosen) if len({own.shape for own in chosen}) == 1 else [own.copy() for own in chosen]

    def action_of(self, seat: Seat, acts: Acts) -> Array:
        """(W, …) actions of one agent, as a copy."""
        return self._chosen_by(seat, acts).copy()

    def _chosen_by(self, seat: Seat, acts: Acts) -> Array:
        if seat in acts.alone:
            return acts.alone[seat]
        index, row = self._places[seat]
        return np.asarray(acts.actions[index][row])

    def _act_alone(self, seen: Mapping[Seat, Array], masks: Mapping[Seat, Array | None], acts: Acts) -> None:
        """Agents on their own, each from what it sees; all are asked before any slow one is awaited."""
        asked = {seat: self._asked(seat, observation, masks[seat]) for seat, observation in seen.items()}
        acts.alone_saw.update(seen)
        for seat, answer in asked.items():
            acts.alone[seat] = self._awaited(seat, answer) if isinstance(answer, Future) else answer

    def _asked(self, seat: Seat, observation: Array, mask: Array | None) -> Array | Future[Array]:
        """What an agent on its own does; a slow one is asked in the background."""
        ask = partial(self._ask, seat, observation, mask)
        if getattr(self._body(seat).model, "slow", False):
            return in_background(ask, f"slow-model-{self._body(seat).name}")
        return ask()

    def _awaited(self, seat: Seat, answer: Future[Array]) -> Array:
        try:
            return answer.result(self._deadline)
        except FutureTimeout:
            if answer.done():  # the model's own time-out, not ours
                raise
            name = self._body(seat).name
            raise DeadlineError(
                f"the model of {name} did not act within {self._deadline:g} s (world_deadline)"
            ) from None

    def _ask(self, seat: Seat, observation: Array, mask: Array | None) -> Array:
        bodies = self.environments[seat.environment].bodies(seat.agent)
        own = [bodies[w if len(bodies) > 1 else 0] for w in range(self.worlds)]
        try:
            actions = _chosen(own, observation, mask)
        except ParallelAgentsError:
            raise
        except (Exception, SystemExit) as error:
            raise RunError(f"{bodies[0].name} could not choose an action: {type(error).__name__}: {error}") from error
        limit = bodies[0].n_actions
        if limit is not None and not ((actions >= 0) & (actions < limit)).all():
            raise ActionError(
                f"{bodies[0].name} chose action {actions.tolist()}, but its actions are 0 to {limit - 1}: "
                "check its model's take_action() or its get_action()"
            )
        if mask is not None and actions.ndim == 1 and not mask[np.arange(self.worlds), actions].all():
            world = int(np.flatnonzero(~mask[np.arange(self.worlds), actions])[0])
            raise ActionError(
                f"{bodies[0].name} chose action {actions[world]} in world {world}, which its mask forbids: choose one "
                f"of {np.flatnonzero(mask[world]).tolist()}, or set takes_masks on its model"
            )
        return actions

    # -- memory ----------------------------------------------------------------------------------------------

    def keep(self, acts: Acts, outcome: Outcome) -> None:
        """Give every seat its transition."""
        self.before_write()
        for index in acts.actions:
            stack, members = self.stacks[index], self.members[index]
            stack.add(
                Transitions(
                    observations=acts.observations[index],
                    actions=acts.actions[index],
                    rewards=self._of(members, outcome.rewards),
                    terminated=self._of(members, outcome.terminated),
                    truncated=self._of(members, outcome.truncated),
                    valid=self._of(members, outcome.acted),
                    first=self._of(members, outcome.first),
                    present=self._present(members, outcome),
                    version=stack.inference.version,
                    extras=acts.extras[index] | self._events_of(members, outcome),
                )
            )
        for seat, observation in acts.alone_saw.items():
            self._keep_alone(seat, observation, acts, outcome)

    def _keep_alone(self, seat: Seat, observation: Array, acts: Acts, outcome: Outcome) -> None:
        k, i = seat
        if seat in self._own_buffers:
            self._own_buffers[seat].add_turn(self._turn_of(seat, observation, acts, outcome))
            return
        bodies = self.environments[k].bodies(i)
        for w in np.flatnonzero(outcome.acted[k][i]):
            body = bodies[w if len(bodies) > 1 else 0]
            done = bool(outcome.terminated[k][i, w] or outcome.truncated[k][i, w])
            body.add_memory(observation[w], acts.alone[seat][w], float(outcome.rewards[k][i, w]), done)

    def _turn_of(self, seat: Seat, observation: Array, acts: Acts, outcome: Outcome) -> Transitions:
        """One agent's turn, with that agent as the first axis."""
        k, i = seat
        columns = (outcome.rewards, outcome.terminated, outcome.truncated, outcome.acted, outcome.first)
        rewards, terminated, truncated, acted, first = (column[k][i][None] for column in columns)
        present = np.array([outcome.present[k]])
        seen = np.asarray(observation, np.float32)[None]
        actions = np.asarray(acts.alone.get(seat, np.zeros(self.worlds, np.int64)))[None]
        told = self._events_of([seat], outcome)
        return Transitions(seen, actions, rewards, terminated, truncated, acted, first, present, version=0, extras=told)

    def _events_of(self, members: Sequence[Seat], outcome: Outcome) -> dict[str, Array]:
        """Event types and values (N, W) of the members, who all draw by event class or none of them does."""
        if members[0] not in self._event_ids:
            return {}
        return event_columns(members, self._event_ids, outcome.events, self.worlds)

    def close_epoch(self, seen: Sequence[Any], masks: Sequence[Masks], *, ended: bool) -> None:
        """Keep what the last turn led to."""
        self.before_write()
        for stack, members in zip(self.stacks, self.members, strict=True):
            stack.close(
                self._intake.rows(seen, members, stack.blueprint),
                ended=ended,
                masks=self._intake.allowed(masks, members, stack.blueprint),
            )
        for seat in self.alone:
            k, i = seat
            memory: Any = getattr(self._body(seat).model, "memory", None)
            if seat in self._own_buffers:
                self._own_buffers[seat].close_turn(
                    np.asarray(self._intake.own(seen[k][i], seat), np.float32)[None], ended=ended
                )
            elif ended and hasattr(memory, "add_empty"):
                memory.add_empty()  # what comes next is another episode

    def train_alone(self) -> None:
        """Models without a stacked form train inline, at the boundary."""
        models = [self._body(seat).model for seat in self.alone]
        for model in sorted(models, key=lambda model: -getattr(model, "training_priority", 0)):
            if hasattr(model, "train_step") and not getattr(model, "frozen", False):
                model.train_step()

    # -- the state of agents outside of stacks -----------------------------------------------------------------

    def place(self, seat: Seat) -> tuple[int, int] | None:
        """Return the stack of an agent and its row there; None where it is outside of stacks."""
        return self._places.get(seat)

    def unknown_state(self) -> str | None:
        """Return why digest and checkpoint cannot cover every agent; None: they can."""
        reasons = (standalone.unknown(self._bodies(seat), self._constants[seat]) for seat in self.alone)
        found = next((reason for reason in reasons if reason is not None), None)
        return found or next(filter(None, map(self._unreadable, self.seats)), None)

    def _unreadable(self, seat: Seat) -> str | None:
        """Return what is wrong with what an agent's own hooks tell; None: it can be stored."""
        try:
            pack(self.own_state(seat), {}, "")
        except Exception as error:  # whatever a user's own code raises, the run itself is not at fault
            return f"the state of {self._body(seat).name} cannot be stored: {type(error).__name__}: {error}"
        return None

    def own_state(self, seat: Seat) -> Any:
        """Return what an agent keeps outside of stacks: everything, or what its `state()` gives beside its row."""
        bodies = self._bodies(seat)
        return standalone.agent_states(bodies) if seat in self._places else standalone.state(bodies)

    def load_own_state(self, seat: Seat, told: Any) -> None:
        """Put back what `own_state` returned."""
        try:
            if seat in self._places:
                standalone.load_agent_states(self._bodies(seat), told)
            else:
                standalone.load_state(self._bodies(seat), told)
        except ParallelAgentsError:
            raise
        except Exception as error:  # of the user's own load_state: say whose it was
            name = self._body(seat).name
            raise CheckpointError(f"{name} did not take its state: {type(error).__name__}: {error}") from error

    # -- telling ---------------------------------------------------------------------------------------------

    def in_order(self, columns: Sequence[Array], missing: float = np.nan) -> Array:
        """(agents,) in canonical order from one (N,) array per stack; `missing` for agents on their own."""
        whole = np.full(len(self.seats), missing)
        for members, column in zip(self.members, columns, strict=True):
            whole[[self._numbers[seat] for seat in members]] = column
        return whole

    def as_one(self, results: Sequence[RoundResult]) -> RoundResult:
        """One round of all stacks as one result of all agents, for listeners."""
        names = dict.fromkeys(name for result in results for name in result.metrics)
        absent = [np.full(len(members), np.nan) for members in self.members]
        return RoundResult(
            round=results[0].round,
            updates=self.in_order([result.updates for result in results], 0).astype(np.int64),
            rejected=self.in_order([result.rejected for result in results], 0).astype(np.int64),
            metrics={
                name: self.in_order([r.metrics.get(name, none) for r, none in zip(results, absent, strict=True)])
                for name in names
            },
            seconds=sum(result.seconds for result in results),
        )

    # -- details ---------------------------------------------------------------------------------------------

    def _present(self, members: Sequence[Seat], outcome: Outcome) -> Array:
        """(N,) whether each seat's environment took part in the turn."""
        if all(outcome.present):
            return self._everyone[: len(members)]
        return np.array([outcome.present[seat.environment] for seat in members])

    def _of(self, members: Sequence[Seat], arrays: Sequence[Array]) -> Array:
        """Rows of the members from one (N, W) array per environment."""
        if len(arrays) == 1 and len(members) == len(arrays[0]):
            return arrays[0]
        return np.stack([arrays[k][i] for k, i in members])

    def _body(self, seat: Seat) -> Any:
        return self.environments[seat.environment].agents[seat.agent]

    def _bodies(self, seat: Seat) -> list[Any]:
        """The agent in every world; one for all where worlds are vectorised."""
        return list(self.environments[seat.environment].bodies(seat.agent))

    def _each_alone(self, hook: str, epoch: int) -> None:
        for seat in self.alone:
            call = getattr(self._body(seat).model, hook, None)
            if call is not None:
                call(epoch=epoch)


def _remembers_as_usual(agent: Any) -> bool:
    return isinstance(agent.model, Model) and not agent.remembers_by_itself


def _fits_a_stack(agent: Any) -> bool:
    """True for learners that act and remember in the standard way."""
    if not isinstance(agent.model, Model):
        if not hasattr(agent.model, "take_action"):
            raise ContractError(f"the model of {agent.name} has no take_action(state): give it one")
        return False
    if agent.acts_by_itself and agent.model.blueprint.state:
        raise ContractError(
            f"{agent.name} overrides get_action() or add_memory(), but its model is recurrent: its states are carried "
            "and kept in a stack only; leave these hooks as they are, or set model.recurrent = false"
        )
    return not agent.acts_by_itself


def _chosen(own: Sequence[Any], observation: Array, mask: Array | None) -> Array:
    """(W, …) actions of an agent on its own, from (W, *obs) and, where its model understands them, (W, A) masks."""
    if mask is not None and not own[0].chooses_by_itself and getattr(own[0].model, "takes_masks", False):
        return np.asarray([body.model.take_action(observation[w], mask=mask[w]) for w, body in enumerate(own)])
    return np.asarray([body.get_action(observation[w]) for w, body in enumerate(own)])
