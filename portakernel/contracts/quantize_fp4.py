"""``quantize_fp4``: e2m1 elements, two to a byte, and their block scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Choice, Contract, Cost, Grid, Parameter, Result, TensorArgument, Tolerance, grids
from portakernel.contracts.dequantize import FLOAT4_FORMATS, SCALE_SHAPES, scale_count


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read once, half a byte an element and the scales written once; a comparison and a division each."""
    rows, columns = dims["M"], dims["K"]
    moved = rows * columns * itemsizes["x"] + rows * columns // 2 + scale_count(values["format"], rows, columns)
    moved += 4 if values["format"] == "nvfp4" else 0
    return Cost(bytes=moved, flops=2 * rows * columns)


CONTRACT = Contract(
    op="quantize_fp4",
    summary="Four-bit elements (e2m1), two to a byte, and the scales that give the numbers back.",
    formula=(
        "mxfp4: scale = 2 ** (floor(log2(amax(abs(x)))) - 2); q = round(clamp(x / scale, -6, 6)). nvfp4: global_scale"
        " = amax(abs(all of x)) / 2688; scale = e4m3fn(max(amax(abs(x)) / 6 / global_scale, 2**-9)); q = round(clamp(x"
        " / (scale * global_scale), -6, 6))"
    ),
    notes=(
        "e2m1 has the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6. The even element of each pair is in the low four bits"
        " of its byte. mxfp4 is OCP's conversion (Microscaling Formats 1.0, 6.3): a block is 32 elements of a row,"
        " scales are at least 2**-127, which they are for zeros, and a block's largest numbers may saturate. nvfp4: a"
        " block is 16 elements of a row; 2688 is 6 * 448, the largest product of an element and a scale. Each of its"
        " operations is rounded to float32 and the divisions are those of IEEE 754, in the order written: amax / 2688;"
        " amax / 6, that / global_scale; scale * global_scale; x / that. global_scale is 1 where the quotient is below"
        " 2**-100, as it is for zeros, so that no product of scales is subnormal. A block scale that would round to"
        " zero is 2**-9, the smallest one, also in a block of zeros. Conversions round to nearest, ties to even. The"
        " last block of a row may be shorter. A NaN or an infinity makes the scale of its block NaN, and with nvfp4 all"
        " scales; elements of such a block are 0, as e2m1 has no NaN. Not guaranteed: the sign of a zero; the bits of a"
        " NaN; with mxfp4, results for a block without a magnitude of 2**-90 or more, where a kernel may flush"
        " subnormal numbers to zero."
    ),
    tensors=(TensorArgument("x", ("*M", "K"), ("float32", "float16", "bfloat16")),),
    parameters=(
        Parameter(
            "format",
            "nvfp4",
            kind="format",
            choices=FLOAT4_FORMATS,
            of="q",
            summary="block and scales: 32 and powers of two, or 16 and e4m3fn",
        ),
    ),
    outputs=(
        Result("q", ("*M", "K/2"), like="x", dtype="float4_e2m1fn_x2", differentiable=False),
        Result(
            "scale",
            Choice("format", {name: SCALE_SHAPES[name] for name in FLOAT4_FORMATS}),
            like="x",
            dtype=Choice("format", {"mxfp4": "float8_e8m0fnu", "nvfp4": "float8_e4m3fn"}),
            differentiable=False,
        ),
        Result("global_scale", (), like="x", dtype="float32", when=("format", "nvfp4"), differentiable=False),
    ),
    requirements=("K % 2 == 0",),
    cases=(
        Case("one byte", (1,), {"K": 2}),
        Case("one byte, mxfp4", (1,), {"K": 2}, parameters={"format": "mxfp4"}),
        Case("one row, no leading dimension", (), {"K": 64}),
        Case("one block each", (4,), {"K": 16}),
        Case("one block each, mxfp4", (4,), {"K": 32}, parameters={"format": "mxfp4"}),
        Case("block and one byte", (3,), {"K": 18}),
        Case("block and one byte, mxfp4", (3,), {"K": 34}, parameters={"format": "mxfp4"}),
        Case("short block last", (7,), {"K": 1006}),
        Case("short block last, mxfp4", (7,), {"K": 1006}, parameters={"format": "mxfp4"}),
        Case("three dimensions", (2, 3), {"K": 96}),
        Case("three dimensions, mxfp4", (2, 3), {"K": 96}, parameters={"format": "mxfp4"}),
        Case("no rows", (0,), {"K": 48}),
        Case("no rows, mxfp4", (0,), {"K": 48}, parameters={"format": "mxfp4"}),
        Case("sliced", (5,), {"K": 72}, layouts={"x": "sliced"}),
        Case("transposed, mxfp4", (6,), {"K": 66}, {"x": "transposed"}, {"format": "mxfp4"}),
        Case("every second column", (5,), {"K": 50}, layouts={"x": "stepped"}),
        Case("rows with two strides", (3, 4), {"K": 56}, layouts={"x": "split"}),
        Case("large magnitudes: scales that underflow", (3,), {"K": 90}, values="large"),
        Case("large magnitudes, mxfp4", (3,), {"K": 90}, parameters={"format": "mxfp4"}, values="large"),
        Case("tiny magnitudes", (3,), {"K": 90}, values="tiny"),
        Case("NaN and infinities", (7,), {"K": 70}, values="special"),
        Case("NaN and infinities, mxfp4", (7,), {"K": 170}, parameters={"format": "mxfp4"}, values="special"),
        Case("zeros", (3,), {"K": 60}, values="zeros"),
        Case("zeros, mxfp4", (3,), {"K": 60}, parameters={"format": "mxfp4"}, values="zeros"),
    ),
    # q: x / scale in float32 may tip a tie. Block scales are exact, since a scale that is one step off moves a whole
    # block: amax / 6 / global_scale hits ties (one block in a hundred with bfloat16), and only IEEE 754's divisions, in
    # the order given, break them alike. So the float32 is the nearest one.
    tolerance=Tolerance(
        forward={"float4_e2m1fn_x2": 0.50001, "float8_e8m0fnu": 0.0, "float8_e4m3fn": 0.0, "float32": 0.5}
    ),
    grid=Grid(
        (
            *grids.matrices(grids.QUANTISED, format="nvfp4"),
            *grids.matrices(grids.QUANTISED, format="mxfp4"),
            *grids.matrices(grids.SMALLER, format="nvfp4"),
        ),
        grids.matrices(((4, 256),), format="mxfp4")[0],
        grids.drawn_matrices(grids.layer_rows, {"format": ("nvfp4", "mxfp4")}),
    ),
    cost=cost,
    source=(
        "OCP Microscaling Formats (MX) Specification 1.0, 5.3.3 and 6.3 (mxfp4); NVIDIA 2025, Pretraining Large"
        " Language Models with NVFP4, arXiv 2509.25149, 2 and appendix B (nvfp4)"
    ),
)
