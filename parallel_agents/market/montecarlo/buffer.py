"""`ExperienceBuffer`: a million transitions in less than 100 MB.

    row      0        1              T − 1     T
             s0 a0 r0 s1 a1 r1   …   s a r     s(T)       s0 …          an episode takes T + 1 rows, the oldest give way

A state is kept once: what a step led to is the next row. Features are kept as half floats: what comes back differs
from what was added by at most |x| / 2048 (or 3e-8, where |x| is below 6e-5); larger numbers than 65,504 are refused.
Rewards, values and actions come back as they were. Rows are drawn uniformly, or by class through an
`ImportanceSampler`, with exact corrections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parallel_agents.errors import CheckpointError, ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.market.montecarlo.experiences import EpisodeExperience
from parallel_agents.market.worlds import WorldType
from parallel_agents.sampling import CRISIS_PARENT, REGULAR_PARENT, ImportanceSampler, sample_uniforms
from parallel_agents.types import Array

__all__ = ["LARGEST", "RELATIVE_ERROR", "ExperienceBuffer"]

RELATIVE_ERROR = 2.0**-11
LARGEST = 65504.0
_KINDS = tuple(WorldType)
_INDEX_BYTES = 9  # per row, of the index by class
_BLOCK = 256  # episodes written at once


class ExperienceBuffer:
    """Transitions of many episodes, with the type of their world and whether a crisis parent bought.

    `max_size` transitions fit where episodes have at least 16 steps.

    target_share: share of crisis transitions in a batch with importance sampling.
    population: natural shares that corrections restore; None: those of the buffer.
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
        rows = max_size + max_size // 16 + 1
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
        """Bytes of everything that is kept."""
        return sum(column.nbytes for column in self._columns.values()) + _INDEX_BYTES * self.index.capacity

    def add_experiences(self, experiences: Iterable[EpisodeExperience]) -> None:
        """Keep whole episodes, all checked before the first is kept."""
        episodes = list(experiences)
        for episode in episodes:
            self._check(episode)
        blocks, size = (
            [],
            max(1, len(self._columns["ends"]) // (1 + max((len(e.rewards) for e in episodes), default=1))),
        )
        for first in range(0, len(episodes), min(size, _BLOCK)):
            blocks.append(self._block(episodes[first : first + min(size, _BLOCK)]))
        for block, count in blocks:
            self._write(block)
            self.episodes += count

    def add_experience(self, experience: EpisodeExperience) -> None:
        """Keep one episode."""
        self.add_experiences([experience])

    def sample_batch(self, batch_size: int, importance_sampling: bool = True) -> dict[str, Array]:
        """B rows: states, actions, rewards, next_states, dones, values, crisis and their correction `weights`."""
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
        """The transitions at some positions."""
        columns = self._columns
        after = (positions + 1) % len(columns["ends"])
        return {
            "states": _single(columns["states"][positions]),
            "actions": columns["actions"][positions],
            "rewards": columns["rewards"][positions],
            "next_states": _single(columns["states"][after]),
            "dones": columns["ends"][positions],
            "values": columns["values"][positions],
            "world_types": columns["kinds"][positions],
        }

    def statistics(self) -> dict[str, Any]:
        """How full it is, how rare crises are, and what came from each type of world."""
        live = self._live()
        kinds, rewards = self._columns["kinds"][live], self._columns["rewards"][live]
        counts = dict(zip(self.sampler.event_types, self.index.counts.tolist(), strict=True))
        per_type = {
            kind.value: {"transitions": int(own.sum()), "mean_reward": float(rewards[own].mean(dtype=np.float64))}
            for number, kind in enumerate(_KINDS)
            if (own := kinds == number).any()
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
        """Everything as arrays, for a checkpoint."""
        counters = (self._head, self._draws, self._written, self.episodes, self.sampler.updates)
        own = {f"column.{name}": column[: self._written] for name, column in self._columns.items()}
        return {
            **own,
            **{f"index.{n}": np.asarray(a) for n, a in self.index.state().items()},
            "numbers": np.array(counters),
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` gave, checked first."""
        for name, column in self._columns.items():
            found = state.get(f"column.{name}")
            fits = found is not None and found.shape[1:] == column.shape[1:] and found.dtype == column.dtype
            if found is None or not fits or len(found) > len(column):
                raise CheckpointError(f"the stored buffer has another {name}: it is of another size or shape")
        self.index.load_state({n.removeprefix("index."): a for n, a in state.items() if n.startswith("index.")})
        for name, column in self._columns.items():
            column[: len(state[f"column.{name}"])] = state[f"column.{name}"]
        counters = (int(n) for n in state["numbers"])
        self._head, self._draws, self._written, self.episodes, self.sampler.updates = counters

    def _live(self) -> NDArray[np.int64]:
        return np.concatenate([self.index.members(k) for k in range(len(self.sampler.event_types))])

    def _check(self, episode: EpisodeExperience) -> None:
        steps, features = len(episode.rewards), self._columns["states"].shape[1]
        if episode.states.shape != (steps + 1, features):
            raise ShapeError(
                f"an episode of {steps} steps has states of shape {episode.states.shape}: "
                f"{(steps + 1, features)} is due"
            )
        if episode.actions.shape != (steps, *self._columns["actions"].shape[1:]):
            raise ShapeError(f"an episode of {steps} steps has actions of shape {episode.actions.shape}")
        if steps + 1 > len(self._columns["ends"]):
            raise ShapeError(f"an episode of {steps} steps does not fit into a buffer of {self.max_size}")

    def _block(self, episodes: Sequence[EpisodeExperience]) -> tuple[dict[str, Array], int]:
        """Some episodes as rows, one closing row each, their numbers checked."""
        lengths = np.array([len(e.rewards) + 1 for e in episodes])
        states = np.concatenate([e.states for e in episodes])
        last = np.cumsum(lengths) - 1
        inner = np.ones(len(states), np.bool_)
        inner[last] = False
        if not np.abs(states).max() <= LARGEST:
            raise NonFiniteError(f"states hold NaN, infinity or features larger than {LARGEST:g}: scale them down")
        block: dict[str, Array] = {"states": torch.from_numpy(states).half().numpy(), "inner": inner}
        for name in ("actions", "rewards", "values", "crisis_values"):
            given = np.concatenate([getattr(e, name) for e in episodes])
            if name != "actions" and not np.isfinite(given).all():
                raise NonFiniteError(f"{name} hold NaN or infinity: they were not kept")
            block[name] = np.zeros((len(states), *given.shape[1:]), given.dtype)
            block[name][inner] = given
        block["kinds"] = np.repeat(np.array([_KINDS.index(e.kind) for e in episodes], np.uint8), lengths)
        block["ends"] = np.zeros(len(states), np.bool_)
        block["ends"][last - 1] = True
        return block, len(episodes)

    def _write(self, block: Mapping[str, Array]) -> None:
        rows, count = len(self._columns["ends"]), len(block["ends"])
        at = (self._head + np.arange(count)) % rows
        before = min(count, rows - self._head)
        if self._written == rows or self._head < self._written:
            self.index.evict(at)
        for name, column in self._columns.items():
            column[self._head : self._head + before] = block[name][:before]
            column[: count - before] = block[name][before:]
        crisis, regular = self.sampler.class_ids([CRISIS_PARENT, REGULAR_PARENT])
        inner = block["inner"]
        self.index.assign(at[inner], np.where(block["crisis_values"][inner] > 0.0, crisis, regular))
        self._head = int(at[-1] + 1) % rows
        self._written = min(rows, self._written + count)


def _single(halves: Array) -> NDArray[np.float32]:
    """Half floats as single ones: the same numbers, six times as fast as by numpy."""
    return np.asarray(torch.from_numpy(halves).float().numpy())
