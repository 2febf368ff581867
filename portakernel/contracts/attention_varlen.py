"""``attention_varlen``: attention over sequences of different lengths, one after the other without padding."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
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
from portakernel.contract.production import PROMPTS, Production
from portakernel.contracts.attention import visible_keys, visible_pairs, with_features


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """As for ``attention``, sequence by sequence; where lengths are not known, for ``B`` sequences of equal length."""
    S, T, H, G, D, E = (dims[name] for name in "STHGDE")
    B = max(dims["B"], 1)
    lengths = [(S // B, T // B)] * B
    if "cu_seqlens_q" in values and "cu_seqlens_k" in values:
        ends = [[end - begin for begin, end in pairwise(values[f"cu_seqlens_{name}"])] for name in "qk"]
        lengths = list(zip(*ends, strict=True))
    pairs = H * sum(visible_pairs(s, t, causal=values["causal"], window=values["window"]) for s, t in lengths)
    keys = G * sum(visible_keys(s, t, window=values["window"]) for s, t in lengths)
    moved = S * H * (D + E) * itemsizes["q"] + keys * (D * itemsizes["k"] + E * itemsizes["v"])
    moved += (B + 1) * (itemsizes["cu_seqlens_q"] + itemsizes["cu_seqlens_k"])
    moved += H * (itemsizes.get("alibi_slopes", 0) + itemsizes.get("sinks", 0))
    moved += 4 * H * S if values["return_lse"] else 0
    return Cost(bytes=moved, flops=2 * pairs * (D + E))


def _dims(*, B: int, S: int, T: int, H: int, D: int, G: int | None = None, E: int | None = None) -> dict[str, int]:
    """A case's dimensions: as many key heads as heads and value dims as key dims, unless given."""
    return {"B": B, "S": S, "T": T, "H": H, "G": H if G is None else G, "D": D, "E": D if E is None else E}


def _row(B: int, length: int, H: int, G: int, D: int) -> GridRow:
    """``B`` sequences of one length."""
    tokens, ends = B * length, (B + 1,)
    shapes = {"q": (tokens, H, D), "k": (tokens, G, D), "v": (tokens, G, D), "cu_seqlens_q": ends, "cu_seqlens_k": ends}
    values = {"causal": True, "max_seqlen_q": length, "max_seqlen_k": length}
    return GridRow(f"{B} of {length} H{H}/{G} D{D} causal", shapes, values)


def _ragged_row(B: int, longest: int, H: int, G: int, D: int) -> GridRow:
    """``B`` sequences whose lengths grow as squares do: few long ones, many short ones."""
    lengths = [longest * (n + 1) ** 2 // B**2 for n in range(B)]
    ends = tuple(accumulate(lengths, initial=0))
    even = _row(B, longest, H, G, D)
    shapes = {**even.shapes, **{name: (ends[-1], *even.shapes[name][1:]) for name in "qkv"}}
    name = f"{B} of {lengths[0]} to {longest} H{H}/{G} D{D} causal"
    return GridRow(name, shapes, even.values, given={"cu_seqlens_q": ends, "cu_seqlens_k": ends})


def _drawn(production: Production) -> GridRow:
    """Prompts of one batch, most of different lengths."""
    (H, G), D = production.heads(), production.model.head
    B, longest = production.one_of((1, 2, 4, 7, 16, 32)), production.one_of(PROMPTS)
    return (_ragged_row if production.at_times(0.7) else _row)(B, longest, H, G, D)


CONTRACT = Contract(
    op="attention_varlen",
    summary="Attention over sequences of different lengths that lie one after the other, without padding.",
    formula=(
        "attention(q[a:b], k[c:d], v[c:d]) for each sequence, with a, b from cu_seqlens_q and c, d from cu_seqlens_k"
    ),
    notes=(
        "Sequence n has the queries from cu_seqlens_q[n] to before cu_seqlens_q[n + 1] and the keys likewise; both"
        " ascend from 0, to S and to T at most; kernels that read them on the host (the reference, those on the CPU)"
        " raise ArgumentValueError where they do not, and for others that is undefined. Everything holds within each"
        " sequence as it does for attention, with the sequence's own numbers of queries and keys as S and T: alignment"
        " at the bottom right, ALiBi distances, zeros and lse -inf (or the sink) for queries without keys. A sequence"
        " may be empty, on one side or on both. max_seqlen_q and max_seqlen_k are upper bounds of those numbers, not"
        " necessarily reached; they change no result, and spare kernels that need them a wait for the device. Undefined"
        " where they are too small. lse is (H, S). Forward saves it. Not guaranteed: what attention does not guarantee;"
        " what rows hold that belong to no sequence."
    ),
    tensors=(
        TensorArgument("q", ("S", "H", "D"), ("float32", "float16", "bfloat16")),
        TensorArgument("k", ("T", "G", "D"), ("q",)),
        TensorArgument("v", ("T", "G", "E"), ("q",)),
        TensorArgument("cu_seqlens_q", ("B+1",), ("int32",), draw=Draw("segments", below="S"), rule=Ends("S")),
        TensorArgument("cu_seqlens_k", ("B+1",), ("int32",), draw=Draw("segments", below="T"), rule=Ends("T")),
        TensorArgument("alibi_slopes", ("H",), ("float32",), optional=True, feature=True, keyword=True),
        TensorArgument("sinks", ("H",), ("q", "float32"), optional=True, feature=True, keyword=True),
    ),
    parameters=(
        Parameter("causal", False, kind="bool", summary="hide keys behind the query's position"),
        Parameter("scale", None, optional=True, summary="what q @ k.T is multiplied by; None: 1/sqrt(D)"),
        Parameter("window", (-1, -1), feature=True, kind="window", summary="keys seen before and after the position"),
        Parameter("softcap", 0.0, feature=True, least=0.0, summary="bounds scores smoothly to this magnitude; 0: off"),
        Parameter(
            "max_seqlen_q",
            None,
            kind="int",
            optional=True,
            bounds="cu_seqlens_q",
            summary="no sequence has more queries",
        ),
        Parameter(
            "max_seqlen_k",
            None,
            kind="int",
            optional=True,
            bounds="cu_seqlens_k",
            summary="no sequence has more keys",
        ),
        Parameter("return_lse", False, feature=True, kind="bool", summary="also return the log-sum-exp of the scores"),
    ),
    outputs=(
        Result("out", ("S", "H", "E"), like="q"),
        Result("lse", ("H", "S"), like="q", dtype="float32", when=("return_lse", True), differentiable=False),
    ),
    saved=(Result("logsumexp", ("H", "S"), like="q", dtype="float32"),),
    kept=("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "sinks", "out"),
    requirements=("G > 0", "H % G == 0", "D > 0"),
    gradient="kernel",
    autocast="cast",
    cases=(
        Case("drawn lengths", dims=_dims(B=4, S=40, T=50, H=2, D=64)),
        Case(
            "drawn lengths, grouped heads, causal",
            dims=_dims(B=5, S=37, T=61, H=4, G=2, D=80),
            parameters={"causal": True, "max_seqlen_q": 37, "max_seqlen_k": 61},
        ),
        Case(
            "one key head for all, causal",
            dims=_dims(B=3, S=51, T=51, H=4, G=1, D=96),
            parameters={"causal": True, "max_seqlen_q": 40, "max_seqlen_k": 40},
            given={"cu_seqlens_q": (0, 1, 18, 51), "cu_seqlens_k": (0, 1, 18, 51)},
        ),
        Case(
            "one key head for many, causal",
            dims=_dims(B=2, S=64, T=138, H=32, G=1, D=128),
            parameters={"causal": True, "max_seqlen_q": 64, "max_seqlen_k": 130},
            given={"cu_seqlens_q": (0, 4, 64), "cu_seqlens_k": (0, 8, 138)},
        ),
        Case(
            "block and one, values narrower than keys",
            dims=_dims(B=2, S=132, T=131, H=1, D=192, E=128),
            parameters={"causal": True},
            given={"cu_seqlens_q": (0, 129, 132), "cu_seqlens_k": (0, 129, 131)},
        ),
        Case(
            "empty sequences",
            dims=_dims(B=4, S=17, T=20, H=2, D=64),
            parameters={"return_lse": True},
            given={"cu_seqlens_q": (0, 0, 5, 5, 17), "cu_seqlens_k": (0, 4, 4, 4, 20)},
        ),
        Case(
            "scale 0, causal",
            dims=_dims(B=3, S=70, T=81, H=4, G=2, D=64),
            parameters={"causal": True, "scale": 0.0},
            given={"cu_seqlens_q": (0, 40, 41, 70), "cu_seqlens_k": (0, 40, 45, 81)},
        ),
        Case(
            "scale below 0, queries without keys, lse",
            dims=_dims(B=3, S=40, T=45, H=2, D=64),
            parameters={"causal": True, "scale": -0.25, "return_lse": True},
            given={"cu_seqlens_q": (0, 20, 23, 40), "cu_seqlens_k": (0, 9, 30, 45)},
        ),
        Case(
            "next to no scale, causal",
            dims=_dims(B=2, S=33, T=33, H=2, D=64),
            parameters={"causal": True, "scale": 1e-30},
            given={"cu_seqlens_q": (0, 3, 33), "cu_seqlens_k": (0, 3, 33)},
        ),
        Case(
            "one query each, scale",
            dims=_dims(B=3, S=3, T=100, H=8, G=2, D=128),
            parameters={"causal": True, "scale": 0.125, "max_seqlen_q": 1, "max_seqlen_k": 59},
            given={"cu_seqlens_q": (0, 1, 2, 3), "cu_seqlens_k": (0, 40, 41, 100)},
        ),
        Case(
            "no tokens",
            dims=_dims(B=2, S=0, T=0, H=2, D=64),
            given={"cu_seqlens_q": (0, 0, 0), "cu_seqlens_k": (0, 0, 0)},
        ),
        Case(
            "no sequences",
            dims=_dims(B=0, S=0, T=0, H=4, G=2, D=64),
            given={"cu_seqlens_q": (0,), "cu_seqlens_k": (0,)},
        ),
        Case(
            "no keys",
            dims=_dims(B=2, S=5, T=0, H=2, D=64),
            parameters={"return_lse": True},
            given={"cu_seqlens_q": (0, 2, 5), "cu_seqlens_k": (0, 0, 0)},
        ),
        Case(
            "window before, causal",
            dims=_dims(B=3, S=60, T=64, H=4, G=2, D=64),
            parameters={"causal": True, "window": (7, -1)},
            given={"cu_seqlens_q": (0, 25, 27, 60), "cu_seqlens_k": (0, 20, 31, 64)},
        ),
        Case(
            "window before, many queries",
            dims=_dims(B=3, S=60, T=14, H=2, D=64),
            parameters={"window": (3, -1)},
            given={"cu_seqlens_q": (0, 25, 27, 60), "cu_seqlens_k": (0, 6, 9, 14)},
        ),
        Case(
            "window on both sides",
            dims=_dims(B=3, S=50, T=44, H=2, D=32),
            parameters={"window": (5, 2), "return_lse": True},
        ),
        Case("softcap", dims=_dims(B=3, S=31, T=43, H=2, D=64), parameters={"scale": 1.0, "softcap": 5.0}),
        Case("ALiBi", dims=_dims(B=3, S=35, T=39, H=4, G=2, D=64), present=("alibi_slopes",)),
        Case(
            "sinks, window, causal",
            dims=_dims(B=4, S=45, T=52, H=8, G=1, D=64),
            parameters={"causal": True, "window": (9, 0), "return_lse": True},
            present=("sinks",),
        ),
        Case(
            "softcap and ALiBi, causal",
            dims=_dims(B=3, S=41, T=70, H=4, G=2, D=128),
            parameters={"causal": True, "softcap": 3.0},
            present=("alibi_slopes",),
        ),
        Case(
            "everything, last dims apart",
            dims=_dims(B=3, S=30, T=48, H=4, G=2, D=64, E=32),
            layouts={"q": "stepped", "k": "transposed", "v": "transposed", "cu_seqlens_k": "stepped"},
            parameters={
                "causal": True,
                "scale": 0.2,
                "window": (11, 4),
                "softcap": 2.0,
                "max_seqlen_q": 30,
                "max_seqlen_k": 48,
                "return_lse": True,
            },
            present=("alibi_slopes", "sinks"),
        ),
        Case(
            "sliced, split, offset",
            dims=_dims(B=3, S=33, T=29, H=4, G=2, D=64),
            layouts={"q": "sliced", "k": "split", "v": "offset"},
            parameters={"causal": True},
        ),
    ),
    host_reads=("cu_seqlens_q", "cu_seqlens_k"),
    # as for attention
    tolerance=Tolerance(forward={"lse.float32": 16.0}, saved={"logsumexp.float32": 16.0}, rule="plain"),
    grid=Grid(
        (
            _row(4, 4096, 32, 8, 128),
            _row(16, 1024, 16, 16, 64),
            _row(64, 256, 32, 8, 128),
            _ragged_row(16, 4096, 32, 8, 128),
            with_features(_row(4, 4096, 32, 8, 128), softcap=50.0),
            with_features(_row(4, 4096, 32, 8, 128), ("sinks",), window=(1023, 0)),
            with_features(_ragged_row(16, 4096, 64, 8, 64), ("sinks",)),
        ),
        _row(2, 16, 2, 2, 64),
        _drawn,
    ),
    cost=cost,
    in_graphs="call",
    source="Dao 2023, FlashAttention-2, arXiv 2307.08691; flash_attn_varlen_func for the form; sources of attention",
)
