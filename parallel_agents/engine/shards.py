"""Worlds that are played elsewhere: shards of them on Ray, with local inference on the published weights.

Each actor holds some worlds of every replica, with agents that act and store but do not learn. An epoch without
`autoreset` follows from its number, the acting weights and the exploration alone, so the process of the run sends these
and gets the rows of the buffers back. It puts them side by side in the order of worlds: the bytes are those of one
process, for any number of shards, and an epoch whose actor is lost is played again.

An epoch goes on until all worlds have ended, also those of other shards. So a shard plays its worlds, says after how
many turns they ended, and learns for how long it has to go on before it closes the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from parallel_agents.algorithms.acting import Weights
from parallel_agents.core.config import Config
from parallel_agents.core.errors import ConfigError, DeadlineError, RunError, WorkerDied
from parallel_agents.core.types import Array
from parallel_agents.engine.agents import AgentGroup
from parallel_agents.engine.loop import Emit, Loop
from parallel_agents.engine.plan import resolve
from parallel_agents.execution.backend import shares
from parallel_agents.execution.ray import Actors, RayCluster, identity, start_on_nodes
from parallel_agents.nn import numerics
from parallel_agents.replay import Ring

ONE_CORE = {"CPU": 1.0}
WORLD_HOOKS = (
    "begin_epoch", "reset", "reset_worlds", "begin_turn", "populate", "can_act", "observe", "observe_agent",
    "action_masks", "apply_actions", "apply_agent", "earn", "settle", "dones", "events",
)  # fmt: skip
"""Methods in which an environment or a grid game writes what happens in its worlds."""
Members = tuple[int, ...]
"""The agents of one stack, by their numbers in their environment."""


class Acting(NamedTuple):
    """What the agents of one replica act with, by stack."""

    weights: dict[Members, tuple[int, Array]]
    """Version and rows (N, P)."""
    exploration: dict[Members, Array]


class PlayedEpoch(NamedTuple):
    """What one epoch of some worlds of one replica gave. Shapes: N agents, W worlds of the shard."""

    turns: int
    alive: Array
    """(N, W) agents whose episode had not ended."""
    first: Array
    returns: Array
    finished: Array
    """(3, N) number, returns and lengths of the episodes that ended."""
    counts: Array
    """Transitions, steps of single worlds, actions chosen, and actions computed again."""
    buffers: dict[Members, dict[str, Array]]
    """What `Ring.whole` returns."""


# -- in an actor -------------------------------------------------------------------------------------------------------


class WorldShard:
    """Plays some worlds of every replica, epoch after epoch, in a process that Ray has started."""

    def __init__(self, make: Sequence[Callable[..., Any]], worlds: range) -> None:
        """make: makes the environment of each replica, with the worlds of `worlds`."""
        numerics.require()
        self._replicas = [_ReplicaShard(own(worlds=worlds)) for own in make]

    def identify(self) -> tuple[str, int, dict[str, str]]:
        """Return what `execution.ray.identity` returns."""
        return identity(self._replicas[0].device)

    def play(self, epoch: int, acting: Sequence[Acting]) -> list[int]:
        """Play an epoch until the episodes of this shard have ended; return the turns of each replica."""
        return [own.play(epoch, given) for own, given in zip(self._replicas, acting, strict=True)]

    def finish(self, turns: Sequence[int]) -> list[PlayedEpoch]:
        """Go on up to the last turn that the worlds of any shard take, close the epoch, and return it."""
        return [own.finish(least) for own, least in zip(self._replicas, turns, strict=True)]


class _ReplicaShard:
    """Some worlds of one replica, with agents that act and store."""

    def __init__(self, environment: Any) -> None:
        experiment, flags = environment.config.experiment, environment.config.parallel
        plan = resolve(flags, agents=len(environment.agents))
        self.device = plan.device
        self._group = AgentGroup([environment], plan, world_deadline=flags.world_deadline, locked=False)
        self._loop = Loop(
            [environment],
            self._group,
            max_turns=experiment.max_turns,
            autoreset=False,
            sequential=flags.turn_order == "sequential",
        )
        self._stacks = {
            tuple(own.agent for own in ids): stack
            for ids, stack in zip(self._group.members, self._group.stacks, strict=True)
        }
        for stack in self._group.stacks:  # what has been sent to the process of the run is not needed again
            rows = experiment.max_turns + 1
            stack.ring = Ring(replace(stack.spec.ring, capacity=rows * environment.n_worlds), len(stack))
        self._counted = self._counts()

    def _counts(self) -> Array:
        loop, group = self._loop, self._group
        return np.array([loop.transitions, loop.timesteps, group.chosen, group.recomputed])

    def play(self, epoch: int, acting: Acting) -> int:
        """Play an epoch until its episodes have ended, and return the number of turns."""
        self._counted = self._counts()
        self._loop.begin_epoch(epoch)
        for members, stack in self._stacks.items():
            version, rows = acting.weights[members]
            stack.inference.weights = Weights(version, torch.from_numpy(rows.copy()).to(self.device))
            stack.exploration[:] = acting.exploration[members]
            stack.ring.renew()
        self._loop.play()
        return self._loop.turn_number

    def finish(self, turns: int) -> PlayedEpoch:
        """Go on up to a turn, close the epoch, and return it."""
        loop = self._loop
        return PlayedEpoch(
            turns=loop.end_epoch(least=turns),
            alive=loop.alive[0],
            first=loop.first[0],
            returns=loop.returns[0],
            finished=loop.finished[0],
            counts=self._counts() - self._counted,
            buffers={members: stack.ring.whole() for members, stack in self._stacks.items()},
        )


# -- in the process of the run -----------------------------------------------------------------------------------------


class ShardedLoop(Loop):
    """The loop of a run whose worlds are played by shards on Ray."""

    def __init__(self, environments: Sequence[Any], group: AgentGroup, config: Config, emit: Emit) -> None:
        """Raise ConfigError if the worlds cannot be played elsewhere."""
        if reason := why_not_sharded(environments, group, config):
            raise ConfigError(f"parallel.world_shards is {config.parallel.world_shards}, but {reason}")
        flags, experiment = config.parallel, config.experiment
        super().__init__(
            environments,
            group,
            max_turns=experiment.max_turns,
            autoreset=False,
            sequential=flags.turn_order == "sequential",
        )
        self._flags, self._emit = flags, emit
        self._cluster: RayCluster | None = None
        self._actors: Actors | None = None
        self._restart_learners: Callable[[], None] = lambda: None
        self._worlds: list[slice] = []
        """The worlds of each shard."""

    def open(self, cluster: RayCluster, restart_learners: Callable[[], None]) -> None:
        """Start the shards. restart_learners: called when a node is lost, since learners were on it too."""
        self._cluster, self._restart_learners = cluster, restart_learners
        self._start(fixed=True)

    def release(self) -> None:
        """End the shards; the next epoch starts fresh ones."""
        if self._actors is not None:
            self._actors.close()
        self._actors = None

    def close(self) -> None:
        """End the shards and forget the cluster."""
        self.release()
        self._cluster = None

    def _start(self, *, fixed: bool) -> None:
        """Start the shards; unless `fixed`, on the nodes that are left."""
        assert self._cluster is not None, "open() comes first"
        cluster = self._cluster
        fingerprint = numerics.fingerprint(
            self.group.stacks[0].device,
            native=all(stack.native for stack in self.group.stacks),
            portable_worlds=all(map(has_portable_worlds, self.environments)),
        )
        for env in self.environments:
            cluster.send_module_of(type(env))

        def start(count: int, grows: bool) -> Actors:
            self._worlds = shares(self.group.worlds, count)
            make = [env.shard_maker() for env in self.environments]
            return Actors(
                cluster,
                WorldShard,
                [(make, range(own.start, own.stop)) for own in self._worlds],
                role="world shard",
                resources=ONE_CORE,
                fingerprint=fingerprint,
                deadline=self._flags.round_deadline,
                grows=grows,
            )

        self._actors = start_on_nodes(
            cluster, start, self._flags.world_shards, ONE_CORE, fixed=fixed, on_loss=self._make_room
        )

    def _make_room(self, error: RunError) -> None:
        """Give back everything that this run has reserved, and start its learners on the nodes that are left.

        Ray moves what was reserved on a lost node to other nodes, where shards and learners would wait for each other.
        """
        self._emit("worker_replaced", {"epoch": self.epoch, "backend": "ray", "cause": str(error)})
        self.release()
        self._restart_learners()

    def run_epoch(self, epoch: int) -> int:
        """Let the shards play one epoch, store its transitions in the order of worlds, and return its turns."""
        self.begin_epoch(epoch)
        self.heartbeat.rest()  # shards have a deadline of their own
        shards = self._play_until_it_succeeds(epoch)
        self.group.before_write()
        for k in range(len(self.environments)):
            self._take_over(k, [replicas[k] for replicas in shards])
        self.group.end_epoch(epoch)
        self.turns += self.turn_number
        return self.turn_number

    def _play_until_it_succeeds(self, epoch: int) -> list[list[PlayedEpoch]]:
        """Return what every shard gave for every replica; start fresh shards where one is lost."""
        failures = 0
        while True:
            try:
                return self._play_elsewhere(epoch)
            except (WorkerDied, DeadlineError) as error:
                failures += 1
                if failures >= max(1, self._flags.max_failures):
                    raise
                self._make_room(error)

    def _play_elsewhere(self, epoch: int) -> list[list[PlayedEpoch]]:
        if self._actors is None:
            self._start(fixed=False)
        assert self._actors is not None
        acting = self._acting()
        count, limit = len(self._worlds), self._flags.round_deadline
        turns = self._actors.call("play", [(epoch, acting)] * count, limit)
        longest = [max(own) for own in zip(*turns, strict=True)]
        return self._actors.call("finish", [(longest,)] * count, limit)

    def _acting(self) -> Any:
        """Return a reference to what every agent acts with, which every node fetches once."""
        assert self._cluster is not None, "open() comes first"
        replicas = [Acting({}, {}) for _ in self.environments]
        for k, own in enumerate(replicas):
            for stack, members, rows in self._stacks_of(k):
                weights = stack.inference.weights
                own.weights[members] = weights.version, weights.rows[rows].cpu().numpy()
                own.exploration[members] = stack.exploration[rows]
        return self._cluster.put(replicas)

    def _stacks_of(self, k: int) -> list[tuple[Any, Members, slice]]:
        """Return every stack with agents of one environment, these agents, and their rows, which stand side by side."""
        found = []
        for stack, ids in zip(self.group.stacks, self.group.members, strict=True):
            rows = [row for row, agent_id in enumerate(ids) if agent_id.environment == k]
            if rows:
                found.append((stack, tuple(ids[row].agent for row in rows), slice(rows[0], rows[-1] + 1)))
        return found

    def _take_over(self, k: int, parts: Sequence[PlayedEpoch]) -> None:
        """Write one replica's part of the loop and of the buffers, from all shards in the order of worlds."""
        env = self.environments[k]
        alive, first = [own.alive for own in parts], [own.first for own in parts]
        self.restore(k, np.concatenate(alive, axis=1), np.concatenate(first, axis=1))
        self.returns[k][:] = np.concatenate([own.returns for own in parts], axis=1)
        self.finished[k][:] = np.sum([own.finished for own in parts], axis=0)
        env.turn, env.active = parts[0].turns, self.alive[k].any(axis=0)
        env.add_to_total(self.returns[k])
        self.turn_number = max(self.turn_number, parts[0].turns)
        transitions, timesteps, chosen, recomputed = np.sum([own.counts for own in parts], axis=0).tolist()
        self.transitions += transitions
        self.timesteps += timesteps if k == 0 else 0
        self.group.chosen += chosen
        self.group.recomputed += recomputed
        for stack, members, rows in self._stacks_of(k):
            with stack.locks():
                stack.ring.append(rows, [(w, own.buffers[members]) for w, own in zip(self._worlds, parts, strict=True)])


def why_not_sharded(environments: Sequence[Any], group: AgentGroup, config: Config) -> str | None:
    """Return why the worlds of a run cannot be played elsewhere; None: they can."""
    kind, rows = type(environments[0]), config.experiment.max_turns + 1
    if config.experiment.autoreset:
        return "experiment.autoreset is true: episodes that cross epochs would be lost with their node"
    if not kind.shardable or any(env.overrides_take_turn for env in environments):
        return f"{kind.__name__} does not say that its worlds can be played elsewhere: see Environment.shardable"
    if hook := _hook_below(kind, "shardable"):
        return (
            f"{kind.__name__} inherits `shardable = True` and writes {hook}() itself: say `shardable = True` in it, if "
            "what happens in a world still follows from its number in world_numbers, the epoch and the actions alone"
        )
    if config.parallel.world_shards > group.worlds:
        return f"experiment.worlds is {group.worlds}: there can be one shard per world, at most"
    if group.standalone:
        k, i = group.standalone[0].ids[0]
        return f"{environments[k].agents[i].name} has a model or hooks of its own, which stay where the run is"
    if any(group.state_of(agent_id) for agent_id in group.agent_ids):
        return "agents carry a state from epoch to epoch (Agent.state), which stays where the run is"
    if any(stack.ring.shape.turns < rows for stack in group.stacks):
        return f"a buffer is smaller than an epoch of {rows} turns of {group.worlds} worlds: raise model.buffer_size"
    return None


def has_portable_worlds(environment: Any) -> bool:
    """Return whether an environment says that its worlds are `portable`, of the rules that it really has."""
    return bool(environment.portable) and _hook_below(type(environment), "portable") is None


def _hook_below(kind: type, attribute: str) -> str | None:
    """Return a method of `WORLD_HOOKS` that is written below the class with this attribute; None: there is none."""
    for own in kind.__mro__:
        if attribute in vars(own):
            return None
        for name in WORLD_HOOKS:
            if name in vars(own):
                return name
    return None
