"""``merge_attentions``: any number of parts of attention made into attention over all of their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Draw, Grid, GridRow, Result, TensorArgument
from portakernel.contract.production import Production
from portakernel.contracts.merge_attention import RETURN_LSE, TOLERANCE, drawn_sizes, sizes


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Every part and its lse read once, the results written once; a product and a sum for each element of each part."""
    R, rows = dims["R"], dims["S"] * dims["H"]
    elements = rows * dims["E"]
    logarithms = 4 * rows * (R + values["return_lse"])
    return Cost(bytes=(R + 1) * elements * itemsizes["outs"] + logarithms, flops=2 * R * elements + 4 * R * rows)


def _drawn(production: Production) -> GridRow:
    R, (S, H, E) = production.one_of((2, 3, 4, 8)), drawn_sizes(production)
    return GridRow(f"R{R} S{S} H{H} E{E}", {"outs": (R, S, H, E)})


CONTRACT = Contract(
    op="merge_attentions",
    summary="Attention over several sets of keys, from attention over each of them and its log-sum-exp.",
    formula=(
        "sum(exp(lses - m) * outs, 0) / sum(exp(lses - m), 0) with m = max(lses, 0);"
        " lse = m + log(sum(exp(lses - m), 0))"
    ),
    notes=(
        "merge_attention for R parts at once, each read once. outs and lses are what attention over disjoint sets of"
        " keys returns for the same queries, one part after the other; each may have any strides. Computed in float32,"
        " summed in the order of the parts, rounded once. A part whose lse is -inf has no influence, whatever it holds,"
        " NaN too; where all are -inf, or there is no part (R = 0), the result is zeros and -inf. Of one part it is the"
        " part itself, zeros where its lse is -inf. There is no gradient, as for merge_attention. Not guaranteed: what"
        " lse of +inf or NaN gives; what NaN and infinities give in a part whose weight vanishes in float32, its lse"
        " being 87 or more below the largest; what a part adds whose share of the weights is below 2**-126; results"
        " that are subnormal in float32, or terms of them, which a kernel may flush to zero."
    ),
    tensors=(
        TensorArgument("outs", ("R", "S", "H", "E"), ("float32", "float16", "bfloat16"), draw=Draw(poison="lses")),
        TensorArgument("lses", ("R", "H", "S"), ("float32",), draw=Draw("lse")),
    ),
    parameters=(RETURN_LSE,),
    outputs=(
        Result("out", ("S", "H", "E"), like="outs", differentiable=False),
        Result("lse", ("H", "S"), like="outs", dtype="float32", when=("return_lse", True), differentiable=False),
    ),
    cases=(
        Case("one element", dims=sizes(1, 1, 1, R=2)),
        Case("one part", dims=sizes(17, 4, 64, R=1)),
        Case("two parts", dims=sizes(16, 8, 128, R=2)),
        Case("five parts, heads of 40", dims=sizes(37, 7, 40, R=5)),
        Case("seventeen parts, heads of one", dims=sizes(29, 4, 1, R=17)),
        Case("many parts", dims=sizes(3, 2, 16, R=131)),
        Case("long heads", dims=sizes(3, 2, 2049, R=3)),
        Case("one query", dims=sizes(1, 32, 128, R=4)),
        Case("lse not wanted", dims=sizes(19, 6, 64, R=3), parameters={"return_lse": False}),
        Case("no parts", dims=sizes(9, 4, 64, R=0)),
        Case("no queries", dims=sizes(0, 4, 64, R=3)),
        Case("no heads", dims=sizes(4, 0, 64, R=3)),
        Case("no values", dims=sizes(5, 3, 0, R=2)),
        Case("lse alike", dims=sizes(4, 2, 48, R=3), given={"lses": (-2,) * 24}),
        Case("lse 200 apart", dims=sizes(2, 2, 48, R=3), given={"lses": (-150,) * 4 + (50,) * 4 + (-350,) * 4}),
        Case("lse by query", dims=sizes(23, 6, 64, R=3), layouts={"lses": "transposed"}),
        Case("parts transposed", dims=sizes(14, 5, 32, R=3), layouts={"outs": "transposed"}),
        Case("sliced", dims=sizes(11, 6, 40, R=3), layouts={"outs": "sliced", "lses": "sliced"}),
        Case("split, stepped", dims=sizes(9, 7, 64, R=4), layouts={"outs": "split", "lses": "stepped"}),
        Case("stepped, offset", dims=sizes(9, 7, 64, R=2), layouts={"outs": "stepped", "lses": "offset"}),
        Case("one part for all", dims=sizes(12, 4, 64, R=3), layouts={"outs": "expanded"}),
        Case("large magnitudes", dims=sizes(15, 4, 40, R=3), values="large"),
        Case("tiny magnitudes", dims=sizes(15, 4, 40, R=3), values="tiny"),
        Case("zeros", dims=sizes(7, 3, 24, R=3), values="zeros"),
    ),
    tolerance=TOLERANCE,
    grid=Grid(
        (
            GridRow("R4 S4096 H32 E128", {"outs": (4, 4096, 32, 128)}, core=True),
            GridRow("R4 S64 H32 E128", {"outs": (4, 64, 32, 128)}),
        ),
        GridRow("R4 S4 H4 E64", {"outs": (4, 4, 4, 64)}),
        _drawn,
    ),
    cost=cost,
    in_graphs="fused",
    source="sources of merge_attention; FlashInfer's merge_states for the form",
)
