"""The loop: turns, epochs and round boundaries of a run, from top to bottom.

    for each epoch:                                                   Loop.run_epoch
        for each turn:                                                Loop.turn
            observe -> act -> apply actions -> store transitions
        or, where the worlds are compiled, all turns in a few calls:  Loop._collect
        store what the last turn led to
        if a round is due:                                            Rounds.boundary
            snapshot -> submit -> wait for round r - lag -> publish

Sequential and parallel runs are this same loop with another plan. Shapes: N agents, W worlds.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from parallel_agents.algorithms.learner import LearnerState, RoundResult, Snapshot
from parallel_agents.core.config import Parallel
from parallel_agents.core.errors import (
    ActionError,
    DeadlineError,
    LearnerError,
    NonFiniteError,
    ParallelAgentsError,
    RunError,
    ShapeError,
    WorkerDied,
    WorldError,
)
from parallel_agents.core.observations import flatten_observation
from parallel_agents.core.types import AgentId, Array, Masks, Step
from parallel_agents.engine.agents import AgentGroup
from parallel_agents.engine.collect import BAD_ACTION, BAD_OBSERVATION, CompiledWorld, Progress, add_rewards
from parallel_agents.engine.events import read_events
from parallel_agents.engine.plan import Plan
from parallel_agents.engine.stacks import Stack
from parallel_agents.execution.backend import PATIENCE, Backend, LazySnapshot, Monitored
from parallel_agents.execution.launcher import Autoscaler, BackendLauncher
from parallel_agents.execution.ray import RayCluster
from parallel_agents.tracking.timeline import Timeline


class Loop:
    """Turns and epochs of all environments of a run."""

    def __init__(
        self,
        environments: Sequence[Any],
        group: AgentGroup,
        *,
        max_turns: int,
        autoreset: bool,
        sequential: bool,
        stores: bool = True,
        on_turn: Callable[[Step], None] | None = None,
    ) -> None:
        """sequential: each agent observes after the earlier ones have acted. stores: store transitions.

        on_turn: called after each turn of some environments with what it gave, which it must not change.
        """
        self.environments, self.group = list(environments), group
        self.max_turns, self.autoreset, self.sequential = max_turns, autoreset, sequential
        self._stores, self._on_turn = stores, on_turn
        self.epoch = 0
        self.turn_number = 0
        """Number of the turn within its epoch."""
        self.turns = 0
        """Turns of all finished epochs."""
        self.transitions = 0
        shapes = [(len(env.agents), env.n_worlds) for env in self.environments]
        self._none = [np.zeros(shape, np.bool_) for shape in shapes]
        self.alive = [~none for none in self._none]
        """(N, W) agents whose episode goes on, per environment."""
        self._all_alive = [True] * len(self.environments)
        """Whether no episode has ended: the usual case, in which much can be skipped."""
        self._every_world = np.ones(self.environments[0].n_worlds, np.bool_)
        self.first = [~none for none in self._none]
        """(N, W) agents whose episode starts with the next turn, per environment."""
        self.returns = [np.zeros(shape) for shape in shapes]
        """(N, W) reward of each agent in this epoch, per environment."""
        self.running = [np.zeros((2, *shape)) for shape in shapes]
        """(2, N, W) return and length of the episodes that go on, per environment."""
        self.finished = [np.zeros((3, shape[0])) for shape in shapes]
        """(3, N) number, returns and lengths of the episodes that ended in this epoch, per environment."""
        self.timesteps = 0
        """Steps of single worlds, of one environment."""
        self.heartbeat = self.environments[0].heartbeat
        self._masked = [k for k, env in enumerate(self.environments) if env.masks_actions]
        none = self._none  # shared and never written to
        self._step = Step(
            sequential=sequential,
            masks=[None for _ in none],
            first=self.first,
            acted=list(none),
            terminated=list(none),
            truncated=list(none),
            rewards=[np.zeros(shape, np.float32) for shape in shapes],
            events=[None for _ in none],
        )
        self._called = 0
        """The environment that was called last, for error messages."""

    # -- an epoch --------------------------------------------------------------------------------------------

    def run_epoch(self, epoch: int) -> int:
        """Run one epoch and return its number of turns."""
        self.begin_epoch(epoch)
        self.play()
        return self.end_epoch()

    def begin_epoch(self, epoch: int) -> None:
        """Prepare environments and agents for an epoch."""
        self.epoch, self.turn_number = epoch, 0
        with self._reporting_worlds():
            self._beat()
            for env, returns, finished in zip(self.environments, self.returns, self.finished, strict=True):
                returns[:] = finished[:] = 0.0
                env.begin_epoch(epoch)
            self.group.start_epoch(epoch)

    def play(self) -> None:
        """Take turns until every episode has ended, or all turns are taken."""
        with self._reporting_worlds():
            self._beat()
            if not self.autoreset or self.epoch == 1:
                for k in range(len(self.environments)):
                    self._start_episodes(k, self._every_world.copy())
            worlds = self._compiled_worlds()
            if isinstance(worlds, str):
                self._take_turns()
                return
            for k, world in enumerate(worlds):
                self._collect(k, world)

    def end_epoch(self, least: int = 0) -> int:
        """Store what the last turn led to and return the number of turns.

        least: take turns up to this one first: worlds of the same epoch that are played elsewhere go on until then.
        """
        with self._reporting_worlds():
            while self.turn_number < least:
                self.turn_number += 1
                self._beat()
                self.turn(range(len(self.environments)))
            self._beat()
            if self._stores:
                self.group.close_epoch(self._observe(), self._masks(), ended=not self.autoreset)
            if not self.autoreset:  # what has not ended by itself ends with the epoch
                for running, finished in zip(self.running, self.finished, strict=True):
                    end_episodes(running, finished, running[1] > 0)
            self.group.end_epoch(self.epoch)
        self.turns += self.turn_number
        return self.turn_number

    @contextmanager
    def _reporting_worlds(self) -> Iterator[None]:
        """Raise what a world raises as a WorldError that says where."""
        try:
            yield
        except ParallelAgentsError:
            raise
        except (Exception, SystemExit) as error:  # sys.exit() in a world must not end the run as if it had succeeded
            raise self._world_error(error) from error
        finally:
            self.heartbeat.rest()

    def _take_turns(self) -> None:
        """Take the turns of an epoch one after the other."""
        own_turns = any(env.overrides_take_turn for env in self.environments)
        while self.turn_number < self.max_turns and (active := self._active_environments()):
            self.turn_number += 1
            self._beat()
            if own_turns:
                for k in active:
                    self.environments[k].run_turn(partial(self.turn, [k]))
            else:
                self.turn(active)

    def _active_environments(self) -> list[int]:
        """Return the environments in which some episode goes on."""
        return [k for k, alive in enumerate(self.alive) if self.autoreset or self._all_alive[k] or alive.any()]

    def _start_episodes(self, k: int, worlds: Array) -> None:
        """Start fresh episodes in some worlds of an environment, a (W,) mask."""
        if worlds.any():
            self._called = k
            self.environments[k].reset_worlds(worlds)
            self.restore(k, self.alive[k] | worlds, self.first[k] | worlds)

    # -- a compiled epoch ------------------------------------------------------------------------------------

    def why_not_compiled(self) -> str | None:
        """Return why epochs are played turn by turn; None: compiled code plays them."""
        worlds = self._compiled_worlds()
        return worlds if isinstance(worlds, str) else None

    def _compiled_worlds(self) -> list[CompiledWorld] | str:
        """Return the compiled worlds of every environment, or why turns are taken one by one."""
        if self._on_turn is not None:
            return "every turn is reported"
        if any(env.overrides_take_turn for env in self.environments):
            return "take_turn() is overridden"
        if self._masked:
            return "the environment gives action masks"
        if reason := self.group.why_not_compiled():
            return reason
        worlds: list[CompiledWorld] = []
        for env in self.environments:
            world = env.compiled_world()
            if isinstance(world, str):
                return world
            if self.sequential and None in (world.observe_agent, world.apply_agent):
                return "agents act one after the other (parallel.turn_order is 'sequential')"
            worlds.append(world)
        return worlds

    def _collect(self, k: int, world: CompiledWorld) -> None:
        """Play the epoch of one environment in compiled code, in the order of `turn` and with the same bytes.

        The environments of a run do not know of each other, so they are played one after the other.
        """
        self._called, env = k, self.environments[k]
        progress = Progress(
            self.alive[k].copy(),
            self.first[k].copy(),
            self.returns[k],
            self.running[k],
            self.finished[k],
            np.zeros(5, np.int64),
        )
        start = 1
        while start <= self.max_turns and (self.autoreset or progress.alive.any()):
            self._beat(start)
            start = self.group.collect(
                k,
                world,
                progress,
                self.epoch,
                start,
                self.max_turns + 1,
                autoreset=self.autoreset,
                stores=self._stores,
                one_by_one=self.sequential,
            )
            env.turn, _, fault, place, _ = progress.counters.tolist()
            self.turn_number = max(self.turn_number, env.turn)
            if fault:
                raise self._compiled_error(fault, *divmod(place, env.n_worlds))
        self.transitions += int(progress.counters[1])
        self.timesteps += int(progress.counters[4]) if k == 0 else 0
        self.restore(k, progress.alive, progress.first)
        env.active = progress.alive.any(axis=0)
        env.add_to_total(self.returns[k])

    def _compiled_error(self, fault: int, agent: int, world: int) -> ParallelAgentsError:
        """Return what went wrong in a compiled epoch as the error that a turn in Python raises."""
        env, where = (
            self.environments[self._called],
            f"(epoch {self.epoch}, turn {self.environments[self._called].turn})",
        )
        name = env.agents[agent].name
        if fault == BAD_ACTION:
            return ActionError(f"{name} chose an action in world {world} that does not exist {where}")
        what = "observation" if fault == BAD_OBSERVATION else "reward"
        return NonFiniteError(
            f"the {what} of {name} in world {world} holds NaN or infinity {where}: check the environment"
        )

    # -- a turn ----------------------------------------------------------------------------------------------

    def turn(self, environments: Sequence[int]) -> None:
        """Take one turn of some environments: everything else moves, all observe, all act, all store."""
        step = self._step
        step.environments, step.epoch, step.turn = environments, self.epoch, self.turn_number
        for k in environments:
            self._called, env = k, self.environments[k]
            env.turn = self.turn_number
            env.active = self._every_world if self._all_alive[k] else self.alive[k].any(axis=0)
            env.begin_turn()
        step.observations, step.masks = self._observe(), self._masks()
        self.group.act(step)
        for k in environments:
            rewards, step.acted[k] = self._apply_in_turn(k) if self.sequential else self._apply(k)
            self._take_rewards(k, rewards, step)
        if self._stores:
            self.group.store(step)
        if self._on_turn is not None:
            self._on_turn(step)
        for k in environments:
            self.first[k] = self._none[k]
            if self.autoreset and (active := self.environments[k].active) is not self._every_world:
                self._start_episodes(k, ~active)

    def _observe(self) -> list[Any]:
        """Return the observations of every environment, (N, W, *obs) or one (W, *obs) per agent."""
        return [
            own if isinstance(own := env.observe(), np.ndarray) else flatten_observation(own, 2)
            for env in self.environments
        ]

    def _masks(self) -> list[Masks]:
        """Return the action masks of every environment, (W, A) bool per agent; None: everything is allowed."""
        for k in self._masked:
            self._step.masks[k] = self._masks_in(k)
        return self._step.masks

    def _masks_in(self, k: int) -> list[Array | None]:
        env, alive = self.environments[k], self.alive[k]
        able = env.can_act()
        choosing = alive if able is None else alive & able
        masks = env.action_masks()
        if len(masks) != len(alive):
            raise ShapeError(
                f"{type(env).__name__} has {len(alive)} agents, but action_masks() gave masks of {len(masks)}"
            )
        return [_mask_where(own, choosing[i]) for i, own in enumerate(masks)]

    def _apply(self, k: int) -> tuple[Array, Array]:
        """Apply the actions of all agents at once, in list order; return rewards (N, W) and who acted (N, W)."""
        self._called, env = k, self.environments[k]
        able = env.can_act()
        env.acting = acted = self.alive[k] if able is None else self.alive[k] & able
        return env.apply_actions(self.group.actions_of(k)), acted

    def _apply_in_turn(self, k: int) -> tuple[Array, Array]:
        """Let each agent observe after the earlier ones have acted, then apply its actions; return as `_apply`."""
        self._called, env, alive = k, self.environments[k], self.alive[k]
        total, acted = np.zeros(alive.shape, np.float32), np.zeros(alive.shape, np.bool_)
        env.acting = acted
        for i in range(len(env.agents)):
            agent_id = AgentId(k, i)
            self._beat()
            able = env.can_act()
            able_now = alive[i] if able is None else alive[i] & able[i]
            mask = _mask_where(env.action_mask_of(i), able_now) if k in self._masked else None
            self.group.act_in_turn(agent_id, env.observe_agent(i), mask, self.epoch, self.turn_number)
            acted[i] = able_now
            rewards = env.apply_agent(i, self.group.action_of(agent_id))
            if rewards.ndim == 1:
                total[i] += rewards
            else:
                total += rewards
        return total, acted

    def _take_rewards(self, k: int, rewards: Array, step: Step) -> None:
        """Check the rewards (N, W) of an environment, add them up, and note which of its episodes ended."""
        env, alive = self.environments[k], self.alive[k]
        rewards = np.asarray(rewards, np.float32, order="C")
        if rewards.shape != alive.shape:
            raise ShapeError(
                f"{type(env).__name__} gave rewards of shape {rewards.shape}, "
                f"wanted is (agents, worlds) = {alive.shape}"
            )
        if not self._all_alive[k]:
            rewards = np.where(alive, rewards, 0.0)
        step.rewards[k] = rewards
        if self._stores and self.group.stores_events:
            step.events[k] = read_events(env, rewards)
        env.add_rewards(rewards)
        if k == 0:
            self.timesteps += env.n_worlds if self._all_alive[k] else int(np.count_nonzero(env.active))
        step.terminated[k] = step.truncated[k] = self._none[k]
        if (ends := env.dones()) is not None:
            terminated, truncated = ends
            step.terminated[k] = terminated & alive
            step.truncated[k] = truncated & alive & ~terminated
            self.alive[k] = alive & ~(step.terminated[k] | step.truncated[k])
            self._all_alive[k] = bool(self.alive[k].all())
        count = add_rewards(
            alive,
            step.acted[k],
            rewards,
            step.terminated[k],
            step.truncated[k],
            self.returns[k],
            self.running[k],
            self.finished[k],
        )
        if count < 0:
            agent, world = divmod(-1 - count, env.n_worlds)
            raise NonFiniteError(
                f"the reward of {env.agents[agent].name} in world {world} is {rewards[agent, world]} "
                f"(epoch {self.epoch}, turn {self.turn_number}): check the environment's rewards"
            )
        self.transitions += count

    def restore(self, k: int, alive: Array, first: Array) -> None:
        """Continue the episodes of one environment where a checkpoint left them."""
        self.alive[k], self.first[k], self._all_alive[k] = alive, first, bool(alive.all())

    def _beat(self, turn: int | None = None) -> None:
        """Report to the watchdog which turn runs now; written out here, since it runs in every turn."""
        cells = self.heartbeat.cells
        cells[0], cells[1], cells[2] = self.epoch, self.turn_number if turn is None else turn, time.monotonic_ns()

    def _world_error(self, error: Exception | SystemExit) -> WorldError:
        """Return what an environment raised, with everything needed to see it again."""
        env = self.environments[self._called]
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"epoch {self.epoch}, turn {self.turn_number}" + ("" if env.vectorised else f", world {env.selected}")
        return WorldError(
            f"{type(env).__name__} raised {type(error).__name__}: {error} in {where} (seed {env.seed}), "
            f"at {place.filename}:{place.lineno} in {place.name}()"
        )


def end_episodes(running: Array, finished: Array, ended: Array) -> None:
    """Move the episodes of a mask (N, W) from running (2, N, W) to finished (3, N), in place."""
    finished[0] += ended.sum(axis=1)
    finished[1:] += np.where(ended, running, 0.0).sum(axis=2)
    running[:, ended] = 0.0


def _mask_where(mask: Array | None, choosing: Array) -> Array | None:
    """Return a mask (W, A) that allows everything in worlds where the agent does not choose; choosing: (W,) bool."""
    return None if mask is None else np.asarray(mask, np.bool_) | ~choosing[:, None]


# -- rounds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """When rounds happen: arithmetic on epochs, never on the clock.

    Rounds r = 1, 2, … belong to the boundaries after epochs r · interval; the acting weights are `lag` rounds behind.

    >>> schedule = Schedule(interval=3, lag=1)
    >>> [schedule.round_after(epoch) for epoch in range(1, 8)]
    [None, None, 1, None, None, 2, None]
    >>> schedule.due_at(2), schedule.rounds_until(13)
    (1, 4)
    """

    interval: int
    lag: int

    def round_after(self, epoch: int) -> int | None:
        """Return the round whose boundary comes after this epoch; None: there is none."""
        return epoch // self.interval if epoch % self.interval == 0 else None

    def due_at(self, round_: int) -> int:
        """Return the round that is published at the boundary of `round_`; 0 or less: none yet."""
        return round_ - self.lag

    def rounds_until(self, epoch: int) -> int:
        """Return how many rounds have been submitted after this epoch and its boundary."""
        return epoch // self.interval


Emit = Callable[[str, dict[str, Any]], None]


class Rounds:
    """Every scheduled round of every stack: submitted in order, published when due, none skipped or merged.

    A round that fails is repeated once on fresh workers from the same snapshot, then skipped: the last good weights
    stay, and the run has no digest.
    """

    def __init__(
        self, stacks: Sequence[Stack], flags: Parallel, plan: Plan, schedule: Schedule, emit: Emit, timeline: Timeline
    ) -> None:
        self.stacks, self.flags, self.plan, self.schedule = list(stacks), flags, plan, schedule
        for stack in self.stacks:
            stack.lag = schedule.lag
        self._emit, self._timeline = emit, timeline
        self._launcher = BackendLauncher(
            self.stacks,
            plan.backend,
            together=plan.train_together,
            lag=schedule.lag,
            most_workers=plan.most_workers,
            emit=emit,
            timeline=timeline,
            flags=flags,
        )
        self._backend: Backend | None = None
        self.submitted = 0
        self.published = 0
        self.updates = 0
        self.rejected = 0
        self.newest = [stack.state for stack in self.stacks]
        """The learners' newest states; acting may still use older ones."""
        self.waiting: dict[int, list[tuple[LearnerState, RoundResult]]] = {}
        """Received results that are not due yet, one per stack."""
        self._in_flight: dict[int, list[LazySnapshot]] = {}
        """Snapshots of the submitted rounds, kept so that a failed round can be repeated."""
        self._unread: list[LazySnapshot] = []
        """Snapshots that learner threads take themselves, from buffers that must not be written before."""
        self._failed_once: set[int] = set()
        self.skipped: list[int] = []
        """Rounds that failed twice."""
        self._consecutive_failures = 0
        self._rejected_rounds = [np.zeros(len(stack), np.int64) for stack in self.stacks]
        """(N,) rounds in a row in which every update of an agent was rejected, per stack."""
        self._last_round = 0
        scales = flags.num_workers is None and self._launcher.scales
        self._autoscaler = Autoscaler(plan.workers, plan.most_workers) if scales else None
        self._workers = plan.workers
        self._boundary_at = self._waited = self._busy = 0.0
        """Time of the last boundary, seconds waited for results since, and seconds that the last round took."""

    # -- the boundary ----------------------------------------------------------------------------------------

    def boundary(self, round_: int) -> list[list[RoundResult]]:
        """Submit round `round_` and publish the round that is due; return what was published, one list per round."""
        self._scale_workers(round_)
        due = self.schedule.due_at(round_)
        published = []
        if any(stack.waits_for_priorities for stack in self.stacks):
            published = [self._publish(r) for r in range(self.published + 1, min(due, round_ - 1) + 1)]
        # Otherwise a snapshot does not depend on the result that is still awaited. Submitting first gives the same
        # bytes, and a worker that is behind finds its next round waiting.
        self._submit(round_)
        return published + [self._publish(r) for r in range(self.published + 1, due + 1)]

    def _submit(self, round_: int) -> None:
        """Snapshot every stack and start the round."""
        snapshots = [LazySnapshot(partial(self._snapshot, stack, round_)) for stack in self.stacks]
        if self.plan.read_in_learner:
            self._unread = snapshots
        else:
            for take in snapshots:
                take()
        self._in_flight[round_] = snapshots
        self.submitted = round_
        try:
            with self._span("hand over", round_):
                self._running.submit(round_, snapshots)
        except WorkerDied as error:  # it died while it was idle: no round has failed
            self._emit("worker_replaced", {"round": round_, "backend": self.backend, "cause": str(error)})
            self.restart()

    def _span(self, name: str, round_: int) -> AbstractContextManager[None]:
        """Return a span of the timeline, where one is recorded."""
        return self._timeline.span(name, "runtime", round=round_) if self._timeline.enabled else nullcontext()

    def _snapshot(self, stack: Stack, round_: int) -> Snapshot:
        with self._span("snapshot", round_):
            return stack.snapshot(round_)

    def _publish(self, round_: int) -> list[RoundResult]:
        """Wait for a round and make its weights the acting weights."""
        if round_ not in self.waiting:
            with self._span("wait", round_):
                while round_ not in self.waiting:
                    self._receive(round_)
        trained = self.waiting.pop(round_)
        with self._span("publish", round_):
            for stack, (state, result) in zip(self.stacks, trained, strict=True):
                stack.publish(round_, state, result)
        self.published = round_
        return [result for _, result in trained]

    def publish_ready(self) -> list[list[RoundResult]]:
        """Publish every round that has ended, for `publish = "asap"`."""
        published: list[list[RoundResult]] = []
        self.receive_ready()
        while self.published + 1 in self.waiting:
            published.append(self._publish(self.published + 1))
        return published

    # -- receiving -------------------------------------------------------------------------------------------

    def receive_ready(self) -> None:
        """Receive every round that has ended; a failed round is repeated at once, while collection goes on."""
        while (round_ := self._next()) <= self.submitted and (self._running.poll(round_) or self._hangs(round_)):
            self._receive(round_)

    def receive_all(self) -> None:
        """Wait for every submitted round; those that are not due yet stay waiting."""
        while (round_ := self._next()) <= self.submitted:
            self._receive(round_)

    def drain(self) -> None:
        """Wait for every submitted round, and give the models the newest states."""
        self.receive_all()
        self.newest = [state.clone() for state in self.newest]
        for stack, state in zip(self.stacks, self.newest, strict=True):
            stack.copy_state(state)

    def wait_for_readers(self) -> None:
        """Wait until learner threads have taken their snapshots: the buffers must not be written before."""
        for snapshot in self._unread:
            if not snapshot.wait(self.flags.round_deadline):
                raise DeadlineError(f"a learner did not read its buffers within {self.flags.round_deadline:g} s")
        self._unread = []

    def _next(self) -> int:
        """Return the oldest round that has not been received."""
        return self.published + len(self.waiting) + 1

    def _hangs(self, round_: int) -> bool:
        """Return True if a worker has exceeded the deadline of this round."""
        limit = self.flags.round_deadline
        return any(worker.heartbeat.remaining(round_, limit) < 0.0 for worker in self._running.workers())

    def _receive(self, round_: int) -> None:
        """Wait for one round; if it failed, repeat or skip it."""
        began = time.perf_counter()
        try:
            trained = self._running.result(round_, self.flags.round_deadline)
        except (LearnerError, WorkerDied, DeadlineError) as error:
            self._recover(round_, error)
            return
        finally:
            self._waited += time.perf_counter() - began
        self._busy = max((result.seconds for _, result in trained), default=0.0)
        self._accept(round_, trained)
        self._consecutive_failures = 0

    def _accept(self, round_: int, trained: list[tuple[LearnerState, RoundResult]]) -> None:
        """Keep a round's result until it is due."""
        self.waiting[round_] = trained
        self.newest = [state for state, _ in trained]
        self.updates += sum(int(result.updates.sum()) for _, result in trained)
        self.rejected += sum(int(result.rejected.sum()) for _, result in trained)
        del self._in_flight[round_]
        for stack, rounds, (_, result) in zip(self.stacks, self._rejected_rounds, trained, strict=True):
            self._check_rejections(round_, stack, rounds, result)

    def _check_rejections(self, round_: int, stack: Stack, rounds: Array, result: RoundResult) -> None:
        """Emit rejected updates; raise LearnerError for an agent whose every update was rejected for several rounds.

        One bad batch costs an agent that update and nothing else. An agent that has none accepted, round after round,
        would stand still without anybody noticing.
        """
        tried = result.updates + result.rejected > 0
        rounds[tried & (result.updates == 0)] += 1
        rounds[tried & (result.updates > 0)] = 0
        agents, seeds = stack.identity.agents, stack.identity.seeds
        for row in np.flatnonzero(result.rejected > 0).tolist():
            fields = {"round": round_, "rejected": int(result.rejected[row]), "agent": agents[row], "seed": seeds[row]}
            self._emit("updates_rejected", fields)
        limit = max(1, self.flags.max_failures)
        for row in np.flatnonzero(rounds >= limit).tolist():
            raise LearnerError(
                f"agent {agents[row]} (seed {seeds[row]}): every update of {rounds[row]} rounds in a row up to round "
                f"{round_} was rejected, because its loss or gradient was not finite (parallel.max_failures is "
                f"{limit}). Its last good weights are kept: look at the size of its rewards and observations, or lower "
                "model.lr"
            )

    # -- failures and workers --------------------------------------------------------------------------------

    def _recover(self, round_: int, error: RunError) -> None:
        """Repeat a failed round on fresh workers; skip it if it has failed before."""
        repeats = round_ not in self._failed_once
        fields = {"round": round_, "backend": self.backend, "cause": str(error), "repeated": repeats}
        self._emit("round_failed", fields)
        if repeats:
            self._failed_once.add(round_)
        else:
            self._skip(round_, error)
        self.restart()

    def _skip(self, round_: int, error: RunError) -> None:
        """Give up a round and keep the last good weights; raise LearnerError after too many rounds in a row."""
        self.skipped.append(round_)
        self._consecutive_failures += 1
        if self._consecutive_failures >= max(1, self.flags.max_failures):
            raise LearnerError(
                f"round {round_} failed twice, and {self._consecutive_failures} rounds in a row have failed "
                f"(parallel.max_failures is {self.flags.max_failures}): {error}"
            ) from error
        self._emit("round_skipped", {"round": round_, "consecutive": self._consecutive_failures})
        self._accept(round_, [(state, RoundResult.nothing(round_, len(state))) for state in self.newest])

    def restart(self) -> None:
        """Start fresh workers from the newest states, and submit every round in flight again."""
        self._running.close()
        first = self._next()
        self._backend = self._launch(first)
        for later in range(first, self.submitted + 1):
            self._running.submit(later, self._in_flight[later])

    def _scale_workers(self, round_: int) -> None:
        """Change the number of workers where the autoscaler says so; results do not depend on it."""
        now = time.perf_counter()
        if self._autoscaler is not None:
            if self._boundary_at:
                self._autoscaler.record(interval=now - self._boundary_at, waited=self._waited, busy=self._busy)
            wanted = self._autoscaler.wanted(self._last_round - round_)
            if wanted != self._workers:
                self.receive_all()
                fields = {"from": self._workers, "to": wanted, "round": round_, "level": "info"}
                self._emit("workers_changed", fields)
                self._workers = wanted
                self.restart()
        self._boundary_at, self._waited = now, 0.0

    def open(self, last_round: int) -> None:
        """Start the backend for the rounds up to `last_round`."""
        self._last_round = last_round
        self._backend = self._launch(self.submitted + 1)

    def share_cluster(self, release: Callable[[], None]) -> RayCluster:
        """Return the connection of the backend to Ray; release: gives back what else the run has reserved there."""
        self._launcher.release_others = release
        return self._launcher.cluster()

    def close(self, patience: float = PATIENCE) -> None:
        """End every worker; kill those that are still busy after `patience` seconds."""
        if self._backend is not None:
            self._backend.close(patience)
            self._backend = None
        self._launcher.close()

    def _launch(self, first_round: int) -> Backend:
        return self._launcher.launch(self.newest, first_round, last_round=self._last_round, workers=self._workers)

    @property
    def _running(self) -> Backend:
        assert self._backend is not None, "open() comes first"
        return self._backend

    @property
    def backend(self) -> str:
        """Where rounds are computed now."""
        return self._backend.name if self._backend is not None else self.plan.backend

    def workers(self) -> list[Monitored]:
        """Return the workers that the watchdog monitors."""
        backend = self._backend  # the watchdog's thread may ask while the run closes it
        return [] if backend is None else backend.workers()
