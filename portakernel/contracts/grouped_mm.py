"""``grouped_mm``: the products of pieces of rows, each with a matrix of its own: experts' linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

from portakernel.contract import (
    Case,
    Choice,
    Contract,
    Cost,
    Draw,
    Ends,
    Grid,
    GridRow,
    Indices,
    Parameter,
    Result,
    TensorArgument,
    Tolerance,
)
from portakernel.contract.production import MIXTURES, Production
from portakernel.contracts.dequantize import FLOAT8
from portakernel.contracts.scaled_mm import FLOATS

FORMATS = ("none", "row", "block")
_BLOCK = 128


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Rows read and written once, and of matrices those that have rows; a product and a sum for each term."""
    M, K, E, N = (dims[name] for name in "MKEN")
    most = dims.get("R", M)
    ends = values.get("offsets", (0, most))
    rows = max(ends, default=0)
    matrices = sum(a < b for a, b in pairwise(ends)) if "offsets" in values else min(E, most)
    read = min(rows, M)
    blocks, wide = -(-K // _BLOCK), values["format"] == "block"
    moved = (
        read * K * itemsizes["a"] + most * itemsizes.get("gather", 0) + matrices * N * K * itemsizes["b"] + 4 * (E + 1)
    )
    moved += rows * N * (itemsizes["a"] if values["format"] == "none" else 2) + matrices * N * itemsizes.get("bias", 0)
    moved += read * (blocks if wide else 1) * itemsizes.get("scale_a", 0)
    moved += matrices * (-(-N // _BLOCK) * blocks if wide else N) * itemsizes.get("scale_b", 0)
    return Cost(bytes=moved, flops=2 * rows * N * K)


def _case(
    name: str,
    sizes: tuple[int, int, int],
    rows: tuple[int, ...] | None = None,
    *,
    E: int | None = None,
    more: int = 0,
    of: int | None = None,
    format: str = "none",
    present: tuple[str, ...] = (),
    **how: Any,
) -> Case:
    """A case with ``M, N, K`` and so many ``rows`` of each expert, ``more`` of none; or ``E`` experts' drawn.

    The rows are gathered from ``of`` ones, where given.
    """
    given = {} if rows is None else {"offsets": tuple(accumulate(rows, initial=0))}
    M, N, K = sizes
    count = M if rows is None else sum(rows) + more
    dims = {"M": count, "N": N, "K": K, "E": len(rows or ()) if E is None else E}
    if of is not None:
        dims |= {"M": of, "R": count}
        present = (*present, "gather")
    scales = () if format == "none" else ("scale_a", "scale_b")
    values = {} if format == "none" else {"format": format}
    return Case(
        name,
        dims=dims,
        given=given,
        parameters=values,
        present=(*scales, *present),
        **{"backward": format == "none", **how},
    )


def _row(M: int, E: int, N: int, K: int, format: str = "none", *, core: bool = False) -> GridRow:
    shapes: dict[str, tuple[int, ...]] = {"a": (M, K), "b": (E, N, K), "offsets": (E + 1,)}
    if format == "row":
        shapes |= {"scale_a": (M, 1), "scale_b": (E, N, 1)}
    if format == "block":
        blocks = -(-K // _BLOCK)
        shapes |= {"scale_a": (M, blocks), "scale_b": (E, -(-N // _BLOCK), blocks)}
    told, values = ("", {}) if format == "none" else (f" {format}", {"format": format})
    return GridRow(f"{M} rows E{E} {N}×{K}{told}", shapes, values, core, trained=format == "none")


def _drawn(production: Production) -> GridRow:
    """One of the layers of a mixture of experts: both halves of a gate, or what follows it."""
    _, hidden, width, experts, k = production.one_of(MIXTURES)
    rows = min(production.tokens() * k, 1 << 16)
    if production.at_times(0.5):
        return _row(rows, experts, 2 * width, hidden)
    return _row(rows, experts, hidden, width)


def _scales(name: str, row: tuple[str, ...], block: tuple[str, ...]) -> TensorArgument:
    return TensorArgument(
        name,
        Choice("format", {"none": row, "row": row, "block": block}),
        ("float32",),
        optional=True,
        feature=True,
        keyword=True,
        draw=Draw("scale"),
    )


CONTRACT = Contract(
    op="grouped_mm",
    summary="Consecutive pieces of rows, each times a matrix of its own: the linear layers of experts.",
    formula="y[offsets[e]:offsets[e + 1]] = a[offsets[e]:offsets[e + 1]] @ b[e].T + bias[e] for each expert e; with"
    " gather, a[gather] stands for a",
    notes=(
        "a: (M, K), sorted by expert; b: (E, N, K), each expert's matrix as a linear layer keeps its weight; offsets:"
        " (E+1,), where each expert's rows begin, from 0 on, never falling, the last one at most M; bias: (E, N); y:"
        " (M, N). With gather: (R,), the rows that experts have are a's rows of these numbers, from 0 to M-1, any of"
        " them several times: offsets are theirs, y is (R, N), and a's rows go with their scales; of moe_sort's order"
        " it is order // K. torch's grouped_mm, whose matrices are (E, K, N) and whose offsets leave the 0 out, is that"
        " of b.transpose(1, 2); moe_sort gives offsets. An expert may have no rows, and one all of them. Products are"
        " summed in float32, bias is added to that, and the result is rounded once. format='row' is for float8 a and b,"
        " with scale_a: (M, 1) and scale_b: (E, N, 1); 'block' has scale_a: (M, ceil(K/128)), one for each 128 of a"
        " row, and scale_b: (E, ceil(N/128), ceil(K/128)), one for each square: as quantize_fp8 gives them for"
        " block_1x128, and of each matrix for block_128x128. Scales multiply; of float8 y is bfloat16, and sums are"
        " promoted to float32 at least every 128 terms. Scales that a format has not, or lacks, are refused"
        " (ArgumentValueError). Gradients, of a and b for format='none' alone, are summed in float32 and rounded once;"
        " an expert without rows has zeros, and so have rows of no expert. Undefined: rows of y behind offsets[E];"
        " any result for offsets that fall or end beyond y, and for gather elsewhere (refused with"
        " PORTAKERNEL_CHECKS=1). Not guaranteed: equal bits from different kernels, or for a row among other"
        " numbers of rows; all 24 bits of float32 products where torch.backends.cuda.matmul allows fewer."
    ),
    tensors=(
        TensorArgument("a", ("M", "K"), Choice("format", {"none": FLOATS, "row": FLOAT8, "block": FLOAT8})),
        TensorArgument("b", ("E", "N", "K"), ("a",)),
        TensorArgument("offsets", ("E+1",), ("int32", "int64"), draw=Draw("segments", below="R|M"), rule=Ends("R|M")),
        TensorArgument(
            "bias",
            ("E", "N"),
            Choice("format", {"none": (*FLOATS, "a"), "row": FLOATS, "block": FLOATS}),
            optional=True,
            feature=True,
            keyword=True,
        ),
        _scales("scale_a", ("M", "1"), ("M", "ceil(K/128)")),
        _scales("scale_b", ("E", "N", "1"), ("E", "ceil(N/128)", "ceil(K/128)")),
        TensorArgument(
            "gather",
            ("R",),
            ("int32", "int64"),
            optional=True,
            feature=True,
            keyword=True,
            draw=Draw("index", below="M"),
            rule=Indices("M"),
        ),
    ),
    parameters=(
        Parameter(
            "format",
            "none",
            feature=True,
            kind="text",
            choices=FORMATS,
            summary="which elements of float8 a and b share a scale",
        ),
    ),
    outputs=(
        Result(
            "y", ("R|M", "N"), like="a", dtype=Choice("format", {"none": "", "row": "bfloat16", "block": "bfloat16"})
        ),
    ),
    kept=("a", "b", "offsets", "bias", "gather"),
    requirements=("E > 0 or M == 0",),
    gradient="kernel",
    autocast="cast",
    cases=(
        _case("one element", (1, 1, 1), (1,)),
        _case("a few rows", (0, 24, 32), (3, 5, 1)),
        _case("blocks", (0, 64, 64), (16, 32, 48)),
        _case("drawn pieces", (61, 40, 48), E=5),
        _case("odd sizes, bias", (0, 53, 61), (7, 0, 29, 1), present=("bias",)),
        _case("one expert", (0, 40, 48), (37,)),
        _case("an expert has all", (0, 40, 48), (0, 0, 66, 0), present=("bias",)),
        _case("the first and the last are empty", (0, 32, 48), (0, 17, 20, 0)),
        _case("nobody has rows", (0, 24, 32), (0, 0, 0)),
        _case("nobody has rows, some rows are there", (0, 24, 32), (0, 0, 0), more=5),
        _case("rows of no expert", (0, 24, 32), (9, 0, 14), more=11, present=("bias",)),
        _case("many experts, few rows", (0, 32, 64), tuple(n % 3 for n in range(60))),
        _case("many rows", (0, 48, 40), (150, 131, 3)),
        _case("several tiles of columns", (0, 290, 72), (20, 5)),
        _case("no rows", (0, 24, 32), E=4),
        _case("no experts", (0, 24, 32), E=0),
        _case("no columns", (0, 0, 16), (3, 4)),
        _case("nothing to sum, bias", (0, 24, 0), (3, 4), present=("bias",)),
        # not longer: one by one in float32, 500 products are further off than twice a sum in the blocks of a CPU
        _case("long sum", (0, 32, 225), (3, 4)),
        _case("sliced, transposed", (0, 40, 48), (9, 12), layouts={"a": "sliced", "b": "transposed"}),
        _case("transposed a", (0, 40, 33), (9, 12), layouts={"a": "transposed", "offsets": "stepped"}),
        _case("every second column", (0, 24, 50), (9, 12), layouts={"a": "stepped", "b": "stepped"}),
        _case(
            "expanded, bias sliced",
            (0, 24, 40),
            (9, 12),
            layouts={"b": "expanded", "bias": "sliced"},
            present=("bias",),
        ),
        _case("offset by one", (0, 32, 64), (9, 12), layouts={"a": "offset", "b": "offset"}),
        _case("large magnitudes", (0, 24, 40), (3, 4), values="large", backward=False),
        _case("tiny magnitudes", (0, 24, 40), (3, 4), values="tiny", backward=False),
        _case("NaN, infinities, signed zeros", (0, 24, 40), (7, 6), values="special", backward=False),
        _case("zeros", (0, 24, 40), (3, 4), values="zeros", present=("bias",)),
        _case("gathered", (0, 40, 48), (13, 0, 20), of=17),
        _case("gathered from few, bias", (0, 24, 33), (9, 30), of=2, present=("bias",)),
        _case("gathered from many, rows of no expert", (0, 24, 32), (3, 0, 4), of=50, more=5),
        _case("gathered, drawn pieces", (29, 24, 32), E=3, of=40),
        _case("nothing gathered", (0, 24, 32), E=2, of=5),
        _case("gathered rows lie apart", (0, 24, 40), (9, 12), of=15, layouts={"a": "stepped", "gather": "stepped"}),
        _case("float8 rows, gathered", (0, 48, 128), (13, 0, 20), of=11, format="row"),
        _case("float8 blocks, gathered, bias", (0, 144, 200), (13, 4), of=9, format="block", present=("bias",)),
        _case("float8 rows", (0, 48, 128), (13, 0, 20), format="row"),
        _case("float8 rows of odd sizes, bias", (0, 65, 129), (13, 4, 20), format="row", present=("bias",)),
        _case("float8 rows, NaN and infinities", (0, 24, 40), (7, 6), format="row", values="special"),
        _case("float8 rows, many terms", (0, 16, 2048), (2, 3), format="row"),
        _case("float8 rows, rows of no expert", (0, 32, 64), (5, 0, 7), more=6, format="row"),
        _case("float8 rows, nobody has any", (0, 32, 64), (0, 0), format="row"),
        _case("float8 blocks", (0, 144, 384), (13, 0, 20), format="block"),
        _case("float8 blocks of odd sizes, bias", (0, 129, 200), (33, 5), format="block", present=("bias",)),
        _case("float8 blocks, many rows", (0, 272, 256), (150, 7), format="block"),
        _case(
            "float8, scales apart",
            (0, 32, 48),
            (7, 6),
            format="row",
            layouts={"scale_a": "sliced", "scale_b": "stepped", "b": "transposed"},
        ),
    ),
    tolerance=Tolerance(rule="plain", flushed="all"),
    grid=Grid(
        (
            _row(16384, 8, 14336, 4096, core=True),
            _row(16384, 128, 1536, 2048, core=True),
            _row(16384, 8, 4096, 14336),
            _row(512, 128, 1536, 2048),
            _row(64, 128, 1536, 2048),
            _row(32768, 256, 4096, 7168),
            _row(16384, 8, 7168, 4096, "row"),
            _row(16384, 8, 7168, 4096, "block"),
        ),
        _row(16, 4, 64, 64),
        _drawn,
    ),
    cost=cost,
    host_reads=("offsets",),
    in_graphs="call",
    source=(
        "Gale et al. 2022, MegaBlocks, arXiv 2211.15841; torch.nn.functional.grouped_mm; DeepSeek-V3, arXiv 2412.19437,"
        " 3.3.2 (blocks of 128, promoted sums)"
    ),
)
