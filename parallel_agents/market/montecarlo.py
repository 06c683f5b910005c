"""`MonteCarloSimulator`: one agent in many different worlds, which are stepped together.

    worlds ── groups of at most max_concurrent_worlds ──► experiences ──► buffer ──► importance_sampling
                    └── a group that fails is run again in halves, until the failing world is alone

Episode e is lap e // n of world e % n. It is the same whatever is simulated together with it, so results do not depend
on the number of threads or on `max_concurrent_worlds`. With a `RayCluster`, groups are simulated on its nodes, all at
once, each with a copy of the agent; experiences come back in the order of the worlds.

Worlds come from `ParallelWorldOrchestrator`. Its mix of world types can adapt between batches: towards the types in
which the agent earns least, within the interval of each type's share in the data. New worlds are drawn from the same
estimates, so no parameter leaves what was discovered. The mix depends on rewards and seed alone, and every
change is recorded.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.errors import ConfigError, CorruptCheckpoint, DeadlineError, WorldError
from parallel_agents.core.serialization import restored
from parallel_agents.core.types import Array
from parallel_agents.execution.ray import RayCluster
from parallel_agents.market.actions import LEVELS, ActionForm, BiddingMarket, Forms, Objective
from parallel_agents.market.discovery import Patterns, load_patterns
from parallel_agents.market.experiences import (
    EpisodeBatch,
    EpisodeExperience,
    ExperienceBuffer,
    Failure,
    TrainingBatch,
    aggregate_experiences,
    world_context,
)
from parallel_agents.market.policies import Actor, make_actor
from parallel_agents.market.simulation import MarketWorlds
from parallel_agents.market.worlds import (
    TypeShares,
    World,
    WorldType,
    create_world_variants,
    default_distribution,
    share_intervals,
    type_distribution,
)
from parallel_agents.nn import numerics
from parallel_agents.replay.importance_sampler import CRISIS_PARENT, REGULAR_PARENT
from parallel_agents.replay.world_weights import WORLD_FACTORS, NotIdentifiedError, WorldRule, fit_world_rule

if TYPE_CHECKING:
    from parallel_agents.market.strategies import Focus

_CACHED_GROUPS = 64
_ARRAYS = ("states", "actions", "rewards", "values", "crisis_values")


@dataclass(frozen=True, kw_only=True)
class EpisodeSetting:
    """What all episodes have in common."""

    steps: int = 48
    decisions_per_day: int = 24
    auctions_per_step: float | None = None
    """None: as many as the data show"""
    budget: float | None = None
    """of an episode; None: drawn from the range of the data"""
    target: float | None = None
    """cost of an acquisition to aim at; None: drawn from the range of the data"""
    actions: Forms = "joint"
    levels: tuple[float, ...] = LEVELS
    objective: Objective = "score"
    attribution: Literal["last_click", "position", "linear"] = "last_click"
    threads: int | None = None
    seed: int = 0


class WorldGroup(BiddingMarket):
    """W worlds that are stepped together, each with one bidder. No world depends on the others."""

    def __init__(self, worlds: Sequence[World], setting: EpisodeSetting) -> None:
        options = {
            name: value for name, value in vars(setting).items() if name not in ("actions", "levels", "objective")
        }
        market = MarketWorlds(worlds, **options)
        form = ActionForm(setting.actions, setting.levels, market.campaigns, market.creatives)
        super().__init__(market, form, setting.objective)
        self._contexts = [world_context(world) for world in worlds]

    async def run_episodes(self, actor: Actor, lap: int, *, deadline: float) -> list[EpisodeExperience]:
        """Run one episode in every world, within `deadline` seconds."""
        market = self.market
        columns: dict[str, list[Array]] = {name: [] for name in ("actions", "rewards", "values", "crisis_values")}
        try:
            async with asyncio.timeout(deadline):
                actor.begin_episode([w.index for w in market.worlds], lap, market.steps)
                columns["states"] = [market.reset(lap)[0]]
                for step in range(market.steps):
                    actions = await actor.act(columns["states"][-1], step)
                    columns["actions"].append(actions)
                    columns["rewards"].append(self.step(actions[None])[0].astype(np.float32))
                    columns["values"].append(market.last.caused[0, :, 1].astype(np.float32))
                    columns["crisis_values"].append(market.last.caused[0, :, 2].astype(np.float32))
                    columns["states"].append(market.observe()[0])
        except TimeoutError as error:
            count = len(market.worlds)
            raise DeadlineError(f"{count} worlds took longer than {deadline:g} s for an episode") from error
        info = market.info(episode=True)
        arrays = {name: np.stack(column, axis=1) for name, column in columns.items()}  # (W, T, …)
        return [
            EpisodeExperience(
                world=world.index,
                kind=world.kind,
                lap=lap,
                context=self._contexts[w],
                cost=float(info["cost"][0, w]),
                conversions=float(info["conversions"][0, w]),
                score=float(info["score"][0, w]),
                budget=float(market.parameters.budget[w]),
                target=float(market.parameters.target[w]),
                **{name: array[w].copy() for name, array in arrays.items()},
            )
            for w, world in enumerate(market.worlds)
        ]


def run_world_group(
    worlds: Sequence[World], setting: EpisodeSetting, actor: Actor, lap: int, deadline: float
) -> list[EpisodeExperience]:
    """Run one episode in each of some worlds, in a process of Ray's."""
    numerics.require()
    group = WorldGroup(worlds, setting)
    with group.market:
        return asyncio.run(group.run_episodes(actor, lap, deadline=deadline))


class ParallelWorldSimulator:
    """One world alone, with the interface of a Gymnasium environment.

    The same world gives the same episode here as in any batch.
    """

    def __init__(self, world: World, setting: EpisodeSetting | None = None) -> None:
        self.world = world
        self._group = WorldGroup([world], setting or EpisodeSetting(threads=1))
        self.names = self._group.market.names
        """names of the entries of a state"""
        self.form = self._group.form
        self.space: Any = self.form.space
        """number of actions, or their distribution"""

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode, whose number is the seed."""
        return self._group.market.reset(0 if seed is None else seed)[0, 0], {"world": self.world.index}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Return state, reward, terminated, truncated, and a dictionary with `event_type`, `value` and `cost`."""
        reward = float(self._group.step(np.asarray(action)[None, None])[0, 0])
        market = self._group.market
        _, value, crisis = market.last.caused[0, 0].tolist()
        info = {
            "event_type": CRISIS_PARENT if crisis > 0.0 else REGULAR_PARENT,
            "value": value,
            "cost": float(market.last.cost[0, 0].sum()),
        }
        return market.observe()[0, 0], reward, market.done, False, info

    async def run_episode(self, agent: Any, episode: int = 0, *, deadline: float = 60.0) -> EpisodeExperience:
        """Run a whole episode; a failure raises."""
        return (await self._group.run_episodes(make_actor(agent), episode, deadline=deadline))[0]


class ParallelWorldOrchestrator:
    """Draws the worlds of a simulation and adapts the mix of their types.

    world_types_distribution: mix of types; None: that of the data.
    """

    def __init__(
        self,
        patterns: Patterns,
        world_types_distribution: TypeShares | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.patterns, self.seed = patterns, seed
        self.natural = default_distribution(patterns)
        wanted = type_distribution(patterns, world_types_distribution)
        self.mix = {kind: share for kind, share in wanted.items() if share > 0.0 or world_types_distribution is None}
        self.rule, self.rule_fitted = WorldRule(), False
        self.given_multiplier: float | None = None
        self.generation = 0
        self.history: list[dict[str, Any]] = []
        """one line per adaptation: mean reward by type, and the mix that followed from it"""

    def create_world_variants(self, n_worlds: int = 100) -> tuple[World, ...]:
        """Draw worlds of the current mix, no two alike and none as in an earlier generation."""
        return create_world_variants(self.patterns, n_worlds, self.mix, seed=self._world_seed)

    @property
    def _world_seed(self) -> int:
        """The seed of the worlds of this generation."""
        return self.seed + self.generation * 2**32

    def restore(self, values: Mapping[str, Any]) -> None:
        """Continue from the values of a checkpoint."""
        self.generation, self.history = int(values["generation"]), [dict(line) for line in values["adaptations"]]
        if self.generation != len(self.history):
            raise CorruptCheckpoint(f"generation {self.generation} does not follow {len(self.history)} adaptations")
        mix, known = values["mix"], [kind.value for kind in self.mix]
        if mix.keys() != set(known) or not all(0.0 <= share <= 1.0 for share in mix.values()):
            raise CorruptCheckpoint(f"the mix {mix} is none of {', '.join(known)}")
        self.mix = {WorldType(kind): float(share) for kind, share in mix.items()}
        rule = restored("world_rule", np.array(values["world_rule"], np.float64), np.array(self.rule.exponents))
        self.rule = WorldRule(tuple(rule.tolist()))

    def importance_weight(self, kind: WorldType) -> float:
        """Return a type's share in the data over its share in the current mix."""
        return self.natural[kind] / self.mix[kind]

    def value_multiplier(self) -> float:
        """Return the value of a crisis parent relative to other users: as given, or from the data; 1 without any."""
        if self.given_multiplier is not None:
            return self.given_multiplier
        for segment in self.patterns.segments:
            if segment.name == CRISIS_PARENT:
                share, value = segment.share.value, segment.value_share.value
                return (value / share) / ((1.0 - value) / (1.0 - share))
        return 1.0

    def calculate_world_weights(self, worlds: Sequence[World]) -> dict[int, float]:
        """Return how much each world should count: by its crisis parents, competition, interest and devices.

        How these combine is fitted to what worlds brought (`fit_world_weights`); before, each counts in proportion.
        """
        contexts = [world_context(world) for world in worlds]
        weights = self.rule.weights(contexts, value_multiplier=self.value_multiplier())
        return {world.index: float(weight) for world, weight in zip(worlds, weights, strict=True)}

    def fit_world_weights(self, experiences: Iterable[EpisodeExperience]) -> WorldRule:
        """Fit how the factors of worlds combine to the value that each brought, and use that from now on.

        The rule stays as it was, and `rule_fitted` is False, where the episodes do not tell: too few worlds, no value
        at all, or factors that tell the worlds without value from the others without error.
        """
        revenue: dict[int, list[float]] = {}
        contexts: dict[int, Mapping[str, float]] = {}
        for one in experiences:
            revenue.setdefault(one.world, []).append(max(one.revenue, 0.0))
            contexts[one.world] = one.context
        outcomes = [float(np.mean(values)) for values in revenue.values()]
        self.rule_fitted = False
        if len(outcomes) > len(WORLD_FACTORS) and any(outcomes):
            found = [contexts[world] for world in revenue]
            with suppress(NotIdentifiedError):
                self.rule = fit_world_rule(found, outcomes, value_multiplier=self.value_multiplier())
                self.rule_fitted = True
        return self.rule

    async def run_parallel_episodes(self, agent: Any, n_worlds: int = 100, **options: Any) -> EpisodeBatch:
        """Run one episode of an agent in each world of `create_world_variants`; options are `MonteCarloSimulator`'s."""
        with MonteCarloSimulator(
            n_worlds, self.mix, patterns=self.patterns, seed=self._world_seed, **options
        ) as simulator:
            return await simulator.run_episode_batch(agent)

    def adapt(self, experiences: Iterable[EpisodeExperience], rate: float = 0.5) -> dict[str, float]:
        """Move the mix towards the types with the lowest rewards, and return the new mix by name."""
        if not 0.0 <= rate < np.inf:
            raise ConfigError(f"rate {rate} is out of range: give 0 or more")
        rewards: dict[WorldType, list[float]] = {}
        for episode in experiences:
            rewards.setdefault(episode.kind, []).append(episode.total_reward)
        means = {kind: float(np.mean(values)) for kind, values in rewards.items()}
        spread = float(np.std(list(means.values()))) if means else 0.0
        centre = float(np.mean(list(means.values()))) if means else 0.0
        wanted = {
            kind: share * np.exp(-rate * (means.get(kind, centre) - centre) / spread) if spread > 0.0 else share
            for kind, share in self.mix.items()
        }
        intervals = share_intervals(self.patterns)
        self.mix = _bounded_shares(wanted, {kind: intervals[kind] for kind in self.mix})
        self.generation += 1
        mix = {kind.value: share for kind, share in self.mix.items()}
        by_name = {kind.value: mean for kind, mean in means.items()}
        self.history.append({"generation": self.generation, "earned": by_name, "mix": mix})
        return mix


def _bounded_shares(
    wanted: Mapping[WorldType, float], intervals: Mapping[WorldType, tuple[float, float]]
) -> dict[WorldType, float]:
    """Return shares that add up to 1, each within the interval of the data.

    They are the wanted shares times a common factor, which is found by bisection, and cut off at those bounds.
    """
    kinds = list(wanted)
    low, high = np.array([intervals[kind] for kind in kinds]).T
    shares = np.maximum([wanted[kind] for kind in kinds], 1e-9)
    below, above = 0.0, float((high / shares).max())
    for _ in range(100):
        factor = (below + above) / 2.0
        if np.clip(factor * shares, low, high).sum() < 1.0:
            below = factor
        else:
            above = factor
    bounded = np.clip(above * shares, low, high)
    return dict(zip(kinds, (bounded / bounded.sum()).tolist(), strict=True))


def weight_by_competition_level(context: Mapping[str, float]) -> float:
    """Return the factor of a world's competition: 1 without rivals, 2 where they offer what is usual."""
    return 1.0 + context["competition"]


class MonteCarloSimulator:
    """N worlds drawn from patterns (None: those of a sample export), and the experiences made in them.

    max_concurrent_worlds: None: all of them, on all cores.
    deadline: seconds that the episodes of one group of worlds may take.
    cluster: where groups of `max_concurrent_worlds` worlds are simulated; None: in this process.
    """

    def __init__(
        self,
        n_worlds: int = 100,
        world_types_distribution: TypeShares | None = None,
        max_concurrent_worlds: int | None = None,
        experience_buffer_size: int = 1_000_000,
        *,
        patterns: Patterns | None = None,
        setting: EpisodeSetting | None = None,
        target_share: float = 0.5,
        population: Mapping[str, float] | None = None,
        deadline: float = 60.0,
        seed: int = 0,
        cluster: RayCluster | None = None,
    ) -> None:
        together = n_worlds if max_concurrent_worlds is None else max_concurrent_worlds
        if (max_concurrent_worlds is not None and max_concurrent_worlds < 1) or not deadline > 0:
            raise ConfigError(
                f"max_concurrent_worlds is {together} and deadline is {deadline}: give at least 1, and seconds above 0"
            )
        source = load_patterns() if patterns is None else patterns
        self.orchestrator = ParallelWorldOrchestrator(source, world_types_distribution, seed=seed)
        self.max_concurrent_worlds, self.deadline, self._cluster = together, deadline, cluster
        self.setting = setting or EpisodeSetting(seed=seed)
        self.worlds: tuple[World, ...] = self.orchestrator.create_world_variants(n_worlds)
        self.episodes = 0
        """number of episodes begun so far"""
        self.failures = Counter[int]()
        """number of failed episodes by world"""
        self.in_flight = 0
        """number of worlds that are being simulated at this moment"""
        self._most_in_flight = 0
        self._groups: dict[tuple[int, ...], WorldGroup] = {}
        first = self.world(0)
        self.buffer = ExperienceBuffer(
            experience_buffer_size, len(first.names), first.form.shape, first.form.dtype,
            target_share=target_share, population=population, seed=seed,
        )  # fmt: skip
        """the stored experiences"""

    @property
    def world_types_distribution(self) -> dict[str, float]:
        """The mix of types that worlds are drawn from."""
        return {kind.value: share for kind, share in self.orchestrator.mix.items()}

    async def run_episode_batch(
        self, agent: Any, batch_size: int | None = None, *, focus: Focus | None = None
    ) -> EpisodeBatch:
        """Run `batch_size` episodes (by default one per world), spread evenly over all worlds.

        agent: acts by `act`, `take_action` and the like, or for many states at once by `act_many`.
        focus: acts instead of the agent in some worlds.
        """
        count = len(self.worlds) if batch_size is None else batch_size
        if count < 1:
            raise ConfigError(f"batch_size is {batch_size}: give at least 1")
        actor, start, self._most_in_flight = make_actor(agent), time.perf_counter(), 0
        if focus is not None:
            actor = focus.wrap(actor)
        numbers = range(self.episodes, self.episodes + count)
        self.episodes += count
        groups: list[tuple[tuple[int, ...], int]] = []
        for lap, episodes in groupby(numbers, lambda e: e // len(self.worlds)):
            places = [e % len(self.worlds) for e in episodes]
            for first in range(0, len(places), self.max_concurrent_worlds):
                groups.append((tuple(places[first : first + self.max_concurrent_worlds]), lap))
        if self._cluster is None:
            found = [await self._run_group(actor, *group) for group in groups]
        else:
            shared = self._cluster.put(actor)  # once for all groups
            found = await asyncio.gather(*(self._run_group(shared, *group) for group in groups))
        experiences = [episode for own, _ in found for episode in own]
        failures = [failure for _, own in found for failure in own]
        self.failures.update(failure.world for failure in failures)
        seconds = time.perf_counter() - start
        return EpisodeBatch(tuple(experiences), tuple(failures), self._most_in_flight, seconds)

    async def _run_group(
        self, actor: Any, places: tuple[int, ...], lap: int
    ) -> tuple[list[EpisodeExperience], list[Failure]]:
        """Run the episodes of some worlds; if that fails, run each half again, so that only failing worlds are lost."""
        self.in_flight += len(places)
        self._most_in_flight = max(self._most_in_flight, self.in_flight)
        try:
            episodes = await self._run_episodes(actor, places, lap)
        except Exception as error:  # reported by world; the results of the others are kept
            if len(places) == 1:
                world = self.worlds[places[0]]
                return [], [Failure(world.index, world.kind, lap, f"{type(error).__name__}: {error}")]
        else:
            weight = self.orchestrator.importance_weight
            return [replace(e, importance_weight=weight(e.kind)) for e in episodes], []
        finally:
            self.in_flight -= len(places)
        half = len(places) // 2
        parts = [await self._run_group(actor, part, lap) for part in (places[:half], places[half:])]
        return [e for own, _ in parts for e in own], [failure for _, own in parts for failure in own]

    async def _run_episodes(self, actor: Any, places: tuple[int, ...], lap: int) -> list[EpisodeExperience]:
        """Run the episodes of some worlds here or on Ray, where the actor is a reference to one."""
        if self._cluster is None:
            return await self._group(places).run_episodes(actor, lap, deadline=self.deadline)
        worlds = [self.worlds[p] for p in places]
        episodes: list[EpisodeExperience] = await self._cluster.task(
            run_world_group, worlds, self.setting, actor, lap, self.deadline
        )
        arrays: list[dict[str, Any]] = [{name: np.array(getattr(e, name)) for name in _ARRAYS} for e in episodes]
        return [replace(e, **own) for e, own in zip(episodes, arrays, strict=True)]  # Ray's arrays are read-only

    def _group(self, places: tuple[int, ...]) -> WorldGroup:
        if places not in self._groups:
            if len(self._groups) >= _CACHED_GROUPS:
                self.close()
            self._groups[places] = WorldGroup([self.worlds[p] for p in places], self.setting)
        return self._groups[places]

    def world(self, index: int) -> ParallelWorldSimulator:
        """Return one of the worlds alone."""
        return ParallelWorldSimulator(self.worlds[index], self.setting)

    def auctions_per_episode(self) -> float:
        """Return the mean number of auctions of an episode, over the worlds simulated so far."""
        totals = [group.market.parameters.auctions.sum(axis=1) for group in self._groups.values()]
        return float(np.concatenate(totals).mean()) if totals else 0.0

    def aggregate_experiences(self, experiences: Iterable[EpisodeExperience]) -> dict[str, Any]:
        """Store experiences in the buffer and return their totals, means, breakdown and training batch."""
        episodes = list(experiences)
        summary = aggregate_experiences(episodes)
        self.buffer.add_experiences(episodes)
        self.orchestrator.fit_world_weights(episodes)
        return summary

    def apply_importance_weights(self, batch: TrainingBatch) -> TrainingBatch:
        """Return a batch whose importance weights also hold those of its worlds, with mean 1."""
        by_world = self.orchestrator.calculate_world_weights(self.worlds)
        weights = batch["importance_weights"] * np.array([by_world[int(w)] for w in batch["worlds"]])
        return {**batch, "importance_weights": (weights / weights.mean()).astype(np.float32)}

    def prioritize(self, batch: TrainingBatch) -> NDArray[np.int64]:
        """Return the places of a batch's transitions, the weightiest first; of equal ones, those of crisis parents."""
        weighted = self.apply_importance_weights(batch)
        return np.lexsort((-np.abs(batch["rewards"]), ~batch["crisis"], -weighted["importance_weights"]))

    def run_parallel_episodes(self, agent: Any, n_worlds: int | None = None) -> EpisodeBatch:
        """Run one episode in each of the first `n_worlds` worlds (by default all), from synchronous code."""
        return asyncio.run(self.run_episode_batch(agent, n_worlds))

    def importance_sampling(self, target_samples: int, focus_rare_events: bool = True) -> dict[str, Array]:
        """Draw a batch from the buffer.

        With `focus_rare_events`, `target_share` of it are transitions with a crisis parent's purchase, and `weights`
        correct for that.
        """
        return self.buffer.sample_batch(target_samples, importance_sampling=focus_rare_events)

    def adapt(self, experiences: Iterable[EpisodeExperience], rate: float = 0.5) -> dict[str, float]:
        """Adapt the mix of world types to the rewards, draw new worlds, and return the new mix."""
        mix = self.orchestrator.adapt(experiences, rate)
        self._redraw_worlds()
        return mix

    def restore(self, values: Mapping[str, Any], buffer: Mapping[str, Array]) -> None:
        """Continue from a checkpoint: its counters, its mix of worlds, and the arrays of its buffer."""
        self.buffer.load_state(buffer)
        self.episodes = int(values["episodes"])
        if not 0 <= self.episodes < 2**62:
            raise CorruptCheckpoint(f"{self.episodes} episodes cannot have been run")
        self.failures = Counter({int(world): int(count) for world, count in values["failed"].items()})
        self.orchestrator.restore(values)
        self._redraw_worlds()

    def _redraw_worlds(self) -> None:
        self.close()
        self.worlds = self.orchestrator.create_world_variants(len(self.worlds))

    def require_success(self, batch: EpisodeBatch) -> None:
        """Raise an error if all episodes of a batch failed."""
        if not batch.experiences:
            first = batch.failures[0]
            raise WorldError(
                f"all {len(batch.failures)} episodes failed; the first was world {first.world} "
                f"({first.kind.value}), lap {first.lap}: {first.reason}"
            )

    def close(self) -> None:
        """End the threads."""
        for group in self._groups.values():
            group.market.close()
        self._groups = {}

    def __enter__(self) -> MonteCarloSimulator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
