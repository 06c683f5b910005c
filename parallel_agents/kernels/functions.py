"""Functions made of fused multiply-adds alone, so that their bytes are the same on every CPU.

Names that end in f take and return float32, the others float64, as in C. Errors, in units in the last place of the
result, are bounds that tests check over the whole range. Loops over them are compiled to vector instructions.

| function | largest error | function | largest error |
|---|--:|---|--:|
| `expf`, `expm1f` | 2 | `exp` | 2 |
| `logf`, `log1pf` | 3 | `log`, `log1p` | 3 |
| `tanhf` | 4 | `cospi`, `sinpi` | 2 (of 1) |
| | | `normal_quantile` | 6 |
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from parallel_agents.core.compiled import njit
from parallel_agents.core.types import Array
from parallel_agents.kernels.intrinsics import bits32, bits64, float32_of, float64_of, fma

# Constants of float32 arithmetic must be float32: a float64 would widen everything that it meets.
_HALF, _ONE, _TWO = np.float32(0.5), np.float32(1.0), np.float32(2.0)
_ROUND = np.float32(1.5 * 2.0**23)
"""Added and taken away again, it rounds a float32 to the nearest integer; the sum's lowest bits are that integer."""
_ROUND_BITS = int(np.array(1.5 * 2.0**23, np.float32).view(np.int32))
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # few bits, so that multiples of it are exact
_LN2_LOW = np.float32(-2.1219444005469057e-4)
_E2, _E3, _E4, _E5, _E6, _E7 = (np.float32(1.0 / number) for number in (2, 6, 24, 120, 720, 5040))
_SQRT_HALF_BITS = int(np.array(np.sqrt(0.5), np.float32).view(np.int32))
_L3, _L5, _L7, _L9, _L11 = (np.float32(2.0 / number) for number in (3, 5, 7, 9, 11))
_SMALLEST_NORMAL, _TWO_23 = np.float32(2.0**-126), np.float32(2.0**23)

_ROUND64 = 1.5 * 2.0**52
_ROUND64_BITS = int(np.array(1.5 * 2.0**52).view(np.int64))
_LN2_HIGH64, _LN2_LOW64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_SQRT_HALF_BITS64 = int(np.array(np.sqrt(0.5)).view(np.int64))
_PI = 3.141592653589793
_MIDDLE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)  # fmt: skip
_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258,
     3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940, 2.05319162663775882187, 1.0),
)  # fmt: skip
"""Numerators and denominators of the normal quantile, highest power first."""


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _reduced(x: np.float32) -> tuple[np.float32, np.int32]:
    """Return r and n of x = n · ln 2 + r, with |r| at most half of ln 2."""
    shifted = fma(x, _LOG2_E, _ROUND)
    n = shifted - _ROUND
    return fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x)), np.int32(bits32(shifted) - np.int32(_ROUND_BITS))


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _small_expm1(r: np.float32) -> np.float32:
    """Return exp(r) - 1 for |r| up to half of ln 2."""
    tail = fma(fma(fma(fma(fma(_E7, r, _E6), r, _E5), r, _E4), r, _E3), r, _E2)
    return fma(tail * r, r, r)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _power_of_2(n: np.int32) -> np.float32:
    """Return 2 to the power n, for n from -126 to 127."""
    return float32_of(np.int32((n + np.int32(127)) << np.int32(23)))


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def expf(x: np.float32) -> np.float32:
    """Return e to the power x."""
    if x > np.float32(89.0):
        x = np.float32(89.0)
    if x < np.float32(-104.0):
        x = np.float32(-104.0)
    r, n = _reduced(x)
    half = np.int32(n >> np.int32(1))  # in two steps, since 2^128 and 2^-150 are no normal numbers
    return (_small_expm1(r) + _ONE) * _power_of_2(half) * _power_of_2(np.int32(n - half))


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def expm1f(x: np.float32) -> np.float32:
    """Return exp(x) - 1, also for small x to full precision; x up to 87."""
    if x > np.float32(87.0):
        x = np.float32(87.0)
    if x < np.float32(-30.0):
        x = np.float32(-30.0)
    r, n = _reduced(x)
    scale = _power_of_2(n)
    return fma(scale, _small_expm1(r), scale - _ONE)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def tanhf(x: np.float32) -> np.float32:
    """Return the hyperbolic tangent."""
    sign = np.int32(bits32(x) & np.int32(-(2**31)))
    doubled = _TWO * abs(x)
    if doubled > np.float32(20.0):
        doubled = np.float32(20.0)
    grown = expm1f(doubled)
    return float32_of(np.int32(bits32(grown / (grown + _TWO)) | sign))


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def logf(x: np.float32) -> np.float32:
    """Return the natural logarithm; -infinity of 0, NaN of negative numbers."""
    tiny = x < _SMALLEST_NORMAL
    bits = bits32(x * _TWO_23 if tiny else x)
    n = np.int32((bits - np.int32(_SQRT_HALF_BITS)) >> np.int32(23))
    f = float32_of(np.int32(bits - np.int32(n << np.int32(23)))) - _ONE
    s = f / (f + _TWO)
    z = s * s
    exponent = np.float32(n - np.int32(23) if tiny else n)
    series = z * fma(fma(fma(fma(_L11, z, _L9), z, _L7), z, _L5), z, _L3)
    # log(1 + f) = f - s (f - series): f is exact, so the error is that of a small correction
    value = fma(exponent, _LN2_HIGH, fma(exponent, _LN2_LOW, fma(s, series - f, f)))
    if x == np.float32(np.inf):
        value = x
    if x == np.float32(0.0):
        value = np.float32(-np.inf)
    if x < np.float32(0.0) or x != x:
        value = np.float32(np.nan)
    return value


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def log1pf(x: np.float32) -> np.float32:
    """Return log(1 + x), also for small x to full precision; x finite and above -1."""
    total = _ONE + x
    return logf(total) + (x - (total - _ONE)) / total


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def exp(x: float) -> float:
    """Return e to the power x."""
    if x > 710.0:
        x = 710.0
    if x < -746.0:
        x = -746.0
    shifted = fma(x, 1.4426950408889634, _ROUND64)
    n = shifted - _ROUND64
    r = fma(n, -_LN2_LOW64, fma(n, -_LN2_HIGH64, x))
    total = 1.0 / 6227020800.0
    total = fma(total, r, 1.0 / 479001600.0)
    total = fma(total, r, 1.0 / 39916800.0)
    total = fma(total, r, 1.0 / 3628800.0)
    total = fma(total, r, 1.0 / 362880.0)
    total = fma(total, r, 1.0 / 40320.0)
    total = fma(total, r, 1.0 / 5040.0)
    total = fma(total, r, 1.0 / 720.0)
    total = fma(total, r, 1.0 / 120.0)
    total = fma(total, r, 1.0 / 24.0)
    total = fma(total, r, 1.0 / 6.0)
    total = fma(total, r, 0.5)
    total = fma(total * r, r, r) + 1.0
    whole = bits64(shifted) - np.int64(_ROUND64_BITS)
    half = whole >> 1
    return total * float64_of((half + 1023) << 52) * float64_of((whole - half + 1023) << 52)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def log(x: float) -> float:
    """Return the natural logarithm; -infinity of 0, NaN of negative numbers."""
    tiny = x < 2.2250738585072014e-308
    bits = bits64(x * 4503599627370496.0 if tiny else x)
    n = (bits - np.int64(_SQRT_HALF_BITS64)) >> 52
    f = float64_of(bits - (n << 52)) - 1.0
    s = f / (f + 2.0)
    z = s * s
    series = 2.0 / 25.0
    series = fma(series, z, 2.0 / 23.0)
    series = fma(series, z, 2.0 / 21.0)
    series = fma(series, z, 2.0 / 19.0)
    series = fma(series, z, 2.0 / 17.0)
    series = fma(series, z, 2.0 / 15.0)
    series = fma(series, z, 2.0 / 13.0)
    series = fma(series, z, 2.0 / 11.0)
    series = fma(series, z, 2.0 / 9.0)
    series = fma(series, z, 2.0 / 7.0)
    series = fma(series, z, 2.0 / 5.0)
    series = fma(series, z, 2.0 / 3.0)
    exponent = np.float64(n - 52 if tiny else n)
    value = fma(exponent, _LN2_HIGH64, fma(exponent, _LN2_LOW64, fma(s, z * series - f, f)))
    if x == np.inf:
        value = x
    if x == 0.0:
        value = -np.inf
    if x < 0.0 or x != x:
        value = np.nan
    return value


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def log1p(x: float) -> float:
    """Return log(1 + x), also for small x to full precision; x finite and above -1."""
    total = 1.0 + x
    return log(total) + (x - (total - 1.0)) / total


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def sinpi(x: float) -> float:
    """Return the sine of π·x; |x| up to 2^50. The angle is reduced exactly."""
    shifted = x + _ROUND64
    r = (x - (shifted - _ROUND64)) * _PI  # sin(π (n + r)) = ± sin(π r), r from -1/2 to 1/2
    z = r * r
    total = 1.0 / 51090942171709440000.0
    total = fma(total, z, -1.0 / 121645100408832000.0)
    total = fma(total, z, 1.0 / 355687428096000.0)
    total = fma(total, z, -1.0 / 1307674368000.0)
    total = fma(total, z, 1.0 / 6227020800.0)
    total = fma(total, z, -1.0 / 39916800.0)
    total = fma(total, z, 1.0 / 362880.0)
    total = fma(total, z, -1.0 / 5040.0)
    total = fma(total, z, 1.0 / 120.0)
    total = fma(total, z, -1.0 / 6.0)
    total = fma(total * z, r, r)
    return -total if bits64(shifted) & 1 else total


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def cospi(x: float) -> float:
    """Return the cosine of π·x; |x| up to 2^50."""
    half = 0.5 * x
    return sinpi(0.5 - abs(x - 2.0 * ((half + _ROUND64) - _ROUND64)))


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def normal(first: float, second: float) -> float:
    """Return a standard normal number from two uniform ones in [0, 1). Box and Muller 1958."""
    return np.sqrt(-2.0 * log1p(-first)) * cospi(2.0 * second)


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: float) -> float:
    """Return the ratio of two polynomials."""
    above, below = 0.0, 0.0
    for k in range(len(coefficients[0])):
        above, below = fma(above, x, coefficients[0][k]), fma(below, x, coefficients[1][k])
    return above / below


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def normal_quantile(p: float) -> float:
    """Return the quantile of the standard normal distribution, for p from 1e-10 to 1 - 1e-10. Wichura 1988, AS 241."""
    q = p - 0.5
    if abs(q) <= 0.425:
        return q * _ratio(_MIDDLE, 0.180625 - q * q)
    value = _ratio(_TAIL, np.sqrt(-log(min(p, 1.0 - p))) - 1.6)
    return -value if q < 0.0 else value


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def power(base: float, exponent: float) -> float:
    """Return a power of a positive number; 1 for the exponent 0."""
    return 1.0 if exponent == 0.0 else exp(exponent * log(base))


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def powers(bases: Array, exponent: float) -> Array:
    """Return the powers of positive float64 numbers (n)."""
    out = np.empty(len(bases))
    for i in range(len(bases)):
        out[i] = power(bases[i], exponent)
    return out


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def orthonormal_rows(uniforms: Array, out: Array) -> None:
    """Write random orthonormal rows (K, L), K up to L, from uniform draws (2, K, L), all float64. Saxe et al. 2014.

    Rows of normal numbers are made orthogonal one after the other, twice each, since once leaves rounding errors.
    """
    rows, length = out.shape
    for i in range(rows):
        for j in range(length):
            out[i, j] = normal(uniforms[0, i, j], uniforms[1, i, j])
        for _ in range(2):
            for before in range(i):
                shared = 0.0
                for j in range(length):
                    shared = fma(out[i, j], out[before, j], shared)
                for j in range(length):
                    out[i, j] = fma(-shared, out[before, j], out[i, j])
        square = 0.0
        for j in range(length):
            square = fma(out[i, j], out[i, j], square)
        size = np.sqrt(square)
        for j in range(length):
            out[i, j] /= size


def each(function: Callable[[float], float], values: ArrayLike) -> Array:
    """Return a function of every number, in the shape of the numbers."""
    numbers = np.asarray(values, np.float64)
    return np.array([function(x) for x in numbers.ravel().tolist()]).reshape(numbers.shape)
