"""What no case of ``int4_mm`` shows of its Triton kernels: shared columns, compiled code, a call's kernel."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

import portakernel
from portakernel.references import int4_mm as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel_plugins.triton.launching.configurations import Configuration
from portakernel_plugins.triton.matrix import int4_kernels, int4_mm

HOW = {"layout": "packed_mma", "group": 128, "zero": "stored"}


def drawn(rows: int, across: int, columns: int, groups: int) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(across + columns)
    words = torch.randint(-(1 << 31), 1 << 31, (-(-columns // 128), across, 16), generator=source).int()
    zeros = torch.randint(16, (groups, across), generator=source, dtype=torch.uint8)
    x = torch.randn(rows, columns, generator=source).half()
    return x, words, (torch.rand(groups, across, generator=source) + 0.5).half(), zeros


def configured(programs: int, **options: int) -> Configuration:
    defaults = {"num_warps": 4, "BLOCK_M": 16, "BLOCK_N": 32, "num_stages": 1}
    return Configuration(1, 1, 1, 1, programs, 1, {**defaults, **options})


@pytest.mark.parametrize("programs", [1, 3, 5, 64])
def test_parts_of_columns_are_added_up_in_order(programs, monkeypatch):
    x, words, scales, zeros = drawn(5, 40, 1500, 12)
    monkeypatch.setattr(int4_mm, "configuration", lambda *_: configured(2 * programs))
    with interpreting():
        found = [int4_mm.int4_mm(x, words, scales, zeros, **HOW) for _ in range(2)]
    truth = reference.truth(x, words, scales, zeros, **HOW)[0]
    plain = reference.plain(x, words, scales, zeros, **HOW)[0]
    assert torch.equal(*found)
    assert (found[0].double() - truth).norm() <= 2 * (plain.double() - truth).norm()


def test_counters_are_left_as_zeros(monkeypatch):
    x, words, scales, zeros = drawn(3, 40, 1024, 8)
    kept = torch.zeros(8, dtype=torch.int32)
    monkeypatch.setattr(int4_mm, "configuration", lambda *_: configured(8))
    monkeypatch.setattr(int4_mm, "counters", lambda *_: kept)
    with interpreting():
        first = int4_mm.int4_mm(x, words, scales, zeros, **HOW)
        assert kept.tolist() == [0] * 8
        assert torch.equal(first, int4_mm.int4_mm(x, words, scales, zeros, **HOW))


@pytest.mark.parametrize(
    ("tiles", "blocks", "programs", "expected"),
    [
        (32, 112, 528, (16, 7)),
        (112, 32, 528, (4, 8)),
        (1, 1, 528, (1, 1)),
        (1, 0, 528, (1, 1)),
        (600, 32, 528, (1, 32)),
    ],
)
def test_all_programs_of_few_tiles_run_at_once(tiles, blocks, programs, expected):
    assert int4_mm.split_count(tiles, blocks, configured(programs)) == expected


def test_a_part_of_no_width_has_no_program():
    for tiles in range(1, 40):
        for blocks in range(1, 60):
            splits, share = int4_mm.split_count(tiles, blocks, configured(200))
            assert (splits - 1) * share < blocks <= splits * share


@pytest.fixture(scope="module")
def compiled():
    """The kernel for 16 rows on sm_90, compiled without a GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = int4_kernels.product
    constants = {
        "order": None, "bias": None, "x_lane": 1, "y_lane": 1, "GROUP": 128, "ZERO": "stored", "SPLIT": True,
        "WHOLE_TILES": True, "WHOLE_BLOCKS": True, "MFMA": False, "ASSEMBLY": True, "WIDEN": False, "BLOCK_M": 16,
        "BLOCK_N": 128, "STAGES": 4,
    }  # fmt: skip
    pointers = {
        "x": "*bf16", "weight": "*i32", "scales": "*bf16", "zeros": "*u8", "y": "*bf16", "parts": "*fp32",
        "counters": "*i32",
    }  # fmt: skip
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in kernel.arg_names}
    even = {*pointers, "N", "K", "x_row", "y_row"}
    places = {name: (i,) for i, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={places[name]: value for name, value in constants.items()},
        attrs={places[name]: [["tt.divisibility", 16]] for name in even},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "enable_fp_fusion": True})


def test_a_pair_of_weights_is_one_operation_on_three_operands(compiled):
    decoded = re.findall(r"lop3\.b32 %r\d+, %r\d+, 0x00780078, 0x41804180, 0xea", compiled.asm["ptx"])
    assert len(decoded) == 128 * 128 // 2 // 128  # of a tile's weights, two at a time, in each of 128 threads


def test_weights_stay_in_the_registers_that_they_were_read_into(compiled):
    text = compiled.asm["ttgir"]
    moved = re.findall(r"ttg\.convert_layout .* -> tensor<128x(?:16xi32|128xbf16)", text)
    assert moved == []
    assert re.search(r"warp_group_dot %\S+, .* : tensor<128x128xbf16, #ttg.dot_op<\{opIdx = 0", text)
    # both halves of a word are neighbours in the layout of what assembly makes of it
    layouts = set(re.findall(r"elementwise_inline_asm .* -> tensor<128x16x2xbf16, (#\w+)>", text))
    assert layouts
    for layout in layouts:
        assert re.search(rf"^{layout} = #ttg\.linear<\{{register = \[\[0, 0, 1\]", text, re.MULTILINE)


def chosen(target: str, rows: int, layout: str) -> str:
    shapes = {"x": (rows, 4096)} | ({"weight": (32, 14336, 16)} if layout.startswith("packed") else {})
    dtypes = {"x": "bfloat16", "weight": "int32", "scales": "bfloat16"}
    found = portakernel.explain("int4_mm", target=target, dtype=dtypes, shape=shapes, layout=layout)
    return str(found.chosen and found.chosen.name)


@pytest.mark.parametrize(
    ("target", "rows", "layout", "kernel"),
    [
        ("nvidia:sm_90", 16, "packed_mma", "triton.int4_mm"),
        ("nvidia:sm_90", 4096, "packed_mma", "triton.int4_mm_decoded"),
        ("nvidia:sm_90", 16, "packed_mfma", "triton.int4_mm_decoded"),
        ("nvidia:sm_90", 16, "gptq", "triton.int4_mm_decoded"),
        ("amd:gfx942", 16, "packed_mfma", "triton.int4_mm"),
        ("amd:gfx942", 16, "packed_mma", "triton.int4_mm_decoded"),
        ("intel:pvc", 16, "gptq", "torch.int4_mm_decoded"),
    ],
)
def test_few_rows_of_the_layout_of_the_chip_are_decoded_in_registers(target, rows, layout, kernel):
    assert chosen(target, rows, layout) == kernel
