"""``moe_sort``: tokens of a mixture of experts in the order of their experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portakernel.contract import Case, Contract, Cost, Draw, Grid, GridRow, Parameter, Result, TensorArgument, Tolerance
from portakernel.contract.parameter import LARGEST
from portakernel.contract.production import MIXTURES, Production
from portakernel.contract.value_rules import Experts

_PADDED = ("block", range(1, LARGEST))


def cost(dims: Mapping[str, int], itemsizes: Mapping[str, int], values: Mapping[str, Any]) -> Cost:
    """Experts read once, places written once; a comparison each."""
    assignments, places = dims["T"] * dims["K"], values["capacity"]
    blocks = -(-places // values["block"]) + 1 if values["block"] else 0
    moved = assignments * (itemsizes["experts"] + 4) + 4 * (places + values["num_experts"] + 1 + blocks)
    return Cost(bytes=moved, flops=assignments)


def room(assignments: int, experts: int, block: int) -> int:
    """The least ``capacity`` of so many assignments: room for the blocks of any."""
    return assignments + min(experts, assignments) * max(block - 1, 0)


def _case(name: str, T: int, K: int, experts: int, *, block: int = 0, more: int = 0, **how: Any) -> Case:
    values = {"num_experts": experts, "capacity": room(T * K, experts, block) + more}
    return Case(name, dims={"T": T, "K": K}, parameters=values | ({"block": block} if block else {}), **how)


def _row(tokens: int, experts: int, k: int, block: int = 0, *, core: bool = False) -> GridRow:
    values = {"num_experts": experts, "capacity": room(tokens * k, experts, block)}
    values |= {"block": block} if block else {}
    padded = f" blocks of {block}" if block else ""
    return GridRow(f"{tokens} tokens E{experts} k{k}{padded}", {"experts": (tokens, k)}, values, core)


def _drawn(production: Production) -> GridRow:
    """What a router of a model has chosen."""
    _, _, _, experts, k = production.one_of(MIXTURES)
    return _row(production.tokens(), experts, k, production.one_of((0, 0, 16, 64, 128)))


CONTRACT = Contract(
    op="moe_sort",
    summary="The assignments of tokens to experts, sorted by expert, and where each expert's begin.",
    formula=(
        "order = argsort(experts.flatten(), stable=True); offsets[e] = the number of assignments to experts below e;"
        " order[inverse[t, j]] = t * K + j"
    ),
    notes=(
        "experts: (T, K), the K experts of each token, as moe_route gives them; assignment t * K + j is that of token t"
        " to experts[t, j], and order // K are tokens. order: (capacity,), offsets: (num_experts+1,), inverse: (T, K),"
        " all int32. order[offsets[e]:offsets[e + 1]] are the assignments to expert e, ascending; inverse is where each"
        " assignment stands in order. An expert of -1 is on another device: its assignments are left out, and their"
        " inverse is -1. What of order holds no assignment is T * K. With block > 0 the places of each expert are"
        " padded to a multiple of it, so that no block of order has two experts' assignments; block_experts: (capacity"
        " / block rounded up,) has the expert of each block, -1 behind the last one, and total: (1,) is"
        " offsets[num_experts]: as vLLM's moe_align_block_size has them, of which order is sorted_token_ids and total"
        " num_tokens_post_pad. capacity, the size of order, has to be enough for whatever experts there are, T * K +"
        " min(num_experts, T * K) * (block - 1) with blocks: shapes never depend on the experts, and a captured graph"
        " sorts others. T * K and capacity are 2**30 at most, for kernels that number assignments in 32 bits. A row may"
        " have an expert twice. Equal bits from all kernels: there is one result. Not guaranteed: any result for"
        " experts below -1 or from num_experts on (refused with PORTAKERNEL_CHECKS=1); kernels of portakernel's leave"
        " them out, as -1."
    ),
    tensors=(
        TensorArgument(
            "experts",
            ("T", "K"),
            ("int32", "int64"),
            draw=Draw("experts", below="$num_experts", absent=True),
            rule=Experts("$num_experts", absent=True),
        ),
    ),
    parameters=(
        Parameter(
            "num_experts", None, kind="int", least=1, usual=(8, 1, 60, 128, 256), summary="experts, from 0 to below it"
        ),
        Parameter(
            "capacity", None, kind="int", least=0, usual=(16384, 65536), summary="the size of order, T * K or more"
        ),
        Parameter(
            "block",
            0,
            feature=True,
            kind="int",
            least=0,
            usual=(0, 1, 16, 48, 64),
            summary="places of an expert are a multiple of it; 0: as many as assignments",
        ),
    ),
    outputs=(
        Result("order", ("$capacity",), like="experts", dtype="int32", differentiable=False),
        Result("offsets", ("$num_experts+1",), like="experts", dtype="int32", differentiable=False),
        Result("inverse", ("T", "K"), like="experts", dtype="int32", differentiable=False),
        Result(
            "block_experts", ("$capacity/$block",), like="experts", dtype="int32", when=_PADDED, differentiable=False
        ),
        Result("total", ("1",), like="experts", dtype="int32", when=_PADDED, differentiable=False),
    ),
    requirements=(
        "$capacity >= T * K",
        "T * K <= 1073741824",
        "$capacity <= 1073741824",
        "$block == 0 or $capacity >= T * K * $block or $capacity >= T * K + $num_experts * ($block - 1)",
    ),
    cases=(
        _case("one assignment", 1, 1, 1),
        _case("a few tokens", 5, 2, 4),
        _case("Mixtral", 33, 2, 8),
        _case("256 experts", 97, 8, 256),
        _case("more assignments than a block", 700, 8, 60),
        _case("one token", 1, 8, 128),
        _case("one expert has all", 40, 1, 16, given={"experts": (11,) * 40}),
        _case("the last expert has all", 40, 1, 16, block=16, given={"experts": (15,) * 40}),
        _case("no assignment is here", 9, 2, 16, given={"experts": (-1,) * 18}),
        _case("none is here, blocks", 9, 2, 16, block=16, given={"experts": (-1,) * 18}),
        _case("an expert twice in a row", 3, 2, 4, block=4, given={"experts": (1, 1, 3, -1, 0, 0)}),
        _case("room for more", 20, 4, 16, more=37),
        _case("blocks of 16", 33, 8, 64, block=16),
        _case("blocks of 64, 8 experts", 50, 2, 8, block=64),
        _case("blocks of 48, room for more", 50, 6, 60, block=48, more=31),
        _case("blocks of one", 19, 3, 12, block=1),
        _case("blocks, fewer assignments than experts", 2, 4, 256, block=16),
        _case("no tokens", 0, 4, 8),
        _case("no tokens, blocks, room", 0, 4, 8, block=16, more=40),
        _case("no choices", 7, 0, 8, block=8),
        _case("transposed", 20, 6, 24, layouts={"experts": "transposed"}),
        _case("sliced", 20, 6, 24, block=16, layouts={"experts": "sliced"}),
        _case("every second column", 20, 6, 24, layouts={"experts": "stepped"}),
        _case("one row for all", 20, 6, 24, layouts={"experts": "expanded"}),
        _case("offset by one", 21, 5, 24, layouts={"experts": "offset"}),
    ),
    tolerance=Tolerance(),
    grid=Grid(
        (
            _row(4096, 256, 8, core=True),
            _row(64, 256, 8, core=True),
            _row(4096, 256, 8, 64),
            _row(64, 256, 8, 16),
            _row(8192, 128, 8),
            _row(8192, 8, 2),
            _row(16384, 384, 8),
        ),
        _row(4, 8, 2),
        _drawn,
    ),
    cost=cost,
    in_graphs="inline",
    source="vLLM's moe_align_block_size for blocks; Gale et al. 2022, MegaBlocks, arXiv 2211.15841, 4 (sorted rows)",
)
