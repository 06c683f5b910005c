"""`ExperienceBuffer`: transitions of many episodes in an `ImportanceSamplingReplayBuffer`, with their world types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from parallel_agents.core.errors import CheckpointError, ContractError, NonFiniteError, ShapeError
from parallel_agents.core.types import Array
from parallel_agents.market.montecarlo.experiences import EpisodeExperience
from parallel_agents.market.world_types import WorldType
from parallel_agents.replay import ImportanceSampler, ImportanceSamplingReplayBuffer
from parallel_agents.replay.importance_sampler import CRISIS_PARENT, REGULAR_PARENT

_WORLD_TYPES = tuple(WorldType)


class ExperienceBuffer:
    """Transitions of many episodes; a transition is of a crisis parent if it causes the purchase of one.

    target_share: share of crisis transitions in a batch with importance sampling.
    population: natural class shares that corrections restore; None: those of the buffer.
    """

    def __init__(
        self,
        max_size: int,
        features: int,
        action_shape: tuple[int, ...] = (),
        action_dtype: str = "int16",
        *,
        target_share: float = 0.5,
        population: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.sampler = ImportanceSampler(
            min_crisis_parent_ratio=0.0,
            focus_rare_events=True,
            target_share=target_share,
            population_ratios=population,
            beta=1.0,
            beta_frames=None,
            empty_class="skip",
            seed=seed,
        )
        self.memory = ImportanceSamplingReplayBuffer(
            max_size, features, self.sampler, action_shape=action_shape, action_dtype=action_dtype, metadata_rows=0
        )
        self._kinds = np.zeros(max_size, np.uint8)
        self.actions = action_shape, action_dtype
        self.episodes = 0

    def __len__(self) -> int:
        return len(self.memory)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, in bytes."""
        return self.memory.nbytes + self._kinds.nbytes

    def add_experiences(self, experiences: Iterable[EpisodeExperience]) -> None:
        """Store whole episodes; all of them are checked before the first is stored."""
        episodes = list(experiences)
        for episode in episodes:
            self._check(episode)
        for episode in episodes:
            count = len(episode.rewards)
            serials = self.memory.add_many(
                episode.states[:-1],
                episode.actions,
                episode.rewards,
                episode.states[1:],
                np.arange(count) == count - 1,
                np.where(episode.crisis_values > 0.0, CRISIS_PARENT, REGULAR_PARENT).tolist(),
                episode.values,
            )
            self._kinds[serials % self.memory.capacity] = _WORLD_TYPES.index(episode.kind)
        self.episodes += len(episodes)

    def add_experience(self, experience: EpisodeExperience) -> None:
        """Store one episode."""
        self.add_experiences([experience])

    def sample_batch(self, batch_size: int, importance_sampling: bool = True) -> dict[str, Array]:
        """Draw B rows: states, actions, rewards, next_states, dones, values, crisis and correcting `weights`."""
        if not len(self):
            raise ContractError("the buffer is empty: run a batch of episodes first")
        memory = self.memory
        draw = memory.sample_importance_weighted if importance_sampling else memory.sample_uniform
        batch, weights, indices = draw(min(batch_size, len(self)))
        return {
            **batch,
            "values": memory.values(indices),
            "world_types": self._kinds[indices % memory.capacity],
            "crisis": np.array([name == CRISIS_PARENT for name in memory.event_types(indices)]),
            "weights": np.asarray(weights, np.float32),
        }

    def statistics(self) -> dict[str, Any]:
        """Return sizes, the share of crisis transitions, and transitions and mean reward by world type."""
        rows = self.memory.get_buffer_snapshot()
        kinds = self._kinds[rows["indices"] % self.memory.capacity]
        per_type = {
            kind.value: {
                "transitions": int(mask.sum()),
                "mean_reward": float(rows["rewards"][mask].mean(dtype=np.float64)),
            }
            for number, kind in enumerate(_WORLD_TYPES)
            if (mask := kinds == number).any()
        }
        return {
            "transitions": len(self),
            "episodes": self.episodes,
            "bytes": self.nbytes,
            "crisis_parent_share": self.memory.statistics()["crisis_parent_share"],
            "predicted_shares": self.sampler.predicted_shares() if len(self) else {},
            "world_types": per_type,
        }

    def state(self) -> dict[str, Array]:
        """Return everything as arrays, for a checkpoint."""
        return {
            **{f"memory.{name}": np.asarray(array) for name, array in self.memory.state().items()},
            **{f"sampler.{name}": np.asarray(array) for name, array in self.sampler.state().items()},
            "kinds": self._kinds,
            "episodes": np.array(self.episodes),
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from what `state` returned, after checking it."""
        if state["kinds"].shape != self._kinds.shape:
            raise CheckpointError(
                f"the stored buffer holds {len(state['kinds'])} rows, this one {len(self._kinds)}: give the same size"
            )
        parts = {
            part: {n.removeprefix(f"{part}."): a for n, a in state.items() if n.startswith(f"{part}.")}
            for part in ("memory", "sampler")
        }
        self.memory.load_state(parts["memory"])
        self.sampler.load_state(parts["sampler"])
        self._kinds[:] = state["kinds"]
        self.episodes = int(state["episodes"])

    def _check(self, episode: EpisodeExperience) -> None:
        """Raise an error if an episode does not fit, or holds NaN or infinity."""
        steps, features = len(episode.rewards), self.memory.obs_shape[0]
        wanted: dict[str, tuple[int, ...]] = {
            "states": (steps + 1, features),
            "actions": (steps, *self.actions[0]),
            "values": (steps,),
        }
        for name, shape in wanted.items():
            found = getattr(episode, name).shape
            if found != shape:
                raise ShapeError(f"an episode of {steps} steps has {name} of shape {found}: {shape} is needed")
        for name in ("states", "rewards", "values", "crisis_values"):
            if not np.isfinite(getattr(episode, name)).all():
                raise NonFiniteError(f"{name} hold NaN or infinity: none of these episodes was stored")
