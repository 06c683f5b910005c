"""`MonteCarloTrainingOrchestrator`: simulate, remember, draw, update; again and again, with checkpoints.

Everything follows from the configuration, its seed and the agent: a training that was stopped and resumed equals one
that was not, if the agent has `state` and `load_state`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parallel_agents.config import build_section
from parallel_agents.errors import CheckpointError, ConfigError, ContractError
from parallel_agents.market.discovery import Patterns
from parallel_agents.market.importance.door import PolicyAgent
from parallel_agents.market.montecarlo.actors import Wrapper
from parallel_agents.market.montecarlo.experiences import EpisodeBatch
from parallel_agents.market.montecarlo.flight import EpisodeSetting
from parallel_agents.market.montecarlo.simulator import MonteCarloSimulator
from parallel_agents.protocols import Listener
from parallel_agents.runtime.checkpoints.store import Manifest, Store
from parallel_agents.sampling import CRISIS_PARENT, REGULAR_PARENT
from parallel_agents.tracking.listeners import Listeners
from parallel_agents.tracking.locks import FolderLock, locked
from parallel_agents.types import Array

__all__ = ["MonteCarloTrainingConfig", "MonteCarloTrainingOrchestrator"]


@dataclass(frozen=True, kw_only=True)
class MonteCarloTrainingConfig:
    """How much to simulate, what to draw from it, how often to update."""

    n_worlds: int = 100
    max_concurrent_worlds: int = 20
    crisis_parent_frequency: float | None = None
    """natural share of crisis transitions that corrections restore; None: that of the experiences"""
    crisis_parent_value_multiplier: float | None = None
    """how much more a crisis parent is worth, for the weights of worlds; None: as in the data"""
    batch_size: int = 200
    """episodes of one step"""
    importance_sampling_ratio: float = 0.5
    """share of crisis transitions in a training batch; 0: none is sought, all are drawn alike"""
    experience_buffer_size: int = 1_000_000
    update_rows: int = 256
    """transitions of one update"""
    updates_per_step: int = 4
    adapt_every: int = 0
    """steps between two adaptations of the mix of worlds; 0: never"""
    checkpoint_every: int = 50
    """steps between two checkpoints, where a folder is given"""
    steps: int = 50
    auctions_per_step: float = 20.0
    deadline: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "update_rows", "updates_per_step", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give at least 1")
        if self.adapt_every < 0:
            raise ConfigError(f"adapt_every is {self.adapt_every}: give 0 or more")
        if not 0.0 <= self.importance_sampling_ratio < 1.0:
            raise ConfigError(f"importance_sampling_ratio is {self.importance_sampling_ratio}: give 0 to below 1")
        if self.crisis_parent_frequency is not None and not 0.0 < self.crisis_parent_frequency < 1.0:
            raise ConfigError(f"crisis_parent_frequency is {self.crisis_parent_frequency}: give one between 0 and 1")
        multiplier = self.crisis_parent_value_multiplier
        if multiplier is not None and not multiplier > 0.0:
            raise ConfigError(f"crisis_parent_value_multiplier is {multiplier}: give a number above 0")

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> MonteCarloTrainingConfig:
        """A configuration from its dictionary form."""
        return build_section(cls, dict(options), "monte_carlo")


class MonteCarloTrainingOrchestrator:
    """Trains any agent that acts and has `update_policy(batch) -> metrics`."""

    def __init__(
        self,
        config: MonteCarloTrainingConfig | None = None,
        *,
        patterns: Patterns | None = None,
        setting: EpisodeSetting | None = None,
        folder: Path | None = None,
        listeners: Iterable[Listener] = (),
    ) -> None:
        self.config = c = config or MonteCarloTrainingConfig()
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
        self.folder = folder
        self.history: list[dict[str, float]] = []
        """one line per step"""
        self._listeners = Listeners(listeners)
        self._lock: FolderLock | None = None

    async def generate_training_batch(self, agent: Any) -> dict[str, Array]:
        """Run a batch of episodes, remember them, and draw one training batch."""
        await self._simulate(agent)
        return self._draw()

    async def train_agent_with_monte_carlo(
        self, agent: PolicyAgent, n_steps: int = 1000, *, focus: Wrapper | None = None
    ) -> dict[str, Any]:
        """Train until `n_steps` steps are done, those of a resumed training included; a summary.

        focus: robust strategies that play some of the worlds in the agent's place while it learns.
        """
        if not callable(getattr(agent, "update_policy", None)):
            raise ContractError(f"{type(agent).__name__} has no update_policy(batch): without it nothing can be learnt")
        with locked(self.folder) as self._lock:
            await self._train(agent, n_steps, focus)
        return self.summary()

    async def _train(self, agent: PolicyAgent, n_steps: int, focus: Wrapper | None) -> None:
        while len(self.history) < n_steps:
            number = len(self.history) + 1
            if hasattr(agent, "start_epoch_action"):
                agent.start_epoch_action(epoch=number)
            batch = await self._simulate(agent, focus)
            metrics = [agent.update_policy(self._draw()) for _ in range(self.config.updates_per_step)]
            line = {"step": float(number), **self._told(batch), **_means(metrics)}
            self.history.append(line)
            self._listeners.on_event("monte_carlo", line)
            if self.config.adapt_every and number % self.config.adapt_every == 0:
                mix = self.simulator.adapt(batch)
                self._listeners.on_event("monte_carlo_adapted", {"step": number, "mix": mix})
            if number % self.config.checkpoint_every == 0 or number == n_steps:
                self.save(agent)

    async def _simulate(self, agent: Any, focus: Wrapper | None = None) -> EpisodeBatch:
        batch = await self.simulator.run_episode_batch(agent, self.config.batch_size, focus=focus)
        self.simulator.require_success(batch)
        self.simulator.remember(batch)
        return batch

    def _draw(self) -> dict[str, Array]:
        focus = self.config.importance_sampling_ratio > 0.0
        return self.simulator.importance_sampling(self.config.update_rows, focus_rare_events=focus)

    def _told(self, batch: EpisodeBatch) -> dict[str, float]:
        multiplier = self.config.crisis_parent_value_multiplier
        weights = self.simulator.orchestrator.world_weights(self.simulator.worlds, multiplier)
        rewards = np.array([e.total_reward for e in batch])
        natural = np.array([e.importance_weight for e in batch])
        revenue = sum(e.revenue for e in batch)
        return {
            "mean_reward": float(np.average(rewards, weights=natural)),
            "important_reward": float(np.average(rewards, weights=[weights[e.world] for e in batch])),
            "crisis_revenue_share": sum(e.crisis_parent_revenue for e in batch) / revenue if revenue > 0 else 0.0,
            "episodes_per_second": batch.episodes_per_second,
            "failures": float(len(batch.failures)),
        }

    def summary(self) -> dict[str, Any]:
        """What the training came to."""
        tail = self.history[-max(1, len(self.history) // 10) :]
        names = sorted({name for line in tail for name in line} - {"step", "failures"})
        return {
            "steps": len(self.history),
            "episodes": self.simulator.episodes,
            "failures": dict(self.simulator.failures),
            **{name: float(np.mean([line[name] for line in tail if name in line])) for name in names},
            "adaptations": self.simulator.orchestrator.history,
        }

    # -- on disk -------------------------------------------------------------------------------------------------

    def save(self, agent: Any) -> None:
        """Write a checkpoint, if there is a folder for it."""
        if self.folder is None:
            return
        store, step = Store(self.folder, self._lock), len(self.history)
        store.open_for_writing()
        own = agent.state() if hasattr(agent, "state") else {}
        arrays = {**{f"agent.{n}": np.asarray(a) for n, a in own.items()}}
        arrays |= {f"buffer.{n}": a for n, a in self.simulator.buffer.state().items()}
        name = f"state-{step:06d}.safetensors"
        flat = {n: np.atleast_1d(a) for n, a in arrays.items()}
        orchestrator = self.simulator.orchestrator
        values = {
            "config": asdict(self.config),
            "history": self.history,
            "episodes": self.simulator.episodes,
            "failed": {str(world): count for world, count in self.simulator.failures.items()},
            "generation": orchestrator.generation,
            "mix": self.simulator.world_types_distribution,
            "adaptations": orchestrator.history,
            "numbers": [n for n, a in arrays.items() if a.ndim == 0],
        }
        store.commit(Manifest(step, {name: store.write(name, flat)}, values))
        store.rotate(step, 3)
        store.close()

    async def resume(self, agent: PolicyAgent, n_steps: int = 1000, *, focus: Wrapper | None = None) -> dict[str, Any]:
        """Go on from the newest good checkpoint until `n_steps` steps are done; a summary."""
        if self.folder is None:
            raise ContractError(
                "there is nothing to resume: create the orchestrator with the folder of its checkpoints"
            )
        store = Store(self.folder)
        manifest, _ = store.newest_good()
        own = asdict(self.config)
        odd = [n for n in own if n != "checkpoint_every" and manifest.values["config"].get(n) != own[n]]
        if odd:
            raise CheckpointError(
                f"the stored training had another {', '.join(odd)}: go on with the same configuration"
            )
        arrays = store.read(manifest, f"state-{manifest.epoch:06d}.safetensors")
        arrays |= {name: arrays[name].reshape(()) for name in manifest.values["numbers"]}
        stored = {n.removeprefix("agent."): a for n, a in arrays.items() if n.startswith("agent.")}
        if stored and not hasattr(agent, "load_state"):
            raise CheckpointError(f"the stored agent has a state, {type(agent).__name__} has no load_state")
        self.simulator.restore(
            manifest.values, {n.removeprefix("buffer."): a for n, a in arrays.items() if n.startswith("buffer.")}
        )
        if stored:
            agent.load_state(stored)  # type: ignore[attr-defined]
        self.history = [dict(line) for line in manifest.values["history"]]
        return await self.train_agent_with_monte_carlo(agent, n_steps, focus=focus)


def _means(metrics: list[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of every plain figure that updates report."""
    names = [n for n, v in metrics[0].items() if isinstance(v, int | float)] if metrics else []
    return {name: float(np.mean([m[name] for m in metrics if name in m])) for name in names}
