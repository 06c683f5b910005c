"""A run: environments, crew, rounds and loop put together, and what came of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parallel_agents.config import Config
from parallel_agents.errors import Interrupted, LearnerError, RunError, SharingError
from parallel_agents.memory import Ring
from parallel_agents.networks import numerics
from parallel_agents.runtime.best import Best
from parallel_agents.runtime.checkpoints import Checkpointer
from parallel_agents.runtime.checkpoints.memory import columns
from parallel_agents.runtime.crew import Crew
from parallel_agents.runtime.digest import combined, digests
from parallel_agents.runtime.growth import Growth, resident
from parallel_agents.runtime.heartbeat import Beat, Heart
from parallel_agents.runtime.loop import Loop
from parallel_agents.runtime.plan import resolve
from parallel_agents.runtime.rounds import Rounds
from parallel_agents.runtime.schedule import Schedule
from parallel_agents.runtime.supervision import Supervisor, Watched
from parallel_agents.runtime.workers import PATIENCE
from parallel_agents.tracking.listeners import Listeners
from parallel_agents.tracking.timeline import Timeline
from parallel_agents.types import EpochStats, RoundResult, RunInfo

__all__ = ["Run", "RunSummary"]

RunSummary = dict[str, Any]
"""digest, epochs, turns, transitions, updates, …: what `--json` prints."""


class Run:
    """Conducts environments (one per replica) over epochs; may be continued with more."""

    def __init__(self, environments: Sequence[Any], config: Config, *, timeline: Timeline | None = None) -> None:
        numerics.require()
        flags, experiment = config.parallel, config.experiment
        self.config, self.environments = config, list(environments)
        self.timeline = timeline or Timeline(enabled=False)
        _distinct_seeds(self.environments)
        agents = sum(len(env.agents) for env in self.environments)
        self.plan = resolve(flags, agents=agents)
        self.schedule = Schedule(flags.train_interval, flags.policy_lag)
        self.crew = Crew(
            self.environments, self.plan, world_deadline=flags.world_deadline, locked=flags.buffer_sync == "lock"
        )
        self.rounds = Rounds(self.crew.stacks, flags, self.plan, self.schedule, self.tell, self.timeline)
        self.crew.before_write = self.rounds.wait_for_readers
        self.loop = Loop(
            self.environments,
            self.crew,
            max_turns=experiment.max_turns,
            autoreset=experiment.autoreset,
            sequential=flags.turn_order == "sequential",
        )
        self.epoch = 0
        self.seconds = 0.0
        self.failures = 0
        """Rounds skipped before this run was resumed."""
        self.scheduled = flags.publish == "scheduled"
        self.checkpointer: Checkpointer | None = None
        self.run_id = uuid.uuid4().hex[:12]
        self.recent: list[list[float]] = []
        """Mean reward of each replica in the last epochs."""
        self.best = Best(self.crew)
        self._stop: int | None = None
        self._broken: str | None = None
        """What ended the run before its time; its last epoch is then half done."""
        self._listeners = Listeners()
        self._conducted = 0
        """Epochs conducted by this process."""
        buffers = sum(own.nbytes for ring in self._rings() for own in columns(ring).values())
        self._growth = Growth(buffers, measure=lambda: resident(["self", *self._world_processes()]))
        self._own_training, self._evaluating = Heart(), False
        for env in self.environments:
            env.heart = self.loop.heart  # evaluations of any replica are conducted by the same thread
        self.supervisor = Supervisor(self._everybody, limit=flags.round_deadline)

    def request_stop(self, signal_number: int) -> None:
        """Stop after this epoch, with everything trained and checkpointed; may be called from a signal handler."""
        self._stop = signal_number

    def no_digest(self) -> str | None:
        """Return why no digest can be given for this run; None: it can."""
        if not self.scheduled:
            return 'parallel.publish is "asap": the clock decides which weights act'
        if skipped := self.failures + len(self.rounds.skipped):
            return f"{skipped} rounds failed twice and were skipped"
        return self.crew.unknown_state()

    def until(self, epochs: int, *, listeners: Sequence[Any] = ()) -> RunSummary:
        """Run up to epoch `epochs` and train every round scheduled until then."""
        if self._broken is not None:
            raise RunError(
                f"this run stopped in epoch {self.epoch + 1} by {self._broken} and cannot go on: "
                "make a new environment and run that"
            )
        self._listeners = Listeners(listeners)
        self._listeners.on_start(self._info(epochs))
        summary: RunSummary = {}
        patience = PATIENCE
        began = time.perf_counter()
        self._busy("a run is on its way")
        try:
            if self.checkpointer is not None:
                self.checkpointer.enter()
            self._look_at_resources()
            self.rounds.open(self.schedule.rounds_until(epochs))
            with self.supervisor:
                while self.epoch < epochs and self._stop is None:
                    self._one_epoch(self.epoch + 1)
                with self.timeline.span("wait", "runtime"):
                    self.rounds.drain()
            self.seconds += time.perf_counter() - began
            self._checkpoint()
            if self.checkpointer is not None:
                self.checkpointer.finish()
            summary = self.summary()
            if self._stop is not None:
                raise Interrupted(f"stopped after epoch {self.epoch} of {epochs}", signal_number=self._stop)
        except BaseException as error:
            if not summary:
                self._broken = type(error).__name__
                patience = PATIENCE if isinstance(error, Exception) else 0.0  # who interrupts wants to leave
            raise
        finally:
            self._busy(None)
            if self.checkpointer is not None:
                self.checkpointer.leave()
            self.rounds.close(patience)
            self._listeners.on_end(summary)
        return summary

    def _one_epoch(self, epoch: int) -> None:
        began, before = time.perf_counter(), self.loop.transitions
        with self.timeline.span("collect", "collector", epoch=epoch):
            turns = self.loop.run_epoch(epoch)
        self.epoch = epoch
        lag = self.rounds.submitted - self.rounds.published
        version = self.rounds.published
        published = self._after_epoch(epoch)
        stats = EpochStats(
            epoch=epoch,
            turns=turns,
            transitions=self.loop.transitions - before,
            rewards=np.concatenate([earned.mean(axis=1) for earned in self.loop.returns]),
            version=version,
            lag=lag,
            updates=self.rounds.updates,
            seconds=time.perf_counter() - began,
            metrics=self._figures(),
        )
        self.recent = [*self.recent[-99:], [float(earned.mean()) for earned in self.loop.returns]]
        for results in published:
            if results:  # none where no agent is in a stack
                self._listeners.on_round(self.crew.as_one(results))
        self._listeners.on_epoch(stats)
        self._conducted += 1
        phase = self.rounds.backend, self.rounds.updates > 0
        if grown := self._growth.after(self._conducted, written=self._written(), phase=phase):
            self.tell("memory_grows", {"epoch": epoch, **grown})
        if self.checkpointer is not None:
            self.checkpointer.look()
        experiment = self.config.experiment
        better = bool(experiment.eval_every) and epoch % experiment.eval_every == 0 and self._evaluate()
        if self.checkpointer is not None and (better or self.checkpointer.due(epoch)):
            self._checkpoint()

    def _evaluate(self) -> bool:
        """Let the acting weights play fresh episodes; True if those of some replica are its best so far."""
        with self.timeline.span("evaluate", "runtime", epoch=self.epoch):
            for stack in self.crew.stacks:
                stack.show_acting()
            self._evaluating = True
            returns = [env.evaluate().mean_return for env in self.environments]
            self._evaluating = False
        better = self.best.offer(self.epoch, returns)
        fields = {"epoch": self.epoch, "mean_return": float(np.mean(returns)), "returns": returns, "best": better}
        self.tell("evaluated", fields)
        return any(better)

    def _checkpoint(self) -> None:
        """Begin a checkpoint, where there is somebody who writes them."""
        if self.checkpointer is not None:
            with self.timeline.span("checkpoint", "runtime", epoch=self.epoch):
                self.checkpointer.begin()

    def _look_at_resources(self) -> None:
        """Before the first epoch: is there room for what will be written?"""
        if self.checkpointer is None:
            return
        free, smallest, largest = self.checkpointer.room()
        if free < smallest:
            raise RunError(
                f"a checkpoint needs at least {smallest:,} bytes, but only {free:,} are free in "
                f"{self.checkpointer.store.folder}: make room, or give another folder"
            )
        if free < 2 * largest:  # the next one is written before an old one is removed
            self.tell("disk_is_short", {"free_bytes": free, "needed_bytes": 2 * largest})

    def _after_epoch(self, epoch: int) -> list[list[RoundResult]]:
        published: list[list[RoundResult]] = []
        round_ = self.schedule.round_after(epoch)
        if self.config.parallel.publish == "asap":
            published += self.rounds.publish_ready()
        else:
            self.rounds.watch()
        if round_ is not None:
            with self.timeline.span("boundary", "runtime", round=round_):
                published += self.rounds.boundary(round_)
                self._train_alone(round_)
        return published

    def _train_alone(self, round_: int) -> None:
        self._own_training.beat(round_)
        try:
            self.crew.train_alone()
        except SystemExit as error:
            raise LearnerError(
                f"a model called sys.exit({error.code!r}) in its train_step(), in round {round_}"
            ) from error
        self._own_training.rest()

    def _everybody(self) -> list[Watched]:
        """Everyone with a heart: who conducts, and whoever computes rounds."""
        name = type(self.environments[0]).__name__
        turns = Watched(name, self.loop.heart, self._at_turn, conducts=True, limit=self.turn_limit)
        worlds = [member for env in self.environments for member in env.members()]
        return [
            *(worlds or [turns]),  # worlds in processes have deadlines of their own, and time to be replaced
            Watched("models that train by themselves", self._own_training, _at_round, conducts=True),
            *self.rounds.members(),
        ]

    @property
    def dropped_listeners(self) -> int:
        """How many listeners failed and were dropped."""
        return self._listeners.dropped

    def place(self) -> dict[str, int]:
        """Return where the run is: epoch, turn and the last round that was submitted."""
        return {"epoch": self.loop.epoch, "turn": self.loop.turn, "round": self.rounds.submitted}

    @property
    def turn_limit(self) -> float:
        """Seconds that a turn may take; the first one ten times as many, since that is where worlds are compiled."""
        limit = self.config.parallel.world_deadline + 1.0  # a slow model runs into its own deadline first
        return 10.0 * limit if self.loop.turns == 0 and self.loop.turn <= 1 else limit

    def _at_turn(self, beat: Beat) -> str:
        return f"turn {beat.part} of epoch {beat.job}" + (" of an evaluation" if self._evaluating else "")

    def summary(self) -> RunSummary:
        """What the run gave so far."""
        reason = self.no_digest()
        found = None if reason else digests(self)
        return {
            "digest": combined(found) if found else None,
            "digests": found,
            "no_digest": reason,
            "fingerprint": numerics.fingerprint(self.plan.device),
            "reproducible": reason is None,
            "epochs": self.epoch,
            "turns": self.loop.turns,
            "transitions": self.loop.transitions,
            "rounds": self.rounds.submitted,
            "updates": self.rounds.updates,
            "rejected_updates": self.rounds.rejected,
            "unwritten_checkpoints": self.checkpointer.unwritten if self.checkpointer else 0,
            "failures": self.failures + len(self.rounds.skipped),
            "recomputed_share": self.crew.recomputed / max(1, self.crew.chosen),
            "backend": self.rounds.backend,
            "wall_seconds": self.seconds,
            "turns_per_second": self.loop.turns / max(1e-9, self.seconds),
            "updates_per_second": self.rounds.updates / max(1e-9, self.seconds),
            "best_epochs": self.best.epochs,
            "best_returns": self.best.returns,
            "mean_reward": float(np.mean(self.recent)) if self.recent else 0.0,
            "replicas": self._replicas(found or [None] * len(self.environments)),
            "config": self.config.as_dict(),
        }

    def _replicas(self, found: Sequence[str | None]) -> list[dict[str, Any]]:
        """Seed, swept values, digest and mean reward of each replica."""
        settings = self.config.experiment.settings
        each = len(self.environments) // len(settings)
        rewards = np.mean(self.recent, axis=0).tolist() if self.recent else [0.0] * len(self.environments)
        return [
            {
                "seed": env.seed,
                "setting": settings[k // each],
                "digest": found[k],
                "mean_reward": rewards[k],
            }
            for k, env in enumerate(self.environments)
        ]

    def digests(self) -> list[str]:
        """Return one digest per replica."""
        return digests(self)

    def _figures(self) -> Mapping[str, Any]:
        fill = [stack.ring.sizes() / (stack.ring.shape.turns * stack.ring.shape.worlds) for stack in self.crew.stacks]
        explore = [stack.exploration for stack in self.crew.stacks]
        return {"epsilon": self.crew.in_order(explore), "buffer_fill": self.crew.in_order(fill)}

    def _rings(self) -> list[Ring]:
        """The buffers of all agents that have one of ours."""
        models = [self.environments[k].agents[i].model for k, i in self.crew.alone]
        own = [getattr(getattr(model, "memory", None), "ring", None) for model in models]
        return [*(stack.ring for stack in self.crew.stacks), *(ring for ring in own if isinstance(ring, Ring))]

    def _written(self) -> int:
        """Bytes of the buffers that have been written so far: memory is taken when it is first written to."""
        shares = [(ring, np.minimum(ring.pos / ring.valid.shape[1], 1.0).mean()) for ring in self._rings()]
        return int(sum(share * own.nbytes for ring, share in shares for own in columns(ring).values()))

    def _world_processes(self) -> list[int]:
        return [member.pid for env in self.environments for member in env.members()]

    def _busy(self, why: str | None) -> None:
        for stack in self.crew.stacks:
            for model in stack.models:
                model.busy = why

    def tell(self, name: str, fields: dict[str, Any]) -> None:
        """Say to everyone who listens that something happened."""
        self._listeners.on_event(name, fields)

    def _info(self, epochs: int) -> RunInfo:
        names = tuple(agent.name for env in self.environments for agent in env.agents)
        return RunInfo(
            run_id=self.run_id,
            environment=type(self.environments[0]).__name__,
            agents=names,
            worlds=self.crew.worlds,
            replicas=len(self.environments),
            epochs=epochs,
            first_epoch=self.epoch + 1,
            config=self.config.as_dict(),
            fingerprint=numerics.fingerprint(self.plan.device),
        )


def _at_round(beat: Beat) -> str:
    return f"round {beat.job}"


def _distinct_seeds(environments: Sequence[Any]) -> None:
    """Replicas with one seed and the same values would be one experiment counted twice."""
    known: list[tuple[Any, ...]] = []
    for env in environments:
        own = (env.seed, env.config.model, env.config.world)
        if own in known:
            raise SharingError(f"two replicas share the seed {env.seed}: give each a seed of its own")
        known.append(own)
