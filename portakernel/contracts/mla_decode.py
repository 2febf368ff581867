"""``mla_decode``: attention over latent vectors in pages, the cache of multi-head latent attention (MLA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from portakernel.contract import (
    Case,
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
from portakernel.contract.production import Production
from portakernel.contract.value_rules import Lengths, Pages
from portakernel.contracts.attention import visible_keys, visible_pairs
from portakernel.contracts.paged_attention import drawn_lengths, lengths_of
from portakernel.contracts.write_kv_cache import FLOAT8

# 1/sqrt(192): DeepSeek's heads have 128 dims and 64 rotary ones before the former are absorbed into the queries.
_SCALE = 0.07216878364870322


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Queries and results moved once, of the caches what some query sees, and the table; two products for each pair."""
    S, H, C, R = (dims[name] for name in "SHCR")
    lengths = lengths_of(dims, values)
    pairs = H * sum(visible_pairs(s, t, causal=values["causal"], window=values["window"]) for s, t in lengths)
    keys = sum(visible_keys(s, t, window=values["window"]) for s, t in lengths if s)
    moved = S * H * (2 * C + R) * itemsizes["q_latent"] + keys * (C + R) * itemsizes["latent_cache"]
    moved += dims["B"] * (dims["W"] + 2) * itemsizes["block_table"]
    moved += H * itemsizes.get("sinks", 0) + itemsizes.get("latent_scale", 0)
    moved += 4 * H * S if values["return_lse"] else 0
    return Cost(bytes=moved, flops=2 * pairs * (2 * C + R))


def _case(
    name: str,
    *,
    sizes: tuple[int, int, int],
    pages: tuple[int, int],
    queries: Sequence[int] | None = None,
    keys: tuple[int, ...] | None = None,
    rows: tuple[int, int] | None = None,
    layouts: Mapping[str, Any] | None = None,
    present: tuple[str, ...] = (),
    **values: Any,
) -> Case:
    """A case with sizes ``H, C, R``, pages ``W, P``, and sequences with so many queries and keys, or ``B, S`` drawn."""
    B, S = (len(queries), sum(queries)) if queries is not None else rows or (1, 1)
    dims = {"B": B, "S": S, **dict(zip("WPHCR", (*pages, *sizes), strict=True))}
    given = {} if queries is None else {"query_start_loc": tuple(accumulate(queries, initial=0))}
    return Case(
        name,
        dims={**dims, "NP": B * dims["W"] + 3},
        layouts=layouts or {},
        parameters={"scale": _SCALE, **values},
        present=present,
        given=given if keys is None else {**given, "seq_lens": keys},
    )


def _row(name: str, lengths: Sequence[tuple[int, int]], H: int, *, C: int = 512, core: bool = False) -> GridRow:
    """Sequences with so many queries and keys, in pages of 64."""
    B, pages, R, P = len(lengths), -(-max(keys for _, keys in lengths) // 64), C // 8, 64
    ends = tuple(accumulate((queries for queries, _ in lengths), initial=0))
    shapes: dict[str, tuple[int, ...]] = {"q_latent": (ends[-1], H, C), "q_rope": (ends[-1], H, R)}
    shapes |= {"latent_cache": (B * pages, P, C), "rope_cache": (B * pages, P, R), "block_table": (B, pages)}
    shapes |= {"seq_lens": (B,), "query_start_loc": (B + 1,)}
    most = {"max_seqlen_q": max(s for s, _ in lengths), "max_seqlen_k": max(t for _, t in lengths)}
    given = {"seq_lens": tuple(keys for _, keys in lengths), "query_start_loc": ends}
    return GridRow(f"{name} H{H} C{C} R{R} P{P}", shapes, {"scale": _SCALE, **most}, core, given)


def _drawn(production: Production) -> GridRow:
    """Heads of DeepSeek's and Kimi's models, split over devices."""
    name, lengths = drawn_lengths(production)
    return _row(name, lengths, production.one_of((8, 16, 32, 64, 128)))


CONTRACT = Contract(
    op="mla_decode",
    summary="Multi-head latent attention (MLA) over a cache in pages: all heads share a key, which is the value too.",
    formula=(
        "softmax(scale * (q_latent[a:b] @ c.T + q_rope[a:b] @ r.T)) @ c for each sequence n, with a, b ="
        " query_start_loc[n:n + 2] and c, r the first seq_lens[n] rows of latent_cache[block_table[n]] and"
        " rope_cache[block_table[n]], times latent_scale"
    ),
    notes=(
        "q_latent: (S, H, C), the queries of all sequences one after the other, multiplied by the keys' up-projection"
        " already; q_rope: (S, H, R), their rotary part; latent_cache: (NP, P, C) and rope_cache: (NP, P, R), by any"
        " strides, mostly the two parts of one tensor (NP, P, C+R), as write_latent_cache fills it; block_table: (B,"
        " W); out: (S, H, C), to be multiplied by the values' up-projection; lse: (H, S). scale is that of the heads"
        " before they were absorbed, 1/sqrt(192) for DeepSeek's 128 + 64 dims, and neither 1/sqrt(C) nor 1/sqrt(C+R):"
        " it has no default. latent_scale, (), is one number that both caches are multiplied by, for float8 caches or"
        " any. Pages, lengths, positions, causal, window, sinks, what is guaranteed and what is not are as in"
        " paged_attention. Prefill with keys and values of each head, which is faster for many queries, is"
        " attention_varlen with D 192 and E 128."
    ),
    tensors=(
        TensorArgument("q_latent", ("S", "H", "C"), ("float32", "float16", "bfloat16")),
        TensorArgument("q_rope", ("S", "H", "R"), ("q_latent",)),
        TensorArgument("latent_cache", ("NP", "P", "C"), ("q_latent", *FLOAT8), draw=Draw(poison="block_table")),
        TensorArgument("rope_cache", ("NP", "P", "R"), ("latent_cache",), draw=Draw(poison="block_table")),
        TensorArgument(
            "block_table",
            ("B", "W"),
            ("int32",),
            draw=Draw("pages", below="NP", lengths="seq_lens", page="P"),
            rule=Pages("NP", "seq_lens", "P"),
        ),
        TensorArgument("seq_lens", ("B",), ("int32",), draw=Draw("lengths", below="W*P"), rule=Lengths("W*P")),
        TensorArgument("query_start_loc", ("B+1",), ("int32",), draw=Draw("segments", below="S"), rule=Ends("S")),
        TensorArgument("latent_scale", (), ("float32",), optional=True, feature=True, keyword=True, draw=Draw("scale")),
        TensorArgument("sinks", ("H",), ("q_latent", "float32"), optional=True, feature=True, keyword=True),
    ),
    parameters=(
        Parameter("scale", None, summary="what products of queries and keys are multiplied by, such as 1/sqrt(192)"),
        Parameter("causal", True, kind="bool", summary="hide keys behind the query's position"),
        Parameter("window", (-1, -1), feature=True, kind="window", summary="keys seen before and after the position"),
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
        Result("out", ("S", "H", "C"), like="q_latent", differentiable=False),
        Result("lse", ("H", "S"), like="q_latent", dtype="float32", when=("return_lse", True), differentiable=False),
    ),
    requirements=("P > 0", "NP > 0 or W == 0", "C > 0", "R > 0"),
    cases=(
        _case("one element", sizes=(1, 1, 1), pages=(1, 1)),
        _case("a few tokens", sizes=(3, 16, 8), pages=(2, 4), rows=(3, 7)),
        _case(
            "DeepSeek's sizes, a query each",
            sizes=(16, 512, 64),
            pages=(3, 16),
            queries=(1, 1, 1),
            keys=(48, 1, 33),
            max_seqlen_q=1,
            max_seqlen_k=48,
        ),
        _case(
            "DeepSeek's sizes, two queries, lse",
            sizes=(20, 512, 64),
            pages=(5, 16),
            queries=(2, 1),
            max_seqlen_q=2,
            return_lse=True,
        ),
        _case(
            "DeepSeek's widths, lse",
            sizes=(4, 512, 64),
            pages=(2, 8),
            queries=(1, 5, 2),
            keys=(16, 3, 9),
            max_seqlen_q=5,
            return_lse=True,
        ),
        _case(
            "DeepSeek's sizes, pages of 64, lse",
            sizes=(64, 512, 64),
            pages=(2, 64),
            queries=(1, 3),
            keys=(128, 65),
            return_lse=True,
        ),
        _case(
            "128 of DeepSeek's heads, window, sinks",
            sizes=(128, 512, 64),
            pages=(1, 128),
            queries=(2,),
            keys=(110,),
            max_seqlen_q=2,
            window=(90, 0),
            present=("sinks",),
        ),
        _case("one head, pages of one token", sizes=(1, 64, 16), pages=(41, 1), queries=(1, 1, 1), max_seqlen_q=1),
        _case("17 heads, pages of 7", sizes=(17, 80, 24), pages=(9, 7), queries=(2, 0, 4, 5), max_seqlen_q=5),
        _case("128 heads", sizes=(128, 128, 32), pages=(3, 16), queries=(1, 1), keys=(48, 17), max_seqlen_q=1),
        _case(
            "pages that sequences share",
            sizes=(8, 64, 16),
            pages=(4, 8),
            queries=(1, 3, 1, 2),
            keys=(32, 31, 16, 1),
            max_seqlen_q=3,
        ),
        _case("a page of 784", sizes=(4, 64, 16), pages=(1, 784), queries=(1, 1), max_seqlen_q=1),
        _case(
            "decoding and prefill, lse",
            sizes=(4, 64, 16),
            pages=(6, 16),
            queries=(1, 40, 0, 2, 17),
            keys=(90, 71, 50, 2, 17),
            return_lse=True,
        ),
        _case("drawn lengths, not causal", sizes=(5, 40, 8), pages=(3, 32), rows=(4, 29), causal=False),
        _case(
            "queries without keys, sequences without either",
            sizes=(4, 64, 16),
            pages=(3, 8),
            queries=(3, 0, 9, 6, 2),
            keys=(0, 20, 4, 7, 1),
            return_lse=True,
        ),
        _case("no table", sizes=(2, 64, 16), pages=(0, 16), queries=(1, 3)),
        _case("no queries", sizes=(4, 64, 16), pages=(2, 16), queries=(0, 0)),
        _case("no sequences", sizes=(4, 64, 16), pages=(2, 16), queries=()),
        _case("no heads", sizes=(0, 64, 16), pages=(2, 16), queries=(1, 1)),
        _case("rope wider than latent", sizes=(3, 24, 72), pages=(4, 16), queries=(1, 2), max_seqlen_q=2),
        _case("latent of 320", sizes=(6, 320, 40), pages=(3, 16), queries=(1, 3)),
        _case("a scale below 0", sizes=(4, 64, 16), pages=(3, 16), queries=(1, 9), keys=(33, 40), scale=-0.2),
        _case("a scale of 0", sizes=(4, 64, 16), pages=(3, 16), queries=(1, 2), scale=0.0, return_lse=True),
        _case(
            "window, a query each",
            sizes=(8, 64, 16),
            pages=(6, 16),
            queries=(1, 1, 1, 1),
            keys=(96, 31, 5, 64),
            max_seqlen_q=1,
            window=(30, 0),
        ),
        _case(
            "window on both sides, lse",
            sizes=(2, 64, 16),
            pages=(4, 16),
            queries=(22, 18),
            keys=(60, 18),
            causal=False,
            window=(5, 3),
            return_lse=True,
        ),
        _case(
            "sinks, window, lse",
            sizes=(8, 64, 16),
            pages=(4, 16),
            queries=(1, 1, 6, 12),
            keys=(64, 0, 3, 40),
            window=(11, 0),
            return_lse=True,
            present=("sinks",),
        ),
        _case(
            "a scale of the cache",
            sizes=(4, 64, 16),
            pages=(4, 16),
            queries=(1, 1, 18),
            keys=(64, 9, 40),
            present=("latent_scale",),
        ),
        _case(
            "everything, last dims apart",
            sizes=(4, 64, 16),
            pages=(4, 16),
            rows=(3, 30),
            layouts={
                "q_latent": "stepped",
                "q_rope": "transposed",
                "latent_cache": "transposed",
                "rope_cache": "stepped",
                "block_table": "sliced",
            },
            present=("latent_scale", "sinks"),
            window=(21, 4),
            return_lse=True,
            max_seqlen_q=30,
        ),
        _case(
            "sliced, split, offset",
            sizes=(4, 64, 16),
            pages=(3, 16),
            rows=(3, 9),
            layouts={"q_latent": "split", "latent_cache": "sliced", "rope_cache": "offset", "seq_lens": "stepped"},
            max_seqlen_q=9,
        ),
    ),
    host_reads=("block_table", "seq_lens", "query_start_loc"),
    # as for attention
    tolerance=Tolerance(forward={"lse.float32": 16.0}, rule="plain"),
    grid=Grid(
        (
            _row("64 of 4096", [(1, 4096)] * 64, 16, core=True),
            _row("128 of 1024", [(1, 1024)] * 128, 128, core=True),
            _row("8 of 32768", [(1, 32768)] * 8, 16, core=True),
            _row("1 of 16384", [(1, 16384)], 16, core=True),
            _row("16 of 4096", [(1, 4096)] * 16, 128),
            _row("64 of 4096, 2 queries", [(2, 4096)] * 64, 16),
        ),
        _row("2 of 64", [(1, 64)] * 2, 4, C=64),
        _drawn,
    ),
    cost=cost,
    in_graphs="call",
    source=(
        "DeepSeek-AI 2024, DeepSeek-V2, arXiv 2405.04434, 2.1; FlashInfer's BatchMLAPagedAttentionWrapper and vLLM's"
        " flash_mla for the form; sources of paged_attention"
    ),
)
