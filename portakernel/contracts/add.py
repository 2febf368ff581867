"""``add``: the smallest complete op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Result, TensorArgument, Tolerance, grids


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Both inputs read once, the output written once; one addition an element."""
    return Cost(bytes=3 * dims["M"] * itemsizes["x"], flops=dims["M"])


CONTRACT = Contract(
    op="add",
    summary="The elementwise sum of two tensors of one shape and dtype.",
    formula="x + y",
    notes=(
        "Computed in float32 and rounded once. Broadcasting is refused. Not guaranteed: the bits of a NaN; numbers that"
        " are subnormal in float32, on devices that take them for zero (Apple GPUs)."
    ),
    tensors=(
        TensorArgument("x", ("*M",), ("float32", "float16", "bfloat16")),
        TensorArgument("y", ("*M",), ("x",)),
    ),
    outputs=(Result("sum", ("*M",), like="x"),),
    gradient="identity",
    inplace=("x", "y"),
    autocast="promote",
    cases=(
        Case("one element", (1,)),
        Case("scalar", ()),
        Case("odd", (1023,)),
        Case("block and one", (1025,)),
        Case("multiple of blocks", (4, 1024)),
        Case("three dimensions", (3, 5, 7)),
        Case("no rows", (0, 8)),
        Case("sliced", (13, 37), layouts={"x": "sliced"}),
        Case("both transposed", (17, 29), layouts={"x": "transposed", "y": "transposed"}),
        Case("transposed and not", (17, 29), layouts={"y": "transposed"}),
        Case("expanded", (9, 65), layouts={"y": "expanded"}),
        Case("every second", (6, 40), layouts={"x": "stepped"}),
        Case("offset by one", (1000,), layouts={"x": "offset"}),
        Case("large magnitudes", (3, 129), values="large"),
        Case("tiny magnitudes", (3, 129), values="tiny"),
        Case("NaN, infinities, signed zeros", (5, 67), values="special"),
        Case("zeros", (33,), values="zeros"),
    ),
    # One addition rounded once is half a unit from the truth; float16 and bfloat16 are added in float32, whose own
    # rounding can tip a tie.
    tolerance=Tolerance(forward={"float32": 0.5, "float16": 0.501, "bfloat16": 0.501}, signed_zeros=True),
    grid=grids.matrix_grid(grids.CORE, grids.MORE, names=("x", "y")),
    cost=cost,
    in_graphs="fused",
    source="IEEE 754-2019, 5.4.1 (addition)",
)
