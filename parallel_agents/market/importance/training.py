"""An agent, a buffer with event types and a judge of event types, put together: remember, then update.

transition ──judge──► event type ──► buffer ──draw──► batch with weights ──► agent.update_policy
                                        ▲                                          │
                                        └──── priorities, spread of classes ◄──────┘
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.errors import ConfigError, ContractError
from parallel_agents.market.importance.configuration import ImportanceSamplingTrainingConfiguration
from parallel_agents.market.importance.door import PolicyAgent
from parallel_agents.market.importance.metrics import ImportanceSamplingTrainingMetrics
from parallel_agents.memory import Buffer, ImportanceSamplingReplayBuffer
from parallel_agents.sampling import CRISIS_PARENT
from parallel_agents.sampling.weights import correction_effect
from parallel_agents.types import Array

__all__ = ["ImportanceSamplingTraining", "integrate_importance_sampling_with_training"]


class ImportanceSamplingTraining:
    """Importance sampling around one agent with `update_policy`."""

    def __init__(
        self,
        agent: PolicyAgent,
        memory: ImportanceSamplingReplayBuffer,
        configuration: ImportanceSamplingTrainingConfiguration,
    ) -> None:
        if not callable(getattr(agent, "update_policy", None)):
            raise ContractError(
                f"{type(agent).__name__} has no update_policy(batch): give it one, or wrap a model in PolicyDoor"
            )
        self.agent, self.memory, self.configuration = agent, memory, configuration
        self.aggregator = configuration.aggregator()
        self.judged, self.right = 0, 0

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
        """Keep one transition, its event type judged unless it is given; its index.

        `value` is the reward unless it is given. `truth` is what the event type really was, if known: it is compared
        with the judgement and never used for it.
        """
        worth = float(reward if value is None else value)
        experience = {"event_type": event_type, "value": worth, "metadata": metadata}
        if truth is not None:
            self.memory.sampler.class_ids(truth)  # an unknown one is refused before anything is learned
        decided = self.aggregator.decide(experience).event_type
        index = self.memory.add(state, action, reward, next_state, done, decided, worth, metadata)
        self.aggregator.identify_event_type(experience)
        if truth is not None:
            self.judged += 1
            self.right += truth == decided
        return index

    @property
    def identification_accuracy(self) -> float:
        """Share of right event types among those whose truth is known; NaN where none is."""
        return self.right / self.judged if self.judged else math.nan

    def update(self) -> ImportanceSamplingTrainingMetrics | None:
        """One update of the agent; None while the buffer holds too little."""
        options = self.configuration
        if len(self.memory) < options.learning_starts:
            return None
        draw = self.memory.sample_importance_weighted if options.enable_importance_sampling else self._uniform
        batch, weights, indices = draw(options.batch_size)
        reported = self.agent.update_policy({**batch, "weights": weights.astype(np.float32)})
        if not isinstance(reported, Mapping):
            raise ContractError(
                f"update_policy() of {type(self.agent).__name__} gave {type(reported).__name__}: "
                "give a mapping of metrics"
            )
        self._learn_from(reported, batch, indices)
        return self._metrics(reported, batch, weights, indices)

    def _uniform(self, batch_size: int) -> tuple[dict[str, Array], Array, Array]:
        return self.memory.sample_uniform(batch_size)

    def _learn_from(self, reported: Mapping[str, Any], batch: Mapping[str, Array], indices: Array) -> None:
        """Hand back to the sampler what the update said about its samples."""
        if not self.configuration.enable_importance_sampling:
            return
        errors = reported.get("td_errors")
        if self.configuration.priorities:
            if errors is None:
                raise ContractError(
                    f"priorities need TD errors: let update_policy() of {type(self.agent).__name__} report `td_errors`"
                )
            self.memory.update_priorities(indices, errors)
        if self.configuration.learned_weights:
            self.memory.sampler.update_spread(batch["rewards"] if errors is None else errors)

    def _metrics(
        self, reported: Mapping[str, Any], batch: Mapping[str, Array], weights: Array, indices: Array
    ) -> ImportanceSamplingTrainingMetrics:
        memory = self.memory
        share = float(memory.index.counts[memory.sampler.event_types.index(CRISIS_PARENT)] / len(memory))
        found: dict[str, float] = {
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
            found = {name: float(statistics[name]) for name in found}
        return ImportanceSamplingTrainingMetrics(
            **found,
            bias_correction_effect=correction_effect(batch["rewards"], weights),
            identification_accuracy=self.identification_accuracy,
            loss=float(reported.get("loss", math.nan)),
        )


def integrate_importance_sampling_with_training(
    agent: PolicyAgent,
    buffer: Buffer | ImportanceSamplingReplayBuffer,
    configuration: ImportanceSamplingTrainingConfiguration | None = None,
) -> ImportanceSamplingTraining:
    """Importance sampling around an agent and a buffer that are there already.

    A buffer with event types is used as it is. The rows of a plain `Buffer` of one world are copied, their event types
    judged by their rewards; that buffer stays as it is.
    """
    options = configuration or ImportanceSamplingTrainingConfiguration()
    if isinstance(buffer, ImportanceSamplingReplayBuffer):
        return ImportanceSamplingTraining(agent, buffer, options)
    if buffer.shape.worlds != 1 or buffer.shape.frames != 1:
        raise ConfigError(
            f"a buffer of {buffer.shape.worlds} worlds and {buffer.shape.frames} frames cannot be taken over: "
            "give one of a single world and a single frame"
        )
    training = ImportanceSamplingTraining(agent, options.memory(buffer.shape.observation), options)
    with buffer.locked():
        ring = buffer.ring
        serials = np.arange(ring.tail[0], ring.tail[0] + ring.sizes()[0])[None]
        rows = ring.gather(serials, n_step=1, gammas=np.ones(1))
    shape = (-1, *buffer.shape.observation)
    states, after = (rows[name][0].reshape(shape) for name in ("states", "next_states"))
    dones = rows["discounts"][0] == 0.0
    for row in zip(states, rows["actions"][0], rows["returns"][0], after, dones, strict=True):
        training.remember(*row)
    return training
