"""Compiled acting: from observations to actions for some agents of a stack, one agent at a time, without the lock.

`act` does what a turn needs in one call: frames, normalisation, forward pass, exploration or sampling, masks. The turn
of a Python world calls it once, and so does every turn of a compiled epoch (`engine.collect`), hence the same bytes.
Random numbers come from outside: they are drawn ahead, by address.

Shapes: N agents, W worlds, D numbers of an observation, F frames, K network outputs, A numbers of an action.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.types import Array
from parallel_agents.kernels.functions import cospi, exp, log, log1p, tanhf
from parallel_agents.kernels.intrinsics import WITH_BIAS, WITH_RELU, fma
from parallel_agents.kernels.mlp import ELU, RELU, TANH, activate
from parallel_agents.kernels.products import multiply

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

FEW = 8
"""Rows of inputs below which a product is as quick as its weights can be read."""
LIMIT = np.float32(10.0)
"""Normalised inputs are clipped to this many deviations."""
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)


class Rule(IntEnum):
    """How actions follow from network outputs."""

    EPSILON_GREEDY = 0
    CATEGORICAL = 1
    GAUSSIAN = 2


class Policy(NamedTuple):
    """What acting reads: the rule, the network as a program over packed weights, normalisation, choices, bounds."""

    rule: int
    program: NDArray[np.int64]
    """(L, 11) the layers in order, see `acting.network_program`."""
    weights: Floats
    """(N, P) each agent's row of weights."""
    centre: Floats
    """(N, F·D) subtracted from inputs; (N, 0): inputs are not normalised."""
    scale: Floats
    sizes: NDArray[np.int64]
    """Sizes of the discrete choices."""
    bounds: Floats
    """(2, A) lower and upper bounds of continuous actions."""


class Turn(NamedTuple):
    """What acting writes in a turn."""

    observations: Floats
    """(N, W, D) copies of what the agents observed."""
    actions: Array
    """(N, W, A)"""
    log_prob: Floats
    """(N, W, 1); (N, W, 0) where the rule needs none. So for the next two."""
    value: Floats
    raw: Floats
    masks: Bools
    """(N, W, choices) what was allowed; (N, W, 0): everything."""


class Scratch(NamedTuple):
    """Room for one agent's computation."""

    window: Floats
    """(N, W, F·D) the last frames, which stay from turn to turn; (N, W, 0) with one frame."""
    inputs: Floats
    """(W, F·D)"""
    outputs: Floats
    """(W, K)"""
    hidden: Floats
    """(3, W · widest layer) each"""


class Acting(NamedTuple):
    """Everything that acting reads and writes beside draws. It and the first three fields come by reference."""

    policy: Policy
    turn: Turn
    scratch: Scratch
    exploration: NDArray[np.float64]
    """(N,) the share of random actions, or 0 where the best are taken."""


@compiled_once
def _multiply_sparse(
    x: Floats, depth: int, row: Floats, weight: int, stride: int, y: Floats, worlds: int, bias: int, ending: int,
    room: Floats,
) -> bool:  # fmt: skip
    """Compute the first layer (W, stride) of mostly zero inputs (W, depth); return False, with nothing done, otherwise.

    The bytes are those of `multiply`: a term that is left out would add 0 to its sum. (At most the sign of a sum that
    is 0 differs, and the bias takes that away.) Reading the weights takes most of the time of a few rows.
    """
    for w in range(worlds):
        used = 0
        for k in range(depth):  # without a branch
            room[used] = k
            used += x[w * depth + k] != np.float32(0.0)
        if 2 * used > depth:
            return False
        sums, shift = y[w * stride : (w + 1) * stride], row[bias : bias + stride]
        sums[:] = np.float32(0.0)
        for index in range(used):
            k = int(room[index])
            factor, terms = x[w * depth + k], row[weight + k * stride : weight + (k + 1) * stride]
            for o in range(stride):
                sums[o] = fma(factor, terms[o], sums[o])
        for o in range(stride):
            total = sums[o] + shift[o]
            sums[o] = np.float32(0.0) if ending == WITH_RELU and total < np.float32(0.0) else total
    return True


@compiled_once
def forward(program: NDArray[np.int64], row: Floats, inputs: Floats, outputs: Floats, hidden: Floats) -> None:
    """Write one agent's outputs (W, K) from inputs (W, in) and its row of weights, a layer at a time."""
    worlds, width = inputs.shape
    flat = inputs.reshape(-1)
    for index in range(len(program)):
        depth, count, stride, weight, bias, activation, first, target, embedding, quantiles, dueling = program[index]
        x, y = hidden[1 - index % 2], hidden[index % 2]
        rows = worlds * max(quantiles, 1)
        if first:
            x, width = flat, inputs.shape[1]
        if quantiles:  # the layer's inputs are those of before, times the embedding of each quantile
            for w in range(worlds):
                for q in range(quantiles):
                    for k in range(depth):
                        hidden[2, (w * quantiles + q) * depth + k] = x[w * width + k] * row[embedding + q * depth + k]
            x, width = hidden[2], depth
        ending = WITH_RELU if activation == RELU else WITH_BIAS
        if not (
            first
            and worlds < FEW
            and _multiply_sparse(x, depth, row, weight, stride, y, worlds, bias, ending, hidden[2])
        ):
            multiply(x, 0, width, 1, row, weight, stride, y, 0, stride, rows, count, depth, row, bias, ending)
        values = y[: rows * stride].reshape(rows, stride)
        if activation in (TANH, ELU):
            activate(y[: rows * stride], activation)
        width = stride
        if quantiles:
            for w in range(worlds):
                for o in range(count):
                    total = np.float32(0.0)
                    for q in range(quantiles):
                        total += values[w * quantiles + q, o]
                    values[w, o] = total / np.float32(quantiles)
        for w in range(worlds if target >= 0 else 0):
            mean = np.float32(0.0)
            if dueling:
                for o in range(1, count):
                    mean += values[w, o]
                mean /= np.float32(count - 1)
            for o in range(dueling, count):
                outputs[w, target + o - dueling] = values[w, 0] + values[w, o] - mean if dueling else values[w, o]


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def embed_quantiles(layer: NDArray[np.int64], embedding: int, quantiles: int, rows: Floats) -> None:
    """Write the embedding of evenly spaced quantiles into rows (N, …), by the layer of the cosines.

    layer: its inputs, outputs, stride, and the places of weight and bias.
    """
    depth, count, stride, weight, bias = layer
    waves, embedded = np.empty(quantiles * depth, np.float32), np.empty(quantiles * stride, np.float32)
    for q in range(quantiles):
        for k in range(depth):
            waves[q * depth + k] = cospi((k + 1) * ((q + 0.5) / quantiles))
    for n in range(len(rows)):
        row = rows[n]
        multiply(
            waves, 0, depth, 1, row, weight, stride, embedded, 0, stride, quantiles, count, depth, row, bias, WITH_RELU
        )
        for q in range(quantiles):
            for o in range(count):
                row[embedding + q * count + o] = embedded[q * stride + o]


# -- a turn ----------------------------------------------------------------------------------------------------------


@compiled_once
def act(acting: Acting, draws: NDArray[np.float64], first: Bools) -> None:
    """Choose actions from `turn.observations` with draws (N, W, slots); first: (N, W) True where an episode starts."""
    for n in range(len(acting.exploration)):
        act_agent(acting, draws, first, n)


@compiled_once
def act_agent(acting: Acting, draws: NDArray[np.float64], first: Bools, n: int) -> None:
    """Choose the actions of one agent as `act` does."""
    policy, turn, scratch, exploration = acting.policy, acting.turn, acting.scratch, acting.exploration
    framed = scratch.window.shape[2] > 0
    if framed:
        _push_frames(scratch.window, turn.observations, first, n)
    observed = scratch.window[n] if framed else turn.observations[n]
    if policy.rule != Rule.EPSILON_GREEDY or not _explores(draws, exploration, n):
        _normalise(observed, policy.centre, policy.scale, n, scratch.inputs)
        forward(policy.program, policy.weights[n], scratch.inputs, scratch.outputs, scratch.hidden)
    choose(policy, turn, scratch.outputs, draws, exploration, n)


@compiled_once
def choose(
    policy: Policy,
    turn: Turn,
    outputs: Floats,
    draws: NDArray[np.float64],
    exploration: NDArray[np.float64],
    n: int,
) -> None:
    """Write one agent's actions, and what is stored beside them, from its network outputs (W, K)."""
    last = outputs.shape[1] - 1
    for w in range(len(outputs)):
        if policy.rule == Rule.EPSILON_GREEDY:
            turn.actions[n, w, 0] = epsilon_greedy_choice(outputs[w], draws[n, w], exploration[n], turn.masks[n, w])
            continue
        turn.value[n, w, 0] = outputs[w, last]
        if policy.rule == Rule.CATEGORICAL:
            log_prob = _sample(policy.sizes, outputs[w], draws[n, w], exploration[n], turn, n, w)
        else:
            log_prob = _sample_gaussian(policy.bounds, outputs[w], draws[n, w], exploration[n], turn, n, w)
        turn.log_prob[n, w, 0] = log_prob


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def choose_all(
    policy: Policy, turn: Turn, outputs: Floats, draws: NDArray[np.float64], exploration: NDArray[np.float64]
) -> None:
    """Write the actions of all agents from network outputs (N, W, K) that were computed elsewhere."""
    for n in range(len(outputs)):
        choose(policy, turn, outputs[n], draws, exploration, n)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def forward_all(
    program: NDArray[np.int64],
    weights: Floats,
    centre: Floats,
    scale: Floats,
    inputs: Floats,
    normal: Floats,
    hidden: Floats,
    outputs: Floats,
) -> None:
    """Write the outputs (N, W, K) of all agents from inputs (N, W, in)."""
    for n in range(len(inputs)):
        _normalise(inputs[n], centre, scale, n, normal)
        forward(program, weights[n], normal, outputs[n], hidden)


@compiled_once
def _push_frames(window: Floats, observations: Floats, first: Bools, n: int) -> None:
    """Append one agent's observations (N, W, D) to its window (N, W, F·D), which is empty where an episode starts."""
    size, length = observations.shape[2], window.shape[2]
    for w in range(observations.shape[1]):
        for d in range(length - size):
            window[n, w, d] = np.float32(0.0) if first[n, w] else window[n, w, d + size]
        for d in range(size):
            window[n, w, length - size + d] = observations[n, w, d]


@njit(cache=True, inline="always", error_model="numpy")  # type: ignore[untyped-decorator]
def _normalise(numbers: Floats, centre: Floats, scale: Floats, n: int, inputs: Floats) -> None:
    """Write one agent's network inputs (W, F·D); centre (N, 0): as they are."""
    normalised = centre.shape[1] > 0
    for w in range(inputs.shape[0]):
        for d in range(inputs.shape[1]):
            number = numbers[w, d]
            if normalised:
                number = min(max((number - centre[n, d]) * scale[n, d], -LIMIT), LIMIT)
            inputs[w, d] = number


@njit(cache=True, inline="always", error_model="numpy")  # type: ignore[untyped-decorator]
def _explores(draws: NDArray[np.float64], exploration: NDArray[np.float64], n: int) -> bool:
    """Return True if an agent explores in every world, so that nobody reads its network."""
    explores = True
    for w in range(draws.shape[1]):
        explores &= draws[n, w, 0] < exploration[n]
    return explores


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def epsilon_greedy_choice(values: Floats, draws: NDArray[np.float64], epsilon: float, mask: Bools) -> int:
    """Return the action of largest value (A,), or with probability `epsilon` any allowed one; an empty mask allows all.

    Both draws belong to the choice whether or not the agent explores, so that nothing shifts.
    """
    count = len(values)
    masked = len(mask) > 0
    if draws[0] < epsilon:
        allowed = 0
        for a in range(count):
            allowed += not masked or mask[a]
        left = int(draws[1] * allowed)
        for a in range(count):
            if not masked or mask[a]:
                if left == 0:
                    return a
                left -= 1
    best = -1
    for a in range(count):
        if (not masked or mask[a]) and (best < 0 or values[a] > values[best]):
            best = a
    return best


@compiled_once
def categorical_choice(
    logits: Floats, at: int, size: int, draw: float, explores: bool, mask: Bools
) -> tuple[int, float]:
    """Return one choice from logits at … at + size - 1, by the inverse of the distribution function, and its log-prob.

    Without exploration the choice is the most likely action.
    """
    masked = len(mask) > 0
    top, best = -np.inf, -1
    for a in range(size):
        if (not masked or mask[at + a]) and logits[at + a] > top:
            top, best = np.float64(logits[at + a]), a
    total = 0.0
    for a in range(size):
        if not masked or mask[at + a]:
            total += exp(np.float64(logits[at + a]) - top)
    if explores:
        left = draw * total
        for a in range(size):
            if not masked or mask[at + a]:
                best = a
                left -= exp(np.float64(logits[at + a]) - top)
                if left < 0.0:
                    break
    return best, np.float64(logits[at + best]) - top - log(total)


@njit(cache=True, inline="always", error_model="numpy")  # type: ignore[untyped-decorator]
def _sample(
    sizes: NDArray[np.int64], logits: Floats, draws: NDArray[np.float64], exploration: float, turn: Turn, n: int, w: int
) -> float:
    """Write an agent's choices in one world; return the sum of their log-probabilities."""
    at, log_prob = 0, 0.0
    for choice in range(len(sizes)):
        best, own = categorical_choice(logits, at, sizes[choice], draws[choice], exploration > 0.0, turn.masks[n, w])
        turn.actions[n, w, choice] = best
        log_prob += own
        at += sizes[choice]
    return log_prob


@njit(cache=True, inline="always", error_model="numpy")  # type: ignore[untyped-decorator]
def _sample_gaussian(
    bounds: Floats, outputs: Floats, draws: NDArray[np.float64], exploration: float, turn: Turn, n: int, w: int
) -> float:
    """Write an agent's unsquashed and squashed actions in one world (Box and Muller 1958); return the log-probability.

    outputs: means and log deviations; draws: two numbers of each action.
    """
    count, log_prob = bounds.shape[1], 0.0
    for a in range(count):
        mean, log_std = np.float64(outputs[a]), np.float64(outputs[count + a])
        normal = math.sqrt(-2.0 * log1p(-draws[a])) * cospi(2.0 * draws[count + a])
        raw = np.float32(mean + exp(log_std) * normal)
        score = (np.float64(raw) - mean) * exp(-log_std)
        wide = np.float64(raw)
        squash_term = 2.0 * (_LOG_TWO - wide - softplus(-2.0 * wide))  # log(1 - tanh²), without overflow
        log_prob += -0.5 * score * score - log_std - _HALF_LOG_TWO_PI - squash_term
        if exploration <= 0.0:
            raw = np.float32(mean)
        turn.raw[n, w, a] = raw
        share = np.float32(0.5) * tanhf(raw) + np.float32(0.5)
        turn.actions[n, w, a] = bounds[0, a] + (bounds[1, a] - bounds[0, a]) * share
    return log_prob


@njit(cache=True, inline="always", error_model="numpy")  # type: ignore[untyped-decorator]
def softplus(x: float) -> float:
    """Return log(1 + exp(x)) without overflow."""
    value: float = max(x, 0.0) + log1p(exp(-abs(x)))
    return value
