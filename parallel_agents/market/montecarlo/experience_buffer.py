"""`ExperienceBuffer`: a million transitions in less than 100 MB.

    row      0        1              T − 1     T
             s0 a0 r0 s1 a1 r1   …   s a r     s(T)       s0 …          an episode takes T + 1 rows

The rows are a ring: new episodes overwrite the oldest rows. A state is stored once: the state after a step is the next
row's. Features are stored as half floats, so they come back with an error of at most |x| / 2048 (or 3e-8, where |x| is
below 6e-5); numbers above 65,504 are refused. Rewards, values and actions come back unchanged. Rows are drawn
uniformly, or by class through an `ImportanceSampler` with exact corrections.

The storage is not `replay.Ring`: that one keeps about 25 more bytes per row, for n-step windows and policy versions,
which would exceed the 100 MB; and it takes one turn at a time, while whole episodes are written here in blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parallel_agents.core.errors import CheckpointError, ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.core.types import Array
from parallel_agents.market.montecarlo.experiences import EpisodeExperience
from parallel_agents.market.world_types import WorldType
from parallel_agents.replay.class_index import sample_uniforms
from parallel_agents.replay.importance_sampler import CRISIS_PARENT, REGULAR_PARENT, ImportanceSampler

RELATIVE_ERROR = 2.0**-11
LARGEST = 65504.0
_WORLD_TYPES = tuple(WorldType)
_INDEX_BYTES = 9  # per row, of the class index
_BLOCK_EPISODES = 256  # written at once


class ExperienceBuffer:
    """Transitions of many episodes, with the type of their world and whether a crisis parent bought.

    max_size: transitions that fit, where episodes have at least 16 steps.
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
        if max_size < 1 or features < 1:
            raise ConfigError(f"a buffer of {max_size} transitions with {features} features: give at least 1 of each")
        self.max_size, self.seed = max_size, seed
        self._rows = rows = max_size + max_size // 16 + 1
        self._columns: dict[str, Array] = {
            "states": np.zeros((rows, features), np.float16),
            "actions": np.zeros((rows, *action_shape), action_dtype),
            "rewards": np.zeros(rows, np.float32),
            "values": np.zeros(rows, np.float32),
            "kinds": np.zeros(rows, np.uint8),
            "ends": np.zeros(rows, np.bool_),
        }
        self._head = self._draws = self._written = 0
        self.episodes = 0
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
        self.index = self.sampler.make_index(rows)
        self.sampler.attach(self)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, in bytes."""
        return sum(column.nbytes for column in self._columns.values()) + _INDEX_BYTES * self.index.capacity

    def add_experiences(self, experiences: Iterable[EpisodeExperience]) -> None:
        """Store whole episodes; all of them are checked before the first is stored."""
        episodes = list(experiences)
        for episode in episodes:
            self._check(episode)
        longest = max((len(e.rewards) for e in episodes), default=1)
        size = min(max(1, self._rows // (1 + longest)), _BLOCK_EPISODES)
        blocks = [_as_block(episodes[first : first + size]) for first in range(0, len(episodes), size)]
        for block in blocks:
            self._write(block)
        self.episodes += len(episodes)

    def add_experience(self, experience: EpisodeExperience) -> None:
        """Store one episode."""
        self.add_experiences([experience])

    def sample_batch(self, batch_size: int, importance_sampling: bool = True) -> dict[str, Array]:
        """Draw B rows: states, actions, rewards, next_states, dones, values, crisis and correcting `weights`."""
        if not len(self):
            raise ContractError("the buffer is empty: run a batch of episodes first")
        count = min(batch_size, len(self))
        if importance_sampling:
            rows, weights, positions = self.sampler.weighted_sampling(count)
        else:
            draws = sample_uniforms(self.seed, 1, self._draws, count)
            self._draws += 1
            positions = self.index.draw(draws, self.index.counts / len(self)).positions
            rows, weights = self.rows(positions), np.ones(count)
        crisis = self.index.classes_at(positions) == self.sampler.class_ids([CRISIS_PARENT])[0]
        return {**rows, "crisis": crisis, "weights": np.asarray(weights, np.float32)}

    def rows(self, positions: NDArray[np.int64]) -> dict[str, Array]:
        """Return the transitions at positions (B,)."""
        columns = self._columns
        following = (positions + 1) % self._rows
        return {
            "states": _to_float32(columns["states"][positions]),
            "actions": columns["actions"][positions],
            "rewards": columns["rewards"][positions],
            "next_states": _to_float32(columns["states"][following]),
            "dones": columns["ends"][positions],
            "values": columns["values"][positions],
            "world_types": columns["kinds"][positions],
        }

    def statistics(self) -> dict[str, Any]:
        """Return sizes, the share of crisis transitions, and transitions and mean reward by world type."""
        stored = np.concatenate([self.index.members(k) for k in range(len(self.sampler.event_types))])
        kinds, rewards = self._columns["kinds"][stored], self._columns["rewards"][stored]
        counts = dict(zip(self.sampler.event_types, self.index.counts.tolist(), strict=True))
        per_type = {
            kind.value: {"transitions": int(mask.sum()), "mean_reward": float(rewards[mask].mean(dtype=np.float64))}
            for number, kind in enumerate(_WORLD_TYPES)
            if (mask := kinds == number).any()
        }
        return {
            "transitions": len(self),
            "episodes": self.episodes,
            "bytes": self.nbytes,
            "crisis_parent_share": counts[CRISIS_PARENT] / max(len(self), 1),
            "predicted_shares": self.sampler.predicted_shares() if len(self) else {},
            "world_types": per_type,
        }

    def state(self) -> dict[str, Array]:
        """Return everything as arrays, for a checkpoint."""
        counters = (self._head, self._draws, self._written, self.episodes, self.sampler.updates)
        return {
            **{f"column.{name}": column[: self._written] for name, column in self._columns.items()},
            **{f"index.{name}": np.asarray(array) for name, array in self.index.state().items()},
            "numbers": np.array(counters),
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from what `state` returned, after checking it."""
        stored = {name: state.get(f"column.{name}") for name in self._columns}
        for name, column in self._columns.items():
            array = stored[name]
            if (
                array is None
                or array.shape[1:] != column.shape[1:]
                or array.dtype != column.dtype
                or len(array) > self._rows
            ):
                raise CheckpointError(f"the stored buffer has another {name}: it has another size or shape")
        self.index.load_state({n.removeprefix("index."): a for n, a in state.items() if n.startswith("index.")})
        for name, column in self._columns.items():
            column[: len(state[f"column.{name}"])] = state[f"column.{name}"]
        counters = (int(number) for number in state["numbers"])
        self._head, self._draws, self._written, self.episodes, self.sampler.updates = counters

    def _check(self, episode: EpisodeExperience) -> None:
        """Raise an error if the shapes of an episode do not fit."""
        steps, features = len(episode.rewards), self._columns["states"].shape[1]
        if episode.states.shape != (steps + 1, features):
            raise ShapeError(
                f"an episode of {steps} steps has states of shape {episode.states.shape}: "
                f"{(steps + 1, features)} is needed"
            )
        shape = (steps, *self._columns["actions"].shape[1:])
        if episode.actions.shape != shape:
            raise ShapeError(
                f"an episode of {steps} steps has actions of shape {episode.actions.shape}: {shape} is needed"
            )
        if steps + 1 > self._rows:
            raise ShapeError(f"an episode of {steps} steps does not fit into a buffer of {self.max_size}")

    def _write(self, block: Mapping[str, Array]) -> None:
        """Write rows at the head of the ring, over the oldest ones."""
        count = len(block["ends"])
        positions = (self._head + np.arange(count)) % self._rows
        before = min(count, self._rows - self._head)
        if self._written == self._rows or self._head < self._written:
            self.index.evict(positions)
        for name, column in self._columns.items():
            column[self._head : self._head + before] = block[name][:before]
            column[: count - before] = block[name][before:]
        crisis, regular = self.sampler.class_ids([CRISIS_PARENT, REGULAR_PARENT])
        inner = block["inner"]
        self.index.assign(positions[inner], np.where(block["crisis_values"][inner] > 0.0, crisis, regular))
        self._head = int(positions[-1] + 1) % self._rows
        self._written = min(self._rows, self._written + count)


def _as_block(episodes: Sequence[EpisodeExperience]) -> dict[str, Array]:
    """Return the rows of some episodes, with one row for each last state; raise an error for NaN and infinity.

    `inner` is False for the rows of last states.
    """
    lengths = np.array([len(e.rewards) + 1 for e in episodes])
    states = np.concatenate([e.states for e in episodes])
    last = np.cumsum(lengths) - 1
    inner, ends = np.ones(len(states), np.bool_), np.zeros(len(states), np.bool_)
    inner[last], ends[last - 1] = False, True
    if not np.abs(states).max() <= LARGEST:
        raise NonFiniteError(f"states hold NaN, infinity or features larger than {LARGEST:g}: scale them down")
    kinds = np.array([_WORLD_TYPES.index(e.kind) for e in episodes], np.uint8)
    block: dict[str, Array] = {
        "states": torch.from_numpy(states).half().numpy(),
        "kinds": np.repeat(kinds, lengths),
        "ends": ends,
        "inner": inner,
    }
    for name in ("actions", "rewards", "values", "crisis_values"):
        values = np.concatenate([getattr(e, name) for e in episodes])
        if name != "actions" and not np.isfinite(values).all():
            raise NonFiniteError(f"{name} hold NaN or infinity: none of these episodes was stored")
        block[name] = np.zeros((len(states), *values.shape[1:]), values.dtype)
        block[name][inner] = values
    return block


def _to_float32(halves: Array) -> NDArray[np.float32]:
    """Convert half floats by torch, which is six times as fast as numpy and gives the same numbers."""
    return np.asarray(torch.from_numpy(halves).float().numpy())
