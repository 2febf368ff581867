"""``rms_norm_quantize``: root mean square layer normalisation, its result in float8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Parameter, TensorArgument, Tolerance, grids, row_cases
from portakernel.contracts.dequantize import FLOAT8, scale_count
from portakernel.contracts.quantize_fp8 import CASES_OF_ROWS, OF_ROWS, parameters, results

# Beside how rows lie in memory.
CASES_OF_NORMS = (
    Case("stepped weight", (3,), {"N": 152}, {"weight": "stepped"}, {"granularity": "block_1x128"}),
    *row_cases.RMS_PARAMETERS,
    Case("large magnitudes", (3,), {"N": 90}, values="large"),
    Case("tiny magnitudes", (3,), {"N": 90}, values="tiny"),
    Case("NaN and infinities in rows", (7,), {"N": 70}, values="special"),
    # the weight's are in every row, and few of so many blocks
    Case("NaN and infinities in blocks", (7,), {"N": 1100}, {}, {"granularity": "block_1x128"}, values="special"),
    Case("zeros", (3,), {"N": 60}, values="zeros"),
)


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read once, a byte an element and the scales written once; the norm's four operations, two of quantising."""
    rows, columns = dims["M"], dims["N"]
    scales = scale_count(values["granularity"], rows, columns)
    return Cost(
        bytes=rows * columns * (itemsizes["x"] + 1) + columns * itemsizes["weight"] + 4 * scales,
        flops=6 * rows * columns,
    )


CONTRACT = Contract(
    op="rms_norm_quantize",
    summary="Root mean square layer normalisation over the last dimension, in float8 elements and float32 scales.",
    formula=(
        "y = x * rsqrt(mean(x**2, -1) + eps) * (weight + weight_offset);"
        " scale = amax(abs(y)) / max(dtype); q = round(clamp(y / scale, -max(dtype), max(dtype)))"
    ),
    notes=(
        "y stays in float32 and is not rounded to x's dtype before it is quantised: q has one rounding, and is nearer"
        " to the norm than what rms_norm and quantize_fp8 give one after the other, from which elements of 16-bit"
        " tensors may differ by one step and scales by one rounding. granularity, max, the scale of next to nothing and"
        " that of NaN are as in quantize_fp8, and what it gives scaled_mm takes. weight_offset=1.0 is Gemma's form. Not"
        " guaranteed: equal bits from different kernels; finite results where the sum of squares or x * weight exceeds"
        " float32; digits of x * weight that are subnormal there; zeros beside an infinity, where a kernel may give NaN"
        " for the whole row; the bits of a NaN; the sign of a zero."
    ),
    tensors=(
        TensorArgument("x", ("*M", "N"), ("float32", "float16", "bfloat16")),
        TensorArgument("weight", ("N",), ("x", "float32")),
    ),
    parameters=(Parameter("eps", 1e-6, least=0.0), Parameter("weight_offset", 0.0, feature=True), *parameters(OF_ROWS)),
    outputs=results(OF_ROWS, "N"),
    # as rms_norm
    infinite_rows="may_be_nan",
    cases=(
        *CASES_OF_ROWS,
        Case("sliced rows", (5,), {"N": 260}, {"x": "sliced"}, {"granularity": "block_1x128"}),
        *row_cases.LAYOUTS,
        *CASES_OF_NORMS,
    ),
    # scale: the norm's 8 units of float32 may be 16 of the scale's, and 2.5 are the division's. q: y / scale is off by
    # less than 24 of these, 24 * 2**-23 of at most 16 units to a power of two.
    tolerance=Tolerance(forward={**dict.fromkeys(FLOAT8, 0.5001), "float32": 18.5}),
    grid=grids.quantising_grid(grids.NORMALISED),
    cost=cost,
    source=(
        "Zhang & Sennrich 2019, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4; quantize_fp8 for"
        " what follows it; fused in vLLM (rms_norm_dynamic_per_token_quant, rms_norm_per_block_quant)"
    ),
)
