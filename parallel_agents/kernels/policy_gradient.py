"""Whole rounds of proximal policy optimisation, one agent after the other (Schulman et al. 2017).

`learn_ppo` does what `algorithms.ppo.Updates` does with torch; tests compare them for every option. The lock of the
interpreter is released, and nothing is allocated: results and scratch are the caller's arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.types import Array
from parallel_agents.kernels.functions import expf, log1pf, logf
from parallel_agents.kernels.intrinsics import BLOCK
from parallel_agents.kernels.mlp import INPUTS, STRIDE, TANH, backward, forward
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
    logs: Array
    """float32: log-probabilities of all actions of a sample."""
    start: Array
    """(K) float32: log-probabilities that the early stop compares with."""

    @staticmethod
    def of(size: int, network: Network, batch: int, samples: int) -> Scratch:
        """Return room for rows of this size, minibatches of this size and so many samples."""
        layers = np.concatenate([network.policy, network.value])
        outputs = batch * int(layers[:, STRIDE].sum())
        widest = int(network.policy[-1, STRIDE])
        largest = int((layers[:, INPUTS] * layers[:, STRIDE]).max())
        observed, room = batch * int(layers[0, INPUTS]), max(largest, batch * (int(layers[-1, INPUTS]) + BLOCK))
        lengths = (size, CHAINS, observed, outputs, outputs, room, widest, samples)
        return Scratch(*(np.zeros(length, np.float32) for length in lengths))


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
def log_softmax(outputs: Array, at: int, size: int, masks: Array, first: int, logs: Array) -> None:
    """Write the log-probabilities of one choice from logits at `at`; masks are read, logs written from `first` on."""
    top = np.float32(-np.inf)
    for a in range(size):
        logit = outputs[at + a] if len(masks) == 0 or masks[first + a] else MASKED
        logs[first + a] = logit
        if logit > top or logit != logit:
            top = logit
    total = _ZERO
    for a in range(size):
        total += expf(logs[first + a] - top)
    shift = top + logf(total)
    for a in range(size):
        logs[first + a] -= shift


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _log_prob(
    network: Network, parameters: Array, samples: Samples, n: int, k: int, outputs: Array, at: int, logs: Array
) -> np.float32:
    """Return the log-probability of sample k's action from policy outputs at `at`; write those of choices to logs."""
    total = _ZERO
    if len(network.sizes):
        masks = samples.masks.reshape(-1)[:0]
        if samples.masks.shape[0]:
            masks = samples.masks[n, k]
        first = 0
        for c in range(len(network.sizes)):
            log_softmax(outputs, at + first, network.sizes[c], masks, first, logs)
            total += logs[first + samples.choices[n, k, c]]
            first += network.sizes[c]
        return total
    for a in range(samples.raw.shape[2]):
        action, log_std = samples.raw[n, k, a], parameters[n, network.log_std + a]
        score = (action - outputs[at + a]) * expf(-log_std)
        inverse = -_TWO * action
        softplus = (inverse if inverse > _ZERO else _ZERO) + log1pf(expf(-abs(inverse)))
        squash = _TWO * (_LOG_2 - action - softplus)  # log(1 - tanh²), without overflow
        total += -_HALF * score * score - log_std - _HALF_LOG_2_PI - squash
    return total


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _policy_gradient(
    network: Network, parameters: Array, samples: Samples, n: int, k: int, outputs: Array, deltas: Array, at: int,
    logs: Array, gradient: Array, of_log_prob: np.float32, of_entropy: np.float32,
) -> np.float32:  # fmt: skip
    """Write the gradients of policy outputs at `at`, add those of log deviations; return the entropy."""
    entropy = _ZERO
    if len(network.sizes):
        first = 0
        for c in range(len(network.sizes)):
            size = network.sizes[c]
            own = _ZERO
            for a in range(first, first + size):
                own -= expf(logs[a]) * logs[a]
            for a in range(first, first + size):
                share = expf(logs[a])
                deltas[at + a] = -share * (of_log_prob + of_entropy * (logs[a] + own))
            deltas[at + first + samples.choices[n, k, c]] += of_log_prob
            if samples.masks.shape[0]:
                for a in range(first, first + size):
                    if not samples.masks[n, k, a]:
                        deltas[at + a] = _ZERO
            entropy += own
            first += size
        return entropy
    for a in range(samples.raw.shape[2]):
        log_std = parameters[n, network.log_std + a]
        inverse = expf(-log_std)
        score = (samples.raw[n, k, a] - outputs[at + a]) * inverse
        deltas[at + a] = of_log_prob * score * inverse
        gradient[network.log_std + a] += of_log_prob * (score * score - _ONE) + of_entropy
        entropy += log_std + _HALF_LOG_2_PI_E
    return entropy


@compiled_once
def _start_log_probs(network: Network, agents: Agents, samples: Samples, n: int, scratch: Scratch) -> None:
    """Write the log-probabilities of all of agent n's samples under its weights as they are now."""
    inputs, batch = network.policy[0, INPUTS], samples.chosen.shape[2]
    count, stride = samples.log_prob.shape[1], network.policy[-1, STRIDE]
    parameters = agents.online.reshape(-1)
    for first in range(0, count, batch):
        rows = min(batch, count - first)
        at = forward(
            parameters, n * agents.online.shape[1], network.policy, TANH, samples.observations,
            (n * count + first) * inputs, rows, scratch.outputs, 0, scratch.room,
        )  # fmt: skip
        for r in range(rows):
            scratch.start[first + r] = _log_prob(
                network, agents.online, samples, n, first + r, scratch.outputs, at + r * stride, scratch.logs
            )


@compiled_once
def ppo_gradient(
    network: Network, agents: Agents, samples: Samples, n: int, update: int, scratch: Scratch, metrics: Array
) -> None:
    """Write the gradient of agent n's minibatch, and its metrics (5)."""
    policy, value = network.policy, network.value
    inputs, count = policy[0, INPUTS], samples.log_prob.shape[1]
    chosen, weights, hyper = samples.chosen[n, update], samples.weights[n, update], agents.hyper[n]
    rows = len(chosen)
    while rows > 0 and weights[rows - 1] == _ZERO:  # padding
        rows -= 1
    for r in range(rows):
        first = (n * count + chosen[r]) * inputs
        for j in range(inputs):
            scratch.inputs[r * inputs + j] = samples.observations[first + j]
    parameters, at = agents.online.reshape(-1), n * agents.online.shape[1]
    outputs, deltas = scratch.outputs, scratch.deltas
    policy_size = rows * policy[:, STRIDE].sum()
    policy_at = forward(parameters, at, policy, TANH, scratch.inputs, 0, rows, outputs, 0, scratch.room)
    value_at = forward(parameters, at, value, TANH, scratch.inputs, 0, rows, outputs, policy_size, scratch.room)
    bound, value_bound = np.float32(hyper[RATIO_CLIP]), np.float32(hyper[VALUE_CLIP])
    value_weight, entropy_weight = np.float32(hyper[VALUE_WEIGHT]), np.float32(hyper[ENTROPY])
    stops = hyper[TARGET_KL] > 0.0
    metrics[:] = 0.0
    for a in range(samples.raw.shape[2]):
        scratch.gradient[network.log_std + a] = _ZERO
    for r in range(rows):
        k, weight = chosen[r], weights[r]
        at_policy, at_value = policy_at + r * policy[-1, STRIDE], value_at + r * value[-1, STRIDE]
        log_prob = _log_prob(network, agents.online, samples, n, k, outputs, at_policy, scratch.logs)
        ratio, advantage = expf(log_prob - samples.log_prob[n, k]), samples.advantages[n, k]
        clipped = ratio
        if ratio < _ONE - bound:
            clipped = _ONE - bound
        if ratio > _ONE + bound:
            clipped = _ONE + bound
        surrogate, cut, slope = ratio * advantage, clipped * advantage, advantage
        if cut < surrogate:
            surrogate, slope = cut, _ZERO
        gap = outputs[at_value] - samples.returns[n, k]
        error, value_slope = gap * gap, _TWO * gap
        if value_bound > _ZERO:
            moved = outputs[at_value] - samples.values[n, k]
            inside = abs(moved) <= value_bound
            if not inside:
                moved = value_bound if moved > _ZERO else -value_bound
                far = samples.values[n, k] + moved - samples.returns[n, k]
                if far * far > error:
                    error, value_slope = far * far, _ZERO
        entropy = _policy_gradient(
            network, agents.online, samples, n, k, outputs, deltas, at_policy, scratch.logs, scratch.gradient,
            -weight * slope * ratio, -weight * entropy_weight,
        )  # fmt: skip
        deltas[at_value] = weight * value_weight * value_slope
        moved = log_prob - (scratch.start[k] if stops else samples.log_prob[n, k])
        metrics[0] -= np.float64(weight * surrogate)
        metrics[1] += np.float64(weight * error)
        metrics[2] += np.float64(weight * entropy)
        metrics[3] += np.float64(weight * (expf(moved) - _ONE - moved))  # Schulman's low-variance estimate of the KL
        metrics[4] += np.float64(weight * (value_weight * error - surrogate - entropy_weight * entropy))
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
