"""``rotary_embedding``: rotary position embedding of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import (
    Case,
    Contract,
    Cost,
    Draw,
    Grid,
    GridRow,
    Indices,
    Parameter,
    Result,
    TensorArgument,
    Tolerance,
)
from portakernel.contract.production import CONTEXTS, Production


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """``q`` and ``k`` read and written once, the rows of the tables that tokens can need, positions.

    Four products and two sums a pair.
    """
    heads = dims["S"] * (dims["H"] + dims["G"])
    tables = min(dims["S"], dims["L"]) * dims["C"] * (itemsizes["cos"] + itemsizes["sin"])
    positions = dims["S"] * itemsizes.get("positions", 0)
    return Cost(
        bytes=2 * heads * dims["D"] * itemsizes["q"] + tables + positions,
        flops=6 * heads * dims["C"],
    )


def _row(tokens: int, H: int, G: int, D: int, *, core: bool = False, positions: int = 0) -> GridRow:
    table = positions or tokens
    shapes: dict[str, tuple[int, ...]] = {
        "q": (tokens, H, D),
        "k": (tokens, G, D),
        "cos": (table, D // 2),
        "sin": (table, D // 2),
    }
    if positions:
        shapes["positions"] = (tokens,)
    return GridRow(f"{tokens} tokens H{H}/{G} D{D}" + (" positions" if positions else ""), shapes, core=core)


def _drawn(production: Production) -> GridRow:
    tokens = production.tokens()
    positions = production.one_of(CONTEXTS) if production.at_times(0.7) else 0
    return _row(tokens, *production.heads(), production.model.head, positions=positions)


CONTRACT = Contract(
    op="rotary_embedding",
    summary="Rotary position embedding: pairs of each head's first 2C dimensions turned by their position's angles.",
    formula=(
        "a * cos[position] - b * sin[position], b * cos[position] + a * sin[position] where (a, b) is"
        " (x[..., :C], x[..., C:2C]) or, interleaved, (x[..., 0:2C:2], x[..., 1:2C:2]), for x = q and x = k;"
        " x[..., 2C:] as it is"
    ),
    notes=(
        "Each result is computed in float32 and rounded once. Halves are GPT-NeoX's pairing, interleaved=True is"
        " GPT-J's. Without positions, a token's position is its index in the last leading dimension, so that q: (B, S,"
        " H, D) needs none (and a token without leading dimensions is at 0); the tables must cover it:"
        " ArgumentValueError where L is less. A position outside 0 ... L - 1 is an IndexOutOfRangeError in the"
        " reference on the CPU and undefined on accelerators, where positions are not read back. cos and sin are"
        " constants: they get no gradient; those of q and k are the outputs' gradients turned by the negative angle."
        " out=(q, k) writes over the inputs. Not guaranteed: equal bits from different kernels, which may fuse a"
        " product with the sum; equal results for a token alone and among others without positions, because then its"
        " index is its position."
    ),
    tensors=(
        TensorArgument("q", ("*S", "H", "D"), ("float32", "float16", "bfloat16")),
        TensorArgument("k", ("*S", "G", "D"), ("q",)),
        TensorArgument("cos", ("L", "C"), ("q", "float32")),
        TensorArgument("sin", ("L", "C"), ("cos",)),
        TensorArgument(
            "positions",
            ("*S",),
            ("int32", "int64"),
            optional=True,
            draw=Draw("index", below="L"),
            rule=Indices("L"),
        ),
    ),
    parameters=(Parameter("interleaved", False, feature=True, kind="bool"),),
    outputs=(Result("rotated_q", ("*S", "H", "D"), like="q"), Result("rotated_k", ("*S", "G", "D"), like="k")),
    kept=("cos", "sin", "positions"),
    stands_for={"q": "grad_rotated_q", "k": "grad_rotated_k"},
    requirements=("2 * C <= D",),
    gradient="kernel",
    inplace=("q", "k"),
    cases=(
        Case("one pair", (1,), {"H": 1, "G": 1, "D": 2, "L": 1, "C": 1}),
        Case("one token without leading dimensions", (), {"H": 3, "G": 1, "D": 16, "L": 4, "C": 8}),
        Case("prefill", (17,), {"H": 4, "G": 2, "D": 64, "L": 32, "C": 32}),
        Case("decode", (5,), {"H": 8, "G": 2, "D": 64, "L": 50, "C": 32}, present=("positions",)),
        Case("batch", (2, 9), {"H": 4, "G": 2, "D": 32, "L": 16, "C": 16}),
        Case("batch with positions", (2, 9), {"H": 4, "G": 2, "D": 32, "L": 40, "C": 16}, present=("positions",)),
        Case("batch of batches", (2, 3, 4), {"H": 2, "G": 1, "D": 16, "L": 5, "C": 8}),
        Case("tables as long as the sequence", (13,), {"H": 2, "G": 2, "D": 128, "L": 13, "C": 64}),
        Case("one position", (4,), {"H": 2, "G": 1, "D": 80, "L": 1, "C": 40}, present=("positions",)),
        Case(
            "first and last position, one of them twice",
            (4,),
            {"H": 2, "G": 1, "D": 64, "L": 9, "C": 32},
            present=("positions",),
            given={"positions": (8, 0, 8, 1)},
        ),
        Case("more key heads", (3,), {"H": 1, "G": 5, "D": 24, "L": 8, "C": 12}, present=("positions",)),
        Case("partial", (7,), {"H": 3, "G": 1, "D": 80, "L": 8, "C": 16}),
        Case("partial, odd sizes", (7,), {"H": 3, "G": 1, "D": 33, "L": 11, "C": 5}, present=("positions",)),
        Case("interleaved", (7,), {"H": 4, "G": 2, "D": 64, "L": 9, "C": 32}, parameters={"interleaved": True}),
        Case(
            "interleaved, partial, odd sizes",
            (2, 5),
            {"H": 3, "G": 1, "D": 45, "L": 23, "C": 11},
            parameters={"interleaved": True},
            present=("positions",),
        ),
        Case("no tokens", (0,), {"H": 4, "G": 2, "D": 32, "L": 8, "C": 16}),
        Case("no tokens in the batch", (3, 0), {"H": 4, "G": 2, "D": 32, "L": 8, "C": 16}, present=("positions",)),
        Case(
            "heads of one fused projection",
            (6,),
            {"H": 4, "G": 2, "D": 32, "L": 8, "C": 16},
            layouts={"q": "split", "k": "split"},
        ),
        Case(
            "halves of one table",
            (6,),
            {"H": 2, "G": 2, "D": 32, "L": 8, "C": 16},
            layouts={"cos": "sliced", "sin": "sliced", "k": "offset"},
            present=("positions",),
        ),
        Case(
            "transposed",
            (5,),
            {"H": 3, "G": 2, "D": 20, "L": 6, "C": 10},
            layouts={"q": "transposed", "k": "sliced", "cos": "transposed"},
        ),
        Case(
            "expanded and stepped",
            (5,),
            {"H": 3, "G": 2, "D": 22, "L": 7, "C": 11},
            layouts={"q": "stepped", "k": "expanded", "sin": "stepped", "positions": "stepped"},
            parameters={"interleaved": True},
            present=("positions",),
        ),
        Case("large magnitudes", (5,), {"H": 2, "G": 1, "D": 32, "L": 6, "C": 16}, values="large"),
        Case("tiny magnitudes", (5,), {"H": 2, "G": 1, "D": 32, "L": 6, "C": 16}, values="tiny"),
        Case("NaN, infinities, signed zeros", (6,), {"H": 2, "G": 3, "D": 70, "L": 6, "C": 31}, values="special"),
    ),
    # Two products and their sum, each rounded, or fused: one and a half units at the magnitude of the terms; 16-bit
    # results are one rounding of that.
    tolerance=Tolerance(
        forward={"float32": 1.5, "float16": 0.501, "bfloat16": 0.501},
        backward={"float32": 1.5, "float16": 0.501, "bfloat16": 0.501},
    ),
    grid=Grid(
        (
            _row(8192, 32, 8, 128, core=True),
            _row(8192, 32, 32, 64),
            _row(16384, 64, 8, 128),
            _row(64, 32, 8, 128, positions=8192),
        ),
        _row(4, 4, 2, 64),
        _drawn,
    ),
    cost=cost,
    in_graphs="fused",
    source=(
        "Su et al. 2021, RoFormer, arXiv 2104.09864, equation 34 (interleaved); in halves: Black et al. 2022,"
        " GPT-NeoX-20B, arXiv 2204.06745"
    ),
)
