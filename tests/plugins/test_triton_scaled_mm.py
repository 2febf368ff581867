"""What the conformance kit does not see of ``scaled_mm`` in Triton: tensor cores' own formats, tiles, promoted sums."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

import portakernel
from portakernel.authoring.triton import compiling, interpreting
from portakernel.contract.case import Case
from portakernel.contracts import contract
from portakernel.words.dtypes import SCALE_FORMATS
from portakernel.words.target import Target
from portakernel_kit.conformance.comparison import Match, compare_rows
from portakernel_kit.conformance.inputs import draw_inputs, generator
from portakernel_kit.conformance.truth import Truth
from portakernel_plugins.triton.matrix import products
from portakernel_plugins.triton.matrix import scaled_mm as module

CONTRACT = contract("scaled_mm")
ELEMENTS = {"mxfp4": "float4_e2m1fn_x2", "nvfp4": "float4_e2m1fn_x2"}
SCALES = {"mxfp8": "float8_e8m0fnu", "mxfp4": "float8_e8m0fnu", "nvfp4": "float8_e4m3fn"}
FLOAT8 = ("tensor", "row", "block_1x128", "block_128x128")
# Interpreted, tiles have 64 rows and columns, and up to 64 rows tiles of 32.
SIZES = (130, 200, 272)


def draw(left, right, *, sizes=SIZES, present=(), dtypes=(), values="normal", layouts=None, **parameters):
    """Inputs and the truth about them; operands are formats, and ``dtypes`` those of float8 ones."""
    formats = {"format_a": left, "format_b": right, "out_dtype": "float32", **parameters}
    case = Case(
        "drawn", dims=dict(zip("MNK", sizes, strict=True)), parameters=formats, present=present, values=values,
        layouts=layouts or {},
    )  # fmt: skip
    given = dict(zip("ab", dtypes or ("float8_e4m3fn",) * 2, strict=True))
    given = {name: ELEMENTS.get(shared, given[name]) for name, shared in (("a", left), ("b", right))}
    given |= {"out_dtype": formats["out_dtype"], "bias": "float32"}
    given |= {f"scale_{name}": SCALES.get(shared, "float32") for name, shared in (("a", left), ("b", right))}
    given |= {"global_scale_a": "float32", "global_scale_b": "float32"}
    inputs = draw_inputs(CONTRACT, case, given, "cpu", generator(7, left, right, sizes))
    return inputs, Truth.of(inputs)


def multiply(inputs) -> Tensor:
    positional, keywords = inputs.keywords(inputs.tensors)
    with interpreting():
        return module.scaled_mm_groups(*positional, **keywords)


def assert_right(inputs, truth) -> None:
    assert isinstance(compare_rows(multiply(inputs), truth.outputs["y"], truth.plain["y"]), Match)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The compile-time values of launches."""
    seen: list[dict[str, object]] = []
    launched = products.launch

    def launch(kernel, grid, *args, **meta):
        seen.append(meta)
        launched(kernel, grid, *args, **meta)

    monkeypatch.setattr(products, "launch", launch)
    return seen


@pytest.fixture
def tensor_cores(monkeypatch):
    """The interpreter as a GPU whose tensor cores take float8, in sums that are cut, and scales of few terms."""
    monkeypatch.setattr(module, "_FLOAT8", {"interpreter": ("float8_e4m3fn", "float8_e5m2")})
    monkeypatch.setattr(module, "_SCALED", {"interpreter": ("mxfp8", "mxfp4", "nvfp4")})
    monkeypatch.setattr(module, "_CUT", ("interpreter",))


@pytest.mark.parametrize("left", SCALE_FORMATS)
@pytest.mark.parametrize("right", SCALE_FORMATS)
def test_every_pair_of_formats_is_decoded(left, right):
    sizes = (70, 34, 160)
    assert_right(*draw(left, right, sizes=sizes, present=("bias", "global_scale_a", "global_scale_b")))


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("left", FLOAT8)
@pytest.mark.parametrize("right", FLOAT8)
def test_float8_that_is_multiplied_as_it_is_has_the_same_scales(monkeypatch, tensor_cores, left, right, fast):
    seen = watched(monkeypatch)
    assert_right(*draw(left, right, use_fast_accum=fast, present=("bias",)))
    (meta,) = seen
    assert meta["HOW"] == "float8"
    assert meta["PROMOTED"] == (not fast)


@pytest.mark.parametrize("programs", [5, 64])
@pytest.mark.parametrize(("left", "right"), [("row", "row"), ("block_1x128", "block_128x128")])
def test_few_rows_share_their_terms_among_programs(monkeypatch, tensor_cores, left, right, programs):
    real = products.configuration
    monkeypatch.setattr(products, "configuration", lambda *given: replace(real(*given), programs=programs))
    seen = watched(monkeypatch)
    inputs, truth = draw(left, right, sizes=(7, 100, 1000), present=("bias",))
    assert_right(inputs, truth)
    assert torch.equal(multiply(inputs), multiply(inputs))
    assert {meta["SPLIT"] for meta in seen} == {True}


@pytest.mark.parametrize("rows", [7, 130])
@pytest.mark.parametrize("left", ["block_1x128", "block_128x128"])
@pytest.mark.parametrize("right", ["row", "block_1x128", "block_128x128"])
def test_a_step_of_more_terms_than_share_a_scale_has_the_scales_of_all(monkeypatch, tensor_cores, rows, left, right):
    real = products.configuration

    def wide(*given):
        how = real(*given)
        return replace(how, programs=8, options={**how.options, "BLOCK_K": 256})

    monkeypatch.setattr(products, "configuration", wide)
    seen = watched(monkeypatch)
    assert_right(*draw(left, right, sizes=(rows, 100, 1100), present=("bias",)))
    assert {(meta["BLOCK_K"], meta["SPLIT"]) for meta in seen} == {(256, rows == 7)}


def test_tiles_of_more_rows_than_share_a_scale_have_one_each(monkeypatch, tensor_cores):
    real = products.configuration

    def high(*given):
        how = real(*given)
        return replace(how, options={**how.options, "BLOCK_M": 256, "BLOCK_N": 256})

    monkeypatch.setattr(products, "configuration", high)
    assert_right(*draw("block_128x128", "block_128x128", sizes=(300, 272, 200)))


def test_both_float8_dtypes_are_multiplied_with_each_other(monkeypatch, tensor_cores):
    seen = watched(monkeypatch)
    for dtypes in (("float8_e5m2", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2")):
        assert_right(*draw("row", "row", sizes=(70, 34, 160), dtypes=dtypes))
    assert {meta["HOW"] for meta in seen} == {"float8"}


@pytest.mark.parametrize("dtypes", [("float8_e4m3fnuz", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2fnuz")])
def test_dtypes_that_tensor_cores_lack_are_decoded(monkeypatch, tensor_cores, dtypes):
    seen = watched(monkeypatch)
    assert_right(*draw("row", "row", sizes=(70, 34, 160), dtypes=dtypes))
    assert [meta["HOW"] for meta in seen] == ["decoded"]


# Triton's interpreter reads all scales as powers of two: not those of nvfp4.
@pytest.mark.parametrize(
    ("left", "right"), [("mxfp8", "mxfp8"), ("mxfp4", "mxfp4"), ("mxfp8", "mxfp4"), ("mxfp4", "mxfp8")]
)
@pytest.mark.parametrize("swizzle", ["none", "32_4_4"])
@pytest.mark.parametrize("inners", [272, 102])
def test_scales_of_few_terms_are_left_to_tensor_cores_that_have_them(
    monkeypatch, tensor_cores, left, right, swizzle, inners
):
    from triton.runtime.interpreter import InterpreterBuilder

    if not hasattr(InterpreterBuilder, "create_dot_scaled"):
        pytest.skip("this Triton's interpreter has no scaled products")
    seen = watched(monkeypatch)
    assert_right(*draw(left, right, sizes=(130, 72, inners), swizzle=swizzle, present=("bias",)))
    assert [meta["HOW"] for meta in seen] == ["scaled"]


@pytest.mark.parametrize(("left", "right"), [("nvfp4", "mxfp4"), ("mxfp8", "row"), ("nvfp4", "block_128x128")])
def test_pairs_that_no_tensor_core_takes_are_decoded(monkeypatch, tensor_cores, left, right):
    seen = watched(monkeypatch)
    assert_right(*draw(left, right, sizes=(70, 34, 160)))
    assert [meta["HOW"] for meta in seen] == ["decoded"]


@pytest.mark.parametrize(
    ("arch", "way"),
    [
        ("sm_100", "scaled"), ("sm_103", "scaled"), ("sm_80", "decoded"), ("sm_89", "decoded"), ("sm_90", "decoded"),
        ("sm_120", "decoded"), ("gfx942", "decoded"), ("gfx950", "decoded"), ("gfx1201", "decoded"),
    ],
)  # fmt: skip
def test_nvfp4_is_left_to_tensor_cores_alone_that_take_it(arch, way):
    # Triton 3.6 ends the process where it has to take such a product apart itself
    codes, scales = torch.empty(16, 8, dtype=torch.float4_e2m1fn_x2), torch.empty(16, 1, dtype=torch.float8_e4m3fn)
    operand = module._Operand(codes, scales, torch.ones(()), "nvfp4", "float4_e2m1fn_x2")
    assert module._way(arch, operand, operand) == way


@pytest.mark.parametrize(
    ("arch", "suffix"), [("gfx942", "fnuz"), ("gfx950", ""), ("gfx1201", ""), ("sm_90", ""), ("sm_100", "")]
)
def test_two_float8_dtypes_are_decoded_on_amd_by_a_triton_that_takes_each_for_the_other(monkeypatch, arch, suffix):
    matrix, scale = torch.empty(2, 2), torch.empty(2, 1)
    e4m3 = "float8_e4m3fnuz" if suffix else "float8_e4m3fn"
    left, right = (module._Operand(matrix, scale, None, "row", name) for name in (e4m3, f"float8_e5m2{suffix}"))
    for is_right in (True, False):
        monkeypatch.setattr(module, "_MIXED_ON_AMD", is_right)
        decoded = not is_right and arch.startswith("gfx")
        assert module._way(arch, left, right) == module._way(arch, right, left) == ("decoded" if decoded else "float8")
        assert module._way(arch, left, left) == module._way(arch, right, right) == "float8"


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4", "nvfp4"])
def test_swizzled_scales_give_the_bits_of_plain_ones(format):
    from portakernel.references.scale_formats import BLOCKS, unswizzled

    inputs, _ = draw(format, format, sizes=(130, 70, 160), swizzle="32_4_4")
    positional, keywords = inputs.keywords(inputs.tensors)
    found = multiply(inputs)
    groups = -(-160 // BLOCKS[format][1])
    a, b, scale_a, scale_b = positional
    plain = unswizzled(scale_a, 130, groups), unswizzled(scale_b, 70, groups)
    with interpreting():
        expected = module.scaled_mm_groups(a, b, *plain, **(keywords | {"swizzle": "none"}))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (65, 1, 2), (1, 70, 129), (130, 65, 0), (64, 64, 64), (3, 5, 0)])
@pytest.mark.parametrize("formats", [("row", "row"), ("block_1x128", "block_128x128"), ("mxfp8", "mxfp8")])
def test_sizes_of_a_tile_of_one_and_of_none(formats, sizes):
    assert_right(*draw(*formats, sizes=sizes, present=("bias",)))


@pytest.mark.parametrize("layout", ["transposed", "sliced", "stepped", "offset", "expanded"])
@pytest.mark.parametrize("rows", [9, 130])
@pytest.mark.parametrize("name", ["a", "b"])
def test_operands_may_lie_anywhere(name, layout, rows):
    assert_right(*draw("row", "block_1x128", sizes=(rows, 72, 144), layouts={name: layout, f"scale_{name}": layout}))


def test_rows_that_end_anywhere_are_copied_for_many_rows_and_read_by_pointers_for_few(monkeypatch):
    seen = watched(monkeypatch)
    for rows in (130, 9):
        assert_right(*draw("row", "row", sizes=(rows, 72, 131)))
    assert [(meta["FORM_A"], meta["FORM_B"]) for meta in seen] == [("inner", "inner"), ("pointers", "pointers")]


def test_a_scale_that_is_no_number_reaches_its_rows_alone():
    inputs, _ = draw("block_1x128", "row", sizes=(70, 34, 300))
    clean = multiply(inputs)
    inputs.tensors[2][66, 1] = float("nan")
    found = multiply(inputs)
    assert found[66].isnan().all()
    assert torch.equal(found[:66], clean[:66])
    assert torch.equal(found[67:], clean[67:])


def test_rows_may_lie_further_apart_than_32_bits_reach():
    # of untouched memory there is none
    far = torch.empty_strided((2, 64), (2**31 + 16, 1), dtype=torch.uint8)
    codes = torch.randint(0, 0x70, (2, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    far.copy_(codes)
    scale = torch.ones(2, 1)
    keywords = {"global_scale_a": None, "global_scale_b": None, "format_a": "row", "format_b": "row"}
    keywords |= {"out_dtype": "float32", "use_fast_accum": False}
    a, near = far.view(torch.float8_e4m3fn), codes.view(torch.float8_e4m3fn)
    with interpreting():
        found = module.scaled_mm_groups(a, a, scale, scale, **keywords)
    torch.testing.assert_close(found.double(), near.double() @ near.double().T, rtol=1e-6, atol=0)


# --- compiled for GPUs that are not here -----------------------------------------------------------------------------


def compiled(target: str, format: str = "row", dtype: torch.dtype = torch.float8_e4m3fn, *, fast: bool = False):
    """What 4096 x 4096 x 4096 comes to."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    packed = 2 if dtype is torch.float4_e2m1fn_x2 else 1
    a, b = (empty(4096, 4096 // packed, dtype=dtype) for _ in range(2))
    scale = {
        "row": empty(4096, 1),
        "mxfp8": empty(4096, 128, dtype=torch.float8_e8m0fnu),
        "nvfp4": empty(4096, 256, dtype=torch.float8_e4m3fn),
    }[format]
    keywords = {"global_scale_a": None, "global_scale_b": None, "format_a": format, "format_b": format}
    with compiling(Target(*target.split(":"))) as found:
        module.scaled_mm_groups(a, b, scale, scale, **keywords, out_dtype="bfloat16", use_fast_accum=fast)
    (function,) = found
    assert function.spilled_bytes == 0
    return function


@pytest.mark.parametrize("arch", ["sm_89", "sm_90"])
def test_sums_that_tensor_cores_cut_are_promoted_unless_fast_ones_are_permitted(arch):
    additions = [
        len(re.findall(r"\badd(?:\.rn)?\.f32\b", compiled(f"nvidia:{arch}", fast=fast).assembly))
        for fast in (False, True)
    ]
    # a tile of 128 times 128 among 256 threads
    assert additions == [64, 0]


@pytest.mark.parametrize(
    ("target", "format", "dtype", "instruction"),
    [
        ("nvidia:sm_100", "mxfp8", torch.float8_e4m3fn, r"tcgen05\.mma\S*mxf8f6f4\S*block_scale"),
        ("nvidia:sm_100", "nvfp4", torch.float4_e2m1fn_x2, r"tcgen05\.mma\S*mxf4nvf4\S*block_scale"),
        ("amd:gfx950", "mxfp8", torch.float8_e4m3fn, "v_mfma_scale_f32"),
        ("amd:gfx942", "row", torch.float8_e4m3fnuz, "v_mfma_f32_16x16x32_fp8_fp8"),
        ("amd:gfx942", "row", torch.float8_e4m3fn, "v_mfma_f32_16x16x16_bf16"),
        ("nvidia:sm_80", "mxfp8", torch.float8_e4m3fn, r"mma\.sync\S*bf16"),
    ],
)
def test_the_instruction_is_the_arch_s_own_where_it_has_one(target, format, dtype, instruction):
    assert re.search(instruction, compiled(target, format, dtype).assembly)


def test_few_rows_begin_early_and_wait_before_they_read_or_write():
    def empty(*shape: int, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    scales = empty(64, 1, dtype=torch.float32), empty(4096, 1, dtype=torch.float32)
    how = {"format_a": "row", "format_b": "row", "global_scale_a": None, "global_scale_b": None}
    with compiling(Target("nvidia", "sm_90")) as found:
        module.scaled_mm(empty(64, 4096), empty(4096, 4096), *scales, out_dtype="bfloat16", use_fast_accum=False, **how)
    before, after = found[0].assembly.split("griddepcontrol.wait")
    touches = re.compile(r"\b(ld\.global|st\.global|cp\.async|tensormap\.replace|atom|red)\b")
    assert not touches.search(before)
    assert touches.search(after)
    assert "griddepcontrol.launch_dependents" in after


@pytest.mark.parametrize(
    ("rows", "fast", "tile"),
    [
        (16, False, (16, 64)),
        (64, False, (64, 64)),
        (256, False, (64, 64)),
        (256, True, (64, 64)),
        (512, False, (128, 128)),
        (512, True, (128, 128)),
        (8192, False, (64, 128)),
        (8192, True, (128, 256)),
    ],
)
def test_the_smallest_tiles_are_for_what_runs_at_once(monkeypatch, rows, fast, tile):
    def empty(*shape: int, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    scales = empty(rows, 1, dtype=torch.float32), empty(4096, 1, dtype=torch.float32)
    how = {"format_a": "row", "format_b": "row", "global_scale_a": None, "global_scale_b": None}
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(products, "launch", lambda *_, **meta: seen.append((meta["BLOCK_M"], meta["BLOCK_N"])))
    with compiling(Target("nvidia", "sm_90"), multiprocessors=132):
        module.scaled_mm(empty(rows, 512), empty(4096, 512), *scales, out_dtype="bfloat16", use_fast_accum=fast, **how)
    assert seen == [tile]


# --- routing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "format", "dtype", "chosen"),
    [
        ("amd:gfx942", "block_1x128", "float8_e4m3fnuz", "triton.scaled_mm"),
        ("amd:gfx942", "row", "float8_e4m3fn", "triton.scaled_mm_decoded"),
        ("amd:gfx1100", "mxfp8", "float8_e4m3fn", "triton.scaled_mm_decoded"),
        ("nvidia:sm_80", "row", "float8_e4m3fn", "triton.scaled_mm_decoded"),
    ],
)
def test_where_no_vendor_s_product_serves_it_goes_before_operands_decoded_into_memory(target, format, dtype, chosen):
    scale = "float8_e8m0fnu" if format == "mxfp8" else "float32"
    dtypes = {"a": dtype, "b": dtype, "scale_a": scale, "scale_b": scale}
    decision = portakernel.explain("scaled_mm", target=target, dtype=dtypes, format_a=format, format_b=format)
    assert decision.chosen.name == chosen
