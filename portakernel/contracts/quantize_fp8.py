"""``quantize_fp8``: float8 elements and float32 scales from numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Choice, Contract, Cost, Grid, Parameter, Result, TensorArgument, Tolerance, grids
from portakernel.contracts.dequantize import FLOAT8, SCALE_SHAPES, scale_count

GRANULARITIES = ("tensor", "row", "block_1x128", "block_128x128")
# Those whose scales a row knows without any other: what makes the row can quantise it at once.
OF_ROWS = ("row", "block_1x128")


# Cases of any op that quantises rows which it makes itself; N is their length.
CASES_OF_ROWS = (
    Case("one element", (1,), {"N": 1}),
    Case("one row, no leading dimension", (), {"N": 64}),
    Case("rows of odd size", (7,), {"N": 1009}),
    Case("rows of three dimensions, e5m2", (2, 3), {"N": 96}, parameters={"dtype": "float8_e5m2"}),
    Case("rows, e4m3fnuz", (5,), {"N": 100}, parameters={"dtype": "float8_e4m3fnuz"}),
    Case("rows, e5m2fnuz", (5,), {"N": 100}, parameters={"dtype": "float8_e5m2fnuz"}),
    Case("many rows", (131,), {"N": 40}),
    Case("long row", (2,), {"N": 5120}),
    Case("no rows", (0,), {"N": 48}),
    Case("no rows, blocks", (0,), {"N": 48}, parameters={"granularity": "block_1x128"}),
    Case("blocks of 128", (4,), {"N": 256}, parameters={"granularity": "block_1x128"}),
    Case("blocks of 128, a short one last", (2, 3), {"N": 300}, parameters={"granularity": "block_1x128"}),
    Case("less than a block", (5,), {"N": 48}, parameters={"granularity": "block_1x128"}),
    Case("blocks, long rows, e5m2", (2,), {"N": 5000}, {}, {"granularity": "block_1x128", "dtype": "float8_e5m2"}),
)


def parameters(granularities: tuple[str, ...]) -> tuple[Parameter, ...]:
    """How to quantise: which elements share a scale, in one of these ways, and what they become."""
    return (
        Parameter(
            "granularity",
            "row",
            kind="format",
            choices=granularities,
            of="q",
            summary="which elements share a scale",
        ),
        Parameter("dtype", "float8_e4m3fn", kind="dtype", choices=FLOAT8, summary="dtype of q"),
    )


def results(granularities: tuple[str, ...], columns: str) -> tuple[Result, ...]:
    """``q`` and ``scale`` of rows with as many elements as the dimension ``columns`` says."""
    scales = {name: tuple(size.replace("K", columns) for size in SCALE_SHAPES[name]) for name in granularities}
    return (
        Result("q", ("*M", columns), like="x", dtype="dtype", differentiable=False),
        Result("scale", Choice("granularity", scales), like="x", dtype="float32", differentiable=False),
    )


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read once, one byte an element and the scales written once; a comparison and a division each."""
    rows, columns = dims["M"], dims["K"]
    scales = scale_count(values["granularity"], rows, columns)
    return Cost(bytes=rows * columns * (itemsizes["x"] + 1) + 4 * scales, flops=2 * rows * columns)


CONTRACT = Contract(
    op="quantize_fp8",
    summary="Float8 elements and the float32 scales that give the numbers back.",
    formula="scale = amax(abs(x)) / max(dtype); q = round(clamp(x / scale, -max(dtype), max(dtype)))",
    notes=(
        "granularity says which elements share a scale, as formats do in dequantize; block_128x128 counts the leading"
        " dimensions in order as rows, and a last block may be shorter. max is 448 for float8_e4m3fn, 240 for"
        " float8_e4m3fnuz and 57344 for float8_e5m2 and float8_e5m2fnuz. Scales multiply on dequantisation. Everything"
        " is computed in float32: two divisions, not products with a reciprocal, and one rounding to nearest, ties to"
        " even. Where amax / max is below 2**-100, as it is for zeros, the scale is 1 and q is 0 throughout: no scale"
        " is zero or subnormal, and no result depends on whether subnormal numbers are flushed. A NaN or an infinity"
        " makes its scale NaN, and so all elements that share it. Not guaranteed: equal bits from different kernels;"
        " the bits of a NaN; the sign of a zero."
    ),
    tensors=(TensorArgument("x", ("*M", "K"), ("float32", "float16", "bfloat16")),),
    parameters=parameters(GRANULARITIES),
    outputs=results(GRANULARITIES, "K"),
    cases=(
        Case("one element", (1,), {"K": 1}),
        Case("one row, no leading dimension", (), {"K": 64}),
        Case("rows of odd size", (7,), {"K": 1009}),
        Case("rows of three dimensions, e5m2", (2, 3), {"K": 96}, parameters={"dtype": "float8_e5m2"}),
        Case("no rows, one scale", (0,), {"K": 48}, parameters={"granularity": "tensor"}),
        Case("no rows, blocks", (0,), {"K": 48}, parameters={"granularity": "block_128x128"}),
        Case("tensor", (9,), {"K": 130}, parameters={"granularity": "tensor"}),
        Case("tensor, e4m3fnuz", (2, 5), {"K": 33}, {}, {"granularity": "tensor", "dtype": "float8_e4m3fnuz"}),
        Case("rows, e4m3fnuz", (5,), {"K": 100}, parameters={"dtype": "float8_e4m3fnuz"}),
        Case("rows, e5m2fnuz", (5,), {"K": 100}, parameters={"dtype": "float8_e5m2fnuz"}),
        Case("blocks of 128", (4,), {"K": 256}, parameters={"granularity": "block_1x128"}),
        Case("blocks of 128, a short one last", (2, 3), {"K": 300}, parameters={"granularity": "block_1x128"}),
        Case("square blocks", (128,), {"K": 128}, parameters={"granularity": "block_128x128"}),
        Case("square blocks, short ones last", (130,), {"K": 200}, parameters={"granularity": "block_128x128"}),
        Case("square blocks over leading dimensions", (3, 50), {"K": 129}, {}, {"granularity": "block_128x128"}),
        Case("transposed", (6,), {"K": 33}, layouts={"x": "transposed"}),
        Case("sliced", (5,), {"K": 260}, {"x": "sliced"}, {"granularity": "block_1x128"}),
        Case("every second column", (5,), {"K": 50}, {"x": "stepped"}, {"dtype": "float8_e5m2"}),
        Case("rows with two strides", (3, 4), {"K": 56}, {"x": "split"}, {"granularity": "tensor"}),
        Case("large magnitudes", (3,), {"K": 90}, values="large"),
        Case("tiny magnitudes", (3,), {"K": 90}, values="tiny"),
        Case("NaN and infinities in rows", (7,), {"K": 70}, values="special"),
        Case("NaN and infinities in blocks", (7,), {"K": 400}, {}, {"granularity": "block_1x128"}, values="special"),
        Case("zeros", (3,), {"K": 60}, parameters={"granularity": "tensor"}, values="zeros"),
    ),
    # q: x / scale in float32 may tip a tie, and so may a scale that is off as far as it may be: 16 units to a power of
    # two, times 5 * 2**-23. scale: half a unit for a division as IEEE 754 has it; OpenCL allows one 2.5.
    tolerance=Tolerance(forward={**dict.fromkeys(FLOAT8, 0.50001), "float32": 2.5}),
    grid=Grid(
        (
            *grids.matrices(grids.QUANTISED, core=True, granularity="row"),
            *grids.matrices(grids.SMALLER, granularity="row"),
            *grids.matrices(grids.QUANTISED, granularity="tensor"),
            *grids.matrices(grids.QUANTISED, granularity="block_1x128"),
            *grids.matrices(grids.QUANTISED, granularity="block_128x128"),
        ),
        grids.matrices(((4, 256),), granularity="row")[0],
        grids.drawn_matrices(
            grids.layer_rows, {"granularity": ("row", "row", "tensor", "block_1x128", "block_128x128")}
        ),
    ),
    cost=cost,
    source=(
        "Micikevicius et al. 2022, FP8 Formats for Deep Learning, arXiv 2209.05433, 3; OCP 8-bit Floating Point"
        " Specification 1.0; arXiv 2206.02915 for FNUZ; DeepSeek-V3, arXiv 2412.19437, 3.3.2 (blocks of 128)"
    ),
)
