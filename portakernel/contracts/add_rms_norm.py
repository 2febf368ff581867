"""``add_rms_norm``: a residual connection and root mean square layer normalisation of what it adds up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Parameter, Result, TensorArgument, Tolerance, grids, row_cases


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` and ``residual`` read, ``y`` and ``summed`` written once; add, square, sum, scale, weigh each element."""
    elements = dims["M"] * dims["N"]
    return Cost(bytes=4 * elements * itemsizes["x"] + dims["N"] * itemsizes["weight"], flops=5 * elements)


CONTRACT = Contract(
    op="add_rms_norm",
    summary="The sum of x and residual, and its root mean square layer normalisation over the last dimension.",
    formula="summed = x + residual; y = summed * rsqrt(mean(summed**2, -1) + eps) * (weight + weight_offset)",
    notes=(
        "summed is added in float32 and rounded once to x's dtype, and y is the norm of that rounded sum: the results"
        " are those of add and rms_norm one after the other. Everything else is computed in float32 and rounded once,"
        " at the end. weight_offset=1.0 is Gemma's form. out=(x, residual) writes y over x and summed over residual."
        " Forward saves rstd (M,), the reciprocal root, in float32; the gradients of x and residual are equal. Not"
        " guaranteed: equal bits of y from different kernels; finite results where the sum of squares exceeds float32;"
        " zeros beside an infinity in summed, where a kernel may give NaN for the whole row of y; terms of a gradient"
        " that are subnormal in float32, which a kernel may flush to zero."
    ),
    tensors=(
        TensorArgument("x", ("*M", "N"), ("float32", "float16", "bfloat16")),
        TensorArgument("residual", ("*M", "N"), ("x",)),
        TensorArgument("weight", ("N",), ("x", "float32")),
    ),
    parameters=(Parameter("eps", 1e-6, least=0.0), Parameter("weight_offset", 0.0, feature=True)),
    outputs=(Result("y", ("*M", "N"), like="x"), Result("summed", ("*M", "N"), like="x")),
    saved=(Result("rstd", ("M",), like="x", dtype="float32"),),
    kept=("weight", "summed"),
    stands_for={"x": "summed", "residual": "summed"},
    gradient="kernel",
    inplace=("x", "residual"),
    # as rms_norm: torch's fused CUDA kernel gives NaN for every element and for rstd
    infinite_rows="may_be_nan",
    cases=(
        *row_cases.SIZES,
        Case("long row", (2,), {"N": 5120}),
        Case("both sliced", (5,), {"N": 72}, layouts={"x": "sliced", "residual": "sliced"}),
        *row_cases.RESIDUAL_LAYOUTS,
        Case("stepped weight", (3,), {"N": 52}, layouts={"weight": "stepped"}),
        *row_cases.RMS_PARAMETERS,
        # sums that overflow float16 are infinite, and gradients there NaN or not by the order of operations
        Case("large magnitudes", (3,), {"N": 90}, values="large", backward=False),
        # its gradients are sums of subnormal terms, which a kernel may flush
        Case("tiny magnitudes", (3,), {"N": 90}, values="tiny", backward=False),
        Case("NaN, infinities, signed zeros", (6,), {"N": 70}, values="special", backward=False),
        Case("zeros", (3,), {"N": 60}, values="zeros"),
    ),
    # summed: one float32 addition rounded once has one right answer. The rest as rms_norm, and gradients gain a term.
    tolerance=Tolerance(
        forward={
            "float32": 8.0,
            "float16": 0.51,
            "bfloat16": 0.51,
            "summed.float32": 0.0,
            "summed.float16": 0.0,
            "summed.bfloat16": 0.0,
        },
        saved={"float32": 8.0},
        backward={"float32": 16.0, "float16": 0.51, "bfloat16": 0.51},
        flushed="gradients",
    ),
    grid=grids.matrix_grid(grids.CORE, grids.MORE, names=("x", "residual")),
    cost=cost,
    in_graphs="fused",
    source="Zhang & Sennrich 2019, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4, of x + residual",
)
