"""``int4_mm``'s and ``pack_int4``'s references against words taken apart by hand, and packing there and back."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import portakernel
from portakernel import ops
from portakernel.calling.value_checks import explained, explains
from portakernel.contracts import contract
from portakernel.contracts.int4_mm import GROUPS, ZEROS
from portakernel.deciding.asking import ask
from portakernel.errors import ArgumentTypeError, ArgumentValueError, IndexOutOfRangeError
from portakernel.references import int4_mm, pack_int4
from portakernel.words.int4_layouts import INT4_LAYOUTS, PACKED
from portakernel.words.target import Target

CHECKPOINTS = tuple(name for name in INT4_LAYOUTS if name not in PACKED)


def nibble(word: int, place: int) -> int:
    return (word >> (4 * place)) & 15


def place_of(layout: str, n: int, k: int) -> tuple[tuple[int, ...], int]:
    """Where an element is, as the contract's notes say it: the word's index, and which nibble."""
    match layout:
        case "gptq":
            return (k // 8, n), k % 8
        case "awq":
            return (k, n // 8), (0, 4, 1, 5, 2, 6, 3, 7)[n % 8]
        case "ct":
            return (n, k // 8), k % 8
    block, fourth, pair, half = k // 128, k % 128 // 32, k % 32 // 2, k % 2
    if layout == "packed_mma":
        t, c = divmod(pair, 4)
        return (block, n, 4 * c + t), fourth + 4 * half
    t, rest = divmod(pair, 8)
    return (block, n, 4 * (rest // 2) + 2 * t + rest % 2), fourth + 4 * half


def zero_of(layout: str, zeros: Tensor, g: int, n: int) -> int:
    match layout:
        case "gptq":
            return nibble(int(zeros[g, n // 8]), n % 8)
        case "awq":
            return nibble(int(zeros[g, n // 8]), (0, 4, 1, 5, 2, 6, 3, 7)[n % 8])
        case "ct":
            return nibble(int(zeros[n // 8, g]), n % 8)
    return int(zeros[g, n])


def words(*shape: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-(1 << 31), 1 << 31, shape, generator=source).int()


def checkpoint(
    layout: str, across: int, columns: int, groups: int, *, dtype: torch.dtype = torch.float16, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """A weight, its scales and zeros, in a layout of checkpoints or a packed one."""
    source = torch.Generator().manual_seed(seed)
    scales = (torch.rand(groups, across, generator=source) + 0.5).to(dtype)
    match layout:
        case "gptq":
            return words(columns // 8, across, seed=seed), scales, words(groups, across // 8, seed=seed + 1)
        case "awq":
            return words(columns, across // 8, seed=seed), scales, words(groups, across // 8, seed=seed + 1)
        case "ct":
            return (
                words(across, columns // 8, seed=seed),
                scales.t().contiguous(),
                words(across // 8, groups, seed=seed + 1),
            )
    packed = words(math.ceil(columns / 128), across, 16, seed=seed)
    return packed, scales, torch.randint(16, (groups, across), generator=source, dtype=torch.uint8)


def size_of(group: int, columns: int) -> int:
    return group if group > 0 else columns


@pytest.mark.parametrize("layout", tuple(INT4_LAYOUTS))
@pytest.mark.parametrize("zero", ZEROS)
def test_an_element_is_where_the_contract_says(layout, zero):
    across, columns = 16, 136
    weight, scales, zeros = checkpoint(layout, across, columns, 3)
    x = torch.eye(columns, dtype=torch.float64)
    found = int4_mm.forward(x, weight, scales, zeros, layout=layout, group=64, zero=zero)
    for n, k in itertools.product(range(across), range(columns)):
        at, place = place_of(layout, n, k)
        z = zero_of(layout, zeros, k // 64, n) + (zero == "stored_plus_one") if zero != "none" else 8
        scale = float(scales[n, k // 64] if layout == "ct" else scales[k // 64, n])
        assert float(found[k, n]) == (nibble(int(weight[at]), place) - z) * scale


def test_a_group_of_each_column_picks_its_scale():
    weight, scales, _ = checkpoint("gptq", 8, 32, 3)
    order = torch.randint(3, (32,), generator=torch.Generator().manual_seed(1)).int()
    found = int4_mm.forward(torch.eye(32).double(), weight, scales, None, order, layout="gptq", group=0)
    flat = int4_mm.forward(torch.eye(32).double(), weight, torch.ones(1, 8), layout="gptq", group=-1)
    torch.testing.assert_close(found, flat * scales.double()[order.long()])


def test_scales_of_float16_keep_all_their_digits_beside_bfloat16():
    weight, _, zeros = checkpoint("packed_mma", 8, 128, 1)
    scales = torch.full((1, 8), 1 + 2**-10, dtype=torch.float16)  # which is 1 in bfloat16
    x = torch.zeros(1, 128, dtype=torch.bfloat16)
    x[0, 5] = 1.0
    w, _ = int4_mm.dequantised(weight, scales, zeros, None, columns=128, layout="packed_mma", group=128, zero="stored")
    assert bool((w[5] % (1 + 2**-10) == 0).all())
    assert bool((w[5] != 0).any())


def packed(*given: Any, **how: Any) -> tuple[Tensor, ...]:
    return pack_int4.forward(*given, **how)


def order_of(columns: int, group: int, *, shuffled: bool, groups: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(columns + group)
    ids = (
        torch.arange(columns) // size_of(group, columns)
        if group
        else torch.randint(groups, (columns,), generator=source).sort().values
    )
    return (ids[torch.randperm(columns, generator=source)] if shuffled else ids).int()


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("layout", CHECKPOINTS)
@pytest.mark.parametrize("target", tuple(INT4_LAYOUTS))
def test_packing_goes_there_and_back_bit_for_bit(layout, target, zero, group, shuffled):
    across, columns = 16, 200
    groups = 5 if group == 0 else math.ceil(columns / size_of(group, columns))
    weight, scales, zeros = checkpoint(layout, across, columns, groups)
    order = order_of(columns, group, shuffled=shuffled, groups=groups)
    given = (weight, scales, order) if zero == "none" else (weight, scales, order, zeros)
    how = {"group": group, "zero": zero}
    there = packed(*given, source=layout, target=target, **how)
    back = packed(*there, source=target, target=layout, **how)
    assert len(back) == len(given)
    for found, want in zip(back, given, strict=True):
        assert found.dtype is want.dtype
        assert torch.equal(found, want)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("layout", PACKED)
@pytest.mark.parametrize("target", tuple(INT4_LAYOUTS))
def test_packed_weights_go_there_and_back_bit_for_bit(layout, target, zero, group, shuffled):
    across, columns = 16, 200
    groups = 5 if group == 0 else math.ceil(columns / size_of(group, columns))
    weight, scales, zeros = checkpoint(layout, across, columns, groups)
    weight[-1, :, :] = 0  # what pads K, and more
    source = torch.Generator().manual_seed(columns)
    ids = order_of(columns, group, shuffled=False, groups=groups)
    places = torch.randperm(columns, generator=source) if shuffled else torch.arange(columns)
    for g in range(groups):  # columns of a group are kept in their order
        places[ids == g] = places[ids == g].sort().values
    order = torch.stack([places.int(), ids]) if group == 0 else places.int()
    given = (weight, scales, order) if zero == "none" else (weight, scales, order, zeros)
    how = {"group": group, "zero": zero}
    there = packed(*given, source=layout, target=target, **how)
    back = packed(*there, source=target, target=layout, **how)
    for found, want in zip(back, given, strict=True):
        assert found.dtype is want.dtype
        assert torch.equal(found, want)


@pytest.mark.parametrize(("source", "target"), tuple(itertools.permutations(INT4_LAYOUTS, 2)))
def test_every_layout_gives_the_same_product(source, target):
    across, columns = 16, 264
    weight, scales, zeros = checkpoint(source, across, columns, 3)
    # columns of a packed layout stand in the order of their groups
    order = torch.randperm(columns).int() if source in PACKED else order_of(columns, 128, shuffled=True)
    x = torch.randn(3, columns, dtype=torch.float64)
    want = int4_mm.forward(x, weight, scales, zeros, order, layout=source)
    w, s, o, z = packed(weight, scales, order, zeros, source=source, target=target)
    torch.testing.assert_close(int4_mm.forward(x, w, s, z, o, layout=target), want)


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("group", [group for group in GROUPS if group > 0])
@pytest.mark.parametrize("target", PACKED)
@pytest.mark.parametrize("zero", ZEROS)
def test_rows_of_sorted_columns_with_the_whole_scales_are_packed_and_add_up(rank, group, target, zero):
    """Tensor parallelism splits activation-ordered weights so: groups are cut where a rank's rows end."""
    across, columns, ranks = 16, 4 * 88, 4
    weight, scales, zeros = checkpoint("gptq", across, columns, math.ceil(columns / group))
    order = order_of(columns, group, shuffled=True)
    places = order.long().sort(stable=True).indices
    q = int4_mm.dequantised(
        weight, torch.ones(1, across), None, None, columns=columns, layout="gptq", group=-1, zero="none"
    )[0]
    sorted_weight = torch.zeros(columns // 8, across, dtype=torch.int32)
    for place in range(8):
        sorted_weight |= (q[places][place::8] + 8).int() << (4 * place)
    rows = slice(rank * columns // ranks, (rank + 1) * columns // ranks)
    part = sorted_weight[rows.start // 8 : rows.stop // 8]
    ids = order[places][rows].contiguous()
    given = (part, scales, ids) if zero == "none" else (part, scales, ids, zeros)
    how = {"group": 0, "zero": zero}
    there = packed(*given, source="gptq", target=target, **how)
    for found, want in zip(packed(*there, source=target, target="gptq", **how), given, strict=True):
        assert torch.equal(found, want)
    x = torch.randn(2, columns, dtype=torch.float64)
    whole = int4_mm.dequantised(
        weight, scales, zeros, order, columns=columns, layout="gptq", group=group, zero=zero, dtype=torch.float64
    )[0]
    w, s, o, *z = there
    found = int4_mm.forward(x[:, places[rows]], w, s, z[0] if z else None, o, layout=target, **how)
    torch.testing.assert_close(found, x[:, places[rows]] @ whole[places[rows]])


def test_blocks_of_a_packed_weight_are_a_weight():
    weight, scales, zeros = checkpoint("packed_mma", 8, 512, 4)
    x = torch.randn(3, 512, dtype=torch.float64)
    halves = [
        int4_mm.forward(x[:, 256 * i : 256 * i + 256], weight[2 * i : 2 * i + 2], scales[2 * i : 2 * i + 2],
                        zeros[2 * i : 2 * i + 2], layout="packed_mma") for i in range(2)
    ]  # fmt: skip
    torch.testing.assert_close(sum(halves), int4_mm.forward(x, weight, scales, zeros, layout="packed_mma"))


def test_the_gradient_of_x_is_that_of_the_dequantised_layer():
    weight, scales, zeros = checkpoint("packed_mma", 8, 136, 2, dtype=torch.float32)
    order = torch.randperm(136, generator=torch.Generator().manual_seed(0)).int()
    x = torch.randn(2, 136, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: ops.int4_mm(x, weight, scales, zeros, order, layout="packed_mma", kernel="reference.int4_mm"), (x,)
    )


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"x": torch.ones(2, 60)}, ArgumentValueError, "weight needs K/8, a whole number, but x has K = 60"),
        (
            {"group": 32},
            ArgumentValueError,
            r"scales has shape \(2, 16\), 2 where ceil\(K/32\) = 8 is needed, but x has K = 256",
        ),
        ({"group": 48}, ArgumentValueError, "group must be 32 or 64 or 128 or -1 or 0; this is 48"),
        ({"group": 128.0}, ArgumentTypeError, "group must be 32 or 64 or 128 or -1 or 0; this is float 128.0"),
        (
            {"layout": "packed_mma"},
            ArgumentTypeError,
            "zeros is int32; it must be uint8. int32 goes with layout='gptq' or 'awq' or 'ct'",
        ),
    ],
)
def test_what_does_not_fit_a_layout_is_told(changed, error, text):
    weight, scales, zeros = checkpoint("gptq", 16, 256, 2)
    given = {"x": torch.ones(2, 256), "weight": weight, "scales": scales, "zeros": zeros, **changed}
    with pytest.raises(error, match=f"^int4_mm: {text}$"):
        ops.int4_mm(given.pop("x"), given.pop("weight"), given.pop("scales"), given.pop("zeros"), **given)


WAYS: dict[str, Any] = {
    "called": ops.int4_mm,
    "bound": lambda *given, **values: portakernel.bind("int4_mm", *given, **values)(*given),
    "recorded": lambda x, *given, **values: ops.int4_mm(x.requires_grad_(), *given, **values),
}


@pytest.mark.parametrize("kernel", ["reference.int4_mm", "torch.int4_mm_decoded"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("layout", "group", "order", "text"),
    [
        ("gptq", 128, [0] * 7 + [2] + [1] * 248, "order[7] is 2; it must be in [0, 2), the groups of scales"),
        ("ct", 128, [-1] + [1] * 255, "order[0] is -1; it must be in [0, 2), the groups of scales"),
        ("packed_mma", 128, [*range(255), 256], "order[255] is 256; it must be in [0, 256), the columns"),
        (
            "packed_mma",
            0,
            [list(range(256)), [0] * 255 + [2]],
            "order[1, 255] is 2; it must be in [0, 2), the groups of scales",
        ),
    ],
    ids=["group", "negative", "column", "group of any size"],
)
def test_an_order_that_is_out_of_range_is_told_on_the_cpu(layout, group, order, text, way, kernel):
    weight, scales, zeros = checkpoint(layout, 16, 256, 2)
    given = torch.ones(3, 256), weight, scales, zeros, torch.tensor(order, dtype=torch.int32)
    with pytest.raises(IndexOutOfRangeError, match=f"^int4_mm: {re.escape(text)}$"):
        WAYS[way](*given, layout=layout, group=group, kernel=kernel)


def test_another_failure_on_the_cpu_stays_what_it_is():
    def fails(*_: object) -> None:
        raise RuntimeError("no such machine")

    weight, scales, zeros = checkpoint("gptq", 16, 256, 2)
    request = ask(contract("int4_mm"), Target("cpu", "x86_64"))
    assert explains(contract("int4_mm"), request)
    given = torch.ones(3, 256), weight, scales, zeros, None, None, "gptq", 128, "stored", None
    with pytest.raises(RuntimeError, match=r"^no such machine$"):
        explained(contract("int4_mm"), request, fails)(*given)
    assert not explains(contract("int4_mm"), ask(contract("int4_mm"), Target("nvidia", "sm_90")))
    assert not explains(contract("softmax"), ask(contract("softmax"), Target("cpu", "x86_64")))


def test_a_packed_weight_of_other_columns_is_told():
    weight, _, _ = checkpoint("packed_mma", 16, 256, 2)
    text = r"weight has shape \(2, 16, 16\), 2 where ceil\(K/128\) = 3 is needed, but {} has K = 300$"
    with pytest.raises(ArgumentValueError, match="^int4_mm: " + text.format("x")):
        ops.int4_mm(torch.ones(1, 300), weight, torch.ones(3, 16), layout="packed_mma")
    with pytest.raises(ArgumentValueError, match="^pack_int4: " + text.format("order")):
        ops.pack_int4(weight, torch.ones(3, 16), torch.arange(300).int(), source="packed_mma", target="gptq")


def test_packing_refuses_what_has_no_place():
    weight, scales, zeros = checkpoint("gptq", 16, 256, 2)
    uneven = torch.zeros(256, dtype=torch.int32)
    uneven[:100] = 1
    text = "order has 156 columns in group 0, where group=128 wants 128 of 256; groups of any size are group=0$"
    with pytest.raises(ArgumentValueError, match=f"^pack_int4: {text}"):
        ops.pack_int4(weight, scales, uneven, zeros)
    text = "order has group 2 for column 7; scales has groups 0 to 1$"
    with pytest.raises(ArgumentValueError, match=f"^pack_int4: {text}"):
        ops.pack_int4(weight, scales, torch.full((256,), 0).index_fill(0, torch.tensor(7), 2).int(), zeros)
    packed_weight, packed_scales, _ = checkpoint("packed_mma", 16, 124, 1)
    text = "gptq packs 8 elements of K into a word; this weight has K = 124: its multiples are accepted, or a packed"
    with pytest.raises(ArgumentValueError, match=f"^pack_int4: {text}"):
        ops.pack_int4(
            packed_weight, packed_scales, torch.arange(124).int(), source="packed_mma", target="gptq", zero="none"
        )
    twice = torch.zeros(128, dtype=torch.int32)
    text = "order says where each of 128 columns came from, each number below that once; this has 1 different ones$"
    with pytest.raises(ArgumentValueError, match=f"^pack_int4: {text}"):
        ops.pack_int4(*checkpoint("packed_mma", 16, 128, 1)[:2], twice, source="packed_mma", target="gptq", zero="none")
