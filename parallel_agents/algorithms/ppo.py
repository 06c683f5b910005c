"""Proximal policy optimisation of N independent agents in stacked updates (Schulman et al. 2017).

In the order of the data: options, what is stored, how an agent acts, what a round reads, the update; then the class
that users hold. Shapes: N agents, T turns of a rollout, W worlds, B samples of a minibatch, L turns of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from parallel_agents.algorithms.acting import Choice
from parallel_agents.algorithms.acting_kernels import Rule
from parallel_agents.algorithms.base import DIRECT, Model
from parallel_agents.algorithms.external_update import train_on, trajectory_snapshot
from parallel_agents.algorithms.learner import (
    LearnerState,
    LearningRates,
    RoundResult,
    RowLearner,
    Snapshot,
    advantages,
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
    policy_network,
    require_at_least,
    require_positive,
    require_share,
    user_architecture,
)
from parallel_agents.core.config import build_section
from parallel_agents.core.errors import ConfigError, ContractError, NonFiniteError, ShapeError
from parallel_agents.core.seeding import Identity, Purpose, generator, key
from parallel_agents.core.types import Array
from parallel_agents.kernels import policy_gradient as kernel
from parallel_agents.nn import (
    Architecture,
    Discrete,
    Distribution,
    Factory,
    ModuleNetwork,
    MultiDiscrete,
    Network,
    SquashedGaussian,
)
from parallel_agents.nn.optimizer import RowAdam, clip_rows, gradient_rows
from parallel_agents.replay import EVENT_COLUMNS, EventWeighting, Ring, RingShape, draw_classed

# -- options ---------------------------------------------------------------------------------------------------------

STORED_NAMES = {
    "clip": "max_grad_norm",
    "ratio_clip": "clip_range",
    "value_clip": "clip_range_vf",
    "value_weight": "vf_coef",
    "entropy": "ent_coef",
    "gamma": "gamma",
    "target_kl": "target_kl",
}
"""Hyper-parameters as they are stored, and the options that give them.

Stored names and their order are part of digests, so they stay as they are when an option is renamed."""


@dataclass(frozen=True, kw_only=True)
class PPOOptions(NetworkOptions, LearnerOptions):
    """The `model` section for `algorithm = "ppo"`; policy and value have hidden layers of the same widths."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        **LearnerOptions.RENAMED,
        "passes": "n_epochs",
        "minibatches": "n_minibatches",
        "ratio_clip": "clip_range",
        "value_clip": "clip_range_vf",
        "value_weight": "vf_coef",
        "entropy": "ent_coef",
    }

    lr: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    n_epochs: int = 4
    """Passes over the data of a round."""
    n_minibatches: int = 4
    """Updates of one pass."""
    clip_range: float = 0.2
    """How far the probability ratio may move from 1."""
    clip_range_vf: float = 0.0
    """How far a value may move in a round; 0: without limit."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    target_kl: float = 0.0
    """Stop an agent's round once its policy has moved so far from its start; 0: never."""
    max_grad_norm: float = 0.5
    """Largest norm of an agent's gradient."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        LearnerOptions.__post_init__(self)
        if self.recurrent and self.importance is not None:
            raise ConfigError(
                "model.importance and model.recurrent are both given: a recurrent network learns from sequences, not "
                "from single samples; leave one of them out"
            )
        require_at_least(self, 1, "n_epochs", "n_minibatches")
        require_share(self, "gamma", "gae_lambda")
        require_positive(self, "clip_range")
        require_at_least(self, 0, "clip_range_vf", "vf_coef", "ent_coef", "target_kl")

    def hyper(self) -> dict[str, Any]:
        """Return the values that may differ between the rows of a stack, under their stored names."""
        values: dict[str, Any] = {name: float(getattr(self, option)) for name, option in STORED_NAMES.items()}
        if self.importance is not None:
            values["importance"] = build_section(EventWeighting, self.importance, "model.importance")
        return {**values, **self.learning_rates, "lambda": self.gae_lambda}


# -- what is stored, how an agent acts, what a round reads -----------------------------------------------------------


@dataclass(frozen=True)
class PPOSpec:
    """PPO at given shapes; implements `AlgorithmSpec`."""

    observation: tuple[int, ...]
    distribution: Distribution
    worlds: int
    hidden: tuple[int, ...]
    n_epochs: int
    n_minibatches: int
    rollout: int
    """Turns between two rounds, at most."""
    epochs: int
    """Epochs between two rounds: each stores one row more, the observation after its last turn."""
    training_priority: int = 0
    normalize: tuple[bool, bool] = (False, False)
    """Observations, rewards."""
    masked: bool = False
    """True where the environment gives action masks."""
    importance: bool = False
    """Samples are drawn by event class, each agent with its own weights of the classes."""
    capacity: int = 0
    """Rows of the buffer where nothing is learned; 0: what a round needs."""
    on_policy: bool = True
    convolutional: tuple[tuple[int, ...], ...] = ()
    sequence: int = 0
    """Turns of the sequences that a recurrent network learns from; 0: the network is not recurrent."""
    architecture: Architecture | None = None
    """The architecture of a network that the user brought."""
    kernels: Kernels = "auto"

    @cached_property
    def network(self) -> Network:
        if self.architecture is not None:
            outputs = self.distribution.outputs + 1
            return ModuleNetwork(self.architecture, self.observation, outputs, self.distribution)
        shape = (self.observation, self.hidden, self.distribution, self.convolutional)
        return policy_network(*shape, recurrent=self.sequence > 0)

    @property
    def hidden_size(self) -> int:
        return self.hidden[-1] if self.sequence else 0

    @property
    def actions(self) -> int | None:
        return self.distribution.n if isinstance(self.distribution, Discrete) else None

    @property
    def slots(self) -> int:
        return len(self.distribution.sizes) or self.distribution.outputs

    @property
    def choices(self) -> int:
        return sum(self.distribution.sizes)

    @property
    def ring(self) -> RingShape:
        """The buffer of one agent: the rollout, with log-probabilities and values of the acting weights."""
        extras: dict[str, tuple[int, ...]] = {"log_prob": (), "value": ()}
        if isinstance(self.distribution, SquashedGaussian):
            extras["raw"] = self.distribution.shape
        if self.sequence:
            extras["hidden"] = (self.hidden_size,)
        if self.importance:
            extras |= EVENT_COLUMNS
        return RingShape(
            self.capacity or (self.rollout + self.epochs) * self.worlds,
            self.observation,
            self.worlds,
            action=self.distribution.shape,
            action_dtype=self.distribution.dtype,
            extras=extras,
            choices=self.choices if self.masked else 0,
        )

    @property
    def batch(self) -> int:
        """Samples of a minibatch, or sequences of them, at most."""
        samples = self.rollout * self.worlds
        if self.sequence:
            samples = -(-(self.rollout + self.epochs) // self.sequence) * self.worlds
        return -(-samples // self.n_minibatches)

    def explore(self, hyper: Mapping[str, Any], epoch: int) -> float:
        """Return 1: the policy explores by itself."""
        return 1.0

    def needs_forward(self, draws: Array, exploration: Array) -> Array | None:
        """Return None: every choice and every value comes from the network."""
        return None

    @cached_property
    def choice(self) -> Choice:
        """How actions follow from the outputs of the policy; the last output is the value."""
        match self.distribution:
            case SquashedGaussian(low, high):
                return Choice(Rule.GAUSSIAN, low=low, high=high, shape=self.distribution.shape)
            case _:
                return Choice(Rule.CATEGORICAL, sizes=self.distribution.sizes, shape=self.distribution.shape)

    def choose(
        self, outputs: Array, draws: Array, exploration: Array, masks: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """Return actions drawn from the policy, the most likely ones where exploration is 0, and what is stored."""
        return self.choice(outputs, draws, exploration, masks)

    def closing_columns(self, outputs: Array) -> dict[str, Array]:
        """Return the value of the observation after the last turn."""
        return {"value": outputs[..., -1]}

    def ready(self, ring: Ring) -> Array:
        """Return (N,) True: whatever was collected is learned from."""
        return np.ones(ring.agents, np.bool_)

    def snapshot(
        self,
        ring: Ring,
        identity: Identity,
        hyper: Sequence[Mapping[str, Any]],
        round_: int,
        updates: int,
        world: int = 0,
    ) -> Snapshot:
        """Return the whole trajectories since the last round, in order."""
        squashed = isinstance(self.distribution, SquashedGaussian)
        agents, rows, worlds = ring.valid.shape
        shape = (agents, rows, worlds, *self.distribution.shape)
        columns: dict[str, Array] = {
            "observations": ring.observations,
            "actions": ring.extras["raw"] if squashed else ring.actions.reshape(shape),
            "rewards": ring.rewards,
            "terminated": ring.terminated,
            "truncated": ring.truncated,
            "valid": ring.valid,
            "follow": ring.follow,
            "log_prob": ring.extras["log_prob"],
            "value": ring.extras["value"],
            "ready": self.ready(ring),
        }
        if self.masked:
            columns["masks"] = ring.extras["masks"]
        if self.sequence:
            columns["hidden"], columns["age"] = ring.extras["hidden"][:, :: self.sequence], ring.age
        if self.importance:
            columns |= self._drawn_by_class(ring, identity, hyper, round_, world)
        return Snapshot(round_, columns)

    def _drawn_by_class(
        self, ring: Ring, identity: Identity, hyper: Sequence[Mapping[str, Any]], round_: int, world: int
    ) -> dict[str, Array]:
        """Return the places (N, S) of the samples of all minibatches, drawn by event class, and their corrections."""
        size, updates = self.batch, self.n_epochs * self.n_minibatches
        done = world - DIRECT if world else max(0, round_ - 1) * updates
        draws = []
        for row, (seed, agent) in enumerate(zip(identity.seeds, identity.agents, strict=True)):
            places = np.flatnonzero(ring.valid[row].reshape(-1))
            events, values = (ring.extras[name][row].reshape(-1)[places] for name in EVENT_COLUMNS)
            numbers = generator(seed, Purpose.SAMPLE, agent=agent, world=world, epoch=round_)
            uniforms = numbers.random((2, updates * size))
            drawn = draw_classed(events, values, hyper[row]["importance"].classes, uniforms, batch=size, done=done)
            draws.append(drawn._replace(rows=places[drawn.rows] if len(places) else drawn.rows))
        columns = {"rows": "drawn", "weights": "weights", "rare": "rare"}
        return {column: np.stack([getattr(drawn, name) for drawn in draws]) for name, column in columns.items()}

    def learner(self, *, device: str = "cpu", updates: int | None = None) -> Any:
        """Return the learner of a round; PPO's number of updates follows from its options."""
        shape = (
            self.network,
            self.n_epochs,
            self.n_minibatches,
            self.batch,
            device,
            max(1, self.sequence),
            self.kernels,
        )
        return normalize(PPOLearner(*shape), math.prod(self.observation), self.normalize)

    def probe_hyper(self) -> dict[str, Any]:
        """Return hyper-parameters with which clipping and class weights take part."""
        importance: dict[str, Any] | None = {} if self.importance else None
        return PPOOptions(max_grad_norm=1e-3, importance=importance).hyper()


# -- the update ------------------------------------------------------------------------------------------------------

WEIGHT_COPIES = 4
"""Arrays of an agent's weights that an update touches: themselves, gradient and two moments."""


@dataclass(frozen=True)
class PPOLearner(RowLearner):
    """Train agents from their trajectories since the last round; implements `Learner`.

    A snapshot holds whole trajectories in order, (N, T, W) columns, with log-probability and value of the acting
    weights. With a lag those are older than the learner's: the ratio still compares with the weights that acted, while
    the early stop compares with the learner at the round's start.

    A recurrent network learns from sequences instead of single samples: each column of a world is cut into pieces of
    `sequence` turns, which start from the hidden states stored when they were played (`hidden`, one per piece) and from
    a fresh state where an episode starts within (`age` 0). A minibatch is then a number of such pieces.

    Two optional columns weigh samples. `sample_weights` (N, T, W), of mean 1, weighs each sample's surrogate, value and
    entropy terms and the normalisation of the advantages. `drawn` and `weights` (N, S) are places and corrections of
    the samples of all minibatches, where these are drawn by event class. Advantages always come from the whole,
    ordered trajectory.
    """

    network: Any
    n_epochs: int
    """Passes over the data in a round."""
    n_minibatches: int
    batch: int
    """Sequences of a minibatch, fixed; a smaller one is padded with samples of weight 0."""
    device: str = "cpu"
    sequence: int = 1
    """Turns of a sequence; 1 for networks without a hidden state."""
    kernels: Kernels = "auto"

    @property
    def updates(self) -> int:
        return self.n_epochs * self.n_minibatches

    def init(self, identity: Identity, hyper: Sequence[Mapping[str, Any]]) -> LearnerState:
        """Return fresh learners, one mapping of hyper-parameters per agent."""
        return LearnerState(optimizer_state(self.network.init(identity), hyper, kernel.HYPER)).to(self.device)

    def learn(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> tuple[LearnerState, RoundResult]:
        """Return the state after one round of every agent, and the round's result."""
        if self.native:
            return learn_in_blocks(self._learn_compiled, state, snapshot, identity)
        numbers = numbers_per_update(self.network, WEIGHT_COPIES, self.batch * self.sequence)
        return learn_in_blocks(self._learn, state, snapshot, identity, lambda _: numbers)

    def _rollout(self, state: LearnerState, snapshot: Snapshot, identity: Identity) -> Rollout:
        shape = {"n_minibatches": self.n_minibatches, "batch": self.batch, "length": self.sequence}
        return Rollout(snapshot, state, identity, **shape)

    def _learn_compiled(self, new: LearnerState, snapshot: Snapshot, identity: Identity) -> RoundResult:
        """Train some agents for all updates of the round, in place in their rows of the new state, without torch."""
        rollout = self._rollout(new, snapshot, identity)
        samples = rollout.samples(snapshot.round, self.n_epochs)
        network = self.network.kernel
        hyper = np.stack([new[f"hyper.{name}"].numpy() for name in kernel.HYPER], axis=1)
        agents = kernel.Agents._make([*(new[name].numpy() for name in kernel.STATE), hyper])
        before = agents.updates.copy()
        results = kernel.Results(np.zeros((len(identity), len(kernel.METRICS))), np.zeros(len(identity), np.int64))
        scratch = kernel.Scratch.of(self.network.size, network, self.batch, samples.log_prob.shape[1])
        kernel.learn_ppo(network, self.n_minibatches, agents, samples, scratch, results)
        accepted = agents.updates - before
        metrics = dict(zip(kernel.METRICS, results.metrics.T, strict=True)) | sampling_metrics(snapshot)
        return RoundResult(snapshot.round, accepted, results.attempts - accepted, metrics)

    def _learn(self, new: LearnerState, snapshot: Snapshot, identity: Identity) -> RoundResult:
        """Train some agents for all updates of the round, in place in their rows of the new state."""
        before = new["updates"].cpu().numpy().copy()
        rollout = self._rollout(new, snapshot, identity)
        updates = Updates(self, new)
        if rollout.stops_early:
            stopping = np.isfinite(rollout.limits)[:, None]
            rollout.start = np.where(stopping, updates.log_probs(rollout), rollout.log_prob)
        chosen, weights = rollout.minibatches(snapshot.round, self.n_epochs)
        running = rollout.ready.copy()
        attempts = np.zeros(len(identity), np.int64)
        for pass_ in range(self.n_epochs):
            distance = np.zeros(len(identity))
            for update in range(pass_ * self.n_minibatches, (pass_ + 1) * self.n_minibatches):
                distance += updates.step(rollout, chosen[:, update], weights[:, update], running) / self.n_minibatches
                attempts += running & weights[:, update].any(axis=1)
            running = running & ~(distance > rollout.limits)
        new["updates"].copy_(torch.from_numpy(updates.count))
        accepted = updates.count - before
        metrics = updates.metrics() | sampling_metrics(snapshot)
        return RoundResult(snapshot.round, accepted, attempts - accepted, metrics)


class Rollout:
    """The trajectories of a round as one flat list of samples per agent, T·W places, and as sequences of places."""

    def __init__(
        self,
        snapshot: Snapshot,
        state: LearnerState,
        identity: Identity,
        *,
        n_minibatches: int,
        batch: int,
        length: int,
    ) -> None:
        self._identity, self._parts, self._batch = identity, n_minibatches, batch
        hyper = {name: state[f"hyper.{name}"].cpu().numpy() for name in ("gamma", "lambda", "target_kl")}
        agents, valid = len(identity), snapshot["valid"].reshape(len(identity), -1)
        raw_advantages = advantages(snapshot.columns, hyper["gamma"], hyper["lambda"]).reshape(agents, -1)
        self.sequences, self.inside = _sequences(snapshot["valid"].shape[1], snapshot["valid"].shape[2], length)
        self._valid: NDArray[np.bool_] = valid[:, self.sequences] & self.inside
        """(N, K, L) which places of the sequences are samples."""
        self.ready = snapshot["ready"] & self._valid.any(axis=(1, 2))
        self.limits = np.where(hyper["target_kl"] > 0, hyper["target_kl"], np.inf)
        self.stops_early = bool(np.isfinite(self.limits).any())
        places = valid.shape[1]
        self.observations = snapshot["observations"].reshape(agents, places, -1)
        self.actions = snapshot["actions"].reshape(agents, places, *snapshot["actions"].shape[3:])
        masks = snapshot.columns.get("masks")
        self.masks = None if masks is None else masks.reshape(agents, places, -1)
        self.log_prob = snapshot["log_prob"].reshape(agents, -1)
        self.start = self.log_prob
        """Log-probabilities that the early stop compares with."""
        self.values = snapshot["value"].reshape(agents, -1)
        self.returns = raw_advantages + self.values
        self.hidden = self.keep = None
        if "hidden" in snapshot.columns:
            self.hidden = snapshot["hidden"].reshape(agents, len(self.sequences), -1)
            self.keep = (snapshot["age"].reshape(agents, places) > 0).astype(np.float32)
        weights = snapshot.columns.get("sample_weights")
        self._weights = None if weights is None else _checked_weights(weights, valid)
        self.advantages = np.empty_like(raw_advantages)
        for n in range(agents):
            shares = np.empty(0, np.float32) if self._weights is None else self._weights[n]
            kernel.normalize_advantages(raw_advantages[n], valid[n], shares, self.advantages[n])
        self._drawn = None if "drawn" not in snapshot.columns else (snapshot["drawn"], snapshot["weights"])

    def minibatches(self, round_: int, passes: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the minibatches of all passes: sequences (N, U, B) and the weights (N, U, B·L) of their samples.

        Each agent has its own permutation in each pass. The weights of a minibatch sum to 1 where all samples weigh the
        same.
        """
        shape = (len(self._identity), passes * self._parts, self._batch)
        if self._drawn is not None:
            samples, corrections = self._drawn
            return samples.reshape(shape), (corrections / self._batch).astype(np.float32).reshape(shape)
        most = int(self._valid.any(axis=2).sum(axis=1).max())
        if most > self._parts * self._batch:
            raise ShapeError(f"{most} samples for {self._parts} minibatches of {self._batch}: give fewer at a time")
        keys = [
            key(seed, Purpose.PERMUTATION, agent)
            for seed, agent in zip(self._identity.seeds, self._identity.agents, strict=True)
        ]
        chosen = np.zeros(shape, np.int64)
        weights = np.zeros((*shape[:2], self._batch * self.sequences.shape[1]), np.float32)
        kernel.fill_minibatches(
            np.ascontiguousarray(self._valid),
            np.array(keys, np.uint64),
            np.uint64(round_),
            self._parts,
            self.sequences,
            np.empty((0, 0), np.float32) if self._weights is None else self._weights,
            chosen,
            weights,
        )
        return chosen, weights

    def samples(self, round_: int, passes: int) -> kernel.Samples:
        """Return the samples of all updates of a round, as compiled kernels read them."""
        chosen, weights = self.minibatches(round_, passes)
        gaussian = self.actions.dtype == np.float32
        actions = np.ascontiguousarray(self.actions).reshape(*self.log_prob.shape, -1)
        return kernel.Samples(
            observations=np.ascontiguousarray(self.observations, np.float32).reshape(-1),
            choices=np.empty((0, 0, 0), np.int64) if gaussian else actions,
            raw=actions if gaussian else np.empty((0, 0, 0), np.float32),
            masks=np.empty((0, 0, 0), np.bool_) if self.masks is None else np.ascontiguousarray(self.masks),
            log_prob=np.ascontiguousarray(self.log_prob, np.float32),
            values=np.ascontiguousarray(self.values, np.float32),
            returns=np.ascontiguousarray(self.returns, np.float32),
            advantages=self.advantages,
            chosen=chosen,
            weights=weights,
            ready=self.ready,
        )

    def places(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places (N, B·L) of sequences (N, B)."""
        return self.sequences[chosen].reshape(len(chosen), -1)


def _sequences(turns: int, worlds: int, length: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the places (K, L), turn·W + world, of all sequences of T turns, and which are inside the rollout.

    The last sequence of a world may be shorter.
    """
    rows = np.arange(0, turns, length)[:, None, None] + np.arange(length)
    places = np.minimum(rows, turns - 1) * worlds + np.arange(worlds)[:, None]
    return places.reshape(-1, length), np.broadcast_to(rows < turns, places.shape).reshape(-1, length)


def _checked_weights(weights: Array, valid: Array) -> NDArray[np.float32]:
    """Return sample weights (N, T, W) as (N, T·W); raise if they do not fit or are negative."""
    flat = np.asarray(weights, np.float32).reshape(len(weights), -1)
    if flat.shape != valid.shape:
        raise ShapeError(
            f"sample_weights of shape {np.shape(weights)} for {valid.shape} places: give one for each sample"
        )
    if not (np.isfinite(flat).all() and (flat >= 0).all()):
        raise NonFiniteError("sample_weights must be finite and not negative: check the shares they come from")
    return flat


class Updates:
    """Stacked updates, one after the other, on the same rows."""

    def __init__(self, learner: PPOLearner, state: LearnerState) -> None:
        self._network, self._device, self._batch = learner.network, learner.device, learner.batch
        self._rows = state["online"]
        self._weights = learner.network.leaves(self._rows)
        self._gradients = torch.empty_like(self._rows)
        self._optimizer = RowAdam(self._rows, self._gradients, state["first"], state["second"], state["steps"])
        self._rates = LearningRates(state)
        self._hyper = {name: state[f"hyper.{name}"].float()[:, None] for name in kernel.HYPER}
        self._clips_values = bool((state["hyper.value_clip"] > 0).any())
        self.count = state["updates"].cpu().numpy().copy()
        """(N,) accepted updates so far."""
        self._metrics: list[dict[str, Tensor]] = []

    def step(self, rollout: Rollout, chosen: NDArray[np.int64], weights: NDArray[np.float32], running: Array) -> Array:
        """Update the running agents once; return how far each policy is from the round's start (N,)."""
        places = rollout.places(chosen)
        columns = (
            "observations", "actions", "masks", "log_prob", "values", "returns", "advantages", "start", "keep",
        )  # fmt: skip
        batch = {name: self._gather(getattr(rollout, name), places) for name in columns}
        batch["hidden"] = self._gather(rollout.hidden, chosen)
        with torch.enable_grad():
            loss, distance = self._loss(batch, self._tensor(weights))
            gradient_rows(loss.sum(), self._network.layout, self._weights, self._gradients)
        with torch.no_grad():
            norm = clip_rows(self._gradients, self._hyper["clip"][:, 0])
            finite = torch.isfinite(loss) & torch.isfinite(norm)
            accepted = (finite.cpu().numpy() & running & weights.any(axis=1)).tolist()
            self._optimizer.step(self._rates.at(self.count), accepted)
        self.count += np.asarray(accepted)
        return np.asarray(distance.cpu().numpy(), np.float64)

    def _loss(self, batch: Mapping[str, Tensor | None], weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each agent (N,), and its distance from the round's start (N,).

        weight: (N, B·L); every term of a sample is weighted once.
        """
        given = {name: tensor for name, tensor in batch.items() if tensor is not None}
        hyper, masks = self._hyper, given.get("masks")
        outputs = self._outputs(given)
        policy, value = outputs[..., :-1], outputs[..., -1]
        log_prob = self._network.distribution.log_prob(policy, given["actions"], masks)
        ratio = torch.exp(log_prob - given["log_prob"])
        bound = hyper["ratio_clip"]
        clipped_ratio = torch.minimum(torch.maximum(ratio, 1.0 - bound), 1.0 + bound)
        surrogate = torch.minimum(ratio * given["advantages"], clipped_ratio * given["advantages"])
        error = (value - given["returns"]) ** 2
        if self._clips_values:
            clipped_error = self._clipped_error(value, given)
            error = torch.where(hyper["value_clip"] > 0, torch.maximum(error, clipped_error), error)
        entropy = self._network.distribution.entropy(policy, masks)
        each = -surrogate + hyper["value_weight"] * error - hyper["entropy"] * entropy
        loss = (weight * each).sum(-1)
        with torch.no_grad():
            gap = log_prob - given["start"]
            distance = (weight * (torch.exp(gap) - 1.0 - gap)).sum(-1)  # Schulman's low-variance estimate of the KL
            self._metrics.append(
                {
                    "policy_loss": -(weight * surrogate).sum(-1),
                    "value_loss": (weight * error).sum(-1),
                    "entropy": (weight * entropy).sum(-1),
                    "kl": distance,
                    "loss": loss.detach(),
                }
            )
        return loss, distance

    def _outputs(self, given: Mapping[str, Tensor]) -> Tensor:
        """Return network outputs (N, B·L, K), sequence by sequence where the network is recurrent."""
        observations = given["observations"]
        if "hidden" not in given:
            outputs: Tensor = self._network.forward(self._weights, observations)
            return outputs
        agents, sequences = given["hidden"].shape[:2]
        block = (agents, sequences, observations.shape[1] // sequences)
        outputs = self._network.unroll(
            self._weights, observations.reshape(*block, -1), given["hidden"], given["keep"].reshape(block)
        )
        return outputs.reshape(agents, observations.shape[1], -1)

    def _clipped_error(self, value: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        """Return the squared error of values that moved no further than their clip range."""
        bound = self._hyper["value_clip"]
        moved = torch.minimum(torch.maximum(value - given["values"], -bound), bound)
        return (given["values"] + moved - given["returns"]) ** 2

    def log_probs(self, rollout: Rollout) -> NDArray[np.float32]:
        """Return the log-probabilities (N, T·W) of all actions under the weights as they are now."""
        total = len(rollout.sequences)
        found = np.zeros(rollout.log_prob.shape, np.float32)
        with torch.no_grad():
            for first in range(0, total, self._batch):
                part = np.arange(first, first + self._batch) % total
                chosen = np.broadcast_to(part, (len(found), self._batch))
                places, inside = rollout.places(chosen), rollout.inside[part].reshape(-1)
                columns = {name: self._gather(getattr(rollout, name), places) for name in ("observations", "keep")}
                columns["hidden"] = self._gather(rollout.hidden, chosen)
                outputs = self._outputs({name: column for name, column in columns.items() if column is not None})
                masks, actions = self._gather(rollout.masks, places), self._gathered(rollout.actions, places)
                log_prob = self._network.distribution.log_prob(outputs[..., :-1], actions, masks)
                found[:, places[0, inside]] = log_prob.cpu().numpy()[:, inside]
        return found

    def metrics(self) -> dict[str, Array]:
        """Return means over the round (N,)."""
        return {
            name: np.asarray(torch.stack([metrics[name] for metrics in self._metrics]).mean(0).cpu().numpy())
            for name in self._metrics[0]
        }

    def _gather(self, column: Array | None, chosen: NDArray[np.int64]) -> Tensor | None:
        return None if column is None else self._gathered(column, chosen)

    def _gathered(self, column: Array, chosen: NDArray[np.int64]) -> Tensor:
        return self._tensor(column[np.arange(len(column))[:, None], chosen])

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)


# -- what users hold -------------------------------------------------------------------------------------------------


class PPO(Model):
    """A learner of a policy and a value.

    actions: a number of actions, a tuple of numbers for several choices at once, or a `Distribution`.
    rollout, epochs: turns and epochs between two rounds; an environment's `make_model` fills them in.
    network: a function that makes a fresh `torch.nn.Module` from (R, *obs_shape) to policy outputs and the value,
    (R, K + 1) or a pair; K is the number of actions, their sum, or for continuous ones means and log deviations.

    >>> model = PPO(obs_shape=(3,), actions=2, hidden=(8,))
    >>> model.take_action([0.0, 0.0, 1.0]) in (0, 1)
    True
    """

    spec: PPOSpec

    def __init__(
        self,
        obs_shape: int | tuple[int, ...],
        actions: int | tuple[int, ...] | Distribution,
        *,
        worlds: int = 1,
        rollout: int = 128,
        epochs: int = 1,
        network: Factory | None = None,
        **options: Any,
    ) -> None:
        chosen = build_section(PPOOptions, options, "model")
        if isinstance(actions, int):
            actions = Discrete(actions)
        elif isinstance(actions, tuple):
            actions = MultiDiscrete(actions)
        spec = PPOSpec(
            observation=(obs_shape,) if isinstance(obs_shape, int) else tuple(obs_shape),
            distribution=actions,
            worlds=worlds,
            hidden=chosen.widths if network is None else (),
            n_epochs=chosen.n_epochs,
            n_minibatches=chosen.n_minibatches,
            rollout=rollout,
            epochs=epochs,
            training_priority=chosen.training_priority,
            normalize=chosen.normalize,
            importance=chosen.importance is not None,
            convolutional=chosen.convolutional,
            sequence=chosen.sequence if chosen.recurrent else 0,
            architecture=None if network is None else user_architecture(network, options),
            kernels=chosen.kernels,
        )
        super().__init__(spec, chosen.hyper(), chosen)
        _ = self.spec.network  # refuses what does not fit, before anything runs

    @property
    def version(self) -> int:
        """How many updates made the weights that act now."""
        return int(self.state["updates"][0])

    def decide(self, state: Any, mask: Any = None) -> dict[str, Any]:
        """Return an action as `take_action` chooses it, with everything that `update_policy` needs of it."""
        actions, beside = self._choose(state, mask)
        names = {"log_prob": "log_probs", "value": "values", "raw": "raw"}
        columns = {names[name]: column[0, 0] for name, column in beside.items()}
        return {"actions": actions[0, 0], **columns, "versions": self.version}

    def update_policy(self, batch: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """Train for a round on T steps in their order, as `decide` returns them; see `external_update`.

        Each step's surrogate, value and entropy terms are weighted once; advantages come from the whole trajectory.
        """
        if self.spec.hidden_size:
            raise ContractError("update_policy() takes single steps, this network is recurrent: let a run train it")
        snapshot = trajectory_snapshot(batch, self.spec, version=self.version)
        steps = snapshot["valid"].shape[1] - 1
        return dict(train_on(self, snapshot, -(-steps // self.spec.n_minibatches)))

    def train_step(self) -> float:
        """Train on everything in memory, by the kernel of a run, and clear the memory; return the loss."""
        self.require_free("train_step()")
        now = DIRECT + self.version
        snapshot = self.spec.snapshot(self.memory.ring, self.identity, [self.hyper], now, 0, world=now)
        self.state, result = self.spec.learner().learn(self.state, snapshot, self.identity)
        self.memory.clear()
        return float(result.metrics["loss"][0])
