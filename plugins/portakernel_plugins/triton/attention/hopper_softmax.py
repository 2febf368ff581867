"""The softmax of the Hopper kernel, whose exponentials may be shared between two units of the chip.

A multiprocessor's special function units make 16 powers of two in a clock: with heads of 64 elements that takes as long
as the matrix products, which go on at the same time. One of every few can be a polynomial, made where sums are made.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from portakernel_plugins.triton.attention.bounded_scores import exponents
from portakernel_plugins.triton.attention.scores import changed
from portakernel_plugins.triton.attention.tangents import FEW, MANY, SOME, tangent

# 2**f for f in [0, 1) is 1 + f * (...): of degree 4 and least relative error (3e-6), in hexadecimal, the highest first.
_COEFFICIENTS = ("0f3C5BFB98", "0f3D55FC34", "0f3E771228", "0f3F316B63")


def _special(place: int, every: int) -> str:
    return f"ex2.approx.ftz.f32 ${place}, ${every + place};"


def _polynomial(place: int, every: int) -> str:
    """2**x from its whole part n, which a sum with 1.5 * 2**23 rounded down has in its last bits, and a polynomial.

    Below -127 the exponent comes out as that of zero.
    """
    first, *rest = _COEFFICIENTS
    steps = "".join(f"fma.rn.ftz.f32 p, p, f, {coefficient};" for coefficient in rest)
    return (
        "{ .reg .f32 x, n, f, p; .reg .b32 e, b;"
        f"max.ftz.f32 x, ${every + place}, 0fC2FE0000;"
        "add.rm.ftz.f32 n, x, 0f4B400000; sub.rn.ftz.f32 f, n, 0f4B400000; sub.rn.ftz.f32 f, x, f;"
        f"mov.f32 p, {first}; {steps} fma.rn.ftz.f32 p, p, f, 0f3F800000;"
        f"mov.b32 e, n; shl.b32 e, e, 23; mov.b32 b, p; add.s32 b, b, e; mov.b32 ${place}, b; }}"
    )


def _assembly(every: int) -> gl.constexpr:
    """Powers of two of ``every`` numbers, the first by a polynomial."""
    return gl.constexpr(_polynomial(0, every) + "".join(_special(place, every) for place in range(1, every)))


_ASSEMBLY_2, _ASSEMBLY_4, _ASSEMBLY_8 = _assembly(2), _assembly(4), _assembly(8)
_OPERANDS_2, _OPERANDS_4, _OPERANDS_8 = (gl.constexpr(",".join(["=f"] * every + ["f"] * every)) for every in (2, 4, 8))


@gluon.jit
def power_of_two(x, EVERY: gl.constexpr):
    """``2 ** x`` for ``x`` of at most 0; one of every ``EVERY`` by a polynomial, none with 0."""
    if EVERY == 0:
        powers = gl.exp2(x)
    elif EVERY == 2:
        powers = gl.inline_asm_elementwise(_ASSEMBLY_2, _OPERANDS_2, [x], dtype=gl.float32, is_pure=True, pack=2)
    elif EVERY == 4:
        powers = gl.inline_asm_elementwise(_ASSEMBLY_4, _OPERANDS_4, [x], dtype=gl.float32, is_pure=True, pack=4)
    else:
        powers = gl.inline_asm_elementwise(_ASSEMBLY_8, _OPERANDS_8, [x], dtype=gl.float32, is_pure=True, pack=8)
    return powers


@gluon.constexpr_function
def each_has(width):
    """How many tangents of 64 rows, so wide, a warpgroup's thread makes together: its half of a row's."""
    return {64: SOME, 128: MANY}.get(width, FEW)


@gluon.jit
def scores_of(
    products, behind, slope, scale, cap,
    SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, BOUNDED: gl.constexpr, FOLDED: gl.constexpr,
):  # fmt: skip
    """Scores of a block's products, or what a factor makes scores of (``FOLDED``), as in ``online_softmax.py``."""
    TOGETHER: gl.constexpr = each_has(products.shape[1])
    if BOUNDED:
        products = exponents(products, scale, cap, SOFTCAP, TOGETHER)
    elif not FOLDED:
        products, _ = changed(products, behind, slope if ALIBI else None, None, scale, cap, SOFTCAP, TOGETHER)
    elif SOFTCAP:
        products = tangent(products * scale, SOFTCAP, TOGETHER)
    return products


@gluon.jit
def softmax_step(
    scores, top, total, last, coarse, huge, BOUNDED: gl.constexpr, FOLDED: gl.constexpr, EVERY: gl.constexpr
):
    """Weights of a block's scores, the new ``top`` and ``total``, and the factor of what was summed so far.

    ``BOUNDED``: scores are exponents (``bounded_scores.py``), and no sum changes its scale. ``FOLDED``: ``last`` makes
    scores of what is given, and ``coarse`` does from ``huge`` on, as in ``online_softmax.py``.
    """
    if BOUNDED:
        weights = power_of_two(scores, EVERY)
        higher = top
        kept = 1.0
        total += gl.sum(weights, 1)
    else:
        higher = gl.max(scores, 1)
        if FOLDED:
            factor = gl.where(gl.abs(higher) < huge, last, coarse)
            higher = higher * factor
            scores = scores * gl.expand_dims(factor, 1)
        higher = gl.maximum(top, higher)
        # of a query that has seen nothing yet, the differences were NaN
        base = gl.where(higher == float("-inf"), 0.0, higher)
        weights = power_of_two(scores - gl.expand_dims(base, 1), EVERY)
        kept = gl.exp2(top - base)
        total = total * kept + gl.sum(weights, 1)
    return weights, higher, total, kept
