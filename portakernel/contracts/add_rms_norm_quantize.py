"""``add_rms_norm_quantize``: a residual connection, and the normalisation of what it adds up to in float8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Parameter, Result, TensorArgument, Tolerance
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
        Case("transposed residual", (6,), {"N": 33}, layouts={"residual": "transposed"}),
        Case("transposed x", (6,), {"N": 34}, layouts={"x": "transposed"}),
        Case("expanded residual", (4,), {"N": 65}, layouts={"residual": "expanded"}),
        Case("every second column", (5,), {"N": 50}, layouts={"x": "stepped", "residual": "stepped"}),
        Case("rows with two strides", (3, 4), {"N": 56}, layouts={"x": "split", "residual": "contiguous"}),
        Case("offset by one", (3,), {"N": 80}, layouts={"residual": "offset"}),
        Case("stepped weight", (3,), {"N": 152}, {"weight": "stepped"}, {"granularity": "block_1x128"}),
        Case("large eps", (3,), {"N": 77}, parameters={"eps": 0.5}),
        Case("offset weight", (3,), {"N": 100}, parameters={"weight_offset": 1.0}),
        Case("offset weight and eps", (5,), {"N": 31}, parameters={"weight_offset": -0.5, "eps": 1e-3}),
        Case("large magnitudes", (3,), {"N": 90}, values="large"),
        Case("tiny magnitudes", (3,), {"N": 90}, values="tiny"),
        Case("NaN and infinities in rows", (7,), {"N": 70}, values="special"),
        # the weight's are in every row, and few of so many blocks
        Case("NaN and infinities in blocks", (7,), {"N": 1100}, {}, {"granularity": "block_1x128"}, values="special"),
        Case("zeros", (3,), {"N": 60}, values="zeros"),
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
    cost=cost,
    source=(
        "Zhang & Sennrich 2019, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4, of x + residual;"
        " fused in vLLM (rms_norm_dynamic_per_token_quant with a residual) and FlashInfer"
        " (fused_add_rmsnorm_fp8_block_quant, which quantises the norm rounded to x's dtype)"
    ),
)
