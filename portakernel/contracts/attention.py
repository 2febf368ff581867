"""``attention``: scaled dot product attention over a batch of equally long sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from portakernel.contract import Case, Contract, Cost, Draw, Grid, GridRow, Parameter, Result, TensorArgument, Tolerance
from portakernel.contract.production import CONTEXTS, DECODING, ENCODERS, PROMPTS, Production


def visible_pairs(S: int, T: int, *, causal: bool, window: tuple[int, int]) -> int:
    """How many pairs of a query and a key that it sees there are in one sequence of one head."""
    left, right = window[0], 0 if causal else window[1]
    ends = S * T if right < 0 else _ramp(S, T - S + right + 1, T)
    starts = 0 if left < 0 else _ramp(S, T - S - left, T)
    return ends - starts


def visible_keys(S: int, T: int, *, window: tuple[int, int]) -> int:
    """How many keys of one sequence some query sees: the last query stands at the last key."""
    return T if window[0] < 0 else min(T, S + window[0])


def _ramp(count: int, first: int, top: int) -> int:
    """The sum of ``min(max(i, 0), top)`` over ``count`` integers from ``first``."""

    def below(end: int) -> int:
        rising = min(max(end - 1, 0), top)
        return rising * (rising + 1) // 2 + max(end - 1 - top, 0) * top

    return below(first + count) - below(first)


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Every tensor moved once, of keys, values and bias what some query sees; two products for each visible pair."""
    B, S, T, H, G, D, E = (dims[name] for name in "BSTHGDE")
    pairs = B * H * visible_pairs(S, T, causal=values["causal"], window=values["window"])
    keys = B * G * visible_keys(S, T, window=values["window"])
    moved = B * S * H * (D + E) * itemsizes["q"] + keys * (D * itemsizes["k"] + E * itemsizes["v"])
    moved += pairs * itemsizes.get("bias", 0)
    moved += H * (itemsizes.get("alibi_slopes", 0) + itemsizes.get("sinks", 0))
    moved += 4 * B * H * S if values["return_lse"] else 0
    return Cost(bytes=moved, flops=2 * pairs * (D + E))


def _dims(
    *, S: int, H: int, D: int, B: int = 1, T: int | None = None, G: int | None = None, E: int | None = None
) -> dict[str, int]:
    """A case's dimensions: as many keys as queries, key heads as heads and value dims as key dims, unless given."""
    T, G, E = S if T is None else T, H if G is None else G, D if E is None else E
    return {"B": B, "S": S, "T": T, "H": H, "G": G, "D": D, "E": E}


def _row(B: int, S: int, H: int, G: int, D: int, T: int | None = None, *, core: bool = False, **values: Any) -> GridRow:
    keys = S if T is None else T
    length = f"S{S}" if T is None else f"S{S} T{T}"
    name = f"B{B} {length} H{H}/{G} D{D}" + "".join(f" {key}" for key, value in values.items() if value is True)
    return GridRow(name, {"q": (B, S, H, D), "k": (B, keys, G, D), "v": (B, keys, G, D)}, values, core)


def _drawn(production: Production) -> GridRow:
    """A prompt, a step of decoding with dense caches, or an encoder."""
    kind = production.random.random()
    if kind < 0.3:
        model, lengths = production.one_of(ENCODERS)
        batch, length = production.one_of((1, 2, 8, 32)), production.one_of(lengths)
        return _row(batch, length, model.heads, model.key_heads, model.head)
    (H, G), D = production.heads(), production.model.head
    if kind < 0.6:
        step = _row(production.one_of(DECODING), 1, H, G, D, production.one_of(CONTEXTS), causal=True)
        return replace(step, trained=False)
    row = _row(production.one_of((1, 1, 2, 4)), production.one_of(PROMPTS), H, G, D, causal=True)
    return with_features(row, window=(production.one_of((127, 1023, 4095)), 0)) if production.at_times(0.2) else row


def with_features(row: GridRow, tensors: tuple[str, ...] = (), **values: Any) -> GridRow:
    """``row`` with features: ``tensors`` of a number for each head, and keyword arguments."""
    name = " ".join([row.name, *tensors, *(f"{key} {value}".replace(",", "") for key, value in values.items())])
    shapes = {**row.shapes, **dict.fromkeys(tensors, (row.shapes["q"][-2],))}
    return replace(row, name=name, shapes=shapes, values={**row.values, **values})


# What several cases ask for.
_CAUSAL: Mapping[str, Any] = {"causal": True}
_LSE: Mapping[str, Any] = {"return_lse": True}


CONTRACT = Contract(
    op="attention",
    summary="Scaled dot product attention with grouped heads, masks, score modifications and sinks.",
    formula=(
        "softmax(mask(softcap * tanh(scale * q @ k.T / softcap) - alibi_slopes * |i + T - S - j| + bias)) @ v, with"
        " sinks as one more term in the softmax's denominator"
    ),
    notes=(
        "Query head h reads key head h // (H // G). Query i stands at position i + T - S, so that the last query"
        " stands at the last key (bottom right aligned): causal hides keys behind that position, window=(left, right)"
        " keys more than left before or right after it, and ALiBi counts the distance from it; causal and window hold"
        " together. Scores are changed in the order scale, softcap, ALiBi, bias, mask. scale=None is 1/sqrt(D); a scale"
        " may be 0 or less. softcap=0 is off. A bias of -inf masks; it is not broadcast, but"
        " may be expanded, with strides of 0. A sink is the score, after all changes, of a key that every query of its"
        " head sees and whose value is zero; it counts in lse, the natural logarithm of the denominator. A query that"
        " sees no key gives zeros, and lse -inf or its sink. Computed in float32 and rounded once, at the end; kernels"
        " may round the softmax's weights to the inputs' dtype before the product with v, as FlashAttention does."
        " alibi_slopes and lse have no gradient. Forward saves lse. Not guaranteed: equal bits from different kernels;"
        " outputs of a query that sees a NaN or an infinity, or with a scale that is one; that a scale nearer to 0 than"
        " 2**-126 differs from 0; whether a query whose scores are all below -2**126 averages the values or gives"
        " zeros, as if it saw no key, because kernels multiply scores by log2(e); that NaN or infinity in a masked key"
        " or value does not reach queries that do not see it, because 0 * NaN is NaN."
    ),
    tensors=(
        TensorArgument("q", ("B", "S", "H", "D"), ("float32", "float16", "bfloat16")),
        TensorArgument("k", ("B", "T", "G", "D"), ("q",)),
        TensorArgument("v", ("B", "T", "G", "E"), ("q",)),
        TensorArgument("alibi_slopes", ("H",), ("float32",), optional=True, feature=True, keyword=True),
        TensorArgument(
            "bias",
            ("B", "H", "S", "T"),
            ("q", "float32"),
            optional=True,
            feature=True,
            keyword=True,
            draw=Draw("mask"),
        ),
        TensorArgument("sinks", ("H",), ("q", "float32"), optional=True, feature=True, keyword=True),
    ),
    parameters=(
        Parameter("causal", False, kind="bool", summary="hide keys behind the query's position"),
        Parameter("scale", None, optional=True, summary="what q @ k.T is multiplied by; None: 1/sqrt(D)"),
        Parameter("window", (-1, -1), feature=True, kind="window", summary="keys seen before and after the position"),
        Parameter("softcap", 0.0, feature=True, least=0.0, summary="bounds scores smoothly to this magnitude; 0: off"),
        Parameter("return_lse", False, feature=True, kind="bool", summary="also return the log-sum-exp of the scores"),
    ),
    outputs=(
        Result("out", ("B", "S", "H", "E"), like="q"),
        Result("lse", ("B", "H", "S"), like="q", dtype="float32", when=("return_lse", True), differentiable=False),
    ),
    saved=(Result("logsumexp", ("B", "H", "S"), like="q", dtype="float32"),),
    kept=("q", "k", "v", "alibi_slopes", "bias", "sinks", "out"),
    # of a division by zero and of no formula at all: in this order
    requirements=("G > 0", "H % G == 0", "D > 0"),
    gradient="kernel",
    autocast="cast",
    cases=(
        Case("one element", dims=_dims(S=1, H=1, D=1)),
        Case("a key head for each head", dims=_dims(B=2, S=17, H=4, D=64)),
        Case("grouped heads, causal", dims=_dims(B=2, S=33, H=4, G=2, D=80), parameters={"causal": True}),
        Case("one key head for all", dims=_dims(S=17, T=40, H=8, G=1, D=256)),
        Case("one key head for many, causal", dims=_dims(S=64, T=130, H=32, G=1, D=128), parameters={"causal": True}),
        Case("block and one, causal", dims=_dims(S=129, H=1, D=128), parameters={"causal": True}),
        Case("values narrower than keys", dims=_dims(S=33, H=2, D=192, E=128), parameters={"causal": True}),
        Case("odd head dims", dims=_dims(B=2, S=9, T=11, H=2, D=33, E=17)),
        Case("causal, more keys", dims=_dims(S=20, T=50, H=2, G=1, D=96), parameters={"causal": True}),
        Case("causal, queries without keys", dims=_dims(S=50, T=20, H=2, D=64), parameters={**_CAUSAL, **_LSE}),
        Case("scale 0, causal", dims=_dims(B=2, S=70, H=4, G=2, D=64), parameters={"causal": True, "scale": 0.0}),
        Case(
            "scale 0, queries without keys, lse",
            dims=_dims(S=20, T=9, H=2, D=32),
            parameters={**_CAUSAL, **_LSE, "scale": -0.0},
        ),
        Case(
            "scale below 0, causal, lse",
            dims=_dims(B=2, S=70, T=90, H=4, G=2, D=64),
            parameters={"causal": True, "scale": -0.25, "return_lse": True},
        ),
        Case("scale below 0, window", dims=_dims(S=40, H=2, D=64), parameters={"scale": -0.5, "window": (6, 3)}),
        Case("scale below 0, bias", dims=_dims(S=18, T=24, H=2, D=64), parameters={"scale": -1.0}, present=("bias",)),
        Case("next to no scale, causal", dims=_dims(S=33, H=2, D=64), parameters={"causal": True, "scale": 1e-30}),
        Case("one query", dims=_dims(B=3, S=1, T=129, H=8, G=2, D=128), parameters={"causal": True, "scale": 0.125}),
        Case("no keys", dims=_dims(B=2, S=5, T=0, H=2, D=64), parameters={"return_lse": True}),
        Case("no batch, queries without keys", dims=_dims(B=0, S=50, T=20, H=2, D=64), parameters={**_CAUSAL, **_LSE}),
        Case("no queries", dims=_dims(B=2, S=0, T=7, H=4, G=2, D=64)),
        Case("window on both sides", dims=_dims(S=40, H=2, D=64), parameters={"window": (6, 3)}),
        Case("window before, many queries", dims=_dims(S=40, T=9, H=2, D=32), parameters={"window": (3, -1)}),
        Case("window after", dims=_dims(S=20, T=33, H=2, D=32), parameters={"window": (-1, 3)}),
        Case(
            "window before, causal, queries without keys",
            dims=_dims(S=41, T=30, H=4, G=2, D=64),
            parameters={"causal": True, "window": (7, -1)},
        ),
        Case("softcap", dims=_dims(S=19, T=24, H=2, D=64), parameters={"scale": 1.0, "softcap": 5.0}),
        Case("ALiBi", dims=_dims(S=21, T=34, H=4, G=2, D=64), present=("alibi_slopes",)),
        Case("bias", dims=_dims(B=2, S=18, T=23, H=4, G=2, D=64), present=("bias",)),
        Case(
            "bias, one query",
            dims=_dims(B=2, S=1, T=37, H=8, G=2, D=64),
            parameters={"return_lse": True},
            layouts={"bias": "expanded"},
            present=("bias",),
        ),
        Case("bias, one head for all", dims=_dims(S=136, T=150, H=4, G=1, D=32, E=16), present=("bias",)),
        Case(
            "bias shared by the batch, causal",
            dims=_dims(B=2, S=17, H=2, D=32),
            parameters={"causal": True},
            layouts={"bias": "expanded"},
            present=("bias",),
        ),
        Case(
            "sinks, queries without keys",
            dims=_dims(S=30, T=12, H=4, G=2, D=64),
            parameters={"causal": True, "return_lse": True},
            present=("sinks",),
        ),
        Case(
            "sinks, window, causal",
            dims=_dims(B=2, S=35, H=8, G=1, D=64),
            parameters={"causal": True, "window": (9, 0)},
            present=("sinks",),
        ),
        Case(
            "softcap, window, causal",
            dims=_dims(S=65, H=4, G=2, D=64),
            parameters={"causal": True, "window": (16, -1), "softcap": 3.0, "return_lse": True},
        ),
        Case(
            "softcap and ALiBi, causal",
            dims=_dims(S=40, T=70, H=4, G=2, D=128),
            parameters={"causal": True, "softcap": 3.0},
            present=("alibi_slopes",),
        ),
        Case(
            "everything",
            dims=_dims(B=2, S=25, T=31, H=4, G=2, D=64, E=32),
            parameters={"causal": True, "scale": 0.2, "window": (11, 4), "softcap": 2.0, "return_lse": True},
            present=("alibi_slopes", "bias", "sinks"),
        ),
        Case(
            "sliced",
            dims=_dims(B=2, S=17, H=2, D=64),
            layouts={"q": "sliced", "k": "sliced", "v": "sliced"},
            parameters={"causal": True},
        ),
        Case(
            "offset, split, expanded",
            dims=_dims(B=2, S=15, T=22, H=4, G=2, D=64),
            layouts={"q": "offset", "k": "split", "v": "expanded"},
        ),
        Case(
            "last dims apart",
            dims=_dims(S=14, T=20, H=4, G=2, D=64),
            layouts={"q": "stepped", "k": "transposed", "v": "transposed"},
        ),
    ),
    # lse: a product over D in any order, exponentials and a sum over T in any order, one logarithm; all in float32.
    tolerance=Tolerance(forward={"lse.float32": 16.0}, saved={"logsumexp.float32": 16.0}, rule="plain"),
    grid=Grid(
        (
            _row(16, 1024, 16, 16, 64, core=True, causal=True),
            _row(4, 4096, 32, 8, 128, core=True, causal=True),
            _row(1, 16384, 32, 8, 128, core=True, causal=True),
            _row(4, 4096, 32, 8, 128),
            _row(4, 4096, 16, 16, 256, causal=True),
            _row(8, 2048, 32, 4, 96, causal=True),
            _row(16, 1024, 32, 8, 64, causal=True),
            _row(64, 1, 32, 8, 128, 4096, causal=True),
            _row(32, 1, 32, 8, 128, 4096, causal=True),
            _row(1, 1, 32, 8, 128, 32768, causal=True),
            _row(8, 197, 12, 12, 64),
            with_features(_row(4, 4096, 32, 8, 128, causal=True), softcap=50.0),
            with_features(_row(4, 4096, 32, 8, 128, causal=True), ("sinks",)),
            with_features(_row(4, 4096, 32, 8, 128, causal=True), ("alibi_slopes",)),
            with_features(_row(4, 4096, 32, 8, 128, causal=True), window=(1023, 0)),
            with_features(_row(4, 4096, 64, 8, 64, causal=True), ("sinks",), window=(127, 0)),
        ),
        _row(1, 16, 2, 2, 64, causal=True),
        _drawn,
    ),
    cost=cost,
    source=(
        "Dao 2023, FlashAttention-2, arXiv 2307.08691; grouped heads: Ainslie et al. 2023, arXiv 2305.13245; ALiBi:"
        " Press et al. 2021, arXiv 2108.12409; softcap: Gemma 2, arXiv 2408.00118; window: Mistral 7B, arXiv"
        " 2310.06825; sinks: gpt-oss model card, arXiv 2508.10925"
    ),
)
