"""``pack_int4``: a weight of four bits an element from one layout into another, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from portakernel.contract import Case, Choice, Contract, Cost, Grid, GridRow, Parameter, Result, Tolerance
from portakernel.contract.grids import layer_products
from portakernel.contract.production import Production
from portakernel.contracts.int4_mm import GROUPS, ZEROS, group_count, order, scales, shapes_of, weight, zeros
from portakernel.words.int4_layouts import INT4_LAYOUTS, PACKED, WORD


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Everything read once and written once; each element is shifted out of a word and into one."""
    N, K, groups = dims["N"], dims["K"], group_count(dims, values["group"])
    moved = K * N // 2 + groups * N * itemsizes["scales"] + 4 * K + (groups * N // 2 if "zeros" in itemsizes else 0)
    return Cost(bytes=2 * moved, flops=2 * K * N)


def _case(
    name: str,
    source: str,
    target: str,
    sizes: tuple[int, int],
    group: int = 128,
    *,
    zero: str = "stored",
    present: tuple[str, ...] = ("zeros",),
    G: int | None = None,
    layouts: Mapping[str, Any] | None = None,
) -> Case:
    """A case of ``N, K``."""
    dims = dict(zip("NK", sizes, strict=True)) | ({} if G is None else {"G": G})
    parameters = {"source": source, "target": target, "group": group, "zero": zero}
    return Case(name, (), dims, layouts or {}, parameters, backward=False, present=present)


def _row(N: int, K: int, source: str, target: str, group: int = 128) -> GridRow:
    shapes = {**shapes_of(1, N, K, source, group), "order": (K,)}
    del shapes["x"]
    return GridRow(f"{N}×{K} {source} to {target}", shapes, {"source": source, "target": target, "group": group})


def _drawn(production: Production) -> GridRow:
    _, N, K = layer_products(production)
    source, target = production.one_of(("gptq", "awq", "ct")), production.one_of(("packed_mma", "packed_mfma"))
    return _row(-(-N // WORD) * WORD, -(-K // WORD) * WORD, source, target, production.one_of((32, 64, 128, -1)))


CONTRACT = Contract(
    op="pack_int4",
    summary="A weight of four bits an element, from one layout of int4_mm into another, which loses no bit.",
    formula="(weight, scales, order[, zeros]) of target, for which int4_mm gives what it gives for source",
    notes=(
        "Layouts, groups and zero are int4_mm's; target's tensors stand for the same w. order is the group of each"
        " column, (K,): torch.arange(K) // group where columns are in the order of their groups. Of a packed source or"
        " target it is what int4_mm takes there: where each column, sorted by group, came from, with the groups below"
        " it for group 0. A packed target's columns are sorted so, and those of one group keep their order. So"
        " pack_int4(*packed, source=target, target=source) gives every bit back of what a checkpoint holds; where"
        " columns were sorted, order need not be given to int4_mm. For other groups than 0 each group but the last"
        " must have exactly as many columns as group says: part of a weight whose columns are in any order, with the"
        " whole weight's scales, is of group 0, and so are some rows of sorted columns. zeros are kept as they are"
        " stored, plus one or not: zero says whether there are any. Without zeros they come out as 8 (7 for"
        " stored_plus_one); for none there are none, and given ones are not read. What pads K is zero in a packed"
        " target. The reference reads order on the host. Tensors of the result are new, plain and contiguous."
    ),
    tensors=(
        weight("source"),
        scales("source"),
        order("source", optional=False),
        replace(zeros("source"), feature=False),
    ),
    parameters=(
        Parameter("source", "gptq", kind="text", choices=tuple(INT4_LAYOUTS), summary="the layout of what is given"),
        Parameter("target", "packed_mma", kind="text", choices=tuple(INT4_LAYOUTS), summary="the layout wanted"),
        Parameter("group", 128, kind="int", choices=GROUPS, summary="columns of a scale; -1: all; 0: any number"),
        Parameter("zero", "stored", kind="text", choices=ZEROS, summary="what zeros hold; none: there are none"),
    ),
    outputs=(
        Result("packed_weight", weight("target").shape, like="weight", differentiable=False),
        Result("packed_scales", scales("target").shape, like="scales", differentiable=False),
        Result("packed_order", order("target", optional=False).shape, like="order", differentiable=False),
        Result(
            "packed_zeros",
            zeros("target").shape,
            like="weight",
            dtype=Choice("target", {name: "uint8" if name in PACKED else "int32" for name in INT4_LAYOUTS}),
            when=("zero", ("stored", "stored_plus_one")),
            differentiable=False,
        ),
    ),
    cases=(
        _case("one word", "gptq", "packed_mma", (8, 8)),
        *(_case(f"{a} to {b}", a, b, (24, 200), 64) for a in INT4_LAYOUTS for b in INT4_LAYOUTS),
        _case("groups of 32, v1's zeros", "gptq", "packed_mma", (16, 136), 32, zero="stored_plus_one"),
        _case("all columns", "ct", "packed_mma", (16, 128), -1),
        _case("no zeros", "gptq", "packed_mfma", (24, 256), zero="none", present=()),
        _case("no zeros, any N", "ct", "packed_mma", (21, 72), zero="none", present=()),
        _case("zeros that are not given", "awq", "packed_mma", (24, 136), present=()),
        _case("zeros that are not given, v1's", "packed_mma", "gptq", (24, 136), zero="stored_plus_one", present=()),
        _case("groups of any size", "gptq", "packed_mma", (16, 168), 0, G=6),
        _case("groups of any size, back", "packed_mma", "ct", (16, 168), 0, G=6),
        _case("groups of any size, packed", "packed_mfma", "packed_mma", (16, 168), 0, G=3),
        _case("no columns of N", "gptq", "packed_mma", (0, 128)),
        _case("nothing", "gptq", "packed_mma", (16, 0)),
        _case("transposed", "gptq", "packed_mma", (16, 128), layouts={"weight": "transposed", "scales": "transposed"}),
        _case("sliced, stepped", "ct", "packed_mma", (16, 128), layouts={"weight": "sliced", "zeros": "stepped"}),
        _case("offset", "packed_mma", "awq", (16, 256), layouts={"weight": "offset", "order": "stepped"}),
    ),
    host_reads=("order",),
    in_graphs="call",
    tolerance=Tolerance(forward={"int32": 0.0, "uint8": 0.0, "float32": 0.0, "float16": 0.0, "bfloat16": 0.0}),
    grid=Grid(
        (
            _row(4096, 14336, "gptq", "packed_mma"),
            _row(4096, 14336, "awq", "packed_mma"),
            _row(4096, 14336, "packed_mma", "gptq"),
        ),
        _row(64, 128, "gptq", "packed_mma"),
        _drawn,
    ),
    cost=cost,
    source="int4_mm's; the layouts' own packers",
)
