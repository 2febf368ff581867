"""``write_latent_cache``: the latent vectors and rotary keys of new tokens, put into the pages of a cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Draw, Grid, GridRow, TensorArgument, Tolerance
from portakernel.contract.case import Layout
from portakernel.contracts.write_kv_cache import FLOATS, ROUNDED, cache_of, kv_scales, slots_of


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Each number read once and written once, and slots read; a rounding each, and a division where scaled."""
    tokens = dims["T"]
    moved = dims["C"] * (itemsizes["latent"] + itemsizes["latent_cache"])
    moved += dims["R"] * (itemsizes["rope"] + itemsizes["rope_cache"]) + itemsizes["slot_mapping"]
    scaled = values["kv_scales"] == "tensor"
    return Cost(bytes=tokens * moved + 4 * scaled, flops=tokens * (dims["C"] + dims["R"]) * (1 + scaled))


def _case(
    name: str,
    sizes: tuple[int, int, int],
    pages: tuple[int, int],
    kv_scales: str = "none",
    *,
    layouts: Mapping[str, Layout] | None = None,
    values: Any = "normal",
    slots: tuple[int, ...] | None = None,
) -> Case:
    """A case with sizes ``T, C, R`` and so many pages of so many tokens."""
    return Case(
        name,
        dims=dict(zip(("T", "C", "R", "NP", "P"), (*sizes, *pages), strict=True)),
        layouts=layouts or {},
        parameters={"kv_scales": kv_scales} if kv_scales != "none" else {},
        values=values,
        backward=False,
        present=() if kv_scales == "none" else ("scale",),
        given={} if slots is None else {"slot_mapping": slots},
    )


def _row(tokens: int, latent: int, rope: int, pages: int, page: int, *, core: bool = False) -> GridRow:
    shapes = {"latent": (tokens, latent), "rope": (tokens, rope), "slot_mapping": (tokens,)}
    shapes |= {"latent_cache": (pages, page, latent), "rope_cache": (pages, page, rope)}
    return GridRow(f"{tokens} tokens C{latent} R{rope} P{page}", shapes, core=core)


CONTRACT = Contract(
    op="write_latent_cache",
    summary="Latent vectors and rotary keys of new tokens (MLA), put into the pages of a cache.",
    formula="latent_cache[slot // P, slot % P] = latent[t] / scale, where slot = slot_mapping[t] is not -1; rope alike",
    notes=(
        "latent: (T, C) and rope: (T, R), what multi-head latent attention keeps of a token, any strides;"
        " latent_cache: (NP, P, C) and rope_cache: (NP, P, R), any strides, mostly views of one joined tensor"
        " (NP, P, C+R): cache[..., :C] and cache[..., C:]. Slots, dtypes and rounding are those of write_kv_cache."
        " kv_scales='tensor' is for float8 caches alone, wants scale, (), and stores x / scale of both, a division in"
        " float32. Written tensors lie apart from all others, element by element. Not guaranteed: what write_kv_cache"
        " does not guarantee. vLLM's concat_and_cache_mla takes the joined cache, DeepSeek's layout with C 512, R 64."
    ),
    tensors=(
        TensorArgument("latent", ("T", "C"), FLOATS),
        TensorArgument("rope", ("T", "R"), ("latent",)),
        cache_of("latent_cache", ("NP", "P", "C"), "latent", ("tensor",)),
        TensorArgument("rope_cache", ("NP", "P", "R"), ("latent_cache",), mutated=True),
        slots_of("T", "NP*P"),
        TensorArgument("scale", (), ("float32",), optional=True, feature=True, keyword=True, draw=Draw("scale")),
    ),
    parameters=(kv_scales(("tensor",)),),
    outputs=(),
    requirements=("P >= 1", "C >= 1", "R >= 1"),
    cases=(
        _case("one element", (1, 1, 1), (1, 1)),
        _case("one token", (1, 512, 64), (2, 16), slots=(21,)),
        _case("DeepSeek's sizes", (9, 512, 64), (2, 16)),
        _case("odd sizes", (7, 33, 17), (3, 7)),
        _case("pages of one token", (9, 64, 16), (12, 1)),
        _case("rope wider than latent", (6, 16, 80), (3, 7)),
        _case("many tokens", (131, 32, 16), (20, 16)),
        _case("first and last slot", (4, 32, 8), (3, 7), slots=(20, -1, 0, 19)),
        _case("nothing to write", (3, 16, 8), (2, 4), slots=(-1, -1, -1)),
        _case("no tokens", (0, 16, 8), (2, 4)),
        _case("no pages", (2, 16, 8), (0, 4)),
        _case("a scale", (9, 64, 48), (3, 7), "tensor"),
        _case("a scale, odd sizes", (10, 33, 129), (2, 16), "tensor"),
        _case("slices", (6, 40, 24), (3, 7), layouts={"latent": "sliced", "rope": "sliced"}),
        _case("every second element", (6, 40, 24), (3, 7), layouts={"latent": "stepped", "rope": "transposed"}),
        _case("one row for all", (6, 40, 24), (3, 7), layouts={"latent": "expanded", "rope": "offset"}),
        _case("stepped slots", (9, 16, 8), (3, 7), layouts={"slot_mapping": "stepped"}),
        _case("sliced caches", (6, 40, 24), (3, 7), layouts={"latent_cache": "sliced", "rope_cache": "sliced"}),
        _case("strided caches", (6, 40, 24), (3, 7), layouts={"latent_cache": "transposed", "rope_cache": "stepped"}),
        _case("caches with gaps", (6, 40, 24), (3, 7), layouts={"latent_cache": "split", "rope_cache": "offset"}),
        _case(
            "a scale, strides",
            (6, 40, 24),
            (3, 7),
            "tensor",
            layouts={"latent": "stepped", "latent_cache": "sliced", "rope_cache": "transposed"},
        ),
        _case("large magnitudes", (7, 48, 16), (3, 7), values="large"),
        _case("large magnitudes, a scale", (7, 48, 16), (3, 7), "tensor", values="large"),
        _case("tiny magnitudes, a scale", (7, 48, 16), (3, 7), "tensor", values="tiny"),
        _case("NaN and infinities", (12, 40, 40), (3, 7), values="special"),
        _case("NaN and infinities, a scale", (12, 40, 40), (3, 7), "tensor", values="special"),
        _case("zeros", (5, 32, 16), (3, 7), values="zeros"),
    ),
    tolerance=Tolerance(forward=ROUNDED),
    grid=Grid(
        (
            _row(8192, 512, 64, 512, 64, core=True),
            _row(64, 512, 64, 512, 64),
            _row(1, 512, 64, 512, 64),
        ),
        _row(4, 64, 16, 4, 16),
        lambda production: _row(tokens := production.tokens(), 512, 64, -(-tokens // 64) + 64, 64),
    ),
    cost=cost,
    source=(
        "DeepSeek-AI 2024, DeepSeek-V2, arXiv 2405.04434, 2.1.2 and 2.1.3; vLLM, concat_and_cache_mla; OCP 8-bit"
        " Floating Point Specification 1.0"
    ),
)
