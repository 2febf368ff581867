"""``softmax``: exponentials of a row, divided by their sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from portakernel.contract import Case, Contract, Cost, GridRow, Result, TensorArgument, Tolerance, grids, row_cases
from portakernel.contract.production import CLASSES, DECODING, ENCODERS, EXPERTS, Production


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``x`` read and ``y`` written once; maximum, subtract, exp, sum and divide each element."""
    elements = dims["M"] * dims["N"]
    return Cost(bytes=2 * elements * itemsizes["x"], flops=5 * elements)


def _drawn(production: Production) -> GridRow:
    """Logits of a router or of classes, those that tokens are sampled by, or scores of attention written out."""
    kind = production.random.random()
    if kind < 0.3:
        size = production.tokens(), production.one_of(EXPERTS)
    elif kind < 0.5:
        size = production.one_of(DECODING), production.vocabulary()
    elif kind < 0.6:
        size = production.one_of((1, 32, 256, 1024)), production.one_of(CLASSES)
    else:
        encoder, lengths = production.one_of(ENCODERS)
        keys = production.one_of(lengths)
        size = production.one_of((1, 8)) * encoder.heads * keys, keys
    return replace(grids.matrices((size,))[0], trained=not 0.3 <= kind < 0.5)


CONTRACT = Contract(
    op="softmax",
    summary="Softmax over the last dimension.",
    formula="exp(x - max(x, -1)) / sum(exp(x - max(x, -1)), -1)",
    notes=(
        "Everything is computed in float32 and rounded once, at the end; nothing overflows. Infinities are as in torch:"
        " -inf beside a finite number gives 0; a row with +inf or NaN, and a row of -inf alone, is NaN throughout."
        " Backward needs y alone, as forward returned it; libraries that round grad * y before they sum it differ there"
        " by up to one unit in the last place. Not guaranteed: equal bits from different kernels; digits"
        " far below the row's maximum, about two units in the last place of float32 lost for each unit of distance;"
        " results and gradients that are subnormal in float32, which a kernel may flush to zero."
    ),
    tensors=(TensorArgument("x", ("*M", "N"), ("float32", "float16", "bfloat16")),),
    outputs=(Result("y", ("*M", "N"), like="x"),),
    kept=("y",),
    stands_for={"x": "y"},
    gradient="kernel",
    inplace=("x",),
    cases=(
        *row_cases.SIZES,
        Case("long row", (2,), {"N": 9001}),
        Case("sliced rows", (5,), {"N": 72}, layouts={"x": "sliced"}),
        *row_cases.LAYOUTS,
        Case("large magnitudes", (3,), {"N": 90}, values="large"),
        Case("tiny magnitudes", (3,), {"N": 90}, values="tiny"),
        Case("NaN, infinities, signed zeros", (6,), {"N": 70}, values="special"),
        # among them a row of -inf alone
        Case("each special value alone", (6,), {"N": 1}, values="special"),
        Case("zeros", (3,), {"N": 60}, values="zeros"),
    ),
    # float32: x - max and its product with log2(e) are rounded, each up to 8 units at a distance of 10; then exp, a sum
    # in any order, a division. 16-bit results are one rounding of that.
    tolerance=Tolerance(
        forward={"float32": 32.0, "float16": 0.51, "bfloat16": 0.51},
        backward={"float32": 16.0, "float16": 0.51, "bfloat16": 0.51},
        flushed="all",
    ),
    grid=replace(
        grids.matrix_grid(((8192, 32768),), ((64, 4096), (32768, 1024), (4096, 4096), (2048, 131072))), drawn=_drawn
    ),
    cost=cost,
    in_graphs="fused",
    source="Bridle 1990, Probabilistic Interpretation of Feedforward Classification Network Outputs",
)
