"""Forward and backward pass of one agent's multilayer perceptron.

An agent's parameters are one row of a flat float32 array. `layers` describes them, an int64 array (L, 5) with a line
for each layer: inputs, outputs, numbers between two rows of the weight (the padded outputs), and the places of weight
and bias in the row. A weight is stored (inputs, outputs). So forward pass and weight gradients read it as it is, and
only the gradient of a layer's inputs needs it transposed.

Other compiled code calls `forward` and `backward` directly; they allocate nothing.

>>> row = np.array([1, 2, 3, 4, 0.5, -20], np.float32)  # weight (2, 2), bias (2)
>>> layers, outputs = np.array([[2, 2, 2, 0, 4]]), np.zeros(2, np.float32)
>>> room = np.zeros(2 + BLOCK, np.float32)
>>> forward(row, 0, layers, RELU, np.array([1, 1], np.float32), 0, 1, outputs, 0, room), outputs.tolist()
(0, [4.5, -14.0])
"""

from __future__ import annotations

import numpy as np

from parallel_agents.core.compiled import compiled_once
from parallel_agents.core.types import Array
from parallel_agents.kernels.functions import expm1f, tanhf
from parallel_agents.kernels.intrinsics import (
    BLOCK,
    WITH_BIAS,
    WITH_RELU,
    transpose_block,
    widest_vectors,
)
from parallel_agents.kernels.products import multiply, product

RELU, TANH, ELU = 0, 1, 2
ACTIVATIONS = ("relu", "tanh", "elu")
"""Names of the activations, by their numbers."""
INPUTS, OUTPUTS, STRIDE, WEIGHT, BIAS = range(5)
"""Columns of `layers`."""
PIECE = 64
"""Rows that go through all layers before the next ones: what a layer writes is in cache when the next one reads it."""


@compiled_once
def activate(values: Array, activation: int) -> None:
    """Apply TANH or ELU to values (n), in place."""
    widest_vectors()
    if activation == TANH:
        for i in range(len(values)):
            values[i] = tanhf(values[i])
    else:
        for i in range(len(values)):
            values[i] = expm1f(values[i]) if values[i] < np.float32(0.0) else values[i]


@compiled_once
def sum_rows(
    values: Array, at: int, rows: int, columns: int, stride: int, out: Array, out_at: int, room: Array
) -> None:
    """Write the sums over ascending rows of values (rows, columns): a product with ones; room for one number."""
    room[0] = np.float32(1.0)
    product(room, 0, 0, 0, values, at, stride, out, out_at, columns, 1, columns, rows)


@compiled_once
def transpose(values: Array, at: int, rows: int, columns: int, stride: int, out: Array) -> None:
    """Write values (rows, columns) of a flat array as (columns, rows) from the start of `out`."""
    if rows < BLOCK or columns < BLOCK:
        for i in range(rows):
            for j in range(columns):
                out[j * rows + i] = values[at + i * stride + j]
        return
    for first in range(0, rows, BLOCK):  # the last blocks overlap those before
        i = min(first, rows - BLOCK)
        for start in range(0, columns, BLOCK):
            j = min(start, columns - BLOCK)
            transpose_block(values, at + i * stride + j, stride, out, j * rows + i, rows)


@compiled_once
def _slope(values: Array, deltas: Array, activation: int) -> None:
    """Multiply deltas (n) in place by the derivative of the activation that gave the values (n)."""
    widest_vectors()
    zero, one = np.float32(0.0), np.float32(1.0)
    if activation == RELU:
        for i in range(len(values)):
            deltas[i] = deltas[i] if values[i] > zero else zero
    elif activation == TANH:
        for i in range(len(values)):
            deltas[i] = deltas[i] * (one - values[i] * values[i])
    else:
        for i in range(len(values)):
            deltas[i] = deltas[i] * (one if values[i] > zero else values[i] + one)


@compiled_once
def forward(
    parameters: Array, at: int, layers: Array, activation: int, inputs: Array, inputs_at: int, rows: int,
    outputs: Array, outputs_at: int, room: Array,
) -> int:  # fmt: skip
    """Compute all layers for some rows of inputs; return the place of the last layer's outputs.

    parameters: flat float32, the agent's row starts at `at`. layers: int64 (L, 5). activation: of all layers but the
    last. inputs: flat float32, (rows, inputs) from `inputs_at` on. outputs: flat float32 to write to; from `outputs_at`
    on it holds the outputs of every layer, (rows, stride) each, one layer after the other: `rows` times the sum of
    `layers[:, STRIDE]` numbers. Columns beyond a layer's outputs are not written. room: as long as the
    largest weight, and at least `rows` times the inputs of the last layer and BLOCK more.

    Each output is one chain of fma from 0 over ascending inputs, then plus the bias: the same whatever `rows` is.
    """
    size, last = min(rows, PIECE), len(layers) - 1
    last_at = outputs_at + rows * layers[:-1, STRIDE].sum()
    for start in range(0, rows, PIECE):
        first = min(start, rows - size)  # the last piece overlaps the one before
        source, width, place = inputs, layers[0, INPUTS], outputs_at
        source_at = inputs_at + first * width
        for index in range(last + 1):
            fan_in, fan_out, stride = layers[index, INPUTS], layers[index, OUTPUTS], layers[index, STRIDE]
            weight_at, bias_at, at_piece = at + layers[index, WEIGHT], at + layers[index, BIAS], place + first * stride
            if index == last and fan_out < BLOCK <= size:  # computed transposed, so that a tile has whole vectors
                transpose(source, source_at, size, fan_in, width, room)
                turned = size * fan_in
                product(parameters, weight_at, 1, stride, room, 0, size, room, turned, size, fan_out, size, fan_in)
                for j in range(fan_out):
                    for i in range(size):
                        outputs[at_piece + i * stride + j] = room[turned + j * size + i] + parameters[bias_at + j]
                break
            ending = WITH_RELU if index < last and activation == RELU else WITH_BIAS
            multiply(
                source, source_at, width, 1, parameters, weight_at, stride, outputs, at_piece, stride, size, fan_out,
                fan_in, parameters, bias_at, ending,
            )  # fmt: skip
            if index < last and activation != RELU:
                activate(outputs[at_piece : at_piece + size * stride], activation)
            source, source_at, width = outputs, at_piece, stride
            place += rows * stride
    return last_at


@compiled_once
def backward(
    parameters: Array, at: int, layers: Array, activation: int, inputs: Array, inputs_at: int, rows: int,
    outputs: Array, deltas: Array, outputs_at: int, gradients: Array, gradients_at: int, room: Array,
) -> None:  # fmt: skip
    """Write the gradient of the agent's row, from the gradient of the last layer's outputs.

    outputs: as `forward` left them. deltas: of the same form; the caller has written the last layer's. gradients: flat
    float32, the row from `gradients_at` on; numbers that belong to no weight or bias are not written. room: as in
    `forward`.

    Each gradient of a weight is one chain of fma over ascending rows, that of a bias a sum over ascending rows, and
    that of an input one chain of fma over ascending outputs.
    """
    place = outputs_at + rows * layers[:-1, STRIDE].sum()
    for index in range(len(layers) - 1, -1, -1):
        fan_in, fan_out, stride = layers[index, INPUTS], layers[index, OUTPUTS], layers[index, STRIDE]
        if index:
            width = layers[index - 1, STRIDE]
            before = place - rows * width
            source, source_at = outputs, before
        else:
            width, before = fan_in, 0
            source, source_at = inputs, inputs_at
        weight_at = gradients_at + layers[index, WEIGHT]
        if index and fan_out < BLOCK:  # computed transposed, as in `forward`
            product(deltas, place, 1, stride, source, source_at, width, room, 0, fan_in, fan_out, fan_in, rows)
            for i in range(fan_in):
                for j in range(fan_out):
                    gradients[weight_at + i * stride + j] = room[j * fan_in + i]
        else:
            product(
                source, source_at, 1, width, deltas, place, stride, gradients, weight_at, stride, fan_in, fan_out, rows
            )
        sum_rows(deltas, place, rows, fan_out, stride, gradients, gradients_at + layers[index, BIAS], room)
        if index:
            transpose(parameters, at + layers[index, WEIGHT], fan_in, fan_out, stride, room)
            for first in range(0, rows, PIECE):
                size, start = min(PIECE, rows - first), before + first * width
                product(
                    deltas, place + first * stride, stride, 1, room, 0, fan_in, deltas, start, width, size, fan_in,
                    fan_out,
                )  # fmt: skip
                _slope(outputs[start : start + size * width], deltas[start : start + size * width], activation)
            place = before


@compiled_once
def join_dueling(outputs: Array, at: int, rows: int, stride: int, actions: int) -> None:
    """Replace a dueling head's outputs (R, 1 + A), value and advantages, by (R, A) values of actions, in place."""
    head = outputs[at : at + rows * stride].reshape(rows, stride)
    for r in range(rows):
        total = np.float32(0.0)
        for a in range(actions):
            total += head[r, 1 + a]
        mean = total / np.float32(actions)
        value = head[r, 0]
        for a in range(actions):
            head[r, a] = value + head[r, 1 + a] - mean


@compiled_once
def split_dueling(deltas: Array, at: int, rows: int, stride: int, actions: int) -> None:
    """Replace gradients (R, A) of values of actions by those of value and advantages (R, 1 + A), in place."""
    head = deltas[at : at + rows * stride].reshape(rows, stride)
    for r in range(rows):
        total = np.float32(0.0)
        for a in range(actions):
            total += head[r, a]
        mean = total / np.float32(actions)
        for a in range(actions - 1, -1, -1):
            head[r, 1 + a] = head[r, a] - mean
        head[r, 0] = total
