"""``silu_and_mul``: the gate of SwiGLU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Result, TensorArgument, Tolerance, grids, row_cases


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read and ``y`` written once; negate, exp, add, divide and multiply each pair."""
    elements = dims["M"] * dims["N"]
    return Cost(bytes=3 * elements * itemsizes["x"], flops=5 * elements)


CONTRACT = Contract(
    op="silu_and_mul",
    summary="SiLU of the first half of the last dimension, times the second half.",
    formula="x[..., :N] * sigmoid(x[..., :N]) * x[..., N:]",
    notes=(
        "Everything is computed in float32 and rounded once, at the end: libraries that round silu before the product"
        " differ by up to one unit in the last place. A gate of -inf gives NaN, as the product -inf * 0 does. Not"
        " guaranteed: equal bits from different kernels; digits lost where the gate is far below zero, about one unit"
        " in the last place of float32 for each 2 that it is below, and all of them below -87, where exp leaves"
        " float32 and a kernel may give zero; results and gradients that are subnormal in float32, which a kernel may"
        " flush to zero."
    ),
    tensors=(TensorArgument("x", ("*M", "2N"), ("float32", "float16", "bfloat16")),),
    outputs=(Result("y", ("*M", "N"), like="x"),),
    gradient="kernel",
    cases=(
        *row_cases.SIZES,
        Case("long row", (2,), {"N": 5120}),
        Case("sliced rows", (5,), {"N": 72}, layouts={"x": "sliced"}),
        *row_cases.LAYOUTS,
        Case("large magnitudes", (3,), {"N": 90}, values="large"),
        # its gradients are subnormal, and a kernel may flush them
        Case("tiny magnitudes", (3,), {"N": 90}, values="tiny", backward=False),
        # the halves' special values meet in other pairs at each of these sizes; no slope is defined at an infinity
        Case("NaN, infinities, signed zeros", (6,), {"N": 70}, values="special", backward=False),
        Case("specials, other pairs", (6,), {"N": 68}, values="special", backward=False),
        Case("zeros", (3,), {"N": 60}, values="zeros"),
    ),
    # float32: exp (whose argument's product with log2(e) is rounded: 3 units at 5), a sum, a division, two products;
    # 16-bit results are one rounding of that. Gradients have a second exp in 1 - sigmoid, and three products more.
    tolerance=Tolerance(
        forward={"float32": 8.0, "float16": 0.51, "bfloat16": 0.51},
        backward={"float32": 16.0, "float16": 0.51, "bfloat16": 0.51},
        signed_zeros=True,
        flushed="all",
    ),
    grid=grids.gated_grid(),
    cost=cost,
    in_graphs="fused",
    source="Shazeer 2020, GLU Variants Improve Transformer, arXiv 2002.05202 (SwiGLU, without its linear layers)",
)
