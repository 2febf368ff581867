"""``silu_and_mul_quantize``: the gate of SwiGLU, its result in float8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, TensorArgument, Tolerance, grids, row_cases
from portakernel.contracts.dequantize import FLOAT8, scale_count
from portakernel.contracts.quantize_fp8 import CASES_OF_ROWS, OF_ROWS, parameters, results


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read once, a byte an element and the scales written once; the gate's five operations, two of quantising."""
    elements, scales = dims["M"] * dims["N"], scale_count(values["granularity"], dims["M"], dims["N"])
    return Cost(bytes=elements * (2 * itemsizes["x"] + 1) + 4 * scales, flops=7 * elements)


CONTRACT = Contract(
    op="silu_and_mul_quantize",
    summary="SiLU of the first half of the last dimension, times the second half, in float8 with float32 scales.",
    formula=(
        "y = x[..., :N] * sigmoid(x[..., :N]) * x[..., N:];"
        " scale = amax(abs(y)) / max(dtype); q = round(clamp(y / scale, -max(dtype), max(dtype)))"
    ),
    notes=(
        "y stays in float32 and is not rounded to x's dtype before it is quantised: q has one rounding, is nearer to y"
        " than what silu_and_mul and quantize_fp8 give one after the other, and finite where a float16 would overflow."
        " granularity, max, the scale of next to nothing and that of NaN are as in quantize_fp8, and what it gives"
        " scaled_mm takes. A gate of -inf gives NaN, as the product -inf * 0 does. Not guaranteed: equal bits from"
        " different kernels; finite results where y exceeds float32; where all gates that share a scale are far below"
        " zero, digits of it as in silu_and_mul; the bits of a NaN; the sign of a zero."
    ),
    tensors=(TensorArgument("x", ("*M", "2N"), ("float32", "float16", "bfloat16")),),
    parameters=parameters(OF_ROWS),
    outputs=results(OF_ROWS, "N"),
    cases=(
        *CASES_OF_ROWS,
        Case("sliced rows", (5,), {"N": 260}, {"x": "sliced"}, {"granularity": "block_1x128"}),
        *row_cases.LAYOUTS,
        Case("large magnitudes", (3,), {"N": 90}, values="large"),
        Case("large magnitudes in blocks", (3,), {"N": 390}, {}, {"granularity": "block_1x128"}, values="large"),
        Case("tiny magnitudes", (3,), {"N": 90}, values="tiny"),
        # the halves' special values meet in other pairs at each of these sizes
        Case("NaN and infinities in rows", (6,), {"N": 70}, values="special"),
        Case("specials, other pairs", (6,), {"N": 68}, values="special"),
        Case("NaN and infinities in blocks", (6,), {"N": 400}, {}, {"granularity": "block_1x128"}, values="special"),
        Case("zeros", (3,), {"N": 60}, values="zeros"),
    ),
    # as rms_norm_quantize: silu_and_mul's 8 units of float32 are those of a norm
    tolerance=Tolerance(forward={**dict.fromkeys(FLOAT8, 0.5001), "float32": 18.5}),
    grid=grids.quantising_grid(((8192, 14336), (64, 14336), (16384, 4096), (8192, 28672)), grids.gate_rows, width=2),
    cost=cost,
    source=(
        "Shazeer 2020, GLU Variants Improve Transformer, arXiv 2002.05202 (SwiGLU, without its linear layers);"
        " quantize_fp8 for what follows it; fused in vLLM (silu_and_mul_per_block_quant)"
    ),
)
