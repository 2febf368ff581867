"""``block_sparse_attention``: attention over those blocks of keys that lists name for each block of queries."""

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
from portakernel.contract.production import Production
from portakernel.contract.value_rules import BlockCounts, Blocks
from portakernel.contracts.attention import with_features
from portakernel.words.masks import BLOCKS


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Two products for each pair of a listed block, and every tensor moved once; as many blocks as lists have room for.

    Of given counts the blocks are known. What of keys and values nobody lists is counted too.
    """
    B, S, T, H, G, D, E = (dims[name] for name in "BSTHGDE")
    rows, columns = BLOCKS[values["block"]]
    queries, keys = -(-S // rows), -(-T // columns)
    lists, blocks = B * H * queries, 0
    for count, room in (("partial_count", "C"), ("full_count", "F")):
        if room in dims:
            blocks += sum(values[count]) if count in values else lists * min(dims[room], keys)
    pairs = min(blocks * rows * columns, B * H * S * T)
    moved = B * S * H * (D + E) * itemsizes["q"] + B * T * G * (D * itemsizes["k"] + E * itemsizes["v"])
    moved += 4 * (2 * lists + blocks) + H * itemsizes.get("sinks", 0)
    moved += sum(B * n * itemsizes.get(name, 0) for name, n in (("query_ids", S), ("key_ids", T), ("prefix", 1)))
    moved += 4 * B * H * S if values["return_lse"] else 0
    return Cost(bytes=moved, flops=2 * pairs * (D + E))


def _in_blocks(*sizes: str) -> Choice[tuple[str, ...]]:
    """``sizes`` for each size of a block, of which ``S`` and ``T`` become numbers of blocks."""
    counted = {word: {"S": f"ceil(S/{rows})", "T": f"ceil(T/{columns})"} for word, (rows, columns) in BLOCKS.items()}
    return Choice("block", {word: tuple(by.get(size, size) for size in sizes) for word, by in counted.items()})


def _counts(name: str, side: str, draw: Draw, **more: Any) -> TensorArgument:
    return TensorArgument(f"{name}_count", _in_blocks("B", "H", side), ("int32",), draw=draw, **more)


def _index(name: str, sizes: tuple[str, str], draw: Draw, **more: Any) -> TensorArgument:
    return TensorArgument(f"{name}_index", _in_blocks("B", "H", *sizes), ("int32",), draw=draw, **more)


_OPTIONAL: Mapping[str, Any] = {"optional": True, "keyword": True}


def _by_keys(name: str) -> tuple[TensorArgument, TensorArgument]:
    """The lists of this name turned round."""
    counts, blocks = (Draw(kind, below="T/block", turned=name) for kind in ("block_counts", "blocks"))
    return (
        _counts(f"q_{name}", "T", counts, rule=BlockCounts("S/block"), **_OPTIONAL),
        _index(f"q_{name}", ("T", "S"), blocks, rule=Blocks(f"q_{name}_count", "S/block"), **_OPTIONAL),
    )


def _dims(
    *, S: int, H: int, D: int, C: int, B: int = 1, T: int | None = None, G: int | None = None, E: int | None = None,
    F: int | None = None,
) -> dict[str, int]:  # fmt: skip
    """A case's dimensions: as many keys as queries, key heads as heads and value dims as key dims, unless given."""
    T, G, E = S if T is None else T, H if G is None else G, D if E is None else E
    return {"B": B, "S": S, "T": T, "H": H, "G": G, "D": D, "E": E, "C": C} | ({} if F is None else {"F": F})


def _row(name: str, S: int, H: int, G: int, D: int, partial: int, full: int, **values: Any) -> GridRow:
    """``partial`` and ``full`` blocks in each list of one sequence."""
    blocks = S // 128
    lists = (1, H, blocks)
    shapes = {"q": (1, S, H, D), "k": (1, S, G, D), "v": (1, S, G, D), "partial_count": lists, "full_count": lists}
    shapes |= {"partial_index": (*lists, partial), "full_index": (*lists, full)}
    given = {"partial_count": [partial] * (H * blocks), "full_count": [full] * (H * blocks)}
    return GridRow(f"{name} S{S} H{H}/{G} D{D}", shapes, values, given=given)


def _drawn(production: Production) -> GridRow:
    """A prompt of which some blocks are seen."""
    (H, G), D = production.heads(), production.model.head
    blocks = production.one_of((8, 16, 32, 64, 128))
    full = production.between(1, blocks) - 1
    causal = {"mask": "causal"} if production.at_times(0.5) else {}
    return _row(f"{full + 1} of {blocks} blocks", 128 * blocks, H, G, D, 1, full, **causal)


# What several cases ask for.
_SMALL: Mapping[str, Any] = {"block": "64x64"}
_FULL = ("full_count", "full_index")
_DOCUMENT = ("query_ids", "key_ids")
_BY_KEYS = ("q_partial_count", "q_partial_index", "q_full_count", "q_full_index")

CONTRACT = Contract(
    op="block_sparse_attention",
    summary="Attention over the blocks of keys that lists name for each block of queries, with masks by name.",
    formula=(
        "attention's, of which query i sees key j where the block of j is in the full list of the block of i, or in the"
        " partial list and mask(b, h, i + T - S, j) holds"
    ),
    notes=(
        "Lists are as FlexAttention's BlockMask has them: row r of partial_index (B, H, R, C) holds, in any order, the"
        " blocks of keys that the block r of queries sees in part, of which the first partial_count[b, h, r] are meant;"
        " full_index those that it sees whole. What is one for all batches or heads may be expanded, with strides of 0;"
        " portakernel.masks makes lists of bool maps (lists), of masks (lists_of) and of a BlockMask (from_block_mask)."
        " A block is of 128 or 64 queries and keys; the last one may be shorter. mask is a name: none, causal, document"
        " (query_ids (B, S) and key_ids (B, T) are equal), prefix (causal, and keys before prefix (B,)), or one that"
        " portakernel.masks.register was given. window holds together with it, for partial blocks. Queries stand as in"
        " attention: query i at i + T - S. What the mask reads has to be given, and nothing else of it"
        " (ArgumentValueError). Blocks in no list of a row are not read, and reach no result of its queries, whatever"
        " they hold. A query that sees no key gives zeros, and lse -inf or its sink; softcap and sinks are as in"
        " attention. q_partial_count (B, H, K), q_partial_index (B, H, K, R), q_full_count and q_full_index say the"
        " same by blocks of keys (portakernel.masks.transposed), for backward, which makes them where they are not"
        " given. lse has no gradient. Undefined: a block twice in a row's lists, or one that there is not; lists by"
        " keys that say something else. Not guaranteed: what attention does not guarantee, inside of listed blocks."
    ),
    tensors=(
        TensorArgument("q", ("B", "S", "H", "D"), ("float32", "float16", "bfloat16")),
        TensorArgument("k", ("B", "T", "G", "D"), ("q",), draw=Draw(poison="partial_index")),
        TensorArgument("v", ("B", "T", "G", "E"), ("q",), draw=Draw(poison="partial_index")),
        _counts("partial", "S", Draw("block_counts", below="T/block", room="C"), rule=BlockCounts("C")),
        _index(
            "partial",
            ("S", "C"),
            Draw("blocks", below="T/block", lengths="partial_count"),
            rule=Blocks("partial_count", "T/block"),
        ),
        _counts(
            "full",
            "S",
            Draw("block_counts", below="T/block", room="F", beside="partial_count"),
            optional=True,
            rule=BlockCounts("F"),
        ),
        _index(
            "full",
            ("S", "F"),
            Draw("blocks", below="T/block", lengths="full_count", beside="partial_index"),
            optional=True,
            rule=Blocks("full_count", "T/block", apart=("partial_count", "partial_index")),
        ),
        TensorArgument("query_ids", ("B", "S"), ("int32",), draw=Draw("ids"), **_OPTIONAL),
        TensorArgument("key_ids", ("B", "T"), ("int32",), draw=Draw("ids"), **_OPTIONAL),
        TensorArgument("prefix", ("B",), ("int32",), draw=Draw("ids", below="T"), **_OPTIONAL),
        TensorArgument("sinks", ("H",), ("q", "float32"), feature=True, **_OPTIONAL),
        *_by_keys("partial"),
        *_by_keys("full"),
    ),
    parameters=(
        Parameter("mask", "none", kind="mask", feature=True, summary="which keys of partial blocks a query sees"),
        Parameter("window", (-1, -1), feature=True, kind="window", summary="keys seen before and after the position"),
        Parameter(
            "block", "128x128", kind="text", choices=tuple(BLOCKS), summary="queries and keys of a block of the lists"
        ),
        Parameter("scale", None, optional=True, summary="what q @ k.T is multiplied by; None: 1/sqrt(D)"),
        Parameter("softcap", 0.0, feature=True, least=0.0, summary="bounds scores smoothly to this magnitude; 0: off"),
        Parameter("return_lse", False, feature=True, kind="bool", summary="also return the log-sum-exp of the scores"),
    ),
    outputs=(
        Result("out", ("B", "S", "H", "E"), like="q"),
        Result("lse", ("B", "H", "S"), like="q", dtype="float32", when=("return_lse", True), differentiable=False),
    ),
    saved=(Result("logsumexp", ("B", "H", "S"), like="q", dtype="float32"),),
    kept=("q", "k", "v", "partial_count", "partial_index", *_FULL, *_DOCUMENT, "prefix", "sinks", *_BY_KEYS, "out"),
    requirements=("G > 0", "H % G == 0", "D > 0"),
    gradient="kernel",
    autocast="cast",
    cases=(
        Case("one element", dims=_dims(S=1, H=1, D=1, C=1)),
        Case("a few elements", dims=_dims(B=2, S=66, T=70, H=2, D=4, C=2), parameters=_SMALL),
        Case("small blocks, causal", dims=_dims(S=70, H=2, D=16, C=2), parameters={**_SMALL, "mask": "causal"}),
        Case("blocks of 128", dims=_dims(B=2, S=130, T=300, H=2, G=1, D=64, C=3)),
        Case(
            "both lists, causal",
            dims=_dims(B=2, S=300, H=4, G=2, D=64, C=2, F=1),
            parameters={"mask": "causal", "return_lse": True},
            present=_FULL,
        ),
        Case(
            "both lists, small blocks, more keys",
            dims=_dims(S=129, T=321, H=4, G=2, D=32, C=2, F=3),
            parameters={**_SMALL, "mask": "causal"},
            present=_FULL,
        ),
        Case(
            "whole blocks alone",
            dims=_dims(S=256, T=256, H=2, D=32, C=0, F=2),
            parameters={"return_lse": True},
            present=_FULL,
        ),
        Case(
            "documents",
            dims=_dims(B=2, S=150, H=2, D=64, C=3, F=1),
            parameters={**_SMALL, "mask": "document"},
            present=(*_FULL, *_DOCUMENT),
        ),
        Case(
            "documents, causal",
            dims=_dims(B=2, S=140, H=2, G=1, D=40, C=2),
            parameters={"mask": "document", "window": (-1, 0), "return_lse": True},
            present=_DOCUMENT,
        ),
        Case(
            "prefix",
            dims=_dims(B=3, S=100, T=140, H=4, G=2, D=32, C=3),
            parameters={**_SMALL, "mask": "prefix"},
            present=("prefix",),
        ),
        Case("window", dims=_dims(S=200, H=2, D=64, C=4, F=1), parameters={**_SMALL, "window": (30, 5)}, present=_FULL),
        Case(
            "causal, fewer keys, sinks, lse",
            dims=_dims(S=140, T=60, H=4, G=1, D=64, C=1),
            parameters={**_SMALL, "mask": "causal", "return_lse": True},
            present=("sinks",),
        ),
        Case(
            "softcap, lists by keys",
            dims=_dims(S=150, T=190, H=4, G=2, D=64, E=32, C=2, F=2),
            parameters={**_SMALL, "mask": "causal", "softcap": 3.0, "scale": 0.4},
            present=(*_FULL, *_BY_KEYS),
        ),
        Case("scale below 0", dims=_dims(S=129, H=2, D=96, C=2), parameters={"mask": "causal", "scale": -0.25}),
        Case("scale 0", dims=_dims(S=70, H=2, D=64, C=2), parameters={**_SMALL, "scale": 0.0, "return_lse": True}),
        Case("values narrower than keys", dims=_dims(S=64, T=129, H=2, D=192, E=128, C=2), parameters=_SMALL),
        Case("wide queries and keys", dims=_dims(S=64, T=65, H=2, D=256, E=16, C=2), parameters=_SMALL),
        Case("wide values", dims=_dims(S=64, T=65, H=2, D=16, E=256, C=2), parameters=_SMALL),
        Case("odd head dims", dims=_dims(B=2, S=65, T=66, H=2, D=33, E=17, C=2), parameters=_SMALL),
        Case("no room in the lists", dims=_dims(S=70, H=2, D=32, C=0), parameters={"return_lse": True}),
        Case("no keys", dims=_dims(B=2, S=5, T=0, H=2, D=64, C=0), parameters={"return_lse": True}),
        Case("no queries", dims=_dims(B=2, S=0, T=70, H=4, G=2, D=64, C=1)),
        Case("no batch", dims=_dims(B=0, S=50, T=20, H=2, D=64, C=1)),
        Case(
            "sliced, split, offset",
            dims=_dims(B=2, S=70, H=4, G=2, D=64, C=2, F=1),
            layouts={"q": "sliced", "k": "split", "v": "offset", "partial_index": "stepped", "full_count": "stepped"},
            parameters={**_SMALL, "mask": "causal"},
            present=_FULL,
        ),
        Case(
            "last dims apart, ids expanded",
            dims=_dims(B=2, S=70, T=90, H=4, G=2, D=64, C=2),
            layouts={"q": "stepped", "k": "transposed", "v": "transposed", "key_ids": "expanded"},
            parameters={**_SMALL, "mask": "document"},
            present=_DOCUMENT,
        ),
    ),
    tolerance=Tolerance(forward={"lse.float32": 16.0}, saved={"logsumexp.float32": 16.0}, rule="plain"),
    grid=Grid(
        (
            _row("a quarter live", 16384, 32, 8, 128, 1, 31),
            _row("a quarter live, causal", 16384, 32, 8, 128, 1, 31, mask="causal"),
            _row("all live", 16384, 32, 8, 128, 0, 128),
            _row("a quarter live, partial", 16384, 32, 8, 128, 32, 0, mask="causal"),
            with_features(_row("a quarter live", 8192, 32, 8, 64, 1, 15), ("sinks",)),
        ),
        _row("one block", 128, 2, 2, 64, 1, 0, mask="causal"),
        _drawn,
    ),
    cost=cost,
    in_graphs="call",
    source=(
        "FlexAttention: Dong et al. 2024, arXiv 2412.05496; torch.nn.attention.flex_attention.BlockMask for the lists;"
        " Dao 2023, FlashAttention-2, arXiv 2307.08691; sources of attention"
    ),
)
