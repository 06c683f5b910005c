"""Whole rounds of action-value learning, one agent after the other: every update of an agent while its row is in cache.

`learn_dqn` and its parts do what `algorithms.dqn.DQNLearner` does with torch; tests compare them for every option. The
lock of the interpreter is released, and nothing is allocated: results and scratch are the caller's arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.types import Array
from parallel_agents.kernels.intrinsics import BLOCK
from parallel_agents.kernels.mlp import INPUTS, STRIDE, backward, forward, join_dueling, split_dueling
from parallel_agents.kernels.optimizer import CHAINS, adam, clip_factor, follow, squared_norm
from parallel_agents.kernels.schedules import NOISE_DECAY, joined_batches, noise_scale, scheduled, target_share

HYPER = ("lr", "lr_final", "lr_updates", "lr_shape", "clip", "tau", "target_interval", "batch_growth")
"""Hyper-parameters that an update reads: the columns of `Agents.hyper`."""
STATE = (
    "online", "target", "first", "second", "steps", "updates", "batch.joined", "batch.noise", "batch.signal",
)  # fmt: skip
"""Tensors of a learner's state: the fields of `Agents` before `hyper`."""
LR, LR_FINAL, LR_UPDATES, LR_SHAPE, CLIP, TAU, TARGET_INTERVAL, BATCH_GROWTH = range(8)


class Agents(NamedTuple):
    """The states of N agents; written in place."""

    online: Array
    """(N, P) float32; so are target weights, Adam's moments."""
    target: Array
    first: Array
    second: Array
    steps: Array
    """(N,) float32: Adam's steps."""
    updates: Array
    """(N,) int64: updates accepted so far."""
    joined: Array
    """(N,) int64: batches that a step joins."""
    noise: Array
    """(N,) float64: estimates of gradient noise and signal."""
    signal: Array
    hyper: Array
    """(N, 8) float64, by the columns of `HYPER`."""


class Samples(NamedTuple):
    """What a round reads: K samples of each agent, the batches of all updates in order."""

    states: Array
    """Flat float32 (N·K·D)."""
    next_states: Array
    actions: Array
    """(N, K) int64."""
    returns: Array
    """(N, K) float32."""
    discounts: Array
    weights: Array
    """(N, K) float32; (0, 0): every sample weighs 1."""
    next_masks: Array
    """(N, K, A) bool; (0, 0, 0): every action is allowed."""
    ready: Array
    """(N,) bool: who learns."""

    @staticmethod
    def of(columns: Mapping[str, Array]) -> Samples:
        """Return the columns of a snapshot; samples without weights or masks have empty ones."""

        def numbers(name: str) -> Array:
            return np.ascontiguousarray(columns[name], np.float32)

        return Samples(
            states=numbers("states").reshape(-1),
            next_states=numbers("next_states").reshape(-1),
            actions=np.ascontiguousarray(columns["actions"], np.int64),
            returns=numbers("returns"),
            discounts=numbers("discounts"),
            weights=numbers("weights") if "weights" in columns else np.empty((0, 0), np.float32),
            next_masks=np.ascontiguousarray(columns.get("next_masks", np.empty((0, 0, 0), np.bool_))),
            ready=np.ascontiguousarray(columns["ready"]),
        )


class Results(NamedTuple):
    """What a round gives beside the states."""

    losses: Array
    """(N,) float64, means over the updates."""
    norms: Array
    attempts: Array
    """(N,) int64: steps that were due."""
    td_errors: Array
    """(N, K) float32."""

    @staticmethod
    def empty(agents: int, samples: int) -> Results:
        """Return room for the results of a round."""
        attempts, td_errors = np.zeros(agents, np.int64), np.zeros((agents, samples), np.float32)
        return Results(np.zeros(agents), np.zeros(agents), attempts, td_errors)


class Scratch(NamedTuple):
    """Room for one agent's update."""

    gradient: Array
    """(P) float32, zero where a row is padded."""
    summed: Array
    """(P) float32: gradients joined so far."""
    sums: Array
    """(32) float32."""
    outputs: Array
    """float32: the outputs of all layers of one batch, three times."""
    deltas: Array
    room: Array
    """float32, for `mlp.forward` and `mlp.backward`."""

    @staticmethod
    def of(size: int, layers: Array, batch: int) -> Scratch:
        """Return room for a network of these layers (L, 5) with rows of this size."""
        outputs = batch * int(layers[:, STRIDE].sum())
        largest = int((layers[:, INPUTS] * layers[:, STRIDE]).max())
        room = max(largest, batch * (int(layers[-1, INPUTS]) + BLOCK))
        lengths = (size, size, CHAINS, 3 * outputs, outputs, room)
        return Scratch(*(np.zeros(length, np.float32) for length in lengths))


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def best_action(values: Array, at: int, actions: int, masks: Array, masks_at: int) -> int:
    """Return the first of the allowed actions with the largest value; NaN counts as largest.

    masks: flat, those of the sample from `masks_at` on; empty: every action is allowed.
    """
    lowest, masked = np.float32(-np.inf), len(masks) > 0
    best, top = 0, values[at]
    if masked and not masks[masks_at]:
        top = lowest
    for a in range(1, actions):
        value = values[at + a]
        if masked and not masks[masks_at + a]:
            value = lowest
        better = ((value > top) | (value != value)) & (top == top)
        best, top = (a if better else best), (value if better else top)  # without a branch: it is hard to predict
    return best


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def huber_slope(error: np.float32) -> np.float32:
    """Return the derivative of the Huber loss: the error, cut off at ±1."""
    if error > np.float32(1.0):
        return np.float32(1.0)
    if error < np.float32(-1.0):
        return np.float32(-1.0)
    return error


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def huber(error: np.float32) -> np.float32:
    """Return the Huber loss: quadratic within ±1, linear beyond. Huber 1964."""
    size = abs(error)
    inner = np.float32(1.0) if size > np.float32(1.0) else size
    return inner * (size - np.float32(0.5) * inner)


@compiled_once
def dqn_gradient(
    layers: Array, activation: int, actions: int, dueling: bool, double: bool, n: int, first: int, batch: int,
    agents: Agents, samples: Samples, scratch: Scratch, results: Results,
) -> float:  # fmt: skip
    """Write the gradient of agent n's batch from sample `first` on, and its TD errors; return the loss."""
    inputs, count = layers[0, 0], samples.returns.shape[1]
    online, target = agents.online.reshape(-1), agents.target.reshape(-1)
    at, place = n * agents.online.shape[1], (n * count + first) * inputs
    stride, size = layers[-1, STRIDE], batch * layers[:, STRIDE].sum()
    outputs, deltas, room = scratch.outputs, scratch.deltas, scratch.room
    values_at = forward(online, at, layers, activation, samples.states, place, batch, outputs, 0, room)
    next_at = forward(target, at, layers, activation, samples.next_states, place, batch, outputs, size, room)
    choice_at = next_at
    if double:
        choice_at = forward(
            online, at, layers, activation, samples.next_states, place, batch, outputs, 2 * size, room
        )  # fmt: skip
    if dueling:
        join_dueling(outputs, values_at, batch, stride, actions)
        join_dueling(outputs, next_at, batch, stride, actions)
        if double:
            join_dueling(outputs, choice_at, batch, stride, actions)
    deltas[values_at : values_at + batch * stride] = np.float32(0.0)
    loss = 0.0
    masks = samples.next_masks.reshape(-1)  # flat: a slice of each sample would cost more than the rest of its loss
    for r in range(batch):
        k, masks_at = first + r, (n * count + first + r) * actions
        best = best_action(outputs, choice_at + r * stride, actions, masks, masks_at)
        value = outputs[next_at + r * stride + best]
        if len(masks) and not masks[masks_at + best]:
            value = np.float32(-np.inf)
        goal = samples.returns[n, k] + samples.discounts[n, k] * value
        action = samples.actions[n, k]
        error = outputs[values_at + r * stride + action] - goal
        weight = samples.weights[n, k] if samples.weights.shape[0] else np.float32(1.0)
        results.td_errors[n, k] = error
        loss += np.float64(huber(error) * weight)
        deltas[values_at + r * stride + action] = huber_slope(error) * weight / np.float32(batch)
    if dueling:
        split_dueling(deltas, values_at, batch, stride, actions)
    backward(
        online, at, layers, activation, samples.states, place, batch, outputs, deltas, 0, scratch.gradient, 0,
        room,
    )  # fmt: skip
    return loss / batch


@compiled_once
def take_step(
    agents: Agents, n: int, loss: float, batch: int, last: bool, joining: Array, scratch: Scratch, results: Results
) -> None:
    """Join the gradient of a batch to those before, and take a step if one is due and finite.

    batch: samples of the batch. last: it is the last of the round. joining: float64 (2), how many batches were joined
    so far, and the sum of their squared norms.
    """
    length, hyper = agents.online.shape[1], agents.hyper[n]
    due, large = True, 0.0
    if hyper[BATCH_GROWTH] > 1.0:
        small = squared_norm(scratch.gradient, 0, length, scratch.sums)
        joining[0] += 1.0
        joining[1] += small
        count = np.float32(joining[0])
        for i in range(length):
            scratch.summed[i] += scratch.gradient[i]
            scratch.gradient[i] = scratch.summed[i] / count
        due = joining[0] >= agents.joined[n] or last
        large = squared_norm(scratch.gradient, 0, length, scratch.sums)
        if due:
            if joining[0] == agents.joined[n] and agents.joined[n] > 1:
                noise, signal = noise_scale(joining[1] / joining[0], large, batch, agents.joined[n])
                if np.isfinite(noise) and np.isfinite(signal):
                    agents.noise[n] = NOISE_DECAY * agents.noise[n] + (1.0 - NOISE_DECAY) * noise
                    agents.signal[n] = NOISE_DECAY * agents.signal[n] + (1.0 - NOISE_DECAY) * signal
            scratch.summed[:] = np.float32(0.0)
            joining[:] = 0.0
    else:
        large = squared_norm(scratch.gradient, 0, length, scratch.sums)
    norm = np.sqrt(large)
    results.losses[n] += loss
    results.norms[n] += norm
    results.attempts[n] += due
    if not (due and np.isfinite(loss) and np.isfinite(norm)):
        return
    rate = scheduled(
        int(hyper[LR_SHAPE]), hyper[LR], hyper[LR_FINAL], float(agents.updates[n]), hyper[LR_UPDATES]
    )  # fmt: skip
    agents.steps[n] += np.float32(1.0)
    factor = clip_factor(norm, hyper[CLIP])
    adam(agents.online[n], scratch.gradient, agents.first[n], agents.second[n], int(agents.steps[n]), rate, factor)
    agents.updates[n] += 1
    share = target_share(agents.updates[n], hyper[TAU], hyper[TARGET_INTERVAL])
    if share > 0.0:
        follow(agents.target[n], agents.online[n], share)


@compiled_once
def finish(agents: Agents, n: int, batch: int, updates: int, results: Results) -> None:
    """End agent n's round: how many batches its next steps join, and means of what the updates gave."""
    most = agents.hyper[n, BATCH_GROWTH]
    if most > 1.0:
        agents.joined[n] = joined_batches(agents.noise[n], agents.signal[n], batch, most)
    results.losses[n] /= updates
    results.norms[n] /= updates


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def learn_dqn(
    layers: Array, activation: int, actions: int, dueling: bool, double: bool, updates: int, batch: int,
    agents: Agents, samples: Samples, scratch: Scratch, results: Results,
) -> None:  # fmt: skip
    """Train N agents for a round of `updates` batches of DQN (Mnih et al. 2015), in place.

    layers: int64 (L, 5), as `kernels.mlp` describes them.
    """
    joining = np.zeros(2)
    for n in range(len(samples.ready)):
        if not samples.ready[n]:
            continue
        joining[:] = 0.0
        scratch.summed[:] = np.float32(0.0)
        for update in range(updates):
            loss = dqn_gradient(
                layers, activation, actions, dueling, double, n, update * batch, batch, agents, samples, scratch,
                results,
            )  # fmt: skip
            take_step(agents, n, loss, batch, update == updates - 1, joining, scratch, results)
        finish(agents, n, batch, updates, results)
