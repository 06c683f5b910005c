"""Training with importance sampling around any agent that acts and has `update_policy`.

transition ──judge──► event type ──► buffer ──draw──► batch with weights ──► agent.update_policy
                                        ▲                                          │
                                        └──── priorities, spread of classes ◄──────┘

`ImportanceSamplingTraining` holds agent, buffer and the judge of event types. `ImportanceSamplingTrainingOrchestrator`
runs episodes of one environment, with checkpoints between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.core.config import at_least, build_section
from parallel_agents.core.errors import ConfigError, ContractError, CorruptCheckpoint
from parallel_agents.core.folder_lock import lock_folder
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Array
from parallel_agents.env.external_training import (
    AgentTrainer,
    Parts,
    PolicyAgent,
    action_function,
    known_means,
    mean_figures,
    require_update_policy,
)
from parallel_agents.replay import Buffer, ExperienceAggregator, ImportanceSampler, ImportanceSamplingReplayBuffer
from parallel_agents.replay.importance_sampler import CRISIS_PARENT
from parallel_agents.replay.importance_weights import correction_effect
from parallel_agents.tracking.callbacks import Callback

_MAX_SEED = 2**31


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
    """Smallest share of crisis parents in a batch, once the buffer holds one."""
    learned_weights: bool = False
    """Replace the class weights by the spread of each class's TD errors or rewards, once there are enough of them."""
    priorities: bool = False
    """Draw within a class by TD error; the agent must report `td_errors`."""
    crisis_indicators: tuple[str, ...] = ("crisis", "urgent", "emergency")
    value_threshold_percentile: float = 90.0
    replay_buffer_capacity: int = 50_000
    simulation_episodes: int = 1000
    max_steps: int = 1000
    """Largest number of steps of an episode."""
    batch_size: int = 64
    learning_starts: int = 256
    """Rows in the buffer before the first update."""
    train_interval: int = 4
    """Steps between two updates."""
    checkpoint_every: int = 100
    """Episodes between two checkpoints, where a folder is given."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("simulation_episodes", "max_steps", "batch_size", "train_interval", "checkpoint_every"):
            at_least(self, "importance_sampling", name, 1)
        if not self.batch_size <= self.learning_starts <= self.replay_buffer_capacity:
            raise ConfigError(
                f"learning_starts is {self.learning_starts}: give a number from batch_size ({self.batch_size}) to "
                f"replay_buffer_capacity ({self.replay_buffer_capacity})"
            )
        self.sampler()  # raises for options that the sampler refuses
        self.aggregator()

    def sampler(self) -> ImportanceSampler:
        """Return a new sampler."""
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
        """Return a new buffer with a new sampler."""
        return ImportanceSamplingReplayBuffer(self.replay_buffer_capacity, obs_shape, self.sampler())

    def aggregator(self) -> ExperienceAggregator:
        """Return a new judge of event types."""
        return ExperienceAggregator(self.crisis_indicators, self.value_threshold_percentile)


@dataclass(frozen=True, kw_only=True)
class ImportanceSamplingTrainingMetrics:
    """The metrics of one update; a line of the history holds their means over an episode."""

    crisis_parent_weight: float
    regular_parent_weight: float
    crisis_parent_ratio_in_batch: float
    crisis_parent_natural_share: float
    """share of crisis parents in the buffer"""
    crisis_parent_predicted_share: float
    """expected share of crisis parents in the batch"""
    importance_weights_mean: float
    importance_weights_std: float
    effective_sample_size: float
    beta: float
    bias_correction_effect: float
    """how far the correction moves the batch's mean reward, relative to it"""
    identification_accuracy: float
    """share of right event types among rows whose true type is known; NaN where none is"""
    loss: float
    """as the agent reports it; NaN if it does not"""


class ImportanceSamplingTraining:
    """Importance sampling around one agent with `update_policy`: store transitions, then update."""

    def __init__(
        self,
        agent: PolicyAgent,
        memory: ImportanceSamplingReplayBuffer,
        configuration: ImportanceSamplingTrainingConfiguration,
    ) -> None:
        require_update_policy(agent)
        self.agent, self.memory, self.configuration = agent, memory, configuration
        self.aggregator = configuration.aggregator()
        self.judged, self.right = 0, 0
        """number of judged event types whose true type is known, and how many of them were right"""

    def remember(
        self,
        state: ArrayLike,
        action: ArrayLike,
        reward: float,
        next_state: ArrayLike,
        done: bool,
        *,
        event_type: str | None = None,
        value: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        truth: str | None = None,
    ) -> int:
        """Store one transition, with its event type given or judged, and return its index.

        value: None takes the reward.
        truth: the true event type, if known; it is compared with the judged one and never used for it.
        """
        worth = float(reward if value is None else value)
        experience = {"event_type": event_type, "value": worth, "metadata": metadata}
        if truth is not None:
            self.memory.sampler.class_ids(truth)  # raises for an unknown type before anything is stored
        judged_type = self.aggregator.decide(experience).event_type
        index = self.memory.add(state, action, reward, next_state, done, judged_type, worth, metadata)
        self.aggregator.identify_event_type(experience)
        if truth is not None:
            self.judged += 1
            self.right += truth == judged_type
        return index

    @property
    def identification_accuracy(self) -> float:
        """Share of right event types among those whose true type is known; NaN where none is."""
        return self.right / self.judged if self.judged else math.nan

    def update(self) -> ImportanceSamplingTrainingMetrics | None:
        """Update the agent once; return None while the buffer holds too few rows."""
        options, memory = self.configuration, self.memory
        if len(memory) < options.learning_starts:
            return None
        draw = memory.sample_importance_weighted if options.enable_importance_sampling else memory.sample_uniform
        batch, weights, indices = draw(options.batch_size)
        reported = self.agent.update_policy({**batch, "weights": weights.astype(np.float32)})
        if not isinstance(reported, Mapping):
            raise ContractError(
                f"update_policy() of {type(self.agent).__name__} gave {type(reported).__name__}: "
                "give a mapping of metrics"
            )
        if options.enable_importance_sampling:
            self._update_sampler(reported.get("td_errors"), batch["rewards"], indices)
        return self._metrics(reported, batch["rewards"], weights, indices)

    def _update_sampler(self, td_errors: ArrayLike | None, rewards: Array, indices: Array) -> None:
        """Update the priorities and the learned class weights from the results of an update."""
        if self.configuration.priorities:
            if td_errors is None:
                raise ContractError(
                    f"priorities need TD errors: let update_policy() of {type(self.agent).__name__} report `td_errors`"
                )
            self.memory.update_priorities(indices, td_errors)
        if self.configuration.learned_weights:
            self.memory.sampler.update_spread(rewards if td_errors is None else td_errors)

    def _metrics(
        self, reported: Mapping[str, Any], rewards: Array, weights: Array, indices: Array
    ) -> ImportanceSamplingTrainingMetrics:
        memory = self.memory
        share = float(memory.index.counts[memory.sampler.event_types.index(CRISIS_PARENT)] / len(memory))
        sampling: dict[str, float] = {  # of uniform draws
            "crisis_parent_weight": 1.0,
            "regular_parent_weight": 1.0,
            "crisis_parent_ratio_in_batch": memory.event_types(indices).count(CRISIS_PARENT) / len(indices),
            "crisis_parent_natural_share": share,
            "crisis_parent_predicted_share": share,
            "importance_weights_mean": 1.0,
            "importance_weights_std": 0.0,
            "effective_sample_size": float(len(weights)),
            "beta": 0.0,
        }
        if self.configuration.enable_importance_sampling:
            statistics = memory.sampler.statistics()
            sampling = {name: float(statistics[name]) for name in sampling}
        return ImportanceSamplingTrainingMetrics(
            **sampling,
            bias_correction_effect=correction_effect(rewards, weights),
            identification_accuracy=self.identification_accuracy,
            loss=float(reported.get("loss", math.nan)),
        )


def integrate_importance_sampling_with_training(
    agent: PolicyAgent,
    buffer: Buffer | ImportanceSamplingReplayBuffer,
    configuration: ImportanceSamplingTrainingConfiguration | None = None,
) -> ImportanceSamplingTraining:
    """Return importance sampling around an existing agent and buffer.

    A buffer with event types is used itself. The rows of a plain `Buffer` of one world are copied, with event types
    judged from their rewards.
    """
    options = configuration or ImportanceSamplingTrainingConfiguration()
    if isinstance(buffer, ImportanceSamplingReplayBuffer):
        return ImportanceSamplingTraining(agent, buffer, options)
    if buffer.shape.worlds != 1 or buffer.shape.frames != 1:
        raise ConfigError(
            f"a buffer of {buffer.shape.worlds} worlds and {buffer.shape.frames} frames cannot be copied: "
            "give one of a single world and a single frame"
        )
    training = ImportanceSamplingTraining(agent, options.memory(buffer.shape.observation), options)
    with buffer.locked():
        ring = buffer.ring
        serials = np.arange(ring.tail[0], ring.tail[0] + ring.sizes()[0])[None]
        rows = ring.gather(serials, n_step=1, gammas=np.ones(1))
    shape = (-1, *buffer.shape.observation)
    states, next_states = (rows[name][0].reshape(shape) for name in ("states", "next_states"))
    dones = rows["discounts"][0] == 0.0
    for row in zip(states, rows["actions"][0], rows["returns"][0], next_states, dones, strict=True):
        training.remember(*row)
    return training


class EpisodeEnvironment(Protocol):
    """One world with the interface of a Gymnasium environment.

    The dictionary that `step` returns may hold `event_type`, `value`, `metadata` and `true_event_type`.
    """

    def reset(self, *, seed: int | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode and return the first observation."""

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated and further information."""


class ImportanceSamplingTrainingOrchestrator(AgentTrainer):
    """Trains any agent that acts and has `update_policy`, in episodes of one environment.

    The seed of an episode depends on the configuration's seed and the episode's number alone, and checkpoints are
    written between episodes. So a training that was stopped and resumed equals one that was not, if agent and
    environment depend on their seeds alone.
    """

    def __init__(
        self,
        configuration: ImportanceSamplingTrainingConfiguration,
        *,
        folder: Path | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> None:
        # a training may be made longer
        super().__init__(folder, callbacks, configuration, "simulation_episodes", "checkpoint_every")
        self.configuration = configuration
        self.training: ImportanceSamplingTraining | None = None

    def train(self, agent: PolicyAgent, environment: EpisodeEnvironment, episodes: int | None = None) -> dict[str, Any]:
        """Train for `episodes` more episodes, by default all of the configuration's, and return the summary."""
        act, options = action_function(agent), self.configuration
        training = self._training(agent, environment)
        goal = options.simulation_episodes if episodes is None else len(self.history) + episodes
        with lock_folder(self.folder) as self._lock:
            while len(self.history) < goal:
                line = self._run_episode(training, act, environment, number=len(self.history) + 1)
                self.history.append(line)
                self._callbacks.on_event("importance_sampling", {"experiment": options.experiment_id, **line})
                self._save_if_due(agent, goal)
        return self.summary()

    def resume(self, agent: PolicyAgent, environment: EpisodeEnvironment) -> dict[str, Any]:
        """Continue from the newest undamaged checkpoint to the end, and return the summary."""
        self._training(agent, environment)
        self._restore(agent)
        return self.train(agent, environment)

    def _state(self) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, Any]]:
        training = self.training
        if training is None:
            raise ContractError("nothing was trained yet: there is nothing to store before `train`")
        parts = {
            "buffer": training.memory.state(),
            "sampler": training.memory.sampler.state(),
            "judge": training.aggregator.state(),
        }
        return parts, {"judged": training.judged, "right": training.right}

    def _load_state(self, parts: Parts, values: Mapping[str, Any]) -> None:
        training = self.training
        assert training is not None
        training.memory.load_state(parts["buffer"])
        training.memory.sampler.load_state(parts["sampler"])
        training.aggregator.load_state(parts["judge"])
        training.judged, training.right = int(values["judged"]), int(values["right"])
        if not 0 <= training.right <= training.judged:
            raise CorruptCheckpoint(f"{training.right} of {training.judged} judgements were right")

    def summary(self) -> dict[str, Any]:
        """Return means over all episodes, and the correlation of the crisis share of batches with the reward."""
        trained = [line for line in self.history if line["updates"]]
        ratios, rewards = ([line[name] for line in trained] for name in ("crisis_parent_ratio_in_batch", "reward"))
        return {
            "episodes": len(self.history),
            "updates": sum(line["updates"] for line in self.history),
            **known_means(trained, "episode", "steps", "updates"),
            "mean_reward": float(np.mean([line["reward"] for line in self.history])) if self.history else None,
            "correlation_with_performance": _correlation(ratios, rewards),
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
        return int(generator(self.configuration.seed, Purpose.WORLD, epoch=episode).integers(_MAX_SEED))

    def _run_episode(
        self, training: ImportanceSamplingTraining, act: Any, environment: EpisodeEnvironment, number: int
    ) -> dict[str, Any]:
        """Run one episode, with updates, and return its line of the history."""
        if hasattr(training.agent, "start_epoch_action"):
            training.agent.start_epoch_action(epoch=number)
        state, _ = environment.reset(seed=self._seed(number))
        total, steps, done = 0.0, 0, False
        updates: list[dict[str, float]] = []
        while not done and steps < self.configuration.max_steps:
            action = act(state)
            next_state, reward, terminated, truncated, info = environment.step(action)
            known = {name: info.get(name) for name in ("event_type", "value", "metadata")}
            training.remember(state, action, reward, next_state, terminated, **known, truth=info.get("true_event_type"))
            state, done = next_state, terminated or truncated
            total, steps = total + float(reward), steps + 1
            if steps % self.configuration.train_interval == 0:
                metrics = training.update()
                updates += [] if metrics is None else [asdict(metrics)]
        return {"episode": number, "reward": total, "steps": steps, "updates": len(updates), **mean_figures(updates)}


def create_importance_sampling_trainer(
    experiment_id: str,
    crisis_parent_weight: float = 5.0,
    importance_sampling_alpha: float = 0.6,
    importance_sampling_beta: float = 0.4,
    simulation_episodes: int = 1000,
    *,
    folder: Path | None = None,
    callbacks: Iterable[Callback] = (),
    **options: Any,
) -> ImportanceSamplingTrainingOrchestrator:
    """Return a trainer; further options are those of `ImportanceSamplingTrainingConfiguration`.

    >>> trainer = create_importance_sampling_trainer("first try", crisis_parent_weight=3.0, batch_size=32)
    >>> trainer.configuration.simulation_episodes
    1000
    """
    named = {
        "experiment_id": experiment_id,
        "crisis_parent_weight": crisis_parent_weight,
        "importance_sampling_alpha": importance_sampling_alpha,
        "importance_sampling_beta": importance_sampling_beta,
        "simulation_episodes": simulation_episodes,
    }
    configuration = build_section(ImportanceSamplingTrainingConfiguration, {**named, **options}, "importance_sampling")
    return ImportanceSamplingTrainingOrchestrator(configuration, folder=folder, callbacks=callbacks)


def _correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Pearson's correlation of two series, or None where one of them is constant or shorter than 3."""
    a, b = np.array(first, np.float64), np.array(second, np.float64)
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])
