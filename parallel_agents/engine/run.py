"""A run: environments, agents, loop and rounds put together, with everything that happens around an epoch."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict

import numpy as np
import torch
from torch import Tensor

from parallel_agents.algorithms.acting import Weights
from parallel_agents.algorithms.learner import RoundResult
from parallel_agents.core.config import Config
from parallel_agents.core.errors import CorruptCheckpoint, Interrupted, LearnerError, RunError, SharingError
from parallel_agents.core.serialization import restored
from parallel_agents.core.types import AgentId, Array, EpochStats, RunInfo
from parallel_agents.engine.agents import AgentGroup
from parallel_agents.engine.digest import combined, digests
from parallel_agents.engine.loop import Loop, Rounds, Schedule
from parallel_agents.engine.plan import resolve
from parallel_agents.engine.precompile import Precompiler
from parallel_agents.engine.shards import ShardedLoop, has_portable_worlds
from parallel_agents.execution.backend import PATIENCE, Activity, Heartbeat, Monitored
from parallel_agents.execution.watchdog import MemoryMonitor, Watchdog, resident_bytes
from parallel_agents.nn import numerics
from parallel_agents.replay import Ring
from parallel_agents.tracking.callbacks import CallbackList
from parallel_agents.tracking.metrics import WINDOW, episode_means, newest_episodes
from parallel_agents.tracking.timeline import Timeline


class RunSummary(TypedDict, total=False):
    """What a run gave so far; what `--json` prints."""

    digest: str | None
    digests: list[str] | None
    """One per replica."""
    no_digest: str | None
    """Why there is no digest."""
    fingerprint: dict[str, str]
    reproducible: bool
    epochs: int
    turns: int
    total_timesteps: int
    """Steps of single worlds, in each replica."""
    transitions: int
    rounds: int
    updates: int
    rejected_updates: int
    unwritten_checkpoints: int
    failures: int
    recomputed_share: float
    backend: str
    wall_seconds: float
    fps: float
    turns_per_second: float
    updates_per_second: float
    best_epochs: list[int]
    best_returns: list[float]
    mean_reward: float
    """Of an agent in an epoch, over the last epochs."""
    ep_rew_mean: float | None
    """Mean return of the newest episodes; None: none has ended."""
    ep_len_mean: float | None
    replicas: list[dict[str, Any]]
    config: dict[str, Any]
    unwritten_outputs: int
    run_dir: str


RECENT_EPOCHS = 100
"""Epochs over which the mean reward is reported."""


class Checkpoints(Protocol):
    """The checkpoints of a run, as the run and its log need them; see `checkpoint.Checkpointer`."""

    unwritten: int

    def open(self) -> None: ...
    def due(self, epoch: int) -> bool: ...
    def begin(self) -> None: ...
    def poll(self) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...
    def written(self) -> list[int]: ...


class BestWeights:
    """The acting weights with which each replica was evaluated best; the first of equal ones."""

    def __init__(self, group: AgentGroup) -> None:
        self._group = group
        self.epochs: list[int] = []
        """Per replica, the epoch of its best evaluation; empty before the first one."""
        self.returns: list[float] = []
        """Per replica, the mean return of its best evaluation."""
        self._rows: list[Tensor] = []

    def offer(self, epoch: int, returns: Sequence[float]) -> list[bool]:
        """Keep the acting weights of every replica that has improved, and return which have.

        returns: the mean return of each replica, now.
        """
        acting = [stack.acting_rows for stack in self._group.stacks]
        if not self.epochs:
            self.epochs, self.returns = [epoch] * len(returns), list(returns)
            self._rows = [rows.clone() for rows in acting]
            return [True] * len(returns)
        improved = [now > before for now, before in zip(returns, self.returns, strict=True)]
        for k in (k for k, better in enumerate(improved) if better):
            self.epochs[k], self.returns[k] = epoch, returns[k]
        for kept, rows, members in zip(self._rows, acting, self._group.members, strict=True):
            better = [row for row, agent_id in enumerate(members) if improved[agent_id.environment]]
            kept[better] = rows[better]
        return improved

    def act(self) -> None:
        """Let every agent act with its best weights, and show them in the models."""
        for stack, rows in zip(self._group.stacks, self._rows, strict=True):
            stack.inference.weights = Weights(stack.inference.version, rows)
            stack.copy_acting_weights()

    def values(self) -> dict[str, Any]:
        """Return what a checkpoint stores of it as plain values."""
        return {"epochs": self.epochs, "returns": self.returns}

    def arrays(self) -> dict[str, Array]:
        """Return what a checkpoint stores of it as arrays."""
        return {f"{index}.best": rows.cpu().numpy() for index, rows in enumerate(self._rows)}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Put back what `values` and `arrays` returned."""
        self.epochs, self.returns = [int(e) for e in values["epochs"]], [float(r) for r in values["returns"]]
        replicas = len(self._group.environments)
        if len(self.epochs) not in (0, replicas) or len(self.epochs) != len(self.returns):
            raise CorruptCheckpoint(f"the best evaluations {values} are not those of {replicas} replicas")
        self._rows = []
        for index, stack in enumerate(self._group.stacks if self.epochs else ()):
            rows = torch.from_numpy(arrays[f"{index}.best"].copy())
            self._rows.append(restored(f"{index}.best", rows, stack.acting_rows).to(stack.device))


class Run:
    """Runs environments (one per replica) over epochs; may be continued with more epochs."""

    def __init__(self, environments: Sequence[Any], config: Config, *, timeline: Timeline | None = None) -> None:
        numerics.require()
        flags, experiment = config.parallel, config.experiment
        self.config, self.environments = config, list(environments)
        self.timeline = timeline or Timeline(enabled=False)
        _require_distinct_replicas(self.environments)
        self.plan = resolve(flags, agents=sum(len(env.agents) for env in self.environments))
        self.schedule = Schedule(flags.train_interval, flags.policy_lag)
        self.group = AgentGroup(
            self.environments, self.plan, world_deadline=flags.world_deadline, locked=flags.buffer_sync == "lock"
        )
        self.rounds = Rounds(self.group.stacks, flags, self.plan, self.schedule, self.emit, self.timeline)
        self.group.before_write = self.rounds.wait_for_readers
        self.loop = (
            ShardedLoop(self.environments, self.group, config, self.emit)
            if flags.world_shards
            else Loop(
                self.environments,
                self.group,
                max_turns=experiment.max_turns,
                autoreset=experiment.autoreset,
                sequential=flags.turn_order == "sequential",
            )
        )
        self.epoch = 0
        self.seconds = 0.0
        self.failures = 0
        """Rounds skipped before this run was resumed."""
        self.scheduled = flags.publish == "scheduled"
        self.checkpointer: Checkpoints | None = None
        self.run_id = uuid.uuid4().hex[:12]
        self.recent: list[list[float]] = []
        """Mean reward of each replica in each of the last epochs."""
        self.recent_episodes: list[list[list[float]]] = []
        """Number, returns and lengths of the episodes that ended, in each of the last epochs and replicas."""
        self.best = BestWeights(self.group)
        self._stop: int | None = None
        self._broken: str | None = None
        """The error that ended the run in the middle of an epoch."""
        self._callbacks = CallbackList()
        self._began: float | None = None
        """When this process began to run epochs; None while it does not."""
        self._epochs_here = 0
        """Epochs run by this process."""
        buffer_bytes = sum(ring.lasting_bytes for ring in self._rings())
        self._memory_monitor = MemoryMonitor(
            buffer_bytes, measure=lambda: resident_bytes(["self", *self._world_processes()])
        )
        self._standalone_heartbeat, self._evaluating = Heartbeat(), False
        self._standalone_metrics: dict[int, dict[AgentId, dict[str, float]]] = {}
        """Metrics of standalone agents, until the round of the stacks is published too."""
        for env in self.environments:
            env.heartbeat = self.loop.heartbeat  # evaluations of every replica run in the thread of the loop
        self.watchdog = Watchdog(self._monitored, limit=flags.round_deadline)

    @property
    def device(self) -> str:
        """The device that agents act and learn on."""
        return self.plan.device

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the bytes of this run depend on beside the program."""
        return numerics.fingerprint(
            self.plan.device,
            native=not self.group.standalone and all(stack.native for stack in self.group.stacks),
            portable_worlds=all(map(has_portable_worlds, self.environments)),
        )

    # -- running ---------------------------------------------------------------------------------------------

    def until(self, epochs: int, *, callbacks: Sequence[Any] = ()) -> RunSummary:
        """Run up to epoch `epochs` and train every round scheduled until then."""
        if self._broken is not None:
            raise RunError(
                f"this run stopped in epoch {self.epoch + 1} by {self._broken} and cannot go on: "
                "make a new environment and run that"
            )
        self._callbacks = CallbackList(callbacks)
        self._callbacks.on_start(self._info(epochs))
        summary: RunSummary = {}
        patience = PATIENCE
        self._began = time.perf_counter()
        self._set_busy("a run is on its way")
        try:
            if self.checkpointer is not None:
                self.checkpointer.open()
            # A user may have trained models directly since the last call.
            self.rounds.newest = [stack.states_of_models() for stack in self.group.stacks]
            self.rounds.open(self.schedule.rounds_until(epochs))
            if isinstance(self.loop, ShardedLoop):
                self.loop.open(self.rounds.share_cluster(self.loop.release), self.rounds.restart)
            with self.watchdog, Precompiler(self.group.stacks):
                while self.epoch < epochs and self._stop is None:
                    self._run_epoch(self.epoch + 1)
                with self.timeline.span("wait", "runtime"):
                    self.rounds.drain()
            self.seconds, self._began = self._wall_seconds(), None
            self._checkpoint()
            if self.checkpointer is not None:
                self.checkpointer.finish()
            summary = self.summary()
            if self._stop is not None:
                raise Interrupted(f"stopped after epoch {self.epoch} of {epochs}", signal_number=self._stop)
        except BaseException as error:
            if not summary:
                self._broken = type(error).__name__
                patience = PATIENCE if isinstance(error, Exception) else 0.0  # a user who interrupts wants to leave
            raise
        finally:
            self._set_busy(None)
            if self.checkpointer is not None:
                self.checkpointer.close()
            if isinstance(self.loop, ShardedLoop):
                self.loop.close()
            self.rounds.close(patience)
            self._callbacks.on_end(summary)
        return summary

    def _wall_seconds(self) -> float:
        """Return the seconds of the whole run so far, also of the processes before this one."""
        return self.seconds + (0.0 if self._began is None else time.perf_counter() - self._began)

    def request_stop(self, signal_number: int) -> None:
        """Stop after this epoch, with everything trained and checkpointed; may be called from a signal handler."""
        self._stop = signal_number

    def _run_epoch(self, epoch: int) -> None:
        """Run one epoch and its boundary, report it, and evaluate and checkpoint where that is due."""
        began, transitions, timesteps = time.perf_counter(), self.loop.transitions, self.loop.timesteps
        with self.timeline.span("collect", "collector", epoch=epoch):
            turns = self.loop.run_epoch(epoch)
        self.epoch = epoch
        version, lag = self.rounds.published, self.rounds.submitted - self.rounds.published
        published = self._after_epoch(epoch)
        seconds = time.perf_counter() - began
        self._count_episodes()
        for round_, results in published:
            own = self._standalone_metrics.pop(round_, {})
            if self._callbacks and (results or own):
                self._callbacks.on_round(self.group.round_stats(round_, results, own))
        if self._callbacks:
            stats = EpochStats(
                epoch=epoch,
                turns=turns,
                transitions=self.loop.transitions - transitions,
                rewards=np.concatenate([returns.mean(axis=1) for returns in self.loop.returns]),
                version=version,
                lag=lag,
                updates=self.rounds.updates,
                seconds=seconds,
                metrics=self._metrics(),
                total_timesteps=self.loop.timesteps,
                timesteps=self.loop.timesteps - timesteps,
                wall_seconds=self._wall_seconds(),
                episodes=np.concatenate(self.loop.finished, axis=1),
            )
            self._callbacks.on_epoch(stats)
        self._epochs_here += 1
        self._monitor_memory(epoch)
        if self.checkpointer is not None:
            self.checkpointer.poll()
        every = self.config.experiment.eval_every
        improved = bool(every) and epoch % every == 0 and self._evaluate()
        if self.checkpointer is not None and (improved or self.checkpointer.due(epoch)):
            self._checkpoint()

    def _count_episodes(self) -> None:
        """Keep the rewards and the finished episodes of this epoch for the means of a summary."""
        rewards = [float(returns.mean()) for returns in self.loop.returns]
        self.recent = [*self.recent[1 - RECENT_EPOCHS :], rewards]
        episodes = [finished.sum(axis=1).tolist() for finished in self.loop.finished]
        self.recent_episodes = [*self.recent_episodes[1 - RECENT_EPOCHS :], episodes]
        if not any(count for count, _, _ in episodes):
            return
        while len(self.recent_episodes) > 1 and np.sum(self.recent_episodes[1:], axis=0)[:, 0].min() >= WINDOW:
            del self.recent_episodes[0]  # the newer ones are enough for the means of a summary

    def _after_epoch(self, epoch: int) -> list[tuple[int, list[RoundResult]]]:
        """Publish what is due and submit the round of this boundary; return the rounds that were published."""
        before, published = self.rounds.published, list[list[RoundResult]]()
        if self.scheduled:
            self.rounds.receive_ready()
        else:
            published += self.rounds.publish_ready()
        round_ = self.schedule.round_after(epoch)
        if round_ is not None:
            with self.timeline.span("boundary", "runtime", round=round_):
                published += self.rounds.boundary(round_)
                self._train_standalone(round_)
        return list(enumerate(published, start=before + 1))

    def _train_standalone(self, round_: int) -> None:
        self._standalone_heartbeat.beat(round_)
        try:
            metrics = self.group.train_standalone()
        except SystemExit as error:
            raise LearnerError(
                f"a model called sys.exit({error.code!r}) in its train_step(), in round {round_}"
            ) from error
        self._standalone_heartbeat.rest()
        self._standalone_metrics[round_] = metrics
        self.rounds.updates += sum(int(own["updates"]) for own in metrics.values())

    def _evaluate(self) -> bool:
        """Evaluate the acting weights in fresh episodes; return True if those of some replica are its best so far."""
        with self.timeline.span("evaluate", "runtime", epoch=self.epoch):
            for stack in self.group.stacks:
                stack.copy_acting_weights()
            self._evaluating = True
            returns = [env.evaluate().mean_return for env in self.environments]
            self._evaluating = False
        best = self.best.offer(self.epoch, returns)
        fields = {"epoch": self.epoch, "mean_return": float(np.mean(returns)), "returns": returns, "best": best}
        self.emit("evaluated", fields)
        return any(best)

    def _checkpoint(self) -> None:
        """Begin a checkpoint, where checkpoints are written."""
        if self.checkpointer is not None:
            with self.timeline.span("checkpoint", "runtime", epoch=self.epoch):
                self.checkpointer.begin()

    # -- monitoring ------------------------------------------------------------------------------------------

    def _monitored(self) -> list[Monitored]:
        """Return everything that the watchdog monitors: the loop or the worlds' processes, and the learners."""
        name = type(self.environments[0]).__name__
        loop = Monitored(name, self.loop.heartbeat, self._describe_turn, in_loop_thread=True, limit=self.turn_limit)
        worlds = [worker for env in self.environments for worker in env.workers()]
        return [
            *(worlds or [loop]),  # worlds in processes have deadlines of their own, and time to be replaced
            Monitored("standalone models", self._standalone_heartbeat, _describe_round, in_loop_thread=True),
            *self.rounds.workers(),
        ]

    def _describe_turn(self, activity: Activity) -> str:
        suffix = " of an evaluation" if self._evaluating else ""
        return f"turn {activity.part} of epoch {activity.job}{suffix}"

    @property
    def turn_limit(self) -> float:
        """Seconds that a turn may take; ten times as many for the first one, in which worlds are compiled."""
        limit = self.config.parallel.world_deadline + 1.0  # a slow model reaches its own deadline first
        return 10.0 * limit if self.loop.turns == 0 and self.loop.turn_number <= 1 else limit

    def position(self) -> dict[str, int]:
        """Return where the run is: epoch, turn and the last submitted round."""
        return {"epoch": self.loop.epoch, "turn": self.loop.turn_number, "round": self.rounds.submitted}

    def _monitor_memory(self, epoch: int) -> None:
        """Emit an event if memory grows beside the buffers.

        Epochs in which a callback goes on with earlier work do not count: a GIF takes memory while it is written.
        """
        if self._callbacks.busy:
            return
        phase = self.rounds.backend, self.rounds.updates > 0
        grown = self._memory_monitor.after(self._epochs_here, written=self._written_bytes(), phase=phase)
        if grown:
            self.emit("memory_grows", {"epoch": epoch, **grown})

    def _rings(self) -> list[Ring]:
        """Return the buffers of all agents that have one of this library."""
        models = [self.environments[k].agents[i].model for agent in self.group.standalone for k, i in agent.ids]
        rings = [getattr(getattr(model, "memory", None), "ring", None) for model in models]
        return [*(stack.ring for stack in self.group.stacks), *(ring for ring in rings if isinstance(ring, Ring))]

    def _written_bytes(self) -> int:
        """Return how many bytes of the buffers have been written: memory is taken when it is first written to."""
        rings = [(ring, ring.valid.shape[1]) for ring in self._rings()]
        return sum(
            ring.lasting_bytes * int(np.minimum(ring.pos, rows).sum()) // ring.pos.size // rows for ring, rows in rings
        )

    def _world_processes(self) -> list[int]:
        return [worker.pid for env in self.environments for worker in env.workers()]

    def _set_busy(self, reason: str | None) -> None:
        """Refuse direct training of the stacked models for this reason; None: allow it."""
        for stack in self.group.stacks:
            for model in stack.models:
                model.busy = reason

    # -- reporting -------------------------------------------------------------------------------------------

    def emit(self, name: str, fields: dict[str, Any]) -> None:
        """Send an event to all callbacks."""
        self._callbacks.on_event(name, fields)

    @property
    def dropped_callbacks(self) -> int:
        """How many callbacks failed and were dropped."""
        return self._callbacks.dropped

    def no_digest(self) -> str | None:
        """Return why this run has no digest; None: it has one."""
        if not self.scheduled:
            return 'parallel.publish is "asap": the clock decides which weights act'
        if skipped := self.failures + len(self.rounds.skipped):
            return f"{skipped} rounds failed twice and were skipped"
        return self.group.missing_state() or self.group.global_draws()

    def digests(self) -> list[str]:
        """Return one digest per replica."""
        return digests(self)

    def summary(self) -> RunSummary:
        """Return what the run gave so far."""
        reason = self.no_digest()
        found = None if reason else digests(self)
        returns, lengths = _episode_means(np.sum(self.recent_episodes, axis=1) if self.recent_episodes else [])
        return {
            "digest": combined(found) if found else None,
            "digests": found,
            "no_digest": reason,
            "fingerprint": self.fingerprint,
            "reproducible": reason is None,
            "epochs": self.epoch,
            "turns": self.loop.turns,
            "total_timesteps": self.loop.timesteps,
            "transitions": self.loop.transitions,
            "rounds": self.rounds.submitted,
            "updates": self.rounds.updates,
            "rejected_updates": self.rounds.rejected,
            "unwritten_checkpoints": self.checkpointer.unwritten if self.checkpointer else 0,
            "failures": self.failures + len(self.rounds.skipped),
            "recomputed_share": self.group.recomputed / max(1, self.group.chosen),
            "backend": self.rounds.backend,
            "wall_seconds": self.seconds,
            "fps": self.loop.timesteps * len(self.environments) / max(1e-9, self.seconds),
            "turns_per_second": self.loop.turns / max(1e-9, self.seconds),
            "updates_per_second": self.rounds.updates / max(1e-9, self.seconds),
            "best_epochs": self.best.epochs,
            "best_returns": self.best.returns,
            "mean_reward": float(np.mean(self.recent)) if self.recent else 0.0,
            "ep_rew_mean": returns,
            "ep_len_mean": lengths,
            "replicas": self._replicas(found or [None] * len(self.environments)),
            "config": self.config.as_dict(),
        }

    def _replicas(self, found: Sequence[str | None]) -> list[dict[str, Any]]:
        """Return seed, swept values, digest, mean reward and episodes of each replica."""
        settings = self.config.experiment.settings
        each = len(self.environments) // len(settings)
        rewards = np.mean(self.recent, axis=0).tolist() if self.recent else [0.0] * len(self.environments)
        return [
            {
                "seed": env.seed,
                "setting": settings[k // each],
                "digest": found[k],
                "mean_reward": rewards[k],
                "ep_rew_mean": _episode_means([np.array(epoch[k]) for epoch in self.recent_episodes])[0],
            }
            for k, env in enumerate(self.environments)
        ]

    def _metrics(self) -> dict[str, Array]:
        """Return exploration and buffer fill of every agent."""
        stacks = self.group.stacks
        fill = [stack.ring.sizes() / (stack.ring.shape.turns * stack.ring.shape.worlds) for stack in stacks]
        explore = [stack.exploration for stack in stacks]
        return {"epsilon": self.group.in_order(explore), "buffer_fill": self.group.in_order(fill)}

    def _info(self, epochs: int) -> RunInfo:
        return RunInfo(
            run_id=self.run_id,
            environment=type(self.environments[0]).__name__,
            agents=tuple(agent.name for env in self.environments for agent in env.agents),
            worlds=self.group.worlds,
            replicas=len(self.environments),
            epochs=epochs,
            first_epoch=self.epoch + 1,
            config=self.config.as_dict(),
            fingerprint=self.fingerprint,
        )


def _episode_means(epochs: Sequence[Array]) -> tuple[float | None, float | None]:
    """Return the mean return and length of the newest episodes, from one (3,) per epoch; None if none has ended."""
    returns, lengths = episode_means(newest_episodes(epochs))
    return (None, None) if np.isnan(returns) else (float(returns), float(lengths))


def _describe_round(activity: Activity) -> str:
    return f"round {activity.job}"


def _require_distinct_replicas(environments: Sequence[Any]) -> None:
    """Raise SharingError if two replicas have the same seed and values: one experiment would count twice."""
    known: list[tuple[Any, ...]] = []
    for env in environments:
        key = (env.seed, env.config.model, env.config.world)
        if key in known:
            raise SharingError(f"two replicas share the seed {env.seed}: give each a seed of its own")
        known.append(key)
