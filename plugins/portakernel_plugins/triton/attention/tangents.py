"""The hyperbolic tangent that bounds scores, in three kinds: how exact it has to be, and what computes it.

``EXACT`` is for float32. Where numbers have 16 bits, weights are rounded to 2 ** -9 or 2 ** -12 of their size: up to a
softcap of 128 an error of 2 ** -21 makes no more of a score, and so of a weight. That is ``NEAR``, and ``SWIFT`` is as
near, in NVIDIA's assembly: a polynomial where a warp's next few arguments are all small, as those of most models are,
for there the two values that the special function units give take longer than the matrix products.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import num_warps

from portakernel_plugins.triton.exponentials import LOG2_E

EXACT, NEAR, SWIFT = (tl.constexpr(kind) for kind in (1, 2, 3))
# Of a softcap.
LARGEST_NEAR = 128.0

# From here on the tangent is 1.
_END: tl.constexpr = tl.constexpr(7.90531110763549805)

# tanh(x) / x by powers of x * x, for x of at most a half: of least error (2 ** -22.6), in hexadecimal, highest first.
COEFFICIENTS = ("0fBD31A757", "0f3E069B35", "0fBEAA9A0D", "0f3F7FFFD9")
TWICE_LOG2_E = "0f4038AA3B"
# Assembly: whether a warp's largest argument, m0, is above a half; and s = 1 / (2 ** p + 1), a root's, squared.
IS_SOME_FAR = "setp.gt.f32 far, m0, 0f3F000000; vote.sync.any.pred some, far, 0xffffffff;"
RECIPROCAL = (
    "ex2.approx.ftz.f32 p, p; add.rn.ftz.f32 p, p, 0f3F800000;rsqrt.approx.ftz.f32 p, p; mul.rn.ftz.f32 s, p, p;"
)
# How many arguments of a thread are looked at together: as many as it has, for a look takes as long as 20 arguments do
# (an H100's warpgroups of the Hopper kernel, causal B4 S4096 D128: 1660 µs with 8, 1149 with 64).
FEW, SOME, MANY = (tl.constexpr(count) for count in (8, 32, 64))


def largest_of(registers: list[str]) -> str:
    """What puts the largest size of all into ``m0``: of four, that each need not wait for the one before."""
    zeros = "".join(f"mov.f32 m{i}, 0f00000000;" for i in range(4))
    largest = "".join(f"abs.ftz.f32 p, {x}; max.ftz.f32 m{i % 4}, m{i % 4}, p;" for i, x in enumerate(registers))
    return f"{zeros} {largest}max.ftz.f32 m0, m0, m1; max.ftz.f32 m2, m2, m3; max.ftz.f32 m0, m0, m2;"


def _assembly(count: int) -> tuple[str, str]:
    """What puts tangents in the place of ``count`` arguments, and its operands."""
    registers = [f"${i}" for i in range(count)]
    first, *rest = COEFFICIENTS
    steps = "".join(f"fma.rn.ftz.f32 p, p, s, {coefficient};" for coefficient in rest)
    polynomials = "".join(
        f"mul.rn.ftz.f32 s, {x}, {x}; mov.f32 p, {first}; {steps} mul.rn.ftz.f32 {x}, {x}, p;" for x in registers
    )
    # 1 - 2 / (exp(2 * x) + 1)
    exponentials = "".join(
        f"mul.rn.ftz.f32 p, {x}, {TWICE_LOG2_E}; {RECIPROCAL} fma.rn.ftz.f32 {x}, s, 0fC0000000, 0f3F800000;"
        for x in registers
    )
    text = (
        f"{{ .reg .f32 m<4>, s, p; .reg .pred far, some;{largest_of(registers)}{IS_SOME_FAR}"
        f"@some bra FAR; {polynomials} bra.uni END; FAR: {exponentials} END: }}"
    )
    return text, ",".join(["=f"] * count + [str(i) for i in range(count)])


(_ASSEMBLY_FEW, _OPERANDS_FEW), (_ASSEMBLY_SOME, _OPERANDS_SOME), (_ASSEMBLY_MANY, _OPERANDS_MANY) = (
    map(tl.constexpr, _assembly(count.value)) for count in (FEW, SOME, MANY)
)


@triton.jit
def _exact(x):
    """1 or -1 for all that is large: Eigen's for float32.

    Exact to five units in the last place, near 0 too, where ``1 - 2 / (exp(2 * x) + 1)`` cancels; and it takes no
    second exponential.
    """
    x = tl.minimum(tl.maximum(x, -_END), _END)
    square = x * x
    top = square * -2.76076847742355e-16 + 2.00018790482477e-13
    top = square * top - 8.60467152213735e-11
    top = square * top + 5.12229709037114e-08
    top = square * top + 1.48572235717979e-05
    top = square * top + 6.37261928875436e-04
    top = square * top + 4.89352455891786e-03
    bottom = square * 1.19825839466702e-06 + 1.18534705686654e-04
    bottom = square * bottom + 2.26843463243900e-03
    bottom = square * bottom + 4.89352518554385e-03
    return x * top / bottom


@triton.jit
def _near(x):
    """By less than half as many instructions: the reciprocal is a root's, squared."""
    root = tl.rsqrt(tl.exp2(x * (2.0 * LOG2_E)) + 1.0)
    return 1.0 - 2.0 * root * root


@triton.jit
def tangent(x, KIND: tl.constexpr, TOGETHER: tl.constexpr = 0):
    """The tangent of a tile, of one of the three kinds; a thread has ``TOGETHER`` elements of it, where given."""
    EACH: tl.constexpr = x.numel // (32 * num_warps()) if KIND == SWIFT and TOGETHER == 0 else TOGETHER
    if KIND == SWIFT and EACH >= MANY:
        bounded = tl.inline_asm_elementwise(_ASSEMBLY_MANY, _OPERANDS_MANY, [x], tl.float32, True, MANY)
    elif KIND == SWIFT and EACH >= SOME:
        bounded = tl.inline_asm_elementwise(_ASSEMBLY_SOME, _OPERANDS_SOME, [x], tl.float32, True, SOME)
    elif KIND == SWIFT and EACH >= FEW:
        bounded = tl.inline_asm_elementwise(_ASSEMBLY_FEW, _OPERANDS_FEW, [x], tl.float32, True, FEW)
    elif KIND == EXACT:
        bounded = _exact(x)
    else:
        bounded = _near(x)
    return bounded
