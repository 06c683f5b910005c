"""Whole rounds of proximal policy optimisation, one agent after the other (Schulman et al. 2017).

`learn_ppo` does what `algorithms.ppo.Updates` does with torch; tests compare them for every option. The lock of the
interpreter is released, and nothing is allocated: results and scratch are the caller's arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.seeding import shuffle
from parallel_agents.core.types import Array
from parallel_agents.kernels.functions import expf, log1pf, logf
from parallel_agents.kernels.intrinsics import BLOCK
from parallel_agents.kernels.mlp import INPUTS, OUTPUTS, STRIDE, TANH, backward, forward
from parallel_agents.kernels.optimizer import CHAINS, adam, clip_factor, squared_norm
from parallel_agents.kernels.schedules import scheduled

HYPER = (
    "lr", "lr_final", "lr_updates", "lr_shape", "clip", "ratio_clip", "value_clip", "value_weight",
    "entropy", "gamma", "lambda", "target_kl",
)  # fmt: skip
"""Hyper-parameters that an update reads: the columns of `Agents.hyper`."""
LR, LR_FINAL, LR_UPDATES, LR_SHAPE, CLIP, RATIO_CLIP, VALUE_CLIP, VALUE_WEIGHT, ENTROPY, _, _, TARGET_KL = range(12)
STATE = ("online", "first", "second", "steps", "updates")
"""Tensors of a learner's state: the fields of `Agents` before `hyper`."""
METRICS = ("policy_loss", "value_loss", "entropy", "kl", "loss")
"""Columns of `Results.metrics`."""
TERMS = 13
LOG_PROB, BEFORE, START, ADVANTAGE, RETURN, VALUE_BEFORE = range(6)
SURROGATE, SLOPE, ENTROPIES, ERROR, DISTANCE, FIRST, SECOND = range(6, TERMS)
"""Rows of `Scratch.terms`; FIRST and SECOND are room for what the next step reads."""
MASKED = np.float32(-1e9)
"""Logit of a forbidden action: not -infinity, so that gradients stay finite."""
_HALF_LOG_2_PI = np.float32(0.9189385332046727)
_HALF_LOG_2_PI_E = np.float32(1.4189385332046727)
_LOG_2 = np.float32(0.6931471805599453)
_ZERO, _HALF, _ONE, _TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)


class Network(NamedTuple):
    """A policy and a value network in one row."""

    policy: Array
    """int64 (L, 5), as `kernels.mlp` describes layers; so is `value`."""
    value: Array
    sizes: Array
    """int64: sizes of the choices of an action; empty for a Gaussian."""
    log_std: int
    """Place of a Gaussian's log deviations in the row."""


class Agents(NamedTuple):
    """The states of N agents; written in place."""

    online: Array
    """(N, P) float32; so are Adam's moments."""
    first: Array
    second: Array
    steps: Array
    """(N,) float32: Adam's steps."""
    updates: Array
    """(N,) int64: updates accepted so far."""
    hyper: Array
    """(N, 12) float64, by the columns of `HYPER`."""


class Samples(NamedTuple):
    """What a round reads: K samples of each agent, and those that each of U updates takes."""

    observations: Array
    """Flat float32 (N·K·D)."""
    choices: Array
    """(N, K, C) int64: chosen actions; (0, 0, 0) for a Gaussian."""
    raw: Array
    """(N, K, A) float32: actions before squashing; (0, 0, 0) for choices."""
    masks: Array
    """(N, K, sum of sizes) bool; (0, 0, 0): every action is allowed."""
    log_prob: Array
    """(N, K) float32, of the weights that acted."""
    values: Array
    returns: Array
    advantages: Array
    chosen: Array
    """(N, U, B) int64: the samples of each update."""
    weights: Array
    """(N, U, B) float32; 0 for padding."""
    ready: Array
    """(N,) bool: who learns."""


class Results(NamedTuple):
    """What a round gives beside the states."""

    metrics: Array
    """(N, 5) float64, means over the updates, by the columns of `METRICS`."""
    attempts: Array
    """(N,) int64."""


class Scratch(NamedTuple):
    """Room for one agent's update."""

    places: Array
    """int64 (B)."""
    gradient: Array
    """(P) float32, zero where a row is padded."""
    sums: Array
    """(32) float32."""
    inputs: Array
    """float32: the observations of a minibatch."""
    outputs: Array
    """float32: the outputs of all layers of both networks."""
    deltas: Array
    room: Array
    """float32, for `mlp.forward` and `mlp.backward`."""
    terms: Array
    """float32 (13, B): numbers of each sample of a minibatch."""
    logs: Array
    """float32 (A, B): log-probabilities of all actions, or a Gaussian's means."""
    slopes: Array
    """float32 (A, B): their gradients."""
    start: Array
    """(K) float32: log-probabilities that the early stop compares with."""

    @staticmethod
    def of(size: int, network: Network, batch: int, samples: int) -> Scratch:
        """Return room for rows of this size, minibatches of this size and so many samples."""
        layers = np.concatenate([network.policy, network.value])
        outputs = batch * int(layers[:, STRIDE].sum())
        columns = int(network.policy[-1, OUTPUTS])
        largest = int((layers[:, INPUTS] * layers[:, STRIDE]).max())
        observed, room = batch * int(layers[0, INPUTS]), max(largest, batch * (int(layers[-1, INPUTS]) + BLOCK))
        shapes = (
            size, CHAINS, observed, outputs, outputs, room, (TERMS, batch), (columns, batch), (columns, batch), samples,
        )  # fmt: skip
        return Scratch(np.zeros(batch, np.int64), *(np.zeros(shape, np.float32) for shape in shapes))


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def normalize_advantages(advantages: Array, valid: Array, weights: Array, out: Array) -> None:
    """Write advantages (K) with mean 0 and deviation 1 over the valid samples (K), weighted by weights (K) or (0)."""
    total, mean, square, count = 0.0, 0.0, 0.0, 0
    for k in range(len(advantages)):
        if valid[k]:
            share = np.float64(weights[k]) if len(weights) else 1.0
            total += share
            mean += share * np.float64(advantages[k])
            count += 1
    for k in range(len(advantages)):  # a loop, since copying a slice takes long to compile
        out[k] = advantages[k]
    if count < 2:
        return
    total = max(total, 1e-300)  # if all weights are 0, nothing is learned from these samples anyway
    mean /= total
    for k in range(len(advantages)):
        if valid[k]:
            share = np.float64(weights[k]) if len(weights) else 1.0
            gap = np.float64(advantages[k]) - mean
            square += share * (gap * gap)
    deviation = np.sqrt(square / total) + 1e-8
    for k in range(len(advantages)):
        out[k] = np.float32((np.float64(advantages[k]) - mean) / deviation)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def fill_minibatches(
    valid: Array, keys: Array, round_: np.uint64, parts: int, places: Array, shares: Array, chosen: Array,
    weights: Array,
) -> None:  # fmt: skip
    """Write the sequences (N, U, B) of all updates, and the weights (N, U, B·L) of their samples.

    Each agent has its own permutation in each pass. valid: (N, K, L) which places of K sequences are samples. keys:
    (N, 2) of the permutations. parts: minibatches of a pass. places: (K, L). shares: (N, T·W) weights of the samples;
    (0, 0): all weigh the same, and their weights in a minibatch sum to 1. chosen and weights hold zeros, and have room
    for the minibatches.
    """
    agents, count, length = valid.shape
    order = np.empty(count, np.int64)
    for n in range(agents):
        for first in range(0, chosen.shape[1], parts):
            usable = 0
            for k in range(count):
                order[usable] = k
                some = False
                for j in range(length):
                    some |= valid[n, k, j]
                usable += some
            shuffle(order[:usable], keys[n, 0], keys[n, 1], np.uint64(first // parts), round_, np.uint64(0))
            start = 0
            for update in range(first, first + parts):
                size = usable // parts + (update - first < usable % parts)
                samples = 0
                for i in range(size):
                    chosen[n, update, i] = order[start + i]
                    for j in range(length):
                        samples += valid[n, order[start + i], j]
                share = np.float32(1.0 / max(1, samples))
                for i in range(size):
                    k = order[start + i]
                    for j in range(length):
                        if valid[n, k, j]:
                            own = shares[n, places[k, j]] if len(shares) else _ONE
                            weights[n, update, i * length + j] = share * own
                start += size


@compiled_once
def _log_softmax(logs: Array, size: int, rows: int, top: Array, total: Array) -> None:
    """Replace the logits (size, rows) of one choice by log-probabilities; top, total: room for `rows` numbers."""
    for r in range(rows):
        top[r], total[r] = np.float32(-np.inf), _ZERO
    for a in range(size):
        own = logs[a]
        for r in range(rows):
            top[r] = own[r] if own[r] > top[r] or own[r] != own[r] else top[r]
    for a in range(size):
        own = logs[a]
        for r in range(rows):
            total[r] += expf(own[r] - top[r])
    for r in range(rows):
        top[r] += logf(total[r])
    for a in range(size):
        own = logs[a]
        for r in range(rows):
            own[r] -= top[r]


@compiled_once
def _gaussian_log_prob(actions: Array, means: Array, log_std: np.float32, rows: int, out: Array) -> None:
    """Add the log-probabilities of one number of the actions, before squashing, to `out` (rows)."""
    inverse_std = expf(-log_std)
    for r in range(rows):
        score = (actions[r] - means[r]) * inverse_std
        inverse = -_TWO * actions[r]
        softplus = (inverse if inverse > _ZERO else _ZERO) + log1pf(expf(-abs(inverse)))
        squash = _TWO * (_LOG_2 - actions[r] - softplus)  # log(1 - tanh²), without overflow
        out[r] += -_HALF * score * score - log_std - _HALF_LOG_2_PI - squash


@compiled_once
def _log_probs(
    network: Network, parameters: Array, samples: Samples, n: int, chosen: Array, rows: int, outputs: Array, at: int,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Write the log-probabilities of the actions of some samples to `terms[LOG_PROB]`, those of choices to `logs`.

    outputs: of the policy, from `at` on. For a Gaussian, actions and means are written to `slopes` and `logs`.
    """
    terms, logs, stride = scratch.terms, scratch.logs, network.policy[-1, STRIDE]
    log_prob = terms[LOG_PROB]
    for r in range(rows):
        log_prob[r] = _ZERO
        for a in range(network.policy[-1, OUTPUTS]):
            logs[a, r] = outputs[at + r * stride + a]
    if len(network.sizes) == 0:
        for a in range(samples.raw.shape[2]):
            for r in range(rows):
                scratch.slopes[a, r] = samples.raw[n, chosen[r], a]
            _gaussian_log_prob(scratch.slopes[a], logs[a], parameters[n, network.log_std + a], rows, log_prob)
        return
    if samples.masks.shape[0]:
        for r in range(rows):
            for a in range(samples.masks.shape[2]):
                if not samples.masks[n, chosen[r], a]:
                    logs[a, r] = MASKED
    first = 0
    for c in range(len(network.sizes)):
        _log_softmax(logs[first:], network.sizes[c], rows, terms[FIRST], terms[SECOND])
        for r in range(rows):
            log_prob[r] += logs[first + samples.choices[n, chosen[r], c], r]
        first += network.sizes[c]


@compiled_once
def _choice_slopes(
    logs: Array, slopes: Array, size: int, rows: int, of_log_prob: Array, weights: Array, entropy_weight: np.float32,
    own: Array, entropy: Array,
) -> None:  # fmt: skip
    """Write the gradients (size, rows) of one choice's logits, but for the chosen ones; add its entropy to `entropy`.

    own: room for `rows` numbers.
    """
    for r in range(rows):
        own[r] = _ZERO
    for a in range(size):
        log, share = logs[a], slopes[a]
        for r in range(rows):
            share[r] = expf(log[r])
            own[r] -= share[r] * log[r]
    for a in range(size):
        log, slope = logs[a], slopes[a]
        for r in range(rows):
            of_entropy = -weights[r] * entropy_weight
            slope[r] = -slope[r] * (of_log_prob[r] + of_entropy * (log[r] + own[r]))
    for r in range(rows):
        entropy[r] += own[r]


@compiled_once
def _policy_gradient(
    network: Network, parameters: Array, samples: Samples, n: int, chosen: Array, rows: int, weights: Array,
    entropy_weight: np.float32, deltas: Array, at: int, scratch: Scratch,
) -> None:  # fmt: skip
    """Write the gradients of policy outputs from `at` on and those of log deviations, and `terms[ENTROPIES]`.

    `terms[SLOPE]` holds the gradients of the log-probabilities, `logs` and `slopes` what `_log_probs` wrote.
    """
    terms, logs, slopes, stride = scratch.terms, scratch.logs, scratch.slopes, network.policy[-1, STRIDE]
    of_log_prob, entropy = terms[SLOPE], terms[ENTROPIES]
    for r in range(rows):
        entropy[r] = _ZERO
    first = 0
    for c in range(len(network.sizes)):
        size = network.sizes[c]
        _choice_slopes(
            logs[first:], slopes[first:], size, rows, of_log_prob, weights, entropy_weight, terms[FIRST], entropy
        )  # fmt: skip
        for r in range(rows):
            slopes[first + samples.choices[n, chosen[r], c], r] += of_log_prob[r]
        first += size
    if samples.masks.shape[0]:
        for r in range(rows):
            for a in range(first):
                if not samples.masks[n, chosen[r], a]:
                    slopes[a, r] = _ZERO
    for a in range(samples.raw.shape[2]):
        log_std, total = parameters[n, network.log_std + a], _ZERO
        inverse = expf(-log_std)
        for r in range(rows):
            score = (slopes[a, r] - logs[a, r]) * inverse
            slopes[a, r] = of_log_prob[r] * score * inverse
            total += of_log_prob[r] * (score * score - _ONE) - weights[r] * entropy_weight
            entropy[r] += log_std + _HALF_LOG_2_PI_E
        scratch.gradient[network.log_std + a] = total
    for r in range(rows):
        for a in range(network.policy[-1, OUTPUTS]):
            deltas[at + r * stride + a] = slopes[a, r]


@compiled_once
def _clip_ratios(
    log_prob: Array, before: Array, advantages: Array, weights: Array, rows: int, bound: np.float32, surrogate: Array,
    of_log_prob: Array,
) -> None:  # fmt: skip
    """Write the surrogates (rows) and the gradients of the loss with respect to the log-probabilities (rows)."""
    for r in range(rows):
        ratio, advantage = expf(log_prob[r] - before[r]), advantages[r]
        clipped = ratio
        if ratio < _ONE - bound:
            clipped = _ONE - bound
        if ratio > _ONE + bound:
            clipped = _ONE + bound
        gain, cut, slope = ratio * advantage, clipped * advantage, advantage
        if cut < gain:
            gain, slope = cut, _ZERO
        surrogate[r], of_log_prob[r] = gain, -weights[r] * slope * ratio


@compiled_once
def _value_errors(
    found: Array, before: Array, returns: Array, rows: int, bound: np.float32, errors: Array, slopes: Array
) -> None:
    """Write the squared errors of values (rows), and their derivatives."""
    for r in range(rows):
        gap = found[r] - returns[r]
        errors[r], slopes[r] = gap * gap, _TWO * gap
    if bound > _ZERO:
        for r in range(rows):
            moved = found[r] - before[r]
            if not abs(moved) <= bound:
                far = before[r] + (bound if moved > _ZERO else -bound) - returns[r]
                if far * far > errors[r]:
                    errors[r], slopes[r] = far * far, _ZERO


@compiled_once
def _distances(log_prob: Array, start: Array, rows: int, out: Array) -> None:
    """Write Schulman's low-variance estimates (rows) of the KL divergence."""
    for r in range(rows):
        moved = log_prob[r] - start[r]
        out[r] = expf(moved) - _ONE - moved


@compiled_once
def _start_log_probs(network: Network, agents: Agents, samples: Samples, n: int, scratch: Scratch) -> None:
    """Write the log-probabilities of all of agent n's samples under its weights as they are now."""
    inputs, batch = network.policy[0, INPUTS], samples.chosen.shape[2]
    count, parameters = samples.log_prob.shape[1], agents.online.reshape(-1)
    for first in range(0, count, batch):
        rows = min(batch, count - first)
        for r in range(rows):
            scratch.places[r] = first + r
        at = forward(
            parameters, n * agents.online.shape[1], network.policy, TANH, samples.observations,
            (n * count + first) * inputs, rows, scratch.outputs, 0, scratch.room,
        )  # fmt: skip
        _log_probs(network, agents.online, samples, n, scratch.places, rows, scratch.outputs, at, scratch)
        for r in range(rows):
            scratch.start[first + r] = scratch.terms[LOG_PROB, r]


@compiled_once
def ppo_gradient(
    network: Network, agents: Agents, samples: Samples, n: int, update: int, scratch: Scratch, metrics: Array
) -> None:
    """Write the gradient of agent n's minibatch, and its metrics (5).

    The loss is computed a step at a time for all samples, so that every step is a loop over whole vectors.
    """
    policy, value = network.policy, network.value
    inputs, count = policy[0, INPUTS], samples.log_prob.shape[1]
    chosen, weights, hyper = samples.chosen[n, update], samples.weights[n, update], agents.hyper[n]
    rows = len(chosen)
    while rows > 0 and weights[rows - 1] == _ZERO:  # padding
        rows -= 1
    parameters, at = agents.online.reshape(-1), n * agents.online.shape[1]
    outputs, deltas, terms = scratch.outputs, scratch.deltas, scratch.terms
    stops = hyper[TARGET_KL] > 0.0
    for r in range(rows):
        k = chosen[r]
        first = (n * count + k) * inputs
        for j in range(inputs):
            scratch.inputs[r * inputs + j] = samples.observations[first + j]
        terms[BEFORE, r], terms[ADVANTAGE, r] = samples.log_prob[n, k], samples.advantages[n, k]
        terms[RETURN, r], terms[VALUE_BEFORE, r] = samples.returns[n, k], samples.values[n, k]
        terms[START, r] = scratch.start[k] if stops else samples.log_prob[n, k]
    policy_size = rows * policy[:, STRIDE].sum()
    policy_at = forward(parameters, at, policy, TANH, scratch.inputs, 0, rows, outputs, 0, scratch.room)
    value_at = forward(parameters, at, value, TANH, scratch.inputs, 0, rows, outputs, policy_size, scratch.room)
    value_weight, entropy_weight = np.float32(hyper[VALUE_WEIGHT]), np.float32(hyper[ENTROPY])
    _log_probs(network, agents.online, samples, n, chosen, rows, outputs, policy_at, scratch)
    _clip_ratios(
        terms[LOG_PROB], terms[BEFORE], terms[ADVANTAGE], weights, rows, np.float32(hyper[RATIO_CLIP]),
        terms[SURROGATE], terms[SLOPE],
    )  # fmt: skip
    _policy_gradient(
        network, agents.online, samples, n, chosen, rows, weights, entropy_weight, deltas, policy_at, scratch
    )
    _distances(terms[LOG_PROB], terms[START], rows, terms[DISTANCE])
    for r in range(rows):
        terms[FIRST, r] = outputs[value_at + r * value[-1, STRIDE]]
    _value_errors(
        terms[FIRST], terms[VALUE_BEFORE], terms[RETURN], rows, np.float32(hyper[VALUE_CLIP]), terms[ERROR],
        terms[SECOND],
    )  # fmt: skip
    gains, errors, entropies, distances, losses = 0.0, 0.0, 0.0, 0.0, 0.0
    for r in range(rows):
        weight, surrogate, error, entropy = weights[r], terms[SURROGATE, r], terms[ERROR, r], terms[ENTROPIES, r]
        deltas[value_at + r * value[-1, STRIDE]] = weight * value_weight * terms[SECOND, r]
        gains -= np.float64(weight * surrogate)
        errors += np.float64(weight * error)
        entropies += np.float64(weight * entropy)
        distances += np.float64(weight * terms[DISTANCE, r])
        losses += np.float64(weight * (value_weight * error - surrogate - entropy_weight * entropy))
    metrics[0], metrics[1], metrics[2], metrics[3], metrics[4] = gains, errors, entropies, distances, losses
    for network_layers, first in ((policy, 0), (value, policy_size)):
        backward(
            parameters, at, network_layers, TANH, scratch.inputs, 0, rows, outputs, deltas, first, scratch.gradient, 0,
            scratch.room,
        )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def learn_ppo(
    network: Network, n_minibatches: int, agents: Agents, samples: Samples, scratch: Scratch, results: Results
) -> None:
    """Train N agents for a round, in place: all updates, or those until an agent's policy has moved too far."""
    length, metrics = agents.online.shape[1], np.zeros(5)
    for n in range(len(samples.ready)):
        if not samples.ready[n]:
            continue
        hyper = agents.hyper[n]
        if hyper[TARGET_KL] > 0.0:
            _start_log_probs(network, agents, samples, n, scratch)
        distance, done = 0.0, 0
        for update in range(samples.chosen.shape[1]):
            if update % n_minibatches == 0:
                if hyper[TARGET_KL] > 0.0 and distance > hyper[TARGET_KL]:
                    break
                distance = 0.0
            done += 1
            ppo_gradient(network, agents, samples, n, update, scratch, metrics)
            norm = np.sqrt(squared_norm(scratch.gradient, 0, length, scratch.sums))
            distance += metrics[3] / n_minibatches
            for m in range(5):
                results.metrics[n, m] += metrics[m]
            weighed = False
            for k in range(samples.weights.shape[2]):
                weighed |= samples.weights[n, update, k] != _ZERO
            if not weighed:
                continue
            results.attempts[n] += 1
            if not (np.isfinite(metrics[4]) and np.isfinite(norm)):
                continue
            rate = scheduled(
                int(hyper[LR_SHAPE]), hyper[LR], hyper[LR_FINAL], float(agents.updates[n]), hyper[LR_UPDATES]
            )  # fmt: skip
            agents.steps[n] += _ONE
            factor, step = clip_factor(norm, hyper[CLIP]), int(agents.steps[n])
            adam(agents.online[n], scratch.gradient, agents.first[n], agents.second[n], step, rate, factor)
            agents.updates[n] += 1
        for m in range(5):
            results.metrics[n, m] /= done
