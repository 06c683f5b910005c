"""Deep Q-learning of N independent agents in stacked updates (Mnih et al. 2015), in the order of the data.

Options, what is stored, how an agent acts, what a round reads, the update; then the class that users hold. IQN shares
all of it but the network and the loss. Shapes: N agents, W worlds, A actions, B samples of an update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from parallel_agents.algorithms.acting import EPSILON_SLOTS, Choice, needs_forward
from parallel_agents.algorithms.acting_kernels import Rule
from parallel_agents.algorithms.base import DIRECT, Model
from parallel_agents.algorithms.external_update import rows_snapshot, train_on
from parallel_agents.algorithms.learner import (
    GradientAccumulator,
    LearnerState,
    LearningRates,
    RoundResult,
    RowLearner,
    Snapshot,
    accumulator_state,
    learn_in_blocks,
    numbers_per_update,
    optimizer_state,
    sampling_metrics,
)
from parallel_agents.algorithms.normalization import normalize
from parallel_agents.algorithms.options import (
    Kernels,
    LearnerOptions,
    NetworkOptions,
    Schedule,
    require_at_least,
    require_share,
    user_architecture,
    value_network,
)
from parallel_agents.core.config import build_section
from parallel_agents.core.errors import ConfigError
from parallel_agents.core.seeding import Identity, Purpose, uniforms
from parallel_agents.core.types import Array
from parallel_agents.kernels import q_learning as kernel
from parallel_agents.kernels.mlp import ACTIVATIONS
from parallel_agents.kernels.schedules import SCHEDULES, scheduled, target_share
from parallel_agents.nn import MLP, Architecture, Factory, ModuleNetwork, Network, Recurrent
from parallel_agents.nn.optimizer import RowAdam, clip_rows, gradient_rows
from parallel_agents.replay import (
    EVENT_COLUMNS,
    PRIORITY_COLUMNS,
    EventWeighting,
    Ring,
    RingShape,
    draw_by_priority,
    draw_rows,
    gather_sequences,
)

# -- options ---------------------------------------------------------------------------------------------------------

STORED_NAMES = {
    "gamma": "gamma",
    "clip": "max_grad_norm",
    "tau": "tau",
    "target_interval": "target_update_interval",
    "epsilon": "epsilon",
    "epsilon_final": "epsilon_final",
    "epsilon_epochs": "epsilon_epochs",
    "priority_alpha": "priority_alpha",
    "priority_beta": "priority_beta",
    "priority_updates": "priority_updates",
    "batch_growth": "max_accumulated_batches",
}
"""Hyper-parameters as they are stored, and the options that give them.

Stored names and their order are part of digests, so they stay as they are when an option is renamed."""


@dataclass(frozen=True, kw_only=True)
class QLearningOptions(LearnerOptions):
    """Options of every learner of action values from a replay buffer."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        **LearnerOptions.RENAMED,
        "target_interval": "target_update_interval",
        "batch_growth": "max_accumulated_batches",
    }

    double: bool = True
    """Let the online network choose the action whose value the target network gives (van Hasselt et al. 2016)."""
    gamma: float = 0.95
    n_step: int = 1
    n_frames: int = 1
    batch_size: int = 32
    updates_per_round: int = 32
    learning_starts: int = 200
    """Transitions an agent stores before it is trained."""
    buffer_size: int = 10_000
    tau: float = 0.01
    """How far the target network follows each update (soft updates)."""
    target_update_interval: int = 0
    """Updates between two whole copies to the target network (hard updates); 0: soft updates."""
    epsilon: float = 1.0
    epsilon_final: float = 0.05
    epsilon_epochs: int = 40
    """ε goes from `epsilon` to `epsilon_final` over so many epochs."""
    epsilon_schedule: Schedule = "linear"
    """How it goes there."""
    priority_alpha: float = 0.0
    """How much more often rows with a larger TD error are drawn; 0: uniformly (Schaul et al. 2016)."""
    priority_beta: float = 0.4
    """How far that is corrected at first; it rises to 1 over `priority_updates` updates."""
    priority_updates: int = 10_000
    max_accumulated_batches: int = 1
    """Batches that one step may join, at most, by the noise of the agent's own gradient; 1: never more than one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(
            self, 1, "n_step", "n_frames", "batch_size", "updates_per_round", "buffer_size", "max_accumulated_batches"
        )
        require_at_least(self, 0, "learning_starts", "target_update_interval", "epsilon_epochs", "priority_updates")
        require_share(self, "gamma", "tau", "epsilon", "epsilon_final", "priority_alpha", "priority_beta")
        if self.importance is not None and self.priority_alpha > 0:
            raise ConfigError(
                "model.importance and model.priority_alpha are both given: draw by event class or by TD error, not both"
            )
        if self.epsilon_schedule == "exponential" and not (self.epsilon > 0.0 and self.epsilon_final > 0.0):
            raise ConfigError("model.epsilon_schedule is 'exponential': epsilon and epsilon_final must be above 0")

    def hyper(self) -> dict[str, Any]:
        """Return the values that may differ between the rows of a stack, under their stored names."""
        values: dict[str, Any] = {name: float(getattr(self, option)) for name, option in STORED_NAMES.items()}
        if self.importance is not None:
            values["importance"] = build_section(EventWeighting, self.importance, "model.importance")
        return {**values, **self.learning_rates, "epsilon_shape": float(SCHEDULES.index(self.epsilon_schedule))}

    def spec(self, obs_shape: int | tuple[int, ...], n_actions: int, worlds: int) -> dict[str, Any]:
        """Return the fields of a `QLearningSpec` at these shapes."""
        if n_actions < 1:
            raise ConfigError(f"n_actions is {n_actions}: an agent needs at least one action")
        return {
            "observation": (obs_shape,) if isinstance(obs_shape, int) else tuple(obs_shape),
            "actions": n_actions,
            "worlds": worlds,
            "double": self.double,
            "n_step": self.n_step,
            "n_frames": self.n_frames,
            "batch": self.batch_size,
            "updates": self.updates_per_round,
            "learning_starts": self.learning_starts,
            "capacity": self.buffer_size,
            "normalize": self.normalize,
            "importance": self.importance is not None,
            "prioritised": self.priority_alpha > 0,
            "training_priority": self.training_priority,
            "kernels": self.kernels,
        }


@dataclass(frozen=True, kw_only=True)
class DQNOptions(NetworkOptions, QLearningOptions):
    """The `model` section for `algorithm = "dqn"`."""

    dueling: bool = False

    def __post_init__(self) -> None:
        QLearningOptions.__post_init__(self)
        NetworkOptions.__post_init__(self)
        if self.recurrent and self.n_frames > 1:
            raise ConfigError(
                f"model.n_frames is {self.n_frames} with model.recurrent: a recurrent network remembers by itself, "
                "leave n_frames at 1"
            )
        if self.recurrent and (self.importance is not None or self.priority_alpha > 0):
            key = "importance" if self.importance is not None else "priority_alpha"
            raise ConfigError(
                f"model.{key} with model.recurrent: it weighs single transitions, but a recurrent network learns from "
                "sequences; leave one of them out"
            )


# -- what is stored, how an agent acts, what a round reads -----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class QLearningSpec:
    """A learner of action values from a replay buffer, at given shapes; implements `AlgorithmSpec`."""

    observation: tuple[int, ...]
    actions: int
    worlds: int
    double: bool
    n_step: int
    n_frames: int
    batch: int
    updates: int
    learning_starts: int
    capacity: int
    normalize: tuple[bool, bool] = (False, False)
    """Observations, rewards."""
    masked: bool = False
    importance: bool = False
    """Rows are drawn by event class, each agent with its own weights of the classes."""
    prioritised: bool = False
    """Rows are drawn by their TD errors."""
    training_priority: int = 0
    kernels: Kernels = "auto"
    slots: int = EPSILON_SLOTS
    on_policy: bool = False

    @property
    def network(self) -> Network:
        """The network, whose parameters are rows."""
        raise NotImplementedError

    @property
    def choices(self) -> int:
        return self.actions

    @property
    def hidden_size(self) -> int:
        return 0

    @property
    def window(self) -> tuple[int, ...]:
        """Shape of a network's input: the frames, oldest first, along the first axis."""
        return (self.observation[0] * self.n_frames, *self.observation[1:]) if self.observation else (self.n_frames,)

    @property
    def inputs(self) -> int:
        return math.prod(self.window)

    @property
    def ring(self) -> RingShape:
        """The buffer of one agent."""
        extras = EVENT_COLUMNS if self.importance else PRIORITY_COLUMNS if self.prioritised else {}
        masks = self.choices if self.masked else 0
        return RingShape(self.capacity, self.observation, self.worlds, self.n_frames, extras=extras, choices=masks)

    def explore(self, hyper: Mapping[str, Any], epoch: int) -> float:
        """Return ε of an agent in an epoch."""
        start, final, span = hyper["epsilon"], hyper["epsilon_final"], max(1.0, hyper["epsilon_epochs"])
        return float(scheduled(int(hyper["epsilon_shape"]), start, final, float(max(0, epoch - 1)), span))

    def needs_forward(self, draws: Array, exploration: Array) -> Array | None:
        """Return (N,) whose values are read; None: everyone's, since hidden states advance whoever explores."""
        return None if self.hidden_size else needs_forward(draws, exploration)

    @cached_property
    def choice(self) -> Choice:
        """How actions follow from values: ε-greedily."""
        return Choice(Rule.EPSILON_GREEDY, sizes=(self.actions,))

    def choose(
        self, outputs: Array, draws: Array, exploration: Array, masks: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """Return ε-greedy actions (N, W) from values (N, W, A); nothing else is stored."""
        return self.choice(outputs, draws, exploration, masks)

    def closing_columns(self, outputs: Array) -> dict[str, Array]:
        """Return nothing: values of stored states are computed when they are learned from."""
        return {}

    def ready(self, ring: Ring) -> Array:
        """Return (N,) bool, True where an agent has at least `learning_starts` rows."""
        return np.asarray(ring.sizes() >= max(1, self.learning_starts))

    def snapshot(
        self,
        ring: Ring,
        identity: Identity,
        hyper: Sequence[Mapping[str, Any]],
        round_: int,
        updates: int,
        world: int = 0,
    ) -> Snapshot:
        """Return samples of each agent's own buffer; agents with too few rows are not `ready`."""
        numbers = 2 if self.importance else 1  # random numbers of a sample: for its place, and for its class
        slots = numbers * updates * self.batch
        drawn = uniforms(identity.seeds, Purpose.SAMPLE, identity.agents, [world], epoch=round_, turns=1, slots=slots)
        draws = drawn.reshape(len(identity), numbers, updates * self.batch)
        gammas = np.array([own["gamma"] for own in hyper])
        done = world - DIRECT if world else max(0, round_ - 1) * self.updates  # updates before these
        beside: dict[str, Array] = {}
        if self.importance:
            by_class = [
                draw_rows(ring, row, own["importance"].classes, draws[row], batch=self.batch, done=done)
                for row, own in enumerate(hyper)
            ]
            serials = np.stack([drawn.rows for drawn in by_class])
            beside = {name: np.stack([getattr(drawn, name) for drawn in by_class]) for name in ("weights", "rare")}
        elif self.prioritised:
            by_priority = [
                draw_by_priority(ring, row, draws[row, 0], alpha=own["priority_alpha"], beta=_annealed_beta(own, done))
                for row, own in enumerate(hyper)
            ]
            serials = np.stack([drawn.serials for drawn in by_priority])
            beside = {name: np.stack([getattr(drawn, name) for drawn in by_priority]) for name in ("weights", "places")}
        else:
            serials = ring.serials(draws[:, 0])
        return Snapshot(round_, {**self._gather(ring, serials, gammas), **beside, "ready": self.ready(ring)})

    def _gather(self, ring: Ring, serials: Array, gammas: Array) -> dict[str, Array]:
        """Return the columns that the learner reads of the drawn transitions (N, K)."""
        return ring.gather(serials, n_step=self.n_step, gammas=gammas)

    def probe_hyper(self) -> dict[str, Any]:
        """Return hyper-parameters with which clipping, joining of batches and class weights all take part."""
        importance: dict[str, Any] | None = {} if self.importance else None
        return QLearningOptions(max_grad_norm=1e-3, max_accumulated_batches=2, importance=importance).hyper()


def _annealed_beta(hyper: Mapping[str, float], done: int) -> float:
    """Return the exponent of the corrections after `done` updates."""
    share = min(1.0, done / max(1.0, hyper["priority_updates"]))
    return hyper["priority_beta"] + (1.0 - hyper["priority_beta"]) * share


@dataclass(frozen=True, kw_only=True)
class DQNSpec(QLearningSpec):
    """DQN at given shapes."""

    hidden: tuple[int, ...]
    dueling: bool
    convolutional: tuple[tuple[int, ...], ...] = ()
    sequence: int = 0
    """Turns of the sequences that a recurrent network learns from; 0: the network is not recurrent."""
    architecture: Architecture | None = None
    """The architecture of a network that the user brought."""

    @cached_property
    def network(self) -> Network:
        if self.architecture is not None:
            return ModuleNetwork(self.architecture, self.window, self.actions)
        shape = (self.window, self.hidden, self.actions, self.dueling, self.convolutional)
        return value_network(*shape, recurrent=self.sequence > 0)

    @property
    def hidden_size(self) -> int:
        return self.hidden[-1] if self.sequence else 0

    @property
    def ring(self) -> RingShape:
        plain = super().ring
        return replace(plain, extras={**plain.extras, "hidden": (self.hidden_size,)}) if self.sequence else plain

    def learner(self, *, device: str = "cpu", updates: int | None = None) -> Any:
        network, shape = self.network, (updates or self.updates, self.batch, self.double, device, self.kernels)
        learner = DQNLearner(network, *shape)
        if isinstance(network, Recurrent):
            learner = RecurrentDQNLearner(network, *shape)
        return normalize(learner, self.inputs, self.normalize)

    def _gather(self, ring: Ring, serials: Array, gammas: Array) -> dict[str, Array]:
        if not self.sequence:
            return super()._gather(ring, serials, gammas)
        return gather_sequences(ring, serials, length=self.sequence, n_step=self.n_step, gammas=gammas)


# -- the update ------------------------------------------------------------------------------------------------------

WEIGHT_COPIES = 5
"""Arrays of an agent's weights that an update touches: online, target, gradient and two moments."""
NOT_LEARNED_FROM = ("ready", "places", "rare")
"""Columns of a snapshot that no loss reads."""


@dataclass(frozen=True)
class DQNLearner(RowLearner):
    """Train agents from samples of their replay buffers; implements `Learner`.

    The state of an agent: `online` and `target` weights, Adam's `first` and `second` moments and `steps`, the count of
    accepted `updates`, how many batches it joins to a step, and its hyper-parameters.
    """

    network: Network
    updates: int
    """Updates of a round."""
    batch: int
    double: bool = True
    device: str = "cpu"
    kernels: Kernels = "auto"

    def init(self, identity: Identity, hyper: Sequence[Mapping[str, Any]]) -> LearnerState:
        """Return fresh learners, one mapping of hyper-parameters per agent."""
        rows = self.network.init(identity)
        accumulation = accumulator_state([own["batch_growth"] for own in hyper])
        tensors = {**optimizer_state(rows, hyper, kernel.HYPER), **accumulation, "target": rows.clone()}
        return LearnerState(tensors).to(self.device)

    def learn(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> tuple[LearnerState, RoundResult]:
        """Return the state after one round of every agent, and the round's result."""
        if self.native:
            return learn_in_blocks(self._learn_compiled, state, snapshot, identity)
        return learn_in_blocks(self._learn, state, snapshot, identity, self._numbers)

    def _numbers(self, snapshot: Snapshot) -> int:
        """Return how many numbers one agent's update touches."""
        return numbers_per_update(self.network, WEIGHT_COPIES, self._samples(snapshot))

    def _learn_compiled(self, new: LearnerState, snapshot: Snapshot, identity: Identity) -> RoundResult:
        """Train some agents for all updates of the round, in place in their rows of the new state, without torch."""
        agents = _agents(new)
        before, joined = agents.updates.copy(), agents.joined.copy()
        results = kernel.Results.empty(*snapshot["returns"].shape)
        self._compute(agents, kernel.Samples.of(snapshot.columns), results, identity)
        metrics = {"loss": results.losses, "gradient_norm": results.norms, **sampling_metrics(snapshot)}
        if (agents.hyper[:, kernel.BATCH_GROWTH] > 1).any():
            metrics["batch_size"] = joined * self.batch
        done = agents.updates - before
        priorities = _priorities(snapshot, results.td_errors)
        return RoundResult(snapshot.round, done, results.attempts - done, metrics, priorities)

    def _compute(
        self, agents: kernel.Agents, samples: kernel.Samples, results: kernel.Results, identity: Identity
    ) -> None:
        """Call the compiled round."""
        network = self.network
        assert isinstance(network, MLP)
        layers = network.layout.table(0, network.widths())
        kernel.learn_dqn(
            layers, ACTIVATIONS.index(network.activation), network.outputs, network.dueling, self.double, self.updates,
            self.batch, agents, samples, kernel.Scratch.of(network.size, layers, self.batch), results,
        )  # fmt: skip

    def _samples(self, snapshot: Snapshot) -> int:
        """Return how many samples one agent's update reads; of sequences every turn counts."""
        return math.prod(snapshot["states"].shape[1:-1]) // self.updates

    def _learn(self, new: LearnerState, snapshot: Snapshot, identity: Identity) -> RoundResult:
        """Train some agents for all updates of the round, in place in their rows of the new state."""
        rows, target_rows = new["online"], new["target"]
        weights, target_weights = self.network.leaves(rows), self.network.bind(target_rows)
        gradients = torch.empty_like(rows)
        optimizer = RowAdam(rows, gradients, new["first"], new["second"], new["steps"])
        rates, targets = LearningRates(new), TargetUpdates(new)
        accumulator = GradientAccumulator(new, self.batch, self.updates)
        max_norms = new["hyper.clip"].float()
        updates = new["updates"].cpu().numpy().copy()
        before, ready = updates.copy(), snapshot["ready"].tolist()
        losses, norms, td_errors = [], [], []
        for update in range(self.updates):
            with torch.enable_grad():
                batch = self._batch(snapshot, update) | self._draws(identity, updates, accumulator.count)
                loss, td_error = self._loss(weights, target_weights, batch)
                gradient_rows(loss.sum(), self.network.layout, weights, gradients)
            with torch.no_grad():
                due = accumulator.add(gradients)
                norm = clip_rows(gradients, max_norms)
                finite = (torch.isfinite(loss) & torch.isfinite(norm)).tolist()
                accepted = [all(checks) for checks in zip(ready, finite, due, strict=True)]
                optimizer.step(rates.at(updates), accepted)
                updates += np.asarray(accepted)
                target_rows.lerp_(rows, targets.shares(updates, accepted))
            losses.append(loss.detach())
            norms.append(norm)
            td_errors.append(td_error.detach())
        new["updates"].copy_(torch.from_numpy(updates))
        accumulator.store(new, snapshot["ready"])
        metrics = {"loss": _mean(losses), "gradient_norm": _mean(norms), **sampling_metrics(snapshot)}
        if accumulator.active:
            metrics["batch_size"] = accumulator.joined * self.batch
        done = updates - before
        rejected = accumulator.attempts * snapshot["ready"] - done
        priorities = _priorities(snapshot, torch.cat(td_errors, 1).cpu().numpy())
        return RoundResult(snapshot.round, done, rejected, metrics, priorities)

    def _batch(self, snapshot: Snapshot, update: int) -> dict[str, Tensor]:
        """Return the (N, B, …) columns of one update."""
        part = slice(update * self.batch, (update + 1) * self.batch)
        columns = {name: column for name, column in snapshot.columns.items() if name not in NOT_LEARNED_FROM}
        return {name: torch.from_numpy(column[:, part]).to(self.device) for name, column in columns.items()}

    def _draws(self, identity: Identity, updates: Array, joined: Array) -> dict[str, Tensor]:
        """Return the random numbers of one batch, from each agent's own addresses; DQN needs none."""
        return {}

    def _loss(
        self, weights: list[Tensor], target_weights: list[Tensor], batch: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each agent (N,) and the TD errors of its samples (N, B)."""
        forward = self.network.forward
        with torch.no_grad():
            masks = batch.get("next_masks")
            next_values = mask_values(forward(target_weights, batch["next_states"]), masks)
            if self.double:
                next_online = mask_values(forward(weights, batch["next_states"]), masks)
                targets = double_q_targets(batch["returns"], batch["discounts"], next_values, next_online)
            else:
                targets = q_targets(batch["returns"], batch["discounts"], next_values)
        td_errors = values_of(forward(weights, batch["states"]), batch["actions"]) - targets
        return weighted_mean(huber(td_errors), batch.get("weights")), td_errors

    def td_errors(self, state: LearnerState, snapshot: Snapshot) -> Array:
        """Return the TD errors (N, B) of a snapshot of one update, before that update."""
        if self.native:
            once = replace(self, batch=snapshot["returns"].shape[1], updates=1)
            results = kernel.Results.empty(*snapshot["returns"].shape)
            once._compute(_agents(state.clone()), kernel.Samples.of(snapshot.columns), results, Identity((), ()))
            return results.td_errors
        weights, target_weights = self.network.bind(state["online"]), self.network.bind(state["target"])
        batch = replace(self, batch=snapshot["returns"].shape[1])._batch(snapshot, 0)
        with torch.inference_mode():
            return np.asarray(self._loss(weights, target_weights, batch)[1].cpu().numpy())


@dataclass(frozen=True)
class RecurrentDQNLearner(DQNLearner):
    """`DQNLearner` on sequences: both networks run through them from the stored states (Kapturowski et al. 2019)."""

    network: Recurrent

    def _loss(
        self, weights: list[Tensor], target_weights: list[Tensor], batch: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each agent (N,), a mean over the turns that count, and TD errors (N, B, turns)."""
        states, hidden, masks = batch["states"], batch["hidden"], batch.get("masks")
        values = self.network.unroll(weights, states, hidden)
        with torch.no_grad():
            target_values = self.network.unroll(target_weights, states, hidden)
            chooser = values.detach() if self.double else target_values
            best = mask_values(chooser, masks).argmax(-1, keepdim=True)
            best_values = target_values.gather(-1, best).squeeze(-1)
            targets = batch["returns"] + batch["discounts"] * best_values.gather(-1, batch["ahead"])
        turns = targets.shape[-1]
        taken = values[:, :, :turns].gather(-1, batch["actions"][..., None]).squeeze(-1)
        td_errors = (taken - targets) * batch["counted"]
        total = batch["counted"].reshape(len(targets), -1).sum(-1).clamp(min=1.0)
        return huber(td_errors).reshape(len(targets), -1).sum(-1) / total, td_errors


def _agents(state: LearnerState) -> kernel.Agents:
    """Return a state as compiled kernels read and write it."""
    hyper = np.stack([state[f"hyper.{name}"].numpy() for name in kernel.HYPER], axis=1)
    return kernel.Agents._make([*(state[name].numpy() for name in kernel.STATE), hyper])


class TargetUpdates:
    """How far each agent's target network follows: `tau` each update, or whole copies by its own count of updates."""

    def __init__(self, state: LearnerState) -> None:
        self._interval, self._tau = state["hyper.target_interval"].tolist(), state["hyper.tau"].tolist()
        self._soft = state["hyper.tau"].float()[:, None]
        self._hard = any(self._interval)

    def shares(self, updates: Array, accepted: list[bool]) -> Tensor:
        """Return the share (N, 1) of the online weights in the new target weights."""
        if not self._hard and all(accepted):
            return self._soft
        rows = zip(updates.tolist(), self._tau, self._interval, accepted, strict=True)
        shares = [target_share(count, tau, interval) if due else 0.0 for count, tau, interval, due in rows]
        return torch.tensor(shares, device=self._soft.device)[:, None]


def mask_values(values: Tensor, masks: Tensor | None) -> Tensor:
    """Return values (…, A) with -infinity for the actions that a mask (…, A) forbids."""
    return values if masks is None else values.masked_fill(~masks, -torch.inf)


def q_targets(returns: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """Return targets (N, B) from returns and discounts (N, B) and target-network values (N, B, A). Mnih et al. 2015."""
    return returns + discounts * next_values.amax(-1)


def double_q_targets(returns: Tensor, discounts: Tensor, next_values: Tensor, next_online: Tensor) -> Tensor:
    """Return `q_targets` with the action chosen by the online network's values (N, B, A). van Hasselt et al. 2016."""
    best = next_online.argmax(-1, keepdim=True)
    return returns + discounts * next_values.gather(-1, best).squeeze(-1)


def values_of(values: Tensor, actions: Tensor) -> Tensor:
    """Return the values (N, B) of the taken actions (N, B) from values (N, B, A)."""
    return torch.gather(values, -1, actions[..., None]).squeeze(-1)


def huber(errors: Tensor) -> Tensor:
    """Return the Huber loss, elementwise: quadratic within ±1, linear beyond. Huber 1964."""
    size = errors.abs()
    inner = size.clamp(max=1.0)
    return inner * (size - 0.5 * inner)


def weighted_mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean (N,) of losses (N, B), each sample weighted once, before the mean."""
    return (losses if weights is None else losses * weights).mean(-1)


def _priorities(snapshot: Snapshot, td_errors: Array) -> dict[str, Array]:
    """Return what goes back to the buffers of prioritised replay: places and TD errors (N, S)."""
    if "places" not in snapshot.columns:
        return {}
    ready, errors = snapshot["ready"][:, None], td_errors.astype(np.float64)
    return {"places": np.where(ready, snapshot["places"], np.nan), "errors": np.where(ready, errors, np.nan)}


def _mean(values: list[Tensor]) -> Array:
    return np.asarray(torch.stack(values).mean(0).cpu().numpy())


# -- what users hold -------------------------------------------------------------------------------------------------


class DQN(Model):
    """A deep Q-learner.

    network: a function that makes a fresh `torch.nn.Module` from (R, *obs_shape) to (R, n_actions), with several
    frames along the first axis of an observation; instead of `hidden` and `dueling`.

    >>> model = DQN(obs_shape=(3,), n_actions=2, hidden=(8,), learning_starts=1)
    >>> for t in range(4):
    ...     model.memory.add([t, 0, 1], action=0, reward=1.0, done=t == 3)
    >>> model.train_step() >= 0.0, model.take_action([0, 0, 1]) in (0, 1)
    (True, True)
    """

    def __init__(
        self,
        obs_shape: int | tuple[int, ...],
        n_actions: int,
        *,
        worlds: int = 1,
        network: Factory | None = None,
        **options: Any,
    ) -> None:
        chosen = build_section(DQNOptions, options, "model")
        shape: dict[str, Any] = {
            "hidden": chosen.widths,
            "dueling": chosen.dueling,
            "convolutional": chosen.convolutional,
            "sequence": chosen.sequence if chosen.recurrent else 0,
        }
        if network is not None:
            shape = {"hidden": (), "dueling": False, "architecture": user_architecture(network, options)}
        spec = DQNSpec(**chosen.spec(obs_shape, n_actions, worlds), **shape)
        super().__init__(spec, chosen.hyper(), chosen)
        _ = self.spec.network  # refuses what does not fit, before anything runs

    def update_policy(self, batch: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """Train once on B rows that the caller has drawn; return metrics and the TD errors (B,) before the update.

        See `external_update`.
        """
        snapshot = rows_snapshot(self, batch)
        learner = self.spec.learner(updates=1)
        metrics: dict[str, Any] = {}
        if type(learner) is DQNLearner:
            metrics["td_errors"] = learner.td_errors(self.state, snapshot)[0]
        return metrics | train_on(self, snapshot, snapshot["returns"].shape[1])
