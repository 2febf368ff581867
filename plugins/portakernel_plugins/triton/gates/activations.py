"""Activation functions of float32 blocks, and their slopes.

With ``s = sigmoid(z)`` and ``c = sqrt(2 / pi)``:

    relu        f(z) = z where z > 0, else 0; NaN stays     f'(z) = 1 where z > 0, else 0
    silu        f(z) = z * s                                f'(z) = s * (1 + z * (1 - s))
    gelu        f(z) = z * (1 + erf(z / sqrt(2))) / 2       f'(z) = (1 + erf(z / sqrt(2))) / 2 + z * bell(z)
    gelu_tanh   f(z) = z * sigmoid(2 * u(z))                f'(z) = t * (1 + z * (1 - t) * 2 * u'(z)), t: that sigmoid
                u(z) = c * (z + 0.044715 * z**3)            u'(z) = c * (1 + 3 * 0.044715 * z**2)
    bell(z) = exp(-z**2 / 2) / sqrt(2 * pi)

``(1 + tanh(u)) / 2`` is ``sigmoid(2 * u)``, which cancels nowhere.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

_SQRT_HALF = tl.constexpr(math.sqrt(0.5))
_BELL_PEAK = tl.constexpr(1 / math.sqrt(2 * math.pi))
_TWICE_SCALE = tl.constexpr(2 * math.sqrt(2 / math.pi))
_CUBIC = tl.constexpr(0.044715)
_CUBIC_SLOPE = tl.constexpr(3 * 0.044715)


@triton.jit
def sigmoids(z):
    """``sigmoid(z)`` and ``1 - sigmoid(z)``, neither of which cancels or overflows."""
    e = tl.exp(-tl.abs(z))
    large = 1.0 / (1.0 + e)
    small = e * large
    positive = z >= 0
    return tl.where(positive, large, small), tl.where(positive, small, large)


@triton.jit
def _square(z):
    """``z**2``, bounded: beyond 1000 the tanh is 1, and a larger factor of ``z`` might overflow."""
    return tl.minimum(z * z, 1e6)


@triton.jit
def _twice_u(z, square):
    # constants stand to the right: on the left, the interpreter would make a constant of the product
    return z * (1.0 + square * _CUBIC) * _TWICE_SCALE


@triton.jit
def activated(z, ACTIVATION: tl.constexpr):
    """The activation of ``z``; ``z`` itself for "none"."""
    if ACTIVATION == "relu":
        z = tl.where(z <= 0.0, 0.0, z)
    elif ACTIVATION == "gelu":
        z = 0.5 * z * (1.0 + tl.erf(z * _SQRT_HALF))
    elif ACTIVATION == "gelu_tanh":
        z = z / (1.0 + tl.exp(-_twice_u(z, _square(z))))
    elif ACTIVATION == "silu":
        z = z / (1.0 + tl.exp(-z))
    else:
        tl.static_assert(ACTIVATION == "none")
    return z


@triton.jit
def value_and_slope(z, ACTIVATION: tl.constexpr):
    """The activation of ``z`` and its derivative, whose terms are products with it: 0 where a factor might overflow."""
    if ACTIVATION == "relu":
        value = tl.where(z <= 0.0, 0.0, z)
        slope = tl.where(z <= 0.0, 0.0, 1.0)
    elif ACTIVATION == "silu":
        s, rest = sigmoids(z)
        value = z * s
        slope = s + value * rest
    elif ACTIVATION == "gelu":
        s = 0.5 + 0.5 * tl.erf(z * _SQRT_HALF)
        value = z * s
        slope = s + z * (tl.exp(-0.5 * z * z) * _BELL_PEAK)
    else:
        tl.static_assert(ACTIVATION == "gelu_tanh")
        square = _square(z)
        s, rest = sigmoids(_twice_u(z, square))
        value = z * s
        # where the sigmoid is 1 or 0 the slope is too, be the value infinite
        bend = tl.where((rest == 0) | (s == 0), 0.0, value * rest * ((1.0 + square * _CUBIC_SLOPE) * _TWICE_SCALE))
        slope = s + bend
    return value, slope
