"""`MonteCarloSimulator`: a hundred different worlds under way together, one agent in all of them.

    worlds ── flights of at most max_concurrent_worlds ──► experiences ──► buffer ──► importance_sampling
                     └── what fails is played again in halves, until the failing world stands alone

Episode e is lap e // n of world e % n: the same whatever is played beside it, hence the same results for any number of
threads and for any `max_concurrent_worlds`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from parallel_agents.errors import ConfigError, ContractError, WorldError
from parallel_agents.market.discovery import Patterns
from parallel_agents.market.montecarlo.actors import Actor, Wrapper, actor_of
from parallel_agents.market.montecarlo.aggregate import aggregate_experiences
from parallel_agents.market.montecarlo.buffer import ExperienceBuffer
from parallel_agents.market.montecarlo.experiences import EpisodeBatch, EpisodeExperience, Failure
from parallel_agents.market.montecarlo.flight import EpisodeSetting, Flight, ParallelWorldSimulator
from parallel_agents.market.montecarlo.worlds import ParallelWorldOrchestrator
from parallel_agents.market.source import patterns_of
from parallel_agents.market.worlds import World, WorldType
from parallel_agents.types import Array

__all__ = ["MonteCarloSimulator"]

_FLIGHTS_KEPT = 64


class MonteCarloSimulator:
    """N worlds, drawn from patterns (None: those of a sample export), and the experiences made in them.

    deadline: seconds that the episodes of one flight may take.
    """

    def __init__(
        self,
        n_worlds: int = 100,
        world_types_distribution: Mapping[WorldType | str, float] | None = None,
        max_concurrent_worlds: int = 20,
        experience_buffer_size: int = 1_000_000,
        *,
        patterns: Patterns | None = None,
        setting: EpisodeSetting | None = None,
        target_share: float = 0.5,
        population: Mapping[str, float] | None = None,
        deadline: float = 60.0,
        seed: int = 0,
    ) -> None:
        for name, value in (("n_worlds", n_worlds), ("max_concurrent_worlds", max_concurrent_worlds)):
            if value < 1:
                raise ConfigError(f"{name} is {value}: give at least 1")
        if not deadline > 0:
            raise ConfigError(f"deadline is {deadline}: give a number of seconds above 0")
        found = patterns_of() if patterns is None else patterns
        self.orchestrator = ParallelWorldOrchestrator(found, world_types_distribution, seed=seed)
        self.max_concurrent_worlds, self.deadline = max_concurrent_worlds, deadline
        self.setting = setting or EpisodeSetting(seed=seed)
        self.worlds: tuple[World, ...] = self.orchestrator.create_world_variants(n_worlds)
        self.episodes = 0
        """episodes begun so far"""
        self.failures: dict[int, int] = {}
        """failed episodes by world"""
        self.in_flight = 0
        """worlds under way at this moment"""
        self._most = 0
        self._flights: dict[tuple[int, ...], Flight] = {}
        self._buffer: ExperienceBuffer | None = None
        self._make_buffer = partial(
            ExperienceBuffer, experience_buffer_size, target_share=target_share, population=population, seed=seed
        )
        if experience_buffer_size < 1:
            raise ConfigError(f"experience_buffer_size is {experience_buffer_size}: give at least 1")

    @property
    def world_types_distribution(self) -> dict[str, float]:
        """The mix of types that worlds are drawn from."""
        return {kind.value: share for kind, share in self.orchestrator.mix.items()}

    @property
    def buffer(self) -> ExperienceBuffer:
        """The experiences so far."""
        if self._buffer is None:
            raise ContractError("there are no experiences yet: run a batch of episodes first")
        return self._buffer

    async def run_episode_batch(
        self, agent: Any, batch_size: int | None = None, *, focus: Wrapper | None = None
    ) -> EpisodeBatch:
        """`batch_size` episodes (by default one per world), spread evenly over all worlds.

        The agent acts by `act`, `take_action` and the like, or for many states at once by `act_many`; `focus` may act
        in its place in some worlds.
        """
        count = len(self.worlds) if batch_size is None else batch_size
        if count < 1:
            raise ConfigError(f"batch_size is {batch_size}: give at least 1")
        actor, began, self._most = actor_of(agent), time.perf_counter(), 0
        if focus is not None:
            actor = focus.around(actor)
        experiences: list[EpisodeExperience] = []
        failures: list[Failure] = []
        numbers = range(self.episodes, self.episodes + count)
        self.episodes += count
        for lap, same in groupby(numbers, lambda e: e // len(self.worlds)):
            places = [e % len(self.worlds) for e in same]
            for first in range(0, len(places), self.max_concurrent_worlds):
                chosen = tuple(places[first : first + self.max_concurrent_worlds])
                await self._play(actor, chosen, lap, experiences, failures)
        for failure in failures:
            self.failures[failure.world] = self.failures.get(failure.world, 0) + 1
        return EpisodeBatch(tuple(experiences), tuple(failures), self._most, time.perf_counter() - began)

    async def _play(
        self,
        actor: Actor,
        places: tuple[int, ...],
        lap: int,
        experiences: list[EpisodeExperience],
        failures: list[Failure],
    ) -> None:
        """One flight; where it fails, its halves, so that only the failing world is lost."""
        self.in_flight += len(places)
        self._most = max(self._most, self.in_flight)
        try:
            found = await self._flight(places).play(actor, lap, deadline=self.deadline)
        except Exception as error:  # counted and told by world; the others' results are kept
            found, reason = None, f"{type(error).__name__}: {error}"
        finally:
            self.in_flight -= len(places)
        if found is not None:
            weigh = self.orchestrator.importance_weight
            experiences += [replace(e, importance_weight=weigh(e.kind)) for e in found]
        elif len(places) == 1:
            world = self.worlds[places[0]]
            failures.append(Failure(world.index, world.kind, lap, reason))
        else:
            half = len(places) // 2
            for part in (places[:half], places[half:]):
                await self._play(actor, part, lap, experiences, failures)

    def _flight(self, places: tuple[int, ...]) -> Flight:
        if places not in self._flights:
            if len(self._flights) >= _FLIGHTS_KEPT:
                self._drop_flights()
            self._flights[places] = Flight([self.worlds[p] for p in places], self.setting)
        return self._flights[places]

    def _drop_flights(self) -> None:
        for flight in self._flights.values():
            flight.close()
        self._flights = {}

    def world(self, index: int) -> ParallelWorldSimulator:
        """One of the worlds by itself."""
        return ParallelWorldSimulator(self.worlds[index], self.setting)

    def remember(self, experiences: Iterable[EpisodeExperience]) -> None:
        """Keep experiences in the buffer."""
        episodes = list(experiences)
        if not episodes:
            return
        if self._buffer is None:
            head = episodes[0]
            kind = "int16" if head.actions.dtype.kind in "iu" else "float32"
            self._buffer = self._make_buffer(head.states.shape[1], head.actions.shape[1:], kind)
        self._buffer.add_experiences(episodes)

    def aggregate_experiences(self, experiences: Iterable[EpisodeExperience]) -> dict[str, Any]:
        """Keep experiences in the buffer; what they amount to."""
        episodes = list(experiences)
        found = aggregate_experiences(episodes)
        self.remember(episodes)
        return found

    def importance_sampling(self, target_samples: int, focus_rare_events: bool = True) -> dict[str, Array]:
        """A batch from the buffer; with the focus, crises take `target_share` of it and `weights` correct for that."""
        if target_samples < 1:
            raise ConfigError(f"target_samples is {target_samples}: give at least 1")
        return self.buffer.sample_batch(target_samples, importance_sampling=focus_rare_events)

    def adapt(self, experiences: Iterable[EpisodeExperience], rate: float = 0.5) -> dict[str, float]:
        """Let the mix of worlds follow how the agent does, and draw new worlds; the new mix."""
        mix = self.orchestrator.adapt(experiences, rate)
        self._drop_flights()
        self.worlds = self.orchestrator.create_world_variants(len(self.worlds))
        return mix

    def restore(self, values: Mapping[str, Any], buffer: Mapping[str, Array]) -> None:
        """Go on where a checkpoint left: counters, the mix of worlds, and the buffer's arrays."""
        states, actions = buffer["column.states"], buffer["column.actions"]
        self._buffer = self._make_buffer(states.shape[1], actions.shape[1:], str(actions.dtype))
        self._buffer.load_state(buffer)
        self.episodes = int(values["episodes"])
        self.failures = {int(world): int(count) for world, count in values["failed"].items()}
        self.orchestrator.restore(values["generation"], values["mix"], values["adaptations"])
        self._drop_flights()
        self.worlds = self.orchestrator.create_world_variants(len(self.worlds))

    def require_success(self, batch: EpisodeBatch) -> None:
        """Raise if not one episode of a batch came to its end."""
        if not batch.experiences:
            first = batch.failures[0]
            raise WorldError(
                f"all {len(batch.failures)} episodes failed; the first was world {first.world} "
                f"({first.kind.value}), lap {first.lap}: {first.reason}"
            )

    def close(self) -> None:
        """End the threads."""
        self._drop_flights()

    def __enter__(self) -> MonteCarloSimulator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
