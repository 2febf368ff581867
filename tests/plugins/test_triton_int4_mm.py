"""What no case of ``int4_mm`` shows of its Triton kernels: shared columns, compiled code, a call's kernel."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

import portakernel
from portakernel.authoring.triton import compiling
from portakernel.references import int4_mm as reference
from portakernel.triton_launch.interpreter import interpreting
from portakernel.words.target import Target
from portakernel_plugins.triton.launching.configurations import Configuration
from portakernel_plugins.triton.matrix import int4_mm, splits
from portakernel_plugins.triton.matrix.int4_few_rows import few_rows
from portakernel_plugins.triton.matrix.int4_kernels import product

HOW = {"layout": "packed_mma", "group": 128, "zero": "stored"}


def drawn(rows: int, across: int, columns: int, groups: int) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(across + columns)
    words = torch.randint(-(1 << 31), 1 << 31, (-(-columns // 128), across, 16), generator=source).int()
    zeros = torch.randint(16, (groups, across), generator=source, dtype=torch.uint8)
    x = torch.randn(rows, columns, generator=source).half()
    return x, words, (torch.rand(groups, across, generator=source) + 0.5).half(), zeros


FEW = {"num_warps": 2, "FRAGMENTS": True, "COLUMNS": 8, "PIECES": 1, "ROWS": 32, "BLOCKS": 2, "num_stages": 1}
MANY = {"num_warps": 2, "FRAGMENTS": True, "BLOCK_M": 16, "BLOCK_N": 32, "num_stages": 1}


def configured(programs: int, **options: Any) -> Configuration:
    return Configuration(1, 1, 1, 1, programs, 1, options or FEW)


def hold(found: Tensor, x: Tensor, words: Tensor, scales: Tensor, zeros: Tensor | None, **how: Any) -> None:
    truth = reference.truth(x, words, scales, zeros, **how)[0]
    plain = reference.plain(x, words, scales, zeros, **how)[0]
    assert (found.double() - truth).norm() <= 2 * (plain.double() - truth).norm()


@pytest.mark.parametrize("programs", [1, 3, 5, 64])
@pytest.mark.parametrize("options", [FEW, MANY], ids=["few", "many"])
def test_parts_of_columns_are_added_up_in_order(options, programs, monkeypatch):
    x, words, scales, zeros = drawn(5, 40, 1500, 12)
    monkeypatch.setattr(int4_mm, "configuration", lambda *_: configured(2 * programs, **options))
    with interpreting():
        found = [int4_mm.int4_mm(x, words, scales, zeros, **HOW) for _ in range(2)]
    assert torch.equal(*found)
    hold(found[0], x, words, scales, zeros, **HOW)


@pytest.mark.parametrize(
    ("rows", "held"),
    [(1, 8), (2, 8), (3, 8), (4, 8), (5, 8), (8, 8), (9, 8), (20, 8), (3, 16), (9, 16), (16, 16), (20, 16)],
)
@pytest.mark.parametrize("columns", [2048, 1400])
@pytest.mark.parametrize(("group", "programs"), [(128, 1000), (64, 3), (32, 20), (-1, 20)])
def test_slices_of_columns_stand_side_by_side(rows, held, columns, group, programs, monkeypatch):
    x, words, scales, zeros = drawn(rows, 50, columns, 1 if group < 0 else -(-columns // group))
    options = {**FEW, "ROWS": 64, "COLUMNS": held, "PIECES": 1 if rows <= held else 2 if rows <= 16 else 4}
    monkeypatch.setattr(int4_mm, "configuration", lambda *_: configured(programs, **options))
    how = {**HOW, "group": group}
    with interpreting():
        found = int4_mm.int4_mm(x, words, scales, zeros, **how)
    hold(found, x, words, scales, zeros, **how)


@pytest.mark.parametrize(
    ("rows", "across", "blocks", "programs", "expected"),
    [
        (1, 4096, 112, 264, 8),
        (1, 14336, 32, 264, 2),
        (2, 4096, 112, 264, 4),
        (3, 4096, 112, 264, 2),
        (5, 4096, 112, 264, 1),
        (16, 4096, 112, 264, 1),
        (1, 64, 1, 264, 1),
        (1, 64, 8, 264, 4),
        (1, 64, 0, 264, 1),
    ],
)
def test_as_many_slices_as_their_programs_run_at_once(rows, across, blocks, programs, expected):
    how = configured(programs, **{**FEW, "ROWS": 128})
    assert int4_mm.slice_count(rows, across, blocks, how) == expected


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_of_another_dtype_are_not_rounded_before_they_multiply(rows, dtype):
    x, words, scales, zeros = drawn(rows, 48, 640, 5)
    scales = (scales.float() * (1 + 2**-9)).to(dtype)
    with interpreting():
        found = int4_mm.int4_mm(x, words, scales, zeros, **HOW)
    hold(found, x, words, scales, zeros, **HOW)


def test_counters_are_left_as_zeros(monkeypatch):
    x, words, scales, zeros = drawn(3, 40, 1024, 8)
    kept = torch.zeros(8, dtype=torch.int32)
    monkeypatch.setattr(int4_mm, "configuration", lambda *_: configured(8))
    monkeypatch.setattr(splits, "counters", lambda *_: kept)
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
    assert splits.split_count(tiles, blocks, configured(programs)) == expected


def test_a_part_of_no_width_has_no_program():
    for tiles in range(1, 40):
        for blocks in range(1, 60):
            count, share = splits.split_count(tiles, blocks, configured(200))
            assert (count - 1) * share < blocks <= count * share


def compiled(kernel: Any, **constants: Any) -> Any:
    """A kernel for sm_90, compiled without a GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants |= {
        "group_of": None, "bias": None, "x_lane": 1, "y_lane": 1, "GROUP": 128, "ZERO": "stored", "SPLIT": True,
        "WHOLE_TILES": True, "WHOLE_BLOCKS": True, "MFMA": False, "ASSEMBLY": True, "WIDEN": False, "WARPS": 8,
        "BLOCK_N": 128, "STAGES": 3, **constants,
    }  # fmt: skip
    constants = {"OVERLAP": False, "DESCRIBED": False, "ASYNCHRONOUS": True, **constants}
    pointers = {
        "x": "*bf16", "weight": "*i32", "scales": "*bf16", "zeros": "*u8", "y": "*bf16", "parts": "*fp32",
        "counters": "*i32",
    }  # fmt: skip
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in kernel.arg_names}
    even = {*pointers, "N", "K", "x_row", "y_row"}
    places = {name: (i,) for i, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={places[name]: value for name, value in constants.items()},
        attrs={places[name]: [["tt.divisibility", 16]] for name in even},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "enable_fp_fusion": True})


@pytest.mark.parametrize(
    ("kernel", "constants", "weights"),
    [
        (few_rows, {"SLICES": 1, "PIECES": 1, "BLOCK_M": 8, "BLOCKS": 2}, 128),
        (few_rows, {"SLICES": 1, "PIECES": 2, "BLOCK_M": 16, "BLOCKS": 2}, 128),
        (few_rows, {"SLICES": 1, "PIECES": 1, "BLOCK_M": 16, "BLOCKS": 2}, 128),
        (product, {"BLOCK_M": 128}, 64),
    ],
    ids=["few", "16 in two pieces", "16", "many"],
)
def test_a_weight_is_decoded_by_half_an_operation_and_stays_in_its_lane(kernel, constants, weights):
    ptx = compiled(kernel, **constants).asm["ptx"]
    assert ptx.count("0x000f000f, 0x43004300, 0xea") == weights // 2  # of a thread's weights in a step
    assert "shfl.sync" not in ptx
    # what goes through shared memory is x, and once the sums
    loop = ptx[ptx.index("lop3.b32") : ptx.rindex("lop3.b32")]
    assert "st.shared" not in loop


def test_a_kernel_that_begins_early_waits_before_it_reads_or_writes():
    ptx = compiled(few_rows, OVERLAP=True, SLICES=1, PIECES=1, BLOCK_M=8, BLOCKS=2).asm["ptx"]
    before, after = ptx.split("griddepcontrol.wait")
    touches = re.compile(r"\b(ld\.global|st\.global|cp\.async|atom|red)\b")
    assert not touches.search(before)
    assert touches.search(after)
    assert "griddepcontrol.launch_dependents" in after


@pytest.mark.parametrize(
    ("kernel", "constants"),
    [
        (product, {"BLOCK_M": 128}),
        (product, {"BLOCK_M": 128, "DESCRIBED": True}),
        (product, {"BLOCK_M": 32}),
        (few_rows, {"SLICES": 1, "PIECES": 1, "BLOCK_M": 16, "BLOCKS": 2}),
        (few_rows, {"SLICES": 1, "PIECES": 1, "BLOCK_M": 16, "BLOCKS": 2, "GROUP": 32}),
        (few_rows, {"SLICES": 1, "PIECES": 1, "BLOCK_M": 8, "BLOCKS": 2, "GROUP": 32}),
        (few_rows, {"SLICES": 1, "PIECES": 1, "BLOCK_M": 8, "BLOCKS": 2, "GROUP": -1}),
    ],
)
def test_products_of_what_is_in_registers_end_before_the_next_step_decodes(kernel, constants):
    ptx = compiled(kernel, **constants).asm["ptx"]
    if constants["BLOCK_M"] == 8 and "mma.sync" in ptx:
        return  # triton 3.6, by the instruction that nobody waits for
    loop = ptx[ptx.index("wgmma.mma_async") : ptx.rindex("bra")]
    # what follows the last product of a step, and what it waits for
    behind = loop[loop.rindex("wgmma.mma_async") :]
    waits = re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d+)|(cp\.async\.c|cp\.async\.bulk)", behind)
    assert ("0", "") in waits[: next(i for i, (_, copies) in enumerate(waits) if copies)]


@pytest.mark.parametrize(
    ("rows", "instruction"),
    [
        (1, r"mma\S*\.m(16|64)n8k16"),  # the newer instruction is a newer Triton's
        (9, r"wgmma\.mma_async\.sync\.aligned\.m64n16k16"),
        (16, r"wgmma\.mma_async\.sync\.aligned\.m64n16k16"),
        (32, r"wgmma\.mma_async\.sync\.aligned\.m64n32k16"),
        (64, r"wgmma\.mma_async\.sync\.aligned\.m64n64k16"),
        (256, r"wgmma\.mma_async\.sync\.aligned\.m64n128k16"),
    ],
)
def test_tensor_cores_of_hopper_multiply_as_many_rows_as_there_are(rows, instruction):
    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    tensors = empty(rows, 4096), empty(32, 4096, 16, dtype=torch.int32), empty(32, 4096)
    with compiling(Target("nvidia", "sm_90")) as found:
        int4_mm.int4_mm(*tensors, empty(32, 4096, dtype=torch.uint8), **HOW)
    (function,) = found
    assert re.search(instruction, function.assembly)
    assert ("cp.async.bulk.tensor" in function.assembly) == (rows > 32)  # rows of x by a descriptor
    assert function.spilled_bytes == 0


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
