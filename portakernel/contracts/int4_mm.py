"""``int4_mm``: a product with a weight of four bits an element, in the layouts of checkpoints and in packed ones."""

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
from portakernel.contract.production import Production
from portakernel.contract.value_rules import Groups
from portakernel.words.int4_layouts import BLOCK, INT4_LAYOUTS, PACKED, WORD

# How many columns share a scale: -1 is all of them, 0 as many as there are scales for, or as `order` says.
GROUPS = (32, 64, 128, -1, 0)
ZEROS = ("stored", "stored_plus_one", "none")
FLOATS = ("float32", "float16", "bfloat16")
# What the weights of each layout, their scales and zeros are, as shapes.
_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "gptq": (f"K/{WORD}", "N"),
    "awq": ("K", f"N/{WORD}"),
    "ct": ("N", f"K/{WORD}"),
    **dict.fromkeys(PACKED, (f"ceil(K/{BLOCK})", "N", "16")),
}
_COUNTS: Mapping[int, str] = {**{group: f"ceil(K/{group})" for group in GROUPS if group > 0}, -1: "1", 0: "G"}


def _by_group(layout: str, across: str) -> Choice[tuple[str, ...]]:
    """A shape of so many groups times ``across``, the other way round where the layout has it so."""
    turned = INT4_LAYOUTS[layout].turned_scales
    return Choice("group", {group: (across, count) if turned else (count, across) for group, count in _COUNTS.items()})


def weight(by: str) -> TensorArgument:
    """The words of a weight, in the layout that the parameter ``by`` names."""
    return TensorArgument("weight", Choice(by, _WEIGHTS), ("int32",), draw=Draw("words"))


def scales(by: str) -> TensorArgument:
    """Its scales."""
    return TensorArgument(
        "scales", Choice(by, {name: _by_group(name, "N") for name in INT4_LAYOUTS}), FLOATS, draw=Draw("scale")
    )


def zeros(by: str) -> TensorArgument:
    """Its zeros, eight to a word, or in packed layouts bytes."""
    shapes = {name: _by_group(name, "N" if name in PACKED else f"N/{WORD}") for name in INT4_LAYOUTS}
    dtypes = {name: ("uint8",) if name in PACKED else ("int32",) for name in INT4_LAYOUTS}
    return TensorArgument(
        "zeros", Choice(by, shapes), Choice(by, dtypes), optional=True, feature=True, draw=Draw("words")
    )


def order(by: str, *, optional: bool) -> TensorArgument:
    """The group of each column; in packed layouts where each came from, with the groups where these are of any size."""
    packed: Choice[tuple[str, ...]] = Choice("group", {group: ("2", "K") if group == 0 else ("K",) for group in GROUPS})
    shapes: dict[str, tuple[str, ...] | Choice[tuple[str, ...]]] = {
        name: packed if name in PACKED else ("K",) for name in INT4_LAYOUTS
    }
    return TensorArgument(
        "order",
        Choice(by, shapes),
        ("int32",),
        optional=optional,
        feature=optional,
        draw=Draw("groups", below="N", lengths="scales", page=by),
        rule=Groups("scales", "N", by),
    )


def group_count(dims: Mapping[str, int], group: int) -> int:
    """How many groups a weight with ``dims`` has."""
    return dims["G"] if group == 0 else 1 if group < 0 else -(-dims["K"] // group)


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read and ``y`` written once, half a byte for each weight, scales and zeros; two operations a product."""
    M, N, K = dims["M"], dims["N"], dims["K"]
    groups = group_count(dims, values["group"])
    moved = (M * K + M * N) * itemsizes["x"] + K * N // 2 + groups * N * itemsizes["scales"]
    moved += groups * N // 2 if "zeros" in itemsizes else 0
    moved += N * itemsizes.get("bias", 0) + K * itemsizes.get("order", 0)
    return Cost(bytes=moved, flops=2 * M * N * K)


def _case(
    name: str,
    leading: tuple[int, ...],
    sizes: tuple[int, int],
    layout: str = "gptq",
    group: int = 128,
    *,
    zero: str = "stored",
    present: tuple[str, ...] = ("zeros",),
    G: int | None = None,
    layouts: Mapping[str, Any] | None = None,
    values: Any = "normal",
    backward: bool = True,
) -> Case:
    """A case of ``N, K`` with zeros, and ``G`` scales a row where groups are of any size."""
    dims = dict(zip("NK", sizes, strict=True)) | ({} if G is None else {"G": G})
    parameters = {"layout": layout, "group": group, "zero": zero}
    return Case(name, leading, dims, layouts or {}, parameters, values, backward, present)


def shapes_of(M: int, N: int, K: int, layout: str, group: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a call with zeros, for a grid."""
    groups = 1 if group < 0 else -(-K // group)
    weight = {"gptq": (K // WORD, N), "awq": (K, N // WORD), "ct": (N, K // WORD)}
    found = {"x": (M, K), "weight": weight.get(layout, (-(-K // BLOCK), N, BLOCK // WORD))}
    found["scales"] = (N, groups) if layout == "ct" else (groups, N)
    across = N if layout in PACKED else N // WORD
    return {**found, "zeros": (across, groups) if layout == "ct" else (groups, across)}


def _row(M: int, N: int, K: int, layout: str = "packed_mma", group: int = 128, *, core: bool = False) -> GridRow:
    values = {"layout": layout, "group": group}
    name = f"{M}×{N}×{K} {layout} {group if group > 0 else 'whole'}"
    return GridRow(name, shapes_of(M, N, K, layout, group), values, core)


def _drawn(production: Production) -> GridRow:
    M, N, K = layer_products(production)
    layout = production.one_of(("packed_mma", "packed_mma", "packed_mma", "gptq", "awq", "ct"))
    return _row(M, -(-N // WORD) * WORD, -(-K // WORD) * WORD, layout, production.one_of((128, 128, 128, 64, 32, -1)))


CONTRACT = Contract(
    op="int4_mm",
    summary="A linear layer whose weight has four bits an element.",
    formula="x @ w.T + bias, w[n, k] = (q[n, k] - z[g, n]) * scales[g, n], g = k // group or order[k]",
    notes=(
        "x: (*M, K); y: (*M, N); w: (N, K). Words are int32, nibble i bits 4i to 4i + 3. layout says where q is. gptq:"
        " weight (K/8, N), q[n, k] is nibble k % 8 of word (k // 8, n); zeros (groups, N/8), nibble n % 8. awq: weight"
        " (K, N/8), nibble (0, 4, 1, 5, 2, 6, 3, 7)[n % 8] of word (k, n // 8); zeros (groups, N/8) in that order too."
        " ct, compressed-tensors': weight (N, K/8), nibble k % 8 of word (n, k // 8); scales (N, groups); zeros (N/8,"
        " groups), nibble n % 8. Elsewhere scales are (groups, N). packed_mma and packed_mfma are what kernels read"
        " fastest, on NVIDIA's chips and on others, and what pack_int4 makes: weight (ceil(K/128), N, 16), scales"
        " (groups, N), zeros (groups, N) of uint8, one each. Of k = 128 b + 32 f + 2 j + h, q is nibble f + 4 h of word"
        " (b, n, i), with j = 4t + c for packed_mma, i = 4c + t, and j = 8t + 2c + e for packed_mfma, i = 4c + 2t + e;"
        " what pads K is not used. The tables are portakernel.words.int4_layouts. z is zeros for stored (GPTQModel's"
        " v2, AWQ) and zeros + 1 for stored_plus_one (AutoGPTQ's v1); it is 8 without zeros, and for none, where zeros"
        " are not read. Columns come in groups of 32, 64 or 128, the last of which may be short, or, for -1, in one of"
        " all K. 0: groups of any size, (G, N) scales; without order of ceil(K/G) columns each. order, activation"
        " ordering: in layouts of checkpoints (K,), the group of each column (g_idx), each below the number of groups."
        " In packed ones columns are sorted by group, and order says which column of x each is: (K,), groups being k //"
        " group in that order; or for group 0 (2, K), below it their groups. Weights are dequantised in float32, or"
        " rounded once to x's dtype, in which one beyond its range overflows whatever the scales' dtype; scales are"
        " used as they are, in whatever dtype beside x's, never in one with fewer bits or a smaller range than both."
        " Products are summed in float32, bias is added, and the result is rounded once. x alone has a gradient. Not"
        " guaranteed: equal bits from different kernels; anything where order is out of range; which results are NaN"
        " and which infinite in a row of x with an infinity."
    ),
    tensors=(
        TensorArgument("x", ("*M", "K"), FLOATS),
        weight("layout"),
        scales("layout"),
        zeros("layout"),
        order("layout", optional=True),
        TensorArgument("bias", ("N",), ("x",), optional=True, feature=True, keyword=True),
    ),
    parameters=(
        Parameter("layout", "gptq", kind="text", choices=tuple(INT4_LAYOUTS), summary="where the nibbles lie"),
        Parameter("group", 128, kind="int", choices=GROUPS, summary="columns of a scale; -1: all; 0: any number"),
        Parameter("zero", "stored", kind="text", choices=ZEROS, summary="what zeros hold; none: 8 is subtracted"),
    ),
    outputs=(Result("y", ("*M", "N"), like="x"),),
    kept=("x", "weight", "scales", "zeros", "order"),
    gradient="kernel",
    infinite_rows="may_be_nan",
    autocast="cast",
    cases=(
        _case("one word", (1,), (8, 8)),
        _case("one row", (), (48, 128), "packed_mma"),
        _case("a short last group", (5,), (24, 200)),
        _case("groups of 32", (3,), (40, 96), group=32),
        _case("groups of 64, v1's zeros", (7,), (16, 136), group=64, zero="stored_plus_one"),
        _case("all columns", (4,), (72, 80), group=-1, present=()),
        _case("no zeros but 8", (4,), (24, 64), zero="none"),
        _case("awq", (6,), (64, 132), "awq"),
        # other libraries' kernels take whole tiles of N and K
        _case("whole tiles", (5,), (64, 128)),
        _case("whole tiles, no zeros but 8", (3,), (64, 128), "awq", 64, zero="none"),
        _case("awq, bias, groups of 32", (2, 3), (16, 61), "awq", 32, present=("zeros", "bias")),
        _case("ct", (9,), (40, 128), "ct", 64),
        _case("ct, symmetric, any N", (5,), (37, 96), "ct", 32, present=()),
        _case("order", (5,), (24, 200), present=("zeros", "order")),
        _case("order, groups of 32, ct", (3,), (16, 104), "ct", 32, present=("zeros", "order")),
        _case("order, groups of any size", (4,), (32, 160), group=0, G=7, present=("zeros", "order")),
        _case("scales for each, in equal parts", (4,), (16, 88), group=0, G=5),
        _case("packed", (3,), (64, 256), "packed_mma"),
        _case("packed, groups of 32, bias", (2,), (80, 256), "packed_mma", 32, present=("zeros", "bias")),
        _case("packed, groups of 64, v1's zeros", (17,), (48, 320), "packed_mma", 64, zero="stored_plus_one"),
        _case("packed, all columns, symmetric", (16,), (33, 384), "packed_mma", -1, present=()),
        _case("packed, short last block", (5,), (72, 328), "packed_mma"),
        _case("packed, order", (3,), (48, 300), "packed_mma", present=("zeros", "order")),
        _case("packed, order, groups of 32", (18,), (24, 160), "packed_mma", 32, present=("zeros", "order", "bias")),
        _case("packed, order, any size", (4,), (40, 200), "packed_mma", 0, G=9, present=("zeros", "order")),
        _case("packed, scales in equal parts", (4,), (16, 136), "packed_mma", 0, G=3, present=()),
        _case("packed for mfma", (3,), (64, 256), "packed_mfma"),
        _case("packed for mfma, groups of 32", (20,), (40, 200), "packed_mfma", 32, present=("zeros", "bias")),
        _case("packed for mfma, order", (2,), (24, 136), "packed_mfma", 64, present=("zeros", "order")),
        _case("packed for mfma, order, any size", (2,), (24, 136), "packed_mfma", 0, G=4, present=("order",)),
        # matrix products choose their tiles by the number of rows
        _case("some rows", (40,), (80, 256), "packed_mma"),
        _case("many rows", (130,), (144, 384), "packed_mma", present=("zeros", "bias")),
        _case("many rows, gptq", (130,), (48, 128)),
        _case("many rows for mfma", (70,), (80, 256), "packed_mfma"),
        _case("no rows", (0,), (16, 128), "packed_mma"),
        _case("no columns", (3,), (0, 128), "packed_mma"),
        _case("nothing to sum", (4,), (16, 0), "packed_mma", -1, present=("zeros", "bias")),
        _case("nothing to sum, gptq", (4,), (16, 0), present=("bias",)),
        _case("sliced rows", (5,), (24, 128), "packed_mma", layouts={"x": "sliced", "scales": "sliced"}),
        _case("transposed", (6,), (24, 128), "packed_mma", layouts={"x": "transposed", "weight": "transposed"}),
        _case("rows with two strides", (3, 4), (16, 136), "packed_mma", layouts={"x": "split", "zeros": "stepped"}),
        _case("offset by one", (5,), (24, 128), layouts={"x": "offset", "weight": "offset", "scales": "offset"}),
        _case("sliced words", (5,), (24, 128), layouts={"weight": "sliced", "zeros": "transposed"}),
        _case("NaN and infinities", (12,), (24, 128), "packed_mma", values="special", backward=False),
        _case("zeros", (3,), (16, 128), "packed_mma", values="zeros", present=("zeros", "bias")),
    ),
    tolerance=Tolerance(rule="plain", flushed="all"),
    grid=Grid(
        (
            *(_row(M, 4096, 14336, core=True) for M in (1, 16)),
            *(_row(M, 4096, 14336) for M in (4, 64, 256)),
            _row(4096, 4096, 14336, core=True),
            _row(1, 14336, 4096),
            _row(1, 8192, 8192, group=-1),
            _row(16, 4096, 14336, group=32),
            _row(16, 4096, 14336, "gptq"),
        ),
        _row(1, 64, 128),
        _drawn,
    ),
    cost=cost,
    source=(
        "Frantar et al. 2022, GPTQ, arXiv 2210.17323, and AutoGPTQ's and GPTQModel's files; Lin et al. 2023, AWQ,"
        " arXiv 2306.00978, and AutoAWQ's WQLinear_GEMM; vLLM's compressed-tensors, pack_quantized; Frantar et al."
        " 2024, MARLIN, arXiv 2408.11743 (weights that lie as tensor cores read them)"
    ),
)
