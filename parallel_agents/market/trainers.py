"""Training of any agent that acts and has `update_policy(batch) -> metrics`, on batches of episodes in many worlds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.core.config import at_least
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.folder_lock import lock_folder
from parallel_agents.core.types import Array
from parallel_agents.env.external_training import (
    AgentTrainer,
    Parts,
    PolicyAgent,
    known_means,
    mean_figures,
    require_update_policy,
)
from parallel_agents.market.discovery import Patterns
from parallel_agents.market.experiences import EpisodeBatch, summarize
from parallel_agents.market.montecarlo import EpisodeSetting, MonteCarloSimulator
from parallel_agents.market.strategies import Focus
from parallel_agents.replay.importance_sampler import CRISIS_PARENT, REGULAR_PARENT
from parallel_agents.tracking.callbacks import Callback


@dataclass(frozen=True, kw_only=True)
class MonteCarloTrainingConfig:
    """How much to simulate, what to draw from it, and how often to update."""

    n_worlds: int = 100
    max_concurrent_worlds: int | None = None
    """None: all of them, on all cores"""
    crisis_parent_frequency: float | None = None
    """natural share of crisis transitions that corrections restore; None: that of the buffer"""
    crisis_parent_value_multiplier: float | None = None
    """value of a crisis parent relative to other users, for the weights of worlds; None: as in the data"""
    batch_size: int = 200
    """episodes of one step"""
    importance_sampling_ratio: float = 0.5
    """share of crisis transitions in a training batch; 0: uniform draws"""
    experience_buffer_size: int = 1_000_000
    update_rows: int = 256
    """transitions of one update"""
    updates_per_step: int = 4
    adapt_every: int = 0
    """steps between two adaptations of the mix of worlds; 0: never"""
    checkpoint_every: int = 50
    """steps between two checkpoints, where a folder is given"""
    steps: int = 48
    auctions_per_step: float | None = None
    deadline: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "update_rows", "updates_per_step", "checkpoint_every"):
            at_least(self, "monte_carlo", name, 1)
        at_least(self, "monte_carlo", "adapt_every", 0)
        if not 0.0 <= self.importance_sampling_ratio < 1.0:
            raise ConfigError(f"importance_sampling_ratio is {self.importance_sampling_ratio}: give 0 to below 1")
        if self.crisis_parent_frequency is not None and not 0.0 < self.crisis_parent_frequency < 1.0:
            raise ConfigError(f"crisis_parent_frequency is {self.crisis_parent_frequency}: give one between 0 and 1")
        multiplier = self.crisis_parent_value_multiplier
        if multiplier is not None and not multiplier > 0.0:
            raise ConfigError(f"crisis_parent_value_multiplier is {multiplier}: give a number above 0")


class MonteCarloTrainingOrchestrator(AgentTrainer):
    """Trains any agent that acts and has `update_policy(batch) -> metrics`."""

    def __init__(
        self,
        config: MonteCarloTrainingConfig | None = None,
        *,
        patterns: Patterns | None = None,
        setting: EpisodeSetting | None = None,
        folder: Path | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> None:
        self.config = c = config or MonteCarloTrainingConfig()
        super().__init__(folder, callbacks, c, "checkpoint_every")
        population = None
        if c.crisis_parent_frequency is not None:
            population = {CRISIS_PARENT: c.crisis_parent_frequency, REGULAR_PARENT: 1.0 - c.crisis_parent_frequency}
        self.simulator = MonteCarloSimulator(
            c.n_worlds,
            None,
            c.max_concurrent_worlds,
            c.experience_buffer_size,
            patterns=patterns,
            setting=setting or EpisodeSetting(steps=c.steps, auctions_per_step=c.auctions_per_step, seed=c.seed),
            target_share=c.importance_sampling_ratio or 0.5,
            population=population,
            deadline=c.deadline,
            seed=c.seed,
        )
        self.simulator.orchestrator.given_multiplier = c.crisis_parent_value_multiplier

    async def generate_training_batch(self, agent: Any) -> dict[str, Array]:
        """Run a batch of episodes, store them, and draw one training batch."""
        await self._simulate(agent)
        return self._draw()

    async def train_agent_with_monte_carlo(
        self, agent: PolicyAgent, n_steps: int = 1000, *, focus: Focus | None = None
    ) -> dict[str, Any]:
        """Train until `n_steps` steps are done, those before a resume included, and return the summary.

        focus: strategies that act instead of the agent in some worlds while it learns.
        """
        require_update_policy(agent)
        with lock_folder(self.folder) as self._lock:
            while len(self.history) < n_steps:
                await self._step(agent, len(self.history) + 1, n_steps, focus)
        return self.summary()

    async def resume(self, agent: PolicyAgent, n_steps: int = 1000, *, focus: Focus | None = None) -> dict[str, Any]:
        """Continue from the newest undamaged checkpoint until `n_steps` steps are done, and return the summary."""
        self._restore(agent)
        return await self.train_agent_with_monte_carlo(agent, n_steps, focus=focus)

    async def _step(self, agent: PolicyAgent, number: int, n_steps: int, focus: Focus | None) -> None:
        """Simulate a batch, update the agent, and adapt the worlds and write a checkpoint where it is time for it."""
        if hasattr(agent, "start_epoch_action"):
            agent.start_epoch_action(epoch=number)
        batch = await self._simulate(agent, focus)
        metrics = [agent.update_policy(self._draw()) for _ in range(self.config.updates_per_step)]
        line = {"step": float(number), **self._batch_figures(batch), **mean_figures(metrics)}
        self.history.append(line)
        self._callbacks.on_event("monte_carlo", line)
        if self.config.adapt_every and number % self.config.adapt_every == 0:
            mix = self.simulator.adapt(batch)
            self._callbacks.on_event("monte_carlo_adapted", {"step": number, "mix": mix})
        self._save_if_due(agent, n_steps)

    async def _simulate(self, agent: Any, focus: Focus | None = None) -> EpisodeBatch:
        batch = await self.simulator.run_episode_batch(agent, self.config.batch_size, focus=focus)
        self.simulator.require_success(batch)
        self.simulator.buffer.add_experiences(batch)
        return batch

    def _draw(self) -> dict[str, Array]:
        focus = self.config.importance_sampling_ratio > 0.0
        return self.simulator.importance_sampling(self.config.update_rows, focus_rare_events=focus)

    def _batch_figures(self, batch: EpisodeBatch) -> dict[str, float]:
        orchestrator = self.simulator.orchestrator
        orchestrator.fit_world_weights(batch)
        world_weights = orchestrator.calculate_world_weights(self.simulator.worlds)
        rewards, figures = [e.total_reward for e in batch], summarize(batch.experiences)
        return {
            "mean_reward": figures["weighted_reward"],
            "important_reward": float(np.average(rewards, weights=[world_weights[e.world] for e in batch])),
            "crisis_revenue_share": figures["crisis_revenue_share"],
            "episodes_per_second": batch.episodes_per_second,
            "failures": float(len(batch.failures)),
            "world_rule_fitted": float(orchestrator.rule_fitted),
        }

    def summary(self) -> dict[str, Any]:
        """Return the numbers of steps, episodes and failures, and the means over the last tenth of the steps."""
        tail = self.history[-max(1, len(self.history) // 10) :]
        return {
            **known_means(tail, "step"),
            "steps": len(self.history),
            "episodes": self.simulator.episodes,
            "failures": dict(self.simulator.failures),
            "adaptations": self.simulator.orchestrator.history,
        }

    def _state(self) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, Any]]:
        simulator, orchestrator = self.simulator, self.simulator.orchestrator
        values = {
            "episodes": simulator.episodes,
            "failed": {str(world): count for world, count in simulator.failures.items()},
            "generation": orchestrator.generation,
            "mix": simulator.world_types_distribution,
            "adaptations": orchestrator.history,
            "world_rule": orchestrator.rule.exponents,
        }
        return {"buffer": simulator.buffer.state()}, values

    def _load_state(self, parts: Parts, values: Mapping[str, Any]) -> None:
        self.simulator.restore(values, parts["buffer"])
