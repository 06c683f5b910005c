"""Trainers of any agent that acts and has `update_policy`: on episodes of one environment, or of many simulated worlds.

transition ──judge──► event type ──► buffer ──draw──► batch with weights ──► agent.update_policy
                                        ▲                                          │
                                        └──── priorities, spread of classes ◄──────┘

`ImportanceSamplingTraining` holds agent, buffer and the judge of event types. `ImportanceSamplingTrainingOrchestrator`
runs episodes of one environment. `MonteCarloTrainingOrchestrator` simulates batches of episodes in many worlds, whose
event types are known. `AgentTrainer` is what both share: a history, callbacks and checkpoints. A training depends on
its configuration and the agent alone, so one that was stopped and resumed equals one that was not, if the agent has
`state` and `load_state`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.checkpoint.store import Manifest, Store
from parallel_agents.core.config import build_section
from parallel_agents.core.errors import (
    CheckpointError,
    ConfigError,
    ContractError,
    CorruptCheckpoint,
    ParallelAgentsError,
)
from parallel_agents.core.folder_lock import FolderLock, lock_folder
from parallel_agents.core.seeding import Purpose, generator
from parallel_agents.core.types import Array
from parallel_agents.market.discovery import Patterns
from parallel_agents.market.experiences import EpisodeBatch, summarize
from parallel_agents.market.montecarlo import EpisodeSetting, MonteCarloSimulator
from parallel_agents.market.policies import PolicyAgent, action_function
from parallel_agents.market.strategies import Focus
from parallel_agents.replay import Buffer, ExperienceAggregator, ImportanceSamplingReplayBuffer
from parallel_agents.replay.importance_sampler import CRISIS_PARENT, REGULAR_PARENT, ImportanceSampler
from parallel_agents.replay.importance_weights import correction_effect
from parallel_agents.tracking.callbacks import Callback, CallbackList

_KEPT_CHECKPOINTS = 3
_Parts = dict[str, dict[str, Array]]
_MAX_SEED = 2**31


def _require_positive(options: Any, *names: str) -> None:
    for name in names:
        if getattr(options, name) < 1:
            raise ConfigError(f"{name} is {getattr(options, name)}: give a whole number of at least 1")


def mean_figures(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of every figure over the lines that know it; NaN where none does."""
    columns: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if value is None or isinstance(value, int | float):
                columns.setdefault(name, []).extend([] if value is None or math.isnan(value) else [value])
    return {name: float(np.mean(known)) if known else math.nan for name, known in columns.items()}


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
        _require_positive(self, "simulation_episodes", "max_steps", "batch_size", "train_interval", "checkpoint_every")
        if not self.batch_size <= self.learning_starts <= self.replay_buffer_capacity:
            raise ConfigError(
                f"learning_starts is {self.learning_starts}: give a number from batch_size ({self.batch_size}) to "
                f"replay_buffer_capacity ({self.replay_buffer_capacity})"
            )
        self.sampler()  # raises for options that the sampler refuses
        self.aggregator()

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> ImportanceSamplingTrainingConfiguration:
        """Return the configuration of a dictionary, such as JSON gives."""
        return build_section(cls, dict(options), "importance_sampling")

    def as_dict(self) -> dict[str, Any]:
        """Return all options with their values, as JSON gives them back."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

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
    """The metrics of one update, or their mean over several."""

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

    def as_dict(self) -> dict[str, float]:
        """Return the metrics by name."""
        return asdict(self)

    @classmethod
    def mean(cls, metrics: Sequence[ImportanceSamplingTrainingMetrics]) -> ImportanceSamplingTrainingMetrics:
        """Return the mean of each metric over those that are not NaN."""
        return cls(**mean_figures([each.as_dict() for each in metrics]))


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


class AgentTrainer:
    """What all trainers of an agent with `update_policy` share: a history, callbacks and checkpoints of a folder."""

    def __init__(
        self, folder: Path | None, callbacks: Iterable[Callback], options: Mapping[str, Any], changeable: Sequence[str]
    ) -> None:
        """options: must be the same when a training is resumed, except for the `changeable` ones."""
        self.folder, self._options, self._changeable = folder, options, changeable
        self.history: list[dict[str, Any]] = []
        """one line of figures per episode, or per step of a training"""
        self._callbacks = CallbackList(callbacks)
        self._lock: FolderLock | None = None

    def _write_checkpoint(self, agent: Any, parts: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any]) -> None:
        """Store the arrays of some parts and of the agent, the history and further values, if there is a folder."""
        if self.folder is None:
            return
        store, step = Store(self.folder, self._lock), len(self.history)
        store.open_for_writing()
        states = {**parts, "agent": agent.state() if hasattr(agent, "state") else {}}
        arrays = {f"{part}.{name}": np.asarray(a) for part, state in states.items() for name, a in state.items()}
        name = f"state-{step:06d}.safetensors"
        history = [{n: None if _is_nan(v) else v for n, v in line.items()} for line in self.history]
        stored = {**values, "configuration": self._options, "history": history}
        store.commit(Manifest(step, {name: store.write(name, arrays)}, stored))
        store.rotate(step, _KEPT_CHECKPOINTS)
        store.close()

    def _restore(self, agent: Any, load: Callable[[Mapping[str, Any], _Parts], None]) -> None:
        """Continue from the newest checkpoint that can be right; load: takes its values, and its arrays by part."""
        if self.folder is None:
            raise ContractError("there is nothing to resume: create the trainer with the folder of its checkpoints")
        store, troubles = Store(self.folder), list[str]()
        for manifest in store.good(troubles):
            try:
                self._restore_from(store, manifest, agent, load)
            except (CorruptCheckpoint, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
                troubles.append(f"step {manifest.epoch}: {type(error).__name__}: {error}")
            else:
                if troubles:
                    warnings.warn(f"resumed from step {manifest.epoch}: {'; '.join(troubles)}", stacklevel=3)
                return
        raise store.none_usable(troubles)

    def _restore_from(
        self, store: Store, manifest: Manifest, agent: Any, load: Callable[[Mapping[str, Any], _Parts], None]
    ) -> None:
        """Continue from one checkpoint; the checkpoint before overwrites what was restored before an error."""
        values = manifest.values
        fixed = set(self._options) - set(self._changeable)
        changed = sorted(name for name in fixed if values["configuration"].get(name) != self._options[name])
        if changed:
            raise CheckpointError(
                f"the stored training had another {', '.join(changed)}: resume with the same configuration"
            )
        parts: _Parts = {}
        for full_name, array in store.read(manifest, f"state-{manifest.epoch:06d}.safetensors").items():
            part, _, name = full_name.partition(".")
            parts.setdefault(part, {})[name] = array
        if "agent" in parts and not hasattr(agent, "load_state"):
            raise CheckpointError(f"the stored agent has a state, {type(agent).__name__} has no load_state")
        self.history = [dict(line) for line in values["history"]]
        if len(self.history) != manifest.epoch:
            raise CorruptCheckpoint(f"a history of {len(self.history)} lines is not that of {manifest.epoch} steps")
        load(values, parts)
        if hasattr(agent, "state") and hasattr(agent, "load_state"):
            try:
                agent.load_state(parts.get("agent", {}))
            except ParallelAgentsError:
                raise
            except Exception as error:  # raised by the user's own load_state: older checkpoints are no better
                name = type(agent).__name__
                raise CheckpointError(f"{name} did not take its state: {type(error).__name__}: {error}") from error


def require_update_policy(agent: Any) -> None:
    """Raise an error for an agent that cannot learn from batches."""
    if not callable(getattr(agent, "update_policy", None)):
        raise ContractError(
            f"{type(agent).__name__} has no update_policy(batch): give it one, or wrap a model in ExternalUpdateAgent"
        )


def _is_nan(value: Any) -> bool:
    """Return whether a figure has no form in JSON."""
    return isinstance(value, float) and math.isnan(value)


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
        changeable = ("simulation_episodes", "checkpoint_every")  # a training may be made longer
        super().__init__(folder, callbacks, configuration.as_dict(), changeable)
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
                if len(self.history) % options.checkpoint_every == 0:
                    self.save()
            if len(self.history) % options.checkpoint_every:
                self.save()
        return self.summary()

    def resume(self, agent: PolicyAgent, environment: EpisodeEnvironment) -> dict[str, Any]:
        """Continue from the newest undamaged checkpoint to the end, and return the summary."""
        training = self._training(agent, environment)

        def load(values: Mapping[str, Any], parts: _Parts) -> None:
            training.memory.load_state(parts["buffer"])
            training.memory.sampler.load_state(parts["sampler"])
            training.aggregator.load_state(parts["judge"])
            training.judged, training.right = int(values["judged"]), int(values["right"])
            if not 0 <= training.right <= training.judged:
                raise CorruptCheckpoint(f"{training.right} of {training.judged} judgements were right")
            self.summary()  # refuse a history now that it could not be made of later

        self._restore(agent, load)
        return self.train(agent, environment)

    def save(self) -> None:
        """Write a checkpoint, if there is a folder for it."""
        if self.training is not None:
            training = self.training
            parts = {
                "buffer": training.memory.state(),
                "sampler": training.memory.sampler.state(),
                "judge": training.aggregator.state(),
            }
            self._write_checkpoint(training.agent, parts, {"judged": training.judged, "right": training.right})

    def summary(self) -> dict[str, Any]:
        """Return means over all episodes, and the correlation of the crisis share of batches with the reward."""
        trained = [line for line in self.history if line["updates"]]
        ratios, rewards = ([line[name] for line in trained] for name in ("crisis_parent_ratio_in_batch", "reward"))
        return {
            "episodes": len(self.history),
            "updates": sum(line["updates"] for line in self.history),
            **_known_means(trained, "episode", "steps", "updates"),
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
        updates: list[ImportanceSamplingTrainingMetrics] = []
        while not done and steps < self.configuration.max_steps:
            action = act(state)
            next_state, reward, terminated, truncated, info = environment.step(action)
            known = {name: info.get(name) for name in ("event_type", "value", "metadata")}
            training.remember(state, action, reward, next_state, terminated, **known, truth=info.get("true_event_type"))
            state, done = next_state, terminated or truncated
            total, steps = total + float(reward), steps + 1
            if steps % self.configuration.train_interval == 0:
                metrics = training.update()
                updates += [] if metrics is None else [metrics]
        line = {"episode": number, "reward": total, "steps": steps, "updates": len(updates)}
        return {**line, **ImportanceSamplingTrainingMetrics.mean(updates).as_dict()} if updates else line


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
    return ImportanceSamplingTrainingOrchestrator(configuration, folder=folder, callbacks=callbacks)


def _known_means(lines: Sequence[Mapping[str, Any]], *left_out: str) -> dict[str, float]:
    """Return the means of the figures that any line knows, without some of them."""
    return {n: mean for n, mean in mean_figures(lines).items() if n not in left_out and not math.isnan(mean)}


def _correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Pearson's correlation of two series, or None where one of them is constant or shorter than 3."""
    a, b = np.array(first, np.float64), np.array(second, np.float64)
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


# -- many worlds -----------------------------------------------------------------------------------------------------


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
        _require_positive(self, "batch_size", "update_rows", "updates_per_step", "checkpoint_every")
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
        """Return the configuration of a dictionary."""
        return build_section(cls, dict(options), "monte_carlo")


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
        super().__init__(folder, callbacks, asdict(c), ("checkpoint_every",))
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

        def load(values: Mapping[str, Any], parts: _Parts) -> None:
            self.simulator.restore(values, parts["buffer"])
            self.summary()  # refuse a history now that it could not be made of later

        self._restore(agent, load)
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
        if number % self.config.checkpoint_every == 0 or number == n_steps:
            self.save(agent)

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
            **_known_means(tail, "step"),
            "steps": len(self.history),
            "episodes": self.simulator.episodes,
            "failures": dict(self.simulator.failures),
            "adaptations": self.simulator.orchestrator.history,
        }

    def save(self, agent: Any) -> None:
        """Write a checkpoint, if there is a folder for it."""
        simulator, orchestrator = self.simulator, self.simulator.orchestrator
        values = {
            "episodes": simulator.episodes,
            "failed": {str(world): count for world, count in simulator.failures.items()},
            "generation": orchestrator.generation,
            "mix": simulator.world_types_distribution,
            "adaptations": orchestrator.history,
            "world_rule": orchestrator.rule.exponents,
        }
        self._write_checkpoint(agent, {"buffer": simulator.buffer.state()}, values)
