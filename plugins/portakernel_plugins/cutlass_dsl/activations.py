"""Activations on the accumulators of a product, in float32; chosen when a kernel is compiled."""

import cutlass
from cutlass import Float32, cute


@cute.jit
def activated(x: Float32, activation: cutlass.Constexpr[str]) -> Float32:
    """``activation(x)``, by the formulas of the contract."""
    y = x
    if cutlass.const_expr(activation == "relu"):
        # not a maximum, which would lose a NaN
        if x < Float32(0.0):
            y = Float32(0.0)
    elif cutlass.const_expr(activation == "gelu"):
        y = 0.5 * x * (1.0 + cute.math.erf(0.7071067811865476 * x))
    elif cutlass.const_expr(activation == "gelu_tanh"):
        # (1 + tanh(u)) / 2 is sigmoid(2 * u), without the cancellation
        y = x / (1.0 + cute.math.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif cutlass.const_expr(activation == "silu"):
        y = x / (1.0 + cute.math.exp(-x))
    return y
