"""``rms_norm``: root mean square layer normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Parameter, Result, TensorArgument, Tolerance, grids, row_cases


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read and ``y`` written once, ``weight`` read once; square, sum, scale and weigh each element."""
    elements = dims["M"] * dims["N"]
    return Cost(bytes=2 * elements * itemsizes["x"] + dims["N"] * itemsizes["weight"], flops=4 * elements)


CONTRACT = Contract(
    op="rms_norm",
    summary="Root mean square layer normalisation over the last dimension.",
    formula="x * rsqrt(mean(x**2, -1) + eps) * (weight + weight_offset)",
    notes=(
        "Everything is computed in float32 and rounded once, at the end: libraries that round before the weight differ"
        " by up to one unit in the last place. weight_offset=1.0 is Gemma's form. Forward saves rstd (M,), the"
        " reciprocal root, in float32. Not guaranteed: equal bits from different kernels; finite results where the sum"
        " of squares exceeds float32; zeros beside an infinity, where a kernel may give NaN for the whole row; terms of"
        " a gradient that are subnormal in float32, which a kernel may flush to zero; any numbers that are, on devices"
        " that take them for zero (Apple GPUs)."
    ),
    tensors=(
        TensorArgument("x", ("*M", "N"), ("float32", "float16", "bfloat16")),
        TensorArgument("weight", ("N",), ("x", "float32")),
    ),
    parameters=(Parameter("eps", 1e-6, least=0.0), Parameter("weight_offset", 0.0, feature=True)),
    outputs=(Result("y", ("*M", "N"), like="x"),),
    saved=(Result("rstd", ("M",), like="x", dtype="float32"),),
    gradient="kernel",
    inplace=("x",),
    # torch's fused CUDA kernel gives NaN for every element and for rstd (torch 2.11, H200, 2026-11-20)
    infinite_rows="may_be_nan",
    cases=(
        *row_cases.SIZES,
        Case("long row", (2,), {"N": 5120}),
        Case("sliced rows", (5,), {"N": 72}, layouts={"x": "sliced"}),
        *row_cases.LAYOUTS,
        Case("stepped weight", (3,), {"N": 52}, layouts={"weight": "stepped"}),
        *row_cases.RMS_PARAMETERS,
        Case("large magnitudes", (3,), {"N": 90}, values="large"),
        # its gradients are sums of subnormal terms, which torch's CUDA kernel flushes (torch 2.11, H200, 2026-11-20)
        Case("tiny magnitudes", (3,), {"N": 90}, values="tiny", backward=False),
        Case("NaN, infinities, signed zeros", (6,), {"N": 70}, values="special", backward=False),
        Case("zeros", (3,), {"N": 60}, values="zeros"),
    ),
    # float32: a sum over N in any order, a root, three products; 16-bit results are one rounding of that.
    tolerance=Tolerance(
        forward={"float32": 8.0, "float16": 0.51, "bfloat16": 0.51},
        saved={"float32": 8.0},
        backward={"float32": 16.0, "float16": 0.51, "bfloat16": 0.51},
        flushed="gradients",
    ),
    grid=grids.matrix_grid(grids.CORE, grids.MORE),
    cost=cost,
    in_graphs="fused",
    source="Zhang & Sennrich 2019, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4",
)
