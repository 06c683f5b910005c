"""Whole rounds of implicit quantile learning, one agent after the other (Dabney et al. 2018).

`learn_iqn` does what `algorithms.iqn.IQNLearner` does with torch; tests compare them for every option. Everything but
the gradient is that of `q_learning`. Shapes: B samples, K quantiles, L units of a layer, A actions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallel_agents.core.compiled import compiled_once, njit
from parallel_agents.core.seeding import draw, uniform
from parallel_agents.core.types import Array
from parallel_agents.kernels import q_learning
from parallel_agents.kernels.functions import cospi, normal
from parallel_agents.kernels.intrinsics import WITH_BIAS, WITH_RELU
from parallel_agents.kernels.mlp import BIAS, INPUTS, OUTPUTS, STRIDE, WEIGHT, sum_rows, transpose
from parallel_agents.kernels.products import multiply, product
from parallel_agents.kernels.q_learning import (
    Agents,
    Results,
    Samples,
    best_action,
    finish,
    huber,
    huber_slope,
    take_step,
)

SEEN, COSINES, JOINED, JOINED_DEVIATION, HEAD, HEAD_DEVIATION = range(6)
"""Rows of `layers`, as `kernels.mlp` describes them: the network's layers in the order of its row."""
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_TO_UNIT = np.float32(2.0**-24)


@compiled_once
def fill_quantiles(keys: Array, updates: int, joined: int, out: Array) -> None:
    """Fill a flat float32 array with uniform numbers of an address, as numpy's `Generator.random` makes float32."""
    turn, epoch, world = np.uint64(joined), np.uint64(updates), np.uint64(0)
    for block in range((len(out) + 7) // 8):
        words = draw(keys[0], keys[1], np.uint64(block), turn, epoch, world)
        for j in range(min(8, len(out) - 8 * block)):
            word = words[j >> 1] >> np.uint64(32 * (j & 1) + 8)
            out[8 * block + j] = np.float32(word & np.uint64(0xFFFFFF)) * _TO_UNIT


@compiled_once
def fill_noise(keys: Array, updates: int, joined: int, out: Array) -> None:
    """Fill a flat float32 array with standard normal numbers of an address, each from two uniform ones in a row."""
    turn, epoch, world = np.uint64(joined), np.uint64(updates), np.uint64(0)
    for block in range((len(out) + 1) // 2):
        a, b, c, d = draw(keys[0], keys[1], np.uint64(block), turn, epoch, world)
        out[2 * block] = np.float32(normal(uniform(a), uniform(b)))
        if 2 * block + 1 < len(out):
            out[2 * block + 1] = np.float32(normal(uniform(c), uniform(d)))


class Scratch(NamedTuple):
    """Room for one agent's update; flat float32 arrays."""

    common: q_learning.Scratch
    quantiles: Array
    """(2, B, K): of the samples, and of what follows them."""
    noise: Array
    """(2, factors of the noise of both noisy layers)."""
    joined: Array
    """(L, L): the weight of the noisy layer with its noise, and its bias (L)."""
    head: Array
    """(L, A), (A): the same of the head, value and advantages merged."""
    observed: Array
    """(B, L)."""
    waves: Array
    """(B·K, 64)."""
    embedded: Array
    """(B·K, L); so are the products with `observed`, the hidden units, and two arrays of gradients."""
    mixed: Array
    hidden: Array
    of_hidden: Array
    of_mixed: Array
    values: Array
    """(B·K, A); so are their gradients."""
    of_values: Array
    of_observed: Array
    """(B, L)."""
    of_head: Array
    """(L, A), (A)."""
    goals: Array
    """(B, K)."""

    @staticmethod
    def of(size: int, layers: Array, actions: int, batch: int, quantiles: int) -> Scratch:
        """Return room for these layers (6, 5) with rows of this size."""
        units, waves, rows = int(layers[SEEN, OUTPUTS]), int(layers[COSINES, INPUTS]), batch * quantiles
        noise = 2 * (3 * max(2, units) + max(2, actions + 1))
        head = (units + 1) * actions
        lengths = (
            2 * rows, noise, (units + 1) * units, head, batch * units, rows * waves, *[rows * units] * 5,
            rows * actions, rows * actions, batch * units, head, rows,
        )  # fmt: skip
        return Scratch(q_learning.Scratch.of(size, layers, 0), *(np.zeros(length, np.float32) for length in lengths))


@compiled_once
def _to_factors(noise: Array) -> None:
    """Turn normal numbers into the factors of factorised noise (Fortunato et al. 2018)."""
    for i in range(len(noise)):
        size = np.sqrt(abs(noise[i]))
        noise[i] = -size if noise[i] < _ZERO else size


@compiled_once
def _fill_waves(quantiles: Array, waves: int, out: Array) -> None:
    """Write cos(π·j·τ) for j from 1 to `waves` of each quantile."""
    for r in range(len(quantiles)):
        for j in range(waves):
            out[r * waves + j] = np.float32(cospi(np.float64(quantiles[r]) * (j + 1.0)))


@compiled_once
def _noisy_weights(layers: Array, parameters: Array, actions: int, noise: Array, joined: Array, head: Array) -> None:
    """Write weights and biases of the noisy layers of one row, value and advantages of the head merged."""
    units = layers[SEEN, OUTPUTS]
    wide = max(2, units)
    mean, deviation = layers[JOINED], layers[JOINED_DEVIATION]
    for o in range(units):
        outer = noise[wide + o]
        joined[units * units + o] = parameters[mean[BIAS] + o] + parameters[deviation[BIAS] + o] * outer
    for i in range(units):
        inner, row = noise[i], i * mean[STRIDE]
        for o in range(units):
            joined[i * units + o] = parameters[mean[WEIGHT] + row + o] + parameters[deviation[WEIGHT] + row + o] * (
                noise[wide + o] * inner
            )
    mean, deviation = layers[HEAD], layers[HEAD_DEVIATION]
    for i in range(units + 1):  # the last line is the bias
        of_mean = mean[WEIGHT] + i * mean[STRIDE] if i < units else mean[BIAS]
        of_deviation = deviation[WEIGHT] + i * mean[STRIDE] if i < units else deviation[BIAS]
        inner = noise[2 * wide + i] if i < units else _ONE
        total, value = _ZERO, _ZERO
        for o in range(actions + 1):
            number = parameters[of_mean + o] + parameters[of_deviation + o] * (noise[3 * wide + o] * inner)
            if o == 0:
                value = number
            else:
                head[i * actions + o - 1] = number
                total += number
        shift = value - total / np.float32(actions)
        for a in range(actions):
            head[i * actions + a] += shift


@compiled_once
def _hidden_units(
    layers: Array, row: Array, inputs: Array, inputs_at: int, batch: int, count: int, scratch: Scratch
) -> None:
    """Compute the inputs of the head for B observations and K quantiles; waves and noisy weights are in the scratch."""
    units, rows = layers[SEEN, OUTPUTS], batch * count
    for source, at, index, height, out in (
        (inputs, inputs_at, SEEN, batch, scratch.observed),
        (scratch.waves, 0, COSINES, rows, scratch.embedded),
    ):
        depth, stride = layers[index, INPUTS], layers[index, STRIDE]
        multiply(
            source, at, depth, 1, row, layers[index, WEIGHT], stride, out, 0, units, height, units, depth,
            row, layers[index, BIAS], WITH_RELU,
        )  # fmt: skip
    for b in range(batch):
        for k in range(count):
            first = (b * count + k) * units
            for j in range(units):
                scratch.mixed[first + j] = scratch.observed[b * units + j] * scratch.embedded[first + j]
    multiply(
        scratch.mixed, 0, units, 1, scratch.joined, 0, units, scratch.hidden, 0, units, rows, units, units,
        scratch.joined, units * units, WITH_RELU,
    )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _head_values(scratch: Scratch, source: Array, rows: int, units: int, actions: int, out: Array) -> None:
    """Write values (rows, A) from the inputs of the head (rows, L)."""
    multiply(
        source, 0, units, 1, scratch.head, 0, actions, out, 0, actions, rows, actions, units,
        scratch.head, units * actions, WITH_BIAS,
    )  # fmt: skip


@compiled_once
def _goals(
    layers: Array, actions: int, double: bool, n: int, first: int, batch: int, agents: Agents, samples: Samples,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Write the targets (B, K) of agent n's batch."""
    units, rows = layers[SEEN, OUTPUTS], len(scratch.goals)
    count, place = rows // batch, (n * samples.returns.shape[1] + first) * layers[SEEN, INPUTS]
    noise = scratch.noise[len(scratch.noise) // 2 :]
    _fill_waves(scratch.quantiles[rows:], layers[COSINES, INPUTS], scratch.waves)
    _noisy_weights(layers, agents.target[n], actions, noise, scratch.joined, scratch.head)
    _hidden_units(layers, agents.target[n], samples.next_states, place, batch, count, scratch)
    _head_values(scratch, scratch.hidden, rows, units, actions, scratch.values)
    choices = scratch.of_values  # free until the gradient
    if double:
        _noisy_weights(layers, agents.online[n], actions, noise, scratch.joined, scratch.head)
        _hidden_units(layers, agents.online[n], samples.next_states, place, batch, count, scratch)
        for b in range(batch):  # the head is linear, so it takes the mean of its inputs
            for j in range(units):
                total = _ZERO
                for k in range(count):
                    total += scratch.hidden[(b * count + k) * units + j]
                scratch.of_mixed[b * units + j] = total / np.float32(count)
        _head_values(scratch, scratch.of_mixed, batch, units, actions, choices)
    else:
        for b in range(batch):
            for a in range(actions):
                total = _ZERO
                for k in range(count):
                    total += scratch.values[(b * count + k) * actions + a]
                choices[b * actions + a] = total / np.float32(count)
    masks, samples_before = samples.next_masks.reshape(-1), n * samples.returns.shape[1] + first
    for b in range(batch):
        best = best_action(choices, b * actions, actions, masks, (samples_before + b) * actions)
        for k in range(count):
            value = scratch.values[(b * count + k) * actions + best]
            scratch.goals[b * count + k] = samples.returns[n, first + b] + samples.discounts[n, first + b] * value


@compiled_once
def _loss(actions: int, n: int, first: int, batch: int, samples: Samples, scratch: Scratch, results: Results) -> float:
    """Write the gradients of the values, and the mean TD errors of the samples; return the loss."""
    count = len(scratch.goals) // batch
    scratch.of_values[:] = _ZERO
    loss = 0.0
    for b in range(batch):
        action = samples.actions[n, first + b]
        weight = samples.weights[n, first + b] if samples.weights.shape[0] else _ONE
        total, mean_error = _ZERO, 0.0
        for k in range(count):
            place = (b * count + k) * actions + action
            quantile, slopes, losses = scratch.quantiles[b * count + k], _ZERO, _ZERO
            for j in range(count):
                error = scratch.goals[b * count + j] - scratch.values[place]
                share = _ONE - quantile if error < _ZERO else quantile
                slopes += share * huber_slope(error)
                losses += share * huber(error)
                mean_error += np.float64(error)
            total += losses / np.float32(count)
            scratch.of_values[place] = -slopes / np.float32(count) * weight / np.float32(batch)
        loss += np.float64(total * weight)
        results.td_errors[n, first + b] = np.float32(mean_error / (count * count))
    return loss / batch


@compiled_once
def _backward(
    layers: Array, actions: int, batch: int, inputs: Array, inputs_at: int, noise: Array, scratch: Scratch
) -> None:
    """Write the gradient of the row from those of the values."""
    units, rows, gradient = layers[SEEN, OUTPUTS], len(scratch.goals), scratch.common.gradient
    count, wide, turned = rows // batch, max(2, units), scratch.common.room
    product(
        scratch.hidden, 0, 1, units, scratch.of_values, 0, actions, scratch.of_head, 0, actions, units, actions, rows
    )  # fmt: skip
    sum_rows(scratch.of_values, 0, rows, actions, actions, scratch.of_head, units * actions, turned)
    mean, deviation = layers[HEAD], layers[HEAD_DEVIATION]
    for i in range(units + 1):  # the last line is the bias
        of_mean = mean[WEIGHT] + i * mean[STRIDE] if i < units else mean[BIAS]
        of_deviation = deviation[WEIGHT] + i * mean[STRIDE] if i < units else deviation[BIAS]
        inner = noise[2 * wide + i] if i < units else _ONE
        total = _ZERO
        for a in range(actions):
            total += scratch.of_head[i * actions + a]
        for o in range(actions + 1):
            own = total if o == 0 else scratch.of_head[i * actions + o - 1] - total / np.float32(actions)
            gradient[of_mean + o] = own
            gradient[of_deviation + o] = own * (noise[3 * wide + o] * inner)
    transpose(scratch.head, 0, units, actions, actions, turned)
    product(scratch.of_values, 0, actions, 1, turned, 0, units, scratch.of_hidden, 0, units, rows, units, actions)
    for r in range(rows * units):
        if not scratch.hidden[r] > _ZERO:
            scratch.of_hidden[r] = _ZERO
    mean, deviation = layers[JOINED], layers[JOINED_DEVIATION]
    product(
        scratch.mixed, 0, 1, units, scratch.of_hidden, 0, units, gradient, mean[WEIGHT], mean[STRIDE], units, units,
        rows,
    )  # fmt: skip
    sum_rows(scratch.of_hidden, 0, rows, units, units, gradient, mean[BIAS], turned)
    for i in range(units + 1):
        of_mean = mean[WEIGHT] + i * mean[STRIDE] if i < units else mean[BIAS]
        of_deviation = deviation[WEIGHT] + i * mean[STRIDE] if i < units else deviation[BIAS]
        inner = noise[i] if i < units else _ONE
        for o in range(units):
            gradient[of_deviation + o] = gradient[of_mean + o] * (noise[wide + o] * inner)
    transpose(scratch.joined, 0, units, units, units, turned)
    product(scratch.of_hidden, 0, units, 1, turned, 0, units, scratch.of_mixed, 0, units, rows, units, units)
    scratch.of_observed[:] = _ZERO
    for b in range(batch):
        for k in range(count):
            first = (b * count + k) * units
            for j in range(units):
                embedded, observed = scratch.embedded[first + j], scratch.observed[b * units + j]
                if observed > _ZERO:
                    scratch.of_observed[b * units + j] += scratch.of_mixed[first + j] * embedded
                scratch.of_mixed[first + j] = scratch.of_mixed[first + j] * observed if embedded > _ZERO else _ZERO
    for source, at, index, delta, count in (
        (inputs, inputs_at, SEEN, scratch.of_observed, batch),
        (scratch.waves, 0, COSINES, scratch.of_mixed, rows),
    ):
        depth, weight, stride, bias = (
            layers[index, INPUTS],
            layers[index, WEIGHT],
            layers[index, STRIDE],
            layers[index, BIAS],
        )
        product(source, at, 1, depth, delta, 0, units, gradient, weight, stride, depth, units, count)
        sum_rows(delta, 0, count, units, units, gradient, bias, turned)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def learn_iqn(
    layers: Array, actions: int, double: bool, updates: int, batch: int, keys: Array, agents: Agents, samples: Samples,
    scratch: Scratch, results: Results,
) -> None:  # fmt: skip
    """Train N agents for a round of `updates` batches, in place.

    layers: int64 (6, 5). keys: uint64 (N, 2, 2), the Philox keys of each agent's quantiles and of its noise.
    """
    joining, units = np.zeros(2), layers[SEEN, OUTPUTS]
    noise = scratch.noise[: len(scratch.noise) // 2]
    for n in range(len(samples.ready)):
        if not samples.ready[n]:
            continue
        joining[:] = 0.0
        scratch.common.summed[:] = _ZERO
        for update in range(updates):
            first = update * batch
            fill_quantiles(keys[n, 0], agents.updates[n], int(joining[0]), scratch.quantiles)
            fill_noise(keys[n, 1], agents.updates[n], int(joining[0]), scratch.noise)
            _to_factors(scratch.noise)
            _goals(layers, actions, double, n, first, batch, agents, samples, scratch)
            place = (n * samples.returns.shape[1] + first) * layers[SEEN, INPUTS]
            _noisy_weights(layers, agents.online[n], actions, noise, scratch.joined, scratch.head)
            rows = len(scratch.goals)
            _fill_waves(scratch.quantiles[:rows], layers[COSINES, INPUTS], scratch.waves)
            _hidden_units(layers, agents.online[n], samples.states, place, batch, rows // batch, scratch)
            _head_values(scratch, scratch.hidden, rows, units, actions, scratch.values)
            loss = _loss(actions, n, first, batch, samples, scratch, results)
            _backward(layers, actions, batch, samples.states, place, noise, scratch)
            take_step(agents, n, loss, batch, update == updates - 1, joining, scratch.common, results)
        finish(agents, n, batch, updates, results)
