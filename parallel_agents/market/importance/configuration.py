"""What a trainer with importance sampling is told: validated here, before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from parallel_agents.config import build_section
from parallel_agents.errors import ConfigError
from parallel_agents.memory import ImportanceSamplingReplayBuffer
from parallel_agents.sampling import ExperienceAggregator, ImportanceSampler

__all__ = ["ImportanceSamplingTrainingConfiguration"]


@dataclass(frozen=True, kw_only=True)
class ImportanceSamplingTrainingConfiguration:
    """How to sample, what counts as a crisis, and how long to train.

    >>> ImportanceSamplingTrainingConfiguration(crisis_parent_weight=3.0).replay_buffer_capacity
    50000
    """

    experiment_id: str = "importance_sampling"
    enable_importance_sampling: bool = True
    """False: uniform draws, all else equal."""
    crisis_parent_weight: float = 5.0
    importance_sampling_alpha: float = 0.6
    importance_sampling_beta: float = 0.4
    importance_sampling_beta_frames: int | None = None
    """Updates until beta is 1; None: those of the whole training."""
    temperature: float = 1.0
    min_crisis_parent_ratio: float = 0.05
    """Least share of crisis parents in a batch, once the buffer holds one."""
    learned_weights: bool = False
    """Replace the weights by the spread of each class's TD errors or rewards, once enough was seen."""
    priorities: bool = False
    """Draw within a class by TD error; the agent must report `td_errors`."""
    crisis_indicators: tuple[str, ...] = ("crisis", "urgent", "emergency")
    value_threshold_percentile: float = 90.0
    replay_buffer_capacity: int = 50_000
    simulation_episodes: int = 1000
    max_steps: int = 1000
    """Steps of an episode, at most."""
    batch_size: int = 64
    learning_starts: int = 256
    """Rows in the buffer before the agent is updated."""
    train_interval: int = 4
    """Steps between two updates."""
    checkpoint_every: int = 100
    """Episodes between two checkpoints, where a folder is given."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("simulation_episodes", "max_steps", "batch_size", "train_interval", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give a whole number of at least 1")
        if not self.batch_size <= self.learning_starts <= self.replay_buffer_capacity:
            raise ConfigError(
                f"learning_starts is {self.learning_starts}: give a number from batch_size ({self.batch_size}) to "
                f"replay_buffer_capacity ({self.replay_buffer_capacity})"
            )
        self.sampler()  # what the parts refuse is refused here
        self.aggregator()

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> ImportanceSamplingTrainingConfiguration:
        """A configuration from its own dictionary form, such as JSON gives it back."""
        return build_section(cls, dict(options), "importance_sampling")

    def as_dict(self) -> dict[str, Any]:
        """All options with their values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def sampler(self) -> ImportanceSampler:
        """A fresh sampler; before the first crisis parent has come, it draws from the others."""
        frames = self.importance_sampling_beta_frames
        return ImportanceSampler(
            self.crisis_parent_weight,
            self.importance_sampling_alpha,
            self.importance_sampling_beta,
            self.min_crisis_parent_ratio,
            temperature=self.temperature,
            beta_frames=frames or max(1, self.simulation_episodes * self.max_steps // self.train_interval),
            learned=self.learned_weights,
            priorities=self.priorities,
            seed=self.seed,
        )

    def memory(self, obs_shape: tuple[int, ...]) -> ImportanceSamplingReplayBuffer:
        """A fresh buffer with a sampler of its own."""
        return ImportanceSamplingReplayBuffer(self.replay_buffer_capacity, obs_shape, self.sampler())

    def aggregator(self) -> ExperienceAggregator:
        """A fresh judge of event types."""
        return ExperienceAggregator(self.crisis_indicators, self.value_threshold_percentile)
