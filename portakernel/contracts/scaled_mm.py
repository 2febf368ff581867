"""``scaled_mm``: the product of two quantised matrices."""

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
from portakernel.contract.grids import layer_products
from portakernel.contracts.dequantize import ELEMENTS, FLOAT4_FORMATS, SCALES, element_bytes, scale_count
from portakernel.words.dtypes import DTYPES, SCALE_FORMATS

FLOATS = ("float32", "float16", "bfloat16")


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Both matrices and their scales read once, the product written once; a product and a sum for each term."""
    M, N, K = dims["M"], dims["N"], dims["K"]
    moved = M * N * DTYPES[values["out_dtype"]].itemsize + N * itemsizes.get("bias", 0)
    for name, rows in (("a", M), ("b", N)):
        layout = values[f"format_{name}"]
        moved += element_bytes(layout, rows, K) + scale_count(layout, rows, K) * itemsizes[f"scale_{name}"]
        moved += itemsizes.get(f"global_scale_{name}", 0)
    return Cost(bytes=moved, flops=2 * M * N * K)


def _elements(name: str, rows: str) -> TensorArgument:
    """The matrix ``a`` or ``b``."""
    shapes = {layout: (rows, "K/2" if layout in FLOAT4_FORMATS else "K") for layout in SCALE_FORMATS}
    return TensorArgument(name, Choice(f"format_{name}", shapes), Choice(f"format_{name}", ELEMENTS))


def _scales(name: str, rows: str) -> TensorArgument:
    """Its scales."""

    def block_scales(columns: str, padded: str) -> Choice[tuple[str, ...]]:
        return Choice("swizzle", {"none": (rows, columns), "32_4_4": (f"128*ceil({rows}/128)", padded)})

    shapes: dict[str, tuple[str, ...] | Choice[tuple[str, ...]]] = {
        "tensor": (),
        "row": (rows, "1"),
        "block_1x128": (rows, "ceil(K/128)"),
        "block_128x128": (f"ceil({rows}/128)", "ceil(K/128)"),
        "mxfp8": block_scales("ceil(K/32)", "4*ceil(K/128)"),
        "mxfp4": block_scales("ceil(K/32)", "4*ceil(K/128)"),
        "nvfp4": block_scales("ceil(K/16)", "4*ceil(K/64)"),
    }
    by = f"format_{name}"
    return TensorArgument(f"scale_{name}", Choice(by, shapes), Choice(by, SCALES), draw=Draw("scale"))


def _case(
    name: str,
    sizes: tuple[int, int, int],
    formats: tuple[str, str] = ("row", "row"),
    *,
    present: tuple[str, ...] = (),
    layouts: Mapping[str, Any] | None = None,
    values: Any = "normal",
    **parameters: Any,
) -> Case:
    """A case with ``M, N, K`` and the formats of ``a`` and ``b``."""
    return Case(
        name,
        dims=dict(zip("MNK", sizes, strict=True)),
        layouts=layouts or {},
        parameters={"format_a": formats[0], "format_b": formats[1], **parameters},
        values=values,
        backward=False,
        present=present,
    )


def _row(M: int, N: int, K: int, format_a: str, format_b: str, *, core: bool = False, fast: bool = False) -> GridRow:
    packed = 2 if format_a in ("mxfp4", "nvfp4") else 1
    shapes = {"a": (M, K // packed), "b": (N, K // packed)}
    values: dict[str, Any] = {"format_a": format_a, "format_b": format_b}
    values |= {"use_fast_accum": True} if fast else {}
    name = f"{M}×{N}×{K} {format_a}" + (f"/{format_b}" if format_a != format_b else "") + (" fast" if fast else "")
    return GridRow(name, shapes, values, core)


# Of what is drawn, the two formats: rows most often, as serving engines have it.
_DRAWN_FORMATS = (
    ("row", "row"), ("row", "row"), ("tensor", "tensor"), ("block_1x128", "block_128x128"), ("mxfp8", "mxfp8"),
    ("nvfp4", "nvfp4"),
)  # fmt: skip

CONTRACT = Contract(
    op="scaled_mm",
    summary="The product of two quantised matrices, dequantised on the way.",
    formula="(a * scale_a * global_scale_a) @ (b * scale_b * global_scale_b).T + bias",
    notes=(
        "a: (M, K) and b: (N, K), both row-major in what they are summed over, b as a linear layer keeps its weight."
        " The results of quantize_fp8, quantize_mxfp8 and quantize_fp4 are its arguments as they are. Formats are those"
        " of dequantize, each operand with its own; kernels claim pairs, such as row and row, tensor and tensor,"
        " block_1x128 and block_128x128, mxfp8 and mxfp8, nvfp4 and nvfp4. K counts elements: a is (M, K/2) where two"
        " share a byte. Scales multiply. A global scale, that of nvfp4, multiplies its operand in whatever format. bias"
        " is added before rounding. swizzle='32_4_4' is cuBLAS' layout of block scales, for mxfp8, mxfp4 and nvfp4"
        " (float32 scales keep theirs): with C scales to a row, the scale of row r and block c is element (r // 128 *"
        " ceil(C / 4) + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4 of a contiguous tensor, whose shape"
        " (128*ceil(M/128), 4*ceil(C/4)) says how much there is and nothing about where; what pads it is not used. Sums"
        " are kept in float32 and rounded once. use_fast_accum permits to keep them as the tensor cores do, in fewer"
        " bits (14 for float8 on Hopper); without it they are promoted to float32 at least every 128 terms. An element"
        " times its scale may be rounded to bfloat16 where the result has 16 bits or sums may be fast, to no fewer than"
        " 13 bits else. Not guaranteed: equal bits from different kernels; which results are NaN and which infinite"
        " where an element or scale is; finite results where a sum, a product of scales or a dequantised element"
        " exceeds float32, or is subnormal in it."
    ),
    tensors=(
        _elements("a", "M"),
        _elements("b", "N"),
        _scales("a", "M"),
        _scales("b", "N"),
        TensorArgument("bias", ("N",), FLOATS, optional=True, feature=True, keyword=True),
        TensorArgument("global_scale_a", (), ("float32",), optional=True, keyword=True, draw=Draw("scale")),
        TensorArgument("global_scale_b", (), ("float32",), optional=True, keyword=True, draw=Draw("scale")),
    ),
    parameters=(
        Parameter("format_a", "row", kind="format", choices=SCALE_FORMATS, of="a", summary="which of a share a scale"),
        Parameter("format_b", "row", kind="format", choices=SCALE_FORMATS, of="b", summary="which of b share a scale"),
        Parameter(
            "swizzle",
            "none",
            feature=True,
            kind="text",
            choices=("none", "32_4_4"),
            summary="how block scales lie in memory",
        ),
        Parameter("out_dtype", "bfloat16", kind="dtype", choices=FLOATS, summary="dtype of the product"),
        Parameter("use_fast_accum", False, kind="bool", summary="sums may be kept in fewer bits than float32 has"),
    ),
    outputs=(Result("y", ("M", "N"), like="a", dtype="out_dtype", differentiable=False),),
    cases=(
        _case("one element", (1, 1, 1)),
        _case("rows", (32, 48, 128)),
        _case("rows of odd sizes", (33, 65, 129), out_dtype="float32"),
        _case("rows, bias", (17, 48, 96), present=("bias",)),
        _case("tensors, bias", (16, 48, 64), ("tensor", "tensor"), out_dtype="float16", present=("bias",)),
        _case("rows, many terms, fast sums", (5, 16, 2048), use_fast_accum=True),
        _case("rows, many terms", (5, 16, 2048), out_dtype="float32"),
        _case("rows in sixteens, bias", (33, 48, 80), present=("bias",)),
        # matrix products choose their tiles by the number of rows
        _case("some rows", (130, 80, 144)),
        _case("some rows, fast sums", (130, 80, 272), use_fast_accum=True),
        _case("many rows, bias", (520, 272, 272), present=("bias",)),
        _case("many rows, tensors", (520, 272, 144), ("tensor", "tensor")),
        _case("rows, global scales", (8, 32, 64), present=("global_scale_a", "global_scale_b")),
        _case("no rows", (0, 16, 32)),
        _case("nothing to sum, bias", (4, 8, 0), present=("bias",)),
        _case("tensors", (16, 32, 64), ("tensor", "tensor"), out_dtype="float16"),
        _case("tensors, bias, global scale", (5, 48, 96), ("tensor", "tensor"), present=("bias", "global_scale_b")),
        _case("rows and tensor", (9, 24, 80), ("row", "tensor")),
        _case("tensor and rows, one row", (1, 32, 48), ("tensor", "row"), present=("bias",)),
        _case("rows and tensor, one column", (5, 1, 33), ("row", "tensor"), out_dtype="float32"),
        _case("tensors, float32", (40, 48, 64), ("tensor", "tensor"), out_dtype="float32"),
        _case("blocks and blocks, float32", (40, 48, 384), ("block_1x128", "block_1x128"), out_dtype="float32"),
        _case("square blocks, float32", (140, 48, 256), ("block_128x128", "block_128x128"), out_dtype="float32"),
        _case("tensor and rows", (12, 32, 48), ("tensor", "row")),
        _case("blocks and square blocks", (20, 144, 384), ("block_1x128", "block_128x128")),
        _case("blocks of odd sizes", (33, 129, 200), ("block_1x128", "block_128x128"), out_dtype="float32"),
        _case("blocks and blocks", (8, 32, 256), ("block_1x128", "block_1x128")),
        _case("square blocks and blocks", (132, 16, 384), ("block_128x128", "block_1x128")),
        _case(
            "blocks and square blocks, bias, global scales",
            (132, 144, 384),
            ("block_1x128", "block_128x128"),
            present=("bias", "global_scale_a", "global_scale_b"),
        ),
        _case("several blocks and square blocks", (260, 400, 384), ("block_1x128", "block_128x128")),
        _case("whole blocks and blocks", (12, 32, 256), ("block_1x128", "block_1x128"), present=("global_scale_b",)),
        _case("whole square blocks and blocks", (260, 16, 128), ("block_128x128", "block_1x128")),
        _case("mxfp8", (16, 32, 256), ("mxfp8", "mxfp8")),
        _case("mxfp8, global scales", (9, 32, 96), ("mxfp8", "mxfp8"), present=("global_scale_a", "global_scale_b")),
        _case("mxfp8 of odd sizes", (7, 9, 77), ("mxfp8", "mxfp8"), out_dtype="float16"),
        _case("mxfp8, swizzled", (130, 33, 160), ("mxfp8", "mxfp8"), swizzle="32_4_4"),
        _case("mxfp8, swizzled, bias", (130, 48, 160), ("mxfp8", "mxfp8"), swizzle="32_4_4", present=("bias",)),
        _case("mxfp8 and mxfp4", (10, 20, 102), ("mxfp8", "mxfp4")),
        _case("mxfp4", (12, 16, 128), ("mxfp4", "mxfp4"), present=("bias",)),
        _case("nvfp4, global scales", (9, 31, 80), ("nvfp4", "nvfp4"), present=("global_scale_a", "global_scale_b")),
        _case("nvfp4, a global scale", (9, 32, 96), ("nvfp4", "nvfp4"), present=("bias", "global_scale_b")),
        _case("nvfp4 of odd sizes", (11, 13, 70), ("nvfp4", "nvfp4"), out_dtype="float32"),
        _case("nvfp4, swizzled, whole blocks", (130, 16, 128), ("nvfp4", "nvfp4"), swizzle="32_4_4"),
        _case(
            "nvfp4, swizzled, global scale, bias",
            (129, 20, 144),
            ("nvfp4", "nvfp4"),
            swizzle="32_4_4",
            present=("bias", "global_scale_a"),
        ),
        _case("transposed and sliced", (6, 10, 64), layouts={"a": "sliced", "b": "transposed"}),
        _case(
            "scales and bias at odd addresses, one row of b",
            (16, 48, 64),
            ("tensor", "tensor"),
            present=("bias",),
            layouts={"scale_a": "offset", "scale_b": "offset", "bias": "offset", "b": "expanded"},
        ),
        _case("rows of scales at odd addresses", (16, 48, 64), layouts={"scale_a": "offset", "scale_b": "offset"}),
        _case("one transposed row", (1, 48, 64), layouts={"a": "transposed"}),
        _case("rows of scales apart", (7, 32, 48), layouts={"scale_a": "sliced", "scale_b": "stepped"}),
        _case("transposed rows of scales", (7, 32, 48), layouts={"scale_a": "transposed", "scale_b": "transposed"}),
        _case("transposed scales", (40, 8, 260), ("block_1x128", "block_128x128"), layouts={"scale_a": "transposed"}),
    ),
    tolerance=Tolerance(rule="plain", flushed="all"),
    grid=Grid(
        (
            _row(4096, 4096, 4096, "row", "row", core=True),
            _row(8192, 8192, 8192, "row", "row", core=True),
            _row(8192, 8192, 8192, "row", "row", fast=True),
            _row(8192, 14336, 4096, "tensor", "tensor"),
            _row(64, 14336, 4096, "row", "row"),
            _row(8192, 8192, 8192, "block_1x128", "block_128x128"),
            _row(8192, 8192, 8192, "mxfp8", "mxfp8"),
            _row(8192, 8192, 8192, "nvfp4", "nvfp4"),
        ),
        _row(16, 64, 64, "row", "row"),
        lambda production: _row(*layer_products(production), *production.one_of(_DRAWN_FORMATS)),
    ),
    cost=cost,
    source=(
        "OCP Microscaling Formats (MX) Specification 1.0, 6.2 (dot products); NVIDIA cuBLAS, 1D block scaling factors"
        " layout; DeepSeek-V3, arXiv 2412.19437, 3.3.2 (blocks of 128, promoted sums)"
    ),
)
