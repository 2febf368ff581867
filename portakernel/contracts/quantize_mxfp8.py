"""``quantize_mxfp8``: float8 elements and a power of two for each 32 of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Parameter, Result, TensorArgument, Tolerance, grids
from portakernel.contracts.dequantize import ELEMENTS, SCALE_SHAPES, scale_count


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read once, one byte an element and a scale written once; a comparison and a product each."""
    rows, columns = dims["M"], dims["K"]
    moved = rows * columns * (itemsizes["x"] + 1) + scale_count("mxfp8", rows, columns)
    return Cost(bytes=moved, flops=2 * rows * columns)


CONTRACT = Contract(
    op="quantize_mxfp8",
    summary="Float8 elements and, for each 32 of a row, the power of two that gives the numbers back.",
    formula="scale = 2 ** (floor(log2(amax(abs(x)))) - emax); q = round(clamp(x / scale, -max(dtype), max(dtype)))",
    notes=(
        "The conversion of OCP Microscaling Formats 1.0, 6.3. emax is the exponent of dtype's largest number: 8 for"
        " float8_e4m3fn (448), 15 for float8_e5m2 (57344). The scale is rounded down, so that a block's largest numbers"
        " may saturate. It is at least 2**-127, which it is for zeros. x / scale is exact, and rounded to nearest, ties"
        " to even. The last block of a row may be shorter. A NaN or an infinity makes the scale of its block NaN (0xFF)"
        " and so all its elements; the specification leaves that open. Not guaranteed: the bits of a NaN element; the"
        " sign of a zero; results for a block without a magnitude of 2**-90 or more, where a kernel may flush subnormal"
        " numbers to zero."
    ),
    tensors=(TensorArgument("x", ("*M", "K"), ("float32", "float16", "bfloat16")),),
    parameters=(Parameter("dtype", "float8_e4m3fn", kind="dtype", choices=ELEMENTS["mxfp8"], summary="dtype of q"),),
    outputs=(
        Result("q", ("*M", "K"), like="x", dtype="dtype", differentiable=False),
        Result("scale", SCALE_SHAPES["mxfp8"], like="x", dtype="float8_e8m0fnu", differentiable=False),
    ),
    cases=(
        Case("one element", (1,), {"K": 1}),
        Case("one row, no leading dimension", (), {"K": 64}),
        Case("one block each", (4,), {"K": 32}),
        Case("block and one", (3,), {"K": 33}),
        Case("odd sizes", (7,), {"K": 1009}),
        Case("odd sizes, e5m2", (5,), {"K": 333}, parameters={"dtype": "float8_e5m2"}),
        Case("three dimensions", (2, 3), {"K": 96}),
        Case("no rows", (0,), {"K": 48}),
        Case("many rows", (131,), {"K": 40}),
        Case("sliced", (5,), {"K": 72}, layouts={"x": "sliced"}),
        Case("transposed", (6,), {"K": 65}, layouts={"x": "transposed"}),
        Case("expanded rows", (4,), {"K": 65}, layouts={"x": "expanded"}),
        Case("every second column, e5m2", (5,), {"K": 50}, {"x": "stepped"}, {"dtype": "float8_e5m2"}),
        Case("rows with two strides", (3, 4), {"K": 56}, layouts={"x": "split"}),
        Case("large magnitudes", (3,), {"K": 90}, values="large"),
        Case("NaN and infinities", (7,), {"K": 170}, values="special"),
        Case("NaN and infinities, e5m2", (7,), {"K": 170}, {}, {"dtype": "float8_e5m2"}, values="special"),
        Case("zeros", (3,), {"K": 60}, values="zeros"),
    ),
    # everything but the rounding is exact; what is left is for a conversion that rounds through float32
    tolerance=Tolerance(forward={"float8_e4m3fn": 0.50001, "float8_e5m2": 0.50001, "float8_e8m0fnu": 0.0}),
    grid=grids.matrix_grid((), grids.QUANTISED + grids.SMALLER, grids.layer_rows),
    cost=cost,
    source="OCP Microscaling Formats (MX) Specification 1.0, 6.3; Rouhani et al. 2023, arXiv 2310.10537, algorithm 1",
)
