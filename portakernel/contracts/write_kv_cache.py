"""``write_kv_cache``: the keys and values of new tokens, put into the pages of a cache."""

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
    TensorArgument,
    Tolerance,
)
from portakernel.contract.case import Layout
from portakernel.contract.parts import Shape
from portakernel.contract.production import Production
from portakernel.contract.value_rules import Slots

FLOATS = ("float32", "float16", "bfloat16")
# What a cache may be narrower in; float8_e5m2fnuz is nobody's cache.
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2")
# A cache's elements are rounded copies, exact in the dtype of what is written; a quotient in float32 may tip a tie, and
# so may a scale that is off as far as it may be (as in quantize_fp8).
ROUNDED = {**dict.fromkeys(FLOATS, 0.0), **dict.fromkeys(FLOAT8, 0.50001)}


def slots_of(tokens: str, below: str) -> TensorArgument:
    """The argument that says where each token goes."""
    draw, rule = Draw("slots", below=below), Slots(below)
    return TensorArgument("slot_mapping", (tokens,), ("int64", "int32"), draw=draw, rule=rule)


def cache_of(name: str, shape: Shape, like: str, others: tuple[str, ...]) -> TensorArgument:
    """A cache in the dtype of ``like`` or narrower; in float8 alone where there are scales of one of these kinds."""
    dtypes = {"none": (like, *FLOAT8), **dict.fromkeys(others, FLOAT8)}
    return TensorArgument(name, shape, Choice("kv_scales", dtypes), mutated=True)


def kv_scales(kinds: tuple[str, ...]) -> Parameter:
    """What shares a scale: a feature, whose default scales nothing."""
    return Parameter(
        "kv_scales", "none", feature=True, kind="text", choices=("none", *kinds), summary="which numbers share a scale"
    )


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Keys and values read once and written once, and slots read; a rounding each, and what scales do."""
    tokens, heads = dims["T"], dims["G"]
    moved = heads * dims["D"] * (itemsizes["key"] + itemsizes["key_cache"])
    moved += heads * dims["E"] * (itemsizes["value"] + itemsizes["value_cache"]) + itemsizes["slot_mapping"]
    elements = tokens * heads * (dims["D"] + dims["E"])
    kind = values["kv_scales"]
    shared = {"tensor": 8, "head": 8 * heads, "token_head": 8 * heads * tokens}.get(kind, 0)
    # a division, and where scales are computed a comparison before it
    return Cost(bytes=tokens * moved + shared, flops={"none": 1, "token_head": 3}.get(kind, 2) * elements)


def _case(
    name: str,
    sizes: tuple[int, int, int, int],
    pages: tuple[int, int],
    kv_scales: str = "none",
    *,
    layouts: Mapping[str, Layout] | None = None,
    values: Any = "normal",
    slots: tuple[int, ...] | None = None,
) -> Case:
    """A case with sizes ``T, G, D, E`` and so many pages of so many tokens."""
    present = {"tensor": ("k_scale", "v_scale"), "head": ("k_scale", "v_scale")}
    present["token_head"] = ("key_scales", "value_scales")
    return Case(
        name,
        dims=dict(zip(("T", "G", "D", "E", "NP", "P"), (*sizes, *pages), strict=True)),
        layouts=layouts or {},
        parameters={"kv_scales": kv_scales} if kv_scales != "none" else {},
        values=values,
        backward=False,
        present=present.get(kv_scales, ()),
        given={} if slots is None else {"slot_mapping": slots},
    )


def _row(name: str, tokens: int, heads: int, size: int, pages: int, page: int, *, core: bool = False) -> GridRow:
    rows, cache = (tokens, heads, size), (pages, page, heads, size)
    shapes = {"key": rows, "value": rows, "key_cache": cache, "value_cache": cache, "slot_mapping": (tokens,)}
    return GridRow(name, shapes, core=core)


def _drawn(production: Production) -> GridRow:
    tokens, heads, size, page = production.tokens(), production.heads()[1], production.model.head, 16
    name = f"{tokens} tokens H{heads} D{size} P{page}"
    return _row(name, tokens, heads, size, -(-tokens // page) + 256, page)


CONTRACT = Contract(
    op="write_kv_cache",
    summary="Keys and values of new tokens, put into the pages of a cache.",
    formula="key_cache[slot // P, slot % P] = key[t] / k_scale, where slot = slot_mapping[t] is not -1; values alike",
    notes=(
        "key: (T, G, D) and value: (T, G, E), any strides, such as slices of one qkv; key_cache: (NP, P, G, D) and"
        " value_cache: (NP, P, G, E), any strides, which say how pages lie (heads before tokens, both caches in one"
        " tensor); slot_mapping: (T,). A negative slot is a token that is not written; all else in the caches keeps its"
        " bytes. A cache in the dtype of key has copies of its bits; in float8, numbers are rounded once to nearest,"
        " ties to even, and what is beyond the largest number (448, 240 for float8_e4m3fnuz, 57344 for float8_e5m2),"
        " infinities too, becomes that; NaN stays NaN. kv_scales is for float8 caches alone. 'tensor' and 'head' want"
        " k_scale and v_scale, () or (G,), and store x / scale, a division in float32; 'token_head' wants key_scales"
        " and value_scales, (NP, P, G), and writes them: amax(abs(x)) / max(dtype) of each token's head as quantize_fp8"
        " computes it, 1 where that is below 2**-100, NaN where the head has a NaN or an infinity. Scales multiply on"
        " reading. Scales that kv_scales does not ask for, or that are missing, are refused (ArgumentValueError)."
        " Written tensors lie apart from all others, element by element. Not guaranteed: what is in a slot that several"
        " tokens have, but that each element is one of theirs; anything for slots from NP*P up (on the CPU the"
        " reference raises IndexOutOfRangeError). PORTAKERNEL_CHECKS=1 refuses both, and negative slots but -1. Nor are"
        " the bits of a float8 NaN guaranteed, nor the sign of a float8 zero. vLLM's reshape_and_cache_flash has the"
        " same order, and may have a longer key: slice it."
    ),
    tensors=(
        TensorArgument("key", ("T", "G", "D"), FLOATS),
        TensorArgument("value", ("T", "G", "E"), ("key",)),
        cache_of("key_cache", ("NP", "P", "G", "D"), "key", ("tensor", "head", "token_head")),
        TensorArgument("value_cache", ("NP", "P", "G", "E"), ("key_cache",), mutated=True),
        slots_of("T", "NP*P"),
        *(
            TensorArgument(
                name,
                Choice("kv_scales", {"none": (), "tensor": (), "head": ("G",), "token_head": ()}),
                ("float32",),
                optional=True,
                feature=True,
                keyword=True,
                draw=Draw("scale"),
            )
            for name in ("k_scale", "v_scale")
        ),
        *(
            TensorArgument(
                name, ("NP", "P", "G"), ("float32",), optional=True, feature=True, keyword=True, mutated=True
            )
            for name in ("key_scales", "value_scales")
        ),
    ),
    parameters=(kv_scales(("tensor", "head", "token_head")),),
    outputs=(),
    requirements=("P >= 1", "G >= 1", "D >= 1", "E >= 1"),
    cases=(
        _case("one element", (1, 1, 1, 1), (1, 1)),
        _case("one token", (1, 8, 64, 64), (3, 16), slots=(37,)),
        _case("whole blocks", (32, 4, 32, 32), (5, 16)),
        _case("odd sizes", (7, 3, 33, 17), (5, 7)),
        _case("pages of one token", (9, 2, 40, 40), (12, 1)),
        _case("keys wider than values", (10, 2, 96, 64), (4, 7)),
        _case("values wider than keys", (6, 5, 16, 80), (3, 16)),
        _case("many tokens", (131, 3, 24, 24), (20, 16)),
        _case("many heads", (3, 70, 8, 8), (2, 7)),
        _case("long heads", (3, 2, 576, 512), (2, 4)),
        _case("more tokens than slots", (9, 2, 16, 16), (1, 4)),
        _case("first and last slot", (4, 2, 32, 32), (3, 7), slots=(20, -1, 0, 19)),
        _case("nothing to write", (3, 2, 16, 16), (2, 4), slots=(-1, -1, -1)),
        _case("no tokens", (0, 2, 16, 16), (2, 4)),
        _case("no tokens, scales", (0, 2, 16, 16), (2, 4), "token_head"),
        _case("no pages", (2, 2, 16, 16), (0, 4)),
        _case("a scale", (9, 3, 33, 17), (3, 7), "tensor"),
        _case("a scale, one token", (1, 4, 64, 64), (1, 16), "tensor"),
        _case("a scale of each head", (10, 5, 48, 40), (2, 16), "head"),
        _case("a scale of each head, many tokens", (70, 2, 16, 32), (80, 1), "head"),
        _case("scales computed", (9, 3, 64, 48), (2, 16), "token_head"),
        _case("scales computed, odd sizes", (6, 3, 33, 129), (4, 7), "token_head"),
        _case("scales computed, some skipped", (5, 2, 32, 32), (7, 1), "token_head", slots=(6, -1, 0, -1, 3)),
        _case("expanded rows", (5, 2, 32, 32), (3, 7), layouts={"key": "expanded", "value": "expanded"}),
        _case("slices", (6, 2, 40, 40), (3, 7), layouts={"key": "sliced", "value": "sliced"}),
        _case("every second element", (6, 2, 20, 36), (3, 7), layouts={"key": "stepped", "value": "stepped"}),
        _case("transposed rows", (6, 3, 20, 36), (3, 7), layouts={"key": "transposed", "value": "transposed"}),
        _case("heads with two strides", (6, 3, 32, 32), (3, 7), layouts={"key": "split", "value": "split"}),
        _case("odd addresses", (5, 2, 64, 64), (2, 16), layouts={"key": "offset", "value_cache": "offset"}),
        _case("stepped slots", (9, 2, 16, 16), (3, 7), layouts={"slot_mapping": "stepped"}),
        _case("sliced caches", (6, 2, 40, 40), (3, 7), layouts={"key_cache": "sliced", "value_cache": "sliced"}),
        _case("stepped caches", (6, 2, 20, 36), (3, 7), layouts={"key_cache": "stepped", "value_cache": "stepped"}),
        _case("transposed caches", (6, 3, 20, 36), (3, 7), layouts={"key_cache": "transposed", "value": "stepped"}),
        _case("caches with gaps", (6, 3, 20, 36), (3, 7), layouts={"key_cache": "split", "value_cache": "split"}),
        _case(
            "a scale, strides",
            (6, 3, 20, 36),
            (3, 7),
            "tensor",
            layouts={"key": "sliced", "value": "transposed", "key_cache": "stepped", "value_cache": "sliced"},
        ),
        _case(
            "a scale of each head, strides",
            (6, 3, 20, 36),
            (3, 7),
            "head",
            layouts={"k_scale": "stepped", "v_scale": "expanded", "value": "stepped", "key_cache": "split"},
        ),
        _case(
            "scales computed, strides",
            (6, 3, 20, 36),
            (3, 7),
            "token_head",
            layouts={
                "key_scales": "transposed",
                "value_scales": "stepped",
                "key": "stepped",
                "key_cache": "transposed",
            },
        ),
        _case("large magnitudes", (7, 2, 48, 48), (3, 7), values="large"),
        _case("large magnitudes, a scale", (7, 2, 48, 48), (3, 7), "tensor", values="large"),
        _case("large magnitudes, scales computed", (7, 2, 48, 48), (3, 7), "token_head", values="large"),
        _case("tiny magnitudes", (7, 2, 48, 48), (3, 7), values="tiny"),
        _case("tiny magnitudes, a scale of each head", (7, 2, 48, 48), (3, 7), "head", values="tiny"),
        _case("tiny magnitudes, scales computed", (7, 2, 48, 48), (3, 7), "token_head", values="tiny"),
        _case("NaN and infinities", (8, 3, 40, 40), (3, 7), values="special"),
        _case("NaN and infinities, a scale of each head", (8, 6, 40, 40), (3, 7), "head", values="special"),
        _case("NaN and infinities, scales computed", (8, 3, 40, 40), (3, 7), "token_head", values="special"),
        _case("zeros", (5, 2, 32, 32), (3, 7), values="zeros"),
        _case("zeros, scales computed", (5, 2, 32, 32), (3, 7), "token_head", values="zeros"),
    ),
    # key_scales and value_scales: half a unit for a division as IEEE 754 has it; others allow 2.5.
    tolerance=Tolerance(forward={**ROUNDED, "key_scales.float32": 2.5, "value_scales.float32": 2.5}),
    grid=Grid(
        (
            _row("8192 tokens H8 D128 P16", 8192, 8, 128, 2048, 16, core=True),
            _row("64 tokens H8 D128 P16", 64, 8, 128, 2048, 16),
            _row("1 token H8 D128 P16", 1, 8, 128, 2048, 16),
            _row("2048 tokens H32 D64 P64", 2048, 32, 64, 256, 64),
        ),
        _row("4 tokens H2 D64 P16", 4, 2, 64, 4, 16),
        _drawn,
    ),
    cost=cost,
    source=(
        "Kwon et al. 2023, Efficient Memory Management for Large Language Model Serving with PagedAttention, arXiv"
        " 2309.06180, 4.3; vLLM, reshape_and_cache_flash; OCP 8-bit Floating Point Specification 1.0"
    ),
)
