"""Choose actions: draws, frames, recurrent state, one batched forward pass, exploration.

Shapes: N agents, W worlds, D numbers of an observation, F frames, A actions, K network outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parallel_agents.core.compiled import njit
from parallel_agents.core.errors import ActionError, ShapeError
from parallel_agents.core.seeding import Identity, Purpose, uniforms
from parallel_agents.core.types import Array
from parallel_agents.nn import ActingNetwork, Forward
from parallel_agents.nn.layers import tile_rows

# -- draws -----------------------------------------------------------------------------------------------------------

BLOCK_NUMBERS = 500_000
"""Random numbers that are drawn ahead, at most."""


class ActionDraws:
    """Uniform numbers for every agent, world and turn, drawn a block of turns at a time.

    Agents that cannot act or do not explore have their numbers too, so that nothing shifts.
    """

    def __init__(self, identity: Identity, worlds: Sequence[int], slots: int, purpose: Purpose = Purpose.ACT) -> None:
        self._identity, self._worlds, self._slots, self._purpose = identity, tuple(worlds), slots, purpose
        self._turns = max(1, min(256, BLOCK_NUMBERS // max(1, len(identity) * len(self._worlds) * slots)))
        self._position = (-1, -1)
        self._block = np.empty((0, 0, 0, 0))

    def at(self, epoch: int, turn: int) -> NDArray[np.float64]:
        """Return the numbers of a turn, (N, W, slots) in [0, 1)."""
        position = (epoch, turn // self._turns)
        if position != self._position:
            self._block = uniforms(
                self._identity.seeds,
                self._purpose,
                self._identity.agents,
                self._worlds,
                epoch=epoch,
                turns=self._turns,
                slots=self._slots,
                first_turn=position[1] * self._turns,
            )
            self._position = position
        return np.asarray(self._block[turn % self._turns])


# -- what a network sees ---------------------------------------------------------------------------------------------


class FrameStack:
    """The last F observations of every agent and world as one input; zeros before an episode's start.

    >>> frames = FrameStack(agents=1, worlds=1, size=1, count=3)
    >>> frames.push(np.array([[[5.0]]], np.float32), np.array([[True]])).tolist()
    [[[0.0, 0.0, 5.0]]]
    >>> frames.push(np.array([[[6.0]]], np.float32), np.array([[False]])).tolist()
    [[[0.0, 5.0, 6.0]]]
    """

    def __init__(self, agents: int, worlds: int, size: int, count: int, dtype: str = "float32") -> None:
        self.count = count
        self.size = size
        self.window = np.zeros((agents, worlds, count * size), dtype)

    def push(self, observations: Array, first: Array) -> Array:
        """Return (N, W, F·D), oldest frame first, after new observations (N, W, D).

        first: (N, W) bool, True where the turn is the first of an episode.
        """
        if self.count == 1:
            return observations
        window = np.empty_like(self.window)
        window[..., : -self.size] = self.window[..., self.size :]
        window[first, : -self.size] = 0
        window[..., -self.size :] = observations
        self.window = window
        return window

    def replace(self, index: int, observations: Array) -> Array:
        """Replace one agent's newest observations by (W, D) in the same turn; return its (W, F·D)."""
        if self.count == 1:
            return observations
        self.window[index, :, -self.size :] = observations
        return np.asarray(self.window[index])


class RecurrentState:
    """The hidden state that recurrent networks carry from turn to turn, per agent and world; none where `size` is 0.

    It enters a network beside the observation and leaves it beside the outputs. It starts at zero with each episode.
    `before` is the state from which the newest turn started: an agent that observes again in the same turn starts from
    it once more, and so does learning.
    """

    def __init__(self, agents: int, worlds: int, size: int) -> None:
        self.size = size
        self.before: NDArray[np.float32] = np.zeros((agents, worlds, size), np.float32)
        self.after = self.before

    def inputs(self, observations: Array, first: Array) -> Array:
        """Return network inputs (N, W, D + size); first: (N, W) bool, True where an episode starts."""
        if not self.size:
            return observations
        self.before = np.where(first[..., None], np.float32(0.0), self.after)
        return np.concatenate([observations, self.before], -1)

    def outputs(self, outputs: Array) -> Array:
        """Return outputs (N, W, K) and keep the new states from network outputs (N, W, K + size)."""
        if not self.size:
            return outputs
        self.after = np.ascontiguousarray(outputs[..., -self.size :])
        return np.ascontiguousarray(outputs[..., : -self.size])

    def inputs_again(self, row: int, observations: Array) -> Array:
        """Return one agent's network inputs (W, D + size) for newer observations in the same turn."""
        return np.concatenate([observations, self.before[row]], -1) if self.size else observations

    def outputs_again(self, row: int, outputs: Array) -> Array:
        """Return one agent's outputs (W, K) and keep its new state, in the same turn."""
        if not self.size:
            return outputs
        self.after[row] = outputs[..., -self.size :]
        return np.ascontiguousarray(outputs[..., : -self.size])

    def inputs_ahead(self, observations: Array) -> Array:
        """Return network inputs (N, W, D + size) for a turn that has not begun; keep nothing."""
        return np.concatenate([observations, self.after], -1) if self.size else observations

    def outputs_ahead(self, outputs: Array) -> Array:
        """Return outputs (N, W, K) for a turn that has not begun; keep nothing."""
        return outputs[..., : -self.size] if self.size else outputs

    def columns(self) -> dict[str, Any]:
        """Return what is stored with the turn's transitions."""
        return {"hidden": self.before} if self.size else {}


# -- the forward pass ------------------------------------------------------------------------------------------------

CALL_WEIGHTS = 200_000
"""The overhead of one agent's forward pass, in weights that could be read in that time."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A published version of the weights of a stack."""

    version: int
    rows: Tensor
    """(N, P)"""


class Inference:
    """Compute the outputs of all agents of a stack: in one batched forward pass, or one per agent with the same bytes.

    The number of rows per agent is fixed: worlds go through in tiles, the last one padded. So a recomputation of one
    agent, or a stack of one, has the same shape per agent, and the same bytes.
    """

    def __init__(
        self, network: ActingNetwork, agents: int, worlds: int, *, together: bool, device: str = "cpu"
    ) -> None:
        self.network = network
        self.agents = agents
        self.worlds = worlds
        self.device = device
        self.tile = tile_rows(worlds)
        self.weights = Weights(0, torch.empty(0, 0))
        """The acting weights. Assign new ones to publish them: they are never written in place, so that is one swap."""
        self._parts = [slice(0, agents)] if together else [slice(n, n + 1) for n in range(agents)]
        self._bound_weights: Weights | None = None
        self._bound: list[tuple[slice, Forward]] = []
        self._single: dict[int, Forward] = {}

    @property
    def version(self) -> int:
        return self.weights.version

    @property
    def skips_agents(self) -> bool:
        """True where the networks are so large that leaving out some agents saves time."""
        return self.agents * self.weights.rows.shape[1] > CALL_WEIGHTS

    def forward(self, inputs: Array) -> Array:
        """Return (N, W, out) from (N, W, in)."""
        self._bind()
        x = self._tensor(inputs)
        with torch.inference_mode():
            if len(self._bound) == 1:
                return self._array(self._in_tiles(self._bound[0][1], x))
            return self._array(torch.cat([self._in_tiles(forward, x[part]) for part, forward in self._bound]))

    def forward_some(self, inputs: Array, needed: Array, outputs: int) -> Array:
        """Return what `forward` returns for the agents of the (N,) mask, byte for byte; others may get zeros."""
        one, chosen = self.weights.rows.shape[1], np.flatnonzero(needed).tolist()
        if len(self._parts) == 1 and len(chosen) * (one + CALL_WEIGHTS) >= self.agents * one + CALL_WEIGHTS:
            return self.forward(inputs)  # together is quicker
        found = np.zeros((self.agents, self.worlds, outputs), np.float32)
        for n in chosen:
            found[n] = self.forward_agent(n, inputs[n])
        return found

    def forward_agent(self, index: int, inputs: Array) -> Array:
        """Return one agent's (W, out) from (W, in), the bytes that `forward` gives it."""
        self._bind()
        if index not in self._single:
            self._single[index] = self.network.bound_forward(self.weights.rows[index : index + 1])
        with torch.inference_mode():
            return self._array(self._in_tiles(self._single[index], self._tensor(inputs[None]))[0])

    def _bind(self) -> None:
        """Prepare the network for the acting weights where they are new."""
        if self._bound_weights is not self.weights:
            weights = self.weights
            self._bound = [(part, self.network.bound_forward(weights.rows[part])) for part in self._parts]
            self._single = {}
            self._bound_weights = weights

    def _tensor(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device == "cpu" else tensor.to(self.device)

    def _array(self, tensor: Tensor) -> Array:
        array: Array = (tensor if self.device == "cpu" else tensor.cpu()).numpy()
        return array

    def _in_tiles(self, forward: Forward, x: Tensor) -> Tensor:
        if self.worlds == self.tile:
            return forward(x)
        outputs = []
        for first in range(0, self.worlds, self.tile):
            part = x[:, first : first + self.tile]
            missing = self.tile - part.shape[1]
            if missing:
                part = torch.nn.functional.pad(part, (0, 0, 0, missing))
            outputs.append(forward(part.contiguous())[:, : self.tile - missing])
        return torch.cat(outputs, 1)


# -- exploration -----------------------------------------------------------------------------------------------------

EPSILON_SLOTS = 2
"""Draws of one ε-greedy choice: whether to explore, and which action."""


def epsilon_greedy(
    values: Array, draws: NDArray[np.float64], epsilons: NDArray[np.float64], masks: Array | None = None
) -> NDArray[np.int64]:
    """Return actions (N, W) from values (N, W, A), draws (N, W, 2), epsilons (N,) and masks (N, W, A) bool.

    Both draws are spent whether or not the agent explores, so that nothing shifts.

    >>> epsilon_greedy(np.array([[[0.0, 2.0, 1.0]]]), np.array([[[0.9, 0.5]]]), np.array([0.1])).item()
    1
    """
    if masks is None:
        masks = _all_allowed(values.shape)
    elif masks.shape != values.shape:
        raise ShapeError(f"action masks of shape {masks.shape}: wanted is (agents, worlds, actions) = {values.shape}")
    else:
        _check_masks(masks)
    actions = np.empty(values.shape[:2], np.int64)
    _epsilon_greedy(values, draws, epsilons, masks, actions)
    return actions


def needs_forward(draws: NDArray[np.float64], epsilons: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (N,) bool, True where an agent does not explore in every world: only then are its values read.

    >>> needs_forward(np.array([[[0.9, 0.5]], [[0.1, 0.5]]]), np.array([0.6, 0.6])).tolist()
    [True, False]
    """
    return np.asarray((draws[..., 0] >= epsilons[:, None]).any(axis=1))


@lru_cache(maxsize=16)
def _all_allowed(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return a mask that allows everything; it is never written to, hence shared."""
    return np.ones(shape, np.bool_)


def _check_masks(masks: Array) -> None:
    """Raise ActionError where a mask (N, W, A) forbids every action."""
    if not masks.any(axis=-1).all():
        agent, world = np.argwhere(~masks.any(axis=-1))[0]
        raise ActionError(f"the action mask of agent {agent} in world {world} forbids every action: allow at least one")


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _epsilon_greedy(values: Array, draws: Array, epsilons: Array, masks: Array, actions: Array) -> None:
    agents, worlds, count = values.shape
    for n in range(agents):
        for w in range(worlds):
            best, allowed = -1, 0
            for a in range(count):
                if masks[n, w, a]:
                    allowed += 1
                    if best < 0 or values[n, w, a] > values[n, w, best]:
                        best = a
            if draws[n, w, 0] < epsilons[n]:
                left = int(draws[n, w, 1] * allowed)
                for a in range(count):
                    if masks[n, w, a]:
                        if left == 0:
                            best = a
                            break
                        left -= 1
            actions[n, w] = best


def sample_categorical(
    logits: Array, draws: NDArray[np.float64], sizes: tuple[int, ...], masks: Array | None
) -> tuple[Array, Array]:
    """Return actions (N, W, choices) and log-probabilities (N, W), drawn from softmax policies.

    logits (N, W, sum of sizes), draws (N, W, choices). Drawn by the inverse of the distribution function.
    """
    agents, worlds = logits.shape[:2]
    allowed = _all_allowed(logits.shape) if masks is None else masks
    actions = np.empty((agents, worlds, len(sizes)), np.int64)
    log_prob = np.zeros((agents, worlds), np.float32)
    first = 0
    for choice, size in enumerate(sizes):
        part = np.ascontiguousarray(allowed[..., first : first + size])
        if masks is not None:
            _check_masks(part)
        _sample_categorical(logits, draws, part, first, choice, actions, log_prob)
        first += size
    return actions, log_prob


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _sample_categorical(
    logits: Array, draws: Array, allowed: Array, first: int, choice: int, actions: Array, log_prob: Array
) -> None:
    agents, worlds, size = allowed.shape
    for n in range(agents):
        for w in range(worlds):
            top = -np.inf
            for a in range(size):
                if allowed[n, w, a]:
                    top = max(top, logits[n, w, first + a])
            total = 0.0
            for a in range(size):
                if allowed[n, w, a]:
                    total += np.exp(np.float64(logits[n, w, first + a]) - top)
            left = draws[n, w, choice] * total
            best = -1
            for a in range(size):
                if allowed[n, w, a]:
                    best = a
                    left -= np.exp(np.float64(logits[n, w, first + a]) - top)
                    if left < 0.0:
                        break
            actions[n, w, choice] = best
            log_prob[n, w] += np.float64(logits[n, w, first + best]) - top - np.log(total)


def most_likely(logits: Array, sizes: tuple[int, ...], masks: Array | None) -> Array:
    """Return the most likely action of each choice, (N, W, choices), from logits (N, W, sum of sizes)."""
    masked = logits if masks is None else np.where(masks, logits, -np.inf)
    cuts = np.cumsum(sizes)[:-1]
    return np.stack([part.argmax(-1) for part in np.split(masked, cuts, axis=-1)], axis=-1)


def sample_gaussian(outputs: Array, draws: NDArray[np.float64]) -> tuple[Array, Array]:
    """Return unsquashed actions (N, W, A) and log-probabilities (N, W) of the squashed ones.

    outputs (N, W, 2·A): means and log deviations; draws (N, W, 2·A). Box and Muller 1958.
    """
    mean, log_std = np.split(outputs.astype(np.float64), 2, axis=-1)
    first, second = np.split(draws, 2, axis=-1)
    normal = np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * np.pi * second)
    raw = (mean + np.exp(log_std) * normal).astype(np.float32)
    score = (raw - mean) * np.exp(-log_std)
    squash_term = 2.0 * (np.log(2.0) - raw - np.logaddexp(0.0, -2.0 * raw.astype(np.float64)))
    log_prob = (-0.5 * score**2 - log_std - 0.5 * np.log(2.0 * np.pi) - squash_term).sum(-1)
    return raw, log_prob.astype(np.float32)


def squash(raw: Array, low: tuple[float, ...], high: tuple[float, ...]) -> Array:
    """Return (…, A) numbers squashed into their bounds by tanh.

    >>> squash(np.array([0.0, 50.0]), (-2.0, 0.0), (2.0, 1.0)).tolist()
    [0.0, 1.0]
    """
    below, above = np.asarray(low, np.float32), np.asarray(high, np.float32)
    return np.asarray(below + (above - below) * (0.5 * np.tanh(raw) + 0.5), np.float32)
