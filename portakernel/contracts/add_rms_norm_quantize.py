"""``add_rms_norm_quantize``: a residual connection, and the normalisation of what it adds up to in float8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Parameter, Result, TensorArgument, Tolerance, grids, row_cases
from portakernel.contracts import rms_norm_quantize
from portakernel.contracts.quantize_fp8 import CASES_OF_ROWS, OF_ROWS, parameters, results


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """That of ``rms_norm_quantize``; ``residual`` read, ``summed`` written and an addition more for each element."""
    norm, elements = rms_norm_quantize.cost(dims, itemsizes, values), dims["M"] * dims["N"]
    return Cost(bytes=norm.bytes + 2 * elements * itemsizes["x"], flops=norm.flops + elements)


CONTRACT = Contract(
    op="add_rms_norm_quantize",
    summary="The sum of x and residual, and its root mean square layer normalisation in float8 with float32 scales.",
    formula=(
        "summed = x + residual; y = summed * rsqrt(mean(summed**2, -1) + eps) * (weight + weight_offset);"
        " scale = amax(abs(y)) / max(dtype); q = round(clamp(y / scale, -max(dtype), max(dtype)))"
    ),
    notes=(
        "summed is added in float32 and rounded once to x's dtype, and q and scale are those of that rounded sum: the"
        " results are those of add and rms_norm_quantize one after the other, whose notes hold here."
    ),
    tensors=(
        TensorArgument("x", ("*M", "N"), ("float32", "float16", "bfloat16")),
        TensorArgument("residual", ("*M", "N"), ("x",)),
        TensorArgument("weight", ("N",), ("x", "float32")),
    ),
    parameters=(Parameter("eps", 1e-6, least=0.0), Parameter("weight_offset", 0.0, feature=True), *parameters(OF_ROWS)),
    outputs=(*results(OF_ROWS, "N"), Result("summed", ("*M", "N"), like="x", differentiable=False)),
    # as rms_norm
    infinite_rows="may_be_nan",
    cases=(
        *CASES_OF_ROWS,
        Case("both sliced", (5,), {"N": 260}, {"x": "sliced", "residual": "sliced"}, {"granularity": "block_1x128"}),
        *row_cases.RESIDUAL_LAYOUTS,
        *rms_norm_quantize.CASES_OF_NORMS,
    ),
    # summed: one float32 addition rounded once has one right answer
    tolerance=Tolerance(
        forward={
            **rms_norm_quantize.CONTRACT.tolerance.forward,
            "summed.float32": 0.0,
            "summed.float16": 0.0,
            "summed.bfloat16": 0.0,
        }
    ),
    grid=grids.quantising_grid(grids.NORMALISED, names=("x", "residual")),
    cost=cost,
    source=(
        "Zhang & Sennrich 2019, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4, of x + residual;"
        " fused in vLLM (rms_norm_dynamic_per_token_quant with a residual) and FlashInfer"
        " (fused_add_rmsnorm_fp8_block_quant, which quantises the norm rounded to x's dtype)"
    ),
)
