"""Episodes of one environment, an agent that learns from them with importance sampling, and checkpoints of both."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from parallel_agents.errors import ContractError
from parallel_agents.market.importance.checkpoint import load_training, save_training
from parallel_agents.market.importance.configuration import ImportanceSamplingTrainingConfiguration
from parallel_agents.market.importance.door import PolicyAgent, acting_of
from parallel_agents.market.importance.metrics import ImportanceSamplingTrainingMetrics, correlation, mean_metrics
from parallel_agents.market.importance.training import ImportanceSamplingTraining
from parallel_agents.protocols import Listener
from parallel_agents.seeding import Purpose, generator
from parallel_agents.tracking.listeners import Listeners
from parallel_agents.tracking.locks import FolderLock, locked
from parallel_agents.types import Array

__all__ = ["EpisodeEnvironment", "ImportanceSamplingTrainingOrchestrator", "create_importance_sampling_trainer"]

_SEEDS = 2**31


class EpisodeEnvironment(Protocol):
    """One world in the manner of Gymnasium.

    The dictionary that `step` gives may hold `event_type`, `value`, `metadata` and `true_event_type`; all are optional.
    """

    def reset(self, *, seed: int | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode; the first observation."""

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated, truncated and what else there is to say."""


class ImportanceSamplingTrainingOrchestrator:
    """Trains any agent that acts and has `update_policy`.

    Episode e starts from a seed that follows from the configuration's seed and e alone, and checkpoints are taken
    between episodes: a training that was stopped and resumed equals one that was not, if agent and environment follow
    from their seeds.
    """

    def __init__(
        self,
        configuration: ImportanceSamplingTrainingConfiguration,
        *,
        folder: Path | None = None,
        listeners: Iterable[Listener] = (),
    ) -> None:
        self.configuration = configuration
        self.folder = folder
        self.training: ImportanceSamplingTraining | None = None
        self.history: list[dict[str, Any]] = []
        """one line per episode: reward, steps, updates and the mean metrics of its updates"""
        self._listeners = Listeners(listeners)
        self._lock: FolderLock | None = None

    def train(self, agent: PolicyAgent, environment: EpisodeEnvironment, episodes: int | None = None) -> dict[str, Any]:
        """Train for `episodes` more episodes, all of the configuration's by default; the summary."""
        act, options = acting_of(agent), self.configuration
        training = self._training(agent, environment)
        goal = options.simulation_episodes if episodes is None else len(self.history) + episodes
        with locked(self.folder) as self._lock:
            while len(self.history) < goal:
                line = self._episode(training, act, environment, number=len(self.history) + 1)
                self.history.append(line)
                self._listeners.on_event("importance_sampling", {"experiment": options.experiment_id, **line})
                if len(self.history) % options.checkpoint_every == 0:
                    self.save()
            if len(self.history) % options.checkpoint_every:
                self.save()
        return self.summary()

    def resume(self, agent: PolicyAgent, environment: EpisodeEnvironment) -> dict[str, Any]:
        """Go on from the newest good checkpoint to the end; the summary."""
        if self.folder is None:
            raise ContractError("there is nothing to resume: create the trainer with the folder of its checkpoints")
        self.history = load_training(self.folder, self._training(agent, environment))
        return self.train(agent, environment)

    def save(self) -> None:
        """Write a checkpoint, if there is a folder for it."""
        if self.folder is not None and self.training is not None:
            save_training(self.folder, self.training, self.history, lock=self._lock)

    def summary(self) -> dict[str, Any]:
        """Means over all episodes, and how the crisis share of batches goes with the reward."""
        trained = [line for line in self.history if line["updates"]]
        names = [name for name in (trained[0] if trained else {}) if name not in ("episode", "steps", "updates")]
        columns = {name: [line[name] for line in trained if line[name] is not None] for name in names}
        ratios, rewards = ([line[name] for line in trained] for name in ("crisis_parent_ratio_in_batch", "reward"))
        return {
            "episodes": len(self.history),
            "updates": sum(line["updates"] for line in self.history),
            **{name: float(np.nanmean(values)) for name, values in columns.items() if not np.isnan(values).all()},
            "mean_reward": float(np.mean([line["reward"] for line in self.history])) if self.history else None,
            "correlation_with_performance": correlation(ratios, rewards),
        }

    def _training(self, agent: PolicyAgent, environment: EpisodeEnvironment) -> ImportanceSamplingTraining:
        if self.training is None:
            observation, _ = environment.reset(seed=self._seed(0))
            memory = self.configuration.memory(np.shape(observation))
            self.training = ImportanceSamplingTraining(agent, memory, self.configuration)
        if self.training.agent is not agent:
            raise ContractError("this trainer trains another agent already: create one for each agent")
        return self.training

    def _seed(self, episode: int) -> int:
        return int(generator(self.configuration.seed, Purpose.WORLD, epoch=episode).integers(_SEEDS))

    def _episode(
        self, training: ImportanceSamplingTraining, act: Any, environment: EpisodeEnvironment, number: int
    ) -> dict[str, Any]:
        """Play one episode and learn meanwhile; its line in the history."""
        if hasattr(training.agent, "start_epoch_action"):
            training.agent.start_epoch_action(epoch=number)
        state, _ = environment.reset(seed=self._seed(number))
        total, steps, done = 0.0, 0, False
        updates: list[ImportanceSamplingTrainingMetrics] = []
        while not done and steps < self.configuration.max_steps:
            action = act(state)
            after, reward, terminated, truncated, info = environment.step(action)
            known = {name: info.get(name) for name in ("event_type", "value", "metadata")}
            training.remember(state, action, reward, after, terminated, **known, truth=info.get("true_event_type"))
            state, done = after, terminated or truncated
            total, steps = total + float(reward), steps + 1
            if steps % self.configuration.train_interval == 0:
                found = training.update()
                updates += [] if found is None else [found]
        mean = mean_metrics(updates)
        line = {"episode": number, "reward": total, "steps": steps, "updates": len(updates)}
        return line if mean is None else {**line, **mean.as_dict()}


def create_importance_sampling_trainer(
    experiment_id: str,
    crisis_parent_weight: float = 5.0,
    importance_sampling_alpha: float = 0.6,
    importance_sampling_beta: float = 0.4,
    simulation_episodes: int = 1000,
    *,
    folder: Path | None = None,
    listeners: Iterable[Listener] = (),
    **options: Any,
) -> ImportanceSamplingTrainingOrchestrator:
    """A trainer; further options are those of `ImportanceSamplingTrainingConfiguration`.

    >>> trainer = create_importance_sampling_trainer("first try", crisis_parent_weight=3.0, batch_size=32)
    >>> trainer.configuration.simulation_episodes
    1000
    """
    configuration = ImportanceSamplingTrainingConfiguration.from_dict(
        {
            "experiment_id": experiment_id,
            "crisis_parent_weight": crisis_parent_weight,
            "importance_sampling_alpha": importance_sampling_alpha,
            "importance_sampling_beta": importance_sampling_beta,
            "simulation_episodes": simulation_episodes,
            **options,
        }
    )
    return ImportanceSamplingTrainingOrchestrator(configuration, folder=folder, listeners=listeners)
