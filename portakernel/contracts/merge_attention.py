"""``merge_attention``: two parts of attention, over two sets of keys, made into attention over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Draw, Grid, GridRow, Parameter, Result, TensorArgument, Tolerance
from portakernel.contract.production import Production


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Both parts and their lse read once, the results written once; two products and a sum an element."""
    rows, elements = dims["S"] * dims["H"], dims["S"] * dims["H"] * dims["E"]
    logarithms = 4 * rows * (2 + values["return_lse"])
    return Cost(bytes=3 * elements * itemsizes["a"] + logarithms, flops=3 * elements + 8 * rows)


def sizes(S: int, H: int, E: int, **more: int) -> dict[str, int]:
    """A case's dimensions: queries, heads, values of a head."""
    return {"S": S, "H": H, "E": E, **more}


RETURN_LSE = Parameter("return_lse", True, kind="bool", summary="also return the log-sum-exp of all scores")

# The rounding of a difference of lse, and of its product with log2(e), is in proportion to the difference, and so are
# the magnitudes that results are measured at: the rest is an exponential, a sum, a quotient, a product, and for lse a
# logarithm whose hardware form is right to 2**-22. The weights of many parts are summed in order, and magnitudes grow
# with their number. 16-bit results are one rounding of that.
TOLERANCE = Tolerance(
    forward={"float32": 8.0, "float16": 0.51, "bfloat16": 0.51, "lse.float32": 8.0},
    flushed="all",
)


def drawn_sizes(production: Production) -> tuple[int, int, int]:
    """Tokens, heads and what a head is wide."""
    return production.tokens(), production.heads()[0], production.model.head


def _drawn(production: Production) -> GridRow:
    S, H, E = drawn_sizes(production)
    return GridRow(f"S{S} H{H} E{E}", {"a": (S, H, E)})


CONTRACT = Contract(
    op="merge_attention",
    summary="Attention over two sets of keys, from attention over each of them and its log-sum-exp.",
    formula=(
        "(exp(lse_a - m) * a + exp(lse_b - m) * b) / (exp(lse_a - m) + exp(lse_b - m)) with m = maximum(lse_a, lse_b);"
        " lse = m + log(exp(lse_a - m) + exp(lse_b - m))"
    ),
    notes=(
        "For keys that several programs, calls or devices share: split keys, a prefix that many sequences have in"
        " common, context parallelism. a and b are what attention over disjoint sets of keys returns for the same"
        " queries, lse_a and lse_b its lse, natural logarithms (those of FlashInfer are to base 2: multiply them by"
        " log(2)). An lse that lies as (S, H) is passed transposed, without a copy. Computed in float32, a's product"
        " before b's, rounded once. A part whose lse is -inf has seen no key and no influence, whatever it holds, NaN"
        " too; where both are -inf, the result is zeros and -inf, as attention's is for a query without keys. There is"
        " no gradient: training over parts gives each part's own backward the merged out and lse. Not guaranteed: what"
        " lse of +inf or NaN gives; what NaN and infinities give in a part whose weight vanishes in float32, its lse"
        " being 87 or more below the other; what a part adds whose share of the weights is below 2**-126; results that"
        " are subnormal in float32, or terms of them, which a kernel may flush to zero."
    ),
    tensors=(
        TensorArgument("a", ("S", "H", "E"), ("float32", "float16", "bfloat16"), draw=Draw(poison="lse_a")),
        TensorArgument("lse_a", ("H", "S"), ("float32",), draw=Draw("lse")),
        TensorArgument("b", ("S", "H", "E"), ("a",), draw=Draw(poison="lse_b")),
        TensorArgument("lse_b", ("H", "S"), ("float32",), draw=Draw("lse")),
    ),
    parameters=(RETURN_LSE,),
    outputs=(
        Result("out", ("S", "H", "E"), like="a", differentiable=False),
        Result("lse", ("H", "S"), like="a", dtype="float32", when=("return_lse", True), differentiable=False),
    ),
    inplace=("a",),
    cases=(
        Case("one element", dims=sizes(1, 1, 1)),
        Case("heads of 128", dims=sizes(16, 8, 128)),
        Case("heads of 64", dims=sizes(33, 5, 64)),
        Case("heads of 40", dims=sizes(37, 7, 40)),
        Case("heads of one", dims=sizes(29, 4, 1)),
        Case("long heads", dims=sizes(3, 2, 2049)),
        Case("one query", dims=sizes(1, 32, 128)),
        Case("one head", dims=sizes(131, 1, 24)),
        Case("lse not wanted", dims=sizes(19, 6, 64), parameters={"return_lse": False}),
        Case("no queries", dims=sizes(0, 4, 64)),
        Case("no heads", dims=sizes(4, 0, 64)),
        Case("no values", dims=sizes(5, 3, 0)),
        Case("lse alike", dims=sizes(6, 2, 48), given={"lse_a": (3,) * 12, "lse_b": (3,) * 12}),
        Case("lse 200 apart", dims=sizes(5, 2, 48), given={"lse_a": (-150,) * 10, "lse_b": (50,) * 10}),
        Case(
            "lse where a weight vanishes",
            dims=sizes(30, 1, 16),
            given={"lse_a": (7,) * 30, "lse_b": tuple(range(-111, -81))},
        ),
        Case("lse by query", dims=sizes(23, 6, 64), layouts={"lse_a": "transposed", "lse_b": "transposed"}),
        Case("one lse by query", dims=sizes(23, 6, 64), layouts={"lse_b": "transposed"}),
        Case("parts transposed", dims=sizes(14, 5, 32), layouts={"a": "transposed", "b": "transposed"}),
        Case("sliced, split", dims=sizes(11, 6, 40), layouts={"a": "sliced", "b": "split", "lse_a": "sliced"}),
        Case("stepped, offset", dims=sizes(9, 7, 64), layouts={"a": "stepped", "b": "offset", "lse_b": "stepped"}),
        Case("one part for all queries", dims=sizes(12, 4, 64), layouts={"b": "expanded"}),
        Case("one lse for all heads", dims=sizes(12, 4, 64), layouts={"lse_a": "expanded"}),
        Case("large magnitudes", dims=sizes(15, 4, 40), values="large"),
        Case("tiny magnitudes", dims=sizes(15, 4, 40), values="tiny"),
        Case("zeros", dims=sizes(7, 3, 24), values="zeros"),
    ),
    tolerance=TOLERANCE,
    grid=Grid(
        (
            GridRow("S4096 H32 E128", {"a": (4096, 32, 128)}, core=True),
            GridRow("S64 H32 E128", {"a": (64, 32, 128)}),
        ),
        GridRow("S4 H4 E64", {"a": (4, 4, 64)}),
        _drawn,
    ),
    cost=cost,
    in_graphs="fused",
    source=(
        "Dao et al. 2023, Flash-Decoding; Juravsky et al. 2024, Hydragen, arXiv 2402.05099, section 3.1;"
        " vLLM's merge_attn_states and FlashInfer's merge_state for the form"
    ),
)
