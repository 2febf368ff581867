"""Exponentials as kernels sum them: in powers of two, which hardware has, below the largest of what is summed."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LOG_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def exponential(x):
    """``e ** x``."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def finite_or_zero(top):
    """What to subtract for ``top``, the largest of what is summed: 0 where that is -inf, or the difference were NaN."""
    return tl.where(top == float("-inf"), 0.0, top)
