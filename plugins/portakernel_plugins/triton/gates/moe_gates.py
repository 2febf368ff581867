"""What experts make of float32 blocks of gate and up, and its slopes.

    swiglu_oai  f(gate, up) = (u + 1) * g * s
                df/dgate    = (u + 1) * s * (1 + 1.702 * g * (1 - s))   where gate <= 7, else 0
                df/dup      = g * s                                     where -7 <= up <= 7, else 0
                with g = min(gate, 7), u = min(max(up, -7), 7), s = sigmoid(1.702 * g)
    others      f(gate, up) = activation(gate) * up                     as ``activations.py`` has them

What is not a number stays so.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portakernel_plugins.triton.gates.activations import activated, sigmoids, value_and_slope

_STEEPNESS = tl.constexpr(1.702)
_LIMIT = tl.constexpr(7.0)


@triton.jit
def _clamped(gate, up):
    """Gate from above, up from both sides. By selections: a minimum may prefer the number to NaN."""
    gate = tl.where(gate > _LIMIT, _LIMIT, gate)
    up = tl.where(up > _LIMIT, _LIMIT, up)
    return gate, tl.where(up < -_LIMIT, -_LIMIT, up)


@triton.jit
def gated_pair(gate, up, ACTIVATION: tl.constexpr):
    """What the second product takes."""
    if ACTIVATION == "swiglu_oai":
        gate, up = _clamped(gate, up)
        value = (up + 1.0) * (gate / (1.0 + tl.exp(gate * -_STEEPNESS)))
    else:
        value = activated(gate, ACTIVATION) * up
    return value


@triton.jit
def gated_pair_and_slopes(gate, up, ACTIVATION: tl.constexpr):
    """The same, and its derivatives for gate and up."""
    if ACTIVATION == "swiglu_oai":
        low, near = _clamped(gate, up)
        share, rest = sigmoids(low * _STEEPNESS)
        of_up = low * share
        value = (near + 1.0) * of_up
        of_gate = tl.where(gate > _LIMIT, 0.0, (near + 1.0) * (share + of_up * rest * _STEEPNESS))
        of_up = tl.where(tl.abs(up) <= _LIMIT, of_up, 0.0)
    else:
        of_up, slope = value_and_slope(gate, ACTIVATION)
        value, of_gate = of_up * up, up * slope
    return value, of_gate, of_up
