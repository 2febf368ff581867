"""``paged_attention``: attention over keys and values in pages, as a serving engine keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    Parameter,
    Result,
    TensorArgument,
    Tolerance,
)
from portakernel.contract.production import CONTEXTS, DECODING, PROMPTS, Production
from portakernel.contract.value_rules import Lengths, Pages
from portakernel.contracts.attention import visible_keys, visible_pairs, with_features
from portakernel.contracts.write_kv_cache import FLOAT8, kv_scales


def lengths_of(dims: Mapping[str, int], values: Mapping[str, Any]) -> list[tuple[int, int]]:
    """How many queries and keys each sequence has; where that is not known, as many as it may have."""
    B = dims["B"]
    longest = dims["W"] * dims["P"] if values["max_seqlen_k"] is None else values["max_seqlen_k"]
    keys = values.get("seq_lens", [longest] * B)
    ends = values.get("query_start_loc", [dims["S"] * n // max(B, 1) for n in range(B + 1)])
    return [(end - begin, length) for (begin, end), length in zip(pairwise(ends), keys, strict=True)]


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """As for ``attention``, sequence by sequence, and the table once."""
    S, H, G, D, E = (dims[name] for name in "SHGDE")
    lengths = lengths_of(dims, values)
    pairs = H * sum(visible_pairs(s, t, causal=values["causal"], window=values["window"]) for s, t in lengths)
    keys = G * sum(visible_keys(s, t, window=values["window"]) for s, t in lengths if s)
    moved = S * H * (D + E) * itemsizes["q"] + keys * (D * itemsizes["key_cache"] + E * itemsizes["value_cache"])
    if values["kv_scales"] == "token_head":
        moved += keys * (itemsizes.get("k_scale", 0) + itemsizes.get("v_scale", 0))
    moved += dims["B"] * (dims["W"] + 2) * itemsizes["block_table"]
    moved += H * (itemsizes.get("alibi_slopes", 0) + itemsizes.get("sinks", 0))
    moved += 4 * H * S if values["return_lse"] else 0
    return Cost(bytes=moved, flops=2 * pairs * (D + E))


def _dims(*, B: int, S: int, W: int, P: int, H: int, D: int, G: int | None = None, E: int | None = None) -> Any:
    """A case's dimensions, with as many pages as all sequences may need and a few more."""
    sizes = {"B": B, "S": S, "W": W, "P": P, "H": H, "D": D}
    return {**sizes, "NP": B * W + 3, "G": H if G is None else G, "E": D if E is None else E}


def _scales(cache: str) -> TensorArgument:
    """What the elements of a cache are multiplied by."""
    shapes = {"none": (), "tensor": (), "head": ("G",), "token_head": ("NP", "P", "G")}
    name = f"{cache[0]}_scale"
    draw = Draw("scale", poison="block_table")
    sizes = Choice("kv_scales", shapes)
    return TensorArgument(name, sizes, ("float32",), optional=True, feature=True, keyword=True, draw=draw)


def _row(
    name: str,
    lengths: Sequence[tuple[int, int]],
    H: int,
    G: int,
    D: int,
    P: int,
    *,
    core: bool = False,
    cache: str = "",
    **values: Any,
) -> GridRow:
    """Sequences with so many queries and keys, which have a dtype of their own where ``cache`` names it."""
    B, pages = len(lengths), -(-max(keys for _, keys in lengths) // P)
    ends = tuple(accumulate((queries for queries, _ in lengths), initial=0))
    rows = (B * pages, P, G, D)
    shapes = {"q": (ends[-1], H, D), "key_cache": rows, "value_cache": rows, "block_table": (B, pages)}
    shapes |= {"seq_lens": (B,), "query_start_loc": (B + 1,)}
    most = {"max_seqlen_q": max(s for s, _ in lengths), "max_seqlen_k": max(t for _, t in lengths)}
    given = {"seq_lens": tuple(keys for _, keys in lengths), "query_start_loc": ends}
    of_cache = {"key_cache": cache} if cache else {}
    return GridRow(f"{name} H{H}/{G} D{D} P{P}", shapes, {**most, **values}, core, given, of_cache)


def drawn_lengths(production: Production) -> tuple[str, list[tuple[int, int]]]:
    """Queries and keys of the sequences of a step, and their name: most decode, some several tokens; or prompts."""
    if production.at_times(0.2):
        count, prompt = production.one_of((1, 1, 2, 4)), production.one_of(PROMPTS)
        return f"prefill {count} of {prompt}", [(prompt, prompt)] * count
    count, longest = production.one_of(DECODING), production.one_of(CONTEXTS)
    queries = production.one_of((1, 1, 1, 1, 2, 4))
    lengths = [longest] * count
    if production.at_times(0.7):
        lengths = [max(queries, production.between(16, longest)) for _ in range(count)]
    least, most = min(lengths), max(lengths)
    name = f"{count} of {most}" if least == most else f"{count} of {least} to {most}"
    name += f", {queries} queries" if queries > 1 else ""
    return name, [(queries, keys) for keys in lengths]


def _drawn(production: Production) -> GridRow:
    name, lengths = drawn_lengths(production)
    (H, G), D = production.heads(), production.model.head
    cache = "float8_e4m3fn" if production.at_times(0.2) else ""
    row = _row(name, lengths, H, G, D, production.one_of((16, 16, 32, 64, 128)), cache=cache)
    return with_features(row, window=(production.one_of((127, 1023, 4095)), 0)) if production.at_times(0.2) else row


CONTRACT = Contract(
    op="paged_attention",
    summary="Attention over keys and values in pages: decoding, several tokens a sequence and prefill in one call.",
    formula=(
        "attention(q[a:b], keys, values) for each sequence n, with a, b = query_start_loc[n:n + 2] and the first"
        " seq_lens[n] rows of key_cache[block_table[n]] and value_cache[block_table[n]], times their scales"
    ),
    notes=(
        "q: (S, H, D), the queries of all sequences one after the other; key_cache: (NP, P, G, D), value_cache: (NP, P,"
        " G, E), by any strides, which say how the cache lies (tokens or heads first, keys and values joined);"
        " block_table: (B, W). Token j of sequence n lies in page block_table[n, j // P], row j % P. seq_lens counts"
        " all keys, those of the call's own queries included; query i of a sequence with s queries stands at position"
        " seq_lens[n] - s + i, and causal, window, softcap, ALiBi and sinks are as in attention. A sequence may have no"
        " queries, no keys, or fewer keys than queries: queries that see no key give zeros, and lse -inf or their sink."
        " kv_scales says what keys and values are multiplied by: nothing, one number each (tensor), one for each key"
        " head (head: (G,)), or one for each row of the cache (token_head: (NP, P, G)); k_scale and v_scale are given"
        " together (the reference raises ArgumentValueError). max_seqlen_q and max_seqlen_k are upper bounds that"
        " change no result; lengths are read on the device alone, so that a captured graph may be replayed with others"
        " within these bounds. lse is (H, S). Guaranteed: what no query of the call sees reaches no result, whatever it"
        " holds, and entries of block_table behind a sequence's last page are not followed. Not guaranteed: what"
        " attention does not guarantee; results where a length is beyond W*P, a page outside [0, NP), or a bound too"
        " small; what rows of out hold that belong to no sequence; finite results where a product with a scale is not."
        " portakernel.paging turns tables into FlashInfer's and SGLang's forms of them, and those into tables."
    ),
    tensors=(
        TensorArgument("q", ("S", "H", "D"), ("float32", "float16", "bfloat16")),
        TensorArgument("key_cache", ("NP", "P", "G", "D"), ("q", *FLOAT8), draw=Draw(poison="block_table")),
        TensorArgument("value_cache", ("NP", "P", "G", "E"), ("key_cache",), draw=Draw(poison="block_table")),
        TensorArgument(
            "block_table",
            ("B", "W"),
            ("int32",),
            draw=Draw("pages", below="NP", lengths="seq_lens", page="P"),
            rule=Pages("NP", "seq_lens", "P"),
        ),
        TensorArgument("seq_lens", ("B",), ("int32",), draw=Draw("lengths", below="W*P"), rule=Lengths("W*P")),
        TensorArgument("query_start_loc", ("B+1",), ("int32",), draw=Draw("segments", below="S"), rule=Ends("S")),
        _scales("key_cache"),
        _scales("value_cache"),
        TensorArgument("alibi_slopes", ("H",), ("float32",), optional=True, feature=True, keyword=True),
        TensorArgument("sinks", ("H",), ("q", "float32"), optional=True, feature=True, keyword=True),
    ),
    parameters=(
        kv_scales(("tensor", "head", "token_head")),
        Parameter("causal", True, kind="bool", summary="hide keys behind the query's position"),
        Parameter("scale", None, optional=True, summary="what q @ k.T is multiplied by; None: 1/sqrt(D)"),
        Parameter("window", (-1, -1), feature=True, kind="window", summary="keys seen before and after the position"),
        Parameter("softcap", 0.0, feature=True, least=0.0, summary="bounds scores smoothly to this magnitude; 0: off"),
        Parameter(
            "max_seqlen_q",
            None,
            kind="int",
            optional=True,
            bounds="query_start_loc",
            summary="no sequence has more queries",
        ),
        Parameter(
            "max_seqlen_k", None, kind="int", optional=True, bounds="seq_lens", summary="no sequence has more keys"
        ),
        Parameter("return_lse", False, feature=True, kind="bool", summary="also return the log-sum-exp of the scores"),
    ),
    outputs=(
        Result("out", ("S", "H", "E"), like="q", differentiable=False),
        Result("lse", ("H", "S"), like="q", dtype="float32", when=("return_lse", True), differentiable=False),
    ),
    requirements=("P > 0", "NP > 0 or W == 0", "G > 0", "H % G == 0", "D > 0"),
    cases=(
        Case("one element", dims=_dims(B=1, S=1, W=1, P=1, H=1, D=1)),
        Case("a few tokens, grouped heads", dims=_dims(B=3, S=7, W=2, P=4, H=4, G=2, D=8)),
        Case("a few tokens", dims=_dims(B=2, S=3, W=3, P=2, H=3, D=8)),
        Case(
            "a query each",
            dims=_dims(B=6, S=6, W=5, P=16, H=8, G=2, D=64),
            parameters={"max_seqlen_q": 1},
            given={"query_start_loc": (0, 1, 2, 3, 4, 5, 6)},
        ),
        Case(
            "a query each, lse",
            dims=_dims(B=3, S=3, W=9, P=16, H=4, G=1, D=128),
            parameters={"max_seqlen_q": 1, "max_seqlen_k": 144, "return_lse": True},
            given={"query_start_loc": (0, 1, 2, 3), "seq_lens": (144, 1, 77)},
        ),
        Case(
            "pages of one token",
            dims=_dims(B=3, S=3, W=41, P=1, H=4, G=4, D=64),
            parameters={"max_seqlen_q": 1},
            given={"query_start_loc": (0, 1, 2, 3)},
        ),
        Case(
            "pages of 7, up to 5 queries",
            dims=_dims(B=4, S=11, W=9, P=7, H=6, G=2, D=80),
            parameters={"max_seqlen_q": 5},
            given={"query_start_loc": (0, 2, 2, 6, 11)},
        ),
        Case(
            "pages of 48, 16 queries",
            dims=_dims(B=2, S=32, W=2, P=48, H=3, G=1, D=96),
            parameters={"max_seqlen_q": 16},
            given={"query_start_loc": (0, 16, 32)},
        ),
        Case(
            "pages that sequences share",
            dims={**_dims(B=4, S=7, W=4, P=8, H=4, G=2, D=64), "NP": 5},
            parameters={"max_seqlen_q": 3},
            given={"query_start_loc": (0, 1, 4, 5, 7), "seq_lens": (32, 31, 16, 1)},
        ),
        Case(
            "one page of 784",
            dims=_dims(B=2, S=2, W=1, P=784, H=4, G=2, D=64),
            parameters={"max_seqlen_q": 1},
            given={"query_start_loc": (0, 1, 2)},
        ),
        Case(
            "decoding and prefill",
            dims=_dims(B=5, S=60, W=6, P=16, H=4, G=2, D=64),
            given={"query_start_loc": (0, 1, 41, 41, 43, 60), "seq_lens": (90, 71, 50, 2, 17)},
        ),
        Case(
            "prefill, lse",
            dims=_dims(B=2, S=150, W=2, P=128, H=4, G=1, D=128),
            parameters={"max_seqlen_q": 140, "return_lse": True},
            given={"query_start_loc": (0, 10, 150), "seq_lens": (200, 140)},
        ),
        Case("drawn lengths", dims=_dims(B=5, S=37, W=4, P=16, H=4, G=2, D=32)),
        Case("drawn lengths, not causal", dims=_dims(B=4, S=29, W=3, P=32, H=2, D=40), parameters={"causal": False}),
        Case(
            "queries without keys, sequences without either",
            dims=_dims(B=5, S=60, W=3, P=8, H=4, G=2, D=64),
            parameters={"return_lse": True},
            given={"query_start_loc": (0, 3, 3, 12, 18, 60), "seq_lens": (0, 20, 4, 7, 21)},
        ),
        Case(
            "no keys at all",
            dims=_dims(B=3, S=3, W=2, P=16, H=4, G=2, D=64),
            parameters={"max_seqlen_q": 1, "return_lse": True},
            given={"query_start_loc": (0, 1, 2, 3), "seq_lens": (0, 0, 0)},
        ),
        Case("no table", dims=_dims(B=2, S=4, W=0, P=16, H=2, D=64), given={"query_start_loc": (0, 1, 4)}),
        Case("no queries", dims=_dims(B=3, S=0, W=2, P=16, H=4, G=2, D=64), given={"query_start_loc": (0, 0, 0, 0)}),
        Case("no sequences", dims=_dims(B=0, S=0, W=2, P=16, H=4, G=2, D=64), given={"query_start_loc": (0,)}),
        Case(
            "values narrower than keys",
            dims=_dims(B=3, S=9, W=4, P=16, H=4, G=2, D=192, E=128),
            parameters={"max_seqlen_q": 4},
            given={"query_start_loc": (0, 4, 5, 9)},
        ),
        Case(
            "wide heads, scale",
            dims=_dims(B=2, S=2, W=5, P=16, H=16, G=1, D=256),
            parameters={"max_seqlen_q": 1, "scale": 0.05},
            given={"query_start_loc": (0, 1, 2)},
        ),
        Case(
            "a scale below 0",
            dims=_dims(B=2, S=20, W=3, P=16, H=2, D=64),
            parameters={"scale": -0.2, "return_lse": True},
            given={"query_start_loc": (0, 1, 20), "seq_lens": (33, 40)},
        ),
        Case(
            "window, a query each",
            dims=_dims(B=4, S=4, W=6, P=16, H=8, G=2, D=64),
            parameters={"max_seqlen_q": 1, "window": (30, 0)},
            given={"query_start_loc": (0, 1, 2, 3, 4), "seq_lens": (96, 31, 5, 64)},
        ),
        Case(
            "window, prefill",
            dims=_dims(B=2, S=70, W=6, P=16, H=2, G=1, D=64),
            parameters={"window": (9, -1), "return_lse": True},
            given={"query_start_loc": (0, 50, 70), "seq_lens": (90, 20)},
        ),
        Case(
            "window on both sides",
            dims=_dims(B=2, S=40, W=4, P=16, H=2, D=64),
            parameters={"causal": False, "window": (5, 3)},
            given={"query_start_loc": (0, 22, 40), "seq_lens": (60, 18)},
        ),
        Case(
            "softcap",
            dims=_dims(B=3, S=20, W=4, P=16, H=4, G=2, D=64),
            parameters={"scale": 1.0, "softcap": 5.0},
            given={"query_start_loc": (0, 1, 2, 20), "seq_lens": (64, 9, 40)},
        ),
        Case(
            "ALiBi",
            dims=_dims(B=3, S=21, W=4, P=16, H=4, G=2, D=64),
            present=("alibi_slopes",),
            given={"query_start_loc": (0, 1, 3, 21), "seq_lens": (64, 9, 40)},
        ),
        Case(
            "sinks, lse",
            dims=_dims(B=4, S=9, W=2, P=8, H=4, G=2, D=64),
            parameters={"max_seqlen_q": 5, "return_lse": True},
            present=("sinks",),
            given={"query_start_loc": (0, 1, 2, 7, 9), "seq_lens": (16, 0, 3, 9)},
        ),
        Case(
            "sinks, window, lse",
            dims=_dims(B=4, S=20, W=4, P=16, H=8, G=1, D=64),
            parameters={"window": (11, 0), "return_lse": True},
            present=("sinks",),
            given={"query_start_loc": (0, 1, 2, 8, 20), "seq_lens": (64, 0, 3, 40)},
        ),
        Case(
            "everything, a query each",
            dims=_dims(B=4, S=4, W=5, P=16, H=8, G=2, D=64, E=32),
            parameters={"scale": 0.2, "window": (37, 0), "softcap": 2.0, "return_lse": True, "max_seqlen_q": 1},
            present=("alibi_slopes", "sinks"),
            given={"query_start_loc": (0, 1, 2, 3, 4)},
        ),
        Case(
            "everything, last dims apart",
            dims=_dims(B=3, S=30, W=4, P=16, H=4, G=2, D=64, E=32),
            layouts={"q": "stepped", "key_cache": "transposed", "value_cache": "stepped", "block_table": "sliced"},
            parameters={"scale": 0.2, "window": (21, 4), "softcap": 2.0, "return_lse": True, "max_seqlen_q": 30},
            present=("alibi_slopes", "sinks"),
        ),
        Case(
            "sliced, split, offset",
            dims=_dims(B=3, S=9, W=3, P=16, H=4, G=2, D=64),
            layouts={"q": "split", "key_cache": "sliced", "value_cache": "offset", "seq_lens": "stepped"},
            parameters={"max_seqlen_q": 9},
        ),
        Case(
            "a scale for each cache",
            dims=_dims(B=3, S=20, W=4, P=16, H=4, G=2, D=64),
            parameters={"kv_scales": "tensor"},
            present=("k_scale", "v_scale"),
            given={"query_start_loc": (0, 1, 2, 20), "seq_lens": (64, 9, 40)},
        ),
        Case(
            "a scale for each head, lse",
            dims=_dims(B=4, S=4, W=4, P=16, H=8, G=2, D=64),
            parameters={"kv_scales": "head", "max_seqlen_q": 1, "return_lse": True},
            present=("k_scale", "v_scale"),
            given={"query_start_loc": (0, 1, 2, 3, 4)},
        ),
        Case(
            "a scale for each row, softcap",
            dims=_dims(B=3, S=20, W=4, P=16, H=4, G=2, D=64),
            parameters={"kv_scales": "token_head", "softcap": 20.0},
            present=("k_scale", "v_scale"),
            given={"query_start_loc": (0, 1, 2, 20), "seq_lens": (64, 9, 40)},
        ),
        Case(
            "a scale for each row, a query each, lse",
            dims=_dims(B=3, S=3, W=4, P=16, H=4, G=4, D=64),
            parameters={"kv_scales": "token_head", "max_seqlen_q": 1, "return_lse": True},
            present=("k_scale", "v_scale"),
            given={"query_start_loc": (0, 1, 2, 3)},
        ),
    ),
    host_reads=("block_table", "seq_lens", "query_start_loc"),
    # as for attention
    tolerance=Tolerance(forward={"lse.float32": 16.0}, rule="plain"),
    grid=Grid(
        (
            _row("64 of 4096", [(1, 4096)] * 64, 32, 8, 128, 16, core=True),
            _row("128 of 1024", [(1, 1024)] * 128, 32, 8, 128, 16, core=True),
            _row("8 of 32768", [(1, 32768)] * 8, 64, 8, 128, 16, core=True),
            _row("1 of 16384", [(1, 16384)], 32, 8, 128, 16, core=True),
            _row("64 of 4096 in float8_e4m3fn", [(1, 4096)] * 64, 32, 8, 128, 16, core=True, cache="float8_e4m3fn"),
            _row("1 of 1024", [(1, 1024)], 32, 8, 128, 16),
            _row("4 of 1024", [(1, 1024)] * 4, 32, 8, 128, 16),
            _row("prefill 4 of 4096", [(4096, 4096)] * 4, 32, 8, 128, 16, core=True),
            _row("prefill 1 of 16384", [(16384, 16384)], 32, 8, 128, 16, core=True),
            _row("32 of 256 to 8192", [(1, 256 * (n + 1)) for n in range(32)], 32, 8, 128, 16),
            _row("16 of 4096, 4 queries", [(4, 4096)] * 16, 32, 8, 128, 16),
            with_features(_row("64 of 4096", [(1, 4096)] * 64, 64, 8, 64, 16), ("sinks",), window=(127, 0)),
            with_features(_row("16 of 4096", [(1, 4096)] * 16, 16, 8, 256, 16), softcap=50.0),
        ),
        _row("2 of 64", [(1, 64)] * 2, 4, 2, 64, 16),
        _drawn,
    ),
    cost=cost,
    in_graphs="call",
    source=(
        "Kwon et al. 2023, Efficient Memory Management for Large Language Model Serving with PagedAttention, arXiv"
        " 2309.06180; flash_attn_varlen_func with a block_table for the form; sources of attention"
    ),
)
