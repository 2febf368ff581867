"""The softmax of scores that a softcap bounds: it needs no largest one, and no sum changes its scale on the way.

A score is ``cap * tanh(scale * z)`` of a product ``z``, in units of log(2): wherever the other scores are, a weight
``2 ** (score - shift)`` lies between ``2 ** (-cap - shift)`` and ``2 ** (cap - shift)``. With ``shift`` the ``cap``, no
weight is above 1. Where the smallest one were below 2 ** -120, ``shift`` is less by a whole number, 25 for a softcap of
50. bfloat16 has room for that, float16 has not.

The largest weight is 1 elsewhere, exactly; here it is rounded like the others, but for those of scores at the bound.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import num_warps

from portakernel_plugins.triton.attention.tangents import (
    COEFFICIENTS,
    IS_SOME_FAR,
    MANY,
    RECIPROCAL,
    SOME,
    SWIFT,
    TWICE_LOG2_E,
    largest_of,
    tangent,
)

# Of a softcap times log2(e): that of 50, and somewhat more.
LARGEST_BOUND = 72.5

_LOWEST: tl.constexpr = tl.constexpr(120.0)
_LOWEST_BITS = "0f42F00000"


def _assembly(count: int) -> tuple[str, str]:
    """What puts exponents in the place of ``count`` products, and its operands: also the scale and the cap, as often.

    The polynomial is that of ``tangents.py``, with the scale's powers and the cap in its coefficients.
    """
    products = [f"${i}" for i in range(count)]
    scale, cap = f"${2 * count}", f"${3 * count}"
    highest = len(COEFFICIENTS) - 1
    scaled = "".join(
        f"mul.rn.ftz.f32 c{i}, w, {coefficient}; mul.rn.ftz.f32 w, w, q;"
        for i, coefficient in enumerate(reversed(COEFFICIENTS))
    )
    steps = "".join(f"fma.rn.ftz.f32 p, s, p, c{i};" for i in reversed(range(highest)))
    polynomials = "".join(
        f"mul.rn.ftz.f32 s, {z}, {z}; mov.f32 p, c{highest}; {steps} fma.rn.ftz.f32 {z}, {z}, p, n;" for z in products
    )
    # cap - 2 * cap / (exp(2 * scale * z) + 1)
    exponentials = "".join(f"mul.rn.ftz.f32 p, {z}, w; {RECIPROCAL} fma.rn.ftz.f32 {z}, s, q, n;" for z in products)
    text = (
        f"{{ .reg .f32 m<4>, c<{highest + 1}>, n, p, q, s, w; .reg .pred far, some;{largest_of(products)}"
        f"abs.ftz.f32 p, {scale}; mul.rn.ftz.f32 m0, m0, p;"
        # cap - shift
        f"add.rn.ftz.f32 n, {cap}, {cap}; sub.rn.ftz.f32 n, n, {_LOWEST_BITS}; cvt.rpi.ftz.f32.f32 n, n;"
        "max.ftz.f32 n, n, 0f00000000;"
        f"{IS_SOME_FAR} @some bra FAR;"
        f"sub.rn.ftz.f32 n, n, {cap}; mul.rn.ftz.f32 q, {scale}, {scale}; mul.rn.ftz.f32 w, {scale}, {cap};"
        f"{scaled} {polynomials} bra.uni END;"
        f"FAR: mul.rn.ftz.f32 w, {scale}, {TWICE_LOG2_E}; mul.rn.ftz.f32 q, {cap}, 0fC0000000;"
        f"{exponentials} END: }}"
    )
    return text, ",".join(["=f"] * count + [str(i) for i in range(count)] + ["f"] * (2 * count))


(_ASSEMBLY_SOME, _OPERANDS_SOME), (_ASSEMBLY_MANY, _OPERANDS_MANY) = (
    map(tl.constexpr, _assembly(count.value)) for count in (SOME, MANY)
)


@triton.jit
def shift_of(cap):
    """What is subtracted from every score."""
    return cap - tl.maximum(tl.ceil(cap + cap - _LOWEST), 0.0)


@triton.jit
def exponents(z, scale, cap, KIND: tl.constexpr, TOGETHER: tl.constexpr = 0):
    """Scores of products, ``shift_of(cap)`` subtracted; ``KIND`` and ``TOGETHER`` are the tangent's."""
    EACH: tl.constexpr = z.numel // (32 * num_warps()) if KIND == SWIFT and TOGETHER == 0 else TOGETHER
    if KIND == SWIFT and EACH >= SOME:
        arguments = [z, scale, cap]
        if EACH >= MANY:
            found = tl.inline_asm_elementwise(_ASSEMBLY_MANY, _OPERANDS_MANY, arguments, tl.float32, True, MANY)
        else:
            found = tl.inline_asm_elementwise(_ASSEMBLY_SOME, _OPERANDS_SOME, arguments, tl.float32, True, SOME)
    else:
        found = tangent(z * scale, KIND, EACH) * cap - shift_of(cap)
    return found


@triton.jit
def with_sink(total, sunk, cap):
    """The sum of weights with the sink's, what it is in units of, and what sums without it are to be multiplied by."""
    shift = shift_of(cap)
    top = tl.maximum(sunk, shift)
    kept = tl.exp2(shift - top)
    return total * kept + tl.exp2(sunk - top), top, kept
