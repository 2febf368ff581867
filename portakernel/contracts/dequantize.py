"""``dequantize``: numbers from quantised elements and their scales; what the scale formats are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import (
    Case,
    Choice,
    Contract,
    Cost,
    Draw,
    Grid,
    GridRow,
    Parameter,
    Result,
    TensorArgument,
    Tolerance,
)
from portakernel.contract.grids import layer_rows
from portakernel.contract.sizes import parse_size
from portakernel.words.dtypes import DTYPES, SCALE_FORMATS

FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
# What each format's elements and scales are, and the shape of its scales over a matrix of M rows and K elements a row.
# A last block may be shorter than the others.
ELEMENTS: Mapping[str, tuple[str, ...]] = {
    "tensor": FLOAT8,
    "row": FLOAT8,
    "block_1x128": FLOAT8,
    "block_128x128": FLOAT8,
    "mxfp8": ("float8_e4m3fn", "float8_e5m2"),
    "mxfp4": ("float4_e2m1fn_x2",),
    "nvfp4": ("float4_e2m1fn_x2",),
}
SCALES: Mapping[str, tuple[str, ...]] = {
    "tensor": ("float32",),
    "row": ("float32",),
    "block_1x128": ("float32",),
    "block_128x128": ("float32",),
    "mxfp8": ("float8_e8m0fnu",),
    "mxfp4": ("float8_e8m0fnu",),
    "nvfp4": ("float8_e4m3fn",),
}
SCALE_SHAPES: Mapping[str, tuple[str, ...]] = {
    "tensor": (),
    "row": ("*M", "1"),
    "block_1x128": ("*M", "ceil(K/128)"),
    "block_128x128": ("ceil(M/128)", "ceil(K/128)"),
    "mxfp8": ("*M", "ceil(K/32)"),
    "mxfp4": ("*M", "ceil(K/32)"),
    "nvfp4": ("*M", "ceil(K/16)"),
}
# Two elements to a byte.
FLOAT4_FORMATS = ("mxfp4", "nvfp4")


def scale_count(format: str, rows: int, columns: int) -> int:
    """How many scales a matrix of ``rows`` times ``columns`` elements has."""
    count = 1
    for text in SCALE_SHAPES[format]:
        size = parse_size(text.removeprefix("*"))
        count *= size.of(rows if size.name == "M" else columns)
    return count


def element_bytes(format: str, rows: int, columns: int) -> int:
    """What the elements of such a matrix take."""
    return rows * columns // 2 if format in FLOAT4_FORMATS else rows * columns


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Elements and scales read once, the numbers written once; one product each."""
    rows, columns = dims["M"], dims["K"]
    moved = element_bytes(values["format"], rows, columns) + rows * columns * DTYPES[values["dtype"]].itemsize
    moved += scale_count(values["format"], rows, columns) * itemsizes["scale"] + itemsizes.get("global_scale", 0)
    return Cost(bytes=moved, flops=rows * columns)


def _row(rows: int, columns: int, format: str) -> GridRow:
    packed = 2 if format in ("mxfp4", "nvfp4") else 1
    return GridRow(f"{rows}×{columns} {format}", {"q": (rows, columns // packed)}, {"format": format})


CONTRACT = Contract(
    op="dequantize",
    summary="Numbers from quantised elements and their scales.",
    formula="q * scale * global_scale",
    notes=(
        "format says which elements share a scale: all (tensor), those of a row (row), 128 of a row (block_1x128), 128"
        " times 128 of a matrix whose rows are the leading dimensions in order (block_128x128), 32 of a row (mxfp8,"
        " mxfp4; scales are powers of two) or 16 of a row (nvfp4); a last block may be shorter. K counts elements: a"
        " byte of float4_e2m1fn_x2 holds two, the even one in its low four bits. Scales multiply. global_scale, that of"
        " nvfp4, multiplies everything, in whatever format. Computed in float32, the factors in any order, and rounded"
        " once more; numbers too large for dtype become infinities. A NaN scale makes its block NaN, also where"
        " elements are zero. Not guaranteed: equal bits from different kernels; results, scales and products of scales"
        " that are subnormal in float32, which a kernel may flush to zero; finite results where a product of two of the"
        " three factors exceeds float32."
    ),
    tensors=(
        TensorArgument(
            "q",
            Choice("format", {name: ("*M", "K/2" if name in FLOAT4_FORMATS else "K") for name in SCALE_FORMATS}),
            Choice("format", ELEMENTS),
        ),
        TensorArgument("scale", Choice("format", SCALE_SHAPES), Choice("format", SCALES), draw=Draw("scale")),
        TensorArgument("global_scale", (), ("float32",), optional=True, draw=Draw("scale")),
    ),
    parameters=(
        Parameter(
            "format", "row", kind="format", choices=SCALE_FORMATS, of="q", summary="which elements share a scale"
        ),
        Parameter(
            "dtype", "float32", kind="dtype", choices=("float32", "float16", "bfloat16"), summary="dtype of the result"
        ),
    ),
    outputs=(Result("x", ("*M", "K"), like="q", dtype="dtype", differentiable=False),),
    cases=(
        Case("one element", (1,), {"K": 1}),
        Case("one row, no leading dimension", (), {"K": 65}),
        Case("rows, float16", (7,), {"K": 33}, parameters={"dtype": "float16"}),
        Case("rows of three dimensions, global scale", (2, 3), {"K": 40}, present=("global_scale",)),
        Case("tensor, bfloat16", (5,), {"K": 129}, parameters={"format": "tensor", "dtype": "bfloat16"}),
        Case("no rows", (0,), {"K": 48}, parameters={"format": "block_128x128"}),
        Case("blocks of 128, a short one last", (4,), {"K": 300}, parameters={"format": "block_1x128"}),
        Case("blocks of 128, three dimensions", (2, 3), {"K": 256}, parameters={"format": "block_1x128"}),
        Case("square blocks, short ones last", (130,), {"K": 200}, parameters={"format": "block_128x128"}),
        Case("square blocks over leading dimensions", (3, 50), {"K": 129}, parameters={"format": "block_128x128"}),
        Case("mxfp8", (6,), {"K": 96}, parameters={"format": "mxfp8", "dtype": "bfloat16"}),
        Case("mxfp8, short block last", (2, 5), {"K": 77}, parameters={"format": "mxfp8"}),
        Case("mxfp4", (5,), {"K": 64}, parameters={"format": "mxfp4", "dtype": "bfloat16"}),
        Case("mxfp4, short block last", (3,), {"K": 70}, parameters={"format": "mxfp4"}),
        Case("nvfp4", (9,), {"K": 64}, parameters={"format": "nvfp4"}),
        Case(
            "nvfp4, global scale, short block last",
            (2, 3),
            {"K": 54},
            parameters={"format": "nvfp4", "dtype": "float16"},
            present=("global_scale",),
        ),
        Case("transposed elements", (6,), {"K": 50}, layouts={"q": "transposed"}),
        Case("transposed scales", (6,), {"K": 260}, {"scale": "transposed"}, {"format": "block_1x128"}),
        Case("sliced elements and scales", (5,), {"K": 96}, {"q": "sliced", "scale": "sliced"}, {"format": "mxfp8"}),
        Case("every second byte", (5,), {"K": 96}, {"q": "stepped"}, {"format": "nvfp4"}),
        Case("large magnitudes", (3,), {"K": 90}, values="large"),
        Case("zeros", (3,), {"K": 60}, parameters={"format": "tensor"}, values="zeros"),
        Case("NaN and infinities", (7,), {"K": 70}, values="special"),
        Case("NaN, mxfp8", (7,), {"K": 170}, parameters={"format": "mxfp8", "dtype": "float16"}, values="special"),
    ),
    # two products in float32, each of which may add half a unit of a number that is up to twice as large; 16-bit
    # results are one rounding of that
    tolerance=Tolerance(
        forward={"float32": 1.5, "float16": 0.501, "bfloat16": 0.501}, signed_zeros=True, flushed="all"
    ),
    grid=Grid(
        tuple(_row(8192, 8192, name) for name in ("row", "block_1x128", "mxfp8", "mxfp4", "nvfp4")),
        _row(4, 256, "row"),
        lambda production: _row(
            *layer_rows(production), production.one_of(("row", "block_1x128", "mxfp8", "mxfp4", "nvfp4"))
        ),
    ),
    cost=cost,
    in_graphs="fused",
    source="OCP Microscaling Formats 1.0, 5.3 and 5.4; DeepSeek-V3, arXiv 2412.19437, 3.3.2 (blocks of 128)",
)
