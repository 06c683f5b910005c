"""Instructions that numba has no name for: fused multiply-add, the bits of a number, tiles of products.

numba neither fuses `a * b + c` nor reorders sums unless it is asked to (fastmath). So a fused operation happens where
`fma` is written, and nowhere else. On a CPU without such a unit, LLVM calls the C library's `fma`, which is slow and
gives the same bytes, since the result of a fused operation is defined exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

NUMBERS, WHOLE = types.float32[::1], types.int64
"""Types of flat float32 arrays and of integers."""

_WIDE_CPUS = ("avx512", "icelake", "sapphire", "cascadelake", "cooperlake", "cannonlake", "znver4", "znver5")
"""Parts of the names that LLVM gives to CPUs with vectors of 16 numbers."""


def vector_lanes() -> int:
    """Return how many float32 numbers a vector holds on the CPU that numba compiles for, 16 or 8; for speed alone."""
    if numba.config.CPU_NAME:
        return 16 if any(part in numba.config.CPU_NAME for part in _WIDE_CPUS) else 8
    return 16 if llvm.get_host_cpu_features().get("avx512f") else 8


@intrinsic  # type: ignore[untyped-decorator]
def fma(context: Any, a: Any, b: Any, c: Any) -> tuple[Any, Callable[..., Any]]:
    """Return a·b + c, rounded once; all three are float32, or all three float64."""

    def fused(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    number = types.float32 if a == b == c == types.float32 else types.float64
    return number(number, number, number), fused


def _reinterpreted(source: Any, target: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def convert(context: Any, number: Any) -> tuple[Any, Callable[..., Any]]:
        def bitcast(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), bitcast

    return convert


bits32 = _reinterpreted(types.float32, types.int32)
"""Return the bits of a float32 as an int32."""
bits64 = _reinterpreted(types.float64, types.int64)
"""Return the bits of a float64 as an int64."""
float32_of = _reinterpreted(types.int32, types.float32)
"""Return the float32 with these bits."""
float64_of = _reinterpreted(types.int64, types.float64)
"""Return the float64 with these bits."""


def data_of(context: Any, builder: Any, array: Any) -> Any:
    """Return the pointer to the first number of a flat float32 array."""
    return context.make_array(NUMBERS)(context, builder, array).data


@intrinsic  # type: ignore[untyped-decorator]
def copy_numbers(
    context: Any, source: Any, source_at: Any, out: Any, out_at: Any, count: Any
) -> tuple[Any, Callable[..., Any]]:
    """Copy `count` numbers of a flat array to another of the same type; a loop would cost several times as much."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, source_at, out, out_at, count = arguments
        places = [
            builder.gep(context.make_array(kind)(context, builder, array).data, [at])
            for kind, array, at in ((signature.args[0], source, source_at), (signature.args[2], out, out_at))
        ]
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        cgutils.raw_memcpy(builder, places[1], places[0], count, size)
        return context.get_dummy_value()

    return types.void(source, WHOLE, out, WHOLE, WHOLE), emit


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(context: Any, array: Any, at: Any) -> tuple[Any, Callable[..., Any]]:
    """Ask for the cache line of one number of a flat array, without waiting for it."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        word = ir.IntType(32)
        place = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        form = ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
        ask = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")
        builder.call(ask, [place, word(0), word(3), word(1)])  # to read, keep in all caches, data
        return context.get_dummy_value()

    return types.void(array, WHOLE), emit


@intrinsic  # type: ignore[untyped-decorator]
def widest_vectors(context: Any) -> tuple[Any, Callable[..., Any]]:
    """Let the loops of the calling function use vectors of 16 float32 numbers where the CPU has them.

    For most of those CPUs LLVM would choose 8. The function must be `compiled_once`: inlined, it loses this.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # llvmlite's own `add` does not know it
        return context.get_dummy_value()

    return types.void(), emit


if numba.config.DISABLE_JIT:  # nothing is compiled: for debugging, with other bytes

    def fma(a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    def _view(kind: type, target: type) -> Any:
        return lambda number: kind(number).view(target)

    def copy_numbers(source: Any, source_at: int, out: Any, out_at: int, count: int) -> None:
        out[out_at : out_at + count] = source[source_at : source_at + count]

    def prefetch(array: Any, at: int) -> None:
        pass

    def widest_vectors() -> None:
        pass

    bits32, bits64 = _view(np.float32, np.int32), _view(np.float64, np.int64)
    float32_of, float64_of = _view(np.int32, np.float32), _view(np.int64, np.float64)


class Vectors:
    """Emit LLVM instructions on vectors of `lanes` float32 numbers."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.type = ir.VectorType(ir.FloatType(), lanes)
        self._fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(self.type, [self.type] * 3), f"llvm.fma.v{lanes}f32"
        )

    def _at(self, data: Any, place: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(data, [place]), self.type.as_pointer())

    def load(self, data: Any, place: Any) -> Any:
        """Return the vector that starts at a place."""
        loaded = self.builder.load(self._at(data, place))
        loaded.align = 4
        return loaded

    def store(self, vector: Any, data: Any, place: Any) -> None:
        """Store a vector from a place on."""
        self.builder.store(vector, self._at(data, place)).align = 4

    def splat(self, number: Any) -> Any:
        """Return a vector of the same number."""
        undefined, first = ir.Constant(self.type, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        one = self.builder.insert_element(undefined, number, first)
        return self.builder.shuffle_vector(
            one, undefined, ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        )

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return a·b + c, rounded once."""
        return self.builder.call(self._fma, [a, b, c])

    def zeros(self) -> Any:
        """Return a variable that holds zeros, kept in a register."""
        variable = cgutils.alloca_once(self.builder, self.type)
        self.builder.store(ir.Constant(self.type, [0.0] * self.lanes), variable)
        return variable


PLAIN, WITH_BIAS, WITH_RELU = range(3)
"""What a tile does with its sums: nothing, add a bias, or add it and replace negative sums by 0."""


def tile(rows: int, lanes: int, vectors: int) -> Any:
    """Return an intrinsic for `rows` × (`vectors` · `lanes`) outputs of a product, kept in registers.

    See `products.multiply` for its arguments.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply(
        context: Any, a: Any, a_at: Any, a_row: Any, a_k: Any, b: Any, b_at: Any, b_k: Any, c: Any, c_at: Any,
        c_row: Any, depth: Any, bias: Any, bias_at: Any, ending: Any,
    ) -> tuple[Any, Callable[..., Any]]:  # fmt: skip

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a, a_at, a_row, a_k, b, b_at, b_k, c, c_at, c_row, depth, bias, bias_at, ending = arguments
            vector, number = Vectors(builder, lanes), ir.IntType(64)
            a, b, c, bias = (data_of(context, builder, array) for array in (a, b, c, bias))
            sums = [[vector.zeros() for _ in range(vectors)] for _ in range(rows)]
            with cgutils.for_range(builder, depth) as loop:
                place = builder.add(b_at, builder.mul(loop.index, b_k))
                columns = [
                    vector.load(b, builder.add(place, ir.Constant(number, part * lanes))) for part in range(vectors)
                ]
                first = builder.add(a_at, builder.mul(loop.index, a_k))
                for row in range(rows):
                    place = builder.add(first, builder.mul(ir.Constant(number, row), a_row))
                    factor = vector.splat(builder.load(builder.gep(a, [place])))
                    for part in range(vectors):
                        total = vector.fma(factor, columns[part], builder.load(sums[row][part]))
                        builder.store(total, sums[row][part])
            with builder.if_then(builder.icmp_signed(">=", ending, ir.Constant(number, WITH_BIAS))):
                for part in range(vectors):
                    shift = vector.load(bias, builder.add(bias_at, ir.Constant(number, part * lanes)))
                    for row in range(rows):
                        builder.store(builder.fadd(builder.load(sums[row][part]), shift), sums[row][part])
            with builder.if_then(builder.icmp_signed("==", ending, ir.Constant(number, WITH_RELU))):
                zero = ir.Constant(vector.type, [0.0] * lanes)
                for row in range(rows):
                    for part in range(vectors):
                        total = builder.load(sums[row][part])
                        negative = builder.fcmp_ordered("<", total, zero)  # NaN stays
                        builder.store(builder.select(negative, zero, total), sums[row][part])
            for row in range(rows):
                place = builder.add(c_at, builder.mul(ir.Constant(number, row), c_row))
                for part in range(vectors):
                    at = builder.add(place, ir.Constant(number, part * lanes))
                    vector.store(builder.load(sums[row][part]), c, at)
            return context.get_dummy_value()

        signature = types.void(
            NUMBERS, *[WHOLE] * 3, NUMBERS, *[WHOLE] * 2, NUMBERS, *[WHOLE] * 3, NUMBERS, *[WHOLE] * 2
        )
        return signature, emit

    return multiply


BLOCK = 8
"""Rows and columns that `transpose_block` turns at once."""


@intrinsic  # type: ignore[untyped-decorator]
def transpose_block(
    context: Any, a: Any, a_at: Any, a_row: Any, b: Any, b_at: Any, b_row: Any
) -> tuple[Any, Callable[..., Any]]:
    """Write the transposed 8 × 8 block of array `a` to array `b`, both flat float32, with these rows."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, a_at, a_row, b, b_at, b_row = arguments
        vector, number = Vectors(builder, BLOCK), ir.IntType(64)
        a, b = data_of(context, builder, a), data_of(context, builder, b)

        def place(at: Any, row: Any, index: int) -> Any:
            return builder.add(at, builder.mul(row, ir.Constant(number, index)))

        rows = [vector.load(a, place(a_at, a_row, index)) for index in range(BLOCK)]
        distance = BLOCK // 2
        while distance:  # swap the off-diagonal quarters, then those of the quarters
            for index in (index for index in range(BLOCK) if not index & distance):
                upper, lower = rows[index], rows[index + distance]
                kept = [c if not c & distance else BLOCK + c - distance for c in range(BLOCK)]
                moved = [c + distance if not c & distance else BLOCK + c for c in range(BLOCK)]
                choices = (ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), order) for order in (kept, moved))
                rows[index], rows[index + distance] = (builder.shuffle_vector(upper, lower, own) for own in choices)
            distance //= 2
        for index, row in enumerate(rows):
            vector.store(row, b, place(b_at, b_row, index))
        return context.get_dummy_value()

    return types.void(NUMBERS, WHOLE, WHOLE, NUMBERS, WHOLE, WHOLE), emit
