"""The contracts between the parts, and the loop they meet in.

    for epoch in 1 … epochs:                                  # runtime
        world.reset()                                         #   (with autoreset: only what has ended)
        for turn in 1 … max_turns:
            world.begin_turn()                                # everything that is not an agent moves
            observations = world.observe()                    # (N, W, obs)
            actions = actor.act(observations, turn)           # (N, W), from weights of version v
            rewards = world.apply_actions(actions)            # in list order
            memory.add(Transitions(…))                        # each agent's own buffer
        memory.close(world.observe())                         # what the last turn led to
        if epoch % train_interval == 0:                       # the boundary of round r
            result = backend.result(r - lag)                  # wait
            memory.update_priorities(result)
            actor.publish(result's weights)                   # one swap
            backend.submit(r, memory.snapshot(r))             # Snapshot in, State out
    backend.result(all that is pending)                       # nothing scheduled is left untrained

Every array's first axis is the agent, the second the world. `runtime` knows these protocols and nothing
behind them; an application implements `World` (by subclassing `ParallelEnvironment`) and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from parallel_agents.types import Array, EpochStats, Identity, RoundResult, RunInfo, Snapshot, State, Transitions

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Backend", "Learner", "Listener", "Memory", "Network", "World"]


@runtime_checkable
class World(Protocol):
    """W simulated instances with N agents in each, stepped together."""

    def reset(self) -> None:
        """Start a fresh episode in every world."""

    def reset_worlds(self, which: Array) -> None:
        """Start a fresh episode in the worlds of the (W,) mask; needed for autoreset only."""

    def begin_turn(self) -> None:
        """Move everything that is not an agent."""

    def observe(self) -> Array | Sequence[Array]:
        """(N, W, *obs), or one (W, *obs_i) per agent where spaces differ."""

    def observe_agent(self, index: int) -> Array:
        """(W, *obs): what one agent sees now; for sequential turn order."""

    def can_act(self) -> Array | None:
        """(N, W) bool, or None if all can."""

    def apply_actions(self, actions: Array | Sequence[Array]) -> Array:
        """Apply (N, W) actions in list order; (N, W) rewards."""

    def apply_agent(self, index: int, actions: Array) -> Array:
        """Apply one agent's (W,) actions; (W,) rewards; for sequential turn order."""

    def dones(self) -> tuple[Array, Array] | None:
        """(N, W) terminated and (N, W) truncated, as they are after this turn; None if nothing ended."""

    def events(self) -> tuple[Array, Array | None] | None:
        """(N, W) kinds of events and (N, W) values of this turn; None if they are not told apart."""


class Network(Protocol):
    """An architecture whose parameters are one row per agent."""

    size: int
    """Length of a row."""

    def init(self, identity: Identity) -> Tensor:
        """(N, size) fresh parameters from each agent's own draws."""

    def forward(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """(N, size), (N, R, in) -> (N, R, out)."""


class Memory(Protocol):
    """The buffers of a stack of agents, one per agent."""

    def add(self, turn: Transitions) -> None:
        """Keep one turn."""

    def close(self, observations: Array, *, ended: bool) -> None:
        """Keep what the last turn led to; `ended` where the worlds start afresh."""

    def snapshot(self, round_: int) -> Snapshot | None:
        """What round `round_` will learn from; None while there is too little."""

    def update_priorities(self, result: RoundResult) -> None:
        """Apply what a round learnt about its samples; overwritten rows are dropped."""


class Learner(Protocol):
    """Snapshot in, State out; no other effect, so that a round can be repeated anywhere."""

    def init(self, identity: Identity) -> State:
        """Fresh learners."""

    def learn(self, state: State, snapshot: Snapshot, identity: Identity) -> tuple[State, RoundResult]:
        """One round for every agent of the state; `state` itself stays as it is."""

    def policy(self, state: State) -> Tensor:
        """(N, P) the rows that acting needs."""


class Backend(Protocol):
    """Where rounds are computed."""

    name: str

    def submit(self, round_: int, snapshots: Sequence[Snapshot | None]) -> None:
        """Start a round over all stacks; rounds are computed in order."""

    def result(self, round_: int) -> Sequence[tuple[State, RoundResult] | None]:
        """Wait for a round, at most the deadline."""

    def close(self) -> None:
        """End every worker; may be called twice."""


class Listener(Protocol):
    """Tracking: it listens and never steers. A listener's failure never changes a result."""

    def on_start(self, run: RunInfo) -> None:
        """Before the first epoch."""

    def on_epoch(self, stats: EpochStats) -> None:
        """After each epoch."""

    def on_round(self, result: RoundResult) -> None:
        """When a round is published, all agents of all stacks in canonical order."""

    def on_event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Something worth a line in the log: a retry, a degradation, a warning."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """After the last epoch, or when the run stops early; always called once."""
