"""All agents of a run behind one interface: stacked or standalone, the loop does not tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from parallel_agents.algorithms.base import Model
from parallel_agents.algorithms.learner import RoundResult
from parallel_agents.core.errors import CheckpointError, ParallelAgentsError
from parallel_agents.core.serialization import pack
from parallel_agents.core.types import AgentId, Array, Masks, RoundStats, Step
from parallel_agents.engine.collect import CompiledWorld, Progress
from parallel_agents.engine.events import class_ids
from parallel_agents.engine.plan import Plan
from parallel_agents.engine.stacks import Stack, StackedAgents, group_models
from parallel_agents.engine.standalone import StandaloneAgent, fits_a_stack


class Agents(Protocol):
    """Some agents of a run that act, store and learn in one way."""

    ids: list[AgentId]

    def start_epoch(self, epoch: int) -> None:
        """Prepare for an epoch."""

    def act(self, step: Step) -> int:
        """Choose actions from what the environments show before the turn; return how many were computed in a batch."""

    def act_in_turn(self, agent_id: AgentId, observation: Array, mask: Array | None, epoch: int, turn: int) -> bool:
        """Choose one agent's actions at its place in the order; return whether batched ones were computed again."""

    def actions_of(self, agent_id: AgentId) -> Array:
        """Return one agent's actions (W, …) of this turn."""

    def store(self, step: Step) -> None:
        """Store the transitions of this turn."""

    def close_epoch(self, observations: Sequence[Any], masks: Sequence[Masks], *, ended: bool) -> None:
        """Store what the last turn led to; ended: the episodes stop here."""

    def end_epoch(self, epoch: int) -> None:
        """Finish an epoch."""

    def state(self, agent_id: AgentId) -> Any:
        """Return what an agent stores beside its row of a stack, for digest and checkpoint."""

    def load_state(self, agent_id: AgentId, state: Any) -> None:
        """Restore what `state` returned."""


class AgentGroup:
    """Every agent of every environment of a run."""

    def __init__(self, environments: Sequence[Any], plan: Plan, *, world_deadline: float, locked: bool) -> None:
        """world_deadline: seconds that a slow model may take. locked: put a lock on every buffer of a stack."""
        self.environments = list(environments)
        self._together = plan.act_together
        self.before_write: Callable[[], None] = lambda: None
        """Called before buffers are written: learner threads may still have to read them."""
        self.worlds = self.environments[0].n_worlds
        self.agent_ids = [AgentId(k, i) for k, env in enumerate(self.environments) for i in range(len(env.agents))]
        stackable = [agent_id for agent_id in self.agent_ids if fits_a_stack(self._agent(agent_id))]
        self.members = self._grouped(stackable)
        """The agents of each stack."""
        self.stacks: list[Stack] = []
        self._stacked: list[StackedAgents] = []
        for ids in self.members:
            models = [self._agent(agent_id).model for agent_id in ids]
            stack = Stack(
                models,
                together=plan.act_together,
                locked=locked,
                device=plan.device,
                workers=plan.most_workers,
                worlds=self.environments[0].world_numbers,
                all_worlds=self.environments[0].config.experiment.worlds,
            )
            event_ids = [self._event_ids(agent_id) for agent_id in ids] if models[0].event_types else None
            self.stacks.append(stack)
            self._stacked.append(StackedAgents(ids, self.environments, stack, event_ids))
        self.standalone = [
            StandaloneAgent(
                agent_id,
                self.environments[agent_id.environment],
                deadline=world_deadline,
                event_ids=self._event_ids(agent_id) if self._stores_events(agent_id) else None,
            )
            for agent_id in self.agent_ids
            if agent_id not in stackable
        ]
        self._all: list[Agents] = [*self._stacked, *self.standalone]
        self._agents_of: dict[AgentId, Agents] = {own: agents for agents in self._all for own in agents.ids}
        self._numbers = {agent_id: number for number, agent_id in enumerate(self.agent_ids)}
        self._acting: list[Agents] = []
        self.stores_events = any(map(self._stores_events, self.agent_ids))
        """True where some agent draws by event class."""
        self.recomputed = 0
        self.chosen = 0

    def _agent(self, agent_id: AgentId) -> Any:
        return self.environments[agent_id.environment].agents[agent_id.agent]

    def _grouped(self, ids: Sequence[AgentId]) -> list[list[AgentId]]:
        """Return the agents of each stack, in the order in which stacks are trained and published.

        Environments that take their own turns share no stack, since their turns do not coincide.
        """
        pools = [list(ids)]
        if any(env.overrides_take_turn for env in self.environments):
            pools = [[own for own in ids if own.environment == k] for k in range(len(self.environments))]
        grouped = [
            [pool[position] for position in positions]
            for pool in pools
            for positions in group_models([self._agent(agent_id).model for agent_id in pool])
        ]
        return sorted(grouped, key=lambda own: -self._agent(own[0]).model.spec.training_priority)

    def _stores_events(self, agent_id: AgentId) -> bool:
        """Return True where an agent's buffer is this library's and is drawn from by event class."""
        agent = self._agent(agent_id)
        return isinstance(agent.model, Model) and not agent.overrides_add_memory and bool(agent.model.event_types)

    def _event_ids(self, agent_id: AgentId) -> Array:
        return class_ids(self.environments[agent_id.environment], self._agent(agent_id))

    # -- a turn ----------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int) -> None:
        """Prepare every agent for an epoch."""
        for agents in self._all:
            agents.start_epoch(epoch)

    def act(self, step: Step) -> None:
        """Let the agents of the environments that take part choose their actions."""
        self._acting = self._all
        if len(step.environments) < len(self.environments):
            self._acting = [agents for agents in self._all if any(k in step.environments for k, _ in agents.ids)]
        for agents in self._acting:
            self.chosen += agents.act(step)

    def act_in_turn(self, agent_id: AgentId, observation: Array, mask: Array | None, epoch: int, turn: int) -> None:
        """Let one agent choose at its place in the order; what was batched is computed again only where it changed."""
        if self._agents_of[agent_id].act_in_turn(agent_id, observation, mask, epoch, turn):
            self.recomputed += self.worlds

    def actions_of(self, environment: int) -> Any:
        """Return copies of the actions (N, W) of one environment, or one array per agent where their shapes differ.

        They are copies, so that a world that writes into them cannot change what the agents store.
        """
        if len(self._all) == 1 and self._stacked:
            return self._stacked[0].actions_in(environment).copy()
        ids = [AgentId(environment, i) for i in range(len(self.environments[environment].agents))]
        actions = [self._agents_of[agent_id].actions_of(agent_id) for agent_id in ids]
        return np.stack(actions) if len({own.shape for own in actions}) == 1 else [own.copy() for own in actions]

    def action_of(self, agent_id: AgentId) -> Array:
        """Return a copy of the actions (W, …) of one agent."""
        return self._agents_of[agent_id].actions_of(agent_id).copy()

    def why_not_compiled(self) -> str | None:
        """Return why the agents cannot play whole epochs in compiled code; None: they can."""
        if not self._together:
            return "agents are computed one by one (parallel.enabled or parallel.parallel_actions is false)"
        if self.standalone:
            return f"{self._agent(self.standalone[0].ids[0]).name} has a model or hooks of its own"
        if len(self._stacked) > 1:
            return "the agents have different algorithms or shapes"
        if self.stores_events:
            return "transitions are stored with their event types"
        return self.stacks[0].not_compiled

    def collect(
        self, environment: int, world: CompiledWorld, progress: Progress, *turns: int, stores: bool, **how: bool
    ) -> int:
        """Play turns of one environment in compiled code; return where to go on.

        turns: epoch, first turn, and end. how: the other options of `StackedAgents.collect`.
        """
        if stores:
            self.before_write()
        before = progress.counters[0]
        after = self._stacked[0].collect(environment, world, progress, *turns, stores=stores, **how)
        self.chosen += int(progress.counters[0] - before) * progress.alive.size
        return after

    def store(self, step: Step) -> None:
        """Store the transitions of every agent that acted in this turn."""
        self.before_write()
        for agents in self._acting:
            agents.store(step)

    def close_epoch(self, observations: Sequence[Any], masks: Sequence[Masks], *, ended: bool) -> None:
        """Store what the last turn led to; ended: the episodes stop here."""
        self.before_write()
        for agents in self._all:
            agents.close_epoch(observations, masks, ended=ended)

    def end_epoch(self, epoch: int) -> None:
        """Finish an epoch for every agent."""
        for agents in self._all:
            agents.end_epoch(epoch)

    # -- learning --------------------------------------------------------------------------------------------

    def train_standalone(self) -> dict[AgentId, dict[str, float]]:
        """Train the standalone agents, inline, those with a higher `training_priority` first; return their metrics."""
        ordered = sorted(self.standalone, key=lambda own: -own.training_priority)
        return {agent.ids[0]: agent.train() for agent in ordered}

    # -- digest and checkpoint -------------------------------------------------------------------------------

    def row_of(self, agent_id: AgentId) -> tuple[int, int] | None:
        """Return an agent's stack and row there; None for a standalone agent."""
        for index, ids in enumerate(self.members):
            if agent_id in ids:
                return index, ids.index(agent_id)
        return None

    def missing_state(self) -> str | None:
        """Return why digest and checkpoint cannot cover every agent; None: they can."""
        reasons = (agent.missing_state() for agent in self.standalone)
        return next(filter(None, reasons), None) or next(filter(None, map(self._unstorable, self.agent_ids)), None)

    def global_draws(self) -> str | None:
        """Return which own model drew from a global random generator; None: none did."""
        for agent in self.standalone:
            if agent.global_draws:
                owner = self._agent(agent.ids[0])
                return (
                    f"the model of {owner.name} ({type(owner.model).__name__}) is not reproducible: its "
                    f"{agent.global_draws}; draw from a generator of its own, seeded in place(seed, agent, worlds)"
                )
        return None

    def _unstorable(self, agent_id: AgentId) -> str | None:
        """Return what is wrong with what an agent's own hooks return; None: it can be stored."""
        try:
            pack(self.state_of(agent_id), {}, "")
        except Exception as error:  # whatever a user's own code raises, the run itself is not at fault
            return f"the state of {self._agent(agent_id).name} cannot be stored: {type(error).__name__}: {error}"
        return None

    def state_of(self, agent_id: AgentId) -> Any:
        """Return what an agent stores beside its row of a stack: everything it knows if it is standalone."""
        return self._agents_of[agent_id].state(agent_id)

    def load_state_of(self, agent_id: AgentId, state: Any) -> None:
        """Restore what `state_of` returned."""
        try:
            self._agents_of[agent_id].load_state(agent_id, state)
        except ParallelAgentsError:
            raise
        except Exception as error:  # raised by the user's own load_state
            name = self._agent(agent_id).name
            raise CheckpointError(f"{name} did not take its state: {type(error).__name__}: {error}") from error

    # -- statistics ------------------------------------------------------------------------------------------

    def in_order(self, columns: Sequence[Array], missing: float = np.nan) -> Array:
        """Return (agents,) in canonical order from one (N,) array per stack; `missing` for standalone agents."""
        values = np.full(len(self.agent_ids), missing)
        for ids, column in zip(self.members, columns, strict=True):
            values[[self._numbers[agent_id] for agent_id in ids]] = column
        return values

    def round_stats(
        self, round_: int, results: Sequence[RoundResult], standalone: Mapping[AgentId, Mapping[str, float]]
    ) -> RoundStats:
        """Return one round of all stacks and standalone agents as one record of all agents, for callbacks."""
        names = [name for result in results for name in result.metrics]
        names += [name for own in standalone.values() for name in own if name != "updates"]

        def column(name: str, columns: Sequence[Array], missing: float = np.nan) -> Array:
            values = self.in_order(columns, missing)
            for agent_id, own in standalone.items():
                values[self._numbers[agent_id]] = own.get(name, missing)
            return values

        def metric(name: str) -> Array:
            pairs = zip(results, self.members, strict=True)
            return column(name, [result.metrics.get(name, np.full(len(ids), np.nan)) for result, ids in pairs])

        return RoundStats(
            round=round_,
            updates=column("updates", [result.updates for result in results], 0).astype(np.int64),
            rejected=self.in_order([result.rejected for result in results], 0).astype(np.int64),
            metrics={name: metric(name) for name in dict.fromkeys(names)},
            seconds=sum(result.seconds for result in results),
        )
