"""Activation functions of float32 blocks, and their slopes.

With ``s = sigmoid(z)``, ``c = sqrt(2 / pi)`` and ``u(z) = c * (z + 0.044715 * z**3)``:

    relu        z where z > 0, else 0; NaN stays NaN        slope 0 at 0
    gelu        z * (1 + erf(z / sqrt(2))) / 2
    gelu_tanh   z * sigmoid(2 * u(z))                       which is z * (1 + tanh(u(z))) / 2
    silu        z * s
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

_SQRT_HALF = tl.constexpr(math.sqrt(0.5))
_BELL_PEAK = tl.constexpr(1 / math.sqrt(2 * math.pi))
_TWICE_SCALE = tl.constexpr(2 * math.sqrt(2 / math.pi))
_CUBIC = tl.constexpr(0.044715)


@triton.jit
def _bounded_square(z):
    """``z**2``, at most 1e6: beyond, the tanh is 1, and a larger factor of ``z`` might overflow."""
    return tl.minimum(z * z, 1e6)


@triton.jit
def _twice_inner(z, square):
    """``2 * u(z)``; constants stand behind blocks, because the interpreter cannot take them the other way round."""
    return z * _TWICE_SCALE * (square * _CUBIC + 1.0)


@triton.jit
def activated(z, ACTIVATION: tl.constexpr):
    """The activation of ``z``; ``z`` itself for "none"."""
    if ACTIVATION == "relu":
        z = tl.where(z <= 0.0, 0.0, z)
    elif ACTIVATION == "gelu":
        z = 0.5 * z * (1.0 + tl.erf(z * _SQRT_HALF))
    elif ACTIVATION == "gelu_tanh":
        z = z / (1.0 + tl.exp(-_twice_inner(z, _bounded_square(z))))
    elif ACTIVATION == "silu":
        z = z / (1.0 + tl.exp(-z))
    else:
        tl.static_assert(ACTIVATION == "none")
    return z


@triton.jit
def slope(z, ACTIVATION: tl.constexpr):
    """The activation's derivative at ``z``. ``1 - sigmoid(u)`` is ``sigmoid(-u)``, which does not cancel."""
    if ACTIVATION == "relu":
        found = tl.where(z <= 0.0, 0.0, 1.0)
    elif ACTIVATION == "gelu":
        found = 0.5 + 0.5 * tl.erf(z * _SQRT_HALF) + z * (tl.exp(-0.5 * z * z) * _BELL_PEAK)
    elif ACTIVATION == "gelu_tanh":
        square = _bounded_square(z)
        u = _twice_inner(z, square)
        u_slope = (square * (3.0 * _CUBIC) + 1.0) * _TWICE_SCALE
        found = (1.0 + z * u_slope / (1.0 + tl.exp(u))) / (1.0 + tl.exp(-u))
    else:
        tl.static_assert(ACTIVATION == "silu")
        found = (1.0 + z / (1.0 + tl.exp(z))) / (1.0 + tl.exp(-z))
    return found
